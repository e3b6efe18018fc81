//! One connection: what has arrived, what is on its way back, and where in the protocol it stands.

use crate::driver::HangUp;
use crate::output::Output;
use crate::slots::Slot;
use evenkeel_core::limits::{CONNECTION_BYTES_MAX, CONNECTION_REQUESTS_MAX, QUANTUM_BYTES_MAX};
use evenkeel_core::qos::scheduler::AttachmentIndex;
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::nbd::handshake::{Negotiated, Server};
use evenkeel_wire::nbd::transmission::Terms;
use std::os::fd::OwnedFd;

/// Bytes received at once: a batch of some 2,300 requests without payload, or 15 writes of 4 KiB.
pub const INPUT_BYTES: usize = 64 << 10;
/// Bytes received at once beyond the payload of a large write: the next requests' heads, and little
/// of their payload, which would have to be copied.
const INPUT_BYTES_BESIDE_LARGE_WRITES: usize = 4 << 10;
/// From here on a copy costs more than a system call.
const LARGE_WRITE_BYTES: u32 = 16 << 10;

/// Bytes of reply heads that a client may leave unread before its requests are, and its options
/// while it shakes hands.
pub const REPLY_HEADS_BYTES_MAX: usize = 256 << 10;

/// Where a connection stands.
pub enum Phase {
    /// Agreeing on an export.
    Handshake(Box<Server>),
    /// Agreed; moves to the volume's home core once the last reply has left.
    Moving(Box<Negotiated>, u16),
    /// Requests and replies for the volume in this slot.
    Transmission(u32, Terms),
}

/// What a request may have to wait for before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// The connection has as much in the server as it may: until a reply has left.
    Connection,
    /// The volume's queue is full: until something of it was dispatched.
    Queue,
    /// The core's payload memory is used up: until some comes back.
    Memory,
    /// It has had its turn of the handshake: until the others have had theirs.
    Turn,
    /// The volume is about to go to another core: until it is there, or stays after all.
    Departure,
}

/// What is known of the other end of a connection while nothing is received from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherEnd {
    /// Nobody has looked: something was always being received.
    Unwatched,
    /// The driver tells when it goes.
    Watched,
    /// It has gone.
    Gone(HangUp),
}

/// A write whose payload is still arriving.
pub struct Incoming {
    /// The request in the reactor's table.
    pub handle: u32,
    /// Payload bytes that have arrived.
    pub received: u32,
    /// Payload bytes in all.
    pub total: u32,
}

/// A connection between two cores: agreed upon, nothing in flight.
pub struct Moved {
    /// The socket.
    pub fd: OwnedFd,
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Its place among all connections.
    pub slot: Slot,
    /// What was agreed.
    pub negotiated: Box<Negotiated>,
    /// What arrived behind the handshake.
    pub leftover: Vec<u8>,
}

/// A connection that goes to another core with its volume: nothing of it is in flight.
pub struct Carried {
    /// The socket.
    pub fd: OwnedFd,
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Its place among all connections.
    pub slot: Slot,
    /// What was agreed.
    pub terms: Terms,
    /// Requests that have arrived and were not taken.
    pub leftover: Vec<u8>,
    /// Payload bytes of a refused write still to be thrown away.
    pub skip: u32,
    /// When the connection was made.
    pub connected_at: Instant,
}

/// One connection.
pub struct Session {
    /// The socket.
    pub fd: OwnedFd,
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Its place among all connections.
    pub slot: Slot,
    /// Where in the protocol.
    pub phase: Phase,
    /// By which of its volume's attachments its requests come; `None` is the first.
    pub line: Option<AttachmentIndex>,
    /// Received bytes; those from `start` to `end` are not consumed.
    pub input: Box<[u8]>,
    /// First byte that is not consumed.
    pub start: usize,
    /// One past the last received byte.
    pub end: usize,
    /// The kernel is writing into `input` or the buffers of `incoming`.
    pub receiving: bool,
    /// The kernel is reading `sending`.
    pub in_send: bool,
    /// A write whose payload is arriving.
    pub incoming: Option<Incoming>,
    /// Payload bytes of a refused write still to be thrown away.
    pub skip: u32,
    /// Requests that are parsed and not replied to.
    pub outstanding: u32,
    /// Their payload bytes.
    pub outstanding_bytes: u32,
    /// Requests are left in `input` because this bound was reached.
    pub parked: Option<Bound>,
    /// What is known of the other end while nothing is received.
    pub other_end: OtherEnd,
    /// In the volume's list of those who wait for room in its queue.
    pub in_queue_waiters: bool,
    /// In the core's list of those who wait for memory.
    pub in_memory_waiters: bool,
    /// It was woken to use the room in its volume's queue.
    pub has_turn: bool,
    /// An option was answered in this turn of the handshake.
    pub answered: bool,
    /// Listed as having something to send.
    pub in_to_send: bool,
    /// No more requests are taken; the connection ends when nothing is outstanding.
    pub closing: bool,
    /// Both directions are shut; the slot is freed when the kernel lets go.
    pub shut: bool,
    /// When the connection was made.
    pub connected_at: Instant,
    /// When bytes last came or went.
    pub progress_at: Instant,
    /// Collecting.
    pub output: Output,
    /// On its way.
    pub sending: Output,
    send_iovecs: Vec<libc::iovec>,
    send_message: Box<libc::msghdr>,
    receive_iovecs: Vec<libc::iovec>,
    receive_message: Box<libc::msghdr>,
    large_writes: bool,
}

