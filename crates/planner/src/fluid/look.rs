//! The state of a replay in progress.

use super::{Bucket, Fluid, MICRO, Part, ppm};
use crate::delays::Delays;
use evenkeel_core::convert::saturating;

impl Fluid {
    /// Returns the time in which requests waited so far, in microseconds, by the limit for which
    /// they waited.
    #[must_use]
    pub fn throttled_us(&self) -> &[u64] {
        &self.throttled_us
    }

    /// Returns the time in which requests waited so far, in microseconds.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.throttled_us.iter().sum()
    }

    /// Returns the time until which the limits are busy with the requests so far, in microseconds.
    #[must_use]
    pub const fn free_us(&self) -> u64 {
        self.free_us
    }

    /// Returns the credits of each limit; zero of one without credits.
    pub fn credits(&self) -> impl Iterator<Item = u64> {
        let whole = |bucket: &Bucket| saturating::<_, u64>(bucket.credits / MICRO);
        self.buckets.iter().map(whole)
    }

    /// Returns the credits of each limit, in millionths.
    pub(crate) fn micro_credits(&self) -> Vec<u128> {
        self.buckets.iter().map(|bucket| bucket.credits).collect()
    }

    /// Returns the lowest credits of each limit so far, in millionths.
    pub(crate) fn least_micro_credits(&self) -> &[u128] {
        &self.least
    }

    /// Returns the credits of each limit without which its rate falls to what it earns.
    pub(crate) fn needed_micro_credits(&self) -> Vec<u128> {
        self.buckets.iter().map(|bucket| bucket.rate - bucket.refill).collect()
    }

    /// Advances the time by `us` in which these millionths of credits are spent, more than are
    /// earned.
    pub(crate) fn skip(&mut self, us: u64, spent: &[u128]) {
        self.free_us = self.free_us.saturating_add(us);
        for ((bucket, least), spent) in self.buckets.iter_mut().zip(&mut self.least).zip(spent) {
            bucket.credits = bucket.credits.saturating_sub(*spent);
            *least = least.saturating_sub(*spent);
        }
    }

    /// Returns the delays so far, and forgets them.
    pub(crate) fn take_delays(&mut self) -> Delays {
        std::mem::take(&mut self.delays)
    }

    /// Returns whether a part arrives faster than `permille` thousandths of a limit's present rate,
    /// or whether credits are lower than a tenth of the remaining thousandths of their maximum.
    #[must_use]
    pub fn is_near(&self, part: &Part, permille: u32) -> bool {
        let length_us = u128::from(part.length_us);
        let near = u128::from(permille);
        let rest = u128::from(1_000_u32.saturating_sub(permille));
        self.buckets.iter().any(|bucket| {
            bucket.amount(part) * 1_000 > bucket.now() * length_us * near
                || bucket.credits * 10_000 < bucket.capacity * rest
        })
    }

    /// Returns the present credits of each limit, in millionths of the maximum; `None` of one
    /// without credits.
    pub fn balances_ppm(&self) -> impl Iterator<Item = Option<u32>> {
        let saves = self.buckets.iter().map(|bucket| (bucket.capacity > 0).then_some(bucket));
        saves.map(|bucket| bucket.map(|bucket| ppm(bucket.credits, bucket.capacity)))
    }
}
