//! Memory that clients can make the server hold by reading no replies, in bytes: counted over all
//! threads of the process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{CONNECTION_BYTES_MAX, CORE_PAYLOAD_BYTES_MAX};
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_engine::session::REPLY_HEADS_BYTES_MAX;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::nbd::constants::{HANDSHAKE_OPTIONS_MAX, IHAVEOPT, handshake_flag, option};
use evenkeel_wire::nbd::transmission::{Event, ReplyReader, RequestHeader};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use support::{ANSWER_MAX, Answer, Nbd, Served, unlimited};

/// The system's allocator, with a count of the bytes in use.
struct Weighed;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Weighed {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: it came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Weighed = Weighed;

/// Only one test measures at a time.
static SCALES: Mutex<()> = Mutex::new(());

/// A list grows by doubling, and other lists grow with a socket's first bytes.
const GROWTH_MAX: usize = 4 * REPLY_HEADS_BYTES_MAX;
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
const GREETING: usize = 18;
const OPTION_REPLY: usize = 20;
const SIMPLE_REPLY: usize = 16;

/// Returns requests that are answered at once with a head only: every other one is refused.
fn heads_only(count: u64) -> Vec<u8> {
    let flush = Request { operation: Operation::Flush, offset: 0, length: 0 };
    let beyond_the_end = Request { operation: Operation::Read, offset: 1 << 40, length: 512 };
    let request = |cookie| if cookie % 2 == 0 { &flush } else { &beyond_the_end };
    let head = |cookie| RequestHeader::new(cookie, request(cookie), false).encode();
    (0..count).flat_map(head).collect()
}

#[test]
fn unread_replies_without_payload_take_bounded_memory() {
    const REQUESTS: u64 = 400_000;
    let _scales = SCALES.lock().unwrap_or_else(PoisonError::into_inner);
    let requests = heads_only(REQUESTS);
    let mut replies = vec![0; REQUESTS as usize * SIMPLE_REPLY];
    assert!(replies.len() > 4 * GROWTH_MAX, "all of it would show");
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let id = VolumeId::from_bits(1);
        served.apply(unlimited(id, 1 << 20));
        let mut lazy = Nbd::connect(&served.socket, id, false).unwrap();
        let mut other = served.connect(id);
        let before = IN_USE.load(Ordering::Relaxed);
        let taken = lazy.send_until_stuck(&requests, &mut other);
        let grown = IN_USE.load(Ordering::Relaxed).saturating_sub(before);
        assert!(grown < GROWTH_MAX, "{io:?}: {grown} bytes more after {taken} bytes of requests");
        // A client that begins to read gets all replies.
        let mut sender = lazy.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            let rest = &requests[taken..];
            scope.spawn(move || sender.write_all(rest).unwrap());
            lazy.stream.read_exact(&mut replies).unwrap();
        });
        each_is_answered_once(&replies);
    }
}

fn each_is_answered_once(replies: &[u8]) {
    let mut reader = ReplyReader::new(0);
    let mut seen = vec![false; replies.len() / SIMPLE_REPLY];
    for reply in replies.chunks(SIMPLE_REPLY) {
        let (consumed, event) = reader.handle(reply).unwrap();
        let Some(Event::Simple { cookie, error }) = event else { panic!("{event:?}") };
        assert_eq!((consumed, error.is_some()), (SIMPLE_REPLY, cookie % 2 == 1));
        assert!(!std::mem::replace(&mut seen[cookie as usize], true), "{cookie} twice");
    }
}

/// Returns an option without data.
fn empty_option(number: u32) -> Vec<u8> {
    let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&0_u32.to_be_bytes());
    bytes
}

#[test]
fn unread_lists_of_exports_take_bounded_memory() {
    const VOLUMES: usize = 200;
    let _scales = SCALES.lock().unwrap_or_else(PoisonError::into_inner);
    let lists = HANDSHAKE_OPTIONS_MAX as usize - 1;
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        for bits in 1..=VOLUMES {
            served.apply(unlimited(VolumeId::from_bits(bits as u128), 1 << 20));
        }
        // One connection to each core, since the lazy client's core is not known.
        let mut others = [1, 2].map(|bits| served.connect(VolumeId::from_bits(bits)));
        let name_bytes = VolumeId::from_bits(1).to_string().len();
        let list_bytes = VOLUMES * (OPTION_REPLY + 4 + name_bytes) + OPTION_REPLY;
        let mut replies = vec![0; lists * list_bytes];
        assert!(replies.len() > 4 * GROWTH_MAX, "all of it would show");
        let before = IN_USE.load(Ordering::Relaxed);
        let mut lazy = UnixStream::connect(&served.socket).unwrap();
        lazy.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        let mut options = u32::from(flags).to_be_bytes().to_vec();
        (0..lists).for_each(|_| options.extend(empty_option(option::LIST)));
        lazy.write_all(&options).unwrap();
        // After the greeting a core has the connection; then it gets all the options.
        lazy.read_exact(&mut [0; GREETING]).unwrap();
        for _ in 0..100 {
            others.iter_mut().for_each(|other| drop(other.ask(Operation::Read, 0, 512, &[])));
        }
        let grown = IN_USE.load(Ordering::Relaxed).saturating_sub(before);
        assert!(grown < GROWTH_MAX, "{io:?}: {grown} bytes more");
        // A client that begins to read gets all lists, and they are equal.
        lazy.read_exact(&mut replies).unwrap();
        assert!(replies.chunks(list_bytes).all(|list| *list == replies[..list_bytes]));
    }
}

