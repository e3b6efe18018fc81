//! Conditions that hold between any two calls of a scheduler: of all its state, and of the part
//! that one call touches.
//!
//! A check of all state visits every volume, request and list of timers. A debug build does it
//! before calls 1, 2, 5, 12 and so on, later every 4,096 calls plus sixteen for each visited entry,
//! so that it takes a small part of each call's time. Property tests call [`Scheduler::invariants`]
//! beside that, after each step or every thousand. The volume, the instance and the device that a
//! call touches are checked after each call in debug builds, except for a request that only goes
//! behind others: for that the queue checks itself.

use super::share::{DeviceQueue, Sharing};
use super::{OUTPUT_DISPATCHES_MAX, Scheduler, Volume};
use crate::convert::index;
use crate::qos::sharing::flow::{Flow, Waits};
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, ShareSlot, Slot, Table, VolumeSlot};

/// Maximum number of calls between two checks of all state; more if there are many entries.
#[cfg(debug_assertions)]
const CALLS_BETWEEN: usize = 4_096;

/// Calls that each entry adds to that.
#[cfg(debug_assertions)]
const CALLS_FOR_EACH: usize = 16;

/// Vacant slots that are compared with each other.
const VACANT_COMPARED: usize = 16;

/// Calls until the next check of all state; empty in a release build.
#[derive(Debug, Default)]
pub(super) struct NextCheck {
    #[cfg(debug_assertions)]
    calls_left: usize,
    #[cfg(debug_assertions)]
    calls_between: usize,
}

impl NextCheck {
    /// Counts a call. Returns whether all state is to be checked, which has this number of entries.
    #[cfg(debug_assertions)]
    fn is_due(&mut self, things: usize) -> bool {
        let is_due = self.calls_left == 0;
        if is_due {
            let most = CALLS_BETWEEN + CALLS_FOR_EACH * things;
            self.calls_between = (2 * self.calls_between + 1).min(most);
            self.calls_left = self.calls_between;
        }
        self.calls_left -= 1;
        is_due
    }

    #[cfg(not(debug_assertions))]
    const fn is_due(&mut self, _: usize) -> bool {
        false
    }
}

impl Scheduler {
    /// Asserts the conditions that hold between any two calls, of all state:
    ///
    /// * Waiting requests are counted correctly, and each node of a request is in one queue or
    ///   free.
    /// * A volume whose first request has passed no limit yet has an entry in the wheel, unless
    ///   only another call can open its limits; one without a flow in line has none. The same holds
    ///   for instances.
    /// * Each attachment waits in the place that it names, and in no other.
    /// * The requests in flight at a device are those with a ticket; no request waits for a device
    ///   without any in flight.
    /// * Removed entries leave nothing behind, and their slots are listed as vacant.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn invariants(&self) {
        let Self { volumes, reserves, generations, vacant, sharing, nodes, wheel, output, .. } =
            self;
        let lengths = (reserves.len(), generations.len());
        assert_eq!(lengths, (volumes.len(), volumes.len()), "reserves and generations of volumes");
        assert!(output.len() <= OUTPUT_DISPATCHES_MAX, "{} dispatches", output.len());
        check_vacant(vacant, generations, |generation| *generation);
        wheel.invariants();
        sharing.invariants();
        let mut queued = 0;
        let mut flows = 0;
        for (slot, volume) in volumes.entries() {
            volume.queue.invariants(nodes);
            queued += count(volume.queue.requests());
            if is_taken(generations[slot]) {
                self.check_volume(slot);
            } else {
                assert!(volume.share.is_none(), "the share of volume {slot:?}, which was removed");
                assert!(volume.queue.is_empty(), "requests of volume {slot:?}, which was removed");
                assert!(!wheel.contains(slot), "a timer of volume {slot:?}, which was removed");
            }
            for flow in sharing.siblings(volume.share) {
                flows += 1;
                let flow = &sharing.flows[flow];
                flow.invariants(nodes);
                queued += count(flow.requests());
            }
        }
        let of_volumes = sharing.flows.len() - sharing.vacant_flows.len();
        assert_eq!(flows, of_volumes, "attachments of volumes, and attachments");
        assert_eq!(queued, nodes.len() - nodes.count_free(), "requests in queues, and in nodes");
    }

    /// Asserts the conditions of one existing volume: the work grows with its attachments.
    fn check_volume(&self, slot: VolumeSlot) {
        let Volume { limiter, queue, share, .. } = &self.volumes[slot];
        let is_in_line = match *share {
            ShareSlot::NONE => !queue.is_empty(),
            share => {
                assert!(queue.is_empty(), "volume {slot:?} has a share, and requests beside it");
                for flow in self.sharing.siblings(share) {
                    let volume = self.sharing.flows[flow].volume;
                    assert_eq!(volume, slot, "the volume of its attachment {flow:?}");
                    self.sharing.check_flow(share, flow);
                }
                !self.sharing.flows[share.flow()].turns.is_none()
            }
        };
        if self.wheel.contains(slot) {
            assert!(is_in_line, "volume {slot:?} has a timer, and nothing is in line for it");
        } else {
            let is_closed = limiter.is_closed();
            assert!(!is_in_line || is_closed, "volume {slot:?} waits without a wake-up");
        }
    }

    /// Checks all state if it is time to, in debug builds. Called at the beginning of each call
    /// that changes something: the result of the call before is dropped by then.
    #[inline]
    pub(super) fn check_now_and_then(&mut self) {
        let things = self.volumes.len() + self.sharing.flows.len() + self.nodes.len();
        if self.next_check.is_due(things) {
            self.invariants();
        }
    }

    /// Checks a volume that a call has touched, in debug builds.
    #[inline]
    pub(super) fn check_touched(&self, slot: VolumeSlot) {
        if cfg!(debug_assertions) && is_taken(self.generations[slot]) {
            self.check_volume(slot);
        }
    }

    /// Checks an instance that a call has touched, in debug builds.
    #[inline]
    pub(super) fn check_touched_instance(&self, instance: InstanceSlot) {
        if cfg!(debug_assertions) {
            self.sharing.check_instance(instance);
        }
    }

    /// Checks a device that a call has touched, in debug builds.
    #[inline]
    pub(super) fn check_touched_device(&self, device: DeviceSlot) {
        if cfg!(debug_assertions) {
            self.sharing.check_device(device);
        }
    }
}

