//! Complete replies that wait to be sent to a client, and their share of the connection's memory.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Size of the pieces in which replies are collected. A longer reply is a piece of its own.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Piece {
    bytes: Vec<u8>,
    charge: u64,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent.
    sent: usize,
    bytes: usize,
    charges: u64,
    /// A sent piece whose memory is used again.
    spare: Vec<u8>,
}

impl Outbox {
    /// Returns the number of bytes that are not sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the sum of the replies' charges.
    #[must_use]
    pub fn charges(&self) -> u64 {
        self.charges
    }

    /// Appends a reply that consists of parts.
    pub fn push(&mut self, parts: &[&[u8]], charge: u64) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let has_room = |piece: &Piece| piece.bytes.len() + length <= PIECE_BYTES;
        if !self.pieces.back().is_some_and(has_room) {
            let bytes = std::mem::take(&mut self.spare);
            self.pieces.push_back(Piece { bytes, charge: 0 });
        }
        if let Some(piece) = self.pieces.back_mut() {
            parts.iter().for_each(|part| piece.bytes.extend_from_slice(part));
            piece.charge += charge;
        }
        self.count(length, charge);
    }

    /// Appends a reply that is in one piece.
    pub fn push_whole(&mut self, reply: Vec<u8>, charge: u64) {
        if reply.len() < PIECE_BYTES / 4 {
            return self.push(&[&reply], charge);
        }
        self.count(reply.len(), charge);
        self.pieces.push_back(Piece { bytes: reply, charge });
    }

    fn count(&mut self, bytes: usize, charge: u64) {
        self.bytes += bytes;
        self.charges += charge;
    }

    /// Fills `slices` with the next bytes to send. Returns the number of slices filled.
    pub fn to_send<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            let from = if count == 0 { self.sent } else { 0 };
            *slice = IoSlice::new(piece.bytes.get(from..).unwrap_or_default());
            count += 1;
        }
        count
    }

    /// Removes the first `bytes`, which were sent. Returns the charges that this releases: those of
    /// pieces that are sent completely.
    pub fn sent(&mut self, bytes: usize) -> u64 {
        self.bytes -= bytes;
        self.sent += bytes;
        let mut released = 0;
        while self.pieces.front().is_some_and(|piece| self.sent >= piece.bytes.len())
            && let Some(mut piece) = self.pieces.pop_front()
        {
            self.sent -= piece.bytes.len();
            released += piece.charge;
            if self.spare.capacity() == 0 && piece.bytes.capacity() <= 2 * PIECE_BYTES {
                piece.bytes.clear();
                self.spare = piece.bytes;
            }
        }
        self.charges -= released;
        released
    }

    /// Discards all replies, since the client will not read them. Returns their charges.
    pub fn clear(&mut self) -> u64 {
        let charges = self.charges;
        *self = Self::default();
        charges
    }
}
