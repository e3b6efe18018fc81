//! Locks by key, granted in order of arrival: changes of one volume or host run one after the
//! other, changes of different ones run concurrently.
//!
//! A change passes all its keys at once and waits until no earlier change holds a conflicting key.
//! It requests no further key while it holds its guard, so a deadlock is impossible. At most
//! [`CHANGES_MAX`] changes wait or run; further ones are refused.
//!
//! The control plane uses these locks for its decisions; the fleet of a cluster has its own locks
//! for moves between nodes.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};

/// Maximum number of changes that wait or run at once: more than the API's concurrent requests.
pub const CHANGES_MAX: usize = 1_024;

/// One thing that a change locks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// The changes that run and those that wait, in order of arrival.
    changes: VecDeque<(u64, Vec<Key>)>,
    next: u64,
    /// Whether the locks are closed, so that no change gets one any more.
    is_closed: bool,
}

/// Why a change does not get its locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LockError {
    /// An earlier change holds this key, or waits for it, for longer than the change may wait.
    Busy(Key),
    /// [`CHANGES_MAX`] changes wait or run.
    Full,
    /// The locks are closed.
    Closed,
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

    /// Returns the first key of a change for which it waits.
    fn awaited(&self, id: u64) -> Option<&Key> {
        let own = self.changes.iter().position(|(other, _)| *other == id)?;
        let earlier = || self.changes.iter().take(own).flat_map(|(_, keys)| keys);
        let (_, keys) = self.changes.get(own)?;
        keys.iter().find(|key| earlier().any(|other| key.conflicts(other)))
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
        let waits = |queue: &mut Queue| queue.awaited(id).is_some();
        drop(self.ended.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner));
        Some(KeyGuard { locks: self, id })
    }

    /// Waits for at most `at_most` until all `keys` are free, then locks them.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock_within(
        &self,
        keys: Vec<Key>,
        at_most: Duration,
    ) -> Result<KeyGuard<'_>, LockError> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(LockError::Closed);
        }
        if queue.changes.len() >= CHANGES_MAX {
            return Err(LockError::Full);
        }
        let guard = KeyGuard { locks: self, id: queue.push(keys) };
        let waits = |queue: &mut Queue| !queue.is_closed && queue.awaited(guard.id).is_some();
        let waited = self.ended.wait_timeout_while(queue, at_most, waits);
        let (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let refused = if queue.is_closed {
            Some(LockError::Closed)
        } else {
            queue.awaited(guard.id).cloned().map(LockError::Busy)
        };
        // Before the guard, which locks the queue when it is dropped.
        drop(queue);
        match refused {
            Some(error) => Err(error),
            None => Ok(guard),
        }
    }

    /// Locks those of `keys` that are free, without waiting, and returns them. A key that an
    /// earlier change waits for is not free.
    ///
    /// # Errors
    /// [`LockError::Full`] and [`LockError::Closed`].
    pub fn lock_free(&self, mut keys: Vec<Key>) -> Result<(KeyGuard<'_>, Vec<Key>), LockError> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(LockError::Closed);
        }
        if queue.changes.len() >= CHANGES_MAX {
            return Err(LockError::Full);
        }
        let taken: Vec<&Key> = queue.changes.iter().flat_map(|(_, keys)| keys).collect();
        keys.retain(|key| !taken.iter().any(|other| key.conflicts(other)));
        let id = queue.push(keys.clone());
        Ok((KeyGuard { locks: self, id }, keys))
    }

    /// Refuses the changes that wait in [`Self::lock_within`], and all later ones of it and of
    /// [`Self::lock_free`].
    pub fn close(&self) {
        self.queue().is_closed = true;
        self.ended.notify_all();
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
                let locks = &locks;
                let order = &order;
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

    #[test]
    fn lock_within_grants_in_order_of_arrival_and_lets_later_changes_pass_when_it_gives_up() {
        let locks = KeyLocks::default();
        let volume = |bits| Key::Volume(VolumeId::from_bits(bits));
        let first = locks.lock_within(vec![volume(1)], Duration::ZERO).unwrap();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..8_usize {
                let locks = &locks;
                let order = &order;
                scope.spawn(move || {
                    let keys = vec![volume(1), volume(2)];
                    let _guard = locks.lock_within(keys, Duration::from_secs(600)).unwrap();
                    order.lock().unwrap().push(number);
                });
                while locks.queue().changes.len() < number + 2 {
                    std::thread::yield_now();
                }
            }
            // Earlier changes wait for it, so it is not free.
            let refused = locks.lock_within(vec![volume(3), volume(2)], Duration::ZERO);
            assert_eq!(refused.unwrap_err(), LockError::Busy(volume(2)));
            let (_, free) = locks.lock_free(vec![volume(2), volume(3), volume(1)]).unwrap();
            assert_eq!(free, [volume(3)]);
            assert_eq!(locks.queue().changes.len(), 9, "a change that gave up is gone");
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(locks.queue().changes.is_empty());
    }

    #[test]
    fn close_refuses_the_changes_that_wait_and_later_ones() {
        let locks = KeyLocks::default();
        let key = || vec![Key::Host(InstanceId::from_bits(1))];
        let held = locks.lock_within(key(), Duration::ZERO).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| locks.lock_within(key(), Duration::from_secs(600)).err());
            while locks.queue().changes.len() < 2 {
                std::thread::yield_now();
            }
            locks.close();
            assert_eq!(waits.join().unwrap(), Some(LockError::Closed));
        });
        assert_eq!(locks.lock_free(key()).unwrap_err(), LockError::Closed);
        drop(held);
        assert_eq!(locks.lock_within(key(), Duration::ZERO).unwrap_err(), LockError::Closed);
    }

    #[test]
    fn lock_within_has_a_bound_on_the_changes_that_wait() {
        let locks = KeyLocks::default();
        let volume = |bits| vec![Key::Volume(VolumeId::from_bits(bits))];
        let lock = |bits| locks.lock_within(volume(bits), Duration::ZERO);
        let _all: Vec<_> = (0..CHANGES_MAX).map(|bits| lock(bits as u128).unwrap()).collect();
        assert_eq!(lock(5_000).unwrap_err(), LockError::Full);
        assert_eq!(locks.lock_free(volume(5_000)).unwrap_err(), LockError::Full);
    }
}