impl Sharing {
    /// Asserts the conditions of the shared resources, except those of volumes' flows.
    fn invariants(&self) {
        let Self { flows, terms, flow_generations, vacant_flows, instances, .. } = self;
        let lengths = (terms.len(), flow_generations.len());
        assert_eq!(lengths, (flows.len(), flows.len()), "terms and generations of attachments");
        assert_eq!(self.instance_generations.len(), instances.len(), "generations of instances");
        check_vacant(vacant_flows, flow_generations, |generation| *generation);
        let Self { vacant_instances, instance_generations, .. } = self;
        check_vacant(vacant_instances, instance_generations, |generation| *generation);
        for (flow, entry) in flows.entries() {
            let Flow { volume, instance, device, .. } = entry;
            let is_vacant = volume.is_none() && instance.is_none() && device.is_none();
            let is_unused = is_vacant && entry.is_empty() && entry.waits == Waits::Nowhere;
            let is_taken = is_taken(flow_generations[flow]);
            assert!(is_taken || is_unused, "attachment {flow:?} was removed: {entry:?}");
        }
        self.check_instances();
        self.check_devices();
    }

    fn check_instances(&self) {
        if let Some(wheel) = &self.instance_wheel {
            wheel.invariants();
        }
        let mut in_rings = 0;
        for (slot, instance) in self.instances.entries() {
            instance.invariants(&self.flows, slot);
            in_rings += count(instance.waiting());
            self.check_instance(slot);
            let is_there = is_taken(self.instance_generations[slot]);
            assert!(is_there || instance.waiting() == 0, "instance {slot:?} was removed");
        }
        let waiting = self.flows.iter().filter(|flow| flow.waits == Waits::AtInstance).count();
        assert_eq!(in_rings, waiting, "attachments in rings, and that wait for an instance");
    }

    fn check_devices(&self) {
        check_vacant(&self.vacant_tickets, &self.in_service, |(_, generation)| *generation);
        let works_on = || self.in_service.iter().filter(|(_, generation)| is_taken(*generation));
        let mut in_line = 0;
        for (slot, device_queue) in self.device_queues.entries() {
            let works_on = works_on().map(|(quantum, _)| quantum);
            device_queue.device.invariants(works_on.filter(|quantum| quantum.device == slot));
            in_line += device_queue.device.in_line();
            self.check_device(slot);
        }
        let waiting = self.flows.iter().filter(|flow| flow.waits == Waits::AtDevice).count();
        assert_eq!(in_line, waiting, "attachments in line, and that wait for a device");
        let of_shares = self.flows.iter().filter(|flow| !flow.volume.is_none());
        let of_shares: usize = of_shares.map(|flow| count(flow.in_flight)).sum();
        // Fewer after a move to another device, which does not know the requests at the old one.
        assert!(of_shares <= works_on().count(), "{of_shares} in flight of volumes");
    }

