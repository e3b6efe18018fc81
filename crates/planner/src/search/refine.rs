//! Makes the layouts that the fluid model found as cheap as the product's scheduler allows.
//!
//! The fluid has no tokens. A pacer saves some, so that lower limits suffice for short bursts. Here
//! the scheduler decides. A fluid with saved tokens determines which layouts are tried first. It
//! differs from the scheduler by single requests, so that mostly a layout and the one below it are
//! tried.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use evenkeel_core::volume::Ratio;

use super::{
    Chosen, Found, Point, Search, Space, Tolerance, Wanted, cheapest_lasting, given, least_beside,
    most_beside,
};
use crate::bisect::{largest, least_near};
use crate::demand::Demand;
use crate::exact::{self, Busy, Exact, Judged};
use crate::hot_intervals::{Floor, Index};
use crate::layout::Layout;

/// Maximum number of requests that are sent to make the layouts of an answer as cheap as possible:
/// about half a second.
pub const REQUESTS_MAX: u64 = 4_000_000;
/// Minimum number of the fluid's layouts that are sharpened: the cheapest one must not depend on
/// the number of layouts that are shown. On several instances they cost the same, so there are this
/// many for each.
const SHARPENED_MIN: usize = 8;
/// Maximum number of times that the first layout gets one more of something.
const SETTLED_STEPS: u32 = 4;
/// Reciprocal of the part of a guess by which the search begins below it, and keeps the requests
/// that may wait there.
const BELOW: u32 = 16;
/// Minimum of that distance.
const BELOW_MIN: u32 = 8;

/// Returns the first `count` of the cheapest layouts that are sufficient: on the scheduler, if its
/// tolerance is counted on. Those that do not carry `recorded` month after month are left out.
#[must_use]
pub fn sharpest(
    space: &Space,
    demand: &Demand,
    recorded: Option<&Demand>,
    wanted: &Wanted,
    count: usize,
) -> Vec<Found> {
    let index = Index::new(demand);
    if space.tolerance == Tolerance::None {
        return cheapest_lasting(space, &index, recorded, wanted, count);
    }
    let least = SHARPENED_MIN.saturating_mul(space.hosts().len());
    let found = cheapest_lasting(space, &index, recorded, wanted, count.max(least));
    let mut all = sharpen((space, &index, recorded), wanted, found, REQUESTS_MAX);
    all.truncate(count);
    all
}

/// Replays the first layout on the scheduler with as many requests as may be sent. If it was judged
/// only with those that must wait, it may lack a token, and gets one more of something. Without the
/// scheduler's tolerance nothing changes.
#[must_use]
pub fn settle(
    space: &Space,
    demand: &Demand,
    wanted: &Wanted,
    mut found: Vec<Found>,
    requests_max: u64,
) -> Vec<Found> {
    if space.tolerance == Tolerance::None {
        return found;
    }
    let index = Index::new(demand);
    for _ in 0..SETTLED_STEPS {
        let Some(first) = found.first_mut() else { break };
        let Some(exact) = exact::replay(space, demand, &first.layout, requests_max) else { break };
        // A layout that was not sharpened is reported as it is.
        let is_settled = first.exact.is_none() || exact.does(demand, wanted);
        first.exact = Some(exact);
        if is_settled {
            break;
        }
        let left = Cell::new(0);
        let more = Sharpening::of((space, &index, None), wanted, &left, first);
        let Some(more) = more.and_then(|it| it.one_more(first, requests_max)) else { break };
        *first = more;
        space.sort(&mut found);
    }
    found
}

