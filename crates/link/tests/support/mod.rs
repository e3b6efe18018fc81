//! Both ends of a link on this machine, a relay between them, and a data plane without effects.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use evenkeel_core::fencing::NodeId;
use evenkeel_link::{
    AgentServer, ClientConfig, Confirm, LinkError, RemoteAgent, ServerConfig, Status, Timing,
    TlsFiles,
};
use evenkeel_os::clock::Deadline;
use evenkeel_wire::agent::proof::{ClusterSecret, SECRET_BYTES};
use evenkeel_wire::agent::session::{Leader, LeaderGeneration};
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, Reply};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub const CLUSTER: u128 = 0xc1;
/// The secret that all nodes know.
pub const SECRET: ClusterSecret = ClusterSecret::new([7; SECRET_BYTES]);
pub const NODE: NodeId = NodeId(7);
/// Maximum time that a test waits, on the slowest machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Short pauses between attempts, long patience with a slow machine.
pub const TIMING: Timing = Timing {
    handshake: Duration::from_secs(20),
    silence: Duration::from_secs(20),
    packet: Duration::from_secs(60),
    command: Duration::from_secs(120),
    patience: Duration::from_secs(60),
    retry_first: Duration::from_millis(1),
    retry_longest: Duration::from_millis(20),
};

pub fn leader(node: u32) -> Leader {
    Leader { node: NodeId(node), incarnation: u64::from(node) << 8 }
}

pub fn tls(name: &str, authority: &str) -> TlsFiles {
    let file = |name: &str| Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/tls")).join(name);
    TlsFiles {
        certificate: file(&format!("{name}.pem")),
        key: file(&format!("{name}.key")),
        authority: file(&format!("{authority}.pem")),
    }
}

pub fn server_config(folder: &Path) -> ServerConfig {
    ServerConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        cluster: CLUSTER,
        secret: SECRET,
        confirm: Confirm::new(|_, _| Ok(())),
        node: NODE,
        incarnation: 1,
        generation_file: folder.join("agent-generation"),
        tls: None,
        timing: TIMING,
    }
}

pub fn client_config(address: SocketAddr, generation: u64) -> ClientConfig {
    ClientConfig {
        address,
        cluster: CLUSTER,
        secret: SECRET,
        node: NODE,
        leader: leader(generation as u32),
        generation: LeaderGeneration(generation),
        tls: None,
        timing: TIMING,
    }
}

pub fn serve(folder: &Path, agent: &Arc<impl Agent + 'static>) -> AgentServer {
    let agent = Arc::clone(agent) as Arc<dyn Agent>;
    AgentServer::start(server_config(folder), agent).unwrap()
}

pub fn connect(address: SocketAddr, generation: u64) -> RemoteAgent {
    RemoteAgent::start(client_config(address, generation)).unwrap()
}

/// Waits for a status from which `found` makes a value, and returns that.
#[track_caller]
pub fn until<T>(remote: &RemoteAgent, mut found: impl FnMut(&Status) -> Option<T>) -> T {
    let deadline = Deadline::after(LONG);
    loop {
        let status = remote.status();
        if let Some(value) = found(&status) {
            return value;
        }
        assert!(!deadline.left().is_zero(), "its status stays {status:?}");
        std::thread::yield_now();
    }
}

pub fn up(remote: RemoteAgent) -> RemoteAgent {
    assert_eq!(remote.wait(LONG), Status::Up);
    remote
}

/// An agent behind a link of its own.
pub struct Linked {
    remote: RemoteAgent,
    _server: AgentServer,
}

impl Linked {
    pub fn over_tls(agent: Arc<dyn Agent>, folder: &Path) -> Self {
        let config = ServerConfig { tls: Some(tls("node-7", "ca")), ..server_config(folder) };
        let server = AgentServer::start(config, agent).unwrap();
        let config =
            ClientConfig { tls: Some(tls("leader", "ca")), ..client_config(server.address(), 1) };
        let remote = up(RemoteAgent::start(config).unwrap());
        Self { remote, _server: server }
    }
}

impl Agent for Linked {
    fn call(&self, command: Command) -> Reply {
        self.remote.call(command)
    }
}

/// A data plane that records its commands and sends given replies. A command can be held.
#[derive(Default)]
pub struct Fake {
    state: Mutex<FakeState>,
    changed: Condvar,
}

