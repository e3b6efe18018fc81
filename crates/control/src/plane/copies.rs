//! Copies of snapshots, and the snapshots of which volumes begin.
//!
//! A copy that is encrypted as its source is shares the source's blocks, so it is complete at once.
//! Any other is made unit by unit: a second's worth at each tick, behind the permits of background
//! work. How far it is, is in memory only. After a restart it begins anew, which does no harm.
//!
//! A volume that begins as a snapshot of its own waits until that is complete.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Bytes, Command as AgentCommand, Failed, FailedKind, NewSnapshot, UNIT_BYTES, UnitsWanted,
};
use tracing::{info, warn};

use super::calls::unexpected;
use super::key_locks::Key;
use super::{Plane, PlaneError};
use crate::clock;
use crate::journal::Credits;
use crate::model::{Event, Phase, Settled, Snapshot, SnapshotPhase, UnixMs, Volume};

/// How long one call copies: until the next tick.
const SLICE_MS: u64 = 900;
/// The most units that are asked for at once.
const PAGE: u32 = 256;

/// How far copies are: the next unit of each.
pub(super) type Copying = BTreeMap<SnapshotId, u64>;

/// What a volume that begins as a snapshot of its own has to do.
pub(super) enum Own {
    /// The snapshot is complete, or there is none.
    Ready,
    /// It is being made.
    Waits,
    /// It was not made; the text has the reason.
    Failed(String),
}

impl Plane {
    fn copies(&self) -> MutexGuard<'_, Copying> {
        // Every change of it is a single call.
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of a snapshot is made, in percent.
    #[must_use]
    pub fn percent(&self, snapshot: &Snapshot) -> u32 {
        if snapshot.phase != SnapshotPhase::Copying {
            return snapshot.percent();
        }
        let next = self.copies().get(&snapshot.id).copied().unwrap_or_default();
        let units = ByteCount::from_gib(snapshot.size_gib).0 / UNIT_BYTES;
        u32::try_from(next.saturating_mul(100) / units.max(1)).unwrap_or(99).min(99)
    }

    /// One tick of all copies.
    pub fn copy_on(&self) {
        let began = clock::now();
        let ids: Vec<SnapshotId> = self.model().copying().map(|copy| copy.id).collect();
        self.copies().retain(|id, _| ids.contains(id));
        for id in ids {
            let Some(_keys) = self.keys.try_lock(vec![Key::Snapshot(id)]) else { continue };
            if let Err(error) = self.copy(id, began) {
                warn!(snapshot = %id, %error, "a copy does not go on; trying again");
            }
        }
    }

    /// Goes on with a copy whose key is locked.
    fn copy(&self, id: SnapshotId, began: UnixMs) -> Result<(), PlaneError> {
        let (copy, source) = {
            let model = self.model();
            let Some(copy) = model.snapshots.get(&id).cloned() else { return Ok(()) };
            let source = copy.copy_of.and_then(|of| model.snapshots.get(&of).cloned());
            (copy, source)
        };
        if copy.phase != SnapshotPhase::Copying {
            return Ok(());
        }
        let source = match source {
            Some(source) if source.is_pending() => return Ok(()),
            Some(source) if matches!(source.phase, SnapshotPhase::Completed { .. }) => source,
            _ => return self.fail_copy(&copy, "the snapshot that it copies is gone"),
        };
        let shares = source.is_encrypted == copy.is_encrypted;
        let (size, is_encrypted) = (ByteCount::from_gib(copy.size_gib), copy.is_encrypted);
        let parent = shares.then_some(source.id);
        let new = NewSnapshot { id, size, parent, is_encrypted };
        let done =
            self.call(AgentCommand::StartSnapshot(new)).map_err(PlaneError::Agent).and_then(|()| {
                if shares { Ok(true) } else { self.copy_units(&copy, source.id, began) }
            });
        match done {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(PlaneError::Agent(failed)) if is_final(&failed) => {
                return self.fail_copy(&copy, &failed.message);
            }
            Err(error) => return Err(error),
        }
        self.call(AgentCommand::CompleteSnapshot(id)).map_err(PlaneError::Agent)?;
        let stored = self.stored_snapshots()?;
        let data = stored.get(&id).map(|found| found.data).ok_or_else(|| {
            PlaneError::Agent(unexpected("a completed copy is not among those that are stored"))
        })?;
        let phase = SnapshotPhase::Completed { data, ended: clock::now() };
        self.commit_snapshots(vec![Event::Snapshot(Snapshot { phase, ..copy })])?;
        self.copies().remove(&id);
        Ok(())
    }

