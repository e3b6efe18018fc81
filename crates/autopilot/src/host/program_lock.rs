//! The programs that change a file system, also those of an agent that has ended.
//!
//! A program that has just started is not seen in the kernel's exclusive operation yet. If its
//! agent ends then, the next one would take a device that is being added for one that is not. So
//! each program has a locked file as its standard input: the kernel unlocks that when the program
//! ends, and at no other time.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::Fault;

/// The folder of the locks, beside those of the agents. It is empty after each boot.
const FOLDER: &str = "/run/evenkeel-agent";

/// The lock of the programs on one file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ProgramLock {
    path: PathBuf,
}

impl ProgramLock {
    /// Returns the lock of the file system with this UUID.
    pub fn with_uuid(uuid: &str) -> Self {
        Self { path: PathBuf::from(FOLDER).join(format!("{uuid}.program")) }
    }

    /// Takes the lock, for the standard input of one program.
    pub fn take(&self) -> Result<File, Fault> {
        let folder = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let file = folder.and_then(|()| self.open(true)).map_err(|error| self.failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(Errno::WOULDBLOCK) => {
                Err(Fault::Later("a program that an agent has started still runs".to_owned()))
            }
            Err(error) => Err(self.failed(&error.into())),
        }
    }

    /// Returns whether a program has it.
    pub fn is_taken(&self) -> Result<bool, Fault> {
        let file = match self.open(false) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(self.failed(&error)),
        };
        // A shared lock, so that two agents that look are not programs for each other.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(error) => Err(self.failed(&error.into())),
        }
    }

    fn open(&self, is_new: bool) -> io::Result<File> {
        let no_link = OFlags::NOFOLLOW.bits().cast_signed();
        let mut options = OpenOptions::new();
        options.read(true).write(is_new).create(is_new).truncate(false).mode(0o600);
        options.custom_flags(no_link).open(&self.path)
    }

    fn failed(&self, error: &io::Error) -> Fault {
        Fault::Later(format!("{}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn program_lock_ends_with_the_program_that_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let lock = ProgramLock { path: folder.path().join("lock") };
        assert_eq!(lock.is_taken(), Ok(false));
        let mut program = Command::new("sleep");
        program.arg("1000").stdin(Stdio::from(lock.take().unwrap()));
        let started = program.spawn();
        drop(program);
        let mut program = started.unwrap();
        assert_eq!(lock.is_taken(), Ok(true));
        assert!(matches!(lock.take(), Err(Fault::Later(text)) if text.contains("still runs")));
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(lock.is_taken(), Ok(false));
        drop(lock.take().unwrap());
        assert_eq!(lock.is_taken(), Ok(false));
    }
}
