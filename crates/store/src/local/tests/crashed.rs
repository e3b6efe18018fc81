//! Known sequences that a power failure interrupts: orders of writes that are rare in the histories
//! of `tests/crashes.rs` and `tests/snapshots.rs`.

use super::super::format::LogHead;
use super::super::page_cache_file::Lasting;
use super::super::simulated::{SimulatedDevice, SimulatedLasting};
use super::super::volume::recover;
use super::*;
use crate::Completion;
use crate::disk::{Disk, DiskAction, DiskOp};
use evenkeel_core::random::Random;

pub(super) const ID: VolumeId = VolumeId::from_bits(7);
pub(super) const SIZE: ByteCount = ByteCount(4 << 20);
pub(super) const WRITE: Operation = Operation::Write { fua: false };
pub(super) const DURABLE: Operation = Operation::Write { fua: true };

/// Creates an empty pool.
pub(super) fn empty() -> SimulatedDevice {
    let device = SimulatedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    device
}

pub(super) fn open(device: &SimulatedDevice) -> Result<LocalPool, StoreError> {
    LocalPool::open(Arc::new(device.clone()), Bounds::default())
}

/// Operations that wait until the test answers them; a write has its effect then.
pub(super) struct Held {
    device: SimulatedDevice,
    pub ops: Vec<DiskOp>,
}

impl Disk for Held {
    fn submit(&mut self, op: DiskOp) {
        self.ops.push(op);
    }
}

impl Held {
    pub fn new(device: &SimulatedDevice) -> Self {
        Self { device: device.clone(), ops: Vec::new() }
    }

    pub fn begin(&mut self, store: &mut dyn Store, operation: Operation, block: u64, value: u8) {
        let length = if operation == Operation::Flush { 0 } else { BLOCK_BYTES as u32 };
        let mut buffer = (length > 0).then(|| Buffer::new(BLOCK_BYTES));
        buffer.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(value));
        let offset = block * u64::from(length);
        store.submit(Submission { ticket: 1, operation, offset, length, buffer }, self);
    }

    /// Answers the operation at this position.
    pub fn answer(&mut self, store: &mut dyn Store, at: usize) {
        let done = recover::run(&self.device, self.ops.remove(at));
        store.disk_done(done, self);
    }

    /// Executes a request while the first `held` operations keep waiting.
    pub fn beside(
        &mut self,
        store: &mut dyn Store,
        held: usize,
        (operation, block, value): (Operation, u64, u8),
    ) -> Completion {
        self.begin(store, operation, block, value);
        loop {
            if let Some(done) = store.poll() {
                return done;
            }
            self.answer(store, held);
        }
    }

    /// Executes a request, and the operations that follow from it. Returns the first byte of a
    /// read.
    pub fn carry_out(&mut self, store: &mut dyn Store, request: (Operation, u64, u8)) -> u8 {
        match self.try_out(store, request) {
            Ok(value) => value,
            Err(failure) => panic!("{request:?}: {failure:?}"),
        }
    }

    /// Executes a request that may fail, as [`Self::carry_out`].
    pub fn try_out(
        &mut self,
        store: &mut dyn Store,
        request: (Operation, u64, u8),
    ) -> Result<u8, Failure> {
        let done = self.beside(store, 0, request);
        while !self.ops.is_empty() {
            self.answer(store, 0);
        }
        done.result.map(|()| done.buffer.map_or(0, |buffer| buffer.bytes()[0]))
    }
}

pub(super) fn read(store: &mut dyn Store, device: &SimulatedDevice, block: u64) -> u8 {
    Held::new(device).carry_out(store, (Operation::Read, block, 0))
}

/// Checks all references, counts and checksums of the pool.
pub(super) fn prove(device: &SimulatedDevice, when: &str) {
    let report = check(device, true).unwrap();
    assert_eq!((report.leaked, &report.problems), (0, &Vec::new()), "{when}");
}

