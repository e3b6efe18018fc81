//! Clients that violate the rules beside one that does not: it keeps its rate, and memory stays
//! within its documented bounds (`crates/core/src/limits.rs`).

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use support::clock::{Stopwatch, pass};
use support::machine::alone;
use support::nbd::{self, Client, OPTION_GO, request};
use support::process::Running;
use support::rates::{Done, at_least_once_beside_others, reads};
use support::server::{FAST, Server};
use support::tools::absent;

const MIB: u64 = 1 << 20;
/// `CONNECTION_BYTES_MAX`: payload of one connection in the server.
const CONNECTION_BYTES: u64 = 32 * MIB;
/// `VOLUME_QUEUED_BYTES_MAX`: payload that waits for one volume's limits.
const VOLUME_QUEUED_BYTES: u64 = 32 * MIB;
/// Memory of a working server beside payload.
const OTHER_BYTES: u64 = 32 * MIB;
/// Provisioned IOPS of the good client's volume.
const IOPS: u64 = 1_000;
const GOOD: &str = "--type io2 --size 10 --iops 1000";

/// Returns the most memory that the server has while `load` runs, in bytes.
fn peak_bytes(server: &Server, load: &mut Running) -> u64 {
    let mut peak = 0;
    while load.is_running() {
        peak = peak.max(server.resident_bytes());
        pass(Duration::from_millis(20));
    }
    peak
}

/// Reads the next reply to a read of 1 MiB, and returns its cookie.
fn reply_of_a_mebibyte(client: &mut Client) -> u64 {
    let (error, cookie) = client.reply().expect("a reply");
    assert_eq!(error, 0);
    client.stream.read_exact(&mut vec![0; 1 << 20]).expect("its data");
    cookie
}

#[test]
fn client_that_reads_no_replies_costs_a_good_client_nothing() {
    const LAZY: u64 = 8;
    const READS: u64 = 200;
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        // A single core serves all of them.
        let server = Server::start("--store memory --cores 1");
        let good = server.attached(GOOD);
        let other = server.attached(FAST);
        let before = server.resident_bytes();
        let mut load = reads(&server, &server.unix_uri(&good), 32, 3);
        let open = |_| Client::open(server.nbd, &other).expect("attached");
        let mut lazy: Vec<Client> = (0..LAZY).map(open).collect();
        for client in &mut lazy {
            for number in 0..READS {
                client.send(nbd::READ, number, number * MIB, 1 << 20).expect("sent");
            }
        }
        let grown = peak_bytes(&server, &mut load).saturating_sub(before);
        println!("{} MiB more for {LAZY} clients that read nothing", grown / MIB);
        assert!(grown >= 8 * MIB, "nothing was held: {grown}");
        assert!(grown <= LAZY * CONNECTION_BYTES + OTHER_BYTES, "{} MiB more", grown / MIB);
        // Their volume still serves a client that reads.
        assert_eq!(open(0).read(0, 512).expect("read"), [0; 512]);
        // The replies come once they are read.
        let client = lazy.last_mut().expect("eight");
        let mut cookies: Vec<u64> = (0..READS).map(|_| reply_of_a_mebibyte(client)).collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..READS));
        Done::by(load).reaches_percent(85, IOPS)
    });
}

/// Connections of each volume that write at once.
const WRITERS: u64 = 16;

#[test]
fn memory_stays_flat_while_more_is_written_than_may_be() {
    let _alone = alone();
    let waiting = 3 * VOLUME_QUEUED_BYTES;
    let arriving = 3 * WRITERS * MIB;
    // While the machine stands still, writes that the store has begun have further memory.
    let is_flat = (0..3).any(|_| {
        let halves = most_bytes_of_writers();
        println!("most memory in each half, in MiB: {:?}", halves.map(|half| half / MIB));
        halves.iter().all(|half| *half <= waiting + arriving + OTHER_BYTES)
    });
    assert!(is_flat, "more memory than may wait and arrive in each of three runs");
}

