//! The promise of a volume in virtual time, with late polls: means, seconds, bursts, credits.

use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};

use crate::world::{Client, KIB, Lateness, NS_PER_S, World, at, limit};

/// Length of the windows in which bursts are counted.
const WINDOW_NS: u64 = 10_000_000;
/// Minimum of the requests per second that a client completes for each request in flight, at 60 to
/// 140 us on the device and with the reactor's own lateness.
const CLIENT_PER_SECOND_MIN: u64 = 6_500;

fn pacing(operations: Option<u64>, bytes: Option<u64>) -> Pacing {
    crate::world::pacing(operations.and_then(limit), bytes.and_then(limit))
}

fn client(pacing: Pacing, depth: u32, length: u32) -> Client {
    Client { pacing, ..Client::greedy(depth, length) }
}

/// The load of a client relative to its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Push {
    /// The load could not use up the limit all the time: it saves tokens, and spends them when it
    /// can.
    Below,
    /// The load could, but no request waits while the reactor sleeps, and it catches up afterwards.
    Above,
    /// A request waits at every moment.
    Backlogged,
}

impl Push {
    fn of(world: &World, rate: u64, depth: u32) -> Self {
        let depth = u64::from(depth);
        // Requests on the device at the full rate, and those of one late wake-up.
        let busy_ns = 140_000 + 50_000 + world.lateness_max_ns;
        if depth * CLIENT_PER_SECOND_MIN <= rate + rate / 10 {
            Self::Below
        } else if depth <= rate * busy_ns / NS_PER_S + 1 {
            Self::Above
        } else {
            Self::Backlogged
        }
    }
}

/// Checks the dispatches of a client on a volume of `rate` requests per second.
fn check(world: &World, client: usize, rate: u64, seconds: usize) {
    let per_second = &world.per_second[client];
    let push = Push::of(world, rate, world.clients[client].depth);
    let context = || {
        let replay = world.rng.replay("-p evenkeel-sim --test sharing promise");
        format!("limit {rate}, client {client} {push:?}, {per_second:?}; {replay}")
    };
    let counts = &per_second[..seconds];
    // 50 ms of saved tokens and one request more.
    let saved = rate / 20 + 1;
    assert!(counts[0] <= rate + saved, "first second: {}", context());
    // The tokens that a client without waiting requests saves in a late wake-up, and in another one
    // after it.
    let caught_up =
        if push == Push::Above { rate * 2 * world.lateness_max_ns / NS_PER_S } else { 0 };
    let slack = 1.max(rate / 1_000) + caught_up;
    // If the reactor sleeps over the end of a second, requests that were due before it count after
    // it.
    let moved = |second: usize| {
        let late_ns = world.late_over_second_ns.get(&second).copied().unwrap_or(0);
        (rate * late_ns).div_ceil(NS_PER_S)
    };
    let mut sum = 0;
    for (second, count) in counts.iter().enumerate().skip(1) {
        sum += count;
        let (least, most) = match push {
            Push::Below => (0, rate + saved),
            _ => (rate - slack - moved(second + 1), rate + slack + moved(second)),
        };
        assert!(*count <= most, "more than {most} in second {second}: {}", context());
        assert!(*count >= least, "less than {least} in second {second}: {}", context());
    }
    let expected = rate * u64::try_from(seconds - 1).unwrap();
    let slack = 1 + expected / 10_000 + caught_up;
    let saved = if push == Push::Below { saved } else { 0 };
    assert!(sum <= expected + slack + saved + moved(1), "mean too high: {}", context());
    assert!(
        push == Push::Below || sum + slack + moved(seconds) >= expected,
        "mean too low: {}",
        context()
    );
    if push == Push::Backlogged {
        // Requests that a late wake-up delayed come after it, all at once; that is the purpose of
        // the tolerance. Otherwise there is no burst. A stall of 1.5 ms yields 1.15 times the
        // average of 10 ms; stalls that follow each other add up.
        let window_ns = WINDOW_NS + world.lateness_max_ns + 50_000;
        let window_max = rate * window_ns / NS_PER_S + 2;
        let got = world.busiest(client, WINDOW_NS);
        assert!(got <= window_max, "{got} in 10 ms, {window_max} allowed: {}", context());
    }
}

