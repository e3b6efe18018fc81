//! The cheapest layouts that do what is wanted.
//!
//! For each type and number of volumes the search is exact: no cheaper layout of that type and
//! number does what is wanted, as far as a [fluid](crate::fluid) replay can tell. It rests on three
//! facts. A volume is never worse with a higher limit, so the least one that will do is bisected.
//! What a provisioned type does depends on its size only through what may be provisioned, so its
//! size is the least that is allowed. Costs never fall with what is provisioned.

use evenkeel_core::instance::InstanceType;
use evenkeel_core::price::{Cost, PriceList};
use evenkeel_core::volume::{
    IopsRule, MultiAttach, Ratio, Rules, ThroughputRule, TypeRules, VolumeRequest, VolumeType,
};

use crate::demand::Demand;
use crate::fluid::{Fluid, MICRO, Outcome};
use crate::layout::{Layout, LimitKind};

const DAY_US: u128 = 86_400_000_000;

/// What a layout must do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// GiB of all volumes together.
    pub capacity_gib: u64,
    /// The most microseconds a day in which requests may wait for a limit.
    pub throttled_us_per_day_max: u64,
    /// Delays that so many thousandths of the requests must not exceed, in microseconds.
    pub delays: Vec<(u32, u64)>,
    /// Whether an instance boots from it.
    pub boots: bool,
    /// Whether several instances attach it.
    pub multi_attach: bool,
    /// The most that it may cost in a month, in millionths of a US dollar.
    pub monthly_max: Option<u64>,
}

/// Where layouts are looked for.
#[derive(Clone, Debug)]
pub struct Space {
    /// The rules in force.
    pub rules: &'static Rules,
    /// The prices in force.
    pub prices: &'static PriceList,
    /// The types.
    pub types: Vec<VolumeType>,
    /// The most volumes.
    pub volumes_max: u32,
    /// How much of a request goes to one volume before the next, in bytes.
    pub stripe_bytes: u32,
    /// The type of the instance; `None` without its limits.
    pub instance: Option<&'static InstanceType>,
}

/// A layout that does what is wanted, and what will happen on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The layout.
    pub layout: Layout,
    /// What it costs in a month, in millionths of a US dollar.
    pub monthly: Cost,
    /// What its requests cost in a month beside, where each is paid for.
    pub requests: u64,
    /// What the replay came to, of each volume.
    pub outcome: Outcome,
    /// The limits, in the order of the outcome.
    pub limits: Vec<LimitKind>,
}

impl Found {
    /// All that it costs in a month, in millionths of a US dollar.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.monthly.total().saturating_add(self.requests)
    }
}

/// The cheapest layout of each type and number of volumes that does what is wanted, cheapest first.
#[must_use]
pub fn cheapest(space: &Space, demand: &Demand, wanted: &Wanted) -> Vec<Found> {
    let mut found = Vec::new();
    for &volume_type in &space.types {
        let Some(rules) = space.rules.of(volume_type) else { continue };
        if (wanted.boots && !rules.boot)
            || (wanted.multi_attach && rules.multi_attach == MultiAttach::No)
        {
            continue;
        }
        let attached = space.instance.map_or(u32::MAX, |instance| instance.attachments_max);
        for volumes in 1..=space.volumes_max.min(attached) {
            let search = Search { space, demand, wanted, rules, volumes };
            found.extend(search.best());
        }
    }
    found.retain(|it| wanted.monthly_max.is_none_or(|most| it.total() <= most));
    found.sort_by_key(|it| (it.total(), it.layout.volumes, it.layout.each.size_gib));
    found
}

/// The search among layouts of one type and number.
struct Search<'a> {
    space: &'a Space,
    demand: &'a Demand,
    wanted: &'a Wanted,
    rules: &'static TypeRules,
    volumes: u32,
}

/// A volume of a layout: IOPS and MiB/s where they are provisioned.
type Point = (u32, Option<u32>, Option<u32>);

