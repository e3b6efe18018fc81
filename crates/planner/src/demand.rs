//! The demand on a layout: a trace, and an assumption about the times that it does not resolve.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::CountingRule;

use crate::fluid::{MICRO, Part};
use crate::spread::Share;
use crate::throttled::{Held, HeldBack};
use crate::trace::{Columns, Interval, SourceLimits, Trace};

const US_PER_MS: u64 = 1_000;
/// Requests that a busy device has at once, in thousandths, from which they came in a burst. A
/// client that waits for each answer leaves a fast device idle, and has one.
const BURST_QUEUED_MILLI: u128 = 2_000;
pub(crate) const HOUR_US: u64 = 3_600_000_000;
pub(crate) const DAY_US: u128 = 86_400_000_000;

/// The assumption about the times of requests within an interval. A trace has the number of an
/// interval's requests, and not their times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Assume {
    /// Evenly distributed: the least that a layout may have to serve at once.
    Even,
    /// Evenly distributed over the time in which the volume was not idle, if the trace has it. If
    /// that is the time of the device, only where its queue shows a burst.
    Active,
    /// One after another, as fast as the source's limits allowed by its counting rule; within a
    /// second, or while the device was busy, if its limits are not known. If all requests of an
    /// interval have one size, no other times would make them wait longer in all on a layout
    /// without credits.
    Worst,
}

/// Requests that arrive evenly within a span of time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// Start of the span, in microseconds since the trace's start, without its gaps.
    pub start_us: u64,
    /// Length of the span in microseconds.
    pub length_us: u64,
    /// Number of requests.
    pub requests: u64,
    /// Bytes of the requests.
    pub bytes: u64,
    /// Whether the source's limits held more requests back.
    pub held: Held,
}

/// All requests of a workload, by time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Demand {
    /// The spans with requests, by time. They do not overlap.
    pub spans: Vec<Span>,
    /// Total length without gaps, in microseconds.
    pub length_us: u64,
    /// The requests that the source's limits held back: more was wanted than `spans` has. `None` if
    /// there are none.
    pub held_back: Option<HeldBack>,
}

impl Demand {
    /// Returns the demand of a trace. Gaps are removed: no requests arrive and no credits are
    /// earned in them.
    #[must_use]
    pub fn of(trace: &Trace, assume: Assume) -> Self {
        let mut at_us = 0_u64;
        let mut spans = Vec::with_capacity(trace.intervals.len());
        for interval in &trace.intervals {
            let length_us = interval.length_ms.saturating_mul(US_PER_MS);
            if interval.requests() > 0 || interval.bytes() > 0 {
                let (requests, bytes) = at_limit(&trace.source, interval);
                spans.push(Span {
                    start_us: at_us,
                    length_us: within_us(trace, interval, assume).clamp(1, length_us.max(1)),
                    requests,
                    bytes,
                    held: Held::of(&trace.source, interval),
                });
            }
            at_us = at_us.saturating_add(length_us);
        }
        Self { spans, length_us: at_us, held_back: HeldBack::of(trace) }
    }

    /// Returns a demand of the same length, without requests.
    pub(crate) const fn clone_without_spans(&self) -> Self {
        Self { spans: Vec::new(), length_us: self.length_us, held_back: self.held_back }
    }

    /// Returns the parts of the volume with this share of all requests, as `counting` counts them.
    pub fn parts(&self, counting: CountingRule, share: Share) -> impl Iterator<Item = Part> {
        self.spans.iter().map(move |span| span.part(counting, share))
    }
}

impl Span {
    /// Returns the mean size of a request in bytes, rounded up; 0 if sizes are not known.
    #[must_use]
    pub fn mean_bytes(&self) -> u64 {
        mean_bytes(self.requests, self.bytes)
    }

    /// Returns the part of the span for the volume with this share.
    pub(crate) fn part(&self, counting: CountingRule, share: Share) -> Part {
        let (operations, bytes) = counted((self.requests, self.bytes), counting, share);
        Part {
            start_us: self.start_us,
            length_us: self.length_us,
            operations: share.of_most(operations * MICRO),
            bytes: share.of_most(bytes * MICRO),
        }
    }
}

fn mean_bytes(requests: u64, bytes: u64) -> u64 {
    bytes.div_ceil(requests.max(1))
}

/// Returns the counted I/Os and bytes of these requests, if each has the mean size and goes to
/// volumes with this share.
pub(crate) fn counted(
    (requests, bytes): (u64, u64),
    counting: CountingRule,
    share: Share,
) -> (u128, u128) {
    let unit_bytes = u64::from(counting.unit_bytes.max(1));
    // A request that is one piece of at most a unit is one I/O. Most are: nothing is divided.
    let is_one = bytes <= requests.saturating_mul(unit_bytes.min(share.whole_bytes()));
    let each = if is_one { 1 } else { each(mean_bytes(requests, bytes), unit_bytes, share) };
    let operations = u128::from(requests) * u128::from(each);
    let bytes = if counting.charge_whole_units {
        operations * u128::from(counting.unit_bytes)
    } else {
        bytes.into()
    };
    (operations, bytes)
}

