//! Devices, machines and reservations as plain numbers for admission.

use crate::time::Duration;

/// Parts in a million: the unit of shares and mixes.
pub const PPM: u32 = 1_000_000;

/// Length of the requests in which reservations are sold: 16 KiB.
pub const REFERENCE_BYTES: u32 = 16 << 10;

/// Part of a measured floor that may be sold unless the operator says otherwise: 80 %. The rest
/// covers effects that a single measurement does not show.
pub const SOLD_SHARE_PPM: u32 = 800_000;

/// Part that may be sold of a floor that was measured while the device was [strained](Strain): 95
/// %. The state is rare, so less is set aside for effects that one measurement does not show.
pub const STRAINED_SHARE_PPM: u32 = 950_000;

/// Maximum number of volumes in a ledger. A sum of this many reservations cannot overflow: each is
/// below 2^97.
pub const VOLUMES_MAX: usize = 1 << 20;

/// Time that one kind of request takes of a resource: linear in its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinearCost {
    /// Time of an empty request.
    pub base: Duration,
    /// Time of a byte, in picoseconds.
    pub byte_ps: u32,
}

impl LinearCost {
    /// No time at all.
    pub const ZERO: Self = Self { base: Duration::ZERO, byte_ps: 0 };

    /// Returns the time of a request of `length` bytes in nanoseconds, rounded up: sold capacity
    /// must exist.
    #[must_use]
    pub fn ns(self, length: u32) -> u128 {
        let bytes_ps = u64::from(length) * u64::from(self.byte_ps);
        u128::from(self.base.ns) + u128::from(bytes_ps.div_ceil(1_000))
    }
}

/// Costs of a read and of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// Cost of a read.
    pub read: LinearCost,
    /// Cost of a write.
    pub write: LinearCost,
}

impl Costs {
    /// No cost.
    pub const ZERO: Self = Self { read: LinearCost::ZERO, write: LinearCost::ZERO };
}

/// The floor of a calibrated device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFloor {
    /// Channel time that it delivers in each second of any load, of any duration and mix, in
    /// nanoseconds: eight channels that never pause deliver 8 x 10^9.
    pub time_ns_per_second: u64,
    /// Channel time of its requests.
    pub costs: Costs,
}

/// A state in which a device of many machines delivers less, and must still deliver the sold
/// capacity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Strain {
    /// The largest part of it that may fail at once is gone.
    Degraded,
    /// It recovers from a loss, and serves clients meanwhile.
    Recovering,
}

impl Strain {
    /// Returns the capacity that may be sold of a device that must deliver it in each of these
    /// states, too, in requests of [`REFERENCE_BYTES`] per second, half of them writes; `None`
    /// without a state.
    #[must_use]
    pub fn for_sale(strained: &[(Self, DeviceFloor)]) -> Option<u64> {
        strained.iter().map(|(_, floor)| floor.for_sale(STRAINED_SHARE_PPM)).min()
    }
}

/// Capacity of a machine beside its device. `None` is not limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DomainFloor {
    /// Bytes per second that it receives: payload of writes.
    pub network_in_bytes_per_second: Option<u64>,
    /// Bytes per second that it sends: payload of reads.
    pub network_out_bytes_per_second: Option<u64>,
    /// Time of all cores that serve, in nanoseconds per second: two cores have 2 x 10^9.
    pub cpu_ns_per_second: Option<u64>,
    /// Core time that a request takes.
    pub cpu_costs: Costs,
}

impl DomainFloor {
    /// No limit but the device's.
    pub const UNLIMITED: Self = Self {
        network_in_bytes_per_second: None,
        network_out_bytes_per_second: None,
        cpu_ns_per_second: None,
        cpu_costs: Costs::ZERO,
    };
}

/// Factor by which a volume type is oversold: its reservations are divided by it. An operator's own
/// decision, never a default.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Oversell(u32);

impl Oversell {
    /// Not oversold: each reservation is covered.
    pub const NONE: Self = Self(PPM);

    /// Creates a factor of `ppm` / 10^6; `None` if it is below one.
    #[must_use]
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm < PPM { None } else { Some(Self(ppm)) }
    }

    /// Returns the factor in millionths.
    #[must_use]
    pub const fn ppm(self) -> u32 {
        self.0
    }
}

/// The reservation of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// Requests per second. 0 reserves nothing and is never refused.
    pub per_second: u32,
    /// Their length in bytes. IOPS are sold at [`REFERENCE_BYTES`]; a throughput at the length in
    /// which its type counts.
    pub io_bytes: u32,
    /// Writes among them, in parts per million.
    pub write_ppm: u32,
    /// Factor by which its type is oversold.
    pub oversell: Oversell,
}

impl Reservation {
    /// Returns a reservation of `per_second` requests of 16 KiB, half of them writes, not oversold.
    #[must_use]
    pub const fn of_iops(per_second: u32) -> Self {
        Self { per_second, io_bytes: REFERENCE_BYTES, write_ppm: PPM / 2, oversell: Oversell::NONE }
    }

    /// Returns the amount that it takes per second of a resource of which a read takes `read` and a
    /// write `write`; rounded up. Below 2^97 for operands below 2^65.
    pub(super) fn demand(&self, read: u128, write: u128) -> u128 {
        let mix = read * u128::from(PPM - self.write_ppm) + write * u128::from(self.write_ppm);
        (mix * u128::from(self.per_second)).div_ceil(u128::from(self.oversell.ppm()))
    }
}
