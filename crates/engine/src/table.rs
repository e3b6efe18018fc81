//! Numbers of a core's connections, volumes, requests and operations, a type for each, and tables
//! that accept no other type.

use evenkeel_core::qos::scheduler::Dispatch;
use evenkeel_core::slots;
use evenkeel_core::slots::Slot;
use slab::Slab;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

slots! {
    /// The number of a connection on its core. Another connection gets it when this one is gone.
    pub SessionId;
    /// The number of a volume on its core, and of its store at the driver.
    pub VolumeSlot;
    /// The number of a request on its core: the handle that the scheduler returns.
    pub RequestId;
    /// The number of a quantum in the store: the ticket that the store returns.
    pub(crate) FlightId;
    /// The number of a permit for background work that is not granted yet.
    pub(crate) PermitId;
    /// The number of a read of a volume for background work.
    pub(crate) ProbeId;
    /// The number of a driver's operation at the disk.
    pub(crate) OperationId;
}

/// Returns the ticket under which a store gets the operation with this number.
#[inline]
pub(crate) fn ticket_of(number: impl Slot) -> u64 {
    u64::from(number.number())
}

/// Returns the number of the operation that a store has completed under this ticket.
#[inline]
pub(crate) fn number_of<S: Slot>(ticket: u64) -> S {
    debug_assert!(ticket < u64::from(u32::MAX), "a store has returned another ticket");
    S::new(ticket as u32)
}

impl RequestId {
    /// Returns the request of a dispatched quantum.
    #[inline]
    pub(crate) fn of(dispatch: &Dispatch) -> Self {
        Self::new(dispatch.handle)
    }
}

/// Rows by their numbers. The number of a removed row is used again. Indexing with a number that
/// has no row panics, as does its removal.
pub struct Table<S, T> {
    rows: Slab<T>,
    numbers: PhantomData<fn(S) -> S>,
}

impl<S: Slot, T> Table<S, T> {
    /// Creates an empty table.
    #[must_use]
    pub const fn new() -> Self {
        Self { rows: Slab::new(), numbers: PhantomData }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a row. Returns its number.
    #[inline]
    pub fn insert(&mut self, row: T) -> S {
        number(self.rows.insert(row))
    }

    /// Returns a row; `None` if it is gone.
    #[inline]
    #[must_use]
    pub fn get(&self, number: S) -> Option<&T> {
        self.rows.get(number.number() as usize)
    }

    /// Returns a row to be changed; `None` if it is gone.
    #[inline]
    pub fn get_mut(&mut self, number: S) -> Option<&mut T> {
        self.rows.get_mut(number.number() as usize)
    }

    /// Removes a row and returns it.
    #[inline]
    pub fn remove(&mut self, number: S) -> T {
        self.rows.remove(number.number() as usize)
    }

    /// Removes a row and returns it; `None` if it is gone.
    pub fn try_remove(&mut self, number: S) -> Option<T> {
        self.rows.try_remove(number.number() as usize)
    }

    /// Removes and returns all rows.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.rows.drain()
    }

    /// Returns all rows with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (S, &T)> {
        self.rows.iter().map(|(key, row)| (number(key), row))
    }

    /// Returns all rows with their numbers, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (S, &mut T)> {
        self.rows.iter_mut().map(|(key, row)| (number(key), row))
    }
}

/// Returns a row's number. Rows are connections, requests and the like, each of them kilobytes of
/// memory or limited by a constant, so 32 bits suffice.
#[inline]
fn number<S: Slot>(key: usize) -> S {
    debug_assert!(key < u32::MAX as usize, "a table has more rows than numbers");
    S::new(key as u32)
}

impl<S: Slot, T> Default for Table<S, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Slot, T> Index<S> for Table<S, T> {
    type Output = T;

    #[inline]
    fn index(&self, number: S) -> &T {
        &self.rows[number.number() as usize]
    }
}

impl<S: Slot, T> IndexMut<S> for Table<S, T> {
    #[inline]
    fn index_mut(&mut self, number: S) -> &mut T {
        &mut self.rows[number.number() as usize]
    }
}

#[cfg(test)]
impl SessionId {
    /// Returns the connection with this number.
    pub(crate) const fn for_test(number: u32) -> Self {
        Self(number)
    }
}

#[cfg(test)]
impl VolumeSlot {
    /// Returns the volume with this number.
    pub(crate) const fn for_test(number: u32) -> Self {
        Self(number)
    }
}

#[cfg(test)]
impl RequestId {
    /// Returns the request with this number.
    pub(crate) const fn for_test(number: u32) -> Self {
        Self(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_reuses_the_number_of_a_removed_row() {
        let mut table: Table<SessionId, &str> = Table::new();
        let first = table.insert("first");
        let second = table.insert("second");
        assert_eq!((table[first], table.get(second)), ("first", Some(&"second")));
        assert_eq!((table.remove(first), table.get(first)), ("first", None));
        assert_eq!((table.try_remove(first), table.len()), (None, 1));
        assert_eq!(table.insert("third"), first);
        let rows: Vec<(SessionId, &&str)> = table.iter().collect();
        assert_eq!(rows, [(first, &"third"), (second, &"second")]);
        assert_eq!(table.get(SessionId::NONE), None);
    }

    #[test]
    fn number_takes_no_more_than_its_32_bits() {
        assert_eq!(size_of::<(SessionId, VolumeSlot, RequestId)>(), 12);
        assert_eq!(size_of::<Table<SessionId, u64>>(), size_of::<Slab<u64>>());
    }
}
