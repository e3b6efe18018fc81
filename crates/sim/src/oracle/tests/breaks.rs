//! For each rule a stream of events that breaks this rule and no other.

use super::super::{Alone, Bounds, Completed, DevicePromise, DeviceWork, Sample};
use super::*;

fn breaks(rule: Rule, system: &System, events: Vec<Event>) {
    let report = judge(system, &in_time(events));
    assert_eq!(report.broken(), [rule], "{report}");
}

fn is_dispatch(event: &Event) -> bool {
    matches!(event, Event::Dispatched(_))
}

#[test]
fn ceiling_one_io_too_many() {
    let (system, mut events) = alone(VolumePromise::iops(1_000), STEADY, 3 * S);
    // 51 I/Os may be dispatched at once. Here the 52nd is dispatched with them, a millisecond
    // early.
    let at = events.iter().enumerate().filter(|(_, event)| is_dispatch(event)).nth(51);
    let (at, event) = at.map(|(at, event)| (at, event.clone())).unwrap();
    assert_eq!(event.at(), MS);
    events[at] = retimed(&event, 0);
    breaks(Rule::Ceiling, &system, events);
}

#[test]
fn first_second_with_too_much_saved() {
    let promise = VolumePromise { tolerance_ns: 100 * MS, ..VolumePromise::iops(1_000) };
    let (mut system, events) = alone(promise, STEADY, 3 * S);
    kept(&judge(&system, &events));
    system.margins.first_second_ppm = Some(50_000);
    breaks(Rule::FirstSecond, &system, events);
}

/// Five seconds that are slightly too slow, within the floor, save enough for one that is too fast,
/// within the ceiling.
#[test]
fn steady_second_that_catches_up_at_once() {
    let (system, events) = alone(VolumePromise::iops(1_000), STEADY, 8 * S);
    let slow = |event: &Event| {
        let at = event.at();
        let moved = match at.checked_sub(S) {
            Some(after) if after < 5 * S => S + after * 1_008 / 1_000,
            Some(after) if after < 6 * S => 6 * S + 40 * MS + (after - 5 * S) * 96 / 100,
            _ => at,
        };
        retimed(event, moved)
    };
    breaks(Rule::SteadySecond, &system, events.iter().map(slow).collect());
}

#[test]
fn peak_of_a_server_that_wakes_every_20_ms() {
    let system = system(&[VolumePromise::iops(1_000)]);
    let fault = Fault { grid_ns: 20 * MS, ..Fault::default() };
    let client = Client { depth: 64, ..STEADY };
    breaks(Rule::Peak10Ms, &system, serve(&system, &[client], 4 * S, MS, fault));
}

#[test]
fn floor_of_a_server_that_is_too_slow() {
    let system = system(&[VolumePromise::iops(1_000)]);
    let fault = Fault { per_mille: Some(985), ..Fault::default() };
    breaks(Rule::Floor, &system, serve(&system, &[STEADY], 10 * S, MS, fault));
    let fault = Fault { per_mille: Some(992), ..Fault::default() };
    kept(&judge(&system, &serve(&system, &[STEADY], 10 * S, MS, fault)));
}

#[test]
fn floor_of_a_reservation() {
    let reserve = |per_second, reference_cost_ns| {
        let floor = Floor::Reserved { per_second, reference_cost_ns };
        system(&[VolumePromise { floor, ..VolumePromise::iops(1_000) }])
    };
    let fault = Fault { per_mille: Some(500), ..Fault::default() };
    for (cost_ns, enough, too_much) in [(0, 500, 520), (500_000, 1_000, 1_040)] {
        let enough = reserve(enough, cost_ns);
        kept(&judge(&enough, &serve(&enough, &[STEADY], 5 * S, MS, fault)));
        let too_much = reserve(too_much, cost_ns);
        let events = serve(&too_much, &[STEADY], 5 * S, MS, fault);
        let report = judge(&too_much, &events);
        assert!(report.broken().contains(&Rule::Floor), "{report}");
    }
}

