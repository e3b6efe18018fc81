//! The engine as its clients see it, with both drivers: against a model, under pressure, and while
//! the control plane changes what they use.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Limit;
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_engine::IoMode;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{EXTENTS_MAX, Pool};
use evenkeel_wire::agent::{Command, Reply};
use evenkeel_wire::nbd::transmission::ErrorCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Answer, Nbd, Served, local_pool, paced, unlimited};

const MIB: u64 = 1 << 20;
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const WRITE: Operation = Operation::Write { fua: false };

fn id(number: u128) -> VolumeId {
    VolumeId::from_bits(number)
}

/// A request in flight, with its effect on the model or the failure that it must have.
struct Expected {
    operation: Operation,
    offset: usize,
    length: usize,
    payload: Vec<u8>,
    failure: Option<ErrorCode>,
}

/// Sends one client's requests to its own part of the volume, many in flight, never two on the same
/// bytes. Compares each reply with the model.
fn drive(served: &Served, volume: VolumeId, part: std::ops::Range<usize>, seed: u64) {
    let mut random = Random::from_state(seed);
    let structured = random.below(2) == 0;
    let mut client = Nbd::connect(&served.socket, volume, structured).unwrap();
    let mut model = vec![0u8; part.len()];
    let mut in_flight = std::collections::BTreeMap::<u64, Expected>::new();
    for step in 0..400 {
        let expected = next_request(&mut random, part.len(), &in_flight);
        if let Some(expected) = expected {
            let offset = part.start + expected.offset;
            let length = expected.length as u32;
            // A flush has no range.
            let offset = if length == 0 { 0 } else { offset };
            let offset = if expected.failure == Some(ErrorCode::Invalid) {
                offset as u64 + 1
            } else {
                offset as u64
            };
            let cookie = client.send(expected.operation, offset, length, &expected.payload);
            in_flight.insert(cookie, expected);
        }
        while in_flight.len() > 12 || step == 399 && !in_flight.is_empty() {
            let (cookie, answer) = client.receive().expect("the connection lives");
            let expected = in_flight.remove(&cookie).unwrap();
            let range = expected.offset..expected.offset + expected.length;
            let shown = (expected.operation, expected.offset, expected.length);
            match (expected.failure, expected.operation) {
                (Some(code), _) => {
                    assert_eq!(answer, Answer::Failed(code), "{shown:?}");
                    continue;
                }
                (None, Operation::Read) => {
                    let Answer::Done(bytes) = answer else { panic!("{shown:?}: {answer:?}") };
                    assert!(bytes == model[range], "{shown:?}: other bytes than were written");
                    continue;
                }
                (None, _) => assert_eq!(answer, Answer::Done(Vec::new()), "{shown:?}"),
            }
            match expected.operation {
                Operation::Write { .. } => model[range].copy_from_slice(&expected.payload),
                Operation::Discard { .. } | Operation::WriteZeroes { .. } => model[range].fill(0),
                _ => {}
            }
        }
    }
    let whole = client.ask(Operation::Read, part.start as u64, part.len() as u32, &[]);
    assert!(whole == Answer::Done(model), "the volume differs from the model at the end");
}

