//! The pool held to the obligations of every store.

mod aged;
mod amplified;
mod crashed;
mod devices;
mod failing;
mod full;
mod fuzzed;
mod holes;
mod killed;
mod openers;
mod rotten;
mod salvaged;
mod scrubbed;
mod sets;
mod unfinished;

use super::check::{Report, check};
use super::device::{Device, FileDevice};
use super::discovery::read_superblock;
use super::format::{Anchor, Identity, Node, Owner};
use super::pool::{Layout, LocalPool};
use super::table::{Draft, Image, Table};
use super::tree::{page_bytes, page_from};
use super::volume::Bounds;
use super::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::buffer::Buffer;
use crate::conformance::{self, RingDisk};
use crate::encryption::keys::Keys;
use crate::snapshots::{self, UNIT_BYTES, Units};
use crate::{Pool, Store, StoreError, Submission};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

const LAYOUT: Layout = Layout { identity: 0x1234_5678_9abc_def0, chunks_max: 64, nodes: 15 };

fn device() -> (tempfile::NamedTempFile, Arc<dyn Device>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = FileDevice::open(file.path(), false).unwrap();
    (file, Arc::new(device))
}

fn pool() -> (tempfile::NamedTempFile, LocalPool) {
    let (file, device) = device();
    LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
    (file, LocalPool::open(device, Bounds::default()).unwrap())
}

#[test]
fn local_store_conforms_with_system_calls() {
    let (_file, pool) = pool();
    conformance::check(&pool, &mut conformance::blocking);
}

#[test]
fn local_store_conforms_on_io_uring() {
    let (_file, pool) = pool();
    let pool = pool.with_clerk().unwrap();
    let mut ring = RingDisk::new().unwrap();
    conformance::check(&pool, &mut |store, submission: Submission| ring.run(store, submission));
}

#[test]
fn a_device_that_holds_something_is_left_alone() {
    let (_file, device) = device();
    let mut block = vec![0; 4_096];
    block[1_080] = 0x53;
    device.write(0, &block).unwrap();
    let error = LocalPool::init(device.as_ref(), &LAYOUT).unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { .. }), "{error}");
    let mut after = vec![0; 4_096];
    device.read(0, &mut after).unwrap();
    assert_eq!(after, block);
    let error = LocalPool::open(device, Bounds::default()).unwrap_err().to_string();
    assert!(error.ends_with("is not a pool of evenkeel's"), "{error}");
}

#[test]
fn volumes_outlive_the_pool_that_made_them() {
    let (file, first) = pool();
    let id = VolumeId::from_bits(7);
    let size = ByteCount(4 << 20);
    first.create(id, size).unwrap();
    drop(first.open(id, size).unwrap());
    first.resize(id, size, ByteCount(8 << 20)).unwrap();
    drop(first);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(file.path(), false).unwrap());
    let again = LocalPool::open(device, Bounds::default()).unwrap();
    assert_eq!(again.list().unwrap(), [(id, ByteCount(8 << 20))]);
    drop(again.open(id, ByteCount(8 << 20)).unwrap());
    again.delete(id).unwrap();
    assert_eq!(again.list().unwrap(), []);
}

/// A volume that got more chunks since the last checkpoint keeps them apart when it is reopened: a
/// leaf of the space tree describes 63.
#[test]
fn chunks_that_no_checkpoint_knows_are_kept_apart() {
    const MIB: usize = 1 << 20;
    let (_file, device) = device();
    let layout = Layout { chunks_max: 240, ..LAYOUT };
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    let id = VolumeId::from_bits(9);
    let size = ByteCount(100 << 20);
    pool.create(id, size).unwrap();
    let run = |store: &mut dyn Store, operation, part: usize, value: u8| {
        let mut buffer = Buffer::new(MIB);
        buffer.bytes_mut().fill(value);
        let offset = (part * MIB) as u64;
        let length = MIB as u32;
        let submission = Submission { ticket: 1, operation, offset, length, buffer: Some(buffer) };
        let done = conformance::blocking(store, submission);
        assert_eq!(done.result, Ok(()), "part {part}");
        done.buffer.unwrap().bytes()[0]
    };
    for round in 0..3 {
        let value = |part: usize| (round * 90 + part) as u8;
        let mut store = pool.open(id, size).unwrap();
        for part in 0..90 {
            run(store.as_mut(), Operation::Write { fua: true }, part, value(part));
        }
        drop(store);
        let mut store = pool.open(id, size).unwrap();
        for part in 0..90 {
            assert_eq!(run(store.as_mut(), Operation::Read, part, 0), value(part), "part {part}");
        }
    }
}

