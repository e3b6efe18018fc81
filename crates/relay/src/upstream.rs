//! Connections to data planes: this node's, over a socket pair, or another's, through its front.

use crate::clients::{Clients, Socket};
use crate::front::Shared;
use crate::hello::{self, Preamble, VERDICT_BYTES, Verdict};
use crate::inbound::{confirmed, hear_fronts};
use crate::lease::Lease;
use crate::pulse::Watch;
use crate::{Inside, Lender, Peer};
use evenkeel_core::fencing::NodeId;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::{CHALLENGE_BYTES, ClusterSecret, Meeting, NONCE_BYTES, Protocol};
use evenkeel_wire::nbd::constants::reply;
use evenkeel_wire::nbd::handshake::{Client, ClientClose, ClientPlan, ClientStep};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::{self, Rc};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::spawn_local;
use tokio::time::{sleep, timeout};

/// Keepalive of a client's connection: a silent client is probed after this time, and disconnected
/// two minutes later, as in the data plane.
const CLIENT_KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(60), Duration::from_secs(20), 6);
/// Keepalive between nodes. A dead node is noticed sooner, since its volumes are taken over.
const NODE_KEEPALIVE: (Duration, Duration, u32) =
    (Duration::from_secs(5), Duration::from_secs(2), 5);
/// Maximum time that bytes to a node may stay unacknowledged, in milliseconds.
const NODE_UNACKNOWLEDGED_MS: u32 = 15_000;
/// Time between checks whether an earlier connection has ended.
const OVER_LOOK: Duration = Duration::from_millis(2);
const HANDSHAKE_READ_BYTES: usize = 4 << 10;

/// A byte stream to a data plane.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {
    /// Returns whether the other side has ended it, even if unread bytes are left.
    fn has_ended(&self) -> bool;
}

impl Stream for TcpStream {
    fn has_ended(&self) -> bool {
        is_ended(self)
    }
}

impl Stream for UnixStream {
    fn has_ended(&self) -> bool {
        is_ended(self)
    }
}

impl Stream for tokio_rustls::client::TlsStream<TcpStream> {
    fn has_ended(&self) -> bool {
        is_ended(self.get_ref().0)
    }
}

impl Stream for tokio_rustls::server::TlsStream<TcpStream> {
    fn has_ended(&self) -> bool {
        is_ended(self.get_ref().0)
    }
}

/// Returns whether the other side has ended a connection, even if unread bytes are left.
pub(crate) fn is_ended(socket: &impl AsFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::RDHUP)];
    // A socket that cannot be polled returns an error when it is used.
    let told = rustix::event::poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    told.is_ok() && asked[0].revents().intersects(ends)
}

/// A connection to a data plane.
pub(crate) struct Upstream {
    pub stream: Box<dyn Stream>,
    /// Lends the client to it, if it is this node's.
    pub lender: Option<Arc<dyn Lender>>,
    /// The lease under which it takes requests, if it is another node's.
    pub lease: Option<Rc<Lease>>,
}

/// Identifies a data plane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Local,
    Node(NodeId, SocketAddr),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => write!(f, "this node"),
            Self::Node(node, address) => write!(f, "node {} at {address}", node.0),
        }
    }
}

/// Why a data plane does not serve a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// It does not show the client such an export.
    Unknown,
    /// The client may not have the export now. The text is for the client's user.
    Denied(String),
    /// The cause may pass soon.
    Passing(String),
}

fn passing(what: &str) -> impl Fn(io::Error) -> Trouble {
    move |error| Trouble::Passing(format!("{what}: {error}"))
}

/// A client, as data planes know it.
#[derive(Debug)]
pub(crate) struct Caller {
    pub peer: Peer,
    pub session: u128,
    /// Connections to the local data plane that may still have requests under way.
    former: Vec<Weak<()>>,
    /// Leases under which homes may have requests of the client.
    leases: Vec<Rc<Lease>>,
    /// The client's socket; dangling before [`Caller::speaks_for`], and no request is sent until
    /// then.
    socket: rc::Weak<Socket>,
    /// The local data plane's clients, of which this may be one.
    clients: Rc<Clients>,
    is_local: bool,
}

impl Caller {
    /// Creates a client with this identity and session. `clients` are the local data plane's.
    pub fn new((peer, session): (Peer, u128), clients: &Rc<Clients>) -> Self {
        let (former, leases, socket, is_local) = Default::default();
        Self { peer, session, former, leases, socket, clients: Rc::clone(clients), is_local }
    }

    /// Sets the socket from which the client's requests come.
    pub fn speaks_for(&mut self, socket: &Rc<Socket>) {
        self.socket = Rc::downgrade(socket);
        self.enrol();
    }

