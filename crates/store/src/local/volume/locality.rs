//! Locality: a small write goes near the blocks beside it, and a read takes what is near with one
//! request of the device. So a volume that was overwritten at random is still read in few requests.

use crate::local::Pointer;
use crate::local::space::Run;
use crate::local::tree::Page;

/// Maximum number of blocks between two wanted ones that a read takes with them. Another request
/// costs a device about as much as reading these.
const GAP_BLOCKS_MAX: u32 = 4;

/// Maximum number of such blocks of all reads of a volume that are under way: 2 MiB.
pub const GAPS_UNDER_WAY_MAX: u32 = 512;

/// Distances to the blocks of the volume whose places decide where a block is written. The block
/// itself is one of them: it is written near its former place.
const NEIGHBOURS: [i32; 9] = [-16, -8, -4, -1, 0, 1, 4, 8, 16];

/// Returns the block of the pool at which entry `at` of a leaf of the map would be in order with
/// its neighbours: the median of what they say. `counts` is whether a block of the pool counts.
/// Returns `None` if there is no neighbour.
pub fn place_among(page: &Page, at: usize, counts: impl Fn(u32) -> bool) -> Option<u32> {
    let mut places = [0; NEIGHBOURS.len()];
    let mut known = 0;
    for distance in NEIGHBOURS {
        let entry = at.checked_add_signed(distance as isize).and_then(|entry| page.get(entry));
        let block = entry.map_or(0, |entry| Pointer::from_bits(*entry).block);
        let place = block.checked_add_signed(-distance);
        if block != 0
            && counts(block)
            && let Some(place) = place
        {
            places[known] = place;
            known += 1;
        }
    }
    let places = &mut places[..known];
    places.sort_unstable();
    places.get(known / 2).copied()
}

/// Returns the requests of the device that read these runs, in the order of the device; runs of
/// block 0 are holes. They read at most `gaps_max` more blocks than the runs have, and at most
/// twice as many.
pub fn spans(runs: &[Run], gaps_max: u32) -> Vec<Run> {
    let mut sorted: Vec<Run> = runs.iter().copied().filter(|run| run.block != 0).collect();
    sorted.sort_unstable();
    let wanted: u32 = sorted.iter().map(|run| run.count).sum();
    let most = wanted + gaps_max.min(wanted);
    let mut gap = GAP_BLOCKS_MAX;
    loop {
        let spans = joined(&sorted, gap);
        if gap == 0 || blocks(&spans) <= most {
            return spans;
        }
        gap -= 1;
    }
}

/// Returns the number of blocks of runs.
pub fn blocks(runs: &[Run]) -> u32 {
    runs.iter().map(|run| run.count).sum()
}

/// Joins sorted runs that have at most `gap` blocks between them.
fn joined(sorted: &[Run], gap: u32) -> Vec<Run> {
    let mut spans: Vec<Run> = Vec::new();
    for run in sorted {
        match spans.last_mut() {
            Some(last) if run.block <= last.block + last.count + gap => {
                last.count = last.count.max(run.block + run.count - last.block);
            }
            _ => spans.push(*run),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::tree::FANOUT;
    use evenkeel_core::random::Random;

    fn run(block: u32, count: u32) -> Run {
        Run { block, count }
    }

    #[test]
    fn near_runs_are_read_together_and_holes_are_not_read() {
        let runs = [run(105, 2), run(0, 7), run(100, 1), run(112, 1), run(50, 3)];
        assert_eq!(spans(&runs, 512), [run(50, 3), run(100, 7), run(112, 1)]);
        // With fewer blocks between, only nearer ones are joined.
        assert_eq!(spans(&[run(100, 1), run(102, 1), run(106, 1)], 1), [run(100, 3), run(106, 1)]);
        assert_eq!(spans(&runs, 0), [run(50, 3), run(100, 1), run(105, 2), run(112, 1)]);
        assert_eq!(spans(&[run(0, 7)], 512), []);
    }

    /// Each wanted block is in one of the spans, which read at most twice as much.
    #[test]
    fn spans_have_all_blocks_and_at_most_as_many_more() {
        let mut random = Random::new(3, 3);
        for _ in 0..2_000 {
            let mut next = 1 + random.below(50) as u32;
            let mut runs = Vec::new();
            for _ in 0..1 + random.below(40) {
                let count = 1 + random.below(3) as u32;
                runs.push(run(next, count));
                next += count + 1 + random.below(8) as u32;
            }
            let gaps_max = random.below(40) as u32;
            let spans = spans(&runs, gaps_max);
            let contains = |run: &Run| {
                spans.iter().any(|span| {
                    run.block >= span.block && run.block + run.count <= span.block + span.count
                })
            };
            assert!(runs.iter().all(contains), "{runs:?} {spans:?}");
            let wanted = blocks(&runs);
            assert!(blocks(&spans) <= wanted + gaps_max.min(wanted), "{runs:?} {spans:?}");
            assert!(spans.is_sorted_by(|a, b| a.block + a.count < b.block), "{spans:?}");
        }
    }

    #[test]
    fn a_block_belongs_where_most_of_its_neighbours_say() {
        let mut page = [0; FANOUT as usize];
        let in_order = |entry: usize| Pointer { block: 1_000 + entry as u32, checksum: 7 };
        assert_eq!(place_among(&page, 20, |_| true), None, "a leaf of holes");
        for (entry, bits) in page.iter_mut().enumerate() {
            *bits = in_order(entry).to_bits();
        }
        // One that is far away, and the block itself, do not count.
        page[24] = Pointer { block: 9, checksum: 7 }.to_bits();
        page[20] = Pointer { block: 5_000, checksum: 7 }.to_bits();
        assert_eq!(place_among(&page, 20, |_| true), Some(1_020));
        assert_eq!(place_among(&page, 0, |_| true), Some(1_000));
        assert_eq!(place_among(&page, 511, |_| true), Some(1_511));
        assert_eq!(place_among(&page, 20, |block| block == 5_000), Some(5_000));
    }
}
