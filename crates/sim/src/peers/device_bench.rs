//! Several volumes on one device, in virtual time: the figures that distinguish schedulers.
//!
//! The device has channels and, before them, a queue of its own that is served in order of arrival;
//! what a policy has given it cannot be taken back. Clients keep so many requests under way and may
//! pause between the answer to one and the next. The policy's timers go off on time: what is shown
//! here is order, not lateness.

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use serde::Serialize;

use super::loaded::{self, Setting, Tally};
use super::noise::Quantiles;
use super::windowed::DeviceCost;
use crate::figures::histogram::LatencySummary;
use crate::world::policy::Policy;

/// A device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Device {
    /// Requests served at a time.
    pub channels: u32,
    /// Median of what a request takes.
    pub cost: DeviceCost,
    /// Spread of the log-normal service times.
    pub sigma: f64,
}

impl Device {
    /// 32 channels, 80 us and 4 ns a byte: 220,000 I/Os of 16 KiB or 7.4 GB/s of 256 KiB a second.
    pub const NVME: Self =
        Self { channels: 32, cost: DeviceCost { request_ns: 80_000, byte_ns: 4 }, sigma: 0.2 };
}

/// The one client of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Client {
    /// Requests under way at a time.
    pub depth: u32,
    /// Bytes of each request.
    pub length: u32,
    /// From the answer to a request to the next one.
    pub pause: Duration,
    /// What the requests do.
    pub operation: Operation,
}

/// What a volume got, after the warm-up.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Got {
    /// Requests done per second, on average.
    pub per_second: f64,
    /// Requests done in the worst second.
    pub worst_second: u64,
    /// Bytes per second, on average.
    pub bytes_per_second: f64,
    /// From submission to the last piece's completion.
    pub latency: LatencySummary,
}

/// Runs clients, one a volume and numbered as they are, for `seconds` seconds after `warm_up_s`.
pub fn run<P: Policy + ?Sized>(
    policy: &mut P,
    device: &Device,
    clients: &[Client],
    warm_up_s: u32,
    seconds: u32,
    seed: u64,
) -> Vec<Got> {
    let setting = Setting {
        device,
        clients,
        service: &Quantiles::log_normal(device.sigma),
        lateness: None,
        start: Instant::ZERO,
        warm_up_s,
        measured_s: seconds,
    };
    let got = |(client, tally): (&Client, Tally)| {
        let measured = &tally.answered[warm_up_s as usize..];
        let seconds = measured.len().max(1) as f64;
        let per_second = measured.iter().sum::<u64>() as f64 / seconds;
        Got {
            per_second,
            worst_second: measured.iter().min().copied().unwrap_or(0),
            bytes_per_second: per_second * f64::from(client.length),
            latency: tally.latencies.summary(),
        }
    };
    clients.iter().zip(loaded::run(policy, &setting, seed)).map(got).collect()
}
