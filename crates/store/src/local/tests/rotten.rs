//! What has rotted is told, and what has failed stays failed.

use super::super::simulated::SimulatedDevice;
use super::*;
use crate::Completion;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use evenkeel_core::random::Random;
use rustix::io::Errno;

const ID: VolumeId = VolumeId::from_bits(7);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(8);
const SIZE: ByteCount = ByteCount(8 << 20);
const WRITE: Operation = Operation::Write { fua: true };
/// A block of the map's third leaf.
const FAR: u64 = 1_500;

fn flip(device: &Arc<dyn Device>, block: u32) {
    let mut bytes = block_of(device, block);
    bytes[77] ^= 4;
    put(device, block, &bytes);
}

/// A pool with a volume, of which a snapshot is made of two blocks in two leaves, and some blocks
/// A pool with a volume, of which a snapshot is made of two blocks in two leaves. Behind that there
/// are log blocks, if the volume is not stopped.
fn written(is_stopped: bool) -> (tempfile::NamedTempFile, Arc<dyn Device>) {
    let (file, device) = device();
    LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
    let pool = again(&device);
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    for block in [0, FAR] {
        assert_eq!(run(store.as_mut(), WRITE, block, 1), Ok(1));
    }
    drop(store);
    assert_eq!(pool.snapshot(ID, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
    let mut store = pool.open(ID, SIZE).unwrap();
    for value in 2..9 {
        assert_eq!(run(store.as_mut(), WRITE, 0, value), Ok(value));
    }
    if is_stopped {
        drop(store);
        return (file, device);
    }
    left_by_a_kill(&device)
}

fn again(device: &Arc<dyn Device>) -> LocalPool {
    LocalPool::open(Arc::clone(device), Bounds::default()).unwrap()
}

fn refused(device: &Arc<dyn Device>) -> String {
    again(device).open(ID, SIZE).map(drop).unwrap_err().to_string()
}

fn pointer(device: &Arc<dyn Device>, page: u32, entry: usize) -> Pointer {
    Pointer::from_bits(page_from(&block_of(device, page))[entry])
}

#[test]
fn a_log_that_has_rotted_in_its_midst_is_not_taken_for_its_end() {
    for nth in 0..7 {
        let (_file, device) = written(false);
        let (_, anchor) = anchor_of(&device);
        flip(&device, anchor.log + nth);
        if nth < 6 {
            let error = refused(&device);
            assert!(error.contains("the log of vol-"), "block {nth}: {error}");
        } else {
            // Nothing tells the last one from a block that was never written.
            let mut store = again(&device).open(ID, SIZE).unwrap();
            assert_eq!(run(store.as_mut(), Operation::Read, 0, 0), Ok(7));
        }
    }
}

#[test]
fn of_two_anchors_one_suffices_and_mends_the_other() {
    for copies in [[0].as_slice(), &[1], &[0, 1]] {
        let (_file, device) = written(true);
        let (node, anchor) = anchor_of(&device);
        let home = node.home * CHUNK_BLOCKS;
        copies.iter().for_each(|copy| flip(&device, home + copy));
        if copies.len() == 2 {
            let error = refused(&device);
            assert!(error.contains("the anchor of vol-"), "{error}");
            continue;
        }
        let mut store = again(&device).open(ID, SIZE).unwrap();
        assert_eq!(run(store.as_mut(), Operation::Read, 0, 0), Ok(8));
        for copy in 0..2 {
            assert_eq!(block_of(&device, home + copy), anchor.encode());
        }
    }
}

#[test]
fn a_page_that_has_rotted_is_told_when_it_is_needed() {
    let (_file, device) = written(true);
    let root = anchor_of(&device).1.map.0.block;
    flip(&device, pointer(&device, root, 2).block);
    let pool = again(&device);
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(run(store.as_mut(), Operation::Read, FAR, 0), Err(Failure::Rotten));
    assert_eq!(run(store.as_mut(), Operation::Read, 0, 0), Ok(8));
    let mut reader = pool.read_snapshot(SNAPSHOT).unwrap();
    assert!(matches!(reader.read(FAR), Err(StoreError::Rotten { .. })));
    assert_eq!(reader.read(0).unwrap().unwrap()[0], 1);
    drop((store, reader, pool));
    // The log changes something in the first leaf.
    let (_file, device) = written(false);
    let root = anchor_of(&device).1.map.0.block;
    flip(&device, pointer(&device, root, 0).block);
    let error = refused(&device);
    assert!(error.contains("a page of the Map tree, is not as it was written"), "{error}");
}

#[test]
fn data_of_a_snapshot_that_has_rotted_is_told() {
    let (_file, device) = written(true);
    let leaf = pointer(&device, anchor_of(&device).1.map.0.block, 2).block;
    flip(&device, pointer(&device, leaf, FAR as usize % 512).block);
    let pool = again(&device);
    let mut reader = pool.read_snapshot(SNAPSHOT).unwrap();
    assert!(matches!(reader.read(FAR), Err(StoreError::Rotten { .. })));
    assert_eq!(reader.read(0).unwrap().unwrap()[0], 1);
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(run(store.as_mut(), Operation::Read, FAR, 0), Err(Failure::Rotten));
}

/// What an opening leaves in a log is told by its number from what others have left there, so the
/// number is durable before anything else is written.
#[test]
fn an_opening_has_its_number_before_anything_else() {
    for seed in 0..20 {
        let device = SimulatedDevice::new(64 << 20);
        LocalPool::init(&device, &LAYOUT).unwrap();
        let before = read_superblock(&device).unwrap().session;
        drop(LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap());
        let after = read_superblock(&device.crash(&mut Random::new(seed, 0))).unwrap();
        assert_eq!(after.session, before + 1);
    }
}

/// A node names the home chunk of its volume only when there is an anchor in it.
#[test]
fn a_crash_as_a_volume_is_opened_for_the_first_time_leaves_one_that_opens() {
    for seed in 0..1_000 {
        let mut random = Random::new(seed, 0);
        let device = SimulatedDevice::new(64 << 20);
        LocalPool::init(&device, &LAYOUT).unwrap();
        let open = |device: &SimulatedDevice| {
            LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap()
        };
        let pool = open(&device);
        pool.create(ID, SIZE).unwrap();
        device.cut_power_after(4 + seed % 12);
        let _ = pool.open(ID, SIZE).map(drop);
        let after = open(&device.crash(&mut random)).open(ID, SIZE).map(drop);
        after.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Operations that wait until the test answers them.
#[derive(Default)]
struct Held(Vec<DiskOp>);

impl Disk for Held {
    fn submit(&mut self, op: DiskOp) {
        self.0.push(op);
    }
}

impl Held {
    /// Answers the one that waits longest.
    fn answer(&mut self, store: &mut dyn Store, fails: bool) {
        let op = self.0.remove(0);
        let done = match fails {
            true => DiskDone { token: op.token, result: Err(Errno::IO), buffer: op.buffer },
            false => op.execute(),
        };
        store.disk_done(done, self);
    }

    fn begin(&mut self, store: &mut dyn Store, ticket: u64, operation: Operation, block: u64) {
        let length = if operation == Operation::Flush { 0 } else { BLOCK_BYTES as u32 };
        let buffer = (operation == WRITE).then(|| Buffer::new(BLOCK_BYTES));
        let offset = block * u64::from(length);
        store.submit(Submission { ticket, operation, offset, length, buffer }, self);
    }
}

/// The log fails while the data of a write is under way, and something else waits to be logged:
/// nobody would come back to a write that began to wait then.
#[test]
fn a_write_that_is_applied_as_the_log_fails_is_answered() {
    let (_file, pool) = pool();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let store = store.as_mut();
    assert_eq!(run(store, WRITE, 5, 1), Ok(1));
    assert_eq!(run(store, Operation::Flush, 0, 0), Ok(0));
    let mut held = Held::default();
    held.begin(store, 11, WRITE, 0);
    assert_eq!(held.0.len(), 2, "the log block is written beside the data");
    held.begin(store, 12, Operation::Flush, 0);
    held.begin(store, 13, Operation::Discard { fua: false }, 5);
    held.answer(store, true);
    held.answer(store, false);
    let mut ended: Vec<(u64, Result<(), Failure>)> =
        std::iter::from_fn(|| store.poll()).map(|it: Completion| (it.ticket, it.result)).collect();
    ended.sort_by_key(|(ticket, _)| *ticket);
    assert_eq!(ended, [(11, Err(Failure::Io)), (12, Err(Failure::Io)), (13, Ok(()))]);
    assert!(store.must_reopen());
}

/// Whichever write or flush behind a write fails: whoever waits for it learns so, or the volume
/// does not go on.
#[test]
fn no_write_or_flush_that_fails_is_forgotten() {
    let bounds = Bounds { dirty_pages: 1, ..Bounds::default() };
    let mut failed = 0;
    for nth in 0.. {
        let (_file, device) = device();
        LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
        let pool = LocalPool::open(device, bounds).unwrap();
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        let (store, mut held, mut seen) = (store.as_mut(), Held::default(), 0);
        held.begin(store, 11, WRITE, 0);
        while let Some(op) = held.0.first() {
            let is_change = matches!(op.action, DiskAction::Write { .. } | DiskAction::Sync);
            held.answer(store, is_change && seen == nth);
            seen += u64::from(is_change);
        }
        if seen <= nth {
            break;
        }
        failed += 1;
        let is_told = store.poll().unwrap().result.is_err();
        assert!(is_told || store.must_reopen(), "operation {nth} has failed");
    }
    // Data, log, a flush; pages, a flush; an anchor, a flush, an anchor.
    assert!(failed >= 8, "{failed}");
}
