//! The bytes of one connection: input that has arrived and is not consumed, payload on its way into
//! a request's memory, replies on their way out. It knows the socket and no protocol.
//!
//! A receive or a send that the driver has begun reads and writes memory of the transport. The
//! states of both directions say when.

use crate::driver::HangUp;
use crate::output::Output;
use crate::table::{RequestId, VolumeSlot};
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Maximum bytes of a receive: some 2,300 requests without payload, or 15 writes of 4 KiB.
const INPUT_BYTES: usize = 64 << 10;
/// Maximum bytes of a receive beyond the payload of a large write: room for the heads of the next
/// requests, and for little of their payload, which would have to be copied.
const INPUT_BYTES_BESIDE_LARGE_WRITES: usize = 4 << 10;
/// Payload size from which a copy costs more than a system call.
const LARGE_WRITE_BYTES: u32 = 16 << 10;

/// Payload of a request that is arriving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The request.
    pub handle: RequestId,
    /// Payload bytes of the request that have arrived.
    pub received: u32,
    /// Where the stretch ends, in bytes of the request's payload.
    pub total: u32,
}

impl Stretch {
    /// Returns whether all of it has arrived.
    #[inline]
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.received >= self.total
    }
}

/// The driver's use of arriving bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiving {
    /// Nothing.
    Idle,
    /// It writes into the input.
    ToInput,
    /// It writes into the buffers of the request whose payload is arriving, then into the input.
    ToPayload,
}

/// State of the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sending {
    /// No send is planned.
    Idle,
    /// The reactor sends in this turn.
    Listed,
    /// The driver reads the bytes.
    InDriver,
}

/// State of the client's end while nothing is received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OtherEnd {
    /// Not known: a receive was always in progress.
    Unwatched,
    /// The driver reports when the client disconnects.
    Watched,
    /// The client has disconnected.
    Gone(HangUp),
}

/// The transport of one connection; see the module's text.
pub struct Transport {
    fd: OwnedFd,
    /// State of the client's end while nothing is received.
    pub other_end: OtherEnd,
    receiving: Receiving,
    /// Received bytes; those from `start` to `end` are not consumed.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    payload: Option<Stretch>,
    /// Whether the last write was large.
    large_writes: bool,
    sending: Sending,
    /// Replies that are being collected.
    output: Output,
    /// Replies that are being sent.
    departing: Output,
    /// Time at which bytes were last received or sent.
    progress_at: Instant,
    send_iovecs: Vec<libc::iovec>,
    send_message: Box<libc::msghdr>,
    receive_iovecs: Vec<libc::iovec>,
    receive_message: Box<libc::msghdr>,
}

impl Transport {
    /// Creates the transport of a socket from which `arrived` has been received.
    ///
    /// # Panics
    /// If `arrived` is longer than a transport's input.
    #[must_use]
    pub fn new(fd: OwnedFd, arrived: &[u8], now: Instant) -> Self {
        // SAFETY: all zeroes is a valid empty msghdr.
        let message = || Box::new(unsafe { std::mem::zeroed::<libc::msghdr>() });
        let mut input = vec![0; INPUT_BYTES].into_boxed_slice();
        input[..arrived.len()].copy_from_slice(arrived);
        Self {
            fd,
            other_end: OtherEnd::Unwatched,
            receiving: Receiving::Idle,
            input,
            start: 0,
            end: arrived.len(),
            payload: None,
            large_writes: false,
            sending: Sending::Idle,
            output: Output::default(),
            departing: Output::default(),
            progress_at: now,
            send_iovecs: Vec::new(),
            send_message: message(),
            receive_iovecs: Vec::new(),
            receive_message: message(),
        }
    }

    /// Returns the socket.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Returns the socket's file descriptor.
    #[must_use]
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the socket of a quiet transport, and its bytes that have arrived and are not
    /// consumed.
    #[must_use]
    pub fn into_parts(self) -> (OwnedFd, Vec<u8>) {
        let pending = self.pending().to_vec();
        (self.fd, pending)
    }

    /// Returns whether no output is unsent, no payload is arriving, and the driver has no
    /// operation.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let sends = self.is_in_send() || self.has_unsent();
        let watched = self.other_end == OtherEnd::Watched;
        !(sends || self.is_receiving() || self.payload.is_some() || watched)
    }

    /// Returns whether the driver reads or writes memory of the transport.
    #[must_use]
    pub fn is_in_driver(&self) -> bool {
        self.is_receiving() || self.is_in_send()
    }

    /// Returns whether it waits for the client to fetch output or to send the rest of a payload,
    /// which may never happen.
    #[must_use]
    pub fn is_owed(&self) -> bool {
        self.is_in_send() || self.payload.as_ref().is_some_and(|payload| !payload.is_whole())
    }

    /// Returns when bytes were last received or sent.
    #[must_use]
    pub fn progress_at(&self) -> Instant {
        self.progress_at
    }
}

