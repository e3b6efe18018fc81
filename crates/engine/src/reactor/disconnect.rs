//! Detects clients that disconnect while the server receives nothing from them.
//!
//! A connection with the maximum of requests or bytes in the server is not read, so a receive does
//! not report its end. The driver watches for it instead: waiting requests are cancelled at once,
//! and do not run one after the other for a client that is gone, at the cost of other clients.

use super::Reactor;
use crate::driver::{Driver, HangUp};
use crate::handoff::Kept;
use crate::protocol::FAREWELL_BYTES;
use crate::session::{Bound, Session, Stage};
use crate::table::SessionId;
use crate::transport::OtherEnd;
use evenkeel_core::convert::index;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of unread input that one part of a peek covers.
const PEEK_BYTES: usize = 64 << 10;
/// Maximum number of such parts in a peek: more than any socket holds unread.
const PEEK_PIECES_MAX: usize = 1_024;

impl<D: Driver> Reactor<D> {
    /// Watches for the end of a connection from which the server receives nothing.
    pub(super) fn watch_other_end(&mut self, id: SessionId) {
        let session = &mut self.sessions[id];
        let is_receiving = session.transport.is_receiving();
        if session.is_shut() || is_receiving || !session.protocol.is_bound() {
            return;
        }
        // It is about to go to another core, which watches it.
        if session.parked == Some(Bound::Departure) {
            return;
        }
        let transport = &mut session.transport;
        match transport.other_end {
            OtherEnd::Unwatched => {
                transport.other_end = OtherEnd::Watched;
                self.driver.watch(id, transport.raw_fd());
            }
            OtherEnd::Watched => {}
            OtherEnd::Gone(how) => self.on_client_gone(id, how),
        }
    }

    /// Handles the end of a connection that the driver has seen.
    pub(super) fn hung_up(&mut self, id: SessionId, how: Result<HangUp, Errno>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.transport.other_end = how.map_or(OtherEnd::Unwatched, OtherEnd::Gone);
        if session.is_shut() {
            return self.try_free(id);
        }
        if session.stage() == Stage::Exchanging {
            return self.exchange(id);
        }
        if session.goes_back() && how != Ok(HangUp::Reset) {
            return self.try_free(id);
        }
        // A receive in progress reports the end itself.
        if let Ok(how) = how
            && !session.transport.is_receiving()
        {
            self.on_client_gone(id, how);
        }
    }

    /// Closes a connection that is reset, or whose client ended it without the protocol's farewell.
    fn on_client_gone(&mut self, id: SessionId, how: HangUp) {
        let session = &self.sessions[id];
        // This is not the client's end: its own socket is to take the connection's place.
        if session.slot.kept.as_ref().is_some_and(Kept::has_loan) {
            return;
        }
        if how == HangUp::Reset || !session.is_closing() && !takes_leave(session) {
            self.close(id);
        }
    }
}

/// Returns whether the last bytes that a client has sent, received or not, are the protocol's
/// farewell.
fn takes_leave(session: &Session) -> bool {
    let mut tail = [0; FAREWELL_BYTES];
    let fd = session.transport.fd();
    let Ok(unread) = rustix::io::ioctl_fionread(fd) else { return false };
    let unread = index(unread);
    let from_socket = unread.min(FAREWELL_BYTES);
    let (front, back) = tail.split_at_mut(FAREWELL_BYTES - from_socket);
    let pending = session.transport.pending();
    let Some(at) = pending.len().checked_sub(front.len()) else { return false };
    front.copy_from_slice(&pending[at..]);
    if from_socket > 0 && !peek_behind(fd, unread - from_socket, back) {
        return false;
    }
    session.protocol.is_farewell(&tail)
}

/// Reads what a socket holds behind the first `skip` bytes, and leaves it there. Returns whether
/// `wanted` was filled.
fn peek_behind(fd: &OwnedFd, skip: usize, wanted: &mut [u8]) -> bool {
    let pieces = skip.div_ceil(PEEK_BYTES);
    if pieces >= PEEK_PIECES_MAX {
        return false;
    }
    // All skipped bytes go to the same memory, which is not read.
    let mut skipped = vec![0u8; PEEK_BYTES.min(skip)];
    let place = skipped.as_mut_ptr().cast();
    let mut parts: Vec<libc::iovec> = (0..pieces)
        .map(|piece| PEEK_BYTES.min(skip - piece * PEEK_BYTES))
        .map(|iov_len| libc::iovec { iov_base: place, iov_len })
        .collect();
    parts.push(libc::iovec { iov_base: wanted.as_mut_ptr().cast(), iov_len: wanted.len() });
    // SAFETY: all zeroes is a valid empty msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the message points to memory that nothing else accesses during the call.
    let count = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    usize::try_from(count) == Ok(skip + wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_limits::{Slot, Slots};
    use crate::protocol::testing;
    use crate::session::Connection;
    use evenkeel_core::request::{Operation, Request};
    use evenkeel_core::time::Instant;
    use evenkeel_wire::agent::HostAddress;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// The farewell is found behind any number of requests, in the input or in the socket.
    #[test]
    fn a_client_that_takes_its_leave_is_known_wherever_that_stands() {
        let slots = Arc::new(Slots::default());
        let read = Request { operation: Operation::Read, offset: 0, length: 512 };
        let read = testing::request(&read);
        let leave = testing::farewell();
        for before in [0, 3, 5_000] {
            for received in [0, 1, 27, 28, 30, 56] {
                for leaves in [true, false] {
                    let mut sent = read.repeat(before);
                    sent.extend(if leaves { &leave } else { &read });
                    let (ours, mut theirs) = UnixStream::pair().unwrap();
                    let (slot, _) = Slot::greet(&slots, HostAddress::Local, 0).unwrap();
                    let (leftover, rest) = sent.split_at(received.min(sent.len()));
                    let fd = ours.into();
                    let peer = HostAddress::Local.into();
                    let protocol = testing::serving();
                    let leftover = leftover.to_vec();
                    let connection = Connection { fd, peer, slot, protocol, leftover };
                    let session = Session::new(connection, Instant::ZERO);
                    theirs.write_all(rest).unwrap();
                    assert_eq!(takes_leave(&session), leaves, "{before} {received}");
                    assert_eq!(takes_leave(&session), leaves, "it is still there");
                }
            }
        }
    }
}
