//! Extents of holes, the cost of finding them, and zeroes that take their place.

use super::*;
use crate::disk::{BlockingDisk, Disk, DiskAction, DiskOp};
use crate::{Completion, Extent};
use evenkeel_core::random::Random;

const ID: VolumeId = VolumeId::from_bits(5);
const WRITE: Operation = Operation::Write { fua: false };
const DISCARD: Operation = Operation::Discard { fua: false };
const MIB: u64 = 1 << 20;
/// Bytes of a volume that one map leaf covers.
const LEAF_BYTES: u64 = 2 * MIB;

/// A disk that counts reads.
#[derive(Default)]
struct Counting {
    inner: BlockingDisk,
    reads: usize,
}

impl Disk for Counting {
    fn submit(&mut self, op: DiskOp) {
        self.reads += usize::from(op.action == DiskAction::Read);
        self.inner.submit(op);
    }
}

/// Runs a request. Returns its completion, and the number of reads.
fn counted(store: &mut dyn Store, submission: Submission) -> (Completion, usize) {
    let mut disk = Counting::default();
    store.submit(submission, &mut disk);
    let mut ended = None;
    loop {
        ended = ended.or_else(|| store.poll());
        let Some(done) = disk.inner.poll() else { break };
        store.disk_done(done, &mut disk);
    }
    (ended.unwrap(), disk.reads)
}

/// Returns the extents of a range, and the number of reads that they took.
fn status(store: &mut dyn Store, offset: u64, length: u32) -> (Vec<Extent>, usize) {
    let operation = Operation::BlockStatus;
    let asked = Submission { ticket: 1, operation, offset, length, buffer: None };
    let (done, reads) = counted(store, asked);
    assert_eq!(done.result, Ok(()));
    (done.extents, reads)
}

fn length_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| u64::from(extent.length)).sum()
}

/// Writes, discards or zeroes a range.
fn change(store: &mut dyn Store, operation: Operation, offset: u64, length: u64) {
    let buffer = (operation == WRITE).then(|| {
        let mut buffer = Buffer::new(length as usize);
        buffer.bytes_mut().fill(7);
        buffer
    });
    let submission = Submission { ticket: 1, operation, offset, length: length as u32, buffer };
    assert_eq!(conformance::blocking(store, submission).result, Ok(()));
}

fn flush(store: &mut dyn Store) {
    assert_eq!(run(store, Operation::Flush, 0, 0), Ok(0));
}

/// Creates a pool whose volume keeps few map pages in memory.
fn forgetful(chunks_max: u32) -> (tempfile::NamedTempFile, LocalPool) {
    let (file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max, ..LAYOUT }).unwrap();
    let bounds = Bounds { map_pages: 2, ..Bounds::default() };
    (file, LocalPool::open(device, bounds).unwrap())
}

