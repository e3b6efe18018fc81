//! Small problems compared with all assignments, large ones with their bounds.

use proptest::prelude::*;

use super::*;

/// Returns a problem in two dimensions with one kind of bins, of which some exist. The other
/// dimensions are unlimited.
fn plain(room: [u64; 2], bins: usize, items: &[[u64; 2]]) -> Problem {
    let item = |[time, space]: &[u64; 2]| vec![[*time, 0, 0, 0, *space]];
    let kinds = vec![[room[0], u64::MAX, u64::MAX, u64::MAX, room[1]]];
    Problem { kinds, bins: vec![0; bins], next: 0, items: items.iter().map(item).collect() }
}

/// Asserts that every item has a bin and that no bin exceeds its room.
fn assert_holds(problem: &Problem, packed: &Packed) {
    assert_eq!(packed.bin_of.len(), problem.items.len());
    let kind_of = |bin: usize| problem.bins.get(bin).copied().unwrap_or(problem.next);
    for bin in 0..problem.bins.len() + packed.further {
        for at in 0..DIMENSIONS {
            let inside = packed.bin_of.iter().zip(&problem.items).filter(|(of, _)| **of == bin);
            let sum: u128 = inside.map(|(_, item)| u128::from(item[kind_of(bin)][at])).sum();
            assert!(sum <= problem.kinds[kind_of(bin)][at].into(), "bin {bin}: {packed:?}");
        }
    }
    assert!(packed.bin_of.iter().all(|bin| *bin < problem.bins.len() + packed.further));
    assert!(packed.further_min <= packed.further);
}

/// Returns the fewest further bins of all assignments; `None` if there is none.
fn by_trying(problem: &Problem) -> Option<usize> {
    let bins = problem.bins.len() + problem.items.len();
    let mut rooms: Vec<(usize, Amounts)> = (0..bins)
        .map(|bin| problem.bins.get(bin).copied().unwrap_or(problem.next))
        .map(|kind| (kind, problem.kinds[kind]))
        .collect();
    let mut used = vec![0_usize; bins];
    let mut best = None;
    try_all(problem, 0, &mut rooms, &mut used, &mut best);
    best
}

fn try_all(
    problem: &Problem,
    item: usize,
    rooms: &mut [(usize, Amounts)],
    used: &mut [usize],
    best: &mut Option<usize>,
) {
    if item == problem.items.len() {
        let further = used.iter().skip(problem.bins.len()).filter(|items| **items > 0).count();
        *best = Some(best.map_or(further, |best| best.min(further)));
        return;
    }
    for bin in 0..rooms.len() {
        let (kind, before) = rooms[bin];
        let takes = problem.items[item][kind];
        if (0..DIMENSIONS).all(|index| takes[index] <= before[index]) {
            (0..DIMENSIONS).for_each(|index| rooms[bin].1[index] = before[index] - takes[index]);
            used[bin] += 1;
            try_all(problem, item + 1, rooms, used, best);
            used[bin] -= 1;
            rooms[bin].1 = before;
        }
    }
}

#[test]
fn what_fits_needs_no_further_bin() {
    let problem = plain([100, 10], 2, &[[60, 1], [40, 9], [100, 10]]);
    let packed = problem.pack().unwrap();
    assert_holds(&problem, &packed);
    assert_eq!((packed.further, packed.is_exact()), (0, true));
    assert_eq!(packed.bin_of[0], packed.bin_of[1]);
    let none = plain([100, 10], 0, &[]).pack().unwrap();
    assert_eq!((none.bin_of, none.further, none.further_min), (vec![], 0, 0));
}

#[test]
fn what_is_too_large_is_named() {
    assert_eq!(plain([100, 10], 1, &[[1, 1], [1, 11]]).pack(), Err(Unpacked::TooLarge { item: 1 }));
    // One item fits into the large bin that exists, and a second one does not.
    let mut problem = plain([100, 10], 1, &[[1, 20], [1, 20]]);
    problem.kinds.push([100, u64::MAX, u64::MAX, u64::MAX, 30]);
    problem.bins = vec![1];
    problem.items.iter_mut().for_each(|item| item.push(item[0]));
    assert!(matches!(problem.pack(), Err(Unpacked::NotFound { .. })));
    problem.items.pop();
    assert_eq!(problem.pack().unwrap().further, 0);
}

/// The sum needs eleven bins. Only two items fit into one bin, so fifteen are needed.
#[test]
fn the_bound_counts_what_cannot_share_a_bin() {
    let items = vec![[1_000 / 3 + 1, 0]; 30];
    let packed = plain([1_000, 1], 0, &items).pack().unwrap();
    assert_eq!((packed.further, packed.further_min), (15, 15));
}

