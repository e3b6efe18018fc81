//! Traces from which a change follows, and traces from which none does.

use proptest::prelude::*;

use super::*;
use crate::fleet::testing::{hours, volume};
use crate::fleet::totals::Totals;
use crate::fleet::{Class, Policy};
use crate::trace::Delayed;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};

const FORTNIGHT_H: u64 = 14 * 24;

fn by(volume: &Volume, trace: Trace) -> Judged {
    judge(&Policy::usual(), volume, traced(trace))
}

fn traced(trace: Trace) -> Evidence {
    Evidence::Trace(Box::new(trace))
}

#[track_caller]
fn becomes(judged: &Judged) -> (VolumeType, Option<u32>, Option<u32>) {
    match judged.action {
        Action::Modify(to) => (to.volume_type, to.iops, to.throughput_mibps),
        other => panic!("{other:?}: {judged:?}"),
    }
}

#[test]
fn what_was_never_used_is_given_back() {
    // 1,000 requests a second at most, and a fifth more.
    let gp3 = volume(Gp3, 500, Some(8_000), Some(500));
    let judged = by(&gp3, hours(FORTNIGHT_H, 500, 1_000, 16));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)));
    assert_eq!(judged.findings, [Finding::NeverUsedIops, Finding::NeverUsedThroughput]);
    assert_eq!((judged.before, judged.saving()), (80_000_000, 40_000_000));
    // Beyond what each has, nothing was used.
    assert_eq!((judged.never_used_iops, judged.never_used_mibps), (Some(5_000), Some(375)));
    let io2 = volume(Io2, 500, Some(8_000), None);
    let judged = by(&io2, hours(FORTNIGHT_H, 500, 1_000, 16));
    assert_eq!(becomes(&judged), (Io2, Some(1_200), None));
    assert_eq!(judged.saving(), 6_800 * 65_000);
    // All at 8,000 a second would take 5 of 12 hundredths of the day that they take now.
    let waits = judged.waits.unwrap();
    assert_eq!((waits.before_ms, waits.after_ms, waits.before_at_most_ms), (0, 0, 0));
    assert!(waits.after_at_most_ms > 30_000_000 && judged.risk == Risk::High, "{judged:?}");
    assert!(judged.reasons.iter().any(|reason| reason.contains("a trace of seconds tells")));
}

/// The checks of AWS say whether an application wanted more than the volume's limits in a minute,
/// so that peaks of minutes are evidence; a longer step needs its idle time and a wide margin.
#[test]
fn risk_is_medium_where_checks_and_short_steps_show_that_less_suffices() {
    let gp3 = volume(Gp3, 500, Some(8_000), Some(500));
    let steps = |length_ms: u64, is_censored: Option<bool>, idle_ms: Option<u64>| {
        let mut trace = hours(FORTNIGHT_H, 500, 1_000, 16);
        if length_ms < 300_000 {
            trace.intervals = (0..FORTNIGHT_H * 60)
                .map(|minute| Interval {
                    start_ms: minute * 60_000,
                    length_ms: 60_000,
                    reads: 60 * if minute.is_multiple_of(60) { 1_000 } else { 500 },
                    read_bytes: 60 * 1_000 * 16_384,
                    ..Interval::default()
                })
                .collect();
        }
        for interval in &mut trace.intervals {
            interval.is_censored = is_censored;
            interval.idle_ms = idle_ms;
        }
        by(&gp3, trace)
    };
    for (length_ms, is_censored, idle_ms, risk) in [
        (60_000, Some(false), None, Risk::Medium),
        (60_000, None, None, Risk::High),
        (300_000, Some(false), None, Risk::High),
        (300_000, Some(false), Some(0), Risk::Medium),
        // In half of the time all of it came: 2,000 a second, of 3,000.
        (300_000, Some(false), Some(150_000), Risk::High),
    ] {
        let judged = steps(length_ms, is_censored, idle_ms);
        assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)), "{judged:?}");
        assert_eq!(judged.risk, risk, "{length_ms} {is_censored:?} {idle_ms:?}: {judged:?}");
        let class = if risk == Risk::High { Class::NotAdvised } else { Class::AfterALook };
        assert_eq!((judged.class(), judged.is_executed(Risk::Low)), (Some(class), false));
        let says = judged.reasons.iter().any(|reason| reason.contains("no limit ever delayed"));
        assert_eq!(says, risk == Risk::Medium, "{judged:?}");
    }
}

