//! Reading and writing big-endian fields, without panics and without `as`.

use alloc::vec::Vec;

/// Reads fields from the front of a slice; returns `None` if the slice is too short.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*field)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn take(&mut self, length: u32) -> Option<&'a [u8]> {
        let (field, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(field)
    }

    /// The bytes not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// The field at a constant offset of a fixed array; the compiler checks the bounds.
pub(super) const fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// See [`u16_at`].
pub(super) const fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// See [`u16_at`].
pub(super) const fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let b = bytes;
    u64::from_be_bytes([
        b[at],
        b[at + 1],
        b[at + 2],
        b[at + 3],
        b[at + 4],
        b[at + 5],
        b[at + 6],
        b[at + 7],
    ])
}

/// A message of exactly `N` bytes, written field by field in wire order.
pub(super) struct Packed<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Packed<N> {
    #[inline]
    pub(super) const fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    #[inline]
    pub(super) fn bytes(mut self, field: &[u8]) -> Self {
        let end = self.at + field.len();
        self.bytes[self.at..end].copy_from_slice(field);
        self.at = end;
        self
    }

    #[inline]
    pub(super) fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    #[inline]
    pub(super) fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    #[inline]
    pub(super) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_be_bytes())
    }

    #[inline]
    pub(super) fn finish(self) -> [u8; N] {
        debug_assert!(self.at == N, "a message of {N} bytes was given {}", self.at);
        self.bytes
    }
}

/// Collects one piece of known size from input that arrives in arbitrary parts. Memory grows with
/// the received bytes, not with the announced size.
#[derive(Debug)]
pub(super) struct Collector {
    bytes: Vec<u8>,
    needed: usize,
}

impl Collector {
    pub(super) fn new(needed: usize) -> Self {
        Self { bytes: Vec::new(), needed }
    }

    /// Takes the missing bytes from the front of `input` and returns their number.
    pub(super) fn fill(&mut self, input: &[u8]) -> usize {
        let lacking = self.needed - self.bytes.len();
        let taken = input.get(..lacking).unwrap_or(input);
        self.bytes.extend_from_slice(taken);
        taken.len()
    }

    /// Returns the piece once it is complete. The collector then expects `next` bytes.
    pub(super) fn take_whole(&mut self) -> Option<Vec<u8>> {
        (self.bytes.len() == self.needed).then(|| core::mem::take(&mut self.bytes))
    }

    /// Starts a new piece of `needed` bytes.
    pub(super) fn expect(&mut self, needed: usize) {
        self.bytes.clear();
        self.needed = needed;
    }

    /// The number of bytes held.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_stops_at_the_end_and_keeps_unread_bytes() {
        let mut cursor = Cursor::new(&[0, 1, 0, 0, 0, 2, 9]);
        assert_eq!(cursor.u16(), Some(1));
        assert_eq!(cursor.u32(), Some(2));
        assert_eq!(cursor.u16(), None);
        assert_eq!(cursor.take(2), None);
        assert_eq!(cursor.take(u32::MAX), None);
        assert_eq!(cursor.rest(), &[9]);
    }

    #[test]
    fn collector_takes_no_more_than_it_lacks() {
        let mut collector = Collector::new(3);
        assert_eq!(collector.fill(&[1, 2]), 2);
        assert_eq!(collector.take_whole(), None);
        assert_eq!(collector.fill(&[3, 4, 5]), 1);
        assert_eq!(collector.take_whole().as_deref(), Some(&[1, 2, 3][..]));
        collector.expect(0);
        assert_eq!(collector.fill(&[4]), 0);
        assert_eq!(collector.take_whole().as_deref(), Some(&[][..]));
    }
}
