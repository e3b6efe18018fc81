//! Clients that are lent to the data plane, and come back when their volume is given up: each
//! request is either answered or not begun, to the byte.
//!
//! A case is determined by its seed: `EVENKEEL_SEED=<n>` repeats one, which a failure names, and
//! `EVENKEEL_FUZZ_CASES=<n>` runs `n` cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::device::ServiceTime;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::LENT_UNREAD_BYTES_MAX;
use evenkeel_core::random::Random;
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_engine::handoff::{Lender, Loan, Returned};
use evenkeel_store::Pool;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::faulty::setup::Setup;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{Command, HostAddress, Reply, VolumeState};
use evenkeel_wire::nbd::constants::command;
use evenkeel_wire::nbd::transmission::RequestHeader;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use support::{ANSWER_MAX, Answer, Nbd, Served, paced, unlimited};

const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const ID: VolumeId = VolumeId::from_bits(3);
const SIZE: u64 = 4 << 20;
const WRITE: Operation = Operation::Write { fua: false };
/// Cases of a plain run, for each interface to the kernel.
const CASES: u64 = 60;

/// A lent client, of which the lender has already received some bytes.
struct Lent {
    client: Nbd,
    lender: Lender,
    back: Receiver<Returned>,
}

fn lend(served: &Served, unread: &[u8]) -> Lent {
    let entrance = served.engine.as_ref().unwrap().entrance();
    let inside = entrance.connect(HostAddress::Local).unwrap();
    let first = Nbd::over(inside.stream, ID, true).expect("the export is there");
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (told, back) = channel();
    let back_to = Box::new(move |returned| drop(told.send(returned)));
    let loan = Loan { client: theirs.into(), unread: unread.to_vec(), back: back_to };
    inside.lender.lend(loan);
    // The end of the first connection is the signal.
    Lent { client: first.over_to(ours), lender: inside.lender, back }
}

/// Returns a pool with a slow device, which always has some requests.
fn slow(base_ns: u64) -> Arc<dyn Pool> {
    let setup = Setup::new(2, ServiceTime { base_ns, ns_per_kib: 0 });
    Arc::new(FaultyPool::new(Arc::new(MemoryPool::new()), &setup))
}

fn seeds(cases: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("EVENKEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("EVENKEEL_FUZZ_CASES").unwrap_or(cases) + 1,
    }
}

/// A request of a client, with its bytes, and whether it is refused at once.
struct Sent {
    request: Request,
    bytes: Vec<u8>,
    is_refused: bool,
}

fn any_request(random: &mut Random, cookie: u64) -> Sent {
    let length = match random.below(8) {
        // More than one quantum: some of it may be in the store, and some not.
        0 => 512 * (1 + random.below(1_400) as u32),
        _ => 512 * (1 + random.below(16) as u32),
    };
    let fua = random.below(4) == 0;
    let operation = match random.below(10) {
        0 => Operation::Flush,
        1 => Operation::BlockStatus,
        2 => Operation::Discard { fua },
        3 => Operation::WriteZeroes { fua, keep_allocated: true, only_if_fast: false },
        4 | 5 => Operation::Read,
        _ => Operation::Write { fua },
    };
    let is_write = matches!(operation, Operation::Write { .. });
    let is_refused = is_write && random.below(6) == 0;
    let offset = match operation {
        Operation::Flush => 0,
        // Behind the end: it is answered with an error, and its payload is skipped.
        _ if is_refused => SIZE,
        _ => 512 * random.below((SIZE - u64::from(length)) / 512 + 1),
    };
    let length = if operation == Operation::Flush { 0 } else { length };
    let request = Request { operation, offset, length };
    with_bytes(request, cookie, random.below(2) == 0)
}

fn with_bytes(request: Request, cookie: u64, is_extended: bool) -> Sent {
    let mut bytes = RequestHeader::new(cookie, &request, is_extended).encode().to_vec();
    let is_write = matches!(request.operation, Operation::Write { .. });
    if is_write {
        let payload = (0..request.length).map(|position| (cookie + u64::from(position / 7)) as u8);
        bytes.extend(payload);
    }
    Sent { request, bytes, is_refused: is_write && request.offset == SIZE }
}

