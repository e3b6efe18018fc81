//! The state of a device that several cores share: each core keeps to a part of its window.
//!
//! A core's part is what its volumes have reserved, and an even part of what is not reserved. A
//! core on which no request waits leaves its part to the others. Nothing is locked: each core
//! writes its own line, and reads the others' at most once a millisecond while requests wait.

use evenkeel_core::qos::sharing::{DeviceOthers, URGENT_RECENT};
use evenkeel_core::time::{Duration, Instant};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Millionths in the whole.
const PPM: u32 = 1_000_000;

/// A core wants the device for so long after somebody waited there.
const RECENT: Duration = Duration::from_ms(50);

/// See the module's text.
#[derive(Debug)]
pub struct SharedDevice {
    cores: Box<[Line]>,
}

/// What one core says. A cache line of its own, so that cores do not disturb each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    /// When somebody last waited, in nanoseconds of the engine's clock; 0 is never.
    wanted_at: AtomicU64,
    /// When the core's part of the device served an urgent request last; 0 is never.
    urgent_at: AtomicU64,
    /// Device time reserved by the core's volumes, in nanoseconds per second.
    reserved_ns: AtomicU64,
    /// What of the calibrated device is gone, as this core sees it, in millionths.
    lost_ppm: AtomicU32,
    /// Requests that the core has in flight.
    in_flight: AtomicU32,
    /// How many may be in flight on the whole device, as this core finds it.
    window_slots: AtomicU32,
    /// The same once a large one is added, while urgent ones come.
    beside_urgent: AtomicU32,
}

/// What a core says about the device.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Somebody waits there.
    pub wanted: bool,
    /// When it served an urgent request last.
    pub urgent_at: Option<Instant>,
    /// Requests that it has in flight.
    pub in_flight: u32,
    /// How many may be in flight on the whole device, as it finds it.
    pub window_slots: u32,
    /// The same once a large one is added, while urgent ones come.
    pub beside_urgent: u32,
}

impl SharedDevice {
    /// The state of a device that so many cores share.
    #[must_use]
    pub fn new(cores: u16) -> Self {
        Self { cores: (0..cores.max(1)).map(|_| Line::default()).collect() }
    }

    /// Whether there is anybody to share with.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.cores.len() > 1
    }

    /// Notes what a core's volumes have reserved, in nanoseconds of device time per second.
    pub fn reserve(&self, core: u16, reserved_ns: u64) {
        self.cores[usize::from(core)].reserved_ns.store(reserved_ns, Ordering::Relaxed);
    }

    /// Notes what a core says.
    pub fn say(&self, core: u16, now: Instant, said: &Said) {
        let line = &self.cores[usize::from(core)];
        if said.wanted {
            line.wanted_at.store(now.ns.max(1), Ordering::Relaxed);
        }
        if let Some(at) = said.urgent_at {
            line.urgent_at.store(at.ns.max(1), Ordering::Relaxed);
        }
        line.in_flight.store(said.in_flight, Ordering::Relaxed);
        line.window_slots.store(said.window_slots, Ordering::Relaxed);
        line.beside_urgent.store(said.beside_urgent, Ordering::Relaxed);
    }

    /// What the others have said. `capacity_ns` is what the device can do, in nanoseconds of device
    /// time per second.
    #[must_use]
    pub fn others(&self, core: u16, now: Instant, capacity_ns: u64) -> DeviceOthers {
        let part_per_mille = self.part(core, now, capacity_ns);
        let mut others = DeviceOthers { part_per_mille, ..DeviceOthers::NONE };
        let mut urgent_ns = 0;
        for (number, line) in self.cores.iter().enumerate() {
            if number == usize::from(core) {
                continue;
            }
            others.in_flight += line.in_flight.load(Ordering::Relaxed);
            let urgent_at = line.urgent_at.load(Ordering::Relaxed);
            urgent_ns = urgent_ns.max(urgent_at);
            if urgent_at > 0 && now.since(Instant::from_ns(urgent_at)) <= URGENT_RECENT {
                let most = line.beside_urgent.load(Ordering::Relaxed);
                others.beside_urgent = Some(others.beside_urgent.map_or(most, |m| m.min(most)));
            }
            if line.wants(now) {
                let slots = line.window_slots.load(Ordering::Relaxed);
                others.window_slots = Some(others.window_slots.map_or(slots, |s| s.min(slots)));
            }
        }
        others.urgent_at = Some(urgent_ns).filter(|ns| *ns > 0).map(Instant::from_ns);
        others
    }

    /// Notes what of the calibrated device may be sold by what a core has seen, in millionths.
    pub fn may_sell(&self, core: u16, sold_ppm: u32) {
        let lost_ppm = PPM.saturating_sub(sold_ppm);
        self.cores[usize::from(core)].lost_ppm.store(lost_ppm, Ordering::Relaxed);
    }

    /// What may be sold, in millionths of what was calibrated: by the core that has seen the worst.
    #[must_use]
    pub fn sold_ppm(&self) -> u32 {
        let lost = self.cores.iter().map(|line| line.lost_ppm.load(Ordering::Relaxed)).max();
        PPM.saturating_sub(lost.unwrap_or(0))
    }

    /// A core's part of the device, in thousandths.
    fn part(&self, core: u16, now: Instant, capacity_ns: u64) -> u32 {
        let (mut wanting, mut sum) = (0u128, 0u128);
        let mut own = 0u128;
        for (number, line) in self.cores.iter().enumerate() {
            let is_own = number == usize::from(core);
            if !is_own && !line.wants(now) {
                continue;
            }
            let reserved = u128::from(line.reserved_ns.load(Ordering::Relaxed));
            wanting += 1;
            sum += reserved;
            if is_own {
                own = reserved;
            }
        }
        let capacity = u128::from(capacity_ns.max(1)).max(sum);
        let part = own + (capacity - sum) / wanting.max(1);
        u32::try_from((part * 1_000).div_ceil(capacity)).unwrap_or(1_000)
    }
}

