//! Confirmation by the storage that this node may serve. It is requested every second, and at once
//! for each new client.

use evenkeel_core::fencing::Door;
use std::sync::mpsc::SyncSender;

/// Questions to the storage, and the thread that asks it.
#[derive(Debug)]
pub struct Confirmation {
    door: Door,
    wakes: SyncSender<()>,
}

impl Confirmation {
    /// Creates the questions, of which none is open. The receiver's thread asks the storage.
    #[must_use]
    pub fn new(wakes: SyncSender<()>) -> Self {
        Self { door: Door::default(), wakes }
    }

    /// Adds a question. Returns its number.
    pub fn ask(&self) -> u64 {
        let question = self.door.ask();
        self.wake();
        question
    }

    /// Wakes the thread that asks the storage, without a question.
    pub fn wake(&self) {
        // If there is no room, the thread has not taken the last message yet, and asks after this.
        let _ = self.wakes.try_send(());
    }

    /// Returns the questions to the storage, with its answers.
    #[must_use]
    pub fn door(&self) -> &Door {
        &self.door
    }
}
