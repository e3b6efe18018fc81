//! A full pool: what is there can be replaced, discarded and deleted, and nothing else changes.

use super::super::simulated::SimulatedDevice;
use super::super::volume::recover;
use super::*;
use crate::disk::{BlockingDisk, Disk, DiskOp};
use evenkeel_core::random::Random;

const ID: VolumeId = VolumeId::from_bits(5);
const OTHER: VolumeId = VolumeId::from_bits(6);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(8);
const WRITE: Operation = Operation::Write { fua: false };
const DISCARD: Operation = Operation::Discard { fua: false };

/// A pool of this size in a file.
fn pool_of(mib: u32) -> (tempfile::NamedTempFile, Arc<dyn Device>, LocalPool) {
    let (file, device) = device();
    let layout = Layout { chunks_max: mib, nodes: 63, ..LAYOUT };
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
    (file, device, pool)
}

/// A write of many blocks.
fn write(store: &mut dyn Store, block: u64, count: u64, value: u8) -> Result<(), Failure> {
    let length = count as usize * BLOCK_BYTES;
    let mut buffer = Buffer::new(length);
    buffer.bytes_mut().fill(value);
    let (operation, offset) = (WRITE, block * BLOCK_BYTES as u64);
    let (length, buffer) = (length as u32, Some(buffer));
    let write = Submission { ticket: 1, operation, offset, length, buffer };
    conformance::blocking(store, write).result
}

/// Fills a volume until the pool has no space; how many blocks it holds.
fn fill(store: &mut dyn Store) -> u64 {
    let mut full = 0;
    for count in [64, 1] {
        while write(store, full, count, 1).is_ok() {
            full += count;
        }
    }
    assert_eq!(run(store, Operation::Flush, 0, 0), Ok(0));
    full
}

fn attend(store: &mut dyn Store) {
    let mut disk = BlockingDisk::default();
    store.attend(&mut disk);
    while let Some(done) = disk.poll() {
        store.disk_done(done, &mut disk);
    }
}

/// Operations that are answered in any order.
struct AnyOrder {
    device: Arc<dyn Device>,
    ops: Vec<DiskOp>,
    random: Random,
}

impl Disk for AnyOrder {
    fn submit(&mut self, op: DiskOp) {
        self.ops.push(op);
    }
}

/// Writes over blocks that a volume holds, `depth` at a time, with a flush after each 50.
fn overwrite(store: &mut dyn Store, disk: &mut AnyOrder, holds: u64, depth: usize, count: u64) {
    const REQUESTS: u64 = 6_000;
    let (mut submitted, mut ended) = (0, 0);
    while ended < REQUESTS {
        while submitted < REQUESTS && submitted - ended < depth as u64 {
            submitted += 1;
            let is_flush = submitted % 50 == 0;
            let operation = if is_flush { Operation::Flush } else { WRITE };
            let length = if is_flush { 0 } else { count as usize * BLOCK_BYTES };
            let offset = disk.random.below((holds - count) / count) * length as u64;
            let buffer = (!is_flush).then(|| Buffer::new(length));
            let length = length as u32;
            store.submit(Submission { ticket: 1, operation, offset, length, buffer }, disk);
        }
        while let Some(done) = store.poll() {
            ended += 1;
            assert_eq!(done.result, Ok(()), "request {ended} of {holds} blocks, {depth} deep");
        }
        if !disk.ops.is_empty() {
            let at = disk.random.below(disk.ops.len() as u64) as usize;
            let done = recover::run(disk.device.as_ref(), disk.ops.swap_remove(at));
            store.disk_done(done, disk);
        }
    }
    while let Some(op) = disk.ops.pop() {
        let done = recover::run(disk.device.as_ref(), op);
        store.disk_done(done, disk);
    }
}

