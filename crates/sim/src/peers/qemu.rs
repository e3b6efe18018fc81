//! QEMU's I/O throttling (`util/throttle.c`, `block/throttle-groups.c`, `docs/throttle.txt`; as of
//! QEMU 2.6 and unchanged since in what is modelled): a leaky bucket in doubles.
//!
//! A request may go while the level is at most the bucket's size, and is then added to the level,
//! which leaks at the limit's rate. So a request of any size is let through and paid for
//! afterwards, and the wait for the next one is exactly the excess divided by the rate. The timer
//! may be late: the level leaks meanwhile. Where no burst is configured, the size is 100 ms of the
//! rate; that is what the first second after idle gets on top. A change of the limits empties the
//! bucket, which is a burst for free.
//!
//! Limits are totals of reads and writes, a request is one I/O whatever its size (`iops-size` is
//! off by default), a flush is not throttled.
//!
//! Left out: configured bursts and their length, `iops-size`, separate limits for reads and writes
//! and their two timers, and groups of drives, which share one level in turns of one request.

use evenkeel_core::time::{Duration, Instant};

use super::limited::{Limiter, Rates, payload};
use crate::world::policy::Request;

const NS_PER_SECOND: f64 = 1_000_000_000.0;

/// The default burst is this part of a second's worth.
const BURST_PART: f64 = 10.0;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    per_second: f64,
    size: f64,
    level: f64,
}

impl Bucket {
    fn new(per_second: u64) -> Self {
        let per_second = per_second as f64;
        Self { per_second, size: per_second / BURST_PART, level: 0.0 }
    }

    fn leak(&mut self, passed: Duration) {
        self.level = (self.level - self.per_second * passed.ns as f64 / NS_PER_SECOND).max(0.0);
    }

    /// Time until the level is down to the size, in whole nanoseconds as the original has it.
    fn wait_ns(&self) -> u64 {
        let excess = self.level - self.size;
        if excess <= 0.0 { 0 } else { (excess * NS_PER_SECOND / self.per_second) as u64 }
    }
}

/// The throttling of one drive.
#[derive(Clone, Debug)]
pub struct Qemu {
    operations: Option<Bucket>,
    bytes: Option<Bucket>,
    last_leak: Instant,
    timer: Option<Instant>,
}

impl Limiter for Qemu {
    fn new(now: Instant, rates: &Rates) -> Self {
        Self {
            operations: rates.operations.map(Bucket::new),
            bytes: rates.bytes.map(Bucket::new),
            last_leak: now,
            timer: None,
        }
    }

    fn take(&mut self, now: Instant, request: &Request) -> bool {
        let length = payload(request);
        if length == 0 {
            return true;
        }
        if self.timer.is_some() {
            return false;
        }
        let passed = now.since(self.last_leak);
        self.last_leak = now;
        let mut wait_ns = 0;
        for bucket in [&mut self.operations, &mut self.bytes].into_iter().flatten() {
            bucket.leak(passed);
            wait_ns = wait_ns.max(bucket.wait_ns());
        }
        if wait_ns > 0 {
            self.timer = Some(now + Duration::from_ns(wait_ns));
            return false;
        }
        if let Some(operations) = &mut self.operations {
            operations.level += 1.0;
        }
        if let Some(bytes) = &mut self.bytes {
            bytes.level += length as f64;
        }
        true
    }

    fn timer(&self) -> Option<Instant> {
        self.timer
    }

    fn fire(&mut self, _: Instant) {
        self.timer = None;
    }

    fn reconfigure(&mut self, now: Instant, rates: &Rates) {
        *self = Self::new(now, rates);
    }
}
