//! From the store of files to the local store: every volume of a data folder is copied into a pool
//! and compared with its file before the folder changes hands.
//!
//! It may be cut short at any moment, and is begun again then: what is in the pool already is
//! compared, and only what differs is copied. Until the last volume was compared the folder is that
//! of the store of files. Its files are kept, in a folder of another name.

use crate::buffer::Buffer;
use crate::conformance::blocking;
use crate::encryption::keys::Keys;
use crate::files::{FilePool, VOLUMES};
use crate::folder::{self, Folder};
use crate::local::place;
use crate::local::pool::LocalPool;
use crate::{Completion, Pool, Store, StoreError, Submission};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the files are kept.
pub const KEPT: &str = "volumes.migrated";
/// Bytes that are compared and copied at a time.
const PART_BYTES: u64 = 1 << 20;
/// Parts between two flushes.
const FLUSH_PARTS: u64 = 64;

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The volume.
    pub id: VolumeId,
    /// Whether it is being compared for the last time, rather than copied.
    pub is_check: bool,
    /// Bytes of it that are done.
    pub done: ByteCount,
    /// Its bytes.
    pub size: ByteCount,
}

/// What came of a migration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// Volumes.
    pub volumes: usize,
    /// Bytes that were copied: the rest was in the pool already, or are zeroes.
    pub copied: ByteCount,
    /// Where the files are kept.
    pub kept: PathBuf,
}

/// Migrates the data folder `path` to a pool in `device`, or in the folder itself; with `keys`, the
/// volumes are encrypted. No server may use the folder meanwhile.
///
/// # Errors
/// When the folder is not that of a store of files, a volume cannot be copied, or a copy differs.
pub fn migrate(
    path: &Path,
    device: Option<&Path>,
    keys: Option<Keys>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Migrated, StoreError> {
    let kept = path.join(KEPT);
    let files = match FilePool::open(path) {
        // A migration before was cut short between its last two steps.
        Err(StoreError::OtherKind { present, .. })
            if present == place::KIND && path.join(VOLUMES).exists() =>
        {
            let folder = Folder::claim(path, place::KIND)?;
            keep_files(path, &kept)?;
            drop(folder);
            return Ok(Migrated { volumes: 0, copied: ByteCount(0), kept });
        }
        files => files?,
    };
    let pool = LocalPool::in_claimed_folder(path, device)?;
    let encrypts = keys.is_some();
    let pool = match keys {
        Some(keys) => pool.with_keys(keys),
        None => pool,
    };
    let volumes = files.list()?;
    let mut copied = 0;
    for &(id, size) in &volumes {
        match encrypts {
            true => pool.create_encrypted(id, size)?,
            false => pool.create(id, size)?,
        }
        for is_check in [false, true] {
            let mut step =
                Step { files: files.open(id, size)?, pool: pool.open(id, size)?, id, copied: 0 };
            step.run(size, is_check, progress)?;
            copied += step.copied;
        }
    }
    // Nobody may find the pool in use once the folder says that it is there.
    drop(pool);
    files.hand_over(place::KIND)?;
    keep_files(path, &kept)?;
    Ok(Migrated { volumes: volumes.len(), copied: ByteCount(copied), kept })
}

/// The files get a folder of another name.
fn keep_files(path: &Path, kept: &Path) -> Result<(), StoreError> {
    let renamed = match fs::metadata(kept) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(path.join(VOLUMES), kept),
    };
    let doing = || format!("rename {} to {}", path.join(VOLUMES).display(), kept.display());
    renamed.and_then(|()| folder::sync_folder(path)).map_err(|error| StoreError::io(doing(), error))
}

/// One volume, here and there.
struct Step {
    files: Box<dyn Store>,
    pool: Box<dyn Store>,
    id: VolumeId,
    copied: u64,
}

/// One of the two.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Files,
    Pool,
}

impl Step {
    /// Copies what differs, or finds that nothing does.
    fn run(
        &mut self,
        size: ByteCount,
        is_check: bool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), StoreError> {
        let (mut at, mut parts) = (0, 0);
        while at < size.0 {
            let length = self.empty(at, size.0)?;
            if length == 0 {
                let length = PART_BYTES.min(size.0 - at);
                self.part(at, length as u32, is_check)?;
                at += length;
                parts += 1;
                if parts % FLUSH_PARTS == 0 {
                    self.flush()?;
                }
            }
            at += length;
            progress(Progress { id: self.id, is_check, done: ByteCount(at.min(size.0)), size });
        }
        self.flush()
    }

    /// How many bytes from here on are holes on both sides.
    fn empty(&mut self, at: u64, end: u64) -> Result<u64, StoreError> {
        let mut empty = u64::from(u32::MAX / 2).min(end - at) / PART_BYTES * PART_BYTES;
        for side in [Side::Files, Side::Pool] {
            if empty == 0 {
                break;
            }
            let done = self.ask(side, Operation::BlockStatus, at, empty as u32, None)?;
            let holes = done.extents.iter().take_while(|extent| extent.hole);
            let length: u64 = holes.map(|extent| u64::from(extent.length)).sum();
            empty = empty.min(length) / PART_BYTES * PART_BYTES;
        }
        Ok(empty)
    }

