//! The NBD front of a node in a cluster: any node accepts any export. Where another node is the
//! volume's home, the front relays to it, and when the home changes, the client sees a pause and no
//! error.
//!
//! ```text
//!  client ── the data plane of this node
//!  client ── Front ── TCP, TLS ── Front of the home ── socket pair ── its data plane
//! ```
//!
//! A client whose volume is at home here is served by the data plane itself, which gets its socket
//! from the front and gives it back when the volume goes ([`Lender`]). All others are relayed.
//!
//! The front is a server of NBD to the client and a client of NBD to the data plane, with the state
//! machines that both use themselves. It keeps every request until its reply is whole. When the
//! connection to the data plane ends, or the volume has another home, it connects to the home there
//! is then, agrees on the same again, and sends what is not answered, in order of arrival.
//!
//! Why a request may be sent again:
//!
//! - Another home serves only when the former one has finished what it had begun and has closed
//!   the volume's connections, or is fenced at the storage. So nothing that was sent before has an
//!   effect after that.
//! - The same home may still work on what it was sent over a connection that broke. So the next
//!   connection of the same client is let in when nothing of the earlier one is under way: the
//!   front sees to it where the data plane is its own, and otherwise the front of the home, which
//!   knows both by the number of the session in the preamble ([`preamble`]).
//!
//! Why nothing is passed on that a client has given up, and may have sent again elsewhere:
//!
//! - Before the front sends anything, it looks whether the client has ended its connection, and how
//!   long its thread has not run: after two seconds it drops its clients ([`pulse`]).
//! - Connections to homes are reset and not closed, so what is not sent yet is never sent.
//! - A home takes requests while the front's lease of two seconds holds ([`lease`]), and none of a
//!   connection that has ended. Late replies do no harm.
//! - Before it lets a client in, a home hears from each front that relays connections of the same
//!   address which of them have ended ([`arrivals`]).
//!
//! Why a home that is fenced lets no client in: the storage confirms after each arrival that the
//! node may serve. The client may come back from the volume's new home.
//!
//! Why the front needs no copy of the requests of a client at home: the data plane that has them is
//! in the same process, so they are lost together. On a planned move the data plane answers what it
//! has begun, and gives the rest back with the socket, from replies that were not sent to the first
//! bytes of a head. A client is lent when nothing of it is under way; until then, as after it has
//! come home, it is relayed over a socket pair, and nothing new is read from it.
//!
//! What holds:
//!
//! - A request is answered to the client at most once, and its reply is passed on whole.
//! - A relayed connection is served at the node that it is relayed to, or refused: no loops.
//! - Every queue has a bound; beyond it nothing more is read from the client. Nobody waits without
//!   one.
//!
//! Left out: TLS between clients and the front, and extended headers, as in the data plane; the
//! list of exports is that of this node's data plane only.
#![deny(missing_docs)]

mod clients;
mod clock;
mod connection_limits;
mod error;
mod forward;
mod front;
mod handshake;
pub mod hello;
mod inbound;
mod lease;
mod lending;
mod memory;
mod notices;
mod pending_requests;
mod pulse;
mod request_reader;
mod send_queue;
mod session;
mod upstream;

pub use error::RelayError;
pub use front::{Figures, Front};
pub use lending::{Lender, Loan, Returned};

use evenkeel_core::fencing::{GAP_MAX, NodeId};
use evenkeel_core::ids::VolumeId;
use evenkeel_link::TlsFiles;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::ClusterSecret;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Where a volume is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// By this node's data plane.
    Here,
    /// By another node.
    At {
        /// Which.
        node: NodeId,
        /// Where its front listens to other fronts.
        address: SocketAddr,
    },
    /// By nobody at the moment: it is being moved or taken over.
    Unsettled,
    /// There is no such volume.
    Nowhere,
}

/// What is known of homes. Asked on the front's thread, several times a second for each client, so
/// it answers from memory.
pub trait Homes: Send + Sync {
    /// The volume's home now. It is [`Home::Unsettled`] until the home lets clients in.
    fn home(&self, volume: VolumeId) -> Home;
}

