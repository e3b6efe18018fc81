//! State of volumes with a claim beside their limits, and of requests that wait beyond those.

use crate::convert::exact;
use alloc::vec::Vec;

use super::Scheduler;
use crate::qos::pacer::{Pacer, Tolerance};
use crate::qos::pacing::Pacing;
use crate::qos::phase::Phase;
use crate::qos::queue::{Nodes, Queue};
use crate::qos::sharing::device::{Device, InService};
use crate::qos::sharing::flow::{Flow, Flows, HeldBy, Waits};
use crate::qos::sharing::instance::Instance;
use crate::qos::sharing::model::Claim;
use crate::qos::sharing::ring::{push_back, unlink};
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, ShareSlot, Slot, Table, TicketSlot};
use crate::qos::wheel::WheelOf;
use crate::time::{Duration, Instant};

/// The key of a dispatch to a device, for its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    slot: TicketSlot,
    generation: u32,
}

impl Ticket {
    /// The ticket of a dispatch without a device, which need not be completed.
    pub const NONE: Self = Self { slot: TicketSlot::NONE, generation: 0 };

    /// Returns the ticket as a number, for callers that keep numbers.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.slot.number()) << 32 | u64::from(self.generation)
    }

    /// Returns the ticket of a number from [`Ticket::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let slot = TicketSlot::new(exact(bits >> 32, "the upper half"));
        Self { slot, generation: exact(bits & u64::from(u32::MAX), "the lower half") }
    }
}

// Memory that a claim adds to an idle volume, beside its indices.
const _: () = assert!(size_of::<Flow>() + size_of::<Terms>() <= 216);

/// State that only some requests of a volume with a claim touch. It moves with the volume.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) claim: Claim,
    /// Limits the urgent requests.
    urgent: Pacer,
    urgent_at: Instant,
    tolerance: Tolerance,
    pub(super) catch_up: Duration,
    pub(super) held: Held,
}

/// Time in which requests waited beyond the volume's own limits, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) instance_operations_ns: u64,
    pub(super) instance_bytes_ns: u64,
    pub(super) device_ns: u64,
}

impl Held {
    pub(super) fn add(&mut self, by: HeldBy, span: Duration) {
        *match by {
            HeldBy::InstanceOperations => &mut self.instance_operations_ns,
            HeldBy::InstanceBytes => &mut self.instance_bytes_ns,
            HeldBy::Device => &mut self.device_ns,
        } += span.ns;
    }
}

/// Part of a volume's share that moves with it.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) terms: Terms,
    tag: Instant,
    owed_ns: u32,
    after_flush: bool,
}

impl Standing {
    /// Returns the part that moves with a volume; `flow` is its first.
    pub(super) const fn of(flow: &Flow, terms: Terms) -> Self {
        let Flow { owed_ns, after_flush, .. } = *flow;
        Self { terms, tag: flow.place.tag, owed_ns, after_flush }
    }

    /// Restores the state that came with the volume, except its terms.
    pub(super) const fn restore(&self, flow: &mut Flow) {
        flow.place.tag = self.tag;
        flow.owed_ns = self.owed_ns;
        flow.after_flush = self.after_flush;
    }
}

impl Terms {
    pub(super) fn new(now: Instant, pacing: &Pacing, claim: &Claim) -> Self {
        let tolerance = Tolerance::new(pacing.tolerance);
        Self {
            claim: *claim,
            urgent: Pacer::full(Some(urgent_rate(pacing, claim)), tolerance),
            urgent_at: now,
            tolerance,
            catch_up: Duration::ZERO,
            held: Held::default(),
        }
    }

    /// Applies another claim or other limits from `now` on. Until then the old ones apply.
    pub(super) fn set(&mut self, now: Instant, pacing: &Pacing, claim: &Claim) {
        self.settle_urgent(now);
        self.claim = *claim;
        self.tolerance = Tolerance::new(pacing.tolerance);
        self.urgent.set_rate(Some(urgent_rate(pacing, claim)), self.tolerance);
    }

    fn settle_urgent(&mut self, now: Instant) {
        let _ = self.urgent.settle(now.since(self.urgent_at), self.tolerance);
        self.urgent_at = now;
    }

    /// Counts an urgent request against the limit on them. Returns `false` if the limit is reached.
    pub(super) fn may_be_urgent(&mut self, now: Instant) -> bool {
        self.settle_urgent(now);
        let ready = self.urgent.is_ready();
        if ready {
            self.urgent.charge(1);
        }
        ready
    }
}

/// Returns the maximum rate of urgent requests: the reserved rate, or without a reservation a tenth
/// of the limit.
fn urgent_rate(pacing: &Pacing, claim: &Claim) -> u64 {
    let tenth = pacing.operations.map_or(u32::MAX.into(), |limit| limit.per_second.div_ceil(10));
    match claim.reservation_per_second {
        0 => tenth,
        reserved => reserved.into(),
    }
}

