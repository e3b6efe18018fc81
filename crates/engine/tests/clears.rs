//! Discards and writes of zeroes of any length: they delay no neighbour, cost in proportion to
//! their length, and leave the kernel's workers to others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{CLEARED_BYTES_MAX, CLEARS_IN_FLIGHT_MAX};
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::disk::Disk;
use evenkeel_store::forwarding::{ForwardingPool, ForwardingStore};
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Completion, Pool, Store, StoreError, Submission};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};
use support::{ANSWER_MAX, Answer, Nbd, Served, local_pool, paced, unlimited};

const GIB: u64 = 1 << 30;
/// Time after which a closed connection must be gone, on the slowest machine.
const GONE_BY_NS: u64 = 60_000_000_000;
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
/// The longest range of a request, in whole blocks.
const LONGEST: u32 = u32::MAX - 4_095;

/// Submissions to stores, in order, and the gate at which the first operation that clears waits.
#[derive(Default)]
struct Seen {
    submitted: Vec<(VolumeId, Operation, u32)>,
    clearing: u32,
    clearing_max: u32,
    gate: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

struct SeenStore {
    below: Box<dyn Store>,
    id: VolumeId,
    clears: BTreeSet<u64>,
    seen: Arc<Mutex<Seen>>,
}

fn clears(operation: Operation) -> bool {
    matches!(operation, Operation::Discard { .. } | Operation::WriteZeroes { .. })
}

impl ForwardingStore for SeenStore {
    fn below(&self) -> &dyn Store {
        self.below.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.below.as_mut()
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let Submission { ticket, operation, length, .. } = submission;
        let mut seen = self.seen.lock().unwrap();
        seen.submitted.push((self.id, operation, length));
        if clears(operation) {
            seen.clearing += 1;
            seen.clearing_max = seen.clearing_max.max(seen.clearing);
            self.clears.insert(ticket);
        }
        let gate = if clears(operation) { seen.gate.take() } else { None };
        drop(seen);
        if let Some((reached, open)) = gate {
            reached.send(()).unwrap();
            open.recv_timeout(ANSWER_MAX).unwrap();
        }
        self.below.submit(submission, disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        let done = self.below.poll()?;
        self.seen.lock().unwrap().clearing -= u32::from(self.clears.remove(&done.ticket));
        Some(done)
    }
}

struct SeenPool(Box<dyn Pool>, Arc<Mutex<Seen>>);

impl ForwardingPool for SeenPool {
    fn below(&self) -> &dyn Pool {
        self.0.as_ref()
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let below = self.0.open(id, size)?;
        let seen = Arc::clone(&self.1);
        Ok(Box::new(SeenStore { below, id, clears: BTreeSet::new(), seen }))
    }
}

fn id(number: u128) -> VolumeId {
    VolumeId::from_bits(number)
}

fn zeroes(keep_allocated: bool) -> Operation {
    Operation::WriteZeroes { fua: false, keep_allocated, only_if_fast: false }
}

/// Runs a test with both drivers on the store in memory and on the local store.
fn everywhere(mut test: impl FnMut(IoMode, &Served, &Arc<Mutex<Seen>>)) {
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let local = local_pool(folder.path());
        for pool in [Box::new(MemoryPool::new()) as Box<dyn Pool>, Box::new(local)] {
            let seen = Arc::new(Mutex::new(Seen::default()));
            let served = Served::new(io, Arc::new(SeenPool(pool, Arc::clone(&seen))));
            test(io, &served, &seen);
        }
    }
}

/// Counts the pieces that are cleared before a neighbour's read, which waits already, is served.
#[test]
fn a_neighbour_is_served_between_the_pieces_of_four_gibibytes() {
    let requests = [Operation::Discard { fua: true }, zeroes(false)];
    for operation in requests {
        everywhere(|io, served, seen| {
            // The first and the third volume share a core.
            (1..=3).for_each(|number| served.apply(unlimited(id(number), 4 * GIB)));
            let mut clearing = served.connect(id(1));
            let mut neighbour = served.connect(id(3));
            // Its connection has reached its core once the first request is answered.
            neighbour.ask(Operation::Read, 0, 4_096, &[]);
            seen.lock().unwrap().submitted.clear();
            let (reached, is_reached) = mpsc::channel();
            let (opened, open) = mpsc::channel();
            seen.lock().unwrap().gate = Some((reached, open));
            clearing.send(operation, 0, LONGEST, &[]);
            is_reached.recv_timeout(ANSWER_MAX).unwrap();
            neighbour.send(Operation::Read, 0, 4_096, &[]);
            opened.send(()).unwrap();
            assert_eq!(neighbour.receive().unwrap().1, Answer::Done(vec![0; 4_096]));
            assert_eq!(clearing.receive().unwrap().1, Answer::Done(Vec::new()));
            let submitted = std::mem::take(&mut seen.lock().unwrap().submitted);
            let before = submitted.iter().take_while(|(of, ..)| *of == id(1));
            let bytes: u64 = before.map(|(.., length)| u64::from(*length)).sum();
            let most = 2 * u64::from(CLEARED_BYTES_MAX);
            assert!(bytes <= most, "{bytes} bytes of {operation:?} first, {io:?}");
            // All of the range is cleared, and made durable once.
            let pieces: Vec<_> = submitted.iter().filter(|(of, ..)| *of == id(1)).collect();
            assert_eq!(pieces.iter().map(|(.., length)| length).sum::<u32>(), LONGEST);
            let durable = pieces.iter().filter(|(_, operation, _)| operation.is_durable()).count();
            assert_eq!(durable, usize::from(operation.is_durable()));
            assert_eq!(served.report(id(1)).operations, 64);
        });
    }
}

/// A volume's own requests are served between the pieces, too.
#[test]
fn a_long_discard_does_not_hold_up_its_own_volume() {
    everywhere(|io, served, seen| {
        served.apply(paced(id(1), 4 * GIB, 10));
        let mut clearing = served.connect(id(1));
        let mut reading = served.connect(id(1));
        clearing.send(Operation::Discard { fua: false }, 0, LONGEST, &[]);
        let read = reading.ask(Operation::Read, 0, 4_096, &[]);
        assert_eq!(read, Answer::Done(vec![0; 4_096]), "{io:?}");
        let pieces = seen.lock().unwrap().submitted.len() - 1;
        assert!(pieces < 32, "after {pieces} of 64 pieces");
        // The client is gone: the rest is neither cleared nor charged.
        drop(clearing);
        let start = Clock::start();
        while served.report(id(1)).connections > 1 {
            assert!(start.now().ns < GONE_BY_NS, "its end is not seen");
        }
        let cleared = seen.lock().unwrap().submitted.len();
        assert_eq!(reading.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(vec![0; 4_096]));
        assert_eq!(seen.lock().unwrap().submitted.len(), cleared + 1);
    });
}

#[test]
fn zeroes_that_are_written_are_charged_as_writes() {
    let served = Served::new(IoMode::Pread, Arc::new(MemoryPool::new()));
    served.apply(unlimited(id(1), GIB));
    let mut client = served.connect(id(1));
    let done = Answer::Done(Vec::new());
    assert_eq!(client.ask(zeroes(true), 0, 8 << 20, &[]), done);
    let report = served.report(id(1));
    assert_eq!((report.bytes_written, report.operations), (8 << 20, 32));
    assert_eq!(client.ask(zeroes(false), 0, 8 << 20, &[]), done);
    let report = served.report(id(1));
    assert_eq!((report.bytes_written, report.operations), (8 << 20, 33));
}

#[test]
fn clears_in_flight_are_limited_for_each_core() {
    everywhere(|io, served, seen| {
        (1..=6).for_each(|number| served.apply(unlimited(id(number), 4 * GIB)));
        let mut clients: Vec<Nbd> = (1..=6).map(|number| served.connect(id(number))).collect();
        for client in &mut clients {
            for number in 0..32 {
                client.send(Operation::Discard { fua: false }, number << 20, 1 << 20, &[]);
            }
        }
        for client in &mut clients {
            for _ in 0..32 {
                assert_eq!(client.receive().unwrap().1, Answer::Done(Vec::new()));
            }
        }
        // The limit is per core, and there are two cores.
        let most = seen.lock().unwrap().clearing_max;
        assert!(most <= 2 * CLEARS_IN_FLIGHT_MAX, "{most} at a time, {io:?}");
    });
}