/// A connection to this node's data plane.
pub struct Inside {
    /// Its end outside.
    pub stream: UnixStream,
    /// Dead when nothing that the connection has asked for is under way any more.
    pub held: Weak<()>,
    /// Lends a client's own socket in its place, if the data plane takes any.
    pub lender: Option<Arc<dyn Lender>>,
}

/// The data plane of this node.
pub trait Local: Send + Sync {
    /// A new connection of a client with this address. Does not wait.
    ///
    /// # Errors
    /// - `PermissionDenied`: no volume is attached to the address.
    /// - `ResourceBusy`: there is no place for another connection.
    /// - Any other: not now.
    fn connect(&self, peer: HostAddress) -> io::Result<Inside>;

    /// Has the storage be asked whether this node may still serve its volumes; the question's
    /// number. Does not wait. Where no other node can have taken them over, nothing is asked.
    fn ask_storage(&self) -> u64 {
        0
    }

    /// Whether the storage has confirmed it since the question with this number was asked.
    fn is_confirmed(&self, _question: u64) -> bool {
        true
    }
}

/// How long the front waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// For a client to agree on an export, beside what the front itself takes; for TLS, preamble
    /// and handshake of a connection to a data plane.
    pub handshake: Duration,
    /// For a home when a client asks for a volume for the first time.
    pub first_contact: Duration,
    /// For word of a volume that this node has not heard of: its client may have heard first.
    pub word: Duration,
    /// For a home that serves the volume, once a client has it; then the client's connection is
    /// closed.
    pub reconnect: Duration,
    /// The same where the home says each time that there is no such export: the volume was
    /// detached.
    pub unknown: Duration,
    /// Before the second attempt to connect; it doubles with each.
    pub retry_first: Duration,
    /// The longest wait between two attempts.
    pub retry_longest: Duration,
    /// How often it is looked whether the volume has another home, while its home serves.
    pub look: Duration,
    /// The same while the client waits for a home.
    pub look_waiting: Duration,
    /// For a client to go on that leaves the front waiting in the middle of something. Shorter than
    /// what the data plane waits for the front.
    pub stall: Duration,
    /// The length of a front's lease at a home, and the longest time in which the front's thread
    /// may not run before it drops its clients. The same at all nodes of a cluster.
    pub silence: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            first_contact: Duration::from_secs(20),
            word: Duration::from_secs(1),
            reconnect: Duration::from_secs(120),
            unknown: Duration::from_secs(5),
            retry_first: Duration::from_millis(5),
            retry_longest: Duration::from_millis(500),
            look: Duration::from_millis(200),
            look_waiting: Duration::from_millis(5),
            stall: Duration::from_secs(50),
            silence: Duration::from_nanos(GAP_MAX.ns),
        }
    }
}

/// How many there may be of what takes memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections of clients; the same again of clients that other nodes relay. A connection takes
    /// up to three descriptors.
    pub connections: usize,
    /// Bytes of requests that are not answered and of replies that are not fetched, of all clients.
    /// A host may hold no more of them than it leaves free.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        use evenkeel_core::limits::{CONNECTIONS_PER_CORE_MAX, CORE_PAYLOAD_BYTES_MAX};
        Self { connections: CONNECTIONS_PER_CORE_MAX, bytes: u64::from(CORE_PAYLOAD_BYTES_MAX) }
    }
}

/// What a front relays, and where it listens.
#[derive(Clone)]
pub struct FrontConfig {
    /// Where clients connect; port 0 takes a free one.
    pub clients: Vec<SocketAddr>,
    /// Where the fronts of other nodes connect; port 0 takes a free one.
    pub nodes: SocketAddr,
    /// This node.
    pub node: NodeId,
    /// The cluster that it belongs to.
    pub cluster: u128,
    /// The secret that all nodes know. A front that does not know it relays no clients here.
    pub secret: ClusterSecret,
    /// Certificates; without them other nodes are spoken to on this machine only.
    pub tls: Option<TlsFiles>,
    /// Where volumes are.
    pub homes: Arc<dyn Homes>,
    /// This node's data plane.
    pub local: Arc<dyn Local>,
    /// How long it waits.
    pub timing: Timing,
    /// How much it takes.
    pub bounds: Bounds,
}
