//! Time that requests spend in each stage: histograms of bounded error and size, and a sum for each
//! cause.

use crate::convert::index;
use crate::qos::Exceeded;
use crate::time::Duration;

/// Durations below 2^10 ns are in the first bucket.
const SHORTEST_LOG2: u32 = 10;
/// Durations from 2^36 ns (68.7 s) on are in the last bucket.
const LONGEST_LOG2: u32 = 36;
/// Buckets of equal width in each doubling, as a power of two.
const SUB_LOG2: u32 = 3;
/// The first bucket, eight for each doubling in between, and the last one.
const BUCKETS: usize = 210;
const _: () = assert!(BUCKETS <= 1 << u8::BITS);
const _: () = assert!(BUCKETS == 2 + 26 * 8 && LONGEST_LOG2 - SHORTEST_LOG2 == 26 && SUB_LOG2 == 3);

/// Counts of durations, each exact to an eighth of its value from 1 us to 68 s.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], count: 0, sum_ns: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        self.counts[bucket_of(duration.ns)] += 1;
        self.count += 1;
        self.sum_ns = self.sum_ns.saturating_add(duration.ns);
    }

    /// Counts `count` equal durations.
    pub fn record_many(&mut self, duration: Duration, count: u64) {
        let bucket = &mut self.counts[bucket_of(duration.ns)];
        *bucket = bucket.saturating_add(count);
        self.count = self.count.saturating_add(count);
        self.sum_ns = self.sum_ns.saturating_add(duration.ns.saturating_mul(count));
    }

    /// Returns the first duration of each filled bucket, and its count: recording these elsewhere
    /// gives the same counts (and a sum that is up to an eighth too small).
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let starts = (0..BUCKETS).map(|bucket| match bucket.checked_sub(1) {
            Some(before) => end_of(before).unwrap_or(Duration::ZERO),
            None => Duration::ZERO,
        });
        starts.zip(self.counts.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Returns the place and the count of each filled bucket, in ascending order.
    pub fn filled(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        (0..=u8::MAX).zip(self.counts).filter(|(_, count)| *count > 0)
    }

    /// Adds to the count of the bucket at a place, without adding to the sum. Returns whether there
    /// is such a bucket.
    pub fn fill(&mut self, place: u8, count: u64) -> bool {
        let Some(bucket) = self.counts.get_mut(usize::from(place)) else { return false };
        *bucket = bucket.saturating_add(count);
        self.count = self.count.saturating_add(count);
        true
    }

    /// Sets the sum of all durations that were counted.
    pub const fn set_sum(&mut self, sum: Duration) {
        self.sum_ns = sum.ns;
    }

    /// Returns the number of durations.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns their exact sum.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        Duration::from_ns(self.sum_ns)
    }

    /// Returns the number of durations of at most `bound`, to within a bucket: those in `bound`'s
    /// own bucket count only if `bound` is its end.
    #[must_use]
    pub fn at_most(&self, bound: Duration) -> u64 {
        let ended = |bucket: &usize| end_of(*bucket).is_some_and(|end| end.ns <= bound.ns);
        (0..BUCKETS).take_while(ended).map(|bucket| self.counts[bucket]).sum()
    }

    /// Returns a duration that `per_mille` thousandths of all durations do not exceed, at most an
    /// eighth too long; zero if there are none. A duration in the last bucket is reported as the
    /// bucket's beginning.
    #[must_use]
    pub fn quantile(&self, per_mille: u64) -> Duration {
        let rank = (u128::from(self.count) * u128::from(per_mille.min(1_000))).div_ceil(1_000);
        let mut seen = 0_u128;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= rank {
                let last = Duration::from_ns(1 << LONGEST_LOG2);
                return end_of(bucket).unwrap_or(last);
            }
        }
        Duration::ZERO
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Returns the difference to `earlier`, an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = self.clone();
        for (count, before) in since.counts.iter_mut().zip(&earlier.counts) {
            *count = count.saturating_sub(*before);
        }
        since.count = since.count.saturating_sub(earlier.count);
        since.sum_ns = since.sum_ns.saturating_sub(earlier.sum_ns);
        since
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < 1 << SHORTEST_LOG2 {
        return 0;
    }
    let log2 = ns.ilog2();
    if log2 >= LONGEST_LOG2 {
        return BUCKETS - 1;
    }
    let sub = ns >> (log2 - SUB_LOG2) & ((1 << SUB_LOG2) - 1);
    let doubling = u64::from(log2 - SHORTEST_LOG2) << SUB_LOG2;
    index(1 + doubling + sub)
}

