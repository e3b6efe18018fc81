//! Recordings through the command line: the server's own of a volume, with a crash, a plan without
//! a file, and a disk of this machine.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use support::PATIENCE;
use support::clock::Deadline;
use support::nbd::Client;
use support::process::start;
use support::server::{Server, evenkeel};
use support::tools::skipped;

const READS: u64 = 300;
const READ_BYTES: u32 = 8_192;
const WRITES: u64 = 200;

/// Makes the reads and writes of the test, without waiting for the recording.
fn work(server: &Server, volume: &str) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    for turn in 0..READS.max(WRITES) {
        if turn < READS {
            client.read(turn * 65_536, READ_BYTES).expect("read");
        }
        if turn < WRITES {
            client.write(turn * 65_536, &[7; 4_096]).expect("written");
        }
    }
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn number(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("{field} of {line}"))
}

fn sum(lines: &[Value], field: &str) -> u64 {
    lines.iter().map(|line| number(line, field)).sum()
}

/// Returns the server's recording of a volume, once it contains `reads` reads.
#[track_caller]
fn recorded(server: &Server, volume: &str, reads: u64) -> Vec<Value> {
    let mut found = Vec::new();
    Deadline::after(PATIENCE).ask("a recording of all reads", || {
        found = lines(&server.evenkeel(&format!("record {volume}")).ok());
        sum(&found, "reads") >= reads
    });
    found
}

/// Writes until one of the writes is recorded, and returns their number. Writes before the first
/// poll of a restarted server are not recorded.
#[track_caller]
fn writes_until_recorded(server: &Server, volume: &str) -> u64 {
    let before = sum(&recorded(server, volume, 0), "writes");
    let mut client = Client::open(server.nbd, volume).expect("attached");
    let mut count = 0;
    Deadline::after(PATIENCE).ask("a look", || {
        client.write(0, &[7; 4_096]).expect("written");
        count += 1;
        sum(&recorded(server, volume, 0), "writes") > before
    });
    count
}

/// Checks that lines do not overlap; returns the gaps between them.
fn gaps_ms(lines: &[Value]) -> Vec<u64> {
    let end = |line: &Value| number(line, "start_ms") + number(line, "length_ms");
    let space = |two: &[Value]| number(&two[1], "start_ms").checked_sub(end(&two[0]));
    let spaces = lines.windows(2).map(|two| space(two).expect("lines do not overlap"));
    spaces.filter(|space| *space > 0).collect()
}

/// Returns the bytes of all files of a folder; 0 if there is no folder.
fn bytes(folder: &Path) -> u64 {
    let Ok(files) = std::fs::read_dir(folder) else { return 0 };
    files.map(|file| file.expect("a file").metadata().expect("its size").len()).sum()
}

#[test]
fn a_volume_is_recorded_over_a_crash_and_planned_without_a_file() {
    let mut server = Server::start("--store local");
    let volume = server.attached("--type gp3 --size 10");
    work(&server, &volume);
    let found = recorded(&server, &volume, READS);
    let amounts = ["reads", "writes", "read_bytes", "write_bytes"].map(|it| sum(&found, it));
    let expected = [READS, WRITES, READS * u64::from(READ_BYTES), WRITES * 4_096];
    assert_eq!(amounts, expected);
    assert!(gaps_ms(&found).is_empty(), "{found:?}");
    assert!(sum(&found, "write_ns") > 0, "{found:?}");

    // Without --capacity: the server knows it.
    let plan = server.evenkeel(&format!("plan {volume} --types gp3 --days-min 0")).ok();
    assert!(plan.starts_with(&volume) && plan.contains("gp3 10 GiB, 3000 IOPS"), "{plan}");
    assert!(plan.contains("note: its limits and its size are those of now"), "{plan}");
    // The lines are valid as a trace file, too.
    let file = server.folder().join("volume.jsonl");
    server.evenkeel(&format!("record {volume} --file {}", file.display())).ok();
    let same = format!("plan {} --types gp3 --capacity 10 --days-min 0", file.display());
    assert!(server.evenkeel(&same).ok().contains("gp3 10 GiB, 3000 IOPS"));

    // It is in a file after ten seconds at most, and survives a crash there. One more read, so that
    // the volume is not idle; it may come after the file is written.
    let folder = server.data_dir().join("recordings").join(&volume);
    let before = bytes(&folder);
    Client::open(server.nbd, &volume).expect("attached").read(0, READ_BYTES).expect("read");
    Deadline::after(PATIENCE * 2).ask("a block in the file", || bytes(&folder) > before);
    server.kill_9();
    server.restart();
    let extra = writes_until_recorded(&server, &volume);
    work(&server, &volume);
    // The last requests are reads.
    let found = recorded(&server, &volume, 2 * READS);
    let reads = sum(&found, "reads");
    let writes = sum(&found, "writes");
    assert!((2 * READS..=2 * READS + 1).contains(&reads), "{reads}");
    assert!((2 * WRITES..=2 * WRITES + extra).contains(&writes), "{writes}, {extra}");
    assert!(!gaps_ms(&found).is_empty(), "{found:?}");
    let recent = lines(&server.evenkeel(&format!("record {volume} --since 1d")).ok());
    assert_eq!(sum(&recent, "reads"), reads);

    // It survives the deletion of the volume, and a clean stop.
    server.evenkeel(&format!("volume detach {volume}")).ok();
    server.evenkeel(&format!("volume rm {volume}")).ok();
    server.stop();
    server.restart();
    assert_eq!(sum(&recorded(&server, &volume, 2 * READS), "writes"), writes);
    let plan = server.evenkeel(&format!("plan {volume} --capacity 10 --days-min 0")).ok();
    assert!(plan.contains("note: the volume is deleted"), "{plan}");
}

