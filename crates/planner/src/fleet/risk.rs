//! The risk of a change: whether a volume gets less, and how long requests could wait for it.

use evenkeel_core::volume::{TypeRules, VolumeSpec};

use super::Policy;
use super::alternatives::{Limits, peaks, space};
use super::recommend::at_limit_ms;
use crate::advice;
use crate::answer::ms_per_day;
use crate::demand::{Assume, Demand};
use crate::layout::Layout;
use crate::search;
use crate::trace::{Interval, Trace};

/// The most milliseconds of waiting a day that are a medium risk: a hundredth of the day.
const MEDIUM_MS_PER_DAY: u64 = 864_000;
/// The longest steps whose peaks are evidence for a lowered limit.
const PEAK_MS_MAX: u64 = 60_000;
/// Percent of the busiest rate that a lowered limit has if the steps are longer.
const LONG_STEPS_PERCENT: u128 = 200;

/// The risk of an action.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Risk {
    /// Nothing gets less.
    None,
    /// Limits that were not used get less, or only a promise does.
    Low,
    /// Requests wait for at most a hundredth of the day, if they came as fast as they could; or
    /// evidence shows that only bursts within a step of the metrics could wait longer.
    Medium,
    /// They may wait longer, or it is not known.
    High,
}

impl Risk {
    /// All.
    pub const ALL: [Self; 4] = [Self::None, Self::Low, Self::Medium, Self::High];

    /// Returns its word in listings.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// Milliseconds a day in which requests wait.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Waits {
    /// By the assumption, before the change.
    pub before_ms: u64,
    /// By the assumption, after the change.
    pub after_ms: u64,
    /// At most, before the change: if all requests came as fast as the volume allowed.
    pub before_at_most_ms: u64,
    /// At most, after the change.
    pub after_at_most_ms: u64,
}

impl Waits {
    /// Replays a trace before and after a change.
    pub(super) fn of(policy: &Policy, trace: &Trace, from: &VolumeSpec, to: &VolumeSpec) -> Self {
        let space = space(policy, &[]);
        let of = |demand: &Demand, each: &VolumeSpec| {
            let (waited_us, end_us) = search::waited(&space, demand, &Layout::one(*each));
            ms_per_day(waited_us, demand.length_us.max(end_us))
        };
        let both = |demand: &Demand| (of(demand, from), of(demand, to));
        let (before_ms, after_ms) = both(&Demand::of(trace, policy.assume));
        let (before_at_most_ms, after_at_most_ms) = match policy.assume {
            Assume::Worst => (before_ms, after_ms),
            _ => both(&Demand::of(trace, Assume::Worst)),
        };
        Self { before_ms, after_ms, before_at_most_ms, after_at_most_ms }
    }

    /// Returns how many milliseconds a day requests wait longer at most.
    #[must_use]
    pub const fn more_at_most_ms(&self) -> u64 {
        self.after_at_most_ms.saturating_sub(self.before_at_most_ms)
    }
}

/// Returns the risk of a change, and its reasons.
pub(super) fn of_change(
    policy: &Policy,
    from: &VolumeSpec,
    to: &VolumeSpec,
    replayed: Option<(&Waits, &Trace)>,
) -> (Risk, Vec<String>) {
    let mut reasons = weaker(policy, from, to);
    let promise = if reasons.is_empty() { Risk::None } else { Risk::Low };
    if advice::never_less(policy.rules, to, from) {
        return (promise, reasons);
    }
    let Some((waits, trace)) = replayed else { return (Risk::High, reasons) };
    let more_ms = waits.more_at_most_ms();
    let shown = (more_ms > MEDIUM_MS_PER_DAY).then(|| shown(policy, from, to, trace)).flatten();
    let risk = match more_ms {
        0 => Risk::Low,
        1..=MEDIUM_MS_PER_DAY => Risk::Medium,
        _ if shown.is_some() => Risk::Medium,
        _ => Risk::High,
    };
    reasons.extend(shown);
    if more_ms > 0 {
        reasons.push(format!(
            "if requests came as fast as it allowed, they wait {} s a day longer: a trace of \
             seconds tells whether they do",
            more_ms.div_ceil(1_000)
        ));
    }
    (risk, reasons)
}