fn hold(pacing: Pacing, rate: u64, length: u32, depth: u32, lateness: Lateness) -> World {
    let seconds = if rate > 100_000 { 4 } else { 12 };
    let mut world = World::late(lateness, &[client(pacing, depth, length)]);
    world.run_until(seconds * NS_PER_S);
    check(&world, 0, rate, usize::try_from(seconds).unwrap());
    let peak = world.busiest(0, WINDOW_NS) as f64 / (rate as f64 / 100.0);
    let late_us = world.lateness_max_ns / 1_000;
    let seconds = &world.per_second[0];
    let push = Push::of(&world, rate, depth);
    println!(
        "limit {rate} depth {depth} {push:?}: 10 ms peak {peak:.3}, {late_us} us late, {seconds:?}"
    );
    world
}

#[test]
fn every_limit_holds_at_every_depth() {
    for rate in [100, 333, 500, 1_000, 3_000, 16_000, 256_000] {
        for depth in [1, 4, 32, 256] {
            hold(pacing(Some(rate), None), rate, 16 << 10, depth, Lateness::Realistic);
        }
    }
}

/// With polls on time there is no burst at all: one request more than the average if that is not a
/// whole number, and the requests of one tick.
#[test]
fn a_backlog_polled_on_time_has_no_bursts() {
    for rate in [100, 333, 1_000, 3_000, 16_000, 256_000] {
        let pacing = pacing(Some(rate), None);
        let world = hold(pacing, rate, 16 << 10, 256, Lateness::None);
        let window_max = (rate * WINDOW_NS).div_ceil(NS_PER_S) + rate / 20_000 + 1;
        let got = world.busiest(0, WINDOW_NS);
        assert!(got <= window_max, "limit {rate}: {got} in 10 ms, {window_max} allowed");
    }
}

#[test]
fn a_byte_limit_holds_at_every_depth() {
    for depth in [1, 4, 32, 256] {
        hold(pacing(None, Some(125 << 20)), 500, 256 << 10, depth, Lateness::Realistic);
        // Both limits, of which the one in bytes holds: 16 KiB at 125 MiB/s is 8,000 per second.
        let both = pacing(Some(16_000), Some(125 << 20));
        hold(both, 8_000, 16 << 10, depth, Lateness::Realistic);
    }
}

#[test]
fn ten_volumes_at_once_each_get_theirs() {
    let clients = [client(pacing(Some(1_000), None), 16, 16 * KIB); 10];
    let mut world = World::late(Lateness::Realistic, &clients);
    world.run_until(12 * NS_PER_S);
    for client in 0..10 {
        check(&world, client, 1_000, 12);
    }
    for second in 1..12 {
        let sum: u64 = world.per_second.iter().map(|counts| counts[second]).sum();
        assert!(sum.abs_diff(10_000) <= 10, "{sum} in second {second}");
    }
}

#[test]
fn unequal_neighbours_do_not_disturb_each_other() {
    let rates = [100, 1_000, 3_000, 16_000, 64_000];
    let clients = rates.map(|rate| client(pacing(Some(rate), None), 256, 16 * KIB));
    let mut world = World::late(Lateness::Realistic, &clients);
    world.run_until(6 * NS_PER_S);
    for (client, rate) in rates.into_iter().enumerate() {
        check(&world, client, rate, 6);
    }
}

const GP2_CAPACITY: u64 = 5_400_000;
const GP2_PEAK: u64 = 3_000;

fn gp2(baseline: u64) -> Client {
    let credit = Some(CreditLimit { refill_per_second: baseline, capacity: GP2_CAPACITY });
    let operations = Some(Limit { per_second: GP2_PEAK, credit });
    client(Pacing { operations, ..pacing(None, None) }, 4, 16 * KIB)
}

/// Returns the I/Os that a gp2 volume may get in `ns` after it was given a balance and a full
/// pacer, exact to one I/O.
fn gp2_served(balance: u64, baseline: u64, ns: u64) -> u64 {
    let earned = |rate| rate * ns / NS_PER_S;
    (earned(GP2_PEAK) + GP2_PEAK / 20).min(balance + earned(baseline)) + 1
}

