//! The seed-driven fuzzer of the NBD codec. Every case is a function of one number.
//!
//! `EVENKEEL_FUZZ_SEEDS=1000000 cargo test -p evenkeel-wire nbd_fuzz` runs more of it;
//! a failure prints the seed and the command that replays it alone.

#![allow(clippy::unwrap_used)] // a test fails by panicking

mod nbd_support;

use std::env;
use std::thread;

use evenkeel_core::request::{Operation, Request};
use evenkeel_wire::nbd::constants::{IHAVEOPT, OPTION_BYTES_MAX};
use evenkeel_wire::nbd::handshake::{
    Client, ClientClose, ClientGoal, ClientPlan, ClientStep, CloseReason, Server, ServerStep,
};
use evenkeel_wire::nbd::transmission::{
    Command, ErrorCode, Event, ReplyReader, ReplyViolation, RequestHeader, Terms, reply,
};
use nbd_support::{EXPORT, Transcript, feed_client, feed_server, poll_client, poll_server};

/// Number of seeds of a default run, which takes about two seconds.
const SEEDS_DEFAULT: u64 = 5_000;
/// Maximum of a machine's input, and of its answer to one option in these tests.
const BUFFERED_BYTES_MAX: usize = 2 * 65_536;

/// The source of random test cases.
struct Random(evenkeel_core::random::Random);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    fn below_usize(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap()
    }

    fn flip(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.below_usize(choices.len())].clone()
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Runs `case` on every seed, or on the one of `EVENKEEL_FUZZ_SEED`.
fn fuzz(name: &str, case: fn(&mut Random)) {
    struct Replay<'a>(&'a str, u64);
    impl Drop for Replay<'_> {
        fn drop(&mut self) {
            if thread::panicking() {
                let Self(name, seed) = self;
                eprintln!(
                    "seed {seed} fails; replay it with\n  \
                     EVENKEEL_FUZZ_SEED={seed} cargo test -p evenkeel-wire {name}"
                );
            }
        }
    }
    let number = |variable: &str| {
        env::var(variable)
            .ok()
            .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
    };
    let seeds = match number("EVENKEEL_FUZZ_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("EVENKEEL_FUZZ_SEEDS").unwrap_or(SEEDS_DEFAULT),
    };
    for seed in seeds {
        let _replay = Replay(name, seed);
        case(&mut Random(evenkeel_core::random::Random::from_state(seed)));
    }
}

/// Cuts `input` into random pieces, some of them empty.
fn cut<'a>(random: &mut Random, mut input: &'a [u8]) -> Vec<&'a [u8]> {
    let piece_max = random.pick(&[1, 2, 7, 64, 4096, usize::MAX]);
    let mut pieces = Vec::new();
    while !input.is_empty() {
        let bound = input.len().min(piece_max) + 1;
        let (piece, rest) = input.split_at(random.below_usize(bound));
        pieces.push(piece);
        input = rest;
    }
    pieces
}

/// Returns a client's bytes in a handshake: options of all kinds, most of them valid.
fn client_bytes(random: &mut Random) -> Vec<u8> {
    let mut out = random.pick(&[0_u32, 1, 2, 3, 3, 3, 3, 4]).to_be_bytes().to_vec();
    for _ in 0..random.below(12) {
        let option = random.pick(&[1_u32, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 10, 11, 0, 77]);
        let data = option_data(random, option);
        let lie = random.pick(&[0_i64, 0, 0, 0, 0, 0, 0, 0, 1, -1, 65_536, 5_000_000]);
        let length = u32::try_from((data.len() as i64 + lie).max(0)).unwrap();
        out.extend((IHAVEOPT ^ u64::from(random.below(40) == 0)).to_be_bytes());
        out.extend(option.to_be_bytes());
        out.extend(length.to_be_bytes());
        out.extend(data);
    }
    out
}

