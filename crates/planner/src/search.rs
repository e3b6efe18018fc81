//! Searches the cheapest layouts that meet the requirements.
//!
//! For each type and number of volumes the search is exact: no cheaper layout of that type and
//! number meets the requirements in a [fluid](crate::fluid) replay. It relies on three facts. A
//! volume is never worse with a higher limit, so the lowest sufficient limit is found by bisection.
//! The performance of a provisioned type depends on its size only through the limits that can be
//! provisioned, so its size is the least that is allowed. Costs never fall with the provisioned
//! limits. The same holds for each requested type of instance.
//!
//! It is fast because most of a demand need not be replayed. A layout whose limits the demand
//! exceeds for too long is excluded ([`Floor`]), and the parts that are quiet at the lowest
//! remaining limits are quiet at all others ([`Parts`]).

mod evaluate;
mod invariants;
mod months;
mod refine;

use evenkeel_core::convert::saturating;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_core::instance::InstanceType;
use evenkeel_core::price::Cost;
use evenkeel_core::qos::pacing::CountingRule;
use evenkeel_core::volume::{
    IopsRule, MultiAttach, Ratio, Rules, ThroughputRule, TypeRules, VolumeRequest, VolumeSpec,
    VolumeType,
};

use crate::advice;
use crate::bisect::least;
use crate::delays::Delays;
use crate::demand::{DAY_US, Demand};
use crate::exact::Exact;
use crate::fluid::{Bucket, Fluid, MICRO, Outcome};
use crate::hot_intervals::{Floor, Hottest, Index, Parts, Split};
use crate::instances;
use crate::layout::{Layout, LimitKind};
use crate::prices::Prices;
use crate::spread::Spread;
use crate::steady;

pub use evaluate::given;
pub use months::{carries, for_months};
pub use refine::{settle, sharpest};

/// The requirements for a layout.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// Capacity of all volumes together, in GiB.
    pub capacity_gib: u64,
    /// Maximum time in which requests may wait for a limit, in microseconds per day.
    pub throttled_us_per_day_max: u64,
    /// Pairs of thousandths of the requests, and the delay in microseconds that these must not
    /// exceed.
    pub delays: Vec<(u32, u64)>,
    /// Whether an instance boots from it.
    pub boots: bool,
    /// Whether several instances attach it.
    pub multi_attach: bool,
    /// Maximum monthly cost, in millionths of the currency.
    pub monthly_max: Option<u64>,
    /// The volumes than which none does less, for any requests; `None` if what was recorded shows
    /// that less suffices.
    pub no_less_than: Option<Layout>,
}

impl Wanted {
    /// Returns whether a layout has no less than it must, whatever the requests are.
    fn is_no_less(&self, rules: &Rules, layout: &Layout) -> bool {
        self.no_less_than.is_none_or(|than| {
            layout.volumes >= than.volumes && advice::never_less(rules, &layout.each, &than.each)
        })
    }
}

/// The bursts above a limit that a plan counts on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Tolerance {
    /// None: AWS documents none for EBS.
    #[default]
    None,
    /// Those of Evenkeel's volumes, whose pacers save tokens. The product's scheduler decides.
    Evenkeel,
}

/// The space of layouts that is searched.
#[derive(Clone, Debug)]
pub struct Space {
    /// The rules in force.
    pub rules: &'static Rules,
    /// The prices in force.
    pub prices: Prices,
    /// The bursts above a limit that are counted on.
    pub tolerance: Tolerance,
    /// The types of volumes.
    pub types: Vec<VolumeType>,
    /// Maximum number of volumes.
    pub volumes_max: u32,
    /// The distribution of requests over several volumes.
    pub spread: Spread,
    /// The types of instances to which the volumes may be attached; at equal cost the first one is
    /// preferred. If it is empty, the limits of instances do not apply.
    pub instances: Vec<&'static InstanceType>,
}

