//! Which new connections a node may let in: those that came before a question to the storage that
//! was answered with yes.
//!
//! A fenced node may not know it, and OSDs that have not seen the entry execute its writes. A
//! client that comes back to it from another node would have them overwrite what the other node
//! has written since. The process that takes over drops the node's registration in the pool's books
//! before it serves, so a read of the registration that begins after the client came tells.

use core::sync::atomic::{AtomicU64, Ordering};

/// What a process has found when it read its own registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnEntry {
    /// It is there.
    There,
    /// It is gone: the process that fences drops it.
    Gone,
    /// Ceph refuses this process.
    Refused,
}

impl OwnEntry {
    /// Whether this process is fenced.
    #[must_use]
    pub const fn is_fenced(self) -> bool {
        match self {
            Self::There => false,
            Self::Gone | Self::Refused => true,
        }
    }
}

/// Questions whether this process may serve, and which of them are answered with yes. Several that
/// are asked before a read begins are answered by it.
#[derive(Debug, Default)]
pub struct Door {
    /// The number of the newest question.
    asked: AtomicU64,
    /// The number of the newest question that is answered with yes.
    confirmed: AtomicU64,
}

impl Door {
    /// Asks, and returns the question's number.
    pub fn ask(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The newest question. It is looked up before a read begins, and is what the read answers.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// A read that began after this question has found that this process may serve.
    pub fn confirm(&self, question: u64) {
        self.confirmed.fetch_max(question, Ordering::SeqCst);
    }

    /// Whether a read that began after this question confirms that this process may serve.
    #[must_use]
    pub fn is_confirmed(&self, question: u64) -> bool {
        self.confirmed.load(Ordering::SeqCst) >= question
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_confirmed_by_an_answer_to_it_or_to_a_later_one() {
        let door = Door::default();
        let early = door.ask();
        let asked = door.newest();
        let late = door.ask();
        assert!(!door.is_confirmed(early));
        door.confirm(asked);
        assert!(door.is_confirmed(early));
        assert!(!door.is_confirmed(late));
        door.confirm(door.newest());
        door.confirm(asked);
        assert!(door.is_confirmed(late));
    }
}
