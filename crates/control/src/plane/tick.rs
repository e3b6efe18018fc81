//! The control plane's periodic work: unsettled volumes, snapshots, idle uploads, free space,
//! leases.
//!
//! Nothing here returns an error. Failures are logged, and the next tick tries again.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::Command as AgentCommand;
use tracing::{debug, info, warn};

use super::settle::Settling;
use super::{Plane, PlaneError};
use crate::journal::Credits;
use crate::key_locks::Key;
use crate::model::{Command, Event, Phase, Refusal, Volume};
use crate::reconcile;

/// State that lasts from tick to tick.
pub(super) struct Upkeep {
    /// Ticks until volumes in error are retried.
    pub(super) ticks_to_retry: u32,
    /// The volume in error that was retried last.
    pub(super) retried: Option<VolumeId>,
    /// Ticks until free space is checked.
    pub(super) ticks_to_space_check: u32,
}

/// Ticks between two retries of volumes in error. After a file is restored, its volume is served
/// again after at most this time.
pub(super) const RETRY_TICKS: u32 = 5;
/// Maximum number of volumes retried at once: an unmounted disk may hold thousands.
const RETRIES_MAX: usize = 64;
/// Maximum number of volumes and snapshots of the recycle bin that are deleted at once.
const PURGED_MAX: usize = 64;
/// Maximum number of temporary restores whose end is committed at once.
const RESTORES_MAX: usize = 64;
/// Ticks between two checks of free space, each of which reads the size of every volume's file.
pub(super) const SPACE_TICKS: u32 = 10;

impl Plane {
    /// One tick: [`Self::copy_on`], [`Self::maintain`], then [`Self::renew_leases`]. The server
    /// calls each once a second.
    pub fn tick(&self) {
        self.copy_on();
        self.maintain();
        self.renew_leases();
    }

    /// Settles changes that could not be settled before. Every few ticks it also retries volumes in
    /// error and checks free space. May take as long as the device does.
    pub fn maintain(&self) {
        let Ok(mut upkeep) = self.upkeep.try_lock() else { return };
        self.maintain_with(&mut upkeep);
    }

    /// Maintains as [`Self::maintain`] does, after maintenance in progress has ended.
    pub(super) fn maintain_now(&self) {
        let upkeep = self.upkeep.lock();
        self.maintain_with(&mut upkeep.unwrap_or_else(PoisonError::into_inner));
    }

    fn maintain_with(&self, upkeep: &mut Upkeep) {
        self.follow_clock();
        if let Some(feel) = &self.feel {
            feel.fetch(self.now());
        }
        self.experiments.step(self.now(), &self.faults);
        // First, because volumes may wait for them.
        self.settle_snapshots();
        for id in self.unsettled() {
            // If its key is locked, the holder settles it.
            let Some(_keys) = self.keys.try_lock(vec![Key::Volume(id)]) else { continue };
            let is_settled = self.model().volumes.get(&id).is_none_or(Volume::is_settled);
            if is_settled && !self.writer().is_ok_and(|writer| writer.unanswered.contains(&id)) {
                continue;
            }
            let stuck_by = self.model().volumes.get(&id).and_then(|volume| self.stuck_by(volume));
            if stuck_by.is_none() {
                self.settle_again(id);
            }
        }
        self.retry_in_error(upkeep);
        self.expire_fillings();
        self.empty_bin();
        self.end_restores();
        upkeep.ticks_to_space_check =
            upkeep.ticks_to_space_check.checked_sub(1).unwrap_or(SPACE_TICKS);
        if upkeep.ticks_to_space_check == 0 {
            self.refresh_space();
        }
    }

    /// Settles a volume whose key is locked. A failure is logged.
    fn settle_again(&self, id: VolumeId) {
        match self.settle(id, Settling::Again, &Credits::default()) {
            Ok(()) => {}
            // The client that requested the change has this error already.
            Err(error) if error.is_unanswered() => debug!(volume = %id, "still no answer"),
            Err(error) => {
                let is_due =
                    self.model().volumes.get(&id).is_some_and(|volume| !volume.is_settled());
                if is_due {
                    warn!(volume = %id, %error, "could not be settled; trying again");
                } else {
                    warn!(volume = %id, %error, "its change has failed, and is given up");
                }
            }
        }
    }