impl Space {
    /// Returns the rules of the types from which an instance may boot, or that several may attach,
    /// if `wanted` requires it.
    pub fn suitable<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'static TypeRules> {
        let all = self.types.iter().filter_map(|it| self.rules.of(*it));
        all.filter(|rules| suits(rules, wanted.boots, wanted.multi_attach))
    }

    /// Returns the suitable types without a price, which are not candidates.
    #[must_use]
    pub fn unpriced(&self, wanted: &Wanted) -> Vec<VolumeType> {
        let all = self.suitable(wanted).map(|rules| rules.volume_type);
        all.filter(|volume_type| !self.prices.has(*volume_type)).collect()
    }

    /// Returns the milliseconds of a limit that a volume lets through at once.
    #[must_use]
    pub fn tolerance_ms(&self) -> u64 {
        let all = VolumeType::ALL.into_iter().filter_map(|volume_type| self.rules.of(volume_type));
        match self.tolerance {
            Tolerance::None => 0,
            Tolerance::Evenkeel => {
                all.map(|rules| rules.tolerance.ns / 1_000_000).max().unwrap_or(0)
            }
        }
    }

    /// Returns the monthly cost of a layout by item; `None` if its type has no price.
    #[must_use]
    pub fn monthly(&self, layout: &Layout) -> Option<Cost> {
        self.prices.monthly(self.rules, layout)
    }

    /// Returns the instances to search; one without limits if none is given.
    fn hosts(&self) -> Vec<Option<&'static InstanceType>> {
        if self.instances.is_empty() {
            vec![None]
        } else {
            self.instances.iter().copied().map(Some).collect()
        }
    }

    /// Sorts by cost. Of equal cost, layouts with fewer volumes come first, then more durable ones,
    /// smaller ones, those with more IOPS, and those on the preferred instance.
    fn sort(&self, found: &mut [Found]) {
        found.sort_by_key(|found| self.rank(found));
    }

    /// Returns the place of a layout in this order.
    fn rank(&self, found: &Found) -> Rank {
        let Layout { volumes, each, instance } = found.layout;
        let preferred = self.instances.iter().position(|listed| Some(*listed) == instance);
        let loss_ppb = found.layout.loss_ppb(self.rules).map_or(u64::MAX, |(_, worst)| worst);
        (found.total(), volumes, loss_ppb, each.size_gib, Reverse(each.iops), preferred)
    }

    /// Returns whether a layout is one of those that a search may find, whatever it carries.
    #[must_use]
    pub fn is_candidate(&self, layout: &Layout, wanted: &Wanted) -> bool {
        let Layout { volumes, each, instance } = layout;
        self.suitable(wanted).any(|rules| rules.volume_type == each.volume_type)
            && (each.multi_attach || !wanted.multi_attach)
            && u64::from(*volumes) * u64::from(each.size_gib) >= wanted.capacity_gib
            && *volumes <= self.volumes_max.min(attachments_max(*instance, wanted.boots))
            && instances::not_carried(*instance, each).is_none()
            && self.prices.fits(self.rules, each)
    }

    /// Returns the maximum number of volumes of a layout on the instance that takes the most.
    #[must_use]
    pub fn most_volumes(&self, wanted: &Wanted) -> u32 {
        let attached = self.hosts().into_iter().map(|host| attachments_max(host, wanted.boots));
        self.volumes_max.min(attached.max().unwrap_or(u32::MAX))
    }
}

/// The place of a layout: its cost, number of volumes, loss, GiB, IOPS, and its instance's place.
type Rank = (u64, u32, u64, u32, Reverse<Option<u32>>, Option<usize>);

/// Returns the maximum number of volumes of a layout on an instance. Instances boot from a volume,
/// which takes a place, too, unless the layout `boots` it.
pub(crate) fn attachments_max(instance: Option<&InstanceType>, boots: bool) -> u32 {
    let beside_root = u32::from(!boots);
    instance.map_or(u32::MAX, |instance| instance.attachments_max.saturating_sub(beside_root))
}

