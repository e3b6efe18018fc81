//! Rates of a volume of an Evenkeel server: differences of its counters over the last minutes.

use std::collections::VecDeque;

/// The most samples of a volume: those of an hour with one every second.
const SAMPLES_MAX: usize = 3_600;
const NS_PER_S: u64 = 1_000_000_000;
/// The time of a rate of bytes, in milliseconds.
const RATE_MS: u64 = 60_000;

/// The counters of a volume at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time_ms: u64,
    bytes: u64,
    /// Nanoseconds for which the limit in IOPS delayed requests, and the limit in bytes.
    exceeded_ns: [u64; 2],
}

/// The counters of a volume in the last minutes.
#[derive(Default, Debug)]
pub struct Meter(VecDeque<Sample>);

impl Meter {
    /// Adds a sample. If a counter or the time decreased, the server has started again: earlier
    /// samples are dropped.
    pub fn add(&mut self, time_ms: u64, bytes: u64, exceeded_ns: [u64; 2]) {
        if let Some(last) = self.0.back() {
            let is_reset = bytes < last.bytes
                || time_ms < last.time_ms
                || exceeded_ns.iter().zip(last.exceeded_ns).any(|(now, then)| *now < then);
            if is_reset {
                self.0.clear();
            } else if time_ms == last.time_ms {
                self.0.pop_back();
            }
        }
        self.0.push_back(Sample { time_ms, bytes, exceeded_ns });
        if self.0.len() > SAMPLES_MAX {
            self.0.pop_front();
        }
    }

    /// Returns the difference between the newest sample and the oldest of the last `span_ms`.
    fn over(&self, span_ms: u64) -> Option<(Sample, Sample)> {
        let newest = *self.0.back()?;
        let from_ms = newest.time_ms.saturating_sub(span_ms);
        let oldest = *self.0.iter().find(|sample| sample.time_ms >= from_ms)?;
        (oldest.time_ms < newest.time_ms).then_some((oldest, newest))
    }

    /// Returns the seconds of the window in which a limit delayed requests, rounded up; `None`
    /// with fewer than two samples. A younger meter knows a part of the window only.
    pub fn exceeded_s(&self, window_s: u32) -> Option<u32> {
        let (oldest, newest) = self.over(u64::from(window_s) * 1_000)?;
        let delayed = newest.exceeded_ns.iter().zip(oldest.exceeded_ns);
        let longest_ns = delayed.map(|(now, then)| now - then).max()?;
        let span_s = (newest.time_ms - oldest.time_ms).div_ceil(1_000);
        let exceeded_s = longest_ns.div_ceil(NS_PER_S).min(span_s).min(window_s.into());
        Some(u32::try_from(exceeded_s).expect("invariant: at most the window"))
    }

    /// Returns the bytes a second of the last minute, rounded up.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let (oldest, newest) = self.over(RATE_MS)?;
        let bytes = u128::from(newest.bytes - oldest.bytes) * 1_000;
        let rate = bytes.div_ceil(u128::from(newest.time_ms - oldest.time_ms));
        Some(u64::try_from(rate).expect("invariant: counters have 64 bits, and intervals a second"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = NS_PER_S;

    #[test]
    fn seconds_and_rates_are_differences_within_the_window() {
        let mut meter = Meter::default();
        assert_eq!((meter.exceeded_s(900), meter.bytes_per_second()), (None, None));
        meter.add(1_000, 500, [7 * S, 0]);
        assert_eq!((meter.exceeded_s(900), meter.bytes_per_second()), (None, None));
        meter.add(11_000, 10_500, [10 * S, S / 2]);
        assert_eq!((meter.exceeded_s(900), meter.bytes_per_second()), (Some(3), Some(1_000)));
        meter.add(111_000, 10_500, [10 * S, 5 * S]);
        assert_eq!((meter.exceeded_s(900), meter.bytes_per_second()), (Some(5), None));
        assert_eq!(meter.exceeded_s(100), Some(5));
        meter.add(112_000, 10_501, [10 * S, 5 * S]);
        assert_eq!((meter.exceeded_s(10), meter.bytes_per_second()), (Some(0), Some(1)));
    }

    #[test]
    fn server_that_started_again_begins_a_new_history() {
        let mut meter = Meter::default();
        meter.add(1_000, 500, [7 * S, 0]);
        meter.add(2_000, 100, [0, 0]);
        assert_eq!(meter.exceeded_s(900), None);
        meter.add(3_000, 100, [S, 0]);
        assert_eq!(meter.exceeded_s(900), Some(1));
        meter.add(3_000, 200, [S, 0]);
        assert_eq!(meter.bytes_per_second(), Some(100));
    }

    #[test]
    fn history_is_bounded() {
        let mut meter = Meter::default();
        (0..SAMPLES_MAX as u64 + 10).for_each(|second| meter.add(second * 1_000, 0, [0, 0]));
        assert_eq!(meter.0.len(), SAMPLES_MAX);
    }
}
