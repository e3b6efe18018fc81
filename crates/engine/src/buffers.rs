//! The bounded pool of payload memory of one core. Returned buffers are kept, so that nothing is
//! allocated per I/O in the steady state. Buffers in use and kept buffers never exceed the bound
//! together.

use evenkeel_core::limits::{QUANTUM_BYTES_MAX, REQUEST_BYTES_MAX};
use evenkeel_store::buffer::Buffer;

/// Sizes of buffers. A request gets the smallest that holds it: four classes waste at most three
/// quarters of a buffer and usually nothing, since clients ask for powers of two.
const CLASS_BYTES: [usize; 4] = [4 << 10, 16 << 10, 64 << 10, QUANTUM_BYTES_MAX as usize];

/// Freed bytes from which the allocator is asked to return pages to the system, which takes a
/// moment.
const TRIM_BYTES_MIN: usize = 16 << 20;

const _: () = assert!(CLASS_BYTES[3] == 256 << 10);

/// The longest requests of each line but the last, in bytes.
const LINE_BYTES: [u32; LINES - 1] = [QUANTUM_BYTES_MAX, 4 << 20];

/// Lines in which requests wait for memory, by their size: small requests do not wait behind large
/// ones.
pub const LINES: usize = 3;

/// Returns the line in which a request of `bytes` waits.
#[must_use]
pub fn line_of(bytes: u32) -> usize {
    LINE_BYTES.iter().filter(|most| bytes > **most).count()
}

/// Memory that the volume and the connection of a request hold, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Held by the volume.
    pub by_volume: usize,
    /// Held by the connection.
    pub by_connection: usize,
}

/// The limit that a request for memory has reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacking {
    /// The volume's, or the core's; or the connection holds nothing.
    Volume,
    /// The connection's: other connections of the volume may get memory.
    Connection,
}

/// Payload memory of one core.
#[derive(Debug)]
pub struct BufferPool {
    free: [Vec<Buffer>; CLASS_BYTES.len()],
    /// Bytes of all buffers, in use and kept.
    bytes: usize,
    bytes_max: usize,
    /// Bytes of buffers in use.
    in_use: usize,
    gave_back: u64,
    /// For each class, the kept buffers that were not used since the last trim.
    unneeded: [usize; CLASS_BYTES.len()],
}

