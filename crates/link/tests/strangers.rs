//! Peers that are not control, not of this cluster, or broken: they are refused with a reason, and
//! affect neither the node nor its leader.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod support;

use evenkeel_core::fencing::NodeId;
use evenkeel_core::limits::AGENT_HANDSHAKES_MAX;
use evenkeel_link::{
    AgentServer, ClientConfig, Confirm, RemoteAgent, ServerConfig, Status, TlsFiles,
};
use evenkeel_wire::agent::proof::{ClusterSecret, Meeting, NONCE_BYTES, Protocol, SECRET_BYTES};
use evenkeel_wire::agent::session::{
    ANSWER_BYTES, Answer, Challenge, Hello, LeaderGeneration, OPENING_BYTES, Opening, Packet,
    PacketKind, SESSION_CHALLENGE_BYTES, Verdict,
};
use evenkeel_wire::agent::{Agent, Command, Reply, VERSION};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use support::{
    CLUSTER, Fake, LONG, NODE, SECRET, client_config, connect, kind, leader, serve, server_config,
    tls, told, until, up,
};

fn hello() -> Hello {
    Hello {
        agent_version: VERSION,
        cluster: CLUSTER,
        node: NODE,
        leader: leader(1),
        generation: LeaderGeneration(1),
    }
}

fn raw(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// Proves the knowledge of a secret.
fn prove(address: SocketAddr, secret: &ClusterSecret) -> TcpStream {
    let mut socket = raw(address);
    let opening = Opening { agent_version: VERSION, nonce: [1; NONCE_BYTES] };
    socket.write_all(&opening.encode()).unwrap();
    let mut bytes = [0; SESSION_CHALLENGE_BYTES];
    socket.read_exact(&mut bytes).unwrap();
    let challenge = Challenge::decode(&bytes).unwrap().challenge;
    let meeting = Meeting {
        protocol: Protocol::Agent,
        node: NODE,
        opening: opening.nonce,
        challenge: *challenge.first_chunk().unwrap(),
    };
    assert!(SECRET.answered(&meeting, &challenge).is_some());
    socket.write_all(&secret.proof_of_connecting(&meeting)).unwrap();
    socket
}

/// Returns a node's answer to these bytes after a proof.
fn answer(address: SocketAddr, bytes: &[u8]) -> (TcpStream, Answer) {
    answer_on(prove(address, &SECRET), bytes)
}

fn answer_on(mut socket: TcpStream, bytes: &[u8]) -> (TcpStream, Answer) {
    socket.write_all(bytes).unwrap();
    let mut head = [0; ANSWER_BYTES];
    socket.read_exact(&mut head).unwrap();
    let mut text = vec![0; Answer::text_bytes(&head).unwrap()];
    socket.read_exact(&mut text).unwrap();
    (socket, Answer::decode(&[&head[..], &text].concat()).unwrap())
}

/// Returns whether the other side closes the connection.
fn is_closed(mut socket: TcpStream) -> bool {
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_hello_that_does_not_fit_is_answered_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let good = hello();
    let mut other_session = good.encode();
    other_session[5] = 9;
    let mut no_hello = good.encode();
    no_hello[..4].copy_from_slice(b"GET ");
    let cluster = Hello { cluster: 1, ..good }.encode();
    let node = Hello { node: NodeId(8), ..good }.encode();
    for (bytes, verdict, text) in [
        (other_session, Verdict::Version, "version 9 is unknown, 1 is spoken here"),
        (no_hello, Verdict::Version, "these bytes are no agent message"),
        (cluster, Verdict::Cluster, "control is not of the cluster of node 7"),
        (node, Verdict::Node, "control looks for node 8, this is node 7; look at the address"),
    ] {
        let (socket, answer) = answer(server.address(), &bytes);
        assert_eq!(answer.verdict, verdict, "{}", answer.text);
        assert!(answer.text.contains(text), "{}", answer.text);
        assert_eq!(answer.generation, LeaderGeneration(0), "it was not heard");
        assert!(is_closed(socket));
    }
    assert_eq!(up(connect(server.address(), 1)).call(Command::Report), Reply::Done);
}

/// Any local user can connect to the address, and need not be a node.
#[test]
fn a_side_without_the_secret_leads_nothing_and_learns_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let before = Hello { generation: LeaderGeneration(1 << 62), ..hello() }.encode();
    let mut wrong = prove(server.address(), &ClusterSecret::new([8; SECRET_BYTES]));
    // The node may have closed it already.
    let _ = wrong.write_all(&before);
    let mut messages = Vec::new();
    let _ = wrong.read_to_end(&mut messages);
    assert_eq!(messages, b"", "the node says nothing");
    // A hello of another version, and arbitrary bytes.
    let version_2 = [b"EVKH\0\x02", &before[6..]].concat();
    let other = Opening { agent_version: 7, nonce: [1; NONCE_BYTES] }.encode();
    for (bytes, text) in [
        (version_2, "version 2 is unknown, 1 is spoken here"),
        (other, "control speaks version 7 of the agent protocol, this node speaks"),
        (vec![0x55; OPENING_BYTES], "these bytes are no agent message"),
    ] {
        let (socket, answer) = answer_on(raw(server.address()), &bytes);
        assert!(answer.text.contains(text), "{}", answer.text);
        assert_eq!(answer.verdict, Verdict::Version);
        assert_eq!((answer.generation, answer.incarnation), (LeaderGeneration(0), 0));
        assert!(is_closed(socket));
    }
    // None of their generations was stored: the first leader is accepted.
    assert_eq!(up(connect(server.address(), 1)).call(Command::Report), Reply::Done);
    // A node without the secret commands nothing either way.
    let secret = ClusterSecret::new([8; SECRET_BYTES]);
    let config = ClientConfig { secret, ..client_config(server.address(), 2) };
    let why = away(&RemoteAgent::start(config).unwrap());
    assert!(why.contains("has not proven that it is node 7 of this cluster"), "{why}");
}

