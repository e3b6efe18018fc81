//! Latencies: percentiles with a relative error of at most 0.1 %, over a run and second by second.
//!
//! The buckets are those of an HDR histogram of three digits: one for each nanosecond up to 2,047,
//! and from there on 1,024 of equal width for each doubling. A histogram also knows the range of
//! the buckets that are in use: those of one second of a steady volume are several dozen of 27,648.
//! Adding, emptying and summing up touch no others. The server uses the coarser histogram of
//! [`evenkeel_core::latency`] with 210 buckets for each volume and stage, whose numbers are a byte
//! in messages.

use evenkeel_core::convert::index;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Longest latency that is distinguished from longer ones: a minute, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Number of buckets for a doubling, as a power of two: half a bucket is less than a thousandth of
/// its value.
const DOUBLING_BITS: u32 = 10;
const DOUBLING: usize = 1 << DOUBLING_BITS;

/// Number of buckets: that of [`LATENCY_NS_MAX`], rounded up to whole doublings.
const BUCKETS: usize = bucket_of(LATENCY_NS_MAX).next_multiple_of(DOUBLING);

/// Shares of the I/Os for which a run's latencies are kept, in millionths, for a chart of their
/// distribution. They are closer to each other in the tail.
pub const SHARES_PPM: [u64; 26] = [
    10_000, 50_000, 100_000, 200_000, 250_000, 300_000, 400_000, 500_000, 600_000, 700_000,
    750_000, 800_000, 850_000, 900_000, 925_000, 950_000, 970_000, 980_000, 990_000, 995_000,
    998_000, 999_000, 999_500, 999_900, 999_990, 1_000_000,
];

/// The latencies of many I/Os. It takes at most 216 KiB, whatever the number of I/Os.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    /// Number of I/Os in each bucket.
    counts: Vec<u64>,
    /// The lowest bucket in use, and one more than the highest.
    lowest: usize,
    end: usize,
    count: u64,
    longest_ns: u64,
}

/// A summary of many latencies, in nanoseconds. A figure that was not measured is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of I/Os.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum, exact.
    pub max_ns: u64,
}

impl LatencySummary {
    /// Creates a summary from the count and the sum of another source. The other figures are zero.
    #[must_use]
    pub fn of_sum(count: u64, sum_ns: u64) -> Self {
        Self { count, mean_ns: sum_ns.checked_div(count).unwrap_or(0), ..Self::default() }
    }
}

impl LatencyHistogram {
    /// Creates an empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: vec![0; BUCKETS], lowest: BUCKETS, end: 0, count: 0, longest_ns: 0 }
    }

    /// Counts one I/O. A latency above a minute counts as a minute, except in the maximum.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.record_all(latency_ns, 1);
    }

    /// Counts `ios` I/Os of one latency.
    #[inline]
    pub fn record_all(&mut self, latency_ns: u64, ios: u64) {
        if ios == 0 {
            return;
        }
        let bucket = bucket_of(latency_ns.clamp(1, LATENCY_NS_MAX));
        self.counts[bucket] += ios;
        self.count += ios;
        self.longest_ns = self.longest_ns.max(latency_ns);
        self.lowest = self.lowest.min(bucket);
        self.end = self.end.max(bucket + 1);
    }

    /// Returns the summary.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let total = self.count as f64;
        let rank = |quantile: f64| (quantile * total).ceil() as u64;
        let mut mean = 0.0;
        let mut seen = 0;
        let mut quantiles = [(rank(0.5), 0), (rank(0.99), 0), (rank(0.999), 0)];
        for (bucket, &count) in self.hit().zip(&self.counts[self.hit()]) {
            if count == 0 {
                continue;
            }
            let values = values_of(bucket);
            mean += (values.start + (values.end - values.start) / 2) as f64 * count as f64 / total;
            for (rank, at_rank) in &mut quantiles {
                if seen < *rank {
                    // The upper edge of a bucket may be above the longest latency in it.
                    *at_rank = (values.end - 1).min(self.longest_ns);
                }
            }
            seen += count;
        }
        let [(_, p50_ns), (_, p99_ns), (_, p999_ns)] = quantiles;
        let count = self.count;
        let max_ns = self.longest_ns;
        LatencySummary { count, mean_ns: mean.round() as u64, p50_ns, p99_ns, p999_ns, max_ns }
    }

    /// Returns the upper bounds of the latencies of the shares of I/Os in [`SHARES_PPM`], in
    /// nanoseconds; empty without I/Os.
    #[must_use]
    pub fn quantiles(&self) -> Vec<u64> {
        let mut found = Vec::with_capacity(SHARES_PPM.len());
        let total = u128::from(self.count);
        let ranks: Vec<u64> = SHARES_PPM
            .iter()
            .map(|ppm| (total * u128::from(*ppm)).div_ceil(1_000_000) as u64)
            .collect();
        let mut seen = 0;
        for (bucket, &count) in self.hit().zip(&self.counts[self.hit()]) {
            seen += count;
            let highest = (values_of(bucket).end - 1).min(self.longest_ns);
            while count > 0 && ranks.get(found.len()).is_some_and(|rank| *rank <= seen) {
                found.push(highest);
            }
        }
        found
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        let both = self.counts[other.hit()].iter_mut().zip(&other.counts[other.hit()]);
        for (count, more) in both {
            *count += more;
        }
        self.count += other.count;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.lowest = self.lowest.min(other.lowest);
        self.end = self.end.max(other.end);
    }

    /// Removes all counts, and keeps the memory.
    pub fn reset(&mut self) {
        let hit = self.hit();
        self.counts[hit].fill(0);
        (self.lowest, self.end) = (BUCKETS, 0);
        self.count = 0;
        self.longest_ns = 0;
    }

    /// Returns the range from the lowest to the highest bucket in use.
    fn hit(&self) -> Range<usize> {
        self.lowest.min(self.end)..self.end
    }
}

