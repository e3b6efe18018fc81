//! One attachment of a volume: two classes of requests, and where they wait.
//!
//! The *urgent* class is for what a database waits for: a small write that must be durable, alone
//! or nearly so. It goes before the normal class, but after [`URGENT_RUN_MAX`] of them in a row one
//! normal request goes, and there is a bound on how many are urgent at all
//! ([`super::super::scheduler`] keeps it). Each class is first in, first out.

use super::device::Place;
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

/// The longest write that can be urgent.
pub(crate) const URGENT_BYTES_MAX: u32 = 32 << 10;

/// Requests of a volume in flight, above which its writes are no longer those of a log.
pub(crate) const URGENT_IN_FLIGHT_MAX: u32 = 2;

/// Where the first request of a flow waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    /// Nothing waits.
    Nowhere,
    /// For the volume's limits, or for the volume's turn.
    AtVolume,
    /// For the instance's limits, or for its turn among the instance's flows.
    AtInstance,
    /// For the device.
    AtDevice,
}

/// What a request waits for beyond its volume's limits.
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

/// One attachment; the first of a volume carries what its volume has beside its limits, too. Every
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
    /// Which ring of its instance it is in.
    pub ring: u8,
    /// In the middle of its turn in the instance's ring.
    pub in_turn: bool,
    /// That turn began before it was away, for its own limits or at its device.
    pub resumed: bool,
    urgent_run: u8,
    /// A class with a request dispatched in part goes on until that is finished.
    started: Option<bool>,
    /// What it may still take in this turn and the next, in nanoseconds of the limits it shares.
    pub deficit_ns: u64,
    /// The count of turns when its last one ended, of its instance; at first when it came there.
    pub turn_at: u32,
    pub held_since: Instant,
    pub held_by: HeldBy,
    /// Since when its first request waits beyond its volume, wherever.
    pub first_since: Instant,
    normal: Fifo,
    urgent: Fifo,
    waiting: Waiting,
    // Of the volume, in its first flow only:
    /// Its place at the device.
    pub place: Place,
    /// Its device, or none.
    pub device: DeviceSlot,
    /// Flows whose turn it is at the volume: first of a ring, or none.
    pub turns: FlowSlot,
    /// Time's worth of tokens that were lost through no fault of the tenant's, to be paid back; in
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

    /// Replaces what is owed, at most [`CATCH_UP_MAX`].
    pub fn owe(&mut self, owed: Duration) {
        self.owed_ns = u32::try_from(owed.min(CATCH_UP_MAX).ns).unwrap_or(u32::MAX);
    }

    /// Whether a request of the volume would be urgent, if there is no bound on them.
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

    /// Notes that its first request waits beyond its volume from now on, if it did not before.
    pub const fn wait_beyond(&mut self, now: Instant) {
        if matches!(self.waits, Waits::Nowhere | Waits::AtVolume) {
            self.first_since = now;
        }
    }

    /// Takes over what waits of a volume; to be called while nothing waits here.
    pub const fn take_over(&mut self, queue: &Queue) {
        debug_assert!(self.is_empty(), "what waits here would be lost");
        self.normal = queue.class;
        self.waiting = queue.waiting;
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.waiting.requests == 0
    }

    /// Asserts that what waits is counted right, and that a class goes on whose first request was
    /// dispatched in part.
    ///
    /// # Panics
    /// If it is not so.
    pub fn invariants(&self, nodes: &Nodes) {
        let (mut counted, urgent) = (self.normal.count(nodes), self.urgent.count(nodes));
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

    /// Whether one more request fits. Both classes together are bounded as one queue.
    #[inline]
    pub fn has_room_for(&self, io: &Io) -> bool {
        self.waiting.has_room_for(io)
    }

    /// Appends a request, for which there is room, to a class.
    #[inline]
    pub fn push(&mut self, nodes: &mut Nodes, io: Io, urgent: bool) {
        let class = if urgent { &mut self.urgent } else { &mut self.normal };
        self.waiting.add(&io);
        class.append(nodes, io);
    }

    /// Whether it may take so much in its turn, which is worth `turn_ns`; if not, its turn is over.
    pub fn may_take(&mut self, share_ns: u64, turn_ns: u64) -> bool {
        if !self.in_turn {
            self.deficit_ns = self.deficit_ns.saturating_add(turn_ns);
        }
        self.in_turn = share_ns <= self.deficit_ns;
        self.in_turn
    }

    /// Lets it take so much where nobody else waits: as many turns as that takes are its own, one
    /// after the other. Returns how many of them ended.
    pub fn take_alone(&mut self, share_ns: u64, turn_ns: u64) -> u32 {
        if self.may_take(share_ns, turn_ns) {
            return 0;
        }
        self.in_turn = true;
        let turns = (share_ns - self.deficit_ns).div_ceil(turn_ns.max(1));
        self.deficit_ns = self.deficit_ns.saturating_add(turns.saturating_mul(turn_ns));
        u32::try_from(turns).unwrap_or(u32::MAX)
    }

    /// The request that goes next.
    #[inline]
    pub fn next(&self, nodes: &Nodes) -> Option<Next> {
        let urgent = self.started.unwrap_or_else(|| {
            !self.urgent.is_empty() && (self.urgent_run < URGENT_RUN_MAX || self.normal.is_empty())
        });
        let class = if urgent { &self.urgent } else { &self.normal };
        let head = class.head(nodes)?;
        Some(Next { portion: head.portion, handle: head.handle, urgent })
    }

    /// Writes what decides the future of an only flow, without a device; `None` if it is owed time
    /// that it will catch up with.
    pub fn tell(&self, nodes: &Nodes, phase: &mut Phase) -> Option<()> {
        let waits = match self.waits {
            Waits::Nowhere => 0,
            Waits::AtVolume => 1,
            Waits::AtInstance => 2,
            Waits::AtDevice => return None,
        };
        let started = self.started.map_or(2, u64::from);
        // What is left of its turns decides nothing while nobody else has any.
        phase.words([waits, u64::from(self.ring)]);
        phase.words([started, self.urgent_run.into(), self.after_flush.into()]);
        phase.words([self.place.weight().into(), self.in_flight.into()]);
        self.normal.tell(nodes, phase)?;
        self.urgent.tell(nodes, phase)?;
        (self.owed_ns == 0).then_some(())
    }

    /// Reads the first requests of both classes and does nothing with them.
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

    /// Takes everything whose handle matches.
    pub fn extract(&mut self, nodes: &mut Nodes, mut matches: impl FnMut(u32) -> bool) -> Queue {
        let mut taken = self.urgent.extract(nodes, &mut self.waiting, &mut matches);
        let normal = self.normal.extract(nodes, &mut self.waiting, &mut matches);
        taken.append_all(nodes, &normal);
        // If the request that was dispatched in part is among them, no class is bound any more; and
        // if not, its rest is the first of its class and marked as started itself.
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

/// Whether a request belongs into the urgent class of a volume with so many requests in flight.
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
