//! Snapshots of volumes in use, and volumes created from them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::snapshots::Snapshots;
use evenkeel_wire::agent::{
    Bytes, Command, FailedKind, NewSnapshot, Reply, StoredSnapshot, UNIT_BYTES, Units, UnitsWanted,
    VolumeState,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Answer, Nbd, Served, local_pool, unlimited};

const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const WRITE: Operation = Operation::Write { fua: false };
const SIZE: u64 = 64 << 20;
const BLOCK: u32 = 4_096;
/// Blocks that are written in turn.
const BLOCKS: u64 = 200;
/// Distance of two blocks, in bytes: together they use all of the volume's map.
const STRIDE: u64 = SIZE / BLOCKS / BLOCK as u64 * BLOCK as u64;
/// Number of times that a snapshot in progress is polled, over a minute.
const LOOKS_MAX: u32 = 12_000;
const VOLUME: VolumeId = VolumeId::from_bits(1);

fn snapshots(served: &Served) -> Vec<StoredSnapshot> {
    match served.call(Command::Snapshots) {
        Reply::Snapshots(snapshots) => snapshots,
        other => panic!("{other:?}"),
    }
}

fn complete(served: &Served, id: SnapshotId) -> StoredSnapshot {
    for _ in 0..LOOKS_MAX {
        let found = snapshots(served).into_iter().find(|snapshot| snapshot.id == id).unwrap();
        if found.is_complete {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    panic!("{id} is not complete after {LOOKS_MAX} looks");
}

fn failed(reply: Reply) -> (FailedKind, String) {
    match reply {
        Reply::Failed(failed) => (failed.kind, failed.message),
        other => panic!("{other:?}"),
    }
}

fn number_in(client: &mut Nbd, block: u64) -> u64 {
    match client.ask(Operation::Read, block * STRIDE, BLOCK, &[]) {
        Answer::Done(data) => {
            let words = data.as_chunks::<8>().0;
            assert!(words.iter().all(|word| *word == words[0]), "a block is whole");
            u64::from_le_bytes(words[0])
        }
        other => panic!("{other:?}"),
    }
}

/// Writes one number after the other, each to the next block, and records those that were
/// acknowledged.
fn write_on(served: &Served, answered: &[AtomicU64], asked: &AtomicU64, ends: &AtomicBool) {
    let mut client = served.connect(VOLUME);
    while !ends.load(Ordering::SeqCst) {
        let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
        let block = number % BLOCKS;
        let payload = number.to_le_bytes().repeat(BLOCK as usize / 8);
        let answer = client.ask(WRITE, block * STRIDE, BLOCK, &payload);
        assert_eq!(answer, Answer::Done(Vec::new()));
        answered[block as usize].store(number, Ordering::SeqCst);
    }
}

#[test]
fn snapshot_under_writes_holds_answered_writes_and_none_from_later() {
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let served = Served::new(io, Arc::new(local_pool(folder.path())));
        served.apply(unlimited(VOLUME, SIZE));
        let answered: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let asked = AtomicU64::new(0);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| write_on(&served, &answered, &asked, &ends));
            for number in 1..=8 {
                let id = SnapshotId::from_bits(number);
                let before: Vec<u64> =
                    answered.iter().map(|number| number.load(Ordering::SeqCst)).collect();
                assert_eq!(served.call(Command::Snapshot(VOLUME, id)), Reply::Done);
                let after = asked.load(Ordering::SeqCst);
                let found = complete(&served, id);
                assert_eq!((found.volume, found.size), (Some(VOLUME), ByteCount(SIZE)));
                assert!(found.data.0 <= BLOCKS * u64::from(BLOCK), "{found:?}");
                let clone = VolumeId::from_bits(100 + number);
                let state = unlimited(clone, SIZE);
                assert_eq!(served.call(Command::CreateFrom(state, id)), Reply::Done);
                let mut client = served.connect(clone);
                for (block, before) in (0..).zip(before) {
                    let number = number_in(&mut client, block);
                    assert!((before..=after).contains(&number), "{number} {before} {after}");
                }
                if number % 2 == 0 {
                    assert_eq!(served.call(Command::DeleteSnapshot(id)), Reply::Done);
                    drop(client);
                    assert_eq!(served.call(Command::Delete(clone)), Reply::Done);
                }
            }
            ends.store(true, Ordering::SeqCst);
        });
        assert_eq!(snapshots(&served).len(), 4);
    }
}

