//! `cargo x setup` in a process beside the steps that need nothing of it: downloads and single
//! threads leave the processors to the compiler.

use crate::clock::Stopwatch;
use crate::run;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The file with its output, relative to the workspace's folder.
const LOG: &str = "target/ci/setup.log";

/// A setup that has begun.
pub struct Preparation {
    name: String,
    child: Child,
    log: PathBuf,
    watch: Stopwatch,
}

impl Preparation {
    /// Starts `cargo x setup`, with a time limit in seconds.
    ///
    /// # Errors
    /// If the log or the process cannot be created.
    pub fn start(root: &Path, seconds_max: u32) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let mut setup = Command::new(program);
        setup.arg("setup");
        // At a terminal Ctrl-C ends the run, but `timeout` would keep it from the setup.
        if !std::io::stdin().is_terminal() {
            setup = run::bounded(&setup, seconds_max);
        }
        Self::of(setup, &root.join(LOG))
    }

    fn of(mut command: Command, log: &Path) -> Result<Self, String> {
        let io = |error: std::io::Error| format!("{}: {error}", log.display());
        fs::create_dir_all(log.parent().unwrap_or(log)).map_err(io)?;
        let stdout = File::create(log).map_err(io)?;
        let stderr = stdout.try_clone().map_err(io)?;
        let name = run::shown(&command);
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        let child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
        Ok(Self { name, child, log: log.to_owned(), watch: Stopwatch::start() })
    }

    /// Waits for its end, and prints its output. Returns the time from its start to now.
    ///
    /// # Errors
    /// If it failed.
    pub fn finish(mut self) -> Result<Duration, String> {
        let ended = self.child.wait().map_err(|error| format!("{}: {error}", self.name))?;
        let took = self.watch.elapsed();
        // Lossy, as a program may print bytes that are no text.
        let bytes = fs::read(&self.log).map_err(|e| format!("{}: {e}", self.log.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        println!("== setup ({:.1} s)\n{}", took.as_secs_f64(), text.trim_end());
        if ended.success() { Ok(took) } else { Err(format!("{} failed: {ended}", self.name)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_end_of_a_setup_are_reported() {
        let folder = std::env::temp_dir().join(format!("evenkeel-setup-{}", std::process::id()));
        let log = folder.join("ci/setup.log");
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Preparation::of(command, &log).unwrap().finish()
        };
        assert!(shell("echo installed").is_ok());
        assert_eq!(fs::read_to_string(&log).unwrap(), "installed\n");
        let error = shell("echo no network >&2; exit 3").unwrap_err();
        assert!(error.ends_with("failed: exit status: 3"), "{error}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "no network\n");
        fs::remove_dir_all(&folder).unwrap();
    }
}
