//! Tests in front of a store with delayed requests: no byte beside an unaligned write is lost,
//! whatever other requests are under way.

use super::*;
use crate::memory::MemoryPool;
use crate::{Pool, StoreError, conformance};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use evenkeel_core::units::ByteCount;

const BLOCK: u64 = 512;
const SIZE: u64 = 16 * BLOCK;
const ID: VolumeId = VolumeId::from_bits(1);

struct Wrapped(MemoryPool);

impl forwarding::ForwardingPool for Wrapped {
    fn below(&self) -> &dyn Pool {
        &self.0
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Anywhere::new(self.0.open(id, size)?)))
    }
}

#[test]
fn conforms() {
    conformance::check(&Wrapped(MemoryPool::new()), &mut conformance::blocking);
}

struct NoDisk;

impl Disk for NoDisk {
    fn submit(&mut self, _op: crate::disk::DiskOp) {
        unreachable!("memory asks no disk");
    }
}

/// A store whose requests take effect later, in any order, at the next [`Store::disk_done`].
struct Later {
    inner: Box<dyn Store>,
    held: Vec<Submission>,
    random: Random,
    /// Fails the next read.
    fails: bool,
}

impl forwarding::ForwardingStore for Later {
    fn below(&self) -> &dyn Store {
        self.inner.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.inner.as_mut()
    }

    fn submit(&mut self, submission: Submission, _disk: &mut dyn Disk) {
        assert_eq!((submission.offset % BLOCK, u64::from(submission.length) % BLOCK), (0, 0));
        self.held.push(submission);
    }

    fn disk_done(&mut self, _done: DiskDone, disk: &mut dyn Disk) {
        if !self.held.is_empty() {
            let which = self.random.below(self.held.len() as u64) as usize;
            let submission = self.held.swap_remove(which);
            self.inner.submit(submission, disk);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut completion = self.inner.poll()?;
        if std::mem::take(&mut self.fails) {
            completion.result = Err(Failure::Io);
        }
        Some(completion)
    }
}

fn later(seed: u64) -> Later {
    let pool = MemoryPool::new();
    pool.create(ID, ByteCount(SIZE)).unwrap();
    let inner = pool.open(ID, ByteCount(SIZE)).unwrap();
    Later { inner, held: Vec::new(), random: Random::from_state(seed), fails: false }
}

/// Ends one request of the store below.
fn tick(store: &mut Anywhere) {
    store.disk_done(DiskDone { token: 0, result: Ok(0), buffer: None }, &mut NoDisk);
}

fn submission(ticket: u64, operation: Operation, offset: u64, payload: &[u8]) -> Submission {
    let length = payload.len() as u32;
    let carries = matches!(operation, Operation::Read | Operation::Write { .. });
    let buffer = carries.then(|| {
        let mut buffer = Buffer::new(payload.len());
        buffer.bytes_mut()[..payload.len()].copy_from_slice(payload);
        buffer
    });
    Submission { ticket, operation, offset, length, buffer }
}

const WRITE: Operation = Operation::Write { fua: false };
const ZEROES: Operation =
    Operation::WriteZeroes { fua: false, keep_allocated: false, only_if_fast: false };

/// A request under way: its operation and range.
type Flight = (Operation, std::ops::Range<usize>);

/// Possible values of each byte, with the tickets of their writes. A later write removes those that
/// had ended before it. Of two writes that were under way together either may be the last.
struct Model(Vec<Vec<(u64, u8)>>);

impl Model {
    fn wrote(&mut self, ticket: u64, at: usize, payload: &[u8], is_over: impl Fn(u64) -> bool) {
        for (byte, value) in self.0[at..].iter_mut().zip(payload) {
            byte.retain(|(other, _)| !is_over(*other));
            byte.push((ticket, *value));
        }
    }

