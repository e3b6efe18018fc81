//! Clients at their volume's home, which the data plane serves itself, and the moves of such
//! volumes.
//!
//! A case is decided by its seed: `EVENKEEL_SEED=<n>` repeats one, which a failure names.

use crate::cluster::{Cluster, ID, Place, SIZE, pause, until};
use crate::load::{Load, more, under_load};
use crate::support::{Answer, Nbd, paced};
use evenkeel_core::random::Random;
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_wire::agent::{Command, Reply};
use evenkeel_wire::nbd::transmission::RequestHeader;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

const READ: Operation = Operation::Read;
const WRITE: Operation = Operation::Write { fua: false };
/// Requests take a while, so some are under way at every moment.
const DEVICE: &str = "channels=4,read_us=200,write_us=300";
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];

fn lent(cluster: &Cluster, node: usize) -> u64 {
    cluster.nodes[node].front.as_ref().unwrap().figures().lent
}

fn is_lent(cluster: &Cluster, node: usize) {
    until("the data plane has its client", || lent(cluster, node) == 1);
}

fn nobody_is_left(cluster: &Cluster) {
    until("all are gone", || {
        cluster.nodes.iter().all(|node| {
            let figures = node.front.as_ref().unwrap().figures();
            (figures.clients, figures.relayed, figures.lent, figures.held_bytes) == (0, 0, 0, 0)
        })
    });
}

#[test]
fn a_client_is_lent_where_its_volume_is_at_home_and_nowhere_else() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, DEVICE);
        let mut near = cluster.connect(0, true);
        let mut far = cluster.connect(1, false);
        let works = |client: &mut Nbd, fill: u8| {
            assert_eq!(client.ask(WRITE, 0, 512, &[fill; 512]), Answer::Done(Vec::new()));
            assert_eq!(client.ask(READ, 0, 512, &[]), Answer::Done(vec![fill; 512]));
        };
        for round in 0..5_u8 {
            let home = usize::from(round % 2);
            let other = usize::from((round + 1) % 2);
            works(&mut near, round);
            works(&mut far, round + 100);
            is_lent(&cluster, home);
            assert_eq!(lent(&cluster, other), 0);
            cluster.give_up(home);
            until("it is back", || lent(&cluster, home) == 0);
            // These requests wait during the move.
            let cookies = [&mut near, &mut far].map(|it| it.send(WRITE, 512, 512, &[9; 512]));
            cluster.settle(other);
            assert_eq!(near.receive(), Some((cookies[0], Answer::Done(Vec::new()))));
            assert_eq!(far.receive(), Some((cookies[1], Answer::Done(Vec::new()))));
        }
        drop((near, far));
        nobody_is_left(&cluster);
    }
}

#[test]
fn a_volume_goes_and_comes_home_two_hundred_times_under_deep_queues() {
    let cluster = Cluster::on(IoMode::Auto, 2, DEVICE);
    let client = |node, structured| cluster.connect(node, structured);
    let loads = vec![
        Load::new(client(0, true), (0, 2), true).deep(32),
        Load::new(client(1, false), (1, 2), false).deep(32),
    ];
    let mut random = Random::from_state(11);
    under_load(loads, |answers| {
        for number in 0..200 {
            let from = number % 2;
            let to = (number + 1) % 2;
            if random.below(4) > 0 {
                // Enough answers for its client to be lent.
                more(answers, 33 + random.below(60));
            }
            cluster.give_up(from);
            cluster.settle(to);
        }
    });
    let reconnected = |node: usize| {
        let front = cluster.nodes[node].front.as_ref().unwrap();
        front.figures().reconnected
    };
    assert!(
        reconnected(0) >= 150 && reconnected(1) >= 150,
        "{} {}",
        reconnected(0),
        reconnected(1)
    );
    nobody_is_left(&cluster);
}

/// The bytes of requests of every kind, and which cookies are refused.
fn a_bit_of_all(round: u64) -> (Vec<(Request, Vec<u8>)>, u64) {
    let fill = round as u8;
    let request = |operation, offset, length| Request { operation, offset, length };
    let requests = vec![
        (request(WRITE, 4_096, 512), vec![fill; 512]),
        (request(READ, 8_192, 512), Vec::new()),
        // Beyond the end: refused, and its payload is skipped.
        (request(WRITE, SIZE, 512), vec![0x55; 512]),
        (request(Operation::Flush, 0, 0), Vec::new()),
        (request(WRITE, 4_608, 512), vec![!fill; 512]),
    ];
    (requests, 2)
}

/// Returns whether a place of such a stream is in a head, near one, or a sampled one in a payload.
fn is_telling(cut: usize, requests: &[(Request, Vec<u8>)]) -> bool {
    let mut begin = 0;
    for (_, payload) in requests {
        let end = begin + 28 + payload.len();
        if cut <= end {
            return cut <= begin + 30 || cut + 2 >= end || cut.is_multiple_of(23);
        }
        begin = end;
    }
    false
}

