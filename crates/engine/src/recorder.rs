//! Records the calls and dispatches of a data plane's schedulers.

use crate::reactor::{Inbox, Message};
use evenkeel_core::qos::trace::{Detail, Trace};
use evenkeel_core::time::Instant;
use evenkeel_os::clock::Clock;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// A handle on the recordings of a data plane. It may outlive the engine; after the engine's end,
/// recordings are empty.
#[derive(Clone)]
pub struct Recorder {
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) clock: Clock,
}

impl Recorder {
    /// Starts to record, up to `entries` entries for each core, whose memory is reserved at once.
    /// An earlier recording is dropped. Each core's trace starts with the names of its volumes; a
    /// trace for playback has to start before the first volume is added.
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
            // A core that has ended does not answer.
            traces.extend(answer.recv().ok().flatten().map(|trace| *trace));
        }
        traces
    }

    /// Returns the present time of the traces' clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}