/// Returns the bytes that a socket holds.
fn in_socket(stream: &mut UnixStream) -> Vec<u8> {
    stream.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

fn give_up(served: &Served) {
    assert!(matches!(served.call(Command::Release(ID)), Reply::Balances(_)));
}

/// The stream is cut at any byte, so also within heads and payloads. The volume is given up after
/// any number of its requests.
#[test]
fn unbegun_requests_come_back_to_the_byte() {
    let mut seen = [0; 4];
    for io in MODES {
        let served = Served::new(io, slow(1_000_000));
        for seed in seeds(CASES) {
            let before =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one_case(&served, seed)));
            let kinds = before.unwrap_or_else(|panic| {
                eprintln!(
                    "{io:?}: EVENKEEL_SEED={seed} cargo test -p evenkeel-engine --test lending \
                     unbegun_requests"
                );
                std::panic::resume_unwind(panic)
            });
            seen.iter_mut().zip(kinds).for_each(|(seen, kind)| *seen += u32::from(kind));
        }
    }
    if seeds(CASES).count() > 1 {
        // The cases include unsent replies, requests that were not begun, cut payloads, and bytes
        // to be skipped.
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }
}

fn one_case(served: &Served, seed: u64) -> [bool; 4] {
    let mut random = Random::from_state(seed);
    let limited = match random.below(2) {
        0 => unlimited(ID, SIZE),
        // Most requests wait for the volume's limit.
        _ => paced(ID, SIZE, 2_000),
    };
    served.apply(VolumeState { ..limited });
    let mut sent: Vec<Sent> =
        (0..1 + random.below(40)).map(|number| any_request(&mut random, number)).collect();
    let ends_in_refusal = random.below(6) == 0;
    if ends_in_refusal {
        let length = 512 * (1 + random.below(1_400) as u32);
        let request = Request { operation: WRITE, offset: SIZE, length };
        sent.push(with_bytes(request, sent.len() as u64, false));
    }
    let stream: Vec<u8> = sent.iter().flat_map(|sent| sent.bytes.clone()).collect();
    let last = sent.last().unwrap().bytes.len();
    let last_cookie = sent.len() as u64 - 1;
    // Within the last request, most often in its head.
    let cut_back = match random.below(3) {
        // Its payload is still being skipped.
        _ if ends_in_refusal => 1 + random.below(last as u64 - 28) as usize,
        0 => random.below(last as u64 + 1) as usize,
        1 => last - last.min(random.below(29) as usize),
        _ => last.min(random.below(3) as usize),
    };
    let end = stream.len() - cut_back;
    let before = (random.below(LENT_UNREAD_BYTES_MAX as u64 + 1) as usize).min(end);
    let before = if random.below(2) == 0 { 0 } else { before };
    let Lent { mut client, back, .. } = lend(served, &stream[..before]);
    for (cookie, sent) in (0..).zip(&sent) {
        client.expect(cookie, sent.request);
    }
    let mut answered = BTreeMap::new();
    let reads = random.below(2) == 0;
    let wanted = random.below(sent.len() as u64) as usize;
    let mut writer = client.stream.try_clone().unwrap();
    let rest = stream[before..end].to_vec();
    let writer = std::thread::spawn(move || writer.write_all(&rest).unwrap());
    // Replies that the client does not read stay in the data plane, or in the socket.
    while reads && answered.len() < wanted
        || ends_in_refusal && !answered.contains_key(&last_cookie)
    {
        let (cookie, answer) = client.receive().unwrap();
        assert!(answered.insert(cookie, answer).is_none(), "{cookie} answered twice");
    }
    give_up(served);
    let CameBack { mut socket, unsent, unread, skipped, still_skipped } = come_back(&back, writer);
    let has_unsent = !unsent.is_empty();
    let farewell = std::thread::spawn(move || {
        socket.write_all(&unsent).unwrap();
        drop(socket);
    });
    while let Some((cookie, answer)) = client.receive() {
        assert!(answered.insert(cookie, answer).is_none(), "{cookie} answered twice");
    }
    farewell.join().unwrap();
    judge(&sent, end, &answered, (&unread, still_skipped));
    let is_head = |bytes: &[u8]| RequestHeader::decode(bytes.first_chunk().unwrap()).is_ok();
    let in_payload = cut_back > 0 && last - cut_back > 28 && is_head(&sent.last().unwrap().bytes);
    [has_unsent, !unread.is_empty(), in_payload, skipped > 0]
}

