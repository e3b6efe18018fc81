//! Storage of a pool: a block device or a file, read and written in whole blocks by calls that
//! block. Requests of volumes use it through [`crate::disk::Disk`].

use super::BLOCK_BYTES;
use crate::StoreError;
use crate::buffer::Buffer;
use crate::disk::{DiskAction, DiskOp};
use evenkeel_os::clock;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes of a sector, with its checksum and version.
pub const SECTOR_BYTES: usize = 512;

/// A place for blocks. Offsets and lengths are multiples of 4 KiB; of reads, multiples of 512 bytes
/// if the device has such sectors.
pub trait Device: Send + Sync + fmt::Debug {
    /// Returns the file descriptor that [`DiskOp`]s for it use.
    fn fd(&self) -> RawFd;

    /// Returns its path, for people.
    fn path(&self) -> &Path;

    /// Returns its size in bytes.
    ///
    /// # Errors
    /// If the size cannot be read.
    fn size(&self) -> io::Result<u64>;

    /// Returns the number of bytes by which it can grow at present.
    ///
    /// # Errors
    /// If that cannot be read.
    fn room(&self) -> io::Result<u64>;

    /// Extends it to `len` bytes, with space for all of them. Never makes it shorter. A file leaves
    /// a part of its file system free.
    ///
    /// # Errors
    /// When there is no room, or it cannot grow.
    fn grow(&self, len: u64) -> io::Result<()>;

    /// Fills `bytes` from `offset`. Bytes behind the end read as zeroes.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When the device fails.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all writes so far durable.
    ///
    /// # Errors
    /// When the device fails.
    fn sync(&self) -> io::Result<()>;
}

/// Part of a file system that a pool's file leaves free, and the most that it leaves. The file does
/// not shrink, and the server's journal, audit and events may be beside it: without room for them
/// nothing could be changed, also after volumes are deleted.
const KEPT_PART: u64 = 20;
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of failed reads at which the device does not count as failed.
const FAILED_READS_MAX: u32 = 256;
/// Fills bytes that cannot be read. They match no checksum.
const UNREADABLE: u8 = 0xee;

/// Fills `bytes` from `offset`. If that fails, reads parts, down to sectors of 512 bytes; parts
/// that cannot be read are filled with bytes that match no checksum.
///
/// # Errors
/// If more than 256 reads fail.
pub fn read_readable(device: &dyn Device, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let mut left = FAILED_READS_MAX;
    read_parts(device, offset, bytes, &[PART_BYTES, BLOCK_BYTES, SECTOR_BYTES], &mut left)
}

fn read_parts(
    device: &dyn Device,
    offset: u64,
    bytes: &mut [u8],
    sizes: &[usize],
    left: &mut u32,
) -> io::Result<()> {
    let Err(error) = device.read(offset, bytes) else { return Ok(()) };
    *left = left.checked_sub(1).ok_or(error)?;
    match sizes.split_first() {
        None => bytes.fill(UNREADABLE),
        Some((size, smaller)) => {
            for (part, at) in bytes.chunks_mut(*size).zip((offset..).step_by(*size)) {
                read_parts(device, at, part, smaller, left)?;
            }
        }
    }
    Ok(())
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: OwnedFd,
    path: PathBuf,
    flushes: Flushes,
}

/// Maximum number of bytes that are copied at once between the caller's memory and memory that is
/// suitable for the device.
const PART_BYTES: usize = 1 << 20;

/// Other openers that a device may have at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hold {
    /// One opener: every other one that locks it is refused.
    Alone,
    /// Readers, and no writer.
    WithReaders,
    /// Any opener: it is not locked.
    WithAnybody,
}

/// A lock outlives its process: the kernel keeps the files of a killed process open until its
/// requests have ended, which takes seconds on a busy disk. Unit tests kill no process.
const HOLD_TRIES: u32 = if cfg!(test) { 50 } else { 500 };
const HOLD_PAUSE: Duration = Duration::from_millis(10);
/// The number of attempts after which the wait is logged.
const HOLD_TRIES_SILENT: u32 = 50;

impl FileDevice {
    /// Opens the device at `path`, without the page cache if that is possible; `create` makes an
    /// empty file if there is none. It is locked for this opener.
    ///
    /// # Errors
    /// When it cannot be opened, is neither a file nor a block device, has sectors that are too
    /// large, or another process holds it.
    pub fn open(path: &Path, create: bool) -> Result<Self, StoreError> {
        let flags = if create { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDWR };
        Self::open_as(path, flags, Hold::Alone)
    }

    /// Opens the device at `path` for reading, and locks it against writers.
    ///
    /// # Errors
    /// When it cannot be opened, or another process holds it.
    pub fn open_at_rest(path: &Path) -> Result<Self, StoreError> {
        Self::open_as(path, OFlags::RDONLY, Hold::WithReaders)
    }

