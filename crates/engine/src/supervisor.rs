//! Reports a thread of the data plane that ends unexpectedly: no other thread takes over its
//! volumes.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called once, with the first failure.
type Tell = Box<dyn FnOnce(String) + Send>;

/// State of the data plane's threads; see the module's text.
#[derive(Clone, Default)]
pub(crate) struct Fate(Arc<Mutex<State>>);

enum State {
    Running(Option<Tell>),
    /// Threads end on request.
    Stopping,
    /// A thread has ended unexpectedly: its name, and the reason.
    Failed(String),
}

impl Default for State {
    fn default() -> Self {
        Self::Running(None)
    }
}

impl Fate {
    /// Allows threads to end from now on.
    pub(crate) fn stop(&self) {
        *self.lock() = State::Stopping;
    }

    /// Calls `tell` when a thread fails; at once if one has.
    pub(crate) fn when_failed(&self, tell: impl FnOnce(String) + Send + 'static) {
        let mut state = self.lock();
        match &mut *state {
            State::Running(place) => *place = Some(Box::new(tell)),
            State::Failed(what) => {
                let what = what.clone();
                drop(state);
                tell(what);
            }
            State::Stopping => {}
        }
    }

    /// Returns the guard of a thread. It is dropped at the thread's end, however that ends.
    pub(crate) fn watch(&self, thread: String) -> Watch {
        Watch { fate: self.clone(), thread, error: None, was_told: false }
    }

    fn failed(&self, what: String) {
        let mut state = self.lock();
        let State::Running(tell) = &mut *state else { return };
        let tell = tell.take();
        *state = State::Failed(what.clone());
        drop(state);
        tracing::error!("{what}");
        if let Some(tell) = tell {
            tell(what);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Changed by single assignments, so a panicked holder left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The guard of one thread.
pub(crate) struct Watch {
    fate: Fate,
    thread: String,
    error: Option<String>,
    was_told: bool,
}

impl Watch {
    /// Records that this thread alone was asked to stop.
    pub(crate) fn was_told(mut self) {
        self.was_told = true;
    }

    /// Records why the thread is about to end.
    pub(crate) fn because(&mut self, error: &dyn fmt::Display) {
        self.error = Some(error.to_string());
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.was_told {
            return;
        }
        let why = match self.error.take() {
            _ if std::thread::panicking() => "it panicked, see the log".to_owned(),
            Some(error) => error,
            None => "it ended without a request to stop".to_owned(),
        };
        self.fate.failed(format!("the data plane's thread {} has ended: {why}", self.thread));
    }
}
