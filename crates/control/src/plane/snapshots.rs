//! Snapshots: made and deleted by the data plane, and looked up there while they are pending.
//!
//! A pending snapshot is decided and committed before the data plane is called, so a crash leaves
//! no snapshot in the store that the journal does not know. The call is never repeated: a snapshot
//! of a later moment would be another one. Its outcome is read from the store's list, by the call
//! itself, by every tick, by DescribeSnapshots, and at a start. A deletion is repeated until the
//! data plane confirms it.

use std::collections::BTreeMap;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_wire::agent::{Command as AgentCommand, FailedKind, Reply, StoredSnapshot};
use tracing::{debug, error, warn};

use super::calls::unexpected;
use super::{Outcome, Plane, PlaneError};
use crate::events::During;
use crate::faults::FaultType;
use crate::journal::Credits;
use crate::key_locks::{Key, KeyGuard};
use crate::model::{Event, Refusal, Snapshot, SnapshotPhase};

/// Maximum number of unsettled snapshots that one tick settles.
const SETTLED_MAX: usize = 64;

impl Plane {
    /// Calls the data plane for a snapshot as decided, and commits the outcome.
    pub(super) fn carry_out_snapshot(
        &self,
        id: SnapshotId,
        is_new: bool,
    ) -> Result<Outcome, PlaneError> {
        let decided = self.model().snapshots.get(&id).cloned();
        let Some(snapshot) = decided else { return Ok(Outcome::Other) };
        match snapshot.phase {
            SnapshotPhase::Pending => self.make_snapshot(&snapshot)?,
            SnapshotPhase::Filling => self.begin_filling(&snapshot, is_new)?,
            SnapshotPhase::Copying { .. } => self.begin_copy(&snapshot)?,
            SnapshotPhase::Deleting { .. } => self.remove_snapshot(id)?,
            SnapshotPhase::Completed { .. }
            | SnapshotPhase::Error(_)
            | SnapshotPhase::Binned { .. } => {}
        }
        Ok(Outcome::Snapshot(snapshot))
    }

    pub(super) fn make_snapshot(
        &self,
        &Snapshot { id, volume, .. }: &Snapshot,
    ) -> Result<(), PlaneError> {
        self.make_snapshots(AgentCommand::Snapshot(volume, id), &[volume], &[id])
    }

    /// Calls the data plane for snapshots of one moment, as decided, and commits the outcome.
    pub(super) fn carry_out_set(
        &self,
        set: &[(VolumeId, SnapshotId)],
    ) -> Result<Outcome, PlaneError> {
        if set.is_empty() {
            return Ok(Outcome::Set(vec![]));
        }
        let ids: Vec<SnapshotId> = set.iter().map(|(_, id)| *id).collect();
        let of: Vec<VolumeId> = set.iter().map(|(volume, _)| *volume).collect();
        let decided = {
            let model = self.model();
            ids.iter().filter_map(|id| model.snapshots.get(id).cloned()).collect()
        };
        self.make_snapshots(AgentCommand::SnapshotSet(set.to_vec()), &of, &ids)?;
        Ok(Outcome::Set(decided))
    }

    /// Calls the data plane with a command that makes these snapshots of these volumes, all or none
    /// of them.
    fn make_snapshots(
        &self,
        command: AgentCommand,
        of: &[VolumeId],
        ids: &[SnapshotId],
    ) -> Result<(), PlaneError> {
        if let Some(fault) = self.faults.of_volumes(FaultType::SnapshotError, of) {
            return self.fail_snapshots(ids, &fault);
        }
        match self.call(command) {
            Ok(()) => {}
            // They may still be made. The client gets them as pending.
            Err(failed) if failed.kind == FailedKind::Unanswered => {
                warn!(snapshots = ?ids, reason = failed.message, "not made yet");
                return Ok(());
            }
            Err(failed) => {
                let _cause = During::because(&failed.message);
                self.commit_snapshots(ids.iter().copied().map(Event::SnapshotGone).collect())?;
                return Err(PlaneError::Agent(failed));
            }
        }
        // Often they are complete already. If not, or if that cannot be committed, the tick
        // continues.
        if let Err(error) = self.look_up(ids) {
            debug!(snapshots = ?ids, %error, "still pending");
        }
        Ok(())
    }

