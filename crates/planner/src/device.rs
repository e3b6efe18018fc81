//! The latency of the device, which no limit determines: the published one of a type, and the one
//! that a trace measured at its source.
//!
//! It is added to the waiting time that limits cause. Without a published or measured latency there
//! is none.

use crate::throttled::EMPTY_PPM;
use crate::trace::{Interval, Trace};
use evenkeel_core::convert::saturating;

/// Maximum use of the source's limits, in percent, of an interval that shows the latency of the
/// device.
const FREE_PERCENT: u128 = 90;

/// Returns the published upper bound of a type's latency in microseconds, of each request or on
/// average, from its words. Returns `None` if they have no number.
#[must_use]
pub fn published_below_us(words: &str) -> Option<u64> {
    if words == "single-digit milliseconds" {
        return Some(10_000);
    }
    let number = words.strip_prefix("average below ")?;
    let (number, unit) = number.split_once(' ')?;
    let is_us = unit == "us" || unit.starts_with("us ");
    number.parse().ok().filter(|_| is_us)
}

/// The measured latency of requests at the source, from arrival to answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Mean latency of a request, in microseconds.
    pub mean_us: u64,
    /// Number of requests in the mean.
    pub requests: u64,
    /// Whether the trace shows when the source's limits held requests back. If it does not, the
    /// mean may include waiting.
    pub is_free: bool,
}

/// Returns the mean over the intervals in which no limit of the source held requests back, as far
/// as the trace shows. Returns `None` if it has no latencies.
#[must_use]
pub fn measured(trace: &Trace) -> Option<Measured> {
    let source = &trace.source;
    let (mut ns, mut requests, mut is_free) = (0_u128, 0_u64, true);
    let knows_limits = source.iops.is_some() && source.bytes_per_second.is_some();
    for interval in trace.intervals.iter().filter(|interval| is_free_of_limits(trace, interval)) {
        let of = [(interval.reads, interval.read_ns), (interval.writes, interval.write_ns)];
        for (count, sum_ns) in of {
            let Some(sum_ns) = sum_ns.filter(|_| count > 0) else { continue };
            ns += u128::from(sum_ns);
            requests = requests.saturating_add(count);
            is_free &= knows_limits || interval.is_censored.is_some();
        }
    }
    let mean_ns = ns.checked_div(requests.into())?;
    let mean_us = saturating::<_, u64>(mean_ns / 1_000);
    Some(Measured { mean_us, requests, is_free })
}

fn is_free_of_limits(trace: &Trace, interval: &Interval) -> bool {
    let is_low = |amount: u64, limit: Option<u64>| {
        let allowed = |limit| u128::from(limit) * u128::from(interval.length_ms);
        limit.is_none_or(|limit: u64| {
            u128::from(amount) * 1_000 * 100 < allowed(limit) * FREE_PERCENT
        })
    };
    interval.is_censored != Some(true)
        && interval.delayed.instance != Some(true)
        && interval.balance_ppm.is_none_or(|ppm| ppm >= EMPTY_PPM)
        && is_low(interval.requests(), trace.source.iops)
        && is_low(interval.bytes(), trace.source.bytes_per_second)
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::{Date, Rules, VolumeType};

    use super::*;
    use crate::testing::minutes;
    use crate::trace::SourceLimits;

    #[test]
    fn what_is_published_is_a_number_or_not_stated() {
        let of = |date: &str, volume_type| {
            let date: Date = date.parse().unwrap();
            let words = Rules::as_of(date).unwrap().of(volume_type)?.promise.latency;
            let below_us = published_below_us(words);
            assert_eq!(below_us.is_none(), words == "not stated", "{date} {words}");
            below_us
        };
        for year in 2013..=2026 {
            for volume_type in VolumeType::ALL {
                of(&format!("{year}-06-01"), volume_type);
            }
        }
        let newest = |volume_type| of("2026-06-01", volume_type);
        assert_eq!(newest(VolumeType::Gp3), Some(10_000));
        assert_eq!(newest(VolumeType::Io2), Some(500));
        assert_eq!(newest(VolumeType::St1), None);
        assert_eq!(published_below_us("average below 1 ms"), None);
    }

    #[test]
    fn what_limits_held_back_does_not_count() {
        let mut trace = minutes(&[600, 600, 6_000, 600, 600]);
        for (interval, ms) in trace.intervals.iter_mut().zip([1, 2, 50, 70, 90]) {
            interval.read_ns = Some(interval.reads * ms * 1_000_000);
        }
        trace.intervals[3].is_censored = Some(true);
        trace.intervals[4].balance_ppm = Some(0);
        trace.source = SourceLimits {
            iops: Some(100),
            bytes_per_second: Some(1 << 30),
            ..SourceLimits::default()
        };
        let expected = Measured { mean_us: 1_500, requests: 1_200, is_free: true };
        assert_eq!(measured(&trace), Some(expected));
        trace.source = SourceLimits::default();
        let unknown = measured(&trace).unwrap();
        assert_eq!((unknown.requests, unknown.is_free), (7_200, false));
        assert_eq!(measured(&minutes(&[600])), None);
    }
}
