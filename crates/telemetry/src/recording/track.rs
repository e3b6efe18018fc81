//! Intervals of the differences between samples. Pure.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::Exceeded;

use super::codec::{Interval, Requests, Throttled, Work};
use crate::counters::{self, Counters, Looks};
use evenkeel_core::time::UnixMs;

/// Maximum time between two samples that are compared, in milliseconds; a longer time is a gap.
/// With many volumes there is a sample every ten seconds.
pub const INTERVAL_MS_MAX: u64 = 15_000;

const NS_PER_US: u64 = 1_000;

/// A sample of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Its counters.
    pub volume: counters::Sample,
    /// Credits, in millionths of its maximum; `None` without credits.
    pub balance_ppm: Option<u32>,
}

impl From<&Counters> for Work {
    fn from(added: &Counters) -> Self {
        let Counters { answered, read_bytes, write_bytes, exceeded, .. } = *added;
        let requests = |count, bytes, ns| Requests { count, bytes, us: us(ns) };
        Self {
            reads: requests(answered.reads, read_bytes, answered.read_ns),
            writes: requests(answered.writes, write_bytes, answered.write_ns),
            throttled: (&exceeded).into(),
        }
    }
}

impl From<&Exceeded> for Throttled {
    fn from(exceeded: &Exceeded) -> Self {
        let both = |one: u64, other: u64| us(one.saturating_add(other));
        Self {
            operations_us: both(exceeded.operations_ns, exceeded.guard_ns),
            bytes_us: us(exceeded.bytes_ns),
            instance_us: both(exceeded.instance_operations_ns, exceeded.instance_bytes_ns),
            device_us: us(exceeded.device_ns),
        }
    }
}

/// Returns the nearest number of microseconds, so that the sum over many intervals is right.
const fn us(ns: u64) -> u64 {
    ns.saturating_add(NS_PER_US / 2) / NS_PER_US
}

/// All volumes at the last sample.
#[derive(Debug)]
pub struct Tracker {
    looks: Looks,
}

impl Default for Tracker {
    fn default() -> Self {
        Self { looks: Looks::new(INTERVAL_MS_MAX) }
    }
}

impl Tracker {
    /// Processes a sample. Calls `each` with each volume's interval since the last sample, if that
    /// is known.
    pub fn look(
        &mut self,
        now: UnixMs,
        samples: &[Sample],
        mut each: impl FnMut(VolumeId, Interval),
    ) {
        self.looks.begin(now);
        for Sample { volume, balance_ppm } in samples {
            let Some(found) = self.looks.difference(volume) else { continue };
            if found.length_ms == 0 {
                continue;
            }
            let done = Work::from(&found.added);
            let has_worked = done != Work::default() || found.has_queued;
            let interval = Interval {
                start_ms: found.start.0,
                length_ms: found.length_ms,
                work: has_worked.then_some(done),
                balance_ppm: *balance_ppm,
            };
            each(volume.id, interval);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_wire::agent::Answered;
    use proptest::prelude::*;

    const ID: VolumeId = VolumeId::from_bits(7);
    const T0: u64 = 1_795_633_200_000;

    /// Returns a sample after `count` requests of 4 KiB and a millisecond each.
    fn sample(count: u64, queued: u32, created: u64) -> Sample {
        let answered = Answered { reads: count, read_ns: count * 1_000_000, ..Answered::default() };
        let total = Counters { read_bytes: count * 4_096, answered, ..Counters::default() };
        let created = UnixMs(created);
        let volume = counters::Sample { id: ID, total, queued, created };
        Sample { volume, balance_ppm: None }
    }

    /// Returns `(start, length, reads)` after samples at `(time, reads since the start, waiting
    /// requests)`.
    fn found(looks: &[(u64, u64, u32)], created: u64) -> Vec<(u64, u64, Option<u64>)> {
        let mut tracker = Tracker::default();
        let mut found = Vec::new();
        for (at, count, queued) in looks {
            tracker.look(UnixMs(T0 + at), &[sample(*count, *queued, created)], |_, it| {
                found.push((it.start_ms - T0, it.length_ms, it.work.map(|work| work.reads.count)));
            });
        }
        found
    }

    #[test]
    fn a_second_that_is_missing_is_part_of_a_longer_one_or_a_gap() {
        let looks = [(0, 5, 0), (1_000, 7, 0), (3_001, 8, 0), (18_002, 9, 0), (19_000, 9, 0)];
        let expected = [(0, 1_000, Some(2)), (1_000, 2_001, Some(1)), (18_002, 998, None)];
        assert_eq!(found(&looks, 0), expected);
    }

    #[test]
    fn waiting_requests_are_no_idle_time_and_reset_counters_make_a_gap() {
        let looks = [(0, 0, 0), (1_000, 0, 1), (2_000, 0, 0), (3_000, 0, 0), (4_000, 9, 0)];
        let expected = [Some(0), Some(0), None, Some(9)].into_iter();
        assert!(found(&looks, 0).into_iter().map(|(.., reads)| reads).eq(expected));
        let looks = [(0, 9, 0), (1_000, 3, 0), (2_000, 4, 0), (1_500, 5, 0), (1_600, 5, 0)];
        assert_eq!(found(&looks, 0), [(1_000, 1_000, Some(1)), (1_500, 100, None)]);
    }

    #[test]
    fn first_look_counts_only_for_a_volume_created_recently() {
        let with = |created| {
            let mut tracker = Tracker::default();
            let mut found = Vec::new();
            tracker.look(UnixMs(T0), &[], |_, it| found.push(it));
            tracker.look(UnixMs(T0 + 1_000), &[sample(3, 0, created)], |_, it| found.push(it));
            found.iter().filter_map(|it| Some(it.work?.reads.count)).collect::<Vec<_>>()
        };
        assert_eq!(with(T0 + 500), [3]);
        assert!(with(T0 - INTERVAL_MS_MAX - 1).is_empty());
    }

    proptest! {
        /// Whatever samples are missing, no request and no time is counted twice.
        #[test]
        fn intervals_add_up(steps in prop::collection::vec((1..20_000_u64, 0..1_000_u64), 1..50)) {
            let mut time_ms = 0;
            let mut count = 0;
            let mut looks = vec![(0, 0, 0)];
            let mut ms = 0;
            let mut reads = 0;
            for (step, more) in steps {
                (time_ms, count) = (time_ms + step, count + more);
                looks.push((time_ms, count, 0));
                if step <= INTERVAL_MS_MAX {
                    (ms, reads) = (ms + step, reads + more);
                }
            }
            let found = found(&looks, 0);
            let sum = |sum: (u64, u64), it: &(u64, u64, Option<u64>)| {
                (sum.0 + it.1, sum.1 + it.2.unwrap_or_default())
            };
            prop_assert_eq!(found.iter().fold((0, 0), sum), (ms, reads));
            prop_assert!(found.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        }
    }
}