fn next_request(
    random: &mut Random,
    size: usize,
    in_flight: &std::collections::BTreeMap<u64, Expected>,
) -> Option<Expected> {
    // Mostly short, sometimes several quanta.
    let length = match random.below(10) {
        0 => 512 * (1 + random.below(2_000) as usize),
        1..4 => 512 * (1 + random.below(300) as usize),
        _ => 512 * (1 + random.below(16) as usize),
    };
    let offset = 512 * random.below(((size - length) / 512) as u64 + 1) as usize;
    let fua = random.below(4) == 0;
    let operation = match random.below(12) {
        0..4 => Operation::Read,
        4..8 => Operation::Write { fua },
        8 => Operation::Discard { fua },
        9 => Operation::WriteZeroes { fua, keep_allocated: fua, only_if_fast: false },
        10 => Operation::Cache,
        _ => Operation::Flush,
    };
    let (offset, length) = if operation == Operation::Flush { (0, 0) } else { (offset, length) };
    // Whole blocks of a discard read as zeroes; a partial block may keep its bytes.
    let block = if matches!(operation, Operation::Discard { .. }) { 4_096 } else { 512 };
    let offset = offset.next_multiple_of(block);
    let length = (length - length % block).min(size.saturating_sub(offset));
    if length == 0 && operation != Operation::Flush {
        return None;
    }
    let overlaps =
        |other: &Expected| other.offset < offset + length && offset < other.offset + other.length;
    if in_flight.values().any(overlaps) {
        return None;
    }
    let payload = if let Operation::Write { .. } = operation {
        (0..length).map(|_| random.next_u64() as u8).collect()
    } else {
        Vec::new()
    };
    let misaligned = length > 0 && random.below(30) == 0 && offset + length < size;
    let failure = misaligned.then_some(ErrorCode::Invalid);
    Some(Expected { operation, offset, length, payload, failure })
}

#[test]
fn random_requests_on_many_connections_agree_with_the_model() {
    const PART: usize = 4 << 20;
    let seed = std::env::var("EVENKEEL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    println!(
        "replay with EVENKEEL_SEED={seed} cargo test -p evenkeel-engine --test data_path random"
    );
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let local = local_pool(folder.path());
        for pool in [Arc::new(MemoryPool::new()) as Arc<dyn Pool>, Arc::new(local)] {
            let served = Served::new(io, pool);
            let volumes = [id(1), id(2), id(3)];
            for volume in volumes {
                served.apply(unlimited(volume, 3 * PART as u64));
            }
            std::thread::scope(|scope| {
                for (number, volume) in (0..9).zip(volumes.into_iter().cycle()) {
                    let start = number / 3 * PART;
                    let served = &served;
                    let seed = seed * 1_000 + number as u64;
                    scope.spawn(move || drive(served, volume, start..start + PART, seed));
                }
            });
        }
    }
}

#[test]
fn clients_that_do_not_read_delay_no_other_and_get_all_replies() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        // The first and the third volume share a core.
        for number in 1..=3 {
            served.apply(unlimited(id(number), 64 * MIB));
        }
        // More than the payload memory of a core.
        let mut silent: Vec<Nbd> = (0..20).map(|_| served.connect(id(1))).collect();
        for client in &mut silent {
            for _ in 0..2 {
                client.send(Operation::Read, 0, 32 << 20, &[]);
            }
        }
        let mut other = served.connect(id(3));
        let payload = vec![7; 4_096];
        for block in 0..200 {
            let answer = other.ask(WRITE, block * 4_096, 4_096, &payload);
            assert_eq!(answer, Answer::Done(Vec::new()));
            let answer = other.ask(Operation::Read, block * 4_096, 4_096, &[]);
            assert_eq!(answer, Answer::Done(payload.clone()));
        }
        std::thread::scope(|scope| {
            for mut client in silent {
                scope.spawn(move || {
                    while client.outstanding() > 0 {
                        let (_, answer) = client.receive().expect("the connection lives");
                        assert!(matches!(answer, Answer::Done(bytes) if bytes.len() == 32 << 20));
                    }
                });
            }
        });
    }
}

#[test]
fn large_writes_that_want_more_memory_than_there_is_all_end() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(unlimited(id(1), 64 * MIB));
        std::thread::scope(|scope| {
            for number in 0..24u8 {
                let served = &served;
                scope.spawn(move || {
                    let mut client = served.connect(id(1));
                    let payload = vec![number; 32 << 20];
                    let answer = client.ask(WRITE, 0, 32 << 20, &payload);
                    assert_eq!(answer, Answer::Done(Vec::new()));
                });
            }
        });
        // Writes to the same range may mix, in whole quanta.
        let Answer::Done(bytes) = served.connect(id(1)).ask(Operation::Read, 0, 32 << 20, &[])
        else {
            panic!("unreadable")
        };
        assert!(bytes.chunks(256 << 10).all(|quantum| quantum.iter().all(|b| *b == quantum[0])));
    }
}

