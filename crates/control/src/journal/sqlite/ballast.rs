//! A little space kept aside beside the database. Volumes share its disk; when they have filled it
//! and the server is killed, the database could not be opened again, and so nothing deleted either.
//! The reserve is given back when the server starts and taken anew once it runs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tracing::warn;

use crate::private;

/// Enough for the database to recover and for some hundred changes after that.
const BYTES: usize = 1 << 20;

/// See the module's text.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    kept: bool,
}

impl Reserve {
    /// The reserve of a database, given back to the disk if it was kept.
    #[must_use]
    pub fn released(database: &Path) -> Self {
        let mut reserve = Self { path: database.with_extension("reserve"), kept: true };
        reserve.release();
        reserve
    }

    /// Gives the space back to the disk; whether there was any to give.
    pub fn release(&mut self) -> bool {
        // What is not there cannot be given back; whatever else is wrong will show in the database.
        std::mem::take(&mut self.kept) && std::fs::remove_file(&self.path).is_ok()
    }

    /// Keeps the space aside, or as much of it as there is.
    pub fn keep(&mut self) {
        if self.kept {
            return;
        }
        // Written, not only announced: a file system may hand out announced space to others. Not
        // zeroes, which some do not store.
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
    fn it_is_there_while_the_server_runs_and_free_when_it_starts() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("control.db");
        let mut reserve = Reserve::released(&database);
        reserve.keep();
        let path = folder.path().join("control.reserve");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
        let mut reserve = Reserve::released(&database);
        assert!(!path.exists());
        assert!(!reserve.release(), "given back twice");
    }
}
