//! Future events: a 4-ary heap of small entries, in order of time and, at the same time, of
//! arrival.
//!
//! With four children to a node the heap has half the levels of a binary one, and the children of a
//! node are in one or two cache lines.

/// Entries in order of time. Among entries with the same time the first one added is the first one
/// removed.
#[derive(Debug)]
pub struct Heap<T> {
    entries: Vec<Entry<T>>,
    pushed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry<T> {
    at: u64,
    sequence: u64,
    what: T,
}

impl<T: Copy> Heap<T> {
    /// Creates an empty heap.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new(), pushed: 0 }
    }

    /// Returns the time of the first entry.
    #[must_use]
    pub fn first_at(&self) -> Option<u64> {
        self.entries.first().map(|entry| entry.at)
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether it has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry.
    pub fn push(&mut self, at: u64, what: T) {
        let entry = Entry { at, sequence: self.pushed, what };
        self.pushed += 1;
        let mut hole = self.entries.len();
        self.entries.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if !entry.is_before(&self.entries[parent]) {
                break;
            }
            self.entries[hole] = self.entries[parent];
            hole = parent;
        }
        self.entries[hole] = entry;
    }

    /// Returns all entries in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, T)> {
        self.entries.iter().map(|entry| (entry.at, entry.what))
    }

    /// Returns all entries in the order in which they would be removed.
    pub fn iter_in_order(&self) -> impl Iterator<Item = (u64, T)> + use<T> {
        let mut entries = self.entries.clone();
        entries.sort_unstable_by_key(|entry| (entry.at, entry.sequence));
        entries.into_iter().map(|entry| (entry.at, entry.what))
    }

    /// Sets new times of all entries. The order of arrival stays.
    pub fn move_in_time(&mut self, to: impl Fn(u64, T) -> u64) {
        for entry in &mut self.entries {
            entry.at = to(entry.at, entry.what);
        }
        // A sorted list is a heap.
        self.entries.sort_unstable_by_key(|entry| (entry.at, entry.sequence));
    }

    /// Removes the last `count` entries, and returns them in order.
    pub fn take_last(&mut self, count: usize) -> Vec<T> {
        self.entries.sort_unstable_by_key(|entry| (entry.at, entry.sequence));
        let kept = self.entries.len().saturating_sub(count);
        self.entries.split_off(kept).into_iter().map(|entry| entry.what).collect()
    }

    /// Removes the first entry if its time is at most `now`.
    pub fn pop_due(&mut self, now: u64) -> Option<(u64, T)> {
        let first = *self.entries.first().filter(|entry| entry.at <= now)?;
        let last = self.entries.pop()?;
        if !self.entries.is_empty() {
            self.sift_down(last);
        }
        Some((first.at, first.what))
    }

    /// Places `entry`, beginning at the root, which is free.
    fn sift_down(&mut self, entry: Entry<T>) {
        let mut hole = 0;
        loop {
            let from = hole * 4 + 1;
            let children = self.entries.len().min(from + 4);
            if from >= children {
                break;
            }
            let mut least = from;
            for child in from + 1..children {
                if self.entries[child].is_before(&self.entries[least]) {
                    least = child;
                }
            }
            if !self.entries[least].is_before(&entry) {
                break;
            }
            self.entries[hole] = self.entries[least];
            hole = least;
        }
        self.entries[hole] = entry;
    }
}

impl<T: Copy> Default for Heap<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Entry<T> {
    fn is_before(&self, other: &Self) -> bool {
        (self.at, self.sequence) < (other.at, other.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a stable sort.
        #[test]
        fn entries_come_out_in_order_of_time_then_of_arrival(
            times in prop::collection::vec(0_u64..20, 0..200), takes in 0_usize..100,
        ) {
            let mut heap = Heap::new();
            let mut oracle: Vec<(u64, usize)> = Vec::new();
            let (early, late) = times.split_at(times.len() / 2);
            for (index, &at) in early.iter().enumerate() {
                heap.push(at, index);
                oracle.push((at, index));
            }
            oracle.sort_by_key(|(at, _)| *at);
            let taken = takes.min(oracle.len());
            for want in oracle.drain(..taken) {
                prop_assert_eq!(heap.first_at(), Some(want.0));
                prop_assert_eq!(heap.pop_due(u64::MAX), Some(want));
            }
            for (index, &at) in late.iter().enumerate() {
                heap.push(at, early.len() + index);
                oracle.push((at, early.len() + index));
            }
            oracle.sort_by_key(|(at, _)| *at);
            prop_assert_eq!(heap.len(), oracle.len());
            for want in oracle {
                if want.0 > 0 {
                    prop_assert_eq!(heap.pop_due(want.0 - 1), None);
                }
                prop_assert_eq!(heap.pop_due(want.0), Some(want));
            }
            prop_assert!(heap.is_empty());
        }
    }
}