/// Returns the headers and places of a volume's log blocks, in order.
fn log_of(device: &SimulatedDevice, identity: Identity) -> Vec<(LogHead, u32)> {
    let mut found = Vec::new();
    let mut bytes = vec![0; BLOCK_BYTES];
    for block in 0..(64 << 20) / BLOCK_BYTES as u32 {
        device.read(u64::from(block) * BLOCK_BYTES as u64, &mut bytes).unwrap();
        found.extend(LogHead::decode(&bytes, identity).map(|head| (head, block)));
    }
    found.sort_unstable_by_key(|(head, _)| head.sequence);
    found
}

/// Changes the header of a log block.
fn put_head(device: &SimulatedDevice, block: u32, head: &LogHead) {
    let mut bytes = vec![0; BLOCK_BYTES];
    let offset = u64::from(block) * BLOCK_BYTES as u64;
    device.read(offset, &mut bytes).unwrap();
    head.encode(&mut bytes);
    device.write(offset, &bytes).unwrap();
    device.sync().unwrap();
}

/// A rotten log block is noticed, even the last one of a chunk; but not the last one of the log,
/// which no other block confirms. Earlier versions did not name the next chunk.
#[test]
fn the_log_does_not_end_where_a_chunk_of_it_ends() {
    const WRITES: u64 = 600;
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(&device);
    for number in 0..WRITES {
        held.carry_out(store.as_mut(), (DURABLE, number % 900, 1 + (number % 250) as u8));
    }
    let killed = device.crash(&mut Random::new(0, 0));
    let (_, anchor) = anchor_of(&(Arc::new(killed.clone()) as Arc<dyn Device>));
    let log = log_of(&killed, anchor.identity);
    assert_eq!(log.len() as u64, WRITES);
    for is_old in [false, true] {
        for (nth, (_, block)) in log.iter().enumerate() {
            let left = CHUNK_BLOCKS - block % CHUNK_BLOCKS;
            let is_last = nth + 1 == log.len();
            if left > 2 && nth % 97 != 0 && !is_last {
                continue;
            }
            let damaged = killed.crash(&mut Random::new(0, 0));
            for (head, block) in log.iter().filter(|_| is_old) {
                put_head(&damaged, *block, &LogHead { following: 0, ..*head });
            }
            damaged.rot(u64::from(*block) * BLOCK_BYTES as u64 + 100);
            let opened = open(&damaged).unwrap().open(ID, SIZE).map(drop);
            let report = check(&killed, false).unwrap();
            assert_eq!(report.problems, [""; 0]);
            match opened {
                Ok(()) => assert!(is_last, "old {is_old}: block {nth} of the log"),
                Err(error) => {
                    assert!(error.to_string().contains("the log of vol-"), "{error}");
                    assert!(check(&damaged, false).unwrap().problems_total > 0);
                }
            }
        }
    }
    // A volume that rests confirms its last flush.
    store.rest(&mut held);
    while !held.ops.is_empty() {
        held.answer(store.as_mut(), 0);
    }
    device.sync().unwrap();
    let rested = device.crash(&mut Random::new(0, 0));
    rested.rot(u64::from(log[log.len() - 1].1) * BLOCK_BYTES as u64 + 100);
    let error = open(&rested).unwrap().open(ID, SIZE).map(drop).unwrap_err().to_string();
    assert!(error.contains("the log of vol-"), "{error}");
    // A clean stop leaves the log empty.
    drop(store);
    let stopped = device.crash(&mut Random::new(0, 0));
    for (_, block) in &log {
        stopped.rot(u64::from(*block) * BLOCK_BYTES as u64 + 100);
    }
    let pool = open(&stopped).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    for number in 0..WRITES {
        let found = read(store.as_mut(), &stopped, number);
        assert_eq!(found, 1 + (number % 250) as u8, "block {number}");
    }
}

