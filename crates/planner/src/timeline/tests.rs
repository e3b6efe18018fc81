//! Timelines, compared with a queue before one limit, a millisecond at a time.

use evenkeel_core::volume::VolumeType;
use proptest::prelude::*;

use super::*;
use crate::fluid::MICRO;
use crate::search::replay;
use crate::testing::{S, layout, seconds, space};
use crate::trace::{Clock, Columns, Interval};

fn timeline(all: &[(u64, u64)], volume_type: VolumeType, step_us: u64) -> Timeline {
    let gib = if volume_type == VolumeType::Gp2 { 10 } else { 100 };
    Timeline::of(&space(&[], 1), &seconds(all), &layout(1, volume_type, gib, None), step_us)
}

#[test]
fn a_busy_second_is_served_in_those_that_follow() {
    let all = [(1_000, 4), (7_500, 4), (0, 4), (1_000, 4), (0, 4)];
    let timeline = timeline(&all, VolumeType::Gp3, S);
    let of = |pick: fn(&Step) -> u128| timeline.steps.iter().map(pick).collect::<Vec<_>>();
    assert_eq!(of(|it| it.asked.operations / MICRO), [1_000, 7_500, 0, 1_000, 0]);
    assert_eq!(of(|it| it.served.operations / MICRO), [1_000, 3_000, 3_000, 2_500, 0]);
    assert_eq!(of(|it| it.queue.operations / MICRO), [0, 4_500, 1_500, 0, 0]);
    assert_eq!(of(|it| u128::from(it.delay_us / 1_000)), [0, 1_500, 0, 500, 0]);
    let first = timeline.first.expect("it waits");
    assert_eq!((first.start_us, first.limit), (S, LimitKind::VolumeIops));
    // 1,500 are left at 3 s. Then 1,000 per second arrive, and 3,000 per second are served.
    let end_us = 3 * S + 750_000;
    assert!(first.end_us.abs_diff(end_us) < 5 && timeline.episodes == 1, "{timeline:?}");
    assert_eq!(timeline.longest, timeline.first);
    assert_eq!(timeline.steps[1].binding(), Some(0));
    assert_eq!(timeline.steps[4].binding(), None);
    assert_eq!(timeline.steps[4].least_balance_ppm(), None, "gp3 has no credits");
    assert_eq!(timeline.end_us, 5 * S);
}

#[test]
fn credits_are_spent_and_earned() {
    // 10 GiB of gp2 earn 100 per second and save 5.4 million.
    let mut all = vec![(3_000, 4); 100];
    all.extend([(0, 4); 300]);
    let timeline = timeline(&all, VolumeType::Gp2, 100 * S);
    let left: Vec<_> = timeline.steps.iter().map(|step| step.balance_ppm(0)).collect();
    let after = |spent: u32| Some(((5_400_000 - u64::from(spent)) * 1_000_000 / 5_400_000) as u32);
    assert_eq!(left, [after(290_000), after(280_000), after(270_000), after(260_000)]);
    assert_eq!(timeline.steps[1].balance_ppm(1), None, "its MiB/s have no credits");
    assert!(timeline.first.is_none());
}

#[test]
fn what_is_left_at_the_end_is_told() {
    let timeline = timeline(&[(9_000, 4)], VolumeType::Gp3, S);
    assert_eq!((timeline.steps.len(), timeline.end_us), (1, 3 * S));
    assert_eq!(timeline.steps[0].queue.operations / MICRO, 6_000);
    assert_eq!(timeline.steps[0].waited_us(), S);
    let nothing = Demand { spans: vec![], length_us: 0, held_back: None };
    let gp3 = layout(1, VolumeType::Gp3, 100, None);
    assert_eq!(Timeline::of(&space(&[], 1), &nothing, &gp3, 0).steps.len(), 1);
    let years = Demand { length_us: 1_000_000_000_000_000, ..nothing };
    assert_eq!(least_step_us(&years), 3_334 * S);
    let long = Timeline::of(&space(&[], 1), &years, &gp3, 1);
    assert!(long.steps.len() as u64 <= STEPS_MAX);
}

#[test]
fn gaps_are_in_the_times_and_not_in_the_demand() {
    let minute =
        |at: u64| Interval { start_ms: at * 60_000, length_ms: 60_000, ..Interval::default() };
    let minutes = [10, 11, 20, 30].map(minute).to_vec();
    let trace = Trace::new("v", Clock::Unix, Columns::default(), minutes).expect("a trace");
    let times = Times::of(&trace);
    for (minute, of_trace) in [(0, 10), (1, 11), (2, 20), (3, 30), (4, 31)] {
        assert_eq!(times.ms(minute * 60 * S), of_trace * 60_000);
        assert_eq!(times.us(of_trace * 60_000), minute * 60 * S);
    }
    assert_eq!((times.us(0), times.us(15 * 60_000)), (0, 120 * S));
}

