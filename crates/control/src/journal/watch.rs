//! How changes reach those who follow a journal: each in a bounded queue of its own. A watcher that
//! does not keep up is dropped, and has to load again; it never holds up a commit.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use super::{Change, JournalError, Revision};

/// Changes that wait for one watcher at most.
pub const QUEUE_MAX: usize = 256;

/// A change that is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The revision that it made.
    pub revision: Revision,
    /// What it was.
    pub change: Change,
}

/// A journal's changes as one watcher sees them.
#[derive(Debug)]
pub struct Watch(Receiver<Arc<Committed>>);

impl Watch {
    /// The next change; `None` if there is none within `patience`.
    ///
    /// # Errors
    /// [`JournalError::Behind`] after the last change that this watcher gets.
    pub fn next(&self, patience: Duration) -> Result<Option<Arc<Committed>>, JournalError> {
        match self.0.recv_timeout(patience) {
            Ok(committed) => Ok(Some(committed)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(JournalError::Behind),
        }
    }
}

/// All watchers of a journal.
#[derive(Debug, Default)]
pub(super) struct Watchers(Vec<SyncSender<Arc<Committed>>>);

impl Watchers {
    /// One more, that gets these changes first; at most [`QUEUE_MAX`] of them.
    pub fn add(&mut self, first: impl IntoIterator<Item = Arc<Committed>>) -> Watch {
        let (queue, watch) = sync_channel(QUEUE_MAX);
        if first.into_iter().all(|committed| queue.try_send(committed).is_ok()) {
            self.0.push(queue);
        }
        Watch(watch)
    }

    /// Hands a change to all; those that are gone or do not keep up are dropped.
    pub fn publish(&mut self, revision: Revision, change: &Change) {
        if self.0.is_empty() {
            return;
        }
        let committed = Arc::new(Committed { revision, change: change.clone() });
        self.0.retain(|queue| queue.try_send(Arc::clone(&committed)).is_ok());
    }
}
