//! Devices, instances and claims on them, as plain numbers for the scheduler.

use crate::convert::saturating;
use crate::qos::admission::Reserved;
use crate::qos::pacing::{CountingRule, Limit, Pacing};
use crate::time::{Duration, Instant};

/// Weight of a volume without limits: the IOPS of a large gp2 volume.
const UNLIMITED_WEIGHT: u64 = 16_000;

/// Device time of one kind of request: linear in its length, by the calibration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationCost {
    /// Time of an empty request.
    pub base: Duration,
    /// Time of a byte, in picoseconds: 4,000 is 250 MB/s of one channel.
    pub byte_ps: u32,
}

impl OperationCost {
    /// Channel time of a request of `length` bytes, in nanoseconds; at least one.
    #[must_use]
    pub fn ns(&self, length: u32) -> u64 {
        let bytes_ps = u64::from(length) * u64::from(self.byte_ps);
        self.base.ns.saturating_add(bytes_ps / 1_000).max(1)
    }
}

/// A calibrated device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceModel {
    /// Requests that it works on in parallel without slowing any of them down.
    pub channels: u32,
    /// Channel time of a read.
    pub read: OperationCost,
    /// Channel time of a write, a discard or a write of zeroes. Observations correct it between
    /// half and eight times.
    pub write: OperationCost,
    /// Limit of the requests in flight.
    pub window: Window,
}

impl DeviceModel {
    /// Length of the request in which reservations are counted: 16 KiB.
    pub const REFERENCE_BYTES: u32 = 16 << 10;

    /// Returns the channel time of the request in which reservations are counted: 16 KiB, half read
    /// and half write, as they are sold.
    #[must_use]
    pub fn reference_ns(&self) -> u64 {
        let read = self.read.ns(Self::REFERENCE_BYTES);
        let write = self.write.ns(Self::REFERENCE_BYTES);
        read.saturating_add(write).div_ceil(2)
    }

    /// Returns how many requests of the reference size take as long as the reservation: all its
    /// I/Os, each with an equal part of the bytes, half of them writes. It is the most that the
    /// volume may do within both limits, and was sold.
    #[must_use]
    pub fn reference_requests(&self, reserved: Reserved) -> u32 {
        let io_bytes = reserved.io_bytes();
        let reference_ns = u128::from(self.reference_ns());
        let each = self.read.ns(io_bytes).saturating_add(self.write.ns(io_bytes)).div_ceil(2);
        let ns_per_s = u128::from(reserved.operations_per_second) * u128::from(each);
        saturating(ns_per_s.div_ceil(reference_ns))
    }
}

/// The limit of the requests in flight at a device, which keeps neighbours apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// Always this many requests of the present mean cost.
    Slots(u32),
    /// Two more than there are channels at first; less while small requests miss the target, more
    /// while they meet it and a request waits. Never below the channels, never above four times
    /// them.
    Adaptive {
        /// Time within which the device is to serve 99 of 100 requests of at most 16 KiB.
        small_p99: Duration,
    },
}

/// A volume's claim on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Requests of 16 KiB a second, half of them writes, that it gets whatever the others do;
    /// requests that cost more use up more of it. At least [`Claim::least_reservation`] applies, so
    /// no volume starves.
    pub reservation_per_second: u32,
    /// Its weight among the others for the remaining device time. 0 counts as 1.
    pub weight: u32,
}

impl Claim {
    /// A claim on the least reservation only.
    pub const NONE: Self = Self { reservation_per_second: 0, weight: 1 };

    /// Returns a claim on the device time that others leave, with the volume's rate in I/Os as its
    /// weight. For a volume with a limit in bytes only, as of a hard disk's type, it is the number
    /// of 16 KiB I/Os that it can sustain; for one without limits, to which nothing was promised,
    /// that of a fast volume of an everyday type. If it were its maximum rate, nothing would be
    /// left for others.
    #[must_use]
    pub fn best_effort(pacing: &Pacing) -> Self {
        let weight = match (pacing.operations, pacing.bytes) {
            (Some(limit), _) => limit.per_second,
            (None, Some(limit)) => {
                limit.sustained_per_second() / u64::from(DeviceModel::REFERENCE_BYTES)
            }
            (None, None) => UNLIMITED_WEIGHT,
        };
        Self { reservation_per_second: 0, weight: saturating(weight.max(1)) }
    }

    /// Returns the reservation of a volume without one: a hundredth of its limit, and at least 20
    /// I/Os a second (its whole limit, if that is less).
    #[must_use]
    pub fn least_reservation(pacing: &Pacing) -> u32 {
        let rate = pacing.operations.map_or(0, |limit| limit.per_second);
        let least = (rate / 100).max(20);
        let least = if pacing.operations.is_some() { least.min(rate) } else { least };
        saturating(least)
    }
}

