//! The node's end of the link: listens, lets the leader in, and executes its commands.
//!
//! One thread accepts. Each connection has a thread that reads; their number is bounded by the
//! limit of handshakes and the one session that is let in. Each command has a thread while it runs:
//! most take microseconds, and one whose disk hangs delays no other.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use evenkeel_core::convert::saturating;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::limits::{AGENT_COMMANDS_MAX, AGENT_HANDSHAKES_MAX};
use evenkeel_core::log_limit::LogLimit;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::session::{
    Answer, HELLO_BYTES, Hello, Leader, LeaderGeneration, Packet, PacketKind, Verdict,
};
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, Reply, VERSION};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tracing::{debug, info, warn};

use crate::channel::{Channel, Heart, Incoming};
use crate::generation::GenerationFile;
use crate::greeting;
use crate::leader_check::{Gate, Kept, SessionId};
use crate::tls::Tls;
use crate::{LinkError, Timing, TlsFiles};
use evenkeel_os::clock::{self, Deadline};

/// Checks with the cluster whether a leader has a generation that is new to this node.
///
/// A node keeps the highest generation permanently, so a generation that the cluster has never had
/// would keep all later leaders out.
#[derive(Clone)]
pub struct Confirm(Arc<dyn Fn(Leader, LeaderGeneration) -> Result<(), String> + Send + Sync>);

impl Confirm {
    /// Calls `ask`, which may take as long as a handshake. Its error has the reason why the leader
    /// is not let in now.
    pub fn new(
        ask: impl Fn(Leader, LeaderGeneration) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(ask))
    }
}

impl std::fmt::Debug for Confirm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Confirm")
    }
}

/// The node's end of the link.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The cluster that the node belongs to.
    pub cluster: u128,
    /// The secret that all nodes of the cluster know. A side that does not know it is refused.
    pub secret: ClusterSecret,
    /// Checks whether a generation is that of the cluster's leader.
    pub confirm: Confirm,
    /// The node.
    pub node: NodeId,
    /// Identifies this process of the node; another process must have another number.
    pub incarnation: u128,
    /// File with the highest generation, on a disk that outlives the process.
    pub generation_file: PathBuf,
    /// Certificates. Without them, only loopback addresses can be listened on.
    pub tls: Option<TlsFiles>,
    /// Times that it waits.
    pub timing: Timing,
}

struct Shared {
    config: ServerConfig,
    tls: Option<Tls>,
    /// `None` once the server has stopped, so that the agent's resources are freed.
    agent: Mutex<Option<Arc<dyn Agent>>>,
    gate: Gate,
    /// Number of connections that have not sent a hello.
    handshakes: AtomicUsize,
    stopped: AtomicBool,
    /// Written to when the server stops.
    stop: OwnedFd,
    strangers: Mutex<LogLimit>,
}

/// Makes a data plane's agent reachable through a socket. Dropping it closes the socket; the data
/// plane continues.
pub struct AgentServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl AgentServer {
    /// Starts listening.
    ///
    /// An address or a file cannot be used, or the address is not a loopback address and there is
    /// no TLS.
    pub fn start(config: ServerConfig, agent: Arc<dyn Agent>) -> Result<Self, LinkError> {
        if config.tls.is_none() && !config.listen.ip().is_loopback() {
            return Err(LinkError::Plain(config.listen));
        }
        let tls = config.tls.as_ref().map(|files| files.server(config.node)).transpose()?;
        let (file, heard) = GenerationFile::open(&config.generation_file)?;
        let listen = |error| LinkError::Listen(config.listen, error);
        let listener = TcpListener::bind(config.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)
            .map_err(|error| LinkError::Resources(error.into()))?;
        let shared = Arc::new(Shared {
            tls,
            agent: Mutex::new(Some(agent)),
            gate: Gate::new(file, heard),
            handshakes: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            stop,
            strangers: Mutex::default(),
            config,
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("agent-accept".to_owned())
            .spawn(move || accept_all(&of_thread, &listener))
            .map_err(LinkError::Resources)?;
        info!(%address, "control may connect to this node");
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// Returns the address that is listened on, with the port in use.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for AgentServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // This cannot fail: the counter is far from its maximum.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        *self.shared.agent.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.gate.close(self.shared.config.timing.handshake);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread that accepts control's connections panicked");
        }
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.stopped.load(Ordering::SeqCst) {
        let mut ready =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
        // Interrupted or not, the loop checks both descriptors.
        let _ = poll(&mut ready, None);
        match listener.accept() {
            Ok((socket, peer)) => take_in(shared, socket, peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                shared.tell_of("a connection", &format!("cannot be accepted: {error}"));
                // Perhaps no descriptor is free, so the next attempt waits.
                let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
                let _ = poll(&mut [PollFd::new(&shared.stop, PollFlags::IN)], Some(&pause));
            }
        }
    }
}

/// Counts a connection that has not sent a hello.
struct Handshake(Arc<Shared>);

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Ordering::SeqCst);
    }
}

