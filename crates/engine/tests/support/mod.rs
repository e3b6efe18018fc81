//! An engine of one test, and a small NBD client on the codec's client role.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod cores;

// How the agent is reached: directly here; the crate `link` runs these tests over TCP.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/reached.inc"));

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::request::{Operation, Request};
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, IoMode, UnixAccess};
use evenkeel_store::Pool;
use evenkeel_store::local::device::{Device, FileDevice};
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::volume::Bounds;
use evenkeel_wire::agent::{
    Agent, Attachment, Command, HostAddress, Reply, Report, VolumeReport, VolumeState,
};
use evenkeel_wire::nbd::constants::REQUEST_MAGIC;
use evenkeel_wire::nbd::handshake::{Client, ClientGoal, ClientPlan, ClientStep};
use evenkeel_wire::nbd::transmission::{ErrorCode, Event, ReplyReader, RequestHeader};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time limit for an answer, on the slowest machine.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Opens the pool in a file of this folder, and creates it if there is none.
pub fn local_pool(folder: &Path) -> LocalPool {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&folder.join("pool"), true).unwrap());
    if device.size().unwrap() == 0 {
        let layout = Layout { identity: 0x5eed, chunks_max: 16 << 10, nodes: 255 };
        LocalPool::init(device.as_ref(), &layout).unwrap();
    }
    LocalPool::open(device, Bounds::default()).and_then(LocalPool::with_clerk).unwrap()
}

/// An engine with a unix socket in a folder of its own.
pub struct Served {
    pub engine: Option<Engine>,
    pub socket: PathBuf,
    agent: Arc<dyn Agent>,
    /// Sizes of the volumes that were created.
    sizes: Mutex<BTreeMap<VolumeId, ByteCount>>,
    _folder: tempfile::TempDir,
}

impl Served {
    pub fn new(io: IoMode, pool: Arc<dyn Pool>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        let unix = Some(socket.clone());
        let unix_access = UnixAccess::default();
        let tcp = vec![([127, 0, 0, 1], 0).into()];
        let priority = Priority::None;
        let config = EngineConfig { cores: 2, io, priority, tcp, unix, unix_access, pool };
        let engine = Engine::start(config).unwrap();
        let agent = reached(engine.agent(), folder.path());
        Self { engine: Some(engine), socket, agent, sizes: Mutex::default(), _folder: folder }
    }

    pub fn call(&self, command: Command) -> Reply {
        self.agent.call(command)
    }

    /// Creates a volume, or applies its new state. It grows if the size is larger than before.
    pub fn apply(&self, state: VolumeState) {
        let before = self.sizes.lock().unwrap().insert(state.id, state.size);
        let command = match before {
            None => Command::Create(state),
            Some(before) if before < state.size => Command::Grow(state, before),
            Some(_) => Command::Apply(state),
        };
        assert_eq!(self.call(command), Reply::Done);
    }

    pub fn report(&self, id: VolumeId) -> VolumeReport {
        let reports = self.report_all().volumes;
        reports.into_iter().find(|report| report.id == id).unwrap()
    }

    pub fn report_all(&self) -> Report {
        let Reply::Report(report) = self.call(Command::Report) else { panic!("no report") };
        report
    }

    pub fn connect(&self, id: VolumeId) -> Nbd {
        Nbd::connect(&self.socket, id, true).expect("the export is there")
    }

    /// Connects a client to a volume over TCP.
    pub fn connect_tcp(&self, id: VolumeId) -> Nbd {
        let address = self.engine.as_ref().unwrap().tcp_addresses()[0];
        let stream = OwnedFd::from(TcpStream::connect(address).unwrap());
        // The standard library's stream of a unix socket reads and writes any socket.
        Nbd::over(stream.into(), id, true).expect("the export is there")
    }
}

/// A host without limits.
pub const LOCAL: InstanceId = InstanceId::from_bits(0x10ca1);