/// Bins of another kind that cannot take an item are no room for it.
#[test]
fn the_bound_counts_only_bins_that_can_take_an_item() {
    let mut problem = plain([10, 100], 0, &[[6, 1]; 40]);
    problem.kinds.push([5, u64::MAX, u64::MAX, u64::MAX, 10_000]);
    problem.items.iter_mut().for_each(|item| item.push(item[0]));
    problem.bins = vec![0, 1, 1, 1];
    let packed = problem.pack().unwrap();
    assert_holds(&problem, &packed);
    assert_eq!((packed.further, packed.further_min), (39, 39));
}

/// First fit decreasing is not optimal here: it needs three bins of 10 for items that fit into two.
#[test]
fn small_problems_are_searched() {
    let items = [[5, 0], [4, 0], [3, 0], [3, 0], [3, 0], [2, 0]];
    let problem = plain([10, 1], 0, &items);
    let parts = problem.parts();
    let greedy = problem.greedy(&problem.sorted(&parts, Order::Largest), Fit::First).unwrap();
    assert_eq!(greedy.1, 3);
    let packed = problem.pack().unwrap();
    assert_holds(&problem, &packed);
    assert_eq!((packed.further, packed.is_exact()), (2, true));
}

/// Returns a generator of numbers that is the same on every machine.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// Ten thousand volumes on a hundred devices and more: the gap is reported, and it is small.
#[test]
fn ten_thousand_items_are_packed_with_a_small_gap() {
    let mut below = numbers(7);
    let items: Vec<[u64; 2]> = (0..10_000).map(|_| [1 + below(400), 1 + below(300)]).collect();
    let problem = plain([10_000, 10_000], 100, &items);
    let packed = problem.pack().unwrap();
    assert_holds(&problem, &packed);
    let bins = problem.bins.len() + packed.further;
    let gap = packed.further - packed.further_min;
    assert!(packed.further > 0 && gap * 100 <= bins, "{gap} of {bins}");
}

/// Items that are large in one of two dimensions: bins that are filled one by one are full in one
/// dimension and half empty in the other.
#[test]
fn spreading_fills_bins_in_all_dimensions() {
    let mut below = numbers(11);
    let item = |number: u64, below: &mut dyn FnMut(u64) -> u64| {
        let large = 100 + below(200);
        let small = below(20);
        if number < 1_000 { [large, small] } else { [small, large] }
    };
    let items: Vec<[u64; 2]> = (0..2_000).map(|number| item(number, &mut below)).collect();
    let problem = plain([10_000, 10_000], 0, &items);
    let parts = problem.parts();
    let greedy = problem.greedy(&problem.sorted(&parts, Order::Largest), Fit::Best).unwrap().1;
    let packed = problem.pack().unwrap();
    assert_holds(&problem, &packed);
    let gap = packed.further - packed.further_min;
    assert!(gap <= 1 && packed.further <= greedy, "{gap} {} {greedy}", packed.further);
}

fn problems() -> impl Strategy<Value = Problem> {
    let room = proptest::array::uniform2(5..30_u64);
    let kinds = proptest::collection::vec(room, 1..3);
    let item = proptest::array::uniform2(prop_oneof![Just(0), 1..16_u64]);
    let items = proptest::collection::vec(item, 0..6);
    let ratio = proptest::array::uniform2(1..4_u64);
    (kinds, items, ratio, proptest::collection::vec(0..2_usize, 0..3), 0..2_usize).prop_map(
        |(kinds, items, ratio, bins, next)| {
            let kind = |at: usize| at.min(kinds.len() - 1);
            let takes = |[time, space]: &[u64; 2]| {
                let times = [1, ratio[0]].into_iter().zip([1, ratio[1]]).take(kinds.len());
                times.map(|(by, over)| [time * by / over, 0, 0, 0, *space]).collect()
            };
            Problem {
                bins: bins.into_iter().map(kind).collect(),
                next: kind(next),
                items: items.iter().map(takes).collect(),
                kinds: kinds.iter().map(|[time, space]| [*time, 9, 9, 9, *space]).collect(),
            }
        },
    )
}

proptest! {
    /// Compared with every assignment: the answer equals the best one, and the bound never exceeds
    /// it.
    #[test]
    fn small_problems_equal_trying_everything(problem in problems()) {
        let best = by_trying(&problem);
        match problem.pack() {
            Ok(packed) => {
                assert_holds(&problem, &packed);
                prop_assert_eq!(Some(packed.further), best);
                prop_assert!(packed.is_exact());
                prop_assert!(problem.further_min(&problem.parts()) <= packed.further);
            }
            Err(_) => prop_assert_eq!(best, None),
        }
    }

    /// Larger packings hold in every dimension, and the bound does not exceed the result.
    #[test]
    fn packings_hold(
        items in proptest::collection::vec([1..80_u64, 1..80_u64], 1..120),
        bins in 0..5_usize,
    ) {
        let problem = plain([100, 100], bins, &items);
        let packed = problem.pack().unwrap();
        assert_holds(&problem, &packed);
    }
}
