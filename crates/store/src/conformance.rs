//! A suite that every store must pass. A store's own tests call [`check`] with a pool and a way to
//! run one request to its end; it panics with the broken obligation.
//!
//! It is part of the library, so that the tests of stores outside this crate can use it, too.

use crate::buffer::Buffer;
use crate::disk::{BlockingDisk, DiskDone, DiskOp};
use crate::forwarding::ForwardingPool;
use crate::unaligned::Anywhere;
use crate::{Completion, EXTENTS_MAX, Extent, Pool, Store, StoreError, Submission};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::BLOCK_BYTES_MIN;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use io_uring::IoUring;
use std::io;

/// Runs one submission to its end.
pub type Run<'a> = dyn FnMut(&mut dyn Store, Submission) -> Completion + 'a;

/// Runs a submission with blocking system calls. For tests.
pub fn blocking(store: &mut dyn Store, submission: Submission) -> Completion {
    let mut disk = BlockingDisk::default();
    let mut ended = None;
    store.submit(submission, &mut disk);
    loop {
        ended = ended.or_else(|| store.poll());
        // The disk answers all of its operations, even after the end of the request.
        match disk.poll() {
            Some(done) => store.disk_done(done, &mut disk),
            None => return ended.expect("a request ended neither in the store nor on the disk"),
        }
    }
}

/// Runs submissions on its own io_uring, one at a time.
pub struct RingDisk {
    ring: IoUring,
}

impl RingDisk {
    /// # Errors
    /// When io_uring is not available.
    pub fn new() -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(4)? })
    }

    /// Runs one submission.
    pub fn run(&mut self, store: &mut dyn Store, submission: Submission) -> Completion {
        let mut queue = Vec::new();
        let mut ended = None;
        store.submit(submission, &mut queue);
        loop {
            ended = ended.or_else(|| store.poll());
            let Some(op) = queue.pop() else {
                return ended.expect("a request ended neither in the store nor on the disk");
            };
            let done = self.execute(op);
            store.disk_done(done, &mut queue);
        }
    }

    fn execute(&mut self, op: DiskOp) -> DiskDone {
        // SAFETY: `op` and with it the buffer lives until the completion has been seen below.
        unsafe { self.ring.submission().push(&op.entry()) }.expect("the ring has room for one");
        self.ring.submit_and_wait(1).expect("the ring takes one entry");
        let code = self.ring.completion().next().expect("one completion was waited for").result();
        let result = u32::try_from(code)
            .map_err(|_| rustix::io::Errno::from_raw_os_error(code.wrapping_neg()));
        DiskDone { token: op.token, result, buffer: op.buffer }
    }
}

const SIZE: ByteCount = ByteCount(8 << 20);

/// Checks every obligation of a store with `pool`. The pool must be empty, and is empty again
/// afterwards.
///
/// # Panics If an obligation is broken; the message names it.
pub fn check(pool: &dyn Pool, run: &mut Run<'_>) {
    let id = VolumeId::from_bits(0xc0f0_0001);
    check_life_of_a_volume(pool, id);
    pool.create(id, SIZE).expect("create");
    {
        let mut store = open(pool, id, SIZE);
        assert_eq!(store.geometry().size, SIZE);
        let mut bench = Bench { store: store.as_mut(), run, model: vec![0; SIZE.0 as usize] };
        bench.check_new_is_zero();
        bench.check_write_read();
        bench.check_zeroes_and_discard();
        bench.check_block_status();
        bench.check_random_operations(0x5eed_1234, 400);
    }
    check_content_survives_reopening(pool, id, run);
    check_growth(pool, id, run);
    pool.delete(id).expect("delete");
    assert_eq!(pool.list().expect("list"), vec![], "a deleted volume is still listed");
}

/// A pool whose volumes are all encrypted.
pub struct Encrypting<'a>(pub &'a dyn Pool);

impl ForwardingPool for Encrypting<'_> {
    fn below(&self) -> &dyn Pool {
        self.0
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.0.create_encrypted(id, size)
    }
}

/// Opens a volume as the data plane does: requests that are not aligned to the store's blocks are
/// served, too.
fn open(pool: &dyn Pool, id: VolumeId, size: ByteCount) -> Box<dyn Store> {
    let store = pool.open(id, size).expect("open");
    match store.geometry().block_bytes_min {
        0..=BLOCK_BYTES_MIN => store,
        _ => Box::new(Anywhere::new(store)),
    }
}

