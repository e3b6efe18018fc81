//! What volumes with a claim have beside their limits, and who waits where.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::turns::MADE_WHOLE_MAX;
use super::{Io, Scheduler, index};
use crate::qos::bucket::{Bucket, Depth};
use crate::qos::pacing::Pacing;
use crate::qos::queue::Queue;
use crate::qos::sharing::device::{Device, InService, Place};
use crate::qos::sharing::flow::{Flow, HeldBy, NIL, Waits, is_urgent};
use crate::qos::sharing::instance::{Instance, push_back, unlink};
use crate::qos::sharing::model::Claim;
use crate::qos::wheel::Wheel;
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// A request that was dispatched to a device: the key to its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// Of a dispatch whose completion need not be told: its volume has no device.
    pub const NONE: Self = Self { slot: NIL, generation: 0 };

    /// The ticket as a number, for callers who keep numbers.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    /// The ticket of a number that [`Ticket::to_bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(NIL);
        Self { slot: half(bits >> 32), generation: half(bits) }
    }
}

/// What every request of a volume with a claim touches: one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Share {
    pub(super) place: Place,
    pub(super) volume: u32,
    /// Slot of the device, or `NIL`.
    pub(super) device: u32,
    /// The first of its flows; the others are its siblings.
    pub(super) flows: u32,
    /// Flows whose turn it is at the volume: first of a ring, or `NIL`.
    pub(super) ring: u32,
    /// Time's worth of tokens that were lost through no fault of the tenant's, to be paid back; in
    /// nanoseconds, at most a quarter of a second.
    owed_ns: u32,
    pub(super) in_flight: u32,
    after_flush: bool,
    /// Whether it may have more than its limit.
    pub(super) may_have_surplus: bool,
    /// Whether it is in its device's line of those who may.
    pub(super) in_spare: bool,
}

const _: () = assert!(size_of::<Share>() == 64);
// What a claim adds to an idle volume, beside twelve bytes of indices.
const _: () = assert!(size_of::<Share>() + size_of::<Terms>() + size_of::<Flow>() <= 296);

/// What only some requests of a volume with a claim touch. It goes with the volume when it moves.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) claim: Claim,
    /// Bounds the urgent requests.
    urgent: Bucket,
    urgent_at: Instant,
    pub(super) surplus: Option<Bucket>,
    pub(super) surplus_at: Instant,
    pub(super) made_whole: Duration,
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

impl Share {
    pub(super) fn new(now: Instant, volume: u32, flow: u32, claim: &Claim) -> Self {
        Self {
            place: Place::new(now),
            volume,
            device: NIL,
            flows: flow,
            ring: NIL,
            owed_ns: 0,
            in_flight: 0,
            after_flush: false,
            may_have_surplus: claim.surplus_per_second.is_some(),
            in_spare: false,
        }
    }

    /// What goes with the volume when it moves.
    pub(super) const fn standing(&self, terms: Terms) -> Standing {
        let Self { owed_ns, after_flush, .. } = *self;
        Standing { terms, tag: self.place.tag, owed_ns, after_flush }
    }

    /// Puts in force what came with the volume, except its terms.
    pub(super) const fn restore(&mut self, standing: &Standing) {
        self.place.tag = standing.tag;
        self.owed_ns = standing.owed_ns;
        self.after_flush = standing.after_flush;
    }

    pub(super) fn owed(&self) -> Duration {
        Duration::from_ns(self.owed_ns.into())
    }

    /// Replaces what is owed, at most [`MADE_WHOLE_MAX`].
    pub(super) fn owe(&mut self, owed: Duration) {
        self.owed_ns = u32::try_from(owed.min(MADE_WHOLE_MAX).ns).unwrap_or(u32::MAX);
    }

