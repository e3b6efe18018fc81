//! Volumes as sparse files in a folder: `volumes/vol-….raw`, read and written past the page cache
//! where the filesystem allows it. FLUSH is fdatasync, FUA is O_DSYNC for that write, TRIM punches
//! holes.
//!
//! The file is the volume, byte for byte: any tool can read it while the server is down.

mod single;
mod volume;

pub use single::SingleFile;

use crate::disk::{DiskAction, DiskOp};
use crate::flush_marks::FlushMarks;
use crate::folder::{self, Folder};
use crate::{Pool, Space, Store, StoreError};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::BLOCK_BYTES_MIN;
use evenkeel_core::units::ByteCount;
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a data folder's marker names this kind of store.
pub const KIND: &str = "files";

/// The folder of the files in the data folder.
pub const VOLUMES: &str = "volumes";

/// What the filesystem of the folder can do, found out by trying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Files are opened with O_DIRECT.
    pub direct: bool,
    /// Offsets and lengths must be multiples of this.
    pub block_bytes_min: u32,
    /// Holes can be punched.
    pub punch_hole: bool,
    /// Ranges can be zeroed and stay allocated.
    pub zero_range: bool,
}

/// Which file it is, whatever its name is by now: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(file: &OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// The open volumes and the files that they are served from. A volume leaves when its store is
/// dropped.
type OpenVolumes = Arc<Mutex<BTreeMap<VolumeId, FileIdentity>>>;

/// A folder of volumes.
#[derive(Debug)]
pub struct FilePool {
    folder: Folder,
    volumes: PathBuf,
    abilities: Abilities,
    open: OpenVolumes,
    flush_marks: FlushMarks,
}

impl FilePool {
    /// Claims the data folder `path` (see [`Folder::claim`]) and finds out what its filesystem can
    /// do.
    ///
    /// # Errors
    /// When the folder is not ours, in use, or cannot be written.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let folder = Folder::claim(path, KIND)?;
        let volumes = path.join(VOLUMES);
        // Narrowed at every start: who can read a file here reads a volume, attached or not.
        std::fs::create_dir_all(&volumes)
            .and_then(|()| std::fs::set_permissions(&volumes, Permissions::from_mode(0o700)))
            .and_then(|()| folder::sync_folder(path))
            .map_err(|e| StoreError::io(format!("make the folder {}", volumes.display()), e))?;
        let abilities = probe(&volumes)?;
        let (open, flush_marks) = (OpenVolumes::default(), FlushMarks::new(path));
        Ok(Self { folder, volumes, abilities, open, flush_marks })
    }

    /// From now on the data folder is that of another kind of store.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub fn hand_over(self, kind: &'static str) -> Result<(), StoreError> {
        self.folder.hand_over(kind)
    }

    /// What the filesystem can do.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn path(&self, id: VolumeId) -> PathBuf {
        self.volumes.join(format!("{id}.raw"))
    }

    fn open_volumes(&self) -> MutexGuard<'_, BTreeMap<VolumeId, FileIdentity>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The volume's file and its size.
    fn file(&self, id: VolumeId, extra: OFlags) -> Result<(OwnedFd, ByteCount), StoreError> {
        let path = self.path(id);
        let file = open(&path, extra).map_err(|errno| match errno {
            Errno::NOENT => StoreError::NotFound { id, path: Some(path.clone()) },
            errno => StoreError::io(format!("open {}", path.display()), errno),
        })?;
        let stat = rustix::fs::fstat(&file)
            .map_err(|e| StoreError::io(format!("look at {}", path.display()), e))?;
        Ok((file, ByteCount(stat.st_size.cast_unsigned())))
    }
}

