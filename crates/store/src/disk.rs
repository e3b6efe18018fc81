//! What a store asks of a file, as values: the reactor turns them into io_uring entries, the
//! fallback's worker threads into system calls, and a test into whatever it wants to see fail.

use crate::buffer::Buffer;
use crate::{EXTENTS_MAX, Extent};
use io_uring::{opcode, squeue, types};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};

/// What to do to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskAction {
    /// Fill the buffer's first `length` bytes from `offset`.
    Read,
    /// Write the buffer's bytes to `offset`.
    Write {
        /// Durable when done (O_DSYNC for this one write).
        durable: bool,
    },
    /// Make everything written to the file so far durable (fdatasync).
    Sync,
    /// Make the range a hole that reads as zeroes.
    PunchHole,
    /// Make the range read as zeroes and keep it allocated.
    ZeroRange,
    /// Find which stretches of the range hold data and which are holes, from its beginning on, and
    /// write them to the buffer: see [`DiskDone::extents`]. The result is their number. No kernel
    /// offers this without blocking.
    Map,
    /// Wait until an eventfd or a timer can be read, and leave what it holds. It must become
    /// readable by itself some day: whoever closes the disk waits for it.
    Readable,
}

/// One file operation. The store that submits it keeps `fd` open until it is done.
#[derive(Debug)]
pub struct DiskOp {
    /// The store's own number, returned when done.
    pub token: u64,
    /// The file.
    pub fd: RawFd,
    /// What to do.
    pub action: DiskAction,
    /// Where in the file.
    pub offset: u64,
    /// Bytes concerned.
    pub length: u32,
    /// Memory to read into or write from, beginning at `buffer_offset`.
    pub buffer: Option<Buffer>,
    /// Where in the buffer the transfer begins.
    pub buffer_offset: u32,
}

/// The end of a [`DiskOp`].
#[derive(Debug)]
pub struct DiskDone {
    /// As submitted.
    pub token: u64,
    /// Bytes transferred (may be fewer than asked; meaningless where none are), or why it failed.
    pub result: Result<u32, Errno>,
    /// The buffer that was submitted.
    pub buffer: Option<Buffer>,
}

/// Bytes of an extent in the buffer of a [`DiskAction::Map`]: its length, and whether it is a hole.
const EXTENT_BYTES: usize = 8;

impl DiskDone {
    /// What a [`DiskAction::Map`] has found.
    ///
    /// # Errors
    /// As it failed.
    pub fn extents(&self) -> Result<Vec<Extent>, Errno> {
        let (count, buffer) = (self.result? as usize, self.buffer.as_ref().ok_or(Errno::FAULT)?);
        let (found, _) = buffer.bytes().as_chunks::<EXTENT_BYTES>();
        let extent = |&[a, b, c, d, hole, ..]: &[u8; EXTENT_BYTES]| {
            let (length, hole) = (u32::from_le_bytes([a, b, c, d]), hole > 0);
            Extent { length, hole, zero: hole }
        };
        Ok(found.iter().take(count).map(extent).collect())
    }
}

/// Takes file operations. Each is answered once through [`crate::Store::disk_done`].
pub trait Disk {
    /// Begins `op`; never blocks.
    fn submit(&mut self, op: DiskOp);
}

impl DiskOp {
    /// Tells the store when `fd` can be read: see [`DiskAction::Readable`].
    #[must_use]
    pub fn readable(token: u64, fd: RawFd) -> Self {
        let action = DiskAction::Readable;
        Self { token, fd, action, offset: 0, length: 0, buffer: None, buffer_offset: 0 }
    }

    fn memory(&self) -> (*mut u8, u32) {
        let Some(buffer) = &self.buffer else { return (std::ptr::null_mut(), 0) };
        let start = self.buffer_offset as usize;
        assert!(start + self.length as usize <= buffer.capacity(), "transfer beyond its buffer");
        // SAFETY: start is inside the buffer, as was just checked.
        (unsafe { buffer.as_ptr().add(start) }, self.length)
    }

    /// Finds the stretches of data and the holes of a range of this volume's file.
    #[must_use]
    pub fn map(token: u64, fd: RawFd, offset: u64, length: u32) -> Self {
        let buffer = Some(Buffer::new(EXTENTS_MAX * EXTENT_BYTES));
        Self { token, fd, action: DiskAction::Map, offset, length, buffer, buffer_offset: 0 }
    }