#[test]
fn a_full_queue_pushes_back_and_loses_nothing() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        // The volume gets 4 x 3,000 requests, and 1,024 may wait.
        served.apply(paced(id(1), 64 * MIB, 40_000));
        std::thread::scope(|scope| {
            for number in 0..4 {
                let mut client = served.connect(id(1));
                let mut sender = client.stream.try_clone().unwrap();
                scope.spawn(move || {
                    use std::io::Write as _;
                    for cookie in 0..3_000u64 {
                        let request = evenkeel_core::request::Request {
                            operation: WRITE,
                            offset: number * 16 * MIB + cookie * 512,
                            length: 512,
                        };
                        let header = evenkeel_wire::nbd::transmission::RequestHeader::new(
                            cookie, &request, false,
                        );
                        sender.write_all(&header.encode()).unwrap();
                        sender.write_all(&[number as u8 + 1; 512]).unwrap();
                    }
                });
                scope.spawn(move || {
                    let mut seen = vec![false; 3_000];
                    for _ in 0..3_000 {
                        let cookie = client.receive_simple();
                        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "twice");
                    }
                });
            }
        });
        let mut client = served.connect(id(1));
        for number in 0..4u8 {
            let offset = u64::from(number) * 16 * MIB;
            let answer = client.ask(Operation::Read, offset, 3_000 * 512, &[]);
            assert!(answer == Answer::Done(vec![number + 1; 3_000 * 512]));
        }
        assert_eq!(served.report(id(1)).queued, 0);
    }
}

#[test]
fn waiting_connection_is_served_when_a_full_queue_runs_empty() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(paced(id(1), 64 * MIB, 20_000));
        // These clients send several times as many requests as may wait, and their replies come
        // back all the time.
        let mut crowd: Vec<Nbd> = (0..4).map(|_| served.connect(id(1))).collect();
        for _ in 0..5 {
            for client in &mut crowd {
                for block in 0..1_000 {
                    client.send(Operation::Read, block * 512, 512, &[]);
                }
            }
            let mut late = served.connect(id(1));
            late.send(Operation::Read, 0, 8 << 20, &[]);
            for client in &mut crowd {
                while client.outstanding() > 0 {
                    client.receive().expect("the connection lives");
                }
            }
            // The first clients are gone; the last one must not wait until they come back.
            assert!(matches!(late.receive(), Some((_, Answer::Done(_)))));
        }
    }
}

#[test]
fn a_large_request_is_not_passed_for_ever() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let mut state = unlimited(id(1), 64 * MIB);
        state.pacing.bytes = Some(Limit { per_second: 64 * MIB, credit: None });
        served.apply(state);
        let mut crowd: Vec<Nbd> = (0..2).map(|_| served.connect(id(1))).collect();
        for client in &mut crowd {
            for _ in 0..30 {
                client.send(Operation::Read, 0, 1 << 20, &[]);
            }
        }
        let mut large = served.connect(id(1));
        large.send(Operation::Read, 0, 16 << 20, &[]);
        let answered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in &mut crowd {
                let answered = &answered;
                scope.spawn(move || {
                    // Keeps the queue full until the large request is through.
                    while !answered.load(Ordering::Relaxed) {
                        client.receive().expect("the connection lives");
                        client.send(Operation::Read, 0, 1 << 20, &[]);
                    }
                });
            }
            let answer = large.receive();
            answered.store(true, Ordering::Relaxed);
            assert!(matches!(answer, Some((_, Answer::Done(_)))), "no answer");
        });
    }
}

