//! Volume types: the valid requests for each, the resulting volume, and its limits. Read from dated
//! data, because the rules of 2012 must be as available as today's.
//!
//! The numbers live in `data/limits/<date>.toml`; `build.rs` checks them and turns them into the
//! tables here. Start with [`Rules::as_of`], then [`Rules::resolve`] and [`Rules::pacing`].

mod date;
mod error;
mod pacing;
mod reserved;
mod resolve;
mod rules;

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod modify_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod vector_tests;

pub use date::{Date, MalformedDate};
pub use error::{FrozenProperty, InvalidSpec};
pub use rules::{
    Axis, Consistency, Durability, IopsRule, LimitErrors, Measure, ModifyPolicy, ModifyRules,
    MultiAttach, NoRules, Piece, PieceRate, Promise, Ratio, Reservation, Rules, ThroughputRule,
    TypeRules,
};

use core::fmt;
use core::str::FromStr;

/// EBS's volume types.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum VolumeType {
    /// Magnetic disk of the first generation; best effort.
    Standard,
    /// Throughput-optimised disk, bursts on byte credits.
    St1,
    /// Cold disk, bursts on byte credits.
    Sc1,
    /// General purpose SSD whose IOPS follow its size, bursts on I/O credits.
    Gp2,
    /// General purpose SSD with IOPS and throughput bought apart from size.
    Gp3,
    /// Provisioned IOPS SSD.
    Io1,
    /// Provisioned IOPS SSD, second generation ("Block Express" since 2023-11).
    Io2,
}

impl VolumeType {
    /// Every type, oldest technology first.
    pub const ALL: [Self; 7] =
        [Self::Standard, Self::St1, Self::Sc1, Self::Gp2, Self::Gp3, Self::Io1, Self::Io2];

    /// Returns the name that the API uses.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::St1 => "st1",
            Self::Sc1 => "sc1",
            Self::Gp2 => "gp2",
            Self::Gp3 => "gp3",
            Self::Io1 => "io1",
            Self::Io2 => "io2",
        }
    }
}

impl fmt::Display for VolumeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A text names no volume type. The caller quotes the text with its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownVolumeType;

impl fmt::Display for UnknownVolumeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected standard, st1, sc1, gp2, gp3, io1 or io2")
    }
}

impl FromStr for VolumeType {
    type Err = UnknownVolumeType;

    fn from_str(text: &str) -> Result<Self, UnknownVolumeType> {
        Self::ALL.into_iter().find(|t| t.name() == text).ok_or(UnknownVolumeType)
    }
}

/// Request for CreateVolume. `None` leaves the choice to the type's default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeRequest {
    /// The type.
    pub volume_type: VolumeType,
    /// Size in GiB.
    pub size_gib: u32,
    /// IOPS to provision; only for types that sell them.
    pub iops: Option<u32>,
    /// Throughput to provision in MiB/s; only for types that sell it.
    pub throughput_mibps: Option<u32>,
    /// Whether several instances may attach the volume at once.
    pub multi_attach: bool,
}

/// Request for ModifyVolume. `None` leaves a property to the rules of [`Rules::modify`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeChange {
    /// The new type.
    pub volume_type: Option<VolumeType>,
    /// The new size in GiB.
    pub size_gib: Option<u32>,
    /// The new provisioned IOPS.
    pub iops: Option<u32>,
    /// The new provisioned throughput in MiB/s.
    pub throughput_mibps: Option<u32>,
    /// Whether several instances may attach the volume at once.
    pub multi_attach: Option<bool>,
}

/// A valid volume, with the defaults filled in, as in DescribeVolumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// The type.
    pub volume_type: VolumeType,
    /// Size in GiB.
    pub size_gib: u32,
    /// Provisioned IOPS (gp3, io1, io2) or baseline IOPS (gp2); `None` on types that promise none.
    pub iops: Option<u32>,
    /// Provisioned throughput in MiB/s (gp3 only).
    pub throughput_mibps: Option<u32>,
    /// Whether several instances may attach the volume at once.
    pub multi_attach: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn type_names_survive_a_round_trip() {
        for t in VolumeType::ALL {
            assert_eq!(t.to_string().parse(), Ok(t));
        }
        for text in ["", "gp4", "GP3", " gp3", "gp3 "] {
            assert_eq!(text.parse::<VolumeType>(), Err(UnknownVolumeType), "{text:?}");
        }
        assert_eq!(std::format!("[{:>8}]", VolumeType::Gp3), "[     gp3]");
    }
}