impl Pool for FilePool {
    fn describe(&self) -> String {
        let how = if self.abilities.direct { "O_DIRECT" } else { "page cache (no O_DIRECT here)" };
        format!("sparse files in {}, {how}", self.volumes.display())
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        match self.file(id, OFlags::empty()) {
            Ok((_, present)) if present == size => return Ok(()),
            // A crash between making the file and giving it its size leaves an empty one behind.
            Ok((_, ByteCount(0))) | Err(StoreError::NotFound { .. }) => {}
            Ok((_, present)) => return Err(StoreError::Size { id, present, asked: size }),
            Err(error) => return Err(error),
        }
        let path = self.path(id);
        let made = open(&path, OFlags::CREATE)
            .and_then(|file| {
                rustix::fs::ftruncate(&file, size.0)?;
                rustix::fs::fsync(&file)
            })
            .map_err(std::io::Error::from)
            .and_then(|()| folder::sync_folder(&self.volumes));
        made.map_err(|e| {
            // Best effort: the empty file is recognised by the next create anyway.
            let _ = std::fs::remove_file(&path);
            self.no_file(id, size, format!("make {} with {size}", path.display()), e)
        })
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let direct = if self.abilities.direct { OFlags::DIRECT } else { OFlags::empty() };
        let (file, present) = self.file(id, direct)?;
        let registration = Registration::new(&self.open, id, &file, &self.path(id))?;
        if present != size {
            self.cut_unused(&file, id, present, size)?;
        }
        Ok(Box::new(volume::FileStore::new(file, size, self.abilities, registration)))
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        if to < from {
            return Err(StoreError::Size { id, present: from, asked: to });
        }
        let served_from = self.open_volumes().get(&id).copied();
        let found = self.file(id, OFlags::empty());
        if let Some(served_from) = served_from {
            let at_path = found.as_ref().ok().and_then(|(file, _)| FileIdentity::of(file).ok());
            if at_path != Some(served_from) {
                return Err(StoreError::Replaced { id, path: self.path(id) });
            }
        }
        let (file, present) = found?;
        if present < from {
            return Err(self.differs(id, present, from));
        }
        if present > to {
            self.cut_unused(&file, id, present, to)?;
        }
        rustix::fs::ftruncate(&file, to.0).and_then(|()| rustix::fs::fsync(&file)).map_err(|e| {
            let doing = format!("grow {} to {to}", self.path(id).display());
            self.no_file(id, to, doing, e.into())
        })
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        if self.open_volumes().contains_key(&id) {
            return Err(StoreError::Open { id });
        }
        match std::fs::remove_file(self.path(id)) {
            // It may have been removed by a deletion that did not get to the end.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(StoreError::io(format!("delete {}", self.path(id).display()), e)),
            Ok(()) => {}
        }
        folder::sync_folder(&self.volumes).map_err(|source| {
            let doing = format!("sync {}", self.volumes.display());
            StoreError::Unfinished { id, doing, source }
        })
    }

    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        match self.file(id, OFlags::empty()) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        let doing = || format!("list {}", self.volumes.display());
        let mut volumes = Vec::new();
        for entry in std::fs::read_dir(&self.volumes).map_err(|e| StoreError::io(doing(), e))? {
            let entry = entry.map_err(|e| StoreError::io(doing(), e))?;
            let name = entry.file_name();
            let id = name.to_str().and_then(|n| n.strip_suffix(".raw")?.parse::<VolumeId>().ok());
            if let Some(id) = id {
                let size = entry.metadata().map_err(|e| StoreError::io(doing(), e))?.len();
                volumes.push((id, ByteCount(size)));
            }
        }
        volumes.sort_unstable();
        Ok(volumes)
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        let doing = || format!("look at the space in {}", self.volumes.display());
        let filled: io::Result<u64> = std::fs::read_dir(&self.volumes).and_then(|entries| {
            let blocks = entries.map(|entry| match entry.and_then(|entry| entry.metadata()) {
                Ok(file) => Ok(file.blocks()),
                // It was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
                Err(error) => Err(error),
            });
            blocks.sum()
        });
        let filled =
            filled.map_err(|e| StoreError::io(doing(), e))?.saturating_mul(STAT_BLOCK_BYTES);
        let disk = rustix::fs::statvfs(&self.volumes).map_err(|e| StoreError::io(doing(), e))?;
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        let (total, free) = (ByteCount(filled.saturating_add(free)), ByteCount(free));
        Ok(Some(Space { total, free }))
    }

    fn note_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.flush_marks.note(id)
    }

    fn has_failed_flush(&self, id: VolumeId) -> Result<bool, StoreError> {
        self.flush_marks.has(id)
    }

    fn forget_failed_flush(&self, id: VolumeId) -> Result<(), StoreError> {
        self.flush_marks.forget(id)
    }
}

