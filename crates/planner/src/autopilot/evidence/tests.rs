//! Tests of the evidence: it is what `plan fleet` says, with the bounds of the autopilot.

use evenkeel_core::units::MIB;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};

use super::*;
use crate::autopilot::page::page;
use crate::trace::{Columns, Kind};

const HOUR_S: u64 = 3_600;
const NOW_MS: u64 = 20 * DAY_MS;

fn spec(t: VolumeType, gib: u32, iops: Option<u32>, mibps: Option<u32>) -> VolumeSpec {
    let request = VolumeRequest {
        volume_type: t,
        size_gib: gib,
        iops,
        throughput_mibps: mibps,
        multi_attach: false,
    };
    Rules::newest().resolve(&request).expect("a volume")
}

fn gp3(iops: u32) -> VolumeSpec {
    spec(VolumeType::Gp3, 200, Some(iops), Some(125))
}

/// Returns a recording that ends now, in steps of `step_s`, of requests of 4 KiB. `per_second`
/// returns their rate by the number of the step.
fn recording(days: u64, step_s: u64, per_second: impl Fn(u64) -> u64) -> Trace {
    let start_ms = NOW_MS - days * DAY_MS;
    let step = |number: u64| {
        let reads = per_second(number) * step_s;
        Interval {
            start_ms: start_ms + number * step_s * 1_000,
            length_ms: step_s * 1_000,
            reads,
            read_bytes: reads * 4_096,
            is_censored: Some(false),
            ..Interval::default()
        }
    };
    let columns =
        Columns { requests: Some(Kind::Sum), bytes: Some(Kind::Sum), ..Columns::default() };
    let intervals = (0..days * 86_400 / step_s).map(step).collect();
    Trace::new("vol-1", Clock::Unix, columns, intervals).expect("a trace")
}

fn policy() -> Policy {
    Policy::usual("a", fleet::Policy::usual())
}

fn judged(policy: &Policy, spec: VolumeSpec, trace: Trace) -> Judged {
    let mut evidence = evidence(policy, &[("vol-1".to_owned(), spec, trace)], None, NOW_MS);
    assert_eq!(evidence.made_ms, NOW_MS);
    evidence.volumes.pop().expect("a volume")
}

/// Seconds that never asked for more than 400 I/Os.
#[test]
fn evidence_proposes_less_that_the_pessimistic_replay_carries() {
    let mut policy = policy();
    policy.rate.days = 1;
    policy.plan.days_min = 1;
    let quiet = recording(2, 1, |second| 100 + second % 300);
    let judged = judged(&policy, gp3(8_000), quiet.clone());
    assert!(judged.reasons.is_empty(), "{judged:?}");
    let down = judged.down.expect("a proposal");
    assert_eq!(down.spec, gp3(3_000));
    assert_eq!(down.exceeded_s_per_day_max, 0);
    assert_eq!(down.monthly_micro, 16_000_000);
    assert_eq!(judged.up, None);
    // It is what `plan fleet` says with these bounds.
    let rules = fleet::Policy { assume: Assume::Even, ..policy.plan.clone() };
    let volume = volume(&policy, "vol-1", gp3(8_000));
    let fleet = fleet::judge(&rules, &volume, fleet::Evidence::Trace(Box::new(quiet)));
    assert_eq!(fleet.action, Action::Modify(down.spec));
}

#[test]
fn evidence_lowers_nothing_by_a_short_recording_or_one_with_gaps() {
    let policy = policy();
    let short = judged(&policy, gp3(8_000), recording(3, 60, |_| 100));
    assert_eq!(short.down, None);
    assert_eq!(short.reasons, ["3 days of metrics, of 14 days that are needed"]);
    let mut gaps = recording(19, 60, |_| 100);
    gaps.intervals.retain(|interval| interval.start_ms / HOUR_MS % 4 != 3);
    let gaps = judged(&policy, gp3(8_000), gaps);
    assert_eq!(gaps.down, None);
    assert!(gaps.reasons[0].starts_with("24 % of its metrics are gaps"), "{gaps:?}");
    let old = Trace { intervals: vec![], ..recording(1, 60, |_| 1) };
    let old = judged(&policy, gp3(8_000), old);
    assert!(old.reasons.contains(&"its last 24 h were not recorded".to_owned()), "{old:?}");
}

