//! Commits decisions: to the journal, and to the state in memory.
//!
//! [`Plane::commit`] gets events and balances. It stores them in the journal and then applies them
//! to the model, so memory has only committed changes. It returns the journal's error if they
//! cannot be stored; then nothing has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::Failed;

use super::vitals::Vitals;
use super::{Plane, PlaneError};
use crate::journal::{Change, Credits, Journal, JournalError, Revision};
use crate::model::signatures::UsedSignature;
use crate::model::{Event, Phase, Volume};
use crate::reconcile;

/// State that is accessible only under the writer lock.
pub(super) struct Writer {
    pub(super) journal: Box<dyn Journal>,
    pub(super) vitals: Arc<Vitals>,
    /// The revision of the model and of `stored`.
    pub(super) revision: Revision,
    /// The unleased part of all balances, as the journal has it.
    pub(super) stored: Credits,
    /// The revision at which each volume that this process created got its row. A renewal that
    /// began earlier ignores the volume.
    pub(super) born: BTreeMap<VolumeId, Revision>,
    /// Whether no volume was unsettled at the last check and no event has been applied since.
    pub(super) is_settled: bool,
    /// Volumes whose last command the data plane has not answered. The model may call some of
    /// them settled. The tick repeats the command until it is answered.
    pub(super) unanswered: BTreeSet<VolumeId>,
    /// Volumes that could not be created, with the reason, whose bytes must still be deleted.
    pub(super) unmade: BTreeMap<VolumeId, Failed>,
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

    /// Commits a change to the journal and takes over the new revision.
    pub(super) fn store(&mut self, change: &Change) -> Result<(), JournalError> {
        let stored = self.journal.commit(change, self.revision);
        self.vitals.committed(&stored);
        self.revision = stored?;
        Ok(())
    }
}

impl Plane {
    pub(super) fn writer(&self) -> Result<MutexGuard<'_, Writer>, PlaneError> {
        self.writer.lock().map_err(|_| PlaneError::Poisoned)
    }

    /// Stores for later servers that a signature was used, unless that is stored already.
    ///
    /// # Errors
    /// Too many are stored, or the journal fails.
    pub fn keep_signature(&self, used: &UsedSignature, now: UnixMs) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let events = self.model().keep_signature(used, now)?;
        if events.is_empty() {
            Ok(())
        } else {
            self.commit(&mut writer, events, &Credits::default())
        }
    }

    /// Stores events and balances in the journal, then applies them in memory.
    pub(super) fn commit(
        &self,
        writer: &mut Writer,
        events: Vec<Event>,
        changed: &Credits,
    ) -> Result<(), PlaneError> {
        let events = self.store(writer, events, changed)?;
        self.apply(writer, events);
        Ok(())
    }

    /// Stores events and balances in the journal only, and returns the events. The server's time is
    /// stored with them: the next leader refuses changes that were signed before it.
    pub(super) fn store(
        &self,
        writer: &mut Writer,
        events: Vec<Event>,
        changed: &Credits,
    ) -> Result<Vec<Event>, PlaneError> {
        let clock = Some(self.moment());
        let unleased = changed.clone();
        let change = Change { events, unleased, stopped: None, clock };
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
        Ok(change.events)
    }

    /// Applies events in memory only.
    pub(super) fn apply(&self, writer: &mut Writer, events: Vec<Event>) {
        writer.is_settled &= events.is_empty();
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        self.feed.begin(&model, &events);
        for event in events {
            self.feed.note(&model, &event);
            if let Some(feel) = &self.feel {
                feel.note(&model, &event);
            }
            self.keyring.note(&model, &event, &self.settings.account);
            writer.stored.apply(&event);
            model.apply(event);
        }
        drop(model);
        self.check(writer);
    }
}