#[test]
fn what_a_full_volume_holds_can_be_overwritten() {
    for (mib, depth, count) in [(60, 32, 1), (60, 64, 64), (500, 1, 1), (500, 32, 1)] {
        let (_file, device, pool) = pool_of(mib);
        let size = ByteCount(u64::from(mib) << 21);
        pool.create(ID, size).unwrap();
        let mut store = pool.open(ID, size).unwrap();
        let holds = fill(store.as_mut());
        let (device, ops, random) = (Arc::clone(&device), Vec::new(), Random::new(1, 1));
        let mut disk = AnyOrder { device, ops, random };
        overwrite(store.as_mut(), &mut disk, holds, depth, count);
        assert!(!store.must_reopen());
        drop(store);
        assert_eq!(check(disk.device.as_ref(), false).unwrap().problems, [""; 0]);
    }
}

/// Blocks that are overwritten beside a snapshot are new ones: they run out. What is discarded, and
/// the snapshot, can go; and then there is room.
#[test]
fn a_snapshot_of_a_full_volume_can_be_deleted() {
    const MIB: u32 = 3_000;
    let (_file, device, pool) = pool_of(MIB);
    let size = ByteCount(u64::from(MIB) << 21);
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    let holds = fill(store.as_mut());
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    attend(store.as_mut());
    assert_eq!(making.made.try_recv(), Ok(true));
    let copied = (0..holds).find(|&block| write(store.as_mut(), block, 1, 2).is_err());
    assert!(copied.is_some_and(|copied| copied < 600), "{copied:?}");
    for block in (0..holds).step_by(20_000) {
        assert_eq!(run(store.as_mut(), DISCARD, block, 0), Ok(0), "block {block}");
        assert_eq!(run(store.as_mut(), Operation::Flush, 0, 0), Ok(0));
    }
    pool.delete_snapshot(SNAPSHOT).unwrap();
    attend(store.as_mut());
    for block in 0..holds.min(3_000) {
        assert_eq!(write(store.as_mut(), block, 1, 3), Ok(()), "block {block}");
    }
    drop(store);
    assert_eq!(pool.snapshots(), []);
    let report = check(device.as_ref(), false).unwrap();
    assert_eq!((report.leaked, report.problems), (0, Vec::new()));
}

/// The deletion of a volume takes no new block: what it shares with a snapshot stays.
#[test]
fn a_full_volume_with_a_snapshot_can_be_deleted() {
    const MIB: u32 = 1_000;
    let (_file, device, pool) = pool_of(MIB);
    let (size, small) = (ByteCount(u64::from(MIB) << 21), ByteCount(64 << 20));
    pool.create(OTHER, small).unwrap();
    let mut other = pool.open(OTHER, small).unwrap();
    assert_eq!(write(other.as_mut(), 0, 1, 7), Ok(()));
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    let holds = fill(store.as_mut());
    let making = pool.snapshot(ID, SNAPSHOT).unwrap();
    attend(store.as_mut());
    assert_eq!(making.made.try_recv(), Ok(true));
    let copied = (0..holds).find(|&block| write(store.as_mut(), block, 1, 2).is_err()).unwrap();
    assert_eq!(run(store.as_mut(), Operation::Flush, 0, 0), Ok(0));
    drop(store);
    pool.delete(ID).unwrap();
    assert_eq!(pool.list().unwrap(), [(OTHER, small)]);
    assert_eq!(write(other.as_mut(), 0, 1, 8), Ok(()));
    assert_eq!(run(other.as_mut(), Operation::Flush, 0, 0), Ok(0));
    drop((other, pool));
    let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
    let mut reader = pool.read_snapshot(SNAPSHOT).unwrap();
    for block in [0, copied, holds - 1] {
        assert_eq!(reader.read(block).unwrap().unwrap()[0], 1, "block {block}");
    }
    drop(reader);
    pool.delete_snapshot(SNAPSHOT).unwrap();
    assert!(pool.space().unwrap().unwrap().free > ByteCount(u64::from(MIB) * 7 / 8 * 1_000_000));
    let report = check(device.as_ref(), false).unwrap();
    assert_eq!((report.leaked, report.problems), (0, Vec::new()));
}

