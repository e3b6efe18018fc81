//! The counting for the limits of a source, compared with an account of every single request.

use evenkeel_core::qos::pacing::{Limit, Pacing};
use evenkeel_core::volume::VolumeType::{self, Gp2, Gp3, Io2, Sc1, St1};
use proptest::prelude::*;

use crate::demand::{Assume, Demand};
use crate::layout::Layout;
use crate::search::{cheapest, replay};
use crate::spread::Share;
use crate::testing::{layout, minutes, space, wanted};
use crate::throttled::HeldBack;
use crate::trace::{Clock, Columns, Interval, Trace};

/// Returns a trace of intervals with requests of one size each, on a volume.
fn trace(on: &Layout, length_ms: u64, all: &[Interval]) -> Trace {
    let at = |(at, it): (u64, &Interval)| Interval { start_ms: at * length_ms, length_ms, ..*it };
    let intervals = (0..).zip(all).map(at).collect();
    let mut trace = Trace::new("v", Clock::Unix, Columns::default(), intervals).unwrap();
    trace.source.fill(&pacing(on), Share::ALL);
    trace
}

fn pacing(layout: &Layout) -> Pacing {
    space(&[], 1).rules.pacing(&layout.each)
}

/// Returns the limits in I/Os and bytes; `f64::MAX` if there is none.
fn limits(pacing: &Pacing, of: fn(&Limit) -> u64) -> [f64; 2] {
    [pacing.operations, pacing.bytes].map(|limit| limit.map_or(f64::MAX, |limit| of(&limit) as f64))
}

fn of(requests: u64, bytes: u64) -> Interval {
    Interval { reads: requests, read_bytes: requests * bytes, ..Interval::default() }
}

/// Returns the I/Os and bytes of one request, counted unit by unit, as the documents of EBS
/// describe it.
fn account(on: &Layout, bytes: u64) -> (f64, f64) {
    let is_hdd = matches!(on.each.volume_type, St1 | Sc1);
    let unit = if is_hdd { 1_048_576 } else { 262_144 };
    let mut left = bytes;
    let mut ios = 0.0;
    while left > 0 {
        ios += 1.0;
        left = left.saturating_sub(unit);
    }
    (ios, if is_hdd { ios * unit as f64 } else { bytes as f64 })
}

fn volume(volume_type: VolumeType) -> Layout {
    match volume_type {
        Io2 => layout(1, Io2, 500, Some(8_000)),
        Gp3 => layout(1, Gp3, 500, None),
        // So large that it earns its maximum rate.
        St1 => layout(1, St1, 13_000, None),
        other => layout(1, other, 500, None),
    }
}

#[test]
fn large_requests_reach_a_limit_that_their_number_does_not() {
    // 750 of 1 MiB are 3,000 I/Os. 500 MiB/s do not hold them back.
    let gp3 = layout(1, Gp3, 500, None);
    let mut large = trace(&gp3, 1_000, &[of(750, 1 << 20), of(740, 1 << 20)]);
    large.source.bytes_per_second = Some(1 << 30);
    let held = HeldBack::of(&large).unwrap();
    assert_eq!((held.intervals, held.iops, held.bytes_per_second), (1, Some(3_000), None));
    // 40 of 4 KiB per second take 40 MiB/s of a disk with a head, which is all that 1 TiB earns.
    let st1 = layout(1, St1, 1_024, None);
    let mut small = trace(&st1, 1_000, &[of(40, 4_096), of(30, 4_096)]);
    small.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(0));
    let held = HeldBack::of(&small).unwrap();
    assert_eq!((held.intervals, held.earned_bytes_per_second), (1, Some(40 << 20)));
}

#[test]
fn without_credits_no_layout_earns_less_than_the_source() {
    let mut trace = minutes(&[18_000; 60]);
    trace.source.fill(&pacing(&layout(1, Gp2, 100, None)), Share::ALL);
    let gib = |trace: &Trace, throttled_s| {
        let demand = Demand::of(trace, Assume::Even);
        let found = cheapest(&space(&[Gp2], 1), &demand, &wanted(10, throttled_s));
        found[0].layout.each.size_gib
    };
    // 10 GiB have credits for the rest of the hour: the trace does not show that more was wanted.
    assert_eq!(gib(&trace, 0), 10);
    trace.intervals[7].balance_ppm = Some(0);
    let held = HeldBack::of(&trace).unwrap();
    assert_eq!((held.intervals, held.iops, held.earned_iops), (1, None, Some(300)));
    assert_eq!(gib(&trace, 0), 100);
    // A minute of an hour is 1,440 s of a day.
    assert_eq!([1_439, 1_440].map(|throttled_s| gib(&trace, throttled_s)), [100, 10]);
    // If the demand is less than it earns, credits grow: nothing is held back.
    trace.intervals[7].reads = 9_000;
    assert_eq!(HeldBack::of(&trace), None);
}

