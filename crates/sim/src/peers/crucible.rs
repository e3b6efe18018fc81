//! Crucible's guest limiter of 2022 to 2024 (Oxide; commit e3559a2e, pull request 191; removed in
//! commits 0cbcedb9 and 6e29eb63): a leaky bucket that leaks once a second.
//!
//! Tokens are counted up, one for each 16 KiB begun of a request and one for each byte. A request
//! may go while the tokens are below the limit, so none is too large. Once a second the whole
//! limit's worth leaks out. The counts per second are perfect as long as one counts from leak to
//! leak, and all of a second's I/Os are done in its first hundredth.
//!
//! The next leak is timed from when the last one ran. A flush is free.
//!
//! Left out: that requests were accepted into an unbounded queue before they were limited, which is
//! why it was removed; the model's queue is bounded like everyone's.

use evenkeel_core::time::{Duration, Instant};

use super::limited::{Limiter, Rates, payload};
use crate::world::policy::Request;

const LEAK_PERIOD: Duration = Duration::from_secs(1);
const BYTES_PER_OPERATION: u64 = 16 << 10;

/// The limiter of one volume.
#[derive(Clone, Debug)]
pub struct Crucible {
    rates: Rates,
    operations: u64,
    bytes: u64,
    next_leak: Instant,
}

impl Limiter for Crucible {
    fn new(now: Instant, rates: &Rates) -> Self {
        Self { rates: *rates, operations: 0, bytes: 0, next_leak: now + LEAK_PERIOD }
    }

    fn take(&mut self, _: Instant, request: &Request) -> bool {
        let length = payload(request);
        if length == 0 {
            return true;
        }
        let full = |tokens: u64, limit: Option<u64>| limit.is_some_and(|limit| tokens >= limit);
        if full(self.operations, self.rates.operations) || full(self.bytes, self.rates.bytes) {
            return false;
        }
        self.operations += length.div_ceil(BYTES_PER_OPERATION);
        self.bytes += length;
        true
    }

    fn timer(&self) -> Option<Instant> {
        Some(self.next_leak)
    }

    fn fire(&mut self, now: Instant) {
        self.operations = self.operations.saturating_sub(self.rates.operations.unwrap_or(u64::MAX));
        self.bytes = self.bytes.saturating_sub(self.rates.bytes.unwrap_or(u64::MAX));
        self.next_leak = now + LEAK_PERIOD;
    }

    fn reconfigure(&mut self, _: Instant, rates: &Rates) {
        self.rates = *rates;
    }
}