fn check_life_of_a_volume(pool: &dyn Pool, id: VolumeId) {
    assert!(is_missing(pool.open(id, SIZE)), "opened what is not there");
    assert!(is_missing(pool.resize(id, SIZE, SIZE)), "grew what is not there");
    pool.delete(id).expect("deleting what is not there is done already");
    pool.create(id, SIZE).expect("create");
    pool.create(id, SIZE).expect("creating what is there is done already");
    let other = ByteCount(SIZE.0 * 2);
    assert!(matches!(pool.create(id, other), Err(StoreError::Size { .. })));
    assert_eq!(pool.list().expect("list"), vec![(id, SIZE)]);
    let open = pool.open(id, SIZE).expect("open");
    assert!(matches!(pool.open(id, SIZE), Err(StoreError::Open { .. })), "opened twice");
    assert!(matches!(pool.delete(id), Err(StoreError::Open { .. })), "deleted while open");
    drop(open);
    let shrunk = pool.resize(id, SIZE, ByteCount(512));
    assert!(matches!(shrunk, Err(StoreError::Size { .. })), "shrunk");
    assert!(differs(pool.open(id, other)), "opened as more than it is");
    assert!(differs(pool.resize(id, other, other)), "grown from what it has not");
    assert_eq!(pool.list().expect("list"), vec![(id, SIZE)], "made larger by a refusal");
    pool.delete(id).expect("delete");
    assert!(is_missing(pool.open(id, SIZE)), "opened what was deleted");
}

fn is_missing<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::NotFound { .. }))
}

fn differs<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Differs { .. }))
}

fn check_content_survives_reopening(pool: &dyn Pool, id: VolumeId, run: &mut Run<'_>) {
    let mut store = open(pool, id, SIZE);
    write(store.as_mut(), run, 4_096, &[0xa5; 4_096], true).expect("write");
    drop(store);
    let mut store = open(pool, id, SIZE);
    assert_eq!(read(store.as_mut(), run, 4_096, 4_096), vec![0xa5; 4_096], "lost by closing");
}

fn check_growth(pool: &dyn Pool, id: VolumeId, run: &mut Run<'_>) {
    let grown = ByteCount(SIZE.0 * 2);
    let mut store = open(pool, id, SIZE);
    pool.resize(id, SIZE, grown).expect("grow while open");
    store.resized(grown);
    assert_eq!(store.geometry().size, grown);
    let last = grown.0 - 4_096;
    assert_eq!(read(store.as_mut(), run, last, 4_096), vec![0; 4_096], "new bytes are not zero");
    write(store.as_mut(), run, last, &[9; 4_096], false).expect("write into the new part");
    assert_eq!(read(store.as_mut(), run, 4_096, 4_096), vec![0xa5; 4_096], "lost by growing");
    pool.resize(id, SIZE, grown).expect("growing again is done already");
    assert_eq!(read(store.as_mut(), run, last, 4_096), vec![9; 4_096], "lost by growing again");
    drop(store);
    assert!(differs(pool.open(id, SIZE)), "bytes that were written are cut off");
    let mut store = open(pool, id, grown);
    assert_eq!(read(store.as_mut(), run, last, 4_096), vec![9; 4_096], "lost by a refusal");
}

fn submission(operation: Operation, offset: u64, length: u32) -> Submission {
    Submission { ticket: offset ^ 0x7ac3, operation, offset, length, buffer: None }
}

fn finish(store: &mut dyn Store, run: &mut Run<'_>, submission: Submission) -> Completion {
    let ticket = submission.ticket;
    let had_buffer = submission.buffer.is_some();
    let completion = run(store, submission);
    assert_eq!(completion.ticket, ticket, "a ticket came back changed");
    assert_eq!(completion.buffer.is_some(), had_buffer, "a buffer was kept or made up");
    assert!(store.poll().is_none(), "one request was completed twice");
    completion
}

fn write(
    store: &mut dyn Store,
    run: &mut Run<'_>,
    offset: u64,
    bytes: &[u8],
    fua: bool,
) -> Result<(), Failure> {
    let mut buffer = Buffer::new(bytes.len());
    buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let mut submission = submission(Operation::Write { fua }, offset, bytes.len() as u32);
    submission.buffer = Some(buffer);
    finish(store, run, submission).result
}

fn read(store: &mut dyn Store, run: &mut Run<'_>, offset: u64, length: u32) -> Vec<u8> {
    let mut buffer = Buffer::new(length as usize);
    buffer.bytes_mut().fill(0xee);
    let mut submission = submission(Operation::Read, offset, length);
    submission.buffer = Some(buffer);
    let completion = finish(store, run, submission);
    completion.result.expect("read");
    completion.buffer.expect("a buffer").bytes()[..length as usize].to_vec()
}

/// A store, and an array with its expected contents.
struct Bench<'a, 'b> {
    store: &'a mut dyn Store,
    run: &'a mut Run<'b>,
    model: Vec<u8>,
}

