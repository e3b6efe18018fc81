//! Clients that are not ours: how they are called, and what to do when one is absent.

use super::process::{Running, run, start};
use super::server::Server;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The interpreter whose packages are Debian's: another first on `PATH` would not see `nbd`.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// Says why a test, or a part of it, is not run or not judged: past the test harness, which keeps
/// what a test prints to itself as long as it passes. `cargo x ci` counts these lines.
pub fn skipped(why: &str) {
    let _ = writeln!(std::io::stdout(), "SKIPPED: {why}");
}

/// Whether one of these tools is absent; says so. A test returns then.
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

/// A program of the Python environment that `cargo x setup` makes, such as `aws`.
pub fn in_venv(name: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/venv/bin/").to_owned() + name
}

/// Another program that `cargo x setup` makes.
pub fn in_target(name: &str) -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/target/").to_owned() + name
}

/// A script of tests/python under the interpreter that has libnbd.
pub fn libnbd_script(name: &str) -> Command {
    let mut command = Command::new(system_python());
    command.arg(format!("{}/tests/python/{name}", env!("CARGO_MANIFEST_DIR")));
    command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
    command
}

/// A program and its arguments, those that contain no space written in one text.
pub fn tool(program: &str, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    command
}

/// One fio job against a volume, in the background.
pub fn start_fio(server: &Server, uri: &str, job: &str) -> Running {
    let mut command = tool("fio", "--name=job --thread --ioengine=nbd --output-format=json");
    command.arg(format!("--uri={uri}")).args(job.split_whitespace());
    // Where fio writes the state of its verification, if it does.
    start(command.current_dir(server.folder()))
}

/// All that fio reported, one after the other.
pub fn reports(text: &str) -> Vec<Value> {
    let start = text.find('{').unwrap_or(text.len());
    let reports = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
    reports.map(|report| report.unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
}

/// What fio reports about its one job; it must have ended without an error.
#[track_caller]
pub fn fio_result(fio: Running) -> Value {
    let output = fio.finish();
    let text = output.stdout.find('{').map(|start| &output.stdout[start..]);
    let report: Value = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let job = report["jobs"][0].clone();
    assert!(output.status.success() && job["error"] == 0, "{output}");
    job
}

/// One fio job against a volume, to its end; it must succeed.
#[track_caller]
pub fn fio(server: &Server, uri: &str, job: &str) -> Value {
    fio_result(start_fio(server, uri, job))
}

/// A script of tests/python with libnbd, to its end; it must succeed.
#[track_caller]
pub fn libnbd(script: &str, arguments: &[&str]) -> String {
    run(libnbd_script(script).args(arguments)).ok()
}
