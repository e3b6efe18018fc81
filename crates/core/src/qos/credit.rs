//! Credits: a balance that is earned at a baseline rate and spent by every request, minutes deep.
//!
//! gp2 counts them in I/Os, st1 and sc1 in bytes. While a balance is left, the peak rate's pacer is
//! the effective limit; once it is gone, debt makes the baseline the exact rate and paces it
//! evenly: each request waits until its cost has been earned. Earning continues while spending, so
//! a balance `B` with a demand of `d` per second and a baseline `b` lasts `B / (d - b)` seconds.
//!
//! A part of the balance may be *unleased*: it exists, and may not be spent. The control plane,
//! which keeps balances on a disk, leases credits ahead, so that the balance on the disk is at each
//! moment a lower bound of the real one. Once only the unleased part is left, the baseline is the
//! rate, as without a balance.

use super::bucket::{Bucket, Depth, LEVEL_PER_TOKEN};
use super::pacing::CreditLimit;
use crate::convert::saturating;
use crate::time::Duration;

/// The credits of one dimension of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    /// The balance.
    bucket: Bucket,
    /// Units of it that may not be spent.
    unleased: u64,
}

impl Credit {
    /// Creates the credits of a new volume: a full balance.
    #[must_use]
    pub fn full(limit: CreditLimit) -> Self {
        let bucket = Bucket::full(limit.refill_per_second, Depth::tokens(limit.capacity));
        Self { bucket, unleased: 0 }
    }

    /// Creates credits without a balance or debt: a modification that adds credits makes no gift.
    #[must_use]
    pub const fn empty(limit: CreditLimit) -> Self {
        let bucket = Bucket::empty(limit.refill_per_second, Depth::tokens(limit.capacity));
        Self { bucket, unleased: 0 }
    }

    /// Adds the credits earned in `elapsed`.
    pub fn settle(&mut self, elapsed: Duration) {
        self.bucket.settle(elapsed);
    }

    /// Returns the lowest level that is not overdrawn.
    fn least(&self) -> i128 {
        // At most 2^94: an i128 holds it.
        i128::from(self.unleased) * i128::from(LEVEL_PER_TOKEN)
    }

