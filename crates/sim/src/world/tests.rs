//! The world, compared with figures that are calculated by hand.

use super::*;
use crate::scenario::program::{Program, ProgramSetup};
use crate::scenario::setup::{
    Arrival, Change, ClientSetup, DeviceSetup, Load, PollerSetup, Shape, Target, Think, VolumeSetup,
};
use crate::world::client::{BACKLOG_MAX, Wanted};
use crate::world::product::Product;
use evenkeel_core::qos::pacing::{Limit, Pacing};
use evenkeel_core::request::Operation;
use proptest::prelude::*;

pub(super) const SECOND: u64 = 1_000_000_000;

pub(super) fn volume(iops: Option<u64>) -> VolumeSetup {
    let limit = |per_second| Limit { per_second, credit: None };
    VolumeSetup {
        name: "v".to_owned(),
        kind: String::new(),
        size_bytes: 1 << 36,
        pacing: Pacing { operations: iops.map(limit), ..Pacing::UNLIMITED },
        balances: Balances::default(),
        spec: None,
        instance: None,
        share: None,
    }
}

pub(super) fn client(target: Target, threads: u16, depth: u16) -> ClientSetup {
    ClientSetup {
        name: "c".to_owned(),
        target,
        shape: Shape {
            read_percent: 50,
            block_bytes: 16 << 10,
            sequential: false,
            fua: false,
            span_bytes: 1 << 36,
        },
        load: Load::Closed { threads, depth, think: Think::No },
        start_ns: 0,
        stop_ns: u64::MAX,
        program: None,
    }
}

pub(super) fn setup(seconds: u64, volumes: Vec<VolumeSetup>, clients: Vec<ClientSetup>) -> Setup {
    Setup {
        duration_ns: seconds * SECOND,
        sample_ns: SECOND,
        volumes,
        instances: Vec::new(),
        stripes: Vec::new(),
        clients,
        device: DeviceSetup::ideal(100_000),
        poller: PollerSetup::default(),
        changes: Vec::new(),
    }
}

fn run(setup: &Setup, seed: u64) -> Outcome<Product> {
    World::new(setup, seed, Product::new(setup).unwrap()).run()
}

fn completed(outcome: &Outcome<Product>, volume: usize) -> Vec<u64> {
    outcome.volumes[volume].samples.iter().map(|sample| sample.completed).collect()
}

/// Each request in flight completes after 100 us, and the next one follows at once.
#[test]
fn a_closed_loop_on_an_ideal_device_is_its_depth_by_its_latency() {
    for (threads, depth) in [(1, 1), (3, 7), (1, 100)] {
        let setup = setup(2, vec![volume(None)], vec![client(Target::Volume(0), threads, depth)]);
        let outcome = run(&setup, 1);
        let under_way = u64::from(threads) * u64::from(depth);
        assert_eq!(completed(&outcome, 0), [under_way * 9_999, under_way * 10_000]);
        let latency = outcome.volumes[0].latency;
        assert_eq!((latency.p50_ns, latency.max_ns), (100_000, 100_000));
        assert_eq!(outcome.census.under_way, under_way);
    }
}

/// Little's law: a request that waits for tokens waits for depth / rate.
#[test]
fn a_limited_volume_has_its_rate_and_the_latency_that_follows() {
    let setup = setup(4, vec![volume(Some(1_000))], vec![client(Target::Volume(0), 1, 32)]);
    let outcome = run(&setup, 1);
    let counts = completed(&outcome, 0);
    assert_eq!(&counts[1..], [1_000; 3]);
    assert!((1_000..=1_051).contains(&counts[0]), "{counts:?}: 50 ms of tokens were saved");
    let p50_ns = outcome.volumes[0].latency.p50_ns;
    assert!(p50_ns.abs_diff(32_000_000) <= 150_000, "{p50_ns}");
}