impl Session {
    /// A new connection, about to shake hands.
    #[must_use]
    pub fn new(fd: OwnedFd, peer: HostAddress, slot: Slot, now: Instant) -> Self {
        // SAFETY: all zeroes is a valid empty msghdr.
        let message = || Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Self {
            fd,
            peer,
            slot,
            phase: Phase::Handshake(Box::new(Server::new())),
            line: None,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            receiving: false,
            in_send: false,
            incoming: None,
            skip: 0,
            outstanding: 0,
            outstanding_bytes: 0,
            parked: None,
            other_end: OtherEnd::Unwatched,
            in_queue_waiters: false,
            in_memory_waiters: false,
            has_turn: false,
            answered: false,
            in_to_send: false,
            closing: false,
            shut: false,
            connected_at: now,
            progress_at: now,
            output: Output::default(),
            sending: Output::default(),
            send_iovecs: Vec::new(),
            send_message: message(),
            receive_iovecs: Vec::new(),
            receive_message: message(),
            large_writes: false,
        }
    }

    /// A connection that comes from another core, for the volume in `slot`.
    #[must_use]
    pub fn arrived(moved: Moved, slot: u32, now: Instant) -> Self {
        let mut session = Self::new(moved.fd, moved.peer, moved.slot, now);
        session.phase = Phase::Transmission(slot, moved.negotiated.terms());
        session.end = moved.leftover.len();
        session.input[..session.end].copy_from_slice(&moved.leftover);
        session
    }

    /// A connection that has come with the volume in `slot`.
    #[must_use]
    pub fn carried(carried: Carried, slot: u32, now: Instant) -> Self {
        let mut session = Self::new(carried.fd, carried.peer, carried.slot, now);
        session.phase = Phase::Transmission(slot, carried.terms);
        session.end = carried.leftover.len();
        session.input[..session.end].copy_from_slice(&carried.leftover);
        (session.skip, session.connected_at) = (carried.skip, carried.connected_at);
        session
    }

    /// Whether nothing of it is in the server or in the kernel's hands but what was not taken yet.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let sends = self.in_send || !self.output.is_empty() || !self.sending.is_empty();
        let watched = self.other_end == OtherEnd::Watched;
        let receives = self.receiving || self.incoming.is_some() || watched;
        !(sends || receives || self.closing || self.outstanding > 0)
    }

    /// What goes to another core of a connection that is quiet.
    #[must_use]
    pub fn carry(self, terms: Terms) -> Carried {
        let leftover = self.pending().to_vec();
        let Self { fd, peer, slot, skip, connected_at, .. } = self;
        Carried { fd, peer, slot, terms, leftover, skip, connected_at }
    }

    /// What has arrived and is not consumed.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Whether this connection may not have another request of `payload_bytes` in the server.
    #[must_use]
    pub fn is_full(&self, payload_bytes: u32) -> bool {
        let held = self.output.bytes() + self.sending.bytes() + self.outstanding_bytes as usize;
        self.outstanding as usize >= CONNECTION_REQUESTS_MAX
            || self.leaves_heads_unread()
            // The largest request must pass when nothing else is held.
            || held > 0 && held + payload_bytes as usize > CONNECTION_BYTES_MAX as usize
    }

    /// Whether the client has as many heads of replies to fetch as it may leave.
    #[must_use]
    pub fn leaves_heads_unread(&self) -> bool {
        self.output.head_bytes() + self.sending.head_bytes() > REPLY_HEADS_BYTES_MAX
    }

    /// Whether the other end has to move for anything to go on here, and might not.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        let is_arriving =
            self.incoming.as_ref().is_some_and(|incoming| incoming.received < incoming.total);
        self.in_send || is_arriving || !matches!(self.phase, Phase::Transmission(..))
    }

    /// Notes a request of `payload_bytes` that is now in the server.
    pub fn begun(&mut self, payload_bytes: u32, is_write: bool) {
        self.outstanding += 1;
        self.outstanding_bytes += payload_bytes;
        if is_write {
            self.large_writes = payload_bytes >= LARGE_WRITE_BYTES;
        }
    }

    /// Notes that a request of `payload_bytes` was replied to or given up.
    pub fn ended(&mut self, payload_bytes: u32) {
        self.outstanding -= 1;
        self.outstanding_bytes -= payload_bytes;
    }

    /// The next message to receive into: first the rest of `incoming`'s payload, straight into its
    /// `buffers` of a quantum each, then the input. `None` when there is no room or a receive is
    /// under way. It points into the session and the buffers, which must not be touched there until
    /// [`Session::received`].
    pub fn next_receive(&mut self, buffers: &mut [Option<Buffer>]) -> Option<*mut libc::msghdr> {
        if self.receiving {
            return None;
        }
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.receive_iovecs.clear();
        if let Some(incoming) = &self.incoming {
            let mut at = incoming.received;
            while at < incoming.total {
                let (quantum, from) = (at / QUANTUM_BYTES_MAX, at % QUANTUM_BYTES_MAX);
                let count = (QUANTUM_BYTES_MAX - from).min(incoming.total - at);
                let Some(Some(buffer)) = buffers.get_mut(quantum as usize) else { return None };
                let room = &mut buffer.bytes_mut()[from as usize..][..count as usize];
                self.receive_iovecs.push(part(room));
                at += count;
            }
        }
        let room = INPUT_BYTES - self.end;
        let limit = if self.large_writes { INPUT_BYTES_BESIDE_LARGE_WRITES } else { INPUT_BYTES };
        let count = room.min(limit);
        if count > 0 {
            self.receive_iovecs.push(part(&mut self.input[self.end..][..count]));
        }
        if self.receive_iovecs.is_empty() {
            return None;
        }
        self.receive_message.msg_iov = self.receive_iovecs.as_mut_ptr();
        self.receive_message.msg_iovlen = self.receive_iovecs.len();
        self.receiving = true;
        Some(&raw mut *self.receive_message)
    }

    /// Takes note that a receive ended with `count` bytes.
    pub fn received(&mut self, count: usize, now: Instant) {
        self.receiving = false;
        self.progress_at = now;
        let mut payload = 0;
        if let Some(incoming) = &mut self.incoming {
            payload = count.min((incoming.total - incoming.received) as usize);
            incoming.received += payload as u32;
        }
        self.end += count - payload;
    }

    /// The next message to send, or `None` when there is nothing to send or a send is under way. It
    /// points into the session, which must not be touched there until [`Session::sent`].
    pub fn next_send(&mut self) -> Option<*const libc::msghdr> {
        if self.in_send {
            return None;
        }
        if self.sending.is_empty() {
            std::mem::swap(&mut self.sending, &mut self.output);
        }
        if self.sending.is_empty() {
            return None;
        }
        self.sending.gather(&mut self.send_iovecs);
        self.send_message.msg_iov = self.send_iovecs.as_mut_ptr();
        self.send_message.msg_iovlen = self.send_iovecs.len();
        self.in_send = true;
        Some(&raw const *self.send_message)
    }

    /// Takes note that a send ended with `count` bytes; hands back the buffers that are done with.
    pub fn sent(&mut self, count: usize, now: Instant, done: impl FnMut(Buffer)) {
        self.in_send = false;
        self.progress_at = now;
        self.sending.advance(count, done);
    }
}