/// Returns which of `count` equal pieces hold data, according to a sequence of block status
/// requests: each starts where the last answer ends, and `other` is served meanwhile.
fn data_in_pieces(client: &mut Nbd, other: &mut Nbd, piece_bytes: u64, count: u64) -> Vec<bool> {
    const HOLE: u32 = 1;
    let mut start = 0;
    let end = piece_bytes * count;
    let mut holds_data = vec![false; count as usize];
    while start < end {
        let answer = client.ask(Operation::BlockStatus, start, (end - start) as u32, &[]);
        let Answer::Extents(extents) = answer else { panic!("at {start}: {answer:?}") };
        assert!((1..=EXTENTS_MAX).contains(&extents.len()), "{} at {start}", extents.len());
        for (bytes, flags) in extents {
            assert!(bytes > 0, "an empty extent at {start}");
            let from = start;
            start += u64::from(bytes);
            if flags & HOLE == 0 {
                let pieces = from / piece_bytes..start.div_ceil(piece_bytes);
                pieces.for_each(|piece| holds_data[piece as usize] = true);
            }
        }
        assert!(matches!(other.ask(Operation::Read, 0, 512, &[]), Answer::Done(_)));
    }
    assert_eq!(start, end, "the status covers more bytes than the request");
    holds_data
}

#[test]
fn block_status_of_a_fragmented_volume_is_returned_in_parts() {
    // The memory store's chunk; the blocks of the local store are smaller.
    const PIECE: u64 = 64 << 10;
    const PIECES: u64 = 16 << 10;
    let folder = tempfile::tempdir().unwrap();
    let local = Arc::new(local_pool(folder.path()));
    let memory = Arc::new(MemoryPool::new());
    for pool in [memory as Arc<dyn Pool>, local] {
        let served = Served::new(IoMode::Auto, pool);
        served.apply(unlimited(id(1), PIECE * PIECES));
        let mut client = served.connect(id(1));
        let mut other = served.connect(id(1));
        let mut random = Random::from_state(1);
        let mut model = vec![false; PIECES as usize];
        for _ in 0..1_500 {
            let piece = random.below(PIECES);
            let answer = client.ask(WRITE, piece * PIECE, 4_096, &[1; 4_096]);
            assert_eq!(answer, Answer::Done(Vec::new()));
            model[piece as usize] = true;
        }
        let pieces = data_in_pieces(&mut client, &mut other, PIECE, PIECES);
        assert!(pieces == model, "the answers differ from what was written");
    }
}

#[test]
fn a_detached_host_is_cut_off_at_once_and_may_come_back() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let state = paced(id(1), 64 * MIB, 100);
        served.apply(state.clone());
        let mut client = served.connect(id(1));
        for block in 0..1_000 {
            client.send(WRITE, block * 512, 512, &[1; 512]);
        }
        let detached =
            evenkeel_wire::agent::VolumeState { attachments: Vec::new(), ..state.clone() };
        served.apply(detached);
        // Requests for ten seconds were queued. The detaching does not wait for them.
        while client.receive().is_some() {}
        assert!(client.outstanding() > 500, "{} are left", client.outstanding());
        assert_eq!(served.report(id(1)).queued, 0);
        assert!(Nbd::connect(&served.socket, id(1), true).is_none(), "seen while detached");
        served.apply(state);
        let answer = served.connect(id(1)).ask(Operation::Read, 0, 512, &[]);
        assert_eq!(answer, Answer::Done(vec![1; 512]));
    }
}

#[test]
fn limits_and_size_change_under_a_connected_client() {
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let state = paced(id(1), MIB, 1);
        served.apply(state.clone());
        let mut client = served.connect(id(1));
        assert_eq!(client.ask(WRITE, MIB, 512, &[1; 512]), Answer::Failed(ErrorCode::NoSpace));
        for _ in 0..100 {
            client.send(Operation::Read, 0, 512, &[]);
        }
        let grown = evenkeel_core::units::ByteCount(2 * MIB);
        let faster = paced(id(1), 2 * MIB, 10_000);
        served.apply(evenkeel_wire::agent::VolumeState { size: grown, ..faster });
        // At one I/O a second this would take a minute and a half.
        while client.outstanding() > 0 {
            client.receive().expect("the connection lives");
        }
        assert_eq!(client.ask(WRITE, MIB, 512, &[1; 512]), Answer::Done(Vec::new()));
        let refused = served.call(Command::Apply(state));
        assert!(
            matches!(refused, Reply::Failed(ref failed) if failed.message.contains("only grow"))
        );
    }
}

