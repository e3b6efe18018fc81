//! What may be sold: capacity of the device, and room for bytes at rest.

use std::sync::PoisonError;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Capacity, Command as AgentCommand, Reply};
use tracing::warn;

use super::calls::unexpected;
use super::key_locks::Key;
use super::{Plane, PlaneError};
use crate::model::{Refusal, Room};

impl Plane {
    /// What may be sold, as the data plane says now; or as it said last, while it does not answer.
    /// The log is told of what has changed.
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
            known.learn(capacity, &self.settings, || self.model());
        }
        known.now().clone()
    }

    /// Room for bytes at rest, as the data plane said last; `None` where it does not know.
    pub fn room(&self) -> Option<Room> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).now()
    }

    /// Asks the data plane how much room there is for bytes at rest. The log is told when it
    /// becomes little.
    pub(super) fn look_at_space(&self) {
        let Reply::Space(space) = self.agent.call(AgentCommand::Space) else { return };
        let unowned = match space.map(|_| self.unowned()) {
            None => vec![],
            Some(Ok(unowned)) => unowned,
            Some(Err(_)) => return,
        };
        let room = space.map(|space| Room { space, unowned });
        let sold =
            room.as_ref().map_or_else(ByteCount::default, |room| self.model().taken_of(room));
        let oversell = self.settings.space_oversell;
        let for_sale = space.and_then(|space| oversell.for_sale(space.total));
        self.space.lock().unwrap_or_else(PoisonError::into_inner).learn(room, sold, for_sale);
    }

    /// Bytes at rest that no volume has: whose they were, and how many.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn unowned(&self) -> Result<Vec<(VolumeId, ByteCount)>, PlaneError> {
        let mut stored = match self.agent.call(AgentCommand::Stored) {
            Reply::Stored(stored) => stored,
            Reply::Failed(failed) => return Err(PlaneError::Agent(failed)),
            _ => {
                return Err(PlaneError::Agent(unexpected(
                    "Stored was answered with something else",
                )));
            }
        };
        let model = self.model();
        stored.retain(|(id, _)| !model.volumes.contains_key(id));
        Ok(stored)
    }

    /// How many bytes there are of `id` that no volume has.
    ///
    /// # Errors
    /// [`Refusal::NotUnowned`] if there are none, [`PlaneError::Agent`].
    pub fn unowned_bytes(&self, id: VolumeId) -> Result<ByteCount, PlaneError> {
        let unowned = self.unowned()?.into_iter().find(|(of, _)| *of == id);
        unowned.map(|(_, bytes)| bytes).ok_or(PlaneError::Refused(Refusal::NotUnowned(id)))
    }

    /// Deletes bytes at rest that no volume has; with `dry_run` only checks whether there are any.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn delete_unowned(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        // Nobody makes a volume of them meanwhile.
        let _turn = self.turn(vec![Key::Volume(id)])?;
        self.unowned_bytes(id)?;
        match dry_run {
            true => Err(PlaneError::DryRun),
            false => self.call(AgentCommand::Delete(id)).map_err(PlaneError::Agent),
        }
    }

    /// Bytes that no volume has take space, and nobody else will tell of them.
    pub(super) fn tell_of_unowned(&self) {
        match self.unowned() {
            Ok(unowned) if unowned.is_empty() => {}
            Ok(unowned) => {
                let bytes: u64 = unowned.iter().map(|(_, bytes)| bytes.0).sum();
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
