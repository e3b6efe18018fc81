//! A limit of a rate that saves for a fraction of a second: the [`Bucket`](super::bucket::Bucket)
//! that each request passes, in one word.
//!
//! It is the same exact level (token x 10^9, debt is negative), narrowed to 64 bits: at most 2^62
//! is saved, which is a second of 4.6 billion tokens a second and 50 ms of 92 billion. No volume
//! type or instance comes near. Savings over a longer time (credits) stay in a bucket. The depth is
//! a time that all pacers of a limiter share, so it is an argument and not kept here.

use super::bucket::{LEVEL_PER_TOKEN, MODIFY_WAIT_MAX};
use super::phase::Phase;
use crate::convert::saturating;
use crate::time::Duration;

/// Maximum level that is saved.
const LEVEL_MAX: u64 = 1 << 62;

/// Time for which a pacer may save: the time in which its rate fills it. At most 4.29 s; more is
/// clamped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tolerance {
    ns: u32,
}

impl Tolerance {
    pub fn new(span: Duration) -> Self {
        Self { ns: saturating(span.ns) }
    }

    /// Returns the highest level at `rate`.
    fn level(self, rate: u64) -> i64 {
        rate.saturating_mul(self.ns.into()).min(LEVEL_MAX).cast_signed()
    }
}

/// A level that rises at a rate, or no limit at all. The owner keeps the time of the last settling.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pacer {
    /// Token x 10^9; negative is debt. Stays 0 without a limit.
    level: i64,
    /// Tokens per second; [`UNLIMITED`] stands for no limit.
    rate: u64,
}

/// More than any rate. Instead of a separate mark, this saves a word in each volume.
const UNLIMITED: u64 = u64::MAX;

impl Pacer {
    /// No limit: always ready, nothing to charge.
    pub const NONE: Self = Self { level: 0, rate: UNLIMITED };

    /// Creates a pacer with the maximum saved; `None` is no limit, a rate of 0 is closed.
    pub fn full(rate_per_second: Option<u64>, tolerance: Tolerance) -> Self {
        let Some(rate) = rate_per_second.filter(|rate| *rate != UNLIMITED) else {
            return Self::NONE;
        };
        Self { level: tolerance.level(rate), rate }
    }

    /// Returns the tokens per second that flow in; `None` is no limit.
    pub const fn rate_per_second(&self) -> Option<u64> {
        if self.is_limited() { Some(self.rate) } else { None }
    }

    const fn is_limited(&self) -> bool {
        self.rate != UNLIMITED
    }

    /// Adds the inflow of `elapsed`. Returns for how much of it the pacer was full, and tokens were
    /// lost. Settling twice equals settling once for the sum. Inlined, so that callers without use
    /// for the time do not pay for the division.
    #[inline]
    pub fn settle(&mut self, elapsed: Duration, tolerance: Tolerance) -> Duration {
        if !self.is_limited() {
            return elapsed;
        }
        let inflow = self.rate.saturating_mul(elapsed.ns);
        let full = tolerance.level(self.rate);
        debug_assert!(self.level <= full, "the level is clamped when rate or tolerance falls");
        let missing = full.wrapping_sub(self.level).cast_unsigned();
        if inflow <= missing {
            self.level = self.level.wrapping_add_unsigned(inflow); // at most full
            return Duration::ZERO;
        }
        self.level = full;
        Duration::from_ns(elapsed.ns.saturating_sub(missing.div_ceil(self.rate)))
    }

    /// Writes the state that determines its future, at `elapsed` after its last settling.
    pub fn tell(&self, elapsed: Duration, tolerance: Tolerance, phase: &mut Phase) {
        let mut pacer = *self;
        let _ = pacer.settle(elapsed, tolerance);
        phase.words([pacer.level.cast_unsigned(), pacer.rate, tolerance.ns.into()]);
    }

    /// Returns whether one more request may pass, of any size.
    pub const fn is_ready(&self) -> bool {
        self.level >= 0 && self.rate > 0
    }

    /// Takes `tokens`, into debt if necessary.
    pub fn charge(&mut self, tokens: u64) {
        if self.is_limited() {
            let cost = tokens.saturating_mul(LEVEL_PER_TOKEN).min(i64::MAX.cast_unsigned());
            self.level = self.level.saturating_sub(cost.cast_signed());
        }
    }