fn run(store: &mut dyn Store, operation: Operation, block: u64, value: u8) -> Result<u8, Failure> {
    let mut buffer = Buffer::new(4_096);
    buffer.bytes_mut().fill(value);
    let (offset, length, buffer) = match operation {
        Operation::Flush => (0, 0, None),
        Operation::Discard { .. } => (block * 4_096, 4_096, None),
        _ => (block * 4_096, 4_096, Some(buffer)),
    };
    let submission = Submission { ticket: 1, operation, offset, length, buffer };
    let done = conformance::blocking(store, submission);
    done.result.map(|()| done.buffer.map_or(0, |buffer| buffer.bytes()[0]))
}

/// When the pool has no more chunks, new blocks have no space. Existing ones can be overwritten any
/// number of times, discarded, and read, also after an opening.
#[test]
fn a_full_pool_refuses_new_blocks_only() {
    for fua in [false, true] {
        let (_file, device) = device();
        LocalPool::init(device.as_ref(), &Layout { chunks_max: 62, ..LAYOUT }).unwrap();
        let pool = LocalPool::open(device, Bounds::default()).unwrap();
        let id = VolumeId::from_bits(5);
        let size = ByteCount(1 << 30);
        pool.create(id, size).unwrap();
        let write = Operation::Write { fua: false };
        let mut store = pool.open(id, size).unwrap();
        let full = (0..).find(|&block| run(store.as_mut(), write, block, 1).is_err()).unwrap();
        // Without the chunks of the tables, the anchor, the log, and the reserved blocks.
        assert!(full > 50 * 256 && full < 57 * 256, "{full} blocks");
        assert_eq!(run(store.as_mut(), write, full, 1), Err(Failure::NoSpace));
        let write = Operation::Write { fua };
        let blocks = || (0..full).step_by(if fua { 9 } else { 1 });
        for round in 2..4 {
            for block in blocks() {
                assert_eq!(run(store.as_mut(), write, block, round), Ok(round), "block {block}");
            }
            drop(store);
            store = pool.open(id, size).unwrap();
            for block in blocks() {
                assert_eq!(run(store.as_mut(), Operation::Read, block, 0), Ok(round));
            }
        }
        for block in 0..1_000 {
            let discard = Operation::Discard { fua };
            assert_eq!(run(store.as_mut(), discard, block, 0), Ok(0), "block {block}");
        }
        for block in full..full + 900 {
            assert_eq!(run(store.as_mut(), write, block, 9), Ok(9), "block {block}");
        }
        assert_eq!(run(store.as_mut(), Operation::Flush, 0, 0), Ok(0));
    }
}

