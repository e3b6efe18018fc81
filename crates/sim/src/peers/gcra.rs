//! The generic cell rate algorithm as the Rust crate `governor` has it (`gcra.rs`; commit
//! 0ec1c775c628): one theoretical arrival time, in whole nanoseconds.
//!
//! A request may go once the time it was due has come, less a tolerance; the next one is due one
//! period after that, or after now if now is later. With a burst of 1 the tolerance is zero, so
//! every microsecond that a timer is late is lost. The period is a whole number of nanoseconds: 7
//! instead of 7.63 at 125 MiB/s, which is 9 % too fast.
//!
//! `governor` has no queue: a request that is refused learns when to try again. The model keeps the
//! requests in order and asks for the first of them, also when another one arrives. A request of
//! more bytes than the burst is refused for ever by the original; the model charges it the burst.

use evenkeel_core::time::{Duration, Instant};

use super::limited::{Limiter, Rates, payload};
use crate::world::policy::Request;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Burst of a limit in bytes: the largest request it lets through without complaint.
const BURST_BYTES: u64 = 256 << 10;

#[derive(Clone, Copy, Debug)]
struct Cells {
    period_ns: u64,
    burst: u64,
    /// When the next cell would arrive if all kept to the rate.
    due: Instant,
}

impl Cells {
    fn new(now: Instant, per_second: u64, burst: u64) -> Self {
        Self { period_ns: (NS_PER_SECOND / per_second.max(1)).max(1), burst, due: now }
    }

    /// The earliest time at which this many cells may go.
    fn earliest(&self, cells: u64) -> Instant {
        let spare_ns = self.period_ns * (self.burst - cells.clamp(1, self.burst));
        Instant::from_ns(self.due.ns.saturating_sub(spare_ns))
    }

    fn charge(&mut self, now: Instant, cells: u64) {
        let cells = cells.clamp(1, self.burst);
        self.due = self.due.max(now) + Duration::from_ns(self.period_ns * cells);
    }
}

/// The limiter of one volume: a burst of one I/O, and of 256 KiB.
#[derive(Clone, Debug)]
pub struct Gcra {
    operations: Option<Cells>,
    bytes: Option<Cells>,
    timer: Option<Instant>,
}

impl Limiter for Gcra {
    fn new(now: Instant, rates: &Rates) -> Self {
        Self {
            operations: rates.operations.map(|rate| Cells::new(now, rate, 1)),
            bytes: rates.bytes.map(|rate| Cells::new(now, rate, BURST_BYTES)),
            timer: None,
        }
    }

    fn take(&mut self, now: Instant, request: &Request) -> bool {
        let length = payload(request);
        let operations = self.operations.map(|cells| cells.earliest(1));
        let bytes = self.bytes.filter(|_| length > 0).map(|cells| cells.earliest(length));
        let earliest = operations.max(bytes).unwrap_or(now);
        if now < earliest {
            self.timer = Some(earliest);
            return false;
        }
        self.timer = None;
        if let Some(operations) = &mut self.operations {
            operations.charge(now, 1);
        }
        if let Some(bytes) = self.bytes.as_mut().filter(|_| length > 0) {
            bytes.charge(now, length);
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
        // A quota is part of the limiter: another quota is another limiter, with its burst unused.
        *self = Self::new(now, rates);
    }
}
