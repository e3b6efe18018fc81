//! Rates of real clients on a machine that pauses now and then.

use super::machine::{alone, beside_others};
use super::process::Running;
use super::server::Server;
use super::tools::{fio_result, skipped, start_fio};

/// Requests that a load keeps in flight.
pub const DEPTH: u64 = 32;

const ATTEMPTS: u32 = 3;

/// Repeats a run in which something fell short, and says so; too much of something panics in it.
/// Nothing else that measures rates runs meanwhile.
pub fn at_least_once(run: impl Fn() -> bool) {
    let _alone = alone();
    at_least_once_whatever_else_runs(run);
}

/// The same for a run that asks so little of the machine that others like it may go on meanwhile.
pub fn at_least_once_beside_others(run: impl Fn() -> bool) {
    let _turn = beside_others();
    at_least_once_whatever_else_runs(run);
}

/// The same for a run that takes so long that what needs the machine alone is not to wait for it.
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

/// What came of a run that judges itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// As it must be.
    Good,
    /// Less than that.
    Short,
    /// The machine stood still for too long to tell.
    Undecided,
}

/// Repeats a run until it is good. A machine that stands still in every run decides nothing: that
/// is said aloud, and is no fault of what was run.
pub fn at_least_once_or_undecided(run: impl Fn() -> Came) {
    let mut came = Vec::new();
    for attempt in 1..=ATTEMPTS {
        came.push(run());
        if came.ends_with(&[Came::Good]) {
            return;
        }
        println!("attempt {attempt} of {ATTEMPTS}: {came:?}");
    }
    assert!(came.iter().all(|one| *one == Came::Undecided), "{came:?} in {ATTEMPTS} runs");
    skipped(&format!("not judged: this machine stood still too long in each of {ATTEMPTS} runs"));
}

/// Random I/O as fast as it goes, with a report each second.
pub fn load(server: &Server, uri: &str, job: &str) -> Running {
    let common = "--size=1g --time_based --status-interval=1 --eta=never";
    start_fio(server, uri, &format!("{common} --iodepth={DEPTH} {job}"))
}

/// Random reads of 16 KiB for so many seconds, so many in flight, with one report in the end.
pub fn reads(server: &Server, uri: &str, depth: u64, seconds: u64) -> Running {
    let job = "--rw=randread --bs=16k --size=1g --time_based";
    start_fio(server, uri, &format!("{job} --iodepth={depth} --runtime={seconds}"))
}

/// What reads have done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub count: u64,
    pub ms: u64,
}

impl Done {
    /// Of `reads`, which must end without an error.
    #[track_caller]
    pub fn by(reads: Running) -> Self {
        let read = fio_result(reads)["read"].clone();
        let of = |name: &str| read[name].as_u64().expect("a count");
        assert_eq!(of("short_ios") + of("drop_ios"), 0, "{read}");
        Self { count: of("io_bytes") / 16_384, ms: of("runtime") }
    }

    /// Whether this is so much of `per_second`; says so if it is not. Too much is a fault.
    #[track_caller]
    pub fn reaches_percent(self, percent: u64, per_second: u64) -> bool {
        // On top of the rate: what may be saved, 50 ms, and what is lost in reading two clocks.
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
