//! Placement of volumes on devices, with as few further devices as possible: bin packing in several
//! dimensions.
//!
//! Bins that exist cost nothing; the number of further ones, all of one kind, is minimized. Several
//! orders of first and best fit, and spreading over fewer bins, yield a packing. Sums and dual
//! feasible functions yield a lower bound for every packing. If both are equal, the answer is
//! exact. If not, small problems are searched by branch and bound; for large ones the gap is
//! reported.

mod exact;
mod spread;
#[cfg(test)]
mod tests;

use evenkeel_core::convert::saturating;
use std::cmp::Reverse;

/// Number of dimensions: device time, time of cores, bytes in, bytes out, space.
pub const DIMENSIONS: usize = 5;

/// An amount in each dimension.
pub type Amounts = [u64; DIMENSIONS];

/// Maximum number of items that are searched by branch and bound.
pub const EXACT_ITEMS_MAX: usize = 32;

/// Maximum number of steps of that search: about a second.
pub const EXACT_STEPS_MAX: u64 = 2_000_000;

/// One whole, in the unit of parts of a room.
const ONE: u64 = 1 << 32;

/// Maximum parameter of the dual feasible functions that are tried: the number of items that fit
/// into a room.
const FEASIBLE_MAX: u64 = 24;

/// Items to pack, and bins for them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Problem {
    /// The room of a bin of each kind.
    pub kinds: Vec<Amounts>,
    /// The kinds of the bins that exist.
    pub bins: Vec<usize>,
    /// The kind of further bins.
    pub next: usize,
    /// The amounts that each item takes of a bin of each kind.
    pub items: Vec<Vec<Amounts>>,
}

/// A packing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packed {
    /// The bin of each item: first the bins that exist, then further ones.
    pub bin_of: Vec<usize>,
    /// Number of further bins.
    pub further: usize,
    /// Lower bound on the number of further bins of any packing.
    pub further_min: usize,
}

impl Packed {
    /// Returns whether no packing needs fewer bins.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.further == self.further_min
    }
}

/// The reason why there is no packing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpacked {
    /// This item fits into no bin of any available kind.
    TooLarge {
        /// Index of the item.
        item: usize,
    },
    /// No packing was found: these items fit into existing bins only.
    NotFound {
        /// Index of an item without a bin.
        item: usize,
    },
}

/// The choice of a bin.
#[derive(Clone, Copy)]
enum Fit {
    /// The first one with enough room.
    First,
    /// The one that has the least room afterwards.
    Best,
}

/// The order of items, largest first.
#[derive(Clone, Copy)]
enum Order {
    /// By the largest dimension of each.
    Largest,
    /// By the sum of all dimensions.
    Sum,
}

impl Problem {
    /// Returns the bins that exist, empty.
    fn empty(&self) -> Vec<(usize, Amounts)> {
        self.bins.iter().map(|kind| (*kind, self.kinds[*kind])).collect()
    }

    /// Returns whether an item fits into a bin of a kind with this room left.
    fn fits(&self, item: usize, kind: usize, room: &Amounts) -> bool {
        self.items[item][kind].iter().zip(room).all(|(takes, room)| takes <= room)
    }

    /// Returns the part of an empty bin that each item takes in each dimension, rounded down: the
    /// least over the kinds into which it fits.
    fn parts(&self) -> Vec<Amounts> {
        let kinds = self.usable();
        let of = |item: usize| {
            let mut least = [u64::MAX; DIMENSIONS];
            for &kind in kinds.iter().filter(|&&kind| self.fits(item, kind, &self.kinds[kind])) {
                for (least, at) in least.iter_mut().zip(0..) {
                    *least = (*least).min(part(self.items[item][kind][at], self.kinds[kind][at]));
                }
            }
            least
        };
        (0..self.items.len()).map(of).collect()
    }

