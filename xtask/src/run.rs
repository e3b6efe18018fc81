//! Starts other programs, and reports their failures uniformly.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns `cargo` with these arguments, in the workspace's folder, with the toolchain that runs
/// this.
pub fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    // Removes variables that cargo sets for this process. Build scripts that read them would run
    // again, and all that depends on them would be rebuilt, whenever calls of cargo by this process
    // and by a user alternate.
    let is_ours = |name: &str| {
        name.starts_with("CARGO_PKG_")
            || ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_MANIFEST_LINKS"].contains(&name)
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_ours) {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a command to its end with the standard streams of this process.
pub fn status(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", shown(command))) }
}

/// Runs a command to its end and returns its standard output; standard error is that of this
/// process.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", shown(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{}: output is not UTF-8", shown(command)))
}

/// Runs a command to its end, prints its standard output line by line, and calls `see` with each
/// line. Standard error is that of this process.
pub fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> Result<(), String> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", shown(command)))?;
    if let Some(stdout) = child.stdout.take() {
        // Lossy: a test may print bytes that are no text, and the report must not stop there.
        for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            see(&line);
        }
    }
    let status = child.wait().map_err(|error| format!("{}: {error}", shown(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", shown(command))) }
}

/// Returns the command with a time limit: coreutils' `timeout` ends its whole process group, which
/// a kill of the child does not.
pub fn bounded(command: &Command, seconds: u32) -> Command {
    let mut bounded = Command::new("timeout");
    bounded.arg("--kill-after=30").arg(seconds.to_string());
    bounded.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        bounded.current_dir(folder);
    }
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(key, value),
            None => bounded.env_remove(key),
        };
    }
    bounded
}

/// Returns the path of a program on `PATH`, or in the folders of system tools that a user's `PATH`
/// may lack.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|f| f.join(program)).find(|file| file.is_file())
}

/// Returns a command as it would be typed.
/// Returns the program and its arguments as one line.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command() {
        let error = status(Command::new("false").arg("x")).unwrap_err();
        assert!(error.starts_with("false x failed"), "{error}");
        let error = status(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.starts_with("no-such-program-here: "), "{error}");
    }

    #[test]
    fn a_command_past_its_time_is_ended() {
        let mut sleep = Command::new("sleep");
        sleep.arg("600");
        assert!(status(&mut bounded(&sleep, 1)).is_err());
    }

    #[test]
    fn watch_sees_every_line() {
        let mut lines = Vec::new();
        let result =
            watch(Command::new("printf").arg("a\\nb\\n"), |line| lines.push(line.to_owned()));
        assert_eq!(result, Ok(()));
        assert_eq!(lines, ["a", "b"]);
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find("sh").is_some());
        assert_eq!(find("no-such-program-here"), None);
    }
}
