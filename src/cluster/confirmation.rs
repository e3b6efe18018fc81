//! Whether the storage lets this node serve: asked every second, and at once for each new client.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Questions, and which of them are answered. Several that come at the same time are asked as one.
#[derive(Debug, Default)]
pub struct Confirmation {
    state: Mutex<State>,
    asked: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the newest question.
    asked: u64,
    /// That of the newest one that is answered: the node may serve.
    confirmed: u64,
}

impl Confirmation {
    /// Asks; the question's number.
    pub fn ask(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        self.asked.notify_all();
        state.asked
    }

    /// Whether the storage has been asked since this question, and this node may serve.
    pub fn is_confirmed(&self, question: u64) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).confirmed >= question
    }

    /// The newest question, before the storage is asked.
    pub fn newest(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked
    }

    /// The storage was asked after this question, and this node may serve.
    pub fn confirm(&self, question: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.confirmed = state.confirmed.max(question);
    }

    /// Waits for a question after this one; whether there is one within some time.
    pub fn wait(&self, after: u64, time: Duration) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.asked.wait_timeout_while(state, time, |state| state.asked <= after);
        waited.unwrap_or_else(PoisonError::into_inner).0.asked > after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_confirmed_by_an_answer_to_it_or_to_a_later_one() {
        let confirmation = Confirmation::default();
        assert!(!confirmation.wait(0, Duration::ZERO));
        let early = confirmation.ask();
        let asked = confirmation.newest();
        let late = confirmation.ask();
        assert!(!confirmation.is_confirmed(early));
        confirmation.confirm(asked);
        assert_eq!([early, late].map(|it| confirmation.is_confirmed(it)), [true, false]);
        assert!(confirmation.wait(asked, Duration::ZERO), "the late one");
        confirmation.confirm(confirmation.newest());
        confirmation.confirm(asked);
        assert!(confirmation.is_confirmed(late));
    }
}
