//! Serializes the commands of each volume. Commands of different volumes run in parallel.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use evenkeel_core::ids::VolumeId;

/// The volumes that have a command in progress: at most one a caller.
#[derive(Default)]
pub struct VolumeTurns {
    under_way: Mutex<BTreeSet<VolumeId>>,
    ended: Condvar,
}

/// A volume's turn. It ends when this is dropped.
pub struct VolumeTurn<'a> {
    turns: &'a VolumeTurns,
    id: VolumeId,
}

impl VolumeTurns {
    /// Waits until no other command of the volume is in progress.
    pub fn take(&self, id: VolumeId) -> VolumeTurn<'_> {
        let under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let is_taken = |under_way: &mut BTreeSet<VolumeId>| under_way.contains(&id);
        let mut under_way =
            self.ended.wait_while(under_way, is_taken).unwrap_or_else(PoisonError::into_inner);
        under_way.insert(id);
        VolumeTurn { turns: self, id }
    }
}

impl Drop for VolumeTurn<'_> {
    fn drop(&mut self) {
        self.turns.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.turns.ended.notify_all();
    }
}
