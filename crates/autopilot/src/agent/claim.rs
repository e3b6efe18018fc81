//! The claim of a file system: one agent of the host has it, whichever folder the agent uses and
//! however often the file system is mounted.

use evenkeel_telemetry::private;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The folder with a file for each file system that was claimed since the host started.
const FOLDER: &str = "/run/evenkeel-agent";

/// A claim. It ends when it is dropped, and with the process.
#[derive(Debug)]
pub struct Claim {
    _lock: File,
}

impl Claim {
    /// Claims the file system with a UUID.
    ///
    /// # Errors
    /// If another agent, or another mount of this one, has it.
    pub fn take(uuid: &str) -> Result<Self, String> {
        Self::take_in(Path::new(FOLDER), uuid)
    }

    fn take_in(folder: &Path, uuid: &str) -> Result<Self, String> {
        let path = folder.join(format!("{uuid}.lock"));
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = private::open(&path).map_err(failed)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(format!(
                "another agent has the file system {uuid}, or it is named by two --mount: stop \
                 that agent, or name the file system once"
            ));
        }
        Ok(Self { _lock: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_refused_to_a_second_agent_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let first = Claim::take_in(folder.path(), "0badcafe").unwrap();
        Claim::take_in(folder.path(), "another").unwrap();
        let error = Claim::take_in(folder.path(), "0badcafe").unwrap_err();
        assert!(error.contains("another agent has the file system 0badcafe"), "{error}");
        drop(first);
        Claim::take_in(folder.path(), "0badcafe").unwrap();
    }
}
