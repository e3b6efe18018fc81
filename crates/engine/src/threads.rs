//! Sockets on epoll and disk operations on worker threads, with plain system calls: for machines
//! and containers where io_uring is forbidden. Slower than [`crate::ring`], otherwise equivalent.

use crate::driver::{Driver, Event, HangUp, Waker, receive_now, send_now};
use crate::table::{OperationId, SessionId, Table, VolumeSlot};
use crate::workers::Workers;
use evenkeel_core::limits::DISK_WORKERS_MAX;
use evenkeel_core::slots::Slot;
use evenkeel_core::time::Duration;
use evenkeel_store::disk::{Disk, DiskAction, DiskDone, DiskOp};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// Maximum number of events from one system call.
const EVENTS_MAX: usize = 256;

/// Epoll data of events that belong to no connection. Connections have their numbers, of 32 bits.
const DATA_WAKE: u64 = u64::MAX;
const DATA_DISK: u64 = u64::MAX - 1;
/// With the number of a [`Threads::readable`] operation in the lower half.
const DATA_READABLE: u64 = 1 << 32;

/// Transfers that wait for a socket to become ready.
#[derive(Clone, Copy, Default)]
struct Pending {
    fd: RawFd,
    receive: Option<*mut libc::msghdr>,
    send: Option<*const libc::msghdr>,
    watched: bool,
}

impl Pending {
    /// Returns the events to report of the socket, once.
    fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::ONESHOT;
        interest.set(EventFlags::IN, self.receive.is_some());
        interest.set(EventFlags::OUT, self.send.is_some());
        interest.set(EventFlags::RDHUP, self.watched);
        interest
    }
}

/// A driver with plain system calls; see the module's text.
pub struct Threads {
    epoll: OwnedFd,
    pending: Vec<Pending>,
    ready: VecDeque<Event>,
    waker: Waker,
    /// Operations that wait for a descriptor to become readable, which needs no worker.
    readable: Table<OperationId, (VolumeSlot, DiskOp)>,
    workers: Workers,
}

impl Threads {
    /// Starts a driver with its workers.
    ///
    /// # Errors
    /// If the process has too many open files or threads.
    pub fn new(waker: Waker) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let workers = Workers::start(DISK_WORKERS_MAX)?;
        epoll::add(&epoll, workers.bell(), EventData::new_u64(DATA_DISK), EventFlags::IN)?;
        epoll::add(&epoll, borrow(waker.fd()), EventData::new_u64(DATA_WAKE), EventFlags::IN)?;
        Ok(Self {
            epoll,
            pending: Vec::new(),
            ready: VecDeque::new(),
            waker,
            readable: Table::new(),
            workers,
        })
    }

    fn pending(&mut self, connection: SessionId, fd: RawFd) -> &mut Pending {
        let slot = connection.number() as usize;
        if slot >= self.pending.len() {
            self.pending.resize(slot + 1, Pending::default());
        }
        self.pending[slot].fd = fd;
        &mut self.pending[slot]
    }

    /// Carries out transfers as far as possible at once, after `events` of the socket; asks epoll
    /// to report when the rest is possible.
    fn advance(&mut self, connection: SessionId, events: EventFlags) {
        let pending = &mut self.pending[connection.number() as usize];
        // SAFETY: the caller of `receive` or `send` keeps the message valid until its event is
        // seen.
        let receive = |message: *mut libc::msghdr| unsafe { receive_now(pending.fd, message) };
        if let Some(result) = pending.receive.map(receive).filter(is_ended) {
            pending.receive = None;
            self.ready.push_back(Event::Received(connection, result));
        }
        // SAFETY: as above.
        let send = |message: *const libc::msghdr| unsafe { send_now(pending.fd, message) };
        if let Some(result) = pending.send.map(send).filter(is_ended) {
            pending.send = None;
            self.ready.push_back(Event::Sent(connection, result));
        }
        if pending.watched
            && let Some(how) = HangUp::of(events.bits())
        {
            pending.watched = false;
            self.ready.push_back(Event::HungUp(connection, Ok(how)));
        }
        let fd = pending.fd;
        let interest = pending.interest();
        if interest != EventFlags::ONESHOT
            && let Err(errno) = self.tell_of(fd, u64::from(connection.number()), interest)
        {
            self.fail(connection, errno);
        }
    }

    /// Waits only for a connection's remaining transfers. If there are none, epoll must forget the
    /// descriptor, which may belong to another core soon.
    fn wait_for_the_rest(&mut self, connection: SessionId) {
        let pending = &self.pending[connection.number() as usize];
        let fd = pending.fd;
        let interest = pending.interest();
        if interest == EventFlags::ONESHOT {
            // It fails only if epoll does not know the descriptor.
            let _ = epoll::delete(&self.epoll, borrow(fd));
        } else if let Err(errno) = self.tell_of(fd, u64::from(connection.number()), interest) {
            self.fail(connection, errno);
        }
    }

    fn tell_of(&self, fd: RawFd, data: u64, interest: EventFlags) -> Result<(), Errno> {
        let fd = borrow(fd);
        let data = EventData::new_u64(data);
        // The kernel forgets a descriptor when it is closed, so a new one has to be added.
        match epoll::modify(&self.epoll, fd, data, interest) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, fd, data, interest),
            result => result,
        }
    }

    fn await_readable(&mut self, store: VolumeSlot, op: DiskOp) {
        let fd = op.fd;
        let operation = self.readable.insert((store, op));
        let data = DATA_READABLE | u64::from(operation.number());
        if let Err(errno) = self.tell_of(fd, data, EventFlags::IN | EventFlags::ONESHOT) {
            self.became_readable(operation, Err(errno));
        }
    }

    fn became_readable(&mut self, operation: OperationId, result: Result<u32, Errno>) {
        if let Some((store, op)) = self.readable.try_remove(operation) {
            let done = DiskDone { token: op.token, result, buffer: op.buffer };
            self.ready.push_back(Event::Disk(store, done));
        }
    }

    /// Ends a connection's transfers with an error, because they cannot be waited for.
    fn fail(&mut self, connection: SessionId, errno: Errno) {
        let pending = &mut self.pending[connection.number() as usize];
        if pending.receive.take().is_some() {
            self.ready.push_back(Event::Received(connection, Err(errno)));
        }
        if pending.send.take().is_some() {
            self.ready.push_back(Event::Sent(connection, Err(errno)));
        }
        if std::mem::take(&mut pending.watched) {
            self.ready.push_back(Event::HungUp(connection, Err(errno)));
        }
    }
}

