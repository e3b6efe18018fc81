//! Slots of volumes, attachments, instances, devices, tickets and requests: each has a type of its
//! own, and tables that accept no other.

use crate::convert::{exact, index};
pub(crate) use crate::slots::Slot;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

crate::slots! {
    /// The slot of a volume in its scheduler.
    pub(crate) VolumeSlot;
    /// The slot of an attachment of a volume.
    pub(crate) FlowSlot;
    /// The slot of the first attachment of a volume, which has the volume's state beside its
    /// limits.
    pub(crate) ShareSlot;
    /// The slot of an instance.
    pub(crate) InstanceSlot;
    /// The slot of a device.
    pub(crate) DeviceSlot;
    /// The slot of a quantum in service at a device.
    pub(crate) TicketSlot;
    /// The slot of an entry in a timing wheel.
    pub(crate) TimerSlot;
    /// The slot of a waiting request.
    pub(crate) NodeSlot;
}

impl ShareSlot {
    /// Returns the share of this attachment, which must be the first of its volume.
    #[inline]
    pub const fn of_first(flow: FlowSlot) -> Self {
        Self(flow.0)
    }

    /// Returns its attachment.
    #[inline]
    pub const fn flow(self) -> FlowSlot {
        FlowSlot(self.0)
    }
}

/// Rows that are found by their slots, dense from the first. Indexing panics for any other slot, as
/// for a slice.
#[derive(Debug)]
pub(crate) struct Table<S, T> {
    rows: Vec<T>,
    slots: PhantomData<fn(S) -> S>,
}

impl<S: Slot, T> Table<S, T> {
    pub const fn new() -> Self {
        Self { rows: Vec::new(), slots: PhantomData }
    }

    #[inline]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the slot of the next row.
    #[inline]
    fn next_slot(&self) -> S {
        let number = u32::try_from(self.rows.len());
        debug_assert!(number.is_ok_and(|number| number < S::NONE.number()), "a table is full");
        number.map_or(S::NONE, S::new)
    }

    /// Adds a row and returns its slot.
    #[inline]
    pub fn push(&mut self, row: T) -> S {
        let slot = self.next_slot();
        self.rows.push(row);
        slot
    }

    #[inline]
    pub fn get(&self, slot: S) -> Option<&T> {
        self.rows.get(index(slot.number()))
    }

    #[inline]
    pub fn get_mut(&mut self, slot: S) -> Option<&mut T> {
        self.rows.get_mut(index(slot.number()))
    }

    /// Returns all rows in the order of their slots.
    #[inline]
    pub fn iter(&self) -> core::slice::Iter<'_, T> {
        self.rows.iter()
    }

    /// Returns all rows in the order of their slots, to be changed.
    #[inline]
    pub fn iter_mut(&mut self) -> core::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }

    /// Returns all slots in their order.
    pub fn slots(&self) -> impl Iterator<Item = S> + use<S, T> {
        let end: u32 = exact(self.rows.len(), "a table has fewer rows than numbers");
        (0..end).map(S::new)
    }

    /// Returns all rows with their slots, in their order.
    pub fn entries(&self) -> impl Iterator<Item = (S, &T)> {
        (0..).map(S::new).zip(&self.rows)
    }

    pub fn as_slice(&self) -> &[T] {
        &self.rows
    }
}

impl<S: Slot, T: Clone> Table<S, T> {
    /// Adds copies of `row` until there are `rows` rows.
    pub fn grow(&mut self, rows: usize, row: T) {
        if self.rows.len() < rows {
            self.rows.resize(rows, row);
        }
    }
}

impl<S: Slot, T> Default for Table<S, T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Slot, T> Index<S> for Table<S, T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: S) -> &T {
        &self.rows[index(slot.number())]
    }
}

impl<S: Slot, T> IndexMut<S> for Table<S, T> {
    #[inline]
    fn index_mut(&mut self, slot: S) -> &mut T {
        &mut self.rows[index(slot.number())]
    }
}

impl<S: Slot, T> FromIterator<T> for Table<S, T> {
    fn from_iter<I: IntoIterator<Item = T>>(rows: I) -> Self {
        Self { rows: rows.into_iter().collect(), slots: PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_finds_its_row_and_none_finds_nothing() {
        let mut table: Table<FlowSlot, &str> = Table::new();
        let first = table.push("first");
        let second = table.push("second");
        assert_eq!((table[first], table.get(second)), ("first", Some(&"second")));
        assert_eq!(table.get(FlowSlot::NONE), None);
        assert!(FlowSlot::NONE.is_none() && !first.is_none());
        assert!(table.slots().eq([first, second]));
    }

    #[test]
    fn a_place_takes_no_more_than_its_number() {
        assert_eq!(size_of::<(VolumeSlot, FlowSlot)>(), 8);
        assert_eq!(size_of::<Table<VolumeSlot, u64>>(), size_of::<Vec<u64>>());
    }
}
