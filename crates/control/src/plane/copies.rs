//! Copies of snapshots, and the snapshots with which volumes begin.
//!
//! A copy with the same encryption as its source shares the source's blocks, so it is complete at
//! once. Any other copy is made unit by unit: a second's worth at each tick, within the limit of
//! background work. Its progress is only in memory. After a restart it begins again, which does no
//! harm.
//!
//! A volume that begins with a snapshot of its own waits until that is complete.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Bytes, Command as AgentCommand, Failed, FailedKind, NewSnapshot, UNIT_BYTES, UnitsWanted,
};
use tracing::warn;

use super::{Plane, PlaneError};
use crate::events::During;
use crate::journal::Credits;
use crate::key_locks::Key;
use crate::model::{Event, Phase, Settled, Snapshot, SnapshotPhase, Volume};
use evenkeel_os::clock;

/// Time for which one call copies: until the next tick.
const SLICE: Duration = Duration::from_millis(900);
/// Maximum number of units of one snapshot that one call copies, whatever the time.
const UNITS_MAX: u32 = 4_096;
/// Time between two log lines of a copy that waits.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of units that are requested at once.
const PAGE: u32 = 256;

/// Progress of copies.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// The next unit of each copy that this server has begun since it started.
    next: BTreeMap<SnapshotId, u64>,
    /// The copy that was served last; the others come first.
    last: Option<SnapshotId>,
    /// Copies whose last attempt has failed.
    waiting: BTreeMap<SnapshotId, Waiting>,
}

/// A copy whose last attempt has failed.
#[derive(Debug)]
struct Waiting {
    reason: String,
    /// When the last log line of it was written, since the machine's start.
    logged: Duration,
}

/// State of the snapshot with which a volume begins.
pub(super) enum Own {
    /// The snapshot is complete, or the volume has none.
    Ready,
    /// It is being made.
    Waits,
    /// It could not be made; the text has the reason.
    Failed(String),
}

impl Plane {
    fn copies(&self) -> MutexGuard<'_, Copying> {
        // Every change of the value is a single call.
        self.copying.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the progress of a snapshot in percent.
    #[must_use]
    pub fn percent(&self, snapshot: &Snapshot) -> u32 {
        if !matches!(snapshot.phase, SnapshotPhase::Copying { .. }) {
            return snapshot.percent();
        }
        let next = self.copies().next.get(&snapshot.id).copied().unwrap_or_default();
        let units = ByteCount::from_gib(snapshot.size_gib).0 / UNIT_BYTES;
        saturating::<_, u32>(next.saturating_mul(100) / units.max(1)).min(99)
    }

    /// Returns the reason for which a copy waits; `None` if its last attempt has not failed.
    #[must_use]
    pub fn copy_waits_for(&self, id: SnapshotId) -> Option<String> {
        self.copies().waiting.get(&id).map(|waiting| waiting.reason.clone())
    }

    /// Notes the failure of an attempt, and logs it if the last line is old enough.
    fn note_waiting(&self, id: SnapshotId, error: &PlaneError) {
        let now = clock::since_boot();
        let mut copies = self.copies();
        let before = copies.waiting.get(&id).map(|waiting| waiting.logged);
        let is_logged = before.is_none_or(|logged| now.saturating_sub(logged) >= LOG_PAUSE);
        let logged = before.filter(|_| !is_logged).unwrap_or(now);
        let reason = match error {
            PlaneError::Agent(failed) => failed.message.clone(),
            error => error.to_string(),
        };
        copies.waiting.insert(id, Waiting { reason, logged });
        drop(copies);
        if is_logged {
            warn!(
                snapshot = %id,
                %error,
                "a copy has failed, and is tried again each second; delete it to end that"
            );
        }
    }

    /// Continues all copies for one tick.
    pub fn copy_on(&self) {
        let began = clock::since_boot();
        let ids: Vec<SnapshotId> = self.model().copying().map(|copy| copy.id).collect();
        let first = {
            let mut copies = self.copies();
            copies.next.retain(|id, _| ids.contains(id));
            copies.waiting.retain(|id, _| ids.contains(id));
            ids.partition_point(|id| copies.last.is_some_and(|last| *id <= last))
        };
        for &id in ids.iter().cycle().skip(first).take(ids.len()) {
            if clock::since_boot().saturating_sub(began) > SLICE {
                return;
            }
            self.copies().last = Some(id);
            let Some(_keys) = self.keys.try_lock(vec![Key::Snapshot(id)]) else { continue };
            self.try_copy(id);
        }
    }

    /// Continues a copy whose key is locked, and notes why it waits if that fails.
    fn try_copy(&self, id: SnapshotId) {
        match self.copy(id) {
            Ok(()) => _ = self.copies().waiting.remove(&id),
            Err(error) => self.note_waiting(id, &error),
        }
    }

