//! One core's io_uring: sockets, disk and the wake-up from other threads, submitted and waited for
//! with one system call per turn of the loop.

use crate::adaptive_poll::Patience;
use crate::driver::{Driver, Event, HangUp, Waker};
use crate::table::{OperationId, SessionId, Table, VolumeSlot};
use evenkeel_core::limits::DISK_WORKERS_MAX;
use evenkeel_core::slots::Slot;
use evenkeel_core::time::Duration;
use evenkeel_os::clock::Clock;
use evenkeel_store::disk::{Disk, DiskDone, DiskOp};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;

/// Submission entries. A full queue is submitted at once, so this limits a batch, not the
/// operations in flight.
const ENTRIES: u32 = 1_024;

/// Kind of an operation, in the upper half of its entry's user data; the lower half is an index.
const KIND_RECEIVE: u64 = 1;
const KIND_SEND: u64 = 2;
const KIND_DISK: u64 = 3;
const KIND_WAKE: u64 = 4;
/// Its end is ignored: the operation that it cancels ends with an event of its own.
const KIND_CANCEL: u64 = 5;
const KIND_WATCH: u64 = 6;

/// A disk operation in the kernel. It owns the buffer until the completion is seen.
#[derive(Debug)]
struct InFlight {
    store: VolumeSlot,
    op: DiskOp,
}

/// An io_uring, with the memory that the kernel uses.
pub struct Ring {
    ring: IoUring,
    disk: Table<OperationId, InFlight>,
    waker: Waker,
    clock: Clock,
    patience: Patience,
}

impl Ring {
    /// Creates a ring for the calling thread, and only for it.
    ///
    /// # Errors
    /// If the kernel refuses io_uring.
    pub fn new(waker: Waker, clock: Clock) -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .build(ENTRIES)?;
        // The kernel's workers that wait for a file system, and those that wait for anything else.
        // An older kernel has its own limit.
        let mut workers_max = [DISK_WORKERS_MAX; 2];
        let _ = ring.submitter().register_iowq_max_workers(&mut workers_max);
        let mut ring = Self { ring, disk: Table::new(), waker, clock, patience: Patience::new() };
        ring.listen_for_wakes();
        Ok(ring)
    }

    fn disk_ended(&mut self, operation: OperationId, result: Result<u32, Errno>) -> Event {
        let InFlight { store, op } = self.disk.remove(operation);
        Event::Disk(store, DiskDone { token: op.token, result, buffer: op.buffer })
    }

    /// Watches for the first event without sleeping, for as long as that was useful lately. Returns
    /// whether there was one.
    fn watch(&mut self) -> bool {
        let budget = self.patience.budget();
        if budget.ns == 0 || self.ring.submit().is_err() {
            return false;
        }
        let start = self.clock.now();
        loop {
            // Both are memory shared with the kernel: no system call.
            if !self.ring.completion().is_empty() || self.ring.submission().taskrun() {
                return true;
            }
            if self.clock.now().since(start) >= budget {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
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
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {
                Ok(())
            }
            Err((_, error)) => Err(error),
        }
    }

    fn listen_for_wakes(&mut self) {
        let entry = opcode::PollAdd::new(types::Fd(self.waker.fd()), libc::POLLIN as u32).build();
        self.push(entry.user_data(user_data(KIND_WAKE, 0)));
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: each caller keeps the memory of its entry until the completion is seen: of
        // sockets by contract, of disk operations in `disk`.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Submission empties a full queue, unless the kernel is briefly out of memory.
            let _ = self.ring.submit();
        }
    }
}

impl Driver for Ring {
    type Disk<'a> = StoreDisk<'a>;

    unsafe fn receive(&mut self, connection: SessionId, fd: RawFd, message: *mut libc::msghdr) {
        // SAFETY: the caller keeps the message valid.
        let parts = unsafe { (*message).msg_iovlen };
        let entry = if parts == 1 {
            // SAFETY: one iovec is there, as was just read.
            let part = unsafe { *(*message).msg_iov };
            let length = part.iov_len.try_into().unwrap_or(u32::MAX);
            opcode::Recv::new(types::Fd(fd), part.iov_base.cast(), length).build()
        } else {
            opcode::RecvMsg::new(types::Fd(fd), message).build()
        };
        self.push(entry.user_data(user_data(KIND_RECEIVE, connection.number())));
    }

