//! The front's thread: it accepts the connections of clients and of other nodes' fronts.

use crate::client_stream::ClientStream;
use crate::clients::Clients;
use crate::connection_limits::Places;
use crate::entrance::{Entrance, Passed};
use crate::inbound::{self, Sessions};
use crate::lease::{Grants, Leases};
use crate::memory::Memory;
use crate::notices::{Notice, Notices};
use crate::pulse::Pulse;
use crate::visitor::Visitor;
use crate::{FrontConfig, Peer, RelayError, session, upstream};
use evenkeel_link::TlsFiles;
use evenkeel_wire::agent::HostAddress;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Maximum of bytes that are read from a socket at once.
const SCRATCH_BYTES: usize = 256 << 10;
/// Time without accepting after the process has run out of descriptors.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Time between updates of the figures.
const FIGURES_EVERY: Duration = Duration::from_millis(100);
/// Path of a random number from the kernel, as text.
const RANDOM: &str = "/proc/sys/kernel/random/uuid";

/// The buffer that sockets are read into. All share it, since no task waits while it is in use.
pub(crate) type Scratch = Rc<RefCell<Box<[u8]>>>;

/// Counts of a front, for metrics. A tenth of a second old at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Connections of clients, handshakes included.
    pub clients: u64,
    /// Connections that other nodes relay here, handshakes included.
    pub relayed: u64,
    /// Times that a client continued over another connection to a data plane.
    pub reconnected: u64,
    /// Connections of clients that this node's data plane serves itself.
    pub lent: u64,
    /// Bytes of requests and replies that are held.
    pub held_bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    clients: AtomicU64,
    relayed: AtomicU64,
    pub reconnected: AtomicU64,
    pub lent: AtomicU64,
    held_bytes: AtomicU64,
}

/// State that all tasks of the front's thread share.
pub(crate) struct Shared {
    pub config: FrontConfig,
    pub connector: Option<TlsConnector>,
    pub acceptor: Option<TlsAcceptor>,
    pub memory: Rc<Memory>,
    pub scratch: Scratch,
    pub places: Rc<Places>,
    pub arrivals: Rc<Places>,
    pub sessions: Sessions,
    /// Clients that this node's data plane serves through the front.
    pub clients: Rc<Clients>,
    /// Leases that this front has at other homes, and those that it grants as a home.
    pub leases: Leases,
    pub grants: Grants,
    pub pulse: Rc<Pulse>,
    pub notices: Notices,
    pub figures: Arc<Counters>,
    session: Cell<u128>,
}

impl Shared {
    /// Returns a number that no other connection of a client and no lease in the cluster has.
    pub fn next_session(&self) -> u128 {
        self.session.replace(self.session.get().wrapping_add(1))
    }

    fn count(&self) {
        let count = |counter: &AtomicU64, value: u64| counter.store(value, Ordering::Relaxed);
        count(&self.figures.clients, self.places.taken() as u64);
        count(&self.figures.relayed, self.arrivals.taken() as u64);
        count(&self.figures.held_bytes, self.memory.held());
    }
}

/// Everything that is created before the thread starts, since creating it can fail.
struct Start {
    config: FrontConfig,
    clients: Vec<std::net::TcpListener>,
    nodes: std::net::TcpListener,
    connector: Option<TlsConnector>,
    acceptor: Option<TlsAcceptor>,
    figures: Arc<Counters>,
    session: u128,
    /// Clients that other listeners have accepted.
    passed: mpsc::Receiver<Passed>,
}

/// A running front. Dropping it stops it too.
pub struct Front {
    clients: Vec<SocketAddr>,
    node: SocketAddr,
    entrance: Entrance,
    figures: Arc<Counters>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Starts accepting: when this returns, every address is listened on.
    ///
    /// An address or a file cannot be used, or the address for nodes is not a loopback address and
    /// there is no TLS.
    pub fn start(config: FrontConfig) -> Result<Self, RelayError> {
        if config.tls.is_none() && !config.nodes.ip().is_loopback() {
            return Err(RelayError::Plain(config.nodes));
        }
        let tls = config.tls.as_ref();
        let server = tls.map(TlsFiles::server_config).transpose().map_err(RelayError::Tls)?;
        let client = tls.map(TlsFiles::client_config).transpose().map_err(RelayError::Tls)?;
        let (nodes, node) = listen(config.nodes)?;
        let mut clients = Vec::new();
        let mut addresses = Vec::new();
        for address in &config.clients {
            let (listener, address) = listen(*address)?;
            clients.push(listener);
            addresses.push(address);
        }
        let figures = Arc::<Counters>::default();
        let (entrance, passed) = Entrance::new();
        let start = Start {
            config,
            clients,
            nodes,
            connector: client.map(TlsConnector::from),
            acceptor: server.map(TlsAcceptor::from),
            figures: Arc::clone(&figures),
            session: random().map_err(RelayError::Resources)?,
            passed,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RelayError::Resources)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("nbd-front".to_owned())
            .spawn(move || {
                LocalSet::new().block_on(&runtime, async {
                    tokio::select! {
                        // The stop was requested, or the owner has dropped the front.
                        _ = stopped => {}
                        error = run(start) => tracing::error!(%error, "no clients are relayed"),
                    }
                });
            })
            .map_err(RelayError::Resources)?;
        let stop = Some(stop);
        let thread = Some(thread);
        Ok(Self { clients: addresses, node, entrance, figures, stop, thread })
    }

