//! Device capacity and space that may be sold, and deletion of stored bytes that belong to no
//! volume.
//!
//! The figures come from the data plane. While it does not answer, its last answer stays in force.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Capacity, Command as AgentCommand, Reply, StoreHealth, StoredVolume};
use tracing::warn;

use super::calls::unexpected;
use super::{Plane, PlaneError};
use crate::key_locks::Key;
use crate::model::{Command, Event, Refusal, Room, SnapshotPhase, ToBeKept};
use crate::space::KnownSpace;

/// Data of volumes.
pub(super) type Filled = BTreeMap<VolumeId, ByteCount>;

impl Plane {
    /// Returns the capacity that may be sold, as the data plane reports it now, or as it reported
    /// last if it does not answer. Logs changes.
    pub fn capacity(&self) -> Capacity {
        let answer = self.agent.call(AgentCommand::Capacity);
        let mut known = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = match answer {
            Reply::Capacity(capacity) => Some(capacity),
            _ => None,
        };
        let sells = answered.as_ref().unwrap_or(known.now());
        if !self.model().keeps_books(&self.settings, sells) {
            let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
            model.keep_books(&self.settings, sells);
        }
        if let Some(capacity) = answered {
            known.learn(capacity, &self.settings, self.faults().is_test(), || self.model());
        }
        known.now().clone()
    }

    /// Returns the space for stored bytes, as the data plane reported last; `None` if it does not
    /// know.
    pub fn room(&self) -> Option<Room> {
        self.known_space().now()
    }

    /// Returns the state of the store itself.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn store_health(&self) -> Result<StoreHealth, PlaneError> {
        match self.agent.call(AgentCommand::StoreHealth) {
            Reply::StoreHealth(health) => Ok(health),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("StoreHealth was answered with something else"))),
        }
    }

    /// Returns the data of the volumes of which a command makes snapshots, as far as the data plane
    /// knows it.
    pub(super) fn filled(&self, command: &Command) -> Filled {
        let ids: Vec<VolumeId> = match command {
            Command::CreateSnapshot { volume, .. } => vec![*volume],
            Command::CreateSnapshots { set, .. } => set.iter().map(|set| set.volume).collect(),
            Command::CreateVolume { begins, .. } => begins.source.into_iter().collect(),
            _ => Vec::new(),
        };
        if ids.is_empty() {
            return Filled::new();
        }
        match self.agent.call(AgentCommand::Filled(ids)) {
            Reply::Filled(filled) => filled.into_iter().collect(),
            _ => Filled::new(),
        }
    }

    /// Returns the space that snapshots may take in addition to the completed ones.
    pub(super) fn to_be_kept(&self, filled: &Filled) -> ToBeKept {
        let model = self.model();
        let is_pending = |id: &SnapshotId| {
            let snapshot = model.snapshots.get(id);
            snapshot.is_some_and(|snapshot| matches!(snapshot.phase, SnapshotPhase::Pending))
        };
        let mut space = self.known_space();
        space.promised.retain(|id, _| is_pending(id));
        let pending = space.promised.values().map(|bytes| bytes.0).fold(0, u64::saturating_add);
        ToBeKept { of: filled.clone(), pending: ByteCount(pending) }
    }

    /// Records the space that was promised to new snapshots, until they are completed.
    pub(super) fn promise(&self, kept: &ToBeKept, events: &[Event]) {
        let mut space = self.known_space();
        for event in events {
            if let Event::Snapshot(new) = event
                && matches!(new.phase, SnapshotPhase::Pending)
            {
                space.promised.insert(new.id, kept.by(new));
            }
        }
    }

    fn known_space(&self) -> MutexGuard<'_, KnownSpace> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the space for stored bytes from the data plane. Logs a warning when it becomes low.
    pub(super) fn refresh_space(&self) {
        let Reply::Space(space) = self.agent.call(AgentCommand::Space) else { return };
        let unowned = match space.map(|_| self.unowned()) {
            None => vec![],
            Some(Ok(unowned)) => unowned.iter().map(|stored| (stored.id, stored.size)).collect(),
            Some(Err(_)) => return,
        };
        let unowned_snapshots = match space.map(|_| self.unowned_snapshots()) {
            None => vec![],
            Some(Ok(unowned)) => unowned.iter().map(|found| (found.id, found.data)).collect(),
            Some(Err(_)) => return,
        };
        let room = space.map(|space| Room { space, unowned, unowned_snapshots });
        let sold =
            room.as_ref().map_or_else(ByteCount::default, |room| self.model().taken_of(room));
        let oversell = self.settings.space_oversell;
        let for_sale = space.and_then(|space| oversell.for_sale(space.total));
        self.known_space().learn(room, sold, for_sale);
    }

    /// Returns stored bytes that belong to no volume, by the volume that had them.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn unowned(&self) -> Result<Vec<StoredVolume>, PlaneError> {
        let mut stored = self.stored()?;
        let model = self.model();
        stored.retain(|stored| !model.volumes.contains_key(&stored.id));
        Ok(stored)
    }

    /// Returns all volumes that have stored bytes.
    pub(super) fn stored(&self) -> Result<Vec<StoredVolume>, PlaneError> {
        match self.agent.call(AgentCommand::Stored) {
            Reply::Stored(stored) => Ok(stored),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Stored was answered with something else"))),
        }
    }

    /// Returns the stored bytes of `id`, which belong to no volume and are not open.
    ///
    /// # Errors
    /// [`Refusal::NotUnowned`] if there are none, [`Refusal::UnownedServed`] if a data plane serves
    /// them, [`PlaneError::Agent`].
    pub fn unowned_volume(&self, id: VolumeId) -> Result<StoredVolume, PlaneError> {
        let unowned = self.unowned()?.into_iter().find(|stored| stored.id == id);
        let unowned = unowned.ok_or(PlaneError::Refused(Refusal::NotUnowned(id)))?;
        if self.report_of(vec![id])?.is_empty() {
            Ok(unowned)
        } else {
            Err(PlaneError::Refused(Refusal::UnownedServed(id)))
        }
    }

    /// Deletes stored bytes that belong to no volume; with `dry_run` only checks whether there are
    /// any.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn delete_unowned(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        // Locked so that no volume is made of the bytes in the meantime.
        let _keys = self.lock_keys(vec![Key::Volume(id)])?;
        self.unowned_volume(id)?;
        if dry_run {
            Err(PlaneError::DryRun)
        } else {
            self.call(AgentCommand::Delete(id)).map_err(PlaneError::Agent)
        }
    }

    /// Logs a warning if the store holds bytes that belong to no volume: they take space.
    pub(super) fn log_unowned(&self) {
        match self.unowned() {
            Ok(unowned) if unowned.is_empty() => {}
            Ok(unowned) => {
                let bytes: u64 = unowned.iter().map(|stored| stored.size.0).sum();
                warn!(
                    volumes = unowned.len(),
                    bytes,
                    "the store holds bytes that no volume has; `evenkeel volume unowned` lists them"
                );
            }
            Err(error) => {
                warn!(%error, "whether the store holds bytes that no volume has is unknown")
            }
        }
    }
}
