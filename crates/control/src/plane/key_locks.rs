//! Locks by key, granted in order of arrival: changes of one volume or host run one after the
//! other, changes of different ones run concurrently.
//!
//! A change passes all its keys at once and waits until no earlier change holds a conflicting key.
//! It requests no further key while it holds its guard, so a deadlock is impossible. At most
//! [`CHANGES_MAX`] changes wait or run; further ones are refused.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

/// The most changes that wait or run at once: more than the API's concurrent requests.
pub const CHANGES_MAX: usize = 1_024;

/// One thing that a change locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// Everything; conflicts with every other key.
    Everything,
    /// A volume, or stored bytes that have its id.
    Volume(VolumeId),
    /// A host, exclusively.
    Host(InstanceId),
    /// A host that the change only reads: shared with other readers.
    HostShared(InstanceId),
    /// An idempotency token.
    Token(String),
    /// A snapshot, or stored bytes that have its id.
    Snapshot(SnapshotId),
    /// The account's settings.
    Account,
}

impl Key {
    fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => true,
            (Self::HostShared(_), Self::HostShared(_)) => false,
            (Self::Host(one) | Self::HostShared(one), Self::Host(two) | Self::HostShared(two)) => {
                one == two
            }
            (one, two) => one == two,
        }
    }
}

fn conflict(ones: &[Key], others: &[Key]) -> bool {
    ones.iter().any(|one| others.iter().any(|other| one.conflicts(other)))
}

#[derive(Debug, Default)]
struct Queue {
    /// In order of arrival: the changes that run and those that wait.
    changes: VecDeque<(u64, Vec<Key>)>,
    next: u64,
}

impl Queue {
    /// Adds a change and returns its id.
    fn push(&mut self, keys: Vec<Key>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.changes.push_back((id, keys));
        self.check();
        id
    }

    /// Removes a change that has ended.
    fn remove(&mut self, id: u64) {
        self.changes.retain(|(other, _)| *other != id);
        self.check();
    }

    /// Asserts the invariants in debug builds and tests, after every mutation: changes are in the
    /// order of their ids, and their number is bounded.
    fn check(&self) {
        debug_assert!(self.changes.len() <= CHANGES_MAX);
        debug_assert!(self.changes.iter().is_sorted_by(|(one, _), (two, _)| one < two));
        debug_assert!(self.changes.back().is_none_or(|(last, _)| *last < self.next));
    }
}

/// All changes that wait or run.
#[derive(Debug, Default)]
pub struct KeyLocks {
    queue: Mutex<Queue>,
    ended: Condvar,
}

/// Holds the keys of one change; releases them when it is dropped.
#[derive(Debug)]
pub struct KeyGuard<'a> {
    locks: &'a KeyLocks,
    id: u64,
}

impl KeyLocks {
    /// Blocks until all `keys` are free, then locks them. Returns `None` at once if
    /// [`CHANGES_MAX`] changes wait or run.
    pub fn lock(&self, keys: Vec<Key>) -> Option<KeyGuard<'_>> {
        let mut queue = self.queue();
        if queue.changes.len() >= CHANGES_MAX {
            return None;
        }
        let id = queue.push(keys);
        let waits = |queue: &mut Queue| {
            let before = queue.changes.iter().take_while(|(other, _)| *other != id);
            let own = queue.changes.iter().find(|(other, _)| *other == id);
            own.is_some_and(|(_, keys)| before.into_iter().any(|(_, other)| conflict(keys, other)))
        };
        drop(self.ended.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner));
        Some(KeyGuard { locks: self, id })
    }

    /// Locks all `keys` without waiting; returns `None` if one of them is held or
    /// waited for, or if [`CHANGES_MAX`] changes wait or run.
    pub fn try_lock(&self, keys: Vec<Key>) -> Option<KeyGuard<'_>> {
        let mut queue = self.queue();
        let is_busy = queue.changes.iter().any(|(_, other)| conflict(&keys, other));
        if is_busy || queue.changes.len() >= CHANGES_MAX {
            return None;
        }
        let id = queue.push(keys);
        Some(KeyGuard { locks: self, id })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Every change of the queue is a single call, so a poisoned lock is still consistent.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        self.locks.queue().remove(self.id);
        self.locks.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicting_changes_run_in_order_and_others_do_not_wait() {
        let locks = KeyLocks::default();
        let volume = |bits| Key::Volume(VolumeId::from_bits(bits));
        let host = InstanceId::from_bits(1);
        let first = locks.lock(vec![volume(1), Key::HostShared(host)]).unwrap();
        assert!(locks.try_lock(vec![volume(2), volume(1)]).is_none());
        assert!(locks.try_lock(vec![Key::Host(host)]).is_none());
        assert!(locks.try_lock(vec![Key::Everything]).is_none());
        drop(locks.try_lock(vec![volume(2), Key::HostShared(host)]).unwrap());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (locks, order) = (&locks, &order);
                scope.spawn(move || {
                    let _guard = locks.lock(vec![volume(1)]).unwrap();
                    order.lock().unwrap().push(number);
                });
                while locks.queue().changes.len() < number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
        let all: Vec<_> =
            (0..CHANGES_MAX).map(|bits| locks.lock(vec![volume(bits as u128)]).unwrap()).collect();
        assert!(locks.lock(vec![volume(5_000)]).is_none(), "there is a bound");
        drop(all);
        assert!(locks.try_lock(vec![Key::Everything]).is_some());
    }
}