    /// Deletes objects whose time in the recycle bin has ended.
    fn empty_bin(&self) {
        let (volumes, snapshots) = self.model().outdated(self.now());
        for id in volumes.into_iter().take(PURGED_MAX) {
            // If its key is locked, the holder deletes it.
            let Some(_keys) = self.keys.try_lock(vec![Key::Volume(id)]) else { continue };
            match self.purge_locked(id, false) {
                Ok(()) => info!(volume = %id, "its time in the recycle bin is over"),
                // A request has deleted it since it was found here.
                Err(PlaneError::Refused(Refusal::VolumesNotFound(_))) => {}
                Err(error) => warn!(volume = %id, %error, "could not be deleted; trying again"),
            }
        }
        for id in snapshots.into_iter().take(PURGED_MAX) {
            match self.execute(&Command::PurgeSnapshot { id }, false) {
                Ok(_) => info!(snapshot = %id, "its time in the recycle bin is over"),
                Err(PlaneError::Refused(Refusal::SnapshotsNotFound(_))) => {}
                Err(error) => warn!(snapshot = %id, %error, "could not be deleted; trying again"),
            }
        }
    }

    /// Commits the end of temporary restores from the archive.
    fn end_restores(&self) {
        // Decided while no other change is committed, so no key is needed.
        let Ok(mut writer) = self.writer() else { return };
        let mut ended = self.model().restores_ended(self.now());
        ended.truncate(RESTORES_MAX);
        if ended.is_empty() {
            return;
        }
        let count = ended.len();
        match self.commit(&mut writer, ended, &Credits::default()) {
            Ok(()) => info!(count, "restores of snapshots from the archive have ended"),
            Err(error) => warn!(%error, "ends of restores could not be stored; trying again"),
        }
    }

    /// Deletes a volume that is in the recycle bin, and its bytes. It stays there until the bytes
    /// are deleted, but cannot be restored any more: if this fails, or the server ends in between,
    /// the tick repeats it. With `dry_run` only checks whether it is there.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn purge_volume(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        let _keys = self.lock_keys(vec![Key::Volume(id)])?;
        self.purge_locked(id, dry_run)
    }

    /// Deletes a volume whose key is locked, as [`Self::purge_volume`].
    fn purge_locked(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        let end = self.model().end_in_bin(id, self.now())?;
        if dry_run {
            return Err(PlaneError::DryRun);
        }
        if let Some(end) = end {
            let mut writer = self.writer()?;
            match self.commit(&mut writer, vec![end.clone()], &Credits::default()) {
                // Deleting the bytes makes room for the record of their deletion.
                Err(PlaneError::Journal(error)) if error.is_no_room() => {
                    self.apply(&mut writer, vec![end]);
                }
                done => done?,
            }
        }
        self.call(AgentCommand::Delete(id)).map_err(PlaneError::Agent)?;
        let events = vec![Event::VolumeGone(id)];
        self.commit(&mut *self.writer()?, events, &Credits::default())
    }

    /// Returns volumes for which the data plane must still be called. Only an event can make a
    /// volume unsettled, so volumes are not searched every second.
    fn unsettled(&self) -> BTreeSet<VolumeId> {
        let Ok(mut writer) = self.writer() else { return BTreeSet::new() };
        let mut unsettled: BTreeSet<VolumeId> = if writer.is_settled {
            BTreeSet::new()
        } else {
            reconcile::unsettled(&self.model()).into_iter().collect()
        };
        writer.is_settled = unsettled.is_empty();
        unsettled.extend(&writer.unanswered);
        unsettled
    }

    /// Retries volumes in error every few ticks: the cause may be gone.
    fn retry_in_error(&self, upkeep: &mut Upkeep) {
        upkeep.ticks_to_retry = upkeep.ticks_to_retry.saturating_sub(1);
        if upkeep.ticks_to_retry > 0 {
            return;
        }
        upkeep.ticks_to_retry = RETRY_TICKS;
        let in_error = reconcile::in_error(&self.model());
        // Continues after the last retried volume, so that every volume is retried in time.
        let first = in_error.partition_point(|id| upkeep.retried.is_some_and(|last| *id <= last));
        let round = in_error.iter().cycle().skip(first).take(in_error.len().min(RETRIES_MAX));
        for &id in round {
            upkeep.retried = Some(id);
            let Some(_keys) = self.keys.try_lock(vec![Key::Volume(id)]) else { continue };
            let in_error = |volume: &Volume| matches!(volume.phase, Phase::Error(_));
            if !self.model().volumes.get(&id).is_some_and(in_error) {
                continue;
            }
            let enables = self.model().volumes.get(&id).is_some_and(|volume| volume.auto_enable_io);
            let settled = self.settle(id, Settling::Again, &Credits::default());
            let settled = match settled {
                Err(PlaneError::Agent(_)) if enables => self.salvage(id),
                settled => settled,
            };
            match settled {
                Ok(()) => info!(volume = %id, "back in service"),
                Err(error) => debug!(volume = %id, %error, "still in error"),
            }
        }
    }
}
