//! One empty file as a pool of one volume, for the time of a measurement: the device below a file
//! can be measured where there is no folder to make volumes in. Afterwards the file is empty again.
//!
//! While it is used the file ends with a mark, behind the volume's bytes; so what a crash left is
//! known to be ours, and nothing else is.

use super::{Abilities, OpenVolumes, PROBE_BYTES, Registration, open, probe_file, volume};
use crate::{Pool, Space, Store, StoreError};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the last bytes of a file say that is in use.
const MARK: &[u8; 65] = b"evenkeel: scratch file of a measurement, may be emptied, format 1";

/// The mark has a block to itself.
const MARK_BLOCK_BYTES: u64 = 4_096;

/// See the module's text.
#[derive(Debug)]
pub struct SingleFile {
    path: PathBuf,
    file: File,
    abilities: Abilities,
    volume: Mutex<Option<(VolumeId, ByteCount)>>,
    open: OpenVolumes,
}

impl SingleFile {
    /// Takes an empty file, or one that a crash left.
    ///
    /// # Errors
    /// When it is no plain file, not empty and not ours, in use, or cannot be written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let doing = || format!("open {}", path.display());
        let file = open(path, OFlags::empty()).map_err(|e| StoreError::io(doing(), e))?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StoreError::InUse { path: path.to_owned() })?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|e| StoreError::io(doing(), e))?;
        let not_ours = |found: &str| {
            Err(StoreError::NotEmpty { path: path.to_owned(), found: found.to_owned() })
        };
        if !metadata.is_file() {
            return not_ours("no plain file");
        }
        if metadata.len() > 0 && !is_marked(&file, metadata.len()) {
            return not_ours(&ByteCount(metadata.len()).to_string());
        }
        let trying = |e| StoreError::io(format!("try out {}", path.display()), e);
        file.set_len(0).and_then(|()| mark(&file, PROBE_BYTES)).map_err(trying)?;
        let probed = OwnedFd::from(file.try_clone().map_err(trying)?);
        let abilities = probe_file(path, &probed);
        file.set_len(0).map_err(trying)?;
        let abilities = abilities.map_err(|e| trying(e.into()))?;
        let path = path.to_owned();
        Ok(Self { path, file, abilities, volume: Mutex::default(), open: OpenVolumes::default() })
    }

    fn volume(&self) -> MutexGuard<'_, Option<(VolumeId, ByteCount)>> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self, id: VolumeId) -> bool {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    /// Makes the file as long as the volume and its mark.
    fn stretch(&self, size: ByteCount) -> Result<(), StoreError> {
        let stretched = mark(&self.file, size.0).and_then(|()| self.file.sync_all());
        stretched
            .map_err(|e| StoreError::io(format!("stretch {} to {size}", self.path.display()), e))
    }
}

/// Makes a file longer, for `size` bytes and the mark, by writing the mark: there is no moment at
/// which it is long and not marked.
fn mark(file: &File, size: u64) -> std::io::Result<()> {
    file.write_all_at(MARK, mark_at(size.saturating_add(MARK_BLOCK_BYTES)))
}

/// Where a file of that length has its mark.
const fn mark_at(length: u64) -> u64 {
    length.saturating_sub(MARK.len() as u64)
}

fn is_marked(file: &File, length: u64) -> bool {
    let mut found = [0; MARK.len()];
    file.read_exact_at(&mut found, mark_at(length)).is_ok() && found == *MARK
}

impl Pool for SingleFile {
    fn describe(&self) -> String {
        format!("the file {}", self.path.display())
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        let mut volume = self.volume();
        match *volume {
            Some((present, has)) if present == id && has == size => Ok(()),
            Some((_, has)) => Err(StoreError::Size { id, present: has, asked: size }),
            None => {
                self.stretch(size).inspect_err(|_| {
                    let _ = self.file.set_len(0);
                })?;
                *volume = Some((id, size));
                Ok(())
            }
        }
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let path = || Some(self.path.clone());
        match *self.volume() {
            Some((present, has)) if present == id && has == size => {}
            Some((present, has)) if present == id => {
                let (present, expected) = (has, size);
                return Err(StoreError::Differs { id, path: path(), present, expected });
            }
            _ => return Err(StoreError::NotFound { id, path: path() }),
        }
        let direct = if self.abilities.direct { OFlags::DIRECT } else { OFlags::empty() };
        let failed = |e: Errno| StoreError::io(format!("open {}", self.path.display()), e);
        let file = open(&self.path, direct).map_err(failed)?;
        let registration = Registration::new(&self.open, id, &file, &self.path)?;
        Ok(Box::new(volume::FileStore::new(file, size, self.abilities, registration)))
    }

    fn resize(&self, id: VolumeId, from: ByteCount, size: ByteCount) -> Result<(), StoreError> {
        if size < from {
            return Err(StoreError::Size { id, present: from, asked: size });
        }
        let path = || Some(self.path.clone());
        let mut volume = self.volume();
        match *volume {
            Some((present, has)) if present == id && has == from && has < size => {
                self.stretch(size)?;
                // The old mark is among the bytes of the volume now, which read as zeroes.
                let zeroes = [0; MARK.len()];
                let unmarked = self.file.write_all_at(&zeroes, mark_at(has.0 + MARK_BLOCK_BYTES));
                unmarked.map_err(|e| {
                    StoreError::io(format!("grow {} to {size}", self.path.display()), e)
                })?;
                *volume = Some((id, size));
                Ok(())
            }
            Some((present, has)) if present == id && has == size => Ok(()),
            Some((present, has)) if present == id => {
                let (present, expected) = (has, from);
                Err(StoreError::Differs { id, path: path(), present, expected })
            }
            _ => Err(StoreError::NotFound { id, path: path() }),
        }
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        if self.is_open(id) {
            return Err(StoreError::Open { id });
        }
        let mut volume = self.volume();
        if volume.is_some_and(|(present, _)| present == id) {
            self.file
                .set_len(0)
                .and_then(|()| self.file.sync_all())
                .map_err(|e| StoreError::io(format!("empty {}", self.path.display()), e))?;
            *volume = None;
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        Ok(self.volume().iter().copied().collect())
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        // There is one volume, for a while.
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[test]
    fn conforms_and_leaves_the_file_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("empty");
        File::create(&path).unwrap();
        conformance::check(&SingleFile::open(&path).unwrap(), &mut conformance::blocking);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn a_file_that_holds_something_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("thesis.tex");
        for text in
            ["x", "years of work, and more of it than the mark at the end of a scratch file"]
        {
            std::fs::write(&path, text).unwrap();
            let error = SingleFile::open(&path).unwrap_err();
            assert!(error.to_string().contains("is not empty"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let error = SingleFile::open(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("no plain file"), "{error}");
        assert!(matches!(
            SingleFile::open(&folder.path().join("none")).unwrap_err(),
            StoreError::Io { .. }
        ));
    }

    #[test]
    fn what_a_crash_left_is_emptied_and_a_file_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("left");
        File::create(&path).unwrap();
        let pool = SingleFile::open(&path).unwrap();
        pool.create(VolumeId::from_bits(7), ByteCount(1 << 20)).unwrap();
        assert!(matches!(SingleFile::open(&path), Err(StoreError::InUse { .. })));
        // As after a crash: nobody has deleted the volume.
        drop(pool);
        assert!(std::fs::metadata(&path).unwrap().len() > 1 << 20);
        let pool = SingleFile::open(&path).unwrap();
        assert_eq!(pool.list().unwrap(), vec![]);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