#[test]
fn clients_think_arrive_and_come_back() {
    let base = client(Target::Volume(0), 1, 1);
    let loads = [
        // A round is 100 us at the device and a pause of 900 us.
        (Load::Closed { threads: 2, depth: 2, think: Think::Constant(900_000) }, 4_000),
        (Load::Open { per_second: 700, poisson: false }, 700 - 1),
        // 2 ms at the device, ten times. The batch that starts with the second ends after it.
        (
            Load::Job {
                every_ns: 100_000_000,
                poisson: false,
                ios: 20,
                depth: 1,
                think: Think::No,
            },
            200,
        ),
    ];
    for (load, first_second) in loads {
        let what = format!("{load:?}");
        let setup = setup(2, vec![volume(None)], vec![ClientSetup { load, ..base.clone() }]);
        assert_eq!(completed(&run(&setup, 1), 0)[0], first_second, "{what}");
    }
    let load = Load::Open { per_second: 10_000, poisson: true };
    let random = setup(9, vec![volume(None)], vec![ClientSetup { load, ..base }]);
    let counts = completed(&run(&random, 1), 0);
    assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
    assert!(counts[1..].windows(2).any(|two| two[0] != two[1]), "{counts:?}");
}

#[test]
fn jobs_start_in_time_or_at_once_when_late() {
    let base = client(Target::Volume(0), 1, 1);
    let job =
        |ios| Load::Job { every_ns: 100_000_000, poisson: false, ios, depth: 4, think: Think::No };
    let batches = |ios| {
        let clients = vec![ClientSetup { load: job(ios), ..base.clone() }];
        run(&setup(1, vec![volume(None)], clients), 1).clients.remove(0).batches
    };
    let short = batches(10);
    assert_eq!(short.len(), 10);
    for (number, batch) in short.iter().enumerate() {
        assert_eq!(batch.started_ns, number as u64 * 100_000_000);
        assert_eq!(batch.took_ns, 300_000, "ten requests, four at a time");
    }
    let long = batches(8_000);
    assert_eq!(long.len(), 4);
    assert!(long.windows(2).all(|two| two[0].started_ns + two[0].took_ns == two[1].started_ns));
}

/// The distances of starts are random, and the first one precedes the first batch. A batch that is
/// late starts as soon as its predecessor ends.
#[test]
fn jobs_at_random_times_start_as_often_on_average() {
    let batches = |ios, seed| {
        let load =
            Load::Job { every_ns: 50_000_000, poisson: true, ios, depth: 1, think: Think::No };
        let clients = vec![ClientSetup { load, ..client(Target::Volume(0), 1, 1) }];
        run(&setup(100, vec![volume(None)], clients), seed).clients.remove(0).batches
    };
    let short = batches(1, 1);
    assert!(short.len().abs_diff(2_000) < 150, "{} in 100 s, 2,000 on average", short.len());
    let starts: Vec<u64> = short.iter().map(|batch| batch.started_ns).collect();
    let within_5_ms = starts.windows(2).filter(|two| two[1] - two[0] < 5_000_000).count();
    assert!(within_5_ms.abs_diff(190) < 60, "{within_5_ms} of 2,000: 1 - 1 / e^0.1");
    assert!(starts[0] > 0 && batches(1, 2)[0].started_ns != starts[0]);
    let long = batches(5_000, 1);
    assert!(long.windows(2).any(|two| two[0].started_ns + two[0].took_ns == two[1].started_ns));
}

/// There is no substitute for a page cache. A client that needs one reports nothing.
#[test]
fn reads_of_a_page_cache_are_not_simulated() {
    let load =
        |ios| Load::Job { every_ns: SECOND, poisson: false, ios, depth: 1, think: Think::No };
    let program = Some(ProgramSetup { program: Program::MeltRead, calls: 9, seconds: 0 });
    let writes = ClientSetup { load: load(5), ..client(Target::Volume(0), 1, 1) };
    let reads = ClientSetup { load: load(9), program, ..client(Target::Volume(0), 1, 1) };
    let outcome = run(&setup(2, vec![volume(None)], vec![writes, reads]), 1);
    assert_eq!(completed(&outcome, 0), [5, 5]);
    assert_eq!(outcome.clients[0].batches.len(), 2);
    assert!(outcome.clients[1].batches.is_empty());
}

