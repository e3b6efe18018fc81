//! Results of admission: usage and shortage of resources, and refusals.

use crate::convert::saturating;
use core::fmt;

use super::model::{PPM, REFERENCE_BYTES, VOLUMES_MAX};

/// A resource that is sold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Resource {
    /// Channel time of the device, in nanoseconds per second.
    DeviceTime,
    /// Bytes per second into the machine.
    NetworkIn,
    /// Bytes per second out of the machine.
    NetworkOut,
    /// Time of the machine's cores, in nanoseconds per second.
    Cpu,
}

impl Resource {
    /// All of them, in the order in which they are checked.
    pub const ALL: [Self; 4] = [Self::DeviceTime, Self::NetworkIn, Self::NetworkOut, Self::Cpu];

    const fn unit(self) -> &'static str {
        match self {
            Self::DeviceTime | Self::Cpu => "ns/s",
            Self::NetworkIn | Self::NetworkOut => "B/s",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeviceTime => "device time",
            Self::NetworkIn => "incoming network",
            Self::NetworkOut => "outgoing network",
            Self::Cpu => "CPU time",
        })
    }
}

/// Usage of a resource, and the amount that may be sold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The sum of the volumes' reservations, in the resource's unit.
    pub sold: u128,
    /// The part of the floor that may be sold; `None` is not limited.
    pub sellable: Option<u64>,
}

impl Usage {
    /// Returns the amount that may still be sold; `None` is not limited.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let sold = saturating(self.sold);
        self.sellable.map(|sellable| sellable.saturating_sub(sold))
    }

    /// Returns the amount that is sold beyond the limit.
    #[must_use]
    pub fn oversold_by(&self) -> u128 {
        self.sellable.map_or(0, |sellable| self.sold.saturating_sub(sellable.into()))
    }
}

/// The first resource that is not sufficient for a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The resource.
    pub resource: Resource,
    /// Amount that the volume would take of it, in the resource's unit.
    pub needed: u128,
    /// Amount that is left for it, including the volume's present amount.
    pub available: u64,
    /// `needed` - `available`.
    pub short_by: u128,
    /// The largest reservation of the same kind that would be admitted, in requests per second.
    pub per_second_max: u32,
    /// The length of those requests, in bytes.
    pub io_bytes: u32,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, needed, available, short_by, per_second_max, io_bytes } = self;
        let unit = resource.unit();
        write!(
            f,
            "not enough {resource}: the volume needs {needed} {unit}, {available} {unit} are left, \
             short by {short_by} {unit}; reserve at most {per_second_max} I/Os per second"
        )?;
        if *io_bytes != REFERENCE_BYTES {
            write!(f, " of {io_bytes} bytes")?;
        }
        Ok(())
    }
}

/// A reservation that the ledger cannot take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidReservation {
    /// More than all its requests are writes.
    MixTooLarge {
        /// Writes asked for, in parts per million.
        write_ppm: u32,
    },
    /// The ledger knows [`VOLUMES_MAX`] volumes already.
    TooManyVolumes,
}

impl fmt::Display for InvalidReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MixTooLarge { write_ppm } => {
                write!(f, "{write_ppm} of a million requests are writes: give at most {PPM}")
            }
            Self::TooManyVolumes => write!(
                f,
                "{VOLUMES_MAX} volumes are on the books, the most there may be: delete one first"
            ),
        }
    }
}

impl core::error::Error for InvalidReservation {}

/// Reason why a reservation is not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// A resource is not sufficient.
    Short(Shortage),
    /// The ledger cannot take it.
    Invalid(InvalidReservation),
}

impl From<InvalidReservation> for Refused {
    fn from(invalid: InvalidReservation) -> Self {
        Self::Invalid(invalid)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(shortage) => shortage.fmt(f),
            Self::Invalid(invalid) => invalid.fmt(f),
        }
    }
}

impl core::error::Error for Refused {}
