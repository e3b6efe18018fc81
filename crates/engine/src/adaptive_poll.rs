//! How long to watch for the next event before going to sleep. To sleep and be woken by another
//! processor costs tens of microseconds on a virtual machine, as much as a whole request; a client
//! that works with one request at a time pays it for each. So as long as events follow each other
//! closely, the caller watches for them; otherwise it spends nothing. The rule is KVM's for halted
//! processors (Documentation/virt/kvm/halt-polling.rst), with one addition: a client that the
//! system has put on the same processor cannot send while that processor watches. Its event comes
//! right after the sleep has begun, and not before. So after several watches of the longest time in
//! a row without an event, the watcher rests: it does not watch for a number of waits, and for
//! twice as many when this happens again. One such watch is no reason to rest: a client's own work
//! takes longer now and then.

use evenkeel_core::time::Duration;

/// The first budget above zero.
const START: Duration = Duration { ns: 10_000 };

/// Waits without watching in the first rest. The watches before a rest then take about a thirtieth
/// of the time of the waits.
const REST_MIN: u32 = 1_000;

/// The longest rest, in waits. It ends some tens of milliseconds after the client has moved to
/// another processor.
const REST_MAX: u32 = 16_000;

/// Watches of the longest time in a row without an event after which a rest begins.
const IN_VAIN: u8 = 4;

/// How long to watch, derived from the duration of the last waits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    budget: Duration,
    /// Watches of the longest time in a row without an event.
    in_vain: u8,
    /// Waits without watching that are left of the rest.
    rest: u32,
    /// Waits without watching in the next rest.
    next_rest: u32,
}

impl Patience {
    /// The longest watch: the highest cost of a sleep and a wake-up.
    pub const MAX: Duration = Duration { ns: 50_000 };

    /// Creates a state that does not watch at first.
    #[must_use]
    pub const fn new() -> Self {
        Self { budget: Duration { ns: 0 }, in_vain: 0, rest: 0, next_rest: REST_MIN }
    }

    /// Returns how long to watch now.
    #[must_use]
    pub const fn budget(self) -> Duration {
        self.budget
    }

    /// Records that the event came during the watch.
    pub fn caught(&mut self) {
        self.in_vain = 0;
        self.next_rest = REST_MIN;
    }

    /// Records that the event came after the watch. `waited` is the whole wait, watching and
    /// sleeping.
    pub fn missed(&mut self, waited: Duration) {
        if self.rest > 0 {
            self.rest -= 1;
            return;
        }
        let ns = if waited.ns > 2 * Self::MAX.ns {
            // A watch of the longest time would not have caught it.
            self.budget.ns / 2
        } else if self.budget >= Self::MAX {
            self.in_vain += 1;
            if self.in_vain < IN_VAIN {
                return;
            }
            self.in_vain = 0;
            self.rest = self.next_rest;
            self.next_rest = (2 * self.next_rest).min(REST_MAX);
            0
        } else {
            (self.budget.ns * 2).clamp(START.ns, Self::MAX.ns)
        };
        self.budget.ns = if ns < START.ns { 0 } else { ns };
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the budget in microseconds after waits of these durations. The event is caught if
    /// the budget covers the wait.
    fn after(patience: &mut Patience, waits_us: impl IntoIterator<Item = u64>) -> u64 {
        for us in waits_us {
            let waited = Duration { ns: us * 1_000 };
            if waited <= patience.budget() {
                patience.caught();
            } else {
                patience.missed(waited);
            }
        }
        patience.budget().ns / 1_000
    }

    #[test]
    fn watch_grows_while_waits_are_short_and_ends_while_they_are_long() {
        let new = |waits: &[u64]| after(&mut Patience::new(), waits.iter().copied());
        assert_eq!(new(&[]), 0);
        assert_eq!(new(&[5_000, 1_000_000]), 0, "an idle server never watches");
        assert_eq!(new(&[40]), 10);
        assert_eq!(new(&[45, 45, 45, 45]), 50, "no more than the most");
        assert_eq!(new(&[45, 45, 45, 45, 30, 30]), 50);
        assert_eq!(new(&[45, 45, 45, 45, 5_000]), 25);
        assert_eq!(new(&[45, 45, 45, 45, 5_000, 5_000, 5_000]), 0);
    }

    /// On the same processor an event comes 8 us after the watch has ended, however long that is.
    fn in_the_way(patience: &mut Patience, waits: u32) -> u64 {
        let watched_ns = |patience: &mut Patience| {
            let budget = patience.budget();
            patience.missed(budget + Duration { ns: 8_000 });
            budget.ns
        };
        (0..waits).map(|_| watched_ns(patience)).sum()
    }

    #[test]
    fn polling_in_vain_rests_for_ever_longer() {
        let mut patience = Patience::new();
        let waits = 100_000;
        let watched_ns = in_the_way(&mut patience, waits);
        assert!(watched_ns < u64::from(waits) * 8_000 / 250, "{watched_ns} ns of watching");
        // The client moves to another processor, and is watched for again after the longest rest.
        after(&mut patience, (0..REST_MAX).map(|_| 30));
        assert_eq!(after(&mut patience, [30, 30, 30, 30]), 40);
        // After one watch that succeeds, the first rest is short again.
        in_the_way(&mut patience, 1 + u32::from(IN_VAIN));
        assert_eq!(patience.rest, REST_MIN);
    }

    /// A client on another processor that takes longer now and then.
    #[test]
    fn a_watch_in_vain_now_and_then_is_no_reason_to_rest() {
        let mut patience = Patience::new();
        after(&mut patience, (0..4).map(|_| 45));
        for _ in 0..1_000 {
            assert_eq!(after(&mut patience, [30, 60, 70, 20, 60, 30]), 50);
            assert_eq!(patience.rest, 0);
        }
    }
}