/// Returns the bucket of a latency: below two doublings the number itself, then as many of its
/// leading bits as distinguish it.
const fn bucket_of(latency_ns: u64) -> usize {
    let below_two = latency_ns | (2 * DOUBLING as u64 - 1);
    let shift = below_two.ilog2() - DOUBLING_BITS;
    shift as usize * DOUBLING + (latency_ns >> shift) as usize
}

/// Returns the latencies of a bucket.
const fn values_of(bucket: usize) -> Range<u64> {
    let shift = (bucket / DOUBLING).saturating_sub(1);
    let first = (bucket - shift * DOUBLING) as u64;
    first << shift..(first + 1) << shift
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
    /// Creates the recorder of a run of `duration_s` seconds. Later completions count in the whole
    /// run only.
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
        let second = index(time_ms / 1_000).min(self.seconds);
        while self.per_second.len() < second {
            self.close_second();
        }
        // A record that steps back over the edge of a second counts in the later second.
        if self.per_second.len() < self.seconds {
            self.second.record(latency_ns);
        }
    }

    /// Returns the summary of the whole run, and of each second of it. A second without I/O has a
    /// count of zero.
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
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

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
    fn sum_of_histograms_counts_both() {
        let mut sum = LatencyHistogram::new();
        let mut all = LatencyHistogram::new();
        let mut part = LatencyHistogram::new();
        for (index, ns) in [1, 70_000, 5, u64::MAX, 800_000_000, 3].into_iter().enumerate() {
            if index < 3 { &mut sum } else { &mut part }.record(ns);
            all.record(ns);
        }
        sum.add(&part);
        assert_eq!(sum.summary(), all.summary());
    }

    #[test]
    fn shares_of_a_thousand_different_latencies() {
        let mut histogram = LatencyHistogram::new();
        (1..=1_000_u64).for_each(|ns| histogram.record(ns));
        let quantiles = histogram.quantiles();
        let index = |ppm: u64| {
            let place = SHARES_PPM.iter().position(|share| *share == ppm).unwrap();
            quantiles[place]
        };
        assert_eq!(quantiles.len(), SHARES_PPM.len());
        assert_eq!([10_000, 500_000, 950_000, 999_000].map(index), [10, 500, 950, 999]);
        assert_eq!([999_500, 1_000_000].map(index), [1_000, 1_000]);
        let summary = histogram.summary();
        assert_eq!([index(500_000), index(990_000)], [summary.p50_ns, summary.p99_ns]);
        let mut latency_histogram = LatencyHistogram::new();
        assert_eq!(latency_histogram.quantiles(), Vec::<u64>::new());
        latency_histogram.record(70_000);
        assert_eq!(latency_histogram.quantiles(), [70_000; SHARES_PPM.len()]);
        assert!(SHARES_PPM.is_sorted());
    }

    #[test]
    fn empty_histogram_is_zero_and_extremes_do_not_panic() {
        assert_eq!(LatencyHistogram::new().summary(), LatencySummary::default());
        let mut histogram = LatencyHistogram::new();
        histogram.record(0);
        histogram.record(u64::MAX);
        assert_eq!(histogram.summary().max_ns, u64::MAX);
    }

    #[test]
    fn buckets_are_adjacent_and_hold_their_values() {
        for bucket in 0..BUCKETS {
            let values = values_of(bucket);
            assert_eq!(bucket_of(values.start), bucket);
            assert_eq!(bucket_of(values.end - 1), bucket);
            assert_eq!(values.end, values_of(bucket + 1).start);
        }
        assert!(bucket_of(LATENCY_NS_MAX) < BUCKETS);
    }

    proptest! {
        /// To the last digit, whether recorded in one histogram or in two that are added.
        #[test]
        fn the_figures_are_an_hdr_histograms(
            draws in prop::collection::vec((0_u32..36, any::<u64>()), 0..400), parts in 1_usize..4,
        ) {
            let mut oracle = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3).unwrap();
            let mut sum = LatencyHistogram::new();
            let mut part = LatencyHistogram::new();
            let mut longest_ns = 0;
            for some in draws.chunks(draws.len().div_ceil(parts).max(1)) {
                part.reset();
                for (bits, random) in some {
                    let latency_ns = (random & ((2 << bits) - 1)).min(LATENCY_NS_MAX);
                    part.record(latency_ns);
                    oracle.record(latency_ns.max(1)).unwrap();
                    longest_ns = longest_ns.max(latency_ns);
                }
                sum.add(&part);
            }
            let at = |quantile| oracle.value_at_quantile(quantile).min(longest_ns);
            prop_assert_eq!(sum.summary(), LatencySummary {
                count: oracle.len(),
                mean_ns: oracle.mean().round() as u64,
                p50_ns: at(0.5),
                p99_ns: at(0.99),
                p999_ns: at(0.999),
                max_ns: longest_ns,
            });
        }
    }

    #[test]
    fn latencies_count_in_their_second_and_late_ones_in_the_whole_run() {
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
