//! A device's write cache: writes are fast until it is full, then as fast as it empties.

use super::WriteCache;
use crate::convert::saturating;

/// A write cache with its fill level. Times are nanoseconds of the device's own time.
#[derive(Clone, Debug)]
pub struct Cache {
    /// `None` for a device without a cache: writes do not wait.
    setup: Option<WriteCache>,
    /// Bytes in it as of `at_ns`.
    bytes: u64,
    at_ns: u64,
}

impl Cache {
    /// Creates an empty cache.
    #[must_use]
    pub const fn new(setup: Option<WriteCache>) -> Self {
        Self { setup, bytes: 0, at_ns: 0 }
    }

    /// Adds a write of `length` bytes that begins at `now_ns`. Returns the nanoseconds that it
    /// waits for room, or, if it must be durable (`fua`), at least those until its own bytes have
    /// left.
    #[inline]
    pub fn wait_ns(&mut self, now_ns: u64, length: u32, fua: bool) -> u64 {
        let Some(WriteCache { bytes: holds, drain_bytes_per_second: drain }) = self.setup else {
            return 0;
        };
        if now_ns >= self.at_ns {
            let drained = scaled(now_ns - self.at_ns, drain, NS_PER_S);
            self.bytes = self.bytes.saturating_sub(drained);
            self.at_ns = now_ns;
        }
        let length = u64::from(length);
        self.bytes = self.bytes.saturating_add(length);
        let over = self.bytes.saturating_sub(holds);
        let leaves_first = if fua { over.max(length) } else { over };
        scaled(leaves_first, NS_PER_S, drain)
    }
}

const NS_PER_S: u64 = 1_000_000_000;

/// Returns `value * by / over`; saturates.
fn scaled(value: u64, by: u64, over: u64) -> u64 {
    let wide = u128::from(value) * u128::from(by) / u128::from(over.max(1));
    saturating(wide)
}