/// Reduces each layout to the least that meets the requirements on the scheduler, and sorts them by
/// cost. A layout that does not meet them there is enlarged. If all of them together need more than
/// `requests_max` requests, the remaining ones do not change, and have no result of the scheduler.
/// Layouts carry `recorded` month after month, too, unless it is `None`.
fn sharpen(
    workload: (&Space, &Index, Option<&Demand>),
    wanted: &Wanted,
    found: Vec<Found>,
    requests_max: u64,
) -> Vec<Found> {
    let left = Cell::new(requests_max);
    let space = workload.0;
    let sharp = |found| Sharpening::of(workload, wanted, &left, &found)?.run(found);
    let mut all: Vec<Found> = found.into_iter().filter_map(sharp).collect();
    all.retain(|it| wanted.monthly_max.is_none_or(|most| it.total() <= most));
    // A layout that became larger than the fluid's may not fit on the priced hardware.
    all.retain(|it| space.prices.fits(space.rules, &it.layout.each));
    space.sort(&mut all);
    all
}

/// The search among layouts of one type and number on one instance, with the scheduler.
struct Sharpening<'a> {
    /// The search with the fluid with saved tokens.
    search: Search<'a>,
    /// Lower bounds of limits, because the source's limits held requests back.
    held: Floor,
    least_gib: u32,
    chosen: Chosen,
    busy: Busy,
    /// Number of requests that may still be sent.
    left: &'a Cell<u64>,
    ran_out: Cell<bool>,
    known: RefCell<BTreeMap<Point, Option<Exact>>>,
}

/// A volume that meets the requirements.
type Good = (Point, Exact);

impl<'a> Sharpening<'a> {
    fn of(
        (space, index, recorded): (&'a Space, &'a Index<'a>, Option<&'a Demand>),
        wanted: &'a Wanted,
        left: &'a Cell<u64>,
        found: &Found,
    ) -> Option<Self> {
        let Layout { volumes, each, instance } = found.layout;
        let rules = space.rules.of(each.volume_type)?;
        let by = (space.rules.pacing(&each).counting, found.layout.share(space));
        let us_per_day = wanted.throttled_us_per_day_max;
        let (floor, saves, cost_max) = (Floor::default(), true, None);
        let search = Search {
            space,
            index,
            recorded,
            wanted,
            rules,
            volumes,
            instance,
            floor,
            cost_max,
            saves,
        };
        let least_gib = search.least_gib()?;
        let chosen = search.chosen(least_gib);
        Some(Self {
            search,
            held: Floor::held(index.demand, by, us_per_day),
            least_gib,
            chosen,
            busy: Busy::of(space, index.demand, &found.layout),
            left,
            ran_out: Cell::new(false),
            known: RefCell::new(BTreeMap::new()),
        })
    }

    /// Returns the cheapest layout; `None` if no layout of this type and number meets the
    /// requirements.
    fn run(mut self, found: Found) -> Option<Found> {
        let each = found.layout.each;
        let at = match self.chosen {
            Chosen::Gib(..) => (each.size_gib, None, None),
            Chosen::Iops(..) => (each.size_gib, each.iops, None),
            Chosen::Both { .. } => (each.size_gib, each.iops, each.throughput_mibps),
        };
        let start = self.at(at);
        // The scheduler could not judge it, and needs as many requests to judge less.
        if self.ran_out.get() {
            return Some(found);
        }
        let is_least =
            self.point(0, 0).and_then(|least| self.search.cost(least)) == Some(found.monthly);
        if start.is_some() && is_least {
            return Some(Found { exact: start.map(|(_, exact)| exact), ..found });
        }
        self.search.floor = self.floor(&found.layout);
        let guess = self.guess().unwrap_or((at.1.unwrap_or(at.0), at.2.unwrap_or_default()));
        let below = |number: u32| number.saturating_sub(BELOW_MIN.max(number / BELOW));
        let mut low = (below(guess.0), below(guess.1));
        let best = loop {
            let lowest = self.point(low.0, low.1).and_then(|point| self.search.layout(point));
            if let Some(lowest) = lowest {
                self.busy = Busy::of(self.search.space, self.search.index.demand, &lowest);
            }
            match self.least(low, guess, start.clone()) {
                // The guess was too high by more than was assumed.
                Some((_, is_edge)) if is_edge && low != (0, 0) && !self.ran_out.get() => {
                    low = (0, 0);
                }
                best => break best.map(|(good, _)| good),
            }
        };
        match best {
            Some((point, exact)) => {
                let layout = self.search.layout(point)?;
                let found = given(self.search.space, self.search.index.demand, &layout)?;
                Some(Found { exact: Some(exact), ..found })
            }
            None if self.ran_out.get() => {
                Some(Found { exact: start.map(|(_, exact)| exact), ..found })
            }
            None => None,
        }
    }

