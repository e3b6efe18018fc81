//! The state of a device that several cores share: each core keeps to a part of its window.
//!
//! A core's part is the sum of its volumes' reservations, and an even part of the rest. A core on
//! which no request waits leaves its part to the others. There are no locks: each core writes its
//! own line, and reads the others' at most once a millisecond while requests wait.
//!
//! If several nodes share the device, all of this applies to the node's part of it, which the
//! control plane sets ([`division`](evenkeel_core::qos::sharing::division)).

use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::qos::sharing::{DeviceOthers, URGENT_RECENT};
use evenkeel_core::time::{Duration, Instant};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Millionths in the whole.
const PPM: u32 = 1_000_000;

/// A core wants the device for this long after a request has last waited there.
const RECENT: Duration = Duration::from_ms(50);

/// The shared state; see the module's text.
#[derive(Debug)]
pub struct SharedDevice {
    cores: Box<[Line]>,
    node: Node,
    /// Device time of the whole device, in nanoseconds per second; 0 if it is not known.
    capacity_ns: AtomicU64,
}

/// This node's part of the device, and the use of the other nodes, as set last.
#[derive(Debug)]
struct Node {
    /// Whether a part was set: the device has several nodes.
    is_one_of_several: AtomicBool,
    lasting_ppm: AtomicU32,
    lent_ppm: AtomicU32,
    /// End of the loan, in nanoseconds of the engine's clock.
    lent_until: AtomicU64,
    in_flight: AtomicU32,
    /// 0 if there is no limit.
    window_slots: AtomicU32,
}

impl Node {
    const fn alone() -> Self {
        Self {
            is_one_of_several: AtomicBool::new(false),
            lasting_ppm: AtomicU32::new(PPM),
            lent_ppm: AtomicU32::new(0),
            lent_until: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            window_slots: AtomicU32::new(0),
        }
    }

    /// Returns the node's part of the device, in millionths. It is never zero: one request at a
    /// time is always possible.
    fn part_ppm(&self, now: Instant) -> u32 {
        let lasting = self.lasting_ppm.load(Ordering::Relaxed);
        let is_lent = now.ns < self.lent_until.load(Ordering::Relaxed);
        let lent = if is_lent { self.lent_ppm.load(Ordering::Relaxed) } else { 0 };
        lasting.saturating_add(lent).clamp(1, PPM)
    }
}

/// State that one core writes. It has a cache line of its own, so that cores do not disturb each
/// other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    /// Time at which a request last waited, in nanoseconds of the engine's clock; 0 if none has.
    wanted_at: AtomicU64,
    /// Time at which the core has last served an urgent request, in nanoseconds of the engine's
    /// clock; 0 if none.
    urgent_at: AtomicU64,
    /// Device time reserved by the core's volumes, in nanoseconds per second.
    reserved_ns: AtomicU64,
    /// Lost part of the calibrated device, by the drift that this core measures, in millionths.
    lost_ppm: AtomicU32,
    /// Requests that the core has in flight.
    in_flight: AtomicU32,
    /// Maximum number of requests in flight on the whole device, by this core's estimate.
    window_slots: AtomicU32,
    /// That maximum if a large request is added while urgent ones arrive.
    beside_urgent: AtomicU32,
    /// The most requests that it had in flight since the last [`SharedDevice::take_use`].
    most: AtomicU32,
    /// Whether a request has waited since then.
    has_waited: AtomicBool,
}

/// State of the device that a core reports.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    /// Whether a request waits there.
    pub wanted: bool,
    /// Time at which it has last served an urgent request.
    pub urgent_at: Option<Instant>,
    /// Requests that it has in flight.
    pub in_flight: u32,
    /// Maximum number of requests in flight on the whole device, by its estimate.
    pub window_slots: u32,
    /// That maximum if a large request is added while urgent ones arrive.
    pub beside_urgent: u32,
}

impl SharedDevice {
    /// Creates the state of a device that this number of cores share.
    #[must_use]
    pub fn new(cores: u16) -> Self {
        let cores = (0..cores.max(1)).map(|_| Line::default()).collect();
        Self { cores, node: Node::alone(), capacity_ns: AtomicU64::new(0) }
    }

