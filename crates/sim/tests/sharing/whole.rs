//! Properties of the whole scheduler: volumes of all kinds on two instances and a device.

use evenkeel_core::qos::pacing::{CreditLimit, Limit};
use evenkeel_core::qos::sharing::{InstancePacing, Window};
use evenkeel_core::time::Duration;
use proptest::prelude::*;

use crate::world::{Client, Going, KIB, LOG_WRITE, NS_PER_S, World, at, device, limit};

fn client() -> impl Strategy<Value = Client> {
    (
        prop::option::of(100..20_000u64),
        prop::option::of((10..1_000u64, 0..2_000u64)),
        1..48u32,
        prop::sample::select(vec![4u32, 16, 64, 256, 600]),
        prop::option::of(0..2usize),
        0..3_000u32,
        any::<bool>(),
    )
        .prop_map(|(rate, credit, depth, kib, instance, reserved, log)| {
            let mut client = Client::greedy(depth, kib * KIB).reserved(reserved);
            if let Some(per_second) = rate {
                client = client.limited(per_second);
                let credit = credit.map(|(refill_per_second, capacity)| CreditLimit {
                    refill_per_second,
                    capacity,
                });
                client.pacing.operations = Some(Limit { per_second, credit });
            }
            client.instance = instance;
            if log {
                client.operation = LOG_WRITE;
            }
            client
        })
}

fn instances() -> impl Strategy<Value = [InstancePacing; 2]> {
    (500..60_000u64, 1_000_000..2_000_000_000u64, any::<bool>()).prop_map(|(iops, bytes, link)| {
        let first = InstancePacing { operations: limit(iops), ..InstancePacing::UNLIMITED };
        let one_way = Some(bytes).filter(|_| link);
        let both = limit(bytes).filter(|_| !link);
        let second = InstancePacing {
            bytes: both,
            read_bytes_per_second: one_way,
            write_bytes_per_second: one_way,
            ..InstancePacing::UNLIMITED
        };
        [first, second]
    })
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..100u32).prop_map(Window::Slots),
        (100..2_000u64).prop_map(|us| Window::Adaptive { small_p99: Duration::from_us(us) }),
    ]
}

fn going(world: &World) -> Vec<(u64, usize, u32)> {
    world.going.iter().map(|Going { at, volume, length, .. }| (*at, *volume, *length)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]

    /// 9, 26: polls that the scheduler did not ask for change nothing, and the same inputs yield
    /// the same outputs, to the nanosecond.
    #[test]
    fn p09_p26_extra_polls_change_nothing(
        clients in prop::collection::vec(client(), 1..10),
        instances in instances(),
        window in window(),
    ) {
        let run = |extra_polls| {
            let mut world = World::new(Some(device(window)), &instances, &clients);
            world.extra_polls = extra_polls;
            world.run_until(NS_PER_S / 5);
            let counters: Vec<_> =
                world.volumes.iter().map(|volume| world.scheduler.counters(*volume)).collect();
            (going(&world), counters)
        };
        let plain = run(0);
        prop_assert_eq!(&plain, &run(0));
        prop_assert_eq!(plain.0, run(5).0);
    }

    /// 15: the order in which volumes submit requests in the same nanosecond changes no total.
    #[test]
    fn p15_the_order_within_a_nanosecond_changes_no_total(
        rates in prop::collection::vec(200..5_000u64, 2..8),
        total in 1_000..20_000u64,
        shift in 1..8usize,
    ) {
        let clients: Vec<Client> = rates
            .iter()
            .map(|rate| Client::greedy(32, 16 * KIB).limited(*rate).on(0))
            .collect();
        let instance = InstancePacing { operations: limit(total), ..InstancePacing::UNLIMITED };
        let counts = |shift: usize| {
            let mut order: Vec<usize> = (0..clients.len()).collect();
            order.rotate_left(shift % clients.len());
            let mut world = World::in_order(None, &[instance], &clients, &order);
            world.run_until(3 * NS_PER_S);
            let counts: Vec<u64> =
                (0..clients.len()).map(|v| world.count(v, NS_PER_S..3 * NS_PER_S)).collect();
            counts
        };
        let one = counts(0);
        let other = counts(shift);
        let sums = (one.iter().sum::<u64>(), other.iter().sum::<u64>());
        prop_assert!(sums.0.abs_diff(sums.1) <= 1, "{:?} {:?}", one, other);
        for (one, other) in one.iter().zip(&other) {
            // A hundredth, or the worth of a turn.
            let most = (one / 100).max(16);
            prop_assert!(one.abs_diff(*other) <= most, "{} {}", one, other);
        }
    }

    /// 25, 23: every submitted request is dispatched, waits, or was cancelled. At the end there is
    /// no state left, and the scheduler does not ask for a poll.
    #[test]
    fn p23_p25_requests_are_conserved_and_none_is_left(
        clients in prop::collection::vec(client(), 1..10),
        instances in instances(),
        window in window(),
        cancelled in any::<bool>(),
    ) {
        let mut world = World::new(Some(device(window)), &instances, &clients);
        world.run_until(NS_PER_S / 10);
        let requests: u64 = world
            .volumes
            .iter()
            .map(|volume| {
                let counters = world.scheduler.counters(*volume);
                counters.requests + u64::from(counters.queued_requests)
            })
            .sum();
        prop_assert_eq!(requests, u64::from(world.submissions()));
        world.stop_sending();
        if cancelled {
            for volume in world.volumes.clone() {
                let waiting = world.scheduler.counters(volume).queued_requests;
                let now = at(world.now());
                let count = world.scheduler.cancel_queued(now, volume, |_| true).count();
                prop_assert_eq!(count as u32, waiting);
            }
        }
        // Slow volumes have few waiting requests.
        world.run_until(world.now() + 600 * NS_PER_S);
        for volume in world.volumes.clone() {
            let counters = world.scheduler.counters(volume);
            prop_assert_eq!((counters.queued_requests, counters.queued_bytes), (0, 0));
            prop_assert_eq!(counters.in_flight, 0);
        }
        let device = world.scheduler.device_counters(world.device.unwrap());
        prop_assert_eq!((device.in_flight, device.in_flight_ns), (0, 0));
        prop_assert_eq!(world.scheduler.poll_timeout(), None);
        for instance in world.instances.clone() {
            prop_assert_eq!(world.scheduler.instance_counters(instance).waiting, 0);
        }
    }

    /// 11: requests of a class are dispatched in the order of arrival. With one kind of request
    /// there is one class.
    #[test]
    fn p11_lanes_are_first_in_first_out(
        mut clients in prop::collection::vec(client(), 1..8),
        instances in instances(),
        window in window(),
    ) {
        for client in &mut clients {
            client.operation = crate::world::READ;
        }
        let mut world = World::new(Some(device(window)), &instances, &clients);
        world.run_until(NS_PER_S / 10);
        let mut last = vec![None; clients.len()];
        for going in &world.going {
            prop_assert!(last[going.volume] <= Some(going.handle), "volume {}", going.volume);
            last[going.volume] = Some(going.handle);
        }
    }
}