/// The log enters the chunk that a log block has named as the next one, even after a restart that
/// finds another chunk free. If the last block of its chunk rots, that is reported.
#[test]
fn a_log_enters_the_chunk_that_it_has_named_before_a_restart() {
    const LARGE: u32 = 256 * BLOCK_BYTES as u32;
    let last_of = |device: &SimulatedDevice| {
        let device: Arc<dyn Device> = Arc::new(device.clone());
        anchor_of(&device).1.identity
    };
    let killed = |device: &SimulatedDevice| device.crash(&mut Random::new(0, 0));
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(&device);
    held.carry_out(store.as_mut(), (DURABLE, 0, 1));
    // A chunk of data, before all chunks that the log takes after the first two.
    let operation = DURABLE;
    let offset = 512 * BLOCK_BYTES as u64;
    let buffer = Some(Buffer::new(LARGE as usize));
    let large = Submission { ticket: 1, operation, offset, length: LARGE, buffer };
    store.submit(large, &mut held);
    while !held.ops.is_empty() {
        held.answer(store.as_mut(), 0);
    }
    assert_eq!(store.poll().unwrap().result, Ok(()));
    let identity = last_of(&device);
    let left = |device: &SimulatedDevice| {
        let log = log_of(device, identity);
        CHUNK_BLOCKS - log[log.len() - 1].1 % CHUNK_BLOCKS
    };
    (0..600).for_each(|_| _ = held.carry_out(store.as_mut(), (DURABLE, 1, 2)));
    // Each takes a block of the log.
    for _ in 4..left(&device) {
        held.carry_out(store.as_mut(), (DURABLE, 1, 2));
    }
    assert_eq!(left(&device), 4);
    // The data is discarded, and the volume rests: the last but one block of the chunk confirms
    // that.
    let discard = Operation::Discard { fua: true };
    let clear = Submission { ticket: 1, operation: discard, offset, length: LARGE, buffer: None };
    store.submit(clear, &mut held);
    while !held.ops.is_empty() {
        held.answer(store.as_mut(), 0);
    }
    assert_eq!(store.poll().unwrap().result, Ok(()));
    store.rest(&mut held);
    while !held.ops.is_empty() {
        held.answer(store.as_mut(), 0);
    }
    device.sync().unwrap();
    assert_eq!(left(&device), 2);
    let device = killed(&device);
    let pool = open(&device).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(&device);
    (0..4).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, 3)));
    let device = killed(&device);
    let log = log_of(&device, identity);
    let (_, block) = log[log.len() - 4];
    assert_eq!(block % CHUNK_BLOCKS, CHUNK_BLOCKS - 1, "the last one of its chunk");
    device.rot(u64::from(block) * BLOCK_BYTES as u64 + 100);
    let error = open(&device).unwrap().open(ID, SIZE).map(drop).unwrap_err().to_string();
    assert!(error.contains("the log of vol-"), "{error}");
}

/// Replaced blocks keep their contents until the end of the flush that makes the write durable: no
/// other data goes there, not even while the flush is under way.
#[test]
fn replaced_blocks_are_used_for_nothing_else_while_the_flush_is_under_way() {
    const BLOCKS: u64 = 4;
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let store = store.as_mut();
    let mut held = Held::new(&device);
    (0..BLOCKS).for_each(|block| _ = held.carry_out(store, (WRITE, block, 1)));
    held.carry_out(store, (Operation::Flush, 0, 0));
    (0..BLOCKS).for_each(|block| _ = held.carry_out(store, (WRITE, block, 2)));
    held.begin(store, Operation::Flush, 0, 0);
    while let Some(at) = held.ops.iter().position(|op| op.action != DiskAction::Sync) {
        held.answer(store, at);
    }
    assert_eq!(held.ops.len(), 1, "the flush is under way");
    for block in BLOCKS..4 * BLOCKS {
        assert_eq!(held.beside(store, 1, (WRITE, block, 3)).result, Ok(()), "block {block}");
    }
    let mut lost = 0;
    for seed in 0..100 {
        let after = device.crash(&mut Random::new(seed, 0));
        let pool = open(&after).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        for block in 0..BLOCKS {
            let found = read(store.as_mut(), &after, block);
            assert!([1, 2].contains(&found), "seed {seed}: block {block} holds {found}");
            lost += u32::from(found == 1);
        }
    }
    assert!(lost > 20, "{lost} times the log has not reached the disk");
}

