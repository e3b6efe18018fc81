//! What was promised for a whole system, in plain numbers.

use evenkeel_core::limits::{VOLUME_QUEUED_BYTES_MAX, VOLUME_QUEUED_REQUESTS_MAX};
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};

use super::event::Direction;

/// What is limited of a volume: I/Os, bytes, and the guard on requests that cost no byte.
pub const DIMENSIONS: usize = 3;

/// What a volume is sure of while it is backlogged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Floor {
    /// Nothing: it gets what is left.
    #[default]
    None,
    /// Everything up to its limits.
    Limit,
    /// A rate of its own.
    Reserved {
        /// I/Os of the reference size per second.
        per_second: u64,
        /// What one I/O of the reference size costs on the device, in nanoseconds of a channel. 0
        /// counts I/Os, of whatever size.
        reference_cost_ns: u64,
    },
}

/// What was promised for one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumePromise {
    /// The client host whose limits hold it together with others; `None` if none do.
    pub instance: Option<u32>,
    /// Limit in counted I/Os; `None` promises no limit.
    pub operations: Option<Limit>,
    /// Limit in bytes; `None` promises no limit.
    pub bytes: Option<Limit>,
    /// Requests per second that cost no byte, so that they overload nobody (flush, discard); `None`
    /// promises no limit.
    pub guard: Option<u64>,
    /// Time's worth of tokens that it may save while idle.
    pub tolerance_ns: u64,
    /// Credits at the start: what is not given is full.
    pub balances: Balances,
    /// What it is sure of.
    pub floor: Floor,
    /// Its part of what reservations leave of a device, beside the others'; equals have the same.
    pub weight: u32,
}

/// What was promised for all volumes of one client host together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstancePromise {
    /// Limit in counted I/Os: the most per second, and as credit its baseline and burst.
    pub operations: Option<Limit>,
    /// The same in payload bytes moved.
    pub bytes: Option<Limit>,
    /// Payload bytes per second that the link carries, in each direction.
    pub link: Option<u64>,
    /// Time's worth of tokens that it may save while idle.
    pub tolerance_ns: u64,
    /// Credits at the start: what is not given is full.
    pub balances: Balances,
}

/// What stands below: measured once, not promised by us.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DevicePromise {
    /// Cost that may be in flight at the start, in nanoseconds of a channel. Where nothing is known
    /// of the device but this, a dispatch is allowed while less is.
    pub window_ns: u64,
    /// What it was measured to do. Then the window is what [`Sample::Window`] reports, within
    /// bounds that follow from this; and a dispatch is allowed if it fits into it, or is alone.
    ///
    /// [`Sample::Window`]: super::Sample::Window
    pub work: Option<DeviceWork>,
}

/// How long a device takes for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceWork {
    /// Requests it works on at once.
    pub channels: u64,
    /// The window is never more than so many requests of the dearest kind.
    pub slots_max: u64,
    /// Nanoseconds for any read, and picoseconds for each byte of it.
    pub read: (u64, u64),
    /// The same for a write, and for whatever moves no byte.
    pub write: (u64, u64),
}

impl DeviceWork {
    /// Nanoseconds of a channel that a request takes.
    pub(super) fn cost_ns(&self, direction: Direction, length: u32) -> u64 {
        let (kind, length) = match direction {
            Direction::Read => (self.read, length),
            Direction::Write => (self.write, length),
            Direction::None => (self.write, 0),
        };
        kind.0 + u64::from(length).saturating_mul(kind.1).div_ceil(1_000)
    }

    /// The least window that leaves no channel idle: the channels' worth of the cheapest requests,
    /// which may have been found to take half of what was measured.
    pub(super) fn window_min_ns(&self) -> u64 {
        // A thirty-second less: a window is a number of slots times a mean, both rounded down.
        self.channels * self.read.0.min(self.write.0) / 2 / 32 * 31
    }
}

/// The 99th percentile of a volume at queue depth 1 with nobody beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone {
    /// The volume.
    pub volume: u32,
    /// From submission to the answer.
    pub p99_ns: u64,
}

