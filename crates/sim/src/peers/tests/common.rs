//! What holds for every model: nothing is lost, invented or reordered, nothing waits for ever, and
//! the same inputs give the same outputs.

use std::collections::BTreeMap;

use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use proptest::prelude::*;

use super::super::crucible::Crucible;
use super::super::firecracker::Firecracker;
use super::super::gcra::Gcra;
use super::super::isolation_table::{NEIGHBOUR_SCHEMES, RESERVATION_SCHEMES};
use super::super::librbd::Librbd;
use super::super::limited::{Limited, QUEUE_REQUESTS_MAX, Rates};
use super::super::nbdkit::Nbdkit;
use super::super::product;
use super::super::qemu::Qemu;
use super::super::spdk::Spdk;
use super::super::windowed::Share;
use crate::world::policy::{Dispatch, Policy, Request};

const VOLUMES: u32 = 3;

/// Every model with three volumes, and whether it keeps the order of a volume's requests.
fn models() -> Vec<(&'static str, Box<dyn Policy>, bool)> {
    let rates = [
        Rates::operations(500),
        Rates { operations: Some(2_000), bytes: Some(8 << 20) },
        Rates::bytes(4 << 20),
    ];
    let zero = Instant::ZERO;
    let mut models: Vec<(&'static str, Box<dyn Policy>, bool)> = vec![
        ("Firecracker 1 s", Box::new(Limited::<Firecracker<1_000>>::new(zero, &rates)), true),
        ("Firecracker 0.1 s", Box::new(Limited::<Firecracker<100>>::new(zero, &rates)), true),
        ("SPDK", Box::new(Limited::<Spdk>::new(zero, &rates)), true),
        ("QEMU", Box::new(Limited::<Qemu>::new(zero, &rates)), true),
        ("librbd", Box::new(Limited::<Librbd>::new(zero, &rates)), true),
        ("Crucible", Box::new(Limited::<Crucible>::new(zero, &rates)), true),
        ("GCRA", Box::new(Limited::<Gcra>::new(zero, &rates)), true),
        ("nbdkit", Box::new(Nbdkit::new(zero, &rates)), false),
        ("evenkeel", Box::new(product::limited(&rates, Duration::from_ms(50))), true),
    ];
    let share = |reservation| Share { weight: 2, reservation, limit: 5_000 };
    let shares = [share(100), share(0), Share::weight(1)];
    for scheme in NEIGHBOUR_SCHEMES.iter().chain(&RESERVATION_SCHEMES) {
        // On a device the product lets small urgent writes pass others of their volume.
        let in_order = !scheme.name.starts_with("evenkeel");
        models.push((scheme.name, (scheme.build)(&shares), in_order));
    }
    models
}

/// A request of a test: time since the last one, volume, operation, length.
type TestRequest = (u64, u32, Operation, u32);

fn requests() -> impl Strategy<Value = Vec<TestRequest>> {
    let fua = false;
    let operation = prop_oneof![
        4 => Just(Operation::Read),
        4 => Just(Operation::Write { fua }),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Discard { fua }),
    ];
    let request = (0u64..5_000_000, 0..VOLUMES, operation, 1u32..256).prop_map(
        |(pause_ns, volume, operation, sectors)| {
            let length = if operation == Operation::Flush { 0 } else { sectors * 4_096 };
            (pause_ns, volume, operation, length)
        },
    );
    prop::collection::vec(request, 1..120)
}

/// Sends the requests, serves what comes out 200 us later, and returns all dispatches with their
/// times once nothing is left to wait for.
fn drive(policy: &mut dyn Policy, requests: &[TestRequest]) -> (Vec<(Instant, Dispatch)>, u32) {
    let mut now = Instant::ZERO;
    let mut out: Vec<(Instant, Dispatch)> = Vec::new();
    let mut served = 0;
    let mut taken = 0;
    let mut arrivals = requests.iter().scan(Instant::ZERO, |at, request| {
        *at = *at + Duration::from_ns(request.0);
        Some((*at, request))
    });
    let mut arrival = arrivals.next();
    for _ in 0..1_000_000 {
        while let Some(dispatch) = policy.poll_output() {
            out.push((now, dispatch));
        }
        let done = out.get(served).map(|(at, _)| *at + Duration::from_us(200));
        let timer = policy.poll_timeout().map(|at| at.max(now));
        // Periodic limiters never stop asking; once all is served there is nothing to wait for.
        let idle = arrival.is_none() && done.is_none();
        let finished = idle && out.iter().filter(|(_, d)| d.last).count() == taken as usize;
        let next = [arrival.map(|(at, _)| at), done, timer].into_iter().flatten().min();
        let Some(next) = next.filter(|_| !finished) else { return (out, taken) };
        now = next;
        if done == Some(now) {
            let dispatch = out[served].1;
            served += 1;
            policy.complete(now, &dispatch, Duration::from_us(200));
        } else if let Some((_, &(_, volume, operation, length))) =
            arrival.filter(|(at, _)| *at == now)
        {
            let (instance, offset) = (volume, 0);
            let request = Request { volume, instance, operation, offset, length, handle: taken };
            assert!(policy.submit(now, &request));
            taken += 1;
            arrival = arrivals.next();
        } else {
            policy.poll(now);
        }
    }
    panic!("requests that never leave");
}

