//! A full pool: existing data can be replaced, discarded and deleted, and no other data changes.

use super::super::packed::PackedDevice;
use super::*;
use crate::disk::{Disk, DiskAction, DiskOp};
use evenkeel_core::random::Random;
use std::ops::Range;

const ID: VolumeId = VolumeId::from_bits(5);
const OTHER: VolumeId = VolumeId::from_bits(6);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(8);
const WRITE: Operation = Operation::Write { fua: false };
const DISCARD: Operation = Operation::Discard { fua: false };

/// A disk with waiting operations, which are answered in any order.
struct Rig {
    device: PackedDevice,
    waiting: Vec<DiskOp>,
    random: Random,
}

impl Disk for Rig {
    fn submit(&mut self, op: DiskOp) {
        self.waiting.push(op);
    }
}

impl Rig {
    /// Creates an empty pool of at most `mib` MiB.
    fn new(mib: u32) -> (Self, LocalPool) {
        let device = PackedDevice::new(u64::from(mib + 64) << 20);
        LocalPool::init(&device, &Layout { chunks_max: mib, nodes: 63, ..LAYOUT }).unwrap();
        let rig = Self { device, waiting: Vec::new(), random: Random::new(1, 1) };
        let pool = rig.open();
        (rig, pool)
    }

    fn open(&self) -> LocalPool {
        LocalPool::open(Arc::new(self.device.clone()), Bounds::default()).unwrap()
    }

    /// Answers one of the operations that wait, if any does.
    fn answer(&mut self, store: &mut dyn Store) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let number = self.random.below(self.waiting.len() as u64) as usize;
        let op = self.waiting.swap_remove(number);
        let done = self.device.answer(op);
        store.disk_done(done, self);
        true
    }

    fn attend(&mut self, store: &mut dyn Store) {
        store.attend(self);
        while self.answer(store) {}
    }

    /// Executes a request of one block or several. Returns the first byte of a read.
    fn run(
        &mut self,
        store: &mut dyn Store,
        operation: Operation,
        blocks: Range<u64>,
        value: u8,
    ) -> Result<u8, Failure> {
        store.submit(request(operation, blocks, value), self);
        while self.answer(store) {}
        let done = store.poll().expect("it is answered");
        done.result.map(|()| done.buffer.map_or(0, |buffer| buffer.bytes()[0]))
    }

    /// Fills a volume until the pool has no space. Returns the number of its blocks.
    fn fill(&mut self, store: &mut dyn Store) -> u64 {
        self.fill_from(store, 0)
    }

    /// Fills a volume from this block on until the pool has no space. Returns the first block that
    /// is not written.
    fn fill_from(&mut self, store: &mut dyn Store, first: u64) -> u64 {
        let mut full = first;
        for count in [64, 1] {
            while self.run(store, WRITE, full..full + count, 1).is_ok() {
                full += count;
            }
        }
        assert_eq!(self.run(store, Operation::Flush, 0..0, 0), Ok(0));
        full
    }

    /// Overwrites blocks of a volume, `depth` at a time, with a flush after each 50.
    fn overwrite(&mut self, store: &mut dyn Store, holds: u64, depth: u64, count: u64) {
        const REQUESTS: u64 = 6_000;
        let mut submitted = 0;
        let mut ended = 0;
        while ended < REQUESTS {
            while submitted < REQUESTS && submitted - ended < depth {
                submitted += 1;
                let first = self.random.below((holds - count) / count) * count;
                let request = match submitted % 50 {
                    0 => request(Operation::Flush, 0..0, 0),
                    _ => request(WRITE, first..first + count, 2),
                };
                store.submit(request, self);
            }
            while let Some(done) = store.poll() {
                ended += 1;
                assert_eq!(done.result, Ok(()), "request {ended} of {holds} blocks, {depth} deep");
            }
            self.answer(store);
        }
        while self.answer(store) {}
    }

    /// Checks all references and counts of the pool.
    fn prove(&self) {
        let report = check(&self.device, false).unwrap();
        assert_eq!((report.leaked, report.problems), (0, Vec::new()));
    }
}

