//! Control's end of the link: an [`Agent`] that passes commands to a remote one.
//!
//! One thread connects, sends the hello, reads replies, and connects again when the connection is
//! lost. Callers send in their own threads and wait. If a command gets no reply, the error depends
//! on its possible effects: `Down` only if it had none and no earlier command about the same thing
//! is uncertain, and otherwise `Unanswered`. No command is sent twice: the caller decides that.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::fencing::NodeId;
use evenkeel_core::limits::AGENT_COMMANDS_MAX;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, Answer, Hello, Leader, LeaderGeneration, Packet, PacketKind, Verdict,
};
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, Reply, Touched, VERSION};
use tracing::{error, info, warn};

use crate::channel::{Channel, Heart, Incoming};
use crate::greeting::{self, Unproven};
use crate::in_doubt::Unknown;
use crate::tls::Tls;
use crate::{LinkError, Timing, TlsFiles};
use evenkeel_os::clock::Deadline;

/// Control's end of the link to one node.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The node's address.
    pub address: SocketAddr,
    /// The cluster.
    pub cluster: u128,
    /// The secret that all nodes of the cluster know.
    pub secret: ClusterSecret,
    /// The node that is expected at the address.
    pub node: NodeId,
    /// This process of control.
    pub leader: Leader,
    /// Its generation.
    pub generation: LeaderGeneration,
    /// Certificates. Without them, only nodes on this machine can be reached.
    pub tls: Option<TlsFiles>,
    /// Times that it waits.
    pub timing: Timing,
}

/// State of the link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// Commands are executed.
    Up,
    /// The node's process is a new one, which has received no volumes: call
    /// [`RemoteAgent::accept_restart`] with this number and send its volumes again.
    Restarted(u128),
    /// There is no connection; the text has the reason. It is tried again.
    Away(String),
    /// The node obeys another leader; the text has the reason. It is not tried again.
    Deposed(String),
}

/// The connection of the present session.
struct Session {
    channel: Arc<Channel>,
    /// Distinguishes the session from earlier ones.
    id: u64,
    commands_max: usize,
    /// Number of commands without a reply, sent or about to be.
    under_way: usize,
}

/// A command's place, for its reply.
enum Slot {
    Waiting,
    Answered(Reply),
    /// No caller waits for the reply.
    Abandoned,
}

struct State {
    status: Status,
    session: Option<Session>,
    sessions: u64,
    /// The node's process that has received all state from control, or is about to.
    accepted: Option<u128>,
    /// The number of the last command.
    number: u64,
    /// The session and the place of each command, by number.
    slots: BTreeMap<u64, (u64, Slot)>,
    unknown: Unknown,
    stopped: bool,
}

struct Shared {
    config: ClientConfig,
    tls: Option<Tls>,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's text.
pub struct RemoteAgent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Reason why a session ended.
enum End {
    /// The next attempt is made soon.
    Gone(String),
    /// The next attempt is made later: the operator must change something.
    Refused(String),
    /// No further attempt is made.
    Deposed(String),
}

impl RemoteAgent {
    /// Starts a thread that connects.
    ///
    /// # Errors
    /// If a file of keys or certificates cannot be used, or the node is on another machine and
    /// there is no TLS.
    pub fn start(config: ClientConfig) -> Result<Self, LinkError> {
        if config.tls.is_none() && !config.address.ip().is_loopback() {
            return Err(LinkError::Plain(config.address));
        }
        let tls = config.tls.as_ref().map(|files| files.client(config.node)).transpose()?;
        let state = State {
            status: Status::Away("it has not been tried yet".to_owned()),
            session: None,
            sessions: 0,
            accepted: None,
            number: 0,
            slots: BTreeMap::new(),
            unknown: Unknown::default(),
            stopped: false,
        };
        let state = Mutex::new(state);
        let changed = Condvar::new();
        let shared = Arc::new(Shared { config, tls, state, changed });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("agent-link".to_owned())
            .spawn(move || of_thread.run())
            .map_err(LinkError::Resources)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the state of the link.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.state().status.clone()
    }

    /// Waits until the link is not [`Status::Away`], for at most `at_most`. Returns its state.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> Status {
        let deadline = Deadline::after(at_most);
        let mut state = self.shared.state();
        while matches!(state.status, Status::Away(_)) && !deadline.left().is_zero() {
            state = self.shared.wait(state, deadline);
        }
        state.status.clone()
    }

