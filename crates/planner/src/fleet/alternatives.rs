//! The volumes that a volume could become: by a change that ModifyVolume allows, and no worse.
//!
//! They have the same size, since no volume shrinks and none that grew can be changed back; only
//! [`larger`] returns one that is larger.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{CountingRule, Limit};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::{
    IopsRule, ThroughputRule, TypeRules, VolumeChange, VolumeSpec, VolumeType,
};

use super::{Policy, Volume};
use crate::advice;
use crate::bisect::{largest, least};
use crate::demand::{DAY_US, Demand};
use crate::fluid::Outcome;
use crate::instances;
use crate::layout::Layout;
use crate::prices::Prices;
use crate::search::{self, Space, Tolerance, Wanted};
use crate::spread::{Share, Spread};
use crate::steady;

/// The parts of requests, in thousandths, whose waiting must not get longer.
const PERMILLES: [u32; 3] = [500, 990, 999];

/// The limits of a volume: I/Os and bytes a second at most.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    /// I/Os a second, as long as there are credits.
    pub iops: Option<u64>,
    /// Bytes a second.
    pub bytes: Option<u64>,
}

impl Limits {
    /// Returns the limits of a volume.
    #[must_use]
    pub fn of(policy: &Policy, spec: &VolumeSpec) -> Self {
        let pacing = policy.rules.pacing(spec);
        let most = |limit: Option<Limit>| limit.map(|limit| limit.per_second);
        Self { iops: most(pacing.operations), bytes: most(pacing.bytes) }
    }
}

/// Returns the types that a volume may become, its own included.
pub fn types<'a>(policy: &'a Policy, volume: &'a Volume) -> impl Iterator<Item = VolumeType> {
    let present = volume.spec.volume_type;
    VolumeType::ALL.into_iter().filter(move |&volume_type| {
        let Some(rules) = policy.rules.of(volume_type) else { return false };
        let is_wanted = match policy.types.as_slice() {
            [] => advice::is_offered(Some(present), volume_type),
            types => types.contains(&volume_type),
        };
        is_wanted
            && (policy.less_durable || advice::is_as_durable(policy.rules, volume_type, present))
            && search::suits(rules, volume.boots, volume.spec.multi_attach)
    })
}

/// Returns the volume after a change, if ModifyVolume makes exactly it.
#[must_use]
pub fn modified(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec) -> Option<VolumeSpec> {
    let change = change(from, to);
    policy.rules.modify(from, &change).ok().filter(|after| after == to)
}

/// Returns whether ModifyVolume makes a volume exactly another one, all of which its instance
/// carries.
fn is_legal(policy: &Policy, volume: &Volume, to: &VolumeSpec) -> bool {
    modified(policy, &volume.spec, to).is_some()
        && instances::not_carried(volume.instance(), to).is_none()
}

/// Returns the change from one volume to another.
#[must_use]
pub fn change(from: &VolumeSpec, to: &VolumeSpec) -> VolumeChange {
    let asked = to.request();
    VolumeChange {
        volume_type: (to.volume_type != from.volume_type).then_some(to.volume_type),
        size_gib: (to.size_gib != from.size_gib).then_some(to.size_gib),
        iops: asked.iops,
        throughput_mibps: asked.throughput_mibps,
        multi_attach: None,
    }
}

/// Returns the monthly cost of a volume.
#[must_use]
pub fn monthly(policy: &Policy, spec: &VolumeSpec) -> Option<u64> {
    policy.prices.monthly(spec).map(|cost| cost.total())
}

/// Returns the cheapest change to a volume with at least these limits that never does less.
#[must_use]
pub fn at_least(policy: &Policy, volume: &Volume, limits: Limits) -> Option<VolumeSpec> {
    let present = &volume.spec;
    let mut best: Option<(u64, VolumeSpec)> = None;
    for volume_type in types(policy, volume) {
        let Some(spec) = least_with(policy, present, volume_type, limits) else { continue };
        let is_legal = spec == *present || is_legal(policy, volume, &spec);
        if !is_legal
            || !advice::never_less(policy.rules, &spec, present)
            || !has_always(policy, &spec, limits)
        {
            continue;
        }
        let Some(cost) = monthly(policy, &spec) else { continue };
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, spec));
        }
    }
    best.map(|(_, spec)| spec)
}

