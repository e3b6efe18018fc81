//! An agent for all data planes of a cluster: it sends each command to the node concerned.
//!
//! Each volume has a home, the one node that serves it. The fleet keeps the last applied state of
//! every volume and host. It applies that state again at a node that was restarted, and at the new
//! home of a volume whose node is lost.
//!
//! Invariants:
//!
//! - A volume is applied at a node only if its previous node has released it or is fenced: a lost
//!   node is fenced at the store before any of its volumes is applied elsewhere.
//! - A volume that moves keeps its exact credit balances. A volume whose node is lost begins with
//!   its unleased balance, which is never more than the exact one.
//! - The volumes of a host with limits are at one node, so that its limits hold over all of them.
//! - etcd has the home of a volume before the volume is applied there.
//!
//! | file | contents |
//! | --- | --- |
//! | `state` | the known state of nodes, volumes and hosts; the choice of a volume's home |
//! | `route` | commands of the control plane, and the nodes that execute each |
//! | `control` | the [`Nodes`](evenkeel_control::nodes::Nodes) of the control plane |
//! | `moves` | moves of volumes and hosts between nodes |
//! | `failover` | new nodes, lost nodes and drained nodes |
//! | `capacity` | the capacity that may be sold with all nodes together |
//! | `sharing` | the parts of nodes in the window of their shared device |

mod capacity;
mod control;
mod failover;
mod moves;
mod route;
mod sharing;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_control::key_locks::KeyLocks;
use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::DomainFloor;
use evenkeel_core::qos::sharing::division::Division;
use evenkeel_wire::agent::{Agent, Failed, FailedKind};

use self::state::FleetState;
use super::homes::Changes;
use super::nodes::Member;
use crate::etcd::upkeep::MemberSeen;

/// The state of the connection to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The node executes commands.
    Up,
    /// The node has a new process with this incarnation, which has received no commands yet.
    New(u128),
    /// There is no connection, for this reason.
    Away(String),
    /// The node obeys another leader, for this reason.
    Deposed(String),
}

/// A node's data plane.
pub trait Node: Agent {
    /// Returns the state of the connection.
    fn standing(&self) -> Standing;
    /// Lets the process of this incarnation execute commands. The caller knows that it has received
    /// none before.
    fn accept(&self, incarnation: u128);
    /// Ends the connection. Calls without an answer fail at once.
    fn close(&self);
}

/// The operations of the cluster that a fleet uses.
pub trait Cluster: Send + Sync {
    /// Returns the nodes, as etcd has them.
    fn members(&self) -> Vec<Member>;
    /// Connects to the process of a node, or to its last one if its lease has ended.
    ///
    /// # Errors
    /// If the node cannot be reached; the text has the reason.
    fn connect(&self, member: &Member) -> Result<Arc<dyn Node>, String>;
    /// Fences the processes of a node at the store, so that they write nothing more.
    ///
    /// # Errors
    /// If the node lives, this process does not lead, or the store fails; the text has the reason.
    fn fence(&self, node: &str) -> Result<(), String>;
    /// Writes the homes of volumes to etcd, if this process leads.
    ///
    /// # Errors
    /// If etcd does not answer or this process does not lead; the text has the reason.
    fn store_homes(&self, changes: &Changes) -> Result<(), String>;
    /// Sets whether a node is to have volumes. Returns whether the node exists.
    ///
    /// # Errors
    /// If etcd does not answer; the text has the reason.
    fn set_state(&self, node: &str, state: State) -> Result<bool, String>;
    /// Returns the latest measurement of each member of etcd.
    fn etcd(&self) -> Vec<MemberSeen>;
    /// Returns the node of this process.
    fn here(&self) -> NodeId;
    /// Returns the number of this process's term as the leader. It is higher than that of every
    /// earlier term.
    fn term(&self) -> u64;
}

/// See the module's text.
pub struct Fleet {
    cluster: Arc<dyn Cluster>,
    state: Mutex<FleetState>,
    /// Locks of volumes and hosts, granted in order of arrival.
    keys: KeyLocks,
    is_over: AtomicBool,
    division: Mutex<Division>,
    /// The resources of the nodes' machines, by their last reports.
    floors: Mutex<BTreeMap<NodeId, DomainFloor>>,
}

impl Fleet {
    /// Creates a fleet whose volumes have these homes. The caller must call
    /// [`Self::check_nodes`] several times a second.
    #[must_use]
    pub fn new(cluster: Arc<dyn Cluster>, homes: BTreeMap<VolumeId, NodeId>) -> Self {
        let state = Mutex::new(FleetState::new(homes));
        let division = Mutex::new(Division::new(sharing::now()));
        let (keys, is_over, floors) = Default::default();
        Self { cluster, state, keys, is_over, division, floors }
    }

    /// Ends the fleet, because this process no longer leads. Later calls do nothing, and calls that
    /// wait for a node fail at once: a node's answer may take as long as its disks.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        self.keys.close();
        let fleet_state = self.state();
        fleet_state
            .nodes
            .values()
            .filter_map(|node_state| node_state.node.as_ref())
            .for_each(|node| node.close());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, FleetState> {
        // Each change of the state is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the numbers of all nodes.
    fn numbers(&self) -> Vec<NodeId> {
        self.state().nodes.keys().copied().collect()
    }

    /// Returns the home of a volume, if it has one.
    #[must_use]
    pub fn home(&self, id: VolumeId) -> Option<NodeId> {
        self.state().homes.get(&id).copied()
    }

    /// Returns whether another node may have volumes, so that this node can hand over its own.
    #[must_use]
    pub fn has_others(&self) -> bool {
        let here = self.cluster.here();
        self.state().eligible_nodes().any(|number| number != here)
    }
}

/// Returns a failure after which the caller repeats the command.
fn not_yet(message: String) -> Failed {
    Failed { kind: FailedKind::Unanswered, message }
}

/// Returns the failure of every call after this process has stopped leading. Nothing was done.
fn not_leading() -> Failed {
    let message = "this node does not run the control plane any more".to_owned();
    Failed { kind: FailedKind::Down, message }
}

fn refused(message: String) -> Failed {
    Failed { kind: FailedKind::Refused, message }
}
