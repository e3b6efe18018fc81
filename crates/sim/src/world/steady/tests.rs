//! Leaps do not change results: every run with leaps is compared with the same run without.

use crate::scenario::setup::{
    Change, ChangeKind, ClientSetup, DeviceSetup, InstanceSetup, Load, Setup, Shape, StripeSetup,
    Target, Think, VolumeSetup,
};
use crate::world::product::Product;
use crate::world::record::{Record, Span};
use crate::world::tests::{SECOND, client, setup, volume};
use crate::world::{Census, ClientOutcome, Outcome, World};
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::time::Duration;
use proptest::prelude::*;
use std::fmt::Debug;
use std::ops::Range;

/// Returns everything that is reported of a run.
fn reported(outcome: Outcome<Product>) -> (Vec<Record>, Vec<ClientOutcome>, Census) {
    (outcome.volumes, outcome.clients, outcome.census)
}

/// Runs a setup. Returns the outcome and the number of requests that were simulated.
fn run(setup: &Setup, spans: &[Span], leaps: bool) -> (Outcome<Product>, u64) {
    let mut world = World::new(setup, 1, Product::new(setup).unwrap());
    if leaps {
        world = world.leaping(setup);
    }
    for span in spans {
        world.watch_volume(0, *span);
        world.watch_client(0, *span);
    }
    let outcome = world.run();
    let simulated = outcome.policy.counters(0).unwrap().requests;
    (outcome, simulated)
}

/// Runs a setup in both ways, which must report the same. Returns the number of simulated requests
/// with leaps, and without.
fn simulated(setup: &Setup, spans: &[Span]) -> (u64, u64) {
    let (stepwise, all) = run(setup, spans, false);
    let (leaping, simulated) = run(setup, spans, true);
    let difference = difference(&reported(leaping), &reported(stepwise));
    assert!(difference.is_none(), "{difference:?} of {setup:?} {spans:?}");
    (simulated, all)
}

/// Returns the first lines in which two runs differ.
fn difference(one: &impl Debug, other: &impl Debug) -> Option<(String, String)> {
    let [one, other] = [format!("{one:#?}"), format!("{other:#?}")];
    let lines = one.lines().zip(other.lines()).enumerate();
    let mut different = lines.filter(|(_, (one, other))| one != other);
    different.next().map(|(at, (one, other))| (format!("{at}: {one}"), other.to_owned()))
}

fn burst(per_second: u64, refill_per_second: u64, capacity: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: Some(CreditLimit { refill_per_second, capacity }) })
}

/// Credits that last for a minute, and an instance's that last for less.
#[test]
fn a_volume_that_is_driven_evenly_is_simulated_for_seconds_only() {
    let mut volume = volume(None);
    volume.pacing.operations = burst(3_000, 300, 2_700 * 60);
    let base = setup(300, vec![volume], vec![client(Target::Volume(0), 6, 16)]);
    // Three seconds at each rate, two more around the change between them.
    let (some, all) = simulated(&base, &[]);
    assert!(some < 20_000 && all > 200_000, "{some} of {all}");

    let instance = InstanceSetup {
        name: "i".to_owned(),
        kind: String::new(),
        baseline_iops: 500,
        iops_max: 2_000,
        baseline_bytes_per_second: 1 << 30,
        bytes_per_second_max: 1 << 30,
        per_direction: false,
        efficiency_ppm: 1_000_000,
    };
    let mut behind = Setup { instances: vec![instance], ..base.clone() };
    behind.volumes[0].instance = Some(0);
    behind.stripes =
        vec![StripeSetup { name: "s".to_owned(), volumes: vec![0], chunk_bytes: 64 << 10 }];
    behind.clients[0].target = Target::Stripe(0);
    let (some, all) = simulated(&behind, &[]);
    assert!(some < 30_000 && all > 200_000, "{some} of {all}");
}

/// Worlds in which a result may depend on a random number: none may be leapt over.
#[test]
fn setups_that_chance_or_place_decides_are_simulated() {
    let base = setup(10, vec![volume(Some(1_000))], vec![client(Target::Volume(0), 1, 8)]);
    assert!(simulated(&base, &[]).0 < 5_000);
    let with = |change: &dyn Fn(&mut Setup)| {
        let mut setup = base.clone();
        change(&mut setup);
        setup
    };
    let load = |load: Load| with(&|setup: &mut Setup| setup.clients[0].load = load.clone());
    let think = Think::Exponential(1_000);
    for setup in [
        with(&|setup| setup.clients[0].shape.block_bytes = 64 << 10),
        with(&|setup| setup.clients[0].shape.fua = true),
        with(&|setup| setup.device.noise_ppm = 1_000),
        with(&|setup| setup.device.channels = Some(64)),
        with(&|setup| setup.device.write.base_ns += 1),
        with(&|setup| setup.poller.late_mean_ns = 10),
        with(&|setup| setup.poller.pause_ppm = 1),
        with(&|setup| setup.sample_ns = SECOND / 2),
        with(&|setup| setup.clients.push(client(Target::Volume(0), 1, 1))),
        with(&|setup| setup.volumes.push(volume(None))),
        load(Load::Closed { threads: 1, depth: 8, think }),
        load(Load::Open { per_second: 900, poisson: true }),
        load(Load::Job { every_ns: SECOND, poisson: false, ios: 700, depth: 1, think: Think::No }),
    ] {
        let (some, all) = simulated(&setup, &[]);
        assert_eq!(some, all, "{setup:?}");
    }
}

