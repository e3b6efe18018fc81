//! Helpers of all tests of the scheduler.

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Dispatch, Io, Scheduler, VolumeIndex};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;

pub use crate::support::{KIB, NS_PER_S, at, limit, pacing};

pub fn read(handle: u32, offset: u64, length: u32) -> Io {
    Io { operation: Operation::Read, offset, length, handle }
}

pub fn one(pacing: &Pacing) -> (Scheduler, VolumeIndex) {
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let volume = scheduler.add(Instant::ZERO, pacing, Balances::default()).unwrap();
    (scheduler, volume)
}

pub fn drain(scheduler: &mut Scheduler) -> Vec<Dispatch> {
    std::iter::from_fn(|| scheduler.poll_output()).collect()
}

/// Polls at each deadline up to `end`. Returns each dispatch with its time.
pub fn run_until(scheduler: &mut Scheduler, end: u64) -> Vec<(u64, Dispatch)> {
    let mut out = Vec::new();
    while let Some(timeout) = scheduler.poll_timeout().filter(|timeout| timeout.ns <= end) {
        scheduler.poll(timeout);
        out.extend(drain(scheduler).into_iter().map(|dispatch| (timeout.ns, dispatch)));
    }
    out
}