#[test]
fn credits_spent_beyond_the_last_one() {
    let balances = |units| Balances { operations: Some(units), bytes: None };
    let promise = |units| VolumePromise {
        operations: burst(3_000, 100, 5_400_000),
        balances: balances(units),
        ..VolumePromise::iops(1)
    };
    // The server has one credit more than was promised.
    let (_, events) = alone(promise(2_501), STEADY, 4 * S);
    breaks(Rule::Credits, &system(&[promise(2_500)]), events);
    // One credit less is within the promise. It could only break the floor, whose margin is one
    // I/O.
    let (_, events) = alone(promise(2_499), STEADY, 4 * S);
    kept(&judge(&system(&[promise(2_500)]), &events));
    // A tenth less is too little.
    let (_, events) = alone(promise(2_000), STEADY, 4 * S);
    breaks(Rule::Floor, &system(&[promise(2_500)]), events);
}

#[test]
fn wrongly_reported_credits_are_found() {
    let promise = VolumePromise { operations: burst(3_000, 100, 5_000), ..VolumePromise::iops(1) };
    let client = Client { depth: 1, ..STEADY };
    let (system, mut events) = alone(promise, client, S);
    let end = events.last().map(Event::at).unwrap();
    // About 3,150 credits are spent and 100 are earned. The balance is a whole number plus a
    // fraction.
    let reported = |units| {
        let units = [Some(units), None];
        Event::Sampled { at: end, sample: Sample::VolumeBalances { volume: 0, units } }
    };
    let passes = |units: u64| {
        let mut events = events.clone();
        events.push(reported(units));
        judge(&system, &events).pass()
    };
    let right = (1_900..2_100).find(|units| passes(*units)).unwrap();
    assert!(right > 1_900, "{right}");
    assert!((0..right).step_by(97).all(|units| !passes(units)));
    events.push(reported(right + 1));
    breaks(Rule::Credits, &system, events);
}

#[test]
fn hierarchy_of_a_server_that_forgets_the_host() {
    let system = shared(1_500);
    let fault = Fault { forget_instances: true, ..Fault::default() };
    let events = serve(&system, &[STEADY; 2], 3 * S, MS, fault);
    breaks(Rule::Hierarchy, &system, events);
}

#[test]
fn hierarchy_of_a_host_that_does_not_get_its_sum() {
    let best_effort = |iops| {
        let mut system = shared(iops);
        system.volumes.iter_mut().for_each(|volume| volume.floor = Floor::None);
        system
    };
    let system = best_effort(1_500);
    let slower = best_effort(1_495);
    let events = serve(&slower, &[STEADY; 2], 5 * S, MS, Fault::default());
    breaks(Rule::Hierarchy, &system, events);
}

#[test]
fn hierarchy_of_a_device_with_too_much_in_flight() {
    let volume = VolumePromise { floor: Floor::None, ..VolumePromise::iops(100_000) };
    let mut system = system(&[volume]);
    // Each takes 500 us, at up to 100,000 per second: fifty at once.
    let events = serve(&system, &[STEADY], S / 10, MS / 2, Fault::default());
    system.device = Some(DevicePromise { window_ns: 32 * MS / 2, work: None });
    breaks(Rule::Hierarchy, &system, events);
}

#[test]
fn fairness_of_a_server_with_a_favourite() {
    let system = shared(1_000);
    let fault = Fault { favour: 2, ..Fault::default() };
    let events = serve(&system, &[STEADY; 2], 5 * S, MS, fault);
    breaks(Rule::Fairness, &system, events);
}

#[test]
fn base_passed_over_by_a_burst() {
    let credits = VolumePromise {
        operations: burst(3_000, 100, 5_400_000),
        floor: Floor::None,
        ..VolumePromise::iops(1)
    };
    let floor = Floor::Reserved { per_second: 100, reference_cost_ns: 0 };
    let sure = VolumePromise { floor, ..VolumePromise::iops(1_000) };
    let mut system = system(&[credits, sure]);
    system.bounds.base_slack_ns = 50_000;
    let waits = |wait_ns: u64| {
        let mut events = Vec::new();
        for handle in 0..20 {
            for mut event in request(handle, handle * MS + wait_ns, 0, 10) {
                if let Event::Dispatched(dispatched) = &mut event {
                    dispatched.tier = Some(Tier::Burst);
                }
                events.push(event);
            }
        }
        events.extend(request(0, 0, 3 * MS, 10).iter().map(of_volume_1));
        in_time(events)
    };
    kept(&judge(&system, &waits(4 * MS)));
    breaks(Rule::BaseBeforeBurst, &system, waits(0));
    // A dispatch beyond the baseline is no base, even if it is reported as base.
    let many = (0..20).flat_map(|handle| request(handle, handle * MS, 0, 10));
    breaks(Rule::BaseBeforeBurst, &system, many.map(|event| of_volume_1(&event)).collect());
}