const SECONDS: u64 = 20;

/// Rates of which some divide a second and some do not.
fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![Just(100), Just(1_000), Just(2_500), 1_u64..4_000]
}

fn limit(unit: u64) -> impl Strategy<Value = Option<Limit>> {
    let credit = (rate(), 0_u64..20_000).prop_map(move |(refill, capacity)| CreditLimit {
        refill_per_second: refill * unit,
        capacity: capacity * unit,
    });
    let limit = (rate(), prop::option::of(credit))
        .prop_map(move |(rate, credit)| Limit { per_second: rate * unit, credit });
    prop::option::of(limit)
}

fn pacing() -> impl Strategy<Value = Pacing> {
    let tolerance = prop_oneof![Just(50), 1_u64..1_000];
    (limit(1), limit(16 << 10), tolerance).prop_map(|(operations, bytes, ms)| Pacing {
        counting: CountingRule::SSD,
        tolerance: Duration::from_ms(ms),
        operations,
        bytes,
    })
}

fn latency_ns() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1_000_000), Just(640_000), 500_000_u64..20_000_000]
}

fn load() -> impl Strategy<Value = Load> {
    let think = prop_oneof![Just(Think::No), latency_ns().prop_map(Think::Constant)];
    let closed = (1_u16..7, 1_u16..20, think);
    prop_oneof![
        4 => closed.prop_map(|(threads, depth, think)| Load::Closed { threads, depth, think }),
        1 => Just(Load::Closed { threads: 5, depth: 300, think: Think::No }),
        2 => rate().prop_map(|per_second| Load::Open { per_second, poisson: false }),
    ]
}

/// 256 KiB are a whole counted I/O, 1 MiB four; the others share none.
fn block_bytes() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(4_096), 2 => Just(16_384), 1 => Just(262_144), 1 => Just(1 << 20)]
}

fn at_ns(within: Range<u64>) -> impl Strategy<Value = u64> {
    let seconds = within.start..within.end;
    prop_oneof![seconds.prop_map(|s| s * SECOND), within.start * SECOND..within.end * SECOND,]
}

fn change() -> impl Strategy<Value = Change> {
    let balances = (0_u64..20_000).prop_map(|units| {
        ChangeKind::SetBalances(0, Balances { operations: Some(units), bytes: None })
    });
    let kind = prop_oneof![
        pacing().prop_map(|pacing| ChangeKind::SetLimits(0, Box::new(pacing))),
        balances,
        (1_u64..3_000).prop_map(|ms| ChangeKind::Stall(ms * 1_000_000)),
    ];
    (at_ns(0..SECONDS), kind).prop_map(|(at_ns, kind)| Change { at_ns, kind })
}

fn instance() -> impl Strategy<Value = InstanceSetup> {
    (rate(), rate(), rate(), 0_u64..500).prop_map(|(base, more, bytes, more_bytes)| InstanceSetup {
        name: "i".to_owned(),
        kind: String::new(),
        baseline_iops: base,
        iops_max: base + more,
        baseline_bytes_per_second: bytes << 14,
        bytes_per_second_max: (bytes + more_bytes) << 14,
        per_direction: false,
        efficiency_ppm: 1_000_000,
    })
}

fn one_client() -> impl Strategy<Value = ClientSetup> {
    let times = (at_ns(0..4), prop::option::of(at_ns(10..SECONDS)));
    (load(), block_bytes(), 0_u8..=100, any::<bool>(), times).prop_map(
        |(load, block_bytes, read_percent, sequential, (start_ns, stop_ns))| {
            let base = client(Target::Volume(0), 1, 1);
            let shape = Shape { block_bytes, read_percent, sequential, ..base.shape };
            let stop_ns = stop_ns.unwrap_or(u64::MAX);
            ClientSetup { load, shape, start_ns, stop_ns, ..base }
        },
    )
}

fn world() -> impl Strategy<Value = Setup> {
    let pauses = prop::option::of((at_ns(1..SECONDS), 1_u64..2_000_000_000));
    let changes = prop::collection::vec(change(), 0..3);
    let around = (prop::option::of(instance()), any::<bool>(), latency_ns());
    (pacing(), one_client(), changes, pauses, around).prop_map(
        |(pacing, client, mut changes, pause, (instance, is_striped, latency_ns))| {
            let instance_number = instance.as_ref().map(|_| 0);
            let volume = VolumeSetup { pacing, instance: instance_number, ..volume(None) };
            let mut setup = setup(SECONDS, vec![volume], vec![client]);
            setup.instances.extend(instance);
            if is_striped {
                let name = "s".to_owned();
                let chunk_bytes = 1 << 20;
                setup.stripes = vec![StripeSetup { name, volumes: vec![0], chunk_bytes }];
                setup.clients[0].target = Target::Stripe(0);
            }
            changes.sort_by_key(|change| change.at_ns);
            setup.changes = changes;
            setup.poller.pauses.extend(pause);
            setup.device = DeviceSetup::ideal(latency_ns);
            setup
        },
    )
}

fn span() -> impl Strategy<Value = Span> {
    (at_ns(0..SECONDS), at_ns(0..SECONDS))
        .prop_map(|(one, other)| Span { from_ns: one.min(other), to_ns: one.max(other) })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    #[test]
    fn a_run_that_leaps_is_the_run_that_does_not(
        setup in world(), spans in prop::collection::vec(span(), 0..3),
    ) {
        simulated(&setup, &spans);
    }
}