#[test]
fn evidence_of_a_trial_needs_its_shorter_days() {
    let mut policy = policy();
    policy.day_s = 60;
    policy.rate.days = 2;
    let mut recorded = recording(1, 1, |second| 100 + second % 300);
    recorded.intervals.drain(..86_400 - 120);
    let found = judged(&policy, gp3(8_000), recorded.clone());
    assert_eq!((&found.reasons[..], found.down.map(|down| down.spec)), (&[][..], Some(gp3(3_000))));
    recorded.intervals.remove(0);
    let found = judged(&policy, gp3(8_000), recorded);
    assert_eq!(found.reasons, ["119 s of metrics, of 2 min that are needed"]);
    assert_eq!(found.down, None);
}

/// The kernel's counters do not say whether a limit delayed requests.
#[test]
fn evidence_lowers_limits_by_seconds_that_stayed_below_them() {
    let mut policy = policy();
    policy.rate.days = 1;
    policy.plan.days_min = 1;
    let mut recorded = recording(2, 1, |second| 100 + second % 300);
    for interval in &mut recorded.intervals {
        interval.is_censored = None;
    }
    let found = judged(&policy, gp3(8_000), recorded.clone());
    assert_eq!(found.down.map(|down| down.spec), Some(gp3(3_000)), "{:?}", found.reasons);
    // One second at the limit, and more may have been wanted.
    recorded.intervals[7].reads = 8_000;
    let found = judged(&policy, gp3(8_000), recorded);
    assert_eq!(found.down, None);
    assert!(found.reasons[0].starts_with("it stood at a limit for 1 s"), "{found:?}");
}

#[test]
fn evidence_of_a_trial_proposes_more_after_few_seconds_at_a_limit() {
    let mut policy = policy();
    let mut recorded = recording(1, 1, |second| if second % 3 == 0 { 3_000 } else { 100 });
    recorded.intervals.drain(..86_400 - 30);
    for interval in &mut recorded.intervals {
        interval.is_censored = None;
    }
    // Ten seconds of a whole day are few, and many of a day of 30 s.
    assert_eq!(judged(&policy, gp3(3_000), recorded.clone()).up, None);
    policy.day_s = 30;
    policy.rate.days = 1;
    let up = judged(&policy, gp3(3_000), recorded).up;
    assert_eq!(up.map(|up| up.spec), Some(gp3(3_600)));
}

/// Minutes do not show how requests lie in them, so nothing is certain.
#[test]
fn evidence_lowers_nothing_that_minutes_leave_open() {
    let judged = judged(&policy(), gp3(8_000), recording(15, 60, |_| 2_000));
    assert_eq!(judged.down, None, "2,000 a second could be 8,000 in a quarter of them");
    assert_eq!(judged.peak_iops, Some(8_000 * 6 / 5), "as fast as it allowed, and 20 %");
}

#[test]
fn evidence_proposes_more_after_a_limit_delayed_requests() {
    let policy = policy();
    // The last two hours at the limit.
    let steps = 15 * 1_440;
    let mut trace = recording(15, 60, |minute| if minute < steps - 120 { 100 } else { 3_000 });
    for interval in trace.intervals.iter_mut().rev().take(120) {
        interval.is_censored = Some(true);
    }
    let found = judged(&policy, gp3(3_000), trace.clone());
    let up = found.up.clone().expect("a proposal");
    assert_eq!(up.spec, gp3(3_600), "20 % more");
    assert_eq!(found.down, None);
    assert!(found.reasons[0].starts_with("it stood at a limit for 7200 s"), "{found:?}");
    // Two days ago do not count, and less is still not shown.
    for interval in &mut trace.intervals {
        interval.start_ms -= 2 * DAY_MS;
    }
    trace.intervals.extend(recording(2, 60, |_| 100).intervals);
    let found = judged(&policy, gp3(3_000), trace);
    assert_eq!((found.up, found.down), (None, None));
    assert!(found.reasons[0].starts_with("it stood at a limit"));
}

