//! A priority queue of small numbers from which any entry can be removed: four children a node, so
//! that the children of a node are in one cache line.

use crate::convert::exact;
use alloc::vec::Vec;

use crate::qos::slots::{Slot, Table};

const CHILDREN: usize = 4;
const ABSENT: u32 = u32::MAX;

/// Entries with a key each, smallest first; equal keys are ordered by entry. Entries are small
/// numbers, dense from 0.
#[derive(Debug)]
pub(crate) struct Heap<S> {
    items: Vec<(u64, S)>,
    /// Position of each entry in `items`, or `ABSENT`.
    positions: Table<S, u32>,
}

impl<S: Slot> Default for Heap<S> {
    fn default() -> Self {
        Self { items: Vec::new(), positions: Table::new() }
    }
}

impl<S: Slot> Heap<S> {
    pub const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub const fn len(&self) -> usize {
        self.items.len()
    }

    /// Makes room for `entries` entries. No other function allocates.
    pub fn grow(&mut self, entries: usize) {
        if self.positions.len() < entries {
            self.positions.grow(entries, ABSENT);
            self.items.reserve(entries.saturating_sub(self.items.len()));
        }
    }

    /// Returns the smallest key and its entry.
    pub fn first(&self) -> Option<(u64, S)> {
        self.items.first().copied()
    }

    /// Returns all entries with their keys, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, S)> {
        self.items.iter().copied()
    }

    pub fn contains(&self, entry: S) -> bool {
        !self.items.is_empty() && self.position(entry).is_some()
    }

    /// Adds `entry` with `key`, or changes its key.
    pub fn set(&mut self, entry: S, key: u64) {
        let position = match self.position(entry) {
            Some(at) => {
                self.items[at].0 = key;
                at
            }
            None => {
                self.items.push((key, entry));
                self.items.len() - 1
            }
        };
        let position = self.rise(position);
        self.sink(position);
        self.check_entry(entry);
    }

    /// Removes `entry`, if it is there.
    pub fn remove(&mut self, entry: S) {
        let Some(at) = self.position(entry) else { return };
        self.positions[entry] = ABSENT;
        let last = self.items.len() - 1;
        if at == last {
            self.items.pop();
            return;
        }
        self.items.swap_remove(at);
        let moved = self.items[at].1;
        let position = self.rise(at);
        self.sink(position);
        self.check_entry(moved);
    }

    /// Asserts in debug builds that an entry that was moved is consistent.
    #[inline]
    fn check_entry(&self, entry: S) {
        if cfg!(debug_assertions) {
            let position = self.position(entry);
            assert!(position.is_some(), "entry {entry:?} is not there");
            position.into_iter().for_each(|position| self.check(position));
        }
    }

    /// Lowers all keys by `amount`; smaller keys become 0.
    pub fn rebase(&mut self, amount: u64) {
        // Keys that become equal at 0 keep the heap's order: no child becomes smaller than its
        // parent, except by its entry among equals, which is corrected here.
        for item in &mut self.items {
            item.0 = item.0.saturating_sub(amount);
        }
        for at in 0..self.items.len() {
            self.rise(at);
        }
    }

    /// Asserts that no entry is before its parent, and that each has its position.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants(&self) {
        (0..self.items.len()).for_each(|position| self.check(position));
        let present = self.positions.iter().filter(|position| **position != ABSENT).count();
        assert_eq!(present, self.items.len(), "entries with a position, and items");
    }

    /// Asserts that one item is consistent.
    fn check(&self, at: usize) {
        let item = self.items[at];
        assert_eq!(self.position(item.1), Some(at), "the position of {item:?}");
        if let Some(parent) = at.checked_sub(1).map(|below| below / CHILDREN) {
            assert!(self.items[parent] < item, "{item:?} is below {:?}", self.items[parent]);
        }
    }

    fn position(&self, entry: S) -> Option<usize> {
        let position = *self.positions.get(entry)?;
        usize::try_from(position).ok().filter(|_| position != ABSENT)
    }

    fn rise(&mut self, mut at: usize) -> usize {
        let item = self.items[at];
        while at > 0 {
            let parent = (at - 1) / CHILDREN;
            if self.items[parent] <= item {
                break;
            }
            self.put(at, self.items[parent]);
            at = parent;
        }
        self.put(at, item);
        at
    }

    fn sink(&mut self, mut at: usize) {
        let item = self.items[at];
        loop {
            let first = at * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.items.len());
            let Some(least) = children.min_by_key(|child| self.items[*child]) else { break };
            if self.items[least] >= item {
                break;
            }
            self.put(at, self.items[least]);
            at = least;
        }
        self.put(at, item);
    }

    fn put(&mut self, at: usize, item: (u64, S)) {
        self.items[at] = item;
        self.positions[item.1] = exact(at, "fewer entries than numbers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::slots::FlowSlot;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Compares the heap with a sorted map: both have the same first entry after each step.
        #[test]
        fn heap_agrees_with_a_sorted_map(
            steps in prop::collection::vec((0u32..40, 0u64..100, 0u8..8), 1..300),
        ) {
            let mut heap: Heap<FlowSlot> = Heap::default();
            heap.grow(40);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (entry, key, step) in steps {
                match step {
                    0..5 => {
                        heap.set(FlowSlot::new(entry), key);
                        model.insert(entry, key);
                    }
                    5 | 6 => {
                        heap.remove(FlowSlot::new(entry));
                        model.remove(&entry);
                    }
                    _ => {
                        heap.rebase(key);
                        model.values_mut().for_each(|value| *value = value.saturating_sub(key));
                    }
                }
                let first = model.iter().map(|(entry, key)| (*key, *entry)).min();
                heap.invariants();
                prop_assert_eq!(heap.first().map(|(key, entry)| (key, entry.number())), first);
                prop_assert_eq!(heap.len(), model.len());
            }
        }
    }
}