/// Ten requests of 100 us with nine pauses between them, and none before the next batch.
#[test]
fn a_job_may_pause_between_its_requests() {
    let think = Think::Constant(400_000);
    let load = Load::Job { every_ns: 100_000_000, poisson: false, ios: 10, depth: 1, think };
    let clients = vec![ClientSetup { load, ..client(Target::Volume(0), 1, 1) }];
    let batches = run(&setup(1, vec![volume(None)], clients), 1).clients.remove(0).batches;
    assert_eq!(batches.len(), 10);
    for (number, batch) in batches.iter().enumerate() {
        assert_eq!(batch.started_ns, number as u64 * 100_000_000);
        assert_eq!(batch.took_ns, 10 * 100_000 + 9 * 400_000);
    }
}

#[test]
fn a_trace_is_replayed_in_its_own_time() {
    let arrival = |at_ns, offset| Arrival { at_ns, is_read: false, offset, length: 4_096 };
    let load = Load::Trace(vec![arrival(0, 0), arrival(500_000_000, 8), arrival(SECOND, 16)]);
    let client = ClientSetup { load, start_ns: SECOND, ..client(Target::Volume(0), 1, 1) };
    let outcome = run(&setup(3, vec![volume(None)], vec![client]), 1);
    assert_eq!(completed(&outcome, 0), [0, 2, 1]);
}

#[test]
fn open_loop_client_drops_requests_beyond_its_backlog() {
    let load = Load::Open { per_second: 100_000, poisson: false };
    let client = ClientSetup { load, ..client(Target::Volume(0), 1, 1) };
    let outcome = run(&setup(2, vec![volume(Some(1_000))], vec![client]), 1);
    assert_eq!(outcome.census.under_way + outcome.census.blocked, BACKLOG_MAX);
    let sent = outcome.census.submitted + outcome.clients[0].dropped;
    assert_eq!(sent, 200_000 - 1);
}

#[test]
fn a_paused_program_does_nothing_and_a_late_one_loses_nothing() {
    let mut setup = setup(3, vec![volume(Some(1_000))], vec![client(Target::Volume(0), 1, 4)]);
    setup.poller.pauses = vec![(1_200_000_000, 700_000_000)];
    let counts = completed(&run(&setup, 1), 0);
    assert!((300..=352).contains(&counts[1]), "{counts:?}: 50 ms are saved, the rest is lost");
    setup.poller = PollerSetup::realistic();
    let counts = completed(&run(&setup, 1), 0);
    assert_eq!(&counts[1..], [1_000; 2], "saved tokens make up for milliseconds");
}

#[test]
fn a_stripe_is_as_fast_as_its_volumes_together() {
    let mut striped = setup(3, vec![volume(Some(1_000)); 4], Vec::new());
    let volumes = vec![0, 1, 2, 3];
    striped.stripes = vec![StripeSetup { name: "s".to_owned(), volumes, chunk_bytes: 64 << 10 }];
    striped.clients = vec![client(Target::Stripe(0), 1, 64)];
    striped.clients[0].shape.block_bytes = 256 << 10;
    let outcome = run(&striped, 1);
    let record = outcome.clients[0].record.as_ref().unwrap();
    let whole: Vec<u64> = record.samples.iter().map(|sample| sample.completed).collect();
    assert_eq!(&whole[1..], [1_000; 2], "each request has a part on each volume");
    for volume in 0..4 {
        assert_eq!(&completed(&outcome, volume)[1..], [1_000; 2]);
    }
}