#[test]
fn what_is_as_durable_and_as_fast_may_be_another_type() {
    let gp2 = volume(Gp2, 100, None, None);
    // Its burst and its 128 MiB/s, for less: whatever was asked of it.
    for evidence in [Evidence::Absent, traced(hours(2, 100, 100, 16))] {
        let judged = judge(&Policy::usual(), &gp2, evidence);
        assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(128)));
        assert_eq!((judged.finding(), judged.risk), (Finding::Gp2ToGp3, Risk::None));
        assert_eq!(judged.saving(), 2_000_000 - 3 * 40_000);
    }
    // With metrics, what is needed will do.
    let judged = by(&gp2, hours(FORTNIGHT_H, 100, 100, 16));
    assert_eq!((becomes(&judged), judged.saving()), ((Gp3, Some(3_000), Some(125)), 2_000_000));
    // 250 MiB/s cost more than the change saves.
    let judged = judge(&Policy::usual(), &volume(Gp2, 200, None, None), Evidence::Absent);
    assert_eq!((judged.finding(), judged.action), (Finding::Keep, Action::Keep));
    let io1 = volume(Io1, 500, Some(4_000), None);
    let judged = judge(&Policy::usual(), &io1, Evidence::Absent);
    assert_eq!(becomes(&judged), (Gp3, Some(4_000), Some(500)));
    assert!(judged.risk == Risk::Low && judged.reasons[1].contains("99.0 % of the year"));
    // io2 stays io2, unless less durability will do.
    let io2 = volume(Io2, 500, Some(4_000), None);
    assert_eq!(judge(&Policy::usual(), &io2, Evidence::Absent).action, Action::Keep);
    let less = Policy { less_durable: true, ..Policy::usual() };
    let judged = judge(&less, &io2, Evidence::Absent);
    assert_eq!(becomes(&judged), (Gp3, Some(4_096), Some(1_024)));
    assert!(judged.reasons[1].starts_with("durability of a year: 99.9990 % becomes 99.8000 %"));
}

#[test]
fn solid_state_stays_so_unless_another_type_is_named() {
    let gp3 = volume(Gp3, 500, None, None);
    let quiet = || hours(FORTNIGHT_H, 1, 1, 16);
    assert_eq!(by(&gp3, quiet()).action, Action::Keep);
    let named = Policy { types: vec![Sc1, Gp3], ..Policy::usual() };
    let judged = judge(&named, &gp3, traced(quiet()));
    assert_eq!((becomes(&judged).0, judged.finding()), (Sc1, Finding::TypeChange));
    // No instance boots from it, and none has less than 125 GiB.
    let boots = Volume { boots: true, ..gp3 };
    assert_eq!(judge(&named, &boots, traced(quiet())).action, Action::Keep);
    let small = volume(Gp3, 100, None, None);
    assert_eq!(judge(&named, &small, traced(quiet())).action, Action::Keep);
    assert_eq!(becomes(&by(&volume(St1, 500, None, None), quiet())).0, Sc1);
    assert_eq!(
        by(&volume(Standard, 500, None, None), hours(FORTNIGHT_H, 0, 0, 4)).findings[0],
        Finding::Idle
    );
}

#[test]
fn nothing_gets_less_by_what_a_trace_does_not_show() {
    let io2 = volume(Io2, 500, Some(8_000), None);
    let quiet = || hours(FORTNIGHT_H, 100, 100, 16);
    let mut gaps = quiet();
    gaps.intervals.retain(|interval| interval.start_ms / 86_400_000 % 3 > 0);
    let mut coarse = quiet();
    coarse.intervals.iter_mut().for_each(|interval| {
        interval.start_ms *= 12;
        interval.length_ms *= 12;
    });
    let mut without_bytes = quiet();
    without_bytes.columns.bytes = None;
    let mut censored = quiet();
    censored.intervals[7].is_censored = Some(true);
    // A request waited for all of the step, and ended after it.
    let mut censored_and_empty = censored.clone();
    (censored_and_empty.intervals[7].reads, censored_and_empty.intervals[7].read_bytes) = (0, 0);
    for (trace, reason) in [
        (hours(6 * 24, 100, 100, 16), "6 days of metrics, of 7 days that are needed"),
        (gaps, "% of its metrics are gaps, of at most 20 %"),
        (coarse, "in steps of 3600 s, of at most 300 s"),
        (without_bytes, "its metrics have no bytes"),
        (censored, "it stood at a limit for 300 s"),
        (censored_and_empty, "it stood at a limit for 300 s"),
    ] {
        let judged = by(&io2, trace);
        assert_eq!((judged.action, judged.finding()), (Action::Keep, Finding::Keep));
        assert!(judged.reasons[0].contains(reason), "{reason}: {judged:?}");
        assert!(judged.reasons[0].contains("no limit is lowered"), "{judged:?}");
    }
    assert!(matches!(by(&io2, quiet()).action, Action::Modify(_)));
    let judged = judge(&Policy::usual(), &io2, Evidence::Broken("line 3: ...".to_owned()));
    assert_eq!(judged.findings, [Finding::NotJudged]);
    assert_eq!((judged.before, judged.after), (582_500_000, 582_500_000));
}

