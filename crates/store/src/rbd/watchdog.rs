//! Detection of overdue requests. After the death of a device, a client learns the new map at once
//! if it requests it, and then repeats its requests. Otherwise it learns the map from a monitor up
//! to ten seconds later.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// Duration of a slot.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Number of slots. A request is overdue when two whole ticks have passed since the one in which it
/// began.
const SLOTS: usize = 4;

/// Numbers of a volume's requests in flight, by the tick in which they began.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    now: AtomicUsize,
    begun: [AtomicU32; SLOTS],
}

impl Overdue {
    /// Counts a request that begins. Returns the slot in which it counts.
    pub(super) fn begun(&self) -> usize {
        let slot = self.now.load(Ordering::Relaxed) % SLOTS;
        self.begun[slot].fetch_add(1, Ordering::Relaxed);
        slot
    }

    /// Removes a request that has ended from its slot.
    pub(super) fn ended(&self, slot: usize) {
        self.begun[slot % SLOTS].fetch_sub(1, Ordering::Relaxed);
    }

    /// Advances to the next tick. Returns whether a request that began at least two ticks ago is in
    /// flight. A request that is still in flight when its slot is reused is found in every fourth
    /// tick.
    pub(super) fn tick(&self) -> bool {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        let is_used =
            |back: usize| self.begun[(now + SLOTS - back) % SLOTS].load(Ordering::Relaxed) > 0;
        is_used(3) || is_used(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_in_flight_for_two_ticks_is_overdue() {
        let overdue = Overdue::default();
        let quick = overdue.begun();
        assert!(!overdue.tick());
        overdue.ended(quick);
        let slow = overdue.begun();
        assert!(!overdue.tick());
        assert!(overdue.tick(), "half a second");
        let seen = (0..40).filter(|_| overdue.tick()).count();
        assert!(seen >= 10, "found again and again, {seen} of 40");
        overdue.ended(slow);
        assert!((0..8).all(|_| !overdue.tick()));
    }
}