    /// Returns the available kinds.
    fn usable(&self) -> Vec<usize> {
        let mut kinds: Vec<usize> = self.bins.iter().copied().chain([self.next]).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns a lower bound on the further bins of every packing.
    fn further_min(&self, parts: &[Amounts]) -> usize {
        let by_sum =
            (0..DIMENSIONS).map(|number| self.further_by_sum(number)).max().unwrap_or_default();
        let everywhere = bins_for(parts).saturating_sub(self.bins.len() as u64);
        // Items that fit into bins of one kind only need enough bins of that kind.
        let others: Vec<usize> =
            self.usable().into_iter().filter(|kind| *kind != self.next).collect();
        let is_bound =
            |item: &usize| !others.iter().any(|&kind| self.fits(*item, kind, &self.kinds[kind]));
        let bound: Vec<Amounts> =
            (0..self.items.len()).filter(is_bound).map(|item| parts[item]).collect();
        let of_next = self.bins.iter().filter(|kind| **kind == self.next).count();
        let here = bins_for(&bound).saturating_sub(of_next as u64);
        saturating::<_, usize>(everywhere.max(here).max(by_sum))
    }

    /// Returns the further bins that the sum of one dimension needs. The room of bins of another
    /// kind is converted at the rate of the item that fits best there.
    fn further_by_sum(&self, at: usize) -> u64 {
        let demand = |item: &Vec<Amounts>, kind: usize| u128::from(item[kind][at]);
        let all: u128 = self.items.iter().map(|item| demand(item, self.next)).sum();
        let mut held: u128 = 0;
        for kind in self.usable() {
            let number = self.bins.iter().filter(|bin| **bin == kind).count() as u128;
            let mut rate = (1, 1);
            if kind != self.next {
                let pairs =
                    self.items.iter().map(|item| (demand(item, self.next), demand(item, kind)));
                rate = pairs
                    .filter(|(next, _)| *next > 0)
                    .fold((0, 1), |(a, b), (c, d)| if a * d < c * b { (c, d) } else { (a, b) });
            }
            if number > 0 && rate.1 == 0 {
                return 0;
            }
            let room = u128::from(self.kinds[kind][at]).saturating_mul(number);
            held = held.saturating_add(room.saturating_mul(rate.0).div_ceil(rate.1.max(1)));
        }
        let room = u128::from(self.kinds[self.next][at]).max(1);
        saturating::<_, u64>(all.saturating_sub(held).div_ceil(room))
    }

    /// Packs all items with as few further bins as it finds.
    ///
    /// # Errors
    /// Returns [`Unpacked`] if an item fits into no bin, or if no packing is found.
    pub fn pack(&self) -> Result<Packed, Unpacked> {
        let kinds = self.usable();
        let fits_alone =
            |item: usize| kinds.iter().any(|&kind| self.fits(item, kind, &self.kinds[kind]));
        if let Some(item) = (0..self.items.len()).find(|item| !fits_alone(*item)) {
            return Err(Unpacked::TooLarge { item });
        }
        let parts = self.parts();
        let further_min = self.further_min(&parts);
        let mut best = None::<Packed>;
        let mut left = 0;
        for (order, fit) in [
            (Order::Largest, Fit::First),
            (Order::Sum, Fit::First),
            (Order::Largest, Fit::Best),
            (Order::Sum, Fit::Best),
        ] {
            match self.greedy(&self.sorted(&parts, order), fit) {
                Ok((bin_of, further)) => {
                    if best.as_ref().is_none_or(|best| further < best.further) {
                        best = Some(Packed { bin_of, further, further_min });
                    }
                }
                Err(item) => left = item,
            }
            if best.as_ref().is_some_and(Packed::is_exact) {
                break;
            }
        }
        let order = self.sorted(&parts, Order::Largest);
        if let Some(known) = best.as_ref().filter(|best| !best.is_exact()) {
            best = spread::fewer(self, &order, known).or(best);
        }
        let is_open = best.as_ref().is_none_or(|best| !best.is_exact());
        if is_open && self.items.len() <= EXACT_ITEMS_MAX {
            best = exact::search(self, &parts, &order, best, further_min);
        }
        best.ok_or(Unpacked::NotFound { item: left })
    }

    /// Returns the items in an order that suits greedy packing. Those that no further bin can take
    /// come first.
    fn sorted(&self, parts: &[Amounts], order: Order) -> Vec<usize> {
        let size = |item: usize| {
            let parts = parts[item];
            match order {
                Order::Largest => parts.into_iter().max().unwrap_or_default(),
                Order::Sum => parts.into_iter().fold(0, u64::saturating_add),
            }
        };
        let room = &self.kinds[self.next];
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_cached_key(|item| (self.fits(*item, self.next, room), Reverse(size(*item))));
        order
    }

    /// Packs the items one by one. The error is the first item that no bin can take.
    fn greedy(&self, order: &[usize], fit: Fit) -> Result<(Vec<usize>, usize), usize> {
        let mut bins = self.empty();
        let mut bin_of = vec![0; self.items.len()];
        for &item in order {
            let fitting = |(kind, room): &(usize, Amounts)| self.fits(item, *kind, room);
            let found = match fit {
                Fit::First => bins.iter().position(fitting),
                Fit::Best => {
                    let all = bins.iter().enumerate().filter(|(_, bin)| fitting(bin));
                    all.min_by_key(|(_, (kind, room))| self.left(item, *kind, room)).map(|it| it.0)
                }
            };
            let at = match found {
                Some(at) => at,
                None if self.fits(item, self.next, &self.kinds[self.next]) => {
                    bins.push((self.next, self.kinds[self.next]));
                    bins.len() - 1
                }
                None => return Err(item),
            };
            let (kind, room) = &mut bins[at];
            take(room, &self.items[item][*kind]);
            bin_of[item] = at;
        }
        Ok((bin_of, bins.len() - self.bins.len()))
    }

    /// Returns the room that an item would leave in a bin: the sum of the parts of an empty one.
    fn left(&self, item: usize, kind: usize, room: &Amounts) -> u64 {
        let mut after = *room;
        take(&mut after, &self.items[item][kind]);
        let parts = after.iter().zip(&self.kinds[kind]).map(|(after, whole)| part(*after, *whole));
        parts.fold(0, u64::saturating_add)
    }
}

/// Subtracts an item's amounts from a room that is large enough.
fn take(room: &mut Amounts, takes: &Amounts) {
    for (room, takes) in room.iter_mut().zip(takes) {
        *room = room.saturating_sub(*takes);
    }
}

/// Returns a part of a whole in units of [`ONE`], rounded down; 0 if the whole is 0.
fn part(amount: u64, whole: u64) -> u64 {
    let wide = u128::from(amount) * u128::from(ONE);
    wide.checked_div(u128::from(whole)).map_or(0, saturating::<_, u64>)
}

/// Returns a lower bound on the bins for items that take these parts of one in each dimension.
fn bins_for(parts: &[Amounts]) -> u64 {
    let of = |at: usize| {
        let one = |parts: &Amounts| parts[at];
        (0..=FEASIBLE_MAX).map(|k| bins_min(parts.iter().map(one), k)).max().unwrap_or_default()
    };
    (0..DIMENSIONS).map(of).max().unwrap_or_default()
}

/// Returns a lower bound on the bins for parts of them, by the dual feasible function of Fekete and
/// Schepers for `k`: parts of which at most `k` fit into a bin count as a k-th. With 0 each counts
/// as it is.
fn bins_min(parts: impl Iterator<Item = u64>, k: u64) -> u64 {
    let one = u128::from(ONE);
    let wide_k = u128::from(k);
    let sum: u128 = parts
        .map(|part| {
            let scaled = u128::from(part) * (wide_k + 1);
            if k == 0 || scaled.is_multiple_of(one) {
                u128::from(part) * wide_k.max(1)
            } else {
                scaled / one * one
            }
        })
        .sum();
    saturating::<_, u64>(sum.div_ceil(one * wide_k.max(1)))
}
