//! Impossible numbers under valid checksums: a check and an opening report them, and end.

use super::super::inspect::inspect;
use super::super::simulated::SimulatedDevice;
use super::super::table::{SECTOR_BYTES, seal};
use super::super::volume::recover;
use super::*;
use evenkeel_core::random::Random;

const SIZE: ByteCount = ByteCount(8 << 20);
const VOLUME: VolumeId = VolumeId::from_bits(7);
const CLONE: VolumeId = VolumeId::from_bits(8);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(9);
const WRITE: Operation = Operation::Write { fua: true };

fn carry_out(device: &SimulatedDevice, store: &mut dyn Store, operation: Operation, block: u64) {
    let mut disk = Vec::new();
    let buffer = Some(Buffer::new(BLOCK_BYTES));
    let length = BLOCK_BYTES as u32;
    let offset = block * BLOCK_BYTES as u64;
    store.submit(Submission { ticket: 1, operation, offset, length, buffer }, &mut disk);
    while !disk.is_empty() {
        let done = recover::run(device, disk.remove(0));
        store.disk_done(done, &mut disk);
    }
    // The request may have failed, but it has ended.
    store.poll().unwrap();
}

fn open(device: &SimulatedDevice) -> Result<LocalPool, StoreError> {
    LocalPool::open(Arc::new(device.clone()), Bounds::default())
}

