//! Reasons for a refusal: EC2's error codes and message texts, which clients match on.
//!
//! The texts are a wire format. If Amazon's own text is known, it is used to the letter; otherwise
//! the text states the error, and the variant is marked "own text".

use super::rules::Ratio;
use super::{Date, VolumeType};
use core::fmt;

/// Reason why a request for a volume is refused. `Display` is the message, [`InvalidSpec::code`]
/// the error code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidSpec {
    /// The type does not exist on this date.
    TypeNotOffered {
        /// The type asked for.
        volume_type: VolumeType,
    },
    /// The size is below the type's.
    SizeTooSmall {
        /// The type.
        volume_type: VolumeType,
        /// Size asked for, in GiB.
        size_gib: u32,
        /// Smallest size, in GiB.
        min: u32,
    },
    /// The size is above the type's.
    SizeTooLarge {
        /// The type.
        volume_type: VolumeType,
        /// Size asked for, in GiB.
        size_gib: u32,
        /// Largest size, in GiB.
        max: u32,
    },
    /// The type needs IOPS and the request names none.
    IopsMissing {
        /// The type.
        volume_type: VolumeType,
    },
    /// The type sells no IOPS.
    IopsNotSupported {
        /// The type.
        volume_type: VolumeType,
    },
    /// Fewer IOPS than the type has.
    IopsTooLow {
        /// IOPS asked for.
        iops: u32,
        /// Least IOPS.
        min: u32,
    },
    /// More IOPS than the type has.
    IopsTooHigh {
        /// IOPS asked for.
        iops: u32,
        /// Most IOPS.
        max: u32,
    },
    /// More IOPS than the size allows.
    IopsRatioTooHigh {
        /// IOPS asked for.
        iops: u32,
        /// Size, in GiB.
        size_gib: u32,
        /// Most IOPS for each GiB.
        per_gib_max: u32,
    },
    /// Size, IOPS or ratio above the type's, where one text names all three.
    AboveCombinedLimits {
        /// The type.
        volume_type: VolumeType,
        /// Largest size, in GiB.
        size_gib_max: u32,
        /// Most IOPS.
        iops_max: u32,
        /// Most IOPS for each GiB.
        per_gib_max: u32,
    },
    /// The type sells no throughput.
    ThroughputNotSupported {
        /// The type.
        volume_type: VolumeType,
    },
    /// Less throughput than the type has (own text).
    ThroughputTooLow {
        /// MiB/s asked for.
        mibps: u32,
        /// Least MiB/s.
        min: u32,
    },
    /// More throughput than the type has.
    ThroughputTooHigh {
        /// MiB/s asked for.
        mibps: u32,
        /// Most MiB/s.
        max: u32,
    },
    /// More throughput than the IOPS allow.
    ThroughputRatioTooHigh {
        /// MiB/s asked for.
        mibps: u32,
        /// IOPS of the volume.
        iops: u32,
        /// Most MiB/s for each IOPS.
        max: Ratio,
    },
    /// The type cannot be attached to several instances.
    MultiAttachNotSupported {
        /// The type.
        volume_type: VolumeType,
    },
    /// ModifyVolume does not exist on this date (own text).
    ModifyUnavailable {
        /// Date of the rules.
        date: Date,
    },
    /// A modification that names no property (own text in the known form).
    NothingToModify,
    /// A volume cannot shrink.
    SizeShrinks,
    /// `standard` volumes cannot be converted on this date (own text).
    StandardNotConvertible,
    /// The property cannot change while Multi-Attach is on (own text).
    FrozenByMultiAttach {
        /// The volume's type.
        volume_type: VolumeType,
        /// The property that was to change.
        property: FrozenProperty,
    },
    /// Multi-Attach of this type is chosen when the volume is created (own text).
    MultiAttachFixed {
        /// The type.
        volume_type: VolumeType,
    },
}

/// A property that cannot change while Multi-Attach is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrozenProperty {
    /// The volume's type.
    Type,
    /// The volume's size.
    Size,
    /// The volume's IOPS.
    Iops,
}

impl InvalidSpec {
    /// Returns EC2's error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::TypeNotOffered { .. } => "UnknownVolumeType",
            Self::SizeTooSmall { .. }
            | Self::SizeTooLarge { .. }
            | Self::IopsTooLow { .. }
            | Self::IopsTooHigh { .. }
            | Self::IopsRatioTooHigh { .. }
            | Self::ThroughputTooLow { .. }
            | Self::ThroughputTooHigh { .. }
            | Self::ThroughputRatioTooHigh { .. }
            | Self::SizeShrinks => "InvalidParameterValue",
            Self::IopsMissing { .. }
            | Self::IopsNotSupported { .. }
            | Self::AboveCombinedLimits { .. }
            | Self::ThroughputNotSupported { .. }
            | Self::MultiAttachNotSupported { .. } => "InvalidParameterCombination",
            Self::NothingToModify => "MissingParameter",
            Self::ModifyUnavailable { .. }
            | Self::StandardNotConvertible
            | Self::FrozenByMultiAttach { .. }
            | Self::MultiAttachFixed { .. } => "UnsupportedOperation",
        }
    }
}

