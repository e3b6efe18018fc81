//! The pool passes the conformance suite, and its faults begin and end as they should.

use super::*;
use crate::buffer::Buffer;
use crate::conformance;
use crate::disk::DiskOp;
use crate::faulty::FaultyPool;
use crate::faulty::setup::Setup;
use crate::memory::MemoryPool;
use crate::{Completion, Submission};
use evenkeel_core::device::ServiceTime;
use evenkeel_core::feel::Latencies;
use evenkeel_core::io_fault::{IoFaultKind, Share};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_core::volume::{Date, VolumeType};
use evenkeel_os::clock;

const ID: VolumeId = VolumeId::from_bits(7);
const OTHER: VolumeId = VolumeId::from_bits(8);
const SIZE: ByteCount = ByteCount(1 << 20);

fn pool() -> (InjectedPool, Injector) {
    let injector = Injector::default();
    (InjectedPool::new(Arc::new(MemoryPool::new()), injector.clone(), None), injector)
}

fn fault(number: u64, kind: IoFaultKind) -> IoFault {
    let until = clock::monotonic() + Duration::from_secs(3_600);
    IoFault { number, kind, volumes: vec![ID], seed: 1, until }
}

fn open(pool: &InjectedPool, id: VolumeId) -> Box<dyn Store> {
    pool.create(id, SIZE).unwrap();
    pool.open(id, SIZE).unwrap()
}

fn submission(ticket: u64, operation: Operation) -> Submission {
    let buffer = matches!(operation, Operation::Read | Operation::Write { .. });
    let buffer = buffer.then(|| Buffer::new(4_096));
    Submission { ticket, operation, offset: 0, length: 4_096, buffer }
}

fn read(ticket: u64) -> Submission {
    submission(ticket, Operation::Read)
}

fn drain(store: &mut dyn Store) -> Vec<(u64, Result<(), Failure>)> {
    let all = std::iter::from_fn(|| store.poll());
    all.map(|Completion { ticket, result, .. }| (ticket, result)).collect()
}

/// Executes the wait for the timer.
fn fire(store: &mut dyn Store, disk: &mut Vec<DiskOp>) {
    let op = disk.pop().expect("an operation");
    assert!(disk.is_empty(), "more than one timer is waited for");
    let done = op.execute();
    store.disk_done(done, disk);
}

fn share(ppm: u32, ms: u64) -> Share {
    Share { ppm, added: Duration::from_ms(ms) }
}

#[test]
fn conforms_without_faults_and_with_latency_over_a_simulated_device() {
    conformance::check(&pool().0, &mut conformance::blocking);
    let device = Setup::new(4, ServiceTime { base_ns: 1_000, ns_per_kib: 10 });
    let injector = Injector::default();
    let below = Arc::new(FaultyPool::new(Arc::new(MemoryPool::new()), &device));
    let pool = InjectedPool::new(below, injector.clone(), None);
    let reads = Share { ppm: 500_000, added: Duration::from_us(200) };
    let kind = IoFaultKind::Latency { reads, writes: reads };
    injector.set(vec![IoFault { volumes: vec![], ..fault(1, kind) }]);
    conformance::check(&pool, &mut conformance::blocking);
    assert!(injector.hits()[0].1 > 0);
}

#[test]
fn a_paused_volume_answers_nothing_until_the_pause_ends_and_others_answer() {
    let (pool, injector) = pool();
    let mut paused = open(&pool, ID);
    let mut other = open(&pool, OTHER);
    let mut disk = Vec::new();
    injector.set(vec![fault(1, IoFaultKind::Pause)]);
    paused.submit(read(1), &mut disk);
    paused.submit(submission(2, Operation::Flush), &mut disk);
    for _ in 0..3 {
        fire(paused.as_mut(), &mut disk);
        assert_eq!(drain(paused.as_mut()), []);
        assert!(!paused.is_idle(), "nothing wakes the store");
    }
    other.submit(read(3), &mut disk);
    assert_eq!(drain(other.as_mut()), [(3, Ok(()))]);
    injector.set(vec![]);
    fire(paused.as_mut(), &mut disk);
    assert_eq!(drain(paused.as_mut()).len(), 2);
    assert!(paused.is_idle() && disk.is_empty());
}

#[test]
fn a_pause_that_nobody_ends_is_over_at_its_end() {
    let (pool, injector) = pool();
    let mut store = open(&pool, ID);
    let until = clock::monotonic() + Duration::from_ms(30);
    injector.set(vec![IoFault { until, ..fault(1, IoFaultKind::Pause) }]);
    let mut disk = Vec::new();
    store.submit(read(1), &mut disk);
    while drain(store.as_mut()).is_empty() {
        fire(store.as_mut(), &mut disk);
    }
    assert!(clock::monotonic() >= until);
    store.submit(read(2), &mut disk);
    assert_eq!(drain(store.as_mut()), [(2, Ok(()))]);
}

#[test]
fn latency_is_added_to_the_chosen_requests() {
    let (pool, injector) = pool();
    let mut store = open(&pool, ID);
    let kind = IoFaultKind::Latency { reads: share(1_000_000, 20), writes: share(0, 0) };
    injector.set(vec![fault(1, kind)]);
    let mut disk = Vec::new();
    let start = clock::monotonic();
    store.submit(read(1), &mut disk);
    assert_eq!(drain(store.as_mut()), []);
    // Without latency, and not held up by the other.
    store.submit(submission(2, Operation::Write { fua: true }), &mut disk);
    assert_eq!(drain(store.as_mut()), [(2, Ok(()))]);
    fire(store.as_mut(), &mut disk);
    assert_eq!(drain(store.as_mut()), [(1, Ok(()))]);
    assert!(clock::monotonic() >= start + Duration::from_ms(20));
    assert_eq!(injector.hits(), [(1, 1)]);
}

