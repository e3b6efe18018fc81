//! What a volume did between two looks at its counters. Pure.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::Exceeded;
use evenkeel_wire::agent::VolumeReport;

use super::codec::{Interval, Requests, Throttled, Work};
use crate::model::UnixMs;

/// Looks that are further apart than this, in milliseconds, are not compared: what is between them
/// is a gap. With many volumes there is a look every ten seconds.
pub const INTERVAL_MS_MAX: u64 = 15_000;

const NS_PER_US: u64 = 1_000;

/// A volume at a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Which volume.
    pub id: VolumeId,
    /// What it has done since the server's start.
    pub total: Work,
    /// Requests that wait or are being executed.
    pub queued: u32,
    /// Credits, in millionths of what it may save; `None` without credits.
    pub balance_ppm: Option<u32>,
    /// When it was created.
    pub created: UnixMs,
}

impl From<&VolumeReport> for Work {
    fn from(report: &VolumeReport) -> Self {
        let VolumeReport { answered, exceeded, .. } = report;
        let requests = |count, bytes, ns: u64| Requests { count, bytes, us: ns / NS_PER_US };
        Self {
            reads: requests(answered.reads, report.bytes_read, answered.read_ns),
            writes: requests(answered.writes, report.bytes_written, answered.write_ns),
            throttled: exceeded.into(),
        }
    }
}

impl From<&Exceeded> for Throttled {
    fn from(exceeded: &Exceeded) -> Self {
        let us = |one: u64, other: u64| one.saturating_add(other) / NS_PER_US;
        Self {
            operations_us: us(exceeded.operations_ns, exceeded.guard_ns),
            bytes_us: us(exceeded.bytes_ns, 0),
            instance_us: us(exceeded.instance_operations_ns, exceeded.instance_bytes_ns),
            device_us: us(exceeded.device_ns, 0),
        }
    }
}

impl Work {
    /// What was added since `before`; `None` if a counter went back.
    fn since(&self, before: &Self) -> Option<Self> {
        let requests = |now: &Requests, before: &Requests| {
            Some(Requests {
                count: now.count.checked_sub(before.count)?,
                bytes: now.bytes.checked_sub(before.bytes)?,
                us: now.us.checked_sub(before.us)?,
            })
        };
        let (now, then) = (&self.throttled, &before.throttled);
        Some(Self {
            reads: requests(&self.reads, &before.reads)?,
            writes: requests(&self.writes, &before.writes)?,
            throttled: Throttled {
                operations_us: now.operations_us.checked_sub(then.operations_us)?,
                bytes_us: now.bytes_us.checked_sub(then.bytes_us)?,
                instance_us: now.instance_us.checked_sub(then.instance_us)?,
                device_us: now.device_us.checked_sub(then.device_us)?,
            },
        })
    }
}

/// A volume at the last look that saw it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: UnixMs,
    total: Work,
    queued: u32,
}

/// All volumes at the last look.
#[derive(Debug, Default)]
pub struct Tracker {
    looked: Option<UnixMs>,
    seen: BTreeMap<VolumeId, Seen>,
}

impl Tracker {
    /// Takes a look; `each` is told what each volume has done since the last one, if that is known.
    pub fn look(
        &mut self,
        now: UnixMs,
        samples: &[Sample],
        mut each: impl FnMut(VolumeId, Interval),
    ) {
        let is_near = |then: UnixMs| then < now && now.ms_since(then) <= INTERVAL_MS_MAX;
        let before = self.looked.replace(now).filter(|before| is_near(*before));
        for sample in samples {
            let present = Seen { at: now, total: sample.total, queued: sample.queued };
            // All counters of a new one have begun at zero since the last look.
            let new = before
                .filter(|before| sample.created.plus_ms(INTERVAL_MS_MAX) >= *before)
                .map(|at| Seen { at, total: Work::default(), queued: 0 });
            let seen = self.seen.insert(sample.id, present).or(new);
            let Some(then) = seen.filter(|seen| is_near(seen.at)) else { continue };
            let Some(done) = sample.total.since(&then.total) else { continue };
            let has_worked = done != Work::default() || sample.queued > 0 || then.queued > 0;
            let interval = Interval {
                start_ms: then.at.0,
                length_ms: now.ms_since(then.at),
                work: has_worked.then_some(done),
                balance_ppm: sample.balance_ppm,
            };
            each(sample.id, interval);
        }
        self.seen.retain(|_, seen| seen.at <= now && now.ms_since(seen.at) <= INTERVAL_MS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: VolumeId = VolumeId::from_bits(7);
    const T0: u64 = 1_795_633_200_000;

    /// After so many requests of 4 KiB and a millisecond.
    fn sample(count: u64, queued: u32, created: u64) -> Sample {
        let reads = Requests { count, bytes: count * 4_096, us: count * 1_000 };
        let total = Work { reads, ..Work::default() };
        Sample { id: ID, total, queued, balance_ppm: None, created: UnixMs(created) }
    }

    /// `(start, length, reads)` after looks at `(time, reads since the start, requests that wait)`.
    fn found(looks: &[(u64, u64, u32)], created: u64) -> Vec<(u64, u64, Option<u64>)> {
        let (mut tracker, mut found) = (Tracker::default(), Vec::new());
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
    fn what_waits_is_no_rest_and_counters_that_go_back_are_a_gap() {
        let looks = [(0, 0, 0), (1_000, 0, 1), (2_000, 0, 0), (3_000, 0, 0), (4_000, 9, 0)];
        let expected = [Some(0), Some(0), None, Some(9)].into_iter();
        assert!(found(&looks, 0).into_iter().map(|(.., reads)| reads).eq(expected));
        let looks = [(0, 9, 0), (1_000, 3, 0), (2_000, 4, 0), (1_500, 5, 0), (1_600, 5, 0)];
        assert_eq!(found(&looks, 0), [(1_000, 1_000, Some(1)), (1_500, 100, None)]);
    }

    #[test]
    fn of_a_new_volume_nothing_is_lost_and_of_an_unknown_one_nothing_is_made_up() {
        let with = |created| {
            let (mut tracker, mut found) = (Tracker::default(), Vec::new());
            tracker.look(UnixMs(T0), &[], |_, it| found.push(it));
            tracker.look(UnixMs(T0 + 1_000), &[sample(3, 0, created)], |_, it| found.push(it));
            found.iter().filter_map(|it| Some(it.work?.reads.count)).collect::<Vec<_>>()
        };
        assert_eq!(with(T0 + 500), [3]);
        assert!(with(T0 - INTERVAL_MS_MAX - 1).is_empty());
    }

    proptest! {
        /// Whatever is missed, no request is told twice, and no time.
        #[test]
        fn intervals_add_up(steps in prop::collection::vec((1..20_000_u64, 0..1_000_u64), 1..50)) {
            let (mut at, mut count) = (0, 0);
            let mut looks = vec![(0, 0, 0)];
            let (mut ms, mut reads) = (0, 0);
            for (step, more) in steps {
                (at, count) = (at + step, count + more);
                looks.push((at, count, 0));
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
