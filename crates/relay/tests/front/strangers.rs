//! Clients and data planes that send invalid bytes, or nothing, or read nothing.

use crate::cluster::{Cluster, ID, Place, SECRET, SIZE, connect, pause, stream, until};
use crate::support::Answer;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::random::Random;
use evenkeel_core::request::{Operation, Request};
use evenkeel_relay::hello::{OPENING_BYTES, PREAMBLE_BYTES, Preamble, Verdict, opened};
use evenkeel_relay::{Bounds, FrontConfig, Timing};
use evenkeel_wire::agent::proof::{
    ClusterSecret, Meeting, NONCE_BYTES, Nonce, PROOF_BYTES, Protocol, SECRET_BYTES,
};
use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::handshake::{Server, ServerStep};
use evenkeel_wire::nbd::transmission::{REQUEST_BYTES, RequestHeader, reply};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

const READ: Operation = Operation::Read;
const WRITE: Operation = Operation::Write { fua: false };

fn works(cluster: &Cluster, node: usize) {
    let mut client = cluster.connect(node, true);
    assert_eq!(client.ask(WRITE, 0, 512, &[5; 512]), Answer::Done(Vec::new()));
    assert_eq!(client.ask(READ, 0, 512, &[]), Answer::Done(vec![5; 512]));
}

fn nobody_is_left(cluster: &Cluster) {
    until("all are gone", || {
        cluster.nodes.iter().all(|node| {
            let figures = node.front.as_ref().unwrap().figures();
            (figures.clients, figures.relayed, figures.held_bytes) == (0, 0, 0)
        })
    });
}

#[test]
fn noise_in_a_handshake_is_the_end_of_that_client_only() {
    let cluster = Cluster::new(2);
    let mut random = Random::from_state(7);
    for round in 0..60 {
        let mut stream = stream(cluster.nodes[round % 2].address());
        let length = random.below(3_000) as usize;
        let mut noise: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        match round % 3 {
            0 => noise.splice(0..0, 3_u32.to_be_bytes()).for_each(drop),
            // An option of a kind that names an export.
            1 => {
                let mut head = 3_u32.to_be_bytes().to_vec();
                head.extend(b"IHAVEOPT");
                head.extend((6 + random.below(5) as u32).to_be_bytes());
                head.extend((length as u32).to_be_bytes());
                noise.splice(0..0, head).for_each(drop);
            }
            _ => {}
        }
        // The connection may be closed before all of it is sent.
        let _ = stream.write_all(&noise);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        stream.set_read_timeout(Some(crate::support::ANSWER_MAX)).unwrap();
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock), "it ends");
    }
    works(&cluster, 0);
    works(&cluster, 1);
    nobody_is_left(&cluster);
}

#[test]
fn noise_instead_of_requests_is_the_end_of_that_client_only() {
    let cluster = Cluster::new(2);
    for node in 0..2 {
        let mut client = cluster.connect(node, true);
        client.send(READ, 0, 512, &[]);
        client.stream.write_all(&[0x55; 100]).unwrap();
        while client.receive().is_some() {}
        // A payload above the limit.
        let mut client = cluster.connect(node, true);
        let huge = Request { operation: WRITE, offset: 0, length: u32::MAX };
        client.stream.write_all(&RequestHeader::new(1, &huge, false).encode()).unwrap();
        assert_eq!(client.receive(), None);
        works(&cluster, node);
    }
    nobody_is_left(&cluster);
}

#[test]
fn requests_that_make_no_sense_get_the_data_planes_answer() {
    let cluster = Cluster::new(2);
    for structured in [false, true] {
        let mut client = cluster.connect(1, structured);
        let answers = [
            client.ask(READ, SIZE, 512, &[]),
            client.ask(READ, 1, 512, &[]),
            client.ask(WRITE, SIZE - 512, 1_024, &[1; 1_024]),
            client.ask(READ, 0, 0, &[]),
            client.ask(READ, 0, 40 << 20, &[]),
        ];
        assert!(answers.iter().all(|answer| matches!(answer, Answer::Failed(_))), "{answers:?}");
        assert_eq!(client.ask(WRITE, 0, 512, &[1; 512]), Answer::Done(Vec::new()));
    }
}

/// The node whose place impostors take.
const IMPOSTOR: NodeId = NodeId(9);

/// Whether an impostor without the secret was sent a proof or a client.
static HAS_LEARNT: AtomicBool = AtomicBool::new(false);

/// Behaviour of an impostor of a home.
#[derive(Clone, Copy)]
enum Plays {
    /// Sends nothing after the connection.
    Dead,
    /// Does not know the secret of the cluster.
    Unproven,
    /// Lets clients in and sends no NBD.
    Silent,
    /// Lets clients in and answers with noise.
    Noise,
    /// Shakes hands and answers requests with noise.
    NoisyReplies,
    /// Answers a request that it did not get.
    WrongCookie,
    /// Shakes hands and closes when a request has come.
    Closes,
}