/// Receiving.
impl Transport {
    /// Returns the bytes that have arrived and are not consumed.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> &[u8] {
        &self.input[self.start..self.end]
    }

    /// Returns these bytes, and the replies that are being collected.
    pub fn pending_and_output(&mut self) -> (&[u8], &mut Output) {
        (&self.input[self.start..self.end], &mut self.output)
    }

    /// Removes the first `count` bytes of the input.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        debug_assert!(self.start + count <= self.end, "more than there is");
        self.start += count;
    }

    /// Returns whether the driver receives.
    #[inline]
    #[must_use]
    pub fn is_receiving(&self) -> bool {
        self.receiving != Receiving::Idle
    }

    /// Returns whether the driver may write into the buffers of the request whose payload is
    /// arriving.
    #[inline]
    #[must_use]
    pub fn is_receiving_payload(&self) -> bool {
        self.receiving == Receiving::ToPayload
    }

    /// Returns the payload that is arriving.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> Option<&Stretch> {
        self.payload.as_ref()
    }

    /// Expects payload as the next bytes.
    #[inline]
    pub fn expect_payload(&mut self, stretch: Stretch) {
        self.large_writes = stretch.total >= LARGE_WRITE_BYTES;
        self.payload = Some(stretch);
    }

    /// Ends the payload, whole or abandoned. Returns it.
    #[inline]
    pub fn end_payload(&mut self) -> Option<Stretch> {
        self.payload.take()
    }

    /// Copies the payload that has arrived to the request's `buffers` of a quantum each. Returns
    /// whether it is whole.
    #[inline]
    pub fn copy_payload(&mut self, buffers: &mut [Option<Buffer>]) -> bool {
        let Some(payload) = self.payload.as_mut() else { return false };
        while payload.received < payload.total && self.start < self.end {
            let quantum = payload.received / QUANTUM_BYTES_MAX;
            let from = payload.received % QUANTUM_BYTES_MAX;
            let room = (QUANTUM_BYTES_MAX - from).min(payload.total - payload.received) as usize;
            let count = room.min(self.end - self.start);
            if let Some(buffer) = buffers[quantum as usize].as_mut() {
                buffer.bytes_mut()[from as usize..][..count]
                    .copy_from_slice(&self.input[self.start..][..count]);
            }
            self.start += count;
            payload.received += count as u32;
        }
        payload.is_whole()
    }

    /// Returns the next message to receive into: first the rest of the payload, straight into its
    /// `buffers` of a quantum each, then the input. Returns `None` if there is no room or a receive
    /// is in progress. The message points into the transport and the buffers, whose memory must not
    /// be accessed until [`Transport::received`].
    pub fn next_receive(&mut self, buffers: &mut [Option<Buffer>]) -> Option<*mut libc::msghdr> {
        if self.is_receiving() {
            return None;
        }
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.receive_iovecs.clear();
        if let Some(payload) = &self.payload {
            let mut position = payload.received;
            while position < payload.total {
                let quantum = position / QUANTUM_BYTES_MAX;
                let from = position % QUANTUM_BYTES_MAX;
                let count = (QUANTUM_BYTES_MAX - from).min(payload.total - position);
                let Some(Some(buffer)) = buffers.get_mut(quantum as usize) else { return None };
                let room = &mut buffer.bytes_mut()[from as usize..][..count as usize];
                self.receive_iovecs.push(part(room));
                position += count;
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
        let to_payload = self.payload.is_some();
        self.receiving = if to_payload { Receiving::ToPayload } else { Receiving::ToInput };
        Some(&raw mut *self.receive_message)
    }

    /// Records that a receive ended with `count` bytes.
    pub fn received(&mut self, count: usize, now: Instant) {
        let was_payload = self.is_receiving_payload();
        self.receiving = Receiving::Idle;
        self.progress_at = now;
        let mut of_payload = 0;
        if was_payload && let Some(payload) = &mut self.payload {
            of_payload = count.min((payload.total - payload.received) as usize);
            payload.received += of_payload as u32;
        }
        self.end += count - of_payload;
    }
}

/// Sending.
impl Transport {
    /// Returns the replies that are being collected.
    #[inline]
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns whether replies are being collected.
    #[inline]
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    /// Returns whether output is unsent.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.has_output() || !self.departing.is_empty()
    }

    /// Returns the number of unsent bytes.
    #[inline]
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.output.bytes() + self.departing.bytes()
    }

    /// Returns the number of unsent bytes of reply heads.
    #[inline]
    #[must_use]
    pub fn unsent_head_bytes(&self) -> usize {
        self.output.head_bytes() + self.departing.head_bytes()
    }

    /// Returns whether the driver sends.
    #[inline]
    #[must_use]
    pub fn is_in_send(&self) -> bool {
        self.sending == Sending::InDriver
    }

    /// Records that the reactor will call [`Transport::next_send`]. Returns whether it has to list
    /// the connection for that.
    #[inline]
    pub fn list(&mut self) -> bool {
        let is_new = self.sending == Sending::Idle;
        if is_new {
            self.sending = Sending::Listed;
        }
        is_new
    }

    /// Records that the reactor calls [`Transport::next_send`] now.
    #[inline]
    pub fn unlist(&mut self) {
        if self.sending == Sending::Listed {
            self.sending = Sending::Idle;
        }
    }

    /// Returns the next message to send, or `None` if there is nothing to send or a send is in
    /// progress. It points into the transport, whose memory must not be changed until
    /// [`Transport::sent`].
    pub fn next_send(&mut self) -> Option<*const libc::msghdr> {
        if self.is_in_send() {
            return None;
        }
        if self.departing.is_empty() {
            std::mem::swap(&mut self.departing, &mut self.output);
        }
        if self.departing.is_empty() {
            return None;
        }
        self.departing.gather(&mut self.send_iovecs);
        self.send_message.msg_iov = self.send_iovecs.as_mut_ptr();
        self.send_message.msg_iovlen = self.send_iovecs.len();
        self.sending = Sending::InDriver;
        Some(&raw const *self.send_message)
    }

    /// Records that a send ended with `count` bytes. Passes the buffers that were sent to `done`,
    /// each with its volume's slot.
    pub fn sent(&mut self, count: usize, now: Instant, done: impl FnMut(VolumeSlot, Buffer)) {
        self.sending = Sending::Idle;
        self.progress_at = now;
        self.departing.advance(count, done);
    }

    /// Records that the socket takes no more.
    pub fn send_failed(&mut self) {
        self.sending = Sending::Idle;
    }

    /// Returns a copy of the unsent bytes.
    #[must_use]
    pub fn unsent(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.unsent_bytes());
        self.departing.copy_to(&mut bytes);
        self.output.copy_to(&mut bytes);
        bytes
    }

    /// Drops the unsent output. Passes its buffers to `done`, each with its volume's slot.
    pub fn abandon(&mut self, mut done: impl FnMut(VolumeSlot, Buffer)) {
        self.output.abandon(&mut done);
        self.departing.abandon(&mut done);
    }
}