#[test]
fn snapshots_are_copied_unit_by_unit() {
    const UNIT: usize = UNIT_BYTES as usize;
    let folder = tempfile::tempdir().unwrap();
    let served = Served::new(IoMode::Auto, Arc::new(local_pool(folder.path())));
    let [id, copy] = [1, 2].map(SnapshotId::from_bits);
    served.apply(unlimited(VOLUME, SIZE));
    let mut client = served.connect(VOLUME);
    for block in [0, 300] {
        let answer = client.ask(WRITE, block * u64::from(BLOCK), BLOCK, &[7; BLOCK as usize]);
        assert_eq!(answer, Answer::Done(Vec::new()));
    }
    assert_eq!(served.call(Command::Snapshot(VOLUME, id)), Reply::Done);
    complete(&served, id);
    let wanted = UnitsWanted { id, older: None, first: 0, max: 10 };
    let units = Units { units: vec![0, 2], next: None };
    assert_eq!(served.call(Command::SnapshotUnits(wanted)), Reply::Units(units.clone()));
    let size = ByteCount(SIZE);
    let parent = None;
    let is_encrypted = false;
    let new = NewSnapshot { id: copy, size, parent, is_encrypted };
    assert_eq!(served.call(Command::StartSnapshot(new)), Reply::Done);
    for &unit in &units.units {
        let Reply::Unit(Some(bytes)) = served.call(Command::ReadSnapshot(id, unit)) else {
            panic!("unit {unit} has data");
        };
        assert_eq!(bytes.0.len(), UNIT);
        assert_eq!(served.call(Command::PutSnapshot(copy, unit, bytes)), Reply::Done);
    }
    let short = Command::PutSnapshot(copy, 1, Bytes(vec![0; UNIT - 1]));
    assert_eq!(failed(served.call(short)).0, FailedKind::Refused);
    let early = Command::ReadSnapshot(copy, 0);
    assert_eq!(failed(served.call(early)).0, FailedKind::NotFound);
    assert_eq!(served.call(Command::CompleteSnapshot(copy)), Reply::Done);
    let wanted = UnitsWanted { id: copy, ..wanted };
    assert_eq!(served.call(Command::SnapshotUnits(wanted)), Reply::Units(units));
    assert_eq!(served.call(Command::ReadSnapshot(copy, 1)), Reply::Unit(None));
    for (unit, at) in [(0, 0), (2, 44 * BLOCK as usize)] {
        let Reply::Unit(Some(bytes)) = served.call(Command::ReadSnapshot(copy, unit)) else {
            panic!("unit {unit} has data");
        };
        assert_eq!(bytes.0[at..at + BLOCK as usize], [7; BLOCK as usize]);
        assert_eq!(bytes.0.iter().filter(|byte| **byte == 7).count(), BLOCK as usize);
    }
}

