//! Number of channels of a device that large requests leave free while urgent ones arrive: at first
//! one, and more if that is not enough.
//!
//! The number of channels is measured from the outside, with an error of one; one channel too few
//! is enough to make an urgent request wait for a large one. So the result is checked: if urgent
//! requests take much longer than the fastest of them lately, one more channel is kept free, up to
//! half of them; after a long time without such requests, one less is tried.

use crate::time::Duration;

/// Fractions in which parts are given.
const ONE: u64 = 1_024;

/// An urgent request is late if it takes more than this multiple of the fastest one's time, or of
/// the model's time, if that is longer.
const LATE_TIMES: u64 = 2;

/// Number of urgent requests in a run, after which the count of late ones starts anew.
const RUN: u32 = 64;

/// Number of late requests in a run from which one more channel is kept free.
const LATE_MAX: u32 = 2;

/// Number of runs without that, after which one channel less is kept free.
const CALM_RUNS: u32 = 16;

/// Each request makes the fastest time longer by one part in this number, so that an old one is
/// forgotten.
const FORGET: u64 = 512;

/// State of the free channels; see the module's text.
#[derive(Debug)]
pub(crate) struct Spare {
    channels: u32,
    /// Maximum number of requests in flight once a large one is added.
    most: u32,
    /// Such a maximum of other schedulers of the device.
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

    /// Returns the maximum number of requests in flight on the whole device once a large one is
    /// added, by this scheduler's estimate.
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// Sets the maximum of other schedulers of the device with urgent requests.
    pub fn set_others(&mut self, most: Option<u32>) {
        self.others_most = most.unwrap_or(u32::MAX);
    }

    /// Returns whether there is room for an urgent request if a large one is added to `in_flight`
    /// requests, for a scheduler with `part` 1,024ths of the device. If that is less than two
    /// channels, none is kept free.
    pub fn is_left(&self, in_flight: u32, part: u64) -> bool {
        let most = u64::from(self.most.min(self.others_most)) * part / ONE;
        u64::from(self.channels) * part / ONE < 2 || u64::from(in_flight) < most.max(1)
    }

    /// Updates the estimate with an urgent request: its service time, and its time by the model.
    pub fn learn(&mut self, service: Duration, expected_ns: u64) {
        // A device that is always slow is no reason to delay large requests, nor is one whose speed
        // varies by itself.
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
    fn constantly_slow_device_is_not_late() {
        let mut spare = Spare::new(8);
        for _ in 0..10_000 {
            spare.learn(Duration::from_ms(5), 500_000);
        }
        assert_eq!(spare.most(), 7);
    }

    #[test]
    fn maximum_of_the_others_counts_while_it_is_set() {
        let mut spare = Spare::new(8);
        spare.set_others(Some(5));
        assert!(spare.is_left(4, PART) && !spare.is_left(5, PART));
        spare.set_others(None);
        assert!(spare.is_left(6, PART));
    }
}
