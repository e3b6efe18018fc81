//! Where clients find their volumes: what the front of this node goes by.

use evenkeel_control::cluster::mirror::Mirror;
use evenkeel_control::cluster::nodes::{Member, Nodes, members};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_engine::Entrance;
use evenkeel_relay::{Home, Homes, Local};
use evenkeel_wire::agent::HostAddress;
use std::io;
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
            Some(home) => {
                let all: Vec<Member> = members(&self.nodes.values());
                let member = all.into_iter().find(|member| member.number == home);
                match member.and_then(|member| member.inst) {
                    Some(inst) => Home::At { node: home, address: inst.relay },
                    None => Home::Unsettled,
                }
            }
        }
    }
}

impl Local for Directions {
    fn connect(&self, peer: HostAddress) -> io::Result<(UnixStream, Weak<()>)> {
        self.entrance.connect(peer)
    }
}