#[test]
fn snapshots_outlive_the_engine_and_their_volume_and_deleted_ones_give_their_blocks_back() {
    let folder = tempfile::tempdir().unwrap();
    let [id, other] = [1, 2].map(SnapshotId::from_bits);
    let free = |served: &Served| match served.call(Command::Space) {
        Reply::Space(Some(space)) => space.free,
        other => panic!("{other:?}"),
    };
    let fill = |client: &mut Nbd, with: u8| {
        for part in 0..SIZE >> 20 {
            let answer = client.ask(WRITE, part << 20, 1 << 20, &vec![with; 1 << 20]);
            assert_eq!(answer, Answer::Done(Vec::new()));
        }
    };
    {
        let pool = local_pool(folder.path());
        let served = Served::new(IoMode::Auto, Arc::new(pool.clone()));
        served.apply(unlimited(VOLUME, SIZE));
        let mut client = served.connect(VOLUME);
        fill(&mut client, 7);
        assert_eq!(served.call(Command::Snapshot(VOLUME, id)), Reply::Done);
        assert_eq!(complete(&served, id).data, ByteCount(SIZE));
        let (kind, message) = failed(served.call(Command::Snapshot(VOLUME, id)));
        assert_eq!((kind, message.contains("already")), (FailedKind::Refused, true), "{message}");
        let (kind, _) = failed(served.call(Command::Snapshot(VolumeId::from_bits(9), other)));
        assert_eq!(kind, FailedKind::Damaged, "there is no such volume");
        let state = unlimited(VolumeId::from_bits(9), SIZE);
        let (kind, message) = failed(served.call(Command::CreateFrom(state, other)));
        assert_eq!(kind, FailedKind::NotFound, "{message}");
        fill(&mut client, 8);
        assert_eq!(served.call(Command::Snapshot(VOLUME, other)), Reply::Done);
        complete(&served, other);
        assert_eq!(served.call(Command::DeleteSnapshot(other)), Reply::Done);
        assert_eq!(pool.waiting(), [], "its store was told to give the blocks back");
        fill(&mut client, 9);
    }
    let served = Served::new(IoMode::Auto, Arc::new(local_pool(folder.path())));
    assert_eq!(snapshots(&served).len(), 1);
    assert_eq!(served.call(Command::Apply(unlimited(VOLUME, SIZE))), Reply::Done);
    assert_eq!(served.call(Command::Delete(VOLUME)), Reply::Done);
    assert_eq!(complete(&served, id).volume, None);
    let clone = VolumeId::from_bits(3);
    // Larger than its snapshot: the rest is zeroes.
    let state = VolumeState { attachments: Vec::new(), ..unlimited(clone, 2 * SIZE) };
    assert_eq!(served.call(Command::CreateFrom(state.clone(), id)), Reply::Done);
    assert_eq!(served.call(Command::CreateFrom(state, id)), Reply::Done, "it is made once");
    assert_eq!(served.call(Command::Apply(unlimited(clone, 2 * SIZE))), Reply::Done);
    let mut client = served.connect(clone);
    for (offset, expected) in [(0, 7), (SIZE - 4_096, 7), (SIZE, 0), (2 * SIZE - 4_096, 0)] {
        let answer = client.ask(Operation::Read, offset, BLOCK, &[]);
        assert_eq!(answer, Answer::Done(vec![expected; BLOCK as usize]), "{offset}");
    }
    assert_eq!(served.call(Command::DeleteSnapshot(id)), Reply::Done);
    assert_eq!(served.call(Command::DeleteSnapshot(id)), Reply::Done, "there is none");
    assert_eq!(number_of(&mut client), 7, "the clone keeps what it has");
    drop(client);
    let before = free(&served);
    assert_eq!(served.call(Command::Delete(clone)), Reply::Done);
    assert!(free(&served).0 >= before.0 + SIZE / 2, "nobody uses the first volume's chunks");
}

fn number_of(client: &mut Nbd) -> u8 {
    match client.ask(Operation::Read, SIZE / 2, BLOCK, &[]) {
        Answer::Done(data) => data[0],
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_without_snapshots_says_so() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    served.apply(unlimited(VOLUME, SIZE));
    let id = SnapshotId::from_bits(1);
    let other = unlimited(VolumeId::from_bits(2), SIZE);
    for command in
        [Command::Snapshot(VOLUME, id), Command::CreateFrom(other, id), Command::Snapshots]
    {
        let (kind, message) = failed(served.call(command));
        assert_eq!(kind, FailedKind::Unsupported);
        assert!(message.ends_with("has no snapshots; serve with --store local"), "{message}");
    }
    assert_eq!(served.call(Command::DeleteSnapshot(id)), Reply::Done);
}
