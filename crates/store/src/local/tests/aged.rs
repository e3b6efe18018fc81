//! Volumes that were overwritten at random: the requests of the device that reads and writes in
//! order take then. The counts are exact: nothing is timed.

use super::super::simulated::{SimulatedDevice, SimulatedQueue};
use super::*;
use crate::Completion;
use crate::disk::{Disk, DiskAction, DiskOp};
use evenkeel_core::random::Random;

const ID: VolumeId = VolumeId::from_bits(7);
const WRITE: Operation = Operation::Write { fua: false };
/// Bytes of a request in order.
const LARGE_BYTES: usize = 256 << 10;

/// A queue that counts reads and writes, their bytes, and flushes.
struct Counting {
    inner: SimulatedQueue,
    requests: u64,
    bytes: u64,
    flushes: u64,
}

impl Disk for Counting {
    fn submit(&mut self, op: DiskOp) {
        if matches!(op.action, DiskAction::Read | DiskAction::Write) {
            self.requests += 1;
            self.bytes += u64::from(op.length);
        }
        self.flushes += u64::from(op.action == DiskAction::Sync);
        self.inner.submit(op);
    }
}

/// A volume of its own pool, on a simulated disk.
struct Aged {
    store: Box<dyn Store>,
    queue: Counting,
    device: SimulatedDevice,
    /// The last value that was written to each block.
    values: Vec<u32>,
}

impl Aged {
    /// Creates the volume and writes it in order.
    fn new(blocks: usize, bounds: Bounds) -> Self {
        let size = ByteCount((blocks * BLOCK_BYTES) as u64);
        let device = SimulatedDevice::new(4 * size.0 + (64 << 20));
        LocalPool::init(&device, &Layout { chunks_max: 500, nodes: 63, ..LAYOUT }).unwrap();
        let pool = LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
        pool.create(ID, size).unwrap();
        let store = pool.open(ID, size).unwrap();
        let inner = SimulatedQueue::new(device.clone(), 1);
        let queue = Counting { inner, requests: 0, bytes: 0, flushes: 0 };
        let mut aged = Self { store, queue, device, values: vec![0; blocks] };
        aged.write_in_order(1);
        aged
    }

    fn submit(&mut self, operation: Operation, block: usize, buffer: Option<Buffer>) {
        let offset = (block * BLOCK_BYTES) as u64;
        let length = buffer.as_ref().map_or(0, |buffer| buffer.capacity() as u32);
        let submission = Submission { ticket: 1, operation, offset, length, buffer };
        self.store.submit(submission, &mut self.queue);
    }

    /// Answers operations of the disk until `count` are left. Returns the completions.
    fn answer(&mut self, left: usize) -> Vec<Completion> {
        while self.queue.inner.len() > left {
            let done = self.queue.inner.answer().unwrap();
            self.store.disk_done(done, &mut self.queue);
        }
        std::iter::from_fn(|| self.store.poll()).collect()
    }

    /// Writes these blocks with the value.
    fn write(&mut self, block: usize, count: usize, value: u32) {
        let mut buffer = Buffer::new(count * BLOCK_BYTES);
        let blocks = buffer.bytes_mut().chunks_mut(BLOCK_BYTES);
        for (bytes, of) in blocks.zip(&mut self.values[block..block + count]) {
            bytes[..4].copy_from_slice(&value.to_le_bytes());
            *of = value;
        }
        self.submit(WRITE, block, Some(buffer));
    }

    fn write_in_order(&mut self, value: u32) {
        let blocks = LARGE_BYTES / BLOCK_BYTES;
        for first in (0..self.values.len()).step_by(blocks) {
            self.write(first, blocks, value);
            self.answer(8);
        }
        self.submit(Operation::Flush, 0, None);
        self.answer(0);
    }

    /// Overwrites `writes` blocks at random. One after the other, so that their order is known.
    fn age(&mut self, writes: usize) {
        let mut random = Random::new(5, 5);
        for value in 0..writes {
            let block = random.below(self.values.len() as u64) as usize;
            self.write(block, 1, 100 + value as u32);
            self.answer(0);
        }
        self.submit(Operation::Flush, 0, None);
        self.answer(0);
    }

    /// Reads blocks, and compares them with what was written.
    fn read(&mut self, block: usize, count: usize) -> Result<(), Failure> {
        self.submit(Operation::Read, block, Some(Buffer::new(count * BLOCK_BYTES)));
        let done = self.answer(0).pop().unwrap();
        let buffer = done.buffer.unwrap();
        for (bytes, value) in buffer.bytes().chunks(BLOCK_BYTES).zip(&self.values[block..]) {
            assert!(done.result.is_err() || bytes[..4] == value.to_le_bytes());
        }
        done.result
    }