    /// Returns how long after the last settling the pacer is ready, to the nanosecond: it is not
    /// ready one earlier. `None` is never.
    pub fn wait(&self) -> Option<Duration> {
        if self.level >= 0 && self.rate > 0 {
            return Some(Duration::ZERO); // of two limits one is ready as a rule
        }
        let debt = if self.level < 0 { self.level.unsigned_abs() } else { 0 };
        (self.rate > 0).then(|| Duration::from_ns(debt.div_ceil(self.rate)))
    }

    /// Changes the rate from now on. Settle first, so that the past counts at the old rate. Nothing
    /// is refilled and debt is kept up to a second's worth, as in
    /// [`Bucket::set_rate`](super::bucket::Bucket::set_rate); a new limit starts with nothing
    /// saved.
    pub fn set_rate(&mut self, rate_per_second: Option<u64>, tolerance: Tolerance) {
        let Some(rate) = rate_per_second.filter(|rate| *rate != UNLIMITED) else {
            *self = Self::NONE;
            return;
        };
        self.rate = rate;
        self.level = self.level.min(tolerance.level(rate));
        if rate > 0 {
            let debt_max = rate.saturating_mul(MODIFY_WAIT_MAX.ns);
            let debt_max: i64 = saturating(debt_max);
            self.level = self.level.max(-debt_max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::bucket::{Bucket, Depth};
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum PacerCall {
        Settle(u64),
        Charge(u64),
        SetRate(u64),
    }

    fn rates() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 1..1_000_u64, 1_000..4_600_000_000_u64]
    }

    fn steps() -> impl Strategy<Value = PacerCall> {
        prop_oneof![
            4 => prop_oneof![0..1_000_000_u64, 0..10_000_000_000_u64, Just(u64::MAX)]
                .prop_map(PacerCall::Settle),
            4 => prop_oneof![0..17_u64, 0..2_000_000_u64].prop_map(PacerCall::Charge),
            1 => rates().prop_map(PacerCall::SetRate),
        ]
    }

    proptest! {
        /// The bucket, which is checked against rationals, is the oracle.
        #[test]
        fn a_pacer_is_a_bucket(
            rate in rates(),
            tolerance_us in 1_000..=1_000_000_u64,
            steps in proptest::collection::vec(steps(), 1..200),
        ) {
            let span = Duration::from_us(tolerance_us);
            let tolerance = Tolerance::new(span);
            let depth = Depth::time(span);
            let mut pacer = Pacer::full(Some(rate), tolerance);
            let mut bucket = Bucket::full(rate, depth);
            for step in steps {
                match step {
                    PacerCall::Settle(ns) => {
                        let full_in = bucket.time_to_full().map_or(ns, |time| time.ns);
                        let full = pacer.settle(Duration::from_ns(ns), tolerance);
                        prop_assert_eq!(full.ns, ns.saturating_sub(full_in));
                        bucket.settle(Duration::from_ns(ns));
                    }
                    PacerCall::Charge(tokens) => {
                        pacer.charge(tokens);
                        bucket.charge(tokens);
                    }
                    PacerCall::SetRate(rate) => {
                        pacer.set_rate(Some(rate), tolerance);
                        bucket.set_rate(rate, depth);
                    }
                }
                prop_assert_eq!(i128::from(pacer.level), bucket.level());
                prop_assert_eq!(pacer.is_ready(), bucket.is_ready());
                prop_assert_eq!(pacer.wait(), bucket.wait());
            }
        }
    }

    #[test]
    fn rate_beyond_its_range_saturates_and_never_wraps() {
        let tolerance = Tolerance::new(Duration::from_secs(4));
        let mut pacer = Pacer::full(Some(u64::MAX - 1), tolerance);
        assert_eq!(pacer.level.cast_unsigned(), LEVEL_MAX);
        pacer.charge(u64::MAX);
        assert!(!pacer.is_ready());
        pacer.settle(Duration::from_ns(u64::MAX), tolerance);
        assert_eq!(pacer.level.cast_unsigned(), LEVEL_MAX);
    }

    #[test]
    fn no_limit_is_always_ready() {
        let tolerance = Tolerance::new(Duration::from_ms(50));
        let mut pacer = Pacer::NONE;
        pacer.charge(u64::MAX);
        // Without a limit it counts as full all the time.
        assert_eq!(pacer.settle(Duration::from_secs(1), tolerance), Duration::from_secs(1));
        assert!(pacer.is_ready());
        assert_eq!((pacer.wait(), pacer.rate_per_second()), (Some(Duration::ZERO), None));
    }
}
