//! What a pool is on: a block device or a file, read and written in whole blocks by calls that
//! block. Requests of volumes go to the same place through [`crate::disk::Disk`].

use crate::StoreError;
use crate::buffer::Buffer;
use crate::disk::{DiskAction, DiskOp};
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A place for blocks. Offsets and lengths are multiples of 4 KiB.
pub trait Device: Send + Sync + fmt::Debug {
    /// What [`DiskOp`]s for it name.
    fn fd(&self) -> RawFd;

    /// Where it is, for people.
    fn path(&self) -> &Path;

    /// Bytes that it has.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn size(&self) -> io::Result<u64>;

    /// Bytes by which it can grow, if whoever gives it space lets it.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn room(&self) -> io::Result<u64>;

    /// Makes it so long, with space for all of it. Never makes it shorter.
    ///
    /// # Errors
    /// When there is no room, or it cannot grow.
    fn grow(&self, len: u64) -> io::Result<()>;

    /// Fills `bytes` from `offset`. What lies behind the end reads as zeroes.
    ///
    /// # Errors
    /// When the device fails.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When the device fails.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable.
    ///
    /// # Errors
    /// When the device fails.
    fn sync(&self) -> io::Result<()>;
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: OwnedFd,
    path: PathBuf,
    flushes: Flushes,
}

/// The most that is copied at once between memory of the caller and memory that a device takes.
const PART_BYTES: usize = 1 << 20;

impl FileDevice {
    /// Opens what is at `path`, past the page cache where that is possible; `create` makes an empty
    /// file where there is none.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path, create: bool) -> Result<Self, StoreError> {
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if create {
            flags |= OFlags::CREATE;
        }
        let open = |flags| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let opened = match open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => open(flags),
            opened => opened,
        };
        let file = opened.map_err(|e| StoreError::io(format!("open {}", path.display()), e))?;
        Ok(Self { file, path: path.to_owned(), flushes: Flushes::default() })
    }

    /// Opens what is at `path` only to read it.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open_to_read(path: &Path) -> Result<Self, StoreError> {
        let opened = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = opened.map_err(|e| StoreError::io(format!("open {}", path.display()), e))?;
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
        let (mut done, mut buffer) = (0, buffer);
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

impl Device for FileDevice {
    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> io::Result<u64> {
        // A block device has its size where its end is.
        Ok(rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?)
    }

    fn room(&self) -> io::Result<u64> {
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&self.file)?.st_mode);
        if kind == FileType::BlockDevice {
            return Ok(0);
        }
        let filesystem = rustix::fs::fstatvfs(&self.file)?;
        Ok(filesystem.f_bavail.saturating_mul(filesystem.f_frsize))
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let present = self.size()?;
        if len <= present {
            return Ok(());
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
            buffer = self.run(DiskAction::Write { durable: false }, at, buffer, part.len())?;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.flushes.share(|| rustix::fs::fdatasync(&self.file))
    }
}

/// Flushes of one device. Those that are asked for while one is under way share the next: what was
/// written before any of them was asked for is durable with it. A start that opens many volumes at
/// once takes few.
#[derive(Debug, Default)]
struct Flushes {
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    /// The last one that has failed, and how.
    failed: Option<(u64, Errno)>,
}

impl Flushes {
    /// Waits for a flush that begins from here on, or does it.
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
        // A later one that has failed may tell of what this one had to make durable.
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

    /// Whoever asks while a flush is under way has the next one, with all others who do.
    #[test]
    fn flushes_that_are_asked_for_at_once_are_one() {
        const CALLERS: usize = 8;
        let (flushes, done) = (Flushes::default(), AtomicU32::new(0));
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
            // They wait for the one that is under way: none of them has begun.
            assert_eq!(done.load(Ordering::SeqCst), 0);
            goes_on.wait();
            assert_eq!(first.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
            // It was begun before they asked: its failure is not theirs.
            others.into_iter().for_each(|other| other.join().unwrap().unwrap());
        });
        let all = done.load(Ordering::SeqCst);
        assert!((2..=1 + CALLERS as u32).contains(&all), "{all}");
        assert_eq!(flushes.share(|| Err(Errno::NOSPC)).unwrap_err().raw_os_error(), Some(28));
        flushes.share(|| Ok(())).unwrap();
    }
}
