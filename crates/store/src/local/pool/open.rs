//! An open volume of the pool, and its requests to the pool's tables. A thread answers them, so
//! that no reactor waits for the flushes that make an owner or a node durable.

use super::{Known, LocalPool, Shared};
use crate::disk::Disk;
use crate::forwarding::ForwardingStore;
use crate::local::volume::{NoChunk, Note, SnapshotEnd, Tables, Task, Volume};
use crate::{Completion, Store, Submission};
use evenkeel_core::request::Failure;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Indexes and numbers of chunks.
type Chunks = Vec<(u32, u32)>;

/// A request of a volume to the pool's tables.
#[derive(Debug)]
pub(super) enum Ask {
    Chunks { node: u32, count: usize, answer: Arc<Answer<Chunks>> },
    Note { note: Note, answer: Arc<Answer<bool>> },
}

/// The answer to an [`Ask`].
#[derive(Debug)]
pub(super) struct Answer<T> {
    value: Mutex<Option<T>>,
    /// Eventfd that is readable when the answer is there.
    ready: OwnedFd,
}

impl<T> Answer<T> {
    fn new() -> Option<Arc<Self>> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC).ok()?;
        Some(Arc::new(Self { value: Mutex::default(), ready }))
    }

    fn give(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        // The counter cannot overflow, since it is written once.
        let _ = rustix::io::write(&self.ready, &1_u64.to_ne_bytes());
    }

    fn take(&self) -> Option<T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Time without a request after which the superblock is read for another server's session.
const LOOK: Duration = Duration::from_secs(1);

