//! Block status requests, which may be expensive for a store: their cost, and requests that they
//! delay.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::memory::MemoryPool;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use support::{Answer, Nbd, Served, local_pool, paced, unlimited};

const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
/// The longest range of a request, in whole blocks.
const ALL: u32 = u32::MAX - 4_095;
const WRITE: Operation = Operation::Write { fua: false };

/// Asks for the holes of the longest range. Returns the number of bytes that the answer covers.
fn ask(client: &mut Nbd) -> u64 {
    match client.ask(Operation::BlockStatus, 0, ALL, &[]) {
        Answer::Extents(extents) => extents.iter().map(|(bytes, _)| u64::from(*bytes)).sum(),
        other => panic!("{other:?}"),
    }
}

/// Eight connections ask for the holes of 4 GiB of a volume without limits, one after the other.
/// Neighbours on both cores get their 100 IOPS.
#[test]
fn questions_for_holes_hold_up_no_neighbour() {
    const CONNECTIONS: usize = 8;
    const READS: u32 = 200;
    const MOST_NS: u64 = 30_000_000_000;
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::new(io, Arc::new(local_pool(folder.path())));
        let [asked, neighbours @ ..] = [1, 2, 3].map(VolumeId::from_bits);
        served.apply(unlimited(asked, 1 << 40));
        neighbours.iter().for_each(|id| served.apply(paced(*id, 1 << 30, 100)));
        // The range is neither empty as a whole nor covered by one answer.
        let mut client = served.connect(asked);
        for leaf in (0..2_048).step_by(200) {
            let answer = client.ask(WRITE, leaf << 21, 4_096, &[7; 4_096]);
            assert_eq!(answer, Answer::Done(Vec::new()));
        }
        let ends = AtomicBool::new(false);
        let answers = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let mut client = served.connect(asked);
                    while !ends.load(Ordering::Relaxed) {
                        assert_eq!(ask(&mut client), u64::from(ALL));
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let read = |id: VolumeId| {
                let mut client = served.connect(id);
                let clock = Clock::start();
                for block in 0..READS {
                    client.ask(Operation::Read, u64::from(block) << 12, 4_096, &[]);
                }
                clock.now().ns
            };
            let reads = neighbours.map(|id| scope.spawn(move || read(id)));
            for took in reads.map(|reads| reads.join().unwrap()) {
                // Two seconds by the limit. If each block status takes a second, it is minutes.
                assert!(took < MOST_NS, "{READS} reads took {took} ns");
            }
            ends.store(true, Ordering::Relaxed);
        });
        assert!(answers.into_inner() > 0);
    }
}

/// A block status counts as an I/O of its volume.
#[test]
fn questions_for_holes_are_charged() {
    const IOPS: u64 = 100;
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let id = VolumeId::from_bits(1);
        served.apply(paced(id, 1 << 30, IOPS));
        let mut client = served.connect(id);
        let clock = Clock::start();
        for block in 0..2 * IOPS {
            // The limit in I/Os applies to both kinds together.
            match block % 2 {
                0 => drop(client.ask(Operation::BlockStatus, 0, 1 << 30, &[])),
                _ => drop(client.ask(Operation::Read, block << 12, 4_096, &[])),
            }
        }
        let took = clock.now().ns;
        // The I/Os that the tolerance allows at once are left out.
        assert!(took > 1_500_000_000, "{} I/Os took {took} ns", 2 * IOPS);
    }
}