/// An attachment to a host on this machine.
pub const fn on(host: InstanceId) -> Attachment {
    Attachment { host, address: HostAddress::Local }
}

/// An attached volume without limits.
pub fn unlimited(id: VolumeId, bytes: u64) -> VolumeState {
    VolumeState {
        id,
        size: ByteCount(bytes),
        pacing: Pacing::UNLIMITED,
        balances: Balances::default(),
        unleased: Balances::default(),
        reserved: Reserved::NOTHING,
        attachments: vec![on(LOCAL)],
        is_encrypted: false,
    }
}

/// Returns an attached volume with this limit in IOPS.
pub fn paced(id: VolumeId, bytes: u64, iops: u64) -> VolumeState {
    let operations = Some(Limit { per_second: iops, credit: None });
    VolumeState { pacing: Pacing { operations, ..Pacing::UNLIMITED }, ..unlimited(id, bytes) }
}

/// A whole reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Done(Vec<u8>),
    Failed(ErrorCode),
    /// Of a block status: (bytes, flags), in order from the request's offset on.
    Extents(Vec<(u32, u32)>),
}

/// A client that sends and receives only when its methods are called.
pub struct Nbd {
    pub stream: UnixStream,
    reader: ReplyReader,
    input: Vec<u8>,
    sent: BTreeMap<u64, Request>,
    next_cookie: u64,
}

impl Nbd {
    /// Connects to a volume; `None` if the server does not show it.
    pub fn connect(socket: &PathBuf, id: VolumeId, structured_replies: bool) -> Option<Self> {
        Self::over(UnixStream::connect(socket).unwrap(), id, structured_replies)
    }

    /// Connects to a volume over an open connection; `None` if the server does not show it.
    pub fn over(mut stream: UnixStream, id: VolumeId, structured_replies: bool) -> Option<Self> {
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_write_timeout(Some(ANSWER_MAX)).unwrap();
        let mut client = Client::new(ClientPlan {
            export: id.to_string(),
            goal: ClientGoal::Transmit,
            structured_replies,
            base_allocation: structured_replies,
        });
        let mut byte = [0];
        loop {
            match client.poll_output() {
                Some(ClientStep::Send(bytes)) => stream.write_all(&bytes).unwrap(),
                Some(ClientStep::Ready(_)) => break,
                Some(_) => return None,
                None => {
                    stream.read_exact(&mut byte).ok()?;
                    assert_eq!(client.handle(&byte), 1);
                }
            }
        }
        let reader = ReplyReader::new(REQUEST_BYTES_MAX);
        let input = Vec::new();
        let sent = BTreeMap::new();
        Some(Self { stream, reader, input, sent, next_cookie: 0 })
    }

    /// Continues over another connection, with the terms of this one.
    pub fn over_to(self, stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        stream.set_write_timeout(Some(ANSWER_MAX)).unwrap();
        Self { stream, ..self }
    }

    /// Expects the reply to a request that was sent by other means.
    pub fn expect(&mut self, cookie: u64, request: Request) {
        self.sent.insert(cookie, request);
    }

    /// Sends a request. Returns its cookie.
    pub fn send(&mut self, operation: Operation, offset: u64, length: u32, payload: &[u8]) -> u64 {
        self.try_send(operation, offset, length, payload).unwrap()
    }

    /// Sends a request. Returns its cookie, or an error if the server has closed the connection.
    pub fn try_send(
        &mut self,
        operation: Operation,
        offset: u64,
        length: u32,
        payload: &[u8],
    ) -> io::Result<u64> {
        let request = Request { operation, offset, length };
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.sent.insert(cookie, request);
        let header = RequestHeader::new(cookie, &request, false);
        self.stream.write_all(&header.encode())?;
        self.stream.write_all(payload)?;
        Ok(cookie)
    }

