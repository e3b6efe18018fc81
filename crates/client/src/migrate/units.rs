//! A set of units, with a bit for each: 16 MiB for the largest volume. Pure.

/// The set.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnitSet {
    words: Vec<u64>,
    count: u64,
}

impl UnitSet {
    /// Adds a unit, unless it is there.
    pub fn insert(&mut self, unit: u64) {
        let (word, bit) = place(unit);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(is_new);
    }

    /// Whether a unit is there.
    pub fn contains(&self, unit: u64) -> bool {
        let (word, bit) = place(unit);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// How many units there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// All of them, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> {
        let words = self.words.iter().zip(0_u64..);
        words.flat_map(|(word, at)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        })
    }
}

/// The word of a unit, and its bit there.
const fn place(unit: u64) -> (usize, u64) {
    ((unit / 64) as usize, 1 << (unit % 64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_the_set_that_was_put_in() {
        let mut set = UnitSet::default();
        let mut other = BTreeSet::new();
        let mut number = 1_u64;
        for _ in 0..2_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = number >> 48;
            assert_eq!(set.contains(unit), other.contains(&unit));
            set.insert(unit);
            other.insert(unit);
            assert_eq!(set.count(), other.len() as u64);
        }
        assert!(set.iter().eq(other));
    }
}