    /// Asserts that a flow waits in the place that it names, between its neighbours there.
    fn check_flow(&self, share: ShareSlot, flow: FlowSlot) {
        let Self { flows, instances, instance_generations, device_queues, .. } = self;
        let entry = &flows[flow];
        let is_idle = entry.waits == Waits::Nowhere;
        assert_eq!(is_idle, entry.is_empty(), "attachment {flow:?} waits {:?}", entry.waits);
        let Flow { next, previous, .. } = *entry;
        if matches!(entry.waits, Waits::AtVolume | Waits::AtInstance) {
            let around = (flows[next].previous, flows[previous].next);
            assert_eq!(around, (flow, flow), "what the neighbours of attachment {flow:?} say");
            assert_eq!(flows[next].waits, entry.waits, "where {next:?} behind {flow:?} waits");
        } else {
            assert!(next.is_none() && previous.is_none(), "the neighbours of attachment {flow:?}");
        }
        if entry.waits == Waits::AtVolume {
            let turns = flows[share.flow()].turns;
            assert!(!turns.is_none(), "attachment {flow:?} waits, and no turn comes");
        }
        if let Some(instance) = instances.get(entry.instance) {
            assert!(is_taken(instance_generations[entry.instance]), "the instance of {flow:?}");
            let is_known = entry.waits != Waits::AtInstance || instance.is_waited_for(entry.ring);
            assert!(
                is_known,
                "attachment {flow:?} waits for its instance, which has no waiting flow"
            );
        } else {
            assert_ne!(entry.waits, Waits::AtInstance, "attachment {flow:?} has no instance");
        }
        if let Some(DeviceQueue { device, .. }) = device_queues.get(flows[share.flow()].device) {
            let waits = entry.waits == Waits::AtDevice;
            assert_eq!(device.is_in_line(flow), waits, "whether {flow:?} is in line at its device");
        } else {
            assert_ne!(entry.waits, Waits::AtDevice, "attachment {flow:?} has no device");
        }
    }

    /// Asserts that an instance with waiting flows has a timer, unless only another call can open
    /// its limits.
    fn check_instance(&self, slot: InstanceSlot) {
        let instance = &self.instances[slot];
        let has_timer = self.instance_wheel.as_ref().is_some_and(|wheel| wheel.contains(slot));
        let is_due = has_timer || instance.opens_at().is_none();
        assert!(is_due, "a flow waits for instance {slot:?} without a wake-up");
    }

    /// Asserts that no flow waits for a device without requests in flight.
    fn check_device(&self, slot: DeviceSlot) {
        let DeviceQueue { device, interrupted } = &self.device_queues[slot];
        let is_busy = *interrupted || device.window.requests() > 0;
        assert!(is_busy || !device.is_wanted(), "device {slot:?} is idle, and a flow waits");
    }

    /// Returns the flows of a volume, of which `share` is the first.
    fn siblings(&self, share: ShareSlot) -> impl Iterator<Item = FlowSlot> {
        let mut flow = share.flow();
        let mut passed = 0;
        core::iter::from_fn(move || {
            let entry = self.flows.get(flow)?;
            passed += 1;
            assert!(passed <= self.flows.len(), "the attachments after {share:?} have no end");
            Some(core::mem::replace(&mut flow, entry.sibling))
        })
    }
}

/// Asserts that exactly the slots with an even generation are listed as vacant. Duplicates are only
/// searched among the slots that are taken next: a search among all would need a list of marks, and
/// nothing may be allocated here.
fn check_vacant<S: Slot, T>(vacant: &[S], table: &Table<S, T>, generation: impl Fn(&T) -> u32) {
    let free = table.iter().filter(|row| !is_taken(generation(row))).count();
    assert_eq!(vacant.len(), free, "places known to be vacant, and vacant ones");
    let next = &vacant[vacant.len().saturating_sub(VACANT_COMPARED)..];
    for (nth, slot) in next.iter().enumerate() {
        assert!(!is_taken(generation(&table[*slot])), "{slot:?} is taken, and vacant");
        assert!(!next[..nth].contains(slot), "{slot:?} is vacant twice");
    }
}

/// Converts a count of entries in memory.
fn count(things: u32) -> usize {
    index(things)
}

/// Returns whether a slot of this generation is taken.
const fn is_taken(generation: u32) -> bool {
    generation % 2 == 1
}
