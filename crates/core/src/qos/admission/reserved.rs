//! A volume's reservation in both of its dimensions, and its conversion for admission.

use super::model::{Oversell, PPM, Reservation};
use crate::convert::saturating;

/// I/Os and bytes per second that are reserved for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Reserved {
    /// I/Os per second.
    pub operations_per_second: u32,
    /// Bytes per second.
    pub bytes_per_second: u64,
}

impl Reserved {
    /// No reservation: best effort.
    pub const NOTHING: Self = Self { operations_per_second: 0, bytes_per_second: 0 };

    /// Returns the larger amount of both in each dimension: the reservation during a change from
    /// one to the other.
    #[must_use]
    pub fn either(self, other: Self) -> Self {
        Self {
            operations_per_second: self.operations_per_second.max(other.operations_per_second),
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
        }
    }

    /// Returns the length of each I/O in bytes if all have an equal part of the bytes, rounded up.
    #[must_use]
    pub fn io_bytes(self) -> u32 {
        match u64::from(self.operations_per_second) {
            0 => 0,
            some => saturating(self.bytes_per_second.div_ceil(some)),
        }
    }

    /// Converts it for admission, half of it writes: all I/Os, each with an equal part of the
    /// bytes. Costs are linear in the length, so this costs the most of all that the volume may do
    /// within both of its limits.
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
