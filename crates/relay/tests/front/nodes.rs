//! Connections between nodes: which are accepted, and when.

use crate::cluster::{CLUSTER, Cluster, ID, Map, Place, SECRET, config, connect, pause, until};
use crate::support::Answer;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::request::Operation;
use evenkeel_link::TlsFiles;
use evenkeel_relay::hello::{Preamble, VERDICT_BYTES, Verdict, opening};
use evenkeel_relay::{Front, FrontConfig, Inside, Local, Peer, RelayError};
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::agent::proof::{
    CHALLENGE_BYTES, ClusterSecret, Meeting, NONCE_BYTES, Protocol, SECRET_BYTES,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const NODE: NodeId = NodeId(1);

const LEASE: u128 = 0x1ea5e;

pub fn preamble(session: u128) -> Preamble {
    let session = Some(session);
    let peer = Peer::At(HostAddress::Local);
    Preamble { cluster: CLUSTER, node: NODE, lease: LEASE, session, peer }
}

/// Opens a lease, whose probes a thread answers until the connection ends.
pub fn lease(address: SocketAddr) -> TcpStream {
    let mut stream = relayed(address, &Preamble { session: None, ..preamble(0) });
    assert_eq!(verdict(&mut stream), Some(Verdict::Welcome));
    let mut probes = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut number = [0; 8];
        while probes.read_exact(&mut number).is_ok() {
            let mut answer = [0; 17];
            answer[9..].copy_from_slice(&number);
            if probes.write_all(&answer).is_err() {
                break;
            }
        }
    });
    stream
}

pub fn dial(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(crate::support::ANSWER_MAX)).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Proves the knowledge of `secret`, and sends `bytes` after the proof.
fn prove(address: SocketAddr, secret: &ClusterSecret, bytes: &[u8]) -> TcpStream {
    let nonce = [1; NONCE_BYTES];
    let mut stream = dial(address, &opening(&nonce));
    assert_eq!(verdict(&mut stream), Some(Verdict::Prove));
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).unwrap();
    let opened = Meeting {
        protocol: Protocol::Relay,
        node: NODE,
        opening: nonce,
        challenge: *challenge.first_chunk().unwrap(),
    };
    assert_eq!(SECRET.answered(&opened, &challenge).unwrap().challenge, opened.challenge);
    stream.write_all(&[&secret.proof_of_connecting(&opened)[..], bytes].concat()).unwrap();
    stream
}

/// Connects as a node of the cluster that relays this client or opens its lease.
pub fn relayed(address: SocketAddr, preamble: &Preamble) -> TcpStream {
    prove(address, &SECRET, &preamble.encode())
}

pub fn verdict(stream: &mut TcpStream) -> Option<Verdict> {
    let mut bytes = [0; VERDICT_BYTES];
    stream.read_exact(&mut bytes).ok()?;
    Some(Verdict::decode(bytes))
}

#[test]
fn a_node_lets_in_whom_it_is_meant_for() {
    let cluster = Cluster::new(1);
    let address = cluster.nodes[0].front.as_ref().unwrap().node_address();
    let mut early = relayed(address, &preamble(1));
    assert_eq!(verdict(&mut early), Some(Verdict::NoLease));
    let _lease = lease(address);
    let mut other_version = preamble(1).encode();
    other_version[9] += 2;
    let elsewhere = Peer::At(HostAddress::Remote([10, 0, 0, 1].into()));
    let cases = [
        (preamble(1).encode(), Some(Verdict::Welcome)),
        (Preamble { cluster: CLUSTER + 1, ..preamble(1) }.encode(), Some(Verdict::Cluster)),
        (Preamble { node: NodeId(2), ..preamble(1) }.encode(), Some(Verdict::Node)),
        (Preamble { peer: elsewhere, ..preamble(1) }.encode(), Some(Verdict::Stranger)),
        (other_version, Some(Verdict::Version)),
        ([0x55; 80], None),
    ];
    for (bytes, told) in cases {
        let mut stream = prove(address, &SECRET, &bytes);
        assert_eq!(verdict(&mut stream), told);
        if told != Some(Verdict::Welcome) {
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "and is closed");
        }
    }
    // The front does not relay further: the data plane answers, whatever the map says.
    cluster.map.set(ID, Place::Node(NodeId(9)));
    let mut stream = relayed(address, &preamble(2));
    assert_eq!(verdict(&mut stream), Some(Verdict::Welcome));
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGIC");
}

