//! Real programs on file systems on volumes: counts and upper bounds, which also hold on a busy
//! machine. tests/suites.rs judges their speed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use support::bench::{bench, beside_a_batch, counted_job, json, open_folder, run_long, unmounted};
use support::process::Output;
use support::rates::at_least_once_whatever_else_runs;
use support::tools::absent;

/// With root and FUSE on an ext4, otherwise directly: three device writes for each call.
#[test]
fn calls_of_a_job_are_counted_and_no_mount_stays() {
    let folder = tempfile::tempdir().unwrap();
    at_least_once_whatever_else_runs(|| counted_job(folder.path(), "1").1);
}

/// A PostgreSQL, a batch and a log writer together make no more I/Os than their volume's credits
/// and its baseline pay for.
#[test]
#[ignore = "full: tests/programs.rs::failed_program_is_reported_and_the_others_continue stays"]
fn real_postgresql_gets_no_more_than_its_volume_gives() {
    if absent(&["fio"]) {
        return;
    }
    let folder = open_folder();
    beside_a_batch(folder.path(), "PostgreSQL");
}

/// Runs a command with this script as the program `name`, first on its `PATH`.
fn with_program(mut command: std::process::Command, name: &str, script: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", folder.path().display()));
    run_long(command)
}

#[test]
fn failed_program_is_reported_and_the_others_continue() {
    one_is_told_and_the_others_go_on("echo no room >&2; exit 7", "no room");
}

#[test]
#[ignore = "full: tests/programs.rs::failed_program_is_reported_and_the_others_continue stays"]
fn idle_program_is_reported_and_the_others_continue() {
    one_is_told_and_the_others_go_on("echo Throughput 0 MB/sec", "no throughput in Some(");
}

/// Runs a suite in which dbench is this script.
fn one_is_told_and_the_others_go_on(script: &str, why: &str) {
    if absent(&["fio", "dbench", "postmark"]) {
        return;
    }
    let words = ["run", "desktop-suite", "--live", "--only", "others S2", "--runs", "1"];
    let words = [&words[..], &["-o", "json"]].concat();
    let folder = tempfile::tempdir().unwrap();
    let output = with_program(bench(folder.path(), &words), "dbench", script);
    if output.stderr.contains("skipped: no file systems") {
        return;
    }
    assert_eq!(output.status.code(), Some(1), "{output}");
    assert!(output.stderr.contains("2 runs or programs failed."), "{output}");
    let found = json(&output);
    let failures: Vec<&str> =
        found["failures"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let [one, twelve] = failures[..] else { panic!("{failures:?}") };
    assert!(one.starts_with("others S2 (1): Dbench 1: ") && one.contains(why), "{one}");
    assert!(twelve.contains("Dbench 12: ") && twelve.contains(why), "{twelve}");
    assert_eq!(found["pass"], false);
    let configurations = found["live"]["configurations"].as_array().unwrap();
    let rate = |test: &str| {
        let name = format!("others S2 · {test}");
        let known =
            configurations.iter().find(|configuration| configuration["name"] == name.as_str())?;
        known["iops"]["mean"].as_f64()
    };
    assert_eq!(rate("Dbench 12"), None, "what came to nothing has no rate");
    assert!(rate("PostMark").unwrap() > 0.0 && rate("Gzip").unwrap() > 0.0);
    unmounted(folder.path());
}
