//! Fast restore of snapshots, and its credits.
//!
//! A volume of a snapshot is as fast as any other at once, so nothing has to be prepared: fast
//! restore is on as soon as it is requested and the snapshot is completed. Its credits are counted
//! by EC2's rule, so that programs that read them find EC2's values: a bucket of max(1, min(10,
//! 1,024 / GiB)) credits that is empty at first and gets min(10, 1,024 / GiB) each hour. A volume
//! takes one, or is made without.

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::SnapshotId;
use evenkeel_core::quota;

use super::{Decision, Event, Model, Refusal, Snapshot, SnapshotPhase, UnixMs};

/// Number of millionths in a credit.
pub const MICRO: u64 = 1_000_000;
const HOUR_MS: u64 = 3_600_000;
/// Maximum number of snapshots with fast restore: EC2's quota.
const FAST_MAX: usize = quota::EC2.fast_restores;
/// Maximum size of a snapshot with fast restore, in GiB.
const SIZE_GIB_MAX: u32 = 16_384;

/// Fast restore of a snapshot.
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
    /// Returns the state of its fast restore, if it is turned on.
    #[must_use]
    pub const fn fast_restore_state(&self) -> &'static str {
        match self.phase {
            SnapshotPhase::Completed { .. } => "enabled",
            _ if self.phase.is_pending() => "enabling",
            _ => "disabled",
        }
    }

    /// Returns the fast restore with one credit less; `None` if it has no credit.
    #[must_use]
    pub fn less_a_credit(&self, now: UnixMs) -> Option<Self> {
        let SnapshotPhase::Completed { ended, .. } = self.phase else { return None };
        let fast = self.fast_restore?;
        // Fast restore may have been requested while the snapshot was being made.
        let fast = FastRestore { counted: fast.counted.max(ended), ..fast };
        let credits = fast.balance(self.size_gib, now).checked_sub(MICRO)?;
        let fast_restore = Some(FastRestore { credits, counted: now, ..fast });
        Some(Self { fast_restore, ..self.clone() })
    }
}

impl Model {
    pub(super) fn set_fast_restore(
        &self,
        ids: &[SnapshotId],
        is_on: bool,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let mut events = Vec::new();
        let mut present = self.index.fast().len();
        for &id in ids {
            let snapshot = self.snapshot(id)?;
            if snapshot.fast_restore.is_some() == is_on {
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
            present += usize::from(is_on);
            if is_on && present > FAST_MAX {
                return Err(Refusal::TooManyFast(FAST_MAX));
            }
            let new = FastRestore { since: now, credits: 0, counted: now };
            let fast_restore = is_on.then_some(new);
            events.push(Event::Snapshot(Snapshot { fast_restore, ..snapshot.clone() }));
        }
        Ok(Decision { events, ..Decision::default() })
    }

    /// Returns the snapshots with fast restore, by id.
    pub fn fast_restored(&self) -> impl Iterator<Item = &Snapshot> {
        self.index.fast().iter().filter_map(|id| self.snapshots.get(id))
    }
}
