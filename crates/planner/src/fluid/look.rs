//! What can be seen of a replay under way.

use super::{Fluid, ppm};

impl Fluid {
    /// Until when the limits are busy with what has come, in microseconds.
    #[must_use]
    pub const fn free_us(&self) -> u64 {
        self.free_us
    }

    /// The credits that each limit has now, in millionths of what it can save; `None` where there
    /// are none to save.
    pub fn balances_ppm(&self) -> impl Iterator<Item = Option<u32>> {
        let saves = self.buckets.iter().map(|bucket| (bucket.capacity > 0).then_some(bucket));
        saves.map(|bucket| bucket.map(|bucket| ppm(bucket.credits, bucket.capacity)))
    }
}