#[test]
fn failed_requests_do_not_reach_the_store_and_the_count_of_a_fault_is_kept() {
    let (pool, injector) = pool();
    let mut store = open(&pool, ID);
    let mut disk = Vec::new();
    let kind = IoFaultKind::Error { reads_ppm: 0, writes_ppm: 1_000_000 };
    let errors = fault(1, kind);
    injector.set(vec![errors.clone()]);
    for ticket in 0..2 {
        let mut write = submission(ticket, Operation::Write { fua: false });
        write.buffer.as_mut().unwrap().bytes_mut().fill(7);
        store.submit(write, &mut disk);
        assert_eq!(drain(store.as_mut()), [(ticket, Err(Failure::Io))]);
        injector.set(vec![fault(2, IoFaultKind::Pause), errors.clone()]);
        injector.set(vec![errors.clone()]);
    }
    assert_eq!(injector.hits(), [(1, 2)]);
    store.submit(read(5), &mut disk);
    let done = store.poll().unwrap();
    assert_eq!(done.result, Ok(()));
    let bytes = done.buffer.unwrap();
    assert!(bytes.bytes().iter().all(|byte| *byte == 0), "a failed write has changed data");
    assert!(disk.is_empty());
}

#[test]
fn choices_are_those_of_the_seed_after_a_restart() {
    let run = || {
        let (pool, injector) = pool();
        let mut store = open(&pool, ID);
        let kind = IoFaultKind::Error { reads_ppm: 300_000, writes_ppm: 0 };
        injector.set(vec![IoFault { until: Instant::from_ns(u64::MAX), ..fault(1, kind) }]);
        let mut disk = Vec::new();
        let failed = |ticket| {
            store.submit(read(ticket), &mut disk);
            drain(store.as_mut())[0].1.is_err()
        };
        (0..200).map(failed).collect::<Vec<bool>>()
    };
    let first = run();
    assert_eq!(first, run());
    assert!((30..90).contains(&first.iter().filter(|is_failed| **is_failed).count()), "{first:?}");
}

fn feel() -> Feel {
    Feel::new(Latencies::as_of(Date::new(2100, 1, 1).unwrap()), 1)
}

/// Submits a request, and waits for its answer by the timer only. Returns the time that it took.
fn took(store: &mut dyn Store, submission: Submission) -> Duration {
    let ticket = submission.ticket;
    let mut disk = Vec::new();
    let start = clock::monotonic();
    store.submit(submission, &mut disk);
    let mut done = drain(store);
    while done.is_empty() {
        fire(store, &mut disk);
        done = drain(store);
    }
    assert_eq!(done, [(ticket, Ok(()))]);
    clock::monotonic().since(start)
}

#[test]
fn volumes_feel_as_their_type_and_those_that_are_not_set_as_the_store_below() {
    let feel = feel();
    assert!(feel.set(ID, VolumeType::Io2, ByteCount(0)));
    assert!(!feel.set(ID, VolumeType::Gp3, SIZE), "set twice");
    assert_eq!(feel.percent_fetched(ID), None);
    let below = Arc::new(MemoryPool::new());
    let pool = InjectedPool::new(below, Injector::default(), Some(feel));
    let mut felt = open(&pool, ID);
    let write = submission(2, Operation::Write { fua: true });
    // The least times of the type.
    assert!(took(felt.as_mut(), read(1)) >= Duration::from_us(300));
    assert!(took(felt.as_mut(), write) >= Duration::from_us(420));
    let mut disk = Vec::new();
    felt.submit(submission(3, Operation::Flush), &mut disk);
    assert_eq!(drain(felt.as_mut()), [(3, Ok(()))], "a flush waits");
    let mut other = open(&pool, OTHER);
    other.submit(read(4), &mut disk);
    assert_eq!(drain(other.as_mut()), [(4, Ok(()))]);
    assert!(disk.is_empty() && felt.is_idle() && other.is_idle());
}

#[test]
fn cold_blocks_stay_fetched_when_the_volume_is_opened_again() {
    let least = Duration::from_ms(4);
    let feel = feel();
    feel.set(ID, VolumeType::Io2, SIZE);
    let pool =
        InjectedPool::new(Arc::new(MemoryPool::new()), Injector::default(), Some(feel.clone()));
    let mut store = open(&pool, ID);
    assert!(took(store.as_mut(), read(1)) >= least);
    assert_eq!(feel.percent_fetched(ID), Some(50));
    drop(store);
    let mut store = pool.open(ID, SIZE).unwrap();
    took(store.as_mut(), read(2));
    assert_eq!(feel.percent_fetched(ID), Some(50), "nothing is fetched for the second read");
    let at_the_end = Submission { offset: SIZE.0 - 4_096, ..read(3) };
    assert!(took(store.as_mut(), at_the_end) >= least);
    assert_eq!(feel.percent_fetched(ID), None);
    feel.forget(ID);
    assert!(feel.set(ID, VolumeType::Io2, SIZE));
    feel.fetched_until(ID, SIZE);
    assert_eq!(feel.percent_fetched(ID), None);
}

#[test]
fn conforms_while_its_volumes_take_their_time() {
    struct Felt(InjectedPool, Feel);
    impl forwarding::ForwardingPool for Felt {
        fn below(&self) -> &dyn Pool {
            &self.0
        }

        fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
            self.1.set(id, VolumeType::Io2, ByteCount(0));
            Pool::open(&self.0, id, size)
        }
    }
    let feel = feel();
    let below = Arc::new(MemoryPool::new());
    let pool = InjectedPool::new(below, Injector::default(), Some(feel.clone()));
    conformance::check(&Felt(pool, feel), &mut conformance::blocking);
}
