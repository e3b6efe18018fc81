//! The objects of an image that may have data: those that it had when it was opened, and those that
//! were written since. An object without data among them only means that zeroes are read.

use super::image::OBJECT_BYTES;
use crate::{EXTENTS_MAX, Extent};

/// One bit for each object.
#[derive(Debug, Default)]
pub(super) struct Objects {
    words: Vec<u64>,
}

impl Objects {
    /// Records that a range may have data.
    pub(super) fn note(&mut self, offset: u64, length: u64) {
        let Some(last) = (offset + length).checked_sub(1).filter(|_| length > 0) else { return };
        for object in offset / OBJECT_BYTES..=last / OBJECT_BYTES {
            let word = (object / 64) as usize;
            if word >= self.words.len() {
                self.words.resize(word + 1, 0);
            }
            self.words[word] |= 1 << (object % 64);
        }
    }

    /// Records those of another set, too.
    pub(super) fn add(&mut self, others: &Self) {
        let length = self.words.len().max(others.words.len());
        self.words.resize(length, 0);
        for (word, other) in self.words.iter_mut().zip(&others.words) {
            *word |= other;
        }
    }

    fn is_noted(&self, object: u64) -> bool {
        let word = self.words.get((object / 64) as usize).copied().unwrap_or(0);
        word & (1 << (object % 64)) != 0
    }

    /// Returns the extents of a range, from its beginning on.
    pub(super) fn extents(&self, offset: u64, length: u32) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        let end = offset + u64::from(length);
        let mut start = offset;
        while start < end {
            let object = start / OBJECT_BYTES;
            let next = end.min((object + 1) * OBJECT_BYTES);
            let piece = (next - start) as u32;
            let hole = !self.is_noted(object);
            let is_full = extents.len() == EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += piece,
                _ if is_full => return extents,
                _ => extents.push(Extent { length: piece, hole, zero: hole }),
            }
            start = next;
        }
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_whole_objects_cut_to_the_requested_range() {
        let mut objects = Objects::default();
        objects.note(OBJECT_BYTES + 5, 1);
        objects.note(OBJECT_BYTES, 0);
        objects.note(3 * OBJECT_BYTES - 1, 2);
        let found = objects.extents(OBJECT_BYTES / 2, 4 * OBJECT_BYTES as u32);
        let found: Vec<(u64, bool)> =
            found.iter().map(|e| (u64::from(e.length) * 2 / OBJECT_BYTES, e.hole)).collect();
        assert_eq!(found, [(1, true), (6, false), (1, true)]);
    }

    #[test]
    fn extents_are_limited_to_the_maximum_of_a_reply() {
        let mut objects = Objects::default();
        for object in (0..400).step_by(2) {
            objects.note(object * OBJECT_BYTES, 1);
        }
        let found = objects.extents(0, 400 * OBJECT_BYTES as u32);
        assert_eq!(found.len(), EXTENTS_MAX);
        assert_eq!(found.iter().map(|e| u64::from(e.length)).sum::<u64>(), 64 * OBJECT_BYTES);
    }
}