    fn part(&mut self, at: u64, length: u32, is_check: bool) -> Result<(), StoreError> {
        let mut read = |side| {
            let buffer = Some(Buffer::new(length as usize));
            let done = self.ask(side, Operation::Read, at, length, buffer)?;
            Ok::<_, StoreError>(done.buffer)
        };
        let (Some(source), Some(copy)) = (read(Side::Files)?, read(Side::Pool)?) else {
            unreachable!("a read brings its buffer back");
        };
        let bytes = |buffer: &Buffer| buffer.bytes()[..length as usize].to_vec();
        let wanted = bytes(&source);
        if wanted == bytes(&copy) {
            return Ok(());
        }
        if is_check {
            let id = self.id;
            let what = format!("the copy of {id} at byte {at}, which was compared before,");
            return Err(StoreError::Rotten { what });
        }
        self.copied += u64::from(length);
        if wanted.iter().all(|&byte| byte == 0) {
            self.ask(Side::Pool, Operation::Discard { fua: false }, at, length, None)?;
        } else {
            self.ask(Side::Pool, Operation::Write { fua: false }, at, length, Some(source))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StoreError> {
        self.ask(Side::Pool, Operation::Flush, 0, 0, None).map(drop)
    }

    fn ask(
        &mut self,
        side: Side,
        operation: Operation,
        offset: u64,
        length: u32,
        buffer: Option<Buffer>,
    ) -> Result<Completion, StoreError> {
        let store = if side == Side::Files { &mut self.files } else { &mut self.pool };
        let submission = Submission { ticket: 1, operation, offset, length, buffer };
        let done = blocking(store.as_mut(), submission);
        let Err(failure) = done.result else { return Ok(done) };
        let place = if side == Side::Files { "the file" } else { "the copy" };
        let doing = format!("{operation:?} {place} of {} at byte {offset}", self.id);
        Err(StoreError::of_request(doing, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: ByteCount = ByteCount(20 << 20);

    fn fill(pool: &dyn Pool, id: VolumeId, places: &[u64], value: u8) {
        let mut store = pool.open(id, SIZE).unwrap();
        for &place in places {
            let mut buffer = Buffer::new(8_192);
            buffer.bytes_mut().fill(value);
            let operation = Operation::Write { fua: true };
            let (offset, buffer) = (place, Some(buffer));
            let write = Submission { ticket: 1, operation, offset, length: 8_192, buffer };
            assert_eq!(blocking(store.as_mut(), write).result, Ok(()));
        }
    }

    fn byte(pool: &dyn Pool, id: VolumeId, offset: u64) -> u8 {
        let mut store = pool.open(id, SIZE).unwrap();
        let (operation, buffer) = (Operation::Read, Some(Buffer::new(4_096)));
        let read = Submission { ticket: 1, operation, offset, length: 4_096, buffer };
        blocking(store.as_mut(), read).buffer.unwrap().bytes()[0]
    }

    #[test]
    fn a_folder_of_files_becomes_one_of_a_pool_and_the_files_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let [a, b] = [1, 2].map(VolumeId::from_bits);
        let files = FilePool::open(&path).unwrap();
        files.create(a, SIZE).unwrap();
        files.create(b, SIZE).unwrap();
        fill(&files, a, &[0, 5 << 20, (20 << 20) - 8_192], 7);
        fill(&files, b, &[1 << 20], 8);
        let busy = migrate(&path, None, None, &mut |_| {}).unwrap_err();
        assert!(matches!(busy, StoreError::InUse { .. }), "{busy}");
        drop(files);
        assert_eq!(folder::kind_of(&path).as_deref(), Some(crate::files::KIND));
        let mut last = None;
        let done = migrate(&path, None, None, &mut |progress| last = Some(progress)).unwrap();
        assert_eq!((done.volumes, done.copied), (2, ByteCount(4 << 20)));
        let ends = Progress { id: b, is_check: true, done: SIZE, size: SIZE };
        assert_eq!(last, Some(ends));
        assert_ne!(folder::kind_of(&path).as_deref(), Some(crate::files::KIND));
        assert!(done.kept.join(format!("{a}.raw")).exists());
        let pool = LocalPool::in_folder(&path, None).unwrap();
        assert_eq!(pool.list().unwrap(), [(a, SIZE), (b, SIZE)]);
        for (id, offset, value) in [(a, 0, 7), (a, 5 << 20, 7), (a, 1 << 20, 0), (b, 1 << 20, 8)] {
            assert_eq!(byte(&pool, id, offset), value);
        }
        assert_eq!(byte(&pool, a, (20 << 20) - 8_192), 7);
    }

    /// What a migration that was cut short has left: a pool with a part of it, some of which is old
    /// by now.
    #[test]
    fn a_migration_goes_on_where_it_was_cut_short() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let id = VolumeId::from_bits(1);
        let files = FilePool::open(&path).unwrap();
        files.create(id, SIZE).unwrap();
        fill(&files, id, &[0, 3 << 20], 7);
        let pool = LocalPool::in_claimed_folder(&path, None).unwrap();
        pool.create(id, SIZE).unwrap();
        fill(&pool, id, &[0], 7);
        fill(&pool, id, &[9 << 20], 6);
        drop((pool, files));
        // A server went on with the files meanwhile.
        fill(&FilePool::open(&path).unwrap(), id, &[11 << 20], 5);
        let done = migrate(&path, None, None, &mut |_| {}).unwrap();
        assert_eq!(done.copied, ByteCount(3 << 20));
        // Cut short again, behind its last step but one.
        fs::rename(path.join(KEPT), path.join(VOLUMES)).unwrap();
        let done = migrate(&path, None, None, &mut |_| {}).unwrap();
        assert_eq!(done.volumes, 0);
        assert!(path.join(KEPT).exists() && !path.join(VOLUMES).exists());
        let refused = migrate(&path, None, None, &mut |_| {}).unwrap_err();
        assert!(matches!(refused, StoreError::OtherKind { .. }), "{refused}");
        let pool = LocalPool::in_folder(&path, None).unwrap();
        for (offset, value) in [(0, 7), (3 << 20, 7), (9 << 20, 0), (11 << 20, 5)] {
            assert_eq!(byte(&pool, id, offset), value);
        }
    }
}