/// A device, with the state of its service.
#[derive(Debug)]
pub(super) struct DeviceQueue {
    pub(super) device: Device,
    /// Whether the output had no room for requests that it would have served.
    pub(super) interrupted: bool,
}

impl DeviceQueue {
    pub(super) const fn new(device: Device) -> Self {
        Self { device, interrupted: false }
    }

    /// Returns whether a request could be dispatched when there is room.
    pub(super) fn is_awaited(&self) -> bool {
        self.device.is_wanted() || self.interrupted
    }
}

/// All shared resources of a scheduler.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Attachments. A volume's *share* is its first one.
    pub(super) flows: Flows,
    /// For each flow; those of a volume's other attachments are unused.
    pub(super) terms: Table<ShareSlot, Terms>,
    pub(super) flow_generations: Table<FlowSlot, u32>,
    pub(super) vacant_flows: Vec<FlowSlot>,
    pub(super) instances: Table<InstanceSlot, Instance>,
    pub(super) instance_generations: Table<InstanceSlot, u32>,
    pub(super) vacant_instances: Vec<InstanceSlot>,
    /// Present once there is an instance.
    pub(super) instance_wheel: Option<WheelOf<InstanceSlot>>,
    pub(super) device_queues: Table<DeviceSlot, DeviceQueue>,
    /// Quanta in service at devices, each with the generation of its ticket.
    pub(super) in_service: Table<TicketSlot, (InService, u32)>,
    pub(super) vacant_tickets: Vec<TicketSlot>,
    pub(super) unknown_completions: u64,
}

