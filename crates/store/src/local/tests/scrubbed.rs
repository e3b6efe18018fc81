//! A scrub reads a pool's metadata, and rewrites damaged parts from memory.

use super::super::format::Superblock;
use super::super::pool::CHUNK_BYTES;
use super::super::simulated::SimulatedDevice;
use super::crashed::{DURABLE, Held, ID, SIZE, WRITE, empty, open, prove, read};
use super::unfinished::anchors_of;
use super::*;
use evenkeel_core::random::Random;

/// No place.
const NOTHING: [u64; 0] = [];

/// Runs a whole scrub. Returns the bytes that were read, and the damaged places.
fn look(pool: &LocalPool) -> (u64, Vec<u64>) {
    let mut next = Some(0);
    let mut bytes = 0;
    let mut rotten = Vec::new();
    while let Some(place) = next {
        let looked = pool.look_at(place).unwrap();
        (next, bytes) = (looked.next, bytes + looked.bytes);
        rotten.extend(looked.rotten);
    }
    (bytes, rotten)
}

/// Writes data to three leaves of the map; the last changes are in the log.
fn fill(store: &mut dyn Store, held: &mut Held, value: u8) {
    for block in [0, 600, 1_000] {
        held.carry_out(store, (DURABLE, block, value));
    }
}

fn attend(store: &mut dyn Store, held: &mut Held) {
    store.attend(held);
    while !held.ops.is_empty() {
        held.answer(store, 0);
    }
}

/// A place that rots, in a pool with one open volume.
#[derive(Clone, Copy, Debug)]
enum Spoiled {
    Superblock(u64),
    Nodes(usize),
    Owners(usize),
    Anchor(usize),
    Anchors,
    Log(u64),
    SpaceRoot,
    MapRoot,
    MapLeaf,
}

fn anchor(device: &SimulatedDevice) -> Anchor {
    let mut copies = vec![0; 2 * BLOCK_BYTES];
    device.read(anchors_of(device, 1)[0], &mut copies).unwrap();
    let generation = u64::from_le_bytes(copies[16..24].try_into().unwrap());
    Anchor::newest(&copies, Identity { node: 1, generation }).unwrap()
}

fn entry(device: &SimulatedDevice, page: u32, at: usize) -> u32 {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(u64::from(page) * BLOCK_BYTES as u64, &mut bytes).unwrap();
    Pointer::from_bits(u64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap())).block
}

fn places(device: &SimulatedDevice, spoiled: Spoiled) -> Vec<u64> {
    let superblock = read_superblock(device).unwrap();
    let anchor = anchor(device);
    let block = |block: u32| vec![u64::from(block) * BLOCK_BYTES as u64];
    match spoiled {
        Spoiled::Superblock(copy) => vec![copy * BLOCK_BYTES as u64],
        Spoiled::Nodes(copy) => vec![u64::from(superblock.nodes[copy]) * CHUNK_BYTES],
        Spoiled::Owners(copy) => vec![u64::from(superblock.owners[copy]) * CHUNK_BYTES],
        Spoiled::Anchor(copy) => vec![anchors_of(device, 1)[copy]],
        Spoiled::Anchors => anchors_of(device, 1),
        Spoiled::Log(nth) => vec![(u64::from(anchor.log) + nth) * BLOCK_BYTES as u64],
        Spoiled::SpaceRoot => block(anchor.space.0.block),
        Spoiled::MapRoot => block(anchor.map.0.block),
        Spoiled::MapLeaf => block(entry(device, anchor.map.0.block, 1)),
    }
}

#[test]
fn scrub_restores_structures_that_are_in_memory() {
    let all = [
        [0, 1].map(Spoiled::Superblock).as_slice(),
        &[0, 1].map(Spoiled::Nodes),
        &[0, 1].map(Spoiled::Owners),
        &[0, 1].map(Spoiled::Anchor),
        &[0, 1, 2].map(Spoiled::Log),
        &[Spoiled::Anchors, Spoiled::SpaceRoot, Spoiled::MapRoot, Spoiled::MapLeaf],
    ]
    .concat();
    for spoiled in all {
        let device = empty();
        let pool = open(&device).unwrap();
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        let mut held = Held::new(&device);
        fill(store.as_mut(), &mut held, 1);
        assert!(pool.snapshot(ID, SnapshotId::from_bits(8)).unwrap().is_open);
        attend(store.as_mut(), &mut held);
        pool.delete_snapshot(SnapshotId::from_bits(8)).unwrap();
        attend(store.as_mut(), &mut held);
        fill(store.as_mut(), &mut held, 2);
        device.sync().unwrap();
        let when = format!("{spoiled:?}");
        let (bytes, rotten) = look(&pool);
        assert_eq!(rotten, NOTHING, "{when}");
        assert!(bytes > 10 * BLOCK_BYTES as u64, "{when}: {bytes}");
        let spoiled = places(&device, spoiled);
        let places_spoiled = spoiled.len() as u64;
        spoiled.iter().for_each(|place| device.rot(place + 60));
        let found = look(&pool).1;
        let is_found = |place: &u64| found.contains(place) || when.starts_with("Log");
        assert!(
            !found.is_empty() && spoiled.iter().all(is_found),
            "{when}: {found:?}, not {spoiled:?}"
        );
        attend(store.as_mut(), &mut held);
        assert_eq!(look(&pool).1, NOTHING, "{when}");
        // Log blocks and pages of trees have only one copy.
        let has_copies =
            ["Log", "SpaceRoot", "MapRoot", "MapLeaf"].iter().all(|kind| !when.starts_with(kind));
        let copies = if has_copies { places_spoiled } else { 0 };
        assert_eq!(pool.health().copies_mended, copies, "{when}");
        // The power fails without a loss.
        let device = device.crash(&mut Random::new(1, 1));
        let pool = open(&device).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        for block in [0, 600, 1_000] {
            assert_eq!(read(store.as_mut(), &device, block), 2, "{when}, block {block}");
        }
        drop((store, pool));
        prove(&device, &when);
    }
}