/// Any local user can connect to the address, and need not be a node.
#[test]
fn a_front_without_the_secret_names_no_client_and_learns_nothing() {
    let cluster = Cluster::new(1);
    let address = cluster.nodes[0].front.as_ref().unwrap().node_address();
    let other = ClusterSecret::new([1; SECRET_BYTES]);
    for (secret, is_let_in) in [(&other, false), (&SECRET, true)] {
        let mut stream = prove(address, secret, &preamble(1).encode());
        assert_eq!(verdict(&mut stream).is_some(), is_let_in);
    }
    // Bytes that are not proven or no opening end the connection without a word about the cluster.
    let version_2 = [b"evkrelay\0\x02", &[0; 53][..]].concat();
    for (bytes, told) in [(version_2, Some(Verdict::Version)), (vec![0x55; 63], None)] {
        let mut stream = dial(address, &bytes);
        assert_eq!(verdict(&mut stream), told);
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "and is closed");
    }
}

#[test]
fn a_home_without_the_secret_gets_no_client() {
    let other = |config: FrontConfig| {
        let mut config = FrontConfig { secret: ClusterSecret::new([1; SECRET_BYTES]), ..config };
        config.timing.first_contact = std::time::Duration::from_millis(300);
        config
    };
    let home = Cluster::new(1);
    let stranger = Cluster::with(1, "", other);
    let address = home.nodes[0].front.as_ref().unwrap().node_address();
    stranger.map.divert(NodeId(7), address);
    stranger.map.set(ID, Place::Node(NodeId(7)));
    assert!(connect(stranger.nodes[0].address(), true).is_none());
}

/// A data plane for which the test decides when a connection has no requests left.
#[derive(Default)]
pub struct Fake {
    pub held: Mutex<Vec<(UnixStream, Arc<()>)>>,
    /// Whether the storage gives no answer, and the number of questions that it got.
    is_silent: AtomicBool,
    questions: AtomicU64,
}

impl Local for Fake {
    fn connect(&self, _: Peer) -> io::Result<Inside> {
        let (inside, outside) = UnixStream::pair()?;
        let kept = Arc::new(());
        let held = Arc::downgrade(&kept);
        self.held.lock().unwrap().push((inside, kept));
        Ok(Inside { stream: outside, held, lender: None })
    }

