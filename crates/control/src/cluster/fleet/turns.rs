//! One thing at a time is done to a volume, in the order in which it is asked for.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_core::ids::VolumeId;

/// Volumes to which something is being done.
#[derive(Default)]
pub(super) struct Turns {
    busy: Mutex<BTreeSet<VolumeId>>,
    left: Condvar,
}

/// Held while something is done to a volume.
pub(super) struct Turn<'a>(&'a Turns, VolumeId);

impl Turns {
    /// Waits for a volume, at most so long; `None` if something else takes longer.
    pub(super) fn take(&self, id: VolumeId, at_most: Duration) -> Option<Turn<'_>> {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.left.wait_timeout_while(busy, at_most, |busy| busy.contains(&id));
        let (mut busy, _) = waited.unwrap_or_else(PoisonError::into_inner);
        busy.insert(id).then_some(Turn(self, id))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
        self.0.left.notify_all();
    }
}