impl fmt::Display for InvalidSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TypeNotOffered { volume_type: t } => {
                write!(f, "Unsupported volume type '{t}' for volume creation.")
            }
            Self::SizeTooSmall { volume_type: t, size_gib: n, min } => size_too_small(f, t, n, min),
            Self::SizeTooLarge { volume_type: t, size_gib: n, max } => {
                write!(f, "Volume of {n}GiB is too large for volume type {t}; maximum is {max}GiB")
            }
            Self::IopsMissing { volume_type: t } => {
                write!(f, "The parameter iops must be specified for {t} volumes.")
            }
            Self::IopsNotSupported { volume_type: t } => {
                write!(f, "The parameter iops is not supported for {t} volumes")
            }
            Self::IopsTooLow { iops, min } => {
                write!(f, "Volume iops of {iops} is too low; minimum is {min}")
            }
            Self::IopsTooHigh { iops, max } => {
                write!(f, "Volume iops of {iops} is too high; maximum is {max}")
            }
            Self::IopsRatioTooHigh { iops, size_gib, per_gib_max } => {
                iops_ratio(f, iops, size_gib, per_gib_max)
            }
            Self::AboveCombinedLimits { volume_type: t, size_gib_max, iops_max, per_gib_max } => {
                combined(f, t, size_gib_max, iops_max, per_gib_max)
            }
            Self::ThroughputNotSupported { volume_type: t } => {
                write!(f, "The throughput parameter is not supported for {t} volumes.")
            }
            Self::ThroughputTooLow { mibps, min } => {
                write!(f, "Volume throughput of {mibps} is too low; minimum is {min}")
            }
            Self::ThroughputTooHigh { mibps, max } => {
                write!(f, "Volume throughput of {mibps} is too high; maximum is {max}")
            }
            Self::ThroughputRatioTooHigh { mibps, iops, max } => {
                throughput_ratio(f, mibps, iops, max)
            }
            Self::MultiAttachNotSupported { volume_type: t } => {
                write!(f, "The parameter multi-attach-enabled is not supported for {t} volumes.")
            }
            Self::ModifyUnavailable { date } => {
                write!(f, "ModifyVolume is not part of the rules of {date}; serve newer rules.")
            }
            Self::NothingToModify => f.write_str(NOTHING_TO_MODIFY),
            Self::SizeShrinks => f.write_str("New size cannot be smaller than existing size"),
            Self::StandardNotConvertible => f.write_str(STANDARD_NOT_CONVERTIBLE),
            Self::FrozenByMultiAttach { volume_type: t, property } => {
                write!(f, "The {property} of {t} volumes cannot be modified ")?;
                f.write_str("while Multi-Attach is enabled.")
            }
            Self::MultiAttachFixed { volume_type: t } => {
                write!(f, "Multi-Attach of {t} volumes is chosen at their creation, for good.")
            }
        }
    }
}

const NOTHING_TO_MODIFY: &str = "The request must contain the parameter size, volumeType, iops, \
                                 throughput or multiAttachEnabled";

const STANDARD_NOT_CONVERTIBLE: &str = "A volume cannot be converted from or to the type standard; \
                                        copy it to a new volume instead.";

impl fmt::Display for FrozenProperty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Type => "type",
            Self::Size => "size",
            Self::Iops => "iops",
        })
    }
}

fn size_too_small(
    f: &mut fmt::Formatter<'_>,
    t: VolumeType,
    size_gib: u32,
    min: u32,
) -> fmt::Result {
    write!(
        f,
        "The volume size is invalid for {t} volumes: {size_gib} GiB. {t} volumes must be at least \
         {min} GiB in size. Please specify a volume size above the minimum limit."
    )
}

/// Clients read the maximum IOPS from this text: the number before "K IOPS".
fn combined(
    f: &mut fmt::Formatter<'_>,
    t: VolumeType,
    size_gib_max: u32,
    iops_max: u32,
    per_gib_max: u32,
) -> fmt::Result {
    let tib = size_gib_max / 1_024;
    let thousands = iops_max / 1_000;
    write!(
        f,
        "{t} volumes configured with greater than {tib} TiB or {thousands}K IOPS or \
         {per_gib_max}:1 IOPS:GB ratio are not supported"
    )
}

fn iops_ratio(f: &mut fmt::Formatter<'_>, iops: u32, size_gib: u32, max: u32) -> fmt::Result {
    let ratio = ratio(iops, size_gib);
    f.write_str("Iops to volume size ratio of ")?;
    match ratio.whole() {
        Some(whole) => write!(f, "{whole}"),
        None => ratio.write_decimals(f),
    }?;
    write!(f, " is too high; maximum is {max}")
}

fn throughput_ratio(f: &mut fmt::Formatter<'_>, mibps: u32, iops: u32, max: Ratio) -> fmt::Result {
    f.write_str("Throughput (MiBps) to iops ratio of ")?;
    ratio(mibps, iops).write_decimals(f)?;
    f.write_str(" is too high; maximum is ")?;
    max.write_decimals(f)?;
    f.write_str(" MiBps per iops")
}

/// Returns `part` / `whole`. A `whole` of 0 is refused before any ratio is formed; here it must
/// only not cause a division by zero.
fn ratio(part: u32, whole: u32) -> Ratio {
    Ratio { numerator: part.into(), denominator: whole.max(1).into() }
}
