//! What the recordings of a file system's volumes show, by the rules of `evenkeel plan`.
//!
//! [`fleet::judge`] judges each volume, as it does for `plan fleet`, so both always agree: with the
//! last 24 hours for more, and with all that was recorded, taken pessimistically, for less: in
//! steps longer than a second, requests are taken to come as fast as the limits allowed.

use evenkeel_core::instance::InstanceType;
use evenkeel_core::qos::pacing::{CreditLimit, Limit};
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::aws::checksum::{self, Linear};
use evenkeel_wire::aws::sigv4;
use serde::{Deserialize, Serialize};

use super::policy::Policy;
use super::spec_form;
use crate::advice::{self, with_headroom};
use crate::answer::ms_per_day;
use crate::demand::{Assume, Demand};
use crate::fleet::alternatives::{monthly, peaks, space};
use crate::fleet::{self, Action, Finding, Risk, Volume};
use crate::instances;
use crate::layout::Layout;
use crate::spread::Share;
use crate::trace::{Clock, Interval, SourceLimits, Trace};
use crate::{search, steady};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// The far end of a time that is longer, in seconds: a month.
const MONTH_S: u64 = 30 * 86_400;
/// The parts of the burns, in thousandths, that are the far and the near end of the time to empty.
const FAR_PERMILLE: u64 = 500;
const NEAR_PERMILLE: u64 = 990;
/// Judgements in a day while requests wait at a limit; otherwise there is one.
pub const JUDGEMENTS_A_DAY_MAX: u64 = 144;
/// The reason of a recording without the last 24 hours.
pub(super) const NOT_RECORDED: &str = "its last 24 h were not recorded";
/// Intervals of one part of the digest.
const DIGEST_INTERVALS: usize = 1_024;

/// The judgement of a file system's recordings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Evidence {
    /// When it was made, in milliseconds since 1970.
    pub made_ms: u64,
    /// SHA-256 of the recordings' normal form, in hexadecimal digits.
    pub digest: String,
    /// Per volume, the layouts that carry its recording.
    pub volumes: Vec<Judged>,
}

/// The layouts that carry the recording of one volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Judged {
    /// The volume.
    pub volume: String,
    /// The cheapest modification that carries the last 24 hours with the headroom, which may make
    /// the volume larger; `None` if the present volume does.
    pub up: Option<Proposal>,
    /// A cheaper one that carries the recording by the upper bound; `None` if there is none.
    pub down: Option<Proposal>,
    /// Seconds until the credits are empty at the burn of this hour in past weeks: the near and
    /// the far end, at most a month; `None` on types without credits, or if they never are.
    pub credits_empty_s: Option<(u64, u64)>,
    /// I/Os a second in the busiest span, with the headroom, taken pessimistically; `None` without
    /// requests in the recording.
    #[serde(default)]
    pub peak_iops: Option<u64>,
    /// Bytes a second in the busiest span, with the headroom, taken pessimistically.
    #[serde(default)]
    pub peak_bytes_per_s: Option<u64>,
    /// Why the recording does not show that less suffices, as `plan fleet` says it.
    pub reasons: Vec<String>,
}

/// A specification with what the replay shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Proposal {
    /// The specification.
    #[serde(with = "spec_form")]
    pub spec: VolumeSpec,
    /// Seconds a day in which requests wait on it, at most.
    pub exceeded_s_per_day_max: u32,
    /// Its monthly cost, in millionths of the currency.
    pub monthly_micro: u64,
}

/// Returns the evidence of the recordings of volumes, each with its present specification. `host`
/// is the type of their instance, if its limits are published.
#[must_use]
pub fn evidence(
    policy: &Policy,
    volumes: &[(String, VolumeSpec, Trace)],
    host: Option<&InstanceType>,
    now_ms: u64,
) -> Evidence {
    // The instance has one limit for all volumes.
    let traces = || volumes.iter().map(|(_, _, trace)| trace);
    let stood = host.and_then(|host| instances::stood(traces(), host));
    let judged = |(id, spec, trace): &(String, VolumeSpec, Trace)| {
        let volume = volume(policy, id, *spec);
        let mut trace = trace.clone();
        trace.source = SourceLimits::default();
        trace.source.fill(&policy.plan.rules.pacing(spec), Share::ALL);
        judge(policy, &volume, &trace, stood.as_ref(), now_ms)
    };
    Evidence {
        made_ms: now_ms,
        digest: digest(volumes),
        volumes: volumes.iter().map(judged).collect(),
    }
}

/// Returns a volume of a list with this specification.
fn volume(policy: &Policy, id: &str, spec: VolumeSpec) -> Volume {
    Volume {
        id: id.to_owned(),
        name: None,
        spec,
        attached: Some(true),
        attached_to: None,
        boots: false,
        unsettled: None,
        region: None,
        price_region: policy.plan.prices.list().region().to_owned(),
        zone: None,
        device: None,
        instance_type: None,
        group: None,
        used: None,
    }
}