#[test]
fn what_stands_at_a_limit_gets_more() {
    let gp3 = volume(Gp3, 500, None, None);
    let judged = by(&gp3, hours(FORTNIGHT_H, 100, 2_990, 4));
    assert_eq!(
        (becomes(&judged), judged.finding()),
        ((Gp3, Some(3_600), Some(125)), Finding::Throttled)
    );
    assert_eq!((judged.saving(), judged.risk), (-3_000_000, Risk::None));
    // Bytes: 120 of 125 MiB/s.
    let judged = by(&gp3, hours(FORTNIGHT_H, 10, 480, 256));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(150)));
    // Where the source says that it did not, it did not.
    let mut trace = hours(FORTNIGHT_H, 100, 2_990, 4);
    trace.intervals.iter_mut().for_each(|interval| interval.is_censored = Some(false));
    assert_eq!(by(&gp3, trace).finding(), Finding::Keep);
    // Credits that ran out: gp3 has none to run out, and is cheaper.
    let mut trace = hours(FORTNIGHT_H, 300, 300, 4);
    trace.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(0));
    let judged = by(&volume(Gp2, 100, None, None), trace);
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(128)));
    assert_eq!(judged.findings, [Finding::Throttled, Finding::Gp2ToGp3]);
    assert!(judged.saving() > 0);
    // No change in place gives more to a volume with the most IOPS.
    let most = volume(Io1, 16_384, Some(64_000), None);
    let judged = judge(
        &Policy { types: vec![Io1], ..Policy::usual() },
        &most,
        traced(hours(FORTNIGHT_H, 100, 63_000, 4)),
    );
    assert_eq!((judged.action, judged.finding()), (Action::Keep, Finding::Throttled));
}

/// Sets what the checks of a recording say in each busy step: of IOPS, of throughput, and of the
/// instance.
fn checked(mut trace: Trace, checks: [Option<bool>; 3]) -> Trace {
    let [iops, bytes, instance] = checks;
    for (at, interval) in trace.intervals.iter_mut().enumerate() {
        let is_busy = at % 12 == 0;
        let now = |check: Option<bool>| check.map(|is_delayed| is_delayed && is_busy);
        interval.delayed = Delayed { iops: now(iops), bytes: now(bytes), instance: now(instance) };
        interval.is_censored = interval.delayed.by_volume();
    }
    trace
}

#[test]
fn a_check_of_one_limit_says_nothing_of_the_other() {
    let no = Some(false);
    // 124.8 of 125 MiB/s, and 2,000 of 6,000 a second.
    let gp3 = volume(Gp3, 1_000, Some(6_000), Some(125));
    let at_bytes = || hours(FORTNIGHT_H, 100, 1_997, 64);
    for checks in [[None; 3], [no, None, None], [no, Some(true), None]] {
        let judged = by(&gp3, checked(at_bytes(), checks));
        assert_eq!(becomes(&judged), (Gp3, Some(6_000), Some(150)), "{checks:?}");
        assert_eq!(judged.finding(), Finding::Throttled);
    }
    let judged = by(&gp3, checked(at_bytes(), [no, no, None]));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)), "no limit delayed a request");
    // Only the limit in IOPS was reached: throughput stays.
    let gp3 = volume(Gp3, 500, None, None);
    let judged = by(&gp3, checked(hours(FORTNIGHT_H, 100, 2_700, 8), [Some(true), no, None]));
    assert_eq!(becomes(&judged), (Gp3, Some(3_600), Some(125)));
}

