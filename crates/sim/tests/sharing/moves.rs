//! Volumes that move from one scheduler to another.

use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{DeviceIndex, ExportError, Io, NoSuch, Scheduler, VolumeIndex};
use evenkeel_core::qos::sharing::{Claim, InstancePacing, Window};
use proptest::prelude::*;

use crate::world::{KIB, NS_PER_S, READ, at, device, limit, pacing};

/// A scheduler with a device, and the volume while it is there.
struct Home {
    scheduler: Scheduler,
    device: DeviceIndex,
}

impl Home {
    fn new() -> Self {
        let mut scheduler = Scheduler::new(at(0));
        let device = scheduler.add_device(at(0), &device(Window::Slots(10_000))).unwrap();
        Self { scheduler, device }
    }
}

/// Runs a volume that moves from home to home after each of `moves` nanoseconds. Returns its
/// dispatches with their times.
fn run(
    pacing: &Pacing,
    claim: Option<Claim>,
    arrivals: &[(u64, u32)],
    moves: &[u64],
) -> (Vec<(u64, u32)>, u64) {
    let mut homes = [Home::new(), Home::new()];
    let mut home = 0;
    let mut volume = homes[0].scheduler.add(at(0), pacing, Balances::default()).unwrap();
    if let Some(claim) = claim {
        let Home { scheduler, device } = &mut homes[0];
        scheduler.share(at(0), volume, pacing, (Some(*device), None), &claim).unwrap();
    }
    let io = |handle: u32| {
        let length = arrivals[handle as usize].1;
        Io { operation: READ, offset: u64::from(handle) << 30, length, handle }
    };
    let mut going = Vec::new();
    let mut times: Vec<(u64, Option<u32>)> = Vec::new();
    let mut now = 0;
    for (handle, (gap, _)) in (0..).zip(arrivals) {
        now += gap;
        times.push((now, Some(handle)));
    }
    times.extend(moves.iter().map(|at| (*at, None)));
    times.push((25 * NS_PER_S, None));
    times.sort_by_key(|(at, what)| (*at, what.is_none()));
    let last = times.len() - 1;
    for (number, (time, what)) in times.into_iter().enumerate() {
        let scheduler = &mut homes[home].scheduler;
        while let Some(timeout) = scheduler.poll_timeout().filter(|timeout| timeout.ns <= time) {
            scheduler.poll(timeout);
            collect(scheduler, timeout.ns, &mut going);
        }
        match what {
            Some(handle) => scheduler.submit(at(time), volume, io(handle)).unwrap(),
            None if number == last || moves.is_empty() => {}
            None => {
                let waiting: Vec<u32> =
                    scheduler.cancel_queued(at(time), volume, |_| true).collect();
                let exported = scheduler.export(at(time), volume).unwrap();
                assert_eq!(scheduler.poll_timeout(), None);
                home = 1 - home;
                let Home { scheduler, device } = &mut homes[home];
                let to = (claim.map(|_| *device), None);
                volume = scheduler.import(at(time), exported, pacing, to).unwrap();
                for handle in waiting {
                    scheduler.submit(at(time), volume, io(handle)).unwrap();
                    collect(scheduler, time, &mut going);
                }
            }
        }
        collect(&mut homes[home].scheduler, time, &mut going);
    }
    let counters = homes[home].scheduler.counters(volume);
    (going, counters.operations)
}

fn collect(scheduler: &mut Scheduler, now: u64, going: &mut Vec<(u64, u32)>) {
    while let Some(dispatch) = scheduler.poll_output() {
        going.push((now, dispatch.handle));
        scheduler.complete(at(now), dispatch.ticket);
    }
}

proptest! {
    /// 24: a volume that moves, however often, is served as if it had stayed: the same requests at
    /// the same time. (A request that was ready between two ticks of the wheel at a move is
    /// dispatched then, a part of a tick earlier.)
    #[test]
    fn p24_moving_changes_nothing(
        rate in 20..5_000u64,
        bytes in prop::option::of(1_000_000..50_000_000u64),
        credit in prop::option::of((1..100u64, 0..200u64)),
        claim in any::<bool>(),
        arrivals in prop::collection::vec((0..20_000_000u64, 1..64u32), 1..150),
        moves in prop::collection::vec(0..2_000_000_000u64, 1..12),
    ) {
        let credit = credit.map(|(refill, capacity)| {
            CreditLimit { refill_per_second: refill, capacity }
        });
        let pacing = pacing(Some(Limit { per_second: rate, credit }), bytes.and_then(limit));
        let reserved =
            Claim { reservation_per_second: 100, weight: 100 };
        let claim = Some(reserved).filter(|_| claim);
        let arrivals: Vec<(u64, u32)> =
            arrivals.into_iter().map(|(gap, kib)| (gap, 4 * kib * KIB)).collect();
        let stayed = run(&pacing, claim, &arrivals, &[]);
        let moved = run(&pacing, claim, &arrivals, &moves);
        prop_assert_eq!(stayed.1, moved.1);
        prop_assert_eq!(stayed.0.len(), moved.0.len());
        for (stayed, moved) in stayed.0.iter().zip(&moved.0) {
            prop_assert_eq!(stayed.1, moved.1);
            prop_assert!(stayed.0.abs_diff(moved.0) <= 50_000, "{:?} {:?}", stayed, moved);
        }
    }
}

