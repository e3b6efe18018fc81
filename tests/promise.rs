//! Provisioned rates are served: never more, and no less while the machine keeps up.
//!
//! More is a fault whenever it is measured. Less may be due to the machine, which pauses or has
//! other work. It only counts as a fault if it is measured in each of several runs.

mod support;

use serde_json::Value;
use support::process::Running;
use support::rates::{DEPTH, at_least_once_beside_others, load};
use support::server::Server;
use support::tools::{absent, reports};

/// Saved tokens of an idle volume, 50 ms, and the inaccuracy of two clock readings.
const TOLERANCE_MS: u64 = 60;

/// The progress of a job at some moment of its run.
#[derive(Clone, Copy, Debug)]
struct Count {
    at_ms: u64,
    /// I/Os that were completed.
    ios: u64,
}

impl Count {
    fn of(report: &Value) -> Self {
        let job = &report["jobs"][0];
        let of = |direction: &str, name: &str| job[direction][name].as_u64().expect("a count");
        // fio's own count of I/Os includes those under way; its count of bytes does not.
        let block_bytes = match job["job options"]["bs"].as_str().expect("a block size") {
            "4k" => 4_096,
            "8k" => 8_192,
            "16k" => 16_384,
            "256k" => 262_144,
            other => panic!("bs={other}"),
        };
        Self {
            at_ms: of("read", "runtime").max(of("write", "runtime")),
            ios: (of("read", "io_bytes") + of("write", "io_bytes")) / block_bytes,
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self { at_ms: self.at_ms - earlier.at_ms, ios: self.ios - earlier.ios }
    }

    /// Fails if this is more than `per_second` allows, with `saved` I/Os in addition.
    #[track_caller]
    fn check_ceiling(self, per_second: u64, saved: u64) {
        let most = per_second * (self.at_ms + TOLERANCE_MS) / 1_000 + saved + DEPTH + 1;
        assert!(self.ios <= most, "{self:?}: at most {most} I/Os at {per_second} IOPS");
    }

    /// Returns whether this is as much as `per_second` allows, with `saved` I/Os, or at most 3 %
    /// less.
    fn reaches(self, per_second: u64, saved: u64) -> bool {
        self.reaches_percent(97, per_second, saved)
    }

    fn reaches_percent(self, percent: u64, per_second: u64, saved: u64) -> bool {
        let due = per_second * self.at_ms / 1_000 + saved;
        let reached = self.ios >= due * percent / 100;
        if !reached {
            println!("{self:?}: {due} I/Os were due");
        }
        reached
    }
}

/// Waits for the next `count` reports.
fn next_reports(load: &mut Running, count: u32) {
    for _ in 0..count {
        // The last line of a job's report.
        load.wait_for_line("\"latency_window\"");
    }
}

/// Returns the counts of all reports, the last one at the end.
fn counts(load: Running) -> Vec<Count> {
    let output = load.finish();
    assert!(output.status.success(), "{output}");
    reports(&output.stdout).iter().map(Count::of).collect()
}

#[test]
fn volumes_get_their_provisioned_rate_side_by_side() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let io2 = server.attached("--type io2 --size 10 --iops 1000");
        let gp3 = server.attached("--type gp3 --size 10 --iops 3000");
        let loads = [
            (load(&server, &server.tcp_uri(&io2), "--rw=randread --bs=16k --runtime=8"), 1_000),
            (load(&server, &server.unix_uri(&gp3), "--rw=randrw --bs=4k --runtime=8"), 3_000),
        ];
        let mut reached = true;
        for (load, iops) in loads {
            let counts = counts(load);
            let last = *counts.last().expect("a report");
            last.check_ceiling(iops, 0);
            for pair in counts.windows(2) {
                pair[1].since(pair[0]).check_ceiling(iops, 0);
            }
            reached &= last.reaches(iops, 0);
        }
        reached
    });
}

#[test]
fn many_connections_share_one_volumes_limit() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let io2 = server.attached("--type io2 --size 10 --iops 1500");
        let job = "--rw=randwrite --bs=8k --runtime=4 --numjobs=4 --group_reporting";
        let counts = counts(load(&server, &server.tcp_uri(&io2), job));
        println!("{counts:?}");
        let last = *counts.last().expect("a report");
        last.check_ceiling(1_500, 0);
        last.reaches(1_500, 0)
    });
}

#[test]
fn a_volume_gets_its_mebibytes_a_second() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let gp3 = server.attached("--type gp3 --size 10 --iops 3000 --throughput 125");
        let load = load(&server, &server.tcp_uri(&gp3), "--rw=randread --bs=256k --runtime=5");
        let last = *counts(load).last().expect("a report");
        // 125 MiB/s in pieces of 256 KiB.
        last.check_ceiling(500, 0);
        last.reaches(500, 0)
    });
}

#[test]
fn a_modification_under_load_acts_at_once() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let volume = server.attached("--type io2 --size 10 --iops 1000");
        let mut load =
            load(&server, &server.tcp_uri(&volume), "--rw=randread --bs=16k --runtime=11");
        next_reports(&mut load, 3);
        server.evenkeel(&format!("volume modify {volume} --iops 3000")).ok();
        next_reports(&mut load, 4);
        server.evenkeel(&format!("volume modify {volume} --iops 500")).ok();
        let counts = counts(load);
        println!("{counts:?}");
        let [third, fourth, seventh, eighth] = [2, 3, 6, 7].map(|index| counts[index]);
        let last = *counts.last().expect("a report");
        third.check_ceiling(1_000, 0);
        seventh.since(third).check_ceiling(3_000, 0);
        last.since(eighth).check_ceiling(500, 0);
        // Each phase lasts only some seconds, in which a pause of the machine has a larger effect.
        // It still shows which limit applies.
        third.reaches_percent(85, 1_000, 0)
            && seventh.since(fourth).reaches_percent(85, 3_000, 0)
            && last.since(eighth).reaches_percent(85, 500, 0)
    });
}

#[test]
fn credits_are_spent_to_the_last_one_and_no_further() {
    if absent(&["fio"]) {
        return;
    }
    const CREDITS: u64 = 5_000;
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let gp2 = server.attached("--type gp2 --size 100");
        server.evenkeel(&format!("volume credits {gp2} --set 0")).ok();
        let mut load = load(&server, &server.tcp_uri(&gp2), "--rw=randread --bs=16k --runtime=9");
        next_reports(&mut load, 2);
        server.evenkeel(&format!("volume credits {gp2} --set {CREDITS}")).ok();
        let counts = counts(load);
        println!("{counts:?}");
        let second = counts[1];
        let last = *counts.last().expect("a report");
        last.since(second).check_ceiling(300, CREDITS);
        for pair in counts.windows(2) {
            pair[1].since(pair[0]).check_ceiling(3_000, 0);
        }
        // After seven seconds, of which two were the burst, only the baseline is left.
        let calm = counts[counts.len() - 3];
        last.since(calm).check_ceiling(300, 0);
        last.since(second).reaches(300, CREDITS)
    });
}
