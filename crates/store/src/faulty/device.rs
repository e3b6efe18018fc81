//! The device that all volumes of a faulty pool share: so many channels, what a request takes of
//! one, a write cache, stalls. Pure: given a time and a request, it says when that is done.
//!
//! It is the device of the simulator (`evenkeel_sim::world::device`) without what can only be known
//! afterwards: channels are given out in the order the requests come, so the end of each is known
//! when it is submitted, and nobody has to be woken to start the next. A channel goes on from the
//! time at which it was free, not from the time at which somebody looked; so a late timer delays
//! answers and costs no throughput.

use super::setup::{Setup, Stalls};
use evenkeel_core::device::{Cache, Head};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module's text. Times inside are nanoseconds of the device's own time, which begins with
/// the device and stands still while it is stalled.
#[derive(Debug)]
pub struct Device {
    setup: Setup,
    origin: Instant,
    random: Random,
    /// When each channel is free: one entry a channel.
    free_at: BinaryHeap<Reverse<u64>>,
    cache: Cache,
}

impl Device {
    /// A device at rest, whose stalls and slowdowns are counted from `origin`.
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

    /// Gives it a request, for a range of a volume with a head of its own; when that will be done.
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

    /// How long a request takes once a channel works on it.
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

    /// What a request that begins now takes, in percent of what it took at first.
    fn percent(&self, begin: u64) -> u64 {
        match self.setup.slowdown {
            Some(slow) if real_time(self.setup.stalls, begin) >= slow.at_ns => slow.percent.into(),
            _ => 100,
        }
    }
}

/// The device's own time at `at_ns` after its origin. A stall begins with every period but the
/// first.
fn own_time(stalls: Option<Stalls>, at_ns: u64) -> u64 {
    let Some(Stalls { every_ns, length_ns }) = stalls else { return at_ns };
    match at_ns / every_ns {
        0 => at_ns,
        periods => at_ns - (periods - 1) * length_ns - (at_ns % every_ns).min(length_ns),
    }
}

/// The first moment at which the device's own time is `own_ns`.
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
    fn a_stall_holds_up_what_is_under_way_and_what_comes() {
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
    fn it_is_slower_from_a_moment_on() {
        let slowdown = Some(Slowdown { at_ns: 1_000, percent: 130 });
        let mut device = device(&Setup { slowdown, ..setup(1, 100, 0) });
        assert_eq!(give(&mut device, 900, WRITE, 1), 1_000);
        assert_eq!(give(&mut device, 950, WRITE, 1), 1_130);
    }

    /// Whoever comes late finds the channels where they would have been had everybody looked on
    /// time: so many requests take so long, whenever their ends are noticed.
    #[test]
    fn lateness_costs_no_throughput() {
        let mut device = device(&setup(4, 1_000, 0));
        let mut under_way: Vec<u64> = (0..16).map(|_| give(&mut device, 0, WRITE, 0)).collect();
        let mut done = 0;
        let mut now = 0;
        while now < 1_000_000 {
            // Looks every 700, up to 700 late.
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