#[test]
fn changes_happen_in_their_time() {
    let mut setup = setup(4, vec![volume(Some(1_000))], vec![client(Target::Volume(0), 1, 8)]);
    let faster = Box::new(volume(Some(2_000)).pacing);
    setup.changes = vec![
        Change { at_ns: 2 * SECOND, kind: ChangeKind::SetLimits(0, faster) },
        Change { at_ns: 3 * SECOND, kind: ChangeKind::Stall(SECOND / 2) },
    ];
    let counts = completed(&run(&setup, 1), 0);
    assert_eq!(counts[1], 1_000);
    assert!((2_000..=2_001).contains(&counts[2]), "{counts:?}");
    assert!((1_000..=1_110).contains(&counts[3]), "{counts:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let load = Load::Open { per_second: 3_000, poisson: true };
    let mut noisy = setup(3, vec![volume(Some(2_900))], Vec::new());
    noisy.clients = vec![ClientSetup { load, ..client(Target::Volume(0), 1, 1) }];
    noisy.device = DeviceSetup { channels: Some(2), noise_ppm: 200_000, ..noisy.device };
    noisy.poller = PollerSetup::realistic();
    let record = |seed| format!("{:?}", run(&noisy, seed).volumes);
    assert_eq!(record(1), record(1));
    assert_ne!(record(1), record(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(3)))]

    /// Requests are neither lost nor created: at every moment each one is answered, refused for
    /// now, waiting in the scheduler, or at the device.
    #[test]
    fn requests_are_conserved(
        limits in prop::collection::vec(prop::option::of(50_u64..50_000), 1..4),
        shapes in prop::collection::vec((1_u16..4, 1_u16..800, 0_u8..=100), 1..4),
        channels in prop::option::of(1_u32..40), seed: u64,
    ) {
        let volumes: Vec<_> = limits.iter().map(|limit| volume(*limit)).collect();
        let count = u32::try_from(volumes.len()).unwrap();
        let clients = shapes.iter().zip(0_u32..).map(|(&(threads, depth, read_percent), number)| {
            let mut client = client(Target::Volume(number % count), threads, depth);
            client.shape.read_percent = read_percent;
            client.start_ns = u64::from(number) * 3_000_000;
            client
        });
        let mut setup = setup(1, volumes, clients.collect());
        setup.device.channels = channels;
        setup.poller = PollerSetup::realistic();
        let mut world = World::new(&setup, seed, Product::new(&setup).unwrap());
        let mut turns = 0;
        while turns < 1_000 && world.turn() {
            turns += 1;
            if turns % 50 == 0 {
                let census = world.census();
                let queued = (0..count).filter_map(|volume| world.policy().counters(volume));
                let queued: u64 = queued.map(|c| u64::from(c.queued_requests)).sum();
                prop_assert_eq!(
                    census.submitted, census.completed + census.blocked + census.under_way
                );
                prop_assert_eq!(census.under_way, queued + census.pieces_at_device);
            }
        }
    }

    /// Parts are adjacent, cover the request, and never cross the border of a chunk.
    #[test]
    fn parts_of_a_striped_request_are_the_request(
        volumes in 1_u32..12, chunk_kib in 1_u32..300, offset in 0_u64..1 << 40,
        length in 1_u32..32 << 20,
    ) {
        let chunk_bytes = chunk_kib << 10;
        let stripe =
            StripeSetup { name: String::new(), volumes: (0..volumes).collect(), chunk_bytes };
        let wanted = Wanted { operation: Operation::Read, offset, length };
        let chunk = u64::from(chunk_bytes);
        let mut at = offset;
        for (volume, part) in stripe.parts(&wanted) {
            let chunk_number = at / chunk;
            prop_assert_eq!(u64::from(volume), chunk_number % u64::from(volumes));
            prop_assert_eq!(part.offset % chunk, at % chunk);
            prop_assert_eq!(part.offset / chunk, chunk_number / u64::from(volumes));
            prop_assert!(part.length > 0 && at % chunk + u64::from(part.length) <= chunk);
            at += u64::from(part.length);
        }
        prop_assert_eq!(at, offset + u64::from(length));
    }
}