fn is_ended(result: &Result<u32, Errno>) -> bool {
    !matches!(result, Err(Errno::AGAIN | Errno::INTR))
}

fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: sockets stay open while a transfer is pending, the waker as long as the driver.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Driver for Threads {
    type Disk<'a> = StoreDisk<'a>;

    unsafe fn receive(&mut self, connection: SessionId, fd: RawFd, message: *mut libc::msghdr) {
        self.pending(connection, fd).receive = Some(message);
        self.advance(connection, EventFlags::empty());
    }

    fn cancel_receive(&mut self, connection: SessionId) {
        let Some(pending) = self.pending.get_mut(connection.number() as usize) else { return };
        if pending.receive.take().is_none() {
            return;
        }
        self.ready.push_back(Event::Received(connection, Err(Errno::CANCELED)));
        self.wait_for_the_rest(connection);
    }

    unsafe fn send(&mut self, connection: SessionId, fd: RawFd, message: *const libc::msghdr) {
        self.pending(connection, fd).send = Some(message);
        self.advance(connection, EventFlags::empty());
    }

    fn cancel_send(&mut self, connection: SessionId) {
        let Some(pending) = self.pending.get_mut(connection.number() as usize) else { return };
        if pending.send.take().is_some() {
            self.ready.push_back(Event::Sent(connection, Err(Errno::CANCELED)));
            self.wait_for_the_rest(connection);
        }
    }

    fn watch(&mut self, connection: SessionId, fd: RawFd) {
        self.pending(connection, fd).watched = true;
        self.advance(connection, EventFlags::empty());
    }

    fn cancel_watch(&mut self, connection: SessionId) {
        let Some(pending) = self.pending.get_mut(connection.number() as usize) else { return };
        if std::mem::take(&mut pending.watched) {
            self.ready.push_back(Event::HungUp(connection, Err(Errno::CANCELED)));
            self.wait_for_the_rest(connection);
        }
    }

    fn disk(&mut self, store: VolumeSlot) -> StoreDisk<'_> {
        StoreDisk { threads: self, store }
    }

    fn wait(&mut self, timeout: Option<Duration>, _hasty: bool) -> io::Result<()> {
        let zero = Duration { ns: 0 };
        let timeout = if self.ready.is_empty() { timeout } else { Some(zero) };
        let timespec = timeout.map(|span| Timespec {
            tv_sec: (span.ns / 1_000_000_000).try_into().unwrap_or(i64::MAX),
            tv_nsec: (span.ns % 1_000_000_000) as _,
        });
        let mut events =
            [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS_MAX];
        let count = match epoll::wait(&self.epoll, &mut events[..], timespec.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for event in &events[..count] {
            match event.data.u64() {
                DATA_WAKE => {
                    self.waker.clear();
                    self.ready.push_back(Event::Woken);
                }
                DATA_DISK => {
                    let done = self.workers.take_done();
                    self.ready.extend(done.into_iter().map(|(store, d)| Event::Disk(store, d)));
                }
                data if data & DATA_READABLE != 0 => {
                    self.became_readable(OperationId::new(data as u32), Ok(0));
                }
                connection => self.advance(SessionId::new(connection as u32), event.flags),
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }
}

/// The workers for one store.
pub struct StoreDisk<'a> {
    threads: &'a mut Threads,
    store: VolumeSlot,
}

impl Disk for StoreDisk<'_> {
    fn submit(&mut self, op: DiskOp) {
        if op.action == DiskAction::Readable {
            return self.threads.await_readable(self.store, op);
        }
        self.threads.workers.give(self.store, op);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::conformance;

    #[test]
    fn threads_driver_conforms() {
        conformance::check(|waker| Threads::new(waker).unwrap());
    }
}