#[test]
fn a_limit_of_the_instance_neither_raises_nor_lowers_a_limit() {
    let no = Some(false);
    let gp3 = volume(Gp3, 500, Some(10_000), Some(500));
    let trace = checked(hours(FORTNIGHT_H, 150, 3_600, 8), [no, no, Some(true)]);
    let judged = by(&gp3, trace);
    assert_eq!((judged.action, judged.finding()), (Action::Keep, Finding::Keep), "{judged:?}");
    let reason = &judged.reasons[0];
    assert!(reason.starts_with("a limit of its instance held requests back for "), "{reason}");
    let free = checked(hours(FORTNIGHT_H, 150, 3_600, 8), [no; 3]);
    assert_eq!(becomes(&by(&gp3, free)), (Gp3, Some(4_320), Some(125)));
}

#[test]
fn a_recording_of_other_limits_lowers_nothing() {
    // 11,000 a second and 344 MiB/s, of 12,000 and 125.
    let gp3 = volume(Gp3, 500, Some(12_000), Some(125));
    let trace = checked(hours(FORTNIGHT_H, 500, 11_000, 32), [Some(false); 3]);
    let judged = by(&gp3, trace.clone());
    assert_eq!(judged.action, Action::Keep, "{judged:?}");
    assert!(judged.reasons[0].contains("than its limits allow now"), "{judged:?}");
    assert!(shows_enough(&Policy::usual(), &gp3, &trace).is_err());
    // A step may have a little more than a limit.
    let judged = by(&gp3, hours(FORTNIGHT_H, 100, 4_200, 32));
    assert_eq!(judged.finding(), Finding::Throttled, "{judged:?}");
}

#[test]
fn a_second_above_a_limit_and_requests_that_may_be_merged_are_no_sign_of_other_limits() {
    let io2 = volume(Io2, 4, Some(400), None);
    let policy = Policy::usual();
    // Each case has the I/Os and bytes of its steps of a second.
    let seconds = |each: fn(u64) -> (u64, u64)| {
        let mut trace = hours(1, 0, 0, 4);
        trace.intervals = (0..120)
            .map(|second| {
                let (reads, read_bytes) = each(second);
                let start_ms = second * 1_000;
                Interval { start_ms, length_ms: 1_000, reads, read_bytes, ..Interval::default() }
            })
            .collect();
        trace
    };
    let is_of_other = |trace: Trace| of_other_limits(&policy, &io2.spec, &trace).is_some();
    assert!(is_of_other(seconds(|_| (600, 600 * 4_096))));
    assert!(!is_of_other(seconds(|_| (420, 420 * 4_096))));
    // 500 writes of 32 KiB in order count as 63 I/Os.
    assert!(!is_of_other(seconds(|_| (500, 500 * 32_768))));
    // After a pause of half a second its answers come at once.
    assert!(!is_of_other(seconds(|second| if second % 2 == 0 { (800, 0) } else { (0, 0) })));
}

#[test]
fn a_burst_that_was_too_slow_gets_the_headroom_though_credits_were_left() {
    let gp2 = volume(Gp2, 200, None, None);
    let mut trace = checked(hours(FORTNIGHT_H, 100, 3_000, 8), [Some(true), Some(false), None]);
    trace.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(600_000));
    assert_eq!(becomes(&by(&gp2, trace)), (Gp3, Some(3_600), Some(250)));
}

#[test]
fn a_check_of_a_long_step_counts_as_a_minute() {
    let policy = Policy { throttled_s_per_day: 2_000, ..Policy::usual() };
    let gp3 = volume(Gp3, 500, None, None);
    // 24 steps of 5 minutes a day: 1,440 s if each has a minute at the limit.
    let checks = [Some(true), Some(false), None];
    for (rate, finding) in [(1_000, Finding::Keep), (2_990, Finding::Throttled)] {
        let trace = checked(hours(FORTNIGHT_H, 100, rate, 8), checks);
        let judged = judge(&policy, &gp3, traced(trace));
        assert_eq!(judged.finding(), finding, "{judged:?}");
        assert!(judged.known.unwrap().at_limit_ms > 100_000_000);
    }
}

#[test]
fn a_throttled_disk_with_a_head_becomes_what_does_all_that_it_did() {
    // 40 of 4 KiB a second are 40 MiB/s to st1, and 40 I/Os to gp3.
    let st1 = volume(St1, 1_024, None, None);
    let mut small = hours(FORTNIGHT_H, 40, 40, 4);
    small.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(0));
    let judged = by(&st1, small);
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)));
    assert_eq!(judged.findings, [Finding::Throttled, Finding::TypeChange]);
    assert_eq!((judged.risk, judged.waits.unwrap().after_at_most_ms), (Risk::Low, 0));
    // 230 of 1 MiB: it gives 250 at most, which are 1,000 I/Os and 250 MiB/s.
    let mut large = hours(FORTNIGHT_H, 39, 230, 1_024);
    large.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(0));
    assert_eq!(becomes(&by(&st1, large.clone())), (Gp3, Some(3_000), Some(250)));
    // Of a few days nothing is concluded, and no other type counts as it does.
    large.intervals.truncate(288);
    assert_eq!(by(&st1, large).action, Action::Keep);
    // A standard volume has 200 I/Os at most.
    let judged = by(&volume(Standard, 500, None, None), hours(FORTNIGHT_H, 10, 199, 4));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)));
}

