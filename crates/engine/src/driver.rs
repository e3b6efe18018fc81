//! Interface between a reactor and the operating system. Two drivers implement it: [`crate::ring`]
//! on io_uring, and [`crate::threads`] with plain system calls where io_uring is forbidden.

use crate::table::{SessionId, VolumeSlot};
use evenkeel_core::time::Duration;
use evenkeel_store::disk::{Disk, DiskDone};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The end of an operation, or a wake-up.
#[derive(Debug)]
pub enum Event {
    /// A receive of a connection has ended with this number of bytes; 0 is the end of the stream.
    /// [`Errno::CANCELED`] if it was cancelled.
    Received(SessionId, Result<u32, Errno>),
    /// A send of a connection has ended with this number of bytes.
    Sent(SessionId, Result<u32, Errno>),
    /// A client has disconnected, or its connection cannot be watched.
    HungUp(SessionId, Result<HangUp, Errno>),
    /// A disk operation of a store has ended.
    Disk(VolumeSlot, DiskDone),
    /// Another thread has called [`Waker::wake`].
    Woken,
}

/// How a client has disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HangUp {
    /// It sends nothing more. It may still read, and bytes that it has sent before can still be
    /// received.
    Closed,
    /// The connection is reset: nothing sent there arrives.
    Reset,
}

impl HangUp {
    /// Poll events of interest, beside those that poll always reports.
    pub(crate) const INTEREST: u32 = libc::POLLRDHUP as u32;

    /// Converts the events that poll has reported for a socket; `None` if it is still connected.
    pub(crate) const fn of(events: u32) -> Option<Self> {
        if events & libc::POLLERR as u32 != 0 {
            return Some(Self::Reset);
        }
        let closed = (libc::POLLRDHUP | libc::POLLHUP) as u32;
        if events & closed != 0 { Some(Self::Closed) } else { None }
    }
}

/// Wakes a driver from another thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Creates a waker that is not bound to a driver yet.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)))
    }

    /// Makes the driver's `wait` return with [`Event::Woken`].
    pub fn wake(&self) {
        // It fails only if the counter is about to overflow, and then the driver has many wake-ups
        // to read.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Clears earlier wake-ups.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sockets, disk and wake-ups of one thread. Each operation ends with one [`Event`].
pub trait Driver {
    /// The disk for one store.
    type Disk<'a>: Disk
    where
        Self: 'a;

    /// Begins to receive into the memory of `message`. Each connection has at most one receive.
    ///
    /// # Safety
    /// The message and all it points to must stay valid and unused until [`Event::Received`] of
    /// `connection` is seen.
    unsafe fn receive(&mut self, connection: SessionId, fd: RawFd, message: *mut libc::msghdr);

    /// Cancels a receive. It ends soon, with the bytes that have arrived or with
    /// [`Errno::CANCELED`]. Has no effect if none is in progress.
    fn cancel_receive(&mut self, connection: SessionId);

    /// Begins to send the memory of `message`, all of it unless the connection breaks. Each
    /// connection has at most one send.
    ///
    /// # Safety
    /// The message and all it points to must stay valid and unchanged until [`Event::Sent`] of
    /// `connection` is seen.
    unsafe fn send(&mut self, connection: SessionId, fd: RawFd, message: *const libc::msghdr);

    /// Cancels a send. It ends soon, with the bytes that have left or with [`Errno::CANCELED`]. Has
    /// no effect if none is in progress.
    fn cancel_send(&mut self, connection: SessionId);

    /// Begins to watch a connection from which nothing is received for its end. Ends with one
    /// event. Shut the socket down to end the watch: the descriptor must stay open until
    /// [`Event::HungUp`] is seen.
    fn watch(&mut self, connection: SessionId, fd: RawFd);

    /// Cancels a watch. [`Event::HungUp`] comes soon, with the end that it saw or with
    /// [`Errno::CANCELED`]. Has no effect if none is in progress.
    fn cancel_watch(&mut self, connection: SessionId);

    /// Returns the disk for store number `store`.
    fn disk(&mut self, store: VolumeSlot) -> Self::Disk<'_>;

    /// Waits for the first event, at most `timeout`. If `hasty`, a client probably waits for each
    /// answer before it sends the next request, so that a slow wake-up delays it.
    ///
    /// # Errors
    /// If the driver is broken; a timeout or a signal is not an error.
    fn wait(&mut self, timeout: Option<Duration>, hasty: bool) -> io::Result<()>;

    /// Returns the next event. Call it until it returns `None` after [`Driver::wait`].
    fn poll(&mut self) -> Option<Event>;
}

/// Sends as much as the socket takes now.
///
/// # Safety
/// `message` must be valid.
pub unsafe fn send_now(fd: RawFd, message: *const libc::msghdr) -> Result<u32, Errno> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller vouches for the message.
    count(unsafe { libc::sendmsg(fd, message, flags) })
}

