//! Background work: verification, beside clients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::qos::sharing::{DeviceModel, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{BackgroundReport, Command, FailedKind, Reply, UNIT_BYTES, Verified};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Answer, Nbd, Served, local_pool, unlimited};

const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const SIZE: u64 = 1 << 30;
const BLOCK: u32 = 4_096;
const WRITE: Operation = Operation::Write { fua: false };
const VOLUME: VolumeId = VolumeId::from_bits(1);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(2);

fn write(client: &mut Nbd, block: u64, value: u8) {
    let answer = client.ask(WRITE, block * u64::from(BLOCK), BLOCK, &[value; BLOCK as usize]);
    assert_eq!(answer, Answer::Done(Vec::new()));
}

/// Changes a byte of each block of the pool whose bytes all have `value`. Returns the number of
/// those blocks.
fn rot(folder: &Path, value: u8) -> usize {
    let path = folder.join("pool");
    let bytes = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    let blocks = bytes.chunks(BLOCK as usize).enumerate();
    let found = blocks.filter(|(_, block)| block.iter().all(|byte| *byte == value));
    found
        .map(|(number, _)| file.write_all_at(&[!value], number as u64 * u64::from(BLOCK)).unwrap())
        .count()
}

/// Verifies all of a volume or a snapshot. Returns the bytes that were read, and the damaged
/// places.
fn verify(served: &Served, part: impl Fn(u64) -> Command) -> (u64, Vec<u64>) {
    let mut bytes = 0;
    let mut rotten = Vec::new();
    let mut start = 0;
    for _ in 0..1_000 {
        let Reply::Verified(mut found) = served.call(part(start)) else {
            panic!("{start} cannot be verified");
        };
        bytes += found.bytes.0;
        rotten.append(&mut found.rotten);
        match found.next {
            Some(next) if next >= start => start = next,
            Some(next) => panic!("{next} is behind {start}"),
            None => return (bytes, rotten),
        }
    }
    panic!("there is no end");
}

#[test]
fn verify_finds_rot_before_a_client_reads_it() {
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::new(io, Arc::new(local_pool(folder.path())));
        served.apply(unlimited(VOLUME, SIZE));
        let mut client = served.connect(VOLUME);
        let last = SIZE / u64::from(BLOCK) - 1;
        for block in (0..6_000).chain([100_000, last]) {
            write(&mut client, block, 7);
        }
        for block in [3, 5_000, last] {
            write(&mut client, block, 9);
        }
        assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), Answer::Done(Vec::new()));
        let volume = |start| Command::Verify(VOLUME, start);
        let data = 6_002 * u64::from(BLOCK);
        assert_eq!(verify(&served, volume), (data, vec![]));
        assert_eq!(served.call(Command::Snapshot(VOLUME, SNAPSHOT)), Reply::Done);
        // The snapshot keeps blocks that the volume no longer has.
        write(&mut client, 5_000, 8);
        assert_eq!(client.ask(Operation::Flush, 0, 0, &[]), Answer::Done(Vec::new()));
        assert_eq!(rot(folder.path(), 9), 3);
        let places = [3, last].map(|block| block * u64::from(BLOCK));
        assert_eq!(verify(&served, volume), (data, places.to_vec()));
        let report = served.report(VOLUME);
        assert!(report.errors.is_rotten && report.errors.rotten >= 2, "{:?}", report.errors);
        let (_, units) = verify(&served, |start| Command::VerifySnapshot(SNAPSHOT, start));
        let unit = |block: u64| block * u64::from(BLOCK) / UNIT_BYTES * UNIT_BYTES;
        assert_eq!(units, [3, 5_000, last].map(unit));
        let Reply::Background(report) = served.call(Command::Background) else {
            panic!("no report")
        };
        assert!(report.verified.0 >= 2 * data && report.waiting == 0, "{report:?}");
        // A block that is written anew is sound again.
        for block in [3, last] {
            write(&mut client, block, 1);
        }
        assert_eq!(verify(&served, volume), (data, vec![]));
    }
}

