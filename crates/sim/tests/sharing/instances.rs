//! Limits that hold for all volumes of an instance together.

use evenkeel_core::qos::pacing::{CreditLimit, Limit};
use evenkeel_core::qos::scheduler::Io;
use evenkeel_core::qos::sharing::{Claim, InstancePacing};
use evenkeel_core::time::Duration;
use proptest::prelude::*;

use crate::world::{Client, KIB, LOG_WRITE, NS_PER_S, READ, WRITE, World, at, limit};

fn instance(operations: Option<Limit>, bytes: Option<Limit>) -> InstancePacing {
    InstancePacing { operations, bytes, ..InstancePacing::UNLIMITED }
}

/// Returns an instance with a link of this rate in each direction.
fn linked(operations: Option<Limit>, each_way: u64) -> InstancePacing {
    InstancePacing {
        read_bytes_per_second: Some(each_way),
        write_bytes_per_second: Some(each_way),
        ..instance(operations, None)
    }
}

fn span(from: u64, to: u64) -> std::ops::Range<u64> {
    from * NS_PER_S..to * NS_PER_S
}

/// §5.3.5: forty volumes of 3,000 on an instance of 40,000. The sum is exact, and the shares are
/// even.
#[test]
fn p13_p19_forty_volumes_share_an_instance_evenly() {
    let clients = vec![Client::greedy(32, 16 * KIB).limited(3_000).on(0); 40];
    let mut world = World::new(None, &[instance(limit(40_000), None)], &clients);
    world.run_until(4 * NS_PER_S);
    let counts: Vec<u64> = (0..40).map(|volume| world.count(volume, span(1, 4))).collect();
    let sum: u64 = counts.iter().sum();
    assert!(sum.abs_diff(120_000) <= 120, "{sum}");
    let least = counts.iter().min().unwrap();
    let most = counts.iter().max().unwrap();
    assert!(least * 100 >= most * 99, "{counts:?}");
}

/// 19: shares are in proportion to the provisioned rates, and by the cost of requests, not by their
/// number.
#[test]
fn p19_an_instance_is_shared_by_provisioned_rate_and_cost() {
    let mut clients = vec![
        Client::greedy(64, 16 * KIB).limited(3_000).on(0),
        Client::greedy(64, 16 * KIB).limited(15_000).on(0),
        Client::greedy(64, 64 * KIB).limited(3_000).on(0),
        Client::greedy(64, 256 * KIB).limited(3_000).on(0),
    ];
    let mut world = World::new(None, &[instance(limit(100_000), limit(48_000 * 1_024))], &clients);
    world.run_until(5 * NS_PER_S);
    let bytes: Vec<f64> = (0..4).map(|volume| world.bytes(volume, span(1, 5)) as f64).collect();
    let unit = bytes[0];
    for (volume, weight) in [(1, 5.0), (2, 1.0), (3, 1.0)] {
        let share = bytes[volume] / unit / weight;
        assert!((0.98..=1.02).contains(&share), "volume {volume}: {share} of {bytes:?}");
    }
    let total: f64 = bytes.iter().sum::<f64>() / 4.0;
    assert!((total / (48_000.0 * 1_024.0) - 1.0).abs() < 0.002, "{total}");
    clients.truncate(1);
}

/// A volume with a limit in bytes only, as hard disks' types have, is one of several: it does not
/// get all that it could use.
#[test]
fn p19_a_volume_limited_in_bytes_leaves_the_others_theirs() {
    let credit = Some(CreditLimit { refill_per_second: 78 << 20, capacity: 1 << 40 });
    let scan = crate::world::pacing(None, Some(Limit { per_second: 488 << 20, credit }));
    let volume = Client::greedy(16, 16 * KIB).limited(1_000).on(0);
    let scanner = Client {
        pacing: scan,
        claim: Claim::best_effort(&scan),
        ..Client::greedy(8, 256 * KIB).on(0)
    };
    let mut world = World::new(None, &[instance(None, limit(62_500_000))], &[volume, scanner]);
    world.run_until(5 * NS_PER_S);
    let bytes = [0, 1].map(|volume| world.bytes(volume, span(1, 5)) / 4);
    // The weights are 1,000 and, of the scanner, 78 x 64 = 4,992 I/Os of 16 KiB.
    let part = 62_500_000 * 1_000 / 5_992;
    assert!(bytes[0].abs_diff(part) < part / 50, "{bytes:?}");
    assert!((bytes[0] + bytes[1]).abs_diff(62_500_000) < 62_500, "{bytes:?}");
}