fn request(operation: Operation, blocks: Range<u64>, value: u8) -> Submission {
    let length = (blocks.end - blocks.start) as usize * BLOCK_BYTES;
    let has_buffer = matches!(operation, Operation::Read | Operation::Write { .. });
    let mut buffer = has_buffer.then(|| Buffer::new(length));
    buffer.iter_mut().for_each(|buffer| buffer.bytes_mut()[..length].fill(value));
    let offset = blocks.start * BLOCK_BYTES as u64;
    Submission { ticket: 1, operation, offset, length: length as u32, buffer }
}

#[test]
fn full_volume_can_be_overwritten() {
    for (mib, depth, count) in [(60, 32, 1), (60, 64, 64), (500, 1, 1), (500, 32, 1)] {
        let (mut rig, pool) = Rig::new(mib);
        let size = ByteCount(u64::from(mib) << 21);
        pool.create(ID, size).unwrap();
        let mut store = pool.open(ID, size).unwrap();
        let holds = rig.fill(store.as_mut());
        rig.overwrite(store.as_mut(), holds, depth, count);
        assert!(!store.must_reopen());
        drop(store);
        rig.prove();
    }
}

/// Overwriting blocks beside a snapshot takes new blocks, and they run out. Discards and the
/// deletion of the snapshot succeed, and make room.
#[test]
fn a_snapshot_of_a_full_volume_can_be_deleted() {
    const MIB: u32 = 3_000;
    let (mut rig, pool) = Rig::new(MIB);
    let size = ByteCount(u64::from(MIB) << 21);
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    let store = store.as_mut();
    let holds = rig.fill(store);
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    rig.attend(store);
    assert_eq!(making.made.try_recv(), Ok(true));
    let copied = (0..holds).find(|&block| rig.run(store, WRITE, block..block + 1, 2).is_err());
    assert!(copied.is_some_and(|copied| copied < 600), "{copied:?}");
    for block in (0..holds).step_by(20_000) {
        assert_eq!(rig.run(store, DISCARD, block..block + 1, 0), Ok(0), "block {block}");
        assert_eq!(rig.run(store, Operation::Flush, 0..0, 0), Ok(0));
    }
    pool.delete_snapshot(SNAPSHOT).unwrap();
    rig.attend(store);
    for block in 0..3_000 {
        assert_eq!(rig.run(store, WRITE, block..block + 1, 3), Ok(3), "block {block}");
    }
    assert_eq!(pool.snapshots(), []);
}

/// Each page of the map that a write of zeroes changes needs a new block. While a snapshot keeps
/// the old page, nothing is freed for it, so a full pool runs out of blocks. A discard succeeds
/// then, and changes nothing.
/// What a snapshot keeps is not replaced at the cost of the room for other overwrites.
#[test]
fn own_blocks_beside_a_snapshot_can_be_overwritten_on_a_full_pool() {
    const MIB: u32 = 300;
    const SHARED: u64 = 20_000;
    let (mut rig, pool) = Rig::new(MIB);
    let size = ByteCount(u64::from(MIB) << 21);
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    for first in (0..SHARED).step_by(100) {
        rig.run(store.as_mut(), WRITE, first..first + 100, 1).unwrap();
    }
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    rig.attend(store.as_mut());
    assert_eq!(making.made.try_recv(), Ok(true));
    let full = rig.fill_from(store.as_mut(), SHARED);
    for round in 0..3 {
        // Until nothing shared can be replaced any more, in pieces of several sizes.
        for count in [64, 16, 1] {
            for first in (0..SHARED / 2).step_by(64) {
                let written = rig.run(store.as_mut(), WRITE, first..first + count, 2);
                if written == Err(Failure::NoSpace) {
                    break;
                }
                assert_eq!(written, Ok(2));
            }
        }
        assert_eq!(rig.run(store.as_mut(), Operation::Flush, 0..0, 0), Ok(0));
        for count in [256, 64, 16, 4, 1] {
            for _ in 0..50 {
                let first = SHARED + rig.random.below(full - SHARED - count);
                let written = rig.run(store.as_mut(), WRITE, first..first + count, 3);
                assert_eq!(written, Ok(3), "round {round}: {count} blocks at {first}");
            }
        }
        drop(store);
        store = pool.open(ID, size).unwrap();
    }
    drop(store);
    rig.prove();
}