    fn ask_storage(&self) -> u64 {
        self.questions.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn is_confirmed(&self, question: u64) -> bool {
        assert!((1..=self.questions.load(Ordering::SeqCst)).contains(&question));
        !self.is_silent.load(Ordering::SeqCst)
    }
}

/// The storage may have given the node's volumes to another one, where the client comes from.
#[test]
fn a_client_is_let_in_when_the_storage_has_confirmed_the_node() {
    let fake = Arc::new(Fake::default());
    let local = Arc::clone(&fake) as Arc<dyn Local>;
    let map = Arc::new(Map::default());
    map.set(ID, Place::Node(NODE));
    let mut config = config(NODE, &map, local);
    config.timing.handshake = Duration::from_millis(600);
    let front = Front::start(config).unwrap();
    let _lease = lease(front.node_address());
    let opened = || fake.held.lock().unwrap().len();
    fake.is_silent.store(true, Ordering::SeqCst);
    let mut refused = relayed(front.node_address(), &preamble(1));
    assert_eq!(verdict(&mut refused), Some(Verdict::NotNow));
    let direct = std::thread::spawn({
        let address = front.client_addresses()[0];
        move || connect(address, true)
    });
    until("the second one is asked for", || fake.questions.load(Ordering::SeqCst) >= 2);
    assert_eq!(opened(), 0);
    fake.is_silent.store(false, Ordering::SeqCst);
    let mut let_in = relayed(front.node_address(), &preamble(1));
    assert_eq!(verdict(&mut let_in), Some(Verdict::Welcome));
    until("both are let in", || opened() >= 2);
    drop(front);
    // The fake data plane does not complete the handshake.
    let _ = direct.join();
}

#[test]
fn a_session_is_let_in_again_when_nothing_of_it_is_under_way() {
    let fake = Arc::new(Fake::default());
    let map = Arc::new(Map::default());
    let local = Arc::clone(&fake) as Arc<dyn Local>;
    let front = Front::start(config(NODE, &map, local)).unwrap();
    let opened = || fake.held.lock().unwrap().len();
    let _lease = lease(front.node_address());
    let mut first = relayed(front.node_address(), &preamble(1));
    assert_eq!(verdict(&mut first), Some(Verdict::Welcome));
    let mut second = relayed(front.node_address(), &preamble(1));
    // The first connection is ended by the front.
    assert_eq!(first.read(&mut [0]).unwrap_or(0), 0);
    // Another session is not affected.
    let mut other = relayed(front.node_address(), &preamble(2));
    assert_eq!(verdict(&mut other), Some(Verdict::Welcome));
    (0..20).for_each(|_| pause());
    assert_eq!(opened(), 2, "the second waits");
    let (inside, kept) = fake.held.lock().unwrap().remove(0);
    drop(inside);
    (0..20).for_each(|_| pause());
    assert_eq!(opened(), 1, "its connection has ended, and not its requests");
    drop(kept);
    assert_eq!(verdict(&mut second), Some(Verdict::Welcome));
    assert_eq!(opened(), 2);
}

fn tls(name: &str, authority: &str) -> TlsFiles {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../link/tests/tls"));
    let file = |name: String| folder.join(name);
    TlsFiles {
        certificate: file(format!("{name}.pem")),
        key: file(format!("{name}.key")),
        authority: file(format!("{authority}.pem")),
    }
}

#[test]
fn nodes_know_each_other_by_their_certificates() {
    let named = |files: TlsFiles| {
        move |config: FrontConfig| FrontConfig { tls: Some(files.clone()), ..config }
    };
    // The home has node 7's certificate, so it is accepted under that number and no other.
    let home = Cluster::with(1, "", |config| {
        let node = NodeId(7);
        FrontConfig { node, ..named(tls("node-7", "ca"))(config) }
    });
    let address = home.nodes[0].front.as_ref().unwrap().node_address();
    let impatient = |config: FrontConfig| {
        let mut config = named(tls("leader", "ca"))(config);
        config.timing.first_contact = std::time::Duration::from_millis(300);
        config
    };
    let front = Cluster::with(1, "", impatient);
    for node in [NodeId(7), NodeId(8)] {
        front.map.divert(node, address);
    }
    front.map.set(ID, Place::Node(NodeId(8)));
    assert!(connect(front.nodes[0].address(), true).is_none(), "another name");
    let patient = Cluster::with(1, "", named(tls("leader", "ca")));
    patient.map.divert(NodeId(7), address);
    patient.map.set(ID, Place::Node(NodeId(7)));
    let mut client = patient.connect(0, true);
    let write = Operation::Write { fua: false };
    let data: Vec<u8> = (0..SIZE_OF_WRITE).map(|number| number as u8).collect();
    assert_eq!(client.ask(write, 0, SIZE_OF_WRITE, &data), Answer::Done(Vec::new()));
    assert_eq!(client.ask(Operation::Read, 0, SIZE_OF_WRITE, &[]), Answer::Done(data));
    // Refused: another authority's certificate, no certificate, and no TLS.
    let stranger = Cluster::with(1, "", |config| FrontConfig {
        tls: Some(TlsFiles { authority: tls("leader", "ca").authority, ..tls("stranger", "ca") }),
        ..impatient(config)
    });
    stranger.map.divert(NodeId(7), address);
    stranger.map.set(ID, Place::Node(NodeId(7)));
    assert!(connect(stranger.nodes[0].address(), true).is_none(), "another authority");
    let mut plain = dial(address, &opening(&[1; NONCE_BYTES]));
    let verdict = verdict(&mut plain);
    assert_ne!(verdict, Some(Verdict::Prove));
}

const SIZE_OF_WRITE: u32 = 1 << 20;

#[test]
fn an_address_for_other_machines_needs_certificates_that_can_be_read() {
    let map = Arc::new(Map::default());
    let local = Arc::new(Fake::default());
    let open = FrontConfig {
        nodes: ([0, 0, 0, 0], 0).into(),
        ..config(NODE, &map, Arc::clone(&local) as Arc<dyn Local>)
    };
    let refused = Front::start(open.clone()).err().unwrap();
    assert!(matches!(refused, RelayError::Plain(_)), "{refused}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
    let nothing = FrontConfig { tls: Some(tls("nobody", "ca")), ..open.clone() };
    let refused = Front::start(nothing).err().unwrap().to_string();
    assert!(refused.contains("nobody"), "{refused}");
    let front = Front::start(FrontConfig { tls: Some(tls("node-7", "ca")), ..open }).unwrap();
    let taken = FrontConfig {
        clients: front.client_addresses(),
        ..config(NODE, &map, Arc::clone(&local) as Arc<dyn Local>)
    };
    let refused = Front::start(taken).err().unwrap().to_string();
    assert!(refused.contains("cannot listen on 127.0.0.1"), "{refused}");
    front.stop();
    until("nobody holds the data plane", || Arc::strong_count(&local) == 1);
}