/// A link has a limit for each direction: both together carry twice as much.
#[test]
fn a_link_is_limited_in_each_direction_by_itself() {
    let link = InstancePacing {
        read_bytes_per_second: Some(62_500_000),
        write_bytes_per_second: Some(62_500_000),
        ..InstancePacing::UNLIMITED
    };
    let reader = Client::greedy(32, 16 * KIB).on(0);
    let mut writer = reader;
    writer.operation = LOG_WRITE;
    let mut world = World::new(None, &[link], &[reader, reader, writer]);
    world.run_until(3 * NS_PER_S);
    let bytes: Vec<u64> = (0..3).map(|volume| world.bytes(volume, span(1, 3)) / 2).collect();
    assert!((bytes[0] + bytes[1]).abs_diff(62_500_000) < 62_500, "{bytes:?}");
    assert!(bytes[2].abs_diff(62_500_000) < 62_500, "{bytes:?}");
    assert!(bytes[0].abs_diff(bytes[1]) < bytes[0] / 100, "{bytes:?}");
}

/// Both directions share the limit in I/Os: a reader with one request at a time, whose line is
/// empty after each, does not keep the writers out.
#[test]
fn a_light_direction_of_a_link_does_not_starve_the_other() {
    let link = InstancePacing {
        operations: limit(2_000),
        read_bytes_per_second: Some(125_000_000),
        write_bytes_per_second: Some(125_000_000),
        ..InstancePacing::UNLIMITED
    };
    let light = Client::greedy(1, 16 * KIB).on(0);
    let heavy = Client::greedy(64, 16 * KIB).on(0);
    for (reader, writer) in [(light, heavy), (heavy, light)] {
        let writer = Client { operation: LOG_WRITE, ..writer };
        let mut world = World::new(None, &[link], &[reader, writer]);
        world.run_until(3 * NS_PER_S);
        let counts = [0, 1].map(|volume| world.count(volume, span(1, 3)));
        assert!(counts[0].abs_diff(counts[1]) <= 4, "{counts:?}");
    }
}

/// If both directions want the limit in I/Os, each volume has its part of it, not each direction:
/// five readers and one writer are six volumes.
#[test]
fn p19_directions_share_by_the_volumes_that_use_them() {
    let link = linked(limit(2_000), 125_000_000);
    let reader = Client::greedy(16, 16 * KIB).limited(3_000).on(0);
    let mut clients = vec![reader; 5];
    clients.push(Client { operation: LOG_WRITE, ..reader });
    let mut world = World::new(None, &[link], &clients);
    world.run_until(7 * NS_PER_S);
    let counts: Vec<u64> = (0..6).map(|volume| world.count(volume, span(1, 7))).collect();
    assert!(counts.iter().all(|count| count.abs_diff(2_000) <= 20), "{counts:?}");
}

