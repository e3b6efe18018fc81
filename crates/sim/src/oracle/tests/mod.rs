//! A stream that keeps the promise passes. A stream that breaks one rule is found by that rule, and
//! by no other.

mod breaks;
mod mutations;
mod recorded;
mod reference;

use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit};

use self::reference::{Client, Fault, MS, S, completion, serve};
use super::{
    Checkers, Direction, Dispatched, Event, Floor, InstancePromise, Report, Rule, Submitted,
    System, Tier, VolumePromise,
};

const KIB: u32 = 1 << 10;
const STEADY: Client = Client { depth: 8, length: 4 * KIB };

fn limit(per_second: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: None })
}

fn burst(per_second: u64, refill_per_second: u64, capacity: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: Some(CreditLimit { refill_per_second, capacity }) })
}

fn system(volumes: &[VolumePromise]) -> System {
    System { volumes: volumes.to_vec(), ..System::default() }
}

/// Two volumes of 1,000 I/Os per second on a host of `iops`.
fn shared(iops: u64) -> System {
    let volume_promise = VolumePromise { instance: Some(0), ..VolumePromise::iops(1_000) };
    let host = InstancePromise { operations: limit(iops), ..InstancePromise::UNLIMITED };
    System { instances: vec![host], ..system(&[volume_promise, volume_promise]) }
}

fn judge(system: &System, events: &[Event]) -> Report {
    let mut checkers = Checkers::new(system.clone());
    events.iter().for_each(|event| checkers.observe(event));
    checkers.finish()
}

/// Serves one volume without neighbours.
fn alone(promise: VolumePromise, client: Client, length_ns: u64) -> (System, Vec<Event>) {
    let system = system(&[promise]);
    let events = serve(&system, &[client], length_ns, 100_000, Fault::default());
    (system, events)
}

/// Returns the events of a request that waits for `wait_ns` and is served in `service_ns`.
fn request(handle: u64, at: u64, wait_ns: u64, service_ns: u64) -> Vec<Event> {
    let submitted = Submitted {
        at,
        volume: 0,
        instance: u32::MAX,
        handle,
        direction: Direction::Write,
        offset: handle << 20,
        length: 4 * KIB,
    };
    let dispatched = Dispatched {
        at: at + wait_ns,
        volume: 0,
        instance: u32::MAX,
        handle,
        direction: Direction::Write,
        length: 4 * KIB,
        operations: 1,
        bytes: u64::from(4 * KIB),
        guard: 0,
        device_cost_ns: 0,
        tier: None,
        urgent: false,
        last: true,
    };
    let completed = completion(&dispatched, at + wait_ns + service_ns);
    vec![Event::Submitted(submitted), Event::Dispatched(dispatched), Event::Completed(completed)]
}

/// Sorts events by time. Events of the same time keep their order.
fn in_time(mut events: Vec<Event>) -> Vec<Event> {
    events.sort_by_key(Event::at);
    events
}

fn kept(report: &Report) {
    assert!(report.pass(), "{report}");
}

fn judged(report: &Report, rule: Rule) -> u64 {
    report.finding(rule).map_or(0, |finding| finding.judged)
}

#[test]
fn the_ideal_server_keeps_every_rule() {
    let (system, events) = alone(VolumePromise::iops(1_000), STEADY, 5 * S);
    let report = judge(&system, &events);
    kept(&report);
    for rule in [
        Rule::Ceiling,
        Rule::FirstSecond,
        Rule::SteadySecond,
        Rule::Peak10Ms,
        Rule::Floor,
        Rule::ClassOrder,
        Rule::Conservation,
        Rule::Bounded,
    ] {
        assert!(judged(&report, rule) > 0, "{rule} judged nothing");
    }
    assert_eq!(judged(&report, Rule::FirstSecond), 1);
    assert!(report.checks().iter().all(|check| check.pass));
}

#[test]
fn credits_end_in_the_middle_of_it() {
    let balances = Balances { operations: Some(2_500), bytes: None };
    let promise = VolumePromise {
        operations: burst(3_000, 100, 5_400_000),
        balances,
        ..VolumePromise::iops(1)
    };
    let (system, events) = alone(promise, STEADY, 4 * S);
    let report = judge(&system, &events);
    kept(&report);
    assert!(judged(&report, Rule::Credits) > 2_500);
    // 3,000 a second are spent and 100 are earned. The balance lasts 0.862 s, less the saved
    // tokens.
    let served = |from: u64, to: u64| {
        let in_it = |event: &&Event| (from..to).contains(&event.at());
        let gone = |event: &&Event| matches!(event, Event::Dispatched(_));
        events.iter().filter(gone).filter(in_it).count()
    };
    assert!((2_600..=2_601).contains(&served(0, S)), "{}", served(0, S));
    assert_eq!(served(2 * S, 3 * S), 100);
}

