//! Snapshots of several volumes at one moment.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::disk::Disk;
use evenkeel_store::forwarding::{ForwardingPool, ForwardingStore};
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::{Pool, Store, StoreError};
use evenkeel_wire::agent::{Command, FailedKind, Reply, VolumeState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use support::{Answer, Served, local_pool, unlimited};

const SIZE: u64 = 64 << 20;
const BLOCK: u32 = 4_096;
const WRITE: Operation = Operation::Write { fua: false };
/// The volume whose store is slow to begin a snapshot. It is the second of three, so it is on the
/// other core, and asked after the first and before the third.
const SLOW: VolumeId = VolumeId::from_bits(2);
/// Number of writes that a client may try meanwhile.
const WRITES: u64 = 20;
/// Number of times that the slow store waits 5 ms for such a write.
const LOOKS_MAX: u32 = 20;

struct SlowPool {
    inner: LocalPool,
    written: Arc<AtomicU64>,
}

struct SlowStore {
    inner: Box<dyn Store>,
    written: Arc<AtomicU64>,
}

impl ForwardingStore for SlowStore {
    fn below(&self) -> &dyn Store {
        self.inner.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.inner.as_mut()
    }

    fn attend(&mut self, disk: &mut dyn Disk) {
        let before = self.written.load(Ordering::SeqCst);
        let mut looks = 0;
        while self.written.load(Ordering::SeqCst) < before + WRITES && looks < LOOKS_MAX {
            std::thread::park_timeout(Duration::from_millis(5));
            looks += 1;
        }
        self.inner.attend(disk);
    }
}

impl ForwardingPool for SlowPool {
    fn below(&self) -> &dyn Pool {
        &self.inner
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let inner = self.inner.open(id, size)?;
        let written = Arc::clone(&self.written);
        Ok(if id == SLOW { Box::new(SlowStore { inner, written }) } else { inner })
    }
}

fn serve(written: &Arc<AtomicU64>) -> (tempfile::TempDir, Served) {
    let folder = tempfile::tempdir().unwrap();
    let pool = SlowPool { inner: local_pool(folder.path()), written: Arc::clone(written) };
    (folder, Served::new(IoMode::Auto, Arc::new(pool)))
}

fn number_in(served: &Served, id: SnapshotId) -> u64 {
    for _ in 0..2_000 {
        match served.call(Command::ReadSnapshot(id, 0)) {
            Reply::Unit(unit) => {
                return unit.map_or(0, |unit| u64::from_le_bytes(*unit.0.first_chunk().unwrap()));
            }
            // The snapshot is still in progress.
            _ => std::thread::park_timeout(Duration::from_millis(5)),
        }
    }
    panic!("{id} cannot be read");
}

/// A client writes a number to one volume, then, when that is answered, the next to the other. At
/// any one moment the two numbers follow each other.
#[test]
fn a_set_of_snapshots_is_of_one_moment() {
    let written = Arc::new(AtomicU64::new(0));
    let (_folder, served) = serve(&written);
    let volumes = [1, 2, 3].map(VolumeId::from_bits);
    let apply = |id| served.apply(unlimited(id, SIZE));
    volumes.into_iter().for_each(apply);
    let set_of = |set: u128| {
        volumes.map(|volume| (volume, SnapshotId::from_bits(set * 10 + volume.bits()))).to_vec()
    };
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut clients = [0, 2].map(|number| served.connect(volumes[number]));
            while !ends.load(Ordering::SeqCst) {
                let number = written.load(Ordering::SeqCst) + 1;
                let payload = number.to_le_bytes().repeat(BLOCK as usize / 8);
                let client = &mut clients[(number % 2) as usize];
                let answer = client.ask(WRITE, 0, BLOCK, &payload);
                assert_eq!(answer, Answer::Done(Vec::new()));
                written.store(number, Ordering::SeqCst);
            }
        });
        for set in 1..=5 {
            let before = written.load(Ordering::SeqCst);
            let made = served.call(Command::SnapshotSet(set_of(set)));
            ends.fetch_or(made != Reply::Done, Ordering::SeqCst);
            assert_eq!(made, Reply::Done);
            let [first, _, last] =
                [0, 1, 2].map(|number| number_in(&served, set_of(set)[number].1));
            let are_next = first.abs_diff(last) <= 1 && first.max(last) >= before;
            ends.fetch_or(!are_next, Ordering::SeqCst);
            assert!(are_next, "set {set} has {first} and {last}; {before} was answered before");
        }
        ends.store(true, Ordering::SeqCst);
    });
}

#[test]
fn a_set_is_made_as_a_whole_or_not_at_all() {
    let (_folder, served) = serve(&Arc::default());
    let [one, other, none] = [1, 3, 9].map(VolumeId::from_bits);
    let [first, second] = [1, 2].map(SnapshotId::from_bits);
    let create = |id| {
        let state = VolumeState { attachments: Vec::new(), ..unlimited(id, SIZE) };
        assert_eq!(served.call(Command::Create(state)), Reply::Done);
    };
    [one, other].into_iter().for_each(create);
    for (of, kind, words) in [
        ([one, one], FailedKind::Refused, "more than once"),
        ([one, none], FailedKind::Damaged, "missing"),
    ] {
        let set = vec![(of[0], first), (of[1], second)];
        let Reply::Failed(failed) = served.call(Command::SnapshotSet(set)) else {
            panic!("{of:?} is no set");
        };
        assert_eq!(failed.kind, kind);
        assert!(failed.message.contains(words), "{}", failed.message);
        assert_eq!(served.call(Command::Snapshots), Reply::Snapshots(Vec::new()));
    }
    let set = vec![(one, first), (other, second)];
    assert_eq!(served.call(Command::SnapshotSet(set)), Reply::Done);
    let made = || {
        let Reply::Snapshots(made) = served.call(Command::Snapshots) else { panic!("no list") };
        made.iter().map(|made| made.id).collect::<Vec<_>>()
    };
    assert_eq!(made(), [first, second]);
    // If an id exists already, its snapshot stays, and the new set has no snapshot.
    let taken = vec![(one, SnapshotId::from_bits(3)), (other, second)];
    let Reply::Failed(failed) = served.call(Command::SnapshotSet(taken)) else {
        panic!("{second} is there already");
    };
    assert_eq!(failed.kind, FailedKind::Refused);
    assert_eq!(made(), [first, second]);
}
