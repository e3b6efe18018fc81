//! File operations of a store, as values. The reactor converts them to io_uring entries, the
//! fallback's worker threads to system calls, and a test can make any of them fail.

use crate::buffer::Buffer;
use evenkeel_core::convert::exact;
use io_uring::{opcode, squeue, types};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, RawFd};

/// Kind of a file operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskAction {
    /// Fill the buffer's first `length` bytes from `offset`.
    Read,
    /// Write the buffer's bytes to `offset`.
    Write,
    /// Make everything written to the file so far durable (fdatasync).
    Sync,
    /// Wait until an eventfd or a timer is readable, without reading it. It must become readable
    /// eventually, since closing the disk waits for it.
    Readable,
}

/// One file operation. The store that submits it keeps `fd` open until it is done.
#[derive(Debug)]
pub struct DiskOp {
    /// The store's own number, returned when done.
    pub token: u64,
    /// The file.
    pub fd: RawFd,
    /// The kind of operation.
    pub action: DiskAction,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
    /// Memory to read into or write from, beginning at `buffer_offset`.
    pub buffer: Option<Buffer>,
    /// Offset in the buffer at which the transfer begins.
    pub buffer_offset: u32,
}

/// The end of a [`DiskOp`].
#[derive(Debug)]
pub struct DiskDone {
    /// As submitted.
    pub token: u64,
    /// Number of bytes transferred (possibly fewer than requested; meaningless for operations
    /// without a transfer), or the error.
    pub result: Result<u32, Errno>,
    /// The buffer that was submitted.
    pub buffer: Option<Buffer>,
}

/// Executes file operations. Each is answered once through [`crate::Store::disk_done`].
pub trait Disk {
    /// Begins `op`; never blocks.
    fn submit(&mut self, op: DiskOp);
}

impl DiskOp {
    /// Creates an operation that ends when `fd` is readable: see [`DiskAction::Readable`].
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

    /// Returns the operation as an io_uring submission entry, without user data.
    ///
    /// The entry refers to this operation's buffer by address: keep the `DiskOp` until the
    /// completion is seen.
    #[must_use]
    pub fn entry(&self) -> squeue::Entry {
        let fd = types::Fd(self.fd);
        let (memory, length) = self.memory();
        match self.action {
            DiskAction::Read => opcode::Read::new(fd, memory, length).offset(self.offset).build(),
            DiskAction::Write => opcode::Write::new(fd, memory, length).offset(self.offset).build(),
            DiskAction::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
            DiskAction::Readable => opcode::PollAdd::new(fd, libc::POLLIN as u32).build(),
        }
    }

    /// Executes the operation in this thread.
    #[must_use]
    pub fn execute(mut self) -> DiskDone {
        let result = self.execute_blocking();
        DiskDone { token: self.token, result, buffer: self.buffer }
    }

    fn execute_blocking(&mut self) -> Result<u32, Errno> {
        // SAFETY: the submitting store keeps the file open until the operation is done.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let from = self.buffer_offset as usize;
        let length = self.length as usize;
        let count = match (self.action, &mut self.buffer) {
            (DiskAction::Read, Some(buffer)) => {
                let room = &mut buffer.bytes_mut()[from..from + length];
                rustix::io::preadv(fd, &mut [IoSliceMut::new(room)], self.offset)?
            }
            (DiskAction::Write, Some(buffer)) => {
                let payload = [IoSlice::new(&buffer.bytes()[from..from + length])];
                rustix::io::pwritev(fd, &payload, self.offset)?
            }
            (DiskAction::Read | DiskAction::Write, None) => return Err(Errno::FAULT),
            (DiskAction::Sync, _) => rustix::fs::fdatasync(fd).map(|()| 0)?,
            (DiskAction::Readable, _) => {
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)?
            }
        };
        Ok(exact(count, "at most the length of the operation"))
    }
}

/// Collects submitted operations in order, for the driver that executes them.
impl Disk for Vec<DiskOp> {
    fn submit(&mut self, op: DiskOp) {
        self.push(op);
    }
}

/// Executes operations at once in the caller's thread, and queues the results. For tools and tests.
#[derive(Debug, Default)]
pub struct BlockingDisk {
    done: std::collections::VecDeque<DiskDone>,
}

impl BlockingDisk {
    /// Returns the next result for [`crate::Store::disk_done`].
    pub fn poll(&mut self) -> Option<DiskDone> {
        self.done.pop_front()
    }
}

impl Disk for BlockingDisk {
    fn submit(&mut self, op: DiskOp) {
        self.done.push_back(op.execute());
    }
}