impl Bench<'_, '_> {
    fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) {
        write(self.store, self.run, offset, bytes, fua).expect("write");
        self.model[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn check_read(&mut self, offset: u64, length: u32) {
        let got = read(self.store, self.run, offset, length);
        let expected = &self.model[offset as usize..][..length as usize];
        let wrong = got.iter().zip(expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "byte of the read of {length} at {offset} that differs");
    }

    fn operate(&mut self, operation: Operation, offset: u64, length: u32) -> Completion {
        finish(self.store, self.run, submission(operation, offset, length))
    }

    fn zero(&mut self, offset: u64, length: u32, keep_allocated: bool, fua: bool) {
        let operation = Operation::WriteZeroes { fua, keep_allocated, only_if_fast: false };
        self.operate(operation, offset, length).result.expect("write zeroes");
        self.model[offset as usize..][..length as usize].fill(0);
    }

    fn check_new_is_zero(&mut self) {
        self.check_read(0, 1 << 20);
        self.check_read(SIZE.0 - 512, 512);
    }

    fn check_write_read(&mut self) {
        self.write(512, &[1; 512], false);
        self.write(0, &[2; 4_096], true);
        self.write((64 << 10) - 512, &[3; 1_024], false);
        self.write(SIZE.0 - 512, &[4; 512], false);
        self.write(1 << 20, &vec![5; 256 << 10], false);
        self.operate(Operation::Flush, 0, 0).result.expect("flush");
        self.operate(Operation::Cache, 0, 4_096).result.expect("cache");
        for (offset, length) in [(0, 8_192), ((64 << 10) - 4_096, 8_192), (1 << 20, 512 << 10)] {
            self.check_read(offset, length);
        }
        self.check_read(SIZE.0 - 512, 512);
    }

    fn check_zeroes_and_discard(&mut self) {
        self.zero(4_096, 512, false, false);
        self.zero((1 << 20) + 512, 128 << 10, true, true);
        self.check_read(0, 2 << 20);
        self.operate(Operation::Discard { fua: true }, 1 << 20, 64 << 10).result.expect("discard");
        let got = read(self.store, self.run, 1 << 20, 64 << 10);
        let kept = &self.model[1 << 20..][..64 << 10];
        assert!(got == kept || got.iter().all(|&b| b == 0), "a discard left other bytes");
        self.model[1 << 20..][..64 << 10].copy_from_slice(&got);
        let fast = Operation::WriteZeroes { fua: false, keep_allocated: false, only_if_fast: true };
        match self.operate(fast, 1 << 20, 64 << 10).result {
            Ok(()) => self.model[1 << 20..][..64 << 10].fill(0),
            Err(failure) => assert_eq!(failure, Failure::NotSupported, "a fast zero may say only"),
        }
        self.check_read(1 << 20, 512 << 10);
    }

    fn check_block_status(&mut self) {
        self.write(4 << 20, &vec![6; 128 << 10], false);
        self.operate(Operation::Flush, 0, 0).result.expect("flush");
        let extents = self.extents(3 << 20, 2 << 20);
        let data_at = |at: u64| {
            let mut from = 3 << 20;
            extents.iter().find(|e| {
                from += u64::from(e.length);
                at < from
            })
        };
        let data = data_at(4 << 20).expect("covered");
        assert!(!data.hole && !data.zero, "data is called a hole: {extents:?}");
        // More extents than one answer may have, beginning with data and with a hole.
        self.zero(0, SIZE.0 as u32, false, false);
        for at in (0..SIZE.0).step_by(128 << 10) {
            self.write(at, &[7; 4_096], false);
        }
        for first in [0, 64 << 10] {
            self.check_extents(first, SIZE.0 as u32 - first as u32, "in pieces");
        }
    }

    /// Checks that extents that are reported as zero read as zeroes.
    fn check_extents(&mut self, offset: u64, length: u32, when: &str) {
        let mut start = offset as usize;
        for extent in self.extents(offset, length) {
            let range = start..start + extent.length as usize;
            let zero = self.model[range.clone()].iter().all(|&b| b == 0);
            assert!(zero || !extent.zero, "{when}: data called zero");
            start = range.end;
        }
    }

    /// Repeats the request from the end of each answer, as a client does.
    fn extents(&mut self, offset: u64, length: u32) -> Vec<Extent> {
        let mut extents = Vec::new();
        let mut covered = 0;
        while covered < length {
            let start = offset + u64::from(covered);
            let completion = self.operate(Operation::BlockStatus, start, length - covered);
            completion.result.expect("block status");
            let count = completion.extents.len();
            assert!((1..=EXTENTS_MAX).contains(&count), "{count} extents at {start}");
            let before = covered;
            covered += completion.extents.iter().map(|e| e.length).sum::<u32>();
            assert!(covered > before, "nothing is said of {start}");
            extents.extend(completion.extents);
        }
        assert_eq!(covered, length, "more is said than was asked: {extents:?}");
        assert!(extents.iter().all(|e| e.length > 0), "an empty extent");
        extents
    }

    /// Runs random requests against the array, and checks that zero extents read as zeroes.
    fn check_random_operations(&mut self, seed: u64, count: u32) {
        let mut state = seed;
        let mut random = move |below: u64| {
            // Knuth's MMIX generator; its high bits are good enough to place blocks.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for step in 0..count {
            let blocks = 1 + random(256) as u32;
            let length = blocks * 512;
            let offset = random((SIZE.0 - u64::from(length)) / 512 + 1) * 512;
            match random(6) {
                0 | 1 => self.write(offset, &vec![step as u8 | 1; length as usize], random(4) == 0),
                2 => self.zero(offset, length, random(2) == 0, random(4) == 0),
                3 => self.check_extents(offset, length, &format!("seed {seed:#x}")),
                _ => self.check_read(offset, length),
            }
        }
        for at in (0..SIZE.0).step_by(256 << 10) {
            self.check_read(at, 256 << 10);
        }
    }
}
