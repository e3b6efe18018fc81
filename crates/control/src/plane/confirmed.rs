//! Confirmations of the data plane that wait for a commit.
//!
//! A commit takes as long for many events as for one: it waits for the disk, or for etcd. So a
//! thread whose volume is confirmed does not commit at once. It queues the confirmation and waits
//! for the writer lock, and the next commit of any thread stores what is queued. Eight callers
//! that create volumes need about one commit for each volume instead of two.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;

use super::writer::Writer;
use super::{Plane, PlaneError};
use crate::events::During;
use crate::journal::Credits;
use crate::model::{Event, Model, Settled};

/// Maximum number of keys of etcd that a commit with confirmations writes. A transaction may have
/// 128, among them those of the leader, of the commit and of the clock.
const KEYS_MAX: usize = 96;

/// Maximum number of confirmations in one commit: what a commit of volumes without attachments has
/// room for.
const TOGETHER_MAX: usize = 32;

/// Confirmations that wait for a commit, the oldest first.
#[derive(Default)]
pub(super) struct Confirmed(Mutex<VecDeque<Arc<Confirmation>>>);

/// The data plane has put the desired state of a volume in force. The thread that waits for this
/// confirmation holds the volume's key.
pub(super) struct Confirmation {
    volume: VolumeId,
    at: UnixMs,
    is_stored: AtomicBool,
}

impl Confirmed {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Arc<Confirmation>>> {
        // No operation on the queue panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, gone: &Arc<Confirmation>) {
        self.waiting().retain(|waiting| !Arc::ptr_eq(waiting, gone));
    }
}

impl Plane {
    /// Commits that the data plane has put the desired state of a volume in force. The caller holds
    /// the volume's key.
    pub(super) fn confirm(&self, volume: VolumeId, at: UnixMs) -> Result<(), PlaneError> {
        let mine = Arc::new(Confirmation { volume, at, is_stored: AtomicBool::new(false) });
        self.confirmed.waiting().push_back(Arc::clone(&mine));
        let mut writer = match self.writer() {
            Ok(writer) => writer,
            Err(error) => {
                self.confirmed.forget(&mine);
                return Err(error);
            }
        };
        let mut result = Ok(());
        while result.is_ok() && !mine.is_stored.load(Ordering::Relaxed) {
            result = self.commit_decision(&mut writer, vec![], &Credits::default());
        }
        // Under the writer lock: once it is released, the next change of the volume may be decided.
        self.confirmed.forget(&mine);
        result
    }

    /// Commits the events of a decision, and with them the confirmations that wait. The caller
    /// holds the keys of all objects that the decision concerns, so they are not those of the
    /// confirmations. If it fails, nothing has changed, and the confirmations wait for the next
    /// commit.
    pub(super) fn commit_decision(
        &self,
        writer: &mut Writer,
        events: Vec<Event>,
        changed: &Credits,
    ) -> Result<(), PlaneError> {
        let own = events.len();
        let mut keys = keys_of(&self.model(), &events);
        let mut all = events;
        let mut stored = Vec::new();
        let waiting: Vec<Arc<Confirmation>> =
            self.confirmed.waiting().iter().take(TOGETHER_MAX).cloned().collect();
        for confirmation in waiting {
            let Confirmation { volume, at, .. } = *confirmation;
            // Both were computed from the same state, and the second would undo the first.
            if all[..own].iter().any(|event| is_of_volume(event, volume)) {
                continue;
            }
            let model = self.model();
            let settled = model.settle(&self.settings, volume, Settled::Done, at);
            keys += keys_of(&model, &settled);
            drop(model);
            if keys > KEYS_MAX && !all.is_empty() {
                break;
            }
            writer.unanswered.remove(&volume);
            all.extend(settled);
            stored.push(confirmation);
        }
        if !all.is_empty() {
            let mut all = self.store(writer, all, changed)?;
            let settled = all.split_off(own);
            self.apply(writer, all);
            // The reason of a decision is not that of a confirmation.
            let _no_cause = During::because("");
            self.apply(writer, settled);
        }
        let mut queue = self.confirmed.waiting();
        for confirmation in stored {
            confirmation.is_stored.store(true, Ordering::Relaxed);
            queue.retain(|waiting| !Arc::ptr_eq(waiting, &confirmation));
        }
        Ok(())
    }
}

/// Returns whether an event changes this volume.
fn is_of_volume(event: &Event, volume: VolumeId) -> bool {
    match event {
        Event::Volume(changed) => changed.id == volume,
        Event::VolumeGone(id) => *id == volume,
        _ => false,
    }
}

/// Returns the largest number of keys of etcd that events write: one for each, and one for each
/// attachment that a volume gets or loses.
fn keys_of(model: &Model, events: &[Event]) -> usize {
    let attachments = |id: VolumeId| model.volumes.get(&id).map_or(0, |v| v.attachments.len());
    let mut keys = events.len();
    for event in events {
        keys += match event {
            Event::Volume(volume) => attachments(volume.id) + volume.attachments.len(),
            Event::VolumeGone(id) => attachments(*id),
            _ => 0,
        };
    }
    keys
}
