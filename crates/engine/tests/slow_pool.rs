//! A pool that hangs while it creates, grows or deletes a volume's bytes delays the commands of
//! that volume and no others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Pool, StoreError, forwarding};
use evenkeel_wire::agent::{Command, CreditReport, Reply, VolumeState};
use support::{Served, unlimited};

const MIB: u64 = 1 << 20;

/// The volume whose bytes make the pool hang, and whether it hangs now.
#[derive(Default)]
struct Hanging {
    on: Option<VolumeId>,
    is_held: bool,
}

/// A pool over memory whose work on one volume waits until the test releases it.
struct Slow {
    inner: MemoryPool,
    hanging: Mutex<Hanging>,
    changed: Condvar,
}

impl Slow {
    fn new() -> Self {
        Self { inner: MemoryPool::new(), hanging: Mutex::default(), changed: Condvar::new() }
    }

    fn hang_on(&self, id: VolumeId) {
        *self.hanging.lock().unwrap() = Hanging { on: Some(id), is_held: false };
    }

    fn wait_until_held(&self) {
        let hanging = self.hanging.lock().unwrap();
        drop(self.changed.wait_while(hanging, |hanging| !hanging.is_held).unwrap());
    }

    fn let_go(&self) {
        *self.hanging.lock().unwrap() = Hanging::default();
        self.changed.notify_all();
    }

    fn work(&self, id: VolumeId) {
        let mut hanging = self.hanging.lock().unwrap();
        if hanging.on == Some(id) {
            hanging.is_held = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(hanging, |hanging| hanging.on == Some(id)).unwrap());
        }
    }
}

impl forwarding::ForwardingPool for Slow {
    fn below(&self) -> &dyn Pool {
        &self.inner
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        self.work(id);
        self.inner.create(id, size)
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        self.work(id);
        self.inner.resize(id, from, to)
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        self.work(id);
        self.inner.delete(id)
    }
}

fn grown(state: &VolumeState) -> Command {
    let more = VolumeState { size: ByteCount(2 * state.size.0), ..state.clone() };
    Command::Grow(more, state.size)
}

/// Runs each kind of command on another volume, from its creation to its deletion.
fn everything_else_goes_on(served: &Served, number: u128) {
    let other = unlimited(VolumeId::from_bits(number), MIB);
    let lease = CreditReport { volumes: vec![(other.id, Balances::default())], hosts: vec![] };
    for command in [
        Command::Create(other.clone()),
        Command::Apply(other.clone()),
        grown(&other),
        Command::SetBalances(other.id, Balances::default()),
        Command::Delete(other.id),
    ] {
        let reply = served.call(command.clone());
        assert!(matches!(reply, Reply::Done), "{command:?}: {reply:?}");
    }
    assert!(matches!(served.call(Command::Lease(lease)), Reply::Balances(_)));
    assert!(matches!(served.call(Command::Report), Reply::Report(_)));
}

#[test]
fn a_pool_that_hangs_on_one_volume_holds_up_no_other() {
    let slow = Arc::new(Slow::new());
    let served = Served::new(IoMode::Pread, Arc::clone(&slow) as Arc<dyn Pool>);
    let state = unlimited(VolumeId::from_bits(1), MIB);
    let bigger = VolumeState { size: ByteCount(2 * MIB), ..state.clone() };
    let steps = [Command::Create(state.clone()), grown(&state), Command::Delete(state.id)];
    for (number, command) in (10..).zip(steps) {
        slow.hang_on(state.id);
        std::thread::scope(|scope| {
            let under_way = scope.spawn(|| served.call(command.clone()));
            slow.wait_until_held();
            // No command here ends if it waits for the volume that hangs.
            everything_else_goes_on(&served, number);
            assert!(!under_way.is_finished());
            slow.let_go();
            let reply = under_way.join().unwrap();
            assert!(matches!(reply, Reply::Done), "{command:?}: {reply:?}");
        });
    }
    // The volume is deleted without a trace: it can be created anew.
    assert!(matches!(served.call(Command::Create(bigger)), Reply::Done));
}

/// A command of the same volume waits for the one in progress, and then finds its result.
#[test]
fn commands_of_one_volume_keep_their_order() {
    let slow = Arc::new(Slow::new());
    let served = Served::new(IoMode::Pread, Arc::clone(&slow) as Arc<dyn Pool>);
    let state = unlimited(VolumeId::from_bits(1), MIB);
    slow.hang_on(state.id);
    let begins = Barrier::new(2);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| served.call(Command::Create(state.clone())));
        slow.wait_until_held();
        let grow = scope.spawn(|| {
            begins.wait();
            served.call(grown(&state))
        });
        begins.wait();
        std::thread::park_timeout(Duration::from_millis(20));
        assert!(!grow.is_finished(), "it waits for its turn");
        slow.let_go();
        assert!(matches!(create.join().unwrap(), Reply::Done));
        let reply = grow.join().unwrap();
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    });
    let listed = slow.list().unwrap();
    assert_eq!(listed, [(state.id, ByteCount(2 * MIB))]);
}
