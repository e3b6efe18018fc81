//! One core's io_uring: sockets, disk and the wake-up from other threads, submitted and waited for
//! with one system call per turn of the loop.

use evenkeel_core::time::Duration;
use evenkeel_store::disk::{Disk, DiskDone, DiskOp};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Submission entries. A full queue is submitted and goes on, so this bounds a batch, not the work.
const ENTRIES: u32 = 1_024;

/// What the upper half of an entry's user data says it is; the lower half is an index.
const KIND_RECEIVE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_DISK: u64 = 3;
const KIND_WAKE: u64 = 4;

/// Something that ended.
#[derive(Debug)]
pub enum Event {
    /// Bytes arrived on a connection; 0 is its end.
    Received(u32, Result<u32, Errno>),
    /// Bytes of a connection left.
    Sent(u32, Result<u32, Errno>),
    /// A disk operation of a store ended.
    Disk(u32, DiskDone),
    /// Another thread called [`Waker::wake`].
    Woken,
}

/// Wakes a ring from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes the ring's `wait` return with [`Event::Woken`].
    pub fn wake(&self) {
        // Only a counter about to overflow could fail, and then the ring has not been woken for
        // ages.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

/// A disk operation the kernel works on: it owns the buffer until the completion is seen.
#[derive(Debug)]
struct InFlight {
    store: u32,
    op: DiskOp,
}

/// One io_uring with what it owns while the kernel works.
pub struct Ring {
    ring: IoUring,
    disk: Vec<Option<InFlight>>,
    disk_free: Vec<u32>,
    waker: Waker,
    wake_count: Box<[u8; 8]>,
}

impl Ring {
    /// A ring for the calling thread, and only for it.
    ///
    /// # Errors
    /// When the kernel refuses io_uring.
    pub fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .build(ENTRIES)?;
        let waker = Waker(Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?));
        let wake_count = Box::new([0; 8]);
        let mut ring = Self { ring, disk: Vec::new(), disk_free: Vec::new(), waker, wake_count };
        ring.listen_for_wakes();
        Ok(ring)
    }

    /// What wakes this ring.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Begins to receive into `memory`.
    ///
    /// # Safety
    /// The memory must stay valid and unused until [`Event::Received`] of `connection` is seen.
    pub unsafe fn receive(&mut self, connection: u32, fd: RawFd, memory: *mut u8, length: u32) {
        let entry = opcode::Recv::new(types::Fd(fd), memory, length).build();
        self.push(entry.user_data(user_data(KIND_RECEIVE, connection)));
    }

    /// Begins to send what `message` points to, all of it unless the connection breaks.
    ///
    /// # Safety
    /// The message and all it points to must stay valid and unchanged until [`Event::Sent`] is
    /// seen.
    pub unsafe fn send(&mut self, connection: u32, fd: RawFd, message: *const libc::msghdr) {
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL).cast_unsigned();
        let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(flags).build();
        self.push(entry.user_data(user_data(KIND_SEND, connection)));
    }

    /// The disk as store number `store` sees it.
    pub fn disk(&mut self, store: u32) -> StoreDisk<'_> {
        StoreDisk { ring: self, store }
    }

    /// Submits what was begun and waits for the first event, at most `timeout`.
    ///
    /// # Errors
    /// When the ring is broken; a timeout or a signal is not an error.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(1),
            Some(timeout) => {
                let timespec = timespec(timeout);
                let arguments = types::SubmitArgs::new().timespec(&timespec);
                submitter.submit_with_args(1, &arguments)
            }
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// The next thing that ended. Drain after [`Ring::wait`].
    pub fn poll(&mut self) -> Option<Event> {
        let completion = self.ring.completion().next()?;
        let (data, code) = (completion.user_data(), completion.result());
        let result = u32::try_from(code).map_err(|_| Errno::from_raw_os_error(code.wrapping_neg()));
        let index = (data & u64::from(u32::MAX)) as u32;
        Some(match data >> 32 {
            KIND_RECEIVE => Event::Received(index, result),
            KIND_SEND => Event::Sent(index, result),
            KIND_DISK => self.disk_ended(index, result),
            _ => {
                self.listen_for_wakes();
                Event::Woken
            }
        })
    }

    fn disk_ended(&mut self, slot: u32, result: Result<u32, Errno>) -> Event {
        let Some(InFlight { store, op }) = self.disk[slot as usize].take() else {
            unreachable!("the kernel ended disk operation {slot} twice");
        };
        self.disk_free.push(slot);
        Event::Disk(store, DiskDone { token: op.token, result, buffer: op.buffer })
    }

    fn listen_for_wakes(&mut self) {
        let fd = types::Fd(self.waker.0.as_raw_fd());
        let entry = opcode::Read::new(fd, self.wake_count.as_mut_ptr(), 8).build();
        self.push(entry.user_data(user_data(KIND_WAKE, 0)));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: each caller keeps what its entry points to until the completion is seen: sockets
        // by contract, disk operations in `disk`, the wake counter in its box.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // A full queue is handed to the kernel, which empties it or is briefly out of memory.
            let _ = self.ring.submit();
        }
    }
}

