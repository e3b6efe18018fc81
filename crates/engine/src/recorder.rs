//! Records what the schedulers of a data plane are asked and answer.

use crate::clock::Clock;
use crate::reactor::{Inbox, Message};
use evenkeel_core::qos::trace::{Detail, Trace};
use evenkeel_core::time::Instant;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// A handle on the records of a data plane. It outlives borrows of the engine; when the engine has
/// ended, there is nothing to record.
#[derive(Clone)]
pub struct Recorder {
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) clock: Clock,
}

impl Recorder {
    /// Records from now on, up to `entries` entries for each core, whose memory is reserved at
    /// once. What was recorded before is dropped. The volumes of each core are named at the
    /// beginning of its trace; a trace that is to be played back has to begin before the first
    /// volume is added.
    pub fn begin(&self, entries: usize, detail: Detail) {
        for inbox in &*self.inboxes {
            inbox.post(Message::Record(entries, detail));
        }
    }

    /// Ends the recording and returns the trace of each core that recorded.
    #[must_use]
    pub fn end(&self) -> Vec<Trace> {
        let mut traces = Vec::new();
        for inbox in &*self.inboxes {
            let (ack, answer) = sync_channel(1);
            inbox.post(Message::Recorded(ack));
            // A core that has ended answers nothing.
            traces.extend(answer.recv().ok().flatten().map(|trace| *trace));
        }
        traces
    }

    /// The present time of the clock that the traces are stamped by.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}