/// Answers the requests of volumes until the last sender is dropped.
pub(super) fn answer_all(shared: &Arc<Shared>, asks: &Receiver<Ask>) {
    loop {
        match asks.recv_timeout(LOOK) {
            Ok(Ask::Chunks { node, count, answer }) => answer.give(shared.give(node, count)),
            Ok(Ask::Note { note, answer }) => {
                let is_returned = matches!(note, Note::Returned(..));
                answer.give(shared.note(&note));
                if is_returned {
                    // This thread is the only one that answers, so it uses a pool without a clerk.
                    LocalPool::without_clerk(Arc::clone(shared)).try_again();
                }
            }
            // The claim remembers a loss.
            Err(RecvTimeoutError::Timeout) => _ = shared.claim.hold(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Interface of one volume to the pool's tables.
pub(super) struct PoolTables {
    shared: Arc<Shared>,
    node: u32,
    /// Queue of the thread that answers. Without it, a request is answered in the caller's thread.
    clerk: Option<SyncSender<Ask>>,
    /// Figures that the pool has of the volume.
    known: Arc<Known>,
    chunks: Option<Arc<Answer<Chunks>>>,
    given: Chunks,
    note: Option<Arc<Answer<bool>>>,
    is_noted: bool,
}

impl PoolTables {
    pub fn new(shared: Arc<Shared>, node: u32, clerk: Option<SyncSender<Ask>>) -> Self {
        let chunks = None;
        let given = Vec::new();
        let note = None;
        let known = Arc::clone(shared.known().entry(node).or_default());
        Self { shared, node, clerk, known, chunks, given, note, is_noted: false }
    }

    /// Sends a request to the thread. Returns the answer's place, and the descriptor that becomes
    /// readable when the answer has arrived; `None` if the request cannot be queued.
    fn send<T>(&self, ask: impl FnOnce(Arc<Answer<T>>) -> Ask) -> Option<(Arc<Answer<T>>, RawFd)> {
        let clerk = self.clerk.as_ref()?;
        let answer = Answer::new()?;
        clerk.try_send(ask(Arc::clone(&answer))).ok()?;
        let fd = answer.ready.as_raw_fd();
        Some((answer, fd))
    }
}

impl Tables for PoolTables {
    fn ask(&mut self, count: usize) -> Option<RawFd> {
        let node = self.node;
        match self.send(|answer| Ask::Chunks { node, count, answer }) {
            Some((answer, fd)) => {
                self.chunks = Some(answer);
                Some(fd)
            }
            None => {
                self.given = self.shared.give(node, count);
                None
            }
        }
    }

    fn answer(&mut self) -> Result<Vec<(u32, u32)>, NoChunk> {
        let answered = self.chunks.take().and_then(|answer| answer.take());
        let given = answered.unwrap_or_else(|| std::mem::take(&mut self.given));
        if given.is_empty() { Err(NoChunk) } else { Ok(given) }
    }

    fn note(&mut self, note: Note) -> Option<RawFd> {
        match self.send(|answer| Ask::Note { note: note.clone(), answer }) {
            Some((answer, fd)) => {
                self.note = Some(answer);
                Some(fd)
            }
            None => {
                self.is_noted = self.shared.note(&note);
                None
            }
        }
    }

    fn noted(&mut self) -> bool {
        let answered = self.note.take().and_then(|answer| answer.take());
        answered.unwrap_or_else(|| std::mem::take(&mut self.is_noted))
    }

    fn holds(&mut self, data_blocks: u64, durable: u64) {
        self.known.data_blocks.store(data_blocks, Ordering::Relaxed);
        self.known.durable.store(durable, Ordering::Relaxed);
    }

    fn task(&mut self) -> Option<Task> {
        self.shared.mail().tasks.get_mut(&self.node)?.pop_front()
    }

    fn snapshot_ended(&mut self, node: u32, end: SnapshotEnd) {
        let mut mail = self.shared.mail();
        if end == SnapshotEnd::NotBegun {
            mail.unmade.insert(node);
        }
        if let Some((_, waits)) = mail.waiting.remove(&node) {
            // The caller may have stopped waiting.
            let _ = waits.try_send(end == SnapshotEnd::Made);
        }
    }

    fn mended(&mut self, copies: u64) {
        self.shared.mended.fetch_add(copies, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.shared.claim.is_lost()
    }
}

/// Removes a node from those that are open when it is dropped.
pub(super) struct Closed {
    shared: Arc<Shared>,
    node: u32,
}

impl Closed {
    /// Records a node as open; `None` if it is open already.
    pub fn claim(shared: &Arc<Shared>, node: u32) -> Option<Self> {
        shared.open().insert(node).then(|| Self { shared: Arc::clone(shared), node })
    }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let mut mail = self.shared.mail();
        for task in mail.tasks.remove(&self.node).unwrap_or_default() {
            if let Task::Snapshot(snapshot) = task {
                mail.unmade.insert(snapshot);
            }
        }
        mail.reclaiming.remove(&self.node);
        // Callers that wait for a snapshot of the volume learn by the dropped sender that there
        // will be none.
        mail.waiting.retain(|_, (volume, _)| *volume != self.node);
        drop(mail);
        self.shared.open().remove(&self.node);
    }
}

/// A volume of the pool, which counts as open while this lives. Once another server has the pool,
/// all requests are refused, since reads would return data of that server.
pub(super) struct OpenVolume {
    pub volume: Volume,
    /// Requests that arrived after another server was found to have the pool.
    refused: VecDeque<Completion>,
    /// Dropped when the volume is closed.
    closed: Closed,
}

impl OpenVolume {
    pub fn new(volume: Volume, closed: Closed) -> Self {
        Self { volume, refused: VecDeque::new(), closed }
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        if self.volume.is_idle() && !self.volume.is_closed() {
            self.volume.close_now();
        }
    }
}

impl ForwardingStore for OpenVolume {
    fn below(&self) -> &dyn Store {
        &self.volume
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        &mut self.volume
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        if self.closed.shared.claim.is_lost() {
            let Submission { ticket, buffer, .. } = submission;
            let result = Err(Failure::Io);
            let extents = Vec::new();
            return self.refused.push_back(Completion { ticket, result, buffer, extents });
        }
        self.volume.submit(submission, disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.refused.pop_front().or_else(|| self.volume.poll())
    }
}
