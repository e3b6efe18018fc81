//! The leftovers of `evenkeel-bench`. An interrupted run leaves none. Those of a killed run are
//! removed by `evenkeel-bench clean` or by the next run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;
use support::bench::{
    DATABASES, bench, databases, has_no_database, mounts, open_folder, run_long, serving,
};
use support::clock::Deadline;
use support::machine;
use support::process::{Running, run, start};
use support::tools::{absent, tool};

/// A run that removes the leftovers of an earlier one, and then has no file system to work on.
const NEXT: &[&str] =
    &["run", "desktop-suite", "--live", "--only", "others S2", "--runs", "1", "--no-mount"];

/// A part of the kernel's line for the file system of a run.
const MOUNTED: &str = "/mnt ";

/// Runs that mount: nbdfuse's file, a striped one that the program itself serves, and five of
/// nbdfuse's.
const MOUNTING: [&[&str]; 3] = [
    &["run", "five-minute-job", "--live", "--runs", "1"],
    &["run", "stripe-consistency", "--live", "--runs", "1", "--only", "m1.large rndrw"],
    &["run", "burst-and-stripe", "--live", "--only", "btrfs 5"],
];

/// Starts a run and waits until the kernel lists one of its mounts or loop devices. Returns `None`
/// without root or FUSE, which the run must have reported.
fn run_with(folder: &Path, words: &[&str], sign: &str) -> Option<Running> {
    let mut running = start(&mut bench(folder, words));
    let mounted = Deadline::after(Duration::from_secs(60))
        .comes(|| !running.is_running() || mounts(folder).iter().any(|line| line.contains(sign)));
    if mounted && running.is_running() {
        return Some(running);
    }
    let output = running.finish();
    assert!(output.stderr.contains("skipped: no file systems"), "{output}");
    None
}

/// Removes what a run has left if its test fails: a mount without its server would disturb every
/// other test that makes a file system.
struct Guard<'a>(&'a Path);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = bench(self.0, &["clean"]).output();
        }
    }
}

/// Removes the leftovers of an earlier run, of which there must be some.
#[track_caller]
fn clean(folder: &Path) {
    let output = run(&mut bench(folder, &["clean"])).ok();
    assert!(output.contains("an earlier run had left"), "{output}");
    assert_eq!(databases(folder), Vec::<String>::new(), "{output}");
    assert_eq!(mounts(folder), Vec::<String>::new(), "{output}");
    let output = run(&mut bench(folder, &["clean"])).ok();
    assert_eq!(output, "earlier runs have left nothing\n");
}

/// Starts a run with a database and waits until its server works; returns `None` if it cannot run.
/// A PostgreSQL that serves has several processes, a MariaDB has one.
fn database_run(folder: &Path, name: &str) -> Option<Running> {
    let case = format!("{name} on io1");
    let words = ["run", "batch-beside-oltp", "--live", "--only", &case];
    let mut running = start(&mut bench(folder, &words));
    let processes = if name == "PostgreSQL" { 4 } else { 1 };
    let works = Deadline::after(Duration::from_secs(60))
        .comes(|| !running.is_running() || serving(folder).len() >= processes);
    if works && running.is_running() {
        return Some(running);
    }
    let output = running.finish();
    assert!(has_no_database(&output), "{output}");
    None
}

#[test]
#[ignore = "full: tests/leftovers.rs::a_database_that_a_killed_run_left_is_stopped stays"]
fn a_database_is_stopped_when_its_run_is_interrupted() {
    let _turn = machine::mounts();
    for name in DATABASES {
        let folder = open_folder();
        let _guard = Guard(folder.path());
        let Some(running) = database_run(folder.path(), name) else { continue };
        running.signal(Signal::INT);
        let output = running.finish();
        assert!(!output.status.success(), "{output}");
        assert_eq!(databases(folder.path()), Vec::<String>::new(), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
        assert!(!output.stderr.contains("left behind"), "{output}");
    }
}

/// The database server of a killed run continues without a volume.
#[test]
fn a_database_that_a_killed_run_left_is_stopped() {
    let _turn = machine::mounts();
    for name in DATABASES {
        let folder = open_folder();
        let _guard = Guard(folder.path());
        let Some(killed) = database_run(folder.path(), name) else { continue };
        killed.kill_9();
        assert!(!mounts(folder.path()).is_empty(), "nobody took it down");
        clean(folder.path());
    }
}

#[test]
fn a_run_that_is_interrupted_unmounts_before_it_ends() {
    if absent(&["nbdfuse", "fusermount3", "sysbench", "mkfs.xfs", "mkfs.btrfs"]) {
        return;
    }
    let _turn = machine::mounts();
    // By a signal to the process, and by Ctrl-C.
    for (words, is_terminal) in MOUNTING.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let _guard = Guard(folder.path());
        let Some(running) = run_with(folder.path(), words, MOUNTED) else { return };
        if is_terminal {
            running.signal_group(Signal::INT)
        } else {
            running.signal(Signal::INT)
        }
        let output = running.finish();
        assert!(!output.status.success(), "{output}");
        assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
        assert!(!output.stderr.contains("left behind"), "{output}");
    }
}