/// Reads the opening that a front sends, and returns its nonce.
pub fn opening_of(stream: &mut TcpStream) -> std::io::Result<Nonce> {
    let mut opening = [0; OPENING_BYTES];
    stream.read_exact(&mut opening)?;
    Ok(opened(&opening).expect("an opening"))
}

/// Proves the node with this secret, and asks for the front's proof.
pub fn challenge(
    stream: &mut TcpStream,
    secret: &ClusterSecret,
    (node, opening): (NodeId, Nonce),
) -> std::io::Result<()> {
    let challenge = [2; NONCE_BYTES];
    let meeting = Meeting { protocol: Protocol::Relay, node, opening, challenge };
    stream.write_all(&Verdict::Prove.encode())?;
    stream.write_all(&secret.challenge(&meeting))
}

/// Lets a front in, whatever it proves. Returns its preamble.
pub fn welcome(stream: &mut TcpStream) -> std::io::Result<Preamble> {
    let mut proof = [0; PROOF_BYTES];
    let mut preamble = [0; PREAMBLE_BYTES];
    stream.read_exact(&mut proof)?;
    stream.read_exact(&mut preamble)?;
    stream.write_all(&Verdict::Welcome.encode())?;
    Ok(Preamble::decode(&preamble).expect("a preamble"))
}

fn play(mut stream: TcpStream, plays: Plays) -> std::io::Result<()> {
    let opening = opening_of(&mut stream)?;
    let wait_for_end = |stream: &mut TcpStream| stream.read_to_end(&mut Vec::new()).map(drop);
    let secret = match plays {
        Plays::Dead => return wait_for_end(&mut stream),
        Plays::Unproven => ClusterSecret::new([1; SECRET_BYTES]),
        _ => SECRET,
    };
    challenge(&mut stream, &secret, (IMPOSTOR, opening))?;
    if matches!(plays, Plays::Unproven) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        HAS_LEARNT.fetch_or(!rest.is_empty(), Ordering::SeqCst);
        return Ok(());
    }
    if welcome(&mut stream)?.session.is_none() {
        // A lease that does not end.
        return wait_for_end(&mut stream);
    }
    match plays {
        Plays::Silent => return wait_for_end(&mut stream),
        Plays::Noise => return stream.write_all(&[0x33; 4_000]),
        _ => {}
    }
    if !shake_hands(&mut stream)? {
        return Ok(());
    }
    let mut head = [0; REQUEST_BYTES];
    stream.read_exact(&mut head)?;
    match plays {
        Plays::NoisyReplies => stream.write_all(&[0x33; 4_000])?,
        Plays::WrongCookie => stream.write_all(&reply::none(77))?,
        _ => return Ok(()),
    }
    wait_for_end(&mut stream)
}

/// Runs a home's side of a handshake. Returns whether the client has chosen an export.
pub fn shake_hands(stream: &mut TcpStream) -> std::io::Result<bool> {
    let mut server = Server::new();
    let mut byte = [0];
    loop {
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => stream.write_all(&bytes)?,
            Some(ServerStep::WantExport(name)) => server.export(Some(ExportInfo::new(name, SIZE))),
            Some(ServerStep::Ready(_)) => return Ok(true),
            Some(_) => return Ok(false),
            None => {
                stream.read_exact(&mut byte)?;
                server.handle(&byte);
            }
        }
    }
}

/// Starts an impostor of a home. Returns its address, and the count of its connections.
fn impostor(plays: Plays) -> (SocketAddr, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    // It ends with the test's process.
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            std::thread::spawn(move || play(stream, plays));
        }
    });
    (address, count)
}

fn quick(config: FrontConfig) -> FrontConfig {
    let handshake = Duration::from_millis(100);
    FrontConfig { timing: Timing { handshake, ..config.timing }, ..config }
}

#[test]
fn a_home_that_shakes_hands_and_then_fails_is_left_without_an_error() {
    for plays in [Plays::NoisyReplies, Plays::WrongCookie, Plays::Closes] {
        let cluster = Cluster::new(2);
        let (address, count) = impostor(plays);
        let node = NodeId(9);
        cluster.map.divert(node, address);
        cluster.map.set(ID, Place::Node(node));
        let mut client = cluster.connect(0, true);
        let cookie = client.send(WRITE, 0, 512, &[6; 512]);
        until("it has failed often", || count.load(Ordering::SeqCst) > 5);
        cluster.map.set(ID, Place::Node(cluster.nodes[0].id));
        assert_eq!(client.receive(), Some((cookie, Answer::Done(Vec::new()))));
        assert_eq!(client.ask(READ, 0, 512, &[]), Answer::Done(vec![6; 512]));
    }
}