#[derive(Default)]
struct FakeState {
    begun: Vec<Command>,
    ended: Vec<Command>,
    replies: Vec<Reply>,
    held: Vec<Command>,
}

impl Fake {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets the replies to the next commands, in order.
    pub fn reply_with(&self, mut replies: Vec<Reply>) {
        replies.reverse();
        self.state.lock().unwrap().replies = replies;
    }

    pub fn begun(&self) -> Vec<Command> {
        self.state.lock().unwrap().begun.clone()
    }

    pub fn ended(&self) -> Vec<Command> {
        self.state.lock().unwrap().ended.clone()
    }

    pub fn hold(&self, command: &Command) {
        self.state.lock().unwrap().held.push(command.clone());
    }

    pub fn let_go(&self) {
        self.state.lock().unwrap().held.clear();
        self.changed.notify_all();
    }

    pub fn wait_until_begun(&self, commands: usize) {
        self.wait_until(|state| state.begun.len() >= commands);
    }

    pub fn wait_until_ended(&self, commands: usize) {
        self.wait_until(|state| state.ended.len() >= commands);
    }

    fn wait_until(&self, done: impl Fn(&FakeState) -> bool) {
        let state = self.state.lock().unwrap();
        let waited = self.changed.wait_timeout_while(state, LONG, |state| !done(state)).unwrap();
        assert!(!waited.1.timed_out(), "it has not come to that");
    }
}

impl Agent for Fake {
    fn call(&self, command: Command) -> Reply {
        let mut state = self.state.lock().unwrap();
        state.begun.push(command.clone());
        self.changed.notify_all();
        while state.held.contains(&command) {
            state = self.changed.wait(state).unwrap();
        }
        state.ended.push(command);
        self.changed.notify_all();
        state.replies.pop().unwrap_or(Reply::Done)
    }
}

pub fn failed(reply: Reply) -> Failed {
    match reply {
        Reply::Failed(failed) => failed,
        other => panic!("{other:?}"),
    }
}

pub fn kind(reply: Reply) -> FailedKind {
    failed(reply).kind
}

/// Behaviour of a relay for a connection: the bytes that it passes in each direction before it cuts
/// it, and the sizes of the pieces.
#[derive(Clone, Debug)]
pub struct Passage {
    pub forth_max: usize,
    pub back_max: usize,
    pub pieces: Vec<usize>,
}

impl Passage {
    pub const OPEN: Self = Self { forth_max: usize::MAX, back_max: usize::MAX, pieces: vec![] };
}

/// A relay between the two ends, which passes bytes on in pieces and cuts connections.
pub struct Relay {
    pub address: SocketAddr,
    passages: Arc<Mutex<Vec<Passage>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
    pub accepted: Arc<AtomicUsize>,
}

impl Relay {
    /// Starts a relay. Treats the first connections as `passages` says, beginning with the last
    /// one, and any other as open.
    pub fn to(target: SocketAddr, passages: Vec<Passage>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let passages = Arc::new(Mutex::new(passages));
        let accepted = Arc::new(AtomicUsize::new(0));
        let open = Arc::new(Mutex::new(Vec::new()));
        let of_thread = Arc::clone(&passages);
        let counted = Arc::clone(&accepted);
        let kept = Arc::clone(&open);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::SeqCst);
                let passage = of_thread.lock().unwrap().pop().unwrap_or(Passage::OPEN);
                let Ok(far) = TcpStream::connect(target) else { continue };
                for socket in [&near, &far] {
                    socket.set_nodelay(true).unwrap();
                    kept.lock().unwrap().push(socket.try_clone().unwrap());
                }
                let ends = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let pieces = passage.pieces.clone();
                std::thread::spawn(move || pass(near, far, passage.forth_max, &pieces));
                std::thread::spawn(move || pass(ends.1, ends.0, passage.back_max, &passage.pieces));
            }
        });
        Self { address, passages, open, accepted }
    }

    pub fn next(&self, passage: Passage) {
        self.passages.lock().unwrap().push(passage);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        for socket in self.open.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut left: usize, pieces: &[usize]) {
    let mut sizes = pieces.iter().copied().cycle();
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let size = sizes.next().unwrap_or(buffer.len()).min(left).min(buffer.len());
        let Ok(length @ 1..) = from.read(&mut buffer[..size]) else { break };
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
        left -= length;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Returns the text of an error.
pub fn told<T>(result: Result<T, LinkError>) -> String {
    result.err().expect("an error").to_string()
}
