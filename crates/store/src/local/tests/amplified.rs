//! Bytes that the device writes for each byte of a client. The counts are exact: nothing is timed.

use super::super::simulated::{SimulatedDevice, SimulatedQueue};
use super::super::table::SECTOR_BYTES;
use super::*;
use evenkeel_core::random::Random;

const ID: VolumeId = VolumeId::from_bits(7);
const SIZE: ByteCount = ByteCount(200 << 20);

/// Bytes that the device writes for each byte of writes of 4 KiB at random places, in a volume that
/// was written at random before. A checkpoint comes with each `log_blocks` blocks of the log.
fn bytes_written_per_byte(fua: bool, depth: usize, log_blocks: u32) -> f64 {
    const WRITES: u64 = 10_000;
    let device = SimulatedDevice::new(600 << 20);
    LocalPool::init(&device, &Layout { chunks_max: 500, nodes: 63, ..LAYOUT }).unwrap();
    let bounds = Bounds { log_blocks, ..Bounds::default() };
    let pool = LocalPool::open(Arc::new(device.clone()), bounds).unwrap();
    pool.create(ID, SIZE).unwrap();
    let mut store = pool.open(ID, SIZE).unwrap();
    let mut queue = SimulatedQueue::new(device.clone(), 1);
    let mut random = Random::new(5, 5);
    let mut sectors_before = 0;
    for number in 0..2 * WRITES {
        if number == WRITES {
            (sectors_before, _) = device.counts();
        }
        let block = random.below(SIZE.0 / BLOCK_BYTES as u64);
        let offset = block * BLOCK_BYTES as u64;
        let length = BLOCK_BYTES as u32;
        let operation = Operation::Write { fua };
        let buffer = Some(Buffer::new(BLOCK_BYTES));
        store.submit(Submission { ticket: 1, operation, offset, length, buffer }, &mut queue);
        while queue.len() >= depth {
            let done = queue.answer().unwrap();
            store.disk_done(done, &mut queue);
        }
        while store.poll().is_some() {}
    }
    let (sectors, _) = device.counts();
    (sectors - sectors_before) as f64 * SECTOR_BYTES as f64 / (WRITES * BLOCK_BYTES as u64) as f64
}

#[test]
fn a_write_costs_a_hundredth_more_than_its_bytes_and_with_a_flush_a_log_block() {
    let log_blocks = Bounds::default().log_blocks;
    let plain = bytes_written_per_byte(false, 32, log_blocks);
    assert!((0.99..1.02).contains(&plain), "{plain}");
    let durable = bytes_written_per_byte(true, 1, log_blocks);
    assert!((1.99..2.07).contains(&durable), "{durable}");
}

/// A flush for each write costs the data and one log block. Checkpoints are extra.
#[test]
fn a_write_with_a_flush_costs_two_blocks_without_checkpoints() {
    let durable = bytes_written_per_byte(true, 1, u32::MAX);
    assert!((1.999..2.006).contains(&durable), "{durable}");
}
