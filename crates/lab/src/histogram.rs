//! Latencies: percentiles with a relative error of at most 0.1 %, over a run and second by second.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest latency that is told apart from longer ones: a minute in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The latencies of many I/Os. Bounded: about 250 KiB whatever the number of I/Os.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    inner: Histogram<u64>,
    longest_ns: u64,
}

/// What is reported of many latencies. All in nanoseconds; zero when nothing was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// I/Os counted.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
}

impl LatencyHistogram {
    /// An empty histogram.
    ///
    /// # Panics
    /// Never: the bounds are constants that the histogram accepts.
    #[must_use]
    pub fn new() -> Self {
        let inner = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("1 ns to 60 s with three digits are valid bounds");
        Self { inner, longest_ns: 0 }
    }

    /// Counts one I/O. Longer than a minute counts as a minute, except in the maximum.
    pub fn record(&mut self, latency_ns: u64) {
        self.inner.saturating_record(latency_ns.max(1));
        self.longest_ns = self.longest_ns.max(latency_ns);
    }

    /// The figures that are reported.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        if self.inner.is_empty() {
            return LatencySummary::default();
        }
        // A bucket's upper edge may lie above the longest value it holds.
        let at = |quantile| self.inner.value_at_quantile(quantile).min(self.longest_ns);
        LatencySummary {
            count: self.inner.len(),
            mean_ns: self.inner.mean().round() as u64,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.longest_ns,
        }
    }

    /// Counts all that `other` counted, too.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so nothing can be out of range.
        let _ = self.inner.add(&other.inner);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Empties it, keeping the memory.
    pub fn reset(&mut self) {
        self.inner.reset();
        self.longest_ns = 0;
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

/// Latencies of a run and of each of its seconds, from records in order of completion.
#[derive(Debug)]
pub struct LatencyRecorder {
    whole: LatencyHistogram,
    second: LatencyHistogram,
    per_second: Vec<LatencySummary>,
    seconds: usize,
}

impl LatencyRecorder {
    /// For a run of `duration_s` seconds; what completes later counts in the whole only.
    #[must_use]
    pub fn new(duration_s: u32) -> Self {
        Self {
            whole: LatencyHistogram::new(),
            second: LatencyHistogram::new(),
            per_second: Vec::new(),
            seconds: duration_s as usize,
        }
    }

    /// Counts an I/O that completed `time_ms` after the start.
    pub fn record(&mut self, time_ms: u64, latency_ns: u64) {
        self.whole.record(latency_ns);
        let second = usize::try_from(time_ms / 1_000).unwrap_or(usize::MAX).min(self.seconds);
        while self.per_second.len() < second {
            self.close_second();
        }
        // A record that steps back over a second's edge counts in the later second.
        if self.per_second.len() < self.seconds {
            self.second.record(latency_ns);
        }
    }

    /// The whole run and each second of it; seconds without I/O are there, with a count of zero.
    #[must_use]
    pub fn finish(mut self) -> (LatencySummary, Vec<LatencySummary>) {
        while self.per_second.len() < self.seconds {
            self.close_second();
        }
        (self.whole.summary(), self.per_second)
    }

    fn close_second(&mut self) {
        self.per_second.push(self.second.summary());
        self.second.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut histogram = LatencyHistogram::new();
        for us in 1..=10_000_u64 {
            histogram.record(us * 1_000);
        }
        let summary = histogram.summary();
        let near = |got: u64, want: u64| got.abs_diff(want) * 1_000 <= want;
        assert!(near(summary.p50_ns, 5_000_000), "{summary:?}");
        assert!(near(summary.p99_ns, 9_900_000), "{summary:?}");
        assert!(near(summary.p999_ns, 9_990_000), "{summary:?}");
        assert_eq!((summary.max_ns, summary.count), (10_000_000, 10_000));
    }

    #[test]
    fn a_sum_counts_what_both_counted() {
        let (mut sum, mut all) = (LatencyHistogram::new(), LatencyHistogram::new());
        let mut part = LatencyHistogram::new();
        for (index, ns) in [1, 70_000, 5, u64::MAX, 800_000_000, 3].into_iter().enumerate() {
            if index < 3 { &mut sum } else { &mut part }.record(ns);
            all.record(ns);
        }
        sum.add(&part);
        assert_eq!(sum.summary(), all.summary());
    }

    #[test]
    fn nothing_measured_is_zero_and_extremes_do_not_panic() {
        assert_eq!(LatencyHistogram::new().summary(), LatencySummary::default());
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.summary().max_ns, u64::MAX);
    }

    #[test]
    fn seconds_are_told_apart_and_stragglers_count_in_the_whole() {
        let mut recorder = LatencyRecorder::new(4);
        for (time_ms, latency_ns) in [(0, 10), (999, 20), (1_000, 30), (3_999, 40), (4_000, 50)] {
            recorder.record(time_ms, latency_ns);
        }
        let (whole, seconds) = recorder.finish();
        assert_eq!((whole.count, whole.max_ns), (5, 50));
        let counts: Vec<u64> = seconds.iter().map(|second| second.count).collect();
        assert_eq!(counts, [2, 1, 0, 1]);
    }
}
