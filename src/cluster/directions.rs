//! Where clients find their volumes: what the front of this node goes by.

use evenkeel_control::cluster::mirror::Mirror;
use evenkeel_control::cluster::nodes::{Entry, Nodes};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_engine::Entrance;
use evenkeel_relay::{Home, Homes, Local};
use evenkeel_wire::agent::HostAddress;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Weak;

/// See the module's text.
pub struct Directions {
    pub homes: Mirror<NodeId>,
    pub nodes: Nodes,
    pub here: NodeId,
    /// The data plane of this node.
    pub entrance: Entrance,
}

impl Homes for Directions {
    fn home(&self, volume: VolumeId) -> Home {
        let home = self.homes.values().get(&volume.to_string()).copied();
        match home {
            None => Home::Nowhere,
            // It is being brought up.
            Some(home) if home == self.here && !self.entrance.holds(volume) => Home::Unsettled,
            Some(home) if home == self.here => Home::Here,
            Some(home) => match relay_of(&self.nodes.values(), home) {
                Some(address) => Home::At { node: home, address },
                None => Home::Unsettled,
            },
        }
    }
}

/// Where a node takes clients of others, if its process lives. Every client that waits for a home
/// asks many times a second, so nothing is copied.
fn relay_of(nodes: &BTreeMap<String, Entry>, number: NodeId) -> Option<SocketAddr> {
    let is_spec = |(key, entry): (&String, &Entry)| match entry {
        Entry::Spec(spec) if spec.number == number.0 => key.strip_suffix("spec").map(str::to_owned),
        _ => None,
    };
    let node = nodes.iter().find_map(is_spec)?;
    match nodes.get(&format!("{node}inst")) {
        Some(Entry::Inst(inst)) => Some(inst.relay),
        _ => None,
    }
}

impl Local for Directions {
    fn connect(&self, peer: HostAddress) -> io::Result<(UnixStream, Weak<()>)> {
        self.entrance.connect(peer)
    }
}