    /// Opens the device at `path` for reading, even if another process holds it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_to_read(path: &Path) -> Result<Self, StoreError> {
        Self::open_as(path, OFlags::RDONLY, Hold::WithAnybody)
    }

    fn open_as(path: &Path, flags: OFlags, hold: Hold) -> Result<Self, StoreError> {
        let doing = || format!("open {}", path.display());
        let mut flags = flags | OFlags::CLOEXEC;
        let kind = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
        match kind {
            Ok(FileType::RegularFile) | Err(_) => {}
            // With this flag and without O_CREAT, the opener has a block device exclusively: no
            // file system on it is mounted, and no other opener has the flag.
            Ok(FileType::BlockDevice) if hold != Hold::WithAnybody => {
                flags = flags.difference(OFlags::CREATE) | OFlags::EXCL;
            }
            Ok(FileType::BlockDevice) => {}
            Ok(_) => {
                let why = "is neither a file nor a block device; name one of these".to_owned();
                return Err(StoreError::NotPool { path: path.to_owned(), why });
            }
        }
        // A device that is only read is read through the page cache.
        let direct = if flags.contains(OFlags::RDWR) { OFlags::DIRECT } else { OFlags::empty() };
        let open = |flags| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let open = || match open(flags | direct) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => open(flags),
            opened => opened,
        };
        let file = match held(path, open) {
            Err(Errno::BUSY) => return Err(StoreError::Held { path: path.to_owned() }),
            opened => opened.map_err(|e| StoreError::io(doing(), e))?,
        };
        let kind = rustix::fs::fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        if kind.map_err(|e| StoreError::io(doing(), e))? == FileType::BlockDevice {
            fits_sectors(path, &file)?;
        } else {
            lock(path, &file, hold)?;
        }
        Ok(Self { file, path: path.to_owned(), flushes: Flushes::default() })
    }

    fn run(
        &self,
        action: DiskAction,
        offset: u64,
        buffer: Buffer,
        length: usize,
    ) -> io::Result<Buffer> {
        let fd = self.file.as_raw_fd();
        let mut done = 0;
        let mut buffer = buffer;
        while done < length {
            let op = DiskOp {
                token: 0,
                fd,
                action,
                offset: offset + done as u64,
                length: (length - done) as u32,
                buffer: Some(buffer),
                buffer_offset: done as u32,
            };
            let ended = op.execute();
            let Some(back) = ended.buffer else { unreachable!("the buffer comes back") };
            buffer = back;
            match ended.result {
                Ok(0) if action == DiskAction::Read => {
                    buffer.bytes_mut()[done..length].fill(0);
                    return Ok(buffer);
                }
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count as usize,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(buffer)
    }
}

/// Repeats an attempt that fails because a file is busy, for at most five seconds.
fn held<T>(path: &Path, mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for number in 1..HOLD_TRIES {
        match attempt() {
            Err(Errno::BUSY | Errno::WOULDBLOCK) => clock::pause(HOLD_PAUSE),
            ended => return ended,
        }
        if number == HOLD_TRIES_SILENT {
            let most = HOLD_PAUSE * HOLD_TRIES;
            tracing::warn!(
                file = %path.display(),
                "held by another program, or by the last requests of a killed one: waits {most:?} \
                 at most"
            );
        }
    }
    attempt()
}

/// Locks a file against other openers. Some network file systems have no locks.
fn lock(path: &Path, file: &OwnedFd, hold: Hold) -> Result<(), StoreError> {
    let operation = match hold {
        Hold::Alone => FlockOperation::NonBlockingLockExclusive,
        Hold::WithReaders => FlockOperation::NonBlockingLockShared,
        Hold::WithAnybody => return Ok(()),
    };
    match held(path, || rustix::fs::flock(file, operation)) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(StoreError::Held { path: path.to_owned() }),
        Err(Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS) => {
            tracing::warn!(
                file = %path.display(),
                "its file system has no locks: see to it that no other server opens it"
            );
            Ok(())
        }
        Err(error) => Err(StoreError::io(format!("lock {}", path.display()), error)),
    }
}

/// Checks that no sector is larger than a block, since a block must be written as a whole or not at
/// all.
fn fits_sectors(path: &Path, file: &OwnedFd) -> Result<(), StoreError> {
    let asked = rustix::fs::ioctl_blksszget(file);
    let bytes = asked.map_err(|e| StoreError::io(format!("look at {}", path.display()), e))?;
    match too_large(bytes) {
        None => Ok(()),
        Some(why) => Err(StoreError::NotPool { path: path.to_owned(), why }),
    }
}

fn too_large(sector_bytes: u32) -> Option<String> {
    (sector_bytes as usize > BLOCK_BYTES).then(|| {
        format!(
            "has sectors of {sector_bytes} bytes, and a pool needs sectors of {BLOCK_BYTES} at \
             most; make the pool in a file on it"
        )
    })
}

impl Device for FileDevice {
    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> io::Result<u64> {
        // The size of a block device is the position of its end.
        Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
    }

