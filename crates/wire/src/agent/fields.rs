//! The byte forms of the fields of messages: a record is its fields in the order below, a choice is
//! a number and then its fields. `docs/internals/agent_protocol.md` has pictures. A change here
//! needs a new [`VERSION`](super::VERSION).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use evenkeel_core::convert::exact;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::{Histogram, Latencies, Latency, Stage};
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, LinearCost, Reserved, Strain,
};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::qos::sharing::{
    DeviceModel, InstanceCounters, InstancePacing, OperationCost, Window,
};
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;

use super::bytes::{Malformed, Problem, Reader, Wire, Writer};
use super::{
    Answered, Attachment, BackgroundReport, Capacity, CreditReport, Failed, FailedKind,
    HostAddress, HostReport, HostState, IoErrors, Measured, NewSnapshot, Report, Space,
    StoreHealth, StoredSnapshot, StoredVolume, Units, UnitsWanted, Verified, VolumeReport,
    VolumeState,
};

/// Records: written and read with the same fields in the same order.
macro_rules! records {
    ($($record:ident { $($field:ident),* $(,)? })*) => {$(
        impl Wire for $record {
            fn write(&self, to: &mut Writer) {
                let Self { $($field),* } = self;
                $($field.write(to);)*
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                $(let $field = from.field(stringify!($field))?;)*
                Ok(Self { $($field),* })
            }
        }
    )*};
}

records! {
    Attachment { host, address }
    BackgroundReport { bytes_per_second, waiting, verified, read, filled }
    Balances { operations, bytes }
    Contract { seconds, missed }
    Costs { read, write }
    CountingRule { unit_bytes, merge_bytes_min, charge_whole_units }
    CreditLimit { refill_per_second, capacity }
    CreditReport { volumes, hosts }
    DeviceFloor { time_ns_per_second, costs }
    DeviceModel { channels, read, write, window }
    DomainFloor {
        network_in_bytes_per_second,
        network_out_bytes_per_second,
        cpu_ns_per_second,
        cpu_costs,
    }
    Answered { reads, writes, read_ns, write_ns }
    Exceeded {
        operations_ns,
        bytes_ns,
        guard_ns,
        instance_operations_ns,
        instance_bytes_ns,
        device_ns,
    }
    Failed { kind, message }
    HostReport { id, balances, counters }
    HostState { id, pacing, balances, unleased }
    InstanceCounters { operations, bytes, exceeded, waiting }
    InstancePacing { tolerance, operations, bytes, read_bytes_per_second, write_bytes_per_second }
    IoErrors { device, no_space, rotten, is_rotten, flush_failed }
    Latencies { reads, writes }
    Limit { per_second, credit }
    LinearCost { base, byte_ps }
    Measured { calibration, date, device, domain, nodes, strained, left_ppm }
    NewSnapshot { id, size, parent, is_encrypted }
    NodePart { lasting_ppm, lent_ppm, lent_for, in_flight, window_slots }
    NodeUse { capacity_ns, reserved_ns, in_flight, window_slots, has_waited }
    OperationCost { base, byte_ps }
    Pacing { counting, tolerance, operations, bytes }
    Report { volumes, hosts }
    Reserved { operations_per_second, bytes_per_second }
    Space { total, free }
    StoredSnapshot { id, volume, size, data, is_complete, is_encrypted }
    StoreHealth { copies_mended, volumes_salvaged, unfinished, without_space, damaged_sectors }
    StoredVolume { id, size, is_encrypted }
    Units { units, next }
    UnitsWanted { id, older, first, max }
    Verified { next, bytes, rotten }
    VolumeReport {
        id,
        balances,
        connections,
        queued,
        in_store,
        operations,
        bytes_read,
        bytes_written,
        flushes,
        answered,
        exceeded,
        errors,
        contract,
    }
    VolumeState { id, size, pacing, balances, unleased, reserved, attachments, is_encrypted }
}

/// Types that are encoded as one number.
macro_rules! as_numbers {
    ($($of:ident: $number:ty, $value:expr, $made:expr;)*) => {$(
        impl Wire for $of {
            fn write(&self, to: &mut Writer) {
                let number: $number = $value(self);
                number.write(to);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                <$number>::read(from).map($made)
            }
        }
    )*};
}

as_numbers! {
    ByteCount: u64, |bytes: &ByteCount| bytes.0, ByteCount;
    Duration: u64, |duration: &Duration| duration.ns, Duration::from_ns;
}

/// Ids have 68 bits; the others are zero.
macro_rules! ids {
    ($($id:ident),*) => {$(
        impl Wire for $id {
            fn write(&self, to: &mut Writer) {
                self.bits().write(to);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                let bits = u128::read(from)?;
                let id = Self::from_bits(bits);
                if id.bits() == bits {
                    Ok(id)
                } else {
                    Err(from.malformed(16, Problem::OutOfRange))
                }
            }
        }
    )*};
}