    /// Copies units for a while. Returns whether all of them are copied.
    fn copy_units(
        &self,
        copy: &Snapshot,
        source: SnapshotId,
        began: UnixMs,
    ) -> Result<bool, PlaneError> {
        let mut next = Some(self.copies().get(&copy.id).copied().unwrap_or_default());
        while let Some(first) = next {
            self.copies().insert(copy.id, first);
            let wanted = UnitsWanted { id: source, older: None, first, max: PAGE };
            let page = self.ask_units(wanted)?;
            for unit in page.units {
                if clock::now().ms_since(began) > SLICE_MS {
                    self.copies().insert(copy.id, unit);
                    return Ok(false);
                }
                let Some(bytes) = self.ask_unit(source, unit)? else { continue };
                let put = AgentCommand::PutSnapshot(copy.id, unit, Bytes(bytes));
                self.call(put).map_err(PlaneError::Agent)?;
            }
            next = page.next;
        }
        Ok(true)
    }

    fn fail_copy(&self, copy: &Snapshot, reason: &str) -> Result<(), PlaneError> {
        let phase = SnapshotPhase::Error(format!("{reason}; delete it, and copy again"));
        warn!(snapshot = %copy.id, reason, "a copy is in error");
        self.commit_snapshots(vec![Event::Snapshot(Snapshot { phase, ..copy.clone() })])?;
        self.copies().remove(&copy.id);
        self.call(AgentCommand::DeleteSnapshot(copy.id)).map_err(PlaneError::Agent)
    }

    /// Begins a copy as decided just now. One that shares its source's blocks is complete then.
    pub(super) fn begin_copy(&self, copy: &Snapshot) -> Result<(), PlaneError> {
        let of = copy.copy_of.and_then(|of| self.model().snapshots.get(&of).cloned());
        if of.is_none_or(|of| of.is_encrypted != copy.is_encrypted) {
            return Ok(());
        }
        match self.copy(copy.id, clock::now()) {
            Err(PlaneError::Agent(failed)) => {
                info!(snapshot = %copy.id, reason = failed.message, "not copied yet");
                Ok(())
            }
            copied => copied,
        }
    }

    /// Makes the snapshot of which a new volume begins, if it begins so. If it cannot be made, the
    /// volume is given up.
    pub(super) fn begin_own(&self, id: VolumeId) -> Result<(), PlaneError> {
        let pending: Vec<Snapshot> = {
            let model = self.model();
            let is_pending = |own: &&Snapshot| own.phase == SnapshotPhase::Pending;
            model.made_for(id).filter(is_pending).cloned().collect()
        };
        for own in pending {
            if let Err(error) = self.make_snapshot(&own) {
                self.give_up(id, &error.to_string())?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// What a volume that is being created has to do for the snapshot of which it begins.
    pub(super) fn own_of(&self, id: VolumeId) -> Own {
        let model = self.model();
        let Some(Volume { phase: Phase::Creating, through: Some(own), .. }) =
            model.volumes.get(&id)
        else {
            return Own::Ready;
        };
        match model.snapshots.get(own).map(|own| &own.phase) {
            Some(SnapshotPhase::Completed { .. }) => Own::Ready,
            Some(phase) if phase.is_pending() => {
                // If what it is copied from has failed, the copier says so.
                Own::Waits
            }
            Some(SnapshotPhase::Error(reason)) => Own::Failed(reason.clone()),
            _ => Own::Failed("the snapshot of which it begins is gone".into()),
        }
    }

    /// Ends the creation of a volume without success.
    pub(super) fn give_up(&self, id: VolumeId, reason: &str) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let settled = Settled::Failed(reason);
        let events = self.model().settle(&self.settings, id, settled, clock::now());
        self.commit(&mut writer, events, &Credits::default())
    }
}

/// Whether it makes no sense to try again.
fn is_final(failed: &Failed) -> bool {
    !matches!(failed.kind, FailedKind::Unanswered | FailedKind::Down | FailedKind::Internal)
}
