//! Finds requests that are in flight for too long. After a device's death, a client that does not
//! ask learns of the new map only when a monitor tells it, up to ten seconds later; one that asks
//! learns it at once, and sends again what it owes.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// How long a slot lasts.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// Slots: a request is overdue when two whole ticks have passed since the one that it began in.
const SLOTS: usize = 4;

/// The requests in flight of a volume, by the tick in which they began.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    now: AtomicUsize,
    begun: [AtomicU32; SLOTS],
}

impl Overdue {
    /// A request begins; the slot in which it counts.
    pub(super) fn begun(&self) -> usize {
        let slot = self.now.load(Ordering::Relaxed) % SLOTS;
        self.begun[slot].fetch_add(1, Ordering::Relaxed);
        slot
    }

    /// It has ended.
    pub(super) fn ended(&self, slot: usize) {
        self.begun[slot % SLOTS].fetch_sub(1, Ordering::Relaxed);
    }

    /// A tick has passed. Whether a request that began two ticks before, or earlier, is in flight.
    /// One that is in flight for so long that its slot is used again is found in every fourth.
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
    fn what_is_in_flight_for_two_ticks_is_overdue() {
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