/// Chunks of a deleted volume have no owner. A volume that gets its node later does not get them,
/// even if the pool was closed between, or the power failed.
#[test]
fn a_volume_does_not_inherit_chunks_of_the_one_that_had_its_node() {
    let ids = [1, 2, 3, 4].map(VolumeId::from_bits);
    // The first one has enough chunks that the second one's are behind all those of the two later
    // ones.
    let sizes = [(ids[0], 1_900), (ids[1], 20)];
    let mut was_cut = true;
    for power in 0.. {
        if !was_cut {
            return assert!(power > 8, "{power} writes and flushes");
        }
        let device = empty();
        let pool = open(&device).unwrap();
        for (id, blocks) in sizes {
            pool.create(id, SIZE).unwrap();
            let mut store = pool.open(id, SIZE).unwrap();
            let mut held = Held::new(&device);
            (0..blocks).for_each(|block| _ = held.carry_out(store.as_mut(), (WRITE, block, 1)));
        }
        device.cut_power_after(power);
        for (id, _) in sizes {
            let _ = pool.delete(id);
        }
        was_cut = device.is_dark();
        drop(pool);
        let device = device.crash(&mut Random::new(power, 0));
        let pool = open(&device).unwrap();
        for (id, _) in pool.list().unwrap() {
            pool.delete(id).unwrap();
        }
        drop(pool);
        let pool = open(&device).unwrap();
        for id in &ids[2..] {
            pool.create(*id, SIZE).unwrap();
            let mut store = pool.open(*id, SIZE).unwrap();
            Held::new(&device).carry_out(store.as_mut(), (DURABLE, 0, id.bits() as u8));
        }
        drop(pool);
        let when = format!("the power fails after {power}");
        prove(&device, &when);
        let pool = open(&device).unwrap();
        for id in &ids[2..] {
            let opened = pool.open(*id, SIZE);
            let mut store = opened.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_eq!(read(store.as_mut(), &device, 0), id.bits() as u8, "{when}");
        }
    }
}

/// An opening that finds a snapshot in the log writes an anchor for it, and then replays the rest
/// of the log. If the power fails between, the next opening finds the rest of the log behind that
/// anchor.
#[test]
fn log_behind_a_snapshot_survives_a_crash_during_an_opening() {
    let snapshot = SnapshotId::from_bits(8);
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let store = store.as_mut();
    let mut held = Held::new(&device);
    held.carry_out(store, (DURABLE, 0, 1));
    let making = pool.snapshot(ID, snapshot).unwrap();
    store.attend(&mut held);
    while making.made.try_recv() != Ok(true) {
        held.answer(store, 0);
    }
    // The snapshot is in the log now. The pages of the snapshot wait, and a write does not.
    let pages = held.ops.len();
    assert!(pages > 0, "a checkpoint is under way");
    assert_eq!(held.beside(store, pages, (DURABLE, 0, 2)).result, Ok(()));
    let device = device.crash(&mut Random::new(0, 0));
    let mut was_cut = true;
    for power in 0.. {
        if !was_cut {
            return assert!(power > 8, "{power} writes and flushes");
        }
        for seed in 0..10 {
            let device = device.crash(&mut Random::new(seed, 0));
            device.cut_power_after(power);
            let _ = open(&device).map(|pool| pool.open(ID, SIZE).map(drop));
            was_cut = device.is_dark();
            let device = device.crash(&mut Random::new(seed, 1));
            let pool = open(&device).unwrap();
            let mut store = pool.open(ID, SIZE).unwrap();
            let when = format!("the power fails after {power}, seed {seed}");
            assert_eq!(read(store.as_mut(), &device, 0), 2, "{when}");
            let mut reader = pool.read_snapshot(snapshot).unwrap();
            assert_eq!(reader.read(0).unwrap().unwrap()[0], 1, "{when}");
            drop((store, reader, pool));
            prove(&device, &when);
        }
    }
}