    /// Returns the volume with these numbers, or the least that is allowed.
    fn point(&self, number: u32, mibps: u32) -> Option<Point> {
        match self.chosen {
            Chosen::Gib(min, _) => Some((number.max(min), None, None)),
            Chosen::Iops(min, _) => self.search.sized(self.least_gib, number.max(min), None),
            Chosen::Both { iops, mibps: (min, _), ratio } => {
                let mibps = mibps.max(min);
                let number = number.max(iops.0).max(least_beside(ratio, mibps));
                self.search.sized(self.least_gib, number, Some(mibps))
            }
        }
    }

    /// Returns the rates below which the fluid with saved tokens waits for too long.
    fn floor(&self, layout: &Layout) -> Floor {
        let Search { space, wanted, .. } = self.search;
        let demand = self.search.index.demand;
        let pacing = space.rules.pacing(&layout.each);
        let by = (pacing.counting, layout.share(space));
        let saved_us = pacing.tolerance.ns / 1_000;
        Floor::saving(demand, by, wanted.throttled_us_per_day_max, saved_us)
    }

    /// Returns the cheapest layout with one more of something that meets the requirements; the
    /// fastest if none does.
    fn one_more(&self, found: &Found, requests_max: u64) -> Option<Found> {
        let each = found.layout.each;
        let iops = each.iops.unwrap_or_default();
        let mibps = each.throughput_mibps;
        let points = match self.chosen {
            Chosen::Gib(..) => vec![self.point(each.size_gib + 1, 0)],
            Chosen::Iops(..) => vec![self.point(iops + 1, 0)],
            Chosen::Both { .. } => {
                let mibps = mibps.unwrap_or_default();
                let all = [(1, 0), (0, 1), (1, 1)];
                all.map(|(more, faster)| self.point(iops + more, mibps + faster)).into()
            }
        };
        let Search { space, wanted, .. } = self.search;
        let demand = self.search.index.demand;
        let mut last = None;
        for point in points.into_iter().flatten() {
            let Some(layout) = self.search.layout(point) else { continue };
            if !space.prices.fits(space.rules, &layout.each) {
                continue;
            }
            let exact = exact::replay(space, demand, &layout, requests_max)?;
            let does = exact.does(demand, wanted);
            last = given(space, demand, &layout).map(|it| Found { exact: Some(exact), ..it });
            if does {
                break;
            }
        }
        last
    }

    /// Returns the result of the fluid with saved tokens.
    fn guess(&self) -> Option<(u32, u32)> {
        match self.chosen {
            Chosen::Gib(..) => Some((self.search.cheapest()?.layout.each.size_gib, 0)),
            Chosen::Iops(..) => Some((self.search.cheapest()?.layout.each.iops?, 0)),
            Chosen::Both { iops, mibps, ratio } => {
                let (iops, mibps, _) = self.search.corner(self.least_gib, iops, mibps, ratio)?;
                Some((iops, mibps))
            }
        }
    }