fn option_data(random: &mut Random, option: u32) -> Vec<u8> {
    let long = "n".repeat(random.pick(&[4_096, 4_097, 70_000]));
    let name = random.pick(&[EXPORT, EXPORT, EXPORT, "", "", "other", "nul\0", "\u{e9}", &long]);
    let counted = |text: &str| {
        let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes
    };
    match option {
        1 => name.as_bytes().to_vec(),
        6 | 7 => {
            let mut data = counted(name);
            let count = random.below(5);
            data.extend(u16::try_from(count).unwrap().to_be_bytes());
            (0..count).for_each(|_| data.extend((random.below(6) as u16).to_be_bytes()));
            data
        }
        9 | 10 => {
            let mut data = counted(name);
            let count = random.below(4);
            data.extend(u32::try_from(count).unwrap().to_be_bytes());
            for _ in 0..count {
                data.extend(counted(random.pick(&["base:allocation", "base:", "qemu:x", "no"])));
            }
            data
        }
        _ if random.below(4) > 0 => Vec::new(),
        _ => {
            let length = random.pick(&[1, 100, OPTION_BYTES_MAX as usize + 1]);
            random.bytes(length)
        }
    }
}

/// Changes a few bytes, and removes or repeats a part.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let offset = random.below_usize(bytes.len());
        let length = random.below_usize(bytes.len() - offset).min(64);
        match random.below(5) {
            0 => bytes[offset] = random.next() as u8,
            1 => bytes[offset] ^= 1 << random.below(8),
            2 => drop(bytes.drain(offset..offset + length)),
            3 => {
                let stretch = bytes[offset..offset + length].to_vec();
                bytes.splice(offset..offset, stretch);
            }
            _ => bytes[offset] = random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
        }
    }
}

fn serve(pieces: &[&[u8]]) -> Transcript<ServerStep> {
    let mut server = Server::new();
    let mut transcript = Transcript::default();
    poll_server(&mut server, &mut transcript);
    for piece in pieces {
        feed_server(&mut server, piece, &mut transcript);
        assert!(server.buffered_bytes() <= BUFFERED_BYTES_MAX, "{}", server.buffered_bytes());
    }
    transcript
}

fn run_client(plan: &ClientPlan, pieces: &[&[u8]]) -> Transcript<ClientStep> {
    let mut client = Client::new(plan.clone());
    let mut transcript = Transcript::default();
    poll_client(&mut client, &mut transcript);
    for piece in pieces {
        feed_client(&mut client, piece, &mut transcript);
        assert!(client.buffered_bytes() <= BUFFERED_BYTES_MAX, "{}", client.buffered_bytes());
    }
    transcript
}

fn any_plan(random: &mut Random) -> ClientPlan {
    use ClientGoal::{Describe, List, Transmit, TransmitAnySize, TransmitOldWay};
    let structured_replies = random.flip();
    ClientPlan {
        export: random.pick(&[EXPORT, EXPORT, EXPORT, "", "other"]).into(),
        goal: random.pick(&[Transmit, TransmitAnySize, TransmitOldWay, Describe, List]),
        structured_replies,
        base_allocation: structured_replies && random.flip(),
    }
}

/// Runs client and server over a wire that cuts at random. Returns all bytes that each has sent.
fn converse(
    random: &mut Random,
    plan: &ClientPlan,
) -> (Transcript<ClientStep>, Transcript<ServerStep>) {
    let mut client = Client::new(plan.clone());
    let mut received = Transcript::default();
    let mut server = Server::new();
    let mut served = Transcript::default();
    poll_client(&mut client, &mut received);
    poll_server(&mut server, &mut served);
    let mut to_client = 0;
    let mut to_server = 0;
    // Each round delivers at least a byte, and neither side sends without end.
    for _ in 0..10_000 {
        let client_done = received.end.is_some();
        let server_done = served.end.is_some();
        if !client_done && to_client < served.sent.len() {
            let end = to_client + 1 + random.below_usize(served.sent.len() - to_client);
            feed_client(&mut client, &served.sent[to_client..end], &mut received);
            to_client = end;
        } else if !server_done && to_server < received.sent.len() {
            let end = to_server + 1 + random.below_usize(received.sent.len() - to_server);
            feed_server(&mut server, &received.sent[to_server..end], &mut served);
            to_server = end;
        } else {
            return (received, served);
        }
    }
    panic!("they talk without end");
}