#[test]
fn zeroes_over_blocks_of_a_snapshot_lack_space_on_a_full_pool() {
    const ZEROES: Operation =
        Operation::WriteZeroes { fua: false, keep_allocated: false, only_if_fast: false };
    let (mut rig, pool) = Rig::new(120);
    let size = ByteCount(1 << 30);
    pool.create(ID, size).unwrap();
    let mut opened = pool.open(ID, size).unwrap();
    let store = opened.as_mut();
    // More pages of the map than blocks that are kept for overwrites.
    let leaves = 400;
    for leaf in 0..leaves {
        let first = leaf * 512 + 96;
        assert_eq!(rig.run(store, WRITE, first..first + 16, 1), Ok(1));
    }
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    rig.attend(store);
    assert_eq!(making.made.try_recv(), Ok(true));
    rig.fill_from(store, leaves * 512);
    let copied = (96..112).find(|&block| rig.run(store, WRITE, block..block + 1, 2).is_err());
    assert!(copied.is_some());
    let zeroed = |rig: &mut Rig, store: &mut dyn Store, leaf: u64| {
        let block = leaf * 512 + 100;
        rig.run(store, ZEROES, block..block + 1, 0)
    };
    let lacking = (0..leaves).find(|leaf| zeroed(&mut rig, store, *leaf).is_err());
    let leaf = lacking.expect("the pool runs out of blocks");
    assert_eq!(zeroed(&mut rig, store, leaf), Err(Failure::NoSpace));
    let block = leaf * 512 + 100;
    assert_eq!(rig.run(store, DISCARD, block..block + 1, 0), Ok(0));
    assert_eq!(rig.run(store, Operation::Read, block..block + 1, 0), Ok(1));
    // Without the snapshot there are enough.
    pool.delete_snapshot(SNAPSHOT).unwrap();
    rig.attend(store);
    for leaf in 0..leaves {
        assert_eq!(zeroed(&mut rig, store, leaf), Ok(0), "leaf {leaf}");
    }
    drop((opened, pool));
    rig.prove();
}

/// The deletion of a volume takes no new block; blocks that it shares with a snapshot stay.
#[test]
fn a_full_volume_with_a_snapshot_can_be_deleted() {
    const MIB: u32 = 3_000;
    let (mut rig, pool) = Rig::new(MIB);
    let size = ByteCount(u64::from(MIB) << 21);
    let small = ByteCount(64 << 20);
    pool.create(OTHER, small).unwrap();
    let mut other = pool.open(OTHER, small).unwrap();
    assert_eq!(rig.run(other.as_mut(), WRITE, 0..1, 7), Ok(7));
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    let holds = rig.fill(store.as_mut());
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    rig.attend(store.as_mut());
    assert_eq!(making.made.try_recv(), Ok(true));
    let mut copied = 0;
    while rig.run(store.as_mut(), WRITE, copied..copied + 1, 2).is_ok() {
        copied += 1;
    }
    assert_eq!(rig.run(store.as_mut(), Operation::Flush, 0..0, 0), Ok(0));
    drop(store);
    pool.delete(ID).unwrap();
    assert_eq!(pool.list().unwrap(), [(OTHER, small)]);
    assert_eq!(rig.run(other.as_mut(), WRITE, 0..1, 8), Ok(8));
    assert_eq!(rig.run(other.as_mut(), Operation::Flush, 0..0, 0), Ok(0));
    drop((other, pool));
    let pool = rig.open();
    let mut reader = pool.read_snapshot(SNAPSHOT).unwrap();
    for block in [0, copied, holds - 1] {
        assert_eq!(reader.read(block).unwrap().unwrap()[0], 1, "block {block}");
    }
    drop(reader);
    pool.delete_snapshot(SNAPSHOT).unwrap();
    assert!(pool.space().unwrap().unwrap().free > ByteCount(u64::from(MIB) * 800_000));
    rig.prove();
}