/// Returns the counted I/Os of a request of `mean_bytes`.
fn each(mean_bytes: u64, unit_bytes: u64, share: Share) -> u64 {
    // Each piece counts by itself. One without bytes, or of unknown size, is at least one I/O.
    let pieces = share.pieces(mean_bytes);
    let piece_bytes = mean_bytes.div_ceil(pieces);
    pieces * piece_bytes.div_ceil(unit_bytes).max(1)
}

/// Returns the requests of an interval and their bytes, reduced to the source's limit if they
/// exceed it slightly: a late reading of counters adds a part of the next interval to this one. The
/// mean size does not grow.
fn at_limit(source: &SourceLimits, interval: &Interval) -> (u64, u64) {
    const LATE_PERCENT: u128 = 2;
    let requests = interval.requests();
    let bytes = interval.bytes();
    let length_us = u128::from(interval.length_ms) * u128::from(US_PER_MS);
    let mut least = (requests, bytes);
    for (place, (amount, limit)) in
        source.counted(requests, bytes).into_iter().zip(source.most()).enumerate()
    {
        let Some(limit) = limit else { continue };
        let allowed = u128::from(limit) * length_us / MICRO;
        if amount <= allowed || amount * 100 > allowed * (100 + LATE_PERCENT) {
            continue;
        }
        let part = |all: u64| u128::from(all) * allowed / amount;
        // For the limit that is reached, at most what it allows; for the other one, no less.
        let fewer = match place {
            0 => part(requests),
            _ => (u128::from(requests) * allowed).div_ceil(amount),
        };
        let of_bytes = part(bytes).min(u128::from(bytes) * fewer / u128::from(requests.max(1)));
        let whole = |all: u128| saturating::<_, u64>(all);
        let fewer =
            (whole(fewer), if requests == 0 { whole(part(bytes)) } else { whole(of_bytes) });
        least = if fewer.0 < least.0 || fewer.1 < least.1 { fewer } else { least };
    }
    least
}

/// Returns the time within which the requests of an interval arrive, in microseconds.
fn within_us(trace: &Trace, interval: &Interval, assume: Assume) -> u64 {
    let length_us = interval.length_ms.saturating_mul(US_PER_MS);
    match assume {
        Assume::Even => length_us,
        Assume::Active if is_burst(trace.columns, interval) => busy_us(interval),
        Assume::Active => length_us,
        Assume::Worst => {
            let at = |(amount, rate): (u128, Option<u64>)| {
                let us = (amount * MICRO).div_ceil(rate.filter(|rate| *rate > 0)?.into());
                Some(saturating::<_, u64>(us))
            };
            let counted = trace.source.counted(interval.requests(), interval.bytes());
            let times = counted.into_iter().zip(trace.source.most()).filter_map(at);
            let as_allowed = times.max().unwrap_or(1_000 * US_PER_MS);
            as_allowed.min(busy_us(interval))
        }
    }
}

/// Returns whether an interval's requests came in the time in which the volume was not idle, and
/// not evenly. If that is the time of the device, its queue says so by Little's law: the mean
/// number of requests at the device while it was busy.
fn is_burst(columns: Columns, interval: &Interval) -> bool {
    if !columns.idle_is_of_device {
        return true;
    }
    let queued =
        interval.queued_milli.map(|milli| u128::from(milli) * u128::from(interval.length_ms));
    let times_ns = [interval.read_ns, interval.write_ns].into_iter().flatten();
    let times_us = times_ns.map(|ns| u128::from(ns) / 1_000).reduce(|one, other| one + other);
    // Milliseconds of all requests together, in thousandths.
    let all = queued.or(times_us).unwrap_or_default();
    all * u128::from(US_PER_MS) >= BURST_QUEUED_MILLI * u128::from(busy_us(interval))
}

