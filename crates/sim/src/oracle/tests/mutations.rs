//! Property tests: the ideal server keeps any promise, and a rule finds any fault in its events.

use proptest::prelude::*;

use super::super::Sample;
use super::*;

/// Any kind of volume, and a client that keeps it busy.
fn volumes() -> impl Strategy<Value = (VolumePromise, Client)> {
    let rate = prop_oneof![1_u64..50, 50_u64..5_000, 5_000_u64..20_000];
    let tolerance_ms = prop_oneof![Just(1_u64), Just(5), Just(50), 1_u64..1_000];
    let credit = prop::option::of((1_u64..100, 0_u64..3_000));
    let bytes = prop::option::of((1_u64 << 16)..(1 << 26));
    let length = prop_oneof![Just(512_u32), Just(4 * KIB), Just(256 * KIB), 512_u32..(1 << 20)];
    (rate, tolerance_ms, credit, bytes, length, 1_usize..24).prop_map(
        |(rate, tolerance_ms, credit, bytes, length, depth)| {
            let operations = match credit {
                None => limit(rate),
                Some((percent, capacity)) => burst(rate, (rate * percent / 100).max(1), capacity),
            };
            let promise = VolumePromise {
                operations,
                bytes: bytes.and_then(limit),
                tolerance_ns: tolerance_ms * MS,
                ..VolumePromise::iops(1)
            };
            (promise, Client { depth: depth + 1, length })
        },
    )
}

fn alone_for(volume: (VolumePromise, Client), seconds: u64) -> (System, Vec<Event>) {
    alone(volume.0, volume.1, seconds * S)
}

/// Returns the indices of the dispatches in a stream.
fn dispatches(events: &[Event]) -> Vec<usize> {
    (0..events.len()).filter(|index| matches!(events[*index], Event::Dispatched(_))).collect()
}

