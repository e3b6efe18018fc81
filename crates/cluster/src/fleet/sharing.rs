//! The window of the device below all nodes: each node is asked what it uses, and told its part.
//!
//! Each node has a thread of its own for that, so one that hangs holds up no other. Its part stays
//! what it was told last, and what it has reserved is kept for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::convert::saturating;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::sharing::division::{DIVIDE_EVERY, Division};
use evenkeel_core::time::Instant;
use evenkeel_telemetry::clock;
use evenkeel_wire::agent::{Command, Reply};
use tracing::warn;

use super::Fleet;

const ROUND: Duration = Duration::from_nanos(DIVIDE_EVERY.ns);

pub(super) fn now() -> Instant {
    Instant::from_ns(saturating(clock::since_boot().as_nanos()))
}

impl Fleet {
    fn division(&self) -> MutexGuard<'_, Division> {
        // Each change of it is whole before anything can panic.
        self.division.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a node its part of the device, and takes in how it uses it.
    pub(super) fn divide_with(&self, number: NodeId, now: Instant) {
        let (node, nodes) = {
            let books = self.books();
            let may_serve = |number: &NodeId| (books.load(*number) > 0, books.up(*number));
            let nodes = books.seats.keys().map(|number| (*number, may_serve(number)));
            let there = nodes.filter(|(_, (has_volumes, up))| *has_volumes || up.is_some());
            let nodes: BTreeMap<NodeId, bool> =
                there.map(|(number, (has_volumes, _))| (number, has_volumes)).collect();
            (books.up(number), nodes)
        };
        let Some(node) = node else { return };
        let part = {
            let mut division = self.division();
            division.set_nodes(&nodes);
            division.part(number, now)
        };
        if let Reply::Use(said) = node.call(Command::Divide(part)) {
            self.division().heard(number, now, &said);
        }
    }

    /// The part of the device that a node has now, with what is lent to it, in millionths; `None`
    /// if the device is not divided.
    pub(super) fn part_of(&self, number: NodeId) -> Option<u32> {
        let part = self.division().part(number, now());
        part.map(|part| part.lasting_ppm.saturating_add(part.lent_ppm))
    }
}

/// Divides the device until the fleet is closed.
pub(super) fn start(fleet: &Arc<Fleet>) -> io::Result<JoinHandle<()>> {
    let fleet = Arc::downgrade(fleet);
    let look = move || {
        let mut workers = BTreeMap::<NodeId, JoinHandle<()>>::new();
        while let Some(there) = open(&fleet) {
            let numbers = there.numbers();
            drop(there);
            for number in numbers {
                if workers.get(&number).is_some_and(|worker| !worker.is_finished()) {
                    continue;
                }
                match worker(number, Weak::clone(&fleet)) {
                    Ok(worker) => _ = workers.insert(number, worker),
                    Err(error) => warn!(node = number.0, %error, "has no thread for its part"),
                }
            }
            clock::pause(ROUND);
        }
        // A call that hangs holds up nobody: the threads end by themselves.
    };
    std::thread::Builder::new().name("fleet-divide".to_owned()).spawn(look)
}

/// The fleet, unless it is closed.
fn open(fleet: &Weak<Fleet>) -> Option<Arc<Fleet>> {
    fleet.upgrade().filter(|fleet| !fleet.is_over())
}

fn worker(number: NodeId, fleet: Weak<Fleet>) -> io::Result<JoinHandle<()>> {
    let work = move || {
        while let Some(there) = open(&fleet) {
            there.divide_with(number, now());
            drop(there);
            clock::pause(ROUND);
        }
    };
    std::thread::Builder::new().name("fleet-part".to_owned()).spawn(work)
}