#[test]
fn nbd_fuzz_arbitrary_bytes_into_the_server() {
    fuzz("nbd_fuzz_arbitrary_bytes_into_the_server", |random| {
        let length = random.below_usize(2_000);
        let mut input = random.bytes(length);
        // In half of the cases begins after valid client flags, so that later steps are tested,
        // too.
        if random.flip() {
            input.splice(0..0, 3_u32.to_be_bytes());
        }
        let whole = serve(&[&input]);
        assert_eq!(serve(&cut(random, &input)), whole);
    });
}

#[test]
fn nbd_fuzz_options_into_the_server() {
    fuzz("nbd_fuzz_options_into_the_server", |random| {
        let mut input = client_bytes(random);
        if random.flip() {
            mutate(random, &mut input);
        }
        // The result must not depend on how the input is cut into pieces.
        let whole = serve(&[&input]);
        assert_eq!(serve(&cut(random, &input)), whole);
        assert!(
            whole.end.is_some() || whole.consumed == input.len(),
            "input is left without an end"
        );
    });
}

#[test]
fn nbd_fuzz_arbitrary_bytes_into_the_client() {
    fuzz("nbd_fuzz_arbitrary_bytes_into_the_client", |random| {
        let plan = any_plan(random);
        let length = random.below_usize(2_000);
        let mut input = random.bytes(length);
        if random.flip() {
            let greeting = nbd_support::bytes("4e42444d41474943 49484156454f5054 0003");
            input.splice(0..0, greeting);
        }
        let whole = run_client(&plan, &[&input]);
        assert_eq!(run_client(&plan, &cut(random, &input)), whole);
    });
}

#[test]
fn nbd_fuzz_client_and_server_agree() {
    fuzz("nbd_fuzz_client_and_server_agree", |random| {
        let plan = any_plan(random);
        let (received, served) = converse(random, &plan);
        let exists = plan.export != "other";
        match (received.end, served.end) {
            (Some(ClientStep::Ready(remote)), Some(ServerStep::Ready(negotiated))) => {
                assert!(exists && !matches!(plan.goal, ClientGoal::Describe | ClientGoal::List));
                assert_eq!(remote.size_bytes, negotiated.export.size_bytes);
                assert_eq!(remote.structured_replies, plan.structured_replies);
                assert_eq!(remote.structured_replies, negotiated.structured_replies);
                assert_eq!(remote.base_allocation.is_some(), plan.base_allocation);
                assert_eq!(remote.base_allocation.is_some(), negotiated.base_allocation);
                let asked = plan.goal == ClientGoal::Transmit;
                assert_eq!(negotiated.block_size_requested, asked);
                let bytes_min = remote.block_sizes.map(|sizes| sizes.bytes_min);
                let held = negotiated.export.block_bytes_min;
                assert!(bytes_min.is_none_or(|min| min == if asked { held } else { 1 }));
                let old_way = plan.goal == ClientGoal::TransmitOldWay;
                assert_eq!(remote.block_sizes.is_none(), old_way);
            }
            (
                Some(ClientStep::Described(remote)),
                Some(ServerStep::Close(CloseReason::Aborted)),
            ) => {
                assert!(exists && plan.goal == ClientGoal::Describe);
                assert_eq!(remote.size_bytes, 1 << 30);
            }
            (Some(ClientStep::Listed(names)), Some(ServerStep::Close(CloseReason::Aborted))) => {
                assert_eq!((plan.goal, names.len()), (ClientGoal::List, 2));
            }
            (
                Some(ClientStep::Close(ClientClose::Refused { .. })),
                Some(ServerStep::Close(CloseReason::Aborted)),
            ) => assert!(!exists),
            (None, Some(ServerStep::Close(CloseReason::NoSuchExport(_)))) => {
                assert!(!exists && plan.goal == ClientGoal::TransmitOldWay);
            }
            ends => panic!("{plan:?} ends in {ends:?}"),
        }
    });
}

