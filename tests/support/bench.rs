//! `evenkeel-bench` and its traces on this machine: mounts, loop devices, databases.

use super::PATIENCE;
use super::clock::Deadline;
use super::process::{Output, start};
use super::server::without_settings;
use rustix::process::Signal;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Returns a command of `evenkeel-bench` in this folder, without the settings of the environment.
pub fn benchmarks(folder: &Path) -> Command {
    // Cargo only names the programs of this package. Those of others are beside them.
    let program = Path::new(env!("CARGO_BIN_EXE_evenkeel")).with_file_name("evenkeel-bench");
    let build = "`cargo test --workspace --no-run` builds it";
    assert!(program.is_file(), "{}: there is no such program: {build}", program.display());
    let mut command = without_settings(Command::new(program));
    command.current_dir(folder);
    command
}

/// Returns `evenkeel-bench` in this folder, which gets its results and temporary files.
pub fn bench(folder: &Path, words: &[&str]) -> Command {
    let mut command = benchmarks(folder);
    command.env("TMPDIR", folder).env("EVENKEEL_RESULTS", folder.join("results"));
    command.args(words);
    command
}

/// Time limit of a run of a suite in a test. Runs of a minute take four on a busy machine.
const RUN_MAX: Duration = Duration::from_secs(600);

/// Runs a program that may take longer than others.
pub fn run_long(mut command: Command) -> Output {
    run_within(&mut command, RUN_MAX)
}

/// Runs a program with this time limit.
pub fn run_within(command: &mut Command, longest: Duration) -> Output {
    let mut running = start(command);
    if !Deadline::after(longest).comes(|| !running.is_running()) {
        // It unmounts its volumes. A killed one that writes to a file system on a volume of its own
        // waits in the kernel for itself.
        running.signal(Signal::TERM);
        let has_ended = Deadline::after(PATIENCE).comes(|| !running.is_running());
        panic!(
            "{command:?} takes longer than {longest:?}, and has ended: {has_ended}: {}",
            running.logged()
        );
    }
    running.finish()
}