    fn room(&self) -> io::Result<u64> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode);
        if kind == FileType::BlockDevice {
            return Ok(0);
        }
        let filesystem = rustix::fs::fstatvfs(&self.file)?;
        let bytes = |blocks: u64| blocks.saturating_mul(filesystem.f_frsize);
        let kept = (bytes(filesystem.f_blocks) / KEPT_PART).min(KEPT_BYTES_MAX);
        Ok(bytes(filesystem.f_bavail).saturating_sub(kept))
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let present = self.size()?;
        if len <= present {
            return Ok(());
        }
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode);
        if kind == FileType::BlockDevice {
            // The size of a block device is fixed.
            return Err(io::ErrorKind::StorageFull.into());
        }
        if len - present > self.room()? {
            return Err(io::ErrorKind::StorageFull.into());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), present, len - present) {
            Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(&self.file, len)?,
            grown => grown?,
        }
        self.sync()
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut buffer = Buffer::new(bytes.len().min(PART_BYTES));
        for (part, at) in bytes.chunks_mut(PART_BYTES).zip((offset..).step_by(PART_BYTES)) {
            buffer = self.run(DiskAction::Read, at, buffer, part.len())?;
            part.copy_from_slice(&buffer.bytes()[..part.len()]);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut buffer = Buffer::new(bytes.len().min(PART_BYTES));
        for (part, at) in bytes.chunks(PART_BYTES).zip((offset..).step_by(PART_BYTES)) {
            buffer.bytes_mut()[..part.len()].copy_from_slice(part);
            buffer = self.run(DiskAction::Write, at, buffer, part.len())?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.flushes.share(|| rustix::fs::fdatasync(&self.file))
    }
}

/// Flushes of one device. Those that are requested while one is under way share the next one: it
/// makes everything durable that was written before the requests. So a start that opens many
/// volumes at once needs few flushes.
#[derive(Debug, Default)]
struct Flushes {
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    /// The last round that has failed, and its error.
    failed: Option<(u64, Errno)>,
}

impl Flushes {
    /// Waits for a flush that begins after this call, or does it.
    fn share(&self, flush: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
        let mut rounds = self.rounds();
        let ours = rounds.begun + 1;
        while rounds.ended < ours && rounds.begun > rounds.ended {
            rounds = self.ended.wait(rounds).unwrap_or_else(PoisonError::into_inner);
        }
        if rounds.ended < ours {
            rounds.begun = ours;
            drop(rounds);
            let result = flush();
            rounds = self.rounds();
            rounds.ended = ours;
            if let Err(errno) = result {
                rounds.failed = Some((ours, errno));
            }
            self.ended.notify_all();
        }
        // A failed later round may have reported the loss of data that this round should have made
        // durable.
        match rounds.failed {
            Some((round, errno)) if round >= ours => Err(errno.into()),
            _ => Ok(()),
        }
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Barrier, mpsc};

    /// Callers that request a flush while one is under way share the next one.
    #[test]
    fn flushes_that_are_asked_for_at_once_are_one() {
        const CALLERS: usize = 8;
        let flushes = Flushes::default();
        let done = AtomicU32::new(0);
        let (begun, begins) = mpsc::channel();
        let goes_on = Barrier::new(2);
        let flush = || {
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                flushes.share(|| {
                    begun.send(()).unwrap();
                    goes_on.wait();
                    done.fetch_add(1, Ordering::SeqCst);
                    Err(Errno::IO)
                })
            });
            begins.recv().unwrap();
            let next = || scope.spawn(|| flushes.share(flush));
            let others: Vec<_> = (0..CALLERS).map(|_| next()).collect();
            // They wait for the flush under way: none of theirs has begun.
            assert_eq!(done.load(Ordering::SeqCst), 0);
            goes_on.wait();
            assert_eq!(first.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
            // That flush began before their requests, so they do not get its failure.
            others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        });
        let all = done.load(Ordering::SeqCst);
        assert!((2..=1 + CALLERS as u32).contains(&all), "{all}");
        assert_eq!(flushes.share(|| Err(Errno::NOSPC)).unwrap_err().raw_os_error(), Some(28));
        flushes.share(|| Ok(())).unwrap();
    }

    #[test]
    fn pool_file_is_held_by_one_writer_or_by_readers_at_rest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = FileDevice::open(file.path(), false).unwrap();
        for error in [FileDevice::open(file.path(), false), FileDevice::open_at_rest(file.path())] {
            let error = error.unwrap_err();
            assert!(matches!(error, StoreError::Held { .. }), "{error}");
            assert!(error.to_string().contains("is held by another program"), "{error}");
        }
        drop(FileDevice::open_to_read(file.path()).unwrap());
        drop(held);
        let reader = FileDevice::open_at_rest(file.path()).unwrap();
        drop(FileDevice::open_at_rest(file.path()).unwrap());
        FileDevice::open(file.path(), false).unwrap_err();
        drop(reader);
        FileDevice::open(file.path(), false).unwrap();
    }

    #[test]
    fn path_that_is_no_place_for_a_pool_is_refused_by_name() {
        for path in ["/dev/null", "/"] {
            let error = FileDevice::open(Path::new(path), true).unwrap_err().to_string();
            let text = "is neither a file nor a block device; name one of these";
            assert_eq!(error, format!("{path} {text}"));
        }
        assert_eq!([512, 4_096].map(too_large), [None, None]);
        let why = too_large(8_192).unwrap();
        assert!(why.starts_with("has sectors of 8192 bytes, and a pool needs"), "{why}");
    }
}
