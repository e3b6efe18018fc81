//! Servers that a run needs, known by where they work: after one that was killed they are stopped
//! before anything is taken down.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{child, mounts};
use crate::LabError;

/// A server that is told to end at once has so long before it is killed.
pub(super) const QUIT_MAX: Duration = Duration::from_secs(10);
/// Programs that are servers of ours, and what ends them at once. Another one in the very folder is
/// not ours to stop.
const PROGRAMS: [(&str, Signal); 5] = [
    ("postgres", Signal::QUIT),
    ("mariadbd", Signal::KILL),
    ("apache2", Signal::TERM),
    ("evenkeel", Signal::TERM),
    ("qemu-storage-daemon", Signal::TERM),
];

/// Stops the servers of a folder, if any run: at once, since nobody needs their data again. They
/// are known by where they work, not by a number that may be another's by now.
///
/// # Errors
/// When it does not go.
pub(super) fn stop(folder: &Path) -> Result<(), LabError> {
    PROGRAMS.into_iter().try_for_each(|(program, at_once)| stop_program(folder, program, at_once))
}

fn stop_program(folder: &Path, program: &str, at_once: Signal) -> Result<(), LabError> {
    for signal in [at_once, Signal::KILL] {
        for process in processes_of(folder, program) {
            let _ = kill_process(process, signal);
        }
        let what = format!("the {program} in {} is gone", folder.display());
        let gone = mounts::wait_until(&what, QUIT_MAX, || processes_of(folder, program).is_empty());
        if signal == Signal::KILL || gone.is_ok() {
            return gone;
        }
    }
    Ok(())
}

/// A folder that nobody else may pass, for a server's socket or data; one that an earlier start has
/// left will do.
pub(super) fn private_folder(folder: &Path) -> Result<(), LabError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => fs::set_permissions(folder, Permissions::from_mode(0o700)),
    }
    .map_err(LabError::io("cannot make", folder))
}

/// How a server is told its folder: it works there some time after it was started, and is told
/// from the start.
pub(super) fn data_folder(folder: &Path) -> String {
    format!("--datadir={}", folder.display())
}

/// The processes of a server that works in a folder, or below, or is told to: itself and its
/// children, but never this one.
fn processes_of(folder: &Path, program: &str) -> Vec<Pid> {
    let told = data_folder(folder);
    let own = Path::new("/proc").join(std::process::id().to_string());
    child::processes(|process| {
        // First what is cheap and true of few.
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

/// Whether a process's program is called so, also where a newer one has taken its place since.
fn is_program(exe: &Path, program: &str) -> bool {
    let name = exe.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(" (deleted)").unwrap_or(&name) == program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::child::Guarded;
    use crate::clock;
    use std::process::Command;

    #[test]
    fn a_server_that_is_not_there_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        stop(&folder.path().join("postgres")).unwrap();
    }

    /// Something else in the very folder is not ours to stop.
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