/// Verification continues beside clients, the deletion of a volume, and a device that its
/// calibration shares.
#[test]
fn verification_runs_beside_clients_and_their_commands() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(IoMode::Auto, Arc::new(local_pool(folder.path())));
    let volumes = [1, 2, 3].map(VolumeId::from_bits);
    for id in volumes {
        served.apply(unlimited(id, 64 << 20));
        let mut client = served.connect(id);
        (0..2_000).for_each(|block| write(&mut client, block, id.bits() as u8));
    }
    let cost = OperationCost { base: Duration::from_ns(20_000), byte_ps: 250 };
    let read = cost;
    let write_cost = cost;
    let window = Window::Slots(8);
    let model = DeviceModel { channels: 4, read, write: write_cost, window };
    assert_eq!(served.call(Command::Calibrated(model)), Reply::Done);
    let limit = ByteCount(1 << 30);
    assert_eq!(served.call(Command::SetBackground(limit)), Reply::Done);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for id in volumes {
            scope.spawn({
                let served = &served;
                let ends = &ends;
                move || {
                    let mut client = served.connect(id);
                    for round in 0.. {
                        if ends.load(Ordering::SeqCst) {
                            break;
                        }
                        write(&mut client, round % 2_000, id.bits() as u8);
                    }
                }
            });
            let data = 2_000 * u64::from(BLOCK);
            assert_eq!(verify(&served, |start| Command::Verify(id, start)), (data, vec![]));
        }
        ends.store(true, Ordering::SeqCst);
    });
    let Reply::Background(BackgroundReport { bytes_per_second, verified, .. }) =
        served.call(Command::Background)
    else {
        panic!("no report")
    };
    assert_eq!((bytes_per_second, verified), (limit, ByteCount(6_000 * u64::from(BLOCK))));
    assert_eq!(served.call(Command::Delete(volumes[2])), Reply::Done);
    let Reply::Failed(gone) = served.call(Command::Verify(volumes[2], 0)) else {
        panic!("it is gone")
    };
    assert_eq!(gone.kind, FailedKind::NotFound);
    // Behind the end there is nothing to verify.
    let past = served.call(Command::Verify(volumes[0], 64 << 20));
    assert_eq!(past, Reply::Verified(Verified::default()));
}

/// A scrub reads the store's metadata while volumes change it, and rewrites damaged metadata.
#[test]
fn the_store_is_looked_at_beside_clients() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(IoMode::Auto, Arc::new(local_pool(folder.path())));
    let volumes = [1, 2].map(VolumeId::from_bits);
    volumes.iter().for_each(|id| served.apply(unlimited(*id, 64 << 20)));
    let ends = AtomicBool::new(false);
    let mut found = Vec::new();
    std::thread::scope(|scope| {
        for id in volumes {
            let served = &served;
            let ends = &ends;
            scope.spawn(move || {
                let mut client = served.connect(id);
                for round in 0.. {
                    if ends.load(Ordering::SeqCst) {
                        break;
                    }
                    write(&mut client, round * 601 % 16_000, id.bits() as u8);
                    if round % 5 == 0 {
                        let flushed = client.ask(Operation::Flush, 0, 0, &[]);
                        assert_eq!(flushed, Answer::Done(Vec::new()));
                    }
                    if round % 200 == 0 {
                        let snapshot = SnapshotId::from_bits(id.bits() << 32 | u128::from(round));
                        assert_eq!(served.call(Command::Snapshot(id, snapshot)), Reply::Done);
                        assert_eq!(served.call(Command::DeleteSnapshot(snapshot)), Reply::Done);
                    }
                }
            });
        }
        // The results are checked once the other threads have ended.
        found.extend((0..200).map(|_| verify(&served, Command::VerifyStore)));
        ends.store(true, Ordering::SeqCst);
    });
    for (bytes, rotten) in found {
        assert!(bytes > 20 * u64::from(BLOCK) && rotten.is_empty(), "{bytes} {rotten:?}");
    }
    let file = File::options().write(true).open(folder.path().join("pool")).unwrap();
    // Damages the second superblock.
    file.write_all_at(&[77; 64], u64::from(BLOCK)).unwrap();
    assert_eq!(verify(&served, Command::VerifyStore).1, [u64::from(BLOCK)]);
    let nothing: [u64; 0] = [];
    assert_eq!(verify(&served, Command::VerifyStore).1, nothing);
    // A store without metadata has nothing to verify.
    let memory = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    let nothing = Reply::Verified(Verified::default());
    assert_eq!(memory.call(Command::VerifyStore(0)), nothing);
}

#[test]
fn a_store_without_checksums_is_read_all_the_same() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    served.apply(unlimited(VOLUME, 64 << 20));
    write(&mut served.connect(VOLUME), 9, 1);
    let (bytes, rotten) = verify(&served, |start| Command::Verify(VOLUME, start));
    assert!(bytes >= u64::from(BLOCK) && rotten.is_empty(), "{bytes} {rotten:?}");
}
