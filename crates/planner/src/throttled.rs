//! Intervals in which limits of the source delayed requests: the demand was higher than the trace
//! shows.
//!
//! The recorded amounts are a lower bound then, so no plan may conclude that less suffices. Limits
//! apply to the source's counted I/Os: a request of 1 MiB is four I/Os for most types.

use evenkeel_core::qos::pacing::CountingRule;

use crate::trace::{Interval, SourceLimits, Trace};

/// Use of a limit, in percent, from which it counts as reached if the source does not state it.
const REACHED_PERCENT: u128 = 99;
/// Credits below which there are practically none, in millionths of the maximum.
pub(crate) const EMPTY_PPM: u32 = 10_000;
/// Use of a limit, in percent, from which it counts as the reached one if the source states that
/// one was reached, or that its credits are spent.
const NEAR_PERCENT: u128 = 90;

/// Whether the source held back more than an interval shows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Held {
    /// It did not, as far as the trace shows.
    #[default]
    No,
    /// It was at its maximum rate.
    AtMost,
    /// Its credits were spent: it was at the rate that it earns.
    AtEarned,
}

/// The intervals that limits of the source held back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldBack {
    /// Number of intervals.
    pub intervals: u64,
    /// Their length in milliseconds.
    pub length_ms: u64,
    /// Start of the first one, in milliseconds by the trace's clock.
    pub first_ms: u64,
    /// The source's limit in counted I/Os per second, if it was reached and is known.
    pub iops: Option<u64>,
    /// The source's limit in counted bytes per second, if it was reached and is known.
    pub bytes_per_second: Option<u64>,
    /// The counted I/Os per second that it earns, if it was at this rate and it is known.
    pub earned_iops: Option<u64>,
    /// The counted bytes per second that it earns, if it was at this rate and it is known.
    pub earned_bytes_per_second: Option<u64>,
    /// Its counting rule, if it is known.
    pub counting: Option<CountingRule>,
}

/// The limits that held an interval back: in I/Os, and in bytes.
struct Reached {
    held: Held,
    /// The rate per second of each limit that was reached, if it is known.
    limits: [Option<u64>; 2],
    /// Whether each of them is the earned rate.
    are_earned: [bool; 2],
}

impl HeldBack {
    /// Returns the intervals that limits held back in a trace; `None` if there are none, as far as
    /// the trace shows.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let counting = trace.source.counting.map(|counting| counting.rule);
        let mut all: Option<Self> = None;
        for interval in &trace.intervals {
            let Some(reached) = Reached::of(&trace.source, interval) else { continue };
            let first = Self { first_ms: interval.start_ms, counting, ..Self::default() };
            let all = all.get_or_insert(first);
            all.intervals += 1;
            all.length_ms = all.length_ms.saturating_add(interval.length_ms);
            let [iops, bytes] = reached.limits;
            let [iops_are_earned, bytes_are_earned] = reached.are_earned;
            let of_iops = if iops_are_earned { &mut all.earned_iops } else { &mut all.iops };
            *of_iops = of_iops.or(iops);
            let of_bytes = if bytes_are_earned {
                &mut all.earned_bytes_per_second
            } else {
                &mut all.bytes_per_second
            };
            *of_bytes = of_bytes.or(bytes);
        }
        all
    }
}

impl Held {
    /// Returns whether the source held an interval back.
    #[must_use]
    pub fn of(source: &SourceLimits, interval: &Interval) -> Self {
        Reached::of(source, interval).map_or(Self::No, |reached| reached.held)
    }
}