/// Data and holes are distinguished block by block, whichever pages are in memory, in encrypted
/// volumes, too.
#[test]
fn extents_are_those_of_a_model() {
    const BLOCKS: u64 = 20 * 512 + 100;
    let folder = tempfile::tempdir().unwrap();
    for (seed, encrypted) in [(1, false), (2, true)] {
        let (_file, pool) = forgetful(200);
        let pool = pool.with_keys(keys(folder.path(), "key", "7"));
        let size = ByteCount(BLOCKS * 4_096);
        if encrypted {
            pool.create_encrypted(ID, size).unwrap()
        } else {
            pool.create(ID, size).unwrap()
        }
        let mut random = Random::new(seed, 1);
        let mut model = vec![false; BLOCKS as usize];
        let mut store = pool.open(ID, size).unwrap();
        for step in 0..300 {
            let first = random.below(BLOCKS);
            let count = 1 + random.below(64.min(BLOCKS - first));
            let is_write = random.below(3) > 0;
            let operation = if is_write { WRITE } else { DISCARD };
            // Whole leaves become holes now and then.
            let count = if is_write || step % 4 > 0 { count } else { BLOCKS - first };
            change(store.as_mut(), operation, first * 4_096, count * 4_096);
            model[first as usize..(first + count) as usize].fill(is_write);
            if step % 60 == 59 {
                drop(store);
                store = pool.open(ID, size).unwrap();
            }
            let mut next = random.below(BLOCKS);
            while next < BLOCKS {
                let length = (BLOCKS - next) * 4_096;
                let (extents, _) = status(store.as_mut(), next * 4_096, length as u32);
                assert!(!extents.is_empty() && length_of(&extents) <= length, "seed {seed}");
                assert!(extents.windows(2).all(|pair| pair[0].hole != pair[1].hole), "{extents:?}");
                for Extent { length, hole, zero } in extents {
                    let blocks = u64::from(length) / 4_096;
                    let range = next as usize..(next + blocks) as usize;
                    assert_eq!(hole, zero);
                    let agrees = model[range].iter().all(|is_data| *is_data != hole);
                    assert!(agrees, "seed {seed}, step {step}: {blocks} blocks from {next}");
                    next += blocks;
                }
            }
        }
    }
}

/// A request of any length reads at most one leaf beside the pages above it, which stay in memory.
/// Unwritten ranges are skipped as a whole.
#[test]
fn a_question_for_holes_reads_one_page() {
    const ALL: u32 = u32::MAX - 4_095;
    let size = ByteCount(8 << 30);
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max: 600, ..LAYOUT }).unwrap();
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    let (extents, reads) = status(store.as_mut(), 0, ALL);
    assert_eq!((length_of(&extents), extents.len(), reads), (ALL.into(), 1, 0), "it is empty");

    // A block of data in each leaf of two GiB.
    for leaf in 0..1_024 {
        change(store.as_mut(), WRITE, (leaf + 1) * LEAF_BYTES - 4_096, 4_096);
    }
    flush(store.as_mut());
    let (extents, reads) = status(store.as_mut(), 0, ALL);
    assert_eq!((extents.len(), reads), (64, 0));
    assert_eq!(length_of(&extents), 32 * LEAF_BYTES, "all that an answer holds");
    let (extents, reads) = status(store.as_mut(), 2 << 30, ALL);
    assert_eq!((length_of(&extents), reads), (ALL.into(), 0), "nothing was written there");

    // The pages exist, and have only holes.
    for leaf in 0..1_024 {
        change(store.as_mut(), DISCARD, leaf * LEAF_BYTES, LEAF_BYTES);
    }
    flush(store.as_mut());
    let (extents, reads) = status(store.as_mut(), 0, ALL);
    assert_eq!((length_of(&extents), extents.len(), reads), (64 * LEAF_BYTES, 1, 0));

    drop(store);
    let mut store = pool.open(ID, size).unwrap();
    let mut start = 0;
    let mut above = 0;
    let mut all = 0;
    while start < 2 << 30 {
        let (extents, reads) = status(store.as_mut(), start, ALL);
        assert!(length_of(&extents) >= LEAF_BYTES, "{extents:?} at {start}");
        above += reads.saturating_sub(1);
        all += reads;
        start += length_of(&extents);
    }
    // The root, and a page for each GiB; some leaves came with the log.
    assert!(above <= 3 && all > 500, "{above} of {all} pages");
    let (_, reads) = status(store.as_mut(), 0, ALL);
    assert_eq!(reads, 0, "they are in memory now");
}

/// `NBD_CMD_WRITE_ZEROES` with `NBD_CMD_FLAG_NO_HOLE`.
const KEPT: Operation =
    Operation::WriteZeroes { fua: false, keep_allocated: true, only_if_fast: false };
const ZEROES: Operation =
    Operation::WriteZeroes { fua: false, keep_allocated: false, only_if_fast: false };