/// Returns the least growth of a volume that gives it at least these limits, and never does less;
/// the same size if that suffices. Types give more IOPS to larger volumes.
#[must_use]
pub fn larger(policy: &Policy, volume: &Volume, limits: Limits) -> Option<VolumeSpec> {
    let present = &volume.spec;
    let volume_type = present.volume_type;
    let size_gib_max = policy.rules.of(volume_type)?.size_gib_max;
    let carries = |size_gib: u32| {
        let sized = VolumeSpec { size_gib, ..*present };
        let spec = least_with(policy, &sized, volume_type, limits)?;
        let does = is_legal(policy, volume, &spec)
            && advice::never_less(policy.rules, &spec, present)
            && has_always(policy, &spec, limits);
        does.then_some(spec)
    };
    least((present.size_gib, size_gib_max), carries).map(|(_, spec)| spec)
}

/// Returns the cheapest change to a volume that has, with credits or without, the limits that
/// `asked` returns for its counting rule. Types whose rule `is_meant` refuses are left out.
#[must_use]
pub fn at_least_asked(
    policy: &Policy,
    volume: &Volume,
    is_meant: impl Fn(CountingRule) -> bool,
    asked: impl Fn(CountingRule) -> Limits,
) -> Option<VolumeSpec> {
    let present = &volume.spec;
    let of = |volume_type: VolumeType| {
        let counting = policy.rules.of(volume_type)?.counting;
        let limits = is_meant(counting).then(|| asked(counting))?;
        let spec = least_with(policy, present, volume_type, limits)?;
        let does = is_legal(policy, volume, &spec) && has_always(policy, &spec, limits);
        does.then_some((monthly(policy, &spec)?, spec))
    };
    let all = types(policy, volume).filter_map(of);
    all.min_by_key(|(cost, spec)| (*cost, spec.volume_type)).map(|(_, spec)| spec)
}

/// Returns whether a volume has at least these limits, with credits or without.
fn has_always(policy: &Policy, spec: &VolumeSpec, wanted: Limits) -> bool {
    let pacing = policy.rules.pacing(spec);
    let has = |limit: Option<Limit>, wanted: Option<u64>| {
        limit.is_none_or(|limit| Some(limit.sustained_per_second()) >= wanted)
    };
    has(pacing.operations, wanted.iops) && has(pacing.bytes, wanted.bytes)
}

/// Returns the least volume of a type, as large as the present one, with at least these limits.
pub(crate) fn least_with(
    policy: &Policy,
    present: &VolumeSpec,
    volume_type: VolumeType,
    limits: Limits,
) -> Option<VolumeSpec> {
    let rules = policy.rules.of(volume_type)?;
    let spec = |iops: Option<u32>, throughput_mibps: Option<u32>| {
        let size_gib = present.size_gib;
        let multi_attach = present.multi_attach;
        let mut spec = VolumeSpec { volume_type, size_gib, iops, throughput_mibps, multi_attach };
        if iops.is_none() {
            spec.iops = rules.iops.baseline(size_gib);
        }
        policy.rules.resolve(&spec.request()).ok()
    };
    let IopsRule::Provisioned { min, .. } = rules.iops else { return spec(None, None) };
    let most = rules.iops_max(present.size_gib)?;
    let iops = u32::try_from(limits.iops.unwrap_or(0)).ok()?.max(min);
    if let ThroughputRule::Provisioned { min_mibps, mibps_per_iops, .. } = rules.throughput {
        let mibps = u32::try_from(limits.bytes.unwrap_or(0).div_ceil(MIB)).ok()?.max(min_mibps);
        let beside = u64::from(mibps) * mibps_per_iops.denominator;
        let beside = u32::try_from(beside.div_ceil(mibps_per_iops.numerator.max(1))).ok()?;
        return spec(Some(iops.max(beside)), Some(mibps));
    }
    // Throughput comes with IOPS, and never falls with them.
    let has = |iops: u32| {
        let it = spec(Some(iops), None)?;
        (Limits::of(policy, &it).bytes >= limits.bytes).then_some(it)
    };
    least((iops, most), has).map(|(_, spec)| spec)
}