    /// Sends as much of `bytes` as the server takes while no reply is read. Returns the number of
    /// bytes. `other` is a connection to the same core: if the core has answered it many times and
    /// has still taken no more, it will not.
    pub fn send_until_stuck(&mut self, bytes: &[u8], other: &mut Self) -> usize {
        const ANSWERS: u32 = 50;
        self.stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        let mut answers = 0;
        while sent < bytes.len() && answers < ANSWERS {
            match self.stream.write(&bytes[sent..]) {
                Ok(count) => (sent, answers) = (sent + count, 0),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    other.ask(Operation::Read, 0, 512, &[]);
                    answers += 1;
                }
                Err(error) => panic!("after {sent} bytes: {error}"),
            }
        }
        self.stream.set_nonblocking(false).unwrap();
        sent
    }

    /// Sends the request that ends the connection.
    pub fn disconnect(&mut self) {
        const DISCONNECT: u16 = 2;
        let mut head = REQUEST_MAGIC.to_be_bytes().to_vec();
        head.extend([0; 2]);
        head.extend(DISCONNECT.to_be_bytes());
        head.extend([0; 20]);
        self.stream.write_all(&head).unwrap();
    }

    /// Returns the number of requests without an answer.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// Receives the next whole reply; `None` at the end of the connection.
    pub fn receive(&mut self) -> Option<(u64, Answer)> {
        let mut extents = Vec::new();
        loop {
            let (consumed, event) = self.reader.handle(&self.input).unwrap();
            self.input.drain(..consumed);
            let Some(event) = event else {
                if !self.fill(1) {
                    return None;
                }
                continue;
            };
            let (cookie, answer) = match event {
                Event::Simple { cookie, error: Some(code) } => (cookie, Answer::Failed(code)),
                Event::Error { cookie, error, last: true, .. } => (cookie, Answer::Failed(error)),
                Event::Simple { cookie, error: None } => {
                    let request = self.sent[&cookie];
                    let is_read = request.operation == Operation::Read;
                    (cookie, Answer::Done(self.take(if is_read { request.length } else { 0 })?))
                }
                Event::Data { cookie, offset, bytes, last } => {
                    assert!(last, "one chunk a read");
                    assert_eq!((offset, bytes), {
                        let request = self.sent[&cookie];
                        (request.offset, request.length)
                    });
                    (cookie, Answer::Done(self.take(bytes)?))
                }
                Event::Extent { cookie, bytes, flags, last, .. } => {
                    extents.push((bytes, flags));
                    if !last {
                        continue;
                    }
                    (cookie, Answer::Extents(std::mem::take(&mut extents)))
                }
                other => panic!("unexpected {other:?}"),
            };
            self.sent.remove(&cookie).expect("a reply to a request of ours");
            return Some((cookie, answer));
        }
    }

    /// Receives the next reply, which must be a success without data. Returns its cookie.
    pub fn receive_simple(&mut self) -> u64 {
        assert!(self.fill(16));
        let (consumed, event) = self.reader.handle(&self.input).unwrap();
        self.input.drain(..consumed);
        let Some(Event::Simple { cookie, error: None }) = event else { panic!("{event:?}") };
        cookie
    }

    /// Sends one request and waits for its answer, with nothing else in flight.
    pub fn ask(&mut self, operation: Operation, offset: u64, length: u32, data: &[u8]) -> Answer {
        let cookie = self.send(operation, offset, length, data);
        let (answered, answer) = self.receive().expect("the connection lives");
        assert_eq!(answered, cookie);
        answer
    }

    fn take(&mut self, count: u32) -> Option<Vec<u8>> {
        if !self.fill(count as usize) {
            return None;
        }
        Some(self.input.drain(..count as usize).collect())
    }

    fn fill(&mut self, count: usize) -> bool {
        let mut chunk = vec![0; 256 << 10];
        while self.input.len() < count {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(got) => self.input.extend_from_slice(&chunk[..got]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("no answer within {ANSWER_MAX:?}: {error}"),
            }
        }
        true
    }
}
