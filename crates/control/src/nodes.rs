//! The nodes of a cluster, as the control plane uses them.
//!
//! A control plane that leads several nodes calls them through [`Nodes`], which is an agent over
//! all of them. A server that serves alone has none.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_telemetry::metrics::EtcdMemberNow;
use evenkeel_wire::agent::{Agent, Attachment, Failed};
use serde::{Deserialize, Serialize};

/// Whether a node is to have volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The node has volumes, and gets new ones.
    Up,
    /// Its volumes move to others, and it gets no new ones.
    Draining,
    /// As draining, and its process may not join again.
    Removed,
}

/// A node as lists of nodes show it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeView {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: NodeId,
    /// Whether it is to have volumes.
    pub state: State,
    /// Its process, if its lease holds.
    pub process: Option<ProcessView>,
    /// State of its process: `serving`, `leaving`, `starting`, `away` or `stopped`.
    pub status: &'static str,
    /// The reason for which it is away.
    pub reason: Option<String>,
    /// Number of volumes whose home it is.
    pub volumes: usize,
    /// Whether it runs the control plane.
    pub leads: bool,
}

/// The process of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessView {
    /// Address of its API.
    pub api: SocketAddr,
    /// Addresses for its clients.
    pub nbd: Vec<SocketAddr>,
    /// The version of its program.
    pub version: String,
    /// Settings that differ from the leader's, as `zones a,b (leader: a)`.
    pub settings_unlike: Vec<String>,
}

/// Counts of events since this process leads.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Volumes that moved from a node that served them.
    pub moves: u64,
    /// Volumes that were taken over from a node that was lost.
    pub takeovers: u64,
    /// Nodes that were fenced at the store.
    pub fences: u64,
}

/// The nodes that a leader's control plane runs over. As an agent it sends each command to the node
/// concerned.
pub trait Nodes: Agent {
    /// Meets the nodes that live, and follows all of them on threads of its own until the returned
    /// guard is dropped. Afterwards no command is executed any more.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn keep(self: Arc<Self>) -> io::Result<Box<dyn Send>>;

    /// Returns the number of this process's term as the leader: higher than that of every earlier
    /// term.
    fn term(&self) -> u64;

    /// Returns all nodes.
    fn views(&self) -> Vec<NodeView>;

    /// Sets whether a node is to have volumes. Returns whether the node exists.
    ///
    /// # Errors
    /// The text is the reason.
    fn set_state(&self, node: &str, state: State) -> Result<bool, String>;

    /// Moves a volume to a node. Its clients wait meanwhile.
    ///
    /// # Errors
    /// The node may have no volumes, a node does not answer, or the volume cannot be brought up
    /// there; then it is tried again.
    fn move_to(&self, id: VolumeId, to: NodeId) -> Result<(), Failed>;

    /// Returns the name of the node that is a volume's home, if it has one.
    fn home_name(&self, id: VolumeId) -> Option<String>;

    /// Returns the part of the device that a node has now, with what is lent to it, in millionths;
    /// `None` if the device is not divided.
    fn part_ppm(&self, number: NodeId) -> Option<u32>;

    /// Returns the counts of events since this process leads.
    fn counts(&self) -> Counts;

    /// Returns the latest measurements of the members of etcd.
    fn etcd(&self) -> Vec<EtcdMemberNow>;

    /// Sets the volumes that earlier leaders may have applied, with what they may be attached to.
    /// Those that share the limits of a host are where one of them is, also before this leader has
    /// applied all.
    fn expect(&self, volumes: Vec<(VolumeId, Vec<Attachment>)>);

    /// Forgets the homes of all but these volumes: of those that an earlier leader deleted without
    /// being able to note that.
    fn keep_only(&self, known: &BTreeSet<VolumeId>);
}
