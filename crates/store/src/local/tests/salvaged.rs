//! Salvage of volumes with damaged logs: random histories that lose log blocks.

#[path = "../../../tests/seeds/mod.rs"]
mod seeds;

use self::seeds::seeds;
use super::super::format::Record;
use super::super::simulated::SimulatedDevice;
use super::super::volume::recover::{LogBlock, read_log};
use super::crashed::Held;
use super::*;
use crate::Salvaged;
use evenkeel_core::random::Random;
use std::collections::{BTreeMap, BTreeSet};

const ID: VolumeId = VolumeId::from_bits(7);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(8);
const SIZE: ByteCount = ByteCount(8 << 20);
/// Number of seeds of a plain run.
const SEEDS: u64 = 60;

/// A volume, and all values that each of its blocks had; 0 is a hole.
struct History {
    device: SimulatedDevice,
    random: Random,
    values: BTreeMap<u64, Vec<u8>>,
}

impl History {
    fn new(device: &SimulatedDevice, seed: u64) -> Self {
        Self { device: device.clone(), random: Random::new(seed, 0), values: BTreeMap::new() }
    }

    /// Returns a random block of one of three leaves of the map.
    fn a_block(&mut self) -> u64 {
        600 * self.random.below(3) + self.random.below(150)
    }

    fn carry_on(&mut self, store: &mut dyn Store, steps: u64) {
        for _ in 0..steps {
            let block = self.a_block();
            let value = 1 + self.random.below(255) as u8;
            let (operation, value) = match self.random.below(20) {
                0 => (Operation::Flush, None),
                1..4 => (Operation::Discard { fua: false }, Some(0)),
                4..12 => (Operation::Write { fua: false }, Some(value)),
                _ => (Operation::Write { fua: true }, Some(value)),
            };
            self.run(store, operation, block, value.unwrap_or(0)).unwrap();
            if let Some(value) = value {
                self.values.entry(block).or_default().push(value);
            }
        }
        self.run(store, Operation::Flush, 0, 0).unwrap();
    }

    fn run(
        &self,
        store: &mut dyn Store,
        operation: Operation,
        block: u64,
        value: u8,
    ) -> Result<u8, Failure> {
        Held::new(&self.device).try_out(store, (operation, block, value))
    }

    /// Reads all blocks, and checks that those that have lost no change have their newest value.
    /// Returns the blocks that cannot be read.
    fn compare(&mut self, store: &mut dyn Store, lost: &BTreeSet<u64>) -> BTreeSet<u64> {
        let mut unreadable = BTreeSet::new();
        for (block, values) in self.values.clone() {
            match self.run(store, Operation::Read, block, 0) {
                Ok(value) if lost.contains(&block) => {
                    assert!(value == 0 || values.contains(&value), "block {block}: {value}");
                    self.values.entry(block).or_default().push(value);
                }
                Ok(value) => assert_eq!(Some(&value), values.last(), "block {block}"),
                Err(failure) => {
                    let is_lost = failure == Failure::Rotten && lost.contains(&block);
                    assert!(is_lost, "block {block}: {failure:?}");
                    unreadable.insert(block);
                }
            }
        }
        unreadable
    }

    fn newest(&self) -> BTreeMap<u64, u8> {
        let last = |(block, values): (&u64, &Vec<u8>)| (*block, *values.last().unwrap());
        self.values.iter().map(last).collect()
    }
}

fn simulated() -> SimulatedDevice {
    SimulatedDevice::new(u64::from(LAYOUT.chunks_max) << 20)
}

fn shared(device: &SimulatedDevice) -> Arc<dyn Device> {
    Arc::new(device.clone())
}

fn opened(device: &SimulatedDevice) -> LocalPool {
    LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap()
}

/// Returns the log blocks of the volume, and their places.
fn log_of(device: &SimulatedDevice) -> Vec<(u32, LogBlock)> {
    let (_, anchor) = anchor_of(&shared(device));
    let owned: Vec<u32> = (0..LAYOUT.chunks_max).collect();
    let (blocks, _) = read_log(device, &anchor, &owned).unwrap().unwrap();
    let mut next = anchor.log;
    let place = |block: LogBlock| {
        let here = next;
        next = block.head.next;
        (here, block)
    };
    blocks.into_iter().map(place).collect()
}

