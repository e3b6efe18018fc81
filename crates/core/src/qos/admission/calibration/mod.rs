//! Derives the capacity for sale from measurements. A calibration measures counts and times; pure
//! functions here interpret them, so that a record from years ago still has the same result:
//!
//! ```text
//! Measurements ─▶ Calibration ─▶ DeviceModel           for the scheduler
//!  (counts, times)     │    └──▶ DeviceFloor, DomainFloor for the ledger
//!                      └── Drift ─▶ less of the floor, while the device is slower
//! ```
//!
//! *Channels* are the requests that must be in flight to keep the device busy: by Little's law, the
//! highest rate of reads times the latency of one alone. The channel time of a request is derived
//! from the rate of many, not from the latency of one, so that channels divided by cost is exactly
//! the delivered rate, whatever part of the latency was not the device's.

pub mod drift;
pub mod fit;

use crate::convert::{exact, saturating};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;

use super::Ledger;
use super::model::{
    Costs, DeviceFloor, DomainFloor, LinearCost, PPM, REFERENCE_BYTES, Reservation,
};
use crate::ids::VolumeId;
use crate::qos::sharing::{DeviceModel, OperationCost, Window};
use crate::time::Duration;
use fit::{Fit, Point, fit};

/// Maximum number of channels of a calibration.
pub const CHANNELS_MAX: u32 = 1_024;

/// Possible p99 targets, in milliseconds: the result is the least one within which the device
/// delivers most of its maximum.
pub const TARGETS_MS: [u64; 10] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000];

/// "Most of its maximum", in millionths.
const MOST_PPM: u64 = 900_000;

const NS_PER_S: u64 = 1_000_000_000;

/// Measured rate of requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Length of each, in bytes.
    pub length: u32,
    /// Constant number of requests in flight.
    pub depth: u32,
    /// Requests that ended.
    pub requests: u64,
    /// Time in which they ended.
    pub elapsed: Duration,
    /// Core time that the whole process took meanwhile.
    pub cpu: Duration,
}

impl Rate {
    /// Returns the requests per second.
    #[must_use]
    pub fn per_second(&self) -> u64 {
        per_second(self.requests, self.elapsed)
    }
}

fn per_second(requests: u64, elapsed: Duration) -> u64 {
    let wide = u128::from(requests) * u128::from(NS_PER_S) / u128::from(elapsed.ns.max(1));
    saturating(wide)
}

/// Load and latency: one point of the curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CurvePoint {
    /// Constant number of requests in flight.
    pub depth: u32,
    /// Requests of 16 KiB per second, half of them writes.
    pub per_second: u64,
    /// Median latency.
    pub p50: Duration,
    /// Latency that 99 of 100 requests did not exceed.
    pub p99: Duration,
}

/// A part of a long mixed run of 16 KiB requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MixedPart {
    /// Reads that ended.
    pub reads: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Time in which they ended.
    pub elapsed: Duration,
}

/// All measurements of a calibration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Measurements {
    /// Latency of a read of 16 KiB that is alone; the lower quartile.
    pub alone: Duration,
    /// Reads of 16 KiB at growing depths.
    pub depths: Vec<Rate>,
    /// Reads of growing lengths, with a useful number in flight.
    pub reads: Vec<Rate>,
    /// Writes that use up caches and erased blocks, part after part.
    pub settling: Vec<MixedPart>,
    /// Writes of growing lengths, right after that.
    pub writes: Vec<Rate>,
    /// Mixed loads at growing depths.
    pub curve: Vec<CurvePoint>,
    /// A mixed load that lasts, part after part.
    pub lasting: Vec<MixedPart>,
}

impl Measurements {
    /// Returns the requests that must be in flight to keep the device busy: by Little's law, the
    /// highest rate of reads times the latency of one alone, rounded to whole requests. It uses the
    /// second highest rate: beyond a sufficient depth all rates are about equal, and a single high
    /// one comes after a pause of the machine, for which the device made up.
    /// # Errors
    /// If no read ended.
    pub fn channels(&self) -> Result<u32, Unusable> {
        let mut rates: Vec<&Rate> = self.depths.iter().filter(|rate| rate.requests > 0).collect();
        rates.sort_by_key(|rate| Reverse(rate.per_second()));
        let best = rates.get(1).or(rates.first());
        let best = best.ok_or(Unusable { missing: "no read at any depth" })?;
        let alone = u128::from(self.alone.ns) * u128::from(best.requests);
        let twice = alone * 2 / u128::from(best.elapsed.ns.max(1));
        let channels: u32 = saturating(twice.div_ceil(2));
        Ok(channels.clamp(1, CHANNELS_MAX))
    }