fn away(remote: &RemoteAgent) -> String {
    until(remote, |status| match status {
        Status::Away(why) if !why.contains("not been tried") => Some(why.clone()),
        Status::Up => panic!("it was let in"),
        _ => None,
    })
}

#[test]
fn a_generation_that_the_cluster_has_not_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let confirm = Confirm::new(|_, generation| match generation.0 {
        1..=9 => Ok(()),
        _ => Err("etcd has no such leader".to_owned()),
    });
    let config = ServerConfig { confirm, ..server_config(folder.path()) };
    let server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    let hello = Hello { generation: LeaderGeneration(1 << 62), ..hello() };
    let (socket, answer) = answer(server.address(), &hello.encode());
    assert_eq!((answer.verdict, answer.text.as_str()), (Verdict::Busy, "etcd has no such leader"));
    assert!(is_closed(socket));
    assert!(!folder.path().join("agent-generation").exists());
    assert_eq!(up(connect(server.address(), 1)).call(Command::Report), Reply::Done);
    assert_eq!(up(connect(server.address(), 9)).call(Command::Report), Reply::Done);
}

/// A leader that slept must not command a process that was started after its successor was
/// elected, also if the node has not heard the successor.
#[test]
fn the_next_process_of_a_node_asks_again_whether_a_leader_leads() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let hello = Hello { generation: LeaderGeneration(9), ..hello() };
    assert_eq!(answer(server.address(), &hello.encode()).1.verdict, Verdict::Welcome);
    drop(server);
    let confirm = Confirm::new(|_, _| Err("etcd has no such leader".to_owned()));
    let config = ServerConfig { confirm, ..server_config(folder.path()) };
    let server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    let (_, answer) = answer(server.address(), &hello.encode());
    assert_eq!((answer.verdict, answer.text.as_str()), (Verdict::Busy, "etcd has no such leader"));
}

