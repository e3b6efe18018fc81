//! One thing at a time is done to a volume or a host, in the order in which it is asked for.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::ids::{InstanceId, VolumeId};

/// What something is done to. Who takes the turns of several takes them in this order, so that no
/// two wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Thing {
    /// A host with limits: which node has it, and where its volumes are.
    Host(InstanceId),
    Volume(VolumeId),
}

#[derive(Default)]
struct Busy {
    things: BTreeSet<Thing>,
    /// Nobody gets a turn any more.
    is_over: bool,
}

/// Volumes and hosts to which something is being done.
#[derive(Default)]
pub(super) struct Turns {
    busy: Mutex<Busy>,
    left: Condvar,
}

/// Held while something is done to a volume or a host.
pub(super) struct Turn<'a>(&'a Turns, Thing);

impl Turns {
    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Each change of it is one.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn, at most so long; `None` if something else takes longer, or if all is over.
    pub(super) fn take(&self, thing: Thing, at_most: Duration) -> Option<Turn<'_>> {
        let waits = |busy: &mut Busy| !busy.is_over && busy.things.contains(&thing);
        let waited = self.left.wait_timeout_while(self.busy(), at_most, waits);
        let (mut busy, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!busy.is_over && busy.things.insert(thing)).then_some(Turn(self, thing))
    }

    /// Nobody gets a turn any more, whoever waits for one included.
    pub(super) fn close(&self) {
        self.busy().is_over = true;
        self.left.notify_all();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.busy().things.remove(&self.1);
        self.0.left.notify_all();
    }
}
