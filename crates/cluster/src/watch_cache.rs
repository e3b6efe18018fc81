//! A copy of the keys below a prefix of etcd, which a thread keeps current by a watch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use evenkeel_os::clock;
use tracing::warn;

use super::kv::{Found, Kv};
use crate::etcd::client::EtcdError;
use crate::etcd::gateway::WatchAnswer;
use crate::etcd::listener::Listener;
use crate::etcd::watching::{Ended, span};

/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);

/// Parsed values by the rest of their keys after the prefix. Values that cannot be parsed are left
/// out. Clones share the values.
pub struct Mirror<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    values: Mutex<BTreeMap<String, T>>,
    changed: Listener,
    read: fn(&str, &[u8]) -> Option<T>,
}

impl<T> Clone for Mirror<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T: Send + 'static> Mirror<T> {
    /// Reads all keys, and watches them until the last clone is dropped. `read` parses a value.
    ///
    /// # Errors
    /// If etcd does not answer, or the thread cannot be started.
    pub fn start(
        kv: Kv,
        prefix: &'static str,
        read: fn(&str, &[u8]) -> Option<T>,
    ) -> Result<Self, EtcdError> {
        let shared =
            Arc::new(Shared { values: Mutex::default(), changed: Listener::default(), read });
        let next = shared.load(&kv, prefix)?;
        let there = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name("etcd-mirror".to_owned())
            .spawn(move || Watcher { kv, prefix, there, next }.run())
            .map_err(|error| EtcdError::Options(format!("no thread to watch etcd: {error}")))?;
        Ok(Self { shared })
    }

    /// Calls `tell` now and after each later change. `tell` must not block. It replaces the
    /// function of an earlier call.
    pub fn when_changed(&self, tell: impl Fn() + Send + 'static) {
        self.shared.changed.set(Box::new(tell));
    }

    /// Returns the latest values.
    pub fn values(&self) -> MutexGuard<'_, BTreeMap<String, T>> {
        self.shared.values()
    }
}

impl<T> Shared<T> {
    fn values(&self) -> MutexGuard<'_, BTreeMap<String, T>> {
        // Each change of the values is one assignment.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all keys. Returns the revision from which to watch.
    fn load(&self, kv: &Kv, prefix: &str) -> Result<u64, EtcdError> {
        let Found { values, revision } = kv.all(prefix)?;
        let read = |(key, value): (String, Vec<u8>)| {
            let value = (self.read)(&key, &value)?;
            Some((key, value))
        };
        *self.values() = values.into_iter().filter_map(read).collect();
        self.changed.call();
        Ok(revision + 1)
    }

    fn take(&self, prefix: &[u8], answer: &WatchAnswer) {
        let mut values = self.values();
        for event in &answer.events {
            let Some(rest) = event.kv.key.0.strip_prefix(prefix) else { continue };
            let key = String::from_utf8_lossy(rest).into_owned();
            let value = match event.kind.as_str() {
                "DELETE" => None,
                _ => (self.read)(&key, &event.kv.value.0),
            };
            match value {
                Some(value) => drop(values.insert(key, value)),
                None => drop(values.remove(&key)),
            }
        }
        drop(values);
        self.changed.call();
    }
}

struct Watcher<T> {
    kv: Kv,
    prefix: &'static str,
    there: Weak<Shared<T>>,
    next: u64,
}

impl<T> Watcher<T> {
    fn run(mut self) {
        let mut was_fresh = true;
        while let Some(shared) = self.there.upgrade() {
            let outcome = self.span(&shared);
            let is_fresh = outcome.is_ok();
            if let (Err(error), true) = (&outcome, was_fresh) {
                warn!(prefix = self.prefix, %error, "cannot watch the keys in etcd");
            }
            was_fresh = is_fresh;
            drop(shared);
            if !is_fresh {
                self.kv.client.turn_away();
                clock::pause(PAUSE);
            }
        }
    }

    /// Reads one stream to its end.
    fn span(&mut self, shared: &Shared<T>) -> Result<(), String> {
        let client = self.kv.client.clone();
        let prefix = self.kv.name(self.prefix);
        match span(&client, &prefix, self.next, |answer| self.take(shared, &prefix, answer)) {
            Ok(_) => Ok(()),
            Err(Ended::Failed(why)) => Err(why),
            Err(Ended::Stopped(loaded)) => loaded,
        }
    }

    /// Applies a message of the watch. Returns `Err` if the watch has ended, with the result of
    /// reading all keys again.
    fn take(
        &mut self,
        shared: &Shared<T>,
        prefix: &[u8],
        answer: &WatchAnswer,
    ) -> Result<(), Result<(), String>> {
        if answer.compact_revision.0 > 0 || answer.canceled {
            let load = shared.load(&self.kv, self.prefix);
            return Err(load.map(|next| self.next = next).map_err(|error| error.to_string()));
        }
        shared.take(prefix, answer);
        if let Some(last) = answer.events.last() {
            self.next = last.kv.mod_revision.0.saturating_add(1);
        }
        Ok(())
    }
}
