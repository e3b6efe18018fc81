//! The priority of the data plane's threads: if the kernel allows the value of
//! `--data-plane-priority`, the cores of a running server have it in `/proc`, and no other threads.

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::process::{run, start};
use support::server::{evenkeel, new_folder};
use support::tools::{absent, skipped};

/// The scheduling policy and priorities of a thread, as the kernel numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Standing {
    policy: u32,
    real_time: u32,
    nice: i32,
}

const NICE: Standing = Standing { policy: 0, real_time: 0, nice: -15 };

/// Returns the standing of this process, which the server inherits.
fn normal() -> Standing {
    let own = threads(std::process::id());
    own.first().expect("this thread").1
}

/// Returns `SCHED_RR` at the lowest priority.
fn real_time() -> Standing {
    Standing { policy: 2, real_time: 1, ..normal() }
}

/// The beginnings of the names of a core's other threads: workers of the kernel, and those of the
/// driver of plain system calls.
const WORKERS: [&str; 2] = ["iou-", "disk"];

/// A program without the capability and the limits for higher priorities.
const WITHOUT_PRIVILEGES: [&str; 5] =
    ["prlimit", "--rtprio=0", "--nice=0", "setpriv", "--bounding-set=-sys_nice"];

/// A program without the capability, but with the limit that allows nice values down to -20.
const WITH_NICE: [&str; 5] =
    ["prlimit", "--rtprio=0", "--nice=40", "setpriv", "--bounding-set=-sys_nice"];

/// Returns the threads of a process with their names.
fn threads(pid: u32) -> Vec<(String, Standing)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    // A thread may end meanwhile.
    let stats = tasks.filter_map(|task| {
        std::fs::read_to_string(task.expect("a thread").path().join("stat")).ok()
    });
    let thread = |stat: String| {
        let (before, after) = stat.rsplit_once(')').expect("a name");
        // The first of these fields is the third one in proc(5).
        let fields: Vec<&str> = after.split_whitespace().collect();
        let standing = Standing {
            policy: fields[41 - 3].parse().expect("a number"),
            real_time: fields[40 - 3].parse().expect("a number"),
            nice: fields[19 - 3].parse().expect("a number"),
        };
        (before.split_once('(').expect("a name").1.to_owned(), standing)
    };
    stats.map(thread).collect()
}

/// Returns `evenkeel serve` with two cores, after these arguments.
fn serve(before: &[&str], folder: &Path, options: &str) -> Command {
    let mut server = evenkeel(folder);
    server.args(["serve", "--listen", "127.0.0.1:0", "--nbd-listen", "127.0.0.1:0"]);
    server.args(["--store", "memory", "--calibrate", "never", "--cores", "2"]);
    server.args(["--data-dir", "data"]).args(options.split_whitespace());
    let [program, words @ ..] = before else { return server };
    let mut command = Command::new(program);
    command.args(words).arg(server.get_program()).args(server.get_args()).current_dir(folder);
    server.get_envs().for_each(|(name, _)| _ = command.env_remove(name));
    command
}

/// Returns the standing of the cores and their workers, and the log of the start. All other threads
/// must have the standing of the process.
fn cores(before: &[&str], options: &str) -> (Standing, String) {
    let (folder, _) = new_folder();
    let mut server = start(serve(before, folder.path(), options).stdin(Stdio::null()));
    server.wait_for_line("SIGTERM stops it");
    let mut own = Vec::new();
    let mut others = Vec::new();
    for (name, standing) in threads(server.id()) {
        let is_core = name.starts_with("core-");
        let is_own = is_core || WORKERS.iter().any(|worker| name.starts_with(worker));
        if is_own { own.push((name, standing)) } else { others.push((name, standing)) }
    }
    assert_eq!(own.iter().filter(|(name, _)| name.starts_with("core-")).count(), 2, "{own:?}");
    assert!(others.iter().all(|(_, standing)| *standing == normal()), "{others:?}");
    let (_, first) = own[0];
    assert!(own.iter().all(|(_, standing)| *standing == first), "{own:?}");
    (first, server.logged().to_owned())
}

/// Succeeds if this machine allows real-time priority.
const MAY_BE_REAL_TIME: &str = "chrt --rr 1 true";

/// Succeeds if it allows a negative nice value: `nice` runs a program in any case.
const MAY_BE_NICE: &str = "nice -n -35 sh -c '[ $(nice) -lt 0 ]'";