/// Returns whether an instance may boot from a type, if it must, and several may attach it, if they
/// must.
pub(crate) fn suits(rules: &TypeRules, boots: bool, multi_attach: bool) -> bool {
    (rules.boot || !boots) && (rules.multi_attach != MultiAttach::No || !multi_attach)
}

/// A layout that meets the requirements, and its replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The layout.
    pub layout: Layout,
    /// Its monthly cost, in millionths of the currency.
    pub monthly: Cost,
    /// The monthly cost of its requests, for types that charge for them.
    pub requests: u64,
    /// The result of the replay, for the volume with the largest share.
    pub outcome: Outcome,
    /// The limits, in the order of the outcome.
    pub limits: Vec<LimitKind>,
    /// The result of the product's scheduler, if it was asked.
    pub exact: Option<Exact>,
}

impl Found {
    /// Returns its total monthly cost, in millionths of the currency.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.monthly.total().saturating_add(self.requests)
    }

    /// Returns the time in which requests wait, in microseconds: the scheduler's, if it was asked.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.exact.as_ref().map_or_else(|| self.outcome.waited_us(), |exact| exact.waited_us)
    }

    /// Returns whether requests wait no longer a day than is wanted.
    #[must_use]
    pub fn waits_as_wanted(&self, demand: &Demand, wanted: &Wanted) -> bool {
        may_wait(self.waited_us(), self.end_us(), demand, wanted)
    }

    /// Returns the time in which requests wait a day, in microseconds, rounded up.
    #[must_use]
    pub fn waited_us_per_day(&self, demand: &Demand) -> u64 {
        let known_us = u128::from(demand.length_us.max(self.end_us()).max(1));
        let us = (u128::from(self.waited_us()) * DAY_US).div_ceil(known_us);
        u64::try_from(us).expect("invariant: requests wait for at most the whole day")
    }

    /// Returns the delays of requests: the scheduler's, if it was asked.
    #[must_use]
    pub fn delays(&self) -> &Delays {
        self.exact.as_ref().map_or(&self.outcome.delays, |exact| &exact.delays)
    }

    /// Returns the limit for which requests wait the longest; `None` if they do not wait.
    #[must_use]
    pub fn binding(&self) -> Option<LimitKind> {
        match &self.exact {
            Some(exact) if exact.waited_us == 0 => None,
            Some(exact) => exact.held_ns.iter().max_by_key(|(_, ns)| *ns).map(|(kind, _)| *kind),
            None => self.outcome.binding().and_then(|place| self.limits.get(place)).copied(),
        }
    }

    /// Returns the time at which the last request is served. Requests that were not sent to the
    /// scheduler are served at once.
    #[must_use]
    pub fn end_us(&self) -> u64 {
        self.exact.as_ref().map_or(self.outcome.end_us, |exact| exact.end_us)
    }
}

/// Returns the cheapest layout of each type, number of volumes and instance that meets the
/// requirements, cheapest first.
#[must_use]
pub fn cheapest(space: &Space, demand: &Demand, wanted: &Wanted) -> Vec<Found> {
    cheapest_few(space, demand, wanted, usize::MAX)
}

/// Returns the first `count` layouts of [`cheapest`]. Dearer ones are not replayed.
#[must_use]
pub fn cheapest_few(space: &Space, demand: &Demand, wanted: &Wanted, count: usize) -> Vec<Found> {
    cheapest_lasting(space, &Index::new(demand), None, wanted, count)
}