/// Returns the evidence, in words, that a lowered limit is enough but for bursts within a step: no
/// limit ever delayed a request, and the steps are short or the busy time within them is known.
/// A recording that does not say whether a limit delayed requests shows it by seconds that stayed
/// below the limits.
fn shown(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec, trace: &Trace) -> Option<String> {
    let is_busy = |interval: &&Interval| interval.requests() > 0 || interval.bytes() > 0;
    let mut busy = trace.intervals.iter().filter(is_busy);
    let step_ms = trace.resolution_ms();
    let is_free = |interval: &Interval| {
        interval.is_censored == Some(false) && interval.delayed.instance != Some(true)
    };
    let never = if busy.clone().all(is_free) {
        "no limit ever delayed a request"
    } else if advice::has_seconds(trace) && at_limit_ms(policy, from, trace) == 0 {
        "no second came near a limit"
    } else {
        return None;
    };
    if step_ms <= PEAK_MS_MAX {
        let step_s = step_ms.div_ceil(1_000);
        return Some(format!(
            "{never}, and the peaks of {step_s} s with the headroom are within the new limits: \
             only a burst within {step_s} s could wait"
        ));
    }
    let has_busy_time = busy.all(|interval| interval.idle_ms.is_some());
    let is_wide = has_busy_time && has_margin(policy, from, to, trace);
    is_wide.then(|| {
        format!(
            "{never}, and each lowered limit is at least twice the rate of the busiest {} s, \
             without their idle time: only a shorter burst could wait",
            step_ms.div_ceil(1_000)
        )
    })
}

/// Returns whether each lowered limit is a multiple of the busiest rate.
fn has_margin(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec, trace: &Trace) -> bool {
    let counting = policy.rules.pacing(to).counting;
    let used = peaks(&Demand::of(trace, Assume::Active), counting);
    let before = Limits::of(policy, from);
    let after = Limits::of(policy, to);
    let is_wide = |before: Option<u64>, after: Option<u64>, used: Option<u64>| {
        let Some(after) = after else { return true };
        let used = used.unwrap_or(0);
        let is_lowered = before.is_none_or(|before| after < before);
        !is_lowered || u128::from(after) * 100 >= u128::from(used) * LONG_STEPS_PERCENT
    };
    is_wide(before.iops, after.iops, used.iops) && is_wide(before.bytes, after.bytes, used.bytes)
}

/// Returns the promises that are weaker after a change.
fn weaker(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec) -> Vec<String> {
    let rules = |spec: &VolumeSpec| policy.rules.of(spec.volume_type);
    let (Some(before), Some(after)) = (rules(from), rules(to)) else { return Vec::new() };
    let mut reasons = Vec::new();
    let durability =
        |rules: &TypeRules| rules.promise.durability.map(|durability| durability.min_ppm);
    if let Some(least) = durability(before)
        && durability(after).is_none_or(|now| now < least)
    {
        let percent = |ppm: u32| format!("{}.{:04} %", ppm / 10_000, ppm % 10_000);
        let now = durability(after).map_or("not published".to_owned(), percent);
        reasons.push(format!("durability of a year: {} becomes {now}", percent(least)));
    }
    let time = |rules: &TypeRules| {
        rules.promise.consistency.map(|consistency| consistency.of_time_permille)
    };
    if let Some(most) = time(before)
        && time(after).is_none_or(|now| now < most)
    {
        let percent = |permille: u32| format!("{}.{} %", permille / 10, permille % 10);
        let now = time(after).map_or("no part".to_owned(), percent);
        reasons.push(format!(
            "what is provisioned is promised for {now} of the year instead of {}",
            percent(most)
        ));
    }
    reasons
}