#[test]
fn nbd_fuzz_mutated_conversations() {
    fuzz("nbd_fuzz_mutated_conversations", |random| {
        let plan = any_plan(random);
        let (received, served) = converse(random, &plan);
        let mut from_client = received.sent;
        let mut from_server = served.sent;
        mutate(random, &mut from_client);
        mutate(random, &mut from_server);
        assert_eq!(serve(&cut(random, &from_client)), serve(&[&from_client]));
        assert_eq!(
            run_client(&plan, &cut(random, &from_server)),
            run_client(&plan, &[&from_server])
        );
    });
}

fn any_terms(random: &mut Random) -> Terms {
    Terms {
        size_bytes: random.pick(&[0, 512, 1 << 20, 1 << 44, u64::MAX]),
        block_bytes_min: random.pick(&[0, 1, 512, 65_536]),
        payload_bytes_max: random.pick(&[0, 4_096, 32 << 20, u32::MAX]),
        read_only: random.flip(),
        structured_replies: random.flip(),
        base_allocation: random.flip(),
    }
}

#[test]
fn nbd_fuzz_requests() {
    fuzz("nbd_fuzz_requests", |random| {
        for _ in 0..50 {
            let arbitrary: [u8; 28] = random.bytes(28).try_into().unwrap();
            assert!(RequestHeader::decode(&arbitrary).is_err() || arbitrary[..2] == [0x25, 0x60]);
            let header = RequestHeader {
                flags: random.pick(&[0, 1, 2, 4, 8, 16, 0xffff]),
                command: random.below(10) as u16,
                cookie: random.next(),
                offset: random.pick(&[0, 512, 1, u64::MAX, u64::MAX - 511]),
                length: random.pick(&[0, 1, 512, 4_096, 65_536, u32::MAX, u32::MAX - 511]),
            };
            assert_eq!(RequestHeader::decode(&header.encode()), Ok(header));
            let terms = any_terms(random);
            let _ = header.payload_bytes(&terms);
            if let Ok(Command::Io { request, one_extent }) = header.validate(&terms) {
                assert!(request.operation == Operation::Flush || request.length > 0);
                assert!(request.offset + u64::from(request.length) <= terms.size_bytes);
                let again = RequestHeader::new(header.cookie, &request, one_extent);
                assert_eq!(again.validate(&terms), Ok(Command::Io { request, one_extent }));
            }
        }
    });
}

/// Returns random replies of our server, and the events that a client must read from them.
fn replies(random: &mut Random) -> (Vec<u8>, Vec<Event>) {
    let mut bytes = Vec::new();
    let mut events = Vec::new();
    for _ in 0..random.below(20) {
        let cookie = random.next();
        let last = random.flip();
        let offset = random.next();
        let length = 1 + random.below(300) as u32;
        let error = random.pick(&ErrorCode::ALL);
        match random.below(7) {
            0 => {
                let error = random.flip().then_some(error);
                bytes.extend(reply::simple(cookie, error));
                events.push(Event::Simple { cookie, error });
            }
            1 => {
                bytes.extend(reply::offset_data(cookie, last, offset, length));
                bytes.extend(random.bytes(length as usize));
                events.push(Event::Data { cookie, offset, bytes: length, last });
            }
            2 => {
                bytes.extend(reply::offset_hole(cookie, last, offset, length));
                events.push(Event::Hole { cookie, offset, bytes: length, last });
            }
            3 => {
                let context = random.next() as u32;
                let count = 1 + random.below(5) as u32;
                bytes.extend(reply::block_status(cookie, last, context, count));
                for left in (0..count).rev() {
                    let length = length + left;
                    let flags = random.next() as u32;
                    bytes.extend(reply::extent(length, flags));
                    let last = last && left == 0;
                    events.push(Event::Extent { cookie, context, bytes: length, flags, last });
                }
            }
            4 => {
                bytes.extend(reply::error(cookie, error));
                events.push(Event::Error { cookie, error, offset: None, last: true });
            }
            5 => {
                bytes.extend(reply::error_at(cookie, last, error, offset));
                events.push(Event::Error { cookie, error, offset: Some(offset), last });
            }
            _ => {
                bytes.extend(reply::none(cookie));
                events.push(Event::Done { cookie });
            }
        }
    }
    (bytes, events)
}