/// Creates a volume with the value 1 durably in block 0. Its log ends with the last but one block
/// of its chunk, which has a write of the value 2, and the flush of it is under way.
fn written_to_the_end_of_a_chunk(device: &SimulatedDevice, lasting: &SimulatedLasting) {
    let pool = open_noting(device, lasting).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(device);
    held.carry_out(store.as_mut(), (DURABLE, 0, 1));
    let (_, anchor) = anchor_of(&(Arc::new(device.clone()) as Arc<dyn Device>));
    // Each of these writes takes one block of the log.
    for _ in anchor.log % CHUNK_BLOCKS + 1..CHUNK_BLOCKS - 2 {
        held.carry_out(store.as_mut(), (DURABLE, 1, 1));
    }
    held.carry_out(store.as_mut(), (WRITE, 0, 2));
    held.begin(store.as_mut(), Operation::Flush, 0, 0);
    held.answer(store.as_mut(), 0);
    assert_eq!(held.ops.len(), 1, "the flush");
    let log = log_of(device, anchor.identity);
    assert_eq!(log[log.len() - 1].1 % CHUNK_BLOCKS, CHUNK_BLOCKS - 2);
    // This write is answered, and no block of the log has it.
    held.ops.clear();
    held.begin(store.as_mut(), WRITE, 2, 3);
    held.answer(store.as_mut(), 0);
    assert_eq!(store.poll().map(|done| done.result), Some(Ok(())));
    std::mem::forget((store, pool));
}

fn open_noting(
    device: &SimulatedDevice,
    lasting: &SimulatedLasting,
) -> Result<LocalPool, StoreError> {
    let lasting: Arc<dyn Lasting> = Arc::new(lasting.clone());
    LocalPool::open_noting(Arc::new(device.clone()), Bounds::default(), Some(lasting))
}

/// An opening writes nothing to the log before its checkpoint. Otherwise the last block of a chunk
/// would claim that the log left by a power failure was flushed with its data.
#[test]
fn an_opening_that_the_power_cuts_short_takes_nothing_for_flushed() {
    let lasting = SimulatedLasting::default();
    let device = empty();
    written_to_the_end_of_a_chunk(&device, &lasting);
    for seed in 0..100 {
        let failed = device.crash(&mut Random::new(seed, 0));
        for power in 0..8 {
            let cut = failed.crash(&mut Random::new(0, 0));
            cut.cut_power_after(power);
            let _ = open(&cut).map(|pool| pool.open(ID, SIZE).map(drop));
            let device = cut.crash(&mut Random::new(seed, 1));
            let pool = open(&device).unwrap();
            let mut store = pool.open(ID, SIZE).unwrap();
            let found = Held::new(&device).try_out(store.as_mut(), (Operation::Read, 0, 0));
            assert!(matches!(found, Ok(1 | 2)), "seed {seed}, power {power}: {found:?}");
        }
    }
}

/// An opening writes nothing to the log before its checkpoint. Otherwise the next opening would
/// take the file of answered writes for older than the log, and ignore it.
#[test]
fn killed_opening_keeps_answered_writes() {
    for power in 0..12 {
        let lasting = SimulatedLasting::default();
        let device = empty();
        written_to_the_end_of_a_chunk(&device, &lasting);
        device.cut_power_after(power);
        let first = lasting.killed();
        let killed = lasting.killed();
        let opened = open_noting(&device, &first).map(|pool| pool.open(ID, SIZE).map(drop));
        device.go_on();
        // An opening that succeeded has closed the volume, and the file is no longer needed.
        let left = if matches!(opened, Ok(Ok(()))) { first } else { killed };
        let pool = open_noting(&device, &left).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        for (block, value) in [(0, 2), (1, 1), (2, 3)] {
            assert_eq!(read(store.as_mut(), &device, block), value, "block {block}, {power}");
        }
    }
}

/// Creates a volume and writes blocks 2 to 11 as 1, flushed. After several writes without a flush,
/// the records of a write are not logged beside it.
fn with_flushed_blocks(pool: &LocalPool, held: &mut Held) -> Box<dyn Store> {
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    for block in 2..12 {
        held.carry_out(store.as_mut(), (WRITE, block, 1));
    }
    held.carry_out(store.as_mut(), (Operation::Flush, 0, 0));
    store
}