/// All that a lender gets back of a client, with the bytes that were still on their way.
struct CameBack {
    socket: UnixStream,
    unsent: Vec<u8>,
    unread: Vec<u8>,
    /// Bytes to be skipped, and those of them that the client has not sent yet.
    skipped: u32,
    still_skipped: usize,
}

fn come_back(back: &Receiver<Returned>, writer: JoinHandle<()>) -> CameBack {
    let returned = back.recv_timeout(ANSWER_MAX).unwrap();
    let Returned { client, unsent, mut unread, skipped } = returned;
    let mut socket = UnixStream::from(client);
    let mut after = Vec::new();
    while !writer.is_finished() {
        after.append(&mut in_socket(&mut socket));
        std::thread::yield_now();
    }
    writer.join().unwrap();
    after.append(&mut in_socket(&mut socket));
    let thrown_away = after.len().min(skipped as usize);
    unread.extend(after.drain(..).skip(thrown_away));
    socket.set_nonblocking(false).unwrap();
    CameBack { socket, unsent, unread, skipped, still_skipped: skipped as usize - thrown_away }
}

/// Checks that the bytes that came back of a stream that was cut at `end` are those of its
/// unanswered requests.
fn judge(
    sent: &[Sent],
    end: usize,
    answered: &BTreeMap<u64, Answer>,
    (unread, still_skipped): (&[u8], usize),
) {
    let mut expected = Vec::new();
    let mut start = 0;
    let mut expected_skipped = 0;
    for (cookie, sent) in (0..).zip(sent) {
        let arrived = end.saturating_sub(start).min(sent.bytes.len());
        start += sent.bytes.len();
        match answered.get(&cookie) {
            None => expected.extend_from_slice(&sent.bytes[..arrived]),
            Some(answer) => {
                assert_eq!(matches!(answer, Answer::Failed(_)), sent.is_refused, "{cookie}");
                expected_skipped = sent.bytes.len() - arrived;
            }
        }
    }
    assert!(unread == expected, "{} bytes came back, not {}", unread.len(), expected.len());
    assert_eq!(still_skipped, expected_skipped);
}

/// A client comes back with any amount of unread replies, and the volume does not wait for it to
/// read them.
#[test]
fn unread_replies_come_back() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(unlimited(ID, SIZE));
        let Lent { mut client, back, .. } = lend(&served, &[]);
        let reads = 16_u64;
        let length = 1 << 20;
        let pattern: Vec<u8> = (0..length).map(|at: u32| (at / 5) as u8).collect();
        assert_eq!(client.ask(WRITE, 0, length, &pattern), Answer::Done(Vec::new()));
        for _ in 0..reads {
            client.send(Operation::Read, 0, length, &[]);
        }
        // Some of the first reply is in the socket, and the store has done other requests.
        client.stream.set_nonblocking(true).unwrap();
        while client.stream.peek_one().is_none() {}
        client.stream.set_nonblocking(false).unwrap();
        give_up(&served);
        let returned = back.recv_timeout(ANSWER_MAX).unwrap();
        assert!(!returned.unsent.is_empty());
        let heads = returned.unread.chunks(28);
        let left = heads.map(|head| RequestHeader::decode(head.try_into().unwrap()).unwrap());
        let left: Vec<u64> = left.map(|header| header.cookie).collect();
        let mut socket = UnixStream::from(returned.client);
        let unsent = returned.unsent;
        let mut answered = 0;
        let after = std::thread::spawn(move || socket.write_all(&unsent).unwrap());
        while let Some((cookie, answer)) = client.receive() {
            assert!(answer == Answer::Done(pattern.clone()), "{cookie}");
            assert!(!left.contains(&cookie));
            answered += 1;
        }
        after.join().unwrap();
        assert_eq!(answered + left.len() as u64, reads);
    }
}

trait PeekOne {
    fn peek_one(&self) -> Option<()>;
}

impl PeekOne for UnixStream {
    /// Returns whether a byte can be read; `None` if not.
    fn peek_one(&self) -> Option<()> {
        let flags = rustix::net::RecvFlags::PEEK;
        let mut byte = [0];
        rustix::net::recv(self, &mut byte[..], flags).ok().map(drop)
    }
}