/// The node of a reclaimed snapshot cannot be cleared at first. Its blocks are in use for other
/// data by then, and are not freed a second time.
#[test]
fn a_snapshot_that_cannot_be_forgotten_is_not_given_back_twice() {
    const SIZE: ByteCount = ByteCount(4 << 20);
    let mut refused = 0;
    for after in 0..40 {
        let (mut rig, pool) = Rig::new(64);
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        rig.write_each(store.as_mut(), 0..400, 1);
        let making = pool.snapshot(ID, SNAPSHOT).unwrap();
        rig.attend(store.as_mut());
        assert_eq!(making.made.try_recv(), Ok(true));
        rig.write_each(store.as_mut(), 0..300, 2);
        pool.delete_snapshot(SNAPSHOT).unwrap();
        // Both copies of the node, and the writes that restore them.
        rig.device.fail(after, 6);
        rig.attend(store.as_mut());
        rig.device.fail(0, 0);
        if store.must_reopen() {
            continue;
        }
        refused += 1;
        rig.write_each(store.as_mut(), 400..800, 3);
        drop((store, pool));
        let pool = rig.open();
        let mut store = pool.open(ID, SIZE).unwrap();
        rig.attend(store.as_mut());
        rig.write_each(store.as_mut(), 810..1_020, 4);
        for (blocks, value) in [(0..300, 2), (300..400, 1), (400..800, 3)] {
            for block in blocks {
                let found = rig.run(store.as_mut(), Operation::Read, block..block + 1, 0);
                assert_eq!(found, Ok(value), "block {block}, failures after {after}");
            }
        }
        drop((store, pool));
        rig.prove();
    }
    assert!(refused > 1, "{refused} times the volume served");
}

impl Rig {
    /// Writes blocks, each durably.
    fn write_each(&mut self, store: &mut dyn Store, blocks: Range<u64>, value: u8) {
        let durable = Operation::Write { fua: true };
        for block in blocks {
            let done = self.run(store, durable, block..block + 1, value);
            assert_eq!(done, Ok(value), "block {block}");
        }
    }
}

/// Returns a full pool whose server is killed in the middle of a flush, and the values that each
/// block may have. The volume has used its free blocks several times since the last checkpoint.
fn killed_while_full() -> (Rig, Vec<[u8; 2]>) {
    let (mut rig, pool) = Rig::new(24);
    pool.create(ID, LARGE).unwrap();
    let mut opened = pool.open(ID, LARGE).unwrap();
    let store = opened.as_mut();
    let mut blocks = vec![[1; 2]; rig.fill(store) as usize];
    let mut writes = Random::new(2, 2);
    for value in 2..=90 {
        for _ in 0..30 {
            let block = writes.below(blocks.len() as u64);
            assert_eq!(rig.run(store, WRITE, block..block + 1, value), Ok(value), "block {block}");
            blocks[block as usize][1] = value;
        }
        store.submit(request(Operation::Flush, 0..0, 0), &mut rig);
        if value == 90 {
            while let Some(at) = rig.waiting.iter().position(|op| op.action != DiskAction::Sync) {
                let op = rig.waiting.swap_remove(at);
                let done = rig.device.answer(op);
                store.disk_done(done, &mut rig);
            }
            assert_eq!(rig.waiting.len(), 1, "the flush is under way");
            break;
        }
        while rig.answer(store) {}
        assert_eq!(store.poll().map(|done| done.result), Some(Ok(())));
        blocks.iter_mut().for_each(|values| values[0] = values[1]);
    }
    rig.waiting.clear();
    std::mem::forget((opened, pool));
    (rig, blocks)
}

