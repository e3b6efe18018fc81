//! One limit as an exact token level: the units that may be dispatched now.
//!
//! Level units are billionths of a unit, so that a nanosecond at `r` units per second is the whole
//! number `r`. All values are sums of products of integers, and so equal the exact rational
//! numbers.

use evenkeel_core::convert::saturating;

/// Level units in one unit.
pub(super) const UNIT: i128 = 1_000_000_000;

/// A level that rises at a rate up to a depth, and that charges lower, into debt as well. One more
/// may be dispatched if it is at least zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Level {
    pub(super) level: i128,
    pub(super) rate: u64,
    pub(super) depth: i128,
}

impl Level {
    /// Creates a level that may save `span_ns` worth of its rate, and is full.
    pub(super) fn pacer(rate: u64, span_ns: u64) -> Self {
        let depth = worth(rate, span_ns);
        Self { level: depth, rate, depth }
    }

    /// Creates a level that may save `capacity` units and has `balance` of them.
    pub(super) fn credit(rate: u64, capacity: u64, balance: u64) -> Self {
        let depth = i128::from(capacity) * UNIT;
        Self { level: depth.min(i128::from(balance) * UNIT), rate, depth }
    }

    /// Returns the level after `span_ns` if nothing is forfeited.
    pub(super) fn raised(&self, span_ns: u64) -> i128 {
        self.level + worth(self.rate, span_ns)
    }

    /// Returns the level `span_ns` ago if nothing was charged or forfeited since.
    pub(super) fn before(&self, span_ns: u64) -> i128 {
        self.level - worth(self.rate, span_ns)
    }

    /// Advances the time by `span_ns`. Units above the depth and `extra` are forfeited.
    pub(super) fn pass(&mut self, span_ns: u64, extra: i128) {
        self.level = self.raised(span_ns).min(self.depth + extra);
    }

    pub(super) fn take(&mut self, units: u64) {
        self.level -= i128::from(units) * UNIT;
    }

    /// Returns whether one more may be dispatched. A rate of 0 is closed, whatever was saved.
    pub(super) const fn is_ready(&self) -> bool {
        self.level >= 0 && self.rate > 0
    }

    /// Returns the nanoseconds at the end of the last `span_ns` for which the level was ready.
    /// `raised` is the level at their end; the level may still exceed its depth.
    pub(super) fn ready_for(&self, raised: i128, span_ns: u64) -> u64 {
        if raised < 0 || self.rate == 0 {
            return 0;
        }
        if self.level >= 0 {
            return span_ns;
        }
        // The quotient is at most the span, because the level was below zero at its start.
        let quotient = match u64::try_from(raised) {
            Ok(raised) => raised / self.rate,
            Err(_) => saturating(raised / i128::from(self.rate)),
        };
        quotient.min(span_ns)
    }

    /// Returns the time for which nothing may be dispatched after a charge of `units`, in whole
    /// nanoseconds.
    pub(super) fn wait_after(&self, units: u64) -> u64 {
        let debt = (i128::from(units) * UNIT - self.level).max(0).unsigned_abs();
        // The debt is below 2^64 in practice. A larger one lasts practically for ever.
        saturating::<_, u64>(debt) / self.rate.max(1)
    }

    /// Sets another rate and depth. Nothing is refilled, and debt beyond `debt_ns` worth is
    /// forgiven.
    pub(super) fn change(&mut self, rate: u64, depth: i128, debt_ns: u64) {
        (self.rate, self.depth) = (rate, depth);
        self.level = self.level.min(depth);
        if rate > 0 {
            self.level = self.level.max(-worth(rate, debt_ns));
        }
    }

    /// Returns the whole units that may still be dispatched; 0 in debt.
    pub(super) fn balance(&self) -> u64 {
        saturating(self.level.max(0) / UNIT)
    }
}

/// Returns the units of a rate in `span_ns`, in level units.
pub(super) fn worth(rate: u64, span_ns: u64) -> i128 {
    // Below 2^128 as unsigned. It exceeds the range of i128 only for spans and rates that do not
    // occur.
    saturating::<_, i128>(u128::from(rate) * u128::from(span_ns)).min(i128::MAX / 4)
}
