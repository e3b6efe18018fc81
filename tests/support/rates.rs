//! Rates of real clients on a machine that sometimes pauses.

use super::machine::{alone, beside_others};
use super::process::Running;
use super::server::Server;
use super::tools::{fio_result, skipped, start_fio};

/// Requests that a load keeps under way.
pub const DEPTH: u64 = 32;

const ATTEMPTS: u32 = 3;

/// Repeats a run if it returns false for too low a rate, and prints that; too high a rate panics in
/// it. No other measurement of rates runs meanwhile.
pub fn at_least_once(run: impl Fn() -> bool) {
    let _alone = alone();
    at_least_once_whatever_else_runs(run);
}

/// Repeats a run as [`at_least_once`] does. The run needs so little of the machine that others like
/// it may run meanwhile.
pub fn at_least_once_beside_others(run: impl Fn() -> bool) {
    let _turn = beside_others();
    at_least_once_whatever_else_runs(run);
}

/// Repeats a run as [`at_least_once`] does, without a turn: it takes so long that tests which need
/// the machine alone must not wait for it.
pub fn at_least_once_whatever_else_runs(run: impl Fn() -> bool) {
    let good = (1..=ATTEMPTS).any(|attempt| {
        let good = run();
        if !good {
            println!("attempt {attempt} of {ATTEMPTS}: less than promised");
        }
        good
    });
    assert!(good, "less than promised in each of {ATTEMPTS} runs");
}

/// The result of a run that judges itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// As expected.
    Good,
    /// Less than expected.
    Short,
    /// Unknown, as the machine stood still for too long.
    Undecided,
}

/// Repeats a run until it is good. If the machine stands still in every run, the test is skipped
/// with a message.
pub fn at_least_once_or_undecided(run: impl Fn() -> Came) {
    let mut came = Vec::new();
    for attempt in 1..=ATTEMPTS {
        came.push(run());
        if came.ends_with(&[Came::Good]) {
            return;
        }
        println!("attempt {attempt} of {ATTEMPTS}: {came:?}");
    }
    assert!(came.iter().all(|came| *came == Came::Undecided), "{came:?} in {ATTEMPTS} runs");
    skipped(&format!("not judged: this machine stood still too long in each of {ATTEMPTS} runs"));
}

/// Starts random I/O as fast as possible, with a report each second.
pub fn load(server: &Server, uri: &str, job: &str) -> Running {
    let common = "--size=1g --time_based --status-interval=1 --eta=never";
    start_fio(server, uri, &format!("{common} --iodepth={DEPTH} {job}"))
}

/// Starts random reads of 16 KiB for `seconds`, with `depth` under way and one report at the end.
pub fn reads(server: &Server, uri: &str, depth: u64, seconds: u64) -> Running {
    let job = "--rw=randread --bs=16k --size=1g --time_based";
    start_fio(server, uri, &format!("{job} --iodepth={depth} --runtime={seconds}"))
}

/// The count and the duration of reads.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub count: u64,
    pub ms: u64,
}

impl Done {
    /// Returns those of `reads`, which must end without an error.
    #[track_caller]
    pub fn by(reads: Running) -> Self {
        let read = fio_result(reads)["read"].clone();
        let of = |name: &str| read[name].as_u64().expect("a count");
        assert_eq!(of("short_ios") + of("drop_ios"), 0, "{read}");
        Self { count: of("io_bytes") / 16_384, ms: of("runtime") }
    }

    /// Returns whether this is at least `percent` of `per_second`, and prints it if not. Too much
    /// panics.
    #[track_caller]
    pub fn reaches_percent(self, percent: u64, per_second: u64) -> bool {
        // Beyond the rate: saved tokens, 50 ms, and the inaccuracy of two clock readings.
        let most = per_second * (self.ms + 60) / 1_000 + DEPTH;
        assert!(self.count <= most, "{self:?}: at most {most} at {per_second} IOPS");
        let due = per_second * self.ms / 1_000;
        let reached = self.count >= due * percent / 100;
        if !reached {
            println!("{self:?}: {due} were due");
        }
        reached
    }
}
