//! Behaviour of the scheduler in single situations.

use std::collections::BTreeMap;

use evenkeel_core::limits::VOLUME_QUEUED_REQUESTS_MAX;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{
    Counters, Io, Scheduler, SubmitError, TURN_DISPATCHES_MAX, VolumeIndex,
};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;

use crate::driver::{KIB, NS_PER_S, at, drain, limit, one, pacing, read, run_until};

/// 12: due volumes take turns: none is more than two turns of dispatches ahead of another.
#[test]
fn p12_volumes_take_turns() {
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let mut closed = Vec::new();
    for _ in 0..100 {
        let volume = scheduler.add(at(0), &pacing(limit(0), None), Balances::default()).unwrap();
        for handle in 0..200u32 {
            scheduler.submit(at(0), volume, read(handle, u64::from(handle) << 30, KIB)).unwrap();
        }
        closed.push(volume);
    }
    assert_eq!(drain(&mut scheduler), []);
    assert_eq!(scheduler.poll_timeout(), None, "a closed volume waits for nothing");
    for volume in &closed {
        scheduler.set_limits(at(0), *volume, &Pacing::UNLIMITED);
    }
    let mut served: BTreeMap<VolumeIndex, u32> = BTreeMap::new();
    let mut order = Vec::new();
    let mut polls = 0;
    while scheduler.poll_timeout() == Some(at(0)) {
        for dispatch in drain(&mut scheduler) {
            *served.entry(dispatch.volume).or_default() += 1;
            order.push(dispatch.volume);
        }
        scheduler.poll(at(0));
        polls += 1;
    }
    for dispatch in drain(&mut scheduler) {
        *served.entry(dispatch.volume).or_default() += 1;
        order.push(dispatch.volume);
    }
    assert!(polls >= 18, "20,000 dispatches in polls of at most 1,024: {polls}");
    assert!(closed.iter().all(|volume| served[volume] == 200));
    let mut count: BTreeMap<VolumeIndex, u32> = BTreeMap::new();
    for volume in order {
        *count.entry(volume).or_default() += 1;
        let least = closed.iter().map(|volume| count.get(volume).copied().unwrap_or(0)).min();
        let ahead = count[&volume] - least.unwrap_or(0);
        assert!(ahead <= 2 * TURN_DISPATCHES_MAX, "{volume:?} is {ahead} ahead of the last");
    }
}

/// 14 and 16: a large request is dispatched in quanta that are charged one by one, and a raised
/// limit wakes it at once.
#[test]
fn a_large_request_goes_in_quanta() {
    let (mut scheduler, volume) = one(&pacing(limit(10), None));
    scheduler.submit(at(0), volume, read(7, 1 << 20, 1 << 20)).unwrap();
    let first = drain(&mut scheduler);
    assert_eq!(first.len(), 1, "half a token was saved");
    assert_eq!((first[0].offset, first[0].length, first[0].last), (1 << 20, 256 * KIB, false));
    let rest = run_until(&mut scheduler, NS_PER_S);
    let times: Vec<u64> = rest.iter().map(|(now, _)| *now / 1_000_000).collect();
    assert_eq!(times, [50, 150, 250]);
    let last: Vec<bool> = rest.iter().map(|(_, dispatch)| dispatch.last).collect();
    assert_eq!(last, [false, false, true]);
    let counters = scheduler.counters(volume);
    assert_eq!((counters.operations, counters.requests, counters.bytes_read), (4, 1, 1 << 20));
}

#[test]
fn quanta_of_a_larger_unit_are_paid_by_the_first() {
    let counting =
        CountingRule { unit_bytes: 1 << 20, merge_bytes_min: 1, charge_whole_units: true };
    let (mut scheduler, volume) = one(&Pacing { counting, ..pacing(None, limit(1 << 20)) });
    scheduler.submit(at(0), volume, read(0, 0, 1 << 20)).unwrap();
    scheduler.submit(at(0), volume, read(1, 1 << 20, 512 * KIB)).unwrap();
    assert_eq!(drain(&mut scheduler).len(), 4);
    // The first unit leaves a debt of 0.95 MiB. The first quantum of the second unit pays all of
    // it, so both quanta leave at 950 ms.
    let later = run_until(&mut scheduler, 2 * NS_PER_S);
    let times: Vec<u64> = later.iter().map(|(now, _)| *now).collect();
    assert_eq!(times, [950_000_000; 2]);
}

