//! The promises of a whole system, in plain numbers.

use evenkeel_core::limits::{VOLUME_QUEUED_BYTES_MAX, VOLUME_QUEUED_REQUESTS_MAX};
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};

/// Direction of a request's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To the client.
    Read,
    /// From the client.
    Write,
    /// No payload: flush, discard, block status.
    None,
}

/// Number of limited dimensions of a volume: I/Os, bytes, and the guard on requests that cost no
/// bytes.
pub const DIMENSIONS: usize = 3;

/// The minimum that a volume is promised while it is backlogged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Floor {
    /// Nothing: it gets the remainder.
    #[default]
    None,
    /// Everything up to its limits.
    Limit,
    /// A rate of its own.
    Reserved {
        /// I/Os of the reference size per second.
        per_second: u64,
        /// Cost of one I/O of the reference size on the device, in nanoseconds of a channel. If it
        /// is 0, I/Os of any size are counted.
        reference_cost_ns: u64,
    },
}

/// The promise of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumePromise {
    /// The client host whose limits it shares with other volumes; `None` without one.
    pub instance: Option<u32>,
    /// Limit in counted I/Os; `None` promises no limit.
    pub operations: Option<Limit>,
    /// Limit in bytes; `None` promises no limit.
    pub bytes: Option<Limit>,
    /// Limit on requests per second that cost no bytes (flush, discard), so that they cannot
    /// overload the server; `None` promises no limit.
    pub guard: Option<u64>,
    /// Time's worth of tokens that it may save while idle.
    pub tolerance_ns: u64,
    /// Credits at the start; a missing balance is full.
    pub balances: Balances,
    /// The minimum that it is promised.
    pub floor: Floor,
    /// Its weight in the part of a device that reservations leave; equal volumes have equal
    /// weights.
    pub weight: u32,
}

/// The promise of all volumes of one client host together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstancePromise {
    /// Limit in counted I/Os: the maximum per second, with baseline and burst as its credit.
    pub operations: Option<Limit>,
    /// Limit in payload bytes moved.
    pub bytes: Option<Limit>,
    /// Payload bytes per second that the link carries, in each direction.
    pub link: Option<u64>,
    /// Time's worth of tokens that it may save while idle.
    pub tolerance_ns: u64,
    /// Credits at the start; a missing balance is full.
    pub balances: Balances,
}

/// The device below: it is measured once and not promised by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevicePromise {
    /// Maximum cost in flight at the start, in nanoseconds of a channel. If nothing else is known
    /// of the device, a dispatch is allowed while less than this is in flight.
    pub window_ns: u64,
    /// Its measured service times. If they are known, the window is that of [`Sample::Window`],
    /// within bounds that follow from them. A dispatch is allowed if it fits into the window, or if
    /// it is the only one.
    ///
    /// [`Sample::Window`]: super::Sample::Window
    pub work: Option<DeviceWork>,
}

/// The service times of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceWork {
    /// Number of requests that it serves at once.
    pub channels: u64,
    /// The window is at most this number of requests of the dearest kind.
    pub slots_max: u64,
    /// Nanoseconds for any read, and picoseconds for each byte of it.
    pub read: (u64, u64),
    /// Nanoseconds for any write, and picoseconds for each byte of it; also for requests that move
    /// no bytes.
    pub write: (u64, u64),
}

impl DeviceWork {
    /// Returns the nanoseconds of a channel that a request takes.
    pub(super) fn cost_ns(&self, direction: Direction, length: u32) -> u64 {
        let (kind, length) = match direction {
            Direction::Read => (self.read, length),
            Direction::Write => (self.write, length),
            Direction::None => (self.write, 0),
        };
        kind.0 + u64::from(length).saturating_mul(kind.1).div_ceil(1_000)
    }

    /// Returns the minimum window that keeps all channels busy, in nanoseconds: the cheapest
    /// request on each channel, if it takes half of the measured time.
    pub(super) fn window_min_ns(&self) -> u64 {
        // A thirty-second less, because a window is a number of slots times a mean, both rounded
        // down.
        self.channels * self.read.0.min(self.write.0) / 2 / 32 * 31
    }
}

/// The 99th percentile of a volume's latency at queue depth 1 without neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone {
    /// The volume.
    pub volume: u32,
    /// Time from submission to answer, in nanoseconds.
    pub p99_ns: u64,
}

/// Bounds of queues and of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Maximum number of requests that wait for one volume.
    pub queued_requests: u64,
    /// Maximum payload bytes that wait for one volume. An empty queue takes a request of any
    /// length.
    pub queued_bytes: u64,
    /// Maximum number of pieces on the device, of all volumes; `None` is not judged.
    pub in_flight: Option<u64>,
    /// Maximum time that the first request of a queue waits although its volume's own limits let it
    /// pass; `None` is not judged.
    pub wait_ns: Option<u64>,
    /// Maximum number of urgent dispatches in a row while a normal request of the volume waits;
    /// `None` is not judged.
    pub urgent_run: Option<u32>,
    /// Maximum time that a request is on the device at the end without being counted as forgotten;
    /// `None` is not judged.
    pub answer_ns: Option<u64>,
    /// Maximum time that a request covered by a baseline may be due before a burst that overtakes
    /// it is a violation.
    pub base_slack_ns: u64,
    /// Time's worth of its baseline that a volume may save, in nanoseconds.
    pub base_depth_ns: u64,
}