/// An opening that finds a snapshot in the log writes a checkpoint for it before it replays the
/// answered changes that the log lacks. That checkpoint must not write to the data of these
/// changes, also if the opening is killed and repeated.
#[test]
fn answered_writes_survive_a_kill_while_a_snapshot_is_made() {
    let snapshot = SnapshotId::from_bits(8);
    for power in 0..12 {
        let lasting = SimulatedLasting::default();
        let device = empty();
        let pool = open_noting(&device, &lasting).unwrap();
        let mut held = Held::new(&device);
        let mut store = with_flushed_blocks(&pool, &mut held);
        // The write has its place before the snapshot's checkpoint takes blocks for its pages, and
        // its record comes behind that of the snapshot.
        held.begin(store.as_mut(), WRITE, 1, 2);
        assert_eq!(held.ops.len(), 1, "the data of the write");
        let _making = pool.snapshot(ID, snapshot).unwrap();
        store.attend(&mut held);
        while held.ops[1].action != DiskAction::Sync {
            held.answer(store.as_mut(), 1);
        }
        assert_eq!(held.ops.len(), 2, "the flush of the log block with the snapshot");
        held.answer(store.as_mut(), 0);
        assert_eq!(store.poll().map(|done| done.result), Some(Ok(())));
        std::mem::forget((store, pool));

        device.cut_power_after(power);
        let first = lasting.killed();
        let killed = lasting.killed();
        let opened = open_noting(&device, &first).map(|pool| pool.open(ID, SIZE).map(drop));
        device.go_on();
        // An opening that succeeded has closed the volume, and the file is no longer needed.
        let left = if matches!(opened, Ok(Ok(()))) { first } else { killed };
        let pool = open_noting(&device, &left).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap();
        for (block, value) in [(1, 2), (2, 1), (11, 1)] {
            assert_eq!(read(store.as_mut(), &device, block), value, "block {block}, {power}");
        }
        let mut reader = pool.read_snapshot(snapshot).unwrap();
        assert_eq!(reader.read(2).unwrap().unwrap()[0], 1, "{power}");
        assert_eq!(reader.read(1).unwrap(), None, "{power}");
        drop((store, reader, pool));
        prove(&device, &format!("killed after {power} writes"));
    }
}

/// A file of answered writes that could not be written any more, while the log grew, is ignored:
/// its changes would replace newer ones.
#[test]
fn file_of_answered_writes_that_is_older_than_the_log_is_ignored() {
    let lasting = SimulatedLasting::default();
    let device = empty();
    let pool = open_noting(&device, &lasting).unwrap();
    let mut held = Held::new(&device);
    let mut store = with_flushed_blocks(&pool, &mut held);
    held.carry_out(store.as_mut(), (WRITE, 1, 2));
    let older = lasting.killed();
    held.carry_out(store.as_mut(), (WRITE, 1, 3));
    held.carry_out(store.as_mut(), (Operation::Flush, 0, 0));
    std::mem::forget((store, pool));

    let pool = open_noting(&device, &older).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    assert_eq!(read(store.as_mut(), &device, 1), 3);
    drop((store, pool));
    prove(&device, "killed");
}

/// The block that confirms the last flush is not flushed itself. An opening by the same server
/// continues the log behind it, and must not claim that it was flushed: a power failure may keep
/// only the later block.
#[test]
fn a_block_that_confirms_a_flush_is_not_confirmed_by_an_opening() {
    let device = empty();
    let pool = open(&device).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut held = Held::new(&device);
    held.carry_out(store.as_mut(), (DURABLE, 0, 1));
    store.rest(&mut held);
    assert_eq!(held.ops.len(), 1, "the block that confirms the flush");
    held.answer(store.as_mut(), 0);
    // A volume that is dropped with a write under way is not closed.
    held.begin(store.as_mut(), WRITE, 1, 2);
    held.ops.clear();
    drop(store);
    let mut store = pool.open(ID, SIZE).unwrap();
    held.carry_out(store.as_mut(), (WRITE, 1, 2));
    held.begin(store.as_mut(), Operation::Flush, 0, 0);
    held.answer(store.as_mut(), 0);
    assert_eq!(held.ops.len(), 1, "the flush");
    for seed in 0..100 {
        let device = device.crash(&mut Random::new(seed, 0));
        let pool = open(&device).unwrap();
        let mut store = pool.open(ID, SIZE).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(read(store.as_mut(), &device, 0), 1, "seed {seed}");
    }
}
