//! Committing decisions: the journal, and what is kept in memory beside the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};

use evenkeel_core::ids::{InstanceId, VolumeId};

use super::{Plane, PlaneError};
use crate::journal::{Change, Credits, Journal, JournalError, Revision};
use crate::model::{Event, Phase, Volume};
use crate::reconcile;

/// What only the one who mutates may touch.
pub(super) struct Writer {
    pub(super) journal: Box<dyn Journal>,
    /// The revision that the model and the balances here are of.
    pub(super) revision: Revision,
    /// What of all balances is unleased, as it is in the journal.
    pub(super) stored: Credits,
    /// At which revision a volume got its row: a renewal that began before leaves it out.
    pub(super) born: BTreeMap<VolumeId, Revision>,
    /// Whether the data plane was told everything when it was last looked, and nothing has happened
    /// since.
    pub(super) is_settled: bool,
    /// Volumes of which the data plane has not answered the last command, among them some that
    /// the model calls settled: it is called with them again until it answers.
    pub(super) unanswered: BTreeSet<VolumeId>,
}

impl Writer {
    pub(super) fn start_of_volume(&self, id: VolumeId, opening: &Credits) -> reconcile::Start {
        let unleased = self.stored.volume(id);
        let balances = opening.volumes.get(&id).copied().unwrap_or(unleased);
        reconcile::Start { balances, unleased }
    }

    pub(super) fn start_of_host(&self, id: InstanceId, opening: &Credits) -> reconcile::Start {
        let unleased = self.stored.host(id);
        let balances = opening.hosts.get(&id).copied().unwrap_or(unleased);
        reconcile::Start { balances, unleased }
    }

    /// Stores a change.
    pub(super) fn store(&mut self, change: &Change) -> Result<(), JournalError> {
        self.revision = self.journal.commit(change, self.revision)?;
        Ok(())
    }
}

impl Plane {
    pub(super) fn writer(&self) -> Result<MutexGuard<'_, Writer>, PlaneError> {
        self.writer.lock().map_err(|_| PlaneError::Poisoned)
    }

    /// Stores events and balances; only then are they true in memory.
    pub(super) fn commit(
        &self,
        writer: &mut Writer,
        events: Vec<Event>,
        changed: &Credits,
    ) -> Result<(), PlaneError> {
        let change = Change { events, unleased: changed.clone(), stopped: None };
        writer.store(&change)?;
        for event in &change.events {
            match event {
                Event::Volume(Volume { phase: Phase::Creating, id, .. }) => {
                    writer.born.insert(*id, writer.revision);
                }
                Event::VolumeGone(id) => _ = writer.born.remove(id),
                _ => {}
            }
        }
        writer.stored.extend(changed);
        self.apply(writer, change.events);
        Ok(())
    }

    /// Makes events true in memory.
    pub(super) fn apply(&self, writer: &mut Writer, events: Vec<Event>) {
        writer.is_settled &= events.is_empty();
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            writer.stored.apply(&event);
            model.apply(event);
        }
    }
}