    /// Returns whether the leased part is not overdrawn.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.bucket.is_ready_above(self.least())
    }

    /// Spends `units`, into debt if necessary.
    pub fn charge(&mut self, units: u64) {
        self.bucket.charge(units);
    }

    /// Returns how long after the last settling the leased part is not overdrawn any more; `None`
    /// is never.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.bucket.wait_above(self.least())
    }

    /// Changes rate and capacity. The balance stays, clamped to the new capacity, and so does its
    /// unleased part.
    pub fn set_limit(&mut self, limit: CreditLimit) {
        self.bucket.set_rate(limit.refill_per_second, Depth::tokens(limit.capacity));
        self.unleased = self.unleased.min(limit.capacity);
    }

    /// Sets the units of the balance that may not be spent from now on, limited to the balance.
    /// Returns them.
    pub fn set_unleased(&mut self, units: u64) -> u64 {
        self.unleased = units.min(self.balance());
        self.unleased
    }

    /// Returns the balance in whole units; 0 if overdrawn.
    #[must_use]
    pub fn balance(&self) -> u64 {
        self.bucket.saved_tokens()
    }

    /// Replaces the balance, limited to the capacity. An overdraft is removed, too, and the
    /// unleased part is limited to the balance.
    pub fn set_balance(&mut self, units: u64) {
        self.bucket.set_saved_tokens(units);
        self.unleased = self.unleased.min(self.balance());
    }

    /// Returns how long the leased part lasts at a demand of `demand_per_second` units, rounded
    /// down to the nanosecond; `None` if it lasts without end because at least as much is earned.
    #[must_use]
    pub fn time_to_empty(&self, demand_per_second: u64) -> Option<Duration> {
        let refill = self.bucket.rate_per_second();
        let drain = demand_per_second.checked_sub(refill).filter(|drain| *drain > 0)?;
        let saved = self.bucket.level().saturating_sub(self.least()).max(0).unsigned_abs();
        let ns = saved / u128::from(drain);
        Some(Duration::from_ns(saturating(ns)))
    }

    /// Returns the credits after a repetition of all that changed them from `before` to `after`, in
    /// the time of a cycle; `None` if a repetition might differ, because they might be full or
    /// spent meanwhile.
    pub(crate) fn repeated(
        &self,
        (before, after): (&Self, &Self),
        cycle: Duration,
    ) -> Option<Self> {
        if (before.unleased, after.unleased) != (self.unleased, self.unleased) {
            return None;
        }
        let bucket = self.bucket.repeated((&before.bucket, &after.bucket), cycle, self.least())?;
        Some(Self { bucket, ..*self })
    }

    /// Returns the time until the balance is full without demand, rounded up to the nanosecond;
    /// `None` if nothing is earned.
    #[must_use]
    pub fn time_to_full(&self) -> Option<Duration> {
        self.bucket.time_to_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gp2(refill_per_second: u64) -> CreditLimit {
        CreditLimit { refill_per_second, capacity: 5_400_000 }
    }

    /// The published gp2 table: baseline, seconds of burst at 3,000 IOPS, seconds to refill.
    #[test]
    fn gp2_bursts_and_refills_as_published() {
        for (baseline, burst_s, refill_s) in [
            (100, 1_862, 54_000),
            (300, 2_000, 18_000),
            (642, 2_290, 8_412),
            (750, 2_400, 7_200),
            (1_002, 2_703, 5_389),
            (1_500, 3_600, 3_600),
            (2_250, 7_200, 2_400),
        ] {
            let mut credit = Credit::full(gp2(baseline));
            let burst = credit.time_to_empty(3_000).unwrap();
            assert!(
                burst.ns.abs_diff(Duration::from_secs(burst_s).ns) < 1_000_000_000,
                "{baseline}"
            );
            credit.set_balance(0);
            let refill = credit.time_to_full().unwrap();
            assert!(
                refill.ns.abs_diff(Duration::from_secs(refill_s).ns) < 1_000_000_000,
                "{baseline}"
            );
            credit.settle(Duration::from_ns(refill.ns - 1));
            assert_eq!(credit.balance(), 5_399_999);
            credit.settle(Duration::from_ns(1));
            assert_eq!(credit, Credit::full(gp2(baseline)));
        }
    }

    #[test]
    fn the_baseline_is_earned_as_fast_as_it_is_driven() {
        let credit = Credit::full(gp2(3_000));
        assert_eq!(credit.time_to_empty(3_000), None);
        assert_eq!(credit.time_to_empty(100), None);
    }

    #[test]
    fn a_smaller_capacity_clamps_the_balance_and_a_larger_one_adds_nothing() {
        let mut credit = Credit::full(gp2(100));
        credit.set_limit(CreditLimit { refill_per_second: 100, capacity: 1_000 });
        assert_eq!(credit.balance(), 1_000);
        credit.set_limit(gp2(1_500));
        assert_eq!(credit.balance(), 1_000);
    }

    #[test]
    fn unleased_credits_are_earned_back_like_a_debt() {
        let mut credit = Credit::empty(gp2(100));
        credit.set_balance(1_000);
        assert_eq!(credit.set_unleased(600), 600);
        for _ in 0..401 {
            assert!(credit.is_ready());
            credit.charge(1);
        }
        // One unit into the unleased part: the last charge began above it.
        assert_eq!((credit.is_ready(), credit.balance()), (false, 599));
        assert_eq!(credit.wait(), Some(Duration::from_ms(10)));
        assert_eq!(credit.time_to_empty(3_000), Some(Duration::ZERO));
        credit.settle(Duration::from_ms(10));
        assert!(credit.is_ready());
        // Renews the lease.
        assert_eq!(credit.set_unleased(100), 100);
        assert_eq!(credit.time_to_empty(600), Some(Duration::from_secs(1)));
        // The unleased part is at most the balance.
        assert_eq!(credit.set_unleased(u64::MAX), 600);
        credit.set_balance(5);
        assert_eq!(credit.unleased, 5);
        credit.set_balance(60);
        credit.set_limit(CreditLimit { refill_per_second: 100, capacity: 3 });
        assert_eq!((credit.unleased, credit.balance()), (3, 3));
    }

    #[test]
    fn a_balance_is_set_within_the_capacity() {
        let mut credit = Credit::empty(gp2(100));
        credit.set_balance(60_000);
        assert_eq!(credit.balance(), 60_000);
        credit.set_balance(u64::MAX);
        assert_eq!(credit.balance(), 5_400_000);
    }
}
