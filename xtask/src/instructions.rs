//! Instructions per I/O of the scheduler: the one measure of speed that is the same in every run.

use crate::run;
use std::path::Path;
use std::process::Command;

/// I/Os of a batch of the bench.
const BATCH: u64 = 1_000;
/// Batches of the two runs whose difference is counted, as both include the set-up.
const BATCHES: [u64; 2] = [10, 510];
/// Time limit of a run under callgrind, in seconds.
const SECONDS_MAX: u32 = 600;

/// Counts the instructions and prints a table.
pub fn run(root: &Path) -> Result<(), String> {
    run::find("valgrind").ok_or("bench instructions: no valgrind here: install it")?;
    let bench = build(root)?;
    println!("{:<12} {:>8} {:>18}", "limits", "volumes", "instructions/I/O");
    for way in ["provisioned", "burstable", "shared"] {
        for volumes in [1, 100, 10_000] {
            let [base, full] = BATCHES.map(|batches| count(&bench, way, volumes, batches));
            let per_io = full?.saturating_sub(base?) / ((BATCHES[1] - BATCHES[0]) * BATCH);
            println!("{way:<12} {volumes:>8} {per_io:>18}");
        }
    }
    Ok(())
}

/// Builds the bench and returns the path of its program.
fn build(root: &Path) -> Result<String, String> {
    let arguments = ["bench", "-p", "evenkeel-core", "--bench", "instructions", "--no-run"];
    let mut command = run::cargo(root, &arguments);
    command.arg("--message-format=json");
    let messages = run::output(&mut command)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "instructions")
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .ok_or_else(|| "bench instructions: cargo named no program that it built".to_owned())
}

/// Returns the instructions of a whole run.
fn count(bench: &str, way: &str, volumes: u64, batches: u64) -> Result<u64, String> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", bench, way]);
    command.args([volumes, batches].map(|number| number.to_string()));
    let output = run::bounded(&command, SECONDS_MAX)
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let total = text.lines().find_map(|line| line.split_once("Collected : "));
    total
        .and_then(|(_, count)| count.trim().parse().ok())
        .ok_or_else(|| format!("valgrind told no count of {way} {volumes} {batches}: {text}"))
}