#[test]
fn who_counts_otherwise_gives_what_was_recorded() {
    // 512 GiB earn 20 MiB/s: 20 requests of 4 KiB, which are 20 I/Os elsewhere.
    let st1 = layout(1, St1, 512, None);
    let mut trace = trace(&st1, 1_000, &[of(20, 4_096); 60]);
    trace.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(0));
    let demand = Demand::of(&trace, Assume::Even);
    let io2 = cheapest(&space(&[Io2], 1), &demand, &wanted(100, 0));
    assert_eq!(io2[0].layout.each.iops, Some(100));
    let st1 = cheapest(&space(&[St1], 1), &demand, &wanted(130, 0));
    assert_eq!(st1[0].layout.each.size_gib, 512);
}

proptest! {
    /// Compared with counting each request by itself, with parts of a limit as fractions.
    #[test]
    fn what_is_held_back_is_what_each_request_counts(
        kind in proptest::sample::select(vec![Gp2, Gp3, Io2, St1, Sc1]),
        all in proptest::collection::vec(
            (0..1_100_u64, 1..=2_048_u64, any::<Option<bool>>(), any::<bool>()), 1..20,
        ),
    ) {
        let on = volume(kind);
        let pacing = pacing(&on);
        let most = limits(&pacing, |limit| limit.per_second);
        let earns = limits(&pacing, Limit::sustained_per_second);
        let mut intervals = Vec::new();
        let mut expected = 0;
        for (permille, sectors, is_censored, is_empty) in all {
            let bytes = sectors * 512;
            let (ios, charged) = account(&on, bytes);
            let each = [ios, charged];
            // As many requests as reach `permille` thousandths of the limit that is reached first.
            let fastest = (most[0] / each[0]).min(most[1] / each[1]);
            let requests = (fastest * permille as f64 / 1_000.0) as u64;
            let used = |of: [f64; 2]| {
                (requests as f64 * each[0] / of[0]).max(requests as f64 * each[1] / of[1])
            };
            let (peak, has_credit, earned) = (used(most), most != earns, used(earns));
            let balance_ppm = is_empty.then_some(0);
            let is_held = match is_censored {
                Some(true) => true,
                _ if is_empty => !has_credit || earned >= 0.9,
                Some(false) => false,
                None => peak >= 0.99,
            };
            let is_near = |part: f64| [0.9, 0.99].iter().any(|at| (part - at).abs() < 1e-9);
            prop_assume!(!is_near(peak) && !is_near(earned));
            expected += u64::from(is_held);
            intervals.push(Interval { is_censored, balance_ppm, ..of(requests, bytes) });
        }
        let held = HeldBack::of(&trace(&on, 1_000, &intervals));
        prop_assert_eq!(held.map_or(0, |held| held.intervals), expected);
    }

    /// The truth is a trace of seconds. The known values are the sums of its minutes.
    #[test]
    fn the_truth_lies_within_the_bounds_of_its_minutes(
        (from, to) in (
            proptest::sample::select(vec![Gp3, Io2, St1]),
            proptest::sample::select(vec![
                layout(1, Gp3, 100, None),
                layout(1, Io2, 100, Some(500)),
                layout(1, Io2, 100, Some(20_000)),
                layout(1, St1, 13_000, None),
            ]),
        ),
        sectors in 1..=2_048_u64,
        seconds in proptest::collection::vec(
            prop_oneof![Just(0), Just(1_000), 0..=1_000_u64], 1..240,
        ),
    ) {
        let on = volume(from);
        let bytes = sectors * 512;
        let pacing = pacing(&on);
        let (ios, charged) = account(&on, bytes);
        let most = limits(&pacing, |limit| limit.per_second);
        let most = (most[0] / ios).min(most[1] / charged) as u64;
        let each = |permille: &u64| of(most * permille / 1_000, bytes);
        let truth: Vec<Interval> = seconds.iter().map(each).collect();
        let sum = |minute: &[Interval]| of(minute.iter().map(|minute| minute.reads).sum(), bytes);
        let minutes: Vec<Interval> = truth.chunks(60).map(sum).collect();
        let truth = trace(&on, 1_000, &truth);
        let minutes = trace(&on, 60_000, &minutes);
        let waited_on = |on: &Layout, trace: &Trace, assume| {
            replay(&space(&[], 1), &Demand::of(trace, assume), on).1.waited_us()
        };
        let waited = |trace: &Trace, assume| waited_on(&to, trace, assume);
        // No requests arrive faster than the source itself serves them.
        prop_assert_eq!(waited_on(&on, &minutes, Assume::Worst), 0);
        let known = waited(&truth, Assume::Even);
        // Each part is rounded against the volume by a microsecond or two.
        let rounding = 2 * seconds.len() as u64 + 2;
        let at_most = waited(&minutes, Assume::Worst);
        prop_assert!(known <= at_most + rounding, "{known} {at_most}");
        let at_least = waited(&minutes, Assume::Even);
        prop_assert!(at_least <= rounding || known > 0, "{known} {at_least}");
    }
}