/// A run that is killed leaves a mount on a server that has ended.
#[test]
fn mounts_of_a_killed_run_are_removed() {
    if absent(&["nbdfuse", "fusermount3", "sysbench", "mkfs.xfs", "mkfs.btrfs"]) {
        return;
    }
    let _turn = machine::mounts();
    for words in MOUNTING {
        let folder = tempfile::tempdir().unwrap();
        let _guard = Guard(folder.path());
        let Some(killed) = run_with(folder.path(), words, MOUNTED) else { return };
        killed.kill_9();
        assert!(!mounts(folder.path()).is_empty(), "nobody took it down");
        let words = ["run", "burst-and-stripe", "--live", "--only", "no such case"];
        let text = run(&mut bench(folder.path(), &words)).fails_with(2);
        assert!(text.contains("there are \"gp2 1 x 500\""), "{text}");
        assert!(!mounts(folder.path()).is_empty(), "a run that did not begin took it down");
        clean(folder.path());
    }
}

/// The next run removes the leftovers, too, before it begins.
#[test]
fn mounts_of_a_killed_run_are_removed_by_the_next_run() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _turn = machine::mounts();
    let folder = tempfile::tempdir().unwrap();
    let Some(killed) = run_with(folder.path(), MOUNTING[0], MOUNTED) else { return };
    killed.kill_9();
    let output = run_long(bench(folder.path(), NEXT));
    assert!(output.stderr.contains("an earlier run had left"), "{output}");
    assert_eq!(mounts(folder.path()), Vec::<String>::new(), "{output}");
}

/// The removal is tried again, and mounts of a run that still uses them stay.
#[test]
fn mounts_that_cannot_be_removed_are_reported() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _turn = machine::mounts();
    let folder = tempfile::tempdir().unwrap();
    let Some(running) = run_with(folder.path(), MOUNTING[0], MOUNTED) else { return };
    let here = ["clean", "--dir", folder.path().to_str().unwrap()];
    let output = run(&mut bench(folder.path(), &here)).ok();
    assert_eq!(output, "earlier runs have left nothing\n");
    assert!(!mounts(folder.path()).is_empty(), "the mount of a run that goes on is gone");
    running.kill_9();
    let mut runs = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let left = runs.find(|path| path.to_string_lossy().contains("evenkeel-suite-")).unwrap();
    let busy = left.join("busy");
    std::fs::create_dir(&busy).unwrap();
    run(tool("mount", "-t tmpfs none").arg(&busy)).ok();
    let cleaned = run(&mut bench(folder.path(), &here));
    run(tool("umount", "").arg(&busy)).ok();
    let text = cleaned.fails_with(1);
    assert!(text.contains("busy") && text.contains("not everything could be taken down"), "{text}");
    clean(folder.path());
}

/// A thread that waits for a file of its own process is not ended by a signal, but once the kernel
/// fails its request.
#[test]
fn a_run_that_is_killed_in_its_own_calls_ends_when_it_is_taken_down() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _turn = machine::mounts();
    let folder = tempfile::tempdir().unwrap();
    let Some(killed) = run_with(folder.path(), MOUNTING[0], MOUNTED) else { return };
    let mounted = mounts(folder.path());
    let mut at =
        mounted.iter().filter_map(|line| line.split(' ').find(|word| word.ends_with("/mnt")));
    let file = Path::new(at.next_back().expect("it is mounted")).join("iomelt");
    let is_written = || std::fs::metadata(&file).is_ok_and(|found| found.len() > 64 << 10);
    assert!(Deadline::after(Duration::from_secs(60)).comes(is_written), "{}", file.display());
    killed.signal(Signal::KILL);
    clean(folder.path());
    let ended = killed.finish();
    assert_eq!(ended.status.signal(), Some(Signal::KILL.as_raw()), "{ended}");
}

/// The frontend is mounted first, then its file becomes a loop device, then a file system is made
/// on it. A run that is killed between two of these steps leaves nothing that cannot be removed.
#[test]
fn a_run_that_is_killed_while_it_sets_up_is_taken_down() {
    if absent(&["nbdfuse", "fusermount3"]) {
        return;
    }
    let _turn = machine::mounts();
    for sign in ["/fuse-0 ", "/fuse-0/nbd"] {
        let folder = tempfile::tempdir().unwrap();
        let _guard = Guard(folder.path());
        let Some(killed) = run_with(folder.path(), MOUNTING[0], sign) else { return };
        killed.kill_9();
        clean(folder.path());
    }
}
