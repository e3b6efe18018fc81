//! Whether the storage lets this node serve: asked every second, and at once for each new client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

/// Questions, and which of them are answered. Several that come at the same time are asked as one.
#[derive(Debug)]
pub struct Confirmation {
    /// The number of the newest question.
    asked: AtomicU64,
    /// That of the newest one that is answered: the node may serve.
    confirmed: AtomicU64,
    wakes: SyncSender<()>,
}

impl Confirmation {
    /// Nothing is asked yet. The receiver's thread asks the storage.
    pub fn new(wakes: SyncSender<()>) -> Self {
        Self { asked: AtomicU64::new(0), confirmed: AtomicU64::new(0), wakes }
    }

    /// Asks. Returns the question's number.
    pub fn ask(&self) -> u64 {
        let question = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake();
        question
    }

    /// Has the storage asked, without a question.
    pub fn wake(&self) {
        // If there is no room, the thread has not taken the last message yet: it asks after this.
        let _ = self.wakes.try_send(());
    }

    /// Whether the storage has been asked since this question, and this node may serve.
    pub fn is_confirmed(&self, question: u64) -> bool {
        self.confirmed.load(Ordering::SeqCst) >= question
    }

    /// The newest question, before the storage is asked.
    pub fn newest(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// The storage was asked after this question, and this node may serve.
    pub fn confirm(&self, question: u64) {
        self.confirmed.fetch_max(question, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn a_question_is_confirmed_by_an_answer_to_it_or_to_a_later_one() {
        let (wakes, woken) = sync_channel(1);
        let confirmation = Confirmation::new(wakes);
        let early = confirmation.ask();
        assert_eq!(woken.try_recv(), Ok(()));
        let asked = confirmation.newest();
        let late = confirmation.ask();
        assert_eq!(woken.try_recv(), Ok(()), "the late one");
        assert!(!confirmation.is_confirmed(early));
        confirmation.confirm(asked);
        assert!(confirmation.is_confirmed(early));
        assert!(!confirmation.is_confirmed(late));
        confirmation.confirm(confirmation.newest());
        confirmation.confirm(asked);
        assert!(confirmation.is_confirmed(late));
    }
}