/// The stream is cut at such a place when the volume leaves, and when it comes home.
#[test]
fn stream_cut_at_any_byte_continues_elsewhere() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, "");
        let mut client = cluster.connect(0, true);
        let mut other = cluster.connect(0, true);
        let (requests, _) = a_bit_of_all(0);
        let length: usize = requests.iter().map(|(_, payload)| 28 + payload.len()).sum();
        let mut cookies = 1_000_000;
        // Inner bytes of a payload are equivalent, so only some are cut at.
        let cuts = (0..=length).filter(|cut| is_telling(*cut, &requests));
        for (moves, cut) in cuts.enumerate() {
            let home = moves % 2;
            let next = (moves + 1) % 2;
            let (requests, refused) = a_bit_of_all(cut as u64);
            let mut bytes = Vec::new();
            for (at, (request, payload)) in (0..).zip(&requests) {
                bytes.extend(RequestHeader::new(cookies + at, request, false).encode());
                bytes.extend(payload);
                client.expect(cookies + at, *request);
            }
            client.stream.write_all(&bytes[..cut]).unwrap();
            if cut % 3 > 0 {
                // The data plane has read the bytes that were sent before.
                other.ask(READ, 0, 512, &[]);
            }
            cluster.give_up(home);
            if cut % 5 == 0 {
                client.stream.write_all(&bytes[cut..]).unwrap();
                cluster.settle(next);
            } else {
                cluster.settle(next);
                client.stream.write_all(&bytes[cut..]).unwrap();
            }
            let mut waited: BTreeSet<u64> = (0..requests.len() as u64).collect();
            while !waited.is_empty() {
                let (cookie, answer) = client.receive().expect("the connection lives");
                assert!(waited.remove(&(cookie - cookies)), "cut {cut}: {cookie} again");
                let is_refused = cookie - cookies == refused;
                assert_eq!(matches!(answer, Answer::Failed(_)), is_refused, "cut {cut}");
            }
            let fill = cut as u8;
            let read = client.ask(READ, 4_096, 1_024, &[]);
            let mut wanted = vec![fill; 512];
            wanted.extend([!fill; 512]);
            assert_eq!(read, Answer::Done(wanted), "cut {cut}");
            cookies += 1_000;
        }
        drop((client, other));
        nobody_is_left(&cluster);
    }
}

/// Requests of one client, with sizes up to several quanta, and the content that it must read.
struct Piped {
    client: Nbd,
    random: Random,
    /// The content of each block of 4 KiB.
    holds: Vec<u8>,
    under_way: BTreeMap<u64, (Operation, usize, usize, u8)>,
}

const BLOCK: usize = 4_096;
const BLOCKS: usize = SIZE as usize / BLOCK;

impl Piped {
    fn ask(&mut self) {
        let large = self.random.below(6) == 0;
        let count = 1 + self.random.below(if large { 150 } else { 3 }) as usize;
        let first = self.random.below((BLOCKS - count + 1) as u64) as usize;
        let overlaps =
            |(_, at, of, _): &(Operation, usize, usize, u8)| *at < first + count && first < at + of;
        if self.under_way.values().any(overlaps) {
            return;
        }
        let fill = 1 + self.random.below(255) as u8;
        let operation = if self.random.below(3) == 0 { READ } else { WRITE };
        let bytes = count * BLOCK;
        let payload = if operation == READ { Vec::new() } else { vec![fill; bytes] };
        let offset = (first * BLOCK) as u64;
        let cookie = self.client.send(operation, offset, bytes as u32, &payload);
        self.under_way.insert(cookie, (operation, first, count, fill));
    }

    fn hear(&mut self) {
        let (cookie, answer) = self.client.receive().expect("the connection lives");
        let (operation, first, count, fill) =
            self.under_way.remove(&cookie).expect("asked for, and once");
        let Answer::Done(data) = answer else { panic!("{operation:?}: {answer:?}") };
        let holds = &mut self.holds[first..first + count];
        match operation {
            READ => {
                let wanted: Vec<u8> = holds.iter().flat_map(|fill| [*fill; BLOCK]).collect();
                assert!(data == wanted, "blocks {first} to {}", first + count);
            }
            _ => holds.fill(fill),
        }
    }
}

/// Many large writes wait for tokens or are half done when the volume goes.
#[test]
fn half_done_queues_of_large_requests_lose_nothing() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, "channels=1,read_us=300,write_us=500");
        let slow = paced(ID, SIZE, 1_500);
        assert_eq!(cluster.nodes[0].served.call(Command::Apply(slow.clone())), Reply::Done);
        *cluster.state.lock().unwrap() = slow;
        let client = cluster.connect(0, true);
        let seed = std::env::var("EVENKEEL_SEED").map_or(5, |seed| seed.parse().unwrap());
        eprintln!("{io:?}: EVENKEEL_SEED={seed} repeats this");
        let random = Random::from_state(seed);
        let holds = vec![0; BLOCKS];
        let mut piped = Piped { client, random, holds, under_way: BTreeMap::new() };
        for round in 0..24 {
            let home = round % 2;
            let next = (round + 1) % 2;
            (0..60).for_each(|_| {
                if piped.under_way.len() < 32 {
                    piped.ask();
                }
            });
            for _ in 0..piped.random.below(6) {
                if !piped.under_way.is_empty() {
                    piped.hear();
                }
            }
            cluster.give_up(home);
            cluster.settle(next);
        }
        while !piped.under_way.is_empty() {
            piped.hear();
        }
        let read = piped.client.ask(READ, 0, SIZE as u32, &[]);
        let wanted: Vec<u8> = piped.holds.iter().flat_map(|fill| [*fill; BLOCK]).collect();
        assert!(read == Answer::Done(wanted));
    }
}

