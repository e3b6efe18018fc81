//! `cargo x ci`: what must hold before a change lands. Runs everything, then reports everything.

use crate::{run, tidy};
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;

/// How much of it to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Everything,
    /// What is worth a wait before each commit: no black-box tests, no documentation.
    Fast,
}

/// Runs of `cargo x fuzz scheduler`: a minute or two.
pub const FUZZ_RUNS: u32 = 1_000;

/// Runs of `cargo x fuzz histories`: some minutes.
pub const FUZZ_HISTORIES: u32 = 1_000;

/// Cases per seed-driven test of `cargo x fuzz`.
pub const FUZZ_CASES: u32 = 20_000;

/// No step may take longer: one that hangs must not take the report with it.
const STEP_SECONDS_MAX: u32 = 35 * 60;

/// What passed and what did not, over tests and steps alike.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
}

/// Runs every step, whatever the ones before said.
pub fn run(root: &Path, scope: Scope) -> Result<(), String> {
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for (name, command) in steps(root, scope) {
        println!("== {name}");
        let before = tally;
        let result = match command {
            None => tidy::run(root),
            // Whoever sits at a terminal can press Ctrl-C, which `timeout` would keep from the
            // step.
            Some(command) if std::io::stdin().is_terminal() => watch(command, &mut tally),
            Some(command) => watch(run::bounded(&command, STEP_SECONDS_MAX), &mut tally),
        };
        tally.add_step(before, &result);
        if let Err(message) = result {
            eprintln!("cargo x ci: {name}: {message}");
            failures.push(name);
        }
    }
    println!("== summary");
    for name in &failures {
        println!("failed: {name}");
    }
    println!("{}", tally.line());
    match failures.as_slice() {
        [] => Ok(()),
        names => Err(format!("{} did not pass", names.join(", "))),
    }
}

fn watch(mut command: Command, tally: &mut Tally) -> Result<(), String> {
    run::watch(&mut command, |line| tally.add_test_result(line))
}

/// The seed-driven tests of all crates with more seeds.
pub fn fuzz(root: &Path, cases: u32) -> Result<(), String> {
    let mut command = run::cargo(root, &["test", "--workspace", "--release", "--lib"]);
    command.env("PROPTEST_CASES", cases.to_string());
    command.env("EVENKEEL_FUZZ_CASES", cases.to_string());
    run::status(&mut command)
}

/// Random calls to the scheduler with the checkers watching, one run for each seed from 1 on. A
/// failure prints the command that repeats its run.
pub fn fuzz_scheduler(root: &Path, runs: u32) -> Result<(), String> {
    let target = ["test", "-p", "evenkeel-sim", "--release", "--test", "scheduler_promise"];
    let mut command = run::cargo(root, &target);
    command.env("EVENKEEL_FUZZ_CASES", runs.to_string());
    run::status(&mut command)
}

/// Random histories of a running data plane against a model, one for each seed from 1 on. A failure
/// prints the command that repeats it.
pub fn fuzz_histories(root: &Path, runs: u32) -> Result<(), String> {
    let target = ["test", "-p", "evenkeel-engine", "--release", "--test", "histories"];
    let mut command = run::cargo(root, &target);
    command.env("EVENKEEL_FUZZ_CASES", runs.to_string());
    run::status(&mut command)
}

/// The steps in the order that fails soonest. `None` is tidy, which runs in this process.
fn steps(root: &Path, scope: Scope) -> Vec<(&'static str, Option<Command>)> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let mut steps = vec![
        ("format", Some(run::cargo(root, &["fmt", "--all", "--check"]))),
        ("clippy", Some(run::cargo(root, &clippy))),
        ("tidy", None),
    ];
    if scope == Scope::Fast {
        let unit = ["test", "--workspace", "--lib", "--bins", "--no-fail-fast"];
        steps.push(("unit tests", Some(run::cargo(root, &unit))));
        return steps;
    }
    let tests = ["test", "--workspace", "--no-fail-fast"];
    steps.push(("tests", Some(run::cargo(root, &tests))));
    let mut documentation = run::cargo(root, &["doc", "--workspace", "--no-deps"]);
    documentation.env("RUSTDOCFLAGS", "-D warnings");
    steps.push(("documentation", Some(documentation)));
    steps
}

impl Tally {
    /// Counts a closing line of libtest: "test result: ok. 3 passed; 0 failed; 1 ignored; ...", and
    /// what a test says that it skips, which libtest counts as passed.
    fn add_test_result(&mut self, line: &str) {
        self.skipped += u32::from(line.contains("SKIPPED: "));
        let Some(counts) = line.strip_prefix("test result: ") else { return };
        let counts = counts.trim_start_matches("ok. ").trim_start_matches("FAILED. ");
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u32>().ok()) else {
                continue;
            };
            match words.next() {
                Some("passed") => self.passed += count,
                Some("failed") => self.failed += count,
                Some("ignored") => self.skipped += count,
                _ => {}
            }
        }
    }

    /// A step counts as one check, unless it failed through tests that are counted already.
    fn add_step(&mut self, before: Self, result: &Result<(), String>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(_) if self.failed == before.failed => self.failed += 1,
            Err(_) => {}
        }
    }

    /// The plain closing line.
    fn line(self) -> String {
        let Self { passed, failed, skipped } = self;
        match skipped {
            0 => format!("{passed} passed, {failed} failed"),
            skipped => format!("{passed} passed, {failed} failed, {skipped} skipped"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_results_are_added_up() {
        let mut tally = Tally::default();
        tally.add_test_result("running 4 tests");
        tally.add_test_result("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured");
        tally.add_test_result("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured");
        tally.add_test_result("SKIPPED: fio is not installed");
        assert_eq!(tally, Tally { passed: 8, failed: 2, skipped: 2 });
        assert_eq!(tally.line(), "8 passed, 2 failed, 2 skipped");
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_is_a_failure() {
        let mut tally = Tally { passed: 4, failed: 0, skipped: 0 };
        tally.add_step(tally, &Err("does not build".to_owned()));
        assert_eq!(tally.line(), "4 passed, 1 failed");
        let before = tally;
        tally.failed += 2;
        tally.add_step(before, &Err("two tests".to_owned()));
        assert_eq!(tally.line(), "4 passed, 3 failed");
        tally.add_step(tally, &Ok(()));
        assert_eq!(tally.line(), "5 passed, 3 failed");
    }
}
