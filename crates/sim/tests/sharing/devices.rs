//! Reservations, weights, windows, classes and delays at a device.

use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{CreditLimit, Limit};
use evenkeel_core::qos::scheduler::{Io, Ticket};
use evenkeel_core::qos::sharing::{
    Claim, DeviceModel, DeviceOthers, DispatchReason, OperationCost, Window,
};
use evenkeel_core::time::Duration;
use proptest::prelude::*;

use crate::world::{Client, KIB, LOG_WRITE, NS_PER_S, WRITE, World, at, device, limit, pacing};

const SLOTS: Window = Window::Slots(34);

/// Total capacity of the device of [`device`], in 16 KiB reads per second.
const CAPACITY: u64 = 219_877;

/// 18: volumes that together reserve four fifths of the device get their reservations in every
/// tenth of a second, whatever ten neighbours of eight times the weight do.
#[test]
fn p18_reservations_hold_under_overload() {
    let each = CAPACITY * 8 / 10 / 40;
    let mut clients = vec![Client::greedy(32, 16 * KIB).reserved(u32::try_from(each).unwrap()); 40];
    let mut hog = Client::greedy(64, 64 * KIB);
    hog.claim.weight = 8_000;
    clients.extend([hog; 10]);
    let mut world = World::new(Some(device(SLOTS)), &[], &clients);
    world.run_until(2 * NS_PER_S);
    for volume in 0..40 {
        for tenth in 1..20 {
            let window = tenth * NS_PER_S / 10..(tenth + 1) * NS_PER_S / 10;
            let served = world.count(volume, window);
            assert!(served + 1 >= each / 10, "volume {volume}, tenth {tenth}: {served}");
        }
    }
    let counters = world.scheduler.device_counters(world.device.unwrap());
    assert!(counters.by_weight > 0, "what is left goes to the others too");
}

/// 18: a reservation is charged the modelled cost of its requests. Volumes get their reservations
/// even if writes take twice the modelled time, as long as the device has time for it. Neighbours
/// of a hundred times the weight get the rest.
#[test]
fn p18_reservations_hold_where_writes_take_longer_than_the_model_says() {
    let each = CAPACITY * 4 / 10 / 40;
    let mut client = Client::greedy(32, 16 * KIB).reserved(u32::try_from(each).unwrap());
    client.operation = WRITE;
    let mut clients = vec![client; 40];
    let mut hog = Client::greedy(64, 16 * KIB);
    hog.claim.weight = 100_000;
    clients.extend([hog; 10]);
    let model = device(SLOTS);
    let mut world = World::idle(Some(model), &[], &clients);
    let writers = world.volumes[..40].to_vec();
    world.set_service(move |rng, _, dispatch| {
        let times = if writers.contains(&dispatch.volume) { 2 } else { 1 };
        model.read.ns(dispatch.length) * times * (80 + rng.below(41)) / 100
    });
    (0..clients.len()).for_each(|number| world.start(number));
    world.run_until(2 * NS_PER_S);
    let counters = world.scheduler.device_counters(world.device.unwrap());
    assert!((1_500..2_500).contains(&counters.write_drift_per_mille), "{counters:?}");
    for volume in 0..40 {
        for tenth in 2..20 {
            let window = tenth * NS_PER_S / 10..(tenth + 1) * NS_PER_S / 10;
            let served = world.count(volume, window);
            assert!(served + 1 >= each / 10, "volume {volume}, tenth {tenth}: {served}");
        }
    }
    let left: u64 = (40..50).map(|hog| world.count(hog, NS_PER_S..2 * NS_PER_S)).sum();
    assert!(left > CAPACITY / 10, "{left} of the neighbours'");
}