    /// Confirms that control knows of the node's new process, named by [`Status::Restarted`]. From
    /// now on commands are sent to it; control must send all state again.
    pub fn accept_restart(&self, incarnation: u128) {
        let mut state = self.shared.state();
        state.accepted = Some(incarnation);
        if state.status == Status::Restarted(incarnation) {
            state.status = Status::Up;
        }
        self.shared.changed.notify_all();
    }
}

impl RemoteAgent {
    /// Ends the link. Callers that wait for a reply get the error that the connection is lost.
    pub fn close(&self) {
        let mut state = self.shared.state();
        state.stopped = true;
        if let Some(session) = &state.session {
            session.channel.close();
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for RemoteAgent {
    fn drop(&mut self) {
        self.close();
        // The thread waits at most for a connection attempt or a handshake.
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the thread of a link to a node panicked");
        }
    }
}

impl Agent for RemoteAgent {
    fn call(&self, command: Command) -> Reply {
        self.shared.call(&command).unwrap_or_else(Reply::Failed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a few assignments.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Deadline) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, deadline.left());
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn call(&self, command: &Command) -> Result<Reply, Failed> {
        let touched = command.touched();
        let frame = command
            .encode()
            .map_err(|error| Failed { kind: FailedKind::Refused, message: error.to_string() })?;
        let (channel, session) = self.turn(&touched)?;
        let mut number = 0;
        let sent = channel.send(|| {
            // The number is assigned under the lock, because numbers must rise on the wire.
            let mut state = self.state();
            state.number += 1;
            number = state.number;
            // Whether the session has ended is checked below.
            if state.session.as_ref().is_some_and(|present| present.id == session) {
                state.slots.insert(number, (session, Slot::Waiting));
            }
            drop(state);
            let mut packet = Packet { kind: PacketKind::Command, number }.encode();
            packet.extend_from_slice(&frame);
            packet
        });
        if let Err(error) = &sent {
            self.give_up(session, error);
        }
        let answered = self.answer(number, sent);
        match answered {
            Answered::With(reply) => {
                let is_open =
                    matches!(&reply, Reply::Failed(Failed { kind: FailedKind::Unanswered, .. }));
                let mut state = self.state();
                if is_open {
                    let next = state.number + 1;
                    state.unknown.add(&touched, next);
                } else {
                    state.unknown.settle(&touched, number);
                }
                Ok(reply)
            }
            Answered::Late => {
                // If this cannot be sent, the session has ended, which has the same effect.
                let abandon = Packet { kind: PacketKind::Abandon, number };
                let _ = channel.send(|| abandon.encode());
                let seconds = self.config.timing.command.as_secs_f32();
                Err(self.lost(&touched, &format!("has not answered within {seconds} s")))
            }
            Answered::Lost(why) => {
                Err(self.lost(&touched, &format!("was lost before it answered: {why}")))
            }
        }
    }

    /// Ends a session in which sending failed: it takes no more commands, and its reader ends it.
    fn give_up(&self, session: u64, error: &io::Error) {
        let mut state = self.state();
        if state.session.as_ref().is_some_and(|present| present.id == session) {
            state.session = None;
            state.status = Status::Away(error.to_string());
        }
    }

    /// Waits until a command may be sent: there is a session, and it has room for one more command.
    fn turn(&self, touched: &[Touched]) -> Result<(Arc<Channel>, u64), Failed> {
        let deadline = Deadline::after(self.config.timing.patience);
        let mut state = self.state();
        loop {
            let State { status, session, stopped, .. } = &mut *state;
            match (&*status, session) {
                (Status::Up, Some(session)) if session.under_way < session.commands_max => {
                    session.under_way += 1;
                    return Ok((Arc::clone(&session.channel), session.id));
                }
                (Status::Deposed(_) | Status::Restarted(_), _) => break,
                _ if deadline.left().is_zero() || *stopped => break,
                _ => state = self.wait(state, deadline),
            }
        }
        let node = self.config.node.0;
        let why = match &state.status {
            Status::Up => format!("node {node} has too many commands under way; try again"),
            Status::Restarted(_) => format!(
                "node {node} was restarted and serves nothing until its volumes are brought up"
            ),
            Status::Away(why) => format!("node {node} is not connected: {why}; try again"),
            Status::Deposed(why) => format!("node {node} obeys another leader: {why}"),
        };
        Err(if state.unknown.has(touched) {
            Failed {
                kind: FailedKind::Unanswered,
                message: format!("the result of an earlier command is not known yet: {why}"),
            }
        } else {
            Failed { kind: FailedKind::Down, message: why }
        })
    }

    /// Waits for a reply, and frees the command's place.
    fn answer(&self, number: u64, sent: io::Result<()>) -> Answered {
        let deadline = Deadline::after(self.config.timing.command);
        let mut state = self.state();
        let mut is_late = sent.is_err();
        loop {
            match state.slots.get_mut(&number) {
                Some((_, Slot::Answered(_))) => break,
                // The place stays taken until the node replies.
                Some((_, slot @ Slot::Waiting)) if is_late => {
                    *slot = Slot::Abandoned;
                    return match sent {
                        Ok(()) => Answered::Late,
                        Err(error) => Answered::Lost(error.to_string()),
                    };
                }
                Some(_) => {}
                None => {
                    let why = match (sent, &state.status) {
                        (Err(error), _) => error.to_string(),
                        (Ok(()), Status::Away(why) | Status::Deposed(why)) => why.clone(),
                        _ => "the connection was lost".to_owned(),
                    };
                    return Answered::Lost(why);
                }
            }
            state = self.wait(state, deadline);
            is_late = deadline.left().is_zero();
        }
        match state.slots.remove(&number) {
            Some((_, Slot::Answered(reply))) => Answered::With(reply),
            _ => Answered::Lost("the answer is gone".to_owned()),
        }
    }

    fn lost(&self, touched: &[Touched], what: &str) -> Failed {
        let mut state = self.state();
        let next = state.number + 1;
        state.unknown.add(touched, next);
        let node = self.config.node.0;
        let message = format!("node {node} {what}; the command may have been executed");
        Failed { kind: FailedKind::Unanswered, message }
    }

    /// Connects repeatedly until the link is closed or the leader is deposed.
    fn run(&self) {
        let Timing { retry_first, retry_longest, .. } = self.config.timing;
        let node = self.config.node.0;
        let mut pause = retry_first;
        let mut text = String::new();
        loop {
            let mut welcomed = false;
            let ended = self.session(&mut welcomed);
            if welcomed {
                (pause, text) = (retry_first, String::new());
            }
            let why = match ended {
                End::Gone(why) => why,
                End::Refused(why) => {
                    pause = retry_longest;
                    why
                }
                End::Deposed(why) => {
                    error!(node, why, "the node obeys another leader; it is left to it");
                    return self.leave(Status::Deposed(why));
                }
            };
            let state = self.state();
            if state.stopped {
                drop(state);
                return self.leave(Status::Away("control has ended the link".to_owned()));
            }
            drop(state);
            if text != why {
                warn!(node, why, "the node cannot be commanded; its volumes are served as before");
                text.clone_from(&why);
            }
            self.leave(Status::Away(why));
            let deadline = Deadline::after(pause);
            let mut state = self.state();
            while !state.stopped && !deadline.left().is_zero() {
                state = self.wait(state, deadline);
            }
            pause = (pause * 2).min(retry_longest);
        }
    }

    /// Ends the session: all its commands under way are lost.
    fn leave(&self, status: Status) {
        let mut state = self.state();
        state.status = status;
        state.session = None;
        state.slots.retain(|_, (_, slot)| matches!(slot, Slot::Answered(_)));
        self.changed.notify_all();
    }

    fn session(&self, welcomed: &mut bool) -> End {
        let (channel, mut incoming, answer) = match self.connect() {
            Ok(connected) => connected,
            Err(end) => return end,
        };
        let node = self.config.node.0;
        let silence = Duration::from_millis(answer.silence_ms.into());
        incoming.set_silence(silence);
        let heart = match Heart::start(&channel, silence, "agent-heart") {
            Ok(heart) => heart,
            Err(error) => return End::Gone(format!("no thread for its heartbeat: {error}")),
        };
        let session = {
            let mut state = self.state();
            if state.stopped {
                return End::Gone(String::new());
            }
            state.sessions += 1;
            let id = state.sessions;
            let commands_max = answer.commands_max.min(AGENT_COMMANDS_MAX) as usize;
            let channel = Arc::clone(&channel);
            state.session = Some(Session { channel, id, commands_max, under_way: 0 });
            let accepted = *state.accepted.get_or_insert(answer.incarnation);
            state.status = if accepted == answer.incarnation {
                Status::Up
            } else {
                Status::Restarted(answer.incarnation)
            };
            self.changed.notify_all();
            id
        };
        *welcomed = true;
        info!(node, address = %self.config.address, "the node is connected");
        let ended = self.read(session, &mut incoming);
        drop(heart);
        channel.close();
        End::Gone(match ended {
            Ok(()) => "an answer to no command came".to_owned(),
            Err(error) => error.to_string(),
        })
    }

    fn connect(&self) -> Result<(Arc<Channel>, Incoming, Answer), End> {
        let ClientConfig { address, cluster, node, leader, generation, timing, .. } = self.config;
        let deadline = Deadline::after(timing.handshake);
        let gone = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| End::Gone(format!("{what} {address}: {error}"))
        };
        let socket = TcpStream::connect_timeout(&address, timing.handshake)
            .map_err(gone("cannot connect to"))?;
        let (channel, mut incoming) =
            Channel::open(socket, self.tls.as_ref(), timing.packet, deadline)
                .map_err(gone("no connection is made to"))?;
        incoming.set_silence(timing.handshake);
        let proven = greeting::prove_to(
            (address, node),
            &self.config.secret,
            (&channel, &mut incoming),
            deadline,
        );
        proven.map_err(|unproven| match unproven {
            Unproven::Io(error) => gone("no proof of")(error),
            Unproven::Refused(why) => End::Refused(why),
        })?;
        let hello = Hello { agent_version: VERSION, cluster, node, leader, generation };
        channel.send_until(&hello.encode(), deadline).map_err(gone("no hello reaches"))?;
        let mut bytes = vec![0; ANSWER_BYTES];
        incoming.fill(&mut bytes, deadline).map_err(gone("no answer to the hello from"))?;
        let malformed = |error| End::Refused(format!("the answer of {address}: {error}"));
        let answer = greeting::read_answer(bytes, &mut incoming, deadline)
            .map_err(gone("no answer to the hello from"))?
            .map_err(malformed)?;
        let text = answer.text.clone();
        match answer.verdict {
            Verdict::Welcome if answer.silence_ms == 0 || answer.commands_max == 0 => {
                Err(End::Refused(format!("{address} allows no time or no commands")))
            }
            Verdict::Welcome => Ok((channel, incoming, answer)),
            Verdict::LowerGeneration | Verdict::OtherLeader => Err(End::Deposed(text)),
            Verdict::Version | Verdict::Cluster | Verdict::Node | Verdict::Certificate => {
                Err(End::Refused(text))
            }
            Verdict::Busy => Err(End::Gone(text)),
        }
    }

    /// Reads replies until the connection ends. `Ok` means that a reply has no command.
    fn read(&self, session: u64, incoming: &mut Incoming) -> io::Result<()> {
        loop {
            let Packet { kind, number } = incoming.packet()?;
            let breach = |text: &str| {
                let text = format!("the protocol is broken: {text}");
                io::Error::new(io::ErrorKind::InvalidData, text)
            };
            match kind {
                PacketKind::Heartbeat => continue,
                PacketKind::Reply => {}
                PacketKind::Command | PacketKind::Abandon => {
                    return Err(breach("the node sent a packet that only the leader sends"));
                }
            }
            let reply = Reply::decode(&incoming.frame()?)
                .map_err(|error| breach(&format!("answer {number}: {error}")))?;
            let mut state = self.state();
            match state.slots.get_mut(&number) {
                Some((of, slot @ Slot::Waiting)) if *of == session => {
                    *slot = Slot::Answered(reply);
                }
                Some((of, Slot::Abandoned)) if *of == session => {
                    state.slots.remove(&number);
                }
                _ => return Ok(()),
            }
            if let Some(present) = &mut state.session {
                present.under_way = present.under_way.saturating_sub(1);
            }
            self.changed.notify_all();
        }
    }
}

/// Outcome of a command that was sent.
enum Answered {
    With(Reply),
    /// No reply came in time.
    Late,
    /// The connection is lost; the text has the reason.
    Lost(String),
}
