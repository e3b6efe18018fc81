//! Runs the engine's tests with its agent behind TCP and TLS: a remote agent behaves as one in the
//! same process. Also tests that a data plane serves without control's connection.
//!
//! The engine's `cores` and `data_path` are left out: their requests do not pass the agent, and all
//! their commands are in the modules below, too.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too
#![allow(clippy::duplicate_mod, reason = "each of these tests has its own support")]

#[path = "support/mod.rs"]
mod link;

#[path = "../../engine/tests/background.rs"]
mod background;
#[path = "../../engine/tests/clears.rs"]
mod clears;
#[path = "../../engine/tests/failure.rs"]
mod failure;
#[path = "../../engine/tests/gone.rs"]
mod gone;
#[path = "../../engine/tests/incremental.rs"]
mod incremental;
#[path = "../../engine/tests/release.rs"]
mod release;
#[path = "../../engine/tests/sharing.rs"]
mod sharing;
#[path = "../../engine/tests/slow_pool.rs"]
mod slow_pool;
#[path = "../../engine/tests/snapshot_sets.rs"]
mod snapshot_sets;
#[path = "../../engine/tests/snapshots.rs"]
mod snapshots;
#[path = "../../engine/tests/support/mod.rs"]
mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::request::Operation;
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{Agent, Command, FailedKind, Reply};
use link::{Relay, connect, kind, serve, up};
use std::sync::Arc;
use support::{Answer, Served, unlimited};

/// An engine's agent as a value of its own.
struct Direct(Arc<dyn Agent>);

impl Agent for Direct {
    fn call(&self, command: Command) -> Reply {
        self.0.call(command)
    }
}

#[test]
fn volumes_are_served_while_control_is_away() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::new(Direct(served.engine.as_ref().unwrap().agent()));
    let server = serve(folder.path(), &agent);
    let relay = Relay::to(server.address(), Vec::new());
    let control = up(connect(relay.address, 1));
    let id = VolumeId::from_bits(1);
    assert_eq!(control.call(Command::Create(unlimited(id, 1 << 20))), Reply::Done);
    let mut client = served.connect(id);
    let block = vec![0x5a; 4_096];
    for round in 0..20 {
        relay.cut();
        let offset = round * 4_096;
        let write = Operation::Write { fua: false };
        assert_eq!(client.ask(write, offset, 4_096, &block), Answer::Done(Vec::new()));
        assert_eq!(client.ask(Operation::Read, offset, 4_096, &[]), Answer::Done(block.clone()));
    }
    // It serves without any control, even a new client.
    drop(control);
    let mut other = served.connect(id);
    assert_eq!(other.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(block.clone()));
    // The next leader finds all volumes.
    let control = up(connect(server.address(), 2));
    let Reply::Report(report) = control.call(Command::Report) else { panic!("no report") };
    assert_eq!((report.volumes.len(), report.volumes[0].connections), (1, 2));
    // The listener can stop, and start again, while the data plane continues.
    drop(server);
    assert_eq!(client.ask(Operation::Read, 0, 4_096, &[]), Answer::Done(block));
    let server = serve(folder.path(), &agent);
    let control = up(connect(server.address(), 3));
    let of_nothing = Command::SetBalances(VolumeId::from_bits(9), Balances::default());
    assert_eq!(kind(control.call(of_nothing)), FailedKind::NotFound);
}
