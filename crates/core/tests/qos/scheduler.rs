//! Properties 10 to 27 of one volume: the scheduler against the reference, and invariants under
//! every order of calls.

use std::collections::BTreeMap;

use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{Counters, Dispatch, Io, Scheduler, VolumeIndex};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::driver::{KIB, NS_PER_S, at, drain, limit, one, pacing, read, run_until};
use crate::reference::{self, Going};

fn rule() -> impl Strategy<Value = CountingRule> {
    let counting = |unit_bytes, merge_bytes_min, charge_whole_units| {
        Just(CountingRule { unit_bytes, merge_bytes_min, charge_whole_units })
    };
    prop_oneof![
        3 => Just(CountingRule::SSD),
        1 => counting(1 << 20, 1, true),
        1 => counting(16 << 10, 0, false),
    ]
}

fn limits(rates: std::ops::Range<u64>) -> impl Strategy<Value = Option<Limit>> {
    let credit = prop::option::of((1..rates.end, 0..rates.end * 2));
    prop::option::weighted(0.8, (rates, credit)).prop_map(|limit| {
        limit.map(|(per_second, credit)| {
            let credit = credit
                .map(|(refill_per_second, capacity)| CreditLimit { refill_per_second, capacity });
            Limit { per_second, credit }
        })
    })
}

