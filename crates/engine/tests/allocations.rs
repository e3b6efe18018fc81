//! In the steady state the engine allocates nothing per I/O: counted over every thread of the
//! process, while a client that allocates nothing itself keeps it busy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::{Operation, Request};
use evenkeel_engine::IoMode;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::nbd::transmission::RequestHeader;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::{Served, paced, unlimited};

/// The system's allocator, with a count of its calls.
struct Counted;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: it came from `alloc` above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const DEPTH: usize = 16;
const BLOCK: usize = 4_096;
const SIMPLE_REPLY: usize = 16;

/// Batches of `DEPTH` reads and writes; each is sent whole and answered whole.
fn batches(stream: &mut UnixStream, count: u64, send: &mut [u8], receive: &mut [u8]) {
    for batch in 0..count {
        let is_read = batch % 2 == 0;
        let mut end = 0;
        for slot in 0..DEPTH {
            let operation = if is_read { Operation::Read } else { Operation::Write { fua: false } };
            let offset = (batch * 7 + slot as u64) % 1_000 * BLOCK as u64;
            let request = Request { operation, offset, length: BLOCK as u32 };
            let head = RequestHeader::new(slot as u64, &request, false).encode();
            send[end..end + head.len()].copy_from_slice(&head);
            end += head.len() + if is_read { 0 } else { BLOCK };
        }
        stream.write_all(&send[..end]).unwrap();
        let reply = SIMPLE_REPLY + if is_read { BLOCK } else { 0 };
        stream.read_exact(&mut receive[..DEPTH * reply]).unwrap();
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let memory = Arc::new(MemoryPool::new());
    // Its answers come from the disk, later.
    let setup = "channels=4,read_us=1".parse().unwrap();
    let faulty = Arc::new(FaultyPool::new(Arc::new(MemoryPool::new()), &setup));
    let stores: [(&str, Arc<dyn evenkeel_store::Pool>); 2] =
        [("memory", memory), ("faulty", faulty)];
    for (name, pool) in stores {
        let served = Served::new(IoMode::Auto, pool);
        let volumes = [
            ("unlimited", unlimited(VolumeId::from_bits(1), 8 << 20)),
            ("paced", paced(VolumeId::from_bits(2), 8 << 20, 20_000)),
        ];
        for (limits, state) in volumes {
            let id = state.id;
            served.apply(state);
            let mut client = support::Nbd::connect(&served.socket, id, false).unwrap();
            let mut send = vec![7; DEPTH * (28 + BLOCK)];
            let mut receive = vec![0; DEPTH * (SIMPLE_REPLY + BLOCK)];
            // Lists grow to their final sizes.
            batches(&mut client.stream, 300, &mut send, &mut receive);
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            batches(&mut client.stream, 300, &mut send, &mut receive);
            let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
            let requests = 300 * DEPTH;
            // A list may still double once; one allocation per hundred I/Os would show.
            assert!(
                allocations < 10,
                "{name}, {limits}: {allocations} allocations for {requests} requests"
            );
        }
    }
}
