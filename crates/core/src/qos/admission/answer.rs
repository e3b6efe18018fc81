//! What admission answers: what is left, what is short and by how much, what is oversold.

use core::fmt;

use super::model::{CARRIERS_MAX, DEVICES_MAX, DOMAINS_MAX, DeviceIndex, DomainIndex, PPM};
use super::model::{REFERENCE_BYTES, VOLUMES_MAX};

/// Something that is sold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Resource {
    /// Channel time of a device, in nanoseconds per second.
    DeviceTime,
    /// Bytes per second into a failure domain.
    NetworkIn,
    /// Bytes per second out of a failure domain.
    NetworkOut,
    /// Time of a failure domain's cores, in nanoseconds per second.
    Cpu,
    /// A place to go to: requests per second of volumes that name no device outside the domain that
    /// is lost. None may be sold.
    Standby,
}

impl Resource {
    const fn unit(self) -> &'static str {
        match self {
            Self::DeviceTime | Self::Cpu => "ns/s",
            Self::NetworkIn | Self::NetworkOut => "B/s",
            Self::Standby => "I/Os per second",
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
            Self::Standby => "standby devices",
        })
    }
}

/// Whose resource it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Place {
    /// A device's.
    Device(DeviceIndex),
    /// A failure domain's.
    Domain(DomainIndex),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => write!(f, "device {}", device.position()),
            Self::Domain(domain) => write!(f, "domain {}", domain.position()),
        }
    }
}

/// One line of the ledger: a resource of a place, now or after the loss of a domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Account {
    /// Which domain is lost; `None` is the present.
    pub lost: Option<DomainIndex>,
    /// Whose.
    pub place: Place,
    /// What.
    pub resource: Resource,
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.resource, self.lost) {
            (Resource::Standby, Some(lost)) => {
                write!(f, "standby devices outside domain {}", lost.position())
            }
            (_, Some(lost)) => {
                let lost = lost.position();
                write!(f, "{} of {} after the loss of domain {lost}", self.resource, self.place)
            }
            (_, None) => write!(f, "{} of {}", self.resource, self.place),
        }
    }
}

/// What is sold of an account, and what may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// The sum of what volumes reserve, in the resource's unit.
    pub sold: u128,
    /// The sold share of the floor; `None` is not limited.
    pub sellable: Option<u64>,
}

impl Usage {
    /// What may still be sold; `None` is not limited.
    #[must_use]
    pub fn left(&self) -> Option<u64> {
        let sold = u64::try_from(self.sold).unwrap_or(u64::MAX);
        self.sellable.map(|sellable| sellable.saturating_sub(sold))
    }

    /// By how much more is sold than may be.
    #[must_use]
    pub fn oversold_by(&self) -> u128 {
        self.sellable.map_or(0, |sellable| self.sold.saturating_sub(sellable.into()))
    }
}

/// The reservation fits, now and after the loss of any one domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admitted {
    /// What is left once it is sold.
    pub headroom: Headroom,
}

/// What may still be sold of each resource, where the volume would take it: the least of all its
/// places, now and after the loss of any one domain. `None` is not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headroom {
    /// Channel time, in nanoseconds per second.
    pub device_ns_per_second: Option<u64>,
    /// Bytes per second of the incoming network.
    pub network_in_bytes_per_second: Option<u64>,
    /// Bytes per second of the outgoing network.
    pub network_out_bytes_per_second: Option<u64>,
    /// Time of cores, in nanoseconds per second.
    pub cpu_ns_per_second: Option<u64>,
}

impl Headroom {
    /// Takes what is `left` of `resource` somewhere into account.
    pub(super) fn narrow(&mut self, resource: Resource, left: u64) {
        let least = match resource {
            Resource::DeviceTime => &mut self.device_ns_per_second,
            Resource::NetworkIn => &mut self.network_in_bytes_per_second,
            Resource::NetworkOut => &mut self.network_out_bytes_per_second,
            Resource::Cpu => &mut self.cpu_ns_per_second,
            Resource::Standby => return,
        };
        *least = Some(least.map_or(left, |before| before.min(left)));
    }
}

/// Something is short: the first account that is, the present before losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// What is short, and where.
    pub account: Account,
    /// What the volume would take of it, in the resource's unit.
    pub needed: u128,
    /// What is left for it; of a volume that is changed, with what it has now.
    pub available: u64,
    /// `needed` - `available`.
    pub short_by: u128,
    /// The largest reservation of the same kind that would be admitted, in requests per second.
    pub per_second_max: u32,
    /// The length of those requests.
    pub io_bytes: u32,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, needed, available, short_by, per_second_max, io_bytes } = self;
        let unit = account.resource.unit();
        write!(
            f,
            "not enough {account}: the volume needs {needed} {unit}, {available} {unit} are left, \
             short by {short_by} {unit}; reserve at most {per_second_max} I/Os per second"
        )?;
        if *io_bytes != REFERENCE_BYTES {
            write!(f, " of {io_bytes} bytes")?;
        }
        match (account.resource, account.lost) {
            (Resource::Standby, Some(lost)) => {
                write!(f, ", or name a device outside domain {} to take over", lost.position())
            }
            (_, Some(_)) => f.write_str(", or name another device to take over"),
            (Resource::DeviceTime, None) => f.write_str(", or put it on another device"),
            (_, None) => f.write_str(", or put it on a device of another domain"),
        }
    }
}

/// A reservation that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidReservation {
    /// It names no device.
    NoCarrier,
    /// It names more than [`CARRIERS_MAX`] devices.
    TooManyCarriers {
        /// Devices named.
        named: usize,
    },
    /// It names a device twice.
    CarrierTwice {
        /// The device.
        device: DeviceIndex,
    },
    /// It names a device of another ledger.
    NoSuchDevice {
        /// The device.
        device: DeviceIndex,
    },
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
            Self::NoCarrier => f.write_str("the volume names no device: name the one it is on"),
            Self::TooManyCarriers { named } => {
                write!(f, "the volume names {named} devices: name at most {CARRIERS_MAX}")
            }
            Self::CarrierTwice { device } => {
                write!(f, "the volume names device {} twice: name it once", device.position())
            }
            Self::NoSuchDevice { device } => {
                write!(f, "there is no device {}: add it to the ledger first", device.position())
            }
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

/// Why a reservation is not admitted. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It does not fit.
    Short(Shortage),
    /// It makes no sense.
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

/// An account of which more is sold than may be, because its floor sank or volumes were taken over
/// from earlier books. Nobody is thrown out; nothing is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Oversold {
    /// The account, at the loss of the domain that makes it worst.
    pub account: Account,
    /// What is sold, in the resource's unit.
    pub sold: u128,
    /// What may be.
    pub sellable: u64,
    /// The difference.
    pub by: u128,
}

impl fmt::Display for Oversold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, sold, sellable, by } = self;
        let unit = account.resource.unit();
        write!(
            f,
            "{account} oversold by {by} {unit}: {sold} {unit} are reserved, {sellable} {unit} may \
             be; reserve less, or move volumes elsewhere"
        )
    }
}

/// The ledger cannot take another domain or device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LedgerFull {
    /// It knows [`DOMAINS_MAX`] domains.
    Domains,
    /// It knows [`DEVICES_MAX`] devices.
    Devices,
}

impl fmt::Display for LedgerFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Domains => {
                write!(f, "there are {DOMAINS_MAX} failure domains, the most a ledger")?
            }
            Self::Devices => write!(f, "there are {DEVICES_MAX} devices, the most a ledger")?,
        }
        f.write_str(" keeps: keep another ledger for the rest")
    }
}

impl core::error::Error for LedgerFull {}