/// Returns the most memory that a server takes while writes wait, in each half of the time.
fn most_bytes_of_writers() -> [u64; 2] {
    // In memory: writes that wait for a slow disk have further memory, up to that of a core.
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let data_dir = folder.path().join("data");
    let mut server = Server::start_in(folder, data_dir, "");
    // 100 I/Os of 256 KiB per second each: 25 MiB/s. Three GiB are sent at once.
    let volumes = [0; 3].map(|_| server.attached("--type io2 --size 4 --iops 100"));
    let before = server.resident_bytes();
    let address = server.nbd;
    let payload = vec![7; 1 << 20];
    std::thread::scope(|scope| {
        for volume in &volumes {
            for number in 0..WRITERS {
                let payload = &payload;
                scope.spawn(move || {
                    let mut client = Client::open(address, volume).expect("attached");
                    for cookie in 0..64 {
                        let offset = (number * 64 + cookie) * MIB;
                        // The server is killed while it still receives.
                        let sent = client.send(nbd::WRITE, cookie, offset, 1 << 20);
                        if sent.and_then(|()| client.stream.write_all(payload)).is_err() {
                            return;
                        }
                    }
                });
            }
        }
        let mut halves = [0; 2];
        for half in &mut halves {
            let watch = Stopwatch::start();
            while watch.seconds() < 2.0 {
                *half = server.resident_bytes().saturating_sub(before).max(*half);
                pass(Duration::from_millis(20));
            }
        }
        // Another connection is still served: only the queue is full.
        let mut other = Client::open(address, &volumes[0]).expect("attached");
        other.flush().expect("flushed");
        server.kill_9();
        halves
    })
}

/// A hundred clients, each of which sends a byte per second.
struct Slow {
    /// During the negotiation of an export.
    undecided: Vec<Client>,
    /// During a request for a block.
    asking: Vec<Client>,
    /// During the head of a request to the API.
    http: Vec<TcpStream>,
}

impl Slow {
    const HEAD: &str = "GET /healthz HTTP/1.1\r\nhost: slow\r\nconnection: close\r\n\r\n";

    fn new(server: &Server, volume: &str) -> Self {
        let open = |_| {
            let mut client = Client::open(server.nbd, volume).expect("attached");
            // All but the last eight bytes.
            client.stream.write_all(&request(nbd::READ, 7, 0, 512)[..20]).expect("sent");
            client
        };
        Self {
            undecided: (0..40).map(|_| Client::connect(server.nbd).expect("greeted")).collect(),
            asking: (0..30).map(open).collect(),
            http: (0..30).map(|_| TcpStream::connect(server.api).expect("connected")).collect(),
        }
    }

    /// Sends the next byte of each; connections that the server has closed are ignored.
    fn send(&mut self, second: usize) {
        let mut option = b"IHAVEOPT".to_vec();
        option.extend(OPTION_GO.to_be_bytes());
        option.extend_from_slice(&[0, 0, 0, 100]);
        let asked = request(nbd::READ, 7, 0, 512);
        for client in &mut self.undecided {
            let _ = client.stream.write_all(&option[second..=second]);
        }
        for client in self.asking.iter_mut().filter(|_| second < 8) {
            client.stream.write_all(&asked[20 + second..=20 + second]).expect("sent");
        }
        for stream in &mut self.http {
            stream.write_all(&Self::HEAD.as_bytes()[second..=second]).expect("sent");
        }
    }
}

#[test]
fn a_hundred_clients_with_a_byte_a_second_cost_a_good_client_nothing() {
    if absent(&["fio"]) {
        return;
    }
    at_least_once_beside_others(|| {
        let server = Server::start("--store memory");
        let good = server.attached(GOOD);
        let other = server.attached("--size 1");
        let before = server.resident_bytes();
        let load = reads(&server, &server.unix_uri(&good), 32, 11);
        let mut slow = Slow::new(&server, &other);
        for second in 0..11 {
            slow.send(second);
            // The API answers meanwhile.
            assert_eq!(server.list("volume ls").len(), 2);
            pass(Duration::from_secs(1));
        }
        let grown = server.resident_bytes().saturating_sub(before);
        assert!(grown <= OTHER_BYTES, "{} MiB more", grown / MIB);
        let done = Done::by(load);
        // Handshakes that take ten seconds are closed; slow requests are served.
        for client in &mut slow.undecided {
            assert!(client.is_closed_by_server());
        }
        for client in &mut slow.asking {
            let mut data = [1; 512];
            assert_eq!(client.reply().expect("a reply"), (0, 7));
            client.stream.read_exact(&mut data).expect("its data");
            assert_eq!(data, [0; 512]);
        }
        for stream in &mut slow.http {
            stream.write_all(&Slow::HEAD.as_bytes()[11..]).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
        done.reaches_percent(85, IOPS)
    });
}