#[test]
fn a_client_that_has_taken_its_leave_or_asks_again_is_given_back_with_that() {
    for io in MODES {
        let served = Served::new(io, slow(5_000_000));
        served.apply(paced(ID, SIZE, 100));
        let Lent { mut client, back, .. } = lend(&served, &[]);
        for block in 0..60_u64 {
            client.send(WRITE, block * 4_096, 4_096, &[7; 4_096]);
        }
        client.disconnect();
        assert!(client.receive().is_some());
        give_up(&served);
        let returned = back.recv_timeout(ANSWER_MAX).unwrap();
        let last = returned.unread.last_chunk::<28>().unwrap();
        assert_eq!(RequestHeader::decode(last).unwrap().command, command::DISC);
        assert!(returned.unread.len() > 28, "most of it waited");
        assert_eq!((returned.unread.len() - 28) % (28 + 4_096), 0);
    }
}

#[test]
fn a_client_is_given_back_when_it_is_asked_for_when_its_host_goes_and_when_the_engine_ends() {
    for io in MODES {
        let mut served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(unlimited(ID, SIZE));
        for how in 0..3 {
            let Lent { mut client, lender, back } = lend(&served, &[]);
            assert_eq!(client.ask(WRITE, 0, 512, &[1; 512]), Answer::Done(Vec::new()));
            assert_eq!(
                back.recv_timeout(Default::default()).err(),
                Some(RecvTimeoutError::Timeout)
            );
            match how {
                0 => lender.recall(),
                1 => {
                    let nobody = VolumeState { attachments: Vec::new(), ..unlimited(ID, SIZE) };
                    served.apply(nobody);
                    served.apply(unlimited(ID, SIZE));
                }
                _ => drop(served.engine.take()),
            }
            let returned = back.recv_timeout(ANSWER_MAX).unwrap();
            assert!(returned.unsent.is_empty() && returned.unread.is_empty());
            // The socket is still open, and the data plane does not read it any more.
            client.send(WRITE, 0, 512, &[1; 512]);
            assert_eq!(in_socket(&mut UnixStream::from(returned.client)).len(), 28 + 512);
        }
    }
}

#[test]
fn client_that_cannot_be_lent_comes_back_unchanged() {
    let served = Served::new(IoMode::Auto, Arc::new(MemoryPool::new()));
    served.apply(unlimited(ID, SIZE));
    let Lent { back, .. } = lend(&served, &vec![1; LENT_UNREAD_BYTES_MAX + 1]);
    let returned = back.recv_timeout(ANSWER_MAX).unwrap();
    assert_eq!((returned.unread.len(), returned.skipped), (LENT_UNREAD_BYTES_MAX + 1, 0));
    // The client has not chosen an export.
    let entrance = served.engine.as_ref().unwrap().entrance();
    let lend_to = |inside: evenkeel_engine::Inside| {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let (told, back) = channel();
        let back_to = Box::new(move |returned: Returned| drop(told.send(returned)));
        inside.lender.lend(Loan { client: theirs.into(), unread: vec![5; 3], back: back_to });
        drop(inside.stream);
        back.recv_timeout(ANSWER_MAX).unwrap().unread
    };
    assert_eq!(lend_to(entrance.connect(HostAddress::Local).unwrap()), [5; 3]);
    // The connection has ended before.
    let mut inside = entrance.connect(HostAddress::Local).unwrap();
    inside.stream.write_all(&[0xff; 4]).unwrap();
    let _ = inside.stream.read_to_end(&mut Vec::new());
    assert_eq!(lend_to(inside), [5; 3]);
}

/// The lender is notified of its client's end, also if that comes while the volume is given up.
#[test]
fn a_client_that_goes_is_not_given_back() {
    for io in MODES {
        let served = Served::new(io, slow(2_000_000));
        served.apply(paced(ID, SIZE, 500));
        for round in 0..20 {
            let Lent { mut client, back, .. } = lend(&served, &[]);
            for block in 0..round * 3 {
                client.send(WRITE, block * 4_096, 4_096, &[7; 4_096]);
            }
            if round % 2 == 0 {
                drop(client);
                give_up(&served);
            } else {
                let gone = std::thread::spawn(move || drop(client));
                give_up(&served);
                gone.join().unwrap();
            }
            match back.recv_timeout(ANSWER_MAX) {
                // The client was given back first: the lender sees its end in the socket.
                Ok(returned) => drop(in_socket(&mut UnixStream::from(returned.client))),
                Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => panic!("{io:?}: nobody hears of its end"),
            }
            served.apply(paced(ID, SIZE, 500));
        }
    }
}