#[test]
fn a_client_of_the_wrong_node_tries_on_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let config = ClientConfig { node: NodeId(8), ..client_config(server.address(), 1) };
    let remote = RemoteAgent::start(config).unwrap();
    until(&remote, |status| match status {
        Status::Away(why) if why.contains("has not proven that it is node 8") => Some(()),
        Status::Up => panic!("it was let in"),
        _ => None,
    });
}

#[test]
fn packet_that_breaks_the_protocol_ends_only_its_session() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let server = serve(folder.path(), &fake);
    let command = |number| Packet { kind: PacketKind::Command, number }.encode();
    let report = Command::Report.encode().unwrap();
    let mut oversized = report.clone();
    oversized[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    let twice = [command(1), report.clone(), command(1), report.clone()].concat();
    for bytes in [
        vec![0xff; 12],
        b"EVKAEVKAEVKA".to_vec(),
        Packet { kind: PacketKind::Reply, number: 1 }.encode(),
        [command(1), vec![0; 12]].concat(),
        [command(1), oversized].concat(),
        twice,
    ] {
        let (mut socket, answer) = answer(server.address(), &hello().encode());
        assert_eq!(answer.verdict, Verdict::Welcome);
        socket.write_all(&bytes).unwrap();
        assert!(is_closed(socket), "{bytes:?}");
    }
    // A frame of the right length with invalid content gets a reply.
    let (mut socket, _) = answer(server.address(), &hello().encode());
    let mut unknown = report;
    unknown[6] = 0x7f;
    socket.write_all(&[command(1), unknown].concat()).unwrap();
    let mut head = [0; 24];
    socket.read_exact(&mut head).unwrap();
    assert_eq!(Packet::decode(head[..12].try_into().unwrap()).unwrap().number, 1);
    let length = evenkeel_wire::agent::frame_bytes(head[12..].try_into().unwrap()).unwrap();
    let mut frame = head[12..].to_vec();
    frame.resize(length, 0);
    socket.read_exact(&mut frame[12..]).unwrap();
    let failed = support::failed(Reply::decode(&frame).unwrap());
    assert!(failed.message.contains("kind 127 is unknown"), "{}", failed.message);
    fake.wait_until_ended(1);
    assert_eq!(fake.begun(), [Command::Report], "of all that, one command was one");
}

#[test]
fn silent_peers_are_closed_and_handshakes_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let mut config = server_config(folder.path());
    config.timing.handshake = Duration::from_millis(300);
    config.timing.silence = Duration::from_millis(200);
    let server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    // A hello that arrives slowly: the time limit is for all of it.
    let mut slow = raw(server.address());
    let hello = hello().encode();
    let opening = Opening { agent_version: VERSION, nonce: [1; NONCE_BYTES] }.encode();
    slow.write_all(&opening[..40]).unwrap();
    let silent: Vec<TcpStream> =
        (0..AGENT_HANDSHAKES_MAX * 3).map(|_| raw(server.address())).collect();
    assert!(is_closed(slow));
    assert!(silent.into_iter().all(is_closed));
    // A leader that is silent, as one whose machine has lost power.
    let (half_open, answer) = answer(server.address(), &hello);
    assert_eq!((answer.verdict, answer.silence_ms), (Verdict::Welcome, 200));
    assert!(is_closed(half_open));
    // A leader that lives is kept: it waits for a reply for much longer than the limit of silence.
    let remote = up(connect(server.address(), 1));
    fake.hold(&Command::Report);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| remote.call(Command::Report));
        fake.wait_until_begun(1);
        let (late, never) = std::sync::mpsc::channel::<()>();
        let waited = never.recv_timeout(Duration::from_secs(1));
        drop((late, waited));
        fake.let_go();
        assert_eq!(waiting.join().unwrap(), Reply::Done);
    });
}

