//! Delivery of a journal's changes to watchers, each with a bounded queue. A watcher that does not
//! keep up is dropped and must load again. It never delays a commit.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Change, JournalError, Revision};

/// Maximum number of changes queued for one watcher.
pub const QUEUE_MAX: usize = 256;

/// A stored change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// Its revision.
    pub revision: Revision,
    /// The change.
    pub change: Change,
}

/// A watcher's queue of changes. The sender can see whether the watcher has been dropped.
#[derive(Debug)]
pub struct Watch {
    queue: Receiver<Arc<Committed>>,
    _there: Arc<()>,
}

/// Creates a bounded queue for one watcher. Returns its sender, the watch, and a reference that is
/// dead once the watch is dropped.
#[must_use]
pub fn channel() -> (SyncSender<Arc<Committed>>, Watch, Weak<()>) {
    let (queue, watch) = sync_channel(QUEUE_MAX);
    let alive = Arc::new(());
    let there = Arc::downgrade(&alive);
    (queue, Watch { queue: watch, _there: alive }, there)
}

impl Watch {
    /// Returns the next change, or `None` if none arrives within `patience`.
    ///
    /// # Errors
    /// [`JournalError::Behind`] after the last change that this watcher receives.
    pub fn next(&self, patience: Duration) -> Result<Option<Arc<Committed>>, JournalError> {
        match self.queue.recv_timeout(patience) {
            Ok(committed) => Ok(Some(committed)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(JournalError::Behind),
        }
    }
}

/// All watchers of a journal.
#[derive(Debug, Default)]
pub struct Watchers(Vec<SyncSender<Arc<Committed>>>);

impl Watchers {
    /// Adds a watcher, whose queue begins with these changes; at most [`QUEUE_MAX`] of them.
    pub fn add(&mut self, first: impl IntoIterator<Item = Arc<Committed>>) -> Watch {
        let (queue, watch, _) = channel();
        if first.into_iter().all(|committed| queue.try_send(committed).is_ok()) {
            self.0.push(queue);
        }
        watch
    }

    /// Sends a change to all watchers, and drops those that are closed or do not keep up.
    pub fn publish(&mut self, revision: Revision, change: &Change) {
        if self.0.is_empty() {
            return;
        }
        let committed = Arc::new(Committed { revision, change: change.clone() });
        self.0.retain(|queue| queue.try_send(Arc::clone(&committed)).is_ok());
    }
}
