//! What a device takes for a request, as integers: the parts that the simulated device and the
//! faulty store have in common. Both are given a time and return a time; neither owns a clock.

mod cache;
mod head;

pub use cache::Cache;
pub use head::{Head, NEAR_BYTES};

/// A time that grows with the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceTime {
    /// For any request, in nanoseconds.
    pub base_ns: u64,
    /// For each 1,024 bytes, in nanoseconds.
    pub ns_per_kib: u64,
}

impl ServiceTime {
    /// Nanoseconds for a request of `length` bytes.
    #[inline]
    #[must_use]
    pub fn ns(self, length: u32) -> u64 {
        self.base_ns + u64::from(length) * self.ns_per_kib / 1_024
    }
}

/// Memory of the device that takes writes until it is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteCache {
    /// Bytes it holds.
    pub bytes: u64,
    /// Bytes per second that leave it; at least one.
    pub drain_bytes_per_second: u64,
}