fn keys(folder: &Path, name: &str, digit: &str) -> Keys {
    let path = folder.join(name);
    std::fs::write(&path, digit.repeat(64)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    Keys::from_file(&path).unwrap()
}

#[test]
fn local_store_conforms_when_it_encrypts() {
    let folder = tempfile::tempdir().unwrap();
    let (_file, pool) = pool();
    let pool = pool.with_keys(keys(folder.path(), "key", "7"));
    conformance::check(&conformance::Encrypting(&pool), &mut conformance::blocking);
}

/// The volume, its snapshots, and volumes made of them read encrypted data. Without the key they do
/// not, and the plain data is nowhere on the device.
#[test]
fn encrypted_data_is_readable_only_with_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let (file, device) = device();
    let layout = Layout { chunks_max: 128, ..LAYOUT };
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let with = |device: &Arc<dyn Device>, keys: Option<Keys>| {
        let pool = LocalPool::open(Arc::clone(device), Bounds::default()).unwrap();
        match keys {
            Some(keys) => pool.with_keys(keys),
            None => pool,
        }
    };
    let [open, plain, clone] = [1, 2, 3].map(VolumeId::from_bits);
    let size = ByteCount(8 << 20);
    let snapshot = SnapshotId::from_bits(4);
    let write = Operation::Write { fua: true };
    let pool = with(&device, None);
    let refused = pool.create_encrypted(open, size).unwrap_err();
    assert!(refused.to_string().contains("--key-file"), "{refused}");
    drop(pool);
    let pool = with(&device, Some(keys(folder.path(), "key", "7")));
    pool.create(plain, size).unwrap();
    pool.create_encrypted(open, size).unwrap();
    assert_eq!([plain, open, clone].map(|id| pool.is_encrypted(id)), [false, true, false]);
    let mut store = pool.open(open, size).unwrap();
    for block in 0..20 {
        assert_eq!(run(store.as_mut(), write, block, 0x6b), Ok(0x6b));
    }
    drop(store);
    assert!(pool.snapshot(open, snapshot).unwrap().made.recv().unwrap());
    pool.create_from(clone, size, snapshot).unwrap();
    assert!(pool.is_encrypted(clone) && pool.snapshots()[0].is_encrypted);
    for id in [open, clone] {
        let mut store = pool.open(id, size).unwrap();
        assert_eq!(run(store.as_mut(), Operation::Read, 7, 0), Ok(0x6b));
        assert_eq!(run(store.as_mut(), Operation::Read, 99, 0), Ok(0), "a hole is zeroes");
    }
    let mut reader = pool.read_snapshot(snapshot).unwrap();
    assert_eq!(reader.read(7).unwrap().unwrap()[..4], [0x6b; 4]);
    drop((reader, pool));
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(!bytes.windows(64).any(|part| part == [0x6b; 64]), "data in the clear");
    let key_digits = [0x77; 32];
    assert!(!bytes.windows(32).any(|part| part == key_digits), "a key in the clear");

    for (keys, why) in
        [(None, "--key-file"), (Some(keys(folder.path(), "other", "8")), "another key")]
    {
        let pool = with(&device, keys);
        drop(pool.open(plain, size).unwrap());
        for id in [open, clone] {
            let refused = pool.open(id, size).map(drop).unwrap_err();
            assert!(refused.is_damage() && refused.to_string().contains(why), "{refused}");
        }
        assert!(matches!(pool.read_snapshot(snapshot), Err(StoreError::Locked { .. })));
    }
    // Objects can be deleted without their keys.
    let pool = with(&device, None);
    pool.delete(open).unwrap();
    pool.delete(clone).unwrap();
    pool.delete_snapshot(snapshot).unwrap();
    assert_eq!(pool.list().unwrap(), [(plain, size)]);
}

/// A volume with two snapshots that differ in some units.
fn two_snapshots(pool: &LocalPool, of: VolumeId, size: ByteCount, snapshots: [SnapshotId; 2]) {
    pool.create_encrypted(of, size).unwrap();
    for (snapshot, blocks) in snapshots.into_iter().zip([[0, 129, 768], [129, 300, 769]]) {
        let mut store = pool.open(of, size).unwrap();
        for block in blocks {
            let value = snapshot.bits() as u8 * 10 + block as u8;
            let write = Operation::Write { fua: true };
            assert_eq!(run(store.as_mut(), write, block, value), Ok(value));
        }
        drop(store);
        assert!(pool.snapshot(of, snapshot).unwrap().made.recv().unwrap());
    }
}

