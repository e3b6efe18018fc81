//! Marks of volumes with a failed flush, as files in the data folder, so that the next process
//! knows of it.
//!
//! A mark is a file in the folder `failed-flushes` that is named after its volume. Its existence
//! counts, not its contents: a mark that cannot be synced outlives at least the process.

use crate::StoreError;
use evenkeel_core::ids::VolumeId;
use evenkeel_os::files::sync_folder;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name of the folder of the marks in the data folder.
const FOLDER: &str = "failed-flushes";

/// Contents of a mark, for people.
const TEXT: &str = "A flush of this volume has failed. Flushes and writes of it fail until it is \
                    detached from all hosts and attached again.\n";

/// The marks of a data folder.
#[derive(Debug)]
pub(crate) struct FlushMarks {
    data_folder: PathBuf,
}

impl FlushMarks {
    /// Returns the marks of this data folder.
    pub(crate) fn new(data_folder: &Path) -> Self {
        Self { data_folder: data_folder.to_owned() }
    }

    fn folder(&self) -> PathBuf {
        self.data_folder.join(FOLDER)
    }

    fn path(&self, id: VolumeId) -> PathBuf {
        self.folder().join(id.to_string())
    }

    /// Notes a failed flush, as [`Pool::note_failed_flush`](crate::Pool::note_failed_flush).
    pub(crate) fn note(&self, id: VolumeId) -> Result<(), StoreError> {
        let folder = self.folder();
        let path = self.path(id);
        let written = fs::create_dir_all(&folder)
            .and_then(|()| fs::File::create(&path))
            .and_then(|mut file| file.write_all(TEXT.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| sync_folder(&folder))
            .and_then(|()| sync_folder(&self.data_folder));
        written.map_err(|e| StoreError::io(format!("write {}", path.display()), e))
    }

    /// Returns whether a flush has failed, as
    /// [`Pool::has_failed_flush`](crate::Pool::has_failed_flush).
    pub(crate) fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        let path = self.path(id);
        path.try_exists().map_err(|e| StoreError::io(format!("look for {}", path.display()), e))
    }

    /// Removes the mark, as [`Pool::forget_failed_flush`](crate::Pool::forget_failed_flush).
    pub(crate) fn forget(&self, id: VolumeId) -> Result<(), StoreError> {
        let path = self.path(id);
        let removed = match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed.and_then(|()| sync_folder(&self.folder())),
        };
        removed.map_err(|e| StoreError::io(format!("remove {}", path.display()), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_there_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [marked, other] = [1, 2].map(VolumeId::from_bits);
        let marks = FlushMarks::new(folder.path());
        marks.forget(marked).unwrap();
        assert!(!marks.has(marked).unwrap());
        for _ in 0..2 {
            marks.note(marked).unwrap();
        }
        let marks = FlushMarks::new(folder.path());
        assert!(marks.has(marked).unwrap() && !marks.has(other).unwrap());
        marks.forget(marked).unwrap();
        assert!(!marks.has(marked).unwrap());
    }

    #[test]
    fn a_mark_that_cannot_be_written_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FOLDER), "a file, not a folder").unwrap();
        let marks = FlushMarks::new(folder.path());
        let id = VolumeId::from_bits(1);
        let message = marks.note(id).unwrap_err().to_string();
        assert!(message.contains(&id.to_string()), "{message}");
        assert!(marks.has(id).is_err());
    }
}