/// Returns the first `count` of the cheapest layouts that also do what is wanted in every
/// repetition of `recorded` in a month; if it is `None`, in one run alone.
fn cheapest_lasting(
    space: &Space,
    index: &Index,
    recorded: Option<&Demand>,
    wanted: &Wanted,
    count: usize,
) -> Vec<Found> {
    let mut searches = searches(space, index, recorded, wanted);
    let hottest = Hottest::of(index.demand, wanted.throttled_us_per_day_max);
    let mut floors: Vec<(Split, Floor)> = Vec::new();
    // The cheapest that a search may find, its number, and whether the floor is known. Searches are
    // made in this order, so that most are known to be too dear before they replay anything.
    let mut open: BinaryHeap<Reverse<(u64, usize, bool)>> = BinaryHeap::new();
    let least = |search: &Search, number: usize, has_floor: bool| {
        Some(Reverse((search.lowest_cost()?.total(), number, has_floor)))
    };
    open.extend(searches.iter().enumerate().filter_map(|(number, it)| least(it, number, false)));
    let mut found: Vec<(usize, Found)> = Vec::new();
    while let Some(Reverse((least_cost, number, has_floor))) = open.pop() {
        let Some(search) = searches.get_mut(number) else { continue };
        // A layout with more volumes that costs as much as the last requested one comes after it.
        let last = count.checked_sub(1).and_then(|last| found.get(last));
        let cost_max = last.map(|(_, last)| {
            last.total().saturating_sub((last.layout.volumes < search.volumes).into())
        });
        search.cost_max = cost_max.into_iter().chain(wanted.monthly_max).min();
        if search.cost_max.is_some_and(|most| least_cost > most) {
            continue;
        }
        if has_floor {
            found.extend(search.best().map(|best| (number, best)));
            found.sort_by_key(|(number, found)| (space.rank(found), *number));
            found.truncate(count);
        } else if let Some(counting) = search.counting() {
            let split = (counting, space.spread.of(search.volumes));
            let known = floors.iter().find(|(by, _)| *by == split).map(|(_, floor)| *floor);
            search.floor = known.unwrap_or_else(|| {
                let floor = Floor::of(&hottest, split);
                floors.push((split, floor));
                floor
            });
            open.extend(least(search, number, true));
        }
    }
    let mut found: Vec<Found> = found.into_iter().map(|(_, found)| found).collect();
    found.retain(|it| wanted.monthly_max.is_none_or(|most| it.total() <= most));
    if cfg!(debug_assertions) {
        invariants::of_found(space, index.demand, wanted, count, &found);
    }
    found
}

/// Returns the searches of all types, numbers of volumes and instances, those with fewer volumes
/// first.
fn searches<'a>(
    space: &'a Space,
    index: &'a Index<'a>,
    recorded: Option<&'a Demand>,
    wanted: &'a Wanted,
) -> Vec<Search<'a>> {
    let hosts = space.hosts();
    let priced = space.suitable(wanted).filter(|rules| space.prices.has(rules.volume_type));
    let rules: Vec<(&TypeRules, Option<&InstanceType>)> =
        priced.flat_map(|rules| hosts.iter().map(move |host| (rules, *host))).collect();
    let of_number = |volumes: u32| {
        let takes = move |host| {
            attachments_max(host, wanted.boots) >= volumes
                && (instances::takes_multi_attach(host) || !wanted.multi_attach)
        };
        let attached = rules.iter().filter(move |(_, host)| takes(*host));
        attached.map(move |(rules, instance)| Search {
            space,
            index,
            recorded,
            wanted,
            rules,
            volumes,
            instance: *instance,
            floor: Floor::default(),
            cost_max: None,
            saves: false,
        })
    };
    (1..=space.most_volumes(wanted)).flat_map(of_number).collect()
}

/// The search among layouts of one type and number of volumes.
struct Search<'a> {
    space: &'a Space,
    index: &'a Index<'a>,
    /// The workload whose repetitions a layout must carry for a month; `None` if one run is enough.
    recorded: Option<&'a Demand>,
    wanted: &'a Wanted,
    rules: &'static TypeRules,
    volumes: u32,
    instance: Option<&'static InstanceType>,
    floor: Floor,
    /// Maximum monthly cost of layouts that are searched.
    cost_max: Option<u64>,
    /// Whether limits save tokens, as the scheduler's pacers do.
    saves: bool,
}

/// A volume of a layout: its size in GiB, and IOPS and MiB/s if they are provisioned.
type Point = (u32, Option<u32>, Option<u32>);

/// The numbers of a type that can be chosen, and their bounds.
#[derive(Clone, Copy)]
enum Chosen {
    Gib(u32, u32),
    Iops(u32, u32),
    Both { iops: (u32, u32), mibps: (u32, u32), ratio: Ratio },
}