/// The node in which a snapshot was filled is freed, even if the snapshot shares most blocks with
/// its parent: that takes free blocks for the changed pages, and the node has few.
#[test]
fn a_snapshot_with_few_units_of_its_own_is_completed() {
    let (_file, device) = device();
    let layout = Layout { chunks_max: 2_000, ..LAYOUT };
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    let size = ByteCount(1 << 30);
    let [first, second] = [1, 2].map(SnapshotId::from_bits);
    for (id, parent, counts) in [(first, None, 300..=300), (second, Some(first), 0..=4)] {
        for count in counts {
            snapshots::Snapshots::start(&pool, id, size, parent, false).unwrap();
            for unit in (0..size.0 / UNIT_BYTES).step_by(2).take(count) {
                let bytes = vec![count as u8; UNIT_BYTES as usize];
                snapshots::Snapshots::put(&pool, id, unit, &bytes).unwrap();
            }
            let completed = snapshots::Snapshots::complete(&pool, id);
            completed.unwrap_or_else(|error| panic!("with {count} units: {error}"));
            let changed = snapshots::Snapshots::units(&pool, id, parent, 0, 1_000).unwrap();
            assert_eq!(changed.units.len(), count);
            if id == second {
                pool.delete_snapshot(id).unwrap();
            }
        }
    }
}

/// A snapshot is copied unit by unit, and then the later changes are applied to the copy. The pool
/// is reopened at every step.
#[test]
fn snapshot_is_filled_unit_by_unit_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max: 240, ..LAYOUT }).unwrap();
    let open = || {
        let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
        pool.with_keys(keys(folder.path(), "key", "7"))
    };
    let pool = open();
    let volume = VolumeId::from_bits(1);
    let size = ByteCount((3 << 20) + 8_192);
    let [first, second, copy, next] = [2, 3, 4, 5].map(SnapshotId::from_bits);
    two_snapshots(&pool, volume, size, [first, second]);
    let units =
        |pool: &LocalPool, id, older| snapshots::Snapshots::units(pool, id, older, 0, 9).unwrap();
    let all_of = |units: &[u64]| Units { units: units.to_vec(), next: None };
    assert_eq!(units(&pool, first, None), all_of(&[0, 1, 6]));
    assert_eq!(units(&pool, second, Some(first)), all_of(&[1, 2, 6]));
    let some = snapshots::Snapshots::units(&pool, second, Some(first), 1, 1).unwrap();
    assert_eq!(some, Units { units: vec![1], next: Some(2) });
    drop(pool);

    let bytes_of = |pool: &LocalPool, id: SnapshotId| -> Vec<Option<Vec<u8>>> {
        (0..7).map(|unit| snapshots::Snapshots::read(pool, id, unit).unwrap()).collect()
    };
    let length = |unit: u64| if unit == 6 { 8_192 } else { UNIT_BYTES as usize };
    for (from, older, to, parent) in
        [(first, None, copy, None), (second, Some(first), next, Some(copy))]
    {
        snapshots::Snapshots::start(&open(), to, size, parent, true).unwrap();
        for unit in units(&open(), from, older).units {
            let pool = open();
            snapshots::Snapshots::start(&pool, to, size, parent, true).unwrap();
            let bytes = snapshots::Snapshots::read(&pool, from, unit).unwrap().unwrap();
            let short =
                snapshots::Snapshots::put(&pool, to, unit, &bytes[..length(unit) - 1]).unwrap_err();
            assert!(short.to_string().contains("bytes, and"), "{short}");
            snapshots::Snapshots::put(&pool, to, unit, &bytes[..length(unit)]).unwrap();
            let unready = snapshots::Snapshots::read(&pool, to, unit).unwrap_err();
            assert!(matches!(unready, StoreError::NoSnapshot { .. }), "{unready}");
            let info = *pool.snapshots().iter().find(|info| info.id == to).unwrap();
            assert_eq!((info.is_complete, info.volume, info.size), (false, None, size));
            drop(pool);
            assert_eq!(check(device.as_ref(), true).unwrap().problems, [] as [String; 0]);
        }
        let pool = open();
        snapshots::Snapshots::complete(&pool, to).unwrap();
        snapshots::Snapshots::complete(&pool, to).unwrap();
        assert_eq!(bytes_of(&pool, to), bytes_of(&pool, from));
        let late = snapshots::Snapshots::put(&pool, to, 0, &[0; UNIT_BYTES as usize]).unwrap_err();
        assert!(matches!(late, StoreError::NoSnapshot { .. }), "{late}");
        let beyond = snapshots::Snapshots::read(&pool, to, 7).unwrap_err().to_string();
        assert!(beyond.contains("no unit 7") && beyond.contains("7 units"), "{beyond}");
        drop(pool);
        assert_eq!(check(device.as_ref(), true).unwrap().problems, [] as [String; 0]);
    }

    // After deleting an incomplete one, and the others in any order, all space is free again.
    let pool = open();
    let given_up = SnapshotId::from_bits(6);
    snapshots::Snapshots::start(&pool, given_up, size, Some(next), true).unwrap();
    snapshots::Snapshots::put(&pool, given_up, 0, &[1; UNIT_BYTES as usize]).unwrap();
    Pool::delete(&pool, volume).unwrap();
    for id in [copy, given_up, first, next, second] {
        snapshots::Snapshots::delete(&pool, id).unwrap();
    }
    drop(pool);
    let report = check(device.as_ref(), true).unwrap();
    assert_eq!((report.volumes, report.snapshots, report.problems), (0, 0, vec![]));
}

