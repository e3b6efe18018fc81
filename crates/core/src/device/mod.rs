//! Service times of a device, as integers: the parts that the simulated device and the faulty store
//! have in common. Both get a time and return a time; neither has a clock.

mod cache;
mod head;

pub use cache::Cache;
pub use head::{Head, NEAR_BYTES};

/// A service time that is linear in the length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceTime {
    /// Base time of each request, in nanoseconds.
    pub base_ns: u64,
    /// Time of each 1,024 bytes, in nanoseconds.
    pub ns_per_kib: u64,
}

impl ServiceTime {
    /// Returns the nanoseconds for a request of `length` bytes.
    #[inline]
    #[must_use]
    pub fn ns(self, length: u32) -> u64 {
        self.base_ns + u64::from(length) * self.ns_per_kib / 1_024
    }
}

/// Memory of the device for writes. When it is full, writes are as fast as it empties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteCache {
    /// Its capacity in bytes.
    pub bytes: u64,
    /// Bytes per second that leave it; at least one.
    pub drain_bytes_per_second: u64,
}