#[test]
fn a_home_that_does_not_speak_is_left_for_another() {
    for plays in [Plays::Dead, Plays::Unproven, Plays::Silent, Plays::Noise] {
        let cluster = Cluster::with(2, "", quick);
        let (address, count) = impostor(plays);
        let node = NodeId(9);
        cluster.map.divert(node, address);
        cluster.map.set(ID, Place::Node(node));
        let front = cluster.nodes[0].address();
        let client = std::thread::spawn(move || connect(front, true));
        until("it was tried", || count.load(Ordering::SeqCst) > 2);
        cluster.map.set(ID, Place::Node(cluster.nodes[0].id));
        let mut client = client.join().unwrap().expect("the export is there");
        assert_eq!(client.ask(WRITE, 0, 512, &[6; 512]), Answer::Done(Vec::new()));
    }
    assert!(!HAS_LEARNT.load(Ordering::SeqCst));
}

/// A front does not wait after a failure while there is another home to ask.
#[test]
fn front_that_waits_after_a_failure_resumes_at_a_new_home_at_once() {
    let patient = |config: FrontConfig| {
        let hour = Duration::from_secs(3_600);
        let timing = Timing { retry_first: hour, retry_longest: hour, ..config.timing };
        FrontConfig { timing, ..config }
    };
    let cluster = Cluster::with(2, "", patient);
    let front = cluster.nodes[0].address();
    let mut client = cluster.connect(0, true);
    let (address, count) = impostor(Plays::Noise);
    let node = NodeId(9);
    cluster.map.divert(node, address);
    cluster.map.set(ID, Place::Node(node));
    let newcomer = std::thread::spawn(move || connect(front, true));
    until("both were turned away", || count.load(Ordering::SeqCst) > 1);
    let cookie = client.send(WRITE, 0, 512, &[6; 512]);
    cluster.map.set(ID, Place::Node(cluster.nodes[0].id));
    assert_eq!(client.receive(), Some((cookie, Answer::Done(Vec::new()))));
    let mut newcomer = newcomer.join().unwrap().expect("the export is there");
    assert_eq!(newcomer.ask(READ, 0, 512, &[]), Answer::Done(vec![6; 512]));
}

#[test]
fn a_client_that_takes_nothing_is_bounded_and_ends() {
    let bytes = 8 << 20;
    let short = |config: FrontConfig| FrontConfig {
        timing: Timing { stall: Duration::from_millis(300), ..config.timing },
        bounds: Bounds { bytes, ..config.bounds },
        ..config
    };
    let cluster = Cluster::with(2, "", short);
    for node in 0..2 {
        let front = cluster.nodes[node].front.as_ref().unwrap();
        let client = cluster.connect(node, true);
        client.stream.set_nonblocking(true).unwrap();
        let request = Request { operation: READ, offset: 0, length: SIZE as u32 };
        let requests = RequestHeader::new(1, &request, false).encode().repeat(1_000);
        // Writes as much as it can; the rest finds no room.
        let mut stream = &client.stream;
        let mut sent = 0;
        while let Ok(count) = stream.write(&requests)
            && sent < 1 << 24
        {
            sent += count;
        }
        until("it is closed", || {
            let figures = front.figures();
            assert!(figures.held_bytes <= bytes, "{figures:?}");
            figures.clients == 0
        });
        works(&cluster, node);
    }
    nobody_is_left(&cluster);
}

#[test]
fn half_a_request_and_half_a_handshake_end() {
    let short = |config: FrontConfig| FrontConfig {
        timing: Timing {
            stall: Duration::from_millis(200),
            handshake: Duration::from_secs(2),
            ..config.timing
        },
        ..config
    };
    // If the data plane serves the client itself, its patience ends first.
    let cluster = Cluster::relayed(1, short);
    let mut client = cluster.connect(0, true);
    let request = Request { operation: WRITE, offset: 0, length: 4_096 };
    client.stream.write_all(&RequestHeader::new(1, &request, false).encode()).unwrap();
    client.stream.write_all(&[1; 1_000]).unwrap();
    assert_eq!(client.receive(), None);
    let mut silent = stream(cluster.nodes[0].address());
    silent.set_read_timeout(Some(crate::support::ANSWER_MAX)).unwrap();
    let mut greeting = Vec::new();
    silent.read_to_end(&mut greeting).unwrap();
    assert_eq!(greeting.len(), 18);
    nobody_is_left(&cluster);
}

#[test]
fn clients_beyond_the_maximum_are_refused_and_others_continue() {
    let few = |config: FrontConfig| FrontConfig {
        bounds: Bounds { connections: 16, ..config.bounds },
        ..config
    };
    let cluster = Cluster::with(1, "", few);
    // One host may hold as many as it leaves free.
    let mut held: Vec<_> = (0..8).map(|_| cluster.connect(0, true)).collect();
    let mut refused = stream(cluster.nodes[0].address());
    assert_eq!(refused.read(&mut [0]).unwrap_or(0), 0);
    held.truncate(4);
    until("there is room", || {
        pause();
        connect(cluster.nodes[0].address(), true).is_some()
    });
    let client = &mut held[0];
    assert_eq!(client.ask(WRITE, 0, 512, &[1; 512]), Answer::Done(Vec::new()));
    cluster.nodes.into_iter().for_each(|mut node| node.front.take().unwrap().stop());
    assert_eq!(held[1].receive(), None, "a front that stops closes its connections");
}