    /// Returns whether lasting writes had reached a constant rate: the rates of the last
    /// two parts differ by at most a tenth.
    #[must_use]
    pub fn has_settled(&self) -> bool {
        let [.., before, last] = self.settling.as_slice() else { return false };
        let [before, last] =
            [before, last].map(|part| per_second(part.reads + part.writes, part.elapsed));
        before.abs_diff(last) <= before / 10
    }
}

/// Reason why measurements have no result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unusable {
    /// The missing measurement.
    pub missing: &'static str,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended in the time there was; measure for longer", self.missing)
    }
}

/// Result of a calibration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calibration {
    /// Requests that must be in flight to keep it busy.
    pub channels: u32,
    /// Channel time of requests.
    pub costs: Costs,
    /// The largest deviation of the costs from the measurements, in millionths.
    pub off_ppm: u32,
    /// Channel time that it delivers in each second of a lasting mixed load, within
    /// [`Self::p99_target`]; in nanoseconds, at most that of the channels.
    pub floor_ns_per_second: u64,
    /// Core time that requests take on their way to the device and back: the store's part.
    pub cpu_costs: Costs,
    /// Latency that 99 of 100 mixed requests of 16 KiB do not exceed at the floor's rate. `None` if
    /// not even a second was kept.
    pub p99_target: Option<Duration>,
}

impl Calibration {
    /// Derives the result of measurements.
    ///
    /// # Errors
    /// If a measurement is missing.
    pub fn of(measured: &Measurements) -> Result<Self, Unusable> {
        let channels = measured.channels()?;
        let reads = channel_costs(channels, &measured.reads, "no read")?;
        let writes = channel_costs(channels, &measured.writes, "no write")?;
        let cpu = |rates: &[Rate]| fit(&points(rates, |rate| rate.cpu, 1));
        let cpu = |rates| cpu(rates).map_or(LinearCost::ZERO, |fit: Fit| fit.cost);
        let mut calibration = Self {
            channels,
            costs: Costs { read: reads.cost, write: writes.cost },
            off_ppm: reads.off_ppm.max(writes.off_ppm),
            floor_ns_per_second: 0,
            cpu_costs: Costs { read: cpu(&measured.reads), write: cpu(&measured.writes) },
            p99_target: None,
        };
        let lasting = calibration
            .lasting(&measured.lasting)
            .ok_or(Unusable { missing: "no request of the lasting load" })?;
        let (target, kept_per_second) = target(&measured.curve);
        let kept = u128::from(kept_per_second.unwrap_or(u64::MAX)) * calibration.mixed_ns();
        let floor = lasting.min(kept).min(u128::from(channels) * u128::from(NS_PER_S));
        calibration.floor_ns_per_second = exact(floor, "at most a second of each channel");
        calibration.p99_target = target;
        Ok(calibration)
    }

    /// Returns the channel time of the load in which reservations are sold: 16 KiB, half reads,
    /// half writes. Rounded up, at least 1 ns.
    #[must_use]
    pub fn mixed_ns(&self) -> u128 {
        let Costs { read, write } = self.costs;
        (read.ns(REFERENCE_BYTES) + write.ns(REFERENCE_BYTES)).div_ceil(2).max(1)
    }

    /// Returns the mixed requests of 16 KiB per second in the floor.
    #[must_use]
    pub fn mixed_per_second(&self) -> u64 {
        exact(u128::from(self.floor_ns_per_second) / self.mixed_ns(), "at most the floor")
    }

    /// Returns the device for the scheduler. Its window keeps small requests within the target.
    #[must_use]
    pub fn device_model(&self) -> DeviceModel {
        let cost = |LinearCost { base, byte_ps }: LinearCost| OperationCost { base, byte_ps };
        let worst = Duration::from_ms(TARGETS_MS[TARGETS_MS.len() - 1]);
        DeviceModel {
            channels: self.channels,
            read: cost(self.costs.read),
            write: cost(self.costs.write),
            window: Window::Adaptive { small_p99: self.p99_target.unwrap_or(worst) },
        }
    }