    /// Puts pending snapshots into the state `error`, by a fault.
    fn fail_snapshots(&self, ids: &[SnapshotId], fault: &str) -> Result<(), PlaneError> {
        let reason = format!("{fault} was started with StartTestFault; delete the snapshot");
        let failed = |id: &SnapshotId| {
            let snapshot = self.model().snapshots.get(id)?.clone();
            let phase = SnapshotPhase::Error(reason.clone());
            Some(Event::Snapshot(Snapshot { phase, ..snapshot }))
        };
        self.commit_snapshots(ids.iter().filter_map(failed).collect())
    }

    fn remove_snapshot(&self, id: SnapshotId) -> Result<(), PlaneError> {
        self.call(AgentCommand::DeleteSnapshot(id)).map_err(PlaneError::Agent)?;
        self.forget_filling(id);
        self.commit_snapshots(vec![Event::SnapshotGone(id)])
    }

    pub(super) fn commit_snapshots(&self, events: Vec<Event>) -> Result<(), PlaneError> {
        if events.is_empty() {
            Ok(())
        } else {
            self.commit(&mut *self.writer()?, events, &Credits::default())
        }
    }

    /// Commits the completion of a snapshot that the data plane has just completed.
    pub(super) fn note_complete(&self, snapshot: Snapshot) -> Result<(), PlaneError> {
        let stored = self.stored_of(&[snapshot.id])?;
        let data = stored.get(&snapshot.id).map(|found| found.data).ok_or_else(|| {
            PlaneError::Agent(unexpected("a completed snapshot is not among those that are stored"))
        })?;
        let phase = SnapshotPhase::Completed { data, ended: self.now() };
        self.commit_snapshots(vec![Event::Snapshot(Snapshot { phase, ..snapshot })])
    }

    /// Commits the store's state of these snapshots, whose keys are locked.
    fn look_up(&self, ids: &[SnapshotId]) -> Result<(), PlaneError> {
        self.note_stored(ids, &self.stored_of(ids)?)
    }

    fn note_stored(
        &self,
        ids: &[SnapshotId],
        stored: &BTreeMap<SnapshotId, StoredSnapshot>,
    ) -> Result<(), PlaneError> {
        let events = self.model().settle_snapshots(ids.iter().copied(), stored, self.now());
        for event in &events {
            if let Event::Snapshot(Snapshot { id, phase: SnapshotPhase::Error(reason), .. }) = event
            {
                error!(snapshot = %id, reason, "a snapshot is in error");
            }
        }
        self.commit_snapshots(events)
    }

