//! The judgement of one volume.
//!
//! A volume gets less only if its trace shows that less suffices: it has enough days, few gaps and
//! short steps, and no limit held the volume up.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{CountingRule, Limit};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{IopsRule, ThroughputRule, VolumeSpec, VolumeType};

use super::alternatives::{self, Bound, Limits};
use super::risk::of_change;
use super::{Action, Evidence, Finding, Judged, Known, OnHdd, Policy, Risk, Volume, Waits, copy};
use crate::advice::{self, ABOVE_LIMIT_PERCENT, with_headroom};
use crate::demand::{Assume, Demand};
use crate::instances;
use crate::layout::Layout;
use crate::search;
use crate::spread::Share;
use crate::steady;
use crate::throttled::{EMPTY_PPM, more_used};
use crate::trace::{Interval, SourceLimits, Trace};
use crate::used::{Source, Used};

const DAY_MS: u64 = 86_400_000;
/// Percent of a limit from which a volume counts as at it.
const AT_LIMIT_PERCENT: u128 = 95;
/// The least time for which a limit delayed requests if a step says only that it did, in
/// milliseconds: EBS's checks are those of minutes.
const CHECK_MS: u64 = 60_000;

/// Returns the judgement of a volume.
#[must_use]
pub fn judge(policy: &Policy, volume: &Volume, evidence: Evidence) -> Judged {
    let mut judged = Judged::keep(volume);
    let Some(before) = alternatives::monthly(policy, &volume.spec) else {
        let list = policy.prices.list();
        let lacks = policy.prices.unpriced(&volume.spec).expect("invariant: it has no cost");
        judged.fail(format!(
            "the price list of {} of {} has no price of {lacks}: name one that has with --prices \
             FILE",
            list.region(),
            list.date(),
        ));
        return judged;
    };
    (judged.before, judged.after) = (before, before);
    if let Some(reason) = &volume.unsettled {
        judged.fail(reason.clone());
        return judged;
    }
    match evidence {
        Evidence::Broken(reason) if volume.attached != Some(false) => judged.fail(reason),
        Evidence::Broken(_) | Evidence::Absent if volume.attached == Some(false) => {
            unattached(policy, volume, &mut judged, None);
        }
        Evidence::Trace(trace) if volume.attached == Some(false) => {
            unattached(policy, volume, &mut judged, Some(&trace));
        }
        Evidence::Broken(_) | Evidence::Absent => {
            judged.reasons.push("no metrics: no limit is lowered".to_owned());
            same(policy, volume, &mut judged);
        }
        Evidence::Trace(mut trace) => {
            trace.source = SourceLimits::default();
            trace.source.fill(&policy.rules.pacing(&volume.spec), Share::ALL);
            by_trace(policy, volume, &trace, &mut judged);
        }
    }
    judged.reasons.extend(instances::not_carried(volume.instance(), &volume.spec));
    if judged.findings.is_empty() {
        judged.findings.push(Finding::Keep);
    }
    if judged.smaller.is_none() {
        judged.smaller = copy::smaller(policy, volume, &judged, None);
    }
    judged
}

/// Returns the judgement of a volume that cannot be judged, with the reason.
#[must_use]
pub fn not_judged(volume: &Volume, reason: String) -> Judged {
    let mut judged = Judged::keep(volume);
    judged.fail(reason);
    judged
}

impl Judged {
    fn keep(volume: &Volume) -> Self {
        Self {
            present: volume.spec,
            before: 0,
            after: 0,
            action: Action::Keep,
            findings: Vec::new(),
            risk: Risk::None,
            waits: None,
            known: None,
            never_used_iops: None,
            never_used_mibps: None,
            snapshot_at_most: None,
            on_hdd: None,
            smaller: None,
            reasons: Vec::new(),
        }
    }

    fn fail(&mut self, reason: String) {
        self.findings = vec![Finding::NotJudged];
        self.reasons = vec![reason];
    }

