//! Whose turn it is to change what: changes of one volume or host run in the order in which they
//! came, and changes of different ones side by side.
//!
//! A change names all that it touches when it comes, and waits until no earlier change touches any
//! of it. It takes everything at once and asks for nothing more while it has its turn, so no two
//! changes wait for each other. At most [`CHANGES_MAX`] wait or run; more are refused.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_core::ids::{InstanceId, VolumeId};

/// Changes that wait or run at once: more than the API's requests under way.
pub const CHANGES_MAX: usize = 1_024;

/// What a change touches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// Everything there is.
    Everything,
    /// A volume, or bytes at rest with its id.
    Volume(VolumeId),
    /// A host.
    Host(InstanceId),
    /// A host that must stay as it is. Changes that need no more run side by side.
    HostStays(InstanceId),
    /// An idempotency token.
    Token(String),
}

impl Key {
    fn conflicts(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Everything, _) | (_, Self::Everything) => true,
            (Self::HostStays(_), Self::HostStays(_)) => false,
            (Self::Host(one) | Self::HostStays(one), Self::Host(two) | Self::HostStays(two)) => {
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
    /// In the order in which they came: those that run, and those that wait.
    changes: VecDeque<(u64, Vec<Key>)>,
    next: u64,
}

/// All changes that wait or run.
#[derive(Debug, Default)]
pub struct Turns {
    queue: Mutex<Queue>,
    ended: Condvar,
}

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    id: u64,
}

impl Turns {
    /// Waits for a turn with all of this; `None` if too many changes wait.
    pub fn take(&self, keys: Vec<Key>) -> Option<Turn<'_>> {
        let mut queue = self.lock();
        if queue.changes.len() >= CHANGES_MAX {
            return None;
        }
        let id = queue.next;
        queue.next += 1;
        queue.changes.push_back((id, keys));
        let waits = |queue: &mut Queue| {
            let before = queue.changes.iter().take_while(|(other, _)| *other != id);
            let own = queue.changes.iter().find(|(other, _)| *other == id);
            own.is_some_and(|(_, keys)| before.into_iter().any(|(_, other)| conflict(keys, other)))
        };
        drop(self.ended.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner));
        Some(Turn { turns: self, id })
    }

    /// A turn at once, or none.
    pub fn try_take(&self, keys: Vec<Key>) -> Option<Turn<'_>> {
        let mut queue = self.lock();
        let is_busy = queue.changes.iter().any(|(_, other)| conflict(&keys, other));
        if is_busy || queue.changes.len() >= CHANGES_MAX {
            return None;
        }
        let id = queue.next;
        queue.next += 1;
        queue.changes.push_back((id, keys));
        Some(Turn { turns: self, id })
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No change of it can be left half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.lock().changes.retain(|(id, _)| *id != self.id);
        self.turns.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_touches_the_same_takes_turns_in_order_and_the_rest_does_not_wait() {
        let turns = Turns::default();
        let volume = |bits| Key::Volume(VolumeId::from_bits(bits));
        let host = InstanceId::from_bits(1);
        let first = turns.take(vec![volume(1), Key::HostStays(host)]).unwrap();
        assert!(turns.try_take(vec![volume(2), volume(1)]).is_none());
        assert!(turns.try_take(vec![Key::Host(host)]).is_none());
        assert!(turns.try_take(vec![Key::Everything]).is_none());
        drop(turns.try_take(vec![volume(2), Key::HostStays(host)]).unwrap());
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..4 {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let _turn = turns.take(vec![volume(1)]).unwrap();
                    order.lock().unwrap().push(number);
                });
                while turns.lock().changes.len() < number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
        let all: Vec<_> =
            (0..CHANGES_MAX).map(|bits| turns.take(vec![volume(bits as u128)]).unwrap()).collect();
        assert!(turns.take(vec![volume(5_000)]).is_none(), "there is a bound");
        drop(all);
        assert!(turns.try_take(vec![Key::Everything]).is_some());
    }
}
