//! NBD over TLS. Each client shows the certificate of a host, and reaches the volumes that are
//! attached to that host, from any address.
//!
//! ```text
//!  client ── TCP, TLS ── this module ── socket pair ── the data plane
//! ```
//!
//! One thread accepts clients and completes their handshakes, at a lower priority than the rest of
//! the program: connections that fail cost the clients that are served little. A client that is let
//! in moves to one of the threads that encrypt. So no thread of the data plane computes anything of
//! TLS, and connections without TLS do not pass through here.
//!
//! Bounds: [`CONNECTIONS_MAX`] connections. A quarter of them may be in a handshake, half of those
//! of one address, each for [`HANDSHAKE_MAX`]; then the oldest handshake of the address with the
//! most is closed for a new one.

use crate::host_name::host_of;
use crate::server::ServerTls;
use crate::session::{SCRATCH_BYTES, Scratch, Session};
use evenkeel_core::connection_limits::{Bounds, ConnectionId, Connections};
use evenkeel_core::ids::InstanceId;
use evenkeel_core::log_limit::LogLimit;
use evenkeel_os::clock;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::nbd::constants::GREETING_BYTES;
use evenkeel_wire::nbd::handshake::{Server, ServerStep};
use rustix::net::sockopt;
use rustls::ServerConnection;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio::time::timeout;

/// Maximum number of connections, handshakes included.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Maximum time from the acceptance of a client to the end of its TLS handshake.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Maximum number of threads that encrypt.
const WORKERS_MAX: u16 = 8;
/// Maximum time for the data plane to greet a client that is let in.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Maximum time for connections to end after the data plane has closed them.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Pause after the process has run out of descriptors.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Priority of the thread that completes handshakes, as a nice value.
const NICE: i32 = 10;
/// Bytes that are read of a handshake at once.
const READ_BYTES: usize = 4 << 10;
/// Idle time of a client after which keepalive probes start, their interval and number, as the data
/// plane's.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(20), 6);

/// The data plane, as this module uses it.
pub trait Inside: Send + Sync {
    /// Opens a connection for a client. Does not wait.
    ///
    /// # Errors
    /// - `PermissionDenied`: no volume is attached to the host.
    /// - `ResourceBusy`: a limit on connections is reached; the text says which.
    /// - Any other: not now.
    fn connect(&self, client: &Proven<'_>) -> io::Result<UnixStream>;

    /// Reports a client at `address` that is refused.
    fn report_refused(&self, address: HostAddress, why: &str);
}

/// A client that has proven which host it is.
#[derive(Clone, Copy, Debug)]
pub struct Proven<'a> {
    /// The host.
    pub host: InstanceId,
    /// The address from which it has connected.
    pub address: SocketAddr,
    /// Its socket, which shows when the client has ended the connection. Its bytes are not for
    /// others.
    pub socket: BorrowedFd<'a>,
}

/// Why NBD over TLS does not start.
#[derive(Debug)]
pub enum NbdTlsError {
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// A thread or a descriptor was refused.
    Resources(io::Error),
}

impl fmt::Display for NbdTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(
                f,
                "NBD over TLS cannot listen on {address}: {error}; choose another address or stop \
                 the program that uses it"
            ),
            Self::Resources(error) => {
                write!(f, "NBD over TLS cannot start: {error}; see `evenkeel doctor`")
            }
        }
    }
}

impl std::error::Error for NbdTlsError {}

