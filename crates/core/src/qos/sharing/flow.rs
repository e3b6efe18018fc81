//! One attachment of a volume: two classes of requests, and the place where they wait.
//!
//! The *urgent* class is for requests that a database waits for: a small durable write, with few
//! others in flight. It goes before the normal class, but after [`URGENT_RUN_MAX`] of them in a row
//! one normal request goes, and the number of urgent requests has a limit (see
//! [`super::super::scheduler`]). Each class is first in, first out.

use super::device::Place;
use crate::convert::{exact, saturating};
use crate::qos::cost::Portion;
use crate::qos::phase::Phase;
use crate::qos::queue::{Fifo, Nodes, Queue, Waiting};
use crate::qos::scheduler::{CATCH_UP_MAX, Io};
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, Table, VolumeSlot};
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// The attachments of a scheduler.
pub(crate) type Flows = Table<FlowSlot, Flow>;

/// Urgent requests in a row before a normal one goes.
pub(crate) const URGENT_RUN_MAX: u8 = 8;

/// The longest write that can be urgent, in bytes.
pub(crate) const URGENT_BYTES_MAX: u32 = 32 << 10;

/// Requests of a volume in flight, above which its writes are not those of a log.
pub(crate) const URGENT_IN_FLIGHT_MAX: u32 = 2;

/// Place where the first request of a flow waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    /// No request waits.
    Nowhere,
    /// For the volume's limits, or for the flow's turn at the volume.
    AtVolume,
    /// For the instance's limits, or for its turn among the instance's flows.
    AtInstance,
    /// For the device.
    AtDevice,
}

/// Reason why a request waits beyond its volume's limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeldBy {
    /// Its instance's limit in I/Os, or its turn at it.
    InstanceOperations,
    /// Its instance's limits in bytes, or its turn at them.
    InstanceBytes,
    /// Room at its device.
    Device,
}

/// The first request of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub portion: Portion,
    pub handle: u32,
    pub urgent: bool,
}

/// One attachment. The first one of a volume also has the volume's state beside its limits. Each
/// request touches nearly all of it: two cache lines.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Flow {
    pub volume: VolumeSlot,
    /// Its instance, or none.
    pub instance: InstanceSlot,
    /// The next flow of the same volume, or none.
    pub sibling: FlowSlot,
    /// Neighbours in the ring of the volume or of the instance; none while it is in no ring.
    pub next: FlowSlot,
    pub previous: FlowSlot,
    pub waits: Waits,
    /// The ring of its instance in which it is.
    pub ring: u8,
    /// Whether it is in the middle of its turn in the instance's ring.
    pub in_turn: bool,
    /// Whether that turn was interrupted, by its own limits or at its device.
    pub resumed: bool,
    urgent_run: u8,
    /// The class with a request that was dispatched in part; it continues until that is finished.
    started: Option<bool>,
    /// Time that it may still take in this turn, in nanoseconds of the shared limits.
    pub deficit_ns: u64,
    /// Its instance's count of turns when its last one ended; at first, when it came there.
    pub turn_at: u32,
    pub held_since: Instant,
    pub held_by: HeldBy,
    /// Time since which its first request waits beyond its volume's limits, in any place.
    pub first_since: Instant,
    normal: Fifo,
    urgent: Fifo,
    waiting: Waiting,
    // State of the volume, in its first flow only:
    /// Its place at the device.
    pub place: Place,
    /// Its device, or none.
    pub device: DeviceSlot,
    /// Flows whose turn it is at the volume: first of a ring, or none.
    pub turns: FlowSlot,
    /// Time's worth of tokens that were lost without the tenant's fault, to be caught up; in
    /// nanoseconds, at most a quarter of a second.
    pub owed_ns: u32,
    pub in_flight: u32,
    pub after_flush: bool,
}

const _: () = assert!(size_of::<Flow>() == 128);

impl Flow {
    pub const fn new(volume: VolumeSlot, instance: InstanceSlot, now: Instant) -> Self {
        Self {
            volume,
            instance,
            sibling: FlowSlot::NONE,
            next: FlowSlot::NONE,
            previous: FlowSlot::NONE,
            waits: Waits::Nowhere,
            ring: 0,
            in_turn: false,
            resumed: false,
            urgent_run: 0,
            started: None,
            deficit_ns: 0,
            turn_at: 0,
            held_since: now,
            held_by: HeldBy::Device,
            first_since: now,
            normal: Fifo::EMPTY,
            urgent: Fifo::EMPTY,
            waiting: Waiting::NOTHING,
            place: Place::new(now),
            device: DeviceSlot::NONE,
            turns: FlowSlot::NONE,
            owed_ns: 0,
            in_flight: 0,
            after_flush: false,
        }
    }

    pub fn owed(&self) -> Duration {
        Duration::from_ns(self.owed_ns.into())
    }

    /// Replaces the time that is owed, at most [`CATCH_UP_MAX`].
    pub fn owe(&mut self, owed: Duration) {
        self.owed_ns = exact(owed.min(CATCH_UP_MAX).ns, "CATCH_UP_MAX is below 4 s");
    }