#[test]
fn removing_a_volume_returns_waiting_requests_once_and_ends_its_index() {
    let (mut scheduler, volume) = one(&pacing(limit(10), None));
    scheduler.submit(at(0), volume, read(1, 0, 1 << 20)).unwrap();
    scheduler.submit(at(0), volume, read(2, 0, 4 * KIB)).unwrap();
    assert_eq!(drain(&mut scheduler).len(), 1, "a quantum of the first is on its way");
    assert_eq!(scheduler.remove(at(1), volume).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(scheduler.poll_timeout(), None);
    assert_eq!(scheduler.remove(at(1), volume).count(), 0);

    let next = scheduler.add(at(2), &pacing(limit(10), None), Balances::default()).unwrap();
    assert_ne!(next, volume);
    let stale = scheduler.submit(at(2), volume, read(3, 0, 1));
    assert_eq!(stale, Err(SubmitError::NoSuchVolume));
    assert_eq!(scheduler.counters(volume), Counters::default());
    scheduler.set_limits(at(2), volume, &Pacing::UNLIMITED);
    scheduler.submit(at(2), next, read(4, 0, 1)).unwrap();
    assert_eq!(drain(&mut scheduler).len(), 1);
}

#[test]
fn a_lost_connection_takes_its_requests_along_uncharged() {
    let (mut scheduler, volume) = one(&pacing(limit(10), limit(1 << 20)));
    for handle in 0..10 {
        // Odd handles are large: the byte limit would delay each of them by a second.
        let length = if handle % 2 == 1 { 1 << 20 } else { 4 * KIB };
        scheduler.submit(at(0), volume, read(handle, u64::from(handle) << 30, length)).unwrap();
    }
    assert_eq!(drain(&mut scheduler).iter().map(|d| d.handle).collect::<Vec<_>>(), [0]);
    let gone = scheduler.cancel_queued(at(0), volume, |handle| handle % 2 == 1);
    assert_eq!(gone.collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
    let rest = run_until(&mut scheduler, NS_PER_S);
    let rest: Vec<(u64, u32)> = rest.iter().map(|(now, d)| (now / 1_000_000, d.handle)).collect();
    assert_eq!(rest, [(50, 2), (150, 4), (250, 6), (350, 8)]);
    assert_eq!(scheduler.counters(volume).operations, 5);
}

#[test]
fn cancelling_the_first_lets_the_next_go_at_once() {
    let (mut scheduler, volume) = one(&pacing(None, limit(1_000)));
    scheduler.submit(at(0), volume, read(0, 0, 4 * KIB)).unwrap();
    scheduler.submit(at(0), volume, read(1, 0, 4 * KIB)).unwrap();
    scheduler.submit(at(0), volume, Io { operation: Operation::Flush, ..read(2, 0, 0) }).unwrap();
    assert_eq!(drain(&mut scheduler).len(), 1);
    assert_eq!(scheduler.cancel_queued(at(0), volume, |handle| handle == 1).count(), 1);
    assert_eq!(drain(&mut scheduler)[0].handle, 2, "a flush takes no bytes");
}

#[test]
fn a_full_queue_refuses_and_charges_nothing() {
    let (mut scheduler, volume) = one(&pacing(limit(1), None));
    let mut taken = 0;
    while scheduler.submit(at(0), volume, read(taken, 0, 512)).is_ok() {
        taken += 1;
    }
    assert_eq!(taken as usize, VOLUME_QUEUED_REQUESTS_MAX + 1, "one went at once");
    let refused = scheduler.submit(at(0), volume, read(0, 0, 512));
    assert_eq!(refused, Err(SubmitError::QueueFull));
    assert_eq!(scheduler.counters(volume).operations, 1);
}

#[test]
fn raised_limit_wakes_requests_and_lowered_one_delays_a_second_at_most() {
    let (mut scheduler, volume) = one(&pacing(None, limit(1 << 20)));
    for handle in 0..3 {
        scheduler.submit(at(0), volume, read(handle, 0, 256 * KIB)).unwrap();
    }
    assert_eq!(drain(&mut scheduler).len(), 1);
    // 204.8 KiB are owed: at 1 KiB/s that would be three and a half minutes.
    scheduler.set_limits(at(0), volume, &pacing(None, limit(1 << 10)));
    assert_eq!(run_until(&mut scheduler, NS_PER_S - 1).len(), 0);
    assert_eq!(run_until(&mut scheduler, NS_PER_S).len(), 1);
    scheduler.set_limits(at(NS_PER_S), volume, &pacing(None, limit(1 << 40)));
    assert_eq!(drain(&mut scheduler), [], "256 KiB are owed and take less than a microsecond");
    assert_eq!(run_until(&mut scheduler, NS_PER_S + 50_000).len(), 1);
}

#[test]
fn the_past_is_paid_at_the_old_rate() {
    for (old, new, wait_ns) in [(1, 1_000, 450_000), (1_000, 1, 0)] {
        let (mut scheduler, volume) = one(&pacing(limit(old), None));
        for handle in 0..100 {
            let io = read(handle, u64::from(handle) << 30, 512);
            scheduler.submit(at(0), volume, io).unwrap();
        }
        drain(&mut scheduler);
        let half = NS_PER_S / 2;
        scheduler.set_limits(at(half), volume, &pacing(limit(new), None));
        let at_once = drain(&mut scheduler).len();
        assert_eq!(at_once, usize::from(wait_ns == 0), "{old} to {new}");
        // 0.95 of a token was owed, and half of one was earned since.
        if wait_ns > 0 {
            assert_eq!(run_until(&mut scheduler, half + wait_ns - 1).len(), 0);
            assert_eq!(run_until(&mut scheduler, half + wait_ns).len(), 1);
        }
    }
}

#[test]
fn balances_are_read_set_and_act_at_once() {
    let credit = Some(CreditLimit { refill_per_second: 100, capacity: 5_400_000 });
    let burstable = pacing(Some(Limit { per_second: 3_000, credit }), None);
    let (mut scheduler, volume) = one(&burstable);
    let full = Balances { operations: Some(5_400_000), bytes: None };
    assert_eq!(scheduler.balances(at(0), volume), full);
    let none = Balances { operations: Some(0), bytes: Some(7) };
    scheduler.set_balances(at(0), volume, none);
    for handle in 0..50 {
        scheduler.submit(at(0), volume, read(handle, u64::from(handle) << 30, 512)).unwrap();
    }
    assert_eq!(drain(&mut scheduler).len(), 1, "nothing saved: one may go, the next waits");
    scheduler.set_balances(at(0), volume, full);
    assert_eq!(drain(&mut scheduler).len(), 49);
    // As at a restart: the volume that is added anew starts with the balance of the old one.
    let balances = scheduler.balances(at(0), volume);
    assert_eq!(balances.operations, Some(5_400_000 - 49));
    let _ = scheduler.remove(at(0), volume);
    let volume = scheduler.add(at(0), &burstable, balances).unwrap();
    assert_eq!(scheduler.balances(at(0), volume), balances);
}

/// 23: idle volumes cost nothing: no deadline is left once the queues are empty.
#[test]
fn p23_idle_volumes_ask_for_no_poll() {
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let volumes: Vec<VolumeIndex> = (0..1_000)
        .map(|_| scheduler.add(at(0), &pacing(limit(100), None), Balances::default()).unwrap())
        .collect();
    for volume in &volumes {
        for handle in 0..20 {
            scheduler.submit(at(0), *volume, read(handle, u64::from(handle) << 30, 512)).unwrap();
        }
        drain(&mut scheduler);
    }
    assert_eq!(run_until(&mut scheduler, NS_PER_S).len(), 1_000 * (20 - 6));
    assert_eq!(scheduler.poll_timeout(), None);
}