/// Returns a volume's node and anchor after a kill. The volume has a snapshot, of which another
/// volume was made.
fn history() -> (tempfile::NamedTempFile, Arc<dyn Device>, Node, Anchor) {
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
    let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
    let id = VolumeId::from_bits(7);
    let size = ByteCount(4 << 20);
    pool.create(id, size).unwrap();
    let write = Operation::Write { fua: true };
    let mut store = pool.open(id, size).unwrap();
    (0..20).for_each(|block| assert_eq!(run(store.as_mut(), write, block, 1), Ok(1)));
    drop(store);
    let snapshot = SnapshotId::from_bits(8);
    let clone = VolumeId::from_bits(9);
    assert_eq!(pool.snapshot(id, snapshot).unwrap().made.try_recv(), Ok(true));
    pool.create_from(clone, size, snapshot).unwrap();
    let mut stores = [pool.open(id, size).unwrap(), pool.open(clone, size).unwrap()];
    for store in &mut stores {
        assert_eq!(run(store.as_mut(), write, 3, 2), Ok(2));
        assert_eq!(run(store.as_mut(), Operation::Discard { fua: true }, 4, 0), Ok(0));
    }
    // There are log blocks behind the anchors.
    let (file, device) = left_by_a_kill(&device);
    let (node, anchor) = anchor_of(&device);
    (file, device, node, anchor)
}

/// Returns a copy of a device in its present state: no volume is closed there.
fn left_by_a_kill(device: &Arc<dyn Device>) -> (tempfile::NamedTempFile, Arc<dyn Device>) {
    let (file, copy) = self::device();
    let mut bytes = vec![0; device.size().unwrap() as usize];
    device.read(0, &mut bytes).unwrap();
    copy.write(0, &bytes).unwrap();
    (file, copy)
}

/// Returns the node of a pool's first volume, and its anchor.
fn anchor_of(device: &Arc<dyn Device>) -> (Node, Anchor) {
    let superblock = read_superblock(device.as_ref()).unwrap();
    let table = Image::read(device.as_ref(), superblock.node_table()).unwrap();
    let node = Node::decode(table.get(1).unwrap()).unwrap().unwrap();
    let bytes = block_of(device, node.home * CHUNK_BLOCKS);
    let identity = Identity { node: 1, generation: node.generation };
    (node, Anchor::decode(&bytes, identity).unwrap())
}

fn block_of(device: &Arc<dyn Device>, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(u64::from(block) * BLOCK_BYTES as u64, &mut bytes).unwrap();
    bytes
}

fn put(device: &Arc<dyn Device>, block: u32, bytes: &[u8]) {
    device.write(u64::from(block) * BLOCK_BYTES as u64, bytes).unwrap();
}

fn put_anchor(device: &Arc<dyn Device>, node: &Node, anchor: &Anchor) {
    (0..2).for_each(|copy| put(device, node.home * CHUNK_BLOCKS + copy, &anchor.encode()));
}

