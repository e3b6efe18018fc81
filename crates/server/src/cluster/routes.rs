//! Resolves a volume to the node that serves it, for this node's front.

use evenkeel_cluster::confirmation::Confirmation;
use evenkeel_cluster::nodes::{Entry, Nodes};
use evenkeel_cluster::watch_cache::Mirror;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_engine::Entrance;
use evenkeel_engine::handoff as engine;
use evenkeel_relay::{
    Entrance as ToFront, Home, Homes, Inside, Lender, Loan, Local, Observer, Peer, Returned,
};
use evenkeel_tls::nbd;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::visit::Visit;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// See the module's text.
pub struct Directions {
    pub homes: Mirror<NodeId>,
    pub nodes: Nodes,
    pub here: NodeId,
    /// The data plane of this node.
    pub entrance: Entrance,
    /// Whether the storage lets it serve.
    pub confirmation: Arc<Confirmation>,
}

impl Homes for Directions {
    fn home(&self, volume: VolumeId) -> Home {
        let home = self.homes.values().get(&volume.to_string()).copied();
        match home {
            None => Home::Nowhere,
            // The volume is being opened.
            Some(home) if home == self.here && !self.entrance.holds(volume) => Home::Unsettled,
            Some(home) if home == self.here => Home::Here,
            Some(home) => match relay_of(&self.nodes.values(), home) {
                Some(address) => Home::At { node: home, address },
                None => Home::Unsettled,
            },
        }
    }
}

/// Returns the address at which a node takes relayed clients, if its process lives. Every client
/// that waits for a home calls this many times per second, so nothing is copied.
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
    fn connect(&self, peer: Peer) -> io::Result<Inside> {
        let connected = match peer {
            Peer::At(address) => self.entrance.connect(address),
            Peer::Proven(host) => self.entrance.connect_proven(host, None),
        };
        let evenkeel_engine::Inside { stream, held, lender } = connected?;
        Ok(Inside { stream, held, lender: Some(Arc::new(ToEngine(lender))) })
    }

    fn ask_storage(&self) -> u64 {
        self.confirmation.ask()
    }

    fn is_confirmed(&self, question: u64) -> bool {
        self.confirmation.door().is_confirmed(question)
    }
}

/// The front of this node for clients over TLS.
pub struct ByFront {
    pub front: ToFront,
    /// Gets reports of clients that do not reach the front.
    pub observer: Observer,
}

impl nbd::Inside for ByFront {
    fn connect(&self, client: &nbd::Proven<'_>) -> io::Result<UnixStream> {
        self.front.connect(client.host, client.address, client.socket)
    }

    fn report_refused(&self, address: HostAddress, why: &str) {
        (self.observer)(Visit::of_stranger(address, why));
    }
}

/// Converts clients for the data plane.
struct ToEngine(engine::Lender);

impl Lender for ToEngine {
    fn lend(&self, loan: Loan) {
        let Loan { client, unread, back } = loan;
        let back = Box::new(move |returned| {
            let engine::Returned { client, unsent, unread, skipped } = returned;
            back(Returned { client, unsent, unread, skipped });
        });
        self.0.lend(engine::Loan { client, unread, back });
    }

    fn recall(&self) {
        self.0.recall();
    }
}
