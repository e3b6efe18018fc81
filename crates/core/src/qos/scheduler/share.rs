//! What volumes with a claim have beside their limits, and who waits where.

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

/// A request that was dispatched to a device: the key to its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    slot: TicketSlot,
    generation: u32,
}

impl Ticket {
    /// Of a dispatch whose completion need not be told: its volume has no device.
    pub const NONE: Self = Self { slot: TicketSlot::NONE, generation: 0 };

    /// The ticket as a number, for callers who keep numbers.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.slot.number()) << 32 | u64::from(self.generation)
    }

    /// The ticket of a number that [`Ticket::to_bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        Self { slot: TicketSlot::new(half(bits >> 32)), generation: half(bits) }
    }
}

// What a claim adds to an idle volume, beside its indices.
const _: () = assert!(size_of::<Flow>() + size_of::<Terms>() <= 216);

/// What only some requests of a volume with a claim touch. It goes with the volume when it moves.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) claim: Claim,
    /// Bounds the urgent requests.
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

/// What of a volume's share goes with it when it moves.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) terms: Terms,
    tag: Instant,
    owed_ns: u32,
    after_flush: bool,
}

impl Standing {
    /// What goes with a volume when it moves; `flow` is its first.
    pub(super) const fn of(flow: &Flow, terms: Terms) -> Self {
        let Flow { owed_ns, after_flush, .. } = *flow;
        Self { terms, tag: flow.place.tag, owed_ns, after_flush }
    }

    /// Puts in force what came with the volume, except its terms.
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

    /// Puts another claim or other limits in force from `now` on: until then the old ones were.
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

    /// Counts an urgent request against the bound on them; `false` if there are too many.
    pub(super) fn may_be_urgent(&mut self, now: Instant) -> bool {
        self.settle_urgent(now);
        let ready = self.urgent.is_ready();
        if ready {
            self.urgent.charge(1);
        }
        ready
    }
}

/// Urgent requests a second: what is reserved, or else a tenth of the limit.
fn urgent_rate(pacing: &Pacing, claim: &Claim) -> u64 {
    let tenth = pacing.operations.map_or(u32::MAX.into(), |limit| limit.per_second.div_ceil(10));
    match claim.reservation_per_second {
        0 => tenth,
        reserved => reserved.into(),
    }
}

/// A device.
#[derive(Debug)]
pub(super) struct DeviceQueue {
    pub(super) device: Device,
    /// There was no room in the output for what it would have served.
    pub(super) interrupted: bool,
}

impl DeviceQueue {
    pub(super) const fn new(device: Device) -> Self {
        Self { device, interrupted: false }
    }

    /// Whether anybody could go when there is room.
    pub(super) fn is_awaited(&self) -> bool {
        self.device.is_wanted() || self.interrupted
    }
}

/// Everything that is shared.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Attachments. A volume's *share* is its first.
    pub(super) flows: Flows,
    /// Of each flow; those of a volume's other attachments are nobody's.
    pub(super) terms: Table<ShareSlot, Terms>,
    pub(super) flow_generations: Table<FlowSlot, u32>,
    pub(super) vacant_flows: Vec<FlowSlot>,
    pub(super) instances: Table<InstanceSlot, Instance>,
    pub(super) instance_generations: Table<InstanceSlot, u32>,
    pub(super) vacant_instances: Vec<InstanceSlot>,
    /// Present once there is an instance.
    pub(super) instance_wheel: Option<WheelOf<InstanceSlot>>,
    pub(super) device_queues: Table<DeviceSlot, DeviceQueue>,
    /// What devices work on, each with the generation of its ticket.
    pub(super) in_service: Table<TicketSlot, (InService, u32)>,
    pub(super) vacant_tickets: Vec<TicketSlot>,
    pub(super) unknown_completions: u64,
}