    /// Whether a request would be urgent, if there is no bound on them.
    pub(super) fn is_urgent(&mut self, io: &Io) -> bool {
        let after_flush = self.after_flush;
        match io.operation {
            Operation::Flush => self.after_flush = true,
            operation if operation.is_write() => self.after_flush = false,
            _ => {}
        }
        is_urgent(io, self.in_flight, after_flush)
    }
}

impl Terms {
    pub(super) fn new(now: Instant, pacing: &Pacing, claim: &Claim) -> Self {
        Self {
            claim: *claim,
            urgent: Bucket::full(urgent_rate(pacing, claim), Depth::time(pacing.tolerance)),
            urgent_at: now,
            surplus: surplus(pacing, claim),
            surplus_at: now,
            made_whole: Duration::ZERO,
            held: Held::default(),
        }
    }

    /// Puts another claim or other limits in force from `now` on: until then the old ones were.
    pub(super) fn set(&mut self, now: Instant, pacing: &Pacing, claim: &Claim) {
        self.urgent.settle(now.since(self.urgent_at));
        self.urgent_at = now;
        if let Some(surplus) = &mut self.surplus {
            surplus.settle(now.since(self.surplus_at));
        }
        self.surplus_at = now;
        self.claim = *claim;
        let depth = Depth::time(pacing.tolerance);
        self.urgent.set_rate(urgent_rate(pacing, claim), depth);
        match (self.surplus.as_mut(), claim.surplus_per_second) {
            (Some(old), Some(rate)) => old.set_rate(rate.into(), depth),
            _ => self.surplus = surplus(pacing, claim),
        }
    }

