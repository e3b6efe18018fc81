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

/// Returns the start of the run of `wanted` zero bits that is nearest to `target` and begins at
/// most `reach` blocks from it.
#[must_use]
pub fn find_near(used: &Bits, wanted: u32, target: u32, reach: u32) -> Option<u32> {
    let mut starts = used.map(|word| !word);
    for _ in 1..wanted {
        // A run of one more begins where one begins and one begins at the next block.
        let [a, b, c, d] = starts;
        starts =
            [a & (a >> 1 | b << 63), b & (b >> 1 | c << 63), c & (c >> 1 | d << 63), d & d >> 1];
    }
    let above = next_set(&starts, target);
    let below = last_set(&starts, target);
    let distance = |start: &u32| start.abs_diff(target);
    above.into_iter().chain(below).filter(|start| distance(start) <= reach).min_by_key(distance)
}

/// Returns the first bit from `from` on that is set.
fn next_set(bits: &Bits, from: u32) -> Option<u32> {
    (from as usize / 64..WORDS).find_map(|word| {
        let bits = bits[word] & mask(word, from, CHUNK_BLOCKS);
        (bits != 0).then(|| word as u32 * 64 + bits.trailing_zeros())
    })
}

/// Returns the last bit before `until` that is set.
fn last_set(bits: &Bits, until: u32) -> Option<u32> {
    (0..=(until as usize / 64).min(WORDS - 1)).rev().find_map(|word| {
        let bits = bits[word] & mask(word, 0, until);
        (bits != 0).then(|| word as u32 * 64 + 63 - bits.leading_zeros())
    })
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
        fn the_nearest_run_is_free_and_no_other_is_nearer(
            used: Bits, sparse: Bits, wanted in 1_u32..16, target in 0_u32..256,
            reach in 0_u32..256,
        ) {
            let used = [0, 1, 2, 3].map(|word| used[word] & sparse[word]);
            let is_used = |block: u32| used[block as usize / 64] >> (block % 64) & 1 == 1;
            let is_run = |start: &u32| !(*start..start + wanted).any(is_used);
            let starts = (0..=CHUNK_BLOCKS - wanted).filter(is_run);
            let nearest = starts.map(|start| start.abs_diff(target)).min();
            let found = find_near(&used, wanted, target, reach);
            let is_free = |start: u32| start + wanted <= CHUNK_BLOCKS && is_run(&start);
            prop_assert!(found.is_none_or(is_free));
            let distance = found.map(|start| start.abs_diff(target));
            prop_assert_eq!(distance, nearest.filter(|distance| *distance <= reach));
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