/// Listening sockets. Clients that connect wait until [`Self::open`].
pub struct Listening {
    listeners: Vec<std::net::TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl Listening {
    /// Binds the addresses; port 0 takes a free one.
    ///
    /// # Errors
    /// [`NbdTlsError::Listen`].
    pub fn bind(addresses: &[SocketAddr]) -> Result<Self, NbdTlsError> {
        let mut bound = Self { listeners: Vec::new(), addresses: Vec::new() };
        for &address in addresses {
            let failed = |error| NbdTlsError::Listen(address, error);
            let listener = std::net::TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            bound.addresses.push(listener.local_addr().map_err(failed)?);
            bound.listeners.push(listener);
        }
        Ok(bound)
    }

    /// Returns the addresses with their real ports.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts clients from now on. `cores` is the number of processors that may encrypt.
    ///
    /// # Errors
    /// [`NbdTlsError::Resources`].
    pub fn open(
        self,
        tls: Arc<ServerTls>,
        inside: Arc<dyn Inside>,
        cores: u16,
    ) -> Result<NbdTls, NbdTlsError> {
        let mut workers = Vec::new();
        let mut threads = Vec::new();
        for number in 0..cores.clamp(1, WORKERS_MAX) {
            let (jobs, receiver) = mpsc::channel(CONNECTIONS_MAX);
            let name = format!("nbd-tls-{number}");
            threads.push(thread(name, move |runtime| encrypt(runtime, receiver))?);
            workers.push(jobs);
        }
        let (close, closed) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let listeners = self.listeners;
        let door = thread("nbd-tls-door".to_owned(), move |runtime| {
            let door = Door {
                tls,
                inside,
                workers,
                next: Cell::new(0),
                places: Rc::new(RefCell::new(Connections::new(Bounds::of_front(CONNECTIONS_MAX)))),
                closed,
                refusals: RefCell::default(),
            };
            LocalSet::new().block_on(runtime, async {
                tokio::select! {
                    () = run(door, listeners) => {}
                    _ = stopped => {}
                }
            });
        })?;
        threads.push(door);
        Ok(NbdTls { close, stop: Some(stop), threads })
    }
}

/// Runs `work` on a new thread with a runtime of its own.
fn thread(
    name: String,
    work: impl FnOnce(&Runtime) + Send + 'static,
) -> Result<JoinHandle<()>, NbdTlsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(NbdTlsError::Resources)?;
    let thread = std::thread::Builder::new().name(name);
    thread.spawn(move || work(&runtime)).map_err(NbdTlsError::Resources)
}

