//! The occupied slots of one level of the wheel.

use crate::convert::{exact, index};

/// Marks the occupied slots among up to 64 x 64, with a summary word to find the next one without a
/// loop.
#[derive(Debug)]
pub(super) struct Bitmap<const WORDS: usize> {
    summary: u64,
    words: [u64; WORDS],
}

impl<const WORDS: usize> Bitmap<WORDS> {
    pub const fn new() -> Self {
        const { assert!(WORDS <= 64) };
        Self { summary: 0, words: [0; WORDS] }
    }

    pub const fn is_empty(&self) -> bool {
        self.summary == 0
    }

    pub fn contains(&self, slot: u16) -> bool {
        self.words[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    /// Returns the number of occupied slots.
    ///
    /// # Panics
    /// If the summary does not mark exactly the words with occupied slots.
    pub fn count(&self) -> usize {
        let mut count = 0;
        for (word, bits) in self.words.iter().enumerate() {
            assert_eq!(self.summary >> word & 1 == 1, *bits != 0, "word {word}");
            count += bits.count_ones();
        }
        index(count)
    }

    pub fn set(&mut self, slot: u16) {
        self.words[usize::from(slot / 64)] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    pub fn clear(&mut self, slot: u16) {
        let word = &mut self.words[usize::from(slot / 64)];
        *word &= !(1 << (slot % 64));
        if *word == 0 {
            self.summary &= !(1 << (slot / 64));
        }
    }

    /// Returns the first occupied slot at or after `slot`, else the first one from the beginning.
    pub fn next_from(&self, slot: u16) -> Option<u16> {
        if self.summary == 0 {
            return None;
        }
        let word = slot / 64;
        let rest = self.words[usize::from(word)] & (u64::MAX << (slot % 64));
        if rest != 0 {
            return Some(word * 64 + trailing_zeros(rest));
        }
        let after = self.summary & u64::MAX.checked_shl(u32::from(word) + 1).unwrap_or(0);
        // No word after this one: start from the beginning, where this word's own low bits come
        // last.
        let word = trailing_zeros(if after == 0 { self.summary } else { after });
        Some(word * 64 + trailing_zeros(self.words[usize::from(word)]))
    }
}

fn trailing_zeros(word: u64) -> u16 {
    exact(word.trailing_zeros(), "a word has 64 bits")
}