impl BufferPool {
    /// Creates a pool of at most `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            free: Default::default(),
            bytes: 0,
            bytes_max,
            in_use: 0,
            gave_back: 0,
            unneeded: [0; CLASS_BYTES.len()],
        }
    }

    /// Takes a buffer of at least `length` bytes (at most one quantum); `None` while the bound is
    /// reached. It still has the bytes of its last use: fill it before it is read.
    ///
    /// # Panics
    /// If `length` is more than a quantum, which the scheduler never dispatches.
    pub fn take(&mut self, length: u32) -> Option<Buffer> {
        let class = class_of(length as usize);
        if let Some(buffer) = self.free[class].pop() {
            self.unneeded[class] = self.unneeded[class].min(self.free[class].len());
            self.in_use += buffer.capacity();
            self.check();
            return Some(buffer);
        }
        self.unneeded[class] = 0;
        let bytes = CLASS_BYTES[class];
        while self.bytes + bytes > self.bytes_max {
            self.bytes -= self.drop_one_kept()?;
        }
        self.bytes += bytes;
        self.in_use += bytes;
        self.check();
        Some(Buffer::new(bytes))
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Buffer) {
        let class = class_of(buffer.capacity());
        debug_assert_eq!(buffer.capacity(), CLASS_BYTES[class], "a buffer of another pool");
        self.gave_back += 1;
        self.in_use -= buffer.capacity();
        self.free[class].push(buffer);
        self.check();
    }

    /// Returns how many buffers have come back since the beginning. A caller that found the pool
    /// exhausted need not try again before this changes.
    #[must_use]
    pub fn gave_back(&self) -> u64 {
        self.gave_back
    }

    /// Frees the kept buffers that were not used since the last call. Called once a second, it
    /// returns an idle server's memory.
    pub fn trim(&mut self) {
        let before = self.bytes;
        for (free, unneeded) in self.free.iter_mut().zip(&mut self.unneeded) {
            let kept = free.len() - (*unneeded).min(free.len());
            self.bytes -= free.drain(kept..).map(|buffer| buffer.capacity()).sum::<usize>();
            *unneeded = free.len();
        }
        if cfg!(debug_assertions) {
            self.invariants();
        }
        if before - self.bytes >= TRIM_BYTES_MIN {
            // SAFETY: it only makes the allocator give free pages back to the system.
            unsafe { libc::malloc_trim(0) };
        }
    }

    /// Returns whether the pool has no buffer, neither in use nor kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes of buffers in use.
    #[must_use]
    pub fn bytes_in_use(&self) -> usize {
        self.in_use
    }

    /// Returns whether a request of `bytes` can have all its buffers.
    ///
    /// # Errors
    /// The limit that the request would exceed.
    pub fn room_for(&self, bytes: u32, held: Held) -> Result<(), Lacking> {
        let quantum = QUANTUM_BYTES_MAX as usize;
        let whole = bytes as usize / quantum;
        let rest = bytes as usize % quantum;
        let last = if rest > 0 { CLASS_BYTES[class_of(rest)] } else { 0 };
        // A volume may hold as much as it leaves free.
        let taken = self.in_use + held.by_volume + whole * quantum + last;
        let largest = REQUEST_BYTES_MAX as usize + self.kept_from(REQUEST_BYTES_MAX);
        if held.by_connection > 0 && taken + held.by_connection + largest > self.bytes_max {
            return Err(Lacking::Connection);
        }
        if taken + self.kept_from(bytes) > self.bytes_max {
            return Err(Lacking::Volume);
        }
        Ok(())
    }

    /// Returns the bytes of memory that a request of `bytes` leaves to smaller ones. So a few large
    /// replies that their clients do not fetch do not stop smaller requests.
    fn kept_from(&self, bytes: u32) -> usize {
        line_of(bytes) * self.bytes_max / 8
    }

    /// Asserts that the sums are those of the buffers, that all buffers have the size of their
    /// class, and that the bound holds.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants(&self) {
        self.check_sums();
        for (free, bytes) in self.free.iter().zip(CLASS_BYTES) {
            let is_one = |buffer: &Buffer| buffer.capacity() == bytes;
            assert!(free.iter().all(is_one), "a buffer of another size among those of {bytes}");
        }
    }

    /// Asserts the sums and the bound, without the size of each buffer.
    fn check_sums(&self) {
        let kept = self.free.iter().zip(CLASS_BYTES).map(|(free, bytes)| free.len() * bytes);
        let kept = kept.sum::<usize>();
        assert_eq!(self.bytes, self.in_use + kept, "bytes in all, and handed out and kept");
        let most = self.bytes_max;
        assert!(self.bytes <= most, "{} bytes of payload memory, {most} at most", self.bytes);
    }

    /// Checks the sums after each change, in debug builds. [`Self::trim`] checks each buffer.
    fn check(&self) {
        if cfg!(debug_assertions) {
            self.check_sums();
        }
    }

    /// Frees one kept buffer to make room. Returns its bytes.
    fn drop_one_kept(&mut self) -> Option<usize> {
        self.free.iter_mut().rev().find_map(Vec::pop).map(|buffer| buffer.capacity())
    }
}

fn class_of(bytes: usize) -> usize {
    match CLASS_BYTES.iter().position(|&class| bytes <= class) {
        Some(class) => class,
        None => panic!("a buffer of {bytes} bytes is larger than a quantum"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_used_again() {
        let mut pool = BufferPool::new(1 << 20);
        let first = pool.take(4_096).unwrap();
        let memory = first.as_ptr();
        pool.give(first);
        assert_eq!(pool.take(512).unwrap().as_ptr(), memory);
    }

    #[test]
    fn unneeded_buffers_are_freed() {
        let mut pool = BufferPool::new(1 << 20);
        let burst: Vec<Buffer> = (0..20).filter_map(|_| pool.take(4_096)).collect();
        burst.into_iter().for_each(|buffer| pool.give(buffer));
        pool.trim();
        assert_eq!(pool.free[0].len(), 20, "all were needed since the beginning");
        let few: Vec<Buffer> = (0..3).filter_map(|_| pool.take(4_096)).collect();
        few.into_iter().for_each(|buffer| pool.give(buffer));
        pool.trim();
        assert_eq!((pool.free[0].len(), pool.bytes), (3, 3 * 4_096));
        pool.invariants();
        pool.trim();
        assert!(pool.is_empty());
    }

    #[test]
    fn the_bound_holds_and_kept_buffers_make_room() {
        let mut pool = BufferPool::new(512 << 10);
        let large = [pool.take(256 << 10).unwrap(), pool.take(200 << 10).unwrap()];
        assert_eq!(pool.bytes_in_use(), 512 << 10);
        assert!(pool.take(1).is_none());
        large.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(pool.bytes_in_use(), 0);
        let small: Vec<Buffer> = std::iter::from_fn(|| pool.take(16 << 10)).collect();
        assert_eq!(small.len(), 32);
        pool.invariants();
        assert_eq!(pool.bytes_in_use(), 512 << 10);
    }
}
