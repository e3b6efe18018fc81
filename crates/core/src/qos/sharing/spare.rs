//! How much of a device is kept free of large requests while urgent ones come: at first the last
//! channel, and more if that turns out not to be enough.
//!
//! How many channels a device has is found from the outside, one more or less, and one less is
//! enough for an urgent request to wait for a large one after all. So it is watched: where urgent
//! requests take much longer than the fastest of them lately, one more channel is kept free, up to
//! half of them; after a long time in which they did not, one less is tried.

use crate::time::Duration;

/// Fractions of a part.
const ONE: u64 = 1_024;

/// An urgent request is late that took more than so many times what the fastest took, or what one
/// takes by the model, if that is more.
const LATE_TIMES: u64 = 2;

/// Urgent requests are looked at in runs of so many.
const RUN: u32 = 64;

/// So many late ones in a run are one too many.
const LATE_MAX: u32 = 2;

/// After so many runs without, one channel less is kept free.
const CALM_RUNS: u32 = 16;

/// The fastest is forgotten by this part with each that is slower.
const FORGET: u64 = 512;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Spare {
    channels: u32,
    /// Requests that may be in flight once a large one is added.
    most: u32,
    /// What other schedulers of the device found.
    others_most: u32,
    fastest_ns: u64,
    seen: u32,
    late: u32,
    calm: u32,
}

impl Spare {
    pub const fn new(channels: u32) -> Self {
        let channels = if channels == 0 { 1 } else { channels };
        Self {
            channels,
            most: channels.saturating_sub(1),
            others_most: u32::MAX,
            fastest_ns: u64::MAX,
            seen: 0,
            late: 0,
            calm: 0,
        }
    }

    /// Requests that may be in flight on the whole device once a large one is added, as found here.
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// Notes what other schedulers of the device found, whose urgent requests come, too.
    pub fn set_others(&mut self, most: Option<u32>) {
        self.others_most = most.unwrap_or(u32::MAX);
    }

    /// Whether there is room for an urgent request if a large one is added to so many in flight,
    /// for a scheduler that has `part` 1,024ths of the device. Where that is less than two channels
    /// none is kept free.
    pub fn is_left(&self, in_flight: u32, part: u64) -> bool {
        let most = u64::from(self.most.min(self.others_most)) * part / ONE;
        u64::from(self.channels) * part / ONE < 2 || u64::from(in_flight) < most.max(1)
    }

    /// Learns from an urgent request: what it took, and what one like it takes by the model.
    pub fn learn(&mut self, service: Duration, expected_ns: u64) {
        // What is slow for good is no reason to keep anybody waiting, nor is what a device gives or
        // takes of its own accord.
        self.fastest_ns = self.fastest_ns.min(service.ns);
        self.seen += 1;
        if service.ns > LATE_TIMES.saturating_mul(self.fastest_ns.max(expected_ns)) {
            self.late += 1;
        }
        self.fastest_ns = self.fastest_ns.saturating_add(self.fastest_ns / FORGET);
        if self.late >= LATE_MAX {
            self.most = self.most.saturating_sub(1).max(self.channels / 2).max(1);
            (self.seen, self.late, self.calm) = (0, 0, 0);
        } else if self.seen == RUN {
            (self.seen, self.late) = (0, 0);
            self.calm += 1;
            if self.calm == CALM_RUNS {
                self.calm = 0;
                self.most = (self.most + 1).min(self.channels.saturating_sub(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = ONE;

    #[test]
    fn the_last_channel_is_kept_free_of_each_part() {
        let spare = Spare::new(4);
        assert!(spare.is_left(2, PART) && !spare.is_left(3, PART));
        assert!(spare.is_left(0, PART / 2) && !spare.is_left(1, PART / 2));
        assert!(spare.is_left(9, PART / 4), "one channel is never kept free");
        assert!(Spare::new(1).is_left(9, PART));
    }

    #[test]
    fn late_urgent_requests_keep_more_free_and_calm_gives_it_back() {
        let mut spare = Spare::new(8);
        let learn = |spare: &mut Spare, count: u32, us: u64| {
            (0..count).for_each(|_| spare.learn(Duration::from_us(us), 500_000));
            spare.most()
        };
        assert_eq!(learn(&mut spare, 640, 600), 7);
        assert_eq!(learn(&mut spare, 1, 5_000), 7, "one is an accident");
        assert_eq!(learn(&mut spare, 1, 5_000), 6);
        assert_eq!(learn(&mut spare, 100, 5_000), 4, "never less than half");
        assert_eq!(learn(&mut spare, 3 * RUN * CALM_RUNS, 600), 7);
        assert_eq!(learn(&mut spare, 10 * RUN * CALM_RUNS, 600), 7, "never all of it");
    }

    #[test]
    fn what_is_slow_for_good_is_not_late() {
        let mut spare = Spare::new(8);
        for _ in 0..10_000 {
            spare.learn(Duration::from_ms(5), 500_000);
        }
        assert_eq!(spare.most(), 7);
    }

    #[test]
    fn what_others_found_counts_while_they_say_so() {
        let mut spare = Spare::new(8);
        spare.set_others(Some(5));
        assert!(spare.is_left(4, PART) && !spare.is_left(5, PART));
        spare.set_others(None);
        assert!(spare.is_left(6, PART));
    }
}