    /// Registers the client in all lists that report clients that have gone.
    fn enrol(&self) {
        let own = self.is_local.then_some(&*self.clients);
        let lists = self.leases.iter().map(|lease| &lease.clients).chain(own);
        lists.for_each(|clients| clients.add(self.session, rc::Weak::clone(&self.socket)));
    }

    /// Connects to a data plane and completes the handshake of `plan`. Returns its result.
    pub async fn call(
        &mut self,
        shared: &Shared,
        target: Target,
        plan: ClientPlan,
    ) -> Result<(Upstream, ClientStep), Trouble> {
        let all = async {
            let mut upstream = self.connect(shared, target).await?;
            let answer = shake(&mut upstream.stream, plan).await?;
            Ok((upstream, answer))
        };
        let late = |_| Trouble::Passing("it is too slow".to_owned());
        timeout(shared.config.timing.handshake, all).await.map_err(late)?
    }

    async fn connect(&mut self, shared: &Shared, target: Target) -> Result<Upstream, Trouble> {
        match target {
            Target::Local => {
                confirmed(shared).await;
                hear_fronts(shared, (self.peer, self.session)).await;
                over(&self.former).await;
                let inside = shared.config.local.connect(self.peer).map_err(local)?;
                let Inside { stream, held, lender } = inside;
                self.former.retain(|former| former.strong_count() > 0);
                self.former.push(held);
                self.is_local = true;
                self.enrol();
                let setting = passing("a socket cannot be used");
                stream.set_nonblocking(true).map_err(&setting)?;
                let stream = Box::new(UnixStream::from_std(stream).map_err(&setting)?);
                Ok(Upstream { stream, lender, lease: None })
            }
            Target::Node(node, address) => {
                self.is_local = false;
                self.clients.remove(self.session);
                let lease = lease_at(shared, (node, address)).await?;
                self.leases.retain(|known| known.is_held() && !Rc::ptr_eq(known, &lease));
                self.leases.push(Rc::clone(&lease));
                self.enrol();
                let mut stream = dial(shared, (node, address)).await?;
                let cluster = shared.config.cluster;
                let session = Some(self.session);
                let number = lease.number;
                let peer = self.peer;
                let preamble = Preamble { cluster, node, lease: number, session, peer };
                match introduce(&mut stream, &shared.config.secret, &preamble).await? {
                    Verdict::Welcome => Ok(Upstream { stream, lender: None, lease: Some(lease) }),
                    Verdict::NoLease => {
                        lease.end();
                        Err(Trouble::Passing(Verdict::NoLease.to_string()))
                    }
                    verdict => Err(refused(verdict)),
                }
            }
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.clients.remove(self.session);
        self.leases.iter().for_each(|lease| lease.client_gone(self.session));
    }
}

/// Returns this front's lease at a home; opens one if there is none.
async fn lease_at(shared: &Shared, home: (NodeId, SocketAddr)) -> Result<Rc<Lease>, Trouble> {
    let place = shared.leases.at(home);
    let mut held = place.lock().await;
    if let Some(lease) = held.as_ref().filter(|lease| lease.is_held()) {
        return Ok(Rc::clone(lease));
    }
    // Created before the home is contacted, so that a gap on the way ends the lease, too.
    let watch = Watch::new(&shared.pulse);
    let mut stream = dial(shared, home).await?;
    let lease = Lease::new(shared.next_session());
    let cluster = shared.config.cluster;
    let session = None;
    let peer = Peer::At(HostAddress::Local);
    let preamble = Preamble { cluster, node: home.0, lease: lease.number, session, peer };
    match introduce(&mut stream, &shared.config.secret, &preamble).await? {
        Verdict::Welcome => {}
        verdict => return Err(refused(verdict)),
    }
    spawn_local(Rc::clone(&lease).renew(stream, watch, shared.config.timing.silence));
    *held = Some(Rc::clone(&lease));
    Ok(lease)
}

/// Connects to the address for nodes of another node.
async fn dial(
    shared: &Shared,
    (node, address): (NodeId, SocketAddr),
) -> Result<Box<dyn Stream>, Trouble> {
    let setting = passing("a socket cannot be used");
    let tcp = TcpStream::connect(address).await.map_err(passing("no connection"))?;
    set_up_node(&tcp).map_err(&setting)?;
    // However the connection ends, even with this process, unsent bytes must not be sent then.
    sockopt::set_socket_linger(&tcp, Some(Duration::ZERO)).map_err(|e| setting(e.into()))?;
    let Some(connector) = &shared.connector else { return Ok(Box::new(tcp)) };
    let name = evenkeel_link::server_name(node);
    let name = name.map_err(|error| Trouble::Passing(error.to_string()))?;
    Ok(Box::new(connector.connect(name, tcp).await.map_err(passing("TLS"))?))
}

/// Returns when no request of these connections is under way. The caller bounds the time.
pub(crate) async fn over(former: &[Weak<()>]) {
    while former.iter().any(|held| held.strong_count() > 0) {
        sleep(OVER_LOOK).await;
    }
}

/// Converts the error with which the local data plane refuses a connection.
fn local(error: io::Error) -> Trouble {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Trouble::Unknown,
        io::ErrorKind::ResourceBusy => Trouble::Denied(error.to_string()),
        _ => Trouble::Passing(error.to_string()),
    }
}

