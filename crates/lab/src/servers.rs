//! Servers that a run needs, found by their working folders. After a run that was killed they are
//! stopped before its mounts are taken down.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::LabError;
use crate::child::{self, wait_until};

/// A server that does not end within this time after its signal is killed.
pub const QUIT_MAX: Duration = Duration::from_secs(10);
/// The programs that runs start as servers, and the signals that end them at once. Other programs
/// that work in a run's folder are not stopped.
const PROGRAMS: [(&str, Signal); 6] = [
    ("postgres", Signal::QUIT),
    ("mariadbd", Signal::KILL),
    ("apache2", Signal::TERM),
    ("evenkeel", Signal::TERM),
    ("evenkeel-bench", Signal::TERM),
    ("qemu-storage-daemon", Signal::TERM),
];

/// Stops the servers that work in a folder. They may lose data, which is not needed any more. They
/// are found by their working folder, since a process number may have been reused.
///
/// # Errors
/// If a server does not end.
pub fn stop(folder: &Path) -> Result<(), LabError> {
    PROGRAMS.into_iter().try_for_each(|(program, at_once)| stop_program(folder, program, at_once))
}

fn stop_program(folder: &Path, program: &str, at_once: Signal) -> Result<(), LabError> {
    for signal in [at_once, Signal::KILL] {
        for process in processes_of(folder, program) {
            let _ = kill_process(process, signal);
        }
        let what = format!("the {program} in {} is gone", folder.display());
        let gone = wait_until(&what, QUIT_MAX, || processes_of(folder, program).is_empty());
        if signal == Signal::KILL || gone.is_ok() {
            return gone;
        }
    }
    Ok(())
}

/// Creates a folder that no other user can enter, for a server's socket or data. A folder of an
/// earlier start is reused.
///
/// # Errors
/// If the folder cannot be created, or belongs to another user.
pub fn private_folder(folder: &Path) -> Result<(), LabError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => fs::set_permissions(folder, Permissions::from_mode(0o700)),
    }
    .map_err(LabError::io("cannot make", folder))
}

/// Returns the argument that names a server's data folder. The server changes to it some time after
/// its start, but is found by the argument from the start.
#[must_use]
pub fn data_folder(folder: &Path) -> String {
    format!("--datadir={}", folder.display())
}

/// Returns the processes of a server that works in a folder or below, or has it as an argument.
/// They include the server's children, but never this process.
fn processes_of(folder: &Path, program: &str) -> Vec<Pid> {
    let told = data_folder(folder);
    let own = Path::new("/proc").join(std::process::id().to_string());
    child::processes(|process| {
        // The cheap check, which few processes pass, comes first.
        let exe = fs::read_link(process.join("exe"));
        if process == own || !exe.is_ok_and(|exe| is_program(&exe, program)) {
            return false;
        }
        let works_there = fs::read_link(process.join("cwd")).is_ok_and(|at| at.starts_with(folder));
        let is_told = || {
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == told.as_bytes())
        };
        works_there || is_told()
    })
}

/// Returns whether a process runs a program of this name, even if its file has been replaced since.
fn is_program(exe: &Path, program: &str) -> bool {
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(" (deleted)").unwrap_or(&name) == program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::Guarded;
    use evenkeel_os::clock;
    use std::process::Command;

    #[test]
    fn a_server_that_is_not_there_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        stop(&folder.path().join("postgres")).unwrap();
    }

    /// Another program in the folder is not stopped.
    #[test]
    fn another_program_in_the_folder_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let mut sleeper = Command::new("sleep");
        let mut sleeper =
            Guarded::spawn(sleeper.arg("1000").current_dir(folder.path()), "coreutils").unwrap();
        stop(folder.path()).unwrap();
        assert_eq!(sleeper.wait_until(clock::now()), None, "it was stopped");
    }
}
