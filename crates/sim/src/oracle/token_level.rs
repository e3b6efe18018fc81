//! One limit as an exact token level: the units that may be dispatched now.
//!
//! Units are billionths, so that a nanosecond at `r` units per second is worth the whole number
//! `r`: everything is a sum of products of integers, hence equal to the rational number it stands
//! for.

/// Level units in one unit.
pub(super) const UNIT: i128 = 1_000_000_000;

/// A level that rises at a rate up to a depth, and is taken from into debt. At or above zero, one
/// more may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Level {
    pub(super) level: i128,
    pub(super) rate: u64,
    pub(super) depth: i128,
}

impl Level {
    /// A level that may save `span_ns` worth of its rate, and has.
    pub(super) fn pacer(rate: u64, span_ns: u64) -> Self {
        let depth = worth(rate, span_ns);
        Self { level: depth, rate, depth }
    }

    /// A level that may save `capacity` units and holds `balance` of them.
    pub(super) fn credit(rate: u64, capacity: u64, balance: u64) -> Self {
        let depth = i128::from(capacity) * UNIT;
        Self { level: depth.min(i128::from(balance) * UNIT), rate, depth }
    }

    /// What it is after `span_ns` if nothing is forfeited.
    pub(super) fn raised(&self, span_ns: u64) -> i128 {
        self.level + worth(self.rate, span_ns)
    }

    /// What it was `span_ns` ago if nothing was taken or forfeited since.
    pub(super) fn before(&self, span_ns: u64) -> i128 {
        self.level - worth(self.rate, span_ns)
    }

    /// Lets `span_ns` pass; what would rise above the depth and `extra` is forfeited.
    pub(super) fn pass(&mut self, span_ns: u64, extra: i128) {
        self.level = self.raised(span_ns).min(self.depth + extra);
    }

    pub(super) fn take(&mut self, units: u64) {
        self.level -= i128::from(units) * UNIT;
    }

    /// Whether one more may go. A rate of 0 is closed, whatever was saved.
    pub(super) const fn is_ready(&self) -> bool {
        self.level >= 0 && self.rate > 0
    }

    /// Of the last `span_ns`, which end now, how many passed since it was ready; the level may be
    /// more than its depth yet.
    pub(super) fn ready_for(&self, raised: i128, span_ns: u64) -> u64 {
        if raised < 0 || self.rate == 0 {
            return 0;
        }
        if self.level >= 0 {
            return span_ns;
        }
        // The quotient is at most the span, because the level was below zero when it began.
        let quotient = match u64::try_from(raised) {
            Ok(raised) => raised / self.rate,
            Err(_) => u64::try_from(raised / i128::from(self.rate)).unwrap_or(u64::MAX),
        };
        quotient.min(span_ns)
    }

    /// For how long nothing may go once `units` are taken, in whole nanoseconds.
    pub(super) fn wait_after(&self, units: u64) -> u64 {
        let debt = (i128::from(units) * UNIT - self.level).max(0).unsigned_abs();
        // Below 2^64 in all that happens; the quotient of more is as good as for ever.
        u64::try_from(debt).unwrap_or(u64::MAX) / self.rate.max(1)
    }

    /// Puts another rate and depth in force: nothing is refilled, and debt is forgiven down to
    /// `debt_ns` worth.
    pub(super) fn change(&mut self, rate: u64, depth: i128, debt_ns: u64) {
        (self.rate, self.depth) = (rate, depth);
        self.level = self.level.min(depth);
        if rate > 0 {
            self.level = self.level.max(-worth(rate, debt_ns));
        }
    }

    /// Whole units that may still go; 0 in debt.
    pub(super) fn balance(&self) -> u64 {
        u64::try_from(self.level.max(0) / UNIT).unwrap_or(u64::MAX)
    }
}

/// What `span_ns` of a rate is worth.
pub(super) fn worth(rate: u64, span_ns: u64) -> i128 {
    // Below 2^128 as unsigned; above i128's range only for spans and rates that nobody has.
    i128::try_from(u128::from(rate) * u128::from(span_ns)).unwrap_or(i128::MAX / 4)
}