impl FilePool {
    fn differs(&self, id: VolumeId, present: ByteCount, expected: ByteCount) -> StoreError {
        StoreError::Differs { id, path: Some(self.path(id)), present, expected }
    }

    /// Why there is no file of that size.
    fn no_file(&self, id: VolumeId, asked: ByteCount, doing: String, e: io::Error) -> StoreError {
        if e.kind() != io::ErrorKind::FileTooLarge {
            return StoreError::io(doing, e);
        }
        let (folder, largest) = (self.volumes.clone(), largest_file(&self.volumes, asked));
        StoreError::FileTooLarge { id, folder, asked, largest }
    }

    /// Makes a file as long as its volume that is longer by what nobody has written to: a growth
    /// that was given up leaves such an end behind.
    fn cut_unused(
        &self,
        file: &OwnedFd,
        id: VolumeId,
        present: ByteCount,
        size: ByteCount,
    ) -> Result<(), StoreError> {
        // Nothing but a hole from there on; a file system that cannot tell says data.
        let is_unused =
            present > size && rustix::fs::seek(file, SeekFrom::Data(size.0)) == Err(Errno::NXIO);
        if !is_unused {
            return Err(self.differs(id, present, size));
        }
        rustix::fs::ftruncate(file, size.0)
            .and_then(|()| rustix::fs::fsync(file))
            .map_err(|e| StoreError::io(format!("cut {} to {size}", self.path(id).display()), e))
    }
}

/// Keeps a volume among the open ones while its store lives.
#[derive(Debug)]
struct Registration {
    id: VolumeId,
    open: OpenVolumes,
}

