//! Many data planes as one: an agent that sends each command to the node that it concerns.
//!
//! Each volume has a home, the one node that serves it. The fleet remembers what every volume and
//! host was told last, so it can say it again: to a node that was restarted, and to the new home of
//! a volume whose node is lost.
//!
//! What holds:
//!
//! - A volume is applied at a node only if its previous node has released it or is fenced: a lost
//!   node is fenced at the store before any of its volumes is applied elsewhere.
//! - A volume that moves takes its credit balances along, exactly. One whose node is lost begins
//!   with what must not have been spent, which is never more than there was.
//! - The volumes of a host with limits are at one node, so that its limits hold over all of them.
//! - etcd says who is a volume's home before it is applied there.
//!
//! | file | what it does |
//! | --- | --- |
//! | `books` | what is known of nodes, volumes and hosts; where a volume is to be |
//! | `route` | commands of the control plane, by whom they concern |
//! | `control` | what the control plane asks of its nodes |
//! | `moves` | from one node to another |
//! | `keeper` | nodes that come, are lost, are drained |
//! | `capacity` | what may be sold with all nodes together |
//! | `sharing` | the window of the device below all nodes |

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

use self::state::Books;
use super::homes::Changes;
use super::nodes::Member;
use crate::etcd::upkeep::MemberSeen;

/// How the connection to a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Commands are executed.
    Up,
    /// They would be executed by a process that has been told nothing: this one.
    New(u128),
    /// There is no connection, and why.
    Away(String),
    /// The node obeys another leader, and why.
    Deposed(String),
}

/// A node's data plane.
pub trait Node: Agent {
    /// How the connection is.
    fn standing(&self) -> Standing;
    /// It is known that this process has been told nothing: it gets commands from now on.
    fn accept(&self, incarnation: u128);
    /// Ends the connection: what has not been answered is not waited for.
    fn close(&self);
}

/// What a fleet needs of the cluster.
pub trait Cluster: Send + Sync {
    /// The nodes, as etcd has them.
    fn members(&self) -> Vec<Member>;
    /// Connects to the process of a node, or to its last one if its lease has ended.
    ///
    /// # Errors
    /// In words.
    fn connect(&self, member: &Member) -> Result<Arc<dyn Node>, String>;
    /// Sees to it that a node writes nothing more; for good.
    ///
    /// # Errors
    /// In words.
    fn fence(&self, node: &str) -> Result<(), String>;
    /// Notes the homes of volumes, as long as this process leads.
    ///
    /// # Errors
    /// In words.
    fn note(&self, changes: &Changes) -> Result<(), String>;
    /// Sets whether a node is to have volumes. Returns whether there is such a node.
    ///
    /// # Errors
    /// In words.
    fn set_state(&self, node: &str, state: State) -> Result<bool, String>;
    /// The members of etcd, as they were seen last.
    fn etcd(&self) -> Vec<MemberSeen>;
    /// The node of this process.
    fn here(&self) -> NodeId;
    /// The number of this process's term as the leader: more than that of every earlier one.
    fn term(&self) -> u64;
}

/// See the module's text.
pub struct Fleet {
    cluster: Arc<dyn Cluster>,
    books: Mutex<Books>,
    /// What is being done to volumes and hosts, in the order of arrival.
    keys: KeyLocks,
    is_over: AtomicBool,
    division: Mutex<Division>,
    /// What the machines of nodes have, as they said last.
    floors: Mutex<BTreeMap<NodeId, DomainFloor>>,
}

impl Fleet {
    /// A fleet whose volumes have these homes. [`Self::look`] is to be called several times a
    /// second from now on.
    #[must_use]
    pub fn new(cluster: Arc<dyn Cluster>, homes: BTreeMap<VolumeId, NodeId>) -> Self {
        let books = Mutex::new(Books::new(homes));
        let division = Mutex::new(Division::new(sharing::now()));
        let (keys, is_over, floors) = Default::default();
        Self { cluster, books, keys, is_over, division, floors }
    }

    /// This process leads no more: nothing is done from now on, and nobody who waits for an answer
    /// of a node, which may take as long as its disks do, waits for it any more.
    pub fn close(&self) {
        self.is_over.store(true, Ordering::Release);
        self.keys.close();
        let books = self.books();
        books.seats.values().filter_map(|seat| seat.node.as_ref()).for_each(|node| node.close());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // Every change of it is whole before anything can panic.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of all nodes.
    fn numbers(&self) -> Vec<NodeId> {
        self.books().seats.keys().copied().collect()
    }

    /// The home of a volume, if it has one.
    #[must_use]
    pub fn home(&self, id: VolumeId) -> Option<NodeId> {
        self.books().homes.get(&id).copied()
    }

    /// Whether another node than this may have volumes, so that this one can hand over its own.
    #[must_use]
    pub fn has_others(&self) -> bool {
        let here = self.cluster.here();
        self.books().takers().any(|number| number != here)
    }
}

/// A failure that may pass: the command is to be repeated.
fn not_yet(message: String) -> Failed {
    Failed { kind: FailedKind::Unanswered, message }
}

/// What is said of everything once this process leads no more. Nothing was done.
fn over() -> Failed {
    let message = "this node does not run the control plane any more".to_owned();
    Failed { kind: FailedKind::Down, message }
}

fn refused(message: String) -> Failed {
    Failed { kind: FailedKind::Refused, message }
}