fn judge(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    stood: Option<&String>,
    now_ms: u64,
) -> Judged {
    // Within a second, what was recorded is what was asked for; in longer steps, requests may have
    // come as fast as the limits allowed.
    let is_exact = advice::has_seconds(trace);
    let assume = if is_exact { Assume::Even } else { Assume::Worst };
    let cautious = fleet::Policy {
        assume,
        days_min: if policy.has_whole_days() { policy.rate.days } else { 0 },
        ..policy.plan.clone()
    };
    let demand = Demand::of(trace, assume);
    let demand = with_headroom(&demand, policy.plan.headroom_percent);
    let counting = policy.plan.rules.pacing(&volume.spec).counting;
    let has_amounts = trace.columns.requests.is_some() && trace.columns.bytes.is_some();
    let peak = has_amounts.then(|| peaks(&demand, counting));
    let enough = long_enough(policy, trace);
    let enough = enough.and_then(|()| fleet::shows_enough(&cautious, volume, trace));
    let enough = enough.and_then(|()| stood.cloned().map_or(Ok(()), Err));
    let mut reasons: Vec<String> = enough.err().into_iter().collect();
    let is_shown = reasons.is_empty();
    let down = is_shown.then(|| down(&cautious, volume, trace, &demand)).flatten();
    let up = match up(policy, volume, trace, now_ms) {
        Ok(up) => up,
        Err(reason) => {
            reasons.push(reason);
            None
        }
    };
    Judged {
        volume: volume.id.clone(),
        up,
        down,
        credits_empty_s: credits_empty_s(policy, volume, trace, now_ms),
        peak_iops: peak.and_then(|peak| peak.iops),
        peak_bytes_per_s: peak.and_then(|peak| peak.bytes),
        reasons,
    }
}

/// Checks that a recording has the shorter days of a trial; the plan's rules check whole days.
fn long_enough(policy: &Policy, trace: &Trace) -> Result<(), String> {
    let wanted_ms = u64::from(policy.rate.days).saturating_mul(policy.day_ms());
    let start_ms = trace.intervals.first().map_or(0, |interval| interval.start_ms);
    let known_ms = trace.intervals.last().map_or(0, Interval::end_ms).saturating_sub(start_ms);
    if policy.has_whole_days() || known_ms >= wanted_ms {
        return Ok(());
    }
    let known = evenkeel_sim::text::span(known_ms / 1_000);
    let wanted = evenkeel_sim::text::span(wanted_ms / 1_000);
    Err(format!("{known} of metrics, of {wanted} that are needed"))
}

/// Returns the cheaper volume that carries a recording: nothing waits longer than now, and credits
/// last month after month.
fn down(
    policy: &fleet::Policy,
    volume: &Volume,
    trace: &Trace,
    demand: &Demand,
) -> Option<Proposal> {
    let judged = fleet::judge(policy, volume, fleet::Evidence::Trace(Box::new(trace.clone())));
    let Action::Modify(to) = judged.action else { return None };
    // That a burst within a second could wait is no obstacle: the change is watched.
    let risk = if policy.assume == Assume::Even { Risk::Medium } else { Risk::Low };
    let is_shown = judged.after < judged.before && judged.is_executed(risk);
    let lasts = || {
        let space = space(policy, &[]);
        steady::dry_after_s(&space, demand, &Layout::one(to)).is_none()
    };
    (is_shown && lasts()).then(|| proposal(policy, to, demand))
}

/// Returns the cheapest modification that carries the last 24 hours, if the present volume does
/// not: of its type, of another one, or of its type with more GiB.
fn up(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    now_ms: u64,
) -> Result<Option<Proposal>, String> {
    let last = last_day(policy, trace, now_ms);
    if last.intervals.is_empty() {
        return Err(NOT_RECORDED.to_owned());
    }
    let mut rules = fleet::Policy {
        days_min: 0,
        throttled_s_per_day: throttled_s(policy),
        ..policy.plan.clone()
    };
    // Without types in the policy, all are offered.
    if !rules.types.is_empty() && !rules.types.contains(&volume.spec.volume_type) {
        rules.types.push(volume.spec.volume_type);
    }
    let judged = fleet::judge(&rules, volume, fleet::Evidence::Trace(Box::new(last.clone())));
    if !judged.findings.contains(&Finding::Throttled) {
        return Ok(None);
    }
    let in_place = match judged.action {
        Action::Modify(to) => Some(to),
        Action::Keep | Action::Delete => None,
    };
    let larger = fleet::larger(&rules, volume, &last);
    let cost = |spec: &VolumeSpec| monthly(&rules, spec).unwrap_or(u64::MAX);
    // The first of equal ones keeps its size.
    let cheapest = in_place.into_iter().chain(larger).min_by_key(cost);
    let demand = Demand::of(&last, Assume::Worst);
    Ok(cheapest.map(|to| proposal(&rules, to, &demand)))
}