fn any_pacing() -> impl Strategy<Value = Pacing> {
    let tolerance = prop_oneof![Just(50u64), 1..1_000u64].prop_map(Duration::from_ms);
    let operations = prop_oneof![limits(1..200), limits(1_000..300_000)];
    (rule(), tolerance, operations, limits(64 << 10..1 << 30)).prop_map(
        |(counting, tolerance, operations, bytes)| Pacing {
            counting,
            tolerance,
            operations,
            bytes,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let fua = false;
    prop_oneof![
        8 => Just(Operation::Read),
        8 => any::<bool>().prop_map(|fua| Operation::Write { fua }),
        1 => Just(Operation::Flush),
        1 => Just(Operation::Discard { fua }),
        1 => Just(Operation::BlockStatus),
    ]
}

/// A request: time after the previous request, operation, offset if the request does not continue
/// the previous one, and length.
#[derive(Clone, Debug)]
struct Arrival {
    gap_ns: u64,
    operation: Operation,
    jump: Option<u64>,
    length: u32,
}

fn arrivals(max: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let gap = prop_oneof![Just(0u64), 0..100_000u64, 0..100_000_000u64, 0..3 * NS_PER_S];
    let length = prop_oneof![
        4 => Just(16 * KIB), 2 => Just(32 * KIB), 2 => Just(48 * KIB), 1 => Just(256 * KIB),
        1 => Just(0), 1 => 0..2_000 * KIB,
    ];
    let jump = prop::option::of(0..1u64 << 40);
    let arrival = (gap, operation(), jump, length)
        .prop_map(|(gap_ns, operation, jump, length)| Arrival { gap_ns, operation, jump, length });
    prop::collection::vec(arrival, 1..max)
}

/// Arrivals as requests with their times; handles count up from 0.
fn requests(arrivals: &[Arrival]) -> Vec<(u64, Io)> {
    let mut now = 0;
    let mut end = 0;
    let mut out = Vec::new();
    for (handle, arrival) in (0..).zip(arrivals) {
        now += arrival.gap_ns;
        let offset = arrival.jump.unwrap_or(end);
        let Arrival { operation, length, .. } = *arrival;
        end = offset + u64::from(length);
        out.push((now, Io { operation, offset, length, handle }));
    }
    out
}

proptest! {
    /// Scheduler and reference agree on quanta, times to the nanosecond and counters, for several
    /// volumes at once. (Properties 5, 11, 14 and 27 of a volume follow from it.)
    #[test]
    fn p06_p27_scheduler_agrees_with_the_reference(
        volumes in prop::collection::vec((any_pacing(), arrivals(60)), 1..4),
    ) {
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let mut references = Vec::new();
        let mut names = Vec::new();
        let mut all = Vec::new();
        for (index, (pacing, arrivals)) in volumes.iter().enumerate() {
            names.push(scheduler.add(Instant::ZERO, pacing, Balances::default()).unwrap());
            references.push(reference::ReferenceVolume::new(pacing));
            all.extend(requests(arrivals).into_iter().map(|(now, io)| (now, index, io)));
        }
        all.sort_by_key(|(now, index, io)| (*now, *index, io.handle));
        let mut got: BTreeMap<VolumeIndex, Vec<Going>> = BTreeMap::new();
        let mut keep = |now: u64, dispatch: Dispatch| {
            let Dispatch { volume, handle, offset, length, last, .. } = dispatch;
            let going = Going { at: now, handle, offset, length, last };
            got.entry(volume).or_default().push(going);
        };
        let mut end = 0;
        for (now, index, io) in all {
            for (when, dispatch) in run_until(&mut scheduler, now) {
                keep(when, dispatch);
            }
            scheduler.submit(at(now), names[index], io).unwrap();
            for dispatch in drain(&mut scheduler) {
                keep(now, dispatch);
            }
            references[index].submit(now, io);
            scheduler.invariants();
            end = now;
        }
        end += 100 * NS_PER_S;
        for (when, dispatch) in run_until(&mut scheduler, end) {
            keep(when, dispatch);
        }
        scheduler.poll(at(end));
        for (name, reference) in names.iter().zip(&mut references) {
            reference.advance(end);
            let got = got.remove(name).unwrap_or_default();
            prop_assert_eq!(&got, &reference.going);
            let counters = scheduler.counters(*name);
            if reference.queued() == 0 {
                prop_assert_eq!(counters.exceeded, reference.exceeded());
                prop_assert_eq!(counters.late_ns, reference.late_ns);
            }
            prop_assert_eq!(counters.queued_requests as usize, reference.queued());
        }
    }

    /// 1, 10, 11, 25: when polled late and at odd times, requests of a volume stay in order, none
    /// is lost or doubled, no window exceeds the limit, and after a poll none is overdue by a tick.
    #[test]
    fn p10_p11_p25_late_polls_lose_nothing_and_exceed_nothing(
        rate in 1..20_000u64, count in 1..400u32,
        polls in prop::collection::vec(0..5_000_000u64, 1..100),
    ) {
        let (mut scheduler, volume) = one(&pacing(limit(rate), None));
        for handle in 0..count {
            let io = read(handle, u64::from(handle) << 30, 4 * KIB);
            scheduler.submit(at(0), volume, io).unwrap();
        }
        let mut served: Vec<u64> = drain(&mut scheduler).iter().map(|_| 0).collect();
        let mut next = served.len() as u32;
        let mut now = 0;
        for gap in polls {
            now += gap;
            loop {
                scheduler.poll(at(now));
                for dispatch in drain(&mut scheduler) {
                    prop_assert_eq!(dispatch.handle, next);
                    prop_assert!(dispatch.last);
                    next += 1;
                    served.push(now);
                }
                if scheduler.poll_timeout().is_none_or(|timeout| timeout > at(now)) {
                    break;
                }
            }
            // 10: every request whose limit has been ready for a tick was dispatched. (Gaps are at
            // most 5 ms, far below the tolerance: no tokens are lost.)
            let tick = now.saturating_sub(50_000);
            let due = rate * (tick + NS_PER_S / 20) / NS_PER_S + 1;
            prop_assert!(served.len() as u64 >= due.min(count.into()), "{} of {due}", served.len());
            let counters = scheduler.counters(volume);
            let queued = u64::from(counters.queued_requests);
            prop_assert_eq!(counters.requests + queued, u64::from(count));
        }
        // Of the two, one is for the two terms rounded down, and one for the charge that takes the
        // level below zero.
        let bound = |ns: u64| (rate * ns / NS_PER_S + rate / 20 + 2) as usize;
        for first in 0..served.len() {
            for last in first..served.len() {
                prop_assert!(last - first < bound(served[last] - served[first]));
            }
        }
        let left = scheduler.remove(at(now), volume).count();
        prop_assert_eq!(served.len() + left, count as usize);
    }

    /// 16: no sequence of modifications yields more than the limits in force at each time allowed.
    #[test]
    fn p16_toggling_limits_gains_nothing(
        changes in prop::collection::vec((1..50_000u64, 1..30_000_000u64, 0..4u32), 1..60),
    ) {
        let mut rate = 1_000;
        // The tolerance is small, so that saved tokens cannot hide a gain.
        let shallow = |operations| {
            Pacing { tolerance: Duration::from_ms(1), ..pacing(operations, None) }
        };
        let (mut scheduler, volume) = one(&shallow(limit(rate)));
        let mut now = 0u64;
        let mut handle = 0u32;
        let mut served = 0u64;
        let mut earned = 0u128; // billionths
        let mut depth_max = u128::from(rate) * 1_000_000;
        let mut top_up = |scheduler: &mut Scheduler, now| {
            loop {
                let io = read(handle, u64::from(handle) << 20, 4 * KIB);
                if scheduler.submit(at(now), volume, io).is_err() {
                    return drain(scheduler).len() as u64;
                }
                handle += 1;
            }
        };
        served += top_up(&mut scheduler, now);
        for (new_rate, gap, kind) in changes {
            served += run_until(&mut scheduler, now + gap).len() as u64;
            now += gap;
            served += top_up(&mut scheduler, now);
            earned += u128::from(rate) * u128::from(gap);
            rate = new_rate;
            let mut change = shallow(limit(rate));
            if kind == 0 {
                // As a change to a type with credits and back: the new credits must not add tokens.
                let credit = Some(CreditLimit { refill_per_second: rate, capacity: 1 << 40 });
                change.operations = Some(Limit { per_second: rate, credit });
            }
            depth_max = depth_max.max(u128::from(rate) * 1_000_000);
            scheduler.set_limits(at(now), volume, &change);
            served += drain(&mut scheduler).len() as u64;
            let bound = (depth_max + earned) / u128::from(NS_PER_S) + 2;
            prop_assert!(u128::from(served) <= bound, "{served} served, {bound} allowed");
        }
    }

    /// 17: a clock that steps back gives no tokens and takes none.
    #[test]
    fn p17_a_clock_that_steps_back_changes_nothing(
        rate in 1..20_000u64,
        steps in prop::collection::vec((0..20_000_000u64, 0..NS_PER_S), 1..60),
    ) {
        let mut both = [one(&pacing(limit(rate), None)), one(&pacing(limit(rate), None))];
        let mut now = 0;
        let mut backwards = 0;
        for (handle, (gap, back)) in (0..).zip(steps) {
            now += gap;
            let mut out = Vec::new();
            for (jumpy, (scheduler, volume)) in both.iter_mut().enumerate() {
                scheduler.poll(at(now));
                if jumpy == 1 {
                    // A call with an earlier time acts as one at the latest time.
                    let before = at(now.saturating_sub(back));
                    backwards += u64::from(before < at(now));
                    scheduler.poll(before);
                }
                let io = read(handle, u64::from(handle) << 30, KIB);
                let when = if jumpy == 1 { at(now.saturating_sub(back)) } else { at(now) };
                backwards += u64::from(when < at(now));
                scheduler.submit(when, *volume, io).unwrap();
                out.push((drain(scheduler), scheduler.counters(*volume), scheduler.poll_timeout()));
            }
            prop_assert_eq!(&out[0].1, &out[1].1);
            prop_assert_eq!(out[0].2, out[1].2);
            prop_assert_eq!(out[0].0.len(), out[1].0.len());
        }
        prop_assert_eq!(both[1].0.clock_steps_back(), backwards);
    }

    /// 26: the same inputs give the same outputs, bit for bit.
    #[test]
    fn p26_the_same_inputs_give_the_same_outputs(
        pacing in any_pacing(), arrivals in arrivals(80),
        changes in prop::collection::vec(any_pacing(), 1..4),
    ) {
        let run = || {
            let (mut scheduler, volume) = one(&pacing);
            let mut out = Vec::new();
            for (i, (now, io)) in requests(&arrivals).into_iter().enumerate() {
                out.extend(run_until(&mut scheduler, now));
                if i % 16 == 15 {
                    scheduler.set_limits(at(now), volume, &changes[i / 16 % changes.len()]);
                }
                let _ = scheduler.submit(at(now), volume, io);
                out.extend(drain(&mut scheduler).into_iter().map(|dispatch| (now, dispatch)));
            }
            (out, scheduler.counters(volume), scheduler.poll_timeout())
        };
        prop_assert_eq!(run(), run());
    }

    /// 27: while a volume is backlogged, every nanosecond counts as held up by a limit or as
    /// lateness of the scheduler.
    #[test]
    fn p27_exceeded_times_sum_to_the_time_held_up(
        operations in 1..5_000u64, bytes in 4_096..50_000_000u64,
        polls in prop::collection::vec((1..30_000_000u64, 0..10u32), 1..80),
    ) {
        let (mut scheduler, volume) = one(&pacing(limit(operations), limit(bytes)));
        for handle in 0..1_024u32 {
            let io = match handle % 7 {
                0 => Io { operation: Operation::Flush, offset: 0, length: 0, handle },
                n => read(handle, u64::from(handle) << 30, 4 * KIB * n),
            };
            scheduler.submit(at(0), volume, io).unwrap();
        }
        drain(&mut scheduler);
        let mut now = 0;
        for (gap, kind) in polls {
            now += gap;
            match kind {
                0 => {
                    let lower = pacing(limit(operations / 2 + 1), limit(bytes));
                    scheduler.set_limits(at(now), volume, &lower);
                }
                1 => {
                    let odd = |handle: u32| handle % 100 == now as u32 % 100;
                    let _ = scheduler.cancel_queued(at(now), volume, odd).count();
                }
                _ => scheduler.poll(at(now)),
            }
            drain(&mut scheduler);
            let Counters { exceeded, late_ns, queued_requests, .. } = scheduler.counters(volume);
            let held = exceeded.operations_ns + exceeded.bytes_ns + exceeded.guard_ns;
            if queued_requests == 0 || scheduler.poll_timeout() == Some(at(now)) {
                break;
            }
            prop_assert_eq!(held + late_ns, now);
        }
    }
}