fn of_volume_1(event: &Event) -> Event {
    let volume = 1;
    match event {
        Event::Submitted(submitted) => Event::Submitted(Submitted { volume, ..*submitted }),
        Event::Dispatched(dispatched) => {
            let tier = Some(Tier::Base);
            Event::Dispatched(Dispatched { volume, tier, ..*dispatched })
        }
        Event::Completed(completed) => Event::Completed(Completed { volume, ..*completed }),
        other => other.clone(),
    }
}

#[test]
fn isolation_of_a_slow_answer_in_fifty() {
    let mut system = system(&[VolumePromise { floor: Floor::None, ..VolumePromise::iops(1_000) }]);
    system.alone = vec![Alone { volume: 0, p99_ns: 200_000 }];
    let answers = |slow_every: u64| {
        let service = |handle: u64| if handle % slow_every == 1 { 400_001 } else { 400_000 };
        let answer = |handle| request(handle, handle * 2 * MS, 0, service(handle));
        (0..1_000).flat_map(answer).collect::<Vec<Event>>()
    };
    kept(&judge(&system, &answers(100)));
    breaks(Rule::Isolation, &system, answers(50));
    // Forty slow answers in a row, right after a stall of the same length, and after a shorter one.
    let after = |stall_ms: u64| {
        let service = |handle: u64| if (540..580).contains(&handle) { 400_001 } else { 400_000 };
        let answer = |handle| request(handle, handle * 2 * MS, 0, service(handle));
        let from = (1_080 - stall_ms) * MS - MS;
        let to = 1_080 * MS - MS;
        let stalled = Event::Stalled { from, to, cause: super::super::Cause::Device };
        let before = (0..1_000).filter(|handle| 2 * handle * MS < from).flat_map(answer);
        let later = (540..1_000).flat_map(answer);
        before.chain([stalled]).chain(later).collect::<Vec<Event>>()
    };
    kept(&judge(&system, &after(82)));
    breaks(Rule::Isolation, &system, after(40));
}

/// Returns four channels, an urgent request at 0, and `large` large ones at once at `at_ns`.
fn beside_urgent(large: u64, at_ns: u64) -> (System, Vec<Event>) {
    let read = (100_000, 1_000);
    let write = (100_000, 1_000);
    let work = DeviceWork { channels: 4, slots_max: 6, read, write };
    let device = DevicePromise { window_ns: 10 * S, work: Some(work) };
    let promise = VolumePromise { floor: Floor::None, ..VolumePromise::iops(1_000) };
    let system = System { device: Some(device), ..system(&[promise]) };
    let mut events = Vec::new();
    for handle in 0..=large {
        let at = if handle == 0 { 0 } else { at_ns };
        let [submitted, mut dispatched, mut completed] =
            <[Event; 3]>::try_from(request(handle, at, 0, 5 * MS)).unwrap();
        let cost_ns = if handle == 0 { 104_096 } else { 500_000 };
        if let Event::Dispatched(dispatched) = &mut dispatched {
            (dispatched.device_cost_ns, dispatched.urgent) = (cost_ns, handle == 0);
        }
        if let Event::Completed(completed) = &mut completed {
            completed.device_cost_ns = cost_ns;
        }
        events.extend([submitted, dispatched, completed]);
    }
    (system, in_time(events))
}

#[test]
fn free_channel_that_a_large_request_takes() {
    let only = |(system, events): (System, Vec<Event>)| {
        let mut checkers = Checkers::only(system, &[Rule::FreeChannel]);
        events.iter().for_each(|event| checkers.observe(event));
        checkers.finish()
    };
    // Three of four channels, after the urgent request has completed.
    let report = only(beside_urgent(3, 50 * MS));
    kept(&report);
    assert_eq!(judged(&report, Rule::FreeChannel), 3);
    assert_eq!(only(beside_urgent(4, 50 * MS)).broken(), [Rule::FreeChannel]);
    // Beside the urgent request, two are allowed and three are not.
    kept(&only(beside_urgent(2, MS)));
    assert_eq!(only(beside_urgent(3, MS)).broken(), [Rule::FreeChannel]);
    // Long after the urgent request.
    let report = only(beside_urgent(4, 100 * MS));
    assert_eq!((report.pass(), judged(&report, Rule::FreeChannel)), (true, 0));
}