impl Sharing {
    /// Returns when a shared resource has to be examined next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.device_queues.iter().any(|device_queue| device_queue.interrupted) {
            return Some(Instant::ZERO);
        }
        self.instance_wheel.as_ref()?.next_deadline()
    }

    /// Writes the state that determines the future of an only flow behind an only instance, if they
    /// exist. Returns `None` if there are more.
    pub(super) fn tell(&self, nodes: &Nodes, phase: &mut Phase) -> Option<()> {
        let Self { flows, terms, instances, .. } = self;
        match (flows.as_slice(), terms.as_slice()) {
            ([], []) => {}
            ([flow], [Terms { urgent, urgent_at, tolerance, .. }]) => {
                flow.tell(nodes, phase)?;
                urgent.tell(phase.at().since(*urgent_at), *tolerance, phase);
            }
            _ => return None,
        }
        match (instances.as_slice(), &self.instance_wheel) {
            ([], _) => {}
            ([instance], Some(wheel)) => {
                instance.tell(phase)?;
                wheel.tell(instances.slots().next()?, phase)?;
            }
            _ => return None,
        }
        Some(())
    }

    /// Records a quantum in service, and returns its ticket.
    #[inline(always)] // written where it stays, instead of in parts that are then copied
    pub(super) fn ticket(&mut self, in_service: InService) -> Ticket {
        if let Some(slot) = self.vacant_tickets.pop() {
            let entry = &mut self.in_service[slot];
            entry.0 = in_service;
            entry.1 = entry.1.wrapping_add(1);
            return Ticket { slot, generation: entry.1 };
        }
        Ticket { slot: self.in_service.push((in_service, 1)), generation: 1 }
    }

    /// Completes the quantum of a ticket, once. Returns its device, and whether a request could be
    /// dispatched there now.
    #[inline(always)] // what it returns would go through memory
    pub(super) fn redeem(&mut self, ticket: Ticket, now: Instant) -> Option<(DeviceSlot, bool)> {
        let (done, generation) = self.in_service.get_mut(ticket.slot)?;
        if *generation != ticket.generation {
            return None;
        }
        // An even generation belongs to no ticket.
        *generation = generation.wrapping_add(1);
        self.vacant_tickets.push(ticket.slot);
        let device_queue = &mut self.device_queues[done.device];
        device_queue.device.completed(now, done);
        if self.flow_generations[done.share.flow()] == done.share_generation {
            let share = &mut self.flows[done.share.flow()];
            share.in_flight = share.in_flight.saturating_sub(1);
        }
        Some((done.device, device_queue.is_awaited()))
    }

    /// Returns the flow of an instance that still waits after it was sent back from its device.
    fn sent_back(&self, instance: InstanceSlot) -> Option<(FlowSlot, Waits)> {
        let (flow, since) = self.instances.get(instance)?.sent_back;
        let entry = self.flows.get(flow)?;
        let is_beyond = matches!(entry.waits, Waits::AtInstance | Waits::AtDevice);
        let still_waits = is_beyond && entry.first_since == since && entry.instance == instance;
        still_waits.then_some((flow, entry.waits))
    }

    /// Records that it was a flow's turn at its device while its instance's limits were used up.
    pub(super) fn send_back(&mut self, flow: FlowSlot) {
        let Flow { instance, first_since, .. } = self.flows[flow];
        if self.sent_back(instance).is_none() {
            self.instances[instance].sent_back = (flow, first_since);
        }
    }

    /// Returns whether an urgent request of a flow may pass others that wait for its device. Not
    /// while a flow of its own instance waits there for the second time: the limits were used up
    /// before its first turn, and urgent requests could use them up each time.
    pub(super) fn may_pass(&self, flow: FlowSlot) -> bool {
        let sent_back = self.sent_back(self.flows[flow].instance);
        sent_back.is_none_or(|(first, waits)| first == flow || waits != Waits::AtDevice)
    }

    /// Adds the wait of a flow beyond its volume to the volume's account.
    pub(super) fn close_account(&mut self, now: Instant, share: ShareSlot, flow: FlowSlot) {
        let Flow { held_since, held_by, .. } = self.flows[flow];
        self.terms[share].held.add(held_by, now.since(held_since));
    }

    /// Removes a flow from its line. As long as it has a waiting request, it keeps the rest of its
    /// turns: otherwise, a flow whose own limits delay it after each large request would pay for
    /// each with whole turns, however little more than one it takes.
    pub(super) fn withdraw(&mut self, now: Instant, share: ShareSlot, flow: FlowSlot) {
        let instance = self.flows[flow].instance;
        match self.flows[flow].waits {
            Waits::Nowhere => {}
            Waits::AtVolume => self.leave_volume(share, flow),
            Waits::AtInstance => {
                self.instances[instance].leave(&mut self.flows, flow);
                self.close_account(now, share, flow);
            }
            Waits::AtDevice => {
                let device = self.flows[share.flow()].device;
                self.device_queues[device].device.forget(flow);
                self.close_account(now, share, flow);
            }
        }
        // If there are other attachments, `deficit_ns` also counts turns at the volume, in another
        // unit.
        let alone = share.flow() == flow && self.flows[flow].sibling.is_none();
        let flow = &mut self.flows[flow];
        flow.waits = Waits::Nowhere;
        flow.in_turn = false;
        if !alone || flow.is_empty() {
            flow.deficit_ns = 0;
        }
    }

    /// Lines up a flow at its volume.
    pub(super) fn line_up(&mut self, share: ShareSlot, flow: FlowSlot) {
        let mut first = self.flows[share.flow()].turns;
        push_back(&mut first, &mut self.flows, flow);
        self.flows[share.flow()].turns = first;
        self.flows[flow].waits = Waits::AtVolume;
    }

    fn leave_volume(&mut self, share: ShareSlot, flow: FlowSlot) {
        let mut first = self.flows[share.flow()].turns;
        unlink(&mut first, &mut self.flows, flow);
        self.flows[share.flow()].turns = first;
    }

    /// Records that a flow waits beyond its volume from now on.
    pub(super) fn hold(&mut self, now: Instant, flow: FlowSlot, waits: Waits, by: HeldBy) {
        let flow = &mut self.flows[flow];
        flow.waits = waits;
        flow.held_since = now;
        flow.held_by = by;
    }

    /// Schedules the next turn of an instance at `deadline`; without one, it has none.
    pub(super) fn wake_instance(
        &mut self,
        instance: InstanceSlot,
        deadline: Option<Instant>,
        now: Instant,
    ) {
        let Some(wheel) = &mut self.instance_wheel else { return };
        wheel.remove(instance);
        if let Some(deadline) = deadline {
            wheel.insert(instance, deadline, now);
        }
    }
}

impl Scheduler {
    /// Removes all waiting requests of a volume with a claim that match. Returns them in the order
    /// of its flows.
    pub(super) fn extract_shared(
        &mut self,
        share: ShareSlot,
        mut matches: impl FnMut(u32) -> bool,
    ) -> Queue {
        let mut taken = Queue::new();
        let mut flow = share.flow();
        while !flow.is_none() {
            let entry = &mut self.sharing.flows[flow];
            let more = entry.extract(&mut self.nodes, &mut matches);
            let empty = entry.is_empty();
            let sibling = entry.sibling;
            taken.append_all(&mut self.nodes, &more);
            if empty {
                self.sharing.withdraw(self.now, share, flow);
            }
            flow = sibling;
        }
        taken
    }

    /// Applies a volume's limits to the state that depends on them.
    pub(super) fn repace_share(&mut self, share: ShareSlot, pacing: &Pacing) {
        let terms = &mut self.sharing.terms[share];
        let claim = terms.claim;
        terms.set(self.now, pacing, &claim);
        let entry = &mut self.sharing.flows[share.flow()];
        // Tokens that were lost at another rate are not paid at this one.
        entry.owe(Duration::ZERO);
        if !entry.device.is_none() {
            entry.place.set_claim(&claim, Claim::least_reservation(pacing));
        }
    }
}