/// The result of trying a layout.
enum Tried {
    /// It meets the requirements.
    Does(Box<Found>),
    /// It does not. Has the parts that matter at higher limits, if it was replayed.
    DoesNot(Option<Parts>),
}

impl Search<'_> {
    /// Returns the cheapest layout; `None` if there is none, or if it does not fit on the priced
    /// hardware.
    fn best(&self) -> Option<Found> {
        let found = self.cheapest()?;
        self.space.prices.fits(self.space.rules, &found.layout.each).then_some(found)
    }

    fn cheapest(&self) -> Option<Found> {
        let gib = self.least_gib()?;
        match self.chosen(gib) {
            Chosen::Both { iops, mibps, ratio } => self.of_both(gib, iops, mibps, ratio),
            Chosen::Iops(min, max) => self.of_one((min, max), |iops| self.sized(gib, iops, None)),
            Chosen::Gib(min, max) => self.of_one((min, max), |gib| Some((gib, None, None))),
        }
    }

    /// Returns the numbers of its type that can be chosen, beside the least size.
    fn chosen(&self, least_gib: u32) -> Chosen {
        match (self.rules.iops, self.rules.throughput) {
            (
                IopsRule::Provisioned { min, max, .. },
                ThroughputRule::Provisioned { min_mibps, max_mibps, mibps_per_iops, .. },
            ) => Chosen::Both {
                iops: (min, self.iops_max(max)),
                mibps: (min_mibps, max_mibps),
                ratio: mibps_per_iops,
            },
            (IopsRule::Provisioned { min, max, .. }, _) => Chosen::Iops(min, self.iops_max(max)),
            _ => Chosen::Gib(least_gib, self.rules.size_gib_max),
        }
    }

    /// Returns the cost of a layout with the lowest limits that are no reason to reject it. No
    /// layout that meets the requirements costs less. Returns `None` if there is none.
    fn lowest_cost(&self) -> Option<Cost> {
        let gib = self.least_gib()?;
        let lowest = match self.chosen(gib) {
            Chosen::Both { iops, mibps, .. } => self.lowest_of_both(gib, iops, mibps)?.2,
            Chosen::Iops(min, max) => {
                self.lowest_of_one((min, max), |iops| self.sized(gib, iops, None))?.1
            }
            Chosen::Gib(min, max) => {
                self.lowest_of_one((min, max), |gib| Some((gib, None, None)))?.1
            }
        };
        self.space.monthly(&lowest)
    }

    /// Returns the maximum IOPS of a volume: those of its type that have a price, and that the
    /// instance carries.
    fn iops_max(&self, of_type: u32) -> u32 {
        let volume_type = self.rules.volume_type;
        let of_instance = instances::iops_max(self.instance, volume_type);
        let most = of_instance.map_or(of_type, |most| most.min(of_type));
        most.min(self.space.prices.iops_max(volume_type))
    }

    /// Returns the least size of a volume; `None` if the type has none of that size.
    fn least_gib(&self) -> Option<u32> {
        let each_gib = self.wanted.capacity_gib.div_ceil(self.volumes.into());
        let least_gib = u32::try_from(each_gib).ok()?.max(self.rules.size_gib_min);
        (least_gib <= self.rules.size_gib_max).then_some(least_gib)
    }

    /// Returns the cheapest layout of a type with one number to choose.
    fn of_one(
        &self,
        (from, to): (u32, u32),
        point: impl Fn(u32) -> Option<Point>,
    ) -> Option<Found> {
        let (from, lowest) = self.lowest_of_one((from, to), &point)?;
        self.is_affordable(self.space.monthly(&lowest)?)?;
        let parts = self.parts(&lowest);
        let at = |parts: &Parts, number| match point(number) {
            Some(point) => self.try_at(parts, point),
            None => Tried::DoesNot(None),
        };
        let (number, found) = least_that_does((from, to), &parts, at)?;
        if self.lasts(&found.layout) {
            return Some(found);
        }
        let next = number.checked_add(1).filter(|next| *next <= to)?;
        self.is_affordable(self.cost(point(next)?)?)?;
        let lasting = |parts: &Parts, number| self.if_it_lasts(at(parts, number));
        least_that_does((next, to), &parts, lasting).map(|(_, found)| found)
    }

    /// Returns the least number that the demand's rates alone require, and its layout.
    fn lowest_of_one(
        &self,
        range: (u32, u32),
        point: impl Fn(u32) -> Option<Point>,
    ) -> Option<(u32, Layout)> {
        least(range, |number| self.layout(point(number)?).filter(|layout| self.is_fast(layout)))
    }

    /// Returns the least numbers that the demand's rates alone require, each beside the maximum of
    /// the other, and the layout of both.
    fn lowest_of_both(
        &self,
        size_gib: u32,
        iops: (u32, u32),
        mibps: (u32, u32),
    ) -> Option<(u32, u32, Layout)> {
        let limits = |iops, mibps| Layout {
            volumes: self.volumes,
            each: VolumeSpec {
                volume_type: self.rules.volume_type,
                size_gib,
                iops: Some(iops),
                throughput_mibps: Some(mibps),
                multi_attach: self.wanted.multi_attach,
            },
            instance: self.instance,
        };
        let is_fast = |layout: Layout| self.is_fast(&layout).then_some(());
        let (least_iops, ()) = least(iops, |iops| is_fast(limits(iops, mibps.1)))?;
        let (least_mibps, ()) = least(mibps, |mibps| is_fast(limits(iops.1, mibps)))?;
        Some((least_iops, least_mibps, limits(least_iops, least_mibps)))
    }

    /// Returns whether a layout that carries one run carries a month of them.
    fn lasts(&self, layout: &Layout) -> bool {
        let carries = |recorded| steady::carries(self.space, recorded, layout, self.wanted);
        self.recorded.is_none_or(carries)
    }

    /// Returns the cheapest layout of a type that sells IOPS and throughput.
    fn of_both(
        &self,
        gib: u32,
        iops: (u32, u32),
        mibps: (u32, u32),
        ratio: Ratio,
    ) -> Option<Found> {
        let (least_iops, least_mibps, parts) = self.corner(gib, iops, mibps, ratio)?;
        let at = |parts: &Parts, iops, mibps| self.try_both(parts, gib, iops, mibps);
        let (mut best, mut most_iops): (Option<Found>, u32) = (None, iops.1);
        for mibps in least_mibps..=mibps.1 {
            let floor = least_iops.max(least_beside(ratio, mibps));
            if floor > iops.1 {
                break;
            }
            let least_cost = self.sized(gib, floor, Some(mibps)).and_then(|it| self.cost(it));
            let is_dearer =
                |best: &Found| least_cost.is_none_or(|cost| cost.total() >= best.monthly.total());
            // More MiB/s only cost more, unless they save IOPS.
            if best.as_ref().is_some_and(is_dearer) {
                break;
            }
            let range = (floor, most_iops.max(floor));
            let at_iops = |parts: &Parts, iops| at(parts, iops, mibps);
            let Some((needed, found)) = least_that_does(range, &parts, at_iops) else { continue };
            most_iops = needed;
            if best.as_ref().is_none_or(|best| found.total() < best.total()) {
                best = Some(found);
            }
        }
        best
    }

    /// Returns the least IOPS beside the most MiB/s, the least MiB/s beside the most IOPS, and the
    /// parts that are not quiet there. Neither number may be lower, whatever the other is.
    fn corner(
        &self,
        gib: u32,
        iops: (u32, u32),
        mibps: (u32, u32),
        ratio: Ratio,
    ) -> Option<(u32, u32, Parts)> {
        let at = |parts: &Parts, iops, mibps| self.try_both(parts, gib, iops, mibps);
        let (iops_from, mibps_from, lowest) = self.lowest_of_both(gib, iops, mibps)?;
        self.is_affordable(self.space.monthly(&lowest)?)?;
        let parts = self.parts(&lowest);
        // Whatever the other number is, neither may be less than it must be beside the maximum of
        // the other.
        let beside = |iops| mibps.1.min(most_beside(ratio, iops));
        let (least_iops, _) = least_that_does((iops_from, iops.1), &parts, |parts, iops| {
            at(parts, iops, beside(iops))
        })?;
        let (least_mibps, _) = least_that_does((mibps_from, mibps.1), &parts, |parts, mibps| {
            at(parts, iops.1, mibps)
        })?;
        let mut both = lowest;
        (both.each.iops, both.each.throughput_mibps) = (Some(least_iops), Some(least_mibps));
        let buckets = self.buckets(&both);
        let parts = parts.replay(buckets, |_| false).higher;
        Some((least_iops, least_mibps, parts))
    }

    fn try_both(&self, parts: &Parts, gib: u32, iops: u32, mibps: u32) -> Tried {
        match self.sized(gib, iops, Some(mibps)) {
            Some(point) => self.if_it_lasts(self.try_at(parts, point)),
            None => Tried::DoesNot(None),
        }
    }

    /// Rejects a layout that carries one run, but not a month of them.
    fn if_it_lasts(&self, tried: Tried) -> Tried {
        match tried {
            Tried::Does(found) if !self.lasts(&found.layout) => Tried::DoesNot(None),
            tried => tried,
        }
    }

    /// Returns `None` if a cost exceeds the maximum.
    fn is_affordable(&self, least_cost: Cost) -> Option<()> {
        self.cost_max.is_none_or(|most| least_cost.total() <= most).then_some(())
    }

    /// Returns the counting rule of volumes of this type.
    fn counting(&self) -> Option<CountingRule> {
        let gib = self.least_gib()?;
        let iops = match self.rules.iops {
            IopsRule::Provisioned { min, .. } => Some(min),
            _ => None,
        };
        let point = match iops {
            Some(iops) => self.sized(gib, iops, None)?,
            None => (gib, None, None),
        };
        Some(self.space.rules.pacing(&self.layout(point)?.each).counting)
    }

    /// Returns whether no limit is below the rates that the demand alone requires, or below those
    /// of the volumes that it must not be less than.
    fn is_fast(&self, layout: &Layout) -> bool {
        !layout.all(self.space).any(|limit| self.floor.is_above(limit))
            && self.wanted.is_no_less(self.space.rules, layout)
    }

    /// Returns the parts that are not quiet on a layout.
    fn parts(&self, layout: &Layout) -> Parts {
        let counting = self.space.rules.pacing(&layout.each).counting;
        let split = (counting, layout.share(self.space));
        Parts::of(self.buckets(layout), self.index, split)
    }

    fn buckets(&self, layout: &Layout) -> Vec<Bucket> {
        if self.saves { layout.saving_buckets(self.space) } else { buckets(self.space, layout).1 }
    }

    /// Returns a volume with provisioned IOPS, as large as they need.
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
        Some(Layout { volumes: self.volumes, each, instance: self.instance })
    }

    fn cost(&self, point: Point) -> Option<Cost> {
        self.space.monthly(&self.layout(point)?)
    }

    fn try_at(&self, parts: &Parts, point: Point) -> Tried {
        let legal = self.layout(point).filter(|layout| self.is_fast(layout));
        let priced = legal.and_then(|layout| Some((layout, self.space.monthly(&layout)?)));
        let Some((layout, monthly)) = priced else { return Tried::DoesNot(None) };
        let (limits, _) = buckets(self.space, &layout);
        let waits_too_long = |fluid: &Fluid| {
            !may_wait(fluid.waited_us(), fluid.free_us(), self.index.demand, self.wanted)
        };
        let replayed = parts.replay(self.buckets(&layout), waits_too_long);
        match replayed.outcome.filter(|outcome| does(outcome, self.index.demand, self.wanted)) {
            Some(outcome) => {
                let requests = requests(self.space, self.index.demand, &layout, &outcome);
                let exact = None;
                Tried::Does(Box::new(Found { layout, monthly, requests, outcome, limits, exact }))
            }
            None => Tried::DoesNot(Some(replayed.higher)),
        }
    }
}