#[test]
fn a_client_that_fetches_nothing_is_moved_with_its_replies() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, "");
        let mut client = cluster.connect(0, true);
        let pattern: Vec<u8> = (0..SIZE).map(|number| (number / 11) as u8).collect();
        assert_eq!(client.ask(WRITE, 0, SIZE as u32, &pattern), Answer::Done(Vec::new()));
        is_lent(&cluster, 0);
        let mut cookies: BTreeSet<u64> =
            (0..24).map(|_| client.send(READ, 0, SIZE as u32, &[])).collect();
        for round in 0..4 {
            cluster.give_up(round % 2);
            cluster.settle((round + 1) % 2);
            (0..3).for_each(|_| pause());
        }
        while !cookies.is_empty() {
            let (cookie, answer) = client.receive().expect("the connection lives");
            assert!(cookies.remove(&cookie) && answer == Answer::Done(pattern.clone()));
        }
        is_lent(&cluster, 0);
        drop(client);
        nobody_is_left(&cluster);
    }
}

#[test]
fn a_client_that_takes_its_leave_while_its_volume_goes_has_everything_done() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, "channels=1,read_us=500,write_us=1000");
        let mut client = cluster.connect(0, true);
        is_lent(&cluster, 0);
        for block in 0..50_u64 {
            client.send(WRITE, block * 4_096, 4_096, &[block as u8 + 1; 4_096]);
        }
        client.disconnect();
        assert!(client.receive().is_some());
        cluster.give_up(0);
        cluster.settle(1);
        let mut answered = 1;
        while client.receive().is_some() {
            answered += 1;
        }
        assert_eq!(answered, 50);
        nobody_is_left(&cluster);
        let mut client = cluster.connect(0, true);
        for block in 0..50_u64 {
            let read = client.ask(READ, block * 4_096, 4_096, &[]);
            assert_eq!(read, Answer::Done(vec![block as u8 + 1; 4_096]));
        }
    }
}

#[test]
fn clients_that_die_while_their_volume_goes_leave_nothing_behind() {
    for io in MODES {
        let cluster = Cluster::on(io, 2, DEVICE);
        for round in 0..30 {
            let home = round % 2;
            let next = (round + 1) % 2;
            let mut clients = [cluster.connect(home, true), cluster.connect(home, false)];
            for block in 0..round as u64 {
                for client in &mut clients {
                    client.send(WRITE, block * 4_096, 4_096, &[7; 4_096]);
                }
            }
            let [first, second] = clients;
            drop(first);
            std::thread::scope(|scope| {
                scope.spawn(|| drop(second));
                cluster.give_up(home);
            });
            cluster.settle(next);
        }
        nobody_is_left(&cluster);
        let mut client = cluster.connect(0, true);
        assert_eq!(client.ask(WRITE, 0, 512, &[3; 512]), Answer::Done(Vec::new()));
    }
}

/// The data plane gets no command: only the map shows that the volume is elsewhere.
#[test]
fn a_client_leaves_a_data_plane_that_does_not_know_that_it_is_not_the_home() {
    let cluster = Cluster::on(IoMode::Auto, 2, DEVICE);
    let mut client = cluster.connect(0, true);
    is_lent(&cluster, 0);
    let state = cluster.state.lock().unwrap().clone();
    assert_eq!(cluster.nodes[1].served.call(Command::Apply(state)), Reply::Done);
    cluster.map.set(ID, Place::Node(cluster.nodes[1].id));
    until("it is back", || lent(&cluster, 0) == 0);
    assert_eq!(client.ask(WRITE, 0, 512, &[3; 512]), Answer::Done(Vec::new()));
}

#[test]
fn a_data_plane_that_stops_gives_its_clients_back() {
    let mut cluster = Cluster::on(IoMode::Auto, 2, DEVICE);
    let mut client = cluster.connect(0, true);
    is_lent(&cluster, 0);
    let cookies: BTreeSet<u64> = (0..30_u64)
        .map(|number| client.send(WRITE, number * 4_096, 4_096, &[number as u8; 4_096]))
        .collect();
    drop(cluster.nodes[0].served.engine.take());
    cluster.settle(1);
    for _ in &cookies {
        let (cookie, answer) = client.receive().expect("the connection lives");
        assert!(cookies.contains(&cookie) && answer == Answer::Done(Vec::new()), "{answer:?}");
    }
    for at in 0..30_u64 {
        let read = client.ask(READ, at * 4_096, 4_096, &[]);
        assert_eq!(read, Answer::Done(vec![at as u8; 4_096]));
    }
}
