//! Measures what TLS costs the server, beside NBD over TCP without it. The volume is in memory and
//! without limits, so other costs are small.
//!
//! `cargo bench -p evenkeel-tls --bench exchange`
//!
//! Processor time is that of the server's threads: those of the data plane, and those that encrypt.
//! The client runs in the same process, on a thread of its own.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a measurement may panic, and measures

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::request::{Operation, Request};
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, Entrance, IoMode, UnixAccess};
use evenkeel_os::clock;
use evenkeel_os::files::write_whole_with_mode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_tls::authority::{Authority, Made, Validity};
use evenkeel_tls::nbd::{Inside, Listening, NbdTls, Proven};
use evenkeel_tls::server::{ServerFiles, ServerTls};
use evenkeel_wire::agent::{Attachment, Command, HostAddress, Reply, VolumeState};
use evenkeel_wire::nbd::constants::GREETING_BYTES;
use evenkeel_wire::nbd::handshake::{Client, ClientGoal, ClientPlan, ClientStep};
use evenkeel_wire::nbd::transmission::{RequestHeader, reply};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Operation, bytes, number under way, and number in total.
const LOADS: [(Operation, u32, usize, usize); 5] = [
    (Operation::Read, 4 << 10, 1, 10_000),
    (Operation::Read, 4 << 10, 32, 60_000),
    (Operation::Write { fua: false }, 4 << 10, 32, 60_000),
    (Operation::Read, 1 << 20, 4, 1_500),
    (Operation::Write { fua: false }, 1 << 20, 4, 1_500),
];
/// Runs of each kind, in turn; the median counts.
const ROUNDS: usize = 5;
const HOST: InstanceId = InstanceId::from_bits(0x5eed);
const VOLUME: VolumeId = VolumeId::from_bits(0x5eed);
const SIZE: ByteCount = ByteCount(1 << 30);

struct ByName(Entrance);

impl Inside for ByName {
    fn connect(&self, client: &Proven<'_>) -> io::Result<UnixStream> {
        self.0.connect_proven(client.host, None).map(|inside| inside.stream)
    }

    fn report_refused(&self, _address: HostAddress, _why: &str) {}
}

/// A server with one volume, at an address without TLS and one with it.
struct Served {
    engine: Engine,
    plain: SocketAddr,
    encrypted: SocketAddr,
    client: Arc<ClientConfig>,
    _tls: NbdTls,
    _folder: tempfile::TempDir,
}

fn certificate(made: &Made) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(made.certificate.as_bytes()).unwrap()
}

/// Makes certificates; returns the server's, and the configuration of a client that is the host.
fn certificates(folder: &Path) -> (ServerTls, ClientConfig) {
    let validity = Validity { now: clock::since_1970(), days: 1 };
    let (authority, ca) = Authority::create(validity).unwrap();
    let server = authority.server(&["localhost".to_owned()], validity).unwrap();
    let host = authority.host(&HOST.to_string(), validity).unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        write_whole_with_mode(&path, text.as_bytes(), 0o600).unwrap();
        path
    };
    let files = ServerFiles {
        certificate: write("cert", &server.certificate),
        key: write("key", &server.key),
        authority: Some(write("ca", &ca.certificate)),
    };
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&ca)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![certificate(&host)],
            PrivateKeyDer::from_pem_slice(host.key.as_bytes()).unwrap(),
        );
    (ServerTls::open(files).unwrap(), client.unwrap())
}

impl Served {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tls, client) = certificates(folder.path());
        let engine = Engine::start(EngineConfig {
            cores: 1,
            io: IoMode::Auto,
            priority: Priority::None,
            tcp: vec![([127, 0, 0, 1], 0).into()],
            unix: None,
            unix_access: UnixAccess::default(),
            pool: Arc::new(MemoryPool::new()),
        })
        .unwrap();
        let volume = VolumeState {
            id: VOLUME,
            size: SIZE,
            pacing: Pacing::UNLIMITED,
            balances: Balances::default(),
            unleased: Balances::default(),
            reserved: Reserved::NOTHING,
            attachments: vec![Attachment { host: HOST, address: HostAddress::Local }],
            is_encrypted: false,
        };
        assert_eq!(engine.agent().call(Command::Create(volume)), Reply::Done);
        let listening = Listening::bind(&[([127, 0, 0, 1], 0).into()]).unwrap();
        let encrypted = listening.addresses()[0];
        let inside = Arc::new(ByName(engine.entrance()));
        let _tls = listening.open(Arc::new(tls), inside, 1).unwrap();
        let plain = engine.tcp_addresses()[0];
        Self { engine, plain, encrypted, client: Arc::new(client), _tls, _folder: folder }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.plain).unwrap();
        stream.set_nodelay(true).unwrap();
        agreed(stream)
    }

    fn connect_encrypted(&self) -> StreamOwned<ClientConnection, TcpStream> {
        let mut stream = TcpStream::connect(self.encrypted).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.read_exact(&mut [0; GREETING_BYTES]).unwrap();
        stream.write_all(b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x05\x00\x00\x00\x00").unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
        let name = "localhost".try_into().unwrap();
        let tls = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        let mut client = plan();
        // Greeting and flags came before TLS.
        let mut stream = StreamOwned::new(tls, stream);
        client.handle(b"NBDMAGICIHAVEOPT\x00\x03");
        let Some(ClientStep::Send(first)) = client.poll_output() else { panic!("no flags") };
        stream.write_all(&first[4..]).unwrap();
        agree(client, stream)
    }
}

