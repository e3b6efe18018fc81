//! The recycle bin: deleted volumes and snapshots that can be restored for some days.
//!
//! Only the actions of the bin show its volumes and snapshots. Their bytes stay, and count as sold.
//! A volume in the bin is not attached, so it reserves no performance; a restore is refused if none
//! is left.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;

use super::{
    Decision, Event, Model, Phase, Refusal, Settings, Snapshot, SnapshotPhase, UnixMs, Volume,
};

const DAY_MS: u64 = 24 * 3_600_000;

impl Settings {
    /// Returns the time until which an object that is deleted now stays in the bin; `None` if there
    /// is no bin.
    pub(super) fn binned_until(&self, now: UnixMs) -> Option<UnixMs> {
        match self.recycle_bin_days {
            0 => None,
            days => Some(now.plus_ms(u64::from(days) * DAY_MS)),
        }
    }
}

impl Volume {
    /// Returns whether it is in the bin, and its time there has not ended.
    #[must_use]
    pub fn is_restorable(&self, now: UnixMs) -> bool {
        matches!(self.phase, Phase::Binned { until, .. } if now < until)
    }
}

impl Snapshot {
    /// Returns whether it is in the bin, and its time there has not ended.
    #[must_use]
    pub fn is_restorable(&self, now: UnixMs) -> bool {
        matches!(self.phase, SnapshotPhase::Binned { until, .. } if now < until)
    }
}

impl Model {
    /// Returns a volume in the bin, or the refusal that it is not there.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn binned_volume(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let found = self.volumes.get(&id).filter(|volume| !volume.is_shown());
        found.ok_or_else(|| Refusal::VolumesNotFound(vec![id]))
    }

    /// Returns a snapshot in the bin, or the refusal that it is not there.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`].
    pub fn binned_snapshot(&self, id: SnapshotId) -> Result<&Snapshot, Refusal> {
        let is_binned = |it: &&Snapshot| matches!(it.phase, SnapshotPhase::Binned { .. });
        let found = self.snapshots.get(&id).filter(is_binned);
        found.ok_or_else(|| Refusal::SnapshotsNotFound(vec![id]))
    }

    pub(super) fn restore_volume(
        &self,
        id: VolumeId,
        error: Option<&String>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let volume = self.binned_volume(id)?;
        // After its time in the bin, its bytes may be deleted.
        if !volume.is_restorable(now) {
            return Err(Refusal::VolumesNotFound(vec![id]));
        }
        // The data plane has opened its bytes already, or cannot.
        let phase = error.map_or(Phase::Ready, |error| Phase::Error(error.clone()));
        Ok(Decision::changing(Volume { phase, ..volume.clone() }))
    }

    pub(super) fn restore_snapshot(
        &self,
        id: SnapshotId,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let snapshot = self.binned_snapshot(id)?.clone();
        // After its time in the bin, its bytes may be deleted.
        if !snapshot.is_restorable(now) {
            return Err(Refusal::SnapshotsNotFound(vec![id]));
        }
        let SnapshotPhase::Binned { data, ended, .. } = snapshot.phase else {
            return Err(Refusal::SnapshotsNotFound(vec![id]));
        };
        let phase = SnapshotPhase::Completed { data, ended };
        Ok(Decision::changing_snapshot(Snapshot { phase, ..snapshot }))
    }

    pub(super) fn purge_snapshot(&self, id: SnapshotId) -> Result<Decision, Refusal> {
        let snapshot = self.binned_snapshot(id)?;
        let phase = SnapshotPhase::Deleting { data: ByteCount(snapshot.taken()) };
        Ok(Decision::changing_snapshot(Snapshot { phase, ..snapshot.clone() }))
    }

    /// Returns the event that ends a volume's time in the bin now; `None` if it has ended.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn end_in_bin(&self, id: VolumeId, now: UnixMs) -> Result<Option<Event>, Refusal> {
        let volume = self.binned_volume(id)?;
        let Phase::Binned { entered, until } = volume.phase else {
            return Err(Refusal::VolumesNotFound(vec![id]));
        };
        // Not `now`: the next start may count slightly less time, and would restore it.
        let phase = Phase::Binned { entered, until: UnixMs::default() };
        Ok((until > now).then(|| Event::Volume(Volume { phase, ..volume.clone() })))
    }

    /// Returns volumes and snapshots whose time in the bin has ended.
    #[must_use]
    pub fn outdated(&self, now: UnixMs) -> (Vec<VolumeId>, Vec<SnapshotId>) {
        let (volumes, snapshots) = self.index.binned();
        let volumes =
            volumes.iter().filter(|id| match self.volumes.get(id).map(|volume| &volume.phase) {
                Some(Phase::Binned { until, .. }) => now >= *until,
                _ => false,
            });
        let is_over =
            |id: &&SnapshotId| match self.snapshots.get(id).map(|snapshot| &snapshot.phase) {
                Some(SnapshotPhase::Binned { until, .. }) => now >= *until,
                _ => false,
            };
        (volumes.copied().collect(), snapshots.iter().filter(is_over).copied().collect())
    }
}
