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
//! The front is a server of NBD to the client and a client of NBD to the data plane, and uses the
//! state machines that both use. It keeps every request until its reply is whole. When the
//! connection to the data plane ends, or the volume has another home, it connects to the current
//! home, negotiates the same terms, and sends the unanswered requests in order of arrival.
//!
//! Why a request may be sent again:
//!
//! - Another home serves only when the former one has finished the requests that it had begun and
//!   has closed the volume's connections, or is fenced at the storage. After that, no request that
//!   was sent before has an effect.
//! - The same home may still carry out requests that it got over a connection that broke. So the
//!   next connection of the same client is let in when no request of the earlier one is under way.
//!   The front waits for that if the data plane is its own. Otherwise the front of the home waits;
//!   it identifies both connections by the number of the session in the preamble ([`hello`]).
//!
//! Why no request is passed on that a client may have sent again elsewhere:
//!
//! - Before the front sends anything, it checks whether the client has ended its connection, and
//!   how long its thread has not run. After two seconds it drops its clients ([`pulse`]).
//! - Connections to homes are reset and not closed, so bytes that are not sent yet are never sent.
//! - A home takes requests while the front's lease of two seconds holds ([`lease`]), and none of a
//!   connection that has ended. Late replies do no harm.
//! - Before it lets a client in, a home learns from each front that relays connections of the same
//!   address which of them have ended ([`inbound`]).
//!
//! Why a home that is fenced lets no client in: after each arrival the storage confirms that the
//! node may serve. The client may come from the volume's new home.
//!
//! Why the front needs no copy of the requests of a client at home: the data plane that has them is
//! in the same process, so both would be lost together. On a planned move the data plane answers
//! the requests that it has begun, and returns the rest with the socket, from replies that were not
//! sent to the first bytes of a head. A client is lent when it has nothing under way. Until then,
//! and after it has come home, it is relayed over a socket pair, and no more is read from it.
//!
//! Guarantees:
//!
//! - A request is answered to the client at most once, and its reply is passed on whole.
//! - A relayed connection is served at the node that it is relayed to, or refused: no loops.
//! - Every queue has a bound. If one is reached, no more is read from the client. Every wait has a
//!   limit.
//!
//! A client over TLS comes from another listener, which ends its TLS and passes plain bytes on
//! ([`Entrance`]). Its connection counts as ended as soon as its own socket has ended. It is never
//! lent.
//!
//! Left out: extended headers, as in the data plane; the list of exports is that of this node's
//! data plane only.
#![deny(missing_docs)]

mod client_stream;
mod clients;
mod connection_limits;
mod entrance;
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
mod visitor;

pub use entrance::Entrance;
pub use error::RelayError;
pub use front::{Figures, Front};
pub use lending::{Lender, Loan, Returned};

use evenkeel_core::fencing::{GAP_MAX, NodeId};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_link::TlsFiles;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::visit::Visit;
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
    /// By no node at the moment: it is being moved or taken over.
    Unsettled,
    /// There is no such volume.
    Nowhere,
}

/// A node's knowledge of homes. The front's thread asks it several times a second for each client,
/// so it must answer from memory.
pub trait Homes: Send + Sync {
    /// Returns the volume's home now. It is [`Home::Unsettled`] until the home lets clients in.
    fn home(&self, volume: VolumeId) -> Home;
}

/// A client, as data planes identify it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// By the address from which it has connected.
    At(HostAddress),
    /// By its certificate: it has proven to be this host.
    Proven(InstanceId),
}

impl Peer {
    /// Returns whether two connections may be those of one client. It may connect once by its
    /// address and once by its certificate.
    pub(crate) fn may_be(self, other: Self) -> bool {
        match (self, other) {
            (Self::At(_), Self::At(_)) | (Self::Proven(_), Self::Proven(_)) => self == other,
            (Self::At(_), Self::Proven(_)) | (Self::Proven(_), Self::At(_)) => true,
        }
    }
}

impl From<HostAddress> for Peer {
    fn from(address: HostAddress) -> Self {
        Self::At(address)
    }
}

/// A connection to this node's data plane.
pub struct Inside {
    /// The front's end.
    pub stream: UnixStream,
    /// Dead when no request of the connection is under way any more.
    pub held: Weak<()>,
    /// Lends a client's own socket in its place, if the data plane accepts sockets.
    pub lender: Option<Arc<dyn Lender>>,
}

/// The data plane of this node.
pub trait Local: Send + Sync {
    /// Opens a new connection for a client. Does not wait.
    ///
    /// # Errors
    /// - `PermissionDenied`: no volume is attached to the address, or to the host.
    /// - `ResourceBusy`: there is no place for another connection.
    /// - Any other: not now.
    fn connect(&self, peer: Peer) -> io::Result<Inside>;

    /// Asks the storage whether this node may still serve its volumes. Returns the question's
    /// number. Does not wait. Where no other node can have taken the volumes over, does nothing.
    fn ask_storage(&self) -> u64 {
        0
    }

    /// Returns whether the storage has confirmed it since the question with this number was asked.
    fn is_confirmed(&self, _question: u64) -> bool {
        true
    }
}

/// Receives what becomes of the connections of a front's own clients: their beginnings, ends and
/// refusals. It must not wait: the front's thread calls it.
pub type Observer = Arc<dyn Fn(Visit) + Send + Sync>;

/// Times that the front waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// For a client to complete its handshake, without the time that the front itself takes; for
    /// TLS, preamble and handshake of a connection to a data plane.
    pub handshake: Duration,
    /// For a home that serves the volume when a client asks for it first.
    pub first_contact: Duration,
    /// For news of a volume that this node does not know: its client may have got them first.
    pub word: Duration,
    /// For a home that serves the volume, once a client uses it; then the client's connection is
    /// closed.
    pub reconnect: Duration,
    /// For a home that repeatedly answers that there is no such export, since the volume was
    /// detached; then the client's connection is closed.
    pub unknown: Duration,
    /// Before the second attempt to connect; doubles with each attempt.
    pub retry_first: Duration,
    /// The longest wait between two attempts.
    pub retry_longest: Duration,
    /// Between checks for another home of the volume, while its home serves.
    pub look: Duration,
    /// Between checks for a home while the client waits for one.
    pub look_waiting: Duration,
    /// For a client to complete a request or to fetch replies. Shorter than the time that the data
    /// plane waits for the front.
    pub stall: Duration,
    /// Length of a front's lease at a home, and the longest time that the front's thread may not
    /// run before it drops its clients. Must be equal at all nodes of a cluster.
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

/// Limits on resources that take memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections of clients, and separately of clients that other nodes relay. A connection takes
    /// up to three descriptors.
    pub connections: usize,
    /// Bytes of requests without a reply and of replies that are not fetched, of all clients. A
    /// host may hold at most as many of them as it leaves free.
    pub bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        use evenkeel_core::limits::{CONNECTIONS_PER_CORE_MAX, CORE_PAYLOAD_BYTES_MAX};
        Self { connections: CONNECTIONS_PER_CORE_MAX, bytes: u64::from(CORE_PAYLOAD_BYTES_MAX) }
    }
}

/// Configuration of a front.
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
    /// Certificates. Without them, only nodes on this machine can be reached.
    pub tls: Option<TlsFiles>,
    /// Looks up the home of a volume.
    pub homes: Arc<dyn Homes>,
    /// This node's data plane.
    pub local: Arc<dyn Local>,
    /// Gets reports of its clients' connections.
    pub observer: Observer,
    /// Times that it waits.
    pub timing: Timing,
    /// Limits on its memory and connections.
    pub bounds: Bounds,
}