/// Damages a pool, and looks for these sentences in the report of a check.
fn tells(damage: impl Fn(&Arc<dyn Device>, &Node, Anchor), sentences: &[&str]) {
    let (_file, device, node, anchor) = history();
    let report = check(device.as_ref(), true).unwrap();
    let expected = Report {
        volumes: 2,
        snapshots: 1,
        chunks: report.chunks,
        in_use: report.in_use,
        verified: 22,
        ..Report::default()
    };
    assert_eq!(report, expected, "nothing is damaged yet");
    damage(&device, &node, anchor);
    let report = check(device.as_ref(), true).unwrap();
    assert_eq!(report.problems_total, report.problems.len() as u64);
    for sentence in sentences {
        let is_told = report.problems.iter().any(|problem| problem.contains(sentence));
        assert!(is_told, "not told: {sentence}\n{:#?}", report.problems);
    }
}

#[test]
fn check_reports_changed_pages_and_data() {
    let flip = |device: &Arc<dyn Device>, block: u32| {
        let mut bytes = block_of(device, block);
        bytes[77] ^= 4;
        put(device, block, &bytes);
    };
    let root = |device: &Arc<dyn Device>, _: &Node, anchor: Anchor| {
        flip(device, anchor.map.0.block);
    };
    tells(root, &["page 0 of level 1 of the map of vol-", "is not as it was written"]);
    let data = |device: &Arc<dyn Device>, _: &Node, anchor: Anchor| {
        let root = page_from(&block_of(device, anchor.map.0.block));
        let leaf = page_from(&block_of(device, Pointer::from_bits(root[0]).block));
        flip(device, Pointer::from_bits(leaf[9]).block);
    };
    tells(data, &["block 9, in block", "is not as it was written"]);
}

#[test]
fn check_reports_used_blocks_that_are_marked_as_free() {
    let clear = |device: &Arc<dyn Device>, node: &Node, mut anchor: Anchor| {
        let root = page_from(&block_of(device, anchor.map.0.block));
        let leaf = page_from(&block_of(device, Pointer::from_bits(root[0]).block));
        let lost = Pointer::from_bits(leaf[9]).block;
        assert_eq!(anchor.space.1, 0, "the tree of so few chunks is one leaf");
        let mut page = *page_from(&block_of(device, anchor.space.0.block));
        for words in page[8..].chunks_exact_mut(8) {
            words[lost as usize % 256 / 64] &= !(1 << (lost % 64));
        }
        put(device, anchor.space.0.block, page_bytes(&page));
        anchor.space.0.checksum = checksum(page_bytes(&page));
        put_anchor(device, node, &anchor);
    };
    tells(clear, &["snap-", "block 9 is in block", "which is marked as free"]);
}

#[test]
fn check_reports_wrong_counts_owners_and_thaws() {
    let count = |device: &Arc<dyn Device>, node: &Node, mut anchor: Anchor| {
        anchor.data_blocks += 5;
        put_anchor(device, node, &anchor);
    };
    tells(count, &["has 20 blocks of data, and 25 are noted"]);
    let thaw = |device: &Arc<dyn Device>, node: &Node, mut anchor: Anchor| {
        anchor.epoch = 0;
        put_anchor(device, node, &anchor);
    };
    tells(thaw, &["which a snapshot uses, too, and which is not frozen"]);
    let owner = |device: &Arc<dyn Device>, node: &Node, _: Anchor| {
        let superblock = read_superblock(device.as_ref()).unwrap();
        let mut table = Table::read(Arc::clone(device), superblock.owner_table()).unwrap().0;
        let free = superblock.chunks - 1;
        let owner = Owner::decode(node.home as usize, table.get(0).unwrap());
        let mut draft = Draft::new();
        table.change(&mut draft, 0, |payload| owner.encode(free as usize, payload));
        table.write(draft).unwrap();
    };
    tells(owner, &["both are chunk 0 of vol-"]);
}