impl Registration {
    /// Registers the volume as served from `file`, which was found at `path`.
    ///
    /// # Errors
    /// [`StoreError::Open`]; [`StoreError::Io`] if the file cannot be looked at.
    fn new(
        open: &OpenVolumes,
        id: VolumeId,
        file: &OwnedFd,
        path: &Path,
    ) -> Result<Self, StoreError> {
        let identity = FileIdentity::of(file)
            .map_err(|e| StoreError::io(format!("look at {}", path.display()), e))?;
        match open.lock().unwrap_or_else(PoisonError::into_inner).entry(id) {
            Entry::Occupied(_) => return Err(StoreError::Open { id }),
            Entry::Vacant(place) => _ = place.insert(identity),
        }
        Ok(Self { id, open: Arc::clone(open) })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

fn open(path: &Path, extra: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | extra;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

/// Tries everything on a scratch file: what manuals say about a filesystem is often older than the
/// kernel.
fn probe(folder: &Path) -> Result<Abilities, StoreError> {
    let path = folder.join("probe.tmp");
    let failed = |e: Errno| StoreError::io(format!("try out {}", path.display()), e);
    let scratch = open(&path, OFlags::CREATE).map_err(failed)?;
    let stretched = rustix::fs::ftruncate(&scratch, PROBE_BYTES);
    let probed = stretched.and_then(|()| probe_file(&path, &scratch)).map_err(failed);
    let _ = std::fs::remove_file(&path);
    probed
}

/// The largest file below `too_large` that the file system of a folder holds, found out by trying.
fn largest_file(folder: &Path, too_large: ByteCount) -> Option<ByteCount> {
    let path = folder.join("probe.tmp");
    let scratch = open(&path, OFlags::CREATE).ok()?;
    let (mut holds, mut refuses) = (0, too_large.0);
    while refuses - holds > 1 {
        let middle = holds + (refuses - holds) / 2;
        match rustix::fs::ftruncate(&scratch, middle) {
            Ok(()) => holds = middle,
            Err(Errno::FBIG) => refuses = middle,
            Err(_) => break,
        }
    }
    let _ = std::fs::remove_file(&path);
    (refuses - holds == 1).then_some(ByteCount(holds))
}

/// The unit of `st_blocks`, whatever the file system's own is.
const STAT_BLOCK_BYTES: u64 = 512;

/// What is tried is tried within so many bytes.
const PROBE_BYTES: u64 = 64 << 10;

/// Tries a file that is [`PROBE_BYTES`] long or longer, and holds nothing there.
fn probe_file(path: &Path, scratch: &OwnedFd) -> Result<Abilities, Errno> {
    let file = File::from(scratch.try_clone().map_err(|_| Errno::MFILE)?);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let can = |flags| rustix::fs::fallocate(&file, flags, 0, PROBE_BYTES).is_ok();
    let (punch_hole, zero_range) = (can(punch), can(FallocateFlags::ZERO_RANGE));
    let direct = open(path, OFlags::DIRECT).ok();
    let block_bytes_min = direct.as_ref().and_then(|direct| {
        [BLOCK_BYTES_MIN, 4_096].into_iter().find(|&block| direct_works(direct, block))
    });
    Ok(Abilities {
        direct: block_bytes_min.is_some(),
        block_bytes_min: block_bytes_min.unwrap_or(BLOCK_BYTES_MIN),
        punch_hole,
        zero_range,
    })
}

/// Whether a direct write and read of one block at an odd multiple of the block size succeed.
fn direct_works(file: &OwnedFd, block: u32) -> bool {
    let op = |action| DiskOp {
        token: 0,
        fd: file.as_raw_fd(),
        action,
        offset: u64::from(block),
        length: block,
        buffer: Some(crate::buffer::Buffer::new(block as usize)),
        buffer_offset: 0,
    };
    // On a full disk the space is missing, not the ability; a wrong alignment is noticed before.
    let whole = |done: crate::disk::DiskDone| {
        done.result == Ok(block) || matches!(done.result, Err(Errno::NOSPC | Errno::DQUOT))
    };
    whole(op(DiskAction::Write { durable: false }).execute())
        && whole(op(DiskAction::Read).execute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;
    use std::io::Write;

    #[test]
    fn conforms_with_blocking_calls() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        conformance::check(&pool, &mut conformance::blocking);
    }

    #[test]
    fn conforms_on_io_uring() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let Ok(mut disk) = conformance::RingDisk::new() else {
            let _ =
                writeln!(std::io::stdout(), "SKIPPED: io_uring is not available to this process");
            return;
        };
        conformance::check(&pool, &mut move |store, submission| disk.run(store, submission));
    }

    #[test]
    fn conforms_on_a_memory_filesystem() {
        let Ok(parent) = tempfile::tempdir_in("/dev/shm") else {
            let _ = writeln!(std::io::stdout(), "SKIPPED: no /dev/shm to make a folder in");
            return;
        };
        let pool = FilePool::open(parent.path()).unwrap();
        conformance::check(&pool, &mut conformance::blocking);
    }

    #[test]
    fn volumes_outlive_the_pool() {
        let parent = tempfile::tempdir().unwrap();
        let id = VolumeId::from_bits(7);
        FilePool::open(parent.path()).unwrap().create(id, ByteCount(1 << 20)).unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        assert_eq!(pool.list().unwrap(), vec![(id, ByteCount(1 << 20))]);
    }

    #[test]
    fn a_file_left_empty_by_a_crash_is_finished() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let id = VolumeId::from_bits(7);
        File::create(pool.path(id)).unwrap();
        pool.create(id, ByteCount(1 << 20)).unwrap();
        let size = ByteCount(1 << 20);
        assert_eq!(pool.open(id, size).unwrap().geometry().size, size);
    }

    #[test]
    fn what_is_missing_or_too_short_is_named_and_never_made_up_for() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let (id, size) = (VolumeId::from_bits(7), ByteCount(1 << 20));
        pool.create(id, size).unwrap();
        for present in [0, 512, (1 << 20) - 1] {
            File::options().write(true).open(pool.path(id)).unwrap().set_len(present).unwrap();
            for error in [pool.open(id, size).err(), pool.resize(id, size, size).err()] {
                let error = error.expect("it is too short");
                assert!(matches!(error, StoreError::Differs { .. }), "{error}");
                assert!(error.to_string().contains("are missing"), "{error}");
                assert!(error.to_string().contains(&format!("{id}.raw")), "{error}");
            }
            assert_eq!(std::fs::metadata(pool.path(id)).unwrap().len(), present);
        }
        std::fs::remove_file(pool.path(id)).unwrap();
        let error = pool.open(id, size).err().expect("it is missing");
        assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{id}.raw")), "{error}");
        assert!(!pool.path(id).exists());
    }