#[test]
fn mistakes_of_a_recording_are_named() {
    let server = Server::start("--store memory --record-days 0");
    let volume = server.attached("--type gp3 --size 10");
    let text = server.evenkeel(&format!("record {volume}")).fails_with(1);
    assert!(text.contains("--record-days 0"), "{text}");
    let text = server.evenkeel(&format!("record {volume} --for 1h")).fails_with(2);
    assert!(text.contains("the server records volumes all the time"), "{text}");
    let text = server.evenkeel("record vol-00000000000000fff --since 1w").fails_with(2);
    assert!(text.contains("unit w is not s, m, h or d"), "{text}");
    let text = server.evenkeel("record /dev/nothing").fails_with(3);
    assert!(text.contains("/dev/nothing: No such file"), "{text}");
    let text = server.evenkeel("record /dev/null").fails_with(2);
    assert!(text.contains("/dev/null is neither a block device nor a volume"), "{text}");
    let text = server.evenkeel("record /dev/null --since 1h").fails_with(2);
    assert!(text.contains("a disk is recorded from now on"), "{text}");
    let text = server.evenkeel("plan vol-00000000000000fff").fails_with(3);
    assert!(text.contains("--record-days 0"), "{text}");
}

/// Returns a disk of this machine.
fn disk() -> Option<String> {
    let names = std::fs::read_dir("/sys/class/block").ok()?;
    let paths = names.filter_map(|name| Some(format!("/dev/{}", name.ok()?.file_name().to_str()?)));
    let disk = paths.into_iter().find(|path| Path::new(path).exists());
    if disk.is_none() {
        skipped("this machine has no disk in /dev");
    }
    disk
}

#[test]
fn a_disk_of_this_machine_is_recorded_until_its_time_or_a_signal() {
    let Some(disk) = disk() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("disk.jsonl");
    let arguments = format!("record {disk} --for 2s --file {}", file.display());
    support::process::run(evenkeel(folder.path()).args(arguments.split(' '))).ok();
    let text = std::fs::read_to_string(&file).expect("lines");
    let found = lines(&text);
    assert!(!found.is_empty() && gaps_ms(&found).is_empty(), "{text}");
    assert!(
        found.iter().all(|line| number(line, "idle_ms") <= number(line, "length_ms")),
        "{text}"
    );
    assert!(disk.ends_with(found[0]["volume"].as_str().expect("a name")), "{text}");

    let mut running = start(evenkeel(folder.path()).args(["record", &disk]));
    let first = running.wait_for_line("\"start_ms\"");
    assert_eq!(lines(&first).len(), 1, "{first}");
    running.signal(Signal::TERM);
    let output = running.finish();
    assert!(output.status.success() && output.stdout.ends_with('\n'), "{output}");
    assert!(gaps_ms(&lines(&output.stdout)).is_empty(), "{output}");
}