#[test]
fn without_credits_a_volume_becomes_what_it_used_while_it_had_some() {
    // 250 MiB/s were never used; 1,000 a second were.
    let gp2 = volume(Gp2, 200, None, None);
    let trace = |empty: usize| {
        let mut trace = hours(FORTNIGHT_H, 600, 1_000, 16);
        trace.intervals.iter_mut().for_each(|interval| interval.balance_ppm = Some(500_000));
        trace.intervals.iter_mut().take(empty).for_each(|interval| interval.balance_ppm = Some(0));
        trace
    };
    let all = trace(0).intervals.len();
    let judged = by(&gp2, trace(all / 2));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(125)));
    assert_eq!(judged.findings, [Finding::Throttled, Finding::Gp2ToGp3]);
    assert!(judged.saving() > 0 && judged.reasons[1].contains("1200 I/Os"), "{judged:?}");
    let io1 = Policy { types: vec![Io1], ..Policy::usual() };
    assert_eq!(becomes(&judge(&io1, &gp2, traced(trace(900)))), (Io1, Some(1_200), None));
    // Where they were gone for longer, nothing tells what it would have used.
    let judged = by(&gp2, trace(all / 2 + 1));
    assert_eq!(becomes(&judged), (Gp3, Some(3_000), Some(250)));
}

#[test]
fn what_nobody_has_is_for_deletion_and_what_nobody_asks_is_idle() {
    let mut gp3 = volume(Gp3, 500, None, None);
    let judged = by(&gp3, hours(FORTNIGHT_H, 0, 0, 4));
    assert_eq!((judged.findings.as_slice(), judged.action), (&[Finding::Idle][..], Action::Keep));
    gp3.attached = Some(false);
    let judged = judge(&Policy::usual(), &gp3, Evidence::Absent);
    assert_eq!((judged.finding(), judged.action), (Finding::Unattached, Action::Delete));
    // The snapshot of 500 GiB costs 0.05 dollars a GiB and month at most.
    assert_eq!((judged.before, judged.after, judged.risk), (40_000_000, 25_000_000, Risk::Low));
    assert_eq!((judged.class(), judged.saving()), (Some(Class::Unattached), 15_000_000));
    // With the full size of its newest snapshot, 75 GiB are the most that a further one has.
    let used = Some(Used { bytes: 75 << 30, source: Source::Snapshot });
    let judged = judge(&Policy::usual(), &Volume { used, ..gp3.clone() }, Evidence::Absent);
    assert_eq!((judged.after, judged.snapshot_at_most), (3_750_000, Some(3_750_000)));
    assert!(judged.reasons[1].starts_with("its newest snapshot has 75 GiB"), "{judged:?}");
    let judged = by(&gp3, hours(FORTNIGHT_H, 1, 1, 4));
    assert_eq!(judged.risk, Risk::Medium, "it was in use");
    gp3.unsettled = Some("its state is error".to_owned());
    assert_eq!(judge(&Policy::usual(), &gp3, Evidence::Absent).findings, [Finding::NotJudged]);
    let before_gp3 = Policy {
        prices: PriceList::as_of("2014-06".parse().unwrap()).unwrap().into(),
        ..Policy::usual()
    };
    gp3.unsettled = None;
    let judged = judge(&before_gp3, &gp3, Evidence::Absent);
    assert!(judged.reasons[0].contains("has no price of gp3: name one"), "{judged:?}");
}

