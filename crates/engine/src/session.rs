//! One connection: what has arrived, what is on its way back, and where in the protocol it stands.

use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::nbd::handshake::Server;
use evenkeel_wire::nbd::transmission::Terms;
use std::os::fd::OwnedFd;

/// Bytes received at once. A batch of some 600 read requests, or the head and half of a 128 KiB
/// write.
pub const INPUT_BYTES: usize = 64 << 10;
/// Bytes of replies a connection may have waiting before its requests are no longer parsed: one
/// request of the largest size, so that a client that does not read cannot hold more of the pool.
pub const OUTPUT_BYTES_MAX: usize = REQUEST_BYTES_MAX as usize;
/// Pieces of memory sent with one system call.
const PARTS_MAX: usize = 512;

/// Where a connection stands.
pub enum Phase {
    /// Agreeing on an export.
    Handshake(Box<Server>),
    /// Requests and replies for the volume in this slot.
    Transmission(u32, Terms),
}

/// A write whose payload is still arriving.
pub struct Incoming {
    /// The request in the reactor's table.
    pub handle: u32,
    /// Payload bytes that have arrived.
    pub received: u32,
}

/// A piece of the output.
enum Part {
    /// Bytes of the arena: reply heads.
    Head(usize, usize),
    /// Payload of a read.
    Payload(Buffer, usize),
}

/// Replies on their way: heads in one arena, payloads where the store put them.
#[derive(Default)]
pub struct Output {
    arena: Vec<u8>,
    parts: Vec<Part>,
    /// Bytes of the first parts that have left.
    sent: usize,
    bytes: usize,
}

/// One connection.
pub struct Session {
    /// The socket.
    pub fd: OwnedFd,
    /// Who is at the other end.
    pub peer: HostAddress,
    /// Where in the protocol.
    pub phase: Phase,
    /// Received bytes; those from `start` to `end` are not consumed.
    pub input: Box<[u8]>,
    /// First byte that is not consumed.
    pub start: usize,
    /// One past the last received byte.
    pub end: usize,
    /// The kernel is writing into `input`.
    pub receiving: bool,
    /// The kernel is reading `sending`.
    pub in_send: bool,
    /// A write whose payload is arriving.
    pub incoming: Option<Incoming>,
    /// Payload bytes of a refused write still to be thrown away.
    pub skip: u32,
    /// Requests that are parsed and not replied to.
    pub outstanding: u32,
    /// No more requests are taken; the connection ends when nothing is outstanding.
    pub closing: bool,
    /// Both directions are shut; the slot is freed when the kernel lets go.
    pub shut: bool,
    /// Collecting.
    pub output: Output,
    /// On its way.
    pub sending: Output,
    iovecs: Vec<libc::iovec>,
    message: Box<libc::msghdr>,
}

impl Session {
    /// A new connection, about to shake hands.
    #[must_use]
    pub fn new(fd: OwnedFd, peer: HostAddress) -> Self {
        // SAFETY: all zeroes is a valid empty msghdr.
        let message = Box::new(unsafe { std::mem::zeroed() });
        Self {
            fd,
            peer,
            phase: Phase::Handshake(Box::new(Server::new())),
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            receiving: false,
            in_send: false,
            incoming: None,
            skip: 0,
            outstanding: 0,
            closing: false,
            shut: false,
            output: Output::default(),
            sending: Output::default(),
            iovecs: Vec::with_capacity(PARTS_MAX),
            message,
        }
    }

    /// What has arrived and is not consumed.
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Moves what is not consumed to the front, to make room behind it.
    pub fn compact(&mut self) {
        self.input.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }

    /// Whether more replies are waiting than a client that reads would leave.
    #[must_use]
    pub fn is_output_full(&self) -> bool {
        self.output.bytes + self.sending.bytes > OUTPUT_BYTES_MAX
    }

    /// The next message to send, or `None` when there is nothing to send or a send is under way. It
    /// points into the session, which must not be touched there until the send has ended.
    pub fn next_message(&mut self) -> Option<*const libc::msghdr> {
        if self.in_send {
            return None;
        }
        if self.sending.parts.is_empty() {
            std::mem::swap(&mut self.sending, &mut self.output);
        }
        if self.sending.parts.is_empty() {
            return None;
        }
        self.sending.gather(&mut self.iovecs);
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len() as _;
        self.in_send = true;
        Some(&raw const *self.message)
    }
}

impl Output {
    /// Appends a reply's head.
    pub fn head(&mut self, bytes: &[u8]) {
        let start = self.arena.len();
        self.arena.extend_from_slice(bytes);
        self.bytes += bytes.len();
        match self.parts.last_mut() {
            Some(Part::Head(_, end)) if *end == start => *end = self.arena.len(),
            _ => self.parts.push(Part::Head(start, self.arena.len())),
        }
    }

    /// Appends the first `length` bytes of a buffer.
    pub fn payload(&mut self, buffer: Buffer, length: usize) {
        self.bytes += length;
        self.parts.push(Part::Payload(buffer, length));
    }

    /// Takes note that `count` bytes have left; hands back the buffers that are done with.
    pub fn advance(&mut self, count: usize, mut done: impl FnMut(Buffer)) {
        self.bytes -= count.min(self.bytes);
        self.sent += count;
        let mut finished = 0;
        for part in &self.parts {
            if self.sent < part.length() {
                break;
            }
            self.sent -= part.length();
            finished += 1;
        }
        for part in self.parts.drain(..finished) {
            if let Part::Payload(buffer, _) = part {
                done(buffer);
            }
        }
        if self.parts.is_empty() {
            self.arena.clear();
        }
    }

    /// Drops everything; hands back the buffers.
    pub fn abandon(&mut self, mut done: impl FnMut(Buffer)) {
        for part in self.parts.drain(..) {
            if let Part::Payload(buffer, _) = part {
                done(buffer);
            }
        }
        self.arena.clear();
        (self.sent, self.bytes) = (0, 0);
    }

    fn gather(&self, iovecs: &mut Vec<libc::iovec>) {
        iovecs.clear();
        let mut skip = self.sent;
        for part in self.parts.iter().take(PARTS_MAX) {
            let (memory, length) = match part {
                Part::Head(start, end) => (self.arena[*start..].as_ptr().cast_mut(), end - start),
                Part::Payload(buffer, length) => (buffer.as_ptr(), *length),
            };
            // Only the first part can have left in part.
            let from = std::mem::take(&mut skip);
            let iov_base = memory.wrapping_add(from).cast();
            iovecs.push(libc::iovec { iov_base, iov_len: length - from });
        }
    }
}

impl Part {
    fn length(&self) -> usize {
        match self {
            Self::Head(start, end) => end - start,
            Self::Payload(_, length) => *length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_run_together_and_short_sends_go_on_where_they_stopped() {
        let mut output = Output::default();
        output.head(b"0123456789");
        output.head(b"abcdef");
        output.payload(Buffer::new(4_096), 100);
        assert_eq!(output.parts.len(), 2);
        let mut iovecs = Vec::new();
        output.advance(12, |_| panic!("nothing is done yet"));
        output.gather(&mut iovecs);
        assert_eq!(iovecs.iter().map(|v| v.iov_len).collect::<Vec<_>>(), [4, 100]);
        // SAFETY: the iovec points at the arena's last four bytes.
        let rest = unsafe { std::slice::from_raw_parts(iovecs[0].iov_base.cast::<u8>(), 4) };
        assert_eq!(rest, b"cdef");
        let mut returned = 0;
        output.advance(104, |_| returned += 1);
        assert_eq!((returned, output.bytes, output.parts.len()), (1, 0, 0));
    }
}