/// The limits of an instance, the client host to which volumes are attached: they hold for all its
/// volumes together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstancePacing {
    /// Time's worth of tokens that the instance may save while it is idle.
    pub tolerance: Duration,
    /// Limit in counted I/Os, with credits where the type bursts.
    pub operations: Option<Limit>,
    /// Limit in bytes of reads and writes together, with credits where the type bursts.
    pub bytes: Option<Limit>,
    /// Limit of the link in bytes read per second.
    pub read_bytes_per_second: Option<u64>,
    /// Limit of the link in bytes written per second.
    pub write_bytes_per_second: Option<u64>,
}

impl InstancePacing {
    /// Returns the limits in common with volumes, as a volume's.
    #[must_use]
    pub const fn as_volume(&self) -> Pacing {
        let Self { tolerance, operations, bytes, .. } = *self;
        Pacing { counting: CountingRule::SSD, tolerance, operations, bytes }
    }

    /// No limit at all.
    pub const UNLIMITED: Self = Self {
        tolerance: Duration::from_ms(50),
        operations: None,
        bytes: None,
        read_bytes_per_second: None,
        write_bytes_per_second: None,
    };
}

/// Use of the device by other schedulers, as last reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceOthers {
    /// This scheduler's part of the device, in thousandths.
    pub part_per_mille: u32,
    /// Requests that the others have in flight.
    pub in_flight: u32,
    /// The narrowest window of the others that want the device, in requests on the whole device;
    /// `None` if none wants it.
    pub window_slots: Option<u32>,
    /// Time at which one of them last served an urgent request.
    pub urgent_at: Option<Instant>,
    /// The lowest limit of requests in flight on the whole device, once a large request is added,
    /// of the others with urgent requests; `None` if there are none.
    pub beside_urgent: Option<u32>,
}

impl DeviceOthers {
    /// The state without other schedulers.
    pub const NONE: Self = Self {
        part_per_mille: 1_000,
        in_flight: 0,
        window_slots: None,
        urgent_at: None,
        beside_urgent: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::pacing::{CountingRule, CreditLimit};

    /// A reservation is the device time of all I/Os and all bytes, as it was sold.
    #[test]
    fn a_reservation_counts_its_bytes() {
        let read = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
        let write = OperationCost { base: Duration::from_us(40), byte_ps: 8_000 };
        let window = Window::Slots(10);
        let model = DeviceModel { channels: 8, read, write, window };
        let requests = |operations_per_second, bytes_per_second| {
            model.reference_requests(Reserved { operations_per_second, bytes_per_second })
        };
        assert_eq!(requests(0, 0), 0);
        assert_eq!(requests(1_000, 1_000 * (16 << 10)), 1_000, "the reference, 158,304 ns");
        // gp3: 3,000 I/Os of 43,691 bytes (60 us and 6 ns a byte), 322,146 ns.
        assert_eq!(requests(3_000, 125 << 20), 6_105);
        // st1: 20 I/Os of 1 MiB, 6,351,456 ns each.
        assert_eq!(requests(20, 20 << 20), 803);
        // Fewer bytes than 16 KiB per I/O take less.
        assert_eq!(requests(1_000, 0), 380);
    }

    #[test]
    fn device_of_the_paper_has_its_published_costs() {
        let read = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
        assert_eq!(read.ns(16 << 10), 145_536);
        assert_eq!(read.ns(256 << 10), 1_128_576);
        assert_eq!(OperationCost { base: Duration::ZERO, byte_ps: 0 }.ns(0), 1);
    }

    #[test]
    fn least_reservation_is_a_hundredth_of_the_rate_or_up_to_20() {
        let pacing = |per_second| Pacing {
            counting: CountingRule::SSD,
            tolerance: Duration::from_ms(50),
            operations: Some(Limit { per_second, credit: None }),
            bytes: None,
        };
        for (rate, least) in [(0, 0), (5, 5), (100, 20), (3_000, 30), (256_000, 2_560)] {
            assert_eq!(Claim::least_reservation(&pacing(rate)), least);
        }
        assert_eq!(Claim::least_reservation(&Pacing::UNLIMITED), 20);
    }

    #[test]
    fn weight_follows_the_lasting_rate_of_a_volume() {
        let weight = |operations, bytes| {
            Claim::best_effort(&Pacing { operations, bytes, ..Pacing::UNLIMITED }).weight
        };
        let limit = |per_second| Some(Limit { per_second, credit: None });
        assert_eq!(weight(limit(3_000), limit(125 << 20)), 3_000);
        // st1 of 2,000 GiB: bursts of 488 MiB/s, 78 MiB/s without end.
        let credit = Some(CreditLimit { refill_per_second: 78 << 20, capacity: 2_000 << 30 });
        assert_eq!(weight(None, Some(Limit { per_second: 488 << 20, credit })), 78 * 64);
        assert_eq!(weight(None, limit(1)), 1);
        assert_eq!(weight(None, None), 16_000);
    }
}