/// Beside a volume that reads and writes in random order, a reader and a writer get the same in
/// every second: the volume takes a turn of the shared limit in whichever direction it waits.
#[test]
fn p19_reader_and_writer_are_equal_beside_a_volume_that_does_both() {
    // A turn is four requests of the second row; a request of the last row takes sixteen turns.
    for (operations, bytes_per_second, length, apart) in [
        (limit(300), 100_000_000, 16 * KIB, 2),
        (None, 8_000_000, 4 * KIB, 8),
        (None, 100_000_000, 256 * KIB, 2),
    ] {
        let link = InstancePacing {
            bytes: limit(bytes_per_second),
            ..linked(operations, bytes_per_second * 9 / 10)
        };
        let reader = Client::greedy(16, length).limited(9_000).on(0);
        let writer = Client { operation: LOG_WRITE, ..reader };
        let both = Client { writes_too: true, ..reader };
        let mut world = World::new(None, &[link], &[both, reader, writer]);
        world.run_until(12 * NS_PER_S);
        for second in 1..12 {
            let seen = [0, 1, 2].map(|volume| world.count(volume, span(second, second + 1)));
            let least = seen.iter().min().unwrap();
            let most = seen.iter().max().unwrap();
            assert!(most - least <= apart, "{seen:?} of {length} bytes in second {second}");
        }
    }
}

/// A volume that reads and writes alternately, and is alone in its reads, does not return to the
/// front of the writers each time, whichever of its requests uses its turns up.
#[test]
fn p12_volume_alone_in_one_direction_starves_none_in_the_other() {
    let link = linked(None, 1_000_000);
    for (after, length) in (0..4).flat_map(|after| [(after, 4 * KIB), (after, 8 * KIB)]) {
        let writer = Client { operation: WRITE, ..Client::greedy(4, length).on(0) };
        let both = Client { alternates_after: Some(61 + after), ..Client::greedy(4, length).on(0) };
        let mut world = World::new(None, &[link], &[both, writer]);
        world.run_until(6 * NS_PER_S);
        let most = 1_000_000 / u64::from(length);
        for second in 1..6 {
            let count = world.count(1, span(second, second + 1));
            assert!(count >= most * 2 / 5, "{count} of {most} after {after} in second {second}");
        }
    }
}

/// A host is polled when a request can be dispatched, even if the first request of a volume that
/// waits for one direction is replaced by one of the other: an urgent write precedes a read.
#[test]
fn p23_a_host_is_not_looked_at_in_vain() {
    let link = linked(limit(20_000), 10_000_000);
    let reader = Client::greedy(8, 16 * KIB).limited(9_000).on(0);
    let both = Client { depth: 3, length: 8 * KIB, writes_too: true, ..reader };
    let writer = Client { operation: LOG_WRITE, length: 256 * KIB, ..reader };
    let mut world = World::new(None, &[link], &[both, reader, writer]);
    world.run_until(10 * NS_PER_S);
    let polls = world.polls;
    let going = world.going.len() as u64;
    assert!(polls <= 3 * going, "{polls} looks for {going} requests");
    assert!((0..3).all(|volume| world.count(volume, span(9, 10)) > 0));
}

/// A volume whose claim is set again repeatedly, as when others come and go, keeps its place among
/// the volumes of its host.
#[test]
fn p19_a_claim_that_is_put_in_force_again_costs_no_turn() {
    let client = Client::greedy(16, 16 * KIB).limited(3_000).on(0);
    let mut world = World::new(None, &[instance(limit(400), None)], &[client, client, client]);
    for step in 1..=1_000 {
        world.run_until(step * NS_PER_S / 250);
        let at_host = (None, Some(world.instances[0]));
        let now = at(world.now());
        let volume = world.volumes[0];
        world.scheduler.share(now, volume, &client.pacing, at_host, &client.claim).unwrap();
    }
    let counts = [0, 1, 2].map(|volume| world.count(volume, span(1, 4)));
    assert!(counts.iter().all(|count| count.abs_diff(400) <= 40), "{counts:?}");
}

