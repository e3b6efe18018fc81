//! One limit as an exact integer level that may go into debt.
//!
//! ```text
//! level, in token x 10^9
//!
//!   depth ┤         ╭────────  full: what would flow in now is forfeited
//!         │       ╱ │
//!         │     ╱   │ charge: the whole cost at once
//!         │   ╱ rises by rate x elapsed nanoseconds: an integer, nothing to round or to carry
//!       0 ┤─╱───────┼─────╱──  ready: at or above this line one more request may go
//!         │         │   ╱
//!         │         │ ╱  debt: a request larger than the bucket is let in and paid off afterwards
//!         └─────────┴─────────▶ time
//! ```
//!
//! A token per second is 10^9 level units per 10^9 ns, so one nanosecond at rate `r` is worth
//! exactly `r` units: settling is a multiplication and an addition. The only division is in
//! [`Bucket::wait`], when a volume goes to sleep.
//!
//! For a consumer that asks again as soon as the bucket is ready, this means: in any window of `T`
//! seconds it is served at most `depth + rate * T` plus one charge, and in steady state `rate * T`
//! give or take one charge, however late the wake-ups are, as long as each is less than the depth's
//! time late.

use crate::convert::saturating;
use core::num::NonZeroU64;

use crate::time::Duration;

/// Level units in one token.
pub(crate) const LEVEL_PER_TOKEN: u64 = 1_000_000_000;

/// Maximum wait after a change of the rate for debt that was made under the old rate.
pub const MODIFY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Maximum savings of a bucket: a span of its rate (a pacer) or a number of tokens (credits).
///
/// Packed into one word that is never zero, so that an absent bucket costs no memory of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Depth(NonZeroU64);

impl Depth {
    const KIND_TOKENS: u64 = 1 << 63;
    const KIND_TIME: u64 = 1 << 62;
    /// The largest span (146 years) and token count (4 EiB of bytes) that can be expressed; more is
    /// clamped.
    const VALUE_MAX: u64 = Self::KIND_TIME - 1;

    /// Creates a depth of the inflow of `span`, at any rate.
    #[must_use]
    pub const fn time(span: Duration) -> Self {
        Self::pack(Self::KIND_TIME, span.ns)
    }

    /// Creates a depth of exactly `tokens`, at any rate.
    #[must_use]
    pub const fn tokens(tokens: u64) -> Self {
        Self::pack(Self::KIND_TOKENS, tokens)
    }

    const fn pack(kind: u64, value: u64) -> Self {
        let value = if value > Self::VALUE_MAX { Self::VALUE_MAX } else { value };
        match NonZeroU64::new(kind | value) {
            Some(packed) => Self(packed),
            None => Self(NonZeroU64::MIN), // unreachable: `kind` is never zero
        }
    }

    /// Returns the highest level at `rate`: below 2^62 x 2^64, so it cannot overflow.
    fn level(self, rate: u64) -> i128 {
        let packed = self.0.get();
        let factor = if packed & Self::KIND_TIME == 0 { LEVEL_PER_TOKEN } else { rate };
        i128::from(packed & Self::VALUE_MAX) * i128::from(factor)
    }
}

/// A level that rises at a rate, up to a depth. The owner keeps the time of the last settling, once
/// for all the buckets of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Token x 10^9; negative is debt.
    level: i128,
    rate_per_second: u64,
    depth: Depth,
}

impl Bucket {
    /// Creates a bucket with the maximum saved. A rate of 0 is closed: it never becomes ready.
    #[must_use]
    pub fn full(rate_per_second: u64, depth: Depth) -> Self {
        Self { level: depth.level(rate_per_second), rate_per_second, depth }
    }

    /// Creates a bucket with nothing saved and nothing owed: ready for one charge.
    #[must_use]
    pub const fn empty(rate_per_second: u64, depth: Depth) -> Self {
        Self { level: 0, rate_per_second, depth }
    }