/// The node of a snapshot that was given back cannot be cleared once: its blocks are used for
/// something else by now, and are not given back a second time.
#[test]
fn a_snapshot_that_cannot_be_forgotten_is_not_given_back_twice() {
    const SIZE: ByteCount = ByteCount(4 << 20);
    let mut refused = 0;
    for power in 0..12 {
        let device = SimulatedDevice::new(64 << 20);
        LocalPool::init(&device, &LAYOUT).unwrap();
        let bounds = Bounds { log_blocks: 8, ..Bounds::default() };
        let open = || LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
        let pool = open();
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        let mut disk = AnyOrder {
            device: Arc::new(device.clone()),
            ops: Vec::new(),
            random: Random::new(power, 1),
        };
        let mut value_of = [1; 800];
        carry_out(store.as_mut(), &mut disk, 0..400, 1);
        let making = pool.snapshot(ID, SNAPSHOT).unwrap();
        store.attend(&mut disk);
        settle(store.as_mut(), &mut disk);
        assert_eq!(making.made.try_recv(), Ok(true));
        carry_out(store.as_mut(), &mut disk, 0..300, 2);
        value_of[..300].fill(2);
        pool.delete_snapshot(SNAPSHOT).unwrap();
        device.cut_power_after(power);
        store.attend(&mut disk);
        while !disk.ops.is_empty() && !device.is_dark() {
            answer(store.as_mut(), &mut disk);
        }
        if !disk.ops.is_empty() {
            answer(store.as_mut(), &mut disk);
        }
        device.go_on();
        settle(store.as_mut(), &mut disk);
        if store.must_reopen() {
            continue;
        }
        refused += 1;
        carry_out(store.as_mut(), &mut disk, 400..800, 3);
        value_of[400..].fill(3);
        drop((store, pool));
        assert_eq!(check(&device, true).unwrap().problems, [""; 0], "power {power}");
        let pool = open();
        let mut store = pool.open(ID, SIZE).unwrap();
        store.attend(&mut disk);
        settle(store.as_mut(), &mut disk);
        carry_out(store.as_mut(), &mut disk, 810..1_020, 4);
        for (block, value) in (0..).zip(value_of) {
            let found = read(store.as_mut(), &mut disk, block);
            assert_eq!(found, value, "power {power}: block {block}");
        }
        drop((store, pool));
        let report = check(&device, true).unwrap();
        assert_eq!((report.leaked, report.problems), (0, Vec::new()), "power {power}");
    }
    assert!(refused > 1, "{refused} times the volume went on");
}

fn answer(store: &mut dyn Store, disk: &mut AnyOrder) {
    let done = recover::run(disk.device.as_ref(), disk.ops.remove(0));
    store.disk_done(done, disk);
}

fn settle(store: &mut dyn Store, disk: &mut AnyOrder) {
    while !disk.ops.is_empty() {
        answer(store, disk);
    }
}

/// Writes blocks, each durably.
fn carry_out(store: &mut dyn Store, disk: &mut AnyOrder, blocks: std::ops::Range<u64>, value: u8) {
    for block in blocks {
        let mut buffer = Buffer::new(BLOCK_BYTES);
        buffer.bytes_mut().fill(value);
        let (operation, offset) = (Operation::Write { fua: true }, block * BLOCK_BYTES as u64);
        let (length, buffer) = (BLOCK_BYTES as u32, Some(buffer));
        store.submit(Submission { ticket: 1, operation, offset, length, buffer }, disk);
        settle(store, disk);
        assert_eq!(store.poll().unwrap().result, Ok(()), "block {block}");
    }
}

fn read(store: &mut dyn Store, disk: &mut AnyOrder, block: u64) -> u8 {
    let (operation, offset) = (Operation::Read, block * BLOCK_BYTES as u64);
    let (length, buffer) = (BLOCK_BYTES as u32, Some(Buffer::new(BLOCK_BYTES)));
    store.submit(Submission { ticket: 1, operation, offset, length, buffer }, disk);
    settle(store, disk);
    let done = store.poll().unwrap();
    assert_eq!(done.result, Ok(()), "block {block}");
    done.buffer.unwrap().bytes()[0]
}
