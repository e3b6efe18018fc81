//! `cargo x ci`: the checks that a change must pass. It runs all of them, then reports all
//! failures.

mod binaries;
mod lanes;
mod preparation;
mod tally;

use self::lanes::Extent;
use self::preparation::Preparation;
use self::tally::Tally;
use crate::clock::Stopwatch;
use crate::{mutations, package, run, setup, tidy};
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The set of checks to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Checks that are quick enough before each commit: no black-box tests, no documentation.
    Fast,
    /// Checks that a change must pass: every rule once, at the shortest length that can break it.
    Change,
    /// All checks: long tests, documentation, seeds, scenarios at full length, mutations.
    Full,
}

/// Runs of `cargo x fuzz scheduler`: a minute or two.
pub const FUZZ_RUNS: u32 = 1_000;

/// Runs of `cargo x fuzz histories`: about ten minutes.
pub const FUZZ_HISTORIES: u32 = 1_000;

/// Runs of `cargo x fuzz crashes`: some minutes.
pub const FUZZ_CRASHES: u32 = 10_000;

/// Runs of `cargo x fuzz full`: some minutes.
pub const FUZZ_FULL: u32 = 1_000;

/// Runs of `cargo x fuzz cluster`: some minutes.
pub const FUZZ_CLUSTER: u32 = 100_000;

/// Runs of `cargo x fuzz api`: some minutes.
pub const FUZZ_API: u32 = 500;

/// Years of `cargo x fuzz autopilot`: half an hour.
pub const FUZZ_AUTOPILOT: u32 = 10_000;

/// Cycles of moves on a real btrfs in `--full`, and the default of `cargo x fuzz moves`.
pub const FUZZ_MOVES: u32 = 1_000;

/// Cases per seed-driven test of `cargo x fuzz`.
pub const FUZZ_CASES: u32 = 20_000;

/// Time limit of a step, in seconds, so that one that hangs does not prevent the report.
const STEP_SECONDS_MAX: u32 = 35 * 60;

/// Time limit of a step with many seeds, in seconds.
const SEEDS_SECONDS_MAX: u32 = 3 * 60 * 60;

/// One check.
enum Step {
    /// A program; its output is parsed as libtest's.
    Program(Command),
    /// A program of tests with many seeds, which may take hours.
    Seeds(Command),
    /// The rules for sources and documents, in this process.
    Tidy,
    /// The rules for dependencies.
    Dependencies,
    /// The installation of what the long tests of packages need.
    PackageTools,
    /// Two builds in different folders, which have the same bytes.
    Reproducible,
    /// All binaries of tests.
    Tests(Extent),
    /// The programs as they are released.
    Release,
    /// Every scenario at its full length.
    Scenarios,
    /// Every rule broken on purpose.
    Mutations,
}

/// The results of the steps so far.
#[derive(Default)]
struct Report {
    tally: Tally,
    failures: Vec<String>,
    /// Durations of steps and of binaries of tests.
    times: Vec<(String, Duration)>,
    /// The setup that runs beside the first steps. The tests wait for it.
    setup: Option<Preparation>,
}

/// Installs what the tests need beside the steps that do not need it, and runs every step of a
/// change. If sudo may ask for a password, the installation comes first.
pub fn run_with_setup(root: &Path) -> Result<(), String> {
    if setup::may_ask() {
        setup::run(root, setup::Purpose::Tests)?;
    }
    let setup = Some(Preparation::start(root, STEP_SECONDS_MAX)?);
    run_steps(root, Scope::Change, &[], Report { setup, ..Report::default() })
}

/// Runs every step, even after a failed one.
pub fn run(root: &Path, scope: Scope, only: &[&str]) -> Result<(), String> {
    run_steps(root, scope, only, Report::default())
}

fn run_steps(root: &Path, scope: Scope, only: &[&str], mut report: Report) -> Result<(), String> {
    let whole = Stopwatch::start();
    for (name, step) in chosen(steps(root, scope), only)? {
        println!("== {name}");
        let before = report.tally;
        let watch = Stopwatch::start();
        let result = take(root, step, &mut report);
        report.times.push((name.to_owned(), watch.elapsed()));
        report.tally.add_step(before, &result);
        if let Err(message) = result {
            eprintln!("cargo x ci: {name}: {message}");
            report.failures.push(name.to_owned());
        }
    }
    let Report { tally, failures, times, .. } = report;
    println!("== times\n{}", lanes::table(times));
    println!("== summary");
    for name in &failures {
        println!("failed: {name}");
    }
    println!("{} in {:.0} s", tally.line(), whole.elapsed().as_secs_f64());
    match failures.as_slice() {
        [] => Ok(()),
        names => Err(format!("{} did not pass", names.join(", "))),
    }
}