    /// Adds the inflow of `elapsed`. Settling twice equals settling once for the sum.
    pub fn settle(&mut self, elapsed: Duration) {
        let inflow = u128::from(self.rate_per_second) * u128::from(elapsed.ns);
        let depth = self.depth.level(self.rate_per_second);
        self.level = self.level.saturating_add_unsigned(inflow).min(depth);
    }

    /// Returns whether one more request may pass, of any size.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.is_ready_above(0)
    }

    /// Returns whether one more request may pass if only the level above `least` may be taken.
    #[must_use]
    pub(crate) const fn is_ready_above(&self, least: i128) -> bool {
        self.level >= least && self.rate_per_second > 0
    }

    /// Takes `tokens`, into debt if necessary.
    pub fn charge(&mut self, tokens: u64) {
        let cost = i128::from(tokens) * i128::from(LEVEL_PER_TOKEN);
        self.level = self.level.saturating_sub(cost);
    }

    /// Returns how long after the last settling the bucket is ready, to the nanosecond: it is not
    /// ready one earlier. `None` is never.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.wait_above(0)
    }

    /// Returns that time if only the level above `least` may be taken.
    #[must_use]
    pub(crate) fn wait_above(&self, least: i128) -> Option<Duration> {
        self.time_to_earn(least.saturating_sub(self.level).max(0).unsigned_abs())
    }

    /// Returns how long after the last settling the bucket is full if nothing is charged. `None` is
    /// never.
    #[must_use]
    pub fn time_to_full(&self) -> Option<Duration> {
        let depth = self.depth.level(self.rate_per_second);
        self.time_to_earn(depth.saturating_sub(self.level).max(0).unsigned_abs())
    }

    /// Returns the time in which the level rises by `amount`, rounded up.
    fn time_to_earn(&self, amount: u128) -> Option<Duration> {
        if self.rate_per_second == 0 {
            return None;
        }
        // Debt is one request's, far below 2^64: so the 64-bit division is usual.
        if let Ok(amount) = u64::try_from(amount) {
            return Some(Duration::from_ns(amount.div_ceil(self.rate_per_second)));
        }
        let wait = amount.div_ceil(u128::from(self.rate_per_second));
        u64::try_from(wait).ok().map(Duration::from_ns)
    }

    /// Changes rate and depth from now on. Settle first, so that the past counts at the old rate.
    ///
    /// Nothing is ever refilled: the level is clamped down to the new depth, never raised to it.
    /// Debt is kept, but a debt that would take longer than [`MODIFY_WAIT_MAX`] at the new rate is
    /// forgiven down to that: after a limit is lowered, a volume must not wait an hour for one
    /// earlier large request. As long as a second of the rate covers the largest single charge, as
    /// it does for each volume type, nothing is ever forgiven. Closing (a rate of 0) forgives
    /// nothing.
    pub fn set_rate(&mut self, rate_per_second: u64, depth: Depth) {
        self.rate_per_second = rate_per_second;
        self.depth = depth;
        self.level = self.level.min(depth.level(rate_per_second));
        if rate_per_second > 0 {
            let debt_max = i128::from(rate_per_second) * i128::from(MODIFY_WAIT_MAX.ns);
            self.level = self.level.max(-debt_max);
        }
    }

    /// Returns the saved tokens, rounded down; 0 in debt.
    #[must_use]
    pub fn saved_tokens(&self) -> u64 {
        let saved = self.level.max(0) / i128::from(LEVEL_PER_TOKEN);
        saturating(saved)
    }

    /// Replaces the level by `tokens`, limited to the depth. Debt is removed, too.
    pub fn set_saved_tokens(&mut self, tokens: u64) {
        let level = i128::from(tokens) * i128::from(LEVEL_PER_TOKEN);
        self.level = level.min(self.depth.level(self.rate_per_second));
    }

    /// See [`Credit::repeated`](super::credit::Credit).
    pub(crate) fn repeated(
        &self,
        (before, after): (&Self, &Self),
        cycle: Duration,
        least: i128,
    ) -> Option<Self> {
        let change = after.level - before.level;
        if (after.rate_per_second, after.depth) != (before.rate_per_second, before.depth) {
            return None;
        }
        if change == 0 && self == after {
            return Some(*self);
        }
        // No token was lost and no request waited if there was room for all of the inflow and
        // enough for all charges, in any order.
        let inflow = u128::from(self.rate_per_second) * u128::from(cycle.ns);
        let depth = self.depth.level(self.rate_per_second);
        let is_far_from_both_ends = |level: i128| {
            let most = level.saturating_add_unsigned(inflow);
            level.saturating_add(change).saturating_sub_unsigned(inflow) >= least && most <= depth
        };
        let same_way = is_far_from_both_ends(before.level) && is_far_from_both_ends(self.level);
        same_way.then(|| Self { level: self.level + change, ..*self })
    }

    /// Returns the tokens per second that flow in.
    #[must_use]
    pub const fn rate_per_second(&self) -> u64 {
        self.rate_per_second
    }

    /// Returns the exact level in token x 10^9, negative in debt.
    #[must_use]
    pub const fn level(&self) -> i128 {
        self.level
    }
}

