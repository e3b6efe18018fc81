//! Single cores, with a driver that is observed: their behaviour while nothing can be done, and the
//! move of a connection from one core to another.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{CORE_PAYLOAD_BYTES_MAX, REQUEST_BYTES_MAX};
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::driver::{Driver, Waker};
use evenkeel_engine::reactor::PAGE_LATENCIES_MAX;
use evenkeel_engine::ring::Ring;
use evenkeel_engine::threads::Threads;
use evenkeel_os::clock::Clock;
use evenkeel_wire::nbd::constants::{
    IHAVEOPT, REPLY_MAGIC, SIMPLE_REPLY_MAGIC, handshake_flag, option, reply,
};
use evenkeel_wire::nbd::transmission::RequestHeader;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use support::cores::{Cores, Rest};
use support::{Answer, Nbd, unlimited};

const MIB: u64 = 1 << 20;
const WRITE: Operation = Operation::Write { fua: false };

fn plain(waker: Waker, _: Clock) -> io::Result<Threads> {
    Threads::new(waker)
}

/// Returns whether the kernel allows io_uring; prints a line if not.
fn has_uring() -> bool {
    // The kernel's cleanup of a ring interrupts the thread that created it.
    let ring = std::thread::spawn(|| Ring::new(Waker::new().unwrap(), Clock::start()).map(drop));
    let ring = ring.join().unwrap();
    if let Err(error) = &ring {
        let _ = writeln!(
            std::io::stdout(),
            "SKIPPED: io_uring is not available to this process: {error}"
        );
    }
    ring.is_ok()
}

#[test]
fn page_of_latencies_is_bounded_and_covers_used_volumes_only() {
    const USED: u128 = 100;
    let cores = Cores::start(1, plain);
    for bits in 0..3 * USED {
        let state = unlimited(VolumeId::from_bits(bits), MIB);
        cores.apply(0, &state);
        // Two of three volumes have no request.
        if bits % 3 == 0 {
            let answer = cores.connect(0, &state).ask(Operation::Read, 0, 4_096, &[]);
            assert!(matches!(answer, Answer::Done(_)));
        }
    }
    let mut after = None;
    let mut found = Vec::new();
    loop {
        let page = cores.latencies(0, after);
        assert!(page.found.len() <= PAGE_LATENCIES_MAX, "{}", page.found.len());
        for (id, latencies) in page.found {
            assert_eq!(latencies.reads.total.count(), 1, "{id}");
            found.push(id);
        }
        after = page.last;
        if after.is_none() {
            break;
        }
    }
    let used: Vec<VolumeId> = (0..USED).map(|n| VolumeId::from_bits(3 * n)).collect();
    assert_eq!(found, used);
    // Behind the last volume, the page is empty.
    let page = cores.latencies(0, Some(VolumeId::from_bits(3 * USED)));
    assert!(page.found.is_empty() && page.last.is_none());
    cores.stop();
}

#[test]
fn a_core_sleeps_while_its_clients_wait_for_memory() {
    sleeps_while_memory_is_waited_for(plain);
    if has_uring() {
        sleeps_while_memory_is_waited_for(Ring::new);
    }
}

fn sleeps_while_memory_is_waited_for<D: Driver + 'static>(
    driver: fn(Waker, Clock) -> io::Result<D>,
) {
    let cores = Cores::start(1, driver);
    let state = unlimited(VolumeId::from_bits(1), 64 * MIB);
    cores.apply(0, &state);
    let mut other = cores.connect(0, &state);
    // The largest requests may have three quarters of a core's memory, and those of one volume half
    // of that. A client has that memory as soon as it announces a write, before it sends a byte.
    let holders = CORE_PAYLOAD_BYTES_MAX / 8 * 6 / 2 / REQUEST_BYTES_MAX;
    let mut holders: Vec<Nbd> = (0..holders).map(|_| cores.connect(0, &state)).collect();
    for holder in &mut holders {
        holder.send(WRITE, 0, REQUEST_BYTES_MAX, &[]);
    }
    answers(&mut other);
    let mut writer = cores.connect(0, &state);
    let mut reader = cores.connect(0, &state);
    let payload = vec![3; REQUEST_BYTES_MAX as usize];
    writer.send(WRITE, 0, REQUEST_BYTES_MAX, &[]);
    let taken = writer.send_until_stuck(&payload, &mut other);
    assert!(taken < payload.len(), "the write found memory: nobody waits for any");
    assert_eq!(cores.rest_of(0), Rest::Asleep, "while a write waits");
    reader.send(Operation::Read, 32 * MIB, REQUEST_BYTES_MAX, &[]);
    answers(&mut other);
    assert_eq!(cores.rest_of(0), Rest::Asleep, "while a read waits too");
    // Memory comes back, enough for both.
    holders.truncate(holders.len() - 2);
    writer.stream.write_all(&payload[taken..]).unwrap();
    assert_eq!(writer.receive().unwrap().1, Answer::Done(Vec::new()));
    assert_eq!(reader.receive().unwrap().1, Answer::Done(vec![0; REQUEST_BYTES_MAX as usize]));
    cores.stop();
}

/// Lets the core answer other requests often enough to have received all earlier bytes.
fn answers(other: &mut Nbd) {
    for _ in 0..10 {
        assert!(matches!(other.ask(Operation::Read, 0, 512, &[]), Answer::Done(_)));
    }
}

#[test]
fn a_connection_that_owes_replies_takes_them_home() {
    takes_replies_home(plain);
    if has_uring() {
        takes_replies_home(Ring::new);
    }
}

/// Number of volumes: with it, a few lists exceed a small socket's buffer, and stay below the limit
/// at which the server stops reading.
const VOLUMES: u64 = 100;
const LISTS: usize = 30;
const SEND_BYTES: usize = 4 << 10;