#[test]
fn a_saturated_host_is_shared() {
    let system = shared(1_500);
    let events = serve(&system, &[STEADY; 2], 5 * S, 100_000, Fault::default());
    let report = judge(&system, &events);
    kept(&report);
    assert!(judged(&report, Rule::Fairness) > 0 && judged(&report, Rule::Hierarchy) > 7_000);
}

/// A reported stall costs a volume nothing: it catches up with the time.
#[test]
fn a_stall_is_made_whole() {
    let tolerance_ns = 5 * MS;
    let promise = VolumePromise { tolerance_ns, ..VolumePromise::iops(1_000) };
    let (system, events) = alone(promise, STEADY, 4 * S);
    // Nothing is dispatched from 2.0 to 2.1 s. Until 2.5 s five are dispatched in the time of four.
    let stalled = Event::Stalled { from: 2 * S, to: 2 * S + 100 * MS, cause: super::Cause::Ours };
    let late = |event: &Event| {
        let at = event.at();
        let moved = match at.checked_sub(2 * S) {
            Some(after) if after < 500 * MS => 2 * S + 100 * MS + after * 4 / 5,
            _ => at,
        };
        retimed(event, moved)
    };
    let mut moved: Vec<Event> = events.iter().map(late).collect();
    moved.insert(moved.partition_point(|event| event.at() < 2 * S), stalled);
    let report = judge(&system, &in_time(moved.clone()));
    kept(&report);
    // Without its report, the stall breaks the floor, and the catch-up is a burst.
    moved.retain(|event| !matches!(event, Event::Stalled { .. }));
    let report = judge(&system, &in_time(moved));
    assert!(report.broken().contains(&Rule::Floor), "{report}");
    // A rate above the catch-up rate is a violation.
    let rushed = |event: &Event| {
        let at = event.at();
        let moved = match at.checked_sub(2 * S) {
            Some(after) if after < 200 * MS => 2 * S + 100 * MS + after / 2,
            _ => at,
        };
        retimed(event, moved)
    };
    let mut moved: Vec<Event> = events.iter().map(rushed).collect();
    let stalled = Event::Stalled { from: 2 * S, to: 2 * S + 100 * MS, cause: super::Cause::Ours };
    moved.insert(moved.partition_point(|event| event.at() < 2 * S), stalled);
    assert_eq!(judge(&system, &in_time(moved)).broken(), [Rule::Ceiling]);
}

/// Returns the event with another time.
fn retimed(event: &Event, at: u64) -> Event {
    match event {
        Event::Submitted(submitted) => Event::Submitted(Submitted { at, ..*submitted }),
        Event::Dispatched(dispatched) => Event::Dispatched(Dispatched { at, ..*dispatched }),
        Event::Completed(completed) => Event::Completed(super::Completed { at, ..*completed }),
        other => other.clone(),
    }
}

#[test]
fn a_report_says_whose_when_and_what() {
    let (system, mut events) = alone(VolumePromise::iops(1_000), STEADY, 2 * S);
    let index = events.iter().position(|event| matches!(event, Event::Completed(_))).unwrap();
    events.remove(index);
    let twice = events.iter().find(|event| matches!(event, Event::Completed(_))).cloned();
    events.extend(twice);
    let report = judge(&system, &events);
    assert_eq!(report.broken(), [Rule::Conservation]);
    let text = report.to_string();
    assert!(text.contains("FAIL conservation of requests: broken 1 times"), "{text}");
    assert!(text.contains("volume 0, at") && text.contains("promised:"), "{text}");
    let check = report.checks().into_iter().find(|check| !check.pass).unwrap();
    assert_eq!(check.name, "conservation of requests");
}

#[test]
fn checkers_survive_impossible_events() {
    // Events of volumes that do not exist, at times that step back.
    let mut events = request(7, 5 * S, MS, MS);
    events.extend(request(7, S, 0, 0));
    events.push(Event::Removed { at: 0, volume: u32::MAX });
    let promise = Box::new(VolumePromise::iops(u64::MAX));
    events.push(Event::Added { at: 1, volume: u32::MAX, promise: promise.clone() });
    events.push(Event::Modified { at: u64::MAX, volume: 0, promise: promise.clone() });
    events.push(Event::Added { at: u64::MAX, volume: 0, promise });
    events.extend(request(7, u64::MAX, 0, 0));
    events.push(Event::Credited { at: 3, volume: 9, units: [Some(u64::MAX); 2] });
    for rules in [&Rule::ALL[..], &[Rule::Ceiling], &[]] {
        let mut checkers = Checkers::only(System::default(), rules);
        events.iter().for_each(|event| checkers.observe(event));
        assert_eq!(checkers.finish().findings.len(), rules.len());
    }
}
