//! Every script of the project, in Rust: `cargo x <verb>`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod ci;
mod clock;
mod go;
mod guest;
mod instructions;
mod mutations;
mod package;
mod release;
mod run;
mod setup;
mod tidy;
mod trust;

const USAGE: &str = "\
usage: cargo x <verb>

  ci               before a change lands: format, clippy, tidy, tests; runs all, reports all
  ci --setup       the same, and `setup` beside the steps before the tests; this is `make test`
  ci --fast        before each commit: of the tests only those that stand beside the code
  ci --full [STEP...]  before a release: also long tests, documentation, seeds, scenarios,
                   mutations; or only the steps of these names, such as `tests` or `seeds: api`
  tidy             the rules of the house that neither rustfmt nor clippy can check
  setup            install what the tests need (Debian packages, a Python venv)
  setup demo|clients|bench  install what `make demo` needs (fio), what the first pages call
                   (also nbdinfo and an aws-cli), or the programs of `make bench`
  docs             regenerate docs/reference/cli*.md and docs/reference/*.1
  fuzz [CASES]     the seed-driven tests with more seeds (default 20000 per test)
  fuzz scheduler [RUNS]  random calls to the scheduler under the checkers (default 1000 runs)
  fuzz histories [RUNS]  hosts, volumes, connections, restarts against a model (default 1000)
  fuzz crashes [RUNS]    power failures of a simulated disk below the local store (default 10000)
  fuzz full [RUNS]       pools of the local store that are full (default 1000)
  fuzz cluster [RUNS]    nodes, etcd and Ceph under one control plane (default 100000)
  fuzz autopilot [RUNS]  years of file systems under the autopilot, with faults (default 10000)
  fuzz api [RUNS]        requests for every action, and ends of the control plane (default 500)
  fuzz moves [RUNS]      moves of a real btrfs, with kills and power cuts (default 1000; root)
  demo-trust [SHARE]  whether the demo's verdict can be trusted: an honest server is never called
                   broken, a broken limiter always is (70 min; one run in SHARE of them)
  release          build the programs for release into target/dist, their symbols in files apart
  package deny     check licences, duplicate versions and sources of dependencies (cargo-deny)
  package reproducible [--profile NAME]  build the commit in two folders (default: quick), and
                   compare the programs
  package deb|wheel|image|sbom [--debug | --program FILE] [--into FOLDER]
                   make the Debian packages (program, symbols), the wheel for PyPI, the OCI image,
                   or the list of dependencies (CycloneDX), in target/package
  scenarios        build for release and run every scenario at its full length
  mutations [N...] break the rule behind each property on purpose and see that its test fails;
                   N is a property, `promise` (the scheduler's), `store` (the local store's)
                   or `fencing`
  bench nbd [...]  build for release and compare with other NBD servers, side by side
  bench limits     build for release and drive volumes at their limits
  bench isolation|reservation|instance|idle|replay|cluster [...]  the same for the other figures
  bench instructions  count the scheduler's instructions per I/O (with valgrind)
";

/// Verbs of `evenkeel-bench`.
const BENCHES: [&str; 8] =
    ["nbd", "limits", "isolation", "reservation", "instance", "idle", "replay", "cluster"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    let result = match words.as_slice() {
        ["ci"] => ci::run(&root, ci::Scope::Change, &[]),
        ["ci", "--setup"] => ci::run_with_setup(&root),
        ["ci", "--full", steps @ ..] => ci::run(&root, ci::Scope::Full, steps),
        ["ci", "--fast"] => ci::run(&root, ci::Scope::Fast, &[]),
        ["tidy"] => tidy::run(&root),
        ["setup"] => setup::run(&root, setup::Purpose::Tests),
        ["setup", "demo"] => setup::run(&root, setup::Purpose::Demo),
        ["setup", "clients"] => setup::run(&root, setup::Purpose::Clients),
        ["setup", "bench"] => setup::run(&root, setup::Purpose::Bench),
        ["docs"] => tidy::reference::regenerate(&root),
        ["fuzz"] => ci::fuzz(&root, ci::FUZZ_CASES),
        ["fuzz", what, runs @ ..] => fuzz(&root, what, runs),
        ["demo-trust"] => trust::run(&root, 1),
        ["demo-trust", share] => match share.parse() {
            Ok(share) => trust::run(&root, share),
            Err(_) => Err(format!("demo-trust: {share:?} is not a number")),
        },
        ["release"] => release::run(&root),
        ["package", words @ ..] => package::run(&root, words),
        ["scenarios"] => scenarios(&root),
        ["mutations", properties @ ..] => mutations::run(&root, properties),
        ["bench", "instructions"] => instructions::run(&root),
        ["bench", what, rest @ ..] if BENCHES.contains(what) => bench(&root, what, rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprint!("cargo x: unknown verb {:?}\n\n{USAGE}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("cargo x: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one of the seed-driven tests, or all of them; `runs` may have the number of cases.
fn fuzz(root: &Path, what: &str, runs: &[&str]) -> Result<(), String> {
    type Fuzz = fn(&Path, u32) -> Result<(), String>;
    const FUZZ: [(&str, Fuzz, u32); 8] = [
        ("scheduler", ci::fuzz_scheduler, ci::FUZZ_RUNS),
        ("crashes", ci::fuzz_crashes, ci::FUZZ_CRASHES),
        ("full", ci::fuzz_full, ci::FUZZ_FULL),
        ("histories", ci::fuzz_histories, ci::FUZZ_HISTORIES),
        ("cluster", ci::fuzz_cluster, ci::FUZZ_CLUSTER),
        ("api", ci::fuzz_api, ci::FUZZ_API),
        ("autopilot", ci::fuzz_autopilot, ci::FUZZ_AUTOPILOT),
        ("moves", ci::fuzz_moves, ci::FUZZ_MOVES),
    ];
    let parsed = |runs: &str| {
        runs.parse().map_err(|_| format!("fuzz {what}: {runs:?} is not a number of runs"))
    };
    let known = FUZZ.iter().find(|(name, ..)| *name == what);
    match (known, runs) {
        (Some((_, fuzz, runs)), []) => fuzz(root, *runs),
        (Some((_, fuzz, _)), [runs]) => fuzz(root, parsed(runs)?),
        (None, []) => match what.parse() {
            Ok(cases) => ci::fuzz(root, cases),
            Err(_) => Err(format!("fuzz: {what:?} is not a number of cases, or one of the tests")),
        },
        _ => Err(format!("fuzz {what}: one number of runs, and no more")),
    }
}

/// Returns the workspace's folder: the parent of this package's.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// Runs every scenario that comes with the program, even after a failed one.
fn scenarios(root: &Path) -> Result<(), String> {
    let evenkeel = |words: &[&str]| {
        let cargo = ["run", "--release", "--quiet", "--bin", "evenkeel", "--", "sim"];
        run::cargo(root, &[&cargo, words].concat())
    };
    let listed = run::output(&mut evenkeel(&["ls", "-o", "json"]))?;
    let listed: serde_json::Value =
        serde_json::from_str(&listed).map_err(|error| format!("sim ls: {error}"))?;
    let names = listed["scenarios"].as_array().into_iter().flatten();
    let mut failed = Vec::new();
    for name in names.filter_map(|scenario| scenario["name"].as_str()) {
        if run::output(&mut evenkeel(&["run", name])).is_err() {
            failed.push(name);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("not as expected: {}", failed.join(", "))) }
}

/// Runs a benchmark, which is a verb of `evenkeel-bench`, in an optimized build of both programs.
fn bench(root: &Path, what: &str, rest: &[&str]) -> Result<(), String> {
    let programs = ["--bin", "evenkeel", "--bin", "evenkeel-bench"];
    run::status(run::cargo(root, &["build", "--release", "--quiet"]).args(programs))?;
    let words = ["run", "--release", "--quiet", "--bin", "evenkeel-bench", "--", what];
    run::status(run::cargo(root, &words).args(rest))
}