/// Checks the node's proof, proves this node, and sends the preamble. Returns the verdict.
async fn introduce(
    stream: &mut Box<dyn Stream>,
    secret: &ClusterSecret,
    preamble: &Preamble,
) -> Result<Verdict, Trouble> {
    let what = passing("no answer to the opening");
    let opening = evenkeel_link::nonce().map_err(&what)?;
    stream.write_all(&hello::opening(&opening)).await.map_err(&what)?;
    stream.flush().await.map_err(&what)?;
    match verdict(stream).await.map_err(&what)? {
        Verdict::Prove => {}
        verdict => return Err(Trouble::Passing(verdict.to_string())),
    }
    let mut bytes = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut bytes).await.map_err(&what)?;
    let node = preamble.node;
    let opened = Meeting { protocol: Protocol::Relay, node, opening, challenge: [0; NONCE_BYTES] };
    let Some(meeting) = secret.answered(&opened, &bytes) else {
        let text = "it has not proven that it is this node of the cluster";
        return Err(Trouble::Passing(text.to_owned()));
    };
    let what = passing("no answer to the preamble");
    stream.write_all(&secret.proof_of_connecting(&meeting)).await.map_err(&what)?;
    stream.write_all(&preamble.encode()).await.map_err(&what)?;
    stream.flush().await.map_err(&what)?;
    verdict(stream).await.map_err(&what)
}

fn refused(verdict: Verdict) -> Trouble {
    match verdict {
        Verdict::Stranger => Trouble::Unknown,
        Verdict::NoPlace => Trouble::Denied(verdict.to_string()),
        _ => Trouble::Passing(verdict.to_string()),
    }
}

async fn verdict(stream: &mut Box<dyn Stream>) -> io::Result<Verdict> {
    let mut bytes = [0; VERDICT_BYTES];
    stream.read_exact(&mut bytes).await?;
    Ok(Verdict::decode(bytes))
}

/// Completes the client's side of a handshake up to its last step.
async fn shake(stream: &mut Box<dyn Stream>, plan: ClientPlan) -> Result<ClientStep, Trouble> {
    let what = passing("the handshake was cut off");
    let mut client = Client::new(plan);
    let mut input = Vec::with_capacity(HANDSHAKE_READ_BYTES);
    loop {
        match client.poll_output() {
            Some(ClientStep::Send(bytes)) => {
                stream.write_all(&bytes).await.map_err(&what)?;
                stream.flush().await.map_err(&what)?;
                continue;
            }
            Some(ClientStep::Close(close)) => return Err(refusal(close)),
            Some(_) if !input.is_empty() => {
                return Err(Trouble::Passing("it says more than it was asked".to_owned()));
            }
            Some(step) => return Ok(step),
            None => {}
        }
        if input.is_empty() && stream.read_buf(&mut input).await.map_err(&what)? == 0 {
            return Err(what(io::ErrorKind::UnexpectedEof.into()));
        }
        let taken = client.handle(&input);
        input.drain(..taken);
    }
}

fn refusal(close: ClientClose) -> Trouble {
    match close {
        ClientClose::Refused { reply: reply::ERR_UNKNOWN, .. } => Trouble::Unknown,
        ClientClose::Refused { reply: reply::ERR_POLICY, message, .. } => Trouble::Denied(message),
        other => Trouble::Passing(other.to_string()),
    }
}

fn set_up(stream: &TcpStream, (after, every, tries): (Duration, Duration, u32)) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, after)?;
    sockopt::set_tcp_keepintvl(stream, every)?;
    sockopt::set_tcp_keepcnt(stream, tries)?;
    Ok(())
}

/// Prepares a connection of a client.
pub(crate) fn set_up_client(stream: &TcpStream) -> io::Result<()> {
    set_up(stream, CLIENT_KEEPALIVE)
}

/// Prepares a connection between nodes.
pub(crate) fn set_up_node(stream: &TcpStream) -> io::Result<()> {
    set_up(stream, NODE_KEEPALIVE)?;
    Ok(sockopt::set_tcp_user_timeout(stream, NODE_UNACKNOWLEDGED_MS)?)
}