/// The made-whole rule: time that the server was late is not forfeited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatchUp {
    /// Maximum time's worth that may be caught up with, in nanoseconds.
    pub time_ns: u64,
    /// Maximum rate while catching up, in quarters of the volume's rate.
    pub rate_quarters: u64,
}

/// Margins of the rules; the defaults are those of the promise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Margins {
    /// Excess of the first second after idle over the rate; `None` is the tolerance's worth, which
    /// is 5 % for the usual 50 ms.
    pub first_second_ppm: Option<u32>,
    /// Excess of a later second over the rate.
    pub steady_second_ppm: u32,
    /// Excess of any 10 ms of a steady backlog over the rate.
    pub peak_ppm: u32,
    /// Shortfall of a second below the floor.
    pub floor_ppm: u32,
    /// Deviation of the sum of a saturated instance from its limit.
    pub sum_ppm: u32,
    /// Shortfall of the least of equal volumes below the most.
    pub fairness_ppm: u32,
    /// Maximum time until a modification acts, in nanoseconds.
    pub modify_ns: u64,
    /// Maximum of the 99th percentile beside neighbours, in percent of that alone.
    pub isolation_percent: u64,
    /// A modification forgives debt that would last longer than this at the new rate, in
    /// nanoseconds.
    pub modify_debt_ns: u64,
}

/// The promises of a system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct System {
    /// The volumes that exist from the start, by number. Later ones are announced by
    /// [`Added`](super::Event::Added).
    pub volumes: Vec<VolumePromise>,
    /// The client hosts with limits, by number. A number without an entry has none.
    pub instances: Vec<InstancePromise>,
    /// The device, if all volumes share one window.
    pub device: Option<DevicePromise>,
    /// The volumes whose latency without neighbours is known.
    pub alone: Vec<Alone>,
    /// Bounds of queues and of waiting.
    pub bounds: Bounds,
    /// The made-whole rule.
    pub catch_up: CatchUp,
    /// Margins of the rules.
    pub margins: Margins,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            queued_requests: VOLUME_QUEUED_REQUESTS_MAX as u64,
            queued_bytes: VOLUME_QUEUED_BYTES_MAX,
            in_flight: None,
            wait_ns: None,
            urgent_run: None,
            answer_ns: None,
            base_slack_ns: 0,
            base_depth_ns: 5_000_000,
        }
    }
}

impl Default for CatchUp {
    fn default() -> Self {
        Self { time_ns: 250_000_000, rate_quarters: 5 }
    }
}

impl Default for Margins {
    fn default() -> Self {
        Self {
            first_second_ppm: None,
            steady_second_ppm: 5_000,
            peak_ppm: 150_000,
            floor_ppm: 10_000,
            sum_ppm: 1_000,
            fairness_ppm: 10_000,
            modify_ns: 1_000_000,
            isolation_percent: 200,
            modify_debt_ns: 1_000_000_000,
        }
    }
}

impl VolumePromise {
    /// Returns the promise of a pacing: its limits, with all of them as its floor. Requests without
    /// bytes are limited to the rate of I/Os, or of counted units in the limit in bytes.
    #[must_use]
    pub fn from_pacing(pacing: &Pacing, balances: Balances) -> Self {
        let unit = u64::from(pacing.counting.unit_bytes.max(1));
        let by_bytes = || pacing.bytes.map(|limit| limit.per_second.div_ceil(unit));
        Self {
            instance: None,
            operations: pacing.operations,
            bytes: pacing.bytes,
            guard: pacing.operations.map(|limit| limit.per_second).or_else(by_bytes),
            tolerance_ns: pacing.tolerance.ns,
            balances,
            floor: Floor::Limit,
            weight: 1,
        }
    }

    /// Returns the promise of a rate in I/Os without credits, with the usual tolerance, and all of
    /// it as its floor.
    #[must_use]
    pub fn iops(per_second: u64) -> Self {
        let operations = Some(Limit { per_second, credit: None });
        let balances = Balances::default();
        Self::from_pacing(&Pacing { operations, ..Pacing::UNLIMITED }, balances)
    }

    /// Returns the limits: I/Os, bytes, guard.
    pub(super) fn limits(&self) -> [Option<Limit>; DIMENSIONS] {
        let guard = self.guard.map(|per_second| Limit { per_second, credit: None });
        [self.operations, self.bytes, guard]
    }

    /// Returns the I/Os per second that count as base: the reservation, or else the refill rate of
    /// credits.
    pub(super) fn baseline(&self) -> Option<u64> {
        match self.floor {
            Floor::Reserved { per_second, .. } => Some(per_second),
            _ => self.operations?.credit.map(|credit: CreditLimit| credit.refill_per_second),
        }
    }
}

impl InstancePromise {
    /// The promise of a client host without limits.
    pub const UNLIMITED: Self = Self {
        operations: None,
        bytes: None,
        link: None,
        tolerance_ns: 50_000_000,
        balances: Balances { operations: None, bytes: None },
    };
}