/// Creates a pool with a volume, a snapshot of it, and a volume that was made of that.
fn written() -> SimulatedDevice {
    let device = SimulatedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    let pool = open(&device).unwrap();
    pool.create(VOLUME, SIZE).unwrap();
    let blocks = |pool: &LocalPool, id: VolumeId, blocks: &[u64]| {
        let mut store = pool.open(id, SIZE).unwrap();
        blocks.iter().for_each(|block| carry_out(&device, store.as_mut(), WRITE, *block));
    };
    blocks(&pool, VOLUME, &[0, 1, 600, 1_500]);
    assert_eq!(pool.snapshot(VOLUME, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
    pool.create_from(CLONE, SIZE, SNAPSHOT).unwrap();
    blocks(&pool, VOLUME, &[1, 2, 3]);
    blocks(&pool, CLONE, &[1, 700]);
    drop(pool);
    assert_eq!(check(&device, true).unwrap().problems, Vec::<String>::new());
    device
}

/// Number of changes of a run without `EVENKEEL_FUZZ_CASES`.
const ROUNDS: u64 = 700;

/// Structure that is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Superblock,
    Node,
    Owners,
    Anchor,
    Log,
    MapPage,
    SpacePage,
}

const TARGETS: [Target; 7] = [
    Target::Superblock,
    Target::Node,
    Target::Owners,
    Target::Anchor,
    Target::Log,
    Target::MapPage,
    Target::SpacePage,
];

/// Changes a few numbers among those that are in use.
fn change(bytes: &mut [u8], random: &mut Random) {
    // Most structures begin with their most important fields.
    let meaning = if random.one_in(2) { bytes.len().min(100) } else { bytes.len() };
    for _ in 0..=random.below(2) {
        let width = random.among(&[1, 2, 4, 8]);
        let start = random.below((meaning / width) as u64) as usize * width;
        let any = (random.below(u64::from(u32::MAX)) << 32) | random.below(u64::from(u32::MAX));
        let edge = [0, 1, 2, 6, 7, 63, 255, 1 << 16, 1 << 31, u64::MAX, u64::MAX - 1, 1 << 63];
        let value = if random.one_in(4) { any } else { random.among(&edge) };
        bytes[start..start + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }
}

fn block(device: &SimulatedDevice, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(u64::from(block) * BLOCK_BYTES as u64, &mut bytes).unwrap();
    bytes
}

fn put(device: &SimulatedDevice, block: u32, bytes: &[u8]) {
    device.write(u64::from(block) * BLOCK_BYTES as u64, bytes).unwrap();
}

/// Returns the node with this number, and its newest anchor.
fn anchor(device: &SimulatedDevice, number: usize) -> (Node, Anchor) {
    let superblock = read_superblock(device).unwrap();
    let nodes = Image::read(device, superblock.node_table()).unwrap();
    let node = Node::decode(nodes.get(number).unwrap()).unwrap().unwrap();
    let home = node.home * CHUNK_BLOCKS;
    let copies = [block(device, home), block(device, home + 1)].concat();
    let identity = Identity { node: number as u32, generation: node.generation };
    (node, Anchor::newest(&copies, identity).unwrap())
}

/// Changes a structure in all of its copies, with valid checksums.
fn spoil(device: &SimulatedDevice, target: Target, random: &mut Random) {
    let superblock = read_superblock(device).unwrap();
    // Node 2 is the snapshot.
    let number = random.among(&[1, 3]);
    let (node, mut newest) = anchor(device, number);
    let both = |home: u32, bytes: &[u8]| (0..2).for_each(|copy| put(device, home + copy, bytes));
    let home = node.home * CHUNK_BLOCKS;
    match target {
        Target::Superblock => {
            let mut bytes = block(device, 0);
            change(&mut bytes[20..100], random);
            let sum = checksum(&bytes[20..512]);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
            both(0, &bytes);
        }
        Target::Node | Target::Owners => {
            let (chunks, number) = match target {
                Target::Node => (superblock.nodes, random.among(&[1, 2, 3, 4])),
                _ => (superblock.owners, 0),
            };
            let mut bytes = block(device, chunks[0] * CHUNK_BLOCKS);
            let sector = &mut bytes[number * SECTOR_BYTES..][..SECTOR_BYTES];
            change(&mut sector[8..], random);
            seal(number, sector);
            chunks.iter().for_each(|chunk| put(device, chunk * CHUNK_BLOCKS, &bytes));
        }
        Target::Anchor => {
            let mut bytes = newest.encode();
            change(&mut bytes[12..], random);
            let sum = checksum(&bytes[12..]);
            bytes[8..12].copy_from_slice(&sum.to_le_bytes());
            both(home, &bytes);
        }
        Target::Log => {
            let mut bytes = block(device, newest.log);
            change(&mut bytes[4..], random);
            let sum = checksum(&bytes[4..]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
            put(device, newest.log, &bytes);
        }
        Target::MapPage | Target::SpacePage => {
            let is_map = target == Target::MapPage;
            let root = if is_map { &mut newest.map.0 } else { &mut newest.space.0 };
            let mut bytes = block(device, root.block);
            change(&mut bytes, random);
            root.checksum = checksum(&bytes);
            let block = root.block;
            put(device, block, &bytes);
            both(home, &newest.encode());
        }
    }
}

/// Returns a copy of the disk.
fn copy(device: &SimulatedDevice) -> SimulatedDevice {
    device.sync().unwrap();
    device.crash(&mut Random::new(0, 0))
}

/// Uses a pool as far as possible. Returns an error if a part of it could not be opened.
fn used(device: &SimulatedDevice) -> Result<(), StoreError> {
    let pool = open(device)?;
    let mut ended = Ok(());
    for (id, size) in pool.list()? {
        match pool.open(id, size) {
            Ok(mut store) => {
                for block in (0..4).filter(|block| (block + 1) * 4_096 <= size.0) {
                    carry_out(device, store.as_mut(), Operation::Read, block);
                    carry_out(device, store.as_mut(), WRITE, block);
                }
            }
            // A check has no keys.
            Err(StoreError::Locked { .. }) => {}
            Err(error) => ended = Err(error),
        }
    }
    for info in pool.snapshots() {
        if let Ok(mut reader) = pool.read_snapshot(info.id) {
            let _ = reader.read(1);
        }
    }
    let _ = pool.delete_snapshot(SNAPSHOT);
    let _ = pool.delete(VOLUME);
    ended
}

#[test]
fn impossible_numbers_are_reported_without_a_panic() {
    let whole = written();
    let mut reported = 0;
    let mut refused = 0;
    let rounds = std::env::var("EVENKEEL_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    for seed in 0..rounds {
        let mut random = Random::new(seed, 5);
        let device = copy(&whole);
        let target = TARGETS[seed as usize % TARGETS.len()];
        spoil(&device, target, &mut random);
        let when = format!("seed {seed}, {target:?}");
        let spoilt = copy(&device);
        let found = std::panic::catch_unwind(|| {
            let _ = inspect(&device);
            check(&device, true)
        });
        let used = std::panic::catch_unwind(|| used(&spoilt));
        let (Ok(found), Ok(used)) = (found, used) else { panic!("{when}") };
        let is_told = found.as_ref().map_or(true, |report| report.problems_total > 0);
        reported += u32::from(is_told);
        refused += u32::from(used.is_err());
        assert!(is_told || used.is_ok(), "{when}: {used:?}, and the check finds nothing");
    }
    assert!(
        reported > refused && u64::from(refused) > rounds / 10,
        "{reported} told, {refused} refused"
    );
}