/// Returns the cost of the requests of a month of 30 days.
fn requests(space: &Space, demand: &Demand, layout: &Layout, outcome: &Outcome) -> u64 {
    let all = layout.share(space).all_of(outcome.delays.total() / MICRO);
    let month = all * 30 * DAY_US / u128::from(demand.length_us.max(1));
    let month = saturating::<_, u64>(month);
    space.prices.requests(layout.each.volume_type, month)
}

/// Returns the limits of a layout, full of credits, and their kinds.
#[must_use]
pub fn buckets(space: &Space, layout: &Layout) -> (Vec<LimitKind>, Vec<Bucket>) {
    layout.buckets(space).into_iter().unzip()
}

/// Replays a demand on a layout.
#[must_use]
pub fn replay(space: &Space, demand: &Demand, layout: &Layout) -> (Vec<LimitKind>, Outcome) {
    let counting = space.rules.pacing(&layout.each).counting;
    let (limits, buckets) = buckets(space, layout);
    let parts = demand.parts(counting, layout.share(space));
    (limits, Fluid::replay(buckets, parts))
}

/// Returns the time in which requests wait and the time at which the last one is served, in
/// microseconds. It is faster than [`replay`], which distributes delays, too.
pub(crate) fn waited(space: &Space, demand: &Demand, layout: &Layout) -> (u64, u64) {
    let counting = space.rules.pacing(&layout.each).counting;
    let start_us = demand.spans.first().map_or(0, |span| span.start_us);
    let mut fluid = Fluid::new(buckets(space, layout).1, start_us).without_delays();
    for part in demand.parts(counting, layout.share(space)) {
        fluid.take(part);
    }
    (fluid.waited_us(), fluid.free_us())
}

