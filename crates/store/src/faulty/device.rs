//! The device that all volumes of a faulty pool share: a number of channels, service times, a write
//! cache, stalls. It is a pure function: for a time and a request, it returns when the request is
//! done.
//!
//! It is the device of the simulator (`evenkeel_sim::world::device`) without the parts that are
//! only known afterwards. Channels are assigned in the order of the requests, so the end of each
//! request is known when it is submitted, and no event is needed to start the next one. A channel
//! continues at the time at which it became free, not when a thread noticed that. So a late timer
//! delays answers, but costs no throughput.

use super::setup::{Setup, Stalls};
use evenkeel_core::device::{Cache, Head};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module's text. Internal times are nanoseconds of the device's own time, which begins
/// with the device and stands still during a stall.
#[derive(Debug)]
pub struct Device {
    setup: Setup,
    origin: Instant,
    random: Random,
    /// Time at which each channel is free.
    free_at: BinaryHeap<Reverse<u64>>,
    cache: Cache,
}

impl Device {
    /// Creates an idle device, whose stalls and slowdowns are counted from `origin`.
    #[must_use]
    pub fn new(setup: &Setup, origin: Instant) -> Self {
        Self {
            setup: *setup,
            origin,
            random: Random::new(setup.seed, 0),
            free_at: (0..setup.channels).map(|_| Reverse(0)).collect(),
            cache: Cache::new(setup.cache),
        }
    }

    /// Adds a request for a range of a volume, which has its own head. Returns the time at which it
    /// is done.
    pub fn give(
        &mut self,
        now: Instant,
        operation: Operation,
        range: (u64, u32),
        head: &mut Head,
    ) -> Instant {
        let own_now = own_time(self.setup.stalls, now.since(self.origin).ns);
        let free_at = self.free_at.pop().map_or(0, |Reverse(at)| at);
        let begin = free_at.max(own_now);
        let end = begin.saturating_add(self.service_ns(begin, operation, range, head));
        self.free_at.push(Reverse(end));
        Instant::from_ns(self.origin.ns.saturating_add(real_time(self.setup.stalls, end)))
    }

    /// Returns the service time of a request on a channel, in nanoseconds.
    fn service_ns(
        &mut self,
        begin: u64,
        operation: Operation,
        range: (u64, u32),
        head: &mut Head,
    ) -> u64 {
        let Setup { read, write, near_ns, .. } = self.setup;
        let (time, moved) = match operation {
            Operation::Read => (head.time(near_ns, read, range), range.1),
            Operation::Write { .. } => (head.time(near_ns, write, range), range.1),
            _ => (write, 0),
        };
        let mean = time.ns(moved).saturating_mul(self.percent(begin)) / 100;
        let noisy = self.random.around(mean, self.setup.noise_ppm);
        match operation {
            Operation::Write { fua } => noisy.saturating_add(self.cache.wait_ns(begin, moved, fua)),
            _ => noisy,
        }
    }

    /// Returns the service time of a request that begins now, in percent of the original one.
    fn percent(&self, begin: u64) -> u64 {
        match self.setup.slowdown {
            Some(slow) if real_time(self.setup.stalls, begin) >= slow.at_ns => slow.percent.into(),
            _ => 100,
        }
    }
}

/// Returns the device's own time at `at_ns` after its origin. Each period except the first begins
/// with a stall.
fn own_time(stalls: Option<Stalls>, at_ns: u64) -> u64 {
    let Some(Stalls { every_ns, length_ns }) = stalls else { return at_ns };
    match at_ns / every_ns {
        0 => at_ns,
        periods => at_ns - (periods - 1) * length_ns - (at_ns % every_ns).min(length_ns),
    }
}

/// Returns the first time at which the device's own time is `own_ns`.
fn real_time(stalls: Option<Stalls>, own_ns: u64) -> u64 {
    let Some(Stalls { every_ns, length_ns }) = stalls else { return own_ns };
    let stalled = own_ns.saturating_sub(every_ns).div_ceil(every_ns - length_ns);
    own_ns.saturating_add(stalled.saturating_mul(length_ns))
}

#[cfg(test)]
mod tests {
    use super::super::setup::Slowdown;
    use super::*;
    use evenkeel_core::device::{ServiceTime, WriteCache};
    use proptest::prelude::*;