/// A volume whose own limits hold it up after each request, with next to nothing saved meanwhile,
/// keeps the rest of its turns: if a request takes a fifth more than a turn is worth, it does not
/// cost two turns each time.
#[test]
fn p19_a_volume_near_its_own_limit_keeps_the_rest_of_its_turns() {
    let small = Client::greedy(16, 16 * KIB).limited(1_000).on(0);
    let mut large = Client::greedy(16, 64 * KIB).limited(1_000).on(0);
    large.pacing = crate::world::pacing(limit(1_000), limit(400 << 16));
    large.pacing.tolerance = Duration::from_ms(1);
    // An I/O takes 500 us of 2,000 per second, and 64 KiB take 596 us of the bytes: 533 turns are
    // 447 large requests, more than the volume's own limit allows.
    let pacing = instance(limit(2_000), limit(110_000_000));
    let mut world = World::new(None, &[pacing], &[small, small, small, large]);
    world.run_until(5 * NS_PER_S);
    let counts = [0, 1, 2, 3].map(|volume| world.count(volume, span(1, 5)) / 4);
    // One turn in six is not enough for a request, and a round is more than it may save.
    assert!((360..=400).contains(&counts[3]), "{counts:?}");
}

/// Returns four small volumes of weight `weight` beside a large one of 1,000 whose limit is
/// `per_mille` thousandths of its part, their instance, and that part. An I/O takes 500 us of 2,000
/// per second, and this limit holds; 64 KiB are charged 596 us of bytes.
fn large_beside_small(weight: u64, per_mille: u64) -> (Vec<Client>, InstancePacing, u64) {
    let fast = Client::greedy(16, 16 * KIB).limited(3_000).on(0);
    let small = Client { claim: fast.limited(weight).claim, ..fast };
    let part = 2_000 * 500 * 1_000 / (596 * 4 * weight + 500 * 1_000);
    let mut large = Client::greedy(16, 64 * KIB).limited(1_000).on(0);
    large.pacing = crate::world::pacing(limit(1_000), limit((part * per_mille / 1_000) << 16));
    large.pacing.tolerance = Duration::from_ms(1);
    let pacing = instance(limit(2_000), limit(110_000_000));
    (vec![large, small, small, small, small], pacing, part)
}

/// A volume whose own limits interrupt its turn gets the rest of the turn when it comes back,
/// before the next round: if a turn is worth a request and a half, it gets more than one request a
/// turn.
#[test]
fn p19_a_turn_interrupted_by_own_limits_resumes_afterwards() {
    for weight in [250, 500, 700] {
        let (clients, pacing, part) = large_beside_small(weight, 950);
        let mut world = World::new(None, &[pacing], &clients);
        world.run_until(5 * NS_PER_S);
        let count = world.count(0, span(1, 5)) / 4;
        let own = part * 95 / 100;
        // Tolerates one request in a turn.
        assert!(count.abs_diff(own) <= own / 16, "{count} of {own} beside {weight}");
    }
}

/// A volume whose limits allow more than its part gets no more for being held up by them when its
/// turn comes: a turn in which it takes nothing is not kept for later.
#[test]
fn p19_a_turn_that_brings_nothing_is_none() {
    for (weight, per_mille) in [(250, 1_050), (500, 1_200), (700, 1_100)] {
        let (clients, pacing, part) = large_beside_small(weight, per_mille);
        let mut world = World::new(None, &[pacing], &clients);
        world.run_until(5 * NS_PER_S);
        let count = world.count(0, span(1, 5)) / 4;
        assert!(count <= part + part / 50, "{count} of {part}: {weight} {per_mille}");
    }
}

/// A flow with one small request waits for at most one quantum, also beside flows that come back to
/// continue their turns.
#[test]
fn light_flows_go_before_resumed_turns() {
    let (clients, pacing, _) = large_beside_small(250, 950);
    let mut large = clients[0];
    large.pacing = crate::world::pacing(limit(1_000), limit(300 << 16));
    large.pacing.tolerance = Duration::from_ms(1);
    let light = Client { depth: 0, ..clients[1].limited(1_000) };
    let clients = [large, large, large, large, clients[1], clients[2], light];
    let mut world = World::new(None, &[pacing], &clients);
    for step in 1..=400 {
        // Every 20 ms, one I/O in forty: less than an even part.
        world.run_until(NS_PER_S / 10 + step * 20_000_000);
        world.submit(6);
    }
    world.run_until(9 * NS_PER_S);
    // Service takes 100 us, its own I/O 500 us of the host's limit, the I/O before it 596 us.
    let longest = world.percentile(6, 1_000);
    assert!(longest <= 1_200_000, "{longest}");
}