/// What is wrong with the dispatches, if anything.
fn faults(requests: &[TestRequest], out: &[(Instant, Dispatch)], in_order: bool) -> Option<String> {
    let mut done: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
    let mut newest = [None; VOLUMES as usize];
    for (_, dispatch) in out {
        let (_, volume, operation, _) = requests[dispatch.handle as usize];
        if (dispatch.volume, dispatch.operation) != (volume, operation) {
            return Some(format!("{dispatch:?} is of volume {volume}: {operation:?}"));
        }
        let (bytes, last) = done.entry(dispatch.handle).or_default();
        if *last || *bytes != dispatch.offset {
            return Some(format!("{dispatch:?} after {bytes} bytes, last: {last}"));
        }
        *bytes += u64::from(dispatch.length);
        *last = dispatch.last;
        let newest = &mut newest[volume as usize];
        if in_order && newest.is_some_and(|newest| newest > dispatch.handle) {
            return Some(format!("{dispatch:?} after request {newest:?}"));
        }
        *newest = Some(dispatch.handle);
    }
    for (handle, (_, _, _, length)) in requests.iter().enumerate() {
        if done.get(&(handle as u32)) != Some(&(u64::from(*length), true)) {
            return Some(format!(
                "request {handle} of {length} bytes: {:?}",
                done.get(&(handle as u32))
            ));
        }
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_request_leaves_once_and_whole(requests in requests()) {
        for (name, mut policy, in_order) in models() {
            let (out, taken) = drive(policy.as_mut(), &requests);
            prop_assert_eq!(taken as usize, requests.len());
            let faults = faults(&requests, &out, in_order);
            prop_assert!(faults.is_none(), "{}: {}", name, faults.unwrap_or_default());
        }
    }

    #[test]
    fn the_same_requests_leave_at_the_same_times(requests in requests()) {
        for ((name, mut one, _), (_, mut other, _)) in models().into_iter().zip(models()) {
            let (one, other) = (drive(one.as_mut(), &requests), drive(other.as_mut(), &requests));
            prop_assert_eq!(one, other, "{}", name);
        }
    }
}

#[test]
fn no_queue_grows_without_bound() {
    for (name, mut policy, _) in models() {
        let request = |handle| Request {
            volume: 2,
            instance: 0,
            operation: Operation::Read,
            offset: 0,
            length: 1 << 20,
            handle,
        };
        let mut refused = None;
        for handle in 0..20_000 {
            if !policy.submit(Instant::ZERO, &request(handle)) {
                refused = Some(handle);
                break;
            }
            // What left at once is not in the queue.
            while policy.poll_output().is_some() {}
        }
        // First come, first served without a window: the clients are its bound.
        let unbounded = name.starts_with("first come");
        assert_eq!(refused.is_none(), unbounded, "{name}: refused {refused:?}");
        let most = 2 * QUEUE_REQUESTS_MAX as u32;
        assert!(unbounded || refused.is_some_and(|refused| refused <= most), "{name}: {refused:?}");
    }
}

#[test]
fn a_volume_that_does_not_exist_is_refused() {
    for (name, mut policy, _) in models() {
        let request = Request {
            volume: VOLUMES,
            instance: 0,
            operation: Operation::Read,
            offset: 0,
            length: 4_096,
            handle: 0,
        };
        assert!(!policy.submit(Instant::ZERO, &request), "{name}");
        assert_eq!(policy.poll_output(), None, "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_figures() {
    use super::super::bench::{Load, Noise};
    use super::super::limiter_table::SCHEMES;

    let load = Load { warm_up_s: 1, measured_s: 2, ..Load::new(3_000, 32) };
    let noise = Noise::new();
    for scheme in &SCHEMES {
        let figures = scheme.run(&load, &noise, 7);
        assert_eq!(figures, scheme.run(&load, &noise, 7), "{}", scheme.name);
        assert!(figures.dispatched > 8_000, "{}: {figures:?}", scheme.name);
    }
    let other = SCHEMES[0].run(&load, &noise, 8);
    assert_ne!(other, SCHEMES[0].run(&load, &noise, 7));
}

/// What the command prints: a row for each scheme, a cell for each column, the same for a seed.
#[test]
fn the_main_table_is_whole_and_repeatable() {
    use super::super::bench::Noise;
    use super::super::limiter_table::{SCHEMES, main_section};

    let section = main_section(&Noise::new(), 3);
    assert_eq!(section.rows.len(), SCHEMES.len());
    for row in &section.rows {
        assert_eq!(row.len(), section.columns.len());
        assert!(row.iter().skip(1).all(|cell| cell.value.is_some()), "{row:?}");
    }
    assert_eq!(section, main_section(&Noise::new(), 3));
}
