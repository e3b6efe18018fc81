//! Clients that go while nothing is received from them.
//!
//! A connection that has as much in the server as it may is not read, so its end is not seen there.
//! The driver watches for it instead: what it has waiting is cancelled at once, and not run for
//! nobody, one request after the other, at the cost of those who are there.

use super::Reactor;
use crate::driver::{Driver, HangUp};
use crate::session::{Bound, OtherEnd, Phase, Session};
use evenkeel_wire::nbd::transmission::{Command, REQUEST_BYTES, RequestHeader};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes looked through at once for the end of what a client has sent.
const PEEK_BYTES: usize = 64 << 10;
/// Pieces of that size that one look takes at most: more than any socket holds unread.
const PEEK_PIECES_MAX: usize = 1_024;

impl<D: Driver> Reactor<D> {
    /// Makes sure that the end of a connection is heard of from which nothing is received.
    pub(super) fn watch_other_end(&mut self, id: u32) {
        let session = &mut self.sessions[id as usize];
        if session.shut || session.receiving || !matches!(session.phase, Phase::Transmission(..)) {
            return;
        }
        // It is about to go to another core, where it is looked after.
        if session.parked == Some(Bound::Departure) {
            return;
        }
        match session.other_end {
            OtherEnd::Unwatched => {
                session.other_end = OtherEnd::Watched;
                self.driver.watch(id, session.fd.as_raw_fd());
            }
            OtherEnd::Watched => {}
            OtherEnd::Gone(how) => self.mourn(id, how),
        }
    }

    /// The driver has seen the end of a connection.
    pub(super) fn hung_up(&mut self, id: u32, how: Result<HangUp, Errno>) {
        let Some(session) = self.sessions.get_mut(id as usize) else { return };
        session.other_end = how.map_or(OtherEnd::Unwatched, OtherEnd::Gone);
        if session.shut {
            return self.try_free(id);
        }
        // While something is received, that tells of the end in its place.
        if let Ok(how) = how
            && !session.receiving
        {
            self.mourn(id, how);
        }
    }

    /// Closes a connection to whose requests nobody listens any more. A client that has taken its
    /// leave may still wait for its answers, and its requests are to be done in any case: "the
    /// server MUST handle all outstanding requests" (NBD, `NBD_CMD_DISC`).
    fn mourn(&mut self, id: u32, how: HangUp) {
        let session = &self.sessions[id as usize];
        if how == HangUp::Reset || !session.closing && !takes_leave(session) {
            self.close(id);
        }
    }
}

/// Whether the last that a client has sent, received or not, takes its leave.
fn takes_leave(session: &Session) -> bool {
    let Phase::Transmission(_, terms) = session.phase else { return false };
    let mut tail = [0; REQUEST_BYTES];
    let Ok(unread) = rustix::io::ioctl_fionread(&session.fd) else { return false };
    let unread = usize::try_from(unread).unwrap_or(usize::MAX);
    let from_socket = unread.min(REQUEST_BYTES);
    let (front, back) = tail.split_at_mut(REQUEST_BYTES - from_socket);
    let pending = session.pending();
    let Some(at) = pending.len().checked_sub(front.len()) else { return false };
    front.copy_from_slice(&pending[at..]);
    if from_socket > 0 && !peek_behind(&session.fd, unread - from_socket, back) {
        return false;
    }
    let header = RequestHeader::decode(&tail);
    header.is_ok_and(|header| header.validate(&terms) == Ok(Command::Disconnect))
}

/// Looks at what a socket holds behind the first `skip` bytes, and leaves it there; whether that
/// was to be seen.
fn peek_behind(fd: &OwnedFd, skip: usize, wanted: &mut [u8]) -> bool {
    let pieces = skip.div_ceil(PEEK_BYTES);
    if pieces >= PEEK_PIECES_MAX {
        return false;
    }
    // What is skipped all goes to the same place: nobody reads it there.
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
    // SAFETY: the message points to memory that is written by nobody else meanwhile.
    let count = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, flags) };
    usize::try_from(count) == Ok(skip + wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;
    use evenkeel_core::request::{Operation, Request};
    use evenkeel_core::time::Instant;
    use evenkeel_wire::agent::HostAddress;
    use evenkeel_wire::nbd::transmission::Terms;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    /// However much stands before it, received or not.
    #[test]
    fn a_client_that_takes_its_leave_is_known_wherever_that_stands() {
        let terms = Terms {
            size_bytes: 1 << 30,
            block_bytes_min: 512,
            payload_bytes_max: 32 << 20,
            read_only: false,
            structured_replies: false,
            base_allocation: false,
        };
        let slots = Arc::new(Slots::default());
        let read = Request { operation: Operation::Read, offset: 0, length: 512 };
        let mut head = RequestHeader::new(1, &read, false);
        let read = head.encode();
        head.command = 2;
        let leave = head.encode();
        for before in [0, 3, 5_000] {
            for received in [0, 1, 27, 28, 30, 56] {
                for leaves in [true, false] {
                    let mut sent: Vec<u8> = (0..before).flat_map(|_| read).collect();
                    sent.extend(if leaves { leave } else { read });
                    let (ours, mut theirs) = UnixStream::pair().unwrap();
                    let (slot, _) = slots.greet(HostAddress::Local, 0).unwrap();
                    let (ours, peer) = (ours.into(), HostAddress::Local);
                    let mut session = Session::new(ours, peer, slot, Instant::ZERO);
                    session.phase = Phase::Transmission(0, terms);
                    session.end = received.min(sent.len());
                    session.input[..session.end].copy_from_slice(&sent[..session.end]);
                    theirs.write_all(&sent[session.end..]).unwrap();
                    assert_eq!(takes_leave(&session), leaves, "{before} {received}");
                    assert_eq!(takes_leave(&session), leaves, "it is still there");
                }
            }
        }
    }
}