/// A volume whose own limits repeatedly make it wait slightly longer than a round gets its turn
/// when it comes back: its limit is below its share of the host.
#[test]
fn p19_returning_volume_does_not_wait_for_another_round() {
    let fast = Client::greedy(16, 16 * KIB).limited(3_000).on(0);
    for (others, own) in [(3, 490), (3, 450), (7, 240), (7, 150), (15, 110)] {
        let limited = Client::greedy(16, 16 * KIB).limited(own).on(0);
        let mut slow = Client { claim: fast.claim, ..limited };
        slow.pacing.tolerance = Duration::from_ms(1);
        let mut clients = vec![fast; others];
        clients.push(slow);
        let mut world = World::new(None, &[instance(limit(2_000), None)], &clients);
        world.run_until(5 * NS_PER_S);
        let count = world.count(others, span(1, 5)) / 4;
        assert!(count.abs_diff(own) <= own / 100, "{count} of {own} beside {others}");
    }
}

/// Flows with one small request come first once a round, and not as often as another such flow had
/// a turn: two of them that come back in time for each other do not keep a third flow out.
#[test]
fn p19_light_flows_leave_a_heavy_one_its_turns() {
    let heavy = Client::greedy(16, 16 * KIB).limited(3_000).on(0);
    let light = Client { depth: 0, ..heavy };
    let mut world = World::new(None, &[instance(limit(1_000), None)], &[heavy, light, light]);
    let mut asked = [0; 2];
    let mut again_at = [0; 2];
    for now in (NS_PER_S / 10..3 * NS_PER_S).step_by(100_000) {
        world.run_until(now);
        for number in 0..2 {
            // It sends the next request 1.5 ms after it was served.
            if world.count(1 + number, 0..now) == asked[number] {
                again_at[number] = now + 1_500_000;
                asked[number] += 1;
            } else if again_at[number] == now {
                world.submit(1 + number);
            }
        }
    }
    let count = world.count(0, span(1, 3)) / 2;
    assert!(count >= 330, "{count} of 1,000 beside two light ones");
}

/// A volume that reads and writes is in the line of one direction or of the other. It gets its part
/// by weight all the same, no more and no less.
#[test]
fn p19_volume_that_reads_and_writes_has_its_part_by_weight() {
    let link = InstancePacing {
        operations: limit(2_000),
        read_bytes_per_second: Some(125_000_000),
        write_bytes_per_second: Some(125_000_000),
        ..InstancePacing::UNLIMITED
    };
    let reader = Client::greedy(16, 16 * KIB).limited(2_000).on(0);
    let writer = Client { operation: LOG_WRITE, ..reader };
    let both = Client { writes_too: true, ..reader.limited(16_000) };
    let mut world = World::new(None, &[link], &[both, reader, writer]);
    world.run_until(5 * NS_PER_S);
    let counts = [0, 1, 2].map(|volume| world.count(volume, span(1, 5)) / 4);
    assert!(counts[0].abs_diff(1_600) <= 16, "{counts:?}");
    assert!(counts[1..].iter().all(|count| count.abs_diff(200) <= 4), "{counts:?}");
}