    /// Continues a copy whose key is locked.
    fn copy(&self, id: SnapshotId) -> Result<(), PlaneError> {
        let (copy, source) = {
            let model = self.model();
            let Some(copy) = model.snapshots.get(&id).cloned() else { return Ok(()) };
            let source = copy.copy_of.and_then(|of| model.snapshots.get(&of).cloned());
            (copy, source)
        };
        if !matches!(copy.phase, SnapshotPhase::Copying { .. }) {
            return Ok(());
        }
        let source = match source {
            Some(source) if source.is_pending() => return Ok(()),
            Some(source) if matches!(source.phase, SnapshotPhase::Completed { .. }) => source,
            _ => return self.fail_copy(&copy, "the snapshot that it copies is gone"),
        };
        let shares = source.is_encrypted == copy.is_encrypted;
        let done = self.start_copy(&copy, shares.then_some(source.id)).and_then(|is_complete| {
            if shares || is_complete { Ok(true) } else { self.copy_units(&copy, source.id) }
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
        self.note_complete(copy)?;
        self.copies().next.remove(&id);
        Ok(())
    }

    /// Begins a copy in the store, once since this server started. Returns whether it is complete
    /// there: a server may have stopped before it could commit that.
    fn start_copy(&self, copy: &Snapshot, parent: Option<SnapshotId>) -> Result<bool, PlaneError> {
        let &Snapshot { id, size_gib, is_encrypted, .. } = copy;
        if self.copies().next.contains_key(&id) {
            return Ok(false);
        }
        if self.stored_of(&[id])?.get(&id).is_some_and(|stored| stored.is_complete) {
            return Ok(true);
        }
        let new = NewSnapshot { id, size: ByteCount::from_gib(size_gib), parent, is_encrypted };
        self.call(AgentCommand::StartSnapshot(new)).map_err(PlaneError::Agent)?;
        // A copy that shares blocks has no units to count; it is looked up again if it does not
        // complete.
        if parent.is_none() {
            self.copies().next.insert(id, 0);
        }
        Ok(false)
    }

    /// Copies units until [`SLICE`] has passed. Returns whether all of them are copied.
    fn copy_units(&self, copy: &Snapshot, source: SnapshotId) -> Result<bool, PlaneError> {
        let began = clock::since_boot();
        let mut left = UNITS_MAX;
        let mut next = Some(self.copies().next.get(&copy.id).copied().unwrap_or_default());
        while let Some(first) = next {
            self.copies().next.insert(copy.id, first);
            let wanted = UnitsWanted { id: source, older: None, first, max: PAGE };
            let page = self.ask_units(wanted)?;
            for unit in page.units {
                left -= 1;
                if left == 0 || clock::since_boot().saturating_sub(began) > SLICE {
                    self.copies().next.insert(copy.id, unit);
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
        self.copies().next.remove(&copy.id);
        self.call(AgentCommand::DeleteSnapshot(copy.id)).map_err(PlaneError::Agent)
    }

    /// Begins a copy that was just decided. One that shares its source's blocks is then complete.
    pub(super) fn begin_copy(&self, copy: &Snapshot) -> Result<(), PlaneError> {
        let of = copy.copy_of.and_then(|of| self.model().snapshots.get(&of).cloned());
        if of.is_none_or(|of| of.is_encrypted != copy.is_encrypted) {
            return Ok(());
        }
        // The copy is decided and committed: the client gets it, and the tick continues it.
        self.try_copy(copy.id);
        Ok(())
    }

    /// Makes the snapshot with which a new volume begins, if it has one. If that fails, the volume
    /// fails.
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

    /// Returns the state of the snapshot with which a volume that is being created begins.
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
                // If the copy's source has failed, the copier reports it.
                Own::Waits
            }
            Some(SnapshotPhase::Error(reason)) => Own::Failed(reason.clone()),
            _ => Own::Failed("the snapshot of which it begins is gone".into()),
        }
    }

    /// Ends the creation of a volume with a failure.
    pub(super) fn give_up(&self, id: VolumeId, reason: &str) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let settled = Settled::Failed(reason);
        let events = self.model().settle(&self.settings, id, settled, self.now());
        let _cause = During::because(reason);
        self.commit(&mut writer, events, &Credits::default())
    }
}

/// Returns whether a retry is useless. A missing key or device may come back; until then the
/// waiting object can be deleted.
fn is_final(failed: &Failed) -> bool {
    use FailedKind::{Damaged, Down, Internal, Unanswered};
    !matches!(failed.kind, Damaged | Down | Internal | Unanswered)
}
