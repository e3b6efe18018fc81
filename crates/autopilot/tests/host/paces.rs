//! Durations of durable writes while data moves at a pace.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::load::{self, Load};
use super::support::{Disk, MIB, PATIENCE, Stage, check_file, run, skipped, write_file};
use evenkeel_autopilot::Host;
use evenkeel_lab::child::wait_until;
use evenkeel_os::clock;
use evenkeel_planner::autopilot::operation::Verb;

/// The limits of each device, as those of a gp3 volume without extra performance.
const BYTES_PER_S: u64 = 125 * MIB;
const IOPS: u64 = 3_000;
/// Bytes of the file whose data moves.
const FILE_BYTES: u64 = 400 * MIB;
/// The files of the root cgroup that limit all requests to a device, and their values.
const LIMITS: [(&str, u64); 4] = [
    ("read_bps", BYTES_PER_S),
    ("write_bps", BYTES_PER_S),
    ("read_iops", IOPS),
    ("write_iops", IOPS),
];

/// Limits that end when this is dropped.
struct Limited(Vec<(String, String)>);

impl Limited {
    /// Limits devices; `None` without cgroup v1, whose root cgroup has limits.
    fn new(disks: &[Disk]) -> Option<Self> {
        let mut made = Self(Vec::new());
        for disk in disks {
            let name = disk.device.file_name()?.to_str()?;
            let number = fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
            for (limit, value) in LIMITS {
                let path = format!("/sys/fs/cgroup/blkio/blkio.throttle.{limit}_device");
                fs::write(&path, format!("{} {value}", number.trim())).ok()?;
                made.0.push((path, format!("{} 0", number.trim())));
            }
        }
        Some(made)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        for (path, text) in &self.0 {
            let _ = fs::write(path, text);
        }
    }
}

fn summary(mut latencies: Vec<Duration>) -> String {
    let mut ms =
        |part| load::permille(&mut latencies, part).as_micros().div_ceil(100) as f64 / 10.0;
    format!("p50 {:5.1} p99 {:6.1} max {:6.1} ms", ms(500), ms(990), ms(1_000))
}

/// Moves a file at a pace, and prints how long it takes and durable writes take.
fn measure(mib_per_s: u64) {
    let Some(mut stage) = Stage::new(&[700, 2_000], 1) else { return };
    let folder = stage.mounted.folder.clone();
    let versions = load::prepare(&folder);
    write_file(&folder.join("data"), FILE_BYTES, 9);
    let host = &mut stage.host;
    host.execute(&Verb::Add { volume: "vol-2".to_owned() }).expect("an added device");
    run(&["sync".as_ref(), "-f".as_ref(), folder.as_os_str()]);
    let limited = Limited::new(&stage.disks);
    if limited.is_none() {
        skipped("no cgroup v1 with blkio, which limits a whole device");
        return;
    }
    let load = Load::start(&folder, versions, 5);
    clock::pause(Duration::from_secs(4));
    let (versions, base) = load.stop(false);
    let load = Load::start(&folder, versions, 6);
    let begin = clock::now();
    let volume = "vol-1".to_owned();
    host.execute(&Verb::Remove { volume, bytes_per_s: mib_per_s * MIB }).expect("a move");
    wait_until("the end of the move", PATIENCE, || !is_moving(&folder)).expect("its end");
    let took = clock::now() - begin;
    let (versions, during) = load.stop(false);
    drop(limited);
    let seen = super::support::settled(host);
    assert_eq!(super::support::device(&seen, "vol-1"), None);
    load::check(&folder, &versions.durable, &versions.begun);
    check_file(&folder.join("data"), FILE_BYTES, 9);
    let rate = FILE_BYTES as f64 / MIB as f64 / took.as_secs_f64();
    println!(
        "at {mib_per_s:4} MiB/s {:5.1} s {rate:5.1} MiB/s, {:4} writes: {}; before: {}",
        took.as_secs_f64(),
        during.len(),
        summary(during),
        summary(base),
    );
}

/// Returns whether an exclusive operation runs, from the file that a person would read.
fn is_moving(mount: &Path) -> bool {
    let words = ["findmnt", "-n", "-o", "UUID"].map(AsRef::as_ref);
    let words: Vec<&std::ffi::OsStr> = words.into_iter().chain([mount.as_os_str()]).collect();
    let uuid = run(&words);
    let path = format!("/sys/fs/btrfs/{}/exclusive_operation", uuid.trim());
    fs::read_to_string(path).is_ok_and(|text| text.trim() != "none")
}

/// Prints a table. It fails if data is lost; latencies are not judged, since they depend on the
/// machine.
#[test]
#[ignore = "full: crates/autopilot/tests/host/verbs.rs::\
            data_leaves_a_removed_device_at_the_set_pace stays"]
fn durable_writes_are_measured_while_data_moves() {
    for mib_per_s in [1_000, 62, 31, 15] {
        measure(mib_per_s);
    }
}