/// A gp3 has 500 IOPS for each GiB above 3,000. An io2 of 4 GiB with 3,600 costs 234.50 a month.
#[test]
fn evidence_of_a_small_volume_proposes_a_larger_one_if_that_is_the_cheapest() {
    let mut trace = recording(1, 60, |_| 3_000);
    for interval in &mut trace.intervals {
        interval.is_censored = Some(true);
    }
    let small = |gib: u32| spec(VolumeType::Gp3, gib, Some(3_000), Some(125));
    let up = |policy: &Policy, gib: u32| judged(policy, small(gib), trace.clone()).up.expect("one");
    let found = up(&policy(), 4);
    assert_eq!(found.spec, spec(VolumeType::Gp3, 8, Some(3_600), Some(125)));
    assert_eq!(found.monthly_micro, 3_640_000);
    // It keeps a size that suffices.
    assert_eq!(up(&policy(), 8).spec, spec(VolumeType::Gp3, 8, Some(3_600), Some(125)));
    assert_eq!(up(&policy(), 9).spec, spec(VolumeType::Gp3, 9, Some(3_600), Some(125)));
    // Its own type is meant also if the policy names another one.
    let mut other = policy();
    other.plan.types = vec![VolumeType::Io2];
    assert_eq!(up(&other, 4).spec, found.spec);
}

/// 100 GiB of gp2 earn 300 a second.
#[test]
fn evidence_says_when_credits_are_empty() {
    let gp2 = spec(VolumeType::Gp2, 100, None, None);
    // Each hour of the days has 400, and this one 1,300 in one of a hundred minutes.
    let mut trace = recording(5, 60, |minute| if minute % 60 == 7 { 1_300 } else { 400 });
    trace.intervals.last_mut().expect("a step").balance_ppm = Some(500_000);
    let found = judged(&policy(), gp2, trace.clone());
    // 2.7 million credits at 1,000 and at 100 a second.
    assert_eq!(found.credits_empty_s, Some((2_700, 27_000)));
    // Nothing is spent.
    let mut quiet = recording(5, 60, |_| 300);
    quiet.intervals.last_mut().expect("a step").balance_ppm = Some(500_000);
    assert_eq!(judged(&policy(), gp2, quiet).credits_empty_s, None);
    assert_eq!(judged(&policy(), gp3(3_000), trace).credits_empty_s, None);
    let unknown = recording(5, 60, |_| 400);
    assert_eq!(judged(&policy(), gp2, unknown).credits_empty_s, None);
}

#[test]
fn quantile_is_the_nearest_rank() {
    let all: Vec<u128> = (1..=100).collect();
    assert_eq!(quantile(&all, 500), Some(50));
    assert_eq!(quantile(&all, 990), Some(99));
    assert_eq!(quantile(&[7], 990), Some(7));
    assert_eq!(quantile(&[], 500), None);
}

#[test]
fn digest_depends_on_each_recording() {
    let first = recording(1, 60, |_| 1);
    let mut other = first.clone();
    other.intervals[1_200].reads += 1;
    let digest_of =
        |id: &str, spec: VolumeSpec, trace: &Trace| digest(&[(id.to_owned(), spec, trace.clone())]);
    let whole = digest_of("vol-1", gp3(3_000), &first);
    assert_eq!(whole.len(), 64);
    assert_eq!(whole, digest_of("vol-1", gp3(3_000), &first));
    assert_ne!(whole, digest_of("vol-1", gp3(3_000), &other));
    assert_ne!(whole, digest_of("vol-1", gp3(4_000), &first));
    assert_ne!(whole, digest_of("vol-2", gp3(3_000), &first));
}