/// 19: the rest beside reservations is shared by weight: equal weights equally, and by device time,
/// so a volume with larger requests gets no more of it.
#[test]
fn p19_weights_share_the_rest() {
    let mut clients = vec![Client::greedy(32, 16 * KIB); 8];
    clients[4].length = 64 * KIB;
    clients[5].length = 256 * KIB;
    clients[6].claim.weight = 3_000;
    clients[7].claim.weight = 500;
    let model = device(SLOTS);
    let mut world = World::new(Some(model), &[], &clients);
    world.run_until(3 * NS_PER_S);
    let time = |volume: usize| {
        let per = model.read.ns(clients[volume].length);
        let second = world.count(volume, NS_PER_S..3 * NS_PER_S) * per;
        second as f64 / f64::from(clients[volume].claim.weight)
    };
    let shares: Vec<f64> = (0..8).map(time).collect();
    let least = shares.iter().copied().fold(f64::MAX, f64::min);
    let most = shares.iter().copied().fold(0.0, f64::max);
    // The minimum reservation of 20 I/Os per second, which every volume has, is added to it.
    assert!(least / most >= 0.99, "{shares:?}");
}

/// 21: while a volume's reservation is due, no dispatch is by weight: base before burst.
#[test]
fn p21_base_goes_before_burst() {
    // Baselines are reserved. With credits every volume may ask for ten times as much.
    let burst = |baseline: u64| {
        let credit = Some(CreditLimit { refill_per_second: baseline, capacity: 1 << 40 });
        let mut client = Client::greedy(64, 16 * KIB).reserved(u32::try_from(baseline).unwrap());
        client.pacing = pacing(Some(Limit { per_second: baseline * 10, credit }), None);
        client
    };
    let clients: Vec<Client> = [8_000, 8_000, 20_000, 40_000, 80_000].map(burst).to_vec();
    let mut world = World::new(Some(device(SLOTS)), &[], &clients);
    world.run_until(3 * NS_PER_S);
    for (volume, baseline) in [8_000, 8_000, 20_000, 40_000, 80_000].into_iter().enumerate() {
        for second in 1..3 {
            let of = |going: &&crate::world::Going| {
                going.volume == volume && going.at / NS_PER_S == second
            };
            let base = world.going.iter().filter(of);
            let base = base.filter(|going| going.reason == DispatchReason::Reserved).count() as u64;
            assert!(base * 1_000 >= baseline * 995, "volume {volume}: {base} of {baseline}");
            assert!(base * 1_000 <= baseline * 1_006, "volume {volume}: {base} of {baseline}");
        }
    }
}

/// 6 (isolation): a log writer at depth 1 beside one that saturates the device.
#[test]
fn a_log_writer_keeps_its_latency_beside_a_neighbour_that_saturates_the_device() {
    let mut log = Client::greedy(1, 16 * KIB).reserved(6_000);
    log.operation = LOG_WRITE;
    let p99 = |clients: &[Client], seed: u64| {
        let mut world = World::new(Some(device(SLOTS)), &[], clients).seeded(seed);
        world.run_until(3 * NS_PER_S);
        (world.percentile(0, 990), world.latencies[0].len())
    };
    // The worst of these seeds is 264 us with a neighbour and 175 us alone: 1.51. The promise is 2.
    for seed in 0..8 {
        let (alone, _) = p99(&[log], seed);
        let (beside, served) = p99(&[log, Client::greedy(120, 256 * KIB)], seed);
        assert!(10 * beside <= 16 * alone, "seed {seed}: p99 {beside} ns beside, {alone} ns alone");
        assert!(served > 18_000, "seed {seed}: {served}");
    }
}