/// Returns the blocks of the volume that a log block changes.
fn named(block: &LogBlock) -> BTreeSet<u64> {
    let blocks = |record: &Record| match record {
        Record::Map { first, checksums, .. } => *first..first + checksums.len() as u64,
        Record::Unmap { first, count } => *first..first + u64::from(*count),
        Record::Snapshot { .. } => 0..0,
    };
    block.records.iter().flat_map(blocks).collect()
}

/// Damages one to three consecutive log blocks that have another one behind them. Returns the
/// blocks of the volume whose last change was in them, and the number of damaged blocks.
fn damage(device: &SimulatedDevice, random: &mut Random) -> (BTreeSet<u64>, u64) {
    let log = log_of(device);
    let count = 1 + random.below(3) as usize;
    let first = random.below((log.len() - count - 1) as u64) as usize;
    // An opening does not look behind a damaged beginning of a chunk.
    let chunk = log[first].0 / CHUNK_BLOCKS;
    let is_near = |(at, _): &&(u32, LogBlock)| at / CHUNK_BLOCKS == chunk;
    let lost: Vec<_> = log[first..first + count].iter().take_while(is_near).collect();
    for (at, _) in &lost {
        let mut bytes = block_of(&shared(device), *at);
        bytes[random.below(200) as usize] ^= 1;
        put(&shared(device), *at, &bytes);
    }
    let mut blocks: BTreeSet<u64> = lost.iter().flat_map(|(_, block)| named(block)).collect();
    for (_, later) in &log[first + lost.len()..] {
        named(later).iter().for_each(|block| _ = blocks.remove(block));
    }
    (blocks, lost.len() as u64)
}