proptest! {
    #[test]
    fn nothing_is_lost_and_the_replay_is_the_same(
        all in proptest::collection::vec((0..12_000_u64, 1..300_u64), 1..20),
        kind in 0..4_usize,
        volumes in 1..4_u32,
        step_us in prop_oneof![Just(S), Just(250_000), Just(3 * S), 100_000..5 * S],
    ) {
        let layout = match kind {
            0 => layout(volumes, VolumeType::Gp3, 100, None),
            1 => layout(volumes, VolumeType::Gp2, 20, None),
            2 => layout(volumes, VolumeType::Io1, 100, Some(1_500)),
            _ => layout(volumes, VolumeType::St1, 500, None),
        };
        let demand = seconds(&all);
        let space = space(&[], 1);
        let timeline = Timeline::of(&space, &demand, &layout, step_us);
        let (limits, outcome) = replay(&space, &demand, &layout);
        prop_assert_eq!(&timeline.limits, &limits);
        let pieces = 30 * (all.len() as u64 + 1);
        let end_us = outcome.end_us.max(demand.length_us);
        prop_assert!(timeline.end_us.abs_diff(end_us) <= pieces, "{} {end_us}", timeline.end_us);
        let pacing = space.rules.pacing(&layout.each);
        let parts = demand.parts(pacing.counting, layout.share(&space));
        let asked: u128 = parts.map(|part| part.operations).sum();
        let sum = |pick: fn(&Step) -> u128| timeline.steps.iter().map(pick).sum::<u128>();
        prop_assert_eq!(sum(|it| it.asked.operations), asked);
        let last = timeline.steps.last().expect("a step");
        prop_assert_eq!(sum(|it| it.served.operations) + last.queue.operations, asked);
        let waited: u64 = timeline.steps.iter().map(Step::waited_us).sum();
        let most = outcome.waited_us();
        prop_assert!(waited <= most + pieces, "{waited} {most}");
        // The waiting time that is not in the steps is after them.
        let after = timeline.end_us - demand.length_us;
        prop_assert!(waited + after + pieces >= most, "{waited} {after} {most}");
        for step in &timeline.steps {
            prop_assert!(step.waited_us() <= step.length_us + 30, "{step:?}");
        }
        // A window has the same steps as the whole.
        let from = all.len() / 3;
        let window = (from as u64 * step_us, (from as u64 + 2) * step_us);
        if window.1 <= demand.length_us {
            let part = Timeline::within(&space, &demand, &layout, step_us, window);
            let whole = &timeline.steps[from..from + 2];
            prop_assert_eq!(part.steps.len(), 2);
            for (one, other) in part.steps.iter().zip(whole) {
                // Earlier times are read at different points, so microseconds differ.
                let near = |one: u128, other: u128| one.abs_diff(other) <= 20_000 * MICRO / 1_000;
                let (queue, expected) = (one.queue.operations, other.queue.operations);
                prop_assert!(near(queue, expected), "{one:?} {other:?}");
                prop_assert!(near(one.served.operations, other.served.operations));
                prop_assert!(one.waited_us().abs_diff(other.waited_us()) <= 100);
                let [one, other] = [one, other].map(|it| it.least_balance_ppm().unwrap_or(0));
                // Credits are read when the arrivals are served: those of a second are 600 ppm.
                prop_assert!(one.abs_diff(other) <= 5_000, "{one} {other}");
            }
        }
    }

    #[test]
    fn queues_are_those_of_milliseconds(
        all in proptest::collection::vec(0..9_000_u64, 1..15),
    ) {
        let demand: Vec<(u64, u64)> = all.iter().map(|requests| (*requests, 4)).collect();
        let timeline = timeline(&demand, VolumeType::Gp3, S);
        let mut queue = 0_u64;
        for (second, requests) in all.iter().enumerate() {
            let mut served = 0;
            for _ in 0..1_000 {
                // Thousandths of requests; 3,000 per second are 3 per millisecond.
                queue += requests;
                let now = queue.min(3_000);
                queue -= now;
                served += now;
            }
            let step = &timeline.steps[second];
            let milli = |one: u128| one / (MICRO / 1_000);
            let near = |one: u128, other: u64| milli(one).abs_diff(other.into()) < 8_000;
            prop_assert!(near(step.queue.operations, queue), "{second} {step:?} {queue}");
            prop_assert!(near(step.served.operations, served), "{second} {step:?} {served}");
        }
    }
}
