//! Divides the window of the shared device: each node receives its part and reports its use.
//!
//! Each node has a thread, so that a node that hangs does not delay the others. The part of such a
//! node stays unchanged, and its reservations are kept for it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::convert::saturating;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::sharing::division::{DIVIDE_EVERY, Division};
use evenkeel_core::time::Instant;
use evenkeel_os::clock;
use evenkeel_wire::agent::{Command, Reply};
use tracing::warn;

use super::Fleet;

const ROUND: Duration = Duration::from_nanos(DIVIDE_EVERY.ns);

pub(super) fn now() -> Instant {
    Instant::from_ns(saturating(clock::since_boot().as_nanos()))
}

impl Fleet {
    fn division(&self) -> MutexGuard<'_, Division> {
        // Each change of the division is complete before anything can panic.
        self.division.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a node its part of the device, and records the use that it reports.
    pub(super) fn divide_with(&self, number: NodeId, now: Instant) {
        let (node, nodes) = {
            let fleet_state = self.state();
            let may_serve =
                |number: &NodeId| (fleet_state.load(*number) > 0, fleet_state.up(*number));
            let nodes = fleet_state.nodes.keys().map(|number| (*number, may_serve(number)));
            let there = nodes.filter(|(_, (has_volumes, up))| *has_volumes || up.is_some());
            let nodes: BTreeMap<NodeId, bool> =
                there.map(|(number, (has_volumes, _))| (number, has_volumes)).collect();
            (fleet_state.up(number), nodes)
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

    /// Returns the present part of a node in the device, including the lent part, in millionths;
    /// `None` if the device is not divided.
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
                    Err(error) => {
                        warn!(node = number.0, %error, "the thread of a node's part cannot start")
                    }
                }
            }
            clock::pause(ROUND);
        }
        // The threads of nodes are not joined, since a call may hang. They end by themselves.
    };
    std::thread::Builder::new().name("fleet-divide".to_owned()).spawn(look)
}

/// Returns the fleet, unless it is closed.
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
