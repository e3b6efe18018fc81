//! One bit for each block of a chunk, and free runs among them.

use super::CHUNK_BLOCKS;

/// Words of a chunk's 256 bits.
pub const WORDS: usize = 4;

/// 256 bits, one for each block of a chunk.
pub type Bits = [u64; WORDS];

/// Returns the bits of blocks `from..to` in one word of a chunk.
#[must_use]
pub fn mask(word: usize, from: u32, to: u32) -> u64 {
    let base = word as u32 * 64;
    let from = from.clamp(base, base + 64) - base;
    let to = to.clamp(base, base + 64) - base;
    let below = |bit: u32| if bit == 64 { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

/// Returns the number of bits that are set.
#[must_use]
pub fn count(bits: &Bits) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}

/// Returns the first run of at least `wanted` zero bits, or else the longest one.
#[must_use]
pub fn find_run(used: &Bits, wanted: u32) -> Option<(u32, u32)> {
    let mut best = None;
    let mut block = 0;
    while block < CHUNK_BLOCKS {
        let word = used[block as usize / 64] >> (block % 64);
        let taken = (!word).trailing_zeros().min(64 - block % 64);
        if taken > 0 {
            block += taken;
            continue;
        }
        let start = block;
        loop {
            let word = used[block as usize / 64] >> (block % 64);
            let free = word.trailing_zeros().min(64 - block % 64);
            block += free;
            if free == 0 || block >= CHUNK_BLOCKS || block - start >= wanted {
                break;
            }
        }
        let length = (block - start).min(wanted);
        if length == wanted {
            return Some((start, length));
        }
        if best.is_none_or(|(_, longest)| length > longest) {
            best = Some((start, length));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_run_is_the_first_that_suffices_or_the_longest(
            used: Bits, sparse: Bits, wanted in 1_u32..200,
        ) {
            let used = [0, 1, 2, 3].map(|word| used[word] & sparse[word]);
            let is_used = |block: u32| used[block as usize / 64] >> (block % 64) & 1 == 1;
            let mut runs = Vec::new();
            let mut first = 0;
            while first < CHUNK_BLOCKS {
                let next_used = (first..CHUNK_BLOCKS).find(|&block| is_used(block));
                let end = next_used.unwrap_or(CHUNK_BLOCKS);
                if end > first {
                    runs.push((first, end - first));
                }
                first = end + 1;
            }
            let sufficient = runs.iter().find(|run| run.1 >= wanted).map(|run| (run.0, wanted));
            let longest = runs.iter().rev().max_by_key(|run| run.1).copied();
            prop_assert_eq!(find_run(&used, wanted), sufficient.or(longest));
        }

        #[test]
        fn masks_are_the_bits_between(from in 0_u32..256, length in 0_u32..256) {
            let to = (from + length).min(256);
            let bits = [0, 1, 2, 3].map(|word| mask(word, from, to));
            for block in 0..256_u32 {
                let is_set = bits[block as usize / 64] >> (block % 64) & 1 == 1;
                prop_assert_eq!(is_set, (from..to).contains(&block));
            }
        }
    }
}