/// Returns the first duration after a bucket; `None` for the last one.
fn end_of(bucket: usize) -> Option<Duration> {
    let bucket = u32::try_from(bucket).ok()?;
    if bucket + 1 >= u32::try_from(BUCKETS).ok()? {
        return None;
    }
    let log2 = SHORTEST_LOG2 + (bucket >> SUB_LOG2);
    let sub = u64::from(bucket & ((1 << SUB_LOG2) - 1));
    Some(Duration::from_ns((1 << log2) + (sub << (log2 - SUB_LOG2))))
}

/// Stages in which a request spends time, in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// Waiting for its payload.
    Socket,
    /// Waiting for its volume's limit in I/Os, or its guard.
    VolumeOperations,
    /// Waiting for its volume's limit in bytes.
    VolumeBytes,
    /// Waiting for its instance's limit in I/Os.
    InstanceOperations,
    /// Waiting for its instance's limits in bytes.
    InstanceBytes,
    /// Waiting for room at the device.
    DeviceQueue,
    /// The server itself: waiting for payload memory, and the server's own lateness.
    Server,
    /// Service in the store and the device below it.
    Device,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Self; 8] = [
        Self::Socket,
        Self::VolumeOperations,
        Self::VolumeBytes,
        Self::InstanceOperations,
        Self::InstanceBytes,
        Self::DeviceQueue,
        Self::Server,
        Self::Device,
    ];

    /// Returns its name in metrics and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::VolumeOperations => "volume_iops",
            Self::VolumeBytes => "volume_bytes",
            Self::InstanceOperations => "instance_iops",
            Self::InstanceBytes => "instance_bytes",
            Self::DeviceQueue => "device_queue",
            Self::Server => "server",
            Self::Device => "device",
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::Socket => 0,
            Self::VolumeOperations => 1,
            Self::VolumeBytes => 2,
            Self::InstanceOperations => 3,
            Self::InstanceBytes => 4,
            Self::DeviceQueue => 5,
            Self::Server => 6,
            Self::Device => 7,
        }
    }
}

/// Time that the requests of one kind of one volume spent in each stage.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// From a request's arrival to its reply.
    pub total: Histogram,
    /// Time in the store and the device below it, quantum by quantum.
    pub device: Histogram,
    /// Time of waiting for limits, turns, room and memory, quantum by quantum.
    pub waits: Histogram,
    /// Sums in nanoseconds, by stage.
    sums_ns: [u64; 8],
}

impl Latency {
    /// Adds time spent in a stage to its sum.
    pub const fn spend(&mut self, stage: Stage, time: Duration) {
        let sum = &mut self.sums_ns[stage.place()];
        *sum = sum.saturating_add(time.ns);
    }

    /// Records a wait of `wait` in all, and divides it among the stages: by the growth of the
    /// volume's account meanwhile, in the order of the stages; the rest is the server's.
    pub fn waited(&mut self, wait: Duration, before: &Exceeded, after: &Exceeded) {
        self.waits.record(wait);
        let mut left_ns = wait.ns;
        for (stage, before_ns, after_ns) in [
            (Stage::VolumeOperations, before.operations_ns, after.operations_ns),
            (Stage::VolumeOperations, before.guard_ns, after.guard_ns),
            (Stage::VolumeBytes, before.bytes_ns, after.bytes_ns),
            (
                Stage::InstanceOperations,
                before.instance_operations_ns,
                after.instance_operations_ns,
            ),
            (Stage::InstanceBytes, before.instance_bytes_ns, after.instance_bytes_ns),
            (Stage::DeviceQueue, before.device_ns, after.device_ns),
        ] {
            let spent_ns = after_ns.saturating_sub(before_ns).min(left_ns);
            self.spend(stage, Duration::from_ns(spent_ns));
            left_ns -= spent_ns;
        }
        self.spend(Stage::Server, Duration::from_ns(left_ns));
    }

    /// Returns the time spent in a stage, by all requests together.
    #[must_use]
    pub const fn spent(&self, stage: Stage) -> Duration {
        Duration::from_ns(self.sums_ns[stage.place()])
    }