/// Returns whether an outcome meets the requirements.
#[must_use]
pub fn does(outcome: &Outcome, demand: &Demand, wanted: &Wanted) -> bool {
    may_wait(outcome.waited_us(), outcome.end_us, demand, wanted)
        && wanted.delays.iter().all(|(permille, us)| outcome.delays.permille(*permille) <= *us)
}

/// Returns whether requests may wait for `waited_us` until a time. If not, the layout cannot meet
/// the requirements later, either.
pub(crate) fn may_wait(waited_us: u64, until_us: u64, demand: &Demand, wanted: &Wanted) -> bool {
    let known_us = u128::from(demand.length_us.max(until_us).max(1));
    u128::from(waited_us) * DAY_US <= u128::from(wanted.throttled_us_per_day_max) * known_us
}

/// Returns the maximum MiB/s that may be provisioned beside these IOPS.
fn most_beside(ratio: Ratio, iops: u32) -> u32 {
    let most = u64::from(iops).saturating_mul(ratio.numerator) / ratio.denominator.max(1);
    saturating::<_, u32>(most)
}

/// Returns the least IOPS beside which these MiB/s may be provisioned.
fn least_beside(ratio: Ratio, mibps: u32) -> u32 {
    let least = u64::from(mibps).saturating_mul(ratio.denominator).div_ceil(ratio.numerator.max(1));
    saturating::<_, u32>(least)
}

/// Returns the least number of a range at which a layout meets the requirements, and the layout.
fn least_that_does(
    (from, to): (u32, u32),
    parts: &Parts,
    at: impl Fn(&Parts, u32) -> Tried,
) -> Option<(u32, Found)> {
    let Tried::Does(found) = at(parts, to) else { return None };
    let mut found = (to, *found);
    let mut low = from;
    let mut higher = None;
    while low < found.0 {
        let middle = low + (found.0 - low) / 2;
        match at(higher.as_ref().unwrap_or(parts), middle) {
            Tried::Does(there) => found = (middle, *there),
            Tried::DoesNot(parts) => {
                low = middle + 1;
                higher = parts.or(higher);
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