fn plan() -> Client {
    Client::new(ClientPlan {
        export: VOLUME.to_string(),
        goal: ClientGoal::Transmit,
        structured_replies: false,
        base_allocation: false,
    })
}

fn agreed<Stream: Read + Write>(stream: Stream) -> Stream {
    agree(plan(), stream)
}

/// Completes a handshake.
fn agree<Stream: Read + Write>(mut client: Client, mut stream: Stream) -> Stream {
    let mut byte = [0];
    loop {
        match client.poll_output() {
            Some(ClientStep::Send(bytes)) => stream.write_all(&bytes).unwrap(),
            Some(ClientStep::Ready(_)) => return stream,
            Some(step) => panic!("{step:?}"),
            None => {
                stream.read_exact(&mut byte).unwrap();
                assert_eq!(client.handle(&byte), 1);
            }
        }
    }
}

/// Returns the seconds that the threads whose names begin so have run.
fn seconds_of(name: &str) -> f64 {
    let mut ns = 0_u64;
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        if read("comm").starts_with(name) {
            ns += read("schedstat").split(' ').next().unwrap().parse::<u64>().unwrap();
        }
    }
    ns as f64 / 1e9
}

/// Returns, per I/O, microseconds of the data plane and of TLS, and the I/Os per second.
fn run(
    mut client: impl Read + Write,
    (operation, length, depth, total): (Operation, u32, usize, usize),
) -> [f64; 3] {
    let is_read = operation == Operation::Read;
    let request = Request { operation, offset: 0, length };
    let mut sent_each = RequestHeader::new(1, &request, false).encode().to_vec();
    if !is_read {
        sent_each.resize(sent_each.len() + length as usize, 0x5a);
    }
    let reply_bytes = reply::SIMPLE_BYTES + if is_read { length as usize } else { 0 };
    let begin = Instant::now();
    let before = ["core-", "nbd-tls-"].map(seconds_of);
    (0..depth).for_each(|_| client.write_all(&sent_each).unwrap());
    let mut sent = depth;
    let mut received = 0;
    let mut done = 0;
    let mut buffer = vec![0; 1 << 20];
    while done < total {
        client.flush().unwrap();
        received += client.read(&mut buffer).unwrap();
        let more = (received / reply_bytes - done).min(total - sent);
        done = received / reply_bytes;
        (0..more).for_each(|_| client.write_all(&sent_each).unwrap());
        sent += more;
    }
    let ios = total as f64;
    let seconds = begin.elapsed().as_secs_f64();
    let [data_plane, tls] = ["core-", "nbd-tls-"].map(seconds_of);
    [(data_plane - before[0]) * 1e6 / ios, (tls - before[1]) * 1e6 / ios, ios / seconds]
}

fn median(runs: &[[f64; 3]]) -> [f64; 3] {
    [0, 1, 2].map(|column| {
        let mut values: Vec<f64> = runs.iter().map(|run| run[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    })
}

fn main() {
    let out = |line: String| io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
    let served = Served::start();
    out(format!(
        "{:<18} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "", "plain us", "TLS: data", "encrypts", "sum us", "plain I/Os", "TLS I/Os"
    ));
    for load in LOADS {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            runs[0].push(run(served.connect(), load));
            runs[1].push(run(served.connect_encrypted(), load));
        }
        let [plain, _, plain_rate] = median(&runs[0]);
        let [data_plane, encrypts, rate] = median(&runs[1]);
        let (operation, length, depth, _) = load;
        let name = if operation == Operation::Read { "read" } else { "write" };
        out(format!(
            "{:<18} {plain:>10.1} {data_plane:>10.1} {encrypts:>10.1} {:>10.1} {plain_rate:>10.0} \
             {rate:>10.0}",
            format!("{name} {} KiB x {depth}", length >> 10),
            data_plane + encrypts,
        ));
    }
    served.engine.shutdown();
}