/// The waiting that must not get worse: how long, and for how much of the time, requests wait.
pub(super) struct Bound {
    wanted: Wanted,
    /// Whether nothing waits.
    is_still: bool,
}

impl Bound {
    /// Creates the bound of what happened on a volume.
    pub fn of(volume: &Volume, outcome: &Outcome, demand: &Demand) -> Self {
        let known_us = u128::from(demand.length_us.max(outcome.end_us).max(1));
        let a_day = u128::from(outcome.waited_us()) * DAY_US / known_us;
        let delay = |permille: u32| (permille, outcome.delays.permille(permille));
        let mut delays: Vec<(u32, u64)> = PERMILLES.map(delay).to_vec();
        delays.push((1_000, outcome.delays.most_us()));
        Self {
            wanted: Wanted {
                capacity_gib: volume.spec.size_gib.into(),
                throttled_us_per_day_max: saturating::<_, u64>(a_day),
                delays,
                boots: volume.boots,
                multi_attach: volume.spec.multi_attach,
                monthly_max: None,
                no_less_than: None,
            },
            is_still: outcome.waited_us() == 0,
        }
    }

    /// Returns the cheapest volume with this capacity that is no worse under a demand month after
    /// month.
    pub fn smaller(
        &self,
        policy: &Policy,
        types: &[VolumeType],
        demand: &Demand,
        capacity_gib: u64,
    ) -> Option<VolumeSpec> {
        let space = space(policy, types);
        let wanted = Wanted { capacity_gib, ..self.wanted.clone() };
        let found = search::cheapest(&space, demand, &wanted);
        let lasts = |layout: &Layout| steady::dry_after_s(&space, demand, layout).is_none();
        found.into_iter().find(|found| lasts(&found.layout)).map(|found| found.layout.each)
    }

    /// Returns whether a volume is no worse under a demand.
    pub fn allows(&self, policy: &Policy, demand: &Demand, spec: &VolumeSpec) -> bool {
        let space = space(policy, &[]);
        let (_, outcome) = search::replay(&space, demand, &Layout::one(*spec));
        search::does(&outcome, demand, &self.wanted)
    }
}

/// Returns a space of single volumes.
pub(crate) fn space(policy: &Policy, types: &[VolumeType]) -> Space {
    Space {
        rules: policy.rules,
        prices: Prices::List(policy.prices.clone()),
        tolerance: Tolerance::None,
        types: types.to_vec(),
        volumes_max: 1,
        spread: Spread::STRIPED,
        instances: vec![],
    }
}

/// Returns the cheapest change that is no worse under a demand, if it costs less than `budget`.
pub(super) fn cheapest(
    policy: &Policy,
    volume: &Volume,
    demand: &Demand,
    bound: &Bound,
    mut budget: u64,
) -> Option<VolumeSpec> {
    // Types are tried by their least cost, so that dear ones are skipped after a cheap one.
    let least = |volume_type| {
        let spec = least_with(policy, &volume.spec, volume_type, Limits::default())?;
        Some((monthly(policy, &spec)?, spec))
    };
    let mut all: Vec<(u64, VolumeSpec)> = types(policy, volume).filter_map(least).collect();
    all.sort_by_key(|(cost, spec)| (*cost, spec.volume_type));
    let mut best = None;
    for (cost, spec) in all {
        if cost >= budget {
            break;
        }
        let found = of_type(policy, volume, demand, bound, (cost, spec), budget);
        if let Some((cost, spec)) = found {
            (budget, best) = (cost, Some(spec));
        }
    }
    best
}