/// Any volume that the rules allow.
fn any_volume() -> impl Strategy<Value = Volume> {
    let specs = prop_oneof![
        (1..3_000_u32).prop_map(|gib| (Gp2, gib, None, None)),
        (1..3_000_u32, 3_000..16_000_u32, 125..750_u32).prop_map(|(gib, iops, mibps)| (
            Gp3,
            gib.max(32),
            Some(iops),
            Some(mibps)
        )),
        (100..3_000_u32, 100..5_000_u32).prop_map(|(gib, iops)| (Io1, gib, Some(iops), None)),
        (100..3_000_u32, 100..50_000_u32).prop_map(|(gib, iops)| (Io2, gib, Some(iops), None)),
        (125..9_000_u32).prop_map(|gib| (St1, gib, None, None)),
        (125..9_000_u32).prop_map(|gib| (Sc1, gib, None, None)),
        (1..1_000_u32).prop_map(|gib| (Standard, gib, None, None)),
    ];
    (specs, prop::option::of(any::<bool>()), any::<bool>()).prop_map(
        |((volume_type, gib, iops, mibps), attached, boots)| Volume {
            attached,
            boots: boots && !matches!(volume_type, St1 | Sc1),
            ..volume(volume_type, gib, iops, mibps)
        },
    )
}

/// Any trace: of days that may be too few, with steps at limits and gaps, or none.
fn any_evidence() -> impl Strategy<Value = Evidence> {
    let step = (0..400_u64, 0..40_u64, 1..256_u64, prop::option::of(0..300_000_u64), 0..40_u32);
    let trace = (prop::collection::vec(step, 24), 4..10_u64, 0..4_u32).prop_map(
        |(steps, days, says_censored)| {
            let mut trace = hours(days * 24, 0, 0, 4);
            for (at, interval) in trace.intervals.iter_mut().enumerate() {
                // The same hours every day, each of twelve equal steps.
                let (rate, burst, kib, idle_ms, odd) = steps[at / 12 % 24];
                interval.reads = rate * if at % 12 == 0 { burst } else { 1 } * 300;
                interval.read_bytes = interval.reads * kib * 1_024;
                interval.idle_ms = idle_ms;
                interval.is_censored = (says_censored == 0).then_some(odd == 0 && at % 24 == 5);
            }
            traced(trace)
        },
    );
    prop_oneof![4 => trace, 1 => Just(Evidence::Absent)]
}

