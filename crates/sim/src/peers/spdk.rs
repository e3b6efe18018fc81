//! SPDK's bdev QoS (`lib/bdev`; as of 2023, after commit 86d77e2eb6): a quota a millisecond.
//!
//! A limit is rounded up to whole thousands of I/Os (whole MiB for bytes) a second and given out in
//! slices of 1 ms. A request may go while anything is left of the slice, and is then subtracted, so
//! the quota may end below zero: that debt is kept. What is left over at the end of a slice is
//! dropped. A poller adds one quota for each slice that has passed, so lateness by itself loses
//! nothing. But it runs a millisecond after it last ran, so polls drift against the slices and now
//! and then one hands out two quotas at once, which a client of little depth cannot use in time.
//!
//! One request is one I/O however large. Only reads and writes are limited. A change of the limits
//! hands out a new quota and forgets what was owed.
//!
//! Left out: the separate limits for reads and for writes, the channels of several threads with
//! their shared counter (and its cost), and the walk over the whole waiting list for each request
//! that lets a read pass a write held up by a limit for writes only.

use evenkeel_core::time::{Duration, Instant};

use super::limited::{Limiter, Rates, payload};
use crate::world::policy::Request;

const SLICE: Duration = Duration::from_ms(1);
const SLICES_PER_SECOND: u64 = 1_000;
const OPERATIONS_STEP: u64 = 1_000;
const BYTES_STEP: u64 = 1 << 20;
const OPERATIONS_PER_SLICE_MIN: u64 = 1;
const BYTES_PER_SLICE_MIN: u64 = 512;

#[derive(Clone, Copy, Debug)]
struct Quota {
    per_slice: i64,
    remaining: i64,
}

impl Quota {
    /// A limit that was set, after its rounding.
    fn new(per_second: u64, step: u64, per_slice_min: u64) -> Self {
        let rounded = per_second.div_ceil(step) * step;
        let per_slice = (rounded / SLICES_PER_SECOND).max(per_slice_min) as i64;
        Self { per_slice, remaining: per_slice }
    }

    const fn next_slices(&mut self, slices: u64) {
        if self.remaining > 0 {
            self.remaining = 0;
        }
        self.remaining += self.per_slice * slices as i64;
    }
}

/// The limits of one bdev.
#[derive(Clone, Debug)]
pub struct Spdk {
    operations: Option<Quota>,
    bytes: Option<Quota>,
    /// Start of the present slice.
    slice: Instant,
    next_poll: Instant,
}

impl Spdk {
    fn quotas(rates: &Rates) -> (Option<Quota>, Option<Quota>) {
        (
            rates.operations.map(|r| Quota::new(r, OPERATIONS_STEP, OPERATIONS_PER_SLICE_MIN)),
            rates.bytes.map(|r| Quota::new(r, BYTES_STEP, BYTES_PER_SLICE_MIN)),
        )
    }
}

#[cfg(test)]
impl Spdk {
    /// When the present slice ends: where a poller that does not drift would run.
    pub(super) fn slice_end(&self) -> Instant {
        self.slice + SLICE
    }
}

impl Limiter for Spdk {
    fn new(now: Instant, rates: &Rates) -> Self {
        let (operations, bytes) = Self::quotas(rates);
        Self { operations, bytes, slice: now, next_poll: now + SLICE }
    }

    fn take(&mut self, _: Instant, request: &Request) -> bool {
        let length = payload(request);
        if length == 0 {
            return true;
        }
        let left = |quota: &Option<Quota>| quota.is_none_or(|quota| quota.remaining > 0);
        // The original subtracts one by one and rewinds when a later limit refuses: the same.
        if !left(&self.operations) || !left(&self.bytes) {
            return false;
        }
        if let Some(operations) = &mut self.operations {
            operations.remaining -= 1;
        }
        if let Some(bytes) = &mut self.bytes {
            bytes.remaining -= length as i64;
        }
        true
    }

    fn timer(&self) -> Option<Instant> {
        Some(self.next_poll)
    }

    fn fire(&mut self, now: Instant) {
        let slices = now.since(self.slice).ns / SLICE.ns;
        if slices > 0 {
            self.slice = self.slice + Duration::from_ns(slices * SLICE.ns);
            for quota in [&mut self.operations, &mut self.bytes].into_iter().flatten() {
                quota.next_slices(slices);
            }
        }
        // A poller runs a period after it last ran, so the polls drift; the slices do not.
        self.next_poll = now + SLICE;
    }

    fn reconfigure(&mut self, _: Instant, rates: &Rates) {
        // The new quotas are in force at once and whole; what was owed is forgotten.
        (self.operations, self.bytes) = Self::quotas(rates);
    }
}
