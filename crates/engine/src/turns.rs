//! Whose turn it is: one command of a volume at a time, those of different volumes side by side.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

use evenkeel_core::ids::VolumeId;

/// The volumes that have a command under way: no more than there are callers.
#[derive(Default)]
pub struct VolumeTurns {
    under_way: Mutex<BTreeSet<VolumeId>>,
    ended: Condvar,
}

/// A volume's turn; it ends when this is dropped.
pub struct VolumeTurn<'a> {
    turns: &'a VolumeTurns,
    id: VolumeId,
}

impl VolumeTurns {
    /// Waits until no other command of the volume is under way.
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