/// Bounds of queues and of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Requests that may wait for one volume.
    pub queued_requests: u64,
    /// Payload bytes that may wait for one volume. An empty queue takes a request of any length.
    pub queued_bytes: u64,
    /// Pieces that may be on the device at once, of all volumes; `None` is not judged.
    pub in_flight: Option<u64>,
    /// For how long the first of a queue may wait although its volume's own limits let it pass;
    /// `None` is not judged.
    pub wait_ns: Option<u64>,
    /// Urgent dispatches in a row while a normal request of the volume waits; `None` is not judged.
    pub urgent_run: Option<u32>,
    /// For how long a request may be on the device at the end and not count as forgotten; `None` is
    /// not judged.
    pub answer_ns: Option<u64>,
    /// For how long a request covered by a baseline may be due before a burst passes it unpunished.
    pub base_slack_ns: u64,
    /// Time's worth of its baseline that a volume may save.
    pub base_depth_ns: u64,
}

/// The made-whole rule: time that we were late is not forfeited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CatchUp {
    /// Most time's worth that may be caught up.
    pub time_ns: u64,
    /// The most that is served while catching up, in quarters of the rate.
    pub rate_quarters: u64,
}

/// How close is close enough; the defaults are the promise's own words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Margins {
    /// By how much the first second after idle may exceed the rate; `None` is the tolerance's
    /// worth, which is 5 % for the usual 50 ms.
    pub first_second_ppm: Option<u32>,
    /// By how much a later second may exceed it.
    pub steady_second_ppm: u32,
    /// By how much any 10 ms of a steady backlog may exceed it.
    pub peak_ppm: u32,
    /// By how much a second may fall short of the floor.
    pub floor_ppm: u32,
    /// By how much the sum of a saturated instance may be off.
    pub sum_ppm: u32,
    /// By how much the least of equals may fall short of the most.
    pub fairness_ppm: u32,
    /// Within what time a modification acts.
    pub modify_ns: u64,
    /// How much longer the 99th percentile may be than alone, in percent of it.
    pub isolation_percent: u64,
    /// Debt that would last longer than this at the new rate of a modification is forgiven.
    pub modify_debt_ns: u64,
}

/// Everything that was promised.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct System {
    /// The volumes that exist from the start, by number; others come with
    /// [`Added`](super::Event::Added).
    pub volumes: Vec<VolumePromise>,
    /// The client hosts with limits, by number. A number without an entry has none.
    pub instances: Vec<InstancePromise>,
    /// The device, where there is one window for all.
    pub device: Option<DevicePromise>,
    /// Volumes whose latency alone is known.
    pub alone: Vec<Alone>,
    /// Bounds of queues and of waiting.
    pub bounds: Bounds,
    /// The made-whole rule.
    pub catch_up: CatchUp,
    /// How close is close enough.
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
    /// The promise that a pacing makes: its limits, and all of them as its floor. What costs no
    /// byte may come as often as I/Os may, or as counted units fit into the bytes.
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

    /// A rate in I/Os without credits, with the usual tolerance, sure of all of it.
    #[must_use]
    pub fn iops(per_second: u64) -> Self {
        let operations = Some(Limit { per_second, credit: None });
        let balances = Balances::default();
        Self::from_pacing(&Pacing { operations, ..Pacing::UNLIMITED }, balances)
    }

    /// The limits: I/Os, bytes, guard.
    pub(super) fn limits(&self) -> [Option<Limit>; DIMENSIONS] {
        let guard = self.guard.map(|per_second| Limit { per_second, credit: None });
        [self.operations, self.bytes, guard]
    }

    /// I/Os per second that count as base: the reservation, else what credits are refilled by.
    pub(super) fn baseline(&self) -> Option<u64> {
        match self.floor {
            Floor::Reserved { per_second, .. } => Some(per_second),
            _ => self.operations?.credit.map(|credit: CreditLimit| credit.refill_per_second),
        }
    }
}

impl InstancePromise {
    /// A client host without limits.
    pub const UNLIMITED: Self = Self {
        operations: None,
        bytes: None,
        link: None,
        tolerance_ns: 50_000_000,
        balances: Balances { operations: None, bytes: None },
    };
}