/// Zeroes that keep their space are no hole, read as zeroes, also after an opening, and a request
/// for them may be as long as any.
#[test]
fn zeroes_that_keep_their_space_are_written() {
    let folder = tempfile::tempdir().unwrap();
    for encrypted in [false, true] {
        let (_file, pool) = forgetful(100);
        let pool = pool.with_keys(keys(folder.path(), "key", "7"));
        let size = ByteCount(64 * MIB);
        if encrypted {
            pool.create_encrypted(ID, size).unwrap()
        } else {
            pool.create(ID, size).unwrap()
        }
        let mut store = pool.open(ID, size).unwrap();
        change(store.as_mut(), WRITE, 0, MIB);
        let fua = Operation::WriteZeroes { fua: true, keep_allocated: true, only_if_fast: false };
        for (operation, offset, length) in
            [(KEPT, 4_096, 20 * MIB), (fua, 30 * MIB, 12_288), (KEPT, 40 * MIB, 8 * MIB)]
        {
            assert!(store.writes_zeroes(operation));
            change(store.as_mut(), operation, offset, length);
        }
        assert!(!store.writes_zeroes(ZEROES));
        change(store.as_mut(), ZEROES, 44 * MIB, MIB);
        let refused =
            Operation::WriteZeroes { fua: false, keep_allocated: true, only_if_fast: true };
        let offset = 50 * MIB;
        let length = 4_096;
        let buffer = None;
        let fast = Submission { ticket: 1, operation: refused, offset, length, buffer };
        let done = conformance::blocking(store.as_mut(), fast);
        assert_eq!(done.result, Err(Failure::NotSupported));
        for _ in 0..2 {
            let data = |at: u64| !status(store.as_mut(), at, 4_096).0[0].hole;
            let places = [0, 4_096, 20 * MIB, 21 * MIB, 30 * MIB, 30 * MIB + 12_288, 43 * MIB];
            assert_eq!(places.map(data), [true, true, true, false, true, false, true]);
            let data = |at: u64| !status(store.as_mut(), at, 4_096).0[0].hole;
            assert_eq!(
                [44 * MIB, 45 * MIB, 48 * MIB, 50 * MIB].map(data),
                [false, true, false, false]
            );
            for (block, value) in [(0, 7), (1, 0), (255, 0), (5_000, 0), (7_680, 0), (11_000, 0)] {
                assert_eq!(run(store.as_mut(), Operation::Read, block, 9), Ok(value), "{block}");
            }
            drop(store);
            store = pool.open(ID, size).unwrap();
        }
    }
}

/// On a full pool, blocks that were zeroed in this way can be written, and holes cannot.
#[test]
fn zeroes_that_keep_their_space_find_it_on_a_full_pool() {
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &Layout { chunks_max: 62, ..LAYOUT }).unwrap();
    let pool = LocalPool::open(device, Bounds::default()).unwrap();
    let size = ByteCount(1 << 30);
    pool.create(ID, size).unwrap();
    let mut store = pool.open(ID, size).unwrap();
    change(store.as_mut(), KEPT, 0, 8 * MIB);
    let full = (8 * 256..).find(|&block| run(store.as_mut(), WRITE, block, 1).is_err()).unwrap();
    assert!(full > 50 * 256, "{full} blocks");
    // Also in pieces, over existing blocks.
    change(store.as_mut(), KEPT, 4 * MIB, 8 * MIB);
    for round in 1..4 {
        for block in 0..12 * 256 {
            assert_eq!(run(store.as_mut(), WRITE, block, round), Ok(round), "block {block}");
        }
    }
    assert_eq!(run(store.as_mut(), WRITE, full, 1), Err(Failure::NoSpace));
    let operation = KEPT;
    let offset = full * 4_096;
    let length = 4_096;
    let buffer = None;
    let kept = Submission { ticket: 1, operation, offset, length, buffer };
    let done = conformance::blocking(store.as_mut(), kept);
    assert_eq!(done.result, Err(Failure::NoSpace));
    flush(store.as_mut());
}