    const WRITE: Operation = Operation::Write { fua: false };

    fn setup(channels: u32, base_ns: u64, ns_per_kib: u64) -> Setup {
        let time = ServiceTime { base_ns, ns_per_kib };
        Setup::new(channels, time)
    }

    fn device(setup: &Setup) -> Device {
        Device::new(setup, Instant::ZERO)
    }

    fn give(device: &mut Device, at: u64, operation: Operation, length: u32) -> u64 {
        device.give(Instant::from_ns(at), operation, (0, length), &mut Head::default()).ns
    }

    #[test]
    fn channels_are_waited_for_in_turn() {
        let mut device = device(&Setup {
            write: ServiceTime { base_ns: 300, ns_per_kib: 0 },
            ..setup(2, 100, 10)
        });
        assert_eq!(give(&mut device, 0, Operation::Read, 10 << 10), 200);
        assert_eq!(give(&mut device, 0, WRITE, 1 << 20), 300);
        assert_eq!(give(&mut device, 50, Operation::Read, 0), 300);
        assert_eq!(give(&mut device, 60, Operation::Read, 0), 400);
    }

    #[test]
    fn stall_delays_requests_under_way_and_new_ones() {
        let stalls = Some(Stalls { every_ns: 1_000, length_ns: 400 });
        let mut device = device(&Setup { stalls, ..setup(4, 100, 0) });
        assert_eq!(give(&mut device, 800, WRITE, 0), 900);
        assert_eq!(give(&mut device, 950, WRITE, 0), 1_450);
        assert_eq!(give(&mut device, 1_100, WRITE, 0), 1_500);
        assert_eq!(give(&mut device, 2_399, WRITE, 0), 2_500);
    }

    #[test]
    fn writes_are_fast_until_the_cache_is_full() {
        let cache = Some(WriteCache { bytes: 2_000, drain_bytes_per_second: 1_000_000_000 });
        let mut device = device(&Setup { cache, ..setup(8, 100, 0) });
        let ends: Vec<u64> = (0..3).map(|_| give(&mut device, 0, WRITE, 1_000)).collect();
        assert_eq!(ends, [100, 100, 1_100]);
        assert_eq!(give(&mut device, 0, Operation::Read, 1_000), 100);
        let durable = Operation::Write { fua: true };
        assert_eq!(give(&mut device, 10_000, durable, 500), 10_600);
    }

    #[test]
    fn slowdown_applies_to_requests_that_begin_after_it() {
        let slowdown = Some(Slowdown { at_ns: 1_000, percent: 130 });
        let mut device = device(&Setup { slowdown, ..setup(1, 100, 0) });
        assert_eq!(give(&mut device, 900, WRITE, 1), 1_000);
        assert_eq!(give(&mut device, 950, WRITE, 1), 1_130);
    }

    /// Late callers find the channels in the state that they would have if all callers were on
    /// time: the throughput does not depend on when the ends of requests are noticed.
    #[test]
    fn lateness_costs_no_throughput() {
        let mut device = device(&setup(4, 1_000, 0));
        let mut under_way: Vec<u64> = (0..16).map(|_| give(&mut device, 0, WRITE, 0)).collect();
        let mut done = 0;
        let mut now = 0;
        while now < 1_000_000 {
            // Called every 700, up to 700 late.
            now += 700;
            let ended = under_way.iter().filter(|&&end| end <= now).count();
            under_way.retain(|&end| end > now);
            done += ended;
            under_way.extend((0..ended).map(|_| give(&mut device, now, WRITE, 0)));
        }
        assert!((3_980..=4_004).contains(&done), "{done}");
    }

    proptest! {
        #[test]
        fn own_time_and_real_time_are_inverse(
            every_ns in 2_u64..10_000, part in 0_u64..1_000, at in 0_u64..1_000_000,
        ) {
            let stalls = Some(Stalls { every_ns, length_ns: 1 + part * (every_ns - 1) / 1_001 });
            let own = own_time(stalls, at);
            let first = real_time(stalls, own);
            prop_assert!(first <= at);
            prop_assert_eq!(own_time(stalls, first), own);
            prop_assert!(first == 0 || own_time(stalls, first - 1) < own);
        }
    }
}
