//! A core that panics: it is reported, no caller waits for it in vain, and the other cores stop in
//! order.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::disk::Disk;
use evenkeel_store::forwarding::{ForwardingPool, ForwardingStore};
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Pool, Store, StoreError, Submission};
use evenkeel_wire::agent::{Command, FailedKind, Reply};
use std::sync::{Arc, mpsc};
use support::{ANSWER_MAX, Answer, Served, unlimited};

/// A store with a bug: it panics at the first flush.
struct Faulty(Box<dyn Store>);

impl ForwardingStore for Faulty {
    fn below(&self) -> &dyn Store {
        self.0.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.0.as_mut()
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        assert!(submission.operation != Operation::Flush, "a bug");
        self.0.submit(submission, disk);
    }
}

struct FaultyPool(MemoryPool);

impl ForwardingPool for FaultyPool {
    fn below(&self) -> &dyn Pool {
        &self.0
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        self.0.open(id, size).map(|store| Box::new(Faulty(store)) as Box<dyn Store>)
    }
}

#[test]
fn panic_of_a_core_is_reported_and_the_others_end_in_order() {
    for io in [IoMode::Auto, IoMode::Pread] {
        let mut served = Served::new(io, Arc::new(FaultyPool(MemoryPool::new())));
        let [first, second] = [1, 2].map(VolumeId::from_bits);
        served.apply(unlimited(first, 1 << 20));
        served.apply(unlimited(second, 1 << 20));
        let (tell, told) = mpsc::channel();
        let engine = served.engine.as_ref().unwrap();
        engine.when_failed(move |what| tell.send(what).unwrap());
        let mut doomed = served.connect(first);
        let mut other = served.connect(second);
        assert!(told.try_recv().is_err(), "nothing has failed yet");
        doomed.send(Operation::Flush, 0, 0, &[]);
        let what = told.recv_timeout(ANSWER_MAX).unwrap();
        let expected = "the data plane's thread core-0 has ended: it panicked, see the log";
        assert_eq!(what, expected);
        // Commands to the core fail at once.
        let Reply::Failed(failed) = served.call(Command::Report) else { panic!("it answered") };
        assert_eq!(failed.kind, FailedKind::Down);
        // A late registration gets the failure, too.
        let (tell, told) = mpsc::channel();
        let engine = served.engine.take().unwrap();
        engine.when_failed(move |what| tell.send(what).unwrap());
        assert_eq!(told.try_recv().unwrap(), expected);
        assert_eq!(other.ask(Operation::Read, 0, 512, &[]), Answer::Done(vec![0; 512]));
        engine.shutdown();
        assert!(other.receive().is_none(), "closed in order");
    }
}

#[test]
fn an_end_that_was_asked_for_is_no_failure() {
    let mut served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    let (tell, told) = mpsc::channel();
    let engine = served.engine.take().unwrap();
    engine.when_failed(move |what| tell.send(what).unwrap());
    engine.shutdown();
    assert!(told.recv().is_err(), "the sender is gone, and was not used");
}
