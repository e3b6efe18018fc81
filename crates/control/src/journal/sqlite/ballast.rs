//! A ballast file beside the database: disk space that can be freed when the disk is full.
//!
//! Volumes share the database's disk. If they fill it and the server is killed, the database could
//! not be opened again, so no volume could be deleted. The ballast file is removed when the server
//! starts and written again once it runs. Failures to write it are logged, not returned.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use evenkeel_telemetry::private;
use tracing::warn;

/// Size of the file: enough for the database to recover and for some hundred changes after that.
const BYTES: usize = 1 << 20;

/// The ballast file of one database.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
    /// Whether the file was written and not removed since.
    kept: bool,
}

impl Ballast {
    /// Creates the ballast of a database. Removes the file if it exists.
    #[must_use]
    pub fn released(database: &Path) -> Self {
        let mut ballast = Self { path: database.with_extension("reserve"), kept: true };
        ballast.release();
        ballast
    }

    /// Removes the file. Returns whether that has freed space.
    pub fn release(&mut self) -> bool {
        // Without a file there is nothing to free; other errors will occur in the database, too.
        std::mem::take(&mut self.kept) && std::fs::remove_file(&self.path).is_ok()
    }

    /// Writes the file, or as much of it as the disk has space for.
    pub fn keep(&mut self) {
        if self.kept {
            return;
        }
        // Written, not only allocated: a file system may give allocated space to others. Not
        // zeroes, which some file systems do not store.
        let file = private::open(&self.path);
        let kept = file.and_then(|mut file| file.write_all(&vec![b'.'; BYTES]));
        self.kept = true;
        if let Err(error) = kept {
            let path = self.path.display();
            if error.kind() == io::ErrorKind::StorageFull {
                warn!("{path}: the disk is full; free some space before the next restart");
            } else {
                warn!("{path}: no space could be kept aside: {error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballast_exists_while_the_server_runs_and_is_free_at_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("control.db");
        let mut ballast = Ballast::released(&database);
        ballast.keep();
        let path = folder.path().join("control.reserve");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        let mut ballast = Ballast::released(&database);
        assert!(!path.exists());
        assert!(!ballast.release(), "given back twice");
    }
}