    /// Returns the addresses that clients connect to, with the ports in use.
    #[must_use]
    pub fn client_addresses(&self) -> Vec<SocketAddr> {
        self.clients.clone()
    }

    /// Returns the address that other nodes connect to, with the port in use.
    #[must_use]
    pub fn node_address(&self) -> SocketAddr {
        self.node
    }

    /// Returns the entrance for clients that other listeners have accepted.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// Returns the current figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            clients: read(&self.figures.clients),
            relayed: read(&self.figures.relayed),
            reconnected: read(&self.figures.reconnected),
            lent: read(&self.figures.lent),
            held_bytes: read(&self.figures.held_bytes),
        }
    }

    /// Closes all connections and returns when they are closed. Unanswered requests get no reply.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // An error says that the thread has ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread of the NBD front panicked");
        }
    }
}

fn listen(address: SocketAddr) -> Result<(std::net::TcpListener, SocketAddr), RelayError> {
    let failed = |error| RelayError::Listen(address, error);
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn random() -> io::Result<u128> {
    let text = std::fs::read_to_string(RANDOM)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{RANDOM}: {error}")))
}

/// Runs the front. Returns only with an error that keeps it from running.
async fn run(start: Start) -> io::Error {
    let connections = start.config.bounds.connections;
    let shared = Rc::new(Shared {
        connector: start.connector,
        acceptor: start.acceptor,
        memory: Memory::new(start.config.bounds.bytes),
        scratch: Rc::new(RefCell::new(vec![0; SCRATCH_BYTES].into())),
        places: Places::new(connections),
        arrivals: Places::of_nodes(connections),
        sessions: Sessions::default(),
        clients: Rc::default(),
        leases: Leases::default(),
        grants: Grants::default(),
        pulse: Rc::new(Pulse::new(start.config.timing.silence)),
        notices: Notices::default(),
        figures: start.figures,
        session: Cell::new(start.session),
        config: start.config,
    });
    for (listener, for_nodes) in
        start.clients.into_iter().map(|l| (l, false)).chain([(start.nodes, true)])
    {
        match TcpListener::from_std(listener) {
            Ok(listener) => drop(spawn_local(accept(Rc::clone(&shared), listener, for_nodes))),
            Err(error) => return error,
        }
    }
    spawn_local(take_passed(Rc::clone(&shared), start.passed));
    let every = FIGURES_EVERY.min(shared.config.timing.silence / 8);
    loop {
        shared.count();
        shared.pulse.look();
        tokio::time::sleep(every).await;
    }
}

async fn accept(shared: Rc<Shared>, listener: TcpListener, for_nodes: bool) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) if for_nodes => {
                spawn_local(inbound::receive(Rc::clone(&shared), stream, address));
            }
            Ok((stream, address)) => client(&shared, stream, address),
            Err(error) => {
                let what = "a connection could not be accepted; see `evenkeel doctor`";
                let local = listener.local_addr().map(|a| a.to_string()).unwrap_or_default();
                shared.notices.tell(Notice::Accept, what, &local, &error);
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Serves the clients that other listeners pass on.
async fn take_passed(shared: Rc<Shared>, mut passed: mpsc::Receiver<Passed>) {
    while let Some(Passed { plain, socket, host, address }) = passed.recv().await {
        match UnixStream::from_std(plain) {
            Ok(plain) => {
                let stream = ClientStream::tls(plain, socket);
                welcome(&shared, stream, (Peer::Proven(host), address));
            }
            Err(error) => {
                let what = "a client over TLS could not be accepted; see `evenkeel doctor`";
                shared.notices.tell(Notice::Accept, what, &address, &error);
            }
        }
    }
}

fn client(shared: &Rc<Shared>, stream: TcpStream, address: SocketAddr) {
    if let Err(error) = upstream::set_up_client(&stream) {
        return tracing::debug!(%address, %error, "a client has gone");
    }
    let peer = Peer::At(HostAddress::of(address.ip()));
    welcome(shared, ClientStream::tcp(stream), (peer, address));
}

/// Serves a client if there is a place for it.
fn welcome(shared: &Rc<Shared>, stream: ClientStream, (peer, address): (Peer, SocketAddr)) {
    let visitor = Visitor::new(&shared.config.observer, (peer, address));
    let Some(place) = shared.places.greet(peer) else {
        let why = "there are as many as there may be";
        visitor.refused(None, why);
        return shared.notices.tell(Notice::Client, "a client is refused", &address, &why);
    };
    spawn_local(session::serve(Rc::clone(shared), stream, (peer, address), (place, visitor)));
}