/// Returns a backlog at 1,000 I/Os per second that is raised to 2,000 at 2 s, when the next one is
/// due. Then `gift` I/Os are dispatched at once, and the others `late_ns` late.
fn modified(gift: u64, late_ns: u64) -> (System, Vec<Event>) {
    let (system, mut events) = alone(VolumePromise::iops(1_000), STEADY, 2 * S);
    let promise = Box::new(VolumePromise::iops(2_000));
    events.retain(|event| event.at() < 2 * S);
    events.push(Event::Modified { at: 2 * S, volume: 0, promise });
    let next = events.iter().filter(|event| is_dispatch(event)).count() as u64;
    for more in 0..2_000 {
        let at = 2 * S + late_ns + u64::saturating_sub(more, gift) * MS / 2;
        // Each dispatch is followed by another submission.
        events.push(request(next + more, at, 0, 0).remove(1));
        events.push(request(next + more + STEADY.depth as u64, at, 0, 0).remove(0));
    }
    (system, events)
}

#[test]
fn modify_that_refills() {
    let (system, events) = modified(0, 0);
    kept(&judge(&system, &events));
    let (system, events) = modified(20, 0);
    breaks(Rule::Modify, &system, events);
}

#[test]
fn modify_that_acts_late() {
    let (system, events) = modified(0, 2 * MS);
    breaks(Rule::Modify, &system, events);
}

/// If the host has room, other volumes' turns are no excuse.
#[test]
fn modify_that_acts_late_on_an_idle_host() {
    let (system, mut events) = modified(0, 2 * MS);
    let host = InstancePromise { operations: limit(10_000), ..InstancePromise::UNLIMITED };
    let mut system = System { instances: vec![host], ..system };
    system.volumes[0].instance = Some(0);
    for event in &mut events {
        if let Event::Modified { promise, .. } = event {
            promise.instance = Some(0);
        }
    }
    let report = judge(&system, &in_time(events));
    assert!(report.broken().contains(&Rule::Modify), "{report}");
}

/// A wait for a full device is not a wait for the modification; a wait for one with room is.
#[test]
fn modify_that_acts_late_beside_a_busy_device() {
    let (system, events) = modified(0, 2 * MS);
    let mut system = System { volumes: [system.volumes, vec![NEIGHBOUR]].concat(), ..system };
    let work = Some(DeviceWork { slots_max: 1_000, ..WORK });
    system.device = Some(DevicePromise { window_ns: 200 * MS, work });
    let beside = |from: u64, to: u64| {
        let mut busy = request(0, from, 0, to - from).map_volume(1);
        set_cost(&mut busy, 200 * MS);
        in_time([busy, events.clone()].concat())
    };
    // The neighbour occupies the device until the volume is dispatched.
    kept(&judge(&system, &beside(MS, 2 * S + 2 * MS)));
    let report = judge(&system, &beside(MS, 2 * S));
    assert_eq!(report.broken(), [Rule::Modify], "{report}");
}

#[test]
fn hierarchy_of_a_window_beyond_the_device() {
    let mut system = system(&[NEIGHBOUR]);
    system.device = Some(DevicePromise { window_ns: 10 * MS, work: Some(WORK) });
    let mut events: Vec<Event> = (0..5).flat_map(|handle| request(handle, 0, 0, MS)).collect();
    set_cost(&mut events, 2 * WORK.read.0);
    // Four of the dearest requests take 8 ms.
    kept(&judge(&system, &in_time(events[..12].to_vec())));
    breaks(Rule::Hierarchy, &system, events);
    // A window that is reported too small is no excuse for idle channels.
    let reported = |cost_ns| vec![Event::Sampled { at: 0, sample: Sample::Window { cost_ns } }];
    kept(&judge(&system, &reported(MS)));
    breaks(Rule::Hierarchy, &system, reported(MS / 2));
}

const NEIGHBOUR: VolumePromise = VolumePromise {
    instance: None,
    operations: None,
    bytes: None,
    guard: None,
    tolerance_ns: 50 * MS,
    balances: Balances { operations: None, bytes: None },
    floor: Floor::None,
    weight: 1,
};

