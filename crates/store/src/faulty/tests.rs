//! The pool passes the conformance suite, and its answers are in time.

use super::setup::Stalls;
use super::*;
use crate::buffer::Buffer;
use crate::conformance::{self, RingDisk};
use crate::disk::{BlockingDisk, DiskDone, DiskOp};
use crate::local::pool::LocalPool;
use crate::memory::MemoryPool;
use crate::{Completion, Submission};
use evenkeel_core::device::ServiceTime;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::time::Duration;
use std::io::Write;

fn quick() -> Setup {
    Setup::new(4, ServiceTime { base_ns: 1_000, ns_per_kib: 10 })
}

fn over_memory(setup: &Setup) -> FaultyPool {
    FaultyPool::new(Arc::new(MemoryPool::new()), setup)
}

#[test]
fn conforms_over_memory_with_blocking_calls() {
    conformance::check(&over_memory(&quick()), &mut conformance::blocking);
}

#[test]
fn conforms_over_a_local_pool_on_io_uring() {
    let parent = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalPool::in_folder(parent.path(), None).unwrap());
    let Ok(mut disk) = RingDisk::new() else {
        let _ = writeln!(std::io::stdout(), "SKIPPED: io_uring is not available to this process");
        return;
    };
    let pool = FaultyPool::new(local, &quick());
    conformance::check(&pool, &mut move |store, submission| disk.run(store, submission));
}

#[test]
fn conforms_over_a_local_pool_while_it_stalls() {
    let parent = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalPool::in_folder(parent.path(), None).unwrap());
    let stalls = Some(Stalls { every_ns: 3_000_000, length_ns: 1_000_000 });
    let pool = FaultyPool::new(local, &Setup { stalls, ..quick() });
    conformance::check(&pool, &mut conformance::blocking);
}

const ID: VolumeId = VolumeId::from_bits(7);
const SIZE: ByteCount = ByteCount(1 << 20);

fn open(pool: &FaultyPool) -> Box<dyn Store> {
    pool.create(ID, SIZE).unwrap();
    pool.open(ID, SIZE).unwrap()
}

fn read(ticket: u64) -> Submission {
    let buffer = Some(Buffer::new(4_096));
    Submission { ticket, operation: Operation::Read, offset: 0, length: 4_096, buffer }
}

fn drain(store: &mut dyn Store) -> Vec<Completion> {
    std::iter::from_fn(|| store.poll()).collect()
}

/// Executes the only operation of the timer.
fn fire(store: &mut dyn Store, disk: &mut Vec<DiskOp>) {
    let op = disk.pop().expect("an operation");
    assert!(disk.is_empty(), "more than one timer is waited for");
    let done = op.execute();
    store.disk_done(done, disk);
}

#[test]
fn answers_come_no_earlier_than_the_device_gives_them_and_in_its_order() {
    let read_time = ServiceTime { base_ns: 10_000_000, ns_per_kib: 0 };
    let pool = over_memory(&Setup::new(2, read_time));
    let mut store = open(&pool);
    let mut disk = Vec::new();
    let start = clock::monotonic();
    for ticket in 0..4 {
        store.submit(read(ticket), &mut disk);
        assert!(store.poll().is_none(), "answered at once");
    }
    let mut order = Vec::new();
    while order.len() < 4 {
        fire(store.as_mut(), &mut disk);
        for completion in drain(store.as_mut()) {
            let rounds = 1 + order.len() as u64 / 2;
            assert!(clock::monotonic() >= start + Duration::from_ms(10 * rounds), "{order:?}");
            assert_eq!(completion.result, Ok(()));
            assert!(completion.buffer.is_some());
            order.push(completion.ticket);
        }
    }
    assert_eq!(order, [0, 1, 2, 3]);
    assert!(disk.is_empty(), "a timer is waited for and nothing is owed");
}