    /// Returns whether a request of the volume would be urgent, without the limit on their number.
    #[inline]
    pub fn is_urgent(&mut self, io: &Io) -> bool {
        if io.operation == Operation::Read {
            return false; // most requests, and the others go through all of this
        }
        let after_flush = self.after_flush;
        match io.operation {
            Operation::Flush => self.after_flush = true,
            operation if operation.is_write() => self.after_flush = false,
            _ => {}
        }
        is_urgent(io, self.in_flight, after_flush)
    }

    /// Records that its first request waits beyond its volume from now on, if it did not before.
    pub const fn wait_beyond(&mut self, now: Instant) {
        if matches!(self.waits, Waits::Nowhere | Waits::AtVolume) {
            self.first_since = now;
        }
    }

    /// Takes over the waiting requests of a volume. No request may wait here.
    pub const fn take_over(&mut self, queue: &Queue) {
        debug_assert!(self.is_empty(), "what waits here would be lost");
        self.normal = queue.class;
        self.waiting = queue.waiting;
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.waiting.requests == 0
    }

    /// Asserts that the waiting requests are counted correctly, and that `started` is the class
    /// whose first request was dispatched in part.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants(&self, nodes: &Nodes) {
        let mut counted = self.normal.count(nodes);
        let urgent = self.urgent.count(nodes);
        counted.requests += urgent.requests;
        counted.bytes += urgent.bytes;
        assert_eq!(self.waiting, counted, "kept, and counted");
        for (class, is_urgent) in [(&self.normal, false), (&self.urgent, true)] {
            let started = class.head(nodes).is_some_and(|head| head.portion.started);
            let goes_on = self.started == Some(is_urgent);
            assert_eq!(started, goes_on, "whether its first request was dispatched in part");
        }
    }

    pub const fn requests(&self) -> u32 {
        self.waiting.requests
    }

    pub const fn bytes(&self) -> u32 {
        self.waiting.bytes
    }

    /// Returns whether one more request fits. Both classes together are limited as one queue.
    #[inline]
    pub fn has_room_for(&self, io: &Io) -> bool {
        self.waiting.has_room_for(io)
    }

    /// Appends a request to a class. There must be room for it.
    #[inline]
    pub fn push(&mut self, nodes: &mut Nodes, io: Io, urgent: bool) {
        let class = if urgent { &mut self.urgent } else { &mut self.normal };
        self.waiting.add(&io);
        class.append(nodes, io);
    }

    /// Returns whether it may take `share_ns` in its turn, which adds `turn_ns`; if not, its turn
    /// is over.
    pub fn may_take(&mut self, share_ns: u64, turn_ns: u64) -> bool {
        if !self.in_turn {
            self.deficit_ns = self.deficit_ns.saturating_add(turn_ns);
        }
        self.in_turn = share_ns <= self.deficit_ns;
        self.in_turn
    }

    /// Lets it take `share_ns` while no other flow waits: all turns that this takes are its own,
    /// one after the other. Returns how many of them ended.
    pub fn take_alone(&mut self, share_ns: u64, turn_ns: u64) -> u32 {
        if self.may_take(share_ns, turn_ns) {
            return 0;
        }
        self.in_turn = true;
        let turns = (share_ns - self.deficit_ns).div_ceil(turn_ns.max(1));
        self.deficit_ns = self.deficit_ns.saturating_add(turns.saturating_mul(turn_ns));
        saturating(turns)
    }

    /// Returns the request that goes next.
    #[inline]
    pub fn next(&self, nodes: &Nodes) -> Option<Next> {
        let urgent = self.started.unwrap_or_else(|| {
            !self.urgent.is_empty() && (self.urgent_run < URGENT_RUN_MAX || self.normal.is_empty())
        });
        let class = if urgent { &self.urgent } else { &self.normal };
        let head = class.head(nodes)?;
        Some(Next { portion: head.portion, handle: head.handle, urgent })
    }

    /// Writes the state that determines the future of an only flow, without a device. Returns
    /// `None` if it waits at a device, or is owed time that it will catch up.
    pub fn tell(&self, nodes: &Nodes, phase: &mut Phase) -> Option<()> {
        let waits = match self.waits {
            Waits::Nowhere => 0,
            Waits::AtVolume => 1,
            Waits::AtInstance => 2,
            Waits::AtDevice => return None,
        };
        let started = self.started.map_or(2, u64::from);
        // The rest of its turns has no effect while no other flow has any.
        phase.words([waits, u64::from(self.ring)]);
        phase.words([started, self.urgent_run.into(), self.after_flush.into()]);
        phase.words([self.place.weight().into(), self.in_flight.into()]);
        self.normal.tell(nodes, phase)?;
        self.urgent.tell(nodes, phase)?;
        (self.owed_ns == 0).then_some(())
    }

    /// Reads the first requests of both classes without any effect, to load them into the cache.
    pub fn warm_up(&self, nodes: &Nodes) -> u32 {
        self.normal.warm_up(nodes) ^ self.urgent.warm_up(nodes)
    }

    /// Counts `bytes` of the next request as dispatched.
    #[inline(always)] // what the next request is need not be in memory for it
    pub fn consume(&mut self, nodes: &mut Nodes, next: &Next, bytes: u32) {
        let class = if next.urgent { &mut self.urgent } else { &mut self.normal };
        class.consume(nodes, bytes, &mut self.waiting);
        let finished = bytes == next.portion.length;
        self.started = if finished { None } else { Some(next.urgent) };
        if finished {
            self.urgent_run = if next.urgent { self.urgent_run.saturating_add(1) } else { 0 };
        }
    }

    /// Removes all requests whose handle matches, and returns them.
    pub fn extract(&mut self, nodes: &mut Nodes, mut matches: impl FnMut(u32) -> bool) -> Queue {
        let mut taken = self.urgent.extract(nodes, &mut self.waiting, &mut matches);
        let normal = self.normal.extract(nodes, &mut self.waiting, &mut matches);
        taken.append_all(nodes, &normal);
        // If the request that was dispatched in part is among them, no class has to continue;
        // otherwise, its rest is the first of its class and marked as started itself.
        let first_started =
            |class: &Fifo| class.head(nodes).is_some_and(|head| head.portion.started);
        self.started = match (first_started(&self.urgent), first_started(&self.normal)) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        taken
    }
}