/// A write has not reached such a copy, and the copy would be used if the other one is lost.
#[test]
fn a_copy_that_is_whole_and_older_is_written_anew() {
    for copy in [0, 1] {
        let device = empty();
        let pool = open(&device).unwrap();
        let superblock = read_superblock(&device).unwrap();
        let tables = [superblock.nodes[copy], superblock.owners[copy]];
        let mut places = tables.map(|chunk| u64::from(chunk) * CHUNK_BYTES).to_vec();
        let block = |at: u64| {
            let mut bytes = vec![0; BLOCK_BYTES];
            device.read(at, &mut bytes).unwrap();
            bytes
        };
        let mut older: Vec<_> = places.iter().map(|place| block(*place)).collect();
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        fill(store.as_mut(), &mut Held::new(&device), 1);
        assert_eq!(look(&pool).1, NOTHING);
        let of_superblock = copy as u64 * BLOCK_BYTES as u64;
        places.insert(0, of_superblock);
        older.insert(0, Superblock { chunks: superblock.chunks - 1, ..superblock }.encode());
        for (at, older) in places.iter().zip(&older) {
            assert_ne!(block(*at), *older, "copy {copy}: nothing has changed at {at}");
            device.write(*at, older).unwrap();
        }
        assert_eq!(look(&pool).1, places, "copy {copy}");
        assert_eq!(pool.health().copies_mended, places.len() as u64, "copy {copy}");
        assert_eq!(look(&pool).1, NOTHING, "copy {copy}");
    }
}

#[test]
fn scrub_reports_rot_that_memory_cannot_restore() {
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let snapshot = SnapshotId::from_bits(8);
    let mut store = pool.open(ID, SIZE).unwrap();
    fill(store.as_mut(), &mut Held::new(&device), 1);
    drop(store);
    assert!(pool.snapshot(ID, snapshot).unwrap().made.recv().unwrap());
    let root = anchor(&device).map.0.block;
    let copy = anchors_of(&device, 1)[0];
    device.rot(copy + 60);
    // The volume is closed: the first copy is rewritten from the second one.
    assert_eq!(look(&pool).1, [copy]);
    assert_eq!(look(&pool).1, NOTHING);
    assert_eq!(pool.health().copies_mended, 1);
    device.rot(u64::from(root) * BLOCK_BYTES as u64);
    // Once for the snapshot, once for the volume.
    for _ in 0..2 {
        assert_eq!(look(&pool).1, [u64::from(root) * BLOCK_BYTES as u64; 2]);
    }
}

/// A volume is scrubbed while it is written to and checkpoints are made.
#[test]
fn scrub_does_not_report_concurrent_changes_as_rot() {
    for seed in 0..20 {
        let mut random = Random::new(seed, 9);
        let device = empty();
        let bounds = Bounds { log_blocks: 3, dirty_pages: 2, map_pages: 2, ..Bounds::default() };
        let pool = LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
        pool.create(ID, SIZE).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        let mut held = Held::new(&device);
        let mut next = 0;
        for step in 0..600_u64 {
            let operation = if random.one_in(3) { DURABLE } else { WRITE };
            if held.ops.len() < 8 {
                held.begin(store.as_mut(), operation, random.below(1_024), step as u8);
            }
            for _ in 0..random.below(4) {
                if !held.ops.is_empty() {
                    let number = random.below(held.ops.len() as u64) as usize;
                    held.answer(store.as_mut(), number);
                }
            }
            while store.poll().is_some() {}
            let looked = pool.look_at(next).unwrap();
            assert_eq!(looked.rotten, NOTHING, "seed {seed}, step {step}, place {next:#x}");
            next = looked.next.unwrap_or(0);
        }
    }
}
