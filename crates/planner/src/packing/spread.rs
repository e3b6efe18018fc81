//! Spreads items over a given number of bins, so that each bin keeps room in the dimensions that
//! later items need. First and best fit fill bins one by one, and leave them full in one dimension
//! and empty in the other.

use super::{Amounts, DIMENSIONS, Packed, Problem, part, take};

/// Maximum number of bins that are examined in all tries together.
const LOOKS_MAX: u64 = 40_000_000;

/// Number of bits by which parts are rounded here: the sum of the products of two parts over all
/// dimensions is then below 2^64.
const COARSER_BITS: u32 = 4;

/// Returns a packing with fewer further bins than `known`, if it finds one. It searches the number
/// of bins by bisection: with one more bin, items usually fit as well.
pub(super) fn fewer(problem: &Problem, order: &[usize], known: &Packed) -> Option<Packed> {
    let mut low = known.further_min;
    let mut high = known.further;
    let mut found = None;
    let mut looks = 0_u64;
    while low < high {
        let middle = low + (high - low) / 2;
        let bins = problem.bins.len() + middle;
        looks = looks.saturating_add(bins as u64 * order.len() as u64);
        if looks > LOOKS_MAX {
            break;
        }
        match spread(problem, order, middle) {
            Some(bin_of) => {
                high = middle;
                found = Some(Packed { bin_of, further: middle, ..*known });
            }
            None => low = middle + 1,
        }
    }
    found
}

/// Places each item into the bin with most room in the dimensions in which the item is large.
fn spread(problem: &Problem, order: &[usize], further: usize) -> Option<Vec<usize>> {
    let mut bins = problem.empty();
    bins.extend(std::iter::repeat_n((problem.next, problem.kinds[problem.next]), further));
    let parts = |amounts: &Amounts, kind: usize| {
        let mut parts = *amounts;
        for (part_of, whole) in parts.iter_mut().zip(&problem.kinds[kind]) {
            *part_of = part(*part_of, *whole) >> COARSER_BITS;
        }
        parts
    };
    let mut free: Vec<Amounts> = bins.iter().map(|(kind, room)| parts(room, *kind)).collect();
    let mut bin_of = vec![0; problem.items.len()];
    for &item in order {
        let of_kind: Vec<Amounts> =
            (0..problem.kinds.len()).map(|kind| parts(&problem.items[item][kind], kind)).collect();
        let fitting = bins.iter().zip(&free).enumerate();
        let fitting = fitting.filter(|(_, ((kind, room), _))| problem.fits(item, *kind, room));
        // The first of equal ones.
        let (at, _) = fitting
            .map(|(at, ((kind, _), free))| (at, product(&of_kind[*kind], free)))
            .reduce(|best, other| if other.1 > best.1 { other } else { best })?;
        let (kind, room) = &mut bins[at];
        take(room, &problem.items[item][*kind]);
        free[at] = parts(room, *kind);
        bin_of[item] = at;
    }
    Some(bin_of)
}

fn product(item: &Amounts, free: &Amounts) -> u64 {
    (0..DIMENSIONS).fold(0, |sum: u64, at| sum.saturating_add(item[at].saturating_mul(free[at])))
}
