//! Credits: a balance that is earned at a baseline rate and spent by every request, minutes deep.
//!
//! gp2 counts them in I/Os, st1 and sc1 in bytes. While a balance is left, the peak rate's pacer is
//! what binds; once it is gone, debt makes the baseline the exact rate and paces it evenly: each
//! request waits until what it costs has been earned. Earning goes on while spending, so a balance
//! `B` driven at `d` per second against a baseline `b` lasts `B / (d - b)` seconds.

use super::bucket::{Bucket, Depth};
use super::pacing::CreditLimit;
use crate::time::Duration;

/// The credits of one dimension of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit(Bucket);

impl Credit {
    /// The credits of a new volume: a full balance.
    #[must_use]
    pub fn full(limit: CreditLimit) -> Self {
        Self(Bucket::full(limit.refill_per_second, Depth::tokens(limit.capacity)))
    }

    /// No balance and no debt: credits that a modification brings into being are not a gift.
    #[must_use]
    pub const fn empty(limit: CreditLimit) -> Self {
        Self(Bucket::empty(limit.refill_per_second, Depth::tokens(limit.capacity)))
    }

    /// Earns for `elapsed`.
    pub fn settle(&mut self, elapsed: Duration) {
        self.0.settle(elapsed);
    }

    /// Whether the balance is not overdrawn.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        self.0.is_ready()
    }

    /// Spends `units`, into debt if need be.
    pub fn charge(&mut self, units: u64) {
        self.0.charge(units);
    }

    /// How long after the last settling the balance is no longer overdrawn; `None` is never.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.0.wait()
    }

    /// Changes what is earned and how much may be saved. The balance stays, clamped to the new
    /// capacity.
    pub fn set_limit(&mut self, limit: CreditLimit) {
        self.0.set_rate(limit.refill_per_second, Depth::tokens(limit.capacity));
    }

    /// The balance in whole units; 0 when overdrawn.
    #[must_use]
    pub fn balance(&self) -> u64 {
        self.0.saved_tokens()
    }

    /// Replaces the balance, at most by the capacity. An overdraft is gone too.
    pub fn set_balance(&mut self, units: u64) {
        self.0.set_saved_tokens(units);
    }

    /// How long the balance lasts when `demand_per_second` units are driven, rounded down to the
    /// nanosecond; `None` when it lasts for ever because at least as much is earned.
    #[must_use]
    pub fn time_to_empty(&self, demand_per_second: u64) -> Option<Duration> {
        let drain = demand_per_second.checked_sub(self.0.rate_per_second()).filter(|d| *d > 0)?;
        let saved = self.0.level().max(0).unsigned_abs();
        let ns = saved / u128::from(drain);
        Some(Duration::from_ns(u64::try_from(ns).unwrap_or(u64::MAX)))
    }

    /// What they are once all that brought them from `before` to `after`, in the time of a cycle,
    /// has happened once more; `None` if that would not come the same way again, because they might
    /// be full or spent on the way.
    pub(crate) fn repeated(
        &self,
        (before, after): (&Self, &Self),
        cycle: Duration,
    ) -> Option<Self> {
        self.0.repeated((&before.0, &after.0), cycle).map(Self)
    }

    /// How long until the balance is full when nothing is driven, rounded up to the nanosecond;
    /// `None` when nothing is earned.
    #[must_use]
    pub fn time_to_full(&self) -> Option<Duration> {
        self.0.time_to_full()
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
    fn a_balance_is_set_within_the_capacity() {
        let mut credit = Credit::empty(gp2(100));
        credit.set_balance(60_000);
        assert_eq!(credit.balance(), 60_000);
        credit.set_balance(u64::MAX);
        assert_eq!(credit.balance(), 5_400_000);
    }
}
