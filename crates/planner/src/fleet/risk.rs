//! The risk of a change: whether a volume gets less, and how long requests could wait for it.

use evenkeel_core::volume::{TypeRules, VolumeSpec};

use super::Policy;
use super::alternatives::{never_less, space};
use crate::answer::ms_per_day;
use crate::demand::{Assume, Demand};
use crate::layout::Layout;
use crate::search;
use crate::trace::Trace;

/// The most milliseconds of waiting a day that are a medium risk: a hundredth of the day.
const MEDIUM_MS_PER_DAY: u64 = 864_000;

/// The risk of an action.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Risk {
    /// Nothing gets less.
    None,
    /// Limits that were not used get less, or only a promise does.
    Low,
    /// Requests wait for at most a hundredth of the day, if they came as fast as they could.
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
            let (_, outcome) = search::replay(&space, demand, &Layout::one(*each));
            ms_per_day(outcome.waited_us(), demand.length_us.max(outcome.end_us))
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
    waits: Option<&Waits>,
) -> (Risk, Vec<String>) {
    let mut reasons = weaker(policy, from, to);
    let promise = if reasons.is_empty() { Risk::None } else { Risk::Low };
    if never_less(policy, to, from) {
        return (promise, reasons);
    }
    let Some(waits) = waits else { return (Risk::High, reasons) };
    let more_ms = waits.more_at_most_ms();
    let risk = match more_ms {
        0 => Risk::Low,
        1..=MEDIUM_MS_PER_DAY => Risk::Medium,
        _ => Risk::High,
    };
    if more_ms > 0 {
        reasons.push(format!(
            "if requests came as fast as it allowed, they wait {} s a day longer: a trace of \
             seconds tells whether they do",
            more_ms.div_ceil(1_000)
        ));
    }
    (risk, reasons)
}

/// Returns the promises that are weaker after a change.
fn weaker(policy: &Policy, from: &VolumeSpec, to: &VolumeSpec) -> Vec<String> {
    let rules = |spec: &VolumeSpec| policy.rules.of(spec.volume_type);
    let (Some(before), Some(after)) = (rules(from), rules(to)) else { return Vec::new() };
    let mut reasons = Vec::new();
    let durability = |rules: &TypeRules| rules.promise.durability.map(|it| it.min_ppm);
    if let Some(least) = durability(before)
        && durability(after).is_none_or(|now| now < least)
    {
        let percent = |ppm: u32| format!("{}.{:04} %", ppm / 10_000, ppm % 10_000);
        let now = durability(after).map_or("not published".to_owned(), percent);
        reasons.push(format!("durability of a year: {} becomes {now}", percent(least)));
    }
    let time = |rules: &TypeRules| rules.promise.consistency.map(|it| it.of_time_permille);
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