impl Reached {
    fn of(source: &SourceLimits, interval: &Interval) -> Option<Self> {
        let is_empty = interval.balance_ppm.is_some_and(|ppm| ppm < EMPTY_PPM);
        // A limit of the instance hides demand as one of the volume does.
        let is_censored = match interval.delayed.instance {
            Some(true) => Some(true),
            _ => interval.is_censored,
        };
        if is_censored == Some(false) && !is_empty {
            return None;
        }
        let (most, mut limits, mut are_earned) = (source.most(), source.most(), [false; 2]);
        if is_empty {
            // A limit without credits of its own is the same as before.
            are_earned = source.earned().map(|earned| earned.is_some());
            limits = [source.earned_iops.or(most[0]), source.earned_bytes_per_second.or(most[1])];
        }
        let amounts = source.counted(interval.requests(), interval.bytes());
        let percent = match is_censored {
            None if !is_empty => REACHED_PERCENT,
            _ => NEAR_PERCENT,
        };
        let is_at = |at: usize| is_reached(interval.length_ms, amounts[at], limits[at], percent);
        let reached = match [is_at(0), is_at(1)] {
            // The limit was reached in a part of the interval: it is the one of which more was
            // used.
            [false, false] if is_censored == Some(true) => more_used(amounts, limits),
            // Requests are held back, but the limit is unknown.
            [false, false] if is_empty && are_earned == [false; 2] => [false; 2],
            [false, false] => return None,
            reached => reached,
        };
        let of = |at: usize| limits[at].filter(|_| reached[at]);
        let held = if is_empty { Held::AtEarned } else { Held::AtMost };
        Some(Self { held, limits: [of(0), of(1)], are_earned })
    }
}

/// Returns whether an amount is at least `percent` percent of a limit.
fn is_reached(length_ms: u64, amount: u128, limit: Option<u64>, percent: u128) -> bool {
    let Some(limit) = limit.filter(|limit| *limit > 0) else { return false };
    let allowed = u128::from(limit) * u128::from(length_ms) * percent;
    amount * 1_000 * 100 >= allowed
}

/// Returns which limit is used more: I/Os, or bytes.
pub(crate) fn more_used([operations, amount]: [u128; 2], limits: [Option<u64>; 2]) -> [bool; 2] {
    match limits {
        [Some(iops), Some(bytes)] => {
            let is_iops = operations * u128::from(bytes) >= amount * u128::from(iops);
            [is_iops, !is_iops]
        }
        [_, None] => [true, false],
        [None, _] => [false, true],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Clock, Columns, SourceLimits};

    fn trace(intervals: &[(u64, Option<bool>)]) -> Trace {
        let second = |(at, (reads, is_censored)): (u64, &(u64, Option<bool>))| Interval {
            start_ms: at * 1_000,
            length_ms: 1_000,
            reads: *reads,
            read_bytes: reads * 4_096,
            is_censored: *is_censored,
            ..Interval::default()
        };
        let intervals = (0..).zip(intervals).map(second).collect();
        let mut trace = Trace::new("v", Clock::Unix, Columns::default(), intervals).unwrap();
        let bytes_per_second = Some(125 << 20);
        trace.source =
            SourceLimits { iops: Some(3_000), bytes_per_second, ..SourceLimits::default() };
        trace
    }

    #[test]
    fn what_the_source_tells_goes_before_what_its_limits_suggest() {
        let all = trace(&[(100, None), (2_969, None), (3_000, Some(false)), (2_700, Some(false))]);
        assert_eq!(HeldBack::of(&all), None);
        let held = HeldBack::of(&trace(&[(100, None), (2_970, None), (3_000, None)])).unwrap();
        assert_eq!((held.intervals, held.length_ms, held.first_ms), (2, 2_000, 1_000));
        assert_eq!((held.iops, held.bytes_per_second), (Some(3_000), None));
        // A burst within the interval: 500 of 3,000 are more than 2 of 125 MiB.
        let held = HeldBack::of(&trace(&[(500, Some(true))])).unwrap();
        assert_eq!((held.iops, held.bytes_per_second), (Some(3_000), None));
        // Without credits it is held back, whatever the demand is.
        let mut empty = trace(&[(300, None), (300, Some(false))]);
        empty.intervals[1].balance_ppm = Some(0);
        let held = HeldBack::of(&empty).unwrap();
        assert_eq!((held.intervals, held.first_ms, held.iops), (1, 1_000, None));
        let mut unknown = trace(&[(500, Some(true))]);
        unknown.source = SourceLimits::default();
        let held = HeldBack::of(&unknown).unwrap();
        assert_eq!((held.intervals, held.iops), (1, None));
    }
}
