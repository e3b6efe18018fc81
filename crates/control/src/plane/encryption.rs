//! The store knows which volumes and snapshots are encrypted, since it has wrapped the keys. The
//! journal is corrected by it at each start, so objects from before the journal recorded encryption
//! are shown correctly, too.

use std::collections::BTreeMap;

use tracing::warn;

use super::{Plane, PlaneError};
use crate::journal::Credits;
use crate::model::{Event, Snapshot, Volume};

impl Plane {
    /// Commits the encryption that the store reports where the journal differs.
    pub(super) fn learn_encryption(&self) -> Result<(), PlaneError> {
        let (volumes, snapshots) = match (self.stored(), self.stored_snapshots()) {
            (Ok(volumes), Ok(snapshots)) => (volumes, snapshots),
            (Err(error), _) | (_, Err(error)) => {
                warn!(%error, "the store does not report which volumes are encrypted");
                return Ok(());
            }
        };
        let volumes: BTreeMap<_, _> =
            volumes.into_iter().map(|stored| (stored.id, stored.is_encrypted)).collect();
        let events: Vec<Event> = {
            let model = self.model();
            let changed = model.volumes.values().filter_map(|volume| {
                let is_encrypted = *volumes.get(&volume.id)?;
                (is_encrypted != volume.is_encrypted)
                    .then(|| Event::Volume(Volume { is_encrypted, ..volume.clone() }))
            });
            let changed_snapshots = model.snapshots.values().filter_map(|snapshot| {
                let is_encrypted = snapshots.get(&snapshot.id)?.is_encrypted;
                (is_encrypted != snapshot.is_encrypted)
                    .then(|| Event::Snapshot(Snapshot { is_encrypted, ..snapshot.clone() }))
            });
            changed.chain(changed_snapshots).collect()
        };
        if events.is_empty() {
            return Ok(());
        }
        match self.commit(&mut *self.writer()?, events, &Credits::default()) {
            Err(PlaneError::Journal(error)) if error.is_no_room() => {
                warn!(%error, "the disk is full: which volumes are encrypted is not stored");
                Ok(())
            }
            committed => committed,
        }
    }
}