/// Returns the steps of these names, in their own order; all of them if no name is given.
///
/// # Errors
/// If no step has one of the names.
fn chosen(
    mut steps: Vec<(&'static str, Step)>,
    only: &[&str],
) -> Result<Vec<(&'static str, Step)>, String> {
    let names: Vec<&str> = steps.iter().map(|(name, _)| *name).collect();
    if let Some(unknown) = only.iter().find(|name| !names.contains(name)) {
        return Err(format!("ci: no step {unknown:?}; the steps are: {}", names.join(", ")));
    }
    if !only.is_empty() {
        steps.retain(|(name, _)| only.contains(name));
    }
    Ok(steps)
}

fn take(root: &Path, step: Step, report: &mut Report) -> Result<(), String> {
    match step {
        Step::Tidy => tidy::run(root),
        Step::Dependencies => package::check_dependencies(root),
        Step::PackageTools => package::install_for_full(root),
        Step::Tests(extent) => tests(root, extent, report),
        Step::Reproducible => package::check_reproducible(root),
        Step::Release => crate::release::run(root),
        Step::Scenarios => crate::scenarios(root),
        Step::Mutations => mutations::run(root, &[]),
        Step::Program(command) => run_program(command, STEP_SECONDS_MAX, report),
        Step::Seeds(command) => run_program(command, SEEDS_SECONDS_MAX, report),
    }
}

/// Runs a program and counts its tests.
fn run_program(command: Command, seconds_max: u32, report: &mut Report) -> Result<(), String> {
    // At a terminal Ctrl-C ends the run, but `timeout` would keep it from the step.
    let mut command =
        if std::io::stdin().is_terminal() { command } else { run::bounded(&command, seconds_max) };
    run::watch(&mut command, |line| report.tally.add_line(line))
}

/// Builds all test binaries, waits for the setup, if any, runs them, and prints their output.
fn tests(root: &Path, extent: Extent, report: &mut Report) -> Result<(), String> {
    let watch = Stopwatch::start();
    let binaries = binaries::build(root)?;
    report.times.push(("tests: build".to_owned(), watch.elapsed()));
    if let Some(setup) = report.setup.take() {
        report.times.push(("setup, beside others".to_owned(), setup.finish()?));
    }
    let mut failed = Vec::new();
    lanes::run(root, &binaries, extent, |ran| {
        println!("{}", ran.said);
        report.tally.add(ran.tally);
        report.times.push((format!("tests: {}", ran.source), ran.took));
        if !ran.is_success {
            failed.push(ran.source.clone());
        }
    })?;
    match failed.as_slice() {
        [] => Ok(()),
        sources => Err(format!("failed: {}", sources.join(", "))),
    }
}

/// Seed-driven tests whose every case writes files and waits for the disk, or reads a database for
/// minutes: thousands of cases would take an hour. They keep their own number of cases.
const WITH_FILES: [&str; 6] = [
    "cloudwatch::actions::tests::pages_of_metric_data_agree_with_a_map_of_all_minutes",
    "cloudwatch::store::tests::copied_minutes_equal_the_recorded_ones",
    "cloudwatch::store::tests::minutes_read_agree_with_a_map",
    "events::log::tests::log_keeps_complete_lines_after_a_crash",
    "recording::copies::tests::copied_recordings_equal_the_recorded_ones",
    "recording::tests::sums_are_those_of_the_counters",
];

/// Modules whose seed-driven tests simulate seconds, or try every layout, in each case. They have a
/// number of cases of their own, and get a twentieth of the others' here.
const LONG: [&str; 10] = [
    "exact::tests::",
    "fleet::recommend::tests::",
    "fleet::tests::",
    "oracle::tests::mutations::",
    "packing::tests::",
    "search::refine::tests::",
    "search::tests::",
    "simulation::",
    "world::steady::tests::",
    "world::tests::",
];
const LONG_PART: u32 = 20;

/// Runs the seed-driven tests of all crates with more seeds, except those with files.
pub fn fuzz(root: &Path, cases: u32) -> Result<(), String> {
    run::status(&mut fuzz_command(root, cases))?;
    run::status(&mut fuzz_long_command(root, cases))
}

fn fuzz_command(root: &Path, cases: u32) -> Command {
    let skipped = WITH_FILES.iter().chain(&LONG).flat_map(|name| ["--skip", name]);
    with_cases(root, cases, skipped)
}

fn fuzz_long_command(root: &Path, cases: u32) -> Command {
    with_cases(root, cases.div_ceil(LONG_PART), LONG)
}

fn with_cases<'a>(root: &Path, cases: u32, tests: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = run::cargo(root, &["test", "--workspace", "--lib"]);
    command.arg("--").args(tests);
    command.env("PROPTEST_CASES", cases.to_string());
    command.env("EVENKEEL_FUZZ_CASES", cases.to_string());
    command
}

/// Runs random calls to the scheduler under the checkers, one run for each seed from 1 on. A
/// failure prints the command that repeats its run.
pub fn fuzz_scheduler(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_scheduler_command(root, runs))
}

fn fuzz_scheduler_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--test", "scheduler_promise"], runs)
}