    /// A server writes to the file that it opened. Another one of that name is not the volume.
    #[test]
    fn a_file_that_was_replaced_while_it_is_open_is_not_grown() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let (id, size, more) = (VolumeId::from_bits(7), ByteCount(1 << 20), ByteCount(2 << 20));
        pool.create(id, size).unwrap();
        let store = pool.open(id, size).unwrap();
        let aside = parent.path().join("aside.raw");
        std::fs::rename(pool.path(id), &aside).unwrap();
        let refused = || pool.resize(id, size, more).unwrap_err();
        assert!(matches!(refused(), StoreError::Replaced { .. }), "{}", refused());
        std::fs::copy(&aside, pool.path(id)).unwrap();
        assert!(matches!(refused(), StoreError::Replaced { .. }), "{}", refused());
        for file in [&aside, &pool.path(id)] {
            assert_eq!(std::fs::metadata(file).unwrap().len(), size.0);
        }
        std::fs::rename(&aside, pool.path(id)).unwrap();
        pool.resize(id, size, more).unwrap();
        drop(store);
        assert_eq!(pool.open(id, more).unwrap().geometry().size, more);
    }

    #[test]
    fn an_end_that_nobody_wrote_to_is_cut_and_one_with_data_is_kept() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let (id, size) = (VolumeId::from_bits(7), ByteCount(1 << 20));
        pool.create(id, size).unwrap();
        let file = File::options().write(true).open(pool.path(id)).unwrap();
        file.set_len(4 << 20).unwrap();
        assert_eq!(pool.open(id, size).unwrap().geometry().size, size);
        assert_eq!(file.metadata().unwrap().len(), size.0);
        file.set_len(4 << 20).unwrap();
        pool.resize(id, size, ByteCount(2 << 20)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 << 20);
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", (2 << 20) - 1).unwrap();
        let error = pool.open(id, size).err().expect("it is too long").to_string();
        assert!(error.contains(&format!("truncate -s {} ", size.0)), "{error}");
        assert_eq!(file.metadata().unwrap().len(), 2 << 20);
        // A growth said again leaves what was written since the first time.
        pool.resize(id, size, ByteCount(2 << 20)).unwrap();
        assert_eq!(std::fs::read(pool.path(id)).unwrap().last(), Some(&b'x'));
    }

    #[test]
    fn what_is_written_takes_of_what_is_free_and_not_of_the_total() {
        let Ok(parent) = tempfile::tempdir_in("/dev/shm") else {
            let _ = writeln!(std::io::stdout(), "SKIPPED: no /dev/shm to make a folder in");
            return;
        };
        let pool = FilePool::open(parent.path()).unwrap();
        let (id, size) = (VolumeId::from_bits(7), ByteCount(64 << 20));
        pool.create(id, size).unwrap();
        let filled = |pool: &FilePool| {
            let Space { total, free } = pool.space().unwrap().unwrap();
            total.0 - free.0
        };
        assert_eq!(filled(&pool), 0);
        std::fs::write(pool.path(id), vec![1; 8 << 20]).unwrap();
        assert_eq!(filled(&pool), 8 << 20);
    }

    #[test]
    fn a_deletion_that_is_not_durable_is_unfinished_and_finished_later() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let id = VolumeId::from_bits(7);
        // A folder that is gone can be synced as little as one on a broken disk.
        std::fs::remove_dir(&pool.volumes).unwrap();
        let error = pool.delete(id).unwrap_err();
        assert!(matches!(error, StoreError::Unfinished { .. }), "{error}");
        std::fs::create_dir(&pool.volumes).unwrap();
        pool.delete(id).unwrap();
    }

    #[test]
    fn a_size_beyond_the_filesystem_is_an_error_that_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let pool = FilePool::open(parent.path()).unwrap();
        let error = pool.create(VolumeId::from_bits(7), ByteCount(1 << 62)).unwrap_err();
        assert!(error.is_no_space() || matches!(error, StoreError::Io { .. }), "{error}");
        assert_eq!(pool.list().unwrap(), vec![]);
        if let StoreError::FileTooLarge { largest, .. } = error {
            let largest = largest.expect("it was found out");
            let file = File::create(pool.path(VolumeId::from_bits(8))).unwrap();
            file.set_len(largest.0).unwrap();
            assert!(file.set_len(largest.0 + 1).is_err());
        }
    }
}