/// §5.3.4: an instance that bursts for thirty minutes, exact to the I/O: (max - baseline) x 1,800 s
/// of credits last exactly that long, and then the baseline is exact.
#[test]
fn p13_an_instance_s_burst_ends_when_its_credits_do() {
    let baseline = 100;
    let most = 500;
    // Ten seconds instead of thirty minutes: (500 - 100) x 10 credits.
    let credit = Some(CreditLimit { refill_per_second: baseline, capacity: 4_000 });
    let pacing = instance(Some(Limit { per_second: most, credit }), None);
    let clients = vec![Client::greedy(16, 16 * KIB).on(0); 3];
    let mut world = World::new(None, &[pacing], &clients);
    world.run_until(20 * NS_PER_S);
    let sum = |from: u64, to: u64| -> u64 {
        (0..3).map(|volume| world.count(volume, span(from, to))).sum()
    };
    assert!(sum(1, 9).abs_diff(8 * most) <= 1, "{}", sum(1, 9));
    // In all: the capacity, and the credits earned before the end.
    assert_eq!(sum(0, 20), 4_000 + 20 * baseline);
    assert!(sum(11, 20).abs_diff(9 * baseline) <= 1, "{}", sum(11, 20));
    let counters = world.scheduler.instance_counters(world.instances[0]);
    assert_eq!(counters.operations, sum(0, 21));
    assert_eq!(counters.waiting, 3);
}

/// A flow with one small request waits for at most one quantum, not for the whole ring.
#[test]
fn light_flows_go_first() {
    let mut clients = vec![Client::greedy(64, 16 * KIB).limited(10_000).on(0); 20];
    clients.push(Client { depth: 0, ..Client::greedy(0, 4 * KIB).limited(10_000).on(0) });
    let mut world = World::new(None, &[instance(limit(10_000), None)], &clients);
    for step in 1..=1_000 {
        // Every 3 ms, one I/O in thirty: less than an even part.
        world.run_until(NS_PER_S / 10 + step * 3_000_000);
        world.submit(20);
    }
    world.run_until(4 * NS_PER_S);
    // Service takes 100 us, an I/O of the instance as well, and a round of it 2.1 ms.
    let p99 = world.percentile(20, 990);
    assert!(p99 <= 100_000 + 200_000, "{p99}");
    let heavy: Vec<u64> = (0..20).map(|volume| world.count(volume, span(1, 3))).collect();
    assert!(heavy.iter().min().unwrap() * 100 >= heavy.iter().max().unwrap() * 99, "{heavy:?}");
}

/// 16, 23: limits of an instance change at once and never refill. A removed instance frees its
/// volumes. No state is left behind.
#[test]
fn p16_p23_instances_change_and_go() {
    let clients = vec![Client::greedy(32, 16 * KIB).limited(5_000).on(0); 4];
    let mut world = World::new(None, &[instance(limit(1_000), None)], &clients);
    world.run_until(2 * NS_PER_S);
    let name = world.instances[0];
    world.scheduler.repace_instance(at(world.now()), name, &instance(limit(8_000), None));
    world.run_until(4 * NS_PER_S);
    let sum = |world: &World, from: u64, to: u64| -> u64 {
        (0..4).map(|volume| world.count(volume, span(from, to))).sum()
    };
    assert!(sum(&world, 1, 2).abs_diff(1_000) <= 1);
    assert!(sum(&world, 2, 3).abs_diff(8_000) <= 8, "{}", sum(&world, 2, 3));
    for step in 0..100 {
        let rate = if step % 2 == 0 { 100_000 } else { 1_000 };
        world.scheduler.repace_instance(at(world.now()), name, &instance(limit(rate), None));
        world.run_until(world.now());
    }
    let before = sum(&world, 0, 5);
    world.run_until(4 * NS_PER_S + NS_PER_S / 10);
    let gained = sum(&world, 0, 5) - before;
    assert!(gained <= 102, "{gained}");
    world.scheduler.remove_instance(at(world.now()), name);
    world.run_until(6 * NS_PER_S);
    assert!(sum(&world, 5, 6).abs_diff(20_000) <= 20, "{}", sum(&world, 5, 6));
    assert_eq!(world.scheduler.instance_counters(name).waiting, 0);
    for volume in world.volumes.clone() {
        let _ = world.scheduler.remove(at(world.now()), volume).count();
    }
    assert_eq!(world.scheduler.poll_timeout(), None);
}