/// Returns the answer to a client that expects this node.
fn over_tls(server: TlsFiles, node: NodeId, client: Option<TlsFiles>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let config = ServerConfig { tls: Some(server), ..server_config(folder.path()) };
    let server = AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>).unwrap();
    let config = ClientConfig { tls: client, node, ..client_config(server.address(), 1) };
    let remote = RemoteAgent::start(config).unwrap();
    until(&remote, |status| match status {
        Status::Up => {
            assert_eq!(remote.call(Command::Report), Reply::Done);
            Some("up".to_owned())
        }
        Status::Away(why) if !why.contains("not been tried") => {
            assert_eq!(fake.begun(), []);
            Some(why.clone())
        }
        _ => None,
    })
}

#[test]
fn each_side_shows_a_certificate_of_the_authority_and_the_node_one_with_its_name() {
    let seven = || tls("node-7", "ca");
    assert_eq!(over_tls(seven(), NodeId(7), Some(tls("leader", "ca"))), "up");
    for (server, node, client, text) in [
        // The node does not know control's authority.
        (seven(), 7, Some(tls("stranger", "ca")), "UnknownCA"),
        // Control does not know the node's authority.
        (tls("stranger", "ca"), 7, Some(tls("leader", "ca")), "UnknownIssuer"),
        // The certificate of another node.
        (seven(), 8, Some(tls("leader", "ca")), "node-8.evenkeel"),
        // Another node's certificate cannot lead as node 1.
        (seven(), 7, Some(seven()), "control says that it is node 1, and its certificate"),
        // Without TLS the node ends the connection.
        (seven(), 7, None, "no proof of"),
    ] {
        let why = over_tls(server, NodeId(node), client);
        assert!(why.contains(text), "{why}");
    }
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let start = |files| {
        let config = ServerConfig { tls: Some(files), ..server_config(folder.path()) };
        told(AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>))
    };
    let good = tls("node-7", "ca");
    let gone = TlsFiles { certificate: "/no/such.pem".into(), ..good.clone() };
    assert!(start(gone).starts_with("/no/such.pem: No such file"));
    let empty = TlsFiles { authority: good.key.clone(), ..good.clone() };
    assert!(start(empty).ends_with("node-7.key: it has no certificate in PEM form"));
    let not_key = TlsFiles { key: good.certificate.clone(), ..good.clone() };
    assert!(start(not_key).contains("node-7.pem: no private key can be read"));
    assert!(start(tls("leader", "ca")).contains("others expect the name node-7.evenkeel"));
    let other = TlsFiles { key: tls("leader", "ca").key, ..good };
    assert!(start(other).contains("it cannot be used with the key"));
}

#[test]
fn connections_to_other_machines_require_tls() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Fake::new();
    let far: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let config = ServerConfig { listen: far, ..server_config(folder.path()) };
    let error = told(AgentServer::start(config, Arc::clone(&fake) as Arc<dyn Agent>));
    assert!(error.starts_with("0.0.0.0:0 is reached by other machines"), "{error}");
    let error = told(RemoteAgent::start(client_config(far, 1)));
    assert!(error.starts_with("0.0.0.0:0 is reached by other machines"), "{error}");
    let server = serve(folder.path(), &fake);
    let taken = ServerConfig { listen: server.address(), ..server_config(folder.path()) };
    let error = told(AgentServer::start(taken, Arc::clone(&fake) as Arc<dyn Agent>));
    assert!(error.starts_with("cannot listen on 127.0.0.1:"), "{error}");
    let remote = up(connect(server.address(), 1));
    drop(server);
    let mut config = client_config(([127, 0, 0, 1], 1).into(), 1);
    config.timing.patience = Duration::from_millis(1);
    drop(remote);
    let remote = RemoteAgent::start(config).unwrap();
    assert_eq!(kind(remote.call(Command::Report)), evenkeel_wire::agent::FailedKind::Down);
}
