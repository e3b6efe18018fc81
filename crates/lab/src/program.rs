//! Programs of this workspace as processes: the command of one, and the greeting of a server.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::sync::mpsc;
use std::time::Duration;

use crate::LabError;

/// Longest wait for a server to be ready: it may have to calibrate first.
const START_MAX: Duration = Duration::from_secs(60);
/// The part of the greeting's last line by which a server is known to be ready. The addresses come
/// before it.
const READY: &str = "stops it";

/// Returns the path of this program.
///
/// # Errors
/// If the system does not say where this program is.
pub fn path_of_this_program() -> Result<PathBuf, LabError> {
    std::env::current_exe()
        .map_err(|error| LabError::failed(format!("where this program is: {error}")))
}

/// Returns the path of the program `name` in the folder of this program.
///
/// # Errors
/// If there is no such program.
pub fn path_beside_this_program(name: &str) -> Result<PathBuf, LabError> {
    let own = path_of_this_program()?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    let what =
        format!("{}: there is no such program, but {} needs it", path.display(), own.display());
    Err(LabError::Failed { what, hint: Some("`cargo build --release` builds both") })
}

/// Returns the command of a program in a folder, without the settings of the environment and of a
/// file in the current folder, which are meant for other servers.
#[must_use]
pub fn without_settings(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(folder);
    command
}

/// Returns the first address of a greeting that follows these words.
///
/// # Errors
/// If the greeting has no such address.
pub fn address_in(lines: &[String], before: &str) -> Result<SocketAddr, LabError> {
    let rest = lines.iter().find_map(|line| line.split_once(before));
    let text = rest.and_then(|(_, rest)| rest.split([' ', '/', '\n']).next());
    let address = text.and_then(|text| text.parse().ok());
    let missing = || LabError::failed(format!("no {before} in the greeting of the server"));
    address.ok_or_else(missing)
}

/// Returns the greeting's lines and the rest of the output; `None` if the output ends or takes too
/// long.
#[must_use]
pub fn greeting(stdout: ChildStdout) -> Option<(BufReader<ChildStdout>, Vec<String>)> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A read has no deadline. The thread continues until the server's output ends.
    std::thread::spawn(move || {
        let mut stdout = BufReader::new(stdout);
        let mut lines = Vec::new();
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            lines.push(std::mem::take(&mut line));
            if lines.last().is_some_and(|line| line.contains(READY)) {
                let _ = sender.send((stdout, lines));
                return;
            }
        }
    });
    receiver.recv_timeout(START_MAX).ok()
}
