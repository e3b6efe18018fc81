//! Conditions that hold between any two calls of a wheel: of all its state, and of the part that
//! one change touches.
//!
//! A check of all state visits each list's head and each entry, so a property test does it after
//! each step, and a scheduler in a debug build from time to time. The parts that a change touches
//! are checked after each change in debug builds.

use super::{LIST_DUE, Link, NEAR_LISTS, NOWHERE, Wheel};
use crate::qos::slots::TimerSlot;

impl Wheel {
    /// Asserts that each list is a ring of exactly the entries that name it, and that the bitmaps
    /// mark exactly the lists with entries.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants(&self) {
        let (near, far) = self.heads.split_at(usize::from(NEAR_LISTS));
        let headed = |lists: &[TimerSlot]| lists.iter().filter(|head| !head.is_none()).count();
        let marked = (self.near_occupied.count(), self.far_occupied.count());
        let far = &far[..usize::from(LIST_DUE - NEAR_LISTS)];
        assert_eq!(marked, (headed(near), headed(far)), "lists that are marked, and with entries");
        let mut listed = 0;
        let mut linked = 0;
        for (entry, link) in self.links.entries().filter(|(_, link)| link.list != NOWHERE) {
            listed += 1;
            self.check(link.list, entry);
            if self.heads[usize::from(link.list)] == entry {
                linked += self.walk(link.list, entry);
            }
        }
        assert_eq!(listed, linked, "entries that say they are in a list, and that lists have");
    }

    /// Follows a list once around. Returns the number of its entries.
    fn walk(&self, list: u16, head: TimerSlot) -> usize {
        let mut entry = head;
        let mut length = 0;
        loop {
            let Link { list: said, next, .. } = self.links[entry];
            assert_eq!(said, list, "the list of entry {entry:?}");
            length += 1;
            assert!(
                length <= self.links.len(),
                "list {list} comes back to {next:?}, not to its head"
            );
            entry = next;
            if entry == head {
                return length;
            }
        }
    }

    /// Asserts the conditions of one list that do not depend on its length.
    fn check_list(&self, list: u16) {
        let head = self.heads[usize::from(list)];
        let is_marked = match list {
            near if near < NEAR_LISTS => self.near_occupied.contains(near),
            far if far < LIST_DUE => self.far_occupied.contains(far - NEAR_LISTS),
            _ => !head.is_none(),
        };
        assert_eq!(is_marked, !head.is_none(), "whether list {list} is marked, and has entries");
        if !head.is_none() {
            assert_eq!(self.links[head].list, list, "the list of its first entry {head:?}");
        }
    }

    /// Asserts the conditions of a list and of one of its entries.
    fn check(&self, list: u16, entry: TimerSlot) {
        self.check_list(list);
        let Link { next, previous, list: said, .. } = self.links[entry];
        assert_eq!(said, list, "the list of entry {entry:?}");
        assert_eq!(self.links[next].previous, entry, "the one before entry {next:?}");
        assert_eq!(self.links[previous].next, entry, "the one after {previous:?}");
    }

    /// Checks a list and its entry after a change, in debug builds.
    #[inline]
    pub(super) fn check_touched(&self, list: u16, entry: TimerSlot) {
        if cfg!(debug_assertions) {
            self.check(list, entry);
        }
    }

    /// Checks a list after an entry has left it, in debug builds.
    #[inline]
    pub(super) fn check_without(&self, list: u16) {
        if cfg!(debug_assertions) {
            let head = self.heads[usize::from(list)];
            if head.is_none() {
                self.check_list(list);
            } else {
                self.check(list, head);
            }
        }
    }
}
