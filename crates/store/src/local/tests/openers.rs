//! A second opener of a pool: on one machine it is refused, and on storage that several machines
//! share the first one writes nothing more.

use super::super::packed::PackedDevice;
use super::*;
use crate::disk::{Disk, DiskAction, DiskOp};
use std::io::Read;

const ID: VolumeId = VolumeId::from_bits(5);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(8);
const SIZE: ByteCount = ByteCount(6 << 20);
const WRITE: Operation = Operation::Write { fua: true };

/// Waiting operations, and the number of writes among those submitted.
#[derive(Default)]
struct Waiting {
    ops: Vec<DiskOp>,
    writes: u64,
}

impl Disk for Waiting {
    fn submit(&mut self, op: DiskOp) {
        self.writes += u64::from(matches!(op.action, DiskAction::Write));
        self.ops.push(op);
    }
}

fn request(ticket: u64, operation: Operation, block: u64, count: u64) -> Submission {
    let length = count * BLOCK_BYTES as u64;
    let mut buffer = Buffer::new(length as usize);
    buffer.bytes_mut().fill(ticket as u8);
    let offset = block * BLOCK_BYTES as u64;
    let length = length as u32;
    let buffer = Some(buffer);
    Submission { ticket, operation, offset, length, buffer }
}

fn open(device: &PackedDevice) -> LocalPool {
    // Makes checkpoints frequent.
    let bounds = Bounds { log_blocks: 6, ..Bounds::default() };
    LocalPool::open(Arc::new(device.clone()), bounds).unwrap()
}

/// Another server opens the pool while writes of all kinds and a snapshot are under way, and
/// `answered` of their operations are answered. The first server notices that, and writes nothing
/// after it.
fn taken_over_after(answered: usize) {
    let device = PackedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    let first = open(&device);
    first.create(ID, SIZE).unwrap();
    let mut store = first.open(ID, SIZE).unwrap();
    let mut disk = Waiting::default();
    for ticket in 1..9 {
        let operation = match ticket % 4 {
            0 => Operation::WriteZeroes { fua: false, keep_allocated: true, only_if_fast: false },
            1 => Operation::Discard { fua: true },
            _ => Operation::Write { fua: ticket % 2 == 0 },
        };
        store.submit(request(ticket, operation, ticket * 100, 90), &mut disk);
    }
    first.snapshot(ID, SNAPSHOT).unwrap();
    store.attend(&mut disk);
    for _ in 0..answered {
        let Some(op) = disk.ops.pop() else { break };
        store.disk_done(device.answer(op), &mut disk);
    }
    let arrived: Vec<_> = disk.ops.drain(..).map(|op| device.answer(op)).collect();

    let second = open(&device);
    first.look().unwrap_err();
    assert!(first.is_taken_over());
    let before = (disk.writes, device.writes());
    for done in arrived {
        store.disk_done(done, &mut disk);
    }
    store.submit(request(20, WRITE, 0, 1), &mut disk);
    store.rest(&mut disk);
    store.close(&mut disk);
    while let Some(op) = disk.ops.pop() {
        store.disk_done(device.answer(op), &mut disk);
    }
    let ended = std::iter::from_fn(|| store.poll());
    assert!(ended.filter(|done| done.ticket == 20).all(|done| done.result.is_err()));
    drop((store, first));
    assert_eq!((disk.writes, device.writes()), before, "{answered} operations were answered");
    drop(second.open(ID, SIZE).unwrap());
}

#[test]
fn a_server_that_has_lost_its_pool_writes_nothing_more() {
    (0..80).for_each(taken_over_after);
}

#[test]
fn a_unit_of_a_snapshot_is_not_put_into_a_pool_of_another_server() {
    let device = PackedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    let first = open(&device);
    let unit = vec![7; UNIT_BYTES as usize];
    snapshots::Snapshots::start(&first, SNAPSHOT, SIZE, None, false).unwrap();
    snapshots::Snapshots::put(&first, SNAPSHOT, 0, &unit).unwrap();
    let second = open(&device);
    first.look().unwrap_err();
    let before = device.writes();
    snapshots::Snapshots::put(&first, SNAPSHOT, 1, &unit).unwrap_err();
    snapshots::Snapshots::complete(&first, SNAPSHOT).unwrap_err();
    drop(first);
    assert_eq!(device.writes(), before);
    snapshots::Snapshots::put(&second, SNAPSHOT, 1, &unit).unwrap();
    snapshots::Snapshots::complete(&second, SNAPSHOT).unwrap();
}

/// A second opener of the file, which may write or only reads, is refused and changes nothing.
fn refuse_another(file: &tempfile::NamedTempFile, may_write: bool, when: &str) {
    let bytes = || {
        let mut bytes = Vec::new();
        file.reopen().unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    };
    let before = bytes();
    let opened = if may_write {
        FileDevice::open(file.path(), true)
    } else {
        FileDevice::open_at_rest(file.path())
    };
    let error = opened.unwrap_err();
    assert!(matches!(error, StoreError::Held { .. }), "{when}: {error}");
    assert!(before == bytes(), "{when}: the pool has changed");
}

#[test]
fn a_second_opener_of_a_file_is_refused_at_any_moment() {
    let (file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max: 14, ..LAYOUT }).unwrap();
    refuse_another(&file, true, "the pool is empty");
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(run(store.as_mut(), WRITE, 3, 7), Ok(7));
    refuse_another(&file, false, "a volume is open");
    let mut disk = Waiting::default();
    store.submit(request(1, WRITE, 4, 1), &mut disk);
    refuse_another(&file, true, "a write is under way");
    // The process ends, and closes nothing.
    drop((store, pool));
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(file.path(), false).unwrap());
    refuse_another(&file, false, "the pool is not opened yet after a crash");
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    refuse_another(&file, true, "a volume is open after a crash");
    assert_eq!(run(store.as_mut(), Operation::Read, 3, 0), Ok(7));
    drop((store, pool));
    drop(FileDevice::open(file.path(), false).unwrap());
}