fn part(memory: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn lengths(message: *mut libc::msghdr) -> Vec<usize> {
        // SAFETY: the transport under test keeps it valid.
        let parts =
            unsafe { std::slice::from_raw_parts((*message).msg_iov, (*message).msg_iovlen) };
        parts.iter().map(|part| part.iov_len).collect()
    }

    #[test]
    fn payload_of_a_large_write_goes_straight_to_its_buffers() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut transport = Transport::new(ours.into(), &[], Instant::from_ns(0));
        let total = QUANTUM_BYTES_MAX + 4_096;
        transport.expect_payload(Stretch { handle: RequestId::for_test(0), received: 100, total });
        let mut buffers = [Some(Buffer::new(QUANTUM_BYTES_MAX as usize)), Some(Buffer::new(4_096))];
        let quantum = QUANTUM_BYTES_MAX as usize;
        let message = transport.next_receive(&mut buffers).unwrap();
        assert_eq!(lengths(message), [quantum - 100, 4_096, INPUT_BYTES_BESIDE_LARGE_WRITES]);
        assert!(transport.is_receiving_payload());
        assert!(transport.next_receive(&mut buffers).is_none(), "one at a time");
        transport.received(quantum - 50, Instant::from_ns(1));
        assert_eq!(transport.payload().unwrap().received, QUANTUM_BYTES_MAX + 50);
        assert_eq!(transport.pending().len(), 0);
        let message = transport.next_receive(&mut buffers).unwrap();
        assert_eq!(lengths(message), [4_046, INPUT_BYTES_BESIDE_LARGE_WRITES]);
        transport.received(4_046 + 28, Instant::from_ns(2));
        assert_eq!(transport.payload().unwrap().received, total);
        assert!(transport.payload().unwrap().is_whole());
        assert_eq!(transport.pending().len(), 28);
    }

    #[test]
    fn output_is_listed_once_and_unchanged_while_the_driver_reads_it() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut transport = Transport::new(ours.into(), b"early", Instant::from_ns(0));
        assert_eq!(transport.pending(), b"early");
        transport.output().head(b"0123456789");
        assert!(transport.list() && !transport.list());
        transport.unlist();
        assert!(transport.next_send().is_some());
        transport.output().head(b"later");
        assert!(!transport.list() && transport.next_send().is_none());
        assert!(transport.is_owed() && !transport.is_quiet());
        transport.sent(10, Instant::from_ns(1), |_, _| panic!("no payload was sent"));
        assert!(transport.next_send().is_some());
        assert_eq!(transport.unsent_bytes(), 5);
        transport.sent(5, Instant::from_ns(2), |_, _| panic!("no payload was sent"));
        assert!(transport.is_quiet() && transport.next_send().is_none());
    }
}
