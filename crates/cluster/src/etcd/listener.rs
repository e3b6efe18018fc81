//! A callback for news from etcd that a thread receives.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Called when there is news; must not block.
pub(crate) type Tell = Box<dyn Fn() + Send>;

/// The place of a callback. Nothing is called before one is set.
#[derive(Default)]
pub(crate) struct Listener(Mutex<Option<Tell>>);

impl Listener {
    /// Sets the callback, and calls it once for news from before.
    pub(crate) fn set(&self, tell: Tell) {
        // Locked, so that news that comes meanwhile is not lost.
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tell();
        *place = Some(tell);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn new_listener_callback_replaces_the_last_and_is_called_at_once() {
        let listener = Listener::default();
        listener.call();
        let calls = Arc::new(AtomicU32::new(0));
        let first = Arc::clone(&calls);
        listener.set(Box::new(move || {
            first.fetch_add(1, Ordering::Relaxed);
        }));
        listener.call();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        let second = Arc::clone(&calls);
        listener.set(Box::new(move || {
            second.fetch_add(10, Ordering::Relaxed);
        }));
        listener.call();
        assert_eq!(calls.load(Ordering::Relaxed), 22);
    }
}