fn succeeds(script: &str) -> bool {
    let output = Command::new("sh").args(["-c", script]).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn cores_have_the_priority_that_is_asked_for() {
    assert_eq!(cores(&[], "--data-plane-priority none").0, normal());
    assert_eq!(cores(&[], "--data-plane-priority none --io pread").0, normal());
    if !succeeds(MAY_BE_NICE) {
        return skipped("negative nice values are not allowed");
    }
    assert_eq!(cores(&[], "--data-plane-priority nice").0, NICE);
    assert_eq!(cores(&[], "--data-plane-priority nice --io pread").0, NICE);
    if !succeeds(MAY_BE_REAL_TIME) {
        return skipped("real-time priority is not allowed");
    }
    for options in ["", "--io pread", "--data-plane-priority real-time"] {
        let (standing, logged) = cores(&[], options);
        assert_eq!(standing, real_time(), "{options}");
        assert!(!logged.contains("real-time"), "{logged}");
    }
}

#[test]
fn server_without_privileges_runs_and_names_the_missing_ones() {
    if absent(&["prlimit", "setpriv"]) || !starts(&WITHOUT_PRIVILEGES) {
        return skipped("privileges cannot be dropped here");
    }
    let (standing, logged) = cores(&WITHOUT_PRIVILEGES, "");
    assert_eq!(standing, normal());
    for part in ["real-time priority is refused", "CAP_SYS_NICE", "LimitRTPRIO=1"] {
        assert!(logged.contains(part), "{part}: {logged}");
    }
    let (standing, logged) = cores(&WITHOUT_PRIVILEGES, "--data-plane-priority none");
    assert_eq!((standing, logged.contains("priority")), (normal(), false), "{logged}");
    // Not every machine allows root to raise the limit of nice values.
    if starts(&WITH_NICE) {
        let (standing, logged) = cores(&WITH_NICE, "");
        assert_eq!(standing, NICE);
        assert!(logged.contains("has the nice value -15 instead"), "{logged}");
    }
}

#[test]
fn a_priority_that_is_refused_ends_the_start() {
    if absent(&["prlimit", "setpriv"]) || !starts(&WITHOUT_PRIVILEGES) {
        return skipped("privileges cannot be dropped here");
    }
    for (priority, limit) in [("real-time", "LimitRTPRIO=1"), ("nice", "LimitNICE=-15")] {
        let (folder, _) = new_folder();
        let options = format!("--data-plane-priority {priority}");
        let said = run(&mut serve(&WITHOUT_PRIVILEGES, folder.path(), &options)).fails_with(1);
        for part in [&*format!("data-plane-priority {priority}"), "CAP_SYS_NICE", limit] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn a_priority_that_does_not_exist_is_refused_with_those_that_do() {
    let (folder, _) = new_folder();
    let said = run(&mut serve(&[], folder.path(), "--data-plane-priority highest")).fails_with(2);
    for part in ["'highest'", "--data-plane-priority", "auto, real-time, nice, none"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    std::fs::write(folder.path().join("evenkeel.toml"), "data-plane-priority = \"rt\"\n").unwrap();
    let said = run(&mut serve(&[], folder.path(), "")).fails_with(2);
    assert!(said.contains("must be one of auto, real-time, nice, none"), "{said}");
}

#[test]
fn doctor_says_which_priority_is_allowed() {
    if absent(&["prlimit", "setpriv"]) || !starts(&WITHOUT_PRIVILEGES) {
        return skipped("privileges cannot be dropped here");
    }
    let (folder, _) = new_folder();
    for (before, found) in [(WITHOUT_PRIVILEGES, "neither real-time nor nice"), (WITH_NICE, "-15")]
    {
        if !starts(&before) {
            continue;
        }
        let [program, words @ ..] = before;
        let mut command = Command::new(program);
        command.args(words).arg(evenkeel(folder.path()).get_program()).current_dir(folder.path());
        let output = run(command.args(["doctor", "--listen", "127.0.0.1:0"]));
        let line = output.stdout.lines().find(|line| line.contains(" priority "));
        let line = line.unwrap_or_else(|| panic!("{output}"));
        assert!(line.starts_with("warn") && line.contains(found), "{line}");
        assert!(line.contains("LimitRTPRIO=1"), "{line}");
    }
}

/// Returns whether these arguments start a program; changes of privileges need root.
fn starts(before: &[&str; 5]) -> bool {
    let [program, words @ ..] = before;
    Command::new(program).args(words).arg("true").output().is_ok_and(|run| run.status.success())
}