impl Line {
    /// Whether somebody waited at this core lately.
    fn wants(&self, now: Instant) -> bool {
        let wanted_at = self.wanted_at.load(Ordering::Relaxed);
        wanted_at > 0 && now.since(Instant::from_ns(wanted_at)) <= RECENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Said =
        Said { wanted: false, urgent_at: None, in_flight: 0, window_slots: 9, beside_urgent: 3 };

    fn want(shared_device: &SharedDevice, core: u16, now: Instant) {
        shared_device.say(core, now, &Said { wanted: true, ..NOTHING });
    }

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    #[test]
    fn alone_a_core_has_the_whole_device() {
        let shared_device = SharedDevice::new(4);
        shared_device.reserve(1, 500);
        assert_eq!(shared_device.part(0, at(1_000), 1_000), 1_000);
        assert_eq!(shared_device.part(1, at(1_000), 1_000), 1_000);
        assert!(!SharedDevice::new(1).is_shared());
    }

    #[test]
    fn what_is_reserved_goes_first_and_the_rest_is_even() {
        let shared_device = SharedDevice::new(3);
        shared_device.reserve(0, 600);
        want(&shared_device, 0, at(1_000));
        want(&shared_device, 1, at(1_000));
        assert_eq!(shared_device.part(0, at(1_010), 1_000), 800);
        assert_eq!(shared_device.part(1, at(1_010), 1_000), 200);
        // The third one counts itself in once it looks.
        assert_eq!(shared_device.part(2, at(1_010), 1_000), 133);
        // Whoever has not wanted it for a while has left its part to the others.
        want(&shared_device, 1, at(1_100));
        assert_eq!(shared_device.part(1, at(1_100), 1_000), 1_000);
    }

    #[test]
    fn the_worst_that_a_core_has_seen_counts() {
        let shared_device = SharedDevice::new(2);
        assert_eq!(shared_device.sold_ppm(), PPM);
        shared_device.may_sell(1, 700_000);
        shared_device.may_sell(0, 900_000);
        assert_eq!(shared_device.sold_ppm(), 700_000);
        shared_device.may_sell(1, PPM);
        assert_eq!(shared_device.sold_ppm(), 900_000);
    }

    #[test]
    fn the_others_hear_of_urgent_requests() {
        let shared_device = SharedDevice::new(3);
        let heard = |core| shared_device.others(core, at(8), 1_000).urgent_at;
        assert_eq!(heard(0), None);
        shared_device.say(1, at(5), &Said { urgent_at: Some(at(5)), ..NOTHING });
        shared_device.say(2, at(5), &Said { urgent_at: Some(at(3)), ..NOTHING });
        assert_eq!((heard(0), heard(1), heard(2)), (Some(at(5)), Some(at(3)), Some(at(5))));
        let beside = |ms| shared_device.others(0, at(ms), 1_000).beside_urgent;
        assert_eq!((beside(8), beside(200)), (Some(3), None));
        // A core that has served none since takes nothing back.
        shared_device.say(1, at(7), &NOTHING);
        assert_eq!(heard(0), Some(at(5)));
    }

    #[test]
    fn what_is_in_flight_adds_up_and_the_narrowest_window_counts_while_it_is_wanted() {
        let shared_device = SharedDevice::new(3);
        let say = |core, in_flight, window_slots| {
            shared_device.say(
                core,
                at(10),
                &Said { wanted: true, in_flight, window_slots, ..NOTHING },
            );
        };
        let heard = |core, ms| {
            let others = shared_device.others(core, at(ms), 1_000);
            (others.in_flight, others.window_slots)
        };
        assert_eq!(heard(0, 10), (0, None));
        say(0, 5, 16);
        say(1, 7, 4);
        say(2, 1, 8);
        assert_eq!(
            (heard(0, 20), heard(1, 20), heard(2, 20)),
            ((8, Some(4)), (6, Some(8)), (12, Some(4)))
        );
        assert_eq!(heard(0, 100), (8, None));
    }

    #[test]
    fn oversold_parts_follow_what_is_reserved() {
        let shared_device = SharedDevice::new(2);
        shared_device.reserve(0, 3_000);
        shared_device.reserve(1, 1_000);
        want(&shared_device, 0, at(1));
        want(&shared_device, 1, at(1));
        assert_eq!(
            (shared_device.part(0, at(2), 1_000), shared_device.part(1, at(2), 1_000)),
            (750, 250)
        );
    }
}
