//! What can be seen of a replay under way.

use super::{Bucket, Fluid, MICRO, Part, ppm};

impl Fluid {
    /// Microseconds in which requests waited until now, by the limit that they waited for.
    #[must_use]
    pub fn throttled_us(&self) -> &[u64] {
        &self.throttled_us
    }

    /// Microseconds in which requests waited until now.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.throttled_us.iter().sum()
    }

    /// Until when the limits are busy with what has come, in microseconds.
    #[must_use]
    pub const fn free_us(&self) -> u64 {
        self.free_us
    }

    /// The credits of each limit; zero of one without.
    pub fn credits(&self) -> impl Iterator<Item = u64> {
        let whole = |bucket: &Bucket| u64::try_from(bucket.credits / MICRO).unwrap_or(u64::MAX);
        self.buckets.iter().map(whole)
    }

    /// Whether a part comes as fast as so many thousandths of what a limit lets through now, or
    /// more, or a tenth of the rest of these thousandths is all that is left of credits.
    #[must_use]
    pub fn is_near(&self, part: &Part, permille: u32) -> bool {
        let length_us = u128::from(part.length_us);
        let (near, rest) = (u128::from(permille), u128::from(1_000_u32.saturating_sub(permille)));
        self.buckets.iter().any(|bucket| {
            bucket.amount(part) * 1_000 > bucket.now() * length_us * near
                || bucket.credits * 10_000 < bucket.capacity * rest
        })
    }

    /// The credits that each limit has now, in millionths of what it can save; `None` where there
    /// are none to save.
    pub fn balances_ppm(&self) -> impl Iterator<Item = Option<u32>> {
        let saves = self.buckets.iter().map(|bucket| (bucket.capacity > 0).then_some(bucket));
        saves.map(|bucket| bucket.map(|bucket| ppm(bucket.credits, bucket.capacity)))
    }
}
