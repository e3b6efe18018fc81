//! Fast restore of snapshots in zones, and its credits.
//!
//! A volume of a snapshot is as fast as any other at once, so nothing has to be prepared: fast
//! restore is on as soon as it is requested and the snapshot is completed. Its credits are counted
//! by EC2's rule, so that programs that read them find EC2's values: each snapshot has in each zone
//! a bucket of max(1, min(10, 1,024 / GiB)) credits that is empty at first and gets min(10,
//! 1,024 / GiB) each hour. A volume takes one of its zone, or is made without.

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::quota;

use super::{Decision, Event, Model, Refusal, Snapshot, SnapshotPhase, UnixMs};

/// Number of millionths in a credit.
pub const MICRO: u64 = 1_000_000;
const HOUR_MS: u64 = 3_600_000;
/// Maximum number of snapshots with fast restore in any zone: EC2's quota.
const FAST_MAX: usize = quota::EC2.fast_restores;
/// Maximum size of a snapshot with fast restore, in GiB.
const SIZE_GIB_MAX: u32 = 16_384;

/// Fast restore of a snapshot in a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FastRestore {
    /// When it was turned on.
    pub since: UnixMs,
    /// Credits when one was taken last, in millionths.
    pub credits: u64,
    /// When one was taken last.
    pub counted: UnixMs,
}

impl FastRestore {
    /// Returns the maximum of credits in millionths, for a snapshot of this size.
    #[must_use]
    pub fn bucket(size_gib: u32) -> u64 {
        Self::per_hour(size_gib).max(MICRO)
    }

    /// Returns the credits that are added in an hour, in millionths.
    fn per_hour(size_gib: u32) -> u64 {
        (1_024 * MICRO / u64::from(size_gib.max(1))).min(10 * MICRO)
    }

    /// Returns the present credits in millionths.
    #[must_use]
    pub fn balance(&self, size_gib: u32, now: UnixMs) -> u64 {
        let added = u128::from(now.ms_since(self.counted)) * u128::from(Self::per_hour(size_gib));
        let added = saturating(added / u128::from(HOUR_MS));
        self.credits.saturating_add(added).min(Self::bucket(size_gib))
    }
}

impl Snapshot {
    /// Returns the state of its fast restore in the zones in which it is turned on.
    #[must_use]
    pub const fn fast_restore_state(&self) -> &'static str {
        match self.phase {
            SnapshotPhase::Completed { .. } => "enabled",
            _ if self.phase.is_pending() => "enabling",
            _ => "disabled",
        }
    }

    /// Returns the snapshot with one credit less in a zone; `None` if it has no credit there.
    #[must_use]
    pub fn less_a_credit(&self, zone: &str, now: UnixMs) -> Option<Self> {
        let SnapshotPhase::Completed { ended, .. } = self.phase else { return None };
        let fast = *self.fast_restores.get(zone)?;
        // Fast restore may have been requested while the snapshot was being made.
        let fast = FastRestore { counted: fast.counted.max(ended), ..fast };
        let credits = fast.balance(self.size_gib, now).checked_sub(MICRO)?;
        let mut less = self.clone();
        less.fast_restores.insert(zone.to_owned(), FastRestore { credits, counted: now, ..fast });
        Some(less)
    }
}

impl Model {
    pub(super) fn set_fast(
        &self,
        ids: &[SnapshotId],
        zones: &[String],
        is_on: bool,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let mut events = Vec::new();
        let mut present = self.index.fast().len();
        for &id in ids {
            let snapshot = self.snapshot(id)?;
            let is_changed = |zone: &&String| snapshot.fast_restores.contains_key(*zone) != is_on;
            if !zones.iter().any(|zone| is_changed(&zone)) {
                continue;
            }
            if is_on && matches!(snapshot.phase, SnapshotPhase::Error(_)) {
                return Err(Refusal::SnapshotUnready(id, snapshot.state()));
            }
            if is_on {
                snapshot.check_not_archived(now)?;
            }
            if is_on && snapshot.size_gib > SIZE_GIB_MAX {
                return Err(Refusal::TooLargeForFastRestore(id, SIZE_GIB_MAX));
            }
            present += usize::from(is_on && snapshot.fast_restores.is_empty());
            if is_on && present > FAST_MAX {
                return Err(Refusal::TooManyFast(FAST_MAX));
            }
            let new = FastRestore { since: now, credits: 0, counted: now };
            let mut changed = snapshot.clone();
            for zone in zones.iter().filter(is_changed) {
                if is_on {
                    changed.fast_restores.insert(zone.clone(), new);
                } else {
                    changed.fast_restores.remove(zone);
                }
            }
            events.push(Event::Snapshot(changed));
        }
        Ok(Decision { events, ..Decision::default() })
    }

    /// Returns the snapshots with fast restore in any zone, by id.
    pub fn fast_restored(&self) -> impl Iterator<Item = &Snapshot> {
        self.index.fast().iter().filter_map(|id| self.snapshots.get(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::ids::VolumeId;
    use evenkeel_core::units::ByteCount;

    #[test]
    fn credits_of_a_snapshot_are_counted_in_each_zone() {
        let hour = UnixMs(HOUR_MS);
        let on = FastRestore { since: UnixMs(0), credits: 0, counted: UnixMs(0) };
        let data = ByteCount(1);
        let snapshot = Snapshot {
            phase: SnapshotPhase::Completed { data, ended: UnixMs(0) },
            fast_restores: [("a".to_owned(), on), ("b".to_owned(), on)].into(),
            ..Snapshot::new(SnapshotId::from_bits(1), VolumeId::from_bits(2), 1_024, UnixMs(0))
        };
        assert_eq!(snapshot.less_a_credit("a", UnixMs(0)), None, "the bucket is empty at first");
        let less = snapshot.less_a_credit("a", hour).unwrap();
        assert_eq!(less.less_a_credit("a", hour), None);
        let less = less.less_a_credit("b", hour).unwrap();
        assert_eq!(less.less_a_credit("b", hour), None);
        assert_eq!(snapshot.less_a_credit("c", hour), None, "it is off there");
    }
}