fn take_in(shared: &Arc<Shared>, socket: TcpStream, peer: SocketAddr) {
    let before = shared.handshakes.fetch_add(1, Ordering::SeqCst);
    let handshake = Handshake(Arc::clone(shared));
    if before >= AGENT_HANDSHAKES_MAX {
        let text = format!("is refused: {before} others have not identified themselves yet");
        return shared.tell_of(&peer.to_string(), &text);
    }
    let of_thread = Arc::clone(shared);
    let spawned = std::thread::Builder::new()
        .name("agent-session".to_owned())
        .spawn(move || of_thread.serve(socket, peer, handshake));
    if let Err(error) = spawned {
        shared.tell_of(&peer.to_string(), &format!("is refused: no thread for it: {error}"));
    }
}

impl Shared {
    /// Logs a line about an unproven peer: at most a few in ten seconds.
    fn tell_of(&self, who: &str, what: &str) {
        let line =
            self.strangers.lock().unwrap_or_else(PoisonError::into_inner).line(clock::monotonic());
        if let Some(left_out) = line {
            warn!(left_out, "agent connection: {who} {what}");
        }
    }

    fn serve(self: Arc<Self>, socket: TcpStream, peer: SocketAddr, handshake: Handshake) {
        let deadline = Deadline::after(self.config.timing.handshake);
        let welcomed = self.welcome(socket, deadline);
        drop(handshake);
        let (hello, channel, mut incoming, session) = match welcomed {
            Ok(welcomed) => welcomed,
            Err(why) => return self.tell_of(&peer.to_string(), &format!("is refused: {why}")),
        };
        let leader = hello.leader;
        let generation = hello.generation;
        info!(%peer, %leader, %generation, "control is connected");
        let heart = Heart::start(&channel, self.config.timing.silence, "agent-heart");
        let ended = heart.and_then(|heart| {
            let ended = self.read(session, &channel, &mut incoming);
            drop(heart);
            ended
        });
        channel.close();
        self.gate.end(session);
        match ended {
            // The line about the later session reports it.
            Ok(()) => debug!(%peer, %leader, "the session has been replaced"),
            Err(error) => {
                warn!(%peer, %leader, %error, "control is gone; volumes are served as before");
            }
        }
    }

    /// Runs the handshake, which identifies the leader. The error is for the log; a refused peer
    /// gets the reason, too.
    fn welcome(
        &self,
        socket: TcpStream,
        deadline: Deadline,
    ) -> Result<(Hello, Arc<Channel>, Incoming, SessionId), String> {
        // The inherited flags of an accepted socket differ between systems.
        socket.set_nonblocking(false).map_err(|error| error.to_string())?;
        let Timing { packet, silence, handshake, .. } = self.config.timing;
        let (channel, mut incoming) = Channel::open(socket, self.tls.as_ref(), packet, deadline)
            .map_err(|error| format!("no connection is made: {error}"))?;
        incoming.set_silence(handshake);
        let ServerConfig { node, secret, .. } = &self.config;
        greeting::prove_from(*node, secret, (&channel, &mut incoming), deadline)?;
        let mut bytes = [0; HELLO_BYTES];
        incoming
            .fill(&mut bytes, deadline)
            .map_err(|error| format!("it has not identified itself: {error}"))?;
        let admitted = self.judge(&bytes, &channel).and_then(|hello| {
            let session = self.gate.admit(&hello, &channel)?;
            Ok((hello, session))
        });
        let (verdict, text) = match &admitted {
            Ok(_) => (Verdict::Welcome, String::new()),
            Err(refused) => refused.clone(),
        };
        let answer = Answer {
            verdict,
            agent_version: VERSION,
            generation: self.gate.generation(),
            incarnation: self.config.incarnation,
            commands_max: AGENT_COMMANDS_MAX,
            silence_ms: saturating(silence.as_millis()),
            text,
        };
        let sent = channel.send_until(&answer.encode(), deadline);
        let (hello, session) = admitted.map_err(|(_, text)| text)?;
        if let Err(error) = sent {
            self.gate.end(session);
            return Err(format!("it does not take the answer: {error}"));
        }
        incoming.set_silence(silence);
        Ok((hello, channel, incoming, session))
    }

    fn judge(
        &self,
        bytes: &[u8; HELLO_BYTES],
        channel: &Channel,
    ) -> Result<Hello, (Verdict, String)> {
        let hello = Hello::decode(bytes).map_err(|error| (Verdict::Version, error.to_string()))?;
        let ServerConfig { cluster, node, .. } = self.config;
        if hello.cluster != cluster {
            let text = format!("control is not of the cluster of node {}", node.0);
            return Err((Verdict::Cluster, text));
        }
        if hello.node != node {
            let text = format!(
                "control looks for node {}, this is node {}; look at the address",
                hello.node.0, node.0
            );
            return Err((Verdict::Node, text));
        }
        let Leader { node: from, .. } = hello.leader;
        if !channel.is_of(from) {
            let text = format!(
                "control says that it is node {0}, and its certificate has not the name \
                 node-{0}.evenkeel",
                from.0
            );
            return Err((Verdict::Certificate, text));
        }
        if self.gate.must_confirm(hello.generation) {
            let Confirm(confirm) = &self.config.confirm;
            confirm(hello.leader, hello.generation).map_err(|text| (Verdict::Busy, text))?;
        }
        Ok(hello)
    }