    fn cancel_receive(&mut self, connection: SessionId) {
        let entry = opcode::AsyncCancel::new(user_data(KIND_RECEIVE, connection.number())).build();
        self.push(entry.user_data(user_data(KIND_CANCEL, connection.number())));
    }

    unsafe fn send(&mut self, connection: SessionId, fd: RawFd, message: *const libc::msghdr) {
        let flags = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL).cast_unsigned();
        let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(flags).build();
        self.push(entry.user_data(user_data(KIND_SEND, connection.number())));
    }

    fn cancel_send(&mut self, connection: SessionId) {
        let entry = opcode::AsyncCancel::new(user_data(KIND_SEND, connection.number())).build();
        self.push(entry.user_data(user_data(KIND_CANCEL, connection.number())));
    }

    fn watch(&mut self, connection: SessionId, fd: RawFd) {
        let entry = opcode::PollAdd::new(types::Fd(fd), HangUp::INTEREST).build();
        self.push(entry.user_data(user_data(KIND_WATCH, connection.number())));
    }

    fn cancel_watch(&mut self, connection: SessionId) {
        let entry = opcode::AsyncCancel::new(user_data(KIND_WATCH, connection.number())).build();
        self.push(entry.user_data(user_data(KIND_CANCEL, connection.number())));
    }

    fn disk(&mut self, store: VolumeSlot) -> StoreDisk<'_> {
        StoreDisk { ring: self, store }
    }

    fn wait(&mut self, timeout: Option<Duration>, hasty: bool) -> io::Result<()> {
        // If a timer is due soon, clients are held to their limits, and a fast wake-up does not
        // help them.
        if !hasty || timeout.is_some_and(|timeout| timeout < Patience::MAX) {
            return self.sleep(timeout);
        }
        let start = self.clock.now();
        if self.watch() {
            self.patience.caught();
            return self.sleep(timeout);
        }
        self.sleep(timeout)?;
        self.patience.missed(self.clock.now().since(start));
        Ok(())
    }

    fn poll(&mut self) -> Option<Event> {
        let completion = loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() >> 32 != KIND_CANCEL {
                break completion;
            }
        };
        let data = completion.user_data();
        let code = completion.result();
        let result = u32::try_from(code).map_err(|_| Errno::from_raw_os_error(code.wrapping_neg()));
        let index = (data & u64::from(u32::MAX)) as u32;
        Some(match data >> 32 {
            KIND_RECEIVE => Event::Received(SessionId::new(index), result),
            KIND_SEND => Event::Sent(SessionId::new(index), result),
            KIND_DISK => self.disk_ended(OperationId::new(index), result),
            KIND_WATCH => {
                let how = result.and_then(|events| HangUp::of(events).ok_or(Errno::AGAIN));
                Event::HungUp(SessionId::new(index), how)
            }
            _ => {
                self.waker.clear();
                self.listen_for_wakes();
                Event::Woken
            }
        })
    }
}

impl Drop for Ring {
    /// Waits for disk operations: the kernel may still write into their buffers.
    fn drop(&mut self) {
        while !self.disk.is_empty() && self.sleep(None).is_ok() {
            while self.poll().is_some() {}
        }
        // Leaks the buffers of operations that could not be waited for.
        std::mem::forget(std::mem::take(&mut self.disk));
    }
}

/// A ring for one store.
pub struct StoreDisk<'a> {
    ring: &'a mut Ring,
    store: VolumeSlot,
}

impl Disk for StoreDisk<'_> {
    fn submit(&mut self, op: DiskOp) {
        let entry = op.entry();
        let operation = self.ring.disk.insert(InFlight { store: self.store, op });
        self.ring.push(entry.user_data(user_data(KIND_DISK, operation.number())));
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
    use crate::driver::conformance;
    use std::io::Write;

    #[test]
    fn io_uring_driver_conforms() {
        match Ring::new(Waker::new().unwrap(), Clock::start()) {
            Ok(_) => conformance::check(|waker| Ring::new(waker, Clock::start()).unwrap()),
            Err(error) => {
                let _ = writeln!(
                    std::io::stdout(),
                    "SKIPPED: io_uring is not available to this process: {error}"
                );
            }
        }
    }
}