    /// Proposes a change.
    fn change(&mut self, policy: &Policy, to: VolumeSpec, trace: Option<&Trace>) {
        let Some(after) = alternatives::monthly(policy, &to) else { return };
        self.after = after;
        self.action = Action::Modify(to);
        self.waits = trace.map(|trace| Waits::of(policy, trace, &self.present, &to));
        let replayed = self.waits.as_ref().zip(trace);
        let (risk, reasons) = of_change(policy, &self.present, &to, replayed);
        self.risk = risk;
        self.reasons.extend(reasons);
        let from = self.present;
        if to.volume_type != from.volume_type {
            let is_renewal =
                (from.volume_type, to.volume_type) == (VolumeType::Gp2, VolumeType::Gp3);
            self.find(if is_renewal { Finding::Gp2ToGp3 } else { Finding::TypeChange });
        } else {
            if to.iops < from.iops {
                self.find(Finding::NeverUsedIops);
            }
            if to.throughput_mibps < from.throughput_mibps {
                self.find(Finding::NeverUsedThroughput);
            }
        }
    }

    fn find(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }
}

/// Judges a volume that is attached to no instance. Its cost afterwards is the most that the
/// snapshot costs which is made before it is deleted.
fn unattached(policy: &Policy, volume: &Volume, judged: &mut Judged, trace: Option<&Trace>) {
    judged.find(Finding::Unattached);
    judged.snapshot_at_most = snapshot_at_most(policy, volume);
    judged.action = Action::Delete;
    judged.after = judged.snapshot_at_most.unwrap_or(0);
    judged.risk = Risk::Low;
    judged.reasons.push(
        "it is attached to no instance; the list does not say since when. A snapshot keeps its \
         data, and costs by the bytes that it stores"
            .to_owned(),
    );
    if let Some(used) = earlier_snapshot(volume) {
        judged.reasons.push(format!(
            "its newest snapshot has {} GiB, and a further one shares what has not changed",
            used.bytes.div_ceil(GIB)
        ));
    }
    if judged.after >= judged.before {
        judged.reasons.push(
            "a full snapshot costs as much as the volume, or more: look how much of it is written"
                .to_owned(),
        );
    }
    let asked = |interval: &&Interval| interval.requests() > 0 || interval.bytes() > 0;
    if trace.is_some_and(|trace| trace.intervals.iter().any(|interval| asked(&interval))) {
        judged.risk = Risk::Medium;
        judged.reasons.push("its metrics have requests, so it was in use lately".to_owned());
    }
}

/// Returns the used space of a volume, if its newest snapshot says it.
fn earlier_snapshot(volume: &Volume) -> Option<Used> {
    volume.used.filter(|used| used.source == Source::Snapshot)
}

/// Returns the most that a snapshot of a volume costs a month: that of all its bytes, or of as many
/// as its newest snapshot has. `None` if the list has no price of snapshots.
fn snapshot_at_most(policy: &Policy, volume: &Volume) -> Option<u64> {
    let price = u128::from(policy.prices.list().snapshot()?.gib_month);
    let size = u64::from(volume.spec.size_gib) * GIB;
    let bytes = earlier_snapshot(volume).map_or(size, |used| used.bytes.min(size));
    u64::try_from((u128::from(bytes) * price).div_ceil(GIB.into())).ok()
}

/// Proposes the cheapest volume that never does less, for any requests.
fn same(policy: &Policy, volume: &Volume, judged: &mut Judged) {
    let limits = Limits::of(policy, &volume.spec);
    let found = alternatives::at_least(policy, volume, limits);
    let is_cheaper = |it: &VolumeSpec| alternatives::monthly(policy, it) < Some(judged.before);
    if let Some(to) = found.filter(is_cheaper) {
        judged.change(policy, to, None);
    }
}