pub fn json(output: &Output) -> Value {
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Returns the kernel's lines about mounts and loop devices below a folder.
pub fn mounts(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = folder.display().to_string();
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = devices
        .filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
    let lines = text.lines().map(str::to_owned);
    // A loop device whose file system is unmounted has no path below a folder.
    let is_meant = |line: &String| line.contains(&below) || line.trim_end() == "/nbd";
    lines.chain(files).filter(is_meant).collect()
}

/// Returns the working folders of database processes that are below this folder.
pub fn databases(folder: &Path) -> Vec<String> {
    databases_that(folder, |_| true)
}

/// Returns those that serve, without processes that still create a data folder.
pub fn serving(folder: &Path) -> Vec<String> {
    databases_that(folder, |words| !words.contains("--boot"))
}

fn databases_that(folder: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let place = |process: std::fs::DirEntry| {
        let program = std::fs::read_link(process.path().join("exe")).ok()?;
        let place = std::fs::read_link(process.path().join("cwd")).ok()?;
        let is_one = ["postgres", "mariadbd"].iter().any(|name| program.ends_with(name));
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let is_ours = is_one && place.starts_with(folder);
        (is_ours && is_meant(&String::from_utf8_lossy(&words))).then(|| place.display().to_string())
    };
    processes.filter_map(place).collect()
}

/// Returns a folder that every user may enter: PostgreSQL does not run as root.
pub fn open_folder() -> tempfile::TempDir {
    let mode = Permissions::from_mode(0o755);
    tempfile::Builder::new().permissions(mode).tempdir().unwrap()
}

/// The databases of the suite.
pub const DATABASES: [&str; 2] = ["PostgreSQL", "MariaDB"];

/// Returns whether a run has reported that a database cannot run here.
pub fn has_no_database(output: &Output) -> bool {
    DATABASES.iter().any(|name| output.stderr.contains(&format!("skipped: no {name}")))
}

/// Waits until nothing is mounted below a folder. Mounts of another test may be listed for a
/// moment, as a loop device whose file system is unmounted has no path below a folder.
#[track_caller]
pub fn unmounted(folder: &Path) {
    let is_gone = || mounts(folder).is_empty();
    assert!(Deadline::after(PATIENCE).comes(is_gone), "{:?}", mounts(folder));
}

/// Runs the job of `five-minute-job` on provisioned volumes, `runs` times. Returns the result, and
/// whether each call was three device writes and two flushes. More of them are a fault. Fewer are
/// possible on a busy machine, as late calls share a commit of the kernel.
#[track_caller]
pub fn counted_job(folder: &Path, runs: &str) -> (Value, bool) {
    let words = ["run", "five-minute-job", "--live", "--only", "provisioned", "--runs", runs];
    let found = json(&run_long(bench(folder, &[&words[..], &["-o", "json"]].concat())));
    let rows = found["rows"].as_array().unwrap();
    let row = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap();
    let writes = row("1.1, writes")["live"].clone();
    assert!(writes["value"].as_f64().unwrap() >= 0.98, "more than three writes a call: {writes}");
    let flushes = row("1.1, flushes")["live"].clone();
    let programs = found["programs"].to_string();
    // Without a file system there are no flushes, and no program is used.
    assert_eq!(flushes.is_null(), !programs.contains("mkfs.ext4: mke2fs 1."), "{programs}");
    let of_a_call = flushes["value"].as_f64().unwrap_or(0.0);
    assert!(of_a_call <= 2.02, "more than two flushes a call: {flushes}");
    unmounted(folder);
    println!("writes {writes}, flushes {flushes}");
    let as_counted = writes["pass"] == true && (flushes.is_null() || flushes["pass"] == true);
    (found, as_counted)
}

/// Runs a database on a gp2 volume whose credits run out, beside a batch and a log writer. It must
/// not get more than the volume gives, however busy the machine is. Returns the result, whose lower
/// bounds the caller checks; `None` if the database cannot run.
#[track_caller]
pub fn beside_a_batch(folder: &Path, name: &str) -> Option<Value> {
    let case = format!("{name} on gp2");
    let words = ["run", "batch-beside-oltp", "--live", "--only", &case, "-o", "json"];
    let output = run_long(bench(folder, &words));
    unmounted(folder);
    assert_eq!(databases(folder), Vec::<String>::new());
    if has_no_database(&output) {
        return None;
    }
    let found = json(&output);
    let configurations = found["live"]["configurations"].as_array().unwrap();
    let run_of = |client: &str| {
        let name = format!("{case} · {client}");
        let known =
            configurations.iter().find(|configuration| configuration["name"] == name.as_str());
        &known.unwrap_or_else(|| panic!("no {name}"))["runs"][0]
    };
    for client in ["oltp", "log", "batch", "transactions"] {
        let run = run_of(client);
        assert!(run["ios"].as_u64().unwrap() > 0, "{client}: {run}");
        // sysbench reports no times for each second.
        if (name, client) != ("MariaDB", "transactions") {
            let latencies = run["mean_latency_ns"].as_array().unwrap();
            assert_eq!(latencies.len(), 52, "{client}: {run}");
        }
    }
    let all: u64 = volume_samples(&found, name).iter().sum();
    // The scenario's initial credits, those earned in 52 s, and a second each for saved tokens and
    // for a late reading.
    let most = 21_167 + (52 + 2) * 501;
    println!("{name}: {all} I/Os of at most {most}");
    assert!(all <= most, "{all} I/Os: at most {most}");
    Some(found)
}

/// Returns the I/Os of each second of the volume of [`beside_a_batch`].
pub fn volume_samples(found: &Value, name: &str) -> Vec<u64> {
    let configurations = found["live"]["configurations"].as_array().unwrap();
    let name = format!("{name} on gp2 · volume");
    let volume = configurations.iter().find(|configuration| configuration["name"] == name.as_str());
    let samples = volume.unwrap_or_else(|| panic!("no {name}"))["runs"][0]["samples"].as_array();
    samples.unwrap().iter().filter_map(Value::as_u64).collect()
}
