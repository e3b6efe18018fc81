//! Reports of a node's threads to the thread that runs its membership, which sleeps until one
//! arrives.
//!
//! A report of news replaces an earlier one of the same kind, and every question has one answer, so
//! the inbox has at most a few entries.

use crate::etcd::client::EtcdError;
use crate::etcd::election::Standing;
use crate::membership::{Event, Question};
use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The outcome of a question to the election; `None` if no node leads and this one was not to.
pub type Elected = Result<Option<Standing>, EtcdError>;

/// A report.
pub enum Note {
    /// An event as it is.
    Event(Event),
    /// The answer to a question about the leader.
    Elected(Question, Elected),
    /// The control plane of a term has ended.
    TermEnded(Question, Result<(), String>),
    /// The control plane answers.
    Ready,
    /// The nodes of the cluster or the homes of volumes have changed.
    ClusterChanged,
    /// Something about the lease of the present term has changed.
    LeaseChanged,
}

#[derive(Default)]
struct Notes {
    answers: VecDeque<Note>,
    is_fenced: bool,
    has_cluster_changed: bool,
    has_leader_changed: bool,
    has_lease_changed: bool,
}

/// See the module's text. Clones share it.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Shared>);

#[derive(Default)]
struct Shared {
    notes: Mutex<Notes>,
    came: Notify,
}

impl Inbox {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Each change of it is complete when the lock is released.
        self.0.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a report and wakes the thread that waits.
    pub fn send(&self, note: Note) {
        {
            let mut notes = self.notes();
            match note {
                Note::Event(Event::Fenced) => notes.is_fenced = true,
                Note::Event(Event::LeaderChanged) => notes.has_leader_changed = true,
                Note::ClusterChanged => notes.has_cluster_changed = true,
                Note::LeaseChanged => notes.has_lease_changed = true,
                answer => notes.answers.push_back(answer),
            }
        }
        self.0.came.notify_one();
    }

    /// Takes the next report. Reports that end a life or a term come first.
    #[must_use]
    pub fn take(&self) -> Option<Note> {
        let mut notes = self.notes();
        if mem::take(&mut notes.is_fenced) {
            return Some(Note::Event(Event::Fenced));
        }
        if mem::take(&mut notes.has_lease_changed) {
            return Some(Note::LeaseChanged);
        }
        if mem::take(&mut notes.has_cluster_changed) {
            return Some(Note::ClusterChanged);
        }
        if mem::take(&mut notes.has_leader_changed) {
            return Some(Note::Event(Event::LeaderChanged));
        }
        notes.answers.pop_front()
    }

    /// Waits until there may be a report.
    pub async fn wait(&self) {
        self.0.came.notified().await;
    }

    /// Removes the news of a life that has ended. Answers stay, since their questions may be open.
    pub fn forget_news(&self) {
        let mut notes = self.notes();
        *notes = Notes { answers: mem::take(&mut notes.answers), ..Notes::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_one_kind_are_one_and_a_fence_comes_first() {
        let inbox = Inbox::default();
        for _ in 0..1_000 {
            inbox.send(Note::ClusterChanged);
            inbox.send(Note::LeaseChanged);
            inbox.send(Note::Event(Event::LeaderChanged));
        }
        inbox.send(Note::Event(Event::LeavingAnnounced));
        inbox.send(Note::Event(Event::Fenced));
        assert!(matches!(inbox.take(), Some(Note::Event(Event::Fenced))));
        assert!(matches!(inbox.take(), Some(Note::LeaseChanged)));
        inbox.forget_news();
        assert!(matches!(inbox.take(), Some(Note::Event(Event::LeavingAnnounced))));
        assert!(inbox.take().is_none());
    }
}