fn by_trace(policy: &Policy, volume: &Volume, trace: &Trace, judged: &mut Judged) {
    let demand = Demand::of(trace, policy.assume);
    let at_limit = AtLimit::of(policy, &volume.spec, trace);
    let known = known(policy, volume, trace, &demand, &at_limit);
    judged.known = Some(known);
    if let Some(reason) = of_other_limits(policy, &volume.spec, trace) {
        judged.reasons.push(format!("{reason}; no limit is lowered"));
        same(policy, volume, judged);
        return;
    }
    if let Err(reason) = is_enough(policy, trace) {
        judged.reasons.push(format!("{reason}: no limit is lowered"));
        if trace.columns.requests.is_some() && at_limit.is_long(policy, trace) {
            throttled(policy, volume, trace, &at_limit, false, judged);
        } else {
            same(policy, volume, judged);
        }
        return;
    }
    if at_limit.is_long(policy, trace) {
        throttled(policy, volume, trace, &at_limit, true, judged);
        return;
    }
    if let Some(reason) = at_limit.hides_demand().or_else(|| at_instance(volume, trace)) {
        judged.reasons.push(format!("{reason}, so no limit is lowered"));
        same(policy, volume, judged);
        return;
    }
    if demand.spans.is_empty() {
        judged.find(Finding::Idle);
        judged.reasons.push(
            "it had no request: if it is not needed, detach it and delete it after a snapshot"
                .to_owned(),
        );
    }
    let demand = with_headroom(&demand, policy.headroom_percent);
    let space = alternatives::space(policy, &[]);
    let present = Layout::one(volume.spec);
    let (_, outcome) = search::replay(&space, &demand, &present);
    let bound = Bound::of(volume, &outcome, &demand);
    // A volume that never does less needs no replay.
    let mut found = alternatives::at_least(policy, volume, Limits::of(policy, &volume.spec));
    let cost = |spec: &VolumeSpec| alternatives::monthly(policy, spec).unwrap_or(u64::MAX);
    found = found.filter(|it| cost(it) < judged.before);
    let budget = found.as_ref().map_or(judged.before, cost);
    found = alternatives::cheapest(policy, volume, &demand, &bound, budget).or(found);
    never_used(policy, &known, judged);
    if let Some(to) = found {
        judged.change(policy, to, Some(trace));
    }
    judged.on_hdd = on_hdd(policy, volume, trace, (&demand, &bound), judged);
    judged.smaller = copy::smaller(policy, volume, judged, Some((&demand, &bound)));
}

/// Returns the cheapest volume of an HDD type that carries the demand month after month, if an SSD
/// stays one and it costs less than what is advised.
fn on_hdd(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    (demand, bound): (&Demand, &Bound),
    judged: &Judged,
) -> Option<OnHdd> {
    if !policy.types.is_empty() || !advice::is_ssd(volume.spec.volume_type) {
        return None;
    }
    let (_, before) = judged.advised();
    let types = vec![VolumeType::St1, VolumeType::Sc1];
    let policy = &Policy { types, ..policy.clone() };
    let spec = alternatives::cheapest(policy, volume, demand, bound, before)?;
    let space = alternatives::space(policy, &[]);
    let is_dry = steady::dry_after_s(&space, demand, &Layout::one(spec)).is_some();
    let after = alternatives::monthly(policy, &spec).filter(|_| !is_dry)?;
    Some(OnHdd { spec, before, after, small_permille: advice::small_permille(trace) })
}

/// Checks that a recording shows enough to conclude that less than a volume has suffices: it has
/// enough days, few gaps and short steps, and no limit held the volume up.
///
/// # Errors
/// Returns the reason why it does not.
pub fn shows_enough(policy: &Policy, volume: &Volume, trace: &Trace) -> Result<(), String> {
    let at_limit = AtLimit::of(policy, &volume.spec, trace);
    is_enough(policy, trace)?;
    if let Some(reason) = of_other_limits(policy, &volume.spec, trace) {
        return Err(reason);
    }
    at_limit.hides_demand().or_else(|| at_instance(volume, trace)).map_or(Ok(()), Err)
}

/// Returns why more may have been wanted than was recorded, if the requests of a volume stood at a
/// limit of its instance.
fn at_instance(volume: &Volume, trace: &Trace) -> Option<String> {
    instances::stood(std::iter::once(trace), volume.instance()?)
}

/// Checks that a trace shows enough to conclude that less suffices.
fn is_enough(policy: &Policy, trace: &Trace) -> Result<(), String> {
    advice::shows_enough(trace, policy.days_min, policy.gaps_percent_max)
}

fn known(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    demand: &Demand,
    at_limit: &AtLimit,
) -> Known {
    let counting = policy.rules.pacing(&volume.spec).counting;
    let peaks = alternatives::peaks(demand, counting);
    Known {
        known_ms: advice::known_ms(trace),
        gaps_ms: advice::gaps_ms(trace),
        resolution_ms: trace.resolution_ms(),
        at_limit_ms: at_limit.ms,
        used_bytes: trace.used_bytes_max(),
        peak_iops: peaks.iops.unwrap_or(0),
        peak_bytes_per_second: peaks.bytes.unwrap_or(0),
    }
}