    /// Settles pending snapshots, and repeats deletions that were not confirmed. A snapshot whose
    /// key is locked is left to the thread that holds the lock. Failures are logged.
    pub fn settle_snapshots(&self) {
        let ids: Vec<SnapshotId> = self.model().unsettled_snapshots().take(SETTLED_MAX).collect();
        let lock = |id| Some((id, self.keys.try_lock(vec![Key::Snapshot(id)])?));
        let locked: Vec<(SnapshotId, KeyGuard<'_>)> = ids.into_iter().filter_map(lock).collect();
        let mut pending = Vec::new();
        let mut deleting = Vec::new();
        for (id, _) in &locked {
            match self.model().snapshots.get(id).map(|snapshot| snapshot.phase.clone()) {
                Some(SnapshotPhase::Pending) => pending.push(*id),
                Some(SnapshotPhase::Deleting { .. }) => deleting.push(*id),
                _ => {}
            }
        }
        if !pending.is_empty()
            && let Err(error) = self.look_up(&pending)
        {
            debug!(%error, "pending snapshots could not be looked up; trying again");
        }
        for id in deleting {
            if let Err(error) = self.remove_snapshot(id) {
                warn!(snapshot = %id, %error, "could not be deleted; trying again");
            }
        }
    }

    /// Compares all snapshots with those of the store, once at a start. One that the store does not
    /// have goes into the state `error`.
    pub(super) fn bring_up_snapshots(&self) -> Result<(), PlaneError> {
        let ids: Vec<SnapshotId> = self.model().snapshots.keys().copied().collect();
        if !ids.is_empty() {
            match self.stored_snapshots().and_then(|stored| self.note_stored(&ids, &stored)) {
                Ok(()) => {}
                Err(PlaneError::Agent(failed)) => {
                    warn!(reason = failed.message, "which snapshots are stored is unknown");
                }
                // On a full disk volumes are served and can be deleted.
                Err(PlaneError::Journal(error)) if error.is_no_room() => {
                    warn!(%error, "the disk is full: states of snapshots are not up to date");
                }
                Err(error) => return Err(error),
            }
        }
        self.settle_snapshots();
        match self.unowned_snapshots() {
            Ok(unowned) if unowned.is_empty() => {}
            Ok(unowned) => warn!(
                snapshots = unowned.len(),
                bytes = unowned.iter().map(|snapshot| snapshot.data.0).sum::<u64>(),
                "the store holds snapshots that the database does not know; `evenkeel snapshot \
                 unowned` lists them"
            ),
            Err(error) => warn!(%error, "whether the store holds unknown snapshots is unknown"),
        }
        Ok(())
    }

    /// Returns all snapshots of the store; none if it does not support them.
    pub(super) fn stored_snapshots(
        &self,
    ) -> Result<BTreeMap<SnapshotId, StoredSnapshot>, PlaneError> {
        self.snapshots_by(AgentCommand::Snapshots)
    }

    /// Returns those of some snapshots that the store has. The cost does not depend on its other
    /// snapshots.
    pub(super) fn stored_of(
        &self,
        ids: &[SnapshotId],
    ) -> Result<BTreeMap<SnapshotId, StoredSnapshot>, PlaneError> {
        self.snapshots_by(AgentCommand::SnapshotsOf(ids.to_vec()))
    }

    fn snapshots_by(
        &self,
        command: AgentCommand,
    ) -> Result<BTreeMap<SnapshotId, StoredSnapshot>, PlaneError> {
        match self.agent.call(command) {
            Reply::Snapshots(stored) => {
                Ok(stored.into_iter().map(|snapshot| (snapshot.id, snapshot)).collect())
            }
            Reply::Failed(failed) if failed.kind == FailedKind::Unsupported => Ok(BTreeMap::new()),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Snapshots was answered with something else"))),
        }
    }

    /// Returns stored snapshots that the database does not have, by id.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn unowned_snapshots(&self) -> Result<Vec<StoredSnapshot>, PlaneError> {
        let stored = self.stored_snapshots()?;
        let model = self.model();
        let unknown = |snapshot: &StoredSnapshot| !model.snapshots.contains_key(&snapshot.id);
        Ok(stored.into_values().filter(unknown).collect())
    }

    /// Deletes a stored snapshot that the database does not have; with `dry_run` only checks
    /// whether it exists.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn delete_unowned_snapshot(&self, id: SnapshotId, dry_run: bool) -> Result<(), PlaneError> {
        let _keys = self.lock_keys(vec![Key::Snapshot(id)])?;
        if !self.unowned_snapshots()?.iter().any(|snapshot| snapshot.id == id) {
            return Err(PlaneError::Refused(Refusal::SnapshotNotUnowned(id)));
        }
        if dry_run {
            Err(PlaneError::DryRun)
        } else {
            self.call(AgentCommand::DeleteSnapshot(id)).map_err(PlaneError::Agent)
        }
    }
}