    /// The operation as an io_uring submission entry, without user data; `None` if there is no such
    /// entry, and a thread that may block has to carry it out.
    ///
    /// The entry refers to this operation's buffer by address: keep the `DiskOp` until the
    /// completion is seen.
    #[must_use]
    pub fn entry(&self) -> Option<squeue::Entry> {
        let fd = types::Fd(self.fd);
        // What is mapped is no transfer: its length is not the buffer's.
        let transfers = matches!(self.action, DiskAction::Read | DiskAction::Write { .. });
        let (memory, length) = if transfers { self.memory() } else { (std::ptr::null_mut(), 0) };
        Some(match self.action {
            DiskAction::Read => opcode::Read::new(fd, memory, length).offset(self.offset).build(),
            DiskAction::Write { durable } => opcode::Write::new(fd, memory, length)
                .offset(self.offset)
                .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                .build(),
            DiskAction::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            DiskAction::PunchHole => self.fallocate_entry(punch_hole()),
            DiskAction::ZeroRange => self.fallocate_entry(FallocateFlags::ZERO_RANGE),
            DiskAction::Map => return None,
            DiskAction::Readable => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
        })
    }

    fn fallocate_entry(&self, flags: FallocateFlags) -> squeue::Entry {
        opcode::Fallocate::new(types::Fd(self.fd), u64::from(self.length))
            .offset(self.offset)
            .mode(flags.bits().cast_signed())
            .build()
    }

    /// Carries the operation out in this thread.
    #[must_use]
    pub fn execute(mut self) -> DiskDone {
        let result = self.execute_blocking();
        DiskDone { token: self.token, result, buffer: self.buffer }
    }

    fn execute_blocking(&mut self) -> Result<u32, Errno> {
        // SAFETY: the submitting store keeps the file open until the operation is done.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let (from, length) = (self.buffer_offset as usize, self.length as usize);
        let count = match (self.action, &mut self.buffer) {
            (DiskAction::Read, Some(buffer)) => {
                let room = &mut buffer.bytes_mut()[from..from + length];
                rustix::io::preadv(fd, &mut [IoSliceMut::new(room)], self.offset)?
            }
            (DiskAction::Write { durable }, Some(buffer)) => {
                let payload = [IoSlice::new(&buffer.bytes()[from..from + length])];
                if durable {
                    let flags = rustix::io::ReadWriteFlags::DSYNC;
                    rustix::io::pwritev2(fd, &payload, self.offset, flags)?
                } else {
                    rustix::io::pwritev(fd, &payload, self.offset)?
                }
            }
            (DiskAction::Read | DiskAction::Write { .. }, None) => return Err(Errno::FAULT),
            (DiskAction::Map, Some(buffer)) => map(fd, self.offset, self.length, buffer)?,
            (DiskAction::Map, None) => return Err(Errno::FAULT),
            (DiskAction::Sync, _) => rustix::fs::fdatasync(fd).map(|()| 0)?,
            (DiskAction::PunchHole, _) => self.fallocate(fd, punch_hole())?,
            (DiskAction::ZeroRange, _) => self.fallocate(fd, FallocateFlags::ZERO_RANGE)?,
            (DiskAction::Readable, _) => {
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?
            }
        };
        Ok(u32::try_from(count).unwrap_or(u32::MAX))
    }

    fn fallocate(&self, fd: BorrowedFd<'_>, flags: FallocateFlags) -> Result<usize, Errno> {
        rustix::fs::fallocate(fd, flags, self.offset, u64::from(self.length)).map(|()| 0)
    }
}

/// Notes extents from `offset` on in `buffer`; how many. They may end before the range does.
fn map(fd: BorrowedFd<'_>, offset: u64, length: u32, buffer: &mut Buffer) -> Result<usize, Errno> {
    let (end, mut at, mut count) = (offset + u64::from(length), offset, 0);
    let mut note = |length: u64, hole: bool| {
        // Cannot exceed the request's own length, which is a u32.
        let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        if length > 0 {
            let extent = [a, b, c, d, u8::from(hole), 0, 0, 0];
            buffer.bytes_mut()[count * EXTENT_BYTES..][..EXTENT_BYTES].copy_from_slice(&extent);
            count += 1;
        }
        count
    };
    let mut found = 0;
    // Each turn finds a hole and the data behind it.
    while at < end && found + 2 <= EXTENTS_MAX {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at)) {
            Ok(data) => data.clamp(at, end),
            Err(Errno::NXIO) => end,
            Err(errno) => return Err(errno),
        };
        found = note(data - at, true);
        if data < end {
            at = rustix::fs::seek(fd, SeekFrom::Hole(data))?.clamp(data, end);
            found = note(at - data, false);
        } else {
            at = end;
        }
    }
    Ok(found)
}

fn punch_hole() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

/// Carries operations out at once, in the caller's thread; results wait in a queue. For tools and
/// tests.
#[derive(Debug, Default)]
pub struct BlockingDisk {
    done: std::collections::VecDeque<DiskDone>,
}

impl BlockingDisk {
    /// The next result to hand to [`crate::Store::disk_done`].
    pub fn poll(&mut self) -> Option<DiskDone> {
        self.done.pop_front()
    }
}

impl Disk for BlockingDisk {
    fn submit(&mut self, op: DiskOp) {
        self.done.push_back(op.execute());
    }
}