/// Returns the time in which the volume was not idle, in microseconds; the whole interval if that
/// is not known.
fn busy_us(interval: &Interval) -> u64 {
    let idle_ms = interval.idle_ms.unwrap_or(0).min(interval.length_ms);
    match (interval.length_ms - idle_ms).saturating_mul(US_PER_MS) {
        0 => interval.length_ms.saturating_mul(US_PER_MS),
        busy_us => busy_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spread::Spread;
    use crate::trace::{Clock, SourceLimits};

    fn minute(at: u64, reads: u64, kib: u64, idle_ms: Option<u64>) -> Interval {
        let start_ms = at * 60_000;
        let length_ms = 60_000;
        let read_bytes = reads * kib * 1_024;
        Interval { start_ms, length_ms, reads, read_bytes, idle_ms, ..Interval::default() }
    }

    fn trace(intervals: Vec<Interval>) -> Trace {
        let mut trace =
            Trace::new("vol-1", Clock::Unix, Columns::default(), intervals).expect("a trace");
        trace.source = SourceLimits { iops: Some(3_000), ..SourceLimits::default() };
        trace
    }

    #[test]
    fn the_time_within_a_minute_is_as_assumed() {
        let trace = trace(vec![minute(0, 6_000, 4, Some(57_000)), minute(9, 60, 4, None)]);
        let lengths = |assume| {
            let demand = Demand::of(&trace, assume);
            // The gap is removed.
            assert_eq!((demand.spans[1].start_us, demand.length_us), (60_000_000, 120_000_000));
            demand.spans.iter().map(|span| span.length_us).collect::<Vec<_>>()
        };
        assert_eq!(lengths(Assume::Even), [60_000_000, 60_000_000]);
        assert_eq!(lengths(Assume::Active), [3_000_000, 60_000_000]);
        assert_eq!(lengths(Assume::Worst), [2_000_000, 20_000]);
        // If the source's limits are not known, the idle time still is.
        let mut unknown = trace.clone();
        unknown.source = SourceLimits::default();
        unknown.intervals[0].idle_ms = Some(59_900);
        let worst = Demand::of(&unknown, Assume::Worst);
        assert_eq!(worst.spans[0].length_us, 100_000);
    }

    #[test]
    fn a_device_is_hot_only_where_its_queue_says_so() {
        let lengths = |assume, queued_milli, read_ns| {
            let mut busy = minute(0, 6_000, 4, Some(48_000));
            (busy.queued_milli, busy.read_ns) = (queued_milli, read_ns);
            let mut trace = trace(vec![busy]);
            trace.source = SourceLimits::default();
            trace.columns.idle_is_of_device = true;
            Demand::of(&trace, assume).spans[0].length_us / 1_000
        };
        let active = |queued_milli, read_ns| lengths(Assume::Active, queued_milli, read_ns);
        // A serial client: 6,000 requests of 2 ms in 12 s, 0.2 on average.
        assert_eq!(active(Some(200), None), 60_000);
        assert_eq!(active(None, Some(12_000_000_000)), 60_000);
        // Nothing is known of the queue.
        assert_eq!(active(None, None), 60_000);
        // Two at once while it was busy, on average.
        assert_eq!(active(Some(400), None), 12_000);
        assert_eq!(active(None, Some(24_000_000_000)), 12_000);
        assert_eq!(active(Some(399), Some(24_000_000_000)), 60_000, "the queue goes first");
        assert_eq!(lengths(Assume::Worst, Some(200), None), 1_000);
    }

    #[test]
    fn a_late_look_is_no_more_than_the_limit() {
        let requests = |reads| {
            let demand = Demand::of(&trace(vec![minute(0, reads, 4, None)]), Assume::Even);
            demand.spans[0].requests
        };
        // The source has 3,000 a second, 180,000 a minute.
        assert_eq!([179_000, 180_000, 183_600].map(requests), [179_000, 180_000, 180_000]);
        assert_eq!(requests(183_601), 183_601, "the limit must have been another");
    }

    #[test]
    fn requests_count_by_unit_and_by_stripe() {
        let demand = Demand::of(&trace(vec![minute(0, 100, 512, None)]), Assume::Even);
        let of = |share| {
            let part = demand.parts(CountingRule::SSD, share).next().expect("a part");
            (part.operations / MICRO, part.bytes / MICRO / 1_024)
        };
        let parts = |volumes, stripe_bytes| of(Spread::Striped { stripe_bytes }.of(volumes));
        assert_eq!(parts(1, 65_536), (200, 51_200));
        // Of 8 pieces, 4 volumes get 2 each, which merge.
        assert_eq!(parts(4, 65_536), (100, 12_800));
        assert_eq!(parts(2, 65_536), (100, 25_600));
        assert_eq!(parts(16, 65_536), (50, 3_200));
        // Two pieces of 384 KiB are two I/Os each, as are three of 342 KiB.
        let large = |kib, volumes| {
            let demand = Demand::of(&trace(vec![minute(0, 90, kib, None)]), Assume::Even);
            let share = Spread::STRIPED.of(volumes);
            demand.parts(CountingRule::SSD, share).next().expect("a part").operations / MICRO
        };
        assert_eq!([large(768, 1), large(768, 2), large(768, 3)], [270, 180, 90]);
        assert_eq!([large(1_024, 2), large(1_024, 3), large(1_024, 4)], [180, 180, 90]);
        // Half of the requests, as they are; never less than an even share.
        let hot = |volumes, percent| of(Spread::Hot { percent }.of(volumes));
        assert_eq!((hot(4, 50), hot(1, 50)), ((100, 25_600), (200, 51_200)));
        assert_eq!((hot(4, 10), hot(4, 100)), ((50, 12_800), (200, 51_200)));
    }
}