ids!(VolumeId, InstanceId, SnapshotId);

/// The error for a number that no variant has.
fn unknown<T>(from: &Reader<'_>, kind: u8) -> Result<T, Malformed> {
    Err(from.malformed(1, Problem::UnknownKind(kind)))
}

impl Wire for HostAddress {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Local => 0_u8.write(to),
            Self::Remote(IpAddr::V4(ip)) => {
                4_u8.write(to);
                to.put(&ip.octets());
            }
            Self::Remote(IpAddr::V6(ip)) => {
                6_u8.write(to);
                to.put(&ip.octets());
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::read(from)? {
            0 => Ok(Self::Local),
            4 => Ok(Self::Remote(Ipv4Addr::from(from.array::<4>()?).into())),
            6 => Ok(Self::Remote(Ipv6Addr::from(from.array::<16>()?).into())),
            kind => unknown(from, kind),
        }
    }
}

impl Wire for Window {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Slots(slots) => {
                1_u8.write(to);
                slots.write(to);
            }
            Self::Adaptive { small_p99 } => {
                2_u8.write(to);
                small_p99.write(to);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::read(from)? {
            1 => Ok(Self::Slots(from.field("slots")?)),
            2 => Ok(Self::Adaptive { small_p99: from.field("small_p99")? }),
            kind => unknown(from, kind),
        }
    }
}

impl Wire for Capacity {
    fn write(&self, to: &mut Writer) {
        match self {
            Self::Unknown => 0_u8.write(to),
            Self::Measured(measured) => {
                1_u8.write(to);
                measured.write(to);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::read(from)? {
            0 => Ok(Self::Unknown),
            1 => Ok(Self::Measured(Wire::read(from)?)),
            kind => unknown(from, kind),
        }
    }
}

impl Wire for Strain {
    fn write(&self, to: &mut Writer) {
        let number: u8 = match self {
            Self::Degraded => 1,
            Self::Recovering => 2,
        };
        number.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::read(from)? {
            1 => Self::Degraded,
            2 => Self::Recovering,
            kind => return unknown(from, kind),
        })
    }
}

impl Wire for FailedKind {
    fn write(&self, to: &mut Writer) {
        let number: u8 = match self {
            Self::NoSpace => 1,
            Self::NotFound => 2,
            Self::Damaged => 3,
            Self::Refused => 4,
            Self::Internal => 5,
            Self::Unanswered => 6,
            Self::Down => 7,
            Self::Unsupported => 8,
        };
        number.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::read(from)? {
            1 => Self::NoSpace,
            2 => Self::NotFound,
            3 => Self::Damaged,
            4 => Self::Refused,
            5 => Self::Internal,
            6 => Self::Unanswered,
            7 => Self::Down,
            8 => Self::Unsupported,
            kind => return unknown(from, kind),
        })
    }
}

/// The histograms, then the sums of all stages in the order of [`Stage::ALL`].
impl Wire for Latency {
    fn write(&self, to: &mut Writer) {
        self.total.write(to);
        self.device.write(to);
        self.waits.write(to);
        for stage in Stage::ALL {
            self.spent(stage).write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut latency = Self::default();
        latency.total = from.field("total")?;
        latency.device = from.field("device")?;
        latency.waits = from.field("waits")?;
        for stage in Stage::ALL {
            latency.spend(stage, from.field(stage.name())?);
        }
        Ok(latency)
    }
}

/// The sum, then the number of non-empty buckets, then the position and the count of each in
/// ascending order.
impl Wire for Histogram {
    fn write(&self, to: &mut Writer) {
        self.sum().write(to);
        let filled = self.filled().count();
        exact::<_, u8>(filled, "a histogram has fewer buckets than 2^8").write(to);
        for (place, count) in self.filled() {
            place.write(to);
            count.write(to);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut histogram = Self::default();
        let sum = from.field("sum")?;
        let filled: u8 = from.field("buckets")?;
        let mut least = 0_u8;
        for _ in 0..filled {
            from.in_field("bucket", |from| {
                let place = u8::read(from)?;
                let count = u64::read(from)?;
                // An empty bucket, one out of order or one that does not exist would be a second
                // form of the same value.
                if count == 0 || place < least || !histogram.fill(place, count) {
                    return Err(from.malformed(9, Problem::OutOfRange));
                }
                least = place.saturating_add(1);
                Ok(())
            })?;
        }
        histogram.set_sum(sum);
        Ok(histogram)
    }
}