/// Receives as many bytes as the socket has now.
///
/// # Safety
/// `message` must be valid.
pub unsafe fn receive_now(fd: RawFd, message: *mut libc::msghdr) -> Result<u32, Errno> {
    // SAFETY: the caller vouches for the message.
    count(unsafe { libc::recvmsg(fd, message, libc::MSG_DONTWAIT) })
}

fn count(result: isize) -> Result<u32, Errno> {
    u32::try_from(result)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Tests that each driver must pass.
#[cfg(test)]
pub(crate) mod conformance {
    use super::*;
    use evenkeel_store::buffer::Buffer;
    use evenkeel_store::disk::{DiskAction, DiskOp};
    use evenkeel_store::timer::Timer;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    const ONE: SessionId = SessionId::for_test(7);
    const OTHER: SessionId = SessionId::for_test(9);
    const STORE: VolumeSlot = VolumeSlot::for_test(3);
    const OTHER_STORE: VolumeSlot = VolumeSlot::for_test(4);

    pub fn check<D: Driver>(make: impl Fn(Waker) -> D) {
        let with = || {
            let waker = Waker::new().unwrap();
            (make(waker.clone()), waker)
        };
        bytes_come_and_go(with().0);
        a_slow_reader_gets_all(with().0);
        a_closed_connection_ends_a_receive(with().0);
        a_receive_that_is_cancelled_takes_nothing(with().0);
        a_send_that_is_cancelled_tells_how_much_has_left(with().0);
        the_end_of_a_connection_is_told_without_receiving(&|| with().0);
        another_thread_wakes_it_again_and_again(with());
        many_disk_operations_all_end_with_their_buffers(with().0);
        descriptors_that_become_readable_are_told_and_hold_up_nothing(with().0);
    }

    fn next<D: Driver>(driver: &mut D) -> Event {
        loop {
            if let Some(event) = driver.poll() {
                return event;
            }
            driver.wait(Some(Duration::from_secs(10)), false).unwrap();
        }
    }

    fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
        // SAFETY: all zeroes is a valid empty msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
        message
    }

    fn part(memory: &mut [u8]) -> libc::iovec {
        libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }
    }

    fn bytes_come_and_go<D: Driver>(mut driver: D) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut first = [0u8; 3];
        let mut second = [0u8; 13];
        theirs.write_all(b"hello").unwrap();
        let mut parts = [part(&mut first), part(&mut second)];
        let mut header = message(&mut parts);
        // SAFETY: all memory lives to the end of the test, after the events were seen.
        unsafe { driver.receive(ONE, ours.as_raw_fd(), &raw mut header) };
        assert!(matches!(next(&mut driver), Event::Received(ONE, Ok(5))));
        assert_eq!((&first, &second[..2]), (b"hel", &b"lo"[..]));
        // SAFETY: as above.
        unsafe { driver.send(OTHER, ours.as_raw_fd(), &raw const header) };
        assert!(matches!(next(&mut driver), Event::Sent(OTHER, Ok(16))));
        let mut back = [0; 16];
        theirs.read_exact(&mut back).unwrap();
        assert_eq!(&back[..5], b"hello");
    }

    fn a_slow_reader_gets_all<D: Driver>(mut driver: D) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut payload = vec![7u8; 1 << 20];
        let total = payload.len();
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; total];
            theirs.read_exact(&mut got).unwrap();
            got.iter().all(|&b| b == 7)
        });
        let mut sent = 0;
        while sent < total {
            let mut parts = [part(&mut payload[sent..])];
            let header = message(&mut parts);
            // SAFETY: all memory lives until the event was seen.
            unsafe { driver.send(ONE, ours.as_raw_fd(), &raw const header) };
            let Event::Sent(ONE, Ok(count)) = next(&mut driver) else { panic!("not sent") };
            sent += count as usize;
        }
        assert!(reader.join().unwrap());
    }

    fn a_closed_connection_ends_a_receive<D: Driver>(mut driver: D) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut memory = [0u8; 8];
        let mut parts = [part(&mut memory)];
        let mut header = message(&mut parts);
        // SAFETY: all memory lives until the event was seen.
        unsafe { driver.receive(ONE, ours.as_raw_fd(), &raw mut header) };
        driver.wait(Some(Duration::from_ms(1)), true).unwrap();
        assert!(driver.poll().is_none(), "nothing was sent yet");
        drop(theirs);
        assert!(matches!(next(&mut driver), Event::Received(ONE, Ok(0))));
    }

    fn a_receive_that_is_cancelled_takes_nothing<D: Driver>(mut driver: D) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut memory = [0u8; 8];
        let mut parts = [part(&mut memory)];
        let mut header = message(&mut parts);
        for _ in 0..3 {
            // SAFETY: all memory lives until the event was seen.
            unsafe { driver.receive(ONE, ours.as_raw_fd(), &raw mut header) };
            driver.wait(Some(Duration::from_ms(1)), true).unwrap();
            driver.cancel_receive(ONE);
            assert!(matches!(next(&mut driver), Event::Received(ONE, Err(Errno::CANCELED))));
        }
        // Without a receive, a cancellation causes no event, and does not cancel the next receive.
        driver.cancel_receive(ONE);
        theirs.write_all(b"hello").unwrap();
        driver.wait(Some(Duration::from_ms(1)), true).unwrap();
        assert!(driver.poll().is_none(), "nobody receives");
        // SAFETY: as above.
        unsafe { driver.receive(ONE, ours.as_raw_fd(), &raw mut header) };
        assert!(matches!(next(&mut driver), Event::Received(ONE, Ok(5))));
        assert_eq!(&memory[..5], b"hello");
    }

    fn a_send_that_is_cancelled_tells_how_much_has_left<D: Driver>(mut driver: D) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut payload: Vec<u8> = (0..4 << 20).map(|at: u32| (at >> 4) as u8).collect();
        let mut sent = 0;
        // The socket takes some bytes, then none.
        for round in 0..6 {
            let mut parts = [part(&mut payload[sent..])];
            let header = message(&mut parts);
            // SAFETY: all memory lives until the event was seen.
            unsafe { driver.send(ONE, ours.as_raw_fd(), &raw const header) };
            driver.wait(Some(Duration::from_ms(1)), false).unwrap();
            driver.cancel_send(ONE);
            match next(&mut driver) {
                Event::Sent(ONE, Ok(count)) => sent += count as usize,
                Event::Sent(ONE, Err(Errno::CANCELED)) => assert!(round > 0, "there was room"),
                other => panic!("{other:?}"),
            }
        }
        assert!(sent > 0 && sent < payload.len());
        driver.cancel_send(ONE);
        driver.wait(Some(Duration::from_ms(1)), false).unwrap();
        assert!(driver.poll().is_none(), "nobody sends");
        drop(ours);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert!(got == payload[..sent], "{} of {sent} have left", got.len());
    }

    /// Bytes that arrive meanwhile are no end; a receive beside the watch gets them.
    fn the_end_of_a_connection_is_told_without_receiving<D: Driver>(make: &dyn Fn() -> D) {
        type End = fn(TcpStream);
        let half: End = |theirs| theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let reset: End = |theirs| {
            rustix::net::sockopt::set_socket_linger(&theirs, Some(std::time::Duration::ZERO))
                .unwrap();
        };
        for (end, expected) in [(half, HangUp::Closed), (reset, HangUp::Reset)] {
            let mut driver = make();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (ours, _) = listener.accept().unwrap();
            driver.watch(ONE, ours.as_raw_fd());
            theirs.write_all(b"hello").unwrap();
            driver.wait(Some(Duration::from_ms(1)), false).unwrap();
            assert!(driver.poll().is_none(), "nothing has ended yet");
            let mut memory = [0u8; 8];
            let mut parts = [part(&mut memory)];
            let mut header = message(&mut parts);
            // SAFETY: all memory lives until the event was seen.
            unsafe { driver.receive(ONE, ours.as_raw_fd(), &raw mut header) };
            assert!(matches!(next(&mut driver), Event::Received(ONE, Ok(5))));
            end(theirs);
            let event = next(&mut driver);
            assert!(matches!(event, Event::HungUp(ONE, Ok(how)) if how == expected), "{event:?}");
        }
        // A cancelled watch ends with an event; without a watch there is none.
        let mut driver = make();
        let (ours, theirs) = UnixStream::pair().unwrap();
        for _ in 0..3 {
            driver.watch(ONE, ours.as_raw_fd());
            driver.wait(Some(Duration::from_ms(1)), true).unwrap();
            driver.cancel_watch(ONE);
            assert!(matches!(next(&mut driver), Event::HungUp(ONE, Err(Errno::CANCELED))));
        }
        driver.cancel_watch(ONE);
        drop(theirs);
        driver.wait(Some(Duration::from_ms(1)), true).unwrap();
        assert!(driver.poll().is_none(), "nobody watches");
        // A shutdown of the own end is reported, too.
        let mut driver = make();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        driver.watch(ONE, ours.as_raw_fd());
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(matches!(next(&mut driver), Event::HungUp(ONE, Ok(HangUp::Closed))));
    }

    fn another_thread_wakes_it_again_and_again<D: Driver>((mut driver, waker): (D, Waker)) {
        for _ in 0..3 {
            let waker = waker.clone();
            std::thread::spawn(move || waker.wake()).join().unwrap();
            assert!(matches!(next(&mut driver), Event::Woken));
        }
        driver.wait(Some(Duration::from_ms(1)), true).unwrap();
        assert!(driver.poll().is_none(), "woken by nobody");
    }

    /// There are more of them than a ring has entries.
    fn many_disk_operations_all_end_with_their_buffers<D: Driver>(mut driver: D) {
        let file = tempfile::tempfile().unwrap();
        let count = 1_500u64;
        for token in 0..count {
            let mut buffer = Buffer::new(8);
            buffer.bytes_mut()[..8].copy_from_slice(&token.to_le_bytes());
            let fd = file.as_raw_fd();
            let action = DiskAction::Write;
            let offset = token * 8;
            let buffer = Some(buffer);
            let op = DiskOp { token, fd, action, offset, length: 8, buffer, buffer_offset: 0 };
            driver.disk(STORE).submit(op);
        }
        let mut seen = vec![false; count as usize];
        for _ in 0..count {
            let Event::Disk(STORE, done) = next(&mut driver) else {
                panic!("not the store's disk")
            };
            assert_eq!(done.result, Ok(8));
            assert_eq!(done.buffer.unwrap().bytes()[..8], done.token.to_le_bytes());
            assert!(!std::mem::replace(&mut seen[done.token as usize], true), "ended twice");
        }
    }

    /// There are more of them than workers, each is submitted several times, beside a file.
    fn descriptors_that_become_readable_are_told_and_hold_up_nothing<D: Driver>(mut driver: D) {
        let file = tempfile::tempfile().unwrap();
        let timers: Vec<Timer> = (0..50).map(|_| Timer::new().unwrap()).collect();
        for round in 0..3 {
            let start = evenkeel_os::clock::monotonic();
            for (token, timer) in timers.iter().enumerate() {
                timer.set(start + Duration::from_secs(3_600));
                driver.disk(OTHER_STORE).submit(DiskOp::readable(token as u64, timer.fd()));
            }
            let fd = file.as_raw_fd();
            let action = DiskAction::Sync;
            let token = round;
            let buffer = None;
            let op = DiskOp { token, fd, action, offset: 0, length: 0, buffer, buffer_offset: 0 };
            driver.disk(STORE).submit(op);
            let Event::Disk(STORE, done) = next(&mut driver) else { panic!("a timer goes off") };
            assert_eq!((done.token, done.result), (round, Ok(0)));
            // The time of a timer that is already waited for can change.
            timers.iter().for_each(|timer| timer.set(start));
            let mut seen = vec![false; timers.len()];
            for _ in 0..timers.len() {
                let Event::Disk(OTHER_STORE, done) = next(&mut driver) else {
                    panic!("not the other store's disk")
                };
                assert!(done.result.is_ok(), "{done:?}");
                assert!(!std::mem::replace(&mut seen[done.token as usize], true), "ended twice");
            }
        }
    }
}