    fn allows(&self, at: usize, found: &[u8]) -> bool {
        let mut bytes = self.0[at..].iter().zip(found);
        bytes.all(|(byte, found)| byte.iter().any(|(_, value)| value == found))
    }
}

/// Runs random requests, several at a time, with overlapping writes.
fn random_requests_do_what_a_plain_memory_does(seed: u64) {
    let mut random = Random::from_state(seed);
    let mut store = Anywhere::new(Box::new(later(seed ^ 77)));
    let mut model = Model(vec![vec![(u64::MAX, 0)]; SIZE as usize]);
    let mut flights: Vec<Option<Flight>> = Vec::new();
    for _ in 0..400 {
        let offset = random.below(SIZE) as usize;
        let length = 1 + random.below((SIZE as usize - offset).min(1_700) as u64) as usize;
        // Half of the requests are aligned.
        let (offset, length) = if random.one_in(2) {
            (offset / 512 * 512, length.next_multiple_of(512))
        } else {
            (offset, length)
        };
        let range = offset..(offset + length).min(SIZE as usize);
        let operation = random.among(&[Operation::Read, WRITE, WRITE, WRITE, ZEROES]);
        // A read that overlaps a write under way could have either result, so that is avoided.
        let may_share = |(other, place): &Flight| {
            place.end <= range.start
                || range.end <= place.start
                || other.is_write() && operation.is_write()
        };
        if flights.iter().flatten().all(may_share) {
            let ticket = flights.len() as u64;
            let payload: Vec<u8> = match operation {
                ZEROES => vec![0; range.len()],
                _ => range.clone().map(|_| random.next_u64() as u8).collect(),
            };
            if operation.is_write() {
                let is_over = |other| flights.get(other as usize).is_none_or(Option::is_none);
                model.wrote(ticket, range.start, &payload, is_over);
            }
            let asked = submission(ticket, operation, range.start as u64, &payload);
            flights.push(Some((operation, range)));
            store.submit(asked, &mut NoDisk);
        }
        while random.one_in(2) {
            tick(&mut store);
        }
        take(&mut store, &mut flights, &model);
    }
    for _ in 0..10_000 {
        tick(&mut store);
        take(&mut store, &mut flights, &model);
    }
    assert!(flights.iter().all(Option::is_none), "a request has not ended");
    let all = whole(&mut store, submission(0, Operation::Read, 0, &vec![1; SIZE as usize]));
    let found = all.buffer.unwrap();
    assert!(model.allows(0, &found.bytes()[..SIZE as usize]), "bytes were lost, seed {seed}");
}

fn take(store: &mut Anywhere, flights: &mut [Option<Flight>], model: &Model) {
    while let Some(completion) = store.poll() {
        let (operation, range) = flights[completion.ticket as usize].take().expect("ended twice");
        assert_eq!(completion.result, Ok(()));
        if operation == Operation::Read {
            let found = completion.buffer.expect("it brought one");
            let found = &found.bytes()[..range.len()];
            assert!(model.allows(range.start, found), "read what nobody wrote");
        }
    }
}

/// Seeds of a run without `EVENKEEL_FUZZ_CASES`.
const SEEDS: u64 = 80;

#[test]
fn unaligned_requests_agree_with_a_plain_memory() {
    let cases = std::env::var("EVENKEEL_FUZZ_CASES").ok().and_then(|text| text.parse().ok());
    for seed in 0..cases.unwrap_or(SEEDS) {
        random_requests_do_what_a_plain_memory_does(seed);
    }
}

fn whole(store: &mut Anywhere, asked: Submission) -> Completion {
    store.submit(asked, &mut NoDisk);
    (0..100)
        .find_map(|_| {
            tick(store);
            store.poll()
        })
        .expect("it ends")
}

#[test]
fn failure_below_fails_its_own_request_only() {
    let mut below = later(1);
    below.fails = true;
    let mut store = Anywhere::new(Box::new(below));
    let failed = whole(&mut store, submission(7, WRITE, 100, &[9; 50]));
    assert_eq!((failed.ticket, failed.result), (7, Err(Failure::Io)));
    assert!(failed.buffer.is_some());
    assert_eq!(whole(&mut store, submission(8, WRITE, 100, &[9; 50])).result, Ok(()));
}

#[test]
fn discard_keeps_partial_blocks_and_status_is_cut_to_its_range() {
    let mut store = Anywhere::new(Box::new(later(1)));
    assert_eq!(whole(&mut store, submission(0, WRITE, 0, &[9; 2_048])).result, Ok(()));
    let discard = Operation::Discard { fua: false };
    assert_eq!(whole(&mut store, submission(1, discard, 10, &[0; 1_100])).result, Ok(()));
    assert_eq!(whole(&mut store, submission(2, discard, 1_100, &[0; 20])).result, Ok(()));
    let read = whole(&mut store, submission(3, Operation::Read, 0, &[0; 2_048])).buffer.unwrap();
    let found = &read.bytes()[..2_048];
    assert!(found[..512] == [9; 512] && found[1_024..] == [9; 1_024]);
    assert!(found[512..1_024] == [0; 512]);
    let status = whole(&mut store, submission(4, Operation::BlockStatus, 700, &[0; 1_001]));
    assert_eq!(status.extents.iter().map(|extent| extent.length).sum::<u32>(), 1_001);
}