#[test]
fn a_volume_in_use_is_deleted_whole() {
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let pool = Arc::new(local_pool(folder.path()));
        let served = Served::new(io, Arc::clone(&pool) as Arc<dyn Pool>);
        served.apply(unlimited(id(1), 64 * MIB));
        let mut client = served.connect(id(1));
        for block in 0..64 {
            client.send(WRITE, block * 65_536, 65_536, &vec![1; 65_536]);
        }
        assert_eq!(served.call(Command::Delete(id(1))), Reply::Done);
        while client.receive().is_some() {}
        assert_eq!(served.call(Command::Delete(id(1))), Reply::Done, "again does nothing");
        assert_eq!(pool.list().unwrap(), []);
        assert_eq!(
            served.call(Command::Report),
            Reply::Report(evenkeel_wire::agent::Report::default())
        );
    }
}

#[test]
fn stopping_server_refuses_waiting_requests_with_the_reason() {
    for io in MODES {
        let mut served = Served::new(io, Arc::new(MemoryPool::new()));
        served.apply(paced(id(1), 64 * MIB, 10));
        let mut client = served.connect(id(1));
        for block in 0..100 {
            client.send(Operation::Read, block * 512, 512, &[]);
        }
        assert!(client.receive().is_some());
        let agent = served.engine.as_ref().unwrap().agent();
        served.engine.take().unwrap().shutdown();
        let mut refused = 0;
        while let Some((_, answer)) = client.receive() {
            refused += u32::from(answer == Answer::Failed(ErrorCode::ShuttingDown));
        }
        assert!(refused > 50, "{refused} were told");
        assert_eq!(client.outstanding(), 0, "each request was answered");
        assert!(matches!(agent.call(Command::Report), Reply::Failed(_)));
        assert!(!served.socket.exists(), "the socket is left behind");
    }
}

/// A store may have work of its own when the last reply is sent: here, on log blocks of writes that
/// are answered already. A pool that has no state beside its device loses such writes if the server
/// ends before the store has closed.
#[test]
fn a_stopping_server_waits_until_its_stores_have_closed() {
    const BLOCK: u32 = 4_096;
    for io in MODES {
        let folder = tempfile::tempdir().unwrap();
        let mut stored = vec![0; 8];
        for round in 1..=40_u8 {
            let mut served = Served::new(io, Arc::new(local_pool(folder.path())));
            let state = unlimited(id(1), MIB);
            match round {
                1 => served.apply(state),
                _ => assert_eq!(served.call(Command::Apply(state)), Reply::Done),
            }
            let mut client = served.connect(id(1));
            let Answer::Done(read) = client.ask(Operation::Read, 0, 8 * BLOCK, &[]) else {
                panic!("the volume cannot be read")
            };
            let read: Vec<u8> = read.iter().copied().step_by(BLOCK as usize).collect();
            assert_eq!(read, stored, "before round {round}, {io:?}");
            let payload = [round; BLOCK as usize];
            // After flushes with few writes, the store puts the next writes into its log beside
            // their data.
            for _ in 0..2 {
                client.ask(WRITE, 0, BLOCK, &payload);
                client.ask(Operation::Flush, 0, 0, &[]);
            }
            stored[0] = round;
            let send =
                |block| (client.send(WRITE, block * u64::from(BLOCK), BLOCK, &payload), block);
            let sent: BTreeMap<u64, u64> = (1..8).map(send).collect();
            served.engine.take().unwrap().shutdown();
            while let Some((cookie, answer)) = client.receive() {
                if let Answer::Done(_) = answer {
                    stored[sent[&cookie] as usize] = round;
                }
            }
        }
    }
}