/// 12 and 18: half of a device of four channels, with a window that other cores found to be narrow:
/// one large request takes longer than the whole window. It is dispatched all the same, as soon as
/// a channel is free, and volumes that reserve three quarters of two channels do not wait for it.
#[test]
fn p12_p18_a_request_larger_than_the_window_neither_starves_nor_stops_the_others() {
    let cost = OperationCost { base: Duration::from_us(200), byte_ps: 20_000 };
    let window = Window::Adaptive { small_p99: Duration::from_ms(5) };
    let model = DeviceModel { channels: 4, read: cost, write: cost, window };
    let mut clients = vec![Client::greedy(32, 16 * KIB).limited(700).reserved(700); 4];
    clients.push(Client::greedy(96, 256 * KIB));
    let mut world = World::new(Some(model), &[], &clients);
    let half = DeviceOthers { part_per_mille: 500, window_slots: Some(6), ..DeviceOthers::NONE };
    let name = world.device.unwrap();
    world.scheduler.set_device_others(at(0), name, &half);
    world.run_until(4 * NS_PER_S);
    for volume in 0..4 {
        for second in 1..4 {
            let count = world.count(volume, second * NS_PER_S..(second + 1) * NS_PER_S);
            assert!(count >= 693, "volume {volume}: {count} in second {second}");
        }
    }
    // Two channels have 3,787 requests of 528 us per second, less 2,800 reserved ones: as much as
    // 95 of 5.44 ms.
    let large = world.count(4, NS_PER_S..4 * NS_PER_S) / 3;
    assert!(large >= 90, "{large}");
}

/// 20: with few channels the last one is kept free of large requests while urgent ones arrive, so
/// that they do not wait for a large one. There a large one takes 5.4 ms, a small one half a
/// millisecond.
#[test]
fn p20_an_urgent_request_finds_a_channel_free() {
    let cost = OperationCost { base: Duration::from_us(200), byte_ps: 20_000 };
    let model = DeviceModel { channels: 4, read: cost, write: cost, window: Window::Slots(6) };
    let mut log = Client::greedy(1, 16 * KIB).reserved(2_500);
    log.operation = LOG_WRITE;
    let p99 = |clients: &[Client]| {
        let mut world = World::new(Some(model), &[], clients);
        world.run_until(3 * NS_PER_S);
        let large = clients
            .iter()
            .skip(1)
            .zip(1..)
            .map(|(_, volume)| world.count(volume, NS_PER_S..3 * NS_PER_S) / 2);
        (world.percentile(0, 990), large.sum::<u64>())
    };
    let (alone, _) = p99(&[log]);
    let (beside, large) = p99(&[log, Client::greedy(64, 256 * KIB)]);
    assert!(beside <= 2 * alone, "p99 {beside} ns beside, {alone} ns alone");
    // The large requests have at least half of the channels, if not three of the four.
    assert!(large >= 2 * 170, "{large}");
}

/// 20: the urgent class does not bypass limits: it has a bound of its own, and the volume's limits
/// apply to it.
#[test]
fn p20_urgent_requests_are_bounded() {
    let mut log = Client::greedy(1, 4 * KIB).limited(20_000).reserved(1_000);
    log.operation = LOG_WRITE;
    let rival = Client::greedy(120, 256 * KIB);
    let mut world = World::new(Some(device(SLOTS)), &[], &[log, rival]);
    world.run_until(3 * NS_PER_S);
    let reserved = world.going.iter().filter(|going| {
        going.volume == 0 && going.reason == DispatchReason::Reserved && going.at >= NS_PER_S
    });
    // In units of 16 KiB reads: 96 us of 145 us for each.
    let reserved = reserved.count();
    assert!(reserved <= 2 * (1_600 + 60), "{reserved}");
}

/// 28: a pause of the device of up to 100 ms costs a volume nothing: within a second from the start
/// of the pause it gets 99 % of its provisioned I/Os, and never more than it should have had by
/// then.
#[test]
fn p28_a_stalled_device_is_made_up_for() {
    for stall_ms in [1, 5, 20, 60, 100] {
        for tolerance_ms in [1, 5, 50, 1_000] {
            let mut client = Client::greedy(64, 16 * KIB).limited(10_000).reserved(10_000);
            client.pacing.tolerance = Duration::from_ms(tolerance_ms);
            let mut world = World::new(Some(device(SLOTS)), &[], &[client]);
            let start = 2 * NS_PER_S;
            world.stalls.push(start..start + stall_ms * 1_000_000);
            world.run_until(5 * NS_PER_S);
            let window = world.count(0, start..start + NS_PER_S);
            let label = format!("{stall_ms} ms, tolerance {tolerance_ms} ms: {window}");
            assert!(window >= 9_900, "{label}");
            assert!(window <= 10_001, "{label}");
            let later = world.count(0, start + 2 * NS_PER_S..start + 3 * NS_PER_S);
            assert!((9_999..=10_001).contains(&later), "{label}, later {later}");
        }
    }
}