/// Returns the seconds of a day in which a limit may delay requests; of a shorter day in a trial.
pub(super) fn throttled_s(policy: &Policy) -> u32 {
    let of_day = u64::from(policy.plan.throttled_s_per_day) * policy.day_ms() / DAY_MS;
    u32::try_from(of_day).expect("invariant: at most those of a whole day")
}

/// Returns a proposal with the waiting of its replay.
fn proposal(policy: &fleet::Policy, spec: VolumeSpec, demand: &Demand) -> Proposal {
    let space = space(policy, &[]);
    let (waited_us, end_us) = search::waited(&space, demand, &Layout::one(spec));
    let ms = ms_per_day(waited_us, demand.length_us.max(end_us));
    let seconds = ms.div_ceil(1_000).min(u32::MAX.into());
    Proposal {
        spec,
        exceeded_s_per_day_max: u32::try_from(seconds).expect("invariant: at most u32::MAX"),
        monthly_micro: monthly(policy, &spec).unwrap_or(0),
    }
}

/// Returns the last 24 hours of a trace: until now, or until its end if its clock is not known.
pub(super) fn last_day(policy: &Policy, trace: &Trace, now_ms: u64) -> Trace {
    let end_ms = match trace.clock {
        Clock::Unix => now_ms,
        Clock::Elapsed => trace.intervals.last().map_or(0, Interval::end_ms),
    };
    let from_ms = end_ms.saturating_sub(policy.day_ms());
    let mut last = trace.clone();
    last.intervals.retain(|interval| interval.start_ms >= from_ms && interval.start_ms < end_ms);
    last.notes.clear();
    last
}

/// Returns the time until credits are empty, as an interval: by the burn in this hour of past days
/// at its 99th percentile, and at its median.
fn credits_empty_s(
    policy: &Policy,
    volume: &Volume,
    trace: &Trace,
    now_ms: u64,
) -> Option<(u64, u64)> {
    let pacing = policy.plan.rules.pacing(&volume.spec);
    let balance_ppm = trace.intervals.iter().rev().find_map(|interval| interval.balance_ppm)?;
    let limits = [(pacing.operations, 0), (pacing.bytes, 1)];
    let ends = limits.into_iter().filter_map(|(limit, index)| {
        let credit = limit.as_ref().and_then(|limit: &Limit| limit.credit)?;
        let burns = burns(trace, credit, index, now_ms);
        let left = u128::from(credit.capacity) * u128::from(balance_ppm) / 1_000_000;
        let near = empty_s(left, quantile(&burns, NEAR_PERMILLE)?)?;
        let far = quantile(&burns, FAR_PERMILLE).and_then(|burn| empty_s(left, burn));
        Some((near.min(MONTH_S), far.unwrap_or(MONTH_S).min(MONTH_S)))
    });
    ends.min()
}

/// Returns the seconds until credits are empty at a burn a second, in thousandths; `None` if they
/// are not.
fn empty_s(left: u128, burn_milli: u128) -> Option<u64> {
    let seconds = (left * 1_000).checked_div(burn_milli)?;
    Some(u64::try_from(seconds.min(MONTH_S.into())).expect("invariant: at most a month"))
}

/// Returns how many credits a second, in thousandths, the intervals of this hour of the day spend
/// beyond those that they earn; sorted.
fn burns(trace: &Trace, credit: CreditLimit, index: usize, now_ms: u64) -> Vec<u128> {
    let hour = |ms: u64| ms / HOUR_MS % 24;
    let is_meant = |interval: &&Interval| {
        trace.clock == Clock::Elapsed || hour(interval.start_ms) == hour(now_ms)
    };
    let earned = u128::from(credit.refill_per_second) * 1_000;
    let intervals = trace.intervals.iter().filter(is_meant);
    let mut burns: Vec<u128> = intervals
        .map(|interval| {
            let counted = trace.source.counted(interval.requests(), interval.bytes());
            let spent = counted[index].saturating_mul(1_000_000) / u128::from(interval.length_ms);
            spent.saturating_sub(earned)
        })
        .collect();
    burns.sort_unstable();
    burns
}

/// Returns the value of a sorted list below which these thousandths lie.
fn quantile(sorted: &[u128], permille: u64) -> Option<u128> {
    let length = u64::try_from(sorted.len()).expect("invariant: at most the intervals of a trace");
    let rank = (length * permille).div_ceil(1_000).clamp(1, length.max(1));
    let index = usize::try_from(rank - 1).expect("invariant: below the length");
    sorted.get(index).copied()
}

/// Returns the SHA-256 of the recordings: of their names and specifications, and of the digests of
/// their intervals.
fn digest(volumes: &[(String, VolumeSpec, Trace)]) -> String {
    let mut whole = Linear::default();
    for (id, spec, trace) in volumes {
        whole.add(&checksum::digest(format!("{id} {spec:?} {:?}", trace.clock).as_bytes()));
        for part in trace.intervals.chunks(DIGEST_INTERVALS) {
            whole.add(&checksum::digest(format!("{part:?}").as_bytes()));
        }
    }
    sigv4::hex(&whole.digest())
}

#[cfg(test)]
mod tests;
