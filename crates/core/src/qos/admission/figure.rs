//! Floors that are stated instead of measured, and floors in other units than channel time.

use crate::convert::{exact, saturating};
use core::fmt;
use core::ops::RangeInclusive;

use super::model::{Costs, DeviceFloor, LinearCost, PPM, REFERENCE_BYTES};
use crate::time::Duration;

/// Capacity that an operator states for sale: a number of I/Os, or a number of bytes, of which all
/// may be sold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Figure {
    operations_per_second: u32,
    mibps: u32,
}

/// No device with costs that are linear in the length delivers both numbers of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FigureDisagrees {
    /// I/Os of 16 KiB per second.
    pub operations_per_second: u32,
    /// MiB per second.
    pub mibps: u32,
}

impl fmt::Display for FigureDisagrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations_per_second: operations, mibps } = self;
        write!(f, "{operations} IOPS of 16 KiB and {mibps} MiB/s do not go together: ")?;
        let range = mibps_range(*operations);
        if range.is_empty() || *operations == 0 {
            return f.write_str("give at least 2 IOPS");
        }
        write!(f, "give {} to {} MiB/s with these IOPS", range.start(), range.end())
    }
}

impl core::error::Error for FigureDisagrees {}

/// Returns the MiB per second that are consistent with this number of I/Os: at least their bytes at
/// 16 KiB each, at most a MiB for every two of them.
const fn mibps_range(operations_per_second: u32) -> RangeInclusive<u32> {
    const REFERENCES_PER_MIB: u32 = (1 << 20) / REFERENCE_BYTES;
    operations_per_second.div_ceil(REFERENCES_PER_MIB)..=operations_per_second / 2
}

/// Time of a byte at a figure's device: long enough that whole nanoseconds are precise for the rest
/// of a request.
const BYTE: LinearCost = LinearCost { base: Duration::ZERO, byte_ps: 1_000_000 };

impl Figure {
    /// Creates the figure of a device that delivers either `operations_per_second` I/Os of 16 KiB,
    /// or `mibps` I/Os of 1 MiB, or any mix of both.
    ///
    /// # Errors
    ///
    /// If the MiB are fewer than the I/Os' bytes, or more than half as many as the I/Os.
    pub fn new(operations_per_second: u32, mibps: u32) -> Result<Self, FigureDisagrees> {
        if operations_per_second > 0 && mibps_range(operations_per_second).contains(&mibps) {
            Ok(Self { operations_per_second, mibps })
        } else {
            Err(FigureDisagrees { operations_per_second, mibps })
        }
    }

    /// Returns the I/Os of 16 KiB per second.
    #[must_use]
    pub const fn operations_per_second(self) -> u32 {
        self.operations_per_second
    }

    /// Returns the MiB per second, in I/Os of 1 MiB.
    #[must_use]
    pub const fn mibps(self) -> u32 {
        self.mibps
    }

    /// Returns a device that delivers exactly that, and not one I/O more.
    #[must_use]
    pub fn floor(self) -> DeviceFloor {
        let small = u128::from(self.operations_per_second);
        let large = u128::from(self.mibps);
        // The time of a request beside its bytes, so that `small` of 16 KiB take as long as `large`
        // of 1 MiB. There are at least twice as many of the former, so it is below 2^32 ns.
        let spare = large * BYTE.ns(1 << 20) - small * BYTE.ns(REFERENCE_BYTES);
        let base = exact(spare / (small - large), "below 2^32 ns");
        let cost = LinearCost { base: Duration::from_ns(base), ..BYTE };
        let time = (small * cost.ns(REFERENCE_BYTES)).max(large * cost.ns(1 << 20));
        DeviceFloor {
            time_ns_per_second: saturating(time),
            costs: Costs { read: cost, write: cost },
        }
    }
}

impl DeviceFloor {
    /// Returns a device that delivers `ppm` millionths of this one, at most all of it.
    #[must_use]
    pub fn part(self, ppm: u32) -> Self {
        let time = u128::from(self.time_ns_per_second);
        let ppm = u128::from(ppm.min(PPM));
        let part = time * ppm / u128::from(PPM);
        Self { time_ns_per_second: exact(part, "at most the whole"), ..self }
    }

    /// Returns the I/Os of 16 KiB per second, half of them writes, in `ppm` millionths of it.
    #[must_use]
    pub fn for_sale(self, ppm: u32) -> u64 {
        self.reference_operations(self.part(ppm).time_ns_per_second.into())
    }

    /// Returns the I/Os of 16 KiB, half of them writes, in `ns` of channel time: rounded down.
    /// Returns the maximum if they take no time at all.
    #[must_use]
    pub fn reference_operations(&self, ns: u128) -> u64 {
        let twice = ns.saturating_mul(2);
        let pair = self.reference_pair_ns();
        saturating(twice.checked_div(pair).unwrap_or(u128::MAX))
    }

    /// Returns these I/Os rounded up; 0 if they take no time at all.
    #[must_use]
    pub fn reference_operations_up(&self, ns: u128) -> u64 {
        let twice = ns.saturating_mul(2);
        let pair = self.reference_pair_ns();
        let up = if pair == 0 { 0 } else { twice.div_ceil(pair) };
        saturating(up)
    }

    /// Returns the channel time of a 16 KiB read and a 16 KiB write.
    fn reference_pair_ns(&self) -> u128 {
        self.costs.read.ns(REFERENCE_BYTES) + self.costs.write.ns(REFERENCE_BYTES)
    }
}