impl Search<'_> {
    fn best(&self) -> Option<Found> {
        let each_gib = self.wanted.capacity_gib.div_ceil(self.volumes.into());
        let least_gib = u32::try_from(each_gib).ok()?.max(self.rules.size_gib_min);
        if least_gib > self.rules.size_gib_max {
            return None;
        }
        match (self.rules.iops, self.rules.throughput) {
            (IopsRule::Provisioned { min, max, .. }, throughput) => {
                let range = (min, max);
                match throughput {
                    ThroughputRule::Provisioned {
                        min_mibps, max_mibps, mibps_per_iops, ..
                    } => self.of_both(least_gib, range, (min_mibps, max_mibps), mibps_per_iops),
                    _ => {
                        let at = |iops| self.try_at(self.sized(least_gib, iops, None)?);
                        least(range, at).map(|(_, found)| found)
                    }
                }
            }
            _ => {
                let range = (least_gib, self.rules.size_gib_max);
                least(range, |gib| self.try_at((gib, None, None))).map(|(_, found)| found)
            }
        }
    }

    /// The cheapest of a type that sells IOPS and throughput.
    fn of_both(
        &self,
        gib: u32,
        iops: (u32, u32),
        mibps: (u32, u32),
        ratio: Ratio,
    ) -> Option<Found> {
        let at = |iops, mibps| self.try_at(self.sized(gib, iops, Some(mibps))?);
        // Whatever the other is, neither may be less than what it must be beside the most of it.
        let beside = |iops| mibps.1.min(most_beside(ratio, iops));
        let (least_iops, _) = least(iops, |iops| at(iops, beside(iops)))?;
        let (least_mibps, _) = least(mibps, |mibps| at(iops.1, mibps))?;
        let (mut best, mut most_iops): (Option<Found>, u32) = (None, iops.1);
        for mibps in least_mibps..=mibps.1 {
            let floor = least_iops.max(least_beside(ratio, mibps));
            if floor > iops.1 {
                break;
            }
            let least_cost = self.sized(gib, floor, Some(mibps)).and_then(|it| self.cost(it));
            let is_dearer =
                |best: &Found| least_cost.is_none_or(|cost| cost.total() >= best.monthly.total());
            // More MiB/s only cost more, unless they spare IOPS.
            if best.as_ref().is_some_and(is_dearer) {
                break;
            }
            let range = (floor, most_iops.max(floor));
            let Some((needed, found)) = least(range, |iops| at(iops, mibps)) else { continue };
            most_iops = needed;
            if best.as_ref().is_none_or(|best| found.total() < best.total()) {
                best = Some(found);
            }
        }
        best
    }

    /// A volume with provisioned IOPS, as large as these need.
    fn sized(&self, least_gib: u32, iops: u32, mibps: Option<u32>) -> Option<Point> {
        let IopsRule::Provisioned { per_gib, any_size, .. } = self.rules.iops else { return None };
        let needed = if iops > any_size { iops.div_ceil(per_gib.max(1)) } else { 0 };
        let gib = least_gib.max(needed);
        (gib <= self.rules.size_gib_max).then_some((gib, Some(iops), mibps))
    }

    fn layout(&self, (size_gib, iops, throughput_mibps): Point) -> Option<Layout> {
        let request = VolumeRequest {
            volume_type: self.rules.volume_type,
            size_gib,
            iops,
            throughput_mibps,
            multi_attach: self.wanted.multi_attach,
        };
        let each = self.space.rules.resolve(&request).ok()?;
        Some(Layout { volumes: self.volumes, each })
    }

    fn cost(&self, point: Point) -> Option<Cost> {
        self.layout(point)?.monthly(self.space.prices)
    }

    /// What the requests of a month of 30 days cost.
    fn requests(&self, outcome: &Outcome) -> u64 {
        let Some(prices) = self.space.prices.of(self.rules.volume_type) else { return 0 };
        let all = outcome.delays.total() / MICRO * u128::from(self.volumes);
        let month = all * 30 * DAY_US / u128::from(self.demand.length_us.max(1));
        prices.requests(u64::try_from(month).unwrap_or(u64::MAX))
    }

    /// A layout, if it does what is wanted.
    fn try_at(&self, point: Point) -> Option<Found> {
        let layout = self.layout(point)?;
        let monthly = layout.monthly(self.space.prices)?;
        let (limits, outcome) = replay(self.space, self.demand, &layout);
        does(&outcome, self.demand, self.wanted).then_some(Found {
            requests: self.requests(&outcome),
            layout,
            monthly,
            outcome,
            limits,
        })
    }
}

/// What happens on a layout.
#[must_use]
pub fn replay(space: &Space, demand: &Demand, layout: &Layout) -> (Vec<LimitKind>, Outcome) {
    let pacing = space.rules.pacing(&layout.each);
    let buckets = layout.buckets(&pacing, space.instance);
    let (limits, buckets) = buckets.into_iter().unzip();
    let parts = demand.parts(pacing.counting, layout.volumes, space.stripe_bytes);
    (limits, Fluid::replay(buckets, parts))
}

/// Whether an outcome is as wanted.
#[must_use]
pub fn does(outcome: &Outcome, demand: &Demand, wanted: &Wanted) -> bool {
    let known_us = u128::from(demand.length_us.max(outcome.end_us).max(1));
    let throttled = u128::from(outcome.waited_us()) * DAY_US;
    throttled <= u128::from(wanted.throttled_us_per_day_max) * known_us
        && wanted.delays.iter().all(|(permille, us)| outcome.delays.permille(*permille) <= *us)
}

/// The most MiB/s that may be provisioned beside so many IOPS.
fn most_beside(ratio: Ratio, iops: u32) -> u32 {
    let most = u64::from(iops).saturating_mul(ratio.numerator) / ratio.denominator.max(1);
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// The least IOPS beside which so many MiB/s may be provisioned.
fn least_beside(ratio: Ratio, mibps: u32) -> u32 {
    let least = u64::from(mibps).saturating_mul(ratio.denominator).div_ceil(ratio.numerator.max(1));
    u32::try_from(least).unwrap_or(u32::MAX)
}

/// The least number of a range at which there is something, and what; there is nothing below one
/// without, if there is nothing at it.
fn least<T>((from, to): (u32, u32), at: impl Fn(u32) -> Option<T>) -> Option<(u32, T)> {
    let mut found = (to, at(to)?);
    let mut low = from;
    while low < found.0 {
        let middle = low + (found.0 - low) / 2;
        match at(middle) {
            Some(there) => found = (middle, there),
            None => low = middle + 1,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
