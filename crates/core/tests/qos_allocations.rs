//! Pacing allocates nothing per I/O once its largest load has been reached.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

thread_local! {
    // Counts this thread only: the test harness allocates too.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of allocations.
struct Counting;

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending is not counted.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's guarantee about `layout` is the one that `System` needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `block` came from `alloc` above, that is from `System`, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Polls until `dispatches` quanta were dispatched.
fn dispatch(scheduler: &mut Scheduler, now: &mut Instant, dispatches: u32) {
    for _ in 0..dispatches {
        while scheduler.poll_output().is_none() {
            *now = scheduler.poll_timeout().unwrap();
            scheduler.poll(*now);
        }
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let limit = |per_second| Some(Limit { per_second, credit: None });
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let mut now = Instant::ZERO;
    let volumes: Vec<_> = (0..100u64)
        .map(|i| {
            let pacing = Pacing {
                counting: CountingRule::SSD,
                tolerance: Duration::from_ms(50),
                operations: limit(100 + i * 37),
                bytes: limit(100 << 20),
            };
            scheduler.add(now, &pacing, Balances::default()).unwrap()
        })
        .collect();
    // Sixteen requests a volume, one of them four quanta long.
    let round = |scheduler: &mut Scheduler, now: &mut Instant| {
        for handle in 0..16u32 {
            for volume in &volumes {
                let length = if handle == 7 { 1 << 20 } else { 16 << 10 };
                let offset = u64::from(handle) << 30;
                let io = Io { operation: Operation::Read, offset, length, handle };
                scheduler.submit(*now, *volume, io).unwrap();
            }
        }
        dispatch(scheduler, now, 100 * (15 + 4));
    };
    round(&mut scheduler, &mut now);
    let before = ALLOCATIONS.get();
    assert!(before > 0, "the allocator counts");
    for _ in 0..100 {
        round(&mut scheduler, &mut now);
    }
    assert_eq!(ALLOCATIONS.get(), before, "in 160,000 requests");
}
