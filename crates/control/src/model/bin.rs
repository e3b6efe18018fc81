//! The recycle bin: deleted volumes and snapshots that can be restored for some days.
//!
//! What is in the bin is shown by the actions of the bin only. Its bytes stay, and count as sold. A
//! volume in the bin is not attached, so it reserves no performance; whether there is some left is
//! decided when it is restored.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;

use super::{
    Decision, Event, Model, Phase, Refusal, Settings, Snapshot, SnapshotPhase, UnixMs, Volume,
};

const DAY_MS: u64 = 24 * 3_600_000;

impl Settings {
    /// Until when something stays in the bin that is deleted now; `None` if there is no bin.
    pub(super) fn binned_until(&self, now: UnixMs) -> Option<UnixMs> {
        match self.recycle_bin_days {
            0 => None,
            days => Some(now.plus_ms(u64::from(days) * DAY_MS)),
        }
    }
}

impl Model {
    /// A volume in the bin, or the refusal that it is not there.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn binned_volume(&self, id: VolumeId) -> Result<&Volume, Refusal> {
        let found = self.volumes.get(&id).filter(|volume| !volume.is_shown());
        found.ok_or_else(|| Refusal::VolumesNotFound(vec![id]))
    }

    /// A snapshot in the bin, or the refusal that it is not there.
    ///
    /// # Errors
    /// [`Refusal::SnapshotsNotFound`].
    pub fn binned_snapshot(&self, id: SnapshotId) -> Result<&Snapshot, Refusal> {
        let is_binned = |it: &&Snapshot| matches!(it.phase, SnapshotPhase::Binned { .. });
        let found = self.snapshots.get(&id).filter(is_binned);
        found.ok_or_else(|| Refusal::SnapshotsNotFound(vec![id]))
    }

    pub(super) fn restore_volume(&self, id: VolumeId, now: UnixMs) -> Result<Decision, Refusal> {
        let volume = self.binned_volume(id)?;
        // Once its time is over, its bytes may be gone.
        if matches!(volume.phase, Phase::Binned { until, .. } if now >= until) {
            return Err(Refusal::VolumesNotFound(vec![id]));
        }
        // What has become of its bytes meanwhile, the data plane knows.
        let restored = Volume { phase: Phase::Ready, ..volume.clone() };
        Ok(Decision::reopening(restored))
    }

    pub(super) fn restore_snapshot(&self, id: SnapshotId) -> Result<Decision, Refusal> {
        let snapshot = self.binned_snapshot(id)?.clone();
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

    /// The event that ends a volume's time in the bin now; `None` if it is over.
    ///
    /// # Errors
    /// [`Refusal::VolumesNotFound`].
    pub fn end_in_bin(&self, id: VolumeId, now: UnixMs) -> Result<Option<Event>, Refusal> {
        let volume = self.binned_volume(id)?;
        let Phase::Binned { entered, until } = volume.phase else {
            return Err(Refusal::VolumesNotFound(vec![id]));
        };
        // Not `now`: the next start may count a little less time, and would restore it.
        let phase = Phase::Binned { entered, until: UnixMs::default() };
        Ok((until > now).then(|| Event::Volume(Volume { phase, ..volume.clone() })))
    }

    /// Volumes and snapshots whose time in the bin is over.
    #[must_use]
    pub fn outdated(&self, now: UnixMs) -> (Vec<VolumeId>, Vec<SnapshotId>) {
        let (volumes, snapshots) = self.index.binned();
        let volumes = volumes.iter().filter(|id| match self.volumes.get(id).map(|it| &it.phase) {
            Some(Phase::Binned { until, .. }) => now >= *until,
            _ => false,
        });
        let is_over = |id: &&SnapshotId| match self.snapshots.get(id).map(|it| &it.phase) {
            Some(SnapshotPhase::Binned { until, .. }) => now >= *until,
            _ => false,
        };
        (volumes.copied().collect(), snapshots.iter().filter(is_over).copied().collect())
    }
}