/// Sets how much is provisioned above the peak, the headroom, and the minimum of the type.
fn never_used(policy: &Policy, known: &Known, judged: &mut Judged) {
    let spec = judged.present;
    let Some(rules) = policy.rules.of(spec.volume_type) else { return };
    let needed = |peak: u64| {
        let percent = u128::from(policy.headroom_percent) + 100;
        let needed = (u128::from(peak) * percent).div_ceil(100);
        saturating::<_, u32>(needed)
    };
    // The minimum of the type cannot be given back.
    if let (IopsRule::Provisioned { min, .. }, Some(iops)) = (rules.iops, spec.iops) {
        judged.never_used_iops = Some(iops.saturating_sub(needed(known.peak_iops).max(min)));
    }
    if let (ThroughputRule::Provisioned { min_mibps, .. }, Some(mibps)) =
        (rules.throughput, spec.throughput_mibps)
    {
        let peak = known.peak_bytes_per_second.div_ceil(MIB);
        judged.never_used_mibps = Some(mibps.saturating_sub(needed(peak).max(min_mibps)));
    }
}

/// Returns the reason why a recording is of other limits than a volume has now, if it is: for a
/// minute there were more I/Os or bytes than they allow, however requests were merged on their way.
fn of_other_limits(policy: &Policy, spec: &VolumeSpec, trace: &Trace) -> Option<String> {
    let limits = Limits::of(policy, spec);
    let counting = policy.rules.pacing(spec).counting;
    let is_above = |minute: &Amounts| {
        let least = [(limits.iops, minute.operations_min(counting)), (limits.bytes, minute.bytes)];
        least.into_iter().any(|(limit, amount)| {
            let most = limit.map(|limit| u128::from(limit) * u128::from(minute.ms));
            most.is_some_and(|most| amount * 100_000 > most * ABOVE_LIMIT_PERCENT)
        })
    };
    let mut above_ms = 0_u64;
    let mut minute = Amounts::default();
    for interval in &trace.intervals {
        // A second may have what an earlier one began, as after a pause of the client.
        minute.add(interval);
        if minute.ms >= CHECK_MS {
            above_ms += if is_above(&minute) { minute.ms } else { 0 };
            minute = Amounts::default();
        }
    }
    (above_ms > 0).then(|| {
        format!(
            "for {} s it had more I/Os or bytes than its limits allow now: they were recorded \
             before a change, or the list is older than they are",
            above_ms.div_ceil(1_000)
        )
    })
}

/// The requests of some steps of a recording.
#[derive(Default)]
struct Amounts {
    ms: u64,
    requests: u128,
    bytes: u128,
}

impl Amounts {
    fn add(&mut self, interval: &Interval) {
        self.ms = self.ms.saturating_add(interval.length_ms);
        self.requests += u128::from(interval.requests());
        self.bytes += u128::from(interval.bytes());
    }

    /// Returns the least I/Os that these requests count as, whatever their order and sizes. Only
    /// those that are large enough can be merged with others.
    fn operations_min(&self, counting: CountingRule) -> u128 {
        let merged_max = self.bytes / u128::from(counting.merge_bytes_min.max(1));
        let units = self.bytes / u128::from(counting.unit_bytes.max(1));
        self.requests.saturating_sub(merged_max).max(units)
    }
}

/// Returns the milliseconds in which a volume stood at its limits.
pub(super) fn at_limit_ms(policy: &Policy, spec: &VolumeSpec, trace: &Trace) -> u64 {
    AtLimit::of(policy, spec, trace).ms
}

/// The time in which a volume stood at its limits, so that more may have been wanted than was done.
#[derive(Default)]
struct AtLimit {
    ms: u64,
    /// The part of it that is certain: a check of a step counts as one minute, unless the step's
    /// amounts are at a limit.
    least_ms: u64,
    /// Whether the limit in IOPS was one of them, and the one in bytes.
    iops: bool,
    bytes: bool,
    /// Whether it was held up only for lack of credits.
    by_credits: bool,
    /// Whether it was held up with credits left, by the limits in which there are credits.
    despite_credits: bool,
    /// Time in which a limit of the instance delayed requests, in milliseconds.
    by_instance_ms: u64,
}

