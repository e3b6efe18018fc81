//! Proofs that end without a judgement of speed: of servers that are gone, of too few seconds, of
//! killed measurements, of invalid arguments. tests/prove.rs has the others, which run alone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::bench::benchmarks;
use support::clock::Deadline;
use support::process::{run, start};
use support::server::{Server, evenkeel};
use support::tools::absent;

/// If a server ends during a proof, the outcome says so with the time, and there is no reason about
/// speed.
#[test]
fn proof_of_an_ended_server_says_that_it_is_gone() {
    if absent(&["fio"]) {
        return;
    }
    let mut server = Server::start("--store memory");
    let id = server.attached("--type io2 --size 4 --iops 500");
    let mut prove = evenkeel(server.folder());
    prove.env("EVENKEEL_ENDPOINT", &server.endpoint).env("EVENKEEL_DATA_DIR", server.data_dir());
    let proof = start(prove.args(["prove", &id, "--time", "60s"]));
    // The load that is judged comes after two short ones.
    let children = format!("task/{}/children", proof.id());
    let is_judged = || {
        let fio = proof.proc_file(&children);
        let line = fs::read(format!("/proc/{}/cmdline", fio.trim())).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--name=reads\0")
    };
    assert!(Deadline::after(Duration::from_secs(60)).comes(is_judged), "no load that is judged");
    // Long enough for a verdict on some of its seconds.
    Deadline::after(Duration::from_secs(6)).comes(|| false);
    server.kill_9();
    let proof = proof.finish();
    println!("{proof}");
    assert_eq!(proof.status.code(), Some(1), "{proof}");
    assert!(proof.stdout.contains("the server closed the connection after "), "{proof}");
    assert!(proof.stdout.ends_with("The promise: server gone\n"), "{proof}");
    assert!(proof.stderr.contains(" is gone"), "{proof}");
    assert!(!proof.stdout.contains("why:") && !proof.stdout.contains("4294967295"), "{proof}");
}

/// Too few seconds allow no verdict: the same exit code in each verb that judges.
#[test]
fn a_measurement_without_a_verdict_ends_as_undecided() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = run(benchmarks(folder.path()).args(["limits", "--time", "2s"]));
    assert_eq!(output.status.code(), Some(6), "{output}");
    let text = "no verdict is possible: 2 full seconds were measured; run for at least 3 s";
    assert!(output.stderr.contains(text), "{output}");
}

/// A killed measurement leaves the server that it has started. The next one stops it.
#[test]
fn server_of_a_killed_measurement_is_stopped_by_the_next_one() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bench = || {
        let mut bench = benchmarks(folder.path());
        start(bench.args(["prove", "--time", "5s"]).env("TMPDIR", folder.path()))
    };
    let killed = bench();
    let minute = Duration::from_secs(60);
    assert!(Deadline::after(minute).comes(|| !servers_below(folder.path()).is_empty()));
    let left = servers_below(folder.path());
    killed.kill_9();
    assert_eq!(servers_below(folder.path()), left, "the killed measurement leaves its server");
    let mut next = bench();
    let is_told = || next.logged().contains("an earlier run had left");
    assert!(Deadline::after(minute).comes(is_told), "{}", next.logged());
    // Its own server runs, so the handler of signals is installed.
    let is_ready = || servers_below(folder.path()).iter().any(|server| !left.contains(server));
    assert!(Deadline::after(minute).comes(is_ready), "{}", next.logged());
    let after = servers_below(folder.path());
    assert!(left.iter().all(|server| !after.contains(server)), "{left:?} {after:?}");
    next.signal(Signal::TERM);
    assert_eq!(next.finish().status.code(), Some(130));
    let is_gone = || servers_below(folder.path()).is_empty();
    assert!(Deadline::after(minute).comes(is_gone), "{:?}", servers_below(folder.path()));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a folder is left");
}

/// Returns the processes that serve a data folder below this one.
fn servers_below(folder: &Path) -> Vec<PathBuf> {
    let folder = folder.to_string_lossy().into_owned();
    let is_one = |process: &PathBuf| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        words.get(1).is_some_and(|verb| verb == "serve")
            && words.iter().any(|word| word.starts_with(&folder))
    };
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let mut servers: Vec<PathBuf> = processes.filter(is_one).collect();
    servers.sort();
    servers
}

#[test]
fn invalid_proof_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    fs::write(&path, [0; 4_096]).unwrap();
    let bad = folder.path().join("bad.toml");
    fs::write(&bad, "iops = 5\nsise = 3\n").unwrap();
    let path = path.display();
    let bad = bad.display();
    for (words, said) in [
        (format!("{path}"), "--type io2 --size 100 --iops 1000"),
        (format!("{path} --iops 9 --time 2s"), "less than 5s prove nothing"),
        (format!("{path} --type gp3 --iops 9"), "iops"),
        (format!("{path} --promise {bad}"), "sise"),
        ("/nowhere --iops 9".to_owned(), "/nowhere"),
        ("http://x --iops 9".to_owned(), "no NBD address"),
    ] {
        let said_instead =
            run(evenkeel(folder.path()).arg("prove").args(words.split(' '))).fails_with(2);
        assert!(said_instead.contains(said), "{words}: {said_instead}");
    }
}
