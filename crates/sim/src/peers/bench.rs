//! One volume at its limit, in virtual time: the figures that distinguish limiters.
//!
//! A closed loop of so many requests at a time meets a device that serves any number at once, each
//! in a log-normal time. Whatever timer a policy asks for goes off late: exponentially distributed
//! with a mean of 15 us, and one in a thousand 1.5 ms later still, as an event loop that is busy
//! with something else. The loop starts after the volume has been idle; what is sent in its first
//! second is one figure, and after a warm-up the seconds that follow are the others.

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use serde::Serialize;

use super::device_bench::{Client, Device};
use super::loaded::{self, SECOND_NS, Setting, Tally, WINDOW_NS};
use super::noise::Quantiles;
use super::windowed::DeviceCost;
use crate::world::policy::Policy;

/// Spread of the device's service times.
const SERVICE_SIGMA: f64 = 0.35;
/// The volume is idle for this long before the load begins.
pub const IDLE: Duration = Duration::from_secs(3);

/// What meets the limiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    /// I/Os per second the volume is limited to, for the figures.
    pub limit: u64,
    /// Requests the client has under way at a time.
    pub depth: u32,
    /// Bytes of each request.
    pub length: u32,
    /// Median of the device's service time.
    pub service: Duration,
    /// When the load begins; the policy was made at time zero.
    pub start: Instant,
    /// Seconds before those that are measured.
    pub warm_up_s: u32,
    /// Seconds that are measured.
    pub measured_s: u32,
}

impl Load {
    /// Reads of 4 KiB at this depth against this limit, on a device of 250 us: 60 seconds after 2,
    /// after [`IDLE`].
    #[must_use]
    pub const fn new(limit: u64, depth: u32) -> Self {
        Self {
            limit,
            depth,
            length: 4_096,
            service: Duration::from_us(250),
            start: Instant::from_ns(IDLE.ns),
            warm_up_s: 2,
            measured_s: 60,
        }
    }
}

/// What a limiter made of the load. Ratios are relative to the limit: 0.01 is one percent too many.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Figures {
    /// All measured seconds together.
    pub mean_error: f64,
    /// Coefficient of variation of the seconds' counts.
    pub cov: f64,
    /// The second furthest from the limit.
    pub worst_second: f64,
    /// The first second after idle.
    pub first_second: f64,
    /// The busiest 10 ms, of those that begin at whole ones, as a multiple of the limit's average.
    pub peak_10_ms: f64,
    /// Median latency in nanoseconds, from submission to completion.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Requests given to the device from the beginning of the load.
    pub dispatched: u64,
}

/// The distributions, which are the same for all runs.
#[derive(Debug)]
pub struct Noise {
    service: Quantiles,
    lateness: Quantiles,
}

impl Noise {
    /// Makes the tables.
    #[must_use]
    pub fn new() -> Self {
        Self { service: Quantiles::log_normal(SERVICE_SIGMA), lateness: Quantiles::exponential() }
    }
}

impl Default for Noise {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs a load on a policy that was made at time zero and carries the one volume 0.
pub fn run<P: Policy + ?Sized>(policy: &mut P, load: &Load, noise: &Noise, seed: u64) -> Figures {
    let cost = DeviceCost { request_ns: load.service.ns, byte_ns: 0 };
    let device = Device { channels: u32::MAX, cost, sigma: SERVICE_SIGMA };
    let client = Client {
        depth: load.depth,
        length: load.length,
        pause: Duration::ZERO,
        operation: Operation::Read,
    };
    let setting = Setting {
        device: &device,
        clients: &[client],
        service: &noise.service,
        lateness: Some(&noise.lateness),
        start: load.start,
        warm_up_s: load.warm_up_s,
        measured_s: load.measured_s,
    };
    let tallies = loaded::run(policy, &setting, seed);
    tallies.first().map_or_else(Figures::default, |tally| figures(load, tally))
}

fn figures(load: &Load, tally: &Tally) -> Figures {
    let windows_per_second = (SECOND_NS / WINDOW_NS) as usize;
    let sum = |windows: &[u32]| windows.iter().map(|count| u64::from(*count)).sum();
    let seconds: Vec<u64> = tally.dispatched.chunks(windows_per_second).map(sum).collect();
    let warm_up = load.warm_up_s as usize;
    let limit = load.limit as f64;
    let error = |count: u64| count as f64 / limit - 1.0;
    let measured = &seconds[warm_up..];
    let count = measured.len().max(1) as f64;
    let mean = measured.iter().sum::<u64>() as f64 / count;
    let squares = measured.iter().map(|n| (*n as f64 - mean) * (*n as f64 - mean)).sum::<f64>();
    let furthest = |one: &f64, other: &f64| one.abs().total_cmp(&other.abs());
    let steady = &tally.dispatched[warm_up * windows_per_second..];
    let peak = steady.iter().max().copied().unwrap_or(0);
    let latency = tally.latencies.summary();
    Figures {
        mean_error: if measured.is_empty() { 0.0 } else { mean / limit - 1.0 },
        cov: if mean > 0.0 { (squares / count).sqrt() / mean } else { 0.0 },
        worst_second: measured.iter().map(|n| error(*n)).max_by(furthest).unwrap_or(0.0),
        first_second: seconds.first().map_or(0.0, |n| error(*n)),
        peak_10_ms: f64::from(peak) * windows_per_second as f64 / limit,
        p50_ns: latency.p50_ns,
        p99_ns: latency.p99_ns,
        dispatched: seconds.iter().sum(),
    }
}
