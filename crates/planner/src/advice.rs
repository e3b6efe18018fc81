//! The rules by which layouts are proposed, the same for one volume and for a fleet: which types a
//! volume may become, the headroom over what was recorded, and the least evidence.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{Limit, Pacing};
use evenkeel_core::volume::{Rules, TypeRules, VolumeSpec, VolumeType};

use crate::demand::{Assume, Demand, Span};
use crate::trace::{Interval, Trace};

/// Percent that a layout must carry beyond what was recorded.
pub const HEADROOM_PERCENT: u32 = 20;
/// Days that must be recorded to conclude that less suffices, or to name a price a month.
pub const DAYS_MIN: u32 = 7;
/// Percent of the time of a recording that may be gaps to conclude that less suffices.
pub const GAPS_PERCENT_MAX: u32 = 20;
/// Percent of a limit above which an amount was not recorded under it.
pub(crate) const ABOVE_LIMIT_PERCENT: u128 = 110;
/// The longest steps of a recording that shows enough, in milliseconds: a mean of an hour hides a
/// short batch.
pub(crate) const STEP_MS_MAX: u64 = 300_000;
/// Requests of fewer bytes are small: Linux reads ahead this much of a sequential stream.
const SMALL_BYTES: u64 = 128 << 10;
const DAY_MS: u64 = 86_400_000;

/// Returns whether a volume may become one of a type without a request for it. What answers in
/// single milliseconds stays so, and nothing becomes `standard`. `present` is `None` for a workload
/// without a volume.
#[must_use]
pub fn is_offered(present: Option<VolumeType>, other: VolumeType) -> bool {
    if present == Some(other) {
        return true;
    }
    let stays_ssd = present.is_none_or(is_ssd);
    other != VolumeType::Standard && (is_ssd(other) || !stays_ssd)
}

/// Returns whether a type answers in single milliseconds.
pub(crate) const fn is_ssd(volume_type: VolumeType) -> bool {
    matches!(volume_type, VolumeType::Gp2 | VolumeType::Gp3 | VolumeType::Io1 | VolumeType::Io2)
}

/// Returns whether the published durability of a type is no less than that of another.
#[must_use]
pub fn is_as_durable(rules: &Rules, other: VolumeType, than: VolumeType) -> bool {
    let range = |rules: &TypeRules| {
        rules.promise.durability.map(|durability| (durability.min_ppm, durability.max_ppm))
    };
    match (rules.of(other).and_then(range), rules.of(than).and_then(range)) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some((min, max)), Some((than_min, than_max))) => min >= than_min && max >= than_max,
    }
}

/// Returns a demand with more requests and bytes in each span.
#[must_use]
pub fn with_headroom(demand: &Demand, percent: u32) -> Demand {
    let more = |amount: u64| {
        let all = u128::from(amount) * (u128::from(percent) + 100);
        saturating::<_, u64>(all.div_ceil(100))
    };
    let span = |it: &Span| Span { requests: more(it.requests), bytes: more(it.bytes), ..*it };
    let spans = demand.spans.iter().map(span).collect();
    Demand { spans, length_us: demand.length_us, held_back: demand.held_back }
}

/// Returns the milliseconds of a trace that are known in full. Time that is known in part proves
/// use, and does not prove that there was no more.
#[must_use]
pub fn known_ms(trace: &Trace) -> u64 {
    let partial_ms: u64 = trace.partial().map(|interval| interval.length_ms).sum();
    trace.known_ms().saturating_sub(partial_ms)
}

/// Returns how much is missing if fewer than `days_min` days are known.
#[must_use]
pub fn too_short(known_ms: u64, days_min: u32) -> Option<String> {
    let is_short = known_ms < u64::from(days_min) * DAY_MS;
    let known = evenkeel_sim::text::span(known_ms / 1_000);
    is_short.then(|| format!("{known} of metrics, of {days_min} days that are needed"))
}

/// Returns the milliseconds from the first interval of a trace to its last that are not known in
/// full.
#[must_use]
pub fn gaps_ms(trace: &Trace) -> u64 {
    let start_ms = trace.intervals.first().map_or(0, |first| first.start_ms);
    let end_ms = trace.intervals.last().map_or(0, Interval::end_ms);
    end_ms.saturating_sub(start_ms).saturating_sub(known_ms(trace))
}

/// Checks that a recording shows enough to conclude that less than a volume has suffices: it has
/// requests and bytes, `days_min` days, few gaps, and short steps.
///
/// # Errors
/// Returns the reason why it does not.
pub fn shows_enough(trace: &Trace, days_min: u32, gaps_percent_max: u32) -> Result<(), String> {
    for (kind, what) in [(trace.columns.requests, "requests"), (trace.columns.bytes, "bytes")] {
        if kind.is_none() {
            return Err(format!("its metrics have no {what}"));
        }
    }
    let known_ms = known_ms(trace);
    if let Some(missing) = too_short(known_ms, days_min) {
        return Err(missing);
    }
    let gaps_ms = gaps_ms(trace);
    let length_ms = known_ms.saturating_add(gaps_ms);
    let gaps_percent = u128::from(gaps_ms) * 100 / u128::from(length_ms.max(1));
    if gaps_percent > gaps_percent_max.into() {
        return Err(format!(
            "{gaps_percent} % of its metrics are gaps, of at most {gaps_percent_max} %"
        ));
    }
    let resolution_ms = trace.resolution_ms();
    if resolution_ms > STEP_MS_MAX {
        let found = resolution_ms / 1_000;
        let most = STEP_MS_MAX / 1_000;
        return Err(format!("its metrics are in steps of {found} s, of at most {most} s"));
    }
    Ok(())
}