/// Returns the events that a client reads from the pieces, and the violation that ended it, if any.
fn read(pieces: &[&[u8]]) -> (Vec<Event>, Option<ReplyViolation>) {
    let mut reader = ReplyReader::new(4_096);
    let mut events = Vec::new();
    let mut data_left = 0;
    for piece in pieces {
        let mut rest = *piece;
        while !rest.is_empty() {
            let skipped = rest.len().min(data_left);
            data_left -= skipped;
            rest = &rest[skipped..];
            match reader.handle(rest) {
                Err(violation) => return (events, Some(violation)),
                Ok((consumed, event)) => {
                    assert!(event.is_some() || consumed == rest.len(), "the reader hangs");
                    rest = &rest[consumed..];
                    if let Some(Event::Data { bytes, .. }) = event {
                        data_left = bytes as usize;
                    }
                    events.extend(event);
                }
            }
        }
    }
    (events, None)
}

#[test]
fn nbd_fuzz_replies() {
    fuzz("nbd_fuzz_replies", |random| {
        let (mut bytes, events) = replies(random);
        assert_eq!(read(&cut(random, &bytes)), (events, None));
        mutate(random, &mut bytes);
        assert_eq!(read(&cut(random, &bytes)), read(&[&bytes]));
        let length = random.below_usize(200);
        let mut arbitrary =
            reply::chunk(1, true, random.pick(&[0, 1, 2, 5, 6, 0x8001, 0x8003]), 20);
        arbitrary[17] = random.pick(&[0, 0, 1, 0xff]);
        let mut noise = random.bytes(length);
        noise.splice(0..0, arbitrary);
        assert_eq!(read(&cut(random, &noise)), read(&[&noise]));
    });
}

/// Tests both roles together: requests of the client, verdicts and replies of the server.
#[test]
fn nbd_fuzz_transmission_agrees() {
    fuzz("nbd_fuzz_transmission_agrees", |random| {
        let terms = Terms {
            size_bytes: 1 << 20,
            block_bytes_min: 512,
            payload_bytes_max: 4_096,
            read_only: random.flip(),
            structured_replies: random.flip(),
            base_allocation: false,
        };
        let cookie = random.next();
        let request = Request {
            operation: random.pick(&[
                Operation::Read,
                Operation::Write { fua: true },
                Operation::Flush,
                Operation::Discard { fua: false },
                Operation::BlockStatus,
            ]),
            offset: random.below(3_000) * 512,
            length: random.below(10) as u32 * 512,
        };
        let header = RequestHeader::new(cookie, &request, false);
        let received = RequestHeader::decode(&header.encode()).unwrap();
        let (head, expected) = match received.validate(&terms) {
            Ok(Command::Disconnect) => panic!("nobody asked to disconnect"),
            Ok(Command::Io { request: Request { operation: Operation::Read, .. }, .. }) => {
                let head = terms.read_head(cookie, request.offset, request.length);
                let offset = request.offset;
                let bytes = request.length;
                let data = Event::Data { cookie, offset, bytes, last: true };
                let simple = Event::Simple { cookie, error: None };
                (head, if terms.structured_replies { data } else { simple })
            }
            Ok(_) => (terms.success(cookie), Event::Simple { cookie, error: None }),
            Err(error) => {
                let structured = Event::Error { cookie, error, offset: None, last: true };
                let simple = Event::Simple { cookie, error: Some(error) };
                let expected = if terms.structured_replies { structured } else { simple };
                (terms.failure(cookie, error), expected)
            }
        };
        assert_eq!(read(&cut(random, head.as_bytes())), (vec![expected], None));
    });
}
