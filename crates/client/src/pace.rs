//! A limit of a rate for several threads.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_core::convert::saturating;
use evenkeel_os::clock;

/// A limit of a rate for several threads: each call waits until its amount is due.
#[derive(Debug)]
pub struct Pace {
    per_s: Option<u64>,
    /// Time at which the next call may continue.
    next: Mutex<Instant>,
}

impl Pace {
    /// Creates a limit of `per_s` units per second; without one, no call waits.
    #[must_use]
    pub fn new(per_s: Option<u64>) -> Self {
        Self { per_s, next: Mutex::new(clock::now()) }
    }

    /// Waits for its turn. Unused time is not made up for.
    pub fn take(&self, amount: u64) {
        let Some(per_s) = self.per_s else { return };
        let now = clock::now();
        let turn = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = now.max(*next);
            let ns = u128::from(amount) * 1_000_000_000 / u128::from(per_s.max(1));
            *next = turn + Duration::from_nanos(saturating(ns));
            turn
        };
        clock::pause(turn.saturating_duration_since(now));
    }
}