/// Runs random histories of a data plane against a model, one for each seed from 1 on. A failure
/// prints the command that repeats it.
pub fn fuzz_histories(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_histories_command(root, runs))
}

fn fuzz_histories_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--test", "histories"], runs)
}

/// Runs histories of the local store on a simulated disk whose power fails, without and with
/// snapshots, one of each for each seed from 1 on. A failure prints the command that repeats it.
pub fn fuzz_crashes(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_crashes_command(root, runs))
}

fn fuzz_crashes_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--test", "crashes", "--test", "snapshot_crashes"], runs)
}

/// Runs histories of full pools of the local store, one for each seed from 1 on. A failure prints
/// the command that repeats it.
pub fn fuzz_full(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_full_command(root, runs))
}

fn fuzz_full_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--test", "full"], runs)
}

/// Runs histories of a cluster of nodes on one Ceph cluster, one for each seed from 1 on. A failure
/// prints the command that repeats it.
pub fn fuzz_cluster(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_cluster_command(root, runs))
}

fn fuzz_cluster_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--lib", "simulation::"], runs)
}

/// Runs random requests for every action of every API, with ends of the server between any two
/// steps, one history of each for each seed from 1 on. A failure prints the command that repeats
/// it.
pub fn fuzz_api(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_api_command(root, runs))
}

fn fuzz_api_command(root: &Path, runs: u32) -> Command {
    let tests = ["fuzz_actions", "fuzz_http", "crash_steps", "signatures"];
    let target: Vec<&str> = tests.iter().flat_map(|test| ["--test", test]).collect();
    with_runs(root, &target, runs)
}

/// Runs years of file systems under the autopilot with faults, one for each seed from 1 on. A
/// failure prints the command that repeats it.
pub fn fuzz_autopilot(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_autopilot_command(root, runs))
}

fn fuzz_autopilot_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--lib", "world::tests::world"], runs)
}

/// Runs random cycles of growing, shrinking and replacing on a real btrfs, with kills and power
/// cuts. It needs root.
pub fn fuzz_moves(root: &Path, runs: u32) -> Result<(), String> {
    run::status(&mut fuzz_moves_command(root, runs))
}

fn fuzz_moves_command(root: &Path, runs: u32) -> Command {
    with_runs(root, &["--test", "host", "cycles::"], runs)
}

/// Returns the command that runs tests with this many seeds. They are those of `cargo x ci`, built
/// with assertions for the whole workspace: for one package, crates have fewer features and would
/// be compiled again.
fn with_runs(root: &Path, target: &[&str], runs: u32) -> Command {
    let mut command = run::cargo(root, &[&["test", "--workspace"], target].concat());
    command.env("EVENKEEL_FUZZ_CASES", runs.to_string());
    command
}

/// Returns the steps, those that fail soonest first.
fn steps(root: &Path, scope: Scope) -> Vec<(&'static str, Step)> {
    let cargo = |words: &[&str]| Step::Program(run::cargo(root, words));
    let mut steps = vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        ("clippy", cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ("tidy", Step::Tidy),
    ];
    match scope {
        Scope::Fast => {
            let unit = ["test", "--workspace", "--lib", "--bins", "--no-fail-fast"];
            steps.push(("unit tests", cargo(&unit)));
        }
        Scope::Change => steps.push(("tests", Step::Tests(Extent::Change))),
        Scope::Full => {
            steps.push(("dependencies", Step::Dependencies));
            steps.push(("tools of packages", Step::PackageTools));
            steps.push(("tests", Step::Tests(Extent::Full)));
            steps.push(("examples in documentation", cargo(&["test", "--workspace", "--doc"])));
            let mut documentation =
                run::cargo(root, &["doc", "--workspace", "--no-deps", "--document-private-items"]);
            documentation.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
            steps.push(("documentation", Step::Program(documentation)));
            for (name, command) in [
                ("seeds", fuzz_command(root, FUZZ_CASES)),
                ("seeds: long", fuzz_long_command(root, FUZZ_CASES)),
                ("seeds: scheduler", fuzz_scheduler_command(root, FUZZ_RUNS)),
                ("seeds: histories", fuzz_histories_command(root, FUZZ_HISTORIES)),
                ("seeds: crashes", fuzz_crashes_command(root, FUZZ_CRASHES)),
                ("seeds: full pools", fuzz_full_command(root, FUZZ_FULL)),
                ("seeds: cluster", fuzz_cluster_command(root, FUZZ_CLUSTER)),
                ("seeds: api", fuzz_api_command(root, FUZZ_API)),
                ("seeds: autopilot", fuzz_autopilot_command(root, FUZZ_AUTOPILOT)),
                ("seeds: moves", fuzz_moves_command(root, FUZZ_MOVES)),
            ] {
                steps.push((name, Step::Seeds(command)));
            }
            steps.push(("release", Step::Release));
            steps.push(("reproducible builds", Step::Reproducible));
            steps.push(("scenarios", Step::Scenarios));
            steps.push(("mutations", Step::Mutations));
        }
    }
    steps
}
