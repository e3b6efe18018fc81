//! `cargo x demo-trust`: checks that the verdict of the demonstration can be trusted both ways.
//!
//! The honest server is driven on a quiet machine, beside six busy loops, beside a busy disk, and
//! with random pauses of the server, of its client and of both: it must never be called broken.
//! Then the program is built with one broken limiter after the other (`mutations/limiters.txt`),
//! and each must be called broken every time.

mod disturb;

use self::disturb::Disturbance;
use crate::mutations::Copy;
use crate::mutations::list::{Mutation, mutations};
use crate::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The limiters that are broken, as mutations.
const LIMITERS: &str = include_str!("mutations/limiters.txt");

/// The profile that `make demo` builds with.
const PROFILE: &str = "quick";

/// Runs of the honest server: their disturbance and their number.
const HONEST: [(Disturbance, u32); 6] = [
    (Disturbance::None, 20),
    (Disturbance::BusyLoops, 10),
    (Disturbance::BusyDisk, 10),
    (Disturbance::Pauses { server: true, client: true }, 10),
    (Disturbance::Pauses { server: true, client: false }, 10),
    (Disturbance::Pauses { server: false, client: true }, 10),
];

/// Runs of each broken limiter.
const BROKEN_RUNS: u32 = 20;

/// Load of each run. The credits of the general purpose volume end after ten seconds of it.
const LOAD: &str = "16s";

/// Time limit of a run, in seconds.
const RUN_SECONDS_MAX: u32 = 180;

/// Exit codes of `evenkeel demo`.
const KEPT: i32 = 0;
const BROKEN: i32 = 1;
const UNDECIDED: i32 = 6;

/// The number of runs with each outcome.
#[derive(Clone, Copy, Default)]
struct Counts {
    kept: u32,
    undecided: u32,
    broken: u32,
    /// Runs that failed.
    failed: u32,
}

/// Makes all runs, or one in `share` of them, and prints a table row by row.
pub fn run(root: &Path, share: u32) -> Result<(), String> {
    let folder = root.join("target/demo-trust");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let runs = |all: u32| all.div_ceil(share.max(1));
    let honest = build(root, &root.join("target"))?;
    println!("| limiter | beside | runs | kept | undecided | broken |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let mut faults = Vec::new();
    for (disturbance, all) in HONEST {
        let counts = repeat(&honest, &folder, disturbance, runs(all))?;
        row("honest", &disturbance.to_string(), counts);
        if counts.broken > 0 {
            faults.push(format!("the honest limiter beside {disturbance} is called broken"));
        }
    }
    let copy = Copy::new(root, &folder)?;
    for mutation in mutations(LIMITERS)? {
        let program = copy.with_broken(&mutation, |sources| build(sources, copy.target()))??;
        let program = keep(&program, &folder, &mutation)?;
        let counts = repeat(&program, &folder, Disturbance::None, runs(BROKEN_RUNS))?;
        row(mutation.rule, &Disturbance::None.to_string(), counts);
        if counts.broken < runs(BROKEN_RUNS) {
            faults.push(format!("the limiter that is {} is not always broken", mutation.rule));
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

fn row(limiter: &str, beside: &str, counts: Counts) {
    let Counts { kept, undecided, broken, failed } = counts;
    let runs = kept + undecided + broken + failed;
    println!("| {limiter} | {beside} | {runs} | {kept} | {undecided} | {broken} |");
}

/// Builds the program from sources, and returns its path.
fn build(sources: &Path, target: &Path) -> Result<PathBuf, String> {
    let mut cargo = run::cargo(sources, &["build", "--quiet", "--profile", PROFILE]);
    cargo.args(["--bin", "evenkeel"]).env("CARGO_TARGET_DIR", target);
    run::status(&mut cargo)?;
    Ok(target.join(PROFILE).join("evenkeel"))
}

/// Copies a program that the next build would overwrite.
fn keep(program: &Path, folder: &Path, mutation: &Mutation<'_>) -> Result<PathBuf, String> {
    let kept = folder.join(format!("evenkeel-{}", mutation.property));
    fs::copy(program, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
    Ok(kept)
}

/// Runs the demonstration repeatedly beside a disturbance. The output of runs that were not kept is
/// written to the folder.
fn repeat(
    program: &Path,
    folder: &Path,
    disturbance: Disturbance,
    runs: u32,
) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for number in 0..runs {
        let report = folder.join("report.html");
        let mut demo = Command::new("timeout");
        demo.arg("--foreground").arg(RUN_SECONDS_MAX.to_string()).arg(program);
        demo.args(["demo", "--time", LOAD, "--report"]).arg(&report).current_dir(folder);
        demo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = demo.spawn().map_err(|error| format!("timeout: {error}"))?;
        let disturbed = disturbance.begin(child.id(), u64::from(number), folder);
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        disturbed.end();
        let count = match output.status.code() {
            Some(KEPT) => &mut counts.kept,
            Some(UNDECIDED) => &mut counts.undecided,
            Some(BROKEN) => &mut counts.broken,
            _ => &mut counts.failed,
        };
        *count += 1;
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = [output.stdout, output.stderr].concat();
        let file = folder.join(format!("{name}-{}-{number}.txt", disturbance.word()));
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    Ok(counts)
}