/// 28: a pause of the server, in which it does not poll, costs a volume nothing either.
#[test]
fn p28_a_pause_of_the_server_is_made_up_for() {
    for pause_ms in [1, 5, 20, 100] {
        for tolerance_ms in [1, 5, 50] {
            let mut client = Client::greedy(64, 16 * KIB).limited(3_000).reserved(3_000);
            client.pacing.tolerance = Duration::from_ms(tolerance_ms);
            let mut world = World::new(Some(device(SLOTS)), &[], &[client]);
            let start = 2 * NS_PER_S;
            world.pauses.push(start..start + pause_ms * 1_000_000);
            world.run_until(5 * NS_PER_S);
            let window = world.count(0, start..start + NS_PER_S);
            assert!((2_970..=3_001).contains(&window), "{pause_ms}, {tolerance_ms}: {window}");
        }
    }
}

/// 28: of time in which other volumes had the device, only the reservation is made up for. The rest
/// of the volume's limit was not promised.
#[test]
fn p28_unreserved_rate_is_not_made_up_for() {
    let client = Client::greedy(400, 16 * KIB).limited(2_000).reserved(400);
    let mut busy = Client::greedy(64, 16 * KIB).limited(220_000).reserved(218_000);
    busy.claim.weight = 1_000_000;
    let mut world = World::new(Some(device(SLOTS)), &[], &[client, busy]);
    world.run_until(3 * NS_PER_S);
    let beside = world.count(0, 2 * NS_PER_S..3 * NS_PER_S);
    assert!((396..1_000).contains(&beside), "{beside}");
    world.stop_sending_of(1);
    world.run_until(5 * NS_PER_S);
    let after = world.count(0, 3 * NS_PER_S..4 * NS_PER_S);
    assert!(after <= 2_000 + 101, "{after}");
}

/// 28: an idle volume saves its tolerance and nothing else. Only delays that the server caused are
/// made up for.
#[test]
fn p28_idleness_is_not_made_up_for() {
    let client = Client { depth: 0, ..Client::greedy(0, 16 * KIB).limited(1_000) };
    let mut world = World::new(Some(device(SLOTS)), &[], &[client]);
    world.run_until(NS_PER_S);
    for _ in 0..1_000 {
        world.submit(0);
    }
    world.run_until(NS_PER_S + NS_PER_S / 2);
    let served = world.count(0, NS_PER_S..NS_PER_S + NS_PER_S / 2);
    assert!((549..=551).contains(&served), "{served}");
}

