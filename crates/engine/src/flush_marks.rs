//! The volumes of which a flush has failed, and the thread that records them in their pool for the
//! next process. A reactor only changes memory here: writing a mark takes as long as the pool's
//! device does.

use evenkeel_core::ids::VolumeId;
use evenkeel_store::{Pool, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{error, warn};

/// Time that the data plane waits at its end for marks that are not written yet.
const END_MAX: Duration = Duration::from_secs(10);

/// State that the reactors, the agent and the thread share. Its size is bounded by the number of
/// open volumes.
#[derive(Default)]
pub struct FlushMarks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Volumes of which a flush has failed.
    failed: BTreeSet<VolumeId>,
    /// Volumes whose mark is to be written (`true`) or removed.
    pending: BTreeMap<VolumeId, bool>,
    /// The volume whose mark the thread changes.
    changing: Option<VolumeId>,
    is_closed: bool,
    has_ended: bool,
}

impl State {
    fn is_settled(&self, id: VolumeId) -> bool {
        !self.pending.contains_key(&id) && self.changing != Some(id)
    }
}

impl FlushMarks {
    /// Records that a flush of a volume has failed. The mark is written soon.
    pub(crate) fn note(&self, id: VolumeId) {
        self.set(id, true);
    }

    /// Clears a volume's failure when it is attached anew. The mark is removed soon, if there is
    /// one.
    pub(crate) fn begin_anew(&self, id: VolumeId) {
        if self.has(id) {
            self.set(id, false);
        }
    }

    fn set(&self, id: VolumeId, has_failed: bool) {
        let mut state = self.state();
        if has_failed {
            state.failed.insert(id);
        } else {
            state.failed.remove(&id);
        }
        state.pending.insert(id, has_failed);
        self.changed.notify_all();
    }

    /// Returns whether a flush of a volume has failed, as far as this process knows.
    pub(crate) fn has(&self, id: VolumeId) -> bool {
        self.state().failed.contains(&id)
    }

    /// Reads from the pool whether a flush of a volume has failed, before the volume is opened.
    ///
    /// # Errors
    /// If the pool cannot tell.
    pub(crate) fn recall(&self, pool: &dyn Pool, id: VolumeId) -> Result<(), StoreError> {
        {
            let state = self.state();
            // What this process knows is newer than what the pool has.
            if state.failed.contains(&id) || !state.is_settled(id) {
                return Ok(());
            }
        }
        if pool.has_failed_flush(id)? {
            warn!(
                volume = %id,
                "a flush failed before the volume was opened: what was acknowledged then may be \
                 lost; flushes and writes fail until the volume is detached from all hosts and \
                 attached again"
            );
            self.state().failed.insert(id);
        }
        Ok(())
    }

    /// Forgets a volume that is closed, once no change of its mark is pending. Returns whether that
    /// was the case within `wait_max`.
    pub(crate) fn leave(&self, id: VolumeId, wait_max: Duration) -> bool {
        let state = self.state();
        let (mut state, waited) = self
            .changed
            .wait_timeout_while(state, wait_max, |state| !state.is_settled(id))
            .unwrap_or_else(PoisonError::into_inner);
        state.failed.remove(&id);
        !waited.timed_out()
    }

    /// Waits for the next change; `None` at the end.
    fn next(&self) -> Option<(VolumeId, bool)> {
        let state = self.state();
        let mut state = self
            .changed
            .wait_while(state, |state| state.pending.is_empty() && !state.is_closed)
            .unwrap_or_else(PoisonError::into_inner);
        let next = state.pending.pop_first();
        state.changing = next.map(|(id, _)| id);
        next
    }

    /// Records that the current change is made, or has failed.
    fn done(&self) {
        self.state().changing = None;
        self.changed.notify_all();
    }

    /// Makes the changes, one after the other, until [`Writer`] is dropped.
    fn work(&self, pool: &dyn Pool) {
        while let Some((id, has_failed)) = self.next() {
            let changed =
                if has_failed { pool.note_failed_flush(id) } else { pool.forget_failed_flush(id) };
            match changed {
                Ok(()) => {}
                Err(error) if has_failed => error!(
                    volume = %id, %error,
                    "it cannot be noted that a flush failed: a restart of the server forgets it"
                ),
                Err(error) => warn!(
                    volume = %id, %error,
                    "the note that a flush failed cannot be removed: after a restart of the server \
                     flushes and writes fail until the volume is attached anew once more"
                ),
            }
            self.done();
        }
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changed by single insertions and removals, so a panicked holder left it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that changes marks. Dropping it completes the pending changes first.
pub(crate) struct Writer {
    marks: Arc<FlushMarks>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts it.
    /// Starts the thread.
    /// # Errors
    /// If the system allows no more threads.
    pub(crate) fn start(marks: &Arc<FlushMarks>, pool: Arc<dyn Pool>) -> io::Result<Self> {
        let shared = Arc::clone(marks);
        let thread = std::thread::Builder::new().name("flush-marks".to_owned());
        let thread = thread.spawn(move || shared.work(pool.as_ref()))?;
        Ok(Self { marks: Arc::clone(marks), thread: Some(thread) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let mut state = self.marks.state();
        state.is_closed = true;
        self.marks.changed.notify_all();
        let (state, _) = self
            .marks
            .changed
            .wait_timeout_while(state, END_MAX, |state| !state.has_ended)
            .unwrap_or_else(PoisonError::into_inner);
        let has_ended = state.has_ended;
        drop(state);
        if !has_ended {
            error!(
                "the store has not answered within {} s: which flushes failed may be forgotten",
                END_MAX.as_secs()
            );
            return;
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that notes failed flushes panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::ByteCount;
    use evenkeel_store::local::pool::LocalPool;

    const ID: VolumeId = VolumeId::from_bits(1);
    const WAIT_MAX: Duration = Duration::from_secs(60);

    #[test]
    fn a_mark_is_as_the_last_change_says() {
        let folder = tempfile::tempdir().unwrap();
        let pool: Arc<dyn Pool> = Arc::new(LocalPool::in_folder(folder.path(), None).unwrap());
        let marks = Arc::new(FlushMarks::default());
        // Nothing works on them yet: only the last one counts.
        for has_failed in [true, false, true] {
            marks.set(ID, has_failed);
        }
        assert!(!marks.leave(ID, Duration::ZERO), "it is not written yet");
        marks.note(ID);
        drop(Writer::start(&marks, Arc::clone(&pool)).unwrap());
        assert!(pool.has_failed_flush(ID).unwrap());
        let marks = Arc::new(FlushMarks::default());
        let _writer = Writer::start(&marks, Arc::clone(&pool)).unwrap();
        assert!(!marks.has(ID), "it was not asked for");
        marks.recall(pool.as_ref(), ID).unwrap();
        assert!(marks.has(ID));
        marks.begin_anew(ID);
        assert!(marks.leave(ID, WAIT_MAX));
        assert!(!pool.has_failed_flush(ID).unwrap());
    }

    /// The mark in the pool is older than the state of this process.
    #[test]
    fn a_mark_that_is_to_be_removed_is_not_recalled() {
        let folder = tempfile::tempdir().unwrap();
        let pool = LocalPool::in_folder(folder.path(), None).unwrap();
        pool.create(ID, ByteCount(1 << 20)).unwrap();
        pool.note_failed_flush(ID).unwrap();
        let marks = FlushMarks::default();
        marks.recall(&pool, ID).unwrap();
        marks.begin_anew(ID);
        marks.recall(&pool, ID).unwrap();
        assert!(!marks.has(ID));
    }
}