/// Checks that each block has one of its values.
fn must_hold(rig: &mut Rig, store: &mut dyn Store, blocks: &[[u8; 2]], when: &str) {
    for (at, may_be) in (0..).zip(blocks) {
        let found = rig.run(store, Operation::Read, at..at + 1, 0);
        let is_right = found.is_ok_and(|found| may_be.contains(&found));
        assert!(is_right, "{when}: block {at} is {found:?}, not one of {may_be:?}");
    }
}

/// Blocks that the log has replaced are free for the checkpoint of the opening, as they were before
/// the kill. So it takes none of the chunks that the log needs.
#[test]
fn a_full_volume_of_a_killed_server_can_be_overwritten() {
    let (mut rig, blocks) = killed_while_full();
    let pool = rig.open();
    let mut store = pool.open(ID, LARGE).unwrap();
    must_hold(&mut rig, store.as_mut(), &blocks, "killed");
    rig.overwrite(store.as_mut(), blocks.len() as u64, 32, 1);
    drop((store, pool));
    rig.prove();
}

/// The opening overwrites blocks that the log has replaced. If the power fails meanwhile, the log
/// is replayed again, and all durable data is there.
#[test]
fn an_opening_of_a_full_volume_can_be_cut_short() {
    let mut was_cut = true;
    for power in 0.. {
        if !was_cut {
            return assert!(power > 20, "{power} operations");
        }
        let (mut rig, blocks) = killed_while_full();
        let before = rig.device.operations();
        let when = format!("the power fails after {power}");
        rig.device.fail(power, u64::MAX >> 1);
        let opened = LocalPool::open(Arc::new(rig.device.clone()), Bounds::default())
            .map(|pool| pool.open(ID, LARGE).map(std::mem::forget));
        drop(opened);
        was_cut = rig.device.operations() > before + power;
        rig.device.fail(0, 0);
        rig.device = rig.device.crash(&mut Random::new(power, 5));
        let report = check(&rig.device, true).unwrap();
        assert_eq!(report.problems, [""; 0], "{when}");
        let pool = rig.open();
        let mut store = pool.open(ID, LARGE).unwrap_or_else(|error| panic!("{when}: {error}"));
        must_hold(&mut rig, store.as_mut(), &blocks, &when);
        let done = rig.run(store.as_mut(), WRITE, 0..1, 91);
        assert_eq!(done, Ok(91), "{when}");
        drop((store, pool));
        rig.prove();
    }
}

/// Blocks that a scenario keeps, overwrites, and discards.
const KEPT: Range<u64> = 1_000..2_000;
const REPLACED: Range<u64> = 0..40;
const CLEARED: Range<u64> = 100..140;
const SMALL: ByteCount = ByteCount(12 << 20);
/// Larger than the smaller pools.
const LARGE: ByteCount = ByteCount(256 << 20);