    /// Runs `work` in order over the volume. Returns the device's requests for each of the client,
    /// and its bytes for each byte.
    fn counted(&mut self, work: impl FnOnce(&mut Self)) -> (f64, f64) {
        (self.queue.requests, self.queue.bytes) = (0, 0);
        work(self);
        let bytes = (self.values.len() * BLOCK_BYTES) as f64;
        let requests = bytes / LARGE_BYTES as f64;
        (self.queue.requests as f64 / requests, self.queue.bytes as f64 / bytes)
    }
}

fn read_in_order(aged: &mut Aged) {
    let blocks = LARGE_BYTES / BLOCK_BYTES;
    for first in (0..aged.values.len()).step_by(blocks) {
        aged.read(first, blocks).unwrap();
    }
}

/// A request in order would take 63 requests of the device if each block went to any free place.
#[test]
fn a_volume_that_was_overwritten_at_random_is_read_and_written_in_few_requests() {
    const BLOCKS: usize = 16_384;
    // The share of the blocks that waits for a commit is that of a volume of 1 GiB.
    let mut aged = Aged::new(BLOCKS, Bounds { batch_bytes: 4 << 10, ..Bounds::default() });
    let fresh = aged.counted(read_in_order);
    assert!(fresh.0 < 1.1 && fresh.1 < 1.01, "{fresh:?}");
    aged.age(2 * BLOCKS);
    let read = aged.counted(read_in_order);
    assert!(read.0 < 12.0 && read.1 < 1.6, "{read:?}");
    let written = aged.counted(|aged| aged.write_in_order(2));
    assert!(written.0 < 2.0 && written.1 < 1.1, "{written:?}");
    let in_order = aged.counted(read_in_order);
    assert!(in_order.0 < 1.5 && in_order.1 < 1.1, "{in_order:?}");
}

/// Blocks that a client overwrites in order are free after 16 MiB: it need not ask for a flush.
#[test]
fn a_client_that_writes_in_order_gets_commits_without_a_flush() {
    let aged = Aged::new(16_384, Bounds { batch_bytes: usize::MAX, ..Bounds::default() });
    assert!(aged.queue.flushes >= 4, "{} flushes for 64 MiB", aged.queue.flushes);
}

/// A read of near blocks also reads what is between them. If that cannot be read, only the wanted
/// blocks are read.
#[test]
fn a_damaged_block_between_wanted_ones_fails_no_read() {
    let mut aged = Aged::new(256, Bounds::default());
    for (block, count, value) in [(8, 3, 50), (9, 1, 51)] {
        aged.write(block, count, value);
        aged.answer(0);
    }
    // The former place of block 9 is between those of 8 and 10.
    let mut former = vec![0; BLOCK_BYTES];
    former[..4].copy_from_slice(&50_u32.to_le_bytes());
    let places = aged.device.find(&former);
    assert_eq!(places.len(), 3, "blocks 8 and 10, and what block 9 was");
    (aged.queue.requests, aged.queue.bytes) = (0, 0);
    assert_eq!(aged.read(8, 3), Ok(()));
    assert_eq!(aged.queue.requests, 1);
    aged.device.make_unreadable(places[1], None);
    assert_eq!(aged.read(8, 3), Ok(()));
    assert!(aged.queue.requests > 2, "read again without it");
    aged.device.make_unreadable(places[2], None);
    assert_eq!(aged.read(8, 3), Err(Failure::Io));
}

/// Reads that are under way together read at most 2 MiB that none of them wants.
#[test]
fn blocks_between_wanted_ones_are_read_within_a_bound() {
    let mut aged = Aged::new(16_384, Bounds { batch_bytes: 4 << 10, ..Bounds::default() });
    aged.age(16_384);
    (aged.queue.requests, aged.queue.bytes) = (0, 0);
    for request in 0..64 {
        let buffer = Buffer::new(LARGE_BYTES);
        aged.submit(Operation::Read, request * 64, Some(buffer));
    }
    let more = aged.queue.bytes - 64 * LARGE_BYTES as u64;
    assert!((1 << 20..=2 << 20).contains(&more), "{more}");
    let ended = aged.answer(0);
    assert!(ended.len() == 64 && ended.iter().all(|done| done.result.is_ok()));
    assert_eq!(aged.read(0, 64), Ok(()));
}