    /// Judges a volume with the scheduler. Returns `None` if it does not meet the requirements.
    fn at(&self, point: Point) -> Option<Good> {
        if let Some(known) = self.known.borrow().get(&point) {
            return known.clone().map(|exact| (point, exact));
        }
        let space = self.search.space;
        let wanted = self.search.wanted;
        let layout = self.search.layout(point)?;
        if layout.all(space).any(|limit| self.held.is_above(limit))
            || !wanted.is_no_less(space.rules, &layout)
        {
            return None;
        }
        let (judged, sent) = self.busy.judge(space, &layout, wanted, self.left.get());
        self.left.set(self.left.get().saturating_sub(sent));
        let exact = match judged {
            Judged::Does(exact) => self.search.lasts(&layout).then_some(exact),
            Judged::DoesNot => None,
            Judged::TooMany => {
                self.ran_out.set(true);
                None
            }
        };
        self.known.borrow_mut().insert(point, exact.clone());
        exact.map(|exact| (point, exact))
    }

    /// Returns the cheapest volume that meets the requirements, no dearer than a known one, and
    /// whether one of its numbers is the lowest that was allowed.
    fn least(
        &self,
        low: (u32, u32),
        guess: (u32, u32),
        start: Option<Good>,
    ) -> Option<(Good, bool)> {
        let one = |(min, max): (u32, u32), known: Option<u32>| {
            let range = (low.0.max(min), known.unwrap_or(max));
            let (number, good) = least_near(range, guess.0, |number| {
                self.point(number, 0).and_then(|point| self.at(point))
            })?;
            Some((good, number == range.0 && number > min))
        };
        match self.chosen {
            Chosen::Gib(min, max) => one((min, max), start.map(|((gib, ..), _)| gib)),
            Chosen::Iops(min, max) => one((min, max), start.and_then(|((_, iops, _), _)| iops)),
            Chosen::Both { iops, mibps, ratio } => {
                self.of_both((low, guess), iops, mibps, ratio, start)
            }
        }
    }

    /// Does the work of [`Self::least`] for a type that sells IOPS and throughput.
    fn of_both(
        &self,
        (low, guess): ((u32, u32), (u32, u32)),
        iops: (u32, u32),
        mibps: (u32, u32),
        ratio: Ratio,
        start: Option<Good>,
    ) -> Option<(Good, bool)> {
        let sized = |iops, mibps| self.search.sized(self.least_gib, iops, Some(mibps));
        let at = |iops, mibps| sized(iops, mibps).and_then(|point| self.at(point));
        let cost = |point| self.search.cost(point).map_or(u64::MAX, |cost| cost.total());
        let low_iops = low.0.max(iops.0);
        let low_mibps = low.1.max(mibps.0);
        // Whatever the other number is, neither may be less than it must be beside the maximum of
        // the other.
        let (least_iops, _) = least_near((low_iops, iops.1), guess.0, |number| {
            at(number, mibps.1.min(most_beside(ratio, number)))
        })?;
        let (least_mibps, _) =
            least_near((low_mibps, mibps.1), guess.1, |number| at(iops.1, number))?;
        let is_edge = (least_iops == low_iops && low_iops > iops.0)
            || (least_mibps == low_mibps && low_mibps > mibps.0);
        let mut best = start;
        let mut most_iops = iops.1;
        for number in least_mibps..=mibps.1 {
            let floor = least_iops.max(least_beside(ratio, number));
            let best_cost = best.as_ref().map_or(u64::MAX, |(point, _)| cost(*point));
            // More MiB/s only cost more, unless they save IOPS.
            let is_cheaper =
                |iops| sized(iops, number).filter(|point| cost(*point) < best_cost).map(|_| ());
            let range = (floor, most_iops.max(floor));
            let Some((most, ())) = largest(range, is_cheaper).filter(|_| floor <= iops.1) else {
                break;
            };
            let needed = least_near((floor, most), floor, |iops| at(iops, number));
            if let Some((needed, good)) = needed {
                most_iops = needed;
                best = Some(good);
            }
            if self.ran_out.get() {
                break;
            }
        }
        best.map(|best| (best, is_edge))
    }
}

#[cfg(test)]
mod tests;
