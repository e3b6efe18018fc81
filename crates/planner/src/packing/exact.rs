//! Branch and bound: tries every bin for every item, except where no better packing is possible.
//!
//! Items are placed one by one, largest first. Of equal bins only the first is tried, and an item
//! that equals its predecessor is not placed before it. Among the best packings, the one whose bins
//! come first in order satisfies both rules, so a best packing is always found.

use super::{Amounts, DIMENSIONS, EXACT_STEPS_MAX, ONE, Packed, Problem, part, take};
use evenkeel_core::convert::saturating;

struct Search<'a> {
    problem: &'a Problem,
    order: &'a [usize],
    /// Lower bounds of the parts of bins that the items from each index on take together.
    rest: Vec<[u128; DIMENSIONS]>,
    bins: Vec<(usize, Amounts)>,
    bin_of: Vec<usize>,
    best: Option<(Vec<usize>, usize)>,
    further_min: usize,
    steps: u64,
}

/// Returns the best packing. Its `further_min` is exact if the search was complete. `known` is a
/// packing that was found before.
pub(super) fn search(
    problem: &Problem,
    parts: &[Amounts],
    order: &[usize],
    known: Option<Packed>,
    further_min: usize,
) -> Option<Packed> {
    let mut rest = vec![[0; DIMENSIONS]; order.len() + 1];
    for (place, item) in order.iter().enumerate().rev() {
        rest[place] = rest[place + 1];
        for (sum, part) in rest[place].iter_mut().zip(parts[*item]) {
            *sum += u128::from(part);
        }
    }
    let mut search = Search {
        problem,
        order,
        rest,
        bins: problem.empty(),
        bin_of: vec![0; order.len()],
        best: known.map(|known| (known.bin_of, known.further)),
        further_min,
        steps: 0,
    };
    search.place(0);
    let is_whole = search.steps <= EXACT_STEPS_MAX;
    let (bin_of, further) = search.best?;
    let further_min = if is_whole { further } else { further_min };
    Some(Packed { bin_of, further, further_min })
}

impl Search<'_> {
    fn further(&self) -> usize {
        self.bins.len() - self.problem.bins.len()
    }

    /// Returns whether the search is over: the best packing is optimal, or the steps are used up.
    fn is_over(&self) -> bool {
        let is_best = self.best.as_ref().is_some_and(|(_, further)| *further <= self.further_min);
        is_best || self.steps > EXACT_STEPS_MAX
    }

    /// Returns a lower bound on the further bins with the items from `place` on.
    fn bound(&self, place: usize) -> usize {
        let whole = u128::from(ONE);
        let more = |at: usize| {
            // Rounded up: the room may be larger than its rounded part.
            let free = |(kind, room): &(usize, Amounts)| {
                u128::from(part(room[at], self.problem.kinds[*kind][at])) + 1
            };
            let free: u128 = self.bins.iter().map(free).sum();
            self.rest[place][at].saturating_sub(free).div_ceil(whole)
        };
        let more = (0..DIMENSIONS).map(more).max().unwrap_or_default();
        self.further().saturating_add(saturating::<_, usize>(more))
    }

    fn place(&mut self, place: usize) {
        self.steps += 1;
        let most = self.best.as_ref().map_or(usize::MAX, |(_, further)| *further);
        if self.is_over() || self.bound(place) >= most {
            return;
        }
        let Some(&item) = self.order.get(place) else {
            self.best = Some((self.bin_of.clone(), self.further()));
            return;
        };
        let problem = self.problem;
        let same = place.checked_sub(1).map(|before| self.order[before]);
        let same = same.filter(|before| problem.items[*before] == problem.items[item]);
        let first = same.map_or(0, |before| self.bin_of[before]);
        let is_new = |bins: &[(usize, Amounts)], at: usize| {
            !bins.iter().take(at).any(|bin| bin == &bins[at])
        };
        for at in first..self.bins.len() {
            let (kind, room) = self.bins[at];
            if !problem.fits(item, kind, &room) || !is_new(&self.bins, at) {
                continue;
            }
            take(&mut self.bins[at].1, &problem.items[item][kind]);
            self.bin_of[item] = at;
            self.place(place + 1);
            self.bins[at].1 = room;
        }
        let room = problem.kinds[problem.next];
        let further = (problem.next, room);
        if problem.fits(item, problem.next, &room) && !self.bins.contains(&further) {
            self.bins.push(further);
            let at = self.bins.len() - 1;
            take(&mut self.bins[at].1, &problem.items[item][problem.next]);
            self.bin_of[item] = at;
            self.place(place + 1);
            self.bins.pop();
        }
    }
}