/// Returns whether a volume never does less than another, for any requests.
#[must_use]
pub fn never_less(rules: &Rules, spec: &VolumeSpec, than: &VolumeSpec) -> bool {
    let [now, before]: [Pacing; 2] = [spec, than].map(|spec| rules.pacing(spec));
    let is_no_less = |now: Option<Limit>, before: Option<Limit>| match (now, before) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(now), Some(before)) => {
            // A lower baseline may save more credits, so both must be no less.
            let credits = |limit: Limit| limit.credit.map_or(u64::MAX, |credit| credit.capacity);
            now.per_second >= before.per_second
                && now.sustained_per_second() >= before.sustained_per_second()
                && (now.sustained_per_second() >= now.per_second || credits(now) >= credits(before))
        }
    };
    now.counting == before.counting
        && is_no_less(now.operations, before.operations)
        && is_no_less(now.bytes, before.bytes)
}

/// Returns how requests are taken to lie within an interval: what was recorded is what was asked
/// for, if the steps are a second or less.
#[must_use]
pub fn assume(trace: &Trace) -> Assume {
    if has_seconds(trace) { Assume::Even } else { Assume::Active }
}

/// Returns whether the steps of a trace are a second or less, to the nearest second: reports are
/// some milliseconds late.
#[must_use]
pub fn has_seconds(trace: &Trace) -> bool {
    trace.usual_step_ms() < 1_500
}

/// Returns how many of a thousand requests are smaller than 128 KiB, by their sizes if the trace
/// has them, and otherwise by the mean size of each interval.
#[must_use]
pub fn small_permille(trace: &Trace) -> u64 {
    let mut small = 0;
    let mut all = 0;
    let mut add = |bytes: u64, requests: u64| {
        all += u128::from(requests);
        small += u128::from(if bytes < SMALL_BYTES { requests } else { 0 });
    };
    match &trace.sizes {
        Some(sizes) => {
            for (bytes, requests) in sizes.reads.iter().chain(&sizes.writes) {
                add((*bytes).into(), *requests);
            }
        }
        None => {
            for interval in &trace.intervals {
                let requests = interval.requests();
                add(interval.bytes() / requests.max(1), requests);
            }
        }
    }
    u64::try_from(small * 1_000 / all.max(1)).expect("invariant: at most 1,000")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::minutes;
    use crate::trace::Sizes;
    use evenkeel_core::volume::VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};

    #[test]
    fn ssd_types_stay_ssd_types_and_nothing_becomes_standard() {
        let offered = |present: Option<VolumeType>| -> Vec<VolumeType> {
            VolumeType::ALL.into_iter().filter(|it| is_offered(present, *it)).collect()
        };
        assert_eq!(offered(None), [Gp2, Gp3, Io1, Io2]);
        assert_eq!(offered(Some(Io2)), [Gp2, Gp3, Io1, Io2]);
        assert_eq!(offered(Some(St1)), [St1, Sc1, Gp2, Gp3, Io1, Io2]);
        assert_eq!(offered(Some(Standard)), VolumeType::ALL);
        let rules = Rules::newest();
        assert!(is_as_durable(rules, Io2, Gp3) && !is_as_durable(rules, Gp3, Io2));
    }

    #[test]
    fn a_short_trace_says_how_much_is_missing() {
        assert_eq!(too_short(7 * DAY_MS, 7), None);
        assert_eq!(too_short(0, 0), None);
        let words = too_short(26 * 60_000, 7);
        assert_eq!(words.as_deref(), Some("26 min of metrics, of 7 days that are needed"));
    }

    #[test]
    fn seconds_are_what_was_asked_for() {
        let mut trace = minutes(&[60, 60, 60]);
        assert_eq!(assume(&trace), Assume::Active);
        trace.intervals[1].length_ms = 1_001;
        assert_eq!(assume(&trace), Assume::Active);
        trace.intervals[2].length_ms = 900;
        assert_eq!(assume(&trace), Assume::Even);
    }

    #[test]
    fn small_requests_are_counted_by_size_or_by_mean() {
        let mut trace = minutes(&[3_000, 1_000, 0]);
        // Requests of a minute have 4 KiB each; those of the second one are larger.
        trace.intervals[1].read_bytes = 1_000 << 20;
        assert_eq!(small_permille(&trace), 750);
        let reads = [(4_096, 1), (131_072, 3)].into_iter().collect();
        trace.sizes = Some(Sizes { reads, writes: [(512, 4)].into_iter().collect() });
        assert_eq!(small_permille(&trace), 625);
        assert_eq!(small_permille(&minutes(&[0])), 0);
    }
}