/// There are more connections than a core has memory for, each with the maximum of reads in flight,
/// in pieces that count as small. Their clients fetch no reply.
#[test]
fn clients_of_one_volume_that_fetch_nothing_leave_memory_to_another() {
    const CONNECTIONS: usize = 20;
    const PIECE: u32 = 256 << 10;
    const MIB: u32 = 1 << 20;
    let _scales = SCALES.lock().unwrap_or_else(PoisonError::into_inner);
    let pieces = CONNECTION_BYTES_MAX / PIECE;
    assert!(CONNECTIONS > (CORE_PAYLOAD_BYTES_MAX / CONNECTION_BYTES_MAX) as usize);
    for io in MODES {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        // The third volume is on the core of the first.
        let [lazy, _, busy] = [1, 2, 3].map(|bits| {
            let id = VolumeId::from_bits(bits);
            served.apply(unlimited(id, 64 << 20));
            id
        });
        let mut other = served.connect(busy);
        other.stream.set_read_timeout(Some(ANSWER_MAX / 2)).unwrap();
        let mut hogs: Vec<Nbd> = (0..CONNECTIONS).map(|_| served.connect(lazy)).collect();
        for hog in &mut hogs {
            for _ in 0..pieces {
                hog.send(Operation::Read, 0, PIECE, &[]);
            }
        }
        // Each answer is a turn of the core. In the first turns it takes all reads in.
        let payload = vec![7; MIB as usize];
        for _ in 0..100 {
            other.ask(Operation::Read, 0, 4_096, &[]);
            other.ask(Operation::Write { fua: false }, 0, MIB, &payload);
        }
        assert_eq!(other.ask(Operation::Read, 0, MIB, &[]), Answer::Done(payload));
        // Clients that fetch in the end get all replies, also those whose reads wait behind others.
        std::thread::scope(|scope| {
            for hog in &mut hogs {
                scope.spawn(move || {
                    (0..pieces).for_each(|_| drop(hog.receive().unwrap()));
                    assert_eq!(hog.outstanding(), 0);
                });
            }
        });
    }
}

/// Small and large requests of one connection are answered beside connections of the same volume
/// that fetch no replies.
#[test]
fn clients_that_fetch_nothing_hold_up_no_other_of_their_volume() {
    const CONNECTIONS: usize = 20;
    const MIB: u32 = 1 << 20;
    let _scales = SCALES.lock().unwrap_or_else(PoisonError::into_inner);
    for (io, piece) in [(IoMode::Auto, 256 << 10), (IoMode::Pread, 32 * MIB), (IoMode::Auto, MIB)] {
        let served = Served::new(io, Arc::new(MemoryPool::new()));
        let id = VolumeId::from_bits(1);
        served.apply(unlimited(id, 64 << 20));
        let pieces = CONNECTION_BYTES_MAX / piece;
        let mut hogs: Vec<Nbd> = (0..CONNECTIONS).map(|_| served.connect(id)).collect();
        for hog in &mut hogs {
            (0..pieces).for_each(|_| _ = hog.send(Operation::Read, 0, piece, &[]));
        }
        let mut other = served.connect(id);
        // Earlier than connections are closed whose clients have stopped in the middle.
        other.stream.set_read_timeout(Some(ANSWER_MAX / 2)).unwrap();
        let payload = vec![7; MIB as usize];
        for _ in 0..50 {
            for bytes in [4_096, 256 << 10, MIB] {
                let payload = &payload[..bytes as usize];
                other.ask(Operation::Write { fua: false }, 0, bytes, payload);
                assert_eq!(other.ask(Operation::Read, 0, bytes, &[]), Answer::Done(payload.into()));
            }
        }
        // Clients that fetch in the end get all replies.
        std::thread::scope(|scope| {
            for hog in &mut hogs {
                scope.spawn(move || (0..pieces).for_each(|_| drop(hog.receive().unwrap())));
            }
        });
    }
}