/// Returns a trace with its amounts divided, so that none is above the limits of a volume.
fn below_limits(policy: &Policy, volume: &Volume, mut trace: Trace) -> Trace {
    let mut source = SourceLimits::default();
    source.fill(&policy.rules.pacing(&volume.spec), Share::ALL);
    let limits = Limits::of(policy, &volume.spec);
    let excess = trace.intervals.iter().flat_map(|interval| {
        let counted = source.counted(interval.requests(), interval.bytes());
        let parts = [limits.iops, limits.bytes].into_iter().zip(counted);
        parts.filter_map(|(limit, amount)| {
            let most = u128::from(limit?) * u128::from(interval.length_ms);
            Some(amount.saturating_mul(1_000).div_ceil(most.max(1)))
        })
    });
    let divisor = saturating::<_, u64>(excess.max().unwrap_or(1).max(1));
    for interval in &mut trace.intervals {
        interval.reads /= divisor;
        interval.read_bytes /= divisor;
    }
    trace
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let types = prop_oneof![3 => Just(Vec::new()), 1 => Just(VolumeType::ALL.to_vec())];
    (types, any::<bool>(), 0..50_u32, prop_oneof![Just(0), Just(60), Just(86_400)]).prop_map(
        |(types, less_durable, headroom_percent, throttled_s_per_day)| Policy {
            types,
            less_durable,
            headroom_percent,
            throttled_s_per_day,
            ..Policy::usual()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    /// A change is one that ModifyVolume makes and can take back, has the price of the list, and is
    /// no worse by the replay.
    #[test]
    fn a_change_is_legal_priced_and_no_worse(
        policy in any_policy(),
        volume in any_volume(),
        evidence in any_evidence(),
        is_of_other_limits in prop::bool::weighted(0.2),
    ) {
        let evidence = match evidence {
            Evidence::Trace(trace) if !is_of_other_limits => {
                traced(below_limits(&policy, &volume, *trace))
            }
            evidence => evidence,
        };
        let judged = judge(&policy, &volume, evidence.clone());
        let price = |spec: &VolumeSpec| policy.prices.monthly(spec).unwrap().total();
        prop_assert_eq!((judged.present, judged.before), (volume.spec, price(&volume.spec)));
        let Action::Modify(to) = judged.action else {
            let snapshot = u64::from(volume.spec.size_gib) * 50_000;
            let after = if judged.action == Action::Delete { snapshot } else { judged.before };
            prop_assert_eq!(judged.after, after);
            return Ok(());
        };
        prop_assert_eq!(judged.after, price(&to));
        prop_assert!(to != volume.spec && to.size_gib == volume.spec.size_gib);
        for (from, to) in [(&volume.spec, &to), (&to, &volume.spec)] {
            let change = alternatives::change(from, to);
            prop_assert_eq!(policy.rules.modify(from, &change), Ok(*to));
        }
        let rules = policy.rules.of(to.volume_type).unwrap();
        prop_assert!(rules.boot || !volume.boots);
        let is_throttled = judged.findings.contains(&Finding::Throttled);
        prop_assert!(judged.after < judged.before || is_throttled);
        let least = |spec: &VolumeSpec| policy.rules.of(spec.volume_type)?.promise.durability;
        if !policy.less_durable && let Some(before) = least(&volume.spec) {
            prop_assert!(least(&to).is_some_and(|now| now.min_ppm >= before.min_ppm));
        }
        let Evidence::Trace(trace) = evidence else {
            prop_assert!(advice::never_less(policy.rules, &to, &volume.spec));
            return Ok(());
        };
        let known_ms = trace.known_ms();
        let is_censored = trace.intervals.iter().any(|interval| interval.is_censored == Some(true));
        let counting = |spec: &VolumeSpec| policy.rules.pacing(spec).counting;
        let is_known = is_throttled && known_ms >= 7 * DAY_MS;
        // These traces have no balance of credits.
        if is_known && counting(&to) != counting(&volume.spec) {
            // The oracle replays what was recorded, as fast as it can have come.
            let mut trace = trace.clone();
            trace.source = SourceLimits::default();
            trace.source.fill(&policy.rules.pacing(&volume.spec), Share::ALL);
            let demand = Demand::of(&trace, crate::demand::Assume::Worst);
            let space = crate::testing::space(&[], 1);
            let outcome = search::replay(&space, &demand, &Layout::one(to)).1;
            prop_assert_eq!(outcome.waited_us(), 0);
        } else if is_throttled || is_censored || known_ms < 7 * DAY_MS {
            prop_assert!(advice::never_less(policy.rules, &to, &volume.spec));
        }
        if !advice::never_less(policy.rules, &to, &volume.spec) {
            // The oracle replays both by itself.
            let demand = with_headroom(&Demand::of(&trace, policy.assume), policy.headroom_percent);
            let space = crate::testing::space(&[], 1);
            let [before, after] = [volume.spec, to].map(|each| {
                search::replay(&space, &demand, &Layout::one(each)).1
            });
            prop_assert!(after.waited_us() <= before.waited_us().max(after.end_us / 1_000_000));
            prop_assert!(after.delays.permille(999) <= before.delays.permille(999));
        }
    }

    /// Where nothing waits, what is found without a search is what the search finds.
    #[test]
    fn without_waiting_the_peaks_are_what_a_search_finds(
        volume_type in prop::sample::select(vec![Gp3, Io1, Io2]),
        steps in prop::collection::vec((0..4_000_u64, 1..300_u64), 1..40),
    ) {
        let mut trace = hours(1, 0, 0, 4);
        trace.intervals = steps.iter().zip(0..).map(|((rate, kib), at)| Interval {
            start_ms: at * 1_000,
            length_ms: 1_000,
            reads: *rate,
            read_bytes: rate * kib * 1_024,
            ..Interval::default()
        }).collect();
        let demand = Demand::of(&trace, crate::demand::Assume::Even);
        let policy = Policy { types: vec![volume_type], less_durable: true, ..Policy::usual() };
        let present = volume(Io2, 2_000, Some(256_000), None);
        let (_, outcome) = search::replay(
            &crate::testing::space(&[], 1),
            &demand,
            &Layout::one(present.spec),
        );
        prop_assert_eq!(outcome.waited_us(), 0);
        let bound = Bound::of(&present, &outcome, &demand);
        let found = alternatives::cheapest(&policy, &present, &demand, &bound, u64::MAX);
        let space = crate::testing::space(&[volume_type], 1);
        let wanted = search::Wanted {
            capacity_gib: 2_000,
            throttled_us_per_day_max: 0,
            delays: Vec::new(),
            boots: false,
            multi_attach: false,
            monthly_max: None,
            no_less_than: None,
        };
        let searched = search::cheapest(&space, &demand, &wanted);
        let searched = searched.first().map(|found| found.layout.each);
        let cost = |spec: Option<VolumeSpec>| {
            spec.and_then(|spec| alternatives::monthly(&policy, &spec))
        };
        let searched = searched.filter(|searched| searched.size_gib == 2_000);
        prop_assert_eq!(cost(found), cost(searched), "{:?} {:?}", found, searched);
    }

    /// The sums of a fleet are those of the price list.
    #[test]
    fn totals_are_those_of_the_price_list(
        all in prop::collection::vec((any_volume(), prop::option::of(0..400_u64)), 0..12),
    ) {
        let policy = Policy::usual();
        let judged = all.iter().map(|(volume, rate)| {
            let trace = |rate: u64| traced(hours(8 * 24, rate, rate * 3, 16));
            judge(&policy, volume, rate.map_or(Evidence::Absent, trace))
        });
        let judged: Vec<Judged> = judged.collect();
        let totals = Totals::of(&judged);
        let price = |spec: &VolumeSpec| policy.prices.monthly(spec).unwrap().total();
        let before: u64 = all.iter().map(|(volume, _)| price(&volume.spec)).sum();
        let after = judged.iter().map(|judged| match judged.action {
            Action::Keep => price(&judged.present),
            Action::Modify(to) => price(&to),
            Action::Delete => u64::from(judged.present.size_gib) * 50_000,
        });
        let after: u64 = after.sum();
        prop_assert_eq!((totals.all.before, totals.all.after), (before, after));
        let savings: i64 = judged.iter().map(Judged::saving).sum();
        prop_assert_eq!(totals.all.saving(), savings);
        let by_finding: i64 = totals.by_finding.iter().map(|sum| sum.saving()).sum();
        let by_risk: i64 = totals.by_risk.iter().map(|sum| sum.saving()).sum();
        let by_class: i64 = totals.by_class.iter().map(|sum| sum.saving()).sum();
        prop_assert_eq!((by_finding, by_risk, by_class), (savings, savings, savings));
        let volumes: u64 = totals.by_finding.iter().map(|sum| sum.volumes).sum();
        prop_assert_eq!(volumes, all.len() as u64);
        prop_assert!(totals.all.never_used_iops <= totals.all.iops);
    }
}

/// An m5.large sustains 3,600 IOPS for all its volumes.
#[test]
fn a_load_that_stands_at_the_limit_of_its_instance_lowers_nothing() {
    let policy = Policy::usual();
    let judged = |instance: Option<&str>| {
        let instance_type = instance.map(str::to_owned);
        let gp3 = Volume { instance_type, ..volume(Gp3, 500, Some(6_000), None) };
        let flat = hours(14 * 24, 3_600, 3_600, 4);
        let is_enough = shows_enough(&policy, &gp3, &flat).is_ok();
        (is_enough, judge(&policy, &gp3, Evidence::Trace(Box::new(flat))))
    };
    let (is_enough, kept) = judged(Some("m5.large"));
    assert_eq!((is_enough, kept.action), (false, Action::Keep));
    let reason = "it stood at the 3600 IOPS that m5.large sustains for 14 days, so the instance \
                  may have held requests back: m5.xlarge is the smallest of its family that has \
                  more, so no limit is lowered";
    assert_eq!(kept.reasons, [reason]);
    for instance in [None, Some("m5.xlarge"), Some("no.type")] {
        let (is_enough, lowered) = judged(instance);
        assert!(is_enough && matches!(lowered.action, Action::Modify(_)), "{lowered:?}");
    }
}

/// An r4.16xlarge is not built on the Nitro System.
#[test]
fn no_volume_gets_more_iops_than_its_instance_without_nitro_achieves() {
    let policy = Policy { types: vec![Io2], ..Policy::usual() };
    let judged = |instance: &str, iops: u32| {
        let instance_type = Some(instance.to_owned());
        let io2 = Volume { instance_type, ..volume(Io2, 1_000, Some(iops), None) };
        let rate = u64::from(iops);
        let full = hours(14 * 24, rate, rate, 4);
        judge(&policy, &io2, Evidence::Trace(Box::new(full)))
    };
    let raised = judged("r5.24xlarge", 30_000);
    assert!(matches!(raised.action, Action::Modify(to) if to.iops == Some(36_000)), "{raised:?}");
    let kept = judged("r4.16xlarge", 30_000);
    let words = "r4.16xlarge is not built on the Nitro System, and achieves at most 32000 IOPS on \
                 a volume of io2";
    assert_eq!((kept.action, kept.reasons.last().unwrap().as_str()), (Action::Keep, words));
    // What is provisioned and not achieved is named, too.
    let present = judged("r4.16xlarge", 40_000);
    assert!(present.reasons.iter().any(|reason| reason == words), "{present:?}");
}