// An absent bucket must cost nothing but its own room: five of them are in each idle volume.
const _: () = assert!(size_of::<Option<Bucket>>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    const TAU: Depth = Depth::time(Duration::from_ms(50));

    #[test]
    fn a_full_pacer_holds_its_tolerance_and_one_more() {
        let mut bucket = Bucket::full(1_000, TAU);
        let mut served = 0;
        while bucket.is_ready() {
            bucket.charge(1);
            served += 1;
        }
        assert_eq!(served, 51);
        assert_eq!(bucket.wait(), Some(Duration::from_ms(1)));
    }

    #[test]
    fn every_tolerance_from_a_millisecond_to_a_second_is_exact() {
        for (tolerance_ms, rate, tokens) in
            [(1, 100, 0), (1, 16_000, 16), (5, 3_000, 15), (50, 333, 16), (1_000, 256_000, 256_000)]
        {
            let depth = Depth::time(Duration::from_ms(tolerance_ms));
            assert_eq!(Bucket::full(rate, depth).saved_tokens(), tokens);
            let mut bucket = Bucket::empty(rate, depth);
            bucket.settle(Duration::from_secs(3_600));
            assert_eq!(bucket, Bucket::full(rate, depth));
        }
    }

    #[test]
    fn a_rate_of_zero_is_closed_even_with_tokens_saved() {
        let mut bucket = Bucket::full(0, Depth::tokens(10));
        bucket.settle(Duration::from_ns(u64::MAX));
        assert!(!bucket.is_ready());
        assert_eq!(bucket.wait(), None);
    }

    #[test]
    fn lowering_the_rate_waits_at_most_a_second() {
        let mut bucket = Bucket::empty(1 << 30, TAU);
        bucket.charge(1 << 20);
        bucket.set_rate(1_000, TAU);
        assert_eq!(bucket.wait(), Some(MODIFY_WAIT_MAX));
        // Debt that fits into a second is kept in full.
        let mut bucket = Bucket::empty(1 << 30, TAU);
        bucket.charge(1 << 20);
        bucket.set_rate(4 << 20, TAU);
        assert_eq!(bucket.wait(), Some(Duration::from_ms(250)));
    }

    #[test]
    fn closing_and_opening_forgives_nothing() {
        let mut bucket = Bucket::empty(4 << 20, TAU);
        bucket.charge(1 << 20);
        bucket.set_rate(0, TAU);
        bucket.set_rate(4 << 20, TAU);
        assert_eq!(bucket.wait(), Some(Duration::from_ms(250)));
    }

    #[test]
    fn changing_the_rate_never_refills() {
        let mut bucket = Bucket::empty(100, TAU);
        bucket.set_rate(1_000_000, TAU);
        assert_eq!(bucket.level(), 0);
        let mut bucket = Bucket::full(1_000_000, TAU);
        bucket.set_rate(100, TAU);
        assert_eq!(bucket, Bucket::full(100, TAU));
    }
}