/// Runs all operations of a full pool. Errors are ignored, since one operation of the disk fails.
fn live(rig: &mut Rig) {
    let Ok(pool) = LocalPool::open(Arc::new(rig.device.clone()), Bounds::default()) else { return };
    let Ok(mut store) = pool.open(ID, SMALL) else { return };
    let flush = Operation::Flush;
    for block in REPLACED {
        let _ = rig.run(store.as_mut(), WRITE, block..block + 1, 2);
    }
    let _ = rig.run(store.as_mut(), flush, 0..0, 0);
    if pool.snapshot(ID, SnapshotId::from_bits(9)).is_ok() {
        rig.attend(store.as_mut());
    }
    let _ = rig.run(store.as_mut(), DISCARD, CLEARED, 0);
    for block in REPLACED {
        let _ = rig.run(store.as_mut(), Operation::Write { fua: true }, block..block + 1, 3);
    }
    for snapshot in [SNAPSHOT, SnapshotId::from_bits(9)] {
        let _ = pool.delete_snapshot(snapshot);
        rig.attend(store.as_mut());
        let _ = rig.run(store.as_mut(), WRITE, 0..1, 4);
        let _ = rig.run(store.as_mut(), flush, 0..0, 0);
    }
    let _ = pool.delete(OTHER);
    let _ = pool.create(VolumeId::from_bits(10), SMALL);
    let _ = pool.open(VolumeId::from_bits(10), SMALL).map(drop);
    if rig.random.one_in(2) {
        // The process is killed.
        std::mem::forget((store, pool));
    }
}

/// Checks the state after a scenario, whichever operation has failed: all data is there, and when
/// it is deleted, all space is free.
fn look_at_what_is_left(rig: &mut Rig, when: &str) {
    let pool = rig.open();
    let mut store = pool.open(ID, SMALL).unwrap_or_else(|error| panic!("{when}: {error}"));
    rig.attend(store.as_mut());
    let places = [(KEPT, &[1][..]), (REPLACED, &[1, 2, 3, 4]), (CLEARED, &[0, 1])];
    for (blocks, values) in places {
        for block in blocks {
            let found = rig.run(store.as_mut(), Operation::Read, block..block + 1, 0);
            let is_right = found.is_ok_and(|found| values.contains(&found));
            assert!(is_right, "{when}: block {block}: {found:?}");
        }
    }
    assert_eq!(rig.run(store.as_mut(), WRITE, 0..1, 5), Ok(5), "{when}");
    assert_eq!(rig.run(store.as_mut(), Operation::Flush, 0..0, 0), Ok(0), "{when}");
    drop(store);
    for snapshot in pool.snapshots() {
        let mut reader = pool.read_snapshot(snapshot.id).unwrap();
        let found = reader.read(KEPT.start).unwrap().unwrap()[0];
        assert_eq!(found, 1, "{when}: {}", snapshot.id);
        drop(reader);
        pool.delete_snapshot(snapshot.id).unwrap_or_else(|error| panic!("{when}: {error}"));
    }
    let report = check(&rig.device, true).unwrap();
    assert_eq!(report.problems, [""; 0], "{when}");
    for (id, _) in pool.list().unwrap() {
        pool.delete(id).unwrap_or_else(|error| panic!("{when}: {error}"));
    }
    let space = pool.space().unwrap().unwrap();
    assert_eq!(space.free, space.total, "{when}");
}

/// Each read, write or flush of the disk fails once in turn.
#[test]
fn failed_disk_operation_loses_no_durable_data() {
    let (mut rig, pool) = Rig::new(32);
    for id in [OTHER, ID] {
        pool.create(id, SMALL).unwrap();
        let mut store = pool.open(id, SMALL).unwrap();
        rig.fill(store.as_mut());
    }
    assert_eq!(pool.snapshot(ID, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
    drop(pool);
    let full = rig.device;
    for fails_in in 1.. {
        let waiting = Vec::new();
        let random = Random::new(fails_in, 1);
        let mut rig = Rig { device: full.copy(), waiting, random };
        let before = rig.device.operations();
        rig.device.fail(fails_in - 1, 1);
        live(&mut rig);
        let has_failed = rig.device.operations() >= before + fails_in;
        rig.device = rig.device.copy();
        rig.device.fail(0, 0);
        look_at_what_is_left(&mut rig, &format!("operation {fails_in} fails"));
        if !has_failed {
            return assert!(fails_in > 200, "{fails_in} operations");
        }
    }
}