/// 25: every request is dispatched once. The window is empty after the last completion, and
/// invented or repeated completions change nothing.
#[test]
fn p25_completions_are_counted_once() {
    let client = Client::greedy(0, 256 * KIB);
    let mut world = World::new(Some(device(SLOTS)), &[], &[client]);
    let volume = world.volumes[0];
    let name = world.device.unwrap();
    for handle in 0..50 {
        let offset = u64::from(handle) << 20;
        let io = Io { operation: crate::world::READ, offset, length: 600 * KIB, handle };
        world.scheduler.submit(at(0), volume, io).unwrap();
    }
    let mut tickets = Vec::new();
    let mut last = 0;
    while let Some(dispatch) = world.scheduler.poll_output() {
        tickets.push(dispatch.ticket);
        last += u32::from(dispatch.last);
        let counters = world.scheduler.device_counters(name);
        // As many as there are slots of the dearest request, which takes longer than a channel's
        // part.
        let dearest_ns = device(SLOTS).read.ns(256 * KIB);
        let most_ns = counters.window_slots * dearest_ns;
        assert!(counters.in_flight_ns <= most_ns, "{counters:?}");
        if tickets.len() % 3 == 0 {
            for _ in 0..2 {
                world.scheduler.complete(at(1_000), tickets[tickets.len() - 3]);
            }
            world.scheduler.complete(at(1_000), Ticket::NONE);
        }
        if tickets.len() >= 30 {
            let ticket = tickets[tickets.len() - 30];
            world.scheduler.complete(at(2_000), ticket);
        }
    }
    for ticket in &tickets {
        world.scheduler.complete(at(3_000), *ticket);
        while let Some(dispatch) = world.scheduler.poll_output() {
            last += u32::from(dispatch.last);
            world.scheduler.complete(at(3_000), dispatch.ticket);
        }
    }
    while let Some(dispatch) = world.scheduler.poll_output() {
        last += u32::from(dispatch.last);
        world.scheduler.complete(at(3_000), dispatch.ticket);
    }
    let counters = world.scheduler.device_counters(name);
    assert_eq!((counters.in_flight, counters.in_flight_ns), (0, 0));
    assert_eq!(last, 50);
    assert!(world.scheduler.unknown_completions() > 0);
    assert_eq!(world.scheduler.counters(volume).in_flight, 0);
}

