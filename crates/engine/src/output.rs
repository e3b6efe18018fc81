//! Replies on their way to one client: many heads and payloads, sent with one system call.

use crate::table::VolumeSlot;
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_store::buffer::Buffer;

/// Maximum number of memory pieces in one send.
const PARTS_MAX: usize = 512;
/// Maximum bytes of one send, unless a single payload is larger. The end of a send is the only
/// evidence that a client reads, so each must be small enough for a slow network.
const SEND_BYTES_MAX: usize = 4 << 20;

/// Memory for heads that is kept between bursts.
const KEPT_HEAD_BYTES: usize = 64 << 10;

/// A piece of the output.
enum Part {
    /// Bytes of the arena: reply heads.
    Head(usize, usize),
    /// Payload of a read, and the slot of the volume whose memory it is in.
    Payload { buffer: Buffer, length: u32, volume: VolumeSlot },
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

impl Output {
    /// Returns the number of unsent bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the bytes of heads since the output was last empty.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Returns whether the output is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

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

    /// Appends the first `length` bytes of a read of the volume in this slot. The `buffers` hold a
    /// quantum each.
    #[inline]
    pub fn payloads(&mut self, volume: VolumeSlot, buffers: &mut Vec<Option<Buffer>>, length: u32) {
        let mut left = length;
        for buffer in buffers.drain(..).flatten() {
            let length = left.min(QUANTUM_BYTES_MAX);
            left -= length;
            self.bytes += length as usize;
            self.parts.push(Part::Payload { buffer, length, volume });
        }
    }

    /// Records that `count` bytes have left. Passes the buffers that were sent to `done`, each with
    /// its volume's slot.
    pub fn advance(&mut self, count: usize, mut done: impl FnMut(VolumeSlot, Buffer)) {
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
            if let Part::Payload { buffer, volume, .. } = part {
                done(volume, buffer);
            }
        }
        if self.parts.is_empty() {
            self.arena.clear();
            self.arena.shrink_to(KEPT_HEAD_BYTES);
        }
    }

    /// Appends a copy of all unsent bytes to `bytes`.
    pub fn copy_to(&self, bytes: &mut Vec<u8>) {
        let mut skip = self.sent;
        for part in &self.parts {
            let memory = match part {
                Part::Head(start, end) => &self.arena[*start..*end],
                Part::Payload { buffer, length, .. } => &buffer.bytes()[..*length as usize],
            };
            bytes.extend_from_slice(&memory[std::mem::take(&mut skip)..]);
        }
    }

    /// Drops the output. Passes its buffers to `done`, each with its volume's slot.
    pub fn abandon(&mut self, mut done: impl FnMut(VolumeSlot, Buffer)) {
        for part in self.parts.drain(..) {
            if let Part::Payload { buffer, volume, .. } = part {
                done(volume, buffer);
            }
        }
        self.arena.clear();
        (self.sent, self.bytes) = (0, 0);
    }

    /// Fills `iovecs` with the memory to send next.
    pub fn gather(&self, iovecs: &mut Vec<libc::iovec>) {
        iovecs.clear();
        let mut skip = self.sent;
        let mut bytes = 0;
        for part in self.parts.iter().take(PARTS_MAX) {
            let (memory, length) = match part {
                Part::Head(start, end) => (self.arena[*start..].as_ptr().cast_mut(), end - start),
                Part::Payload { buffer, length, .. } => (buffer.as_ptr(), *length as usize),
            };
            // Only the first part can have left in part.
            let from = std::mem::take(&mut skip);
            let iov_base = memory.wrapping_add(from).cast();
            let iov_len = length - from;
            bytes += iov_len;
            if bytes > SEND_BYTES_MAX && !iovecs.is_empty() {
                break;
            }
            iovecs.push(libc::iovec { iov_base, iov_len });
        }
    }
}

impl Part {
    fn length(&self) -> usize {
        match self {
            Self::Head(start, end) => end - start,
            Self::Payload { length, .. } => *length as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_joined_and_short_sends_resume_where_they_stopped() {
        let mut output = Output::default();
        output.head(b"0123456789");
        output.head(b"abcdef");
        let volume = VolumeSlot::for_test(7);
        output.payloads(volume, &mut vec![Some(Buffer::new(4_096))], 100);
        assert_eq!(output.parts.len(), 2);
        let mut iovecs = Vec::new();
        output.advance(12, |_, _| panic!("nothing is done yet"));
        output.gather(&mut iovecs);
        assert_eq!(iovecs.iter().map(|v| v.iov_len).collect::<Vec<_>>(), [4, 100]);
        // SAFETY: the iovec points at the arena's last four bytes.
        let rest = unsafe { std::slice::from_raw_parts(iovecs[0].iov_base.cast::<u8>(), 4) };
        assert_eq!(rest, b"cdef");
        let mut copy = Vec::new();
        output.copy_to(&mut copy);
        assert_eq!((&copy[..4], copy.len()), (&b"cdef"[..], 104));
        let mut returned = Vec::new();
        output.advance(104, |volume, _| returned.push(volume));
        assert_eq!((returned, output.bytes, output.parts.len()), (vec![volume], 0, 0));
    }
}