impl AtLimit {
    fn of(policy: &Policy, spec: &VolumeSpec, trace: &Trace) -> Self {
        let pacing = policy.rules.pacing(spec);
        let limits = Limits::of(policy, spec);
        let mut at = Self { by_credits: true, ..Self::default() };
        let spends = (has_credit(pacing.operations), has_credit(pacing.bytes));
        for interval in &trace.intervals {
            let had_none = interval.requests() == 0 && interval.bytes() == 0;
            let is_by_instance = interval.delayed.instance == Some(true);
            // A request may wait for all of an interval and end after it.
            if had_none && interval.is_censored != Some(true) && !is_by_instance {
                continue;
            }
            // Idle time is not exact enough for less than a second.
            let idle_ms = interval.idle_ms.unwrap_or(0).min(interval.length_ms);
            let active_ms = (interval.length_ms - idle_ms).next_multiple_of(1_000);
            let active_ms = active_ms.clamp(1_000.min(interval.length_ms), interval.length_ms);
            let reaches = |amount: u128, limit: Option<u64>| {
                let most = limit.map(|limit| u128::from(limit) * u128::from(active_ms));
                most.is_some_and(|most| amount * 100_000 >= most * AT_LIMIT_PERCENT)
            };
            let [operations, bytes] = trace.source.counted(interval.requests(), interval.bytes());
            let is_full = [reaches(operations, limits.iops), reaches(bytes, limits.bytes)];
            // The source's own statement goes before the estimate.
            let stated = match interval.is_censored {
                Some(false) => [Some(false); 2],
                _ => [interval.delayed.iops, interval.delayed.bytes],
            };
            let mut is_at = [0, 1].map(|which: usize| stated[which].unwrap_or(is_full[which]));
            let is_empty = (spends.0 || spends.1)
                && interval.balance_ppm.is_some_and(|balance_ppm| balance_ppm < EMPTY_PPM);
            if is_at == [false; 2] && !is_empty && interval.is_censored == Some(true) {
                is_at = more_used([operations, bytes], [limits.iops, limits.bytes]);
            }
            if is_by_instance {
                at.by_instance_ms = at.by_instance_ms.saturating_add(active_ms);
            }
            if is_at == [false; 2] && !is_empty {
                continue;
            }
            let is_filled = is_full != [false; 2] || is_empty;
            let least_ms = if is_filled { active_ms } else { active_ms.min(CHECK_MS) };
            at.ms = at.ms.saturating_add(active_ms);
            at.least_ms = at.least_ms.saturating_add(least_ms);
            let is_by_credits = is_empty && is_full == [false; 2];
            let by = if is_by_credits { spends } else { (is_at[0], is_at[1]) };
            (at.iops, at.bytes) = (at.iops || by.0, at.bytes || by.1);
            at.by_credits &= is_by_credits;
            let has_credits = interval.balance_ppm.is_some_and(|left| left >= EMPTY_PPM);
            at.despite_credits |= is_full != [false; 2] || has_credits && !is_by_credits;
        }
        at
    }

    /// Returns the reason why more was wanted than was recorded, if that is possible.
    fn hides_demand(&self) -> Option<String> {
        if self.ms > 0 {
            let seconds = self.ms.div_ceil(1_000);
            return Some(format!(
                "it stood at a limit for {seconds} s: more was wanted then than was recorded"
            ));
        }
        (self.by_instance_ms > 0).then(|| {
            format!(
                "a limit of its instance held requests back for {} s: another instance gives it \
                 more, and no change of the volume; more was wanted then than was recorded",
                self.by_instance_ms.div_ceil(1_000)
            )
        })
    }

    /// Returns whether the time is so long that the volume needs more.
    fn is_long(&self, policy: &Policy, trace: &Trace) -> bool {
        let known_ms = u128::from(trace.known_ms().max(DAY_MS));
        let a_day = u128::from(self.least_ms) * u128::from(DAY_MS) / known_ms;
        a_day > u128::from(policy.throttled_s_per_day) * 1_000
    }
}

/// Returns whether a limit has credits.
fn has_credit(limit: Option<Limit>) -> bool {
    limit.is_some_and(|limit| limit.credit.is_some())
}

