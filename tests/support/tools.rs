//! Clients by others: their commands, and tests without them.

use super::process::{Running, run, start};
use super::server::Server;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The interpreter with Debian's packages: another one that is first on `PATH` lacks `nbd`.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// Prints why a test, or a part of it, is not run or not judged. It bypasses the test harness,
/// which hides the output of passing tests. `cargo x ci` counts these lines.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "SKIPPED: {why}");
}

/// Returns whether one of these tools is absent, and prints that. The test then returns.
pub fn absent(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| !is_present(tool));
    if let Some(tool) = missing {
        skipped(&format!("{tool} is not installed (cargo x setup installs it)"));
    }
    missing.is_some()
}

fn is_present(tool: &str) -> bool {
    if tool == "libnbd for Python" {
        let import = Command::new(system_python()).args(["-c", "import nbd"]).output();
        return import.is_ok_and(|output| output.status.success());
    }
    if tool.starts_with('/') {
        return Path::new(tool).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

fn system_python() -> PathBuf {
    let system = PathBuf::from(SYSTEM_PYTHON);
    if system.is_file() { system } else { PathBuf::from("python3") }
}

/// Returns the path of a program in the Python environment of `cargo x setup`, such as `aws`.
pub fn in_venv(name: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/").to_owned() + name
}

/// Returns the path of another program that `cargo x setup` builds.
pub fn in_target(name: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/").to_owned() + name
}

/// Returns the command of a script of tests/python, with the interpreter that has libnbd.
pub fn libnbd_script(name: &str) -> Command {
    let mut command = Command::new(system_python());
    command.arg(format!("{}/tests/python/{name}", env!("CARGO_MANIFEST_DIR")));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
    command
}

/// Returns a command of a program; `arguments` are separated by spaces.
pub fn tool(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// Starts one fio job against a volume.
pub fn start_fio(server: &Server, uri: &str, job: &str) -> Running {
    let mut command = tool("fio", "--name=job --thread --ioengine=nbd --output-format=json");
    command.arg(format!("--uri={uri}")).args(job.split_whitespace());
    // In this folder fio writes the state of its verification, if it does.
    start(command.current_dir(server.folder()))
}

/// Returns all reports of fio, in order.
pub fn reports(text: &str) -> Vec<Value> {
    let start = text.find('{').unwrap_or(text.len());
    let reports = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    reports.map(|report| report.unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
}

/// Returns fio's report of its one job, which must have ended without an error.
#[track_caller]
pub fn fio_result(fio: Running) -> Value {
    let output = fio.finish();
    let text = output.stdout.find('{').map(|start| &output.stdout[start..]);
    let report: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let job = report["jobs"][0].clone();
    assert!(output.status.success() && job["error"] == 0, "{output}");
    job
}

/// Runs one fio job against a volume to its end; it must succeed.
#[track_caller]
pub fn fio(server: &Server, uri: &str, job: &str) -> Value {
    fio_result(start_fio(server, uri, job))
}

/// Runs a script of tests/python with libnbd to its end; it must succeed.
#[track_caller]
pub fn libnbd(script: &str, arguments: &[&str]) -> String {
    run(libnbd_script(script).args(arguments)).ok()
}