    /// Counts an urgent request against the bound on them; `false` if there are too many.
    pub(super) fn may_be_urgent(&mut self, now: Instant) -> bool {
        self.urgent.settle(now.since(self.urgent_at));
        self.urgent_at = now;
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

fn surplus(pacing: &Pacing, claim: &Claim) -> Option<Bucket> {
    let rate = claim.surplus_per_second?;
    Some(Bucket::empty(rate.into(), Depth::time(pacing.tolerance)))
}

/// A device and the line of those who may have what nobody wants.
#[derive(Debug)]
pub(super) struct Shop {
    pub(super) device: Device,
    pub(super) spare: VecDeque<u32>,
    /// There was no room in the output for what it would have served.
    pub(super) interrupted: bool,
}

impl Shop {
    pub(super) const fn new(device: Device) -> Self {
        Self { device, spare: VecDeque::new(), interrupted: false }
    }
}

/// Everything that is shared.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    pub(super) shares: Vec<Share>,
    /// Of each share.
    pub(super) terms: Vec<Terms>,
    pub(super) vacant_shares: Vec<u32>,
    pub(super) flows: Vec<Flow>,
    pub(super) flow_generations: Vec<u32>,
    pub(super) vacant_flows: Vec<u32>,
    pub(super) instances: Vec<Instance>,
    pub(super) instance_generations: Vec<u32>,
    pub(super) vacant_instances: Vec<u32>,
    /// Present once there is an instance.
    pub(super) instance_wheel: Option<Wheel>,
    pub(super) shops: Vec<Shop>,
    /// What devices work on, each with the generation of its ticket.
    in_service: Vec<(InService, u32)>,
    vacant_tickets: Vec<u32>,
    pub(super) unknown_completions: u64,
}

impl Sharing {
    /// When something shared has to be looked at next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        if self.shops.iter().any(|shop| shop.interrupted) {
            return Some(Instant::ZERO);
        }
        self.instance_wheel.as_ref()?.next_deadline()
    }

    pub(super) fn ticket(&mut self, in_service: InService) -> Ticket {
        if let Some(slot) = self.vacant_tickets.pop() {
            let entry = &mut self.in_service[index(slot)];
            entry.0 = in_service;
            entry.1 = entry.1.wrapping_add(1);
            return Ticket { slot, generation: entry.1 };
        }
        self.in_service.push((in_service, 1));
        let slot = u32::try_from(self.in_service.len() - 1).unwrap_or(NIL);
        Ticket { slot, generation: 1 }
    }

    /// What a ticket stands for, once.
    pub(super) fn redeem(&mut self, ticket: Ticket) -> Option<InService> {
        let entry = self.in_service.get_mut(index(ticket.slot))?;
        if entry.1 != ticket.generation {
            return None;
        }
        // An even generation is nobody's ticket.
        entry.1 = entry.1.wrapping_add(1);
        self.vacant_tickets.push(ticket.slot);
        Some(entry.0)
    }

    /// Closes the account of a flow that waited beyond its volume.
    pub(super) fn close_account(&mut self, now: Instant, share: u32, flow: u32) {
        let Flow { held_since, held_by, .. } = self.flows[index(flow)];
        self.terms[index(share)].held.add(held_by, now.since(held_since));
    }

    /// Takes a flow out of whatever line it is in.
    pub(super) fn withdraw(&mut self, now: Instant, share: u32, flow: u32) {
        let instance = self.flows[index(flow)].instance;
        match self.flows[index(flow)].waits {
            Waits::Nowhere => {}
            Waits::AtVolume => unlink(&mut self.shares[index(share)].ring, &mut self.flows, flow),
            Waits::AtInstance => {
                self.instances[index(instance)].leave(&mut self.flows, flow);
                self.close_account(now, share, flow);
            }
            Waits::AtDevice => {
                let device = self.shares[index(share)].device;
                self.shops[index(device)].device.forget(flow);
                self.close_account(now, share, flow);
            }
        }
        let flow = &mut self.flows[index(flow)];
        flow.waits = Waits::Nowhere;
        flow.in_turn = false;
        flow.deficit_ns = 0;
    }

    /// Takes a share out of the line for surplus.
    pub(super) fn leave_spare(&mut self, share: u32) {
        let entry = &mut self.shares[index(share)];
        if entry.in_spare {
            entry.in_spare = false;
            self.shops[index(entry.device)].spare.retain(|other| *other != share);
        }
    }

    /// Puts a flow in line at its volume.
    pub(super) fn line_up(&mut self, share: u32, flow: u32) {
        push_back(&mut self.shares[index(share)].ring, &mut self.flows, flow);
        self.flows[index(flow)].waits = Waits::AtVolume;
    }

    /// Notes that a flow waits beyond its volume from now on.
    pub(super) fn hold(&mut self, now: Instant, flow: u32, waits: Waits, by: HeldBy) {
        let flow = &mut self.flows[index(flow)];
        flow.waits = waits;
        flow.held_since = now;
        flow.held_by = by;
    }

    /// Looks at an instance again at `deadline`, or never.
    pub(super) fn wake_instance(&mut self, instance: u32, deadline: Option<Instant>, now: Instant) {
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
        share: u32,
        mut matches: impl FnMut(u32) -> bool,
    ) -> Queue {
        let mut taken = Queue::new();
        let mut flow = self.sharing.shares[index(share)].flows;
        while flow != NIL {
            let entry = &mut self.sharing.flows[index(flow)];
            let more = entry.extract(&mut self.nodes, &mut matches);
            let (empty, sibling) = (entry.is_empty(), entry.sibling);
            taken.append_all(&mut self.nodes, more);
            if empty {
                self.sharing.withdraw(self.now, share, flow);
            }
            flow = sibling;
        }
        taken
    }

    /// Puts a volume's limits in force for what is derived from them.
    pub(super) fn repace_share(&mut self, share: u32, pacing: &Pacing) {
        let terms = &mut self.sharing.terms[index(share)];
        let claim = terms.claim;
        terms.set(self.now, pacing, &claim);
        let entry = &mut self.sharing.shares[index(share)];
        // What was lost at another rate is not paid at this one.
        entry.owe(Duration::ZERO);
        if entry.device != NIL {
            let model = *self.sharing.shops[index(entry.device)].device.model();
            entry.place.set_claim(&model, &claim, Claim::least_reservation(pacing));
        }
    }
}