/// The chunks that a volume discards are free for other volumes; the chunks that it keeps stay its
/// own.
#[test]
fn chunks_of_discarded_data_go_back_to_the_pool() {
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max: 62, ..LAYOUT }).unwrap();
    let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
    let [id, other] = [5, 6].map(VolumeId::from_bits);
    let size = ByteCount(1 << 30);
    let write = Operation::Write { fua: false };
    let free = || pool.space().unwrap().unwrap().free.0;
    pool.create(id, size).unwrap();
    let mut store = pool.open(id, size).unwrap();
    for round in 1..3 {
        let full = (0..).find(|&at| run(store.as_mut(), write, at, round).is_err()).unwrap();
        assert!(full > 40 * 256 && free() < 4 << 20, "{full} blocks, {} free", free());
        for block in (0..full).filter(|block| block % 5_000 != 7) {
            assert_eq!(run(store.as_mut(), Operation::Discard { fua: false }, block, 0), Ok(0));
        }
        assert_eq!(run(store.as_mut(), Operation::Flush, 0, 0), Ok(0));
        assert!(free() > 30 << 20, "{} free", free());
        // Another volume takes the chunks, and returns them.
        pool.create(other, size).unwrap();
        let mut second = pool.open(other, size).unwrap();
        for block in 0..25 * 256 {
            assert_eq!(run(second.as_mut(), write, block, 9), Ok(9), "block {block}");
        }
        drop((store, second));
        assert_eq!(check(device.as_ref(), true).unwrap().problems, [""; 0]);
        pool.delete(other).unwrap();
        store = pool.open(id, size).unwrap();
        for block in (7..full).step_by(5_000) {
            assert_eq!(run(store.as_mut(), Operation::Read, block, 0), Ok(round));
        }
        assert_eq!(run(store.as_mut(), Operation::Read, 8, 0), Ok(0));
    }
}

/// A data chunk that is overwritten and becomes log is still log after a crash, although the replay
/// of earlier records frees its blocks.
#[test]
fn a_chunk_that_was_data_and_is_log_is_not_data_again_after_a_crash() {
    const SMALL: std::ops::Range<u64> = 1_024..1_034;
    let layout = Layout { chunks_max: 120, ..LAYOUT };
    let (file, device) = device();
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let id = VolumeId::from_bits(7);
    let size = ByteCount(8 << 20);
    LocalPool::open(device, Bounds::default()).unwrap().create(id, size).unwrap();
    // Copies the device as after a kill -9: no volume is closed.
    let crashed = |file: &tempfile::NamedTempFile| {
        let image = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy(file.path(), image.path()).unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(image.path(), false).unwrap());
        let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
        let store = pool.open(id, size).unwrap();
        (image, device, pool, store)
    };
    let write = |store: &mut dyn Store, mib: u64, value: u8| {
        let mut buffer = Buffer::new(1 << 20);
        buffer.bytes_mut().fill(value);
        let ticket = 1;
        let operation = Operation::Write { fua: true };
        let offset = mib << 20;
        let buffer = Some(buffer);
        let write = Submission { ticket, operation, offset, length: 1 << 20, buffer };
        assert_eq!(conformance::blocking(store, write).result, Ok(()));
    };
    let (file, .., mut store) = crashed(&file);
    write(store.as_mut(), 0, 1);
    // The opening writes a checkpoint: the chunk is in use in it.
    let (file, .., mut store) = crashed(&file);
    write(store.as_mut(), 0, 2);
    // The log leaves three chunks behind, and continues in the chunk that was data.
    for value in 0..100 {
        for block in SMALL {
            let fua = Operation::Write { fua: true };
            assert_eq!(run(store.as_mut(), fua, block, value), Ok(value));
        }
    }
    let (file, .., mut store) = crashed(&file);
    (1..4).for_each(|mib| write(store.as_mut(), mib, 3));
    for block in SMALL {
        assert_eq!(run(store.as_mut(), Operation::Write { fua: true }, block, 200), Ok(200));
    }
    let (_file, device, _pool, mut store) = crashed(&file);
    for (block, value) in [(0, 2), (255, 2), (256, 3), (1_023, 3), (1_024, 200), (1_033, 200)] {
        assert_eq!(run(store.as_mut(), Operation::Read, block, 0), Ok(value), "block {block}");
    }
    assert_eq!(check(device.as_ref(), true).unwrap().problems, [""; 0]);
}
