//! A callback for news that a thread hears from etcd.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Is called when there is news; it must not block.
pub(crate) type Tell = Box<dyn Fn() + Send>;

/// The place of a callback. Nothing is called before one is set.
#[derive(Default)]
pub(crate) struct Listener(Mutex<Option<Tell>>);

impl Listener {
    /// Sets the callback, and calls it once for news from before.
    pub(crate) fn set(&self, tell: Tell) {
        tell();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    }

    /// Calls the callback.
    pub(crate) fn call(&self) {
        if let Some(tell) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            tell();
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Listener")
    }
}