/// Judges a volume that needs more: no less of anything, and the headroom more of the limits at
/// which it stood. If the trace shows enough, types that count otherwise, and volumes that only
/// lacked credits, are judged by what was done.
fn throttled(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    at: &AtLimit,
    is_enough: bool,
    judged: &mut Judged,
) {
    judged.find(Finding::Throttled);
    let seconds = at.ms.div_ceil(1_000);
    judged.reasons.push(format!(
        "it stood at a limit for {seconds} s: it needs at least what it did; judge it again after \
         the change"
    ));
    let mut found = vec![alternatives::at_least(policy, volume, raised(policy, volume, at))];
    if is_enough {
        found.push(counted_otherwise(policy, volume, trace, at));
        if at.by_credits && at.ms <= trace.known_ms() / 2 {
            found.push(as_used(policy, volume, trace, judged));
        }
    }
    let cost = |spec: &VolumeSpec| alternatives::monthly(policy, spec);
    match found.into_iter().flatten().filter(|to| *to != volume.spec).min_by_key(cost) {
        Some(to) => judged.change(policy, to, Some(trace)),
        None => {
            judged.reasons.push(
                "no change in place gives it more: a larger volume or a stripe does, which \
                 `evenkeel plan` finds"
                    .to_owned(),
            );
            let raised = raised(policy, volume, at).iops;
            let iops = raised.map(saturating::<_, u32>);
            let wanted = VolumeSpec { iops, ..volume.spec };
            judged.reasons.extend(instances::not_carried(volume.instance(), &wanted));
        }
    }
}

/// Returns the least growth of a volume, without a change of its type, that gives it the headroom
/// more of the limits at which it stood; `None` if it stood at none for long, or no size gives it.
#[must_use]
pub fn larger(policy: &Policy, volume: &Volume, trace: &Trace) -> Option<VolumeSpec> {
    let at = AtLimit::of(policy, &volume.spec, trace);
    let is_long = at.is_long(policy, trace);
    is_long.then(|| alternatives::larger(policy, volume, raised(policy, volume, &at))).flatten()
}

/// Returns the limits of a volume, with the headroom more of those that it stood at.
fn raised(policy: &Policy, volume: &Volume, at: &AtLimit) -> Limits {
    let pacing = policy.rules.pacing(&volume.spec);
    let raise = |limit: Option<u64>, is_at: bool, has_credit: bool| {
        let limit = limit?;
        // If the burst becomes the rate, credits do not run out again.
        let is_short = is_at && (!has_credit || at.despite_credits);
        let percent = if is_short { u64::from(policy.headroom_percent) } else { 0 };
        Some(limit.saturating_mul(percent + 100).div_ceil(100))
    };
    let limits = Limits::of(policy, &volume.spec);
    Limits {
        iops: raise(limits.iops, at.iops, has_credit(pacing.operations)),
        bytes: raise(limits.bytes, at.bytes, has_credit(pacing.bytes)),
    }
}

/// Returns the cheapest volume of the types that count otherwise whose limits carry all that was
/// recorded, as fast as it can have come.
fn counted_otherwise(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    at: &AtLimit,
) -> Option<VolumeSpec> {
    let own = policy.rules.pacing(&volume.spec).counting;
    let percent = if at.by_credits { 0 } else { policy.headroom_percent };
    let demand = with_headroom(&Demand::of(trace, Assume::Worst), percent);
    let peaks = |counting| alternatives::peaks(&demand, counting);
    alternatives::at_least_asked(policy, volume, |counting| counting != own, peaks)
}

/// Returns the cheapest volume that always has what was used in the busiest steps, with the
/// headroom, and more than the present one earns.
fn as_used(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    judged: &mut Judged,
) -> Option<VolumeSpec> {
    let pacing = policy.rules.pacing(&volume.spec);
    let demand = with_headroom(&Demand::of(trace, policy.assume), policy.headroom_percent);
    let earned = |limit: Option<Limit>| {
        let earned = limit.filter(|limit| limit.credit.is_some())?.sustained_per_second();
        Some(earned.saturating_mul(u64::from(policy.headroom_percent) + 100).div_ceil(100))
    };
    let used = alternatives::peaks(&demand, pacing.counting);
    let used = Limits {
        iops: used.iops.max(earned(pacing.operations)),
        bytes: used.bytes.max(earned(pacing.bytes)),
    };
    let found = alternatives::at_least_asked(
        policy,
        volume,
        |counting| counting == pacing.counting,
        |_| used,
    )?;
    judged.reasons.push(format!(
        "it used {} I/Os and {} MiB a second at most, with the headroom, and is taken to need no \
         more in the time without credits",
        used.iops.unwrap_or(0),
        used.bytes.unwrap_or(0).div_ceil(MIB),
    ));
    Some(found)
}

#[cfg(test)]
mod tests;