/// 27: every nanosecond in which a volume with waiting requests dispatched nothing is attributed to
/// a limit, the instance, the device, or the server's lateness.
#[test]
fn p27_the_time_a_volume_waits_is_accounted_for() {
    let clients = [
        Client::greedy(64, 16 * KIB).limited(3_000),
        Client::greedy(64, 16 * KIB),
        Client::greedy(64, 256 * KIB),
    ];
    let mut world = World::new(Some(device(Window::Slots(8))), &[], &clients);
    world.run_until(2 * NS_PER_S);
    world.scheduler.poll(at(2 * NS_PER_S));
    for volume in 0..3 {
        let counters = world.scheduler.counters(world.volumes[volume]);
        let exceeded = counters.exceeded;
        let sum = exceeded.operations_ns
            + exceeded.bytes_ns
            + exceeded.guard_ns
            + exceeded.instance_operations_ns
            + exceeded.instance_bytes_ns
            + exceeded.device_ns
            + counters.late_ns;
        assert_eq!(sum, 2 * NS_PER_S, "volume {volume}: {counters:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    /// 1, 13, 12: limits hold on a device, too, whatever the neighbours do, and no volume starves.
    #[test]
    fn p12_p13_limits_and_the_window_hold_at_once(
        volumes in prop::collection::vec(
            (100..40_000u64, 1..64u32, 0..3usize, any::<bool>(), 0..2_000u32), 2..8,
        ),
        slots in 1..80u32,
    ) {
        let clients: Vec<Client> = volumes
            .iter()
            .map(|(rate, depth, size, limited, reserved)| {
                let length = [4, 64, 256][*size] * KIB;
                let client = Client::greedy(*depth, length).reserved(*reserved);
                if *limited { client.limited(*rate) } else { client }
            })
            .collect();
        let mut world = World::new(Some(device(Window::Slots(slots))), &[], &clients);
        world.run_until(NS_PER_S / 2);
        let mut few = false;
        for (volume, client) in clients.iter().enumerate() {
            let times: Vec<u64> = world
                .going
                .iter()
                .filter(|going| going.volume == volume)
                .map(|going| going.at)
                .collect();
            few |= times.len() < 5;
            let Some(Limit { per_second, .. }) = client.pacing.operations else { continue };
            // Any window that ends with an I/O. Up to 250 ms may be made up for.
            let catch_up = world.scheduler.counters(world.volumes[volume]).catch_up.ns;
            for (first, start) in times.iter().enumerate().step_by(7) {
                for (last, end) in times.iter().enumerate().skip(first).step_by(11) {
                    let span = end - start + 50_000_000 + catch_up;
                    let most = per_second * span / NS_PER_S + 2;
                    prop_assert!((last - first) as u64 <= most, "volume {}", volume);
                }
            }
        }
        if few {
            // The minimum reservation is 20 I/Os of 16 KiB per second. That is one or two of 256
            // KiB in half a second, and fewer if more is reserved than the device has.
            world.run_until(10 * NS_PER_S);
            for volume in 0..clients.len() {
                let served = world.count(volume, 0..10 * NS_PER_S);
                prop_assert!(served >= 8, "volume {} starves: {}", volume, served);
            }
        }
    }
}

/// A case of the property above that failed when the property asked for five I/Os in half a second
/// of each volume: large I/Os with the minimum reservation, on a device with more reservations than
/// capacity.
#[test]
fn p12_the_least_reservation_is_kept_in_large_requests() {
    let client = |depth, length, reserved| Client::greedy(depth, length).reserved(reserved);
    let clients = [
        client(2, 4 * KIB, 1_788),
        client(40, 4 * KIB, 0).limited(37_800),
        client(20, 256 * KIB, 13),
        client(60, 4 * KIB, 1_190).limited(9_008),
        client(2, 256 * KIB, 1_627),
        client(14, 256 * KIB, 1_990).limited(29_547),
    ];
    let mut world = World::new(Some(device(Window::Slots(1))), &[], &clients);
    world.run_until(10 * NS_PER_S);
    let served = world.count(2, 0..10 * NS_PER_S);
    assert!((25..=50).contains(&served), "{served}");
}

/// 16, 24: a volume that gets a claim, another one, and none again keeps its limits all the time.
#[test]
fn p16_claims_come_and_go_without_a_gain() {
    let client = Client::greedy(32, 16 * KIB).limited(1_000);
    let mut world = World::new(Some(device(SLOTS)), &[], &[client]);
    let mut now = 0;
    for step in 0..200u32 {
        now += 10_000_000;
        world.run_until(now);
        let claim = Claim { reservation_per_second: step * 7 % 1_000, weight: 1 + step % 5 };
        let to = (world.device.filter(|_| step % 3 != 0), None);
        let volume = world.volumes[0];
        world.scheduler.share(at(now), volume, &client.pacing, to, &claim).unwrap();
        world.run_until(now);
    }
    let served = world.count(0, 0..now);
    assert!((1_998..=2_051).contains(&served), "{served}");
}

/// 12: a reservation of throughput is kept in bytes: an st1 of 40 MiB/s and a gp3 of 125 MiB/s,
/// with large requests, beside a neighbour without a limit.
#[test]
fn p12_a_reservation_of_throughput_is_kept_in_bytes() {
    let model = device(Window::Adaptive { small_p99: Duration::from_ms(4) });
    let of = |operations_per_second, bytes_per_second| {
        let reserved = Reserved { operations_per_second, bytes_per_second };
        let mut client = Client::greedy(32, 256 * KIB).reserved(model.reference_requests(reserved));
        let operations = limit(u64::from(operations_per_second).max(500));
        client.pacing = pacing(operations, limit(bytes_per_second));
        client.claim.weight = 1;
        client
    };
    let hdd = of(40, 40 << 20);
    let ssd = of(3_000, 125 << 20);
    let mut world = World::new(Some(model), &[], &[hdd, ssd, Client::greedy(96, 256 * KIB)]);
    world.run_until(5 * NS_PER_S);
    let mib = |volume| world.count(volume, NS_PER_S..5 * NS_PER_S) / 16;
    assert!(mib(0) >= 39, "{} MiB/s of 40", mib(0));
    assert!(mib(1) >= 124, "{} MiB/s of 125", mib(1));
}