fn takes_replies_home<D: Driver + 'static>(driver: fn(Waker, Clock) -> io::Result<D>) {
    let cores = Cores::start(2, driver);
    let volumes: Vec<_> =
        (1..=VOLUMES).map(|number| unlimited(VolumeId::from_bits(number.into()), MIB)).collect();
    for (home, state) in [0, 1].into_iter().cycle().zip(&volumes) {
        cores.apply(home, state);
    }
    let names: Vec<String> = volumes.iter().map(|state| state.id.to_string()).collect();
    let mut other = cores.connect(0, &volumes[0]);
    // From the first core to the second, and from the first to itself.
    for state in [&volumes[1], &volumes[2]] {
        let mut client = cores.dial(0, SEND_BYTES);
        // The first replies are unsent when the client chooses the export.
        client.write_all(&lists()).unwrap();
        answers(&mut other);
        client.write_all(&export_and_requests(&state.id.to_string())).unwrap();
        answers(&mut other);
        // Only now does the client read the first byte.
        let mut expected = vec![0; 18];
        client.read_exact(&mut expected).unwrap();
        for list in 0..LISTS {
            let expected = list_replies(&names);
            let mut bytes = vec![0; expected.len()];
            client.read_exact(&mut bytes).unwrap();
            assert!(bytes == expected, "list {list} of {LISTS} differs");
        }
        let kinds: Vec<u32> = std::iter::from_fn(|| Some(option_reply(&mut client, option::GO)))
            .take_while(|kind| *kind != reply::ACK)
            .collect();
        assert!(kinds.contains(&reply::INFO), "{kinds:?}");
        // The home core also answers the requests behind the handshake.
        assert_eq!(simple_reply(&mut client), 1);
        assert_eq!(simple_reply(&mut client), 2);
        let mut data = [0; 4_096];
        client.read_exact(&mut data).unwrap();
        assert_eq!(data, [7; 4_096]);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "nothing comes twice");
    }
    cores.stop();
}

fn put_option(bytes: &mut Vec<u8>, number: u32, data: &[u8]) {
    bytes.extend(IHAVEOPT.to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
}

/// Returns the client's hello, and its requests for lists.
fn lists() -> Vec<u8> {
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    let mut bytes = u32::from(flags).to_be_bytes().to_vec();
    (0..LISTS).for_each(|_| put_option(&mut bytes, option::LIST, &[]));
    bytes
}

/// Returns the choice of an export, followed at once by a write and a read of the written bytes
/// (the memory store works in order).
fn export_and_requests(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let go = [&(name.len() as u32).to_be_bytes(), name.as_bytes(), &[0; 2]].concat();
    put_option(&mut bytes, option::GO, &go);
    let request = |operation| Request { operation, offset: 0, length: 4_096 };
    bytes.extend(RequestHeader::new(1, &request(WRITE), false).encode());
    bytes.extend([7; 4_096]);
    bytes.extend(RequestHeader::new(2, &request(Operation::Read), false).encode());
    bytes
}

/// Returns the replies to `NBD_OPT_LIST` according to the protocol's text.
fn list_replies(names: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut head = |kind: u32, name: &[u8]| {
        bytes.extend(REPLY_MAGIC.to_be_bytes());
        bytes.extend(option::LIST.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        let length = if kind == reply::SERVER { 4 + name.len() as u32 } else { 0 };
        bytes.extend(length.to_be_bytes());
        if kind == reply::SERVER {
            bytes.extend((name.len() as u32).to_be_bytes());
            bytes.extend(name);
        }
    };
    names.iter().for_each(|name| head(reply::SERVER, name.as_bytes()));
    head(reply::ACK, &[]);
    bytes
}

/// Returns the kind of the next reply to an option, and skips its data.
fn option_reply(client: &mut UnixStream, expected: u32) -> u32 {
    let mut head = [0; 20];
    client.read_exact(&mut head).unwrap();
    let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    assert_eq!(head[..8], REPLY_MAGIC.to_be_bytes());
    assert_eq!(number(8), expected);
    client.read_exact(&mut vec![0; number(16) as usize]).unwrap();
    number(12)
}

/// Returns the cookie of the next reply, a simple one that reports success.
fn simple_reply(client: &mut UnixStream) -> u64 {
    let mut head = [0; 16];
    client.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
    assert_eq!(head[4..8], [0; 4]);
    u64::from_be_bytes(head[8..].try_into().unwrap())
}

#[test]
fn options_that_arrive_at_once_are_answered_in_as_many_turns() {
    const OPTIONS: u64 = 200;
    let cores = Cores::start(1, plain);
    let state = unlimited(VolumeId::from_bits(1), MIB);
    cores.apply(0, &state);
    let mut client = cores.dial(0, 64 << 10);
    let mut said = u32::from(handshake_flag::FIXED_NEWSTYLE).to_be_bytes().to_vec();
    for _ in 0..OPTIONS {
        said.extend_from_slice(&IHAVEOPT.to_be_bytes());
        said.extend_from_slice(&option::LIST.to_be_bytes());
        said.extend_from_slice(&0_u32.to_be_bytes());
    }
    client.write_all(&said).unwrap();
    // Each list has an entry for the volume, and one for the end.
    let line = 20 + 4 + state.id.to_string().len();
    let mut answers = vec![0; 18 + OPTIONS as usize * (line + 20)];
    client.read_exact(&mut answers).unwrap();
    // Between two lists, each other connection of the core has its turn.
    let turns = cores.turns_of(0);
    assert!(turns >= OPTIONS, "{OPTIONS} options in {turns} turns");
    drop(client);
    cores.stop();
}