/// 13: several hosts of one volume share its limits evenly, each within the limits of its own
/// instance. A host that is held up by its instance holds up no other host.
#[test]
fn p13_hosts_of_a_shared_volume_take_turns() {
    let mut first = Client::greedy(32, 16 * KIB).limited(6_000).on(0);
    first.depth = 0;
    let mut world =
        World::new(None, &[instance(limit(1_000), None), instance(None, None)], &[first]);
    let volume = world.volumes[0];
    let wide = world.instances[1];
    let second = world.scheduler.attach(at(0), volume, Some(wide)).unwrap();
    let third = world.scheduler.attach(at(0), volume, Some(wide)).unwrap();
    let mut served = [0u64; 3];
    let mut waiting = [0u32; 3];
    let mut now = 0;
    let mut serial = 0u64;
    while now < 2 * NS_PER_S {
        for (host, waiting) in waiting.iter_mut().enumerate() {
            while *waiting < 32 {
                let length = if host == 2 { 128 * KIB } else { 16 * KIB };
                serial += 1;
                let offset = serial << 20;
                let io = Io { operation: READ, offset, length, handle: host as u32 };
                match host {
                    0 => world.scheduler.submit(at(now), volume, io).unwrap(),
                    1 => world.scheduler.submit_from(at(now), second, io).unwrap(),
                    _ => world.scheduler.submit_from(at(now), third, io).unwrap(),
                }
                *waiting += 1;
            }
        }
        while let Some(dispatch) = world.scheduler.poll_output() {
            waiting[dispatch.handle as usize] -= 1;
            served[dispatch.handle as usize] += u64::from(now >= NS_PER_S);
        }
        // There is no timeout while the tokens saved at the start last.
        now = world.scheduler.poll_timeout().map_or(now, |timeout| timeout.ns.max(now));
        world.scheduler.poll(at(now));
    }
    assert!(served[0].abs_diff(1_000) <= 2, "{served:?}");
    assert!(served[1].abs_diff(2_500) <= 25, "{served:?}");
    assert!(served[2].abs_diff(2_500) <= 25, "{served:?}");
    let left = world.scheduler.detach(at(now), second).count();
    assert!((31..=32).contains(&left), "{left}");
    assert!(
        world
            .scheduler
            .submit_from(at(now), second, Io { operation: READ, offset: 0, length: 512, handle: 0 })
            .is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(3)))]

    /// 13: the limits of volumes and instances hold at once in every window, and the narrower one
    /// is used up.
    #[test]
    fn p13_volume_and_instance_limits_hold_at_once(
        rates in prop::collection::vec(50..8_000u64, 1..10),
        total in 200..20_000u64,
        tolerance_ms in 1..200u64,
    ) {
        let clients: Vec<Client> = rates
            .iter()
            .map(|rate| Client::greedy(16, 16 * KIB).limited(*rate).on(0))
            .collect();
        let mut pacing = instance(limit(total), None);
        pacing.tolerance = Duration::from_ms(tolerance_ms);
        let mut world = World::new(None, &[pacing], &clients);
        world.run_until(3 * NS_PER_S);
        let counts: Vec<u64> =
            (0..rates.len()).map(|volume| world.count(volume, span(1, 3))).collect();
        let asked: u64 = rates.iter().sum();
        let sum: u64 = counts.iter().sum();
        let due = 2 * asked.min(total);
        prop_assert!(sum <= 2 * total + 1 + total * tolerance_ms / 1_000, "{} of {}", sum, total);
        prop_assert!(sum + 2 + rates.len() as u64 >= due * 998 / 1_000, "{} of {}", sum, due);
        for (count, rate) in counts.iter().zip(&rates) {
            prop_assert!(*count <= 2 * rate + 1 + rate / 20, "{:?} of {:?}", counts, rates);
        }
        let times: Vec<u64> = world.going.iter().map(|going| going.at).collect();
        for first in (0..times.len()).step_by(101) {
            for last in (first..times.len()).step_by(37) {
                let span = times[last] - times[first] + tolerance_ms * 1_000_000;
                prop_assert!((last - first) as u64 <= total * span / NS_PER_S + 1);
            }
        }
    }
}