impl Sharing {
    /// When something shared has to be looked at next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.device_queues.iter().any(|device_queue| device_queue.interrupted) {
            return Some(Instant::ZERO);
        }
        self.instance_wheel.as_ref()?.next_deadline()
    }

    /// Tells what decides the future of an only flow behind an only instance, if they are there;
    /// `None` if there are more.
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

    /// Notes what a device works on from now on.
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

    /// Tells a device that it is done with what a ticket stands for, once. Returns the device, and
    /// whether anybody could go there now.
    #[inline(always)] // what it returns would go through memory
    pub(super) fn redeem(&mut self, ticket: Ticket, now: Instant) -> Option<(DeviceSlot, bool)> {
        let (done, generation) = self.in_service.get_mut(ticket.slot)?;
        if *generation != ticket.generation {
            return None;
        }
        // An even generation is nobody's ticket.
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

    /// The flow of an instance that still waits after it was sent back from its device.
    fn sent_back(&self, instance: InstanceSlot) -> Option<(FlowSlot, Waits)> {
        let (flow, since) = self.instances.get(instance)?.sent_back;
        let entry = self.flows.get(flow)?;
        let is_beyond = matches!(entry.waits, Waits::AtInstance | Waits::AtDevice);
        let still_waits = is_beyond && entry.first_since == since && entry.instance == instance;
        still_waits.then_some((flow, entry.waits))
    }

    /// Notes that it was a flow's turn at its device while its instance's limits were used up.
    pub(super) fn send_back(&mut self, flow: FlowSlot) {
        let Flow { instance, first_since, .. } = self.flows[flow];
        if self.sent_back(instance).is_none() {
            self.instances[instance].sent_back = (flow, first_since);
        }
    }

    /// Whether an urgent request of a flow may pass those who wait for its device. Not while one of
    /// its own instance waits there for the second time: what the first time was used up before its
    /// turn came would be used up by urgent ones every time.
    pub(super) fn may_pass(&self, flow: FlowSlot) -> bool {
        let sent_back = self.sent_back(self.flows[flow].instance);
        sent_back.is_none_or(|(first, waits)| first == flow || waits != Waits::AtDevice)
    }

    /// Closes the account of a flow that waited beyond its volume.
    pub(super) fn close_account(&mut self, now: Instant, share: ShareSlot, flow: FlowSlot) {
        let Flow { held_since, held_by, .. } = self.flows[flow];
        self.terms[share].held.add(held_by, now.since(held_since));
    }

    /// Takes a flow out of whatever line it is in. As long as it has something waiting, it keeps
    /// what is left of its turns: one whose own limits hold it up after every large request would
    /// otherwise pay for each with whole turns, however little more than one it takes.
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
        // Beside other attachments turns at the volume are counted in it, too, in another unit.
        let alone = share.flow() == flow && self.flows[flow].sibling.is_none();
        let flow = &mut self.flows[flow];
        flow.waits = Waits::Nowhere;
        flow.in_turn = false;
        if !alone || flow.is_empty() {
            flow.deficit_ns = 0;
        }
    }

    /// Puts a flow in line at its volume.
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

    /// Notes that a flow waits beyond its volume from now on.
    pub(super) fn hold(&mut self, now: Instant, flow: FlowSlot, waits: Waits, by: HeldBy) {
        let flow = &mut self.flows[flow];
        flow.waits = waits;
        flow.held_since = now;
        flow.held_by = by;
    }

    /// Looks at an instance again at `deadline`, or never.
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
    /// Everything that waits of a volume with a claim and matches, in the order of its flows.
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
            let (empty, sibling) = (entry.is_empty(), entry.sibling);
            taken.append_all(&mut self.nodes, &more);
            if empty {
                self.sharing.withdraw(self.now, share, flow);
            }
            flow = sibling;
        }
        taken
    }

    /// Puts a volume's limits in force for what is derived from them.
    pub(super) fn repace_share(&mut self, share: ShareSlot, pacing: &Pacing) {
        let terms = &mut self.sharing.terms[share];
        let claim = terms.claim;
        terms.set(self.now, pacing, &claim);
        let entry = &mut self.sharing.flows[share.flow()];
        // What was lost at another rate is not paid at this one.
        entry.owe(Duration::ZERO);
        if !entry.device.is_none() {
            entry.place.set_claim(&claim, Claim::least_reservation(pacing));
        }
    }
}