proptest! {
    // A third of the volumes never waits. With many cases that exceeds the default limit on
    // rejected cases.
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_global_rejects: u32::MAX,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_ideal_server_keeps_any_promise(volume in volumes()) {
        let (system, events) = alone_for(volume, 3);
        let report = judge(&system, &events);
        prop_assert!(report.pass(), "{report}");
    }

    #[test]
    fn the_ideal_server_keeps_any_hosts_promise(
        rates in prop::collection::vec(50_u64..3_000, 2..5),
        host in 100_u64..4_000,
        credit in prop::option::of(0_u64..2_000),
        tolerance_ms in prop_oneof![Just(1_u64), Just(50), Just(500)],
    ) {
        let tolerance_ns = tolerance_ms * MS;
        let volume = |rate: &u64| {
            VolumePromise { instance: Some(0), tolerance_ns, ..VolumePromise::iops(*rate) }
        };
        let operations = match credit {
            None => limit(host),
            Some(capacity) => burst(host, (host / 3).max(1), capacity),
        };
        let instance = InstancePromise { operations, tolerance_ns, ..InstancePromise::UNLIMITED };
        let volumes: Vec<VolumePromise> = rates.iter().map(volume).collect();
        let system = System { instances: vec![instance], ..system(&volumes) };
        let events = serve(&system, &vec![STEADY; volumes.len()], 4 * S, 100_000, Fault::default());
        let report = judge(&system, &events);
        prop_assert!(report.pass(), "{report}");
    }

    /// A dispatch before its time is found, even if it is a nanosecond early.
    #[test]
    fn early_dispatch_is_caught(
        volume in volumes(), place in any::<prop::sample::Index>(), early_ns in 1_u64..2_000_000,
    ) {
        let (system, mut events) = alone_for(volume, 2);
        let gone = dispatches(&events);
        // The dispatches that waited for their time.
        let waited: Vec<usize> = gone
            .windows(2)
            .filter(|pair| events[pair[0]].at() + early_ns < events[pair[1]].at())
            .map(|pair| pair[1])
            .collect();
        prop_assume!(!waited.is_empty());
        let offset = waited[place.index(waited.len())];
        events[offset] = retimed(&events[offset].clone(), events[offset].at() - early_ns);
        let report = judge(&system, &in_time(events));
        let broken = report.broken();
        let caught = |rule: &Rule| matches!(rule, Rule::Ceiling | Rule::Credits);
        prop_assert!(broken.iter().any(caught), "{report}");
    }

    /// One I/O more than was allowed is found, at any time.
    #[test]
    fn extra_request_is_caught(volume in volumes(), place in any::<prop::sample::Index>()) {
        let (system, mut events) = alone_for(volume, 2);
        let gone = dispatches(&events);
        let offset = gone[place.index(gone.len())];
        let now = events[offset].at();
        let mut more = request(u64::MAX, now, 0, 0);
        for event in &mut more {
            if let Event::Submitted(Submitted { length, .. }) = event {
                *length = volume.1.length;
            }
            if let Event::Dispatched(like) = &events[offset]
                && let Event::Dispatched(copy) = &mut *event
            {
                *copy = Dispatched { handle: u64::MAX, direction: Direction::Write, ..*like };
            }
            if let Event::Completed(completed) = event {
                completed.length = volume.1.length;
                completed.device_cost_ns = 100_000;
            }
        }
        // After all other events of that time, so that the order of the queue stays right.
        let first = events.partition_point(|event| event.at() <= now);
        events.splice(first..first, more);
        let report = judge(&system, &events);
        // Saved tokens may allow it. Then a later one is the one too many.
        let caught = |rule: &Rule| matches!(rule, Rule::Ceiling | Rule::Credits);
        let last = gone.last().is_some_and(|last| *last == offset);
        prop_assert!(last || report.broken().iter().any(caught), "{report}");
    }

    #[test]
    fn a_lost_or_doubled_event_is_caught(
        volume in volumes(), place in any::<prop::sample::Index>(), twice: bool,
    ) {
        let (mut system, mut events) = alone_for(volume, 2);
        system.bounds.answer_ns = Some(MS);
        // Requests that wait at the end are no fault. All dispatched ones are answered.
        let answered = events.iter().filter(|event| matches!(event, Event::Completed(_))).count();
        prop_assert_eq!(answered, dispatches(&events).len());
        events.push(Event::Sampled { at: 3 * S, sample: Sample::InFlight { cost_ns: 0 } });
        let served: Vec<usize> = (0..events.len() - 1)
            .filter(|index| {
                let handle = match &events[*index] {
                    Event::Submitted(submitted) => submitted.handle,
                    Event::Dispatched(dispatched) => dispatched.handle,
                    Event::Completed(completed) => completed.handle,
                    _ => return false,
                };
                (handle as usize) < answered
            })
            .collect();
        let offset = served[place.index(served.len())];
        if twice {
            events.insert(offset, events[offset].clone());
        } else {
            events.remove(offset);
        }
        let report = judge(&system, &events);
        prop_assert!(report.broken().contains(&Rule::Conservation), "{report}");
    }

    /// Changes between two rates while idle or busy yield nothing if nothing is refilled. A refill
    /// is found.
    #[test]
    fn a_refill_at_a_modification_is_caught(
        low in 20_u64..2_000, factor in 2_u64..10, refilled: bool,
    ) {
        let high = low * factor;
        let system = system(&[VolumePromise::iops(low)]);
        let change = |at, rate| {
            let promise = VolumePromise { floor: Floor::None, ..VolumePromise::iops(rate) };
            Event::Modified { at, volume: 0, promise: Box::new(promise) }
        };
        // All saved tokens are used at once. After the rate is raised, they are used again if that
        // refills them.
        let mut events = Vec::new();
        let mut handle = 0;
        let mut at_once = |events: &mut Vec<Event>, at: u64, count: u64| {
            for _ in 0..count {
                events.extend(request(handle, at, 0, 0));
                handle += 1;
            }
        };
        at_once(&mut events, 0, low / 20 + 1);
        events.push(change(0, high));
        if refilled {
            at_once(&mut events, 0, 1);
        }
        events.push(change(0, low));
        // One more after the debt is paid.
        let debt = (low / 20 + 1) * S - low * 50 * MS;
        at_once(&mut events, debt.div_ceil(low), 1);
        let report = judge(&system, &events);
        prop_assume!(debt > 0);
        prop_assert_eq!(report.broken().contains(&Rule::Modify), refilled, "{}", report);
    }
}