#[test]
fn a_volume_with_requests_waiting_stays() {
    let mut home = Home::new();
    let pacing = pacing(limit(1), None);
    let volume = home.scheduler.add(at(0), &pacing, Balances::default()).unwrap();
    for handle in 0..3 {
        let io = Io { operation: READ, offset: 0, length: KIB, handle };
        home.scheduler.submit(at(0), volume, io).unwrap();
    }
    let error = home.scheduler.export(at(0), volume).unwrap_err();
    assert_eq!(error, ExportError::Waiting(2));
    assert!(error.to_string().contains("cancel them before it moves"));
    assert_eq!(home.scheduler.cancel_queued(at(0), volume, |_| true).count(), 2);
    let exported = home.scheduler.export(at(0), volume).unwrap();
    let gone: VolumeIndex = volume;
    assert_eq!(home.scheduler.export(at(0), gone).unwrap_err(), ExportError::NoSuchVolume);
    // The place does not exist. The volume is returned and can move to another one.
    let mut other = Home::new();
    let stranger = {
        let mut many = Scheduler::new(at(0));
        let model = device(Window::Slots(1));
        many.add_device(at(0), &model).unwrap();
        many.add_device(at(0), &model).unwrap()
    };
    let claimless = other.scheduler.import(at(0), exported, &pacing, (Some(stranger), None));
    assert!(claimless.is_ok(), "without a claim there is nothing to put on a device");
    let name = claimless.unwrap();
    let claim = Claim::best_effort(&pacing);
    let refused = other.scheduler.share(at(0), name, &pacing, (Some(stranger), None), &claim);
    assert_eq!(refused, Err(NoSuch::Device));
}

/// An instance that moves between schedulers keeps its balances, exact to the I/O.
#[test]
fn an_instance_moves_with_its_exact_levels() {
    let limits = InstancePacing {
        operations: Some(Limit {
            per_second: 2_000,
            credit: Some(CreditLimit { refill_per_second: 100, capacity: 700 }),
        }),
        read_bytes_per_second: Some(20_000_000),
        ..InstancePacing::UNLIMITED
    };
    let unlimited = Pacing::UNLIMITED;
    let run = |moves_every: u64| {
        let mut homes = [Home::new(), Home::new()];
        let mut home = 0;
        let scheduler = &mut homes[0].scheduler;
        let mut instance = scheduler.add_instance(at(0), &limits, Balances::default()).unwrap();
        let mut volume = scheduler.add(at(0), &unlimited, Balances::default()).unwrap();
        let claim = Claim::best_effort(&unlimited);
        scheduler.share(at(0), volume, &unlimited, (None, Some(instance)), &claim).unwrap();
        let mut going = Vec::new();
        for step in 0..3_000 {
            let now = step * 1_000_000;
            let mut scheduler = &mut homes[home].scheduler;
            if step % moves_every == moves_every - 1 {
                let waiting: Vec<u32> =
                    scheduler.cancel_queued(at(now), volume, |_| true).collect();
                let moved = scheduler.export(at(now), volume).unwrap();
                let host = scheduler.export_instance(at(now), instance).unwrap();
                assert!(scheduler.export_instance(at(now), instance).is_none());
                home = 1 - home;
                scheduler = &mut homes[home].scheduler;
                instance = scheduler.import_instance(at(now), host).unwrap();
                volume = scheduler.import(at(now), moved, &unlimited, (None, None)).unwrap();
                let to = (None, Some(instance));
                scheduler.share(at(now), volume, &unlimited, to, &claim).unwrap();
                for handle in waiting {
                    let io = Io { operation: READ, offset: 0, length: 4 * KIB, handle };
                    scheduler.submit(at(now), volume, io).unwrap();
                }
            }
            for nth in 0..4 {
                let io = Io { operation: READ, offset: 0, length: 4 * KIB, handle: nth };
                let _ = scheduler.submit(at(now), volume, io);
            }
            scheduler.poll(at(now));
            collect(scheduler, now, &mut going);
        }
        let scheduler = &mut homes[home].scheduler;
        let left = scheduler.instance_balances(at(3 * NS_PER_S), instance);
        (going.len(), scheduler.instance_counters(instance).operations, left)
    };
    let stayed = run(u64::MAX);
    assert_eq!(stayed.0 as u64, stayed.1);
    assert!((800..1_400).contains(&stayed.0), "its credits run out: {stayed:?}");
    assert_eq!(run(7), stayed);
    assert_eq!(run(1), stayed);
}