#[test]
fn evidence_has_the_peak_with_the_headroom() {
    let busy = recording(1, 1, |second| if second == HOUR_S { 2_000 } else { 10 });
    let found = judged(&policy(), gp3(3_000), busy);
    assert_eq!(found.peak_iops, Some(2_400));
    assert_eq!(found.peak_bytes_per_s, Some(2_400 * 4_096));
    assert!(found.peak_bytes_per_s < Some(125 * MIB));
}

#[test]
fn page_has_the_answer_of_a_plan_with_the_proposed_layout() {
    let mut policy = policy();
    policy.rate.days = 1;
    policy.plan.days_min = 1;
    let volumes = [("vol-1".to_owned(), gp3(8_000), recording(2, 1, |second| 100 + second % 300))];
    let made = evidence(&policy, &volumes, None, NOW_MS);
    let down = made.volumes[0].down.clone().expect("a proposal");
    let text = page(&policy, &volumes, &made);
    assert!(text.starts_with("vol-1: 2 days, in steps of 1 s\n"), "{text}");
    assert!(text.contains("layouts carry 20 % more than that"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("gp3 200 GiB, ")).collect();
    assert!(rows[0].contains("8000 IOPS, 125 MiB/s  now"), "{text}");
    assert!(rows[1].contains("3000 IOPS, 125 MiB/s  -"), "{text}");
    assert_eq!(down.spec, gp3(3_000), "the decision rests on the same layout");
    assert!(!text.contains("modify-volume") && !text.contains("to make it"), "{text}");
}

#[test]
fn page_of_a_volume_that_needs_more_is_about_its_last_day() {
    let policy = policy();
    let mut trace = recording(3, 60, |minute| if minute < 4_200 { 100 } else { 3_000 });
    for interval in trace.intervals.iter_mut().rev().take(120) {
        interval.is_censored = Some(true);
    }
    let volumes = [("vol-1".to_owned(), gp3(3_000), trace)];
    let made = evidence(&policy, &volumes, None, NOW_MS);
    assert!(made.volumes[0].up.is_some(), "{made:?}");
    let text = page(&policy, &volumes, &made);
    assert!(text.starts_with("vol-1: 24 h, in steps of 60 s\n"), "{text}");
    assert!(text.contains("held requests back"), "{text}");
}

#[test]
fn page_of_a_recording_without_an_answer_has_the_reason() {
    let mut policy = policy();
    policy.plan.types = vec![VolumeType::St1];
    let volumes = [("vol-1".to_owned(), gp3(8_000), recording(1, 60, |_| 7_000))];
    let text = page(&policy, &volumes, &evidence(&policy, &volumes, None, NOW_MS));
    assert!(text.starts_with("vol-1: no layout: "), "{text}");
}

/// Two volumes of 1,800 IOPS each stand at the 3,600 that their m5.large sustains.
#[test]
fn volumes_that_stand_at_the_limit_of_their_instance_are_not_lowered() {
    let policy = policy();
    let volume = |id: &str| (id.to_owned(), gp3(6_000), recording(15, 60, |_| 1_800));
    let volumes = [volume("vol-1"), volume("vol-2")];
    let judged_on = |instance: &str| {
        let host = evenkeel_core::instance::by_name(instance);
        evidence(&policy, &volumes, host, NOW_MS).volumes
    };
    for judged in judged_on("m5.large") {
        assert_eq!(judged.down, None);
        let reason = judged.reasons.first().expect("a reason");
        assert!(reason.contains("stood at the 3600 IOPS that m5.large sustains"), "{reason}");
    }
    assert!(judged_on("m5.xlarge").iter().all(|judged| judged.reasons.is_empty()));
}