#[test]
fn a_salvaged_volume_has_lost_no_more_than_the_damaged_log_blocks_changed() {
    let mut total = Salvaged::default();
    for seed in seeds(SEEDS) {
        let device = simulated();
        LocalPool::init(&device, &LAYOUT).unwrap();
        let pool = opened(&device);
        pool.create(ID, SIZE).unwrap();
        let mut history = History::new(&device, seed);
        let mut store = pool.open(ID, SIZE).unwrap();
        history.carry_on(store.as_mut(), 300);
        drop(store);
        // Data of a snapshot is never lost.
        let mut of_snapshot = BTreeMap::new();
        if seed % 2 == 0 {
            assert_eq!(pool.snapshot(ID, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
            of_snapshot = history.newest();
        }
        let mut store = pool.open(ID, SIZE).unwrap();
        let steps = 20 + history.random.below(800);
        history.carry_on(store.as_mut(), steps);
        let device = device.crash(&mut history.random);
        history.device = device.clone();
        let (lost, count) = damage(&device, &mut history.random);

        let pool = opened(&device);
        let refusal = pool.open(ID, SIZE).map(drop).unwrap_err().to_string();
        assert!(refusal.contains("the log of vol-"), "seed {seed}: {refusal}");
        let salvaged = pool.salvage(ID).unwrap();
        assert_eq!(salvaged.log_blocks, count, "seed {seed}");
        assert_eq!((salvaged.map_pages, salvaged.unreachable_blocks), (0, 0), "seed {seed}");
        total.lost_blocks += salvaged.lost_blocks;

        let mut store = pool.open(ID, SIZE).unwrap();
        let unreadable = history.compare(store.as_mut(), &lost);
        // Places that were taken and freed again do not match their checksums either.
        assert!(unreadable.len() as u64 >= salvaged.lost_blocks, "seed {seed}");

        // New writes do not overwrite blocks that were read.
        let before: BTreeMap<u64, usize> =
            history.values.iter().map(|(block, values)| (*block, values.len())).collect();
        history.carry_on(store.as_mut(), 600);
        drop(store);
        let mut store = pool.open(ID, SIZE).unwrap();
        for (block, value) in history.newest() {
            let is_unwritten = before.get(&block) == Some(&history.values[&block].len());
            let expected = if unreadable.contains(&block) && is_unwritten {
                Err(Failure::Rotten)
            } else {
                Ok(value)
            };
            let read = history.run(store.as_mut(), Operation::Read, block, 0);
            assert_eq!(read, expected, "seed {seed}, {block}");
        }
        for (block, value) in of_snapshot {
            let mut reader = pool.read_snapshot(SNAPSHOT).unwrap();
            let read = reader.read(block).unwrap().map_or(0, |data| data[0]);
            assert_eq!(read, value, "seed {seed}, {block} of the snapshot");
        }
        drop((store, pool));
        let report = check(&device, false).unwrap();
        assert_eq!((report.problems, report.leaked), (vec![], 0), "seed {seed}");
    }
    assert!(seeds(SEEDS).len() == 1 || total.lost_blocks > 0, "no place was taken again");
}

/// Blocks that fill a chunk of the pool, and the only one of them that is not discarded.
const TOGETHER: std::ops::Range<u64> = 512..512 + CHUNK_BLOCKS as u64;
const MOVED: u64 = TOGETHER.start;

/// Fills a chunk with data, and frees all of it: the first block moves to another place, and the
/// others are discarded. Then the log enters that chunk. The log block with the new place of the
/// first block is damaged. `is_in_map` is whether a checkpoint has the chunk, or only the log.
/// Returns the disk after a power failure.
fn log_in_a_chunk_that_had_data(is_in_map: bool) -> SimulatedDevice {
    let device = simulated();
    LocalPool::init(&device, &LAYOUT).unwrap();
    let pool = opened(&device);
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(&device);
    // The blocks behind the chunk prevent another one from being filled later.
    let length = (CHUNK_BLOCKS as usize + 16) * BLOCK_BYTES;
    let mut buffer = Buffer::new(length);
    buffer.bytes_mut().fill(1);
    let operation = Operation::Write { fua: true };
    let offset = MOVED * BLOCK_BYTES as u64;
    let length = length as u32;
    let write = Submission { ticket: 1, operation, offset, length, buffer: Some(buffer) };
    store.submit(write, &mut held);
    while !held.ops.is_empty() {
        held.answer(store.as_mut(), 0);
    }
    assert_eq!(store.poll().unwrap().result, Ok(()));
    if is_in_map {
        drop(store);
        store = pool.open(ID, SIZE).unwrap();
    }
    let durable = Operation::Write { fua: true };
    held.carry_out(store.as_mut(), (durable, MOVED, 2));
    for block in TOGETHER.skip(1) {
        held.carry_out(store.as_mut(), (Operation::Discard { fua: true }, block, 0));
    }
    for value in 0..1_000 {
        held.carry_out(store.as_mut(), (durable, 0, value as u8));
    }
    let device = device.crash(&mut Random::new(1, 1));
    let log = log_of(&device);
    let is_of_moved = |(_, block): &(u32, LogBlock)| named(block) == BTreeSet::from([MOVED]);
    let (at, _) = log.into_iter().rfind(is_of_moved).unwrap();
    let mut bytes = block_of(&shared(&device), at);
    bytes[100] ^= 1;
    put(&shared(&device), at, &bytes);
    device
}

/// A chunk that the log has entered was free as a whole. A block of the volume that was there
/// before, by the map or by an earlier change, has lost its place.
#[test]
fn a_block_in_a_chunk_that_the_log_has_entered_since_is_lost() {
    for is_in_map in [false, true] {
        let when = format!("a checkpoint knows of the chunk: {is_in_map}");
        let device = log_in_a_chunk_that_had_data(is_in_map);
        let pool = opened(&device);
        let salvaged = pool.salvage(ID).unwrap();
        assert_eq!((salvaged.log_blocks, salvaged.lost_blocks), (1, 1), "{when}");
        let mut store = pool.open(ID, SIZE).unwrap();
        let mut held = Held::new(&device);
        let lost = held.try_out(store.as_mut(), (Operation::Read, MOVED, 0));
        assert_eq!(lost, Err(Failure::Rotten), "{when}");
        let durable = Operation::Write { fua: true };
        held.carry_out(store.as_mut(), (durable, MOVED, 3));
        for block in 0..1_500 {
            held.carry_out(store.as_mut(), (durable, block % 400, 4));
        }
        assert_eq!(held.carry_out(store.as_mut(), (Operation::Read, MOVED, 0)), 3, "{when}");
        drop((store, pool));
        let report = check(&device, true).unwrap();
        assert_eq!((report.problems, report.leaked), (vec![], 0), "{when}");
    }
}
