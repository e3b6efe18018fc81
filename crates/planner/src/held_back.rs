//! Intervals in which the source's limits delayed requests: more was wanted than the trace tells.
//!
//! What was recorded then is a lower bound, so no plan may conclude from it that less suffices.

use crate::trace::{Interval, Trace};

/// A limit counts as reached from so many hundredths of it on, if the source does not tell.
const REACHED_PERCENT: u128 = 99;
/// Fewer credits than these, in millionths of what can be saved, are none.
pub(crate) const EMPTY_PPM: u32 = 10_000;
/// Where the source tells that one was, it is one that was reached by so many.
const NEAR_PERCENT: u128 = 90;

/// What was held back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HeldBack {
    /// Intervals.
    pub intervals: u64,
    /// Their length in milliseconds.
    pub length_ms: u64,
    /// The beginning of the first.
    pub first_ms: u64,
    /// The source's limit in requests a second, if it was reached and is known.
    pub iops: Option<u64>,
    /// The same in bytes a second.
    pub bytes_per_second: Option<u64>,
}

impl HeldBack {
    /// What limits held back in a trace; `None` if nothing was, as far as it tells.
    #[must_use]
    pub fn of(trace: &Trace) -> Option<Self> {
        let mut all: Option<Self> = None;
        let limits = [trace.source.iops, trace.source.bytes_per_second];
        for interval in &trace.intervals {
            let is_near = |percent: u128| {
                let [iops, bytes] = limits;
                [(interval.requests(), iops), (interval.bytes(), bytes)]
                    .map(|(amount, limit)| is_reached(interval, amount, limit, percent))
            };
            // Without credits it stands at what it earns, which no limit here says.
            let is_empty = interval.balance_ppm.is_some_and(|ppm| ppm < EMPTY_PPM);
            let reached = match interval.is_censored {
                _ if is_empty => [false, false],
                Some(false) => continue,
                Some(true) => match is_near(NEAR_PERCENT) {
                    // For a part of the interval: it was the one of which more was used.
                    [false, false] => more_used(interval, limits),
                    near => near,
                },
                None => is_near(REACHED_PERCENT),
            };
            if reached == [false, false] && !is_empty {
                continue;
            }
            let all = all.get_or_insert(Self { first_ms: interval.start_ms, ..Self::default() });
            all.intervals += 1;
            all.length_ms = all.length_ms.saturating_add(interval.length_ms);
            all.iops = all.iops.or(limits[0].filter(|_| reached[0]));
            all.bytes_per_second = all.bytes_per_second.or(limits[1].filter(|_| reached[1]));
        }
        all
    }
}

/// Whether an amount is so many hundredths of what a limit allows.
fn is_reached(interval: &Interval, amount: u64, limit: Option<u64>, percent: u128) -> bool {
    let Some(limit) = limit.filter(|limit| *limit > 0) else { return false };
    let allowed = u128::from(limit) * u128::from(interval.length_ms) * percent;
    u128::from(amount) * 1_000 * 100 >= allowed
}

/// The limit of which more is used: requests, or bytes.
fn more_used(interval: &Interval, [iops, bytes]: [Option<u64>; 2]) -> [bool; 2] {
    let product = |amount: u64, limit: u64| u128::from(amount) * u128::from(limit);
    match (iops, bytes) {
        (Some(iops), Some(bytes)) => {
            let is_iops = product(interval.requests(), bytes) >= product(interval.bytes(), iops);
            [is_iops, !is_iops]
        }
        (_, None) => [true, false],
        (None, _) => [false, true],
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
        trace.source = SourceLimits { iops: Some(3_000), bytes_per_second, capacity: None };
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
        // Without credits it is held back, whatever it is asked for.
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