/// The published table. For each row: burst from a full balance, jump to just before its end, reach
/// the end, then the baseline, and refill. Exact to one I/O at each step.
#[test]
fn gp2_bursts_end_and_refill_as_published() {
    for (baseline, burst_s, refill_s) in [
        (100, 1_862, 54_000),
        (300, 2_000, 18_000),
        (642, 2_290, 8_412),
        (750, 2_400, 7_200),
        (1_002, 2_703, 5_389),
        (1_500, 3_600, 3_600),
        (2_250, 7_200, 2_400),
    ] {
        let mut world = World::late(Lateness::None, &[gp2(baseline)]);
        let volume = world.volumes[0];
        let served = |world: &World| world.scheduler.counters(volume).operations;

        world.run_until(5 * NS_PER_S);
        let expected = gp2_served(GP2_CAPACITY, baseline, 5 * NS_PER_S);
        assert!(served(&world).abs_diff(expected) <= 1, "{baseline}: {}", served(&world));
        // At the same drain the balance would end at the time of the table.
        let left = world.scheduler.balances(at(world.now()), volume).operations.unwrap();
        let drain = GP2_PEAK - baseline;
        let end_s = 5 + left / drain;
        assert!(end_s.abs_diff(burst_s) <= 1, "{baseline}: ends after {end_s} s");

        // Jump: leave two seconds of the burst, and observe its end.
        let jump = Balances { operations: Some(2 * drain), bytes: None };
        world.scheduler.set_balances(at(world.now()), volume, jump);
        let before = served(&world);
        for step in 1..=100 {
            world.run_until(5 * NS_PER_S + step * NS_PER_S / 10);
            let peak = GP2_PEAK * step / 10;
            let paid = 2 * drain + baseline * step / 10;
            let got = served(&world) - before;
            assert!(got.abs_diff(peak.min(paid)) <= 1, "{baseline}: {got} after {step}00 ms");
        }

        // Idle: the balance becomes full at the time of the table, and not before.
        let _ = world.scheduler.cancel_queued(at(world.now()), volume, |_| true).count();
        let empty = Balances { operations: Some(0), bytes: None };
        world.scheduler.set_balances(at(world.now()), volume, empty);
        let balance = |world: &mut World, after_s: u64| {
            let now = at(world.now() + after_s * NS_PER_S);
            world.scheduler.balances(now, volume).operations.unwrap()
        };
        assert_eq!(balance(&mut world, refill_s / 2), baseline * (refill_s / 2));
        assert!(balance(&mut world, refill_s - 2) < GP2_CAPACITY);
        assert_eq!(balance(&mut world, refill_s + 1), GP2_CAPACITY);
    }
}

/// The first row without the jump: half an hour of burst, request by request.
#[test]
fn a_whole_gp2_burst_is_exact_to_one_io() {
    let mut world = World::late(Lateness::None, &[gp2(100)]);
    let volume = world.volumes[0];
    for second in [1, 10, 1_000, 1_861, 1_862, 1_863, 1_900] {
        world.run_until(second * NS_PER_S);
        world.going.clear(); // it has millions
        let expected = gp2_served(GP2_CAPACITY, 100, second * NS_PER_S);
        let got = world.scheduler.counters(volume).operations;
        assert!(got.abs_diff(expected) <= 1, "{got} served in {second} s, {expected} expected");
    }
    let after = &world.per_second[0][1_863..1_900];
    assert!(after.iter().all(|count| count.abs_diff(100) <= 1), "{after:?}");
}

/// A small disk with few requests in flight: the rate that its byte credits sustain is paced
/// evenly, in whole units.
#[test]
fn hdd_credits_run_out_in_bytes() {
    let mib = 1 << 20;
    let credit = Some(CreditLimit { refill_per_second: 5 * mib, capacity: 100 * mib });
    let pacing = Pacing {
        counting: CountingRule {
            unit_bytes: 1 << 20,
            merge_bytes_min: 1,
            charge_whole_units: true,
        },
        bytes: Some(Limit { per_second: 30 * mib, credit }),
        ..pacing(None, None)
    };
    // Small and random: each request costs a whole unit.
    let mut world = World::late(Lateness::None, &[client(pacing, 4, 16 * KIB)]);
    world.run_until(12 * NS_PER_S);
    assert_eq!(world.per_second[0][..3], [32, 30, 30]);
    assert!(world.per_second[0][5..12].iter().all(|count| *count == 5));
}