impl Drop for Ring {
    /// The kernel may still write into what this ring owns: disk operations are waited for.
    fn drop(&mut self) {
        while self.disk.iter().any(Option::is_some) && self.wait(None).is_ok() {
            while self.poll().is_some() {}
        }
        // What could not be waited for must not be freed under the kernel.
        std::mem::forget(std::mem::take(&mut self.disk));
        std::mem::forget(std::mem::replace(&mut self.wake_count, Box::new([0; 8])));
    }
}

/// A ring on behalf of one store.
pub struct StoreDisk<'a> {
    ring: &'a mut Ring,
    store: u32,
}

impl Disk for StoreDisk<'_> {
    fn submit(&mut self, op: DiskOp) {
        let slot = match self.ring.disk_free.pop() {
            Some(slot) => slot,
            None => {
                self.ring.disk.push(None);
                (self.ring.disk.len() - 1) as u32
            }
        };
        let entry = op.entry().user_data(user_data(KIND_DISK, slot));
        self.ring.disk[slot as usize] = Some(InFlight { store: self.store, op });
        self.ring.push(entry);
    }
}

fn user_data(kind: u64, index: u32) -> u64 {
    kind << 32 | u64::from(index)
}

fn timespec(span: Duration) -> types::Timespec {
    let second_ns = 1_000_000_000;
    // Below one second's nanoseconds, so it fits.
    types::Timespec::new().sec(span.ns / second_ns).nsec((span.ns % second_ns) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_store::buffer::Buffer;
    use evenkeel_store::disk::DiskAction;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn ring() -> Option<Ring> {
        let ring = Ring::new();
        if let Err(error) = &ring {
            println!("SKIPPED: io_uring is not available to this process: {error}");
        }
        ring.ok()
    }

    fn next(ring: &mut Ring) -> Event {
        loop {
            if let Some(event) = ring.poll() {
                return event;
            }
            ring.wait(Some(Duration::from_secs(10))).unwrap();
        }
    }

    #[test]
    fn bytes_come_and_go() {
        let Some(mut ring) = ring() else { return };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut memory = [0u8; 16];
        theirs.write_all(b"hello").unwrap();
        // SAFETY: `memory` lives to the end of the test, after the event was seen.
        unsafe { ring.receive(7, ours.as_raw_fd(), memory.as_mut_ptr(), 16) };
        assert!(matches!(next(&mut ring), Event::Received(7, Ok(5))));
        assert_eq!(&memory[..5], b"hello");
        let mut part = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 5 };
        // SAFETY: all zeroes is a valid empty msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
        // SAFETY: message, part and memory live until the event was seen.
        unsafe { ring.send(9, ours.as_raw_fd(), &raw const message) };
        assert!(matches!(next(&mut ring), Event::Sent(9, Ok(5))));
        let mut back = [0; 5];
        theirs.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"hello");
    }

    #[test]
    fn another_thread_wakes_it_again_and_again() {
        let Some(mut ring) = ring() else { return };
        let waker = ring.waker();
        for _ in 0..3 {
            let waker = waker.clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            assert!(matches!(next(&mut ring), Event::Woken));
        }
        ring.wait(Some(Duration::from_ms(1))).unwrap();
        assert!(ring.poll().is_none(), "woken by nobody");
    }

    #[test]
    fn more_disk_operations_than_entries_all_end_with_their_buffers() {
        let Some(mut ring) = ring() else { return };
        let file = tempfile::tempfile().unwrap();
        let count = u64::from(ENTRIES) + 100;
        for token in 0..count {
            let mut buffer = Buffer::new(8);
            buffer.bytes_mut()[..8].copy_from_slice(&token.to_le_bytes());
            let (fd, action) = (file.as_raw_fd(), DiskAction::Write { durable: false });
            let offset = token * 8;
            let buffer = Some(buffer);
            let op = DiskOp { token, fd, action, offset, length: 8, buffer, buffer_offset: 0 };
            ring.disk(3).submit(op);
        }
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let Event::Disk(3, done) = next(&mut ring) else { panic!("not store 3's disk") };
            assert_eq!(done.result, Ok(8));
            assert_eq!(done.buffer.unwrap().bytes()[..8], done.token.to_le_bytes());
            assert!(!std::mem::replace(&mut seen[done.token as usize], true), "ended twice");
        }
    }
}
