//! Whether the storage lets this node serve: asked every second, and at once for each new client.

use evenkeel_core::fencing::Door;
use std::sync::mpsc::SyncSender;

/// Questions to the storage, and the thread that asks it.
#[derive(Debug)]
pub struct Confirmation {
    door: Door,
    wakes: SyncSender<()>,
}

impl Confirmation {
    /// Nothing is asked yet. The receiver's thread asks the storage.
    pub fn new(wakes: SyncSender<()>) -> Self {
        Self { door: Door::default(), wakes }
    }

    /// Asks. Returns the question's number.
    pub fn ask(&self) -> u64 {
        let question = self.door.ask();
        self.wake();
        question
    }

    /// Has the storage asked, without a question.
    pub fn wake(&self) {
        // If there is no room, the thread has not taken the last message yet: it asks after this.
        let _ = self.wakes.try_send(());
    }

    /// What the storage is asked, and what it has answered.
    pub fn door(&self) -> &Door {
        &self.door
    }
}