    /// Returns the difference to `earlier`, an earlier state.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut sums_ns = self.sums_ns;
        for (sum, before) in sums_ns.iter_mut().zip(&earlier.sums_ns) {
            *sum = sum.saturating_sub(*before);
        }
        Self {
            total: self.total.since(&earlier.total),
            device: self.device.since(&earlier.device),
            waits: self.waits.since(&earlier.waits),
            sums_ns,
        }
    }
}

/// Time that the requests of one volume spent in each stage. Requests without payload are not
/// included.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    /// Reads.
    pub reads: Latency,
    /// Writes.
    pub writes: Latency,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        /// Compares quantiles with those of the sorted durations.
        #[test]
        fn quantiles_are_an_eighth_too_long_at_most(
            times_ns in proptest::collection::vec(
                prop_oneof![0..5_000_u64, 0..100_000_000_u64, 0..(1_u64 << LONGEST_LOG2)],
                1..300,
            ),
            per_mille in 1..=1_000_u64,
        ) {
            let mut histogram = Histogram::default();
            for ns in &times_ns {
                histogram.record(Duration::from_ns(*ns));
            }
            let mut sorted: Vec<u64> = times_ns.clone();
            sorted.sort_unstable();
            let length = u64::try_from(sorted.len()).unwrap();
            let rank = usize::try_from((length * per_mille).div_ceil(1_000)).unwrap();
            let exact = sorted[rank.max(1) - 1];
            let reported = histogram.quantile(per_mille).ns;
            prop_assert!(reported >= exact, "{reported} {exact}");
            let most = (exact + exact / 8 + 1).max(1 << SHORTEST_LOG2);
            prop_assert!(reported <= most, "{reported} {exact}");
            prop_assert_eq!(histogram.count(), length);
            prop_assert_eq!(histogram.sum().ns, times_ns.iter().sum::<u64>());
            let end = histogram.quantile(per_mille);
            let below = sorted.iter().filter(|ns| **ns < end.ns).count();
            prop_assert_eq!(usize::try_from(histogram.at_most(end)).unwrap(), below);
            let mut copy = Histogram::default();
            for (start, count) in histogram.buckets() {
                copy.record_many(start, count);
            }
            prop_assert_eq!((copy.counts, copy.count), (histogram.counts, histogram.count));
        }
    }

    #[test]
    fn buckets_lie_side_by_side() {
        for bucket in 0..BUCKETS - 1 {
            let end = end_of(bucket).unwrap().ns;
            assert_eq!((bucket_of(end - 1), bucket_of(end)), (bucket, bucket + 1), "{bucket}");
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn latency_since_a_copy_has_only_the_later_requests() {
        let mut all = Latency::default();
        let mut later = Latency::default();
        let record = |latency: &mut Latency, us| {
            latency.total.record(Duration::from_us(us));
            latency.spend(Stage::Device, Duration::from_us(us));
        };
        record(&mut all, 100);
        let before = all.clone();
        for us in [7, 70_000] {
            record(&mut all, us);
            record(&mut later, us);
        }
        assert_eq!(all.since(&before), later);
        let mut sum = before.total;
        sum.add(&later.total);
        assert_eq!(sum, all.total);
    }

    #[test]
    fn wait_is_divided_by_its_causes_and_the_rest_is_the_servers() {
        let before = Exceeded { operations_ns: 10, device_ns: 5, ..Exceeded::default() };
        let after = Exceeded { operations_ns: 40, device_ns: 1_005, ..Exceeded::default() };
        let mut latency = Latency::default();
        latency.waited(Duration::from_ns(1_100), &before, &after);
        let spent = |stage| latency.spent(stage).ns;
        assert_eq!((spent(Stage::VolumeOperations), spent(Stage::DeviceQueue)), (30, 1_000));
        assert_eq!(spent(Stage::Server), 70);
        // Several flows of a volume may wait at once: the sum of the stages is the wait in all
        // cases.
        latency.waited(Duration::from_ns(100), &before, &after);
        assert_eq!(
            latency.waits.sum().ns,
            Stage::ALL.into_iter().map(|s| latency.spent(s).ns).sum()
        );
    }

    #[test]
    fn stages_have_places_and_names_of_their_own() {
        for (place, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage.place(), place);
            assert!(Stage::ALL[..place].iter().all(|other| other.name() != stage.name()));
        }
    }
}