/// Returns whether a request belongs to the urgent class of a volume with this number of requests
/// in flight.
pub(crate) const fn is_urgent(io: &Io, in_flight: u32, after_flush: bool) -> bool {
    let waited_for = match io.operation {
        Operation::Write { fua } => (fua || after_flush) && io.length <= URGENT_BYTES_MAX,
        Operation::Flush => true,
        _ => false,
    };
    waited_for && in_flight <= URGENT_IN_FLIGHT_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn write(handle: u32, length: u32) -> Io {
        Io { operation: Operation::Write { fua: true }, offset: 0, length, handle }
    }

    fn drain(flow: &mut Flow, nodes: &mut Nodes) -> Vec<u32> {
        core::iter::from_fn(|| {
            let next = flow.next(nodes)?;
            flow.consume(nodes, &next, next.portion.length);
            Some(next.handle)
        })
        .collect()
    }

    #[test]
    fn urgent_requests_go_first_but_not_for_ever() {
        let mut nodes = Nodes::new();
        let mut flow = Flow::new(VolumeSlot::NONE, InstanceSlot::NONE, Instant::ZERO);
        for handle in 0..3 {
            flow.push(&mut nodes, write(handle, 512), false);
        }
        for handle in 100..120 {
            flow.push(&mut nodes, write(handle, 512), true);
        }
        let order = drain(&mut flow, &mut nodes);
        let expected: Vec<u32> =
            (100..108).chain([0]).chain(108..116).chain([1]).chain(116..120).chain([2]).collect();
        assert_eq!(order, expected);
    }

    #[test]
    fn a_request_dispatched_in_part_is_finished_first() {
        let mut nodes = Nodes::new();
        let mut flow = Flow::new(VolumeSlot::NONE, InstanceSlot::NONE, Instant::ZERO);
        flow.push(&mut nodes, write(0, 1_024), false);
        let next = flow.next(&nodes).unwrap();
        flow.consume(&mut nodes, &next, 512);
        flow.push(&mut nodes, write(1, 512), true);
        let next = flow.next(&nodes).unwrap();
        assert_eq!((next.handle, next.portion.started), (0, true));
        assert_eq!(flow.extract(&mut nodes, |handle| handle == 0).requests(), 1);
        assert_eq!(drain(&mut flow, &mut nodes), [1]);
    }

    #[test]
    fn both_lanes_share_one_bound() {
        let mut nodes = Nodes::new();
        let mut flow = Flow::new(VolumeSlot::NONE, InstanceSlot::NONE, Instant::ZERO);
        for handle in 0..1_024 {
            assert!(flow.has_room_for(&write(handle, 512)));
            flow.push(&mut nodes, write(handle, 512), handle % 2 == 0);
        }
        assert!(!flow.has_room_for(&write(1_024, 512)));
        assert_eq!((flow.requests(), flow.bytes()), (1_024, 512 << 10));
    }

    #[test]
    fn small_durable_writes_of_a_quiet_volume_are_urgent() {
        let plain = Io { operation: Operation::Write { fua: false }, ..write(0, 16 << 10) };
        let read = Io { operation: Operation::Read, ..plain };
        let flush = Io { operation: Operation::Flush, length: 0, ..plain };
        for (io, in_flight, after_flush, urgent) in [
            (write(0, 16 << 10), 0, false, true),
            (write(0, 64 << 10), 0, false, false),
            (write(0, 16 << 10), 3, false, false),
            (plain, 0, false, false),
            (plain, 0, true, true),
            (read, 0, true, false),
            (flush, 2, false, true),
            (flush, 3, false, false),
        ] {
            assert_eq!(is_urgent(&io, in_flight, after_flush), urgent, "{io:?} {in_flight}");
        }
    }
}
