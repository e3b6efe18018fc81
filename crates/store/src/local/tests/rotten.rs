//! Rotten data is reported, and failed operations stay failed.

use super::super::pool::CHUNK_BYTES;
use super::super::simulated::SimulatedDevice;
use super::super::table::SECTOR_BYTES;
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

/// Creates a pool with a volume and a snapshot of it, which has two blocks in two leaves. Log
/// blocks follow, unless the volume is stopped.
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
            // The last log block cannot be distinguished from one that was never written.
            let mut store = again(&device).open(ID, SIZE).unwrap();
            assert_eq!(run(store.as_mut(), Operation::Read, 0, 0), Ok(7));
        }
    }
}

#[test]
fn anchor_is_repaired_from_its_other_copy() {
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
fn rotten_page_is_reported_when_it_is_needed() {
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
    // The log changes a block of the first leaf.
    let (_file, device) = written(false);
    let root = anchor_of(&device).1.map.0.block;
    flip(&device, pointer(&device, root, 0).block);
    let error = refused(&device);
    assert!(error.contains("a page of the Map tree, is not as it was written"), "{error}");
    let pool = again(&device);
    let salvaged = pool.salvage(ID).unwrap();
    assert_eq!(pool.health().volumes_salvaged, 1);
    assert_eq!((salvaged.map_pages, salvaged.unreachable_blocks, salvaged.log_blocks), (1, 1, 0));
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(run(store.as_mut(), Operation::Read, 0, 0), Err(Failure::Rotten));
    assert_eq!(run(store.as_mut(), Operation::Read, FAR, 0), Ok(1));
    assert_eq!(run(store.as_mut(), WRITE, FAR, 9), Ok(9));
    assert!(matches!(pool.salvage(ID), Err(StoreError::Open { .. })));
}

#[test]
fn rotten_snapshot_data_is_reported() {
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

/// The session number distinguishes the log blocks of an opening from those of others, so it is
/// durable before anything else is written.
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
    /// Answers the operation that has waited longest.
    fn answer(&mut self, store: &mut dyn Store, fails: bool) {
        let op = self.0.remove(0);
        let done = if fails {
            DiskDone { token: op.token, result: Err(Errno::IO), buffer: op.buffer }
        } else {
            op.execute()
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

/// The log fails while the data of a write is under way, and another change waits to be logged.
/// Nothing would end a write that began to wait then.
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

/// Whichever write or flush behind a write fails: the request that waits for it fails, or the
/// volume stops serving changes.
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
        let store = store.as_mut();
        let mut held = Held::default();
        let mut seen = 0;
        held.begin(store, 11, WRITE, 0);
        while let Some(op) = held.0.first() {
            let is_change = matches!(op.action, DiskAction::Write | DiskAction::Sync);
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
    // Data, log, flush; pages, flush; anchor, flush, anchor.
    assert!(failed >= 8, "{failed}");
}

/// Creates a simulated disk with a pool, a volume that has data in its first block, and an empty
/// volume.
fn simulated() -> SimulatedDevice {
    let device = SimulatedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    let pool = LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap();
    for (id, value) in [(ID, 1), (OTHER, 2)] {
        pool.create(id, SIZE).unwrap();
        assert_eq!(carry_out(&device, pool.open(id, SIZE).unwrap().as_mut(), WRITE, 0, value), 1);
    }
    device
}

const OTHER: VolumeId = VolumeId::from_bits(9);

/// Executes a request on a simulated disk. Returns the first byte of a read, 1 for another request
/// that succeeded, and 0 for one that failed.
fn carry_out(
    device: &SimulatedDevice,
    store: &mut dyn Store,
    operation: Operation,
    block: u64,
    value: u8,
) -> u8 {
    let mut held = Held::default();
    let mut buffer = Buffer::new(BLOCK_BYTES);
    buffer.bytes_mut().fill(value);
    let offset = block * BLOCK_BYTES as u64;
    let length = BLOCK_BYTES as u32;
    let submission = Submission { ticket: 1, operation, offset, length, buffer: Some(buffer) };
    store.submit(submission, &mut held);
    while !held.0.is_empty() {
        let op = held.0.remove(0);
        let done = super::super::volume::recover::run(device, op);
        store.disk_done(done, &mut held);
    }
    let done = store.poll().unwrap();
    match (done.result, operation) {
        (Ok(()), Operation::Read) => done.buffer.unwrap().bytes()[0],
        (result, _) => u8::from(result.is_ok()),
    }
}

fn opened(device: &SimulatedDevice) -> LocalPool {
    LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap()
}

/// Whichever sector of a duplicated structure is unreadable or changed in one copy, the pool and
/// its volumes are opened, and the copy is rewritten.
#[test]
fn duplicated_structures_are_read_from_either_copy() {
    let superblock = read_superblock(&simulated()).unwrap();
    let start_of = |chunk: u32| u64::from(chunk) * CHUNK_BYTES;
    let home = start_of(superblock.first_chunk);
    let copies = [
        [0, 4_096],
        // Node 1 and its unused neighbour 15, then the owners.
        superblock.nodes.map(|chunk| start_of(chunk) + 512),
        superblock.nodes.map(|chunk| start_of(chunk) + 15 * 512),
        superblock.owners.map(start_of),
        [home, home + 4_096],
        [home + 512, home + 4_096 + 512],
    ];
    for place in copies.into_iter().flatten() {
        for changes in [true, false] {
            let device = simulated();
            if changes {
                device.rot(place + 100)
            } else {
                device.make_unreadable(place, None)
            }
            let pool = opened(&device);
            let when = format!("byte {place}, {changes}");
            for (id, value) in [(ID, 1), (OTHER, 2)] {
                let mut store = pool.open(id, SIZE).unwrap();
                assert_eq!(
                    carry_out(&device, store.as_mut(), Operation::Read, 0, 0),
                    value,
                    "{when}"
                );
            }
            assert_eq!(pool.health().copies_mended, 1, "{when}");
            drop(pool);
            let report = check(&device, true).unwrap();
            assert_eq!(report.problems, Vec::<String>::new(), "{when}");
            let again = opened(&device);
            again.open(ID, SIZE).map(drop).unwrap();
            assert_eq!(again.health().copies_mended, 0, "{when}: it was mended");
        }
    }
}

/// A volume whose first chunk has another owner in the table is not opened, and no chunk that may
/// be its own is given to another volume.
#[test]
fn a_volume_that_has_lost_its_owner_loses_nothing_to_others() {
    for node in [0, 2, 14] {
        let device = simulated();
        let superblock = read_superblock(&device).unwrap();
        let shared: Arc<dyn Device> = Arc::new(device.clone());
        let mut table = Table::read(Arc::clone(&shared), superblock.owner_table()).unwrap().0;
        let mut draft = Draft::new();
        let owner = Owner { node, index: 5 };
        table.change(&mut draft, 0, |payload| {
            owner.encode(superblock.first_chunk as usize, payload)
        });
        table.write(draft).unwrap();
        others_leave_it_alone(&device, Some(&table), &format!("owner {node}"));
    }
}

/// Nor is such a chunk given to another volume if the whole table of owners is lost in both copies.
#[test]
fn a_table_of_owners_that_is_gone_is_not_taken_for_free_space() {
    for value in [0, 0xee] {
        let device = simulated();
        let superblock = read_superblock(&device).unwrap();
        assert_eq!(superblock.written, superblock.chunks);
        for chunk in superblock.owners {
            device.write(u64::from(chunk) * CHUNK_BYTES, &[value; BLOCK_BYTES]).unwrap();
        }
        others_leave_it_alone(&device, None, &format!("bytes of {value}"));
    }
}

fn others_leave_it_alone(device: &SimulatedDevice, table: Option<&Table>, when: &str) {
    let superblock = read_superblock(device).unwrap();
    let data: Vec<u64> = device.find(&[1; BLOCK_BYTES]);
    assert_eq!(data.len(), 1, "{when}");
    let home = || {
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        device.read(u64::from(superblock.first_chunk) * CHUNK_BYTES, &mut bytes).unwrap();
        bytes
    };
    let before = home();
    let pool = opened(device);
    let error = pool.open(ID, SIZE).map(drop).unwrap_err().to_string();
    let first = format!("the owner of chunk {}, the first chunk of {ID},", superblock.first_chunk);
    assert!(error.contains(&first), "{when}: {error}");
    // The other volumes write as much as they can.
    let id = VolumeId::from_bits(20);
    let large = ByteCount(64 << 20);
    pool.create(id, large).unwrap();
    let mut written = [0, 0];
    for ((id, size), written) in [(OTHER, SIZE), (id, large)].into_iter().zip(&mut written) {
        let Ok(mut store) = pool.open(id, size) else { continue };
        while *written < size.0 / BLOCK_BYTES as u64
            && carry_out(device, store.as_mut(), WRITE, *written, 3) == 1
        {
            *written += 1;
        }
    }
    assert_eq!(device.find(&[1; BLOCK_BYTES]), data, "{when}: {written:?} blocks were written");
    assert!(home() == before, "{when}: {written:?} blocks were written");
    // Deleted volumes free their chunks; the damage goes with the volume that shows it.
    if table.is_some() {
        assert!(written[0] > 0, "{when}");
        assert_eq!(pool.open(OTHER, SIZE).map(drop).map_err(|error| error.to_string()), Ok(()));
        pool.delete(ID).unwrap();
        drop(pool);
        let before = opened(device).space().unwrap().unwrap().free;
        assert!(before.0 > 0, "{when}");
    }
}

/// Changes both copies of a sector of the table of volumes.
fn damage_node(device: &SimulatedDevice, node: u64) {
    for chunk in read_superblock(device).unwrap().nodes {
        device.rot(u64::from(chunk) * CHUNK_BYTES + node * SECTOR_BYTES as u64 + 100);
    }
}

/// Writes to a volume from its first block on, as long as that succeeds. Returns the number of
/// blocks.
fn fill(device: &SimulatedDevice, pool: &LocalPool, id: VolumeId, size: ByteCount) -> u64 {
    let Ok(mut store) = pool.open(id, size) else { return 0 };
    let blocks = 0..size.0 / BLOCK_BYTES as u64;
    let is_written = |block: &u64| carry_out(device, store.as_mut(), WRITE, *block, 3) == 1;
    blocks.take_while(is_written).count() as u64
}

/// A damaged sector of the table of volumes affects only the volume in it. All others are served
/// and created, and none gets its number or its chunks.
#[test]
fn a_damaged_sector_of_the_table_of_volumes_concerns_its_volume_alone() {
    for changes in [true, false] {
        let device = simulated();
        if changes {
            damage_node(&device, 1)
        } else {
            for chunk in read_superblock(&device).unwrap().nodes {
                let sector = u64::from(chunk) * CHUNK_BYTES + SECTOR_BYTES as u64;
                device.make_unreadable(sector, None);
            }
        }
        let id = VolumeId::from_bits(20);
        let large = ByteCount(64 << 20);
        for opening in 0..3 {
            let pool = opened(&device);
            let when = format!("{changes}, opening {opening}");
            assert_eq!(pool.health().damaged_sectors, 1, "{when}");
            let error = pool.open(ID, SIZE).map(drop).unwrap_err();
            assert!(error.is_damage(), "{when}: {error}");
            let named = format!("which may have {ID}, is not as it was written");
            assert!(error.to_string().contains(&named), "{when}: {error}");
            assert!(error.to_string().contains("sector 1 of the table of volumes"), "{error}");
            if opening == 0 {
                pool.create(id, large).unwrap();
            }
            let written =
                [(OTHER, SIZE), (id, large)].map(|(id, size)| fill(&device, &pool, id, size));
            assert!(written[0] > 0 && written[1] > 0, "{when}: {written:?}");
            assert_eq!(device.find(&[1; BLOCK_BYTES]).len(), 1, "{when}: {written:?}");
        }
        let pool = opened(&device);
        for id in [id, OTHER, ID] {
            pool.delete(id).unwrap();
        }
        assert_eq!(Pool::list(&pool).unwrap(), []);
        assert_eq!(device.find(&[1; BLOCK_BYTES]).len(), 1, "its space is given to no other");
    }
}

/// The sector of a snapshot is damaged. Volumes that were made of it keep their data, whatever is
/// deleted, and their space returns when they are deleted.
#[test]
fn volumes_of_a_snapshot_whose_sector_is_damaged_keep_their_data() {
    let device = simulated();
    let pool = opened(&device);
    let free = |pool: &LocalPool| pool.space().unwrap().unwrap().free;
    let newer = SnapshotId::from_bits(30);
    let used = VolumeId::from_bits(31);
    let unused = VolumeId::from_bits(32);
    assert_eq!(pool.snapshot(ID, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
    for id in [used, unused] {
        pool.create_from(id, SIZE, SNAPSHOT).unwrap();
    }
    pool.open(used, SIZE).map(drop).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(carry_out(&device, store.as_mut(), WRITE, 0, 5), 1);
    drop(store);
    assert_eq!(pool.snapshot(ID, newer).unwrap().made.try_recv(), Ok(true));
    drop(pool);
    // Nodes 1 and 2 are the volumes.
    damage_node(&device, 3);
    let pool = opened(&device);
    assert!(pool.read_snapshot(SNAPSHOT).is_err());
    let error = pool.open(unused, SIZE).map(drop).unwrap_err();
    assert!(error.is_damage() && error.to_string().contains("sector 3"), "{error}");
    pool.delete_snapshot(newer).unwrap();
    pool.delete(ID).unwrap();
    drop(pool);
    let pool = opened(&device);
    fill(&device, &pool, OTHER, SIZE);
    let large = (VolumeId::from_bits(40), ByteCount(64 << 20));
    pool.create(large.0, large.1).unwrap();
    assert!(fill(&device, &pool, large.0, large.1) > 0);
    let mut store = pool.open(used, SIZE).unwrap();
    assert_eq!(carry_out(&device, store.as_mut(), Operation::Read, 0, 0), 1);
    drop(store);
    for id in [used, unused, large.0, OTHER] {
        pool.delete(id).unwrap();
    }
    drop(pool);
    let empty = SimulatedDevice::new(64 << 20);
    LocalPool::init(&empty, &LAYOUT).unwrap();
    assert_eq!(free(&opened(&device)), free(&opened(&empty)));
}

/// A device that has tables or volumes of a pool is not empty, whatever its first blocks say.
#[test]
fn a_pool_without_superblocks_is_not_empty() {
    let device = simulated();
    let zeroes = vec![0; CHUNK_BYTES as usize];
    let superblock = read_superblock(&device).unwrap();
    device.write(0, &zeroes).unwrap();
    for chunk in [0, superblock.nodes[0], superblock.nodes[1], superblock.owners[0]] {
        device.write(u64::from(chunk) * CHUNK_BYTES, &zeroes).unwrap();
        let error = LocalPool::init(&device, &LAYOUT).unwrap_err();
        assert!(
            matches!(&error, StoreError::NotEmpty { found, .. } if found.contains("of a pool"))
        );
        let error = LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap_err();
        assert!(error.to_string().contains("both copies of its superblock are gone"), "{error}");
    }
}

/// Two servers open one pool. The first one writes nothing after it has read the superblock, and
/// data that the second one has made durable is there.
#[test]
fn a_pool_that_another_server_has_opened_is_left_to_it() {
    let device = simulated();
    let first = opened(&device);
    let mut store = first.open(ID, SIZE).unwrap();
    assert_eq!(carry_out(&device, store.as_mut(), WRITE, 5, 7), 1);
    assert!(!first.is_taken_over());
    let second = opened(&device);
    let mut theirs = second.open(ID, SIZE).unwrap();
    assert_eq!(carry_out(&device, theirs.as_mut(), WRITE, 0, 8), 1);
    let error = first.create(VolumeId::from_bits(30), SIZE).unwrap_err().to_string();
    assert!(error.contains("another server has opened or overwritten the pool"), "{error}");
    assert!(first.is_taken_over());
    assert_eq!(carry_out(&device, store.as_mut(), WRITE, 0, 9), 0, "it is refused");
    first.open(OTHER, SIZE).map(drop).unwrap_err();
    drop((store, first));
    assert_eq!(carry_out(&device, theirs.as_mut(), WRITE, 1, 8), 1);
    drop((theirs, second));
    assert_eq!(check(&device, true).unwrap().problems, Vec::<String>::new());
    let again = opened(&device);
    let mut store = again.open(ID, SIZE).unwrap();
    for (block, value) in [(0, 8), (1, 8), (5, 7)] {
        assert_eq!(carry_out(&device, store.as_mut(), Operation::Read, block, 0), value);
    }
}

/// A scrub leaves the superblock of a server that has opened the pool since: mending it would let
/// the first server go on writing, and take the pool from the second one.
#[test]
fn a_scrub_does_not_mend_the_superblock_of_another_server() {
    let device = simulated();
    let first = opened(&device);
    drop(opened(&device));
    let theirs = read_superblock(&device).unwrap();
    let error = first.look_at(0).unwrap_err().to_string();
    assert!(error.contains("another server has opened or overwritten the pool"), "{error}");
    assert!(first.is_taken_over());
    assert_eq!(read_superblock(&device).unwrap(), theirs);
}

/// A checkpoint checks the owner of the pool before it writes an anchor.
#[test]
fn no_anchor_is_written_to_a_pool_of_another_server() {
    for is_wiped in [false, true] {
        let device = simulated();
        let bounds = Bounds { log_blocks: 4, ..Bounds::default() };
        let first = LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
        let mut store = first.open(ID, SIZE).unwrap();
        if is_wiped {
            device.write(0, &[0; 2 * BLOCK_BYTES]).unwrap()
        } else {
            drop(opened(&device))
        }
        let home = u64::from(read_superblock(&simulated()).unwrap().first_chunk) * CHUNK_BYTES;
        let anchors = || {
            let mut bytes = vec![0; 2 * BLOCK_BYTES];
            device.read(home, &mut bytes).unwrap();
            bytes
        };
        let before = anchors();
        let count =
            (0..20).filter(|_| carry_out(&device, store.as_mut(), WRITE, 0, 9) == 1).count();
        assert!(count < 20, "the log has room for four blocks, and {count} were written");
        assert!(first.is_taken_over());
        drop((store, first));
        assert_eq!(anchors(), before);
    }
}
