//! Many connections of one client: other clients are still accepted, and the log stays short.

mod support;

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use support::PATIENCE;
use support::clock::{Deadline, pass};
use support::nbd::{Client, OPTION_GO, REPLY_INFO, REPLY_POLICY, go};
use support::server::Server;
use support::tools::skipped;

/// More connections than one core of any version has served at once.
const CROWD: usize = 4_300;
/// `CONNECTIONS_PER_VOLUME_MAX`.
const PER_VOLUME: usize = 1_024;
/// `HANDSHAKES_PER_PEER_MAX`.
const HANDSHAKES: usize = 256;
/// `LOG_LINES_MAX`.
const LOG_LINES: usize = 5;

/// Returns whether this process cannot open enough files, and prints it.
fn has_too_few_files() -> bool {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // The server is another process with the same limit, half of which is for connections.
    let too_few = maximum.is_some_and(|maximum| maximum < 16_384);
    if too_few {
        skipped(&format!("the hard limit of open files is {maximum:?}"));
    } else {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
            .expect("as far as may be");
    }
    too_few
}

fn works(server: &Server, volume: &str) {
    let mut client = Client::open(server.nbd, volume).expect("attached");
    client.write(4_096, &[7; 4_096]).expect("written");
    assert_eq!(client.read(4_096, 4_096).expect("read"), [7; 4_096]);
}

#[test]
fn client_with_thousands_of_connections_blocks_no_other() {
    if has_too_few_files() {
        return;
    }
    let mut server = Server::start("--store memory --cores 1");
    let crowded = server.attached("--size 1");
    let other = server.attached("--size 1");
    let mut crowd: Vec<Client> =
        (0..CROWD).filter_map(|_| Client::open(server.nbd, &crowded).ok()).collect();
    works(&server, &other);
    assert_eq!(crowd.len(), PER_VOLUME);
    // Accepted connections are served, and refused ones get the reason.
    crowd[0].write(0, &[1; 512]).expect("written");
    assert_eq!(crowd[PER_VOLUME - 1].read(0, 512).expect("read"), [1; 512]);
    let mut refused = Client::connect(server.nbd).expect("greeted");
    refused.send_option(OPTION_GO, &go(&crowded)).expect("sent");
    let reply = refused.option_reply().expect("a reply");
    let why = String::from_utf8_lossy(&reply.data).into_owned();
    assert_eq!(reply.kind, REPLY_POLICY, "{why}");
    assert!(why.contains("1024 connections") && why.contains("close some"), "{why}");
    // The same connection can select another volume, and this one when there is room.
    drop(crowd.split_off(PER_VOLUME / 2));
    let deadline = Deadline::after(PATIENCE);
    deadline.ask("a place of those that are closed", || {
        refused.send_option(OPTION_GO, &go(&crowded)).expect("sent");
        refused.option_reply().expect("a reply").kind == REPLY_INFO
    });
    let log = server.stop();
    let count = log.lines().filter(|line| line.contains("a connection is refused")).count();
    assert!((1..=3 * LOG_LINES).contains(&count), "{log}");
}

#[test]
fn silent_handshakes_are_closed_to_make_room_for_new_ones() {
    if has_too_few_files() {
        return;
    }
    let server = Server::start("--store memory --cores 1");
    let volume = server.attached("--size 1");
    // All within the ten seconds that a handshake may take.
    let mut silent = Vec::new();
    for number in 0..CROWD {
        silent.push(Client::connect(server.nbd).expect("greeted"));
        if number % 500 == 499 {
            works(&server, &volume);
        }
    }
    works(&server, &volume);
    // The first handshakes were closed for new ones, and the server has no more than its maximum.
    assert!(silent[0].is_closed_by_server());
    let files = || {
        let folder = format!("/proc/{}/fd", server.pid());
        std::fs::read_dir(folder).expect("our own child").count()
    };
    Deadline::after(PATIENCE).ask("closed sockets", || files() < HANDSHAKES + 100);
}

/// Connects to the server from another loopback address of this machine.
fn from(address: [u8; 4], server: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((address, 0))).expect("one of loopback");
    connect(&socket, &server).expect("connected");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Returns whether the server sends its greeting, or closes the connection before.
fn is_greeted(stream: TcpStream) -> bool {
    let mut greeting = Vec::new();
    match stream.take(18).read_to_end(&mut greeting) {
        Ok(_) => greeting.len() == 18,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
        Err(error) => panic!("neither: {error}"),
    }
}

#[test]
fn host_without_a_volume_is_refused_and_one_with_a_volume_gets_a_slot() {
    if has_too_few_files() {
        return;
    }
    const HOST: [u8; 4] = [127, 0, 0, 77];
    let mut server = Server::start("--store memory --cores 1");
    let register = "host register --type evenkeel.local --address 127.0.0.77";
    let host = server.list(register)[0]["host_id"].as_str().expect("an id").to_owned();
    let crowded = server.attached("--size 1");
    let its_own = server.create("--size 1");
    // A registered host without an attached volume is refused; this machine is always accepted.
    assert!(!is_greeted(from(HOST, server.nbd)));
    assert!(is_greeted(from([127, 0, 0, 1], server.nbd)));
    server.evenkeel(&format!("volume attach {its_own} --host {host} --wait")).ok();
    assert!(is_greeted(from(HOST, server.nbd)));
    // The host is accepted although other clients use all connections of a volume, and many clients
    // are silent.
    let open = |_| Client::open(server.nbd, &crowded).ok();
    let _crowd: Vec<Client> = (0..PER_VOLUME + 100).filter_map(open).collect();
    let connect = |_| Client::connect(server.nbd).expect("greeted");
    let mut silent: Vec<Client> = vec![];
    for batch in 0..8 {
        silent.extend((0..HANDSHAKES).map(connect));
        assert!(is_greeted(from(HOST, server.nbd)), "batch {batch}");
    }
    server.evenkeel(&format!("volume detach {its_own} --host {host} --wait")).ok();
    assert!(!is_greeted(from(HOST, server.nbd)));
    let log = server.stop();
    assert!(log.contains("no volume is attached to its address"), "{log}");
}

#[test]
fn a_client_in_a_loop_fills_no_log() {
    const TRIES: usize = 300;
    let mut server = Server::start("--store memory --cores 1");
    let volume = server.attached("--size 1");
    for _ in 0..TRIES {
        let mut client = Client::open(server.nbd, &volume).expect("attached");
        client.stream.write_all(&[0; 28]).expect("sent");
        assert!(client.is_closed_by_server());
    }
    let line = "a connection is closed";
    let count = |log: &str| log.lines().filter(|text| text.contains(line)).count();
    // The summary is logged after the window, without a further event.
    let deadline = Deadline::after(PATIENCE);
    deadline.ask("a count of what was left out", || {
        pass(Duration::from_millis(100));
        server.process().logged().contains("there were more of these lines")
    });
    let log = server.stop();
    // The lines themselves, and one with the number of further ones; a second window has them again
    // if this machine is very slow.
    assert!(count(&log) <= TRIES / 10, "{log}");
    let number = |line: &str| -> Option<usize> {
        line.split("left_out=").nth(1)?.split_whitespace().next()?.parse().ok()
    };
    let left_out: usize = log.lines().filter_map(number).sum();
    let closed = log.lines().filter(|text| text.contains("starts with")).count();
    assert_eq!(closed + left_out, TRIES, "{log}");
}