/// Two channels; every request takes 1 ms.
const WORK: DeviceWork = DeviceWork { channels: 2, slots_max: 4, read: (MS, 0), write: (MS, 0) };

trait MapVolume {
    fn map_volume(self, volume: u32) -> Self;
}

impl MapVolume for Vec<Event> {
    fn map_volume(mut self, number: u32) -> Self {
        for event in &mut self {
            match event {
                Event::Submitted(Submitted { volume, .. })
                | Event::Dispatched(Dispatched { volume, .. })
                | Event::Completed(Completed { volume, .. }) => *volume = number,
                _ => {}
            }
        }
        self
    }
}

fn set_cost(events: &mut [Event], cost_ns: u64) {
    for event in events {
        match event {
            Event::Dispatched(Dispatched { device_cost_ns, .. })
            | Event::Completed(Completed { device_cost_ns, .. }) => *device_cost_ns = cost_ns,
            _ => {}
        }
    }
}

#[test]
fn starvation_by_neighbours_and_by_the_urgent_lane() {
    let mut system = system(&[VolumePromise { floor: Floor::None, ..VolumePromise::iops(1_000) }]);
    system.bounds = Bounds { wait_ns: Some(10 * MS), ..system.bounds };
    kept(&judge(&system, &request(0, 0, 10 * MS, 0)));
    breaks(Rule::NoStarvation, &system, request(0, 0, 10 * MS + 1, 0));
    // A request that is never served is found at the end.
    let mut never = request(0, 0, 0, 0)[..1].to_vec();
    let sample = Sample::Queued { volume: 0, requests: 1, bytes: None };
    never.push(Event::Sampled { at: 11 * MS, sample });
    breaks(Rule::NoStarvation, &system, never);

    system.bounds = Bounds { urgent_run: Some(8), ..system.bounds };
    let urgents = |run: u64| {
        let mut events = request(100, 0, 9 * MS, 0);
        for handle in 0..run {
            // All of them wait from the start, and the normal one was submitted before them.
            for mut event in request(handle, 0, (handle + 1) * MS / 2, 0) {
                if let Event::Dispatched(dispatched) = &mut event {
                    dispatched.urgent = true;
                }
                events.push(event);
            }
        }
        in_time(events)
    };
    kept(&judge(&system, &urgents(8)));
    breaks(Rule::NoStarvation, &system, urgents(9));
}

#[test]
fn lane_order_of_two_that_swapped() {
    let (system, mut events) = alone(VolumePromise::iops(1_000), STEADY, S);
    let gone: Vec<usize> = (0..events.len()).filter(|index| is_dispatch(&events[*index])).collect();
    let a = gone[500];
    let b = gone[501];
    let first = events[b].clone();
    let second = events[a].clone();
    (events[a], events[b]) = (retimed(&first, second.at()), retimed(&second, first.at()));
    // Their completions are swapped, too.
    let end = events.len();
    let completions: Vec<usize> =
        (0..end).filter(|index| matches!(events[*index], Event::Completed(_))).collect();
    let a = completions[500];
    let b = completions[501];
    let first = events[b].clone();
    let second = events[a].clone();
    (events[a], events[b]) = (retimed(&first, second.at()), retimed(&second, first.at()));
    breaks(Rule::ClassOrder, &system, events);
}

#[test]
fn a_queue_beyond_its_bound() {
    let promise = VolumePromise { floor: Floor::None, ..VolumePromise::iops(1_000) };
    let client = |depth| Client { depth, ..STEADY };
    let (system, events) = alone(promise, client(1_024), S / 10);
    kept(&judge(&system, &events));
    let (system, events) = alone(promise, client(1_025), S / 10);
    breaks(Rule::Bounded, &system, events);
    // 33 MiB wait.
    let (system, events) = alone(promise, Client { depth: 33, length: 1 << 20 }, S / 10);
    breaks(Rule::Bounded, &system, events);
    // Refused although there is room.
    let refused = Event::Refused { at: 0, volume: 0, length: 4 * KIB };
    breaks(Rule::Bounded, &system, vec![refused]);
    let sample = Sample::Structure { name: "timers", size: 2, bound: 1 };
    breaks(Rule::Bounded, &system, vec![Event::Sampled { at: 0, sample }]);
}
