//! Storage tiers of snapshots: archived, restored for some days, restored permanently.
//!
//! The tier is only a state of EC2's API: the bytes of an archived snapshot stay where they are,
//! and only the allowed operations change. So each operation is completed at once. A temporary
//! restore ends by the server's time, even if the tick has not recorded its end.

use evenkeel_core::ids::SnapshotId;

use super::locks::changed;
use super::{Decision, Event, Model, Refusal, Snapshot, SnapshotPhase, UnixMs};

const DAY_MS: u64 = 24 * 3_600_000;
/// Maximum number of days of a temporary restore: EC2's.
pub const RESTORE_DAYS_MAX: u32 = 180;

/// The last operation on the tier of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TierOperation {
    /// It was archived, or its temporary restore has ended.
    Archive,
    /// It was restored for some days.
    TemporaryRestore {
        /// When it counts as archived again.
        until: UnixMs,
    },
    /// It was restored permanently.
    PermanentRestore,
}

/// The storage tier of a snapshot that was archived at least once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiering {
    /// The last operation.
    pub last: TierOperation,
    /// When that was.
    pub began: UnixMs,
    /// When it was archived last.
    pub archived: UnixMs,
}

impl Snapshot {
    /// Returns its tiering at `now`, if it was archived at least once.
    #[must_use]
    pub fn tiering_at(&self, now: UnixMs) -> Option<Tiering> {
        let tiering = self.tiering?;
        match tiering.last {
            TierOperation::TemporaryRestore { until } if now >= until => {
                Some(Tiering { last: TierOperation::Archive, began: until, ..tiering })
            }
            _ => Some(tiering),
        }
    }

    /// Returns whether it must be restored before it can be used.
    #[must_use]
    pub fn is_archived(&self, now: UnixMs) -> bool {
        self.tiering_at(now).is_some_and(|it| it.last == TierOperation::Archive)
    }

    /// Returns when its temporary restore ends; `None` if it has none.
    #[must_use]
    pub fn restored_until(&self, now: UnixMs) -> Option<UnixMs> {
        match self.tiering_at(now)?.last {
            TierOperation::TemporaryRestore { until } => Some(until),
            TierOperation::Archive | TierOperation::PermanentRestore => None,
        }
    }

    /// Returns the name of its tier in the EC2 API.
    #[must_use]
    pub fn tier(&self, now: UnixMs) -> &'static str {
        if self.is_archived(now) { "archive" } else { "standard" }
    }

    /// Checks that volumes and copies can be made of it, and that it can be read.
    ///
    /// # Errors
    /// [`Refusal::SnapshotUnready`], [`Refusal::SnapshotArchived`].
    pub fn check_usable(&self, now: UnixMs) -> Result<(), Refusal> {
        if !matches!(self.phase, SnapshotPhase::Completed { .. }) {
            return Err(Refusal::SnapshotUnready(self.id, self.state()));
        }
        self.check_not_archived(now)
    }

    /// Checks that it is in the standard tier.
    pub(super) fn check_not_archived(&self, now: UnixMs) -> Result<(), Refusal> {
        if self.is_archived(now) { Err(Refusal::SnapshotArchived(self.id)) } else { Ok(()) }
    }
}

impl Model {
    pub(super) fn archive_snapshot(
        &self,
        id: SnapshotId,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        snapshot.check_usable(now)?;
        if let Some(until) = snapshot.restored_until(now) {
            return Err(Refusal::SnapshotRestored(id, until));
        }
        if !snapshot.fast_restores.is_empty() {
            return Err(Refusal::ArchiveOfFast(id));
        }
        let tiering = Tiering { last: TierOperation::Archive, began: now, archived: now };
        Ok(changed(Snapshot { tiering: Some(tiering), ..snapshot.clone() }))
    }

    /// Restores a snapshot from the archive, for a number of days or permanently. A temporary
    /// restore can be repeated: the days then count from now.
    pub(super) fn restore_tier(
        &self,
        id: SnapshotId,
        days: Option<u32>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        if !matches!(snapshot.phase, SnapshotPhase::Completed { .. }) {
            return Err(Refusal::SnapshotUnready(id, snapshot.state()));
        }
        let tiering =
            snapshot.tiering.filter(|tiering| tiering.last != TierOperation::PermanentRestore);
        let tiering = tiering.ok_or(Refusal::NotArchived(id))?;
        let until = days.map(|days| now.plus_ms(u64::from(days) * DAY_MS));
        let last = until.map_or(TierOperation::PermanentRestore, |until| {
            TierOperation::TemporaryRestore { until }
        });
        let tiering = Some(Tiering { last, began: now, ..tiering });
        Ok(changed(Snapshot { tiering, ..snapshot.clone() }))
    }

    /// Returns the events that record the end of temporary restores.
    #[must_use]
    pub fn restores_ended(&self, now: UnixMs) -> Vec<Event> {
        let ended = |id: &SnapshotId| {
            let found = self.snapshots.get(id)?;
            let tiering = found.tiering_at(now);
            let is_over = tiering != found.tiering;
            is_over.then(|| Event::Snapshot(Snapshot { tiering, ..found.clone() }))
        };
        self.index.restored().iter().filter_map(ended).collect()
    }
}