    /// Reads packets until the connection ends or a later session is let in. The latter is no
    /// error.
    fn read(
        self: &Arc<Self>,
        session: SessionId,
        channel: &Arc<Channel>,
        incoming: &mut Incoming,
    ) -> io::Result<()> {
        let mut last = 0;
        loop {
            let Packet { kind, number } = incoming.packet()?;
            match kind {
                PacketKind::Heartbeat => {}
                PacketKind::Abandon => self.gate.abandon(session, number),
                PacketKind::Reply => return Err(breach("control sent a reply".to_owned())),
                PacketKind::Command if number <= last => {
                    return Err(breach(format!("command {number} came after command {last}")));
                }
                PacketKind::Command => {
                    last = number;
                    let frame = incoming.frame()?;
                    if !self.gate.wait_for_room(session, frame.len()) {
                        return Ok(());
                    }
                    let under_way = self.gate.running(session);
                    if under_way >= AGENT_COMMANDS_MAX as usize {
                        let text = format!(
                            "control has {under_way} commands under way, the limit is \
                             {AGENT_COMMANDS_MAX}"
                        );
                        return Err(breach(text));
                    }
                    if !self.take(session, channel, number, &frame)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Begins a command. Returns whether the session is the latest.
    fn take(
        self: &Arc<Self>,
        session: SessionId,
        channel: &Arc<Channel>,
        number: u64,
        frame: &[u8],
    ) -> io::Result<bool> {
        let command = match Command::decode(frame) {
            Ok(command) => command,
            Err(error) => {
                warn!(number, %error, "control sent a command that cannot be read");
                let message = format!("the node cannot read the command: {error}");
                let failed = Failed { kind: FailedKind::Internal, message };
                answer(channel, number, &Reply::Failed(failed))?;
                return Ok(true);
            }
        };
        match self.gate.enter(session, number, command.touched(), frame.len()) {
            Ok(()) => {}
            Err(Kept::Fenced) => return Ok(false),
            Err(kept) => {
                let failed = Failed { kind: FailedKind::Unanswered, message: kept.to_string() };
                answer(channel, number, &Reply::Failed(failed))?;
                return Ok(true);
            }
        }
        let shared = Arc::clone(self);
        let of_thread = Arc::clone(channel);
        let spawned = std::thread::Builder::new()
            .name("agent-command".to_owned())
            .spawn(move || shared.execute(session, &of_thread, number, command));
        if let Err(error) = spawned {
            self.gate.leave(session, number);
            let message = format!("the node has no thread for the command: {error}; repeat it");
            let failed = Failed { kind: FailedKind::Unanswered, message };
            answer(channel, number, &Reply::Failed(failed))?;
        }
        Ok(true)
    }

    fn execute(&self, session: SessionId, channel: &Channel, number: u64, command: Command) {
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reply = catch_unwind(AssertUnwindSafe(|| match &agent {
            Some(agent) => agent.call(command),
            None => {
                let message = "the node is stopping".to_owned();
                Reply::Failed(Failed { kind: FailedKind::Down, message })
            }
        }));
        drop(agent);
        let reply = reply.unwrap_or_else(|_| {
            let message = "the node's data plane panicked at the command; see its log".to_owned();
            Reply::Failed(Failed { kind: FailedKind::Internal, message })
        });
        // The next command may come as soon as this one is answered.
        if self.gate.leave(session, number)
            && let Err(error) = answer(channel, number, &reply)
        {
            debug!(number, %error, "an answer cannot be sent");
        }
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fenced => f.write_str("a later leader commands this node"),
            Self::Conflict(touched) => write!(
                f,
                "an earlier command that changes the same ({touched:?}) has not ended yet; it is \
                 repeated until it has"
            ),
            Self::Full => f.write_str(
                "the node has too many abandoned commands under way; its disk hangs, \
                 see the kernel's log",
            ),
        }
    }
}

fn breach(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the protocol is broken: {text}"))
}

fn answer(channel: &Channel, number: u64, reply: &Reply) -> io::Result<()> {
    channel.send(|| {
        let frame = reply.encode().or_else(|error| {
            let message = format!("the answer is too long: {error}");
            Reply::Failed(Failed { kind: FailedKind::Internal, message }).encode()
        });
        let mut packet = Packet { kind: PacketKind::Reply, number }.encode();
        packet.extend(frame.unwrap_or_default());
        packet
    })
}