fn part(memory: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::Slots;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    fn session() -> Session {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let (slot, _) = Arc::new(Slots::default()).greet(HostAddress::Local, 0).unwrap();
        Session::new(ours.into(), HostAddress::Local, slot, Instant::from_ns(0))
    }

    fn lengths(message: *mut libc::msghdr) -> Vec<usize> {
        // SAFETY: the session under test keeps it valid.
        let parts =
            unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
        parts.iter().map(|part| part.iov_len).collect()
    }

    #[test]
    fn payload_of_a_large_write_goes_straight_to_its_buffers() {
        let mut session = session();
        let total = QUANTUM_BYTES_MAX + 4_096;
        session.begun(total, true);
        session.incoming = Some(Incoming { handle: 0, received: 100, total });
        let mut buffers = [Some(Buffer::new(QUANTUM_BYTES_MAX as usize)), Some(Buffer::new(4_096))];
        let quantum = QUANTUM_BYTES_MAX as usize;
        let message = session.next_receive(&mut buffers).unwrap();
        assert_eq!(lengths(message), [quantum - 100, 4_096, INPUT_BYTES_BESIDE_LARGE_WRITES]);
        assert!(session.next_receive(&mut buffers).is_none(), "one at a time");
        session.received(quantum - 50, Instant::from_ns(1));
        assert_eq!(session.incoming.as_ref().unwrap().received, QUANTUM_BYTES_MAX + 50);
        assert_eq!(session.end, 0);
        let message = session.next_receive(&mut buffers).unwrap();
        assert_eq!(lengths(message), [4_046, INPUT_BYTES_BESIDE_LARGE_WRITES]);
        session.received(4_046 + 28, Instant::from_ns(2));
        assert_eq!(session.incoming.as_ref().unwrap().received, total);
        assert_eq!(session.pending().len(), 28);
    }

    #[test]
    fn a_connection_holds_a_bounded_number_of_requests_and_bytes() {
        let mut session = session();
        let largest = evenkeel_core::limits::REQUEST_BYTES_MAX;
        assert!(!session.is_full(largest), "the largest request passes when alone");
        session.begun(4_096, false);
        assert!(session.is_full(CONNECTION_BYTES_MAX));
        session.ended(4_096);
        for _ in 0..CONNECTION_REQUESTS_MAX {
            assert!(!session.is_full(0));
            session.begun(0, false);
        }
        assert!(session.is_full(0));
    }
}