    /// Returns the device for the ledger.
    #[must_use]
    pub fn device_floor(&self) -> DeviceFloor {
        DeviceFloor { time_ns_per_second: self.floor_ns_per_second, costs: self.costs }
    }

    /// Returns the machine for the ledger, with `cores` that serve. The capacity of its network is
    /// not measured: it is not the store's.
    #[must_use]
    pub fn domain_floor(&self, cores: u16) -> DomainFloor {
        DomainFloor {
            cpu_ns_per_second: Some(u64::from(cores.max(1)) * NS_PER_S),
            cpu_costs: self.cpu_costs,
            ..DomainFloor::UNLIMITED
        }
    }

    /// Returns an empty ledger of this device, which sells `sold_share_ppm` of it.
    #[must_use]
    pub fn ledger(&self, cores: u16, sold_share_ppm: u32) -> Ledger {
        Ledger::new(self.device_floor(), self.domain_floor(cores), sold_share_ppm)
    }

    /// Returns the mixed IOPS of 16 KiB that may be sold in all, if `sold_share_ppm` of it may.
    #[must_use]
    pub fn sells_up_to(&self, cores: u16, sold_share_ppm: u32) -> u32 {
        let ledger = self.ledger(cores, sold_share_ppm);
        ledger.per_second_max(VolumeId::from_bits(0), &Reservation::of_iops(0))
    }

    /// Returns the least channel time per second of any second of the lasting load; of all of it,
    /// if that is shorter. Parts at the end that make no whole second count with the second before.
    fn lasting(&self, parts: &[MixedPart]) -> Option<u128> {
        let mut seconds: Vec<MixedPart> = Vec::new();
        for part in parts {
            match seconds.last_mut().filter(|second| second.elapsed.ns < NS_PER_S) {
                Some(second) => *second = together(second, part),
                None => seconds.push(*part),
            }
        }
        if let [.., before, last] = seconds.as_mut_slice()
            && last.elapsed.ns < NS_PER_S
        {
            *before = together(before, last);
            seconds.pop();
        }
        let costs = self.costs;
        let delivered = |second: &MixedPart| {
            let time = u128::from(second.reads) * costs.read.ns(REFERENCE_BYTES)
                + u128::from(second.writes) * costs.write.ns(REFERENCE_BYTES);
            time * u128::from(NS_PER_S) / u128::from(second.elapsed.ns.max(1))
        };
        seconds.iter().map(delivered).min().filter(|&time| time > 0)
    }
}

fn together(one: &MixedPart, other: &MixedPart) -> MixedPart {
    MixedPart {
        reads: one.reads + other.reads,
        writes: one.writes + other.writes,
        elapsed: one.elapsed + other.elapsed,
    }
}

fn channel_costs(channels: u32, rates: &[Rate], missing: &'static str) -> Result<Fit, Unusable> {
    fit(&points(rates, |rate| rate.elapsed, channels)).ok_or(Unusable { missing })
}

/// Returns the time that a request of each length took of `channels` channels.
fn points(rates: &[Rate], time: impl Fn(&Rate) -> Duration, channels: u32) -> Vec<Point> {
    let point = |rate: &Rate| {
        let ps = u128::from(time(rate).ns) * 1_000 * u128::from(channels);
        Point { length: rate.length, ps: saturating(ps / u128::from(rate.requests)) }
    };
    rates.iter().filter(|rate| rate.requests > 0).map(point).collect()
}

/// Returns the least target within which most of the curve's maximum is delivered, and the rate
/// within it.
fn target(curve: &[CurvePoint]) -> (Option<Duration>, Option<u64>) {
    let best = curve.iter().map(|point| point.per_second).max().unwrap_or(0);
    let most = u128::from(best) * u128::from(MOST_PPM) / u128::from(PPM);
    let kept = TARGETS_MS.iter().find_map(|&ms| {
        let target = Duration::from_ms(ms);
        let within = curve.iter().filter(|point| point.p99 <= target);
        let kept = within.map(|point| point.per_second).max()?;
        (u128::from(kept) >= most).then_some((target, kept))
    });
    kept.map_or((None, None), |(target, kept)| (Some(target), Some(kept)))
}