/// Returns the cheapest volume of a type for less than `budget`; `least` is the least one.
fn of_type(
    policy: &Policy,
    volume: &Volume,
    demand: &Demand,
    bound: &Bound,
    least: (u64, VolumeSpec),
    budget: u64,
) -> Option<(u64, VolumeSpec)> {
    let present = &volume.spec;
    let is_legal = |spec: &VolumeSpec| is_legal(policy, volume, spec);
    if bound.is_still {
        // Nothing waits exactly if no span asks for more than a limit, so no search is needed.
        let peaks = peaks(demand, policy.rules.of(least.1.volume_type)?.counting);
        let spec = least_with(policy, present, least.1.volume_type, peaks)?;
        let limits = Limits::of(policy, &spec);
        let cost = monthly(policy, &spec)?;
        let is_found = cost < budget
            && limits.iops.is_none_or(|limit| Some(limit) >= peaks.iops)
            && limits.bytes.is_none_or(|limit| Some(limit) >= peaks.bytes)
            && is_legal(&spec)
            && bound.allows(policy, demand, &spec);
        return is_found.then_some((cost, spec));
    }
    let (_, spec) = least;
    if bound.allows(policy, demand, &spec) {
        return is_legal(&spec).then_some(least);
    }
    let rules = policy.rules.of(spec.volume_type)?;
    let IopsRule::Provisioned { .. } = rules.iops else { return None };
    // If the most of each that the budget buys does not carry it, nothing below does.
    if !bound.allows(policy, demand, &affordable(policy, rules, spec, budget)?) {
        return None;
    }
    let space = space(policy, &[spec.volume_type]);
    let found = search::cheapest(&space, demand, &bound.wanted).into_iter().next()?;
    let cost = found.monthly.total();
    let spec = found.layout.each;
    // A larger one could not be changed back.
    (cost < budget && spec.size_gib == present.size_gib && is_legal(&spec)).then_some((cost, spec))
}

/// Returns the rates that a demand asks for in its busiest spans, counted by a rule.
#[must_use]
pub fn peaks(demand: &Demand, counting: CountingRule) -> Limits {
    let mut iops = 0;
    let mut bytes = 0;
    for part in demand.parts(counting, Share::ALL) {
        // Millionths a microsecond are units a second.
        let per_second = |amount: u128| {
            let rate = amount.div_ceil(u128::from(part.length_us.max(1)));
            saturating::<_, u64>(rate)
        };
        iops = per_second(part.operations).max(iops);
        bytes = per_second(part.bytes).max(bytes);
    }
    Limits { iops: Some(iops), bytes: Some(bytes) }
}

/// Returns a volume with the most IOPS, and the most throughput, that a budget buys if the other is
/// least. No volume that the budget buys does more.
fn affordable(
    policy: &Policy,
    rules: &TypeRules,
    least: VolumeSpec,
    budget: u64,
) -> Option<VolumeSpec> {
    let most = |from: u32, to: u32, with: &dyn Fn(u32) -> VolumeSpec| {
        let cost = |number| monthly(policy, &with(number)).filter(|cost| *cost < budget);
        largest((from, to.max(from)), cost).map_or(from, |(most, _)| most)
    };
    let iops_max = rules.iops_max(least.size_gib)?;
    let with_iops = |iops| VolumeSpec { iops: Some(iops), ..least };
    let mut all = with_iops(most(least.iops?, iops_max, &with_iops));
    if let ThroughputRule::Provisioned { max_mibps, .. } = rules.throughput {
        let with_mibps = |mibps| VolumeSpec { throughput_mibps: Some(mibps), ..least };
        all.throughput_mibps = Some(most(least.throughput_mibps?, max_mibps, &with_mibps));
    }
    Some(all)
}