/// Two volumes of a pool share the device: its one channel takes their requests in turn.
#[test]
fn volumes_share_the_device() {
    let read_time = ServiceTime { base_ns: 10_000_000, ns_per_kib: 0 };
    let pool = over_memory(&Setup::new(1, read_time));
    let other = VolumeId::from_bits(8);
    pool.create(other, SIZE).unwrap();
    let mut first = open(&pool);
    let mut second = pool.open(other, SIZE).unwrap();
    let mut ops = Vec::new();
    let mut two = Vec::new();
    let start = clock::monotonic();
    first.submit(read(1), &mut ops);
    second.submit(read(2), &mut two);
    while second.poll().is_none() {
        fire(second.as_mut(), &mut two);
    }
    assert!(clock::monotonic() >= start + Duration::from_ms(20));
}

/// The store below is slower than the device: the timer is not waited for without need, and the
/// last answer is not given while it is.
#[test]
fn an_answer_from_below_that_comes_late_is_given_at_once() {
    let parent = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalPool::in_folder(parent.path(), None).unwrap());
    let pool = FaultyPool::new(local, &quick());
    let mut store = open(&pool);
    let mut disk = Vec::new();
    // Ranges that were never written are read without the disk, so one is written first.
    let operation = Operation::Write { fua: true };
    conformance::blocking(store.as_mut(), Submission { operation, ..read(0) });
    store.submit(read(1), &mut disk);
    let of_timer = |op: &DiskOp| op.token == u64::MAX;
    let timer = disk.iter().position(of_timer).map(|position| disk.remove(position)).unwrap();
    store.disk_done(timer.execute(), &mut disk);
    assert!(store.poll().is_none());
    assert!(!disk.iter().any(of_timer), "there is nothing to wait for");
    let op = disk.pop().unwrap();
    store.disk_done(op.execute(), &mut disk);
    assert_eq!(store.poll().unwrap().ticket, 1);
    // The store below ends first, and the timer has not been noticed.
    store.submit(read(2), &mut disk);
    let of_below =
        disk.iter().position(|op| !of_timer(op)).map(|position| disk.remove(position)).unwrap();
    let timer = disk.pop().unwrap();
    let fired = timer.execute();
    store.disk_done(of_below.execute(), &mut disk);
    assert!(store.poll().is_none(), "the disk still waits for the timer");
    store.disk_done(fired, &mut disk);
    assert_eq!(store.poll().unwrap().ticket, 2);
    assert!(disk.is_empty());
}

/// A timer that cannot be waited for loses the timing, but no answer.
#[test]
fn failed_timer_still_completes_its_request() {
    let read_time = ServiceTime { base_ns: 60_000_000_000, ns_per_kib: 0 };
    let pool = over_memory(&Setup::new(1, read_time));
    let mut store = open(&pool);
    let mut disk = Vec::new();
    store.submit(read(1), &mut disk);
    let op = disk.pop().unwrap();
    let failed = DiskDone { token: op.token, result: Err(rustix::io::Errno::NOMEM), buffer: None };
    store.disk_done(failed, &mut disk);
    assert_eq!(store.poll().unwrap().ticket, 1);
}

#[test]
fn configured_share_of_operations_fails_the_same_for_a_seed() {
    let failing = |seed: u64| {
        let pool = over_memory(&Setup { fail_ppm: 100_000, seed, ..quick() });
        let mut store = open(&pool);
        let mut disk = BlockingDisk::default();
        let mut failed = Vec::new();
        for ticket in 0..1_000 {
            store.submit(read(ticket), &mut disk);
            while let Some(done) = disk.poll() {
                store.disk_done(done, &mut disk);
            }
            let completion = store.poll().unwrap();
            assert!(completion.buffer.is_some());
            match completion.result {
                Ok(()) => {}
                Err(failure) => {
                    assert_eq!(failure, Failure::Io);
                    failed.push(completion.ticket);
                }
            }
        }
        failed
    };
    let failed = failing(1);
    assert!((60..150).contains(&failed.len()), "{}", failed.len());
    assert_eq!(failed, failing(1));
    assert_ne!(failed, failing(2));
}

#[test]
fn pool_description_includes_the_device() {
    assert_eq!(
        over_memory(&quick()).describe(),
        "memory (nothing survives a restart), behind a device of \
         channels=4,read_us=1,read_ns_per_byte=0.009765625"
    );
}