    /// Returns whether other cores or nodes share the device.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.cores.len() > 1 || self.node.is_one_of_several.load(Ordering::Relaxed)
    }

    /// Sets the device time of the whole device, in nanoseconds per second.
    pub fn set_capacity(&self, capacity_ns: u64) {
        self.capacity_ns.store(capacity_ns, Ordering::Relaxed);
    }

    /// Sets this node's part of the device, from now on.
    pub fn divide(&self, now: Instant, part: &NodePart) {
        let node = &self.node;
        node.lasting_ppm.store(part.lasting_ppm, Ordering::Relaxed);
        node.lent_ppm.store(part.lent_ppm, Ordering::Relaxed);
        node.lent_until.store((now + part.lent_for).ns, Ordering::Relaxed);
        node.in_flight.store(part.in_flight, Ordering::Relaxed);
        node.window_slots.store(part.window_slots.unwrap_or(0), Ordering::Relaxed);
        node.is_one_of_several.store(true, Ordering::Relaxed);
    }

    /// Returns how this node has used the device since the last call.
    #[must_use]
    pub fn take_use(&self) -> NodeUse {
        let mut all = NodeUse {
            capacity_ns: self.capacity_ns.load(Ordering::Relaxed),
            window_slots: u32::MAX,
            ..NodeUse::default()
        };
        for line in &self.cores {
            let reserved_ns = line.reserved_ns.load(Ordering::Relaxed);
            all.reserved_ns = all.reserved_ns.saturating_add(reserved_ns);
            let now = line.in_flight.load(Ordering::Relaxed);
            let most = line.most.swap(now, Ordering::Relaxed).max(now);
            all.in_flight = all.in_flight.saturating_add(most);
            all.has_waited |= line.has_waited.swap(false, Ordering::Relaxed);
            // A core that has reported nothing yet has no window.
            let slots = line.window_slots.load(Ordering::Relaxed);
            all.window_slots = all.window_slots.min(if slots == 0 { u32::MAX } else { slots });
        }
        all
    }

    /// Sets the reservations of a core's volumes, in nanoseconds of device time per second.
    pub fn reserve(&self, core: u16, reserved_ns: u64) {
        self.cores[usize::from(core)].reserved_ns.store(reserved_ns, Ordering::Relaxed);
    }

    /// Records the report of a core.
    pub fn say(&self, core: u16, now: Instant, said: &Said) {
        let line = &self.cores[usize::from(core)];
        if said.wanted {
            line.wanted_at.store(now.ns.max(1), Ordering::Relaxed);
            line.has_waited.store(true, Ordering::Relaxed);
        }
        if let Some(at) = said.urgent_at {
            line.urgent_at.store(at.ns.max(1), Ordering::Relaxed);
        }
        line.in_flight.store(said.in_flight, Ordering::Relaxed);
        line.most.fetch_max(said.in_flight, Ordering::Relaxed);
        line.window_slots.store(said.window_slots, Ordering::Relaxed);
        line.beside_urgent.store(said.beside_urgent, Ordering::Relaxed);
    }

    /// Returns the state that the other cores have reported, and this core's part. `capacity_ns` is
    /// the whole device's time, in nanoseconds per second.
    #[must_use]
    pub fn others(&self, core: u16, now: Instant, capacity_ns: u64) -> DeviceOthers {
        let node_ppm = u64::from(self.node.part_ppm(now));
        let node_ns = u128::from(capacity_ns) * u128::from(node_ppm) / u128::from(PPM);
        let node_ns = saturating(node_ns);
        // The core's part of the node's part of the device.
        let part = u64::from(self.part(core, now, node_ns)) * node_ppm;
        let part_per_mille = saturating(part.div_ceil(PPM.into()));
        let slots = Some(self.node.window_slots.load(Ordering::Relaxed));
        let mut others = DeviceOthers {
            part_per_mille,
            in_flight: self.node.in_flight.load(Ordering::Relaxed),
            window_slots: slots.filter(|slots| *slots > 0),
            ..DeviceOthers::NONE
        };
        let mut urgent_ns = 0;
        for (number, line) in self.cores.iter().enumerate() {
            if number == usize::from(core) {
                continue;
            }
            let in_flight = line.in_flight.load(Ordering::Relaxed);
            others.in_flight = others.in_flight.saturating_add(in_flight);
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

    /// Sets the part of the calibrated device that may be sold by a core's measurements, in
    /// millionths.
    pub fn may_sell(&self, core: u16, sold_ppm: u32) {
        let lost_ppm = PPM.saturating_sub(sold_ppm);
        self.cores[usize::from(core)].lost_ppm.store(lost_ppm, Ordering::Relaxed);
    }

    /// Returns the part of the calibrated device that may be sold, in millionths: the lowest of all
    /// cores.
    #[must_use]
    pub fn sold_ppm(&self) -> u32 {
        let lost = self.cores.iter().map(|line| line.lost_ppm.load(Ordering::Relaxed)).max();
        PPM.saturating_sub(lost.unwrap_or(0))
    }

    /// Returns a core's part of `capacity_ns`, in thousandths.
    fn part(&self, core: u16, now: Instant, capacity_ns: u64) -> u32 {
        let mut wanting = 0u128;
        let mut sum = 0u128;
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
        exact((part * 1_000).div_ceil(capacity), "at most the whole capacity")
    }
}

impl Line {
    /// Returns whether a request has waited on this core within [`RECENT`].
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
    fn core_has_the_whole_device_while_no_other_wants_it() {
        let shared_device = SharedDevice::new(4);
        shared_device.reserve(1, 500);
        assert_eq!(shared_device.part(0, at(1_000), 1_000), 1_000);
        assert_eq!(shared_device.part(1, at(1_000), 1_000), 1_000);
        assert!(!SharedDevice::new(1).is_shared());
    }

    #[test]
    fn reservations_go_first_and_the_rest_is_divided_evenly() {
        let shared_device = SharedDevice::new(3);
        shared_device.reserve(0, 600);
        want(&shared_device, 0, at(1_000));
        want(&shared_device, 1, at(1_000));
        assert_eq!(shared_device.part(0, at(1_010), 1_000), 800);
        assert_eq!(shared_device.part(1, at(1_010), 1_000), 200);
        // The third core counts itself in when it asks.
        assert_eq!(shared_device.part(2, at(1_010), 1_000), 133);
        // A core that has not wanted the device for a while leaves its part to the others.
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
    fn urgent_requests_are_reported_to_other_cores() {
        let shared_device = SharedDevice::new(3);
        let heard = |core| shared_device.others(core, at(8), 1_000).urgent_at;
        assert_eq!(heard(0), None);
        shared_device.say(1, at(5), &Said { urgent_at: Some(at(5)), ..NOTHING });
        shared_device.say(2, at(5), &Said { urgent_at: Some(at(3)), ..NOTHING });
        assert_eq!((heard(0), heard(1), heard(2)), (Some(at(5)), Some(at(3)), Some(at(5))));
        let beside = |ms| shared_device.others(0, at(ms), 1_000).beside_urgent;
        assert_eq!((beside(8), beside(200)), (Some(3), None));
        // A report without an urgent request does not change the time of the last one.
        shared_device.say(1, at(7), &NOTHING);
        assert_eq!(heard(0), Some(at(5)));
    }

    #[test]
    fn in_flight_requests_add_up_and_the_narrowest_wanted_window_counts() {
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
    fn a_node_s_part_is_divided_among_its_cores_and_a_loan_ends() {
        let shared_device = SharedDevice::new(2);
        let part = |core, ms| shared_device.others(core, at(ms), 1_000).part_per_mille;
        shared_device.reserve(0, 200);
        want(&shared_device, 0, at(1_000));
        want(&shared_device, 1, at(1_000));
        let quarter = NodePart {
            lasting_ppm: 250_000,
            lent_ppm: 250_000,
            lent_for: Duration::from_ms(20),
            in_flight: 7,
            window_slots: Some(5),
        };
        shared_device.divide(at(1_000), &quarter);
        // Half of the device: 200 are reserved, and 150 are each core's.
        assert_eq!((part(0, 1_010), part(1, 1_010)), (350, 150));
        assert_eq!((part(0, 1_020), part(1, 1_020)), (225, 25));
        let others = shared_device.others(0, at(1_020), 1_000);
        assert_eq!((others.in_flight, others.window_slots), (7, Some(5)));
        // The narrower window of another core counts beside that of another node.
        let said = Said { wanted: true, window_slots: 4, in_flight: 2, ..NOTHING };
        shared_device.say(1, at(1_020), &said);
        let others = shared_device.others(0, at(1_020), 1_000);
        assert_eq!((others.in_flight, others.window_slots), (9, Some(4)));
        shared_device.divide(at(1_020), &NodePart::LEAST);
        assert_eq!(part(0, 1_030), 1);
        assert!(SharedDevice::new(1).others(0, at(0), 1_000).part_per_mille == 1_000);
    }

    #[test]
    fn node_reports_its_peak_in_flight_once() {
        let shared_device = SharedDevice::new(2);
        shared_device.set_capacity(8);
        shared_device.reserve(0, 3);
        shared_device.reserve(1, 2);
        let say = |core, in_flight, wanted| {
            let said = Said { wanted, in_flight, window_slots: 16 - u32::from(core), ..NOTHING };
            shared_device.say(core, at(10), &said);
        };
        say(0, 5, true);
        say(0, 1, false);
        say(1, 2, false);
        let expected = NodeUse {
            capacity_ns: 8,
            reserved_ns: 5,
            in_flight: 7,
            window_slots: 15,
            has_waited: true,
        };
        assert_eq!(shared_device.take_use(), expected);
        let later = NodeUse { in_flight: 3, has_waited: false, ..expected };
        assert_eq!(shared_device.take_use(), later);
    }

    #[test]
    fn oversold_parts_follow_the_reservations() {
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
