//! What a volume reserves in both of its dimensions, as the one request that admission counts in.

use super::model::{Oversell, PPM, Reservation};

/// What a volume is to be sure of: so many I/Os and so many bytes in every second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// I/Os per second.
    pub operations_per_second: u32,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

impl Reserved {
    /// Best effort.
    pub const NOTHING: Self = Self { operations_per_second: 0, bytes_per_second: 0 };

    /// As much as either of both, in each dimension: what must be there while a change from one to
    /// the other is under way.
    #[must_use]
    pub fn either(self, other: Self) -> Self {
        Self {
            operations_per_second: self.operations_per_second.max(other.operations_per_second),
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
        }
    }

    /// Bytes of each I/O if all are made and each is of an equal part of the bytes, rounded up.
    #[must_use]
    pub fn io_bytes(self) -> u32 {
        match u64::from(self.operations_per_second) {
            0 => 0,
            some => u32::try_from(self.bytes_per_second.div_ceil(some)).unwrap_or(u32::MAX),
        }
    }

    /// The same as a reservation, half of it writes: all I/Os, each of an equal part of the bytes.
    /// Costs are linear in the length, so of all that a volume may do within both of its limits
    /// this takes the most.
    #[must_use]
    pub fn reservation(self, oversell: Oversell) -> Reservation {
        Reservation {
            per_second: self.operations_per_second,
            io_bytes: self.io_bytes(),
            write_ppm: PPM / 2,
            oversell,
        }
    }
}