/// Running NBD over TLS. Dropping it ends the connections that are left, and waits for that.
pub struct NbdTls {
    close: watch::Sender<bool>,
    stop: Option<oneshot::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl NbdTls {
    /// Stops accepting clients until the process ends, as the data plane does. Handshakes are cut;
    /// connections to volumes stay.
    pub fn close_doors(&self) {
        self.close.send_replace(true);
    }
}

impl Drop for NbdTls {
    fn drop(&mut self) {
        // An error says that the thread has ended.
        let _ = self.stop.take().map(|stop| stop.send(()));
        for thread in self.threads.drain(..).rev() {
            if thread.join().is_err() {
                tracing::error!("a thread of NBD over TLS panicked");
            }
        }
    }
}

/// A client that is let in.
struct Job {
    session: (std::net::TcpStream, ServerConnection),
    inside: UnixStream,
    /// The flags of the client's handshake, which it has sent before TLS.
    flags: u32,
    /// Dropped when the connection has ended.
    _done: oneshot::Sender<()>,
}

impl Job {
    async fn run(self, scratch: Scratch) -> io::Result<()> {
        let Self { session, inside, flags, _done } = self;
        let session = Session::of_parts(session)?;
        inside.set_nonblocking(true)?;
        let mut inside = tokio::net::UnixStream::from_std(inside)?;
        // The client has this part of the handshake behind it.
        let greeted = async {
            inside.read_exact(&mut [0; GREETING_BYTES]).await?;
            inside.write_all(&flags.to_be_bytes()).await
        };
        timeout(GREETING_MAX, greeted)
            .await
            .map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
        session.exchange(inside, &scratch).await
    }
}

/// Serves the clients that arrive in `jobs`, until its senders are gone.
fn encrypt(runtime: &Runtime, mut jobs: mpsc::Receiver<Job>) {
    LocalSet::new().block_on(runtime, async {
        let scratch: Scratch = Rc::new(RefCell::new(vec![0; SCRATCH_BYTES].into()));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                job = jobs.recv() => {
                    let Some(job) = job else { break };
                    let scratch = Rc::clone(&scratch);
                    connections.spawn_local(async move {
                        if let Err(error) = job.run(scratch).await {
                            tracing::debug!(%error, "a connection over TLS ended");
                        }
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
        // The data plane has closed its side of them.
        let ended = async { while connections.join_next().await.is_some() {} };
        let _ = timeout(STOP_MAX, ended).await;
    });
}

/// State of the thread that accepts clients.
struct Door {
    tls: Arc<ServerTls>,
    inside: Arc<dyn Inside>,
    workers: Vec<mpsc::Sender<Job>>,
    /// The worker of the next client.
    next: Cell<usize>,
    places: Rc<RefCell<Connections<HostAddress, Rc<Notify>>>>,
    closed: watch::Receiver<bool>,
    /// Limits log lines about clients that are refused.
    refusals: RefCell<LogLimit>,
}

/// A connection's place. Dropping it frees the place.
struct Place {
    places: Rc<RefCell<Connections<HostAddress, Rc<Notify>>>>,
    peer: HostAddress,
    id: ConnectionId,
    evicted: Rc<Notify>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.borrow_mut().leave(self.peer, self.id, None);
    }
}

async fn run(door: Door, listeners: Vec<std::net::TcpListener>) {
    lower_priority();
    let door = Rc::new(door);
    let mut closed = door.closed.clone();
    for listener in listeners {
        let door = Rc::clone(&door);
        spawn_local(async move {
            match TcpListener::from_std(listener) {
                Ok(listener) => accept(&door, listener).await,
                Err(error) => tracing::error!(%error, "no clients of NBD over TLS are accepted"),
            }
        });
    }
    // Fails only where the owner is gone; the thread is stopped then.
    let _ = closed.wait_for(|closed| *closed).await;
    std::future::pending().await
}

async fn accept(door: &Rc<Door>, listener: TcpListener) {
    let mut closed = door.closed.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closed.wait_for(|closed| *closed) => return,
        };
        match accepted {
            Ok((tcp, address)) => {
                let Some(place) = door.greet(HostAddress::of(address.ip())) else {
                    door.refused(address, "there are as many connections as there may be");
                    continue;
                };
                spawn_local(serve(Rc::clone(door), tcp, address, place));
            }
            Err(error) => {
                door.refused_by_system(&error);
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Lowers the priority of this thread. Without that, handshakes compete with clients that are
/// served.
fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
        tracing::warn!(%error, "handshakes of NBD over TLS run at the priority of the program");
    }
}

/// Lets a client in, and keeps its place until its connection ends.
async fn serve(door: Rc<Door>, tcp: TcpStream, address: SocketAddr, place: Place) {
    let mut closed = door.closed.clone();
    let (done, is_done) = oneshot::channel();
    let handshake = timeout(HANDSHAKE_MAX, door.admit(tcp, address, done));
    let admitted = tokio::select! {
        admitted = handshake => admitted.unwrap_or_else(|_| {
            Err(format!("its handshake takes more than {} s", HANDSHAKE_MAX.as_secs()))
        }),
        () = place.evicted.notified() => Err("its handshake makes room for others".to_owned()),
        _ = closed.wait_for(|closed| *closed) => return,
    };
    place.places.borrow_mut().settle(place.peer, place.id);
    match admitted {
        // An error is how the end is known.
        Ok(()) => drop(is_done.await),
        Err(why) => door.refused(address, &why),
    }
}

impl Door {
    fn greet(&self, peer: HostAddress) -> Option<Place> {
        let mut places = self.places.borrow_mut();
        if !places.leaves_room(peer) {
            return None;
        }
        let evicted = Rc::new(Notify::new());
        let (id, oldest) = places.greet(peer, Rc::clone(&evicted)).ok()?;
        if let Some((_, oldest)) = oldest {
            oldest.notify_one();
        }
        drop(places);
        Some(Place { places: Rc::clone(&self.places), peer, id, evicted })
    }

    fn refused(&self, address: SocketAddr, why: &str) {
        self.inside.report_refused(HostAddress::of(address.ip()), why);
        let Some(left_out) = self.refusals.borrow_mut().line(clock::monotonic()) else { return };
        let left_out = (left_out > 0).then_some(left_out);
        tracing::warn!(%address, left_out, "a client of NBD over TLS is refused: {why}");
    }

    fn refused_by_system(&self, error: &io::Error) {
        let Some(left_out) = self.refusals.borrow_mut().line(clock::monotonic()) else { return };
        let left_out = (left_out > 0).then_some(left_out);
        let what = "a connection could not be accepted; see `evenkeel doctor`";
        tracing::warn!(%error, left_out, "{what}");
    }

    /// Completes the handshakes with a client and passes it to a worker.
    ///
    /// # Errors
    /// The reason for which it is refused, for the log.
    async fn admit(
        &self,
        tcp: TcpStream,
        address: SocketAddr,
        done: oneshot::Sender<()>,
    ) -> Result<(), String> {
        set_up(&tcp).map_err(|error| error.to_string())?;
        let (tcp, mut server) = start_tls(tcp).await?;
        let config = self.tls.nbd().ok_or("there is no authority of hosts")?;
        let session = Session::accept(tcp, config).await;
        let session = session.map_err(|error| format!("no TLS: {error}"))?;
        let certificate = session.client_certificate().ok_or("it has no certificate")?;
        let opened = host_of(certificate)
            .and_then(|host| self.connect(&Proven { host, address, socket: session.socket() }));
        let inside = match opened {
            Ok(inside) => inside,
            Err(why) => {
                refuse(session, &mut server, &why).await;
                return Err(why);
            }
        };
        let session = session.into_parts().map_err(|error| error.to_string())?;
        let job = Job { session, inside, flags: server.client_flags(), _done: done };
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let sent = self.workers[number % self.workers.len()].send(job).await;
        sent.map_err(|_| "the thread that encrypts has ended".to_owned())
    }

    fn connect(&self, client: &Proven<'_>) -> Result<UnixStream, String> {
        let host = client.host;
        self.inside.connect(client).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => format!(
                "no volume is attached to host {host}, which its certificate names; attach one \
                 with --host {host}"
            ),
            _ => error.to_string(),
        })
    }
}

fn set_up(tcp: &TcpStream) -> io::Result<()> {
    let (after, every, tries) = KEEPALIVE;
    tcp.set_nodelay(true)?;
    sockopt::set_socket_keepalive(tcp, true)?;
    sockopt::set_tcp_keepidle(tcp, after)?;
    sockopt::set_tcp_keepintvl(tcp, every)?;
    Ok(sockopt::set_tcp_keepcnt(tcp, tries)?)
}

/// Serves the options of a client until it starts TLS.
///
/// # Errors
/// The reason for which the connection ends before.
async fn start_tls(mut tcp: TcpStream) -> Result<(TcpStream, Server), String> {
    let mut server = Server::new().with_tls();
    let mut input = Vec::with_capacity(READ_BYTES);
    loop {
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => {
                tcp.write_all(&bytes).await.map_err(|error| error.to_string())?;
            }
            // Plain bytes after the option would be taken for bytes within TLS.
            Some(ServerStep::StartTls) if input.is_empty() => return Ok((tcp, server)),
            Some(ServerStep::Close(reason)) => return Err(reason.to_string()),
            Some(_) => return Err("it sends more before TLS than it may".to_owned()),
            None => {
                if input.is_empty() {
                    let read = tcp.read_buf(&mut input).await.map_err(|error| error.to_string())?;
                    if read == 0 {
                        return Err("it has gone".to_owned());
                    }
                }
                let consumed = server.handle(&input);
                input.drain(..consumed);
            }
        }
    }
}

/// Answers the options of a client that is not let in, within TLS, so that its user reads why.
async fn refuse(mut session: Session, server: &mut Server, why: &str) {
    let mut input = Vec::new();
    loop {
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => {
                if session.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            Some(ServerStep::WantList) => server.list(&[]),
            Some(ServerStep::WantExport(_)) => server.deny(why),
            Some(ServerStep::StartTls | ServerStep::Ready(_) | ServerStep::Close(_)) => {
                return session.close().await;
            }
            None => {
                let consumed = server.handle(&input);
                input.drain(..consumed);
                if consumed == 0 {
                    let mut bytes = [0; READ_BYTES];
                    match session.read(&mut bytes).await {
                        Ok(read @ 1..) => input.extend_from_slice(&bytes[..read]),
                        _ => return,
                    }
                }
            }
        }
    }
}
