//! The turns of attachments at their volume, of flows at their instance, and of flows at their
//! device.

use super::limiters::{Passed, instance_cost};
use super::share::Ticket;
use super::{Io, OUTPUT_DISPATCHES_MAX, Scheduler, SubmitError, TURN_DISPATCHES_MAX};
use crate::qos::cost::Cost;
use crate::qos::sharing::device::DispatchReason;
use crate::qos::sharing::flow::{Flow, HeldBy, Waits};
use crate::qos::sharing::instance::TURN;
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, ShareSlot, VolumeSlot};
use crate::request::Operation;
use crate::time::Duration;

/// Maximum time's worth of tokens to catch up after a delay that the scheduler has caused.
pub const CATCH_UP_MAX: Duration = Duration::from_ms(250);

/// Delays below this lose no tokens: no type's tolerance is shorter.
const DELAY_MIN: Duration = Duration::from_ms(1);

/// The longest request of a flow that enters its instance's ring at the front, in bytes.
const LIGHT_BYTES_MAX: u64 = 16 << 10;

/// State of the first flow of an instance's ring.
enum First {
    /// No request waits.
    Nothing,
    /// The limits allow it, at this cost to its instance.
    MayGo(Cost),
    /// The instance's limits do not allow it.
    IsShut,
    /// It has moved to the other ring.
    GoesTheOtherWay,
}

impl Scheduler {
    /// Submits a request to a flow of the volume in `slot`.
    pub(super) fn submit_to_flow(
        &mut self,
        slot: VolumeSlot,
        share: ShareSlot,
        flow: FlowSlot,
        io: Io,
    ) -> Result<(), SubmitError> {
        if !self.sharing.flows[flow].has_room_for(&io) {
            return Err(SubmitError::QueueFull);
        }
        let urgent = self.sharing.flows[share.flow()].is_urgent(&io)
            && self.sharing.terms[share].may_be_urgent(self.now);
        let entry = &mut self.sharing.flows[flow];
        let idle = entry.is_empty();
        entry.push(&mut self.nodes, io, urgent);
        if idle {
            self.begin(slot, share, flow);
        }
        Ok(())
    }

    /// Lines up a flow that had no waiting request until now.
    #[inline(never)] // most requests come behind others, and need not carry it along
    fn begin(&mut self, slot: VolumeSlot, share: ShareSlot, flow: FlowSlot) {
        if !self.is_backlogged_beside(share, flow) {
            // A volume without waiting requests has lost no tokens.
            self.sharing.flows[share.flow()].owe(Duration::ZERO);
        }
        self.sharing.line_up(share, flow);
        self.look_again(slot);
    }

    /// Returns whether another flow of the same volume has waiting requests.
    fn is_backlogged_beside(&self, share: ShareSlot, flow: FlowSlot) -> bool {
        let mut other = share.flow();
        while let Some(entry) = self.sharing.flows.get(other) {
            if other != flow && !entry.is_empty() {
                return true;
            }
            other = entry.sibling;
        }
        false
    }

    /// Lets flows that wait for instances continue, as far as there is room in the output.
    pub(super) fn poll_sharing(&mut self, moves_max: u32) {
        if let Some(wheel) = &mut self.sharing.instance_wheel {
            wheel.advance(self.now, moves_max);
        }
        while self.output.len() < OUTPUT_DISPATCHES_MAX {
            let Some(wheel) = &mut self.sharing.instance_wheel else { break };
            let Some(instance) = wheel.pop_due() else { break };
            self.serve_instance(instance);
            self.check_touched_instance(instance);
        }
        for device in self.sharing.device_queues.slots() {
            let device_queue = &self.sharing.device_queues[device];
            if device_queue.interrupted {
                self.pump(device);
            }
        }
    }

    /// Records that a device has completed a dispatch.
    pub(super) fn complete_ticket(&mut self, ticket: Ticket) {
        match self.sharing.redeem(ticket, self.now) {
            None => self.sharing.unknown_completions += 1,
            Some((device, true)) => {
                self.pump(device);
                self.check_touched_device(device);
            }
            Some((_, false)) => {}
        }
    }

    /// Settles the limits of a volume, a request of which waited at `from`. `delay` is the time for
    /// which the scheduler has delayed it; the tokens that could not be saved meanwhile are owed,
    /// and owed tokens are paid back.
    #[inline]
    fn settle_volume(&mut self, slot: VolumeSlot, share: ShareSlot, from: Waits, delay: Duration) {
        if delay >= DELAY_MIN || self.sharing.flows[share.flow()].owed() > Duration::ZERO {
            self.settle_owed(slot, share, delay);
            return;
        }
        let limiter = &mut self.volumes[slot].limiter;
        match from {
            Waits::AtInstance => limiter.settle_held(self.now),
            Waits::AtDevice => _ = limiter.settle_backlogged(self.now, Duration::ZERO),
            Waits::AtVolume | Waits::Nowhere => limiter.settle(self.now),
        }
    }

    /// Settles the limits of a volume that is owed tokens, or comes to be.
    #[cold]
    fn settle_owed(&mut self, slot: VolumeSlot, share: ShareSlot, delay: Duration) {
        let limiter = &mut self.volumes[slot].limiter;
        let terms = &mut self.sharing.terms[share];
        let share = &mut self.sharing.flows[share.flow()];
        let (lost, paid) = limiter.settle_backlogged(self.now, share.owed());
        let lost = if delay < DELAY_MIN { Duration::ZERO } else { lost.min(delay) };
        share.owe(Duration::from_ns(share.owed().ns - paid.ns) + lost);
        let catch_up = &mut terms.catch_up;
        *catch_up = *catch_up + paid;
    }

    /// Takes one turn of a volume with a claim.
    pub(super) fn serve_shared(&mut self, slot: VolumeSlot, share: ShareSlot) {
        let late = self.volumes[slot].limiter.late_now(self.now);
        self.settle_volume(slot, share, Waits::AtVolume, late);
        let limiter = &mut self.volumes[slot].limiter;
        limiter.close_account(&mut self.reserves[slot], self.now);
        for _ in 0..TURN_DISPATCHES_MAX {
            let flow = self.sharing.flows[share.flow()].turns;
            if flow.is_none() {
                return;
            }
            if !self.has_volume_turn(slot, share, flow) {
                continue;
            }
            match self.try_pass(flow, Waits::AtVolume) {
                Passed::Dispatched(cost) => self.after_volume_turn(slot, share, flow, &cost),
                Passed::Nothing => self.sharing.withdraw(self.now, share, flow),
                Passed::Full => break,
                Passed::VolumeThrottled(cost) => {
                    self.throttle_volume(slot, &cost);
                    return;
                }
                Passed::InstanceThrottled(cost, operation) => {
                    self.wait_for_instance(share, flow, (&cost, operation), false);
                }
                Passed::DeviceThrottled { urgent } => self.wait_for_device(share, flow, urgent),
            }
        }
        if !self.sharing.flows[share.flow()].turns.is_none() {
            self.wheel.push_due(slot);
        }
    }

    /// Returns whether it is the first flow's turn among the flows of a volume; if not, the flow
    /// has gone to the end. An only flow always has its turn.
    #[inline]
    fn has_volume_turn(&mut self, slot: VolumeSlot, share: ShareSlot, flow: FlowSlot) -> bool {
        self.sharing.flows[flow].next == flow || self.has_turn_beside(slot, share, flow)
    }

    fn has_turn_beside(&mut self, slot: VolumeSlot, share: ShareSlot, flow: FlowSlot) -> bool {
        let entry = &self.sharing.flows[flow];
        let Some(next) = entry.next(&self.nodes) else { return true };
        let volume = &self.volumes[slot];
        let (cost, _) = volume.counting.weigh(&next.portion);
        let share_ns = volume.limiter.share_ns(&cost);
        let turn_ns = volume.limiter.share_ns(&TURN);
        let entry = &mut self.sharing.flows[flow];
        if entry.may_take(share_ns, turn_ns) {
            return true;
        }
        self.sharing.flows[share.flow()].turns = entry.next;
        false
    }

    fn after_volume_turn(
        &mut self,
        slot: VolumeSlot,
        share: ShareSlot,
        flow: FlowSlot,
        cost: &Cost,
    ) {
        let entry = &self.sharing.flows[flow];
        if entry.is_empty() {
            self.sharing.withdraw(self.now, share, flow);
        } else if entry.next != flow {
            let share_ns = self.volumes[slot].limiter.share_ns(cost);
            let entry = &mut self.sharing.flows[flow];
            entry.deficit_ns = entry.deficit_ns.saturating_sub(share_ns);
        }
    }

    fn throttle_volume(&mut self, slot: VolumeSlot, cost: &Cost) {
        let limiter = &mut self.volumes[slot].limiter;
        self.wheel.remove(slot);
        if let Some(deadline) = limiter.throttle(&mut self.reserves[slot], cost) {
            self.wheel.insert(slot, deadline, self.now);
        }
    }

    fn wait_for_instance(
        &mut self,
        share: ShareSlot,
        flow: FlowSlot,
        (cost, operation): (&Cost, Operation),
        was_its_turn: bool,
    ) {
        let now = self.now;
        self.sharing.flows[flow].wait_beyond(now);
        self.sharing.withdraw(now, share, flow);
        let sharing = &mut self.sharing;
        let instance = sharing.flows[flow].instance;
        let entry = &mut sharing.instances[instance];
        let ring = entry.ring_of(operation);
        let first = entry.first(ring).is_none();
        let light = sharing.flows[flow].requests() == 1 && cost.bytes <= LIGHT_BYTES_MAX;
        let weight = sharing.flows[share.flow()].place.weight();
        // A turn that its own limits interrupted continues if its rest is enough for the next
        // request: waiting for another turn would cost it a part of each.
        let share_ns = entry.share_ns(cost);
        let left_ns = &mut sharing.flows[flow].deficit_ns;
        *left_ns = (*left_ns).min(share_ns.saturating_add(entry.turn_ns(weight.into())));
        let goes_on = *left_ns >= share_ns;
        sharing.flows[flow].in_turn = goes_on;
        sharing.flows[flow].resumed = goes_on;
        if was_its_turn {
            entry.join_front(&mut sharing.flows, flow, ring);
        } else if goes_on {
            entry.resume(&mut sharing.flows, flow, ring);
        } else {
            entry.join(&mut sharing.flows, flow, ring, light);
        }
        if first {
            entry.reopen(now);
            entry.throttle(cost, operation);
            let deadline = entry.opens_at();
            sharing.wake_instance(instance, deadline, now);
        }
        let by = sharing.instances[instance].held_by;
        sharing.hold(now, flow, Waits::AtInstance, by);
    }

    fn wait_for_device(&mut self, share: ShareSlot, flow: FlowSlot, urgent: bool) {
        let now = self.now;
        self.sharing.flows[flow].wait_beyond(now);
        self.sharing.withdraw(now, share, flow);
        self.sharing.hold(now, flow, Waits::AtDevice, HeldBy::Device);
        let since = self.sharing.flows[flow].first_since;
        let Flow { device, place, .. } = &mut self.sharing.flows[share.flow()];
        self.sharing.device_queues[*device].device.wait(flow, place, urgent, (since, now));
    }

    /// Takes one turn of an instance whose limits may have opened.
    pub(super) fn serve_instance(&mut self, instance: InstanceSlot) {
        self.sharing.instances[instance].reopen(self.now);
        let mut open = [true, true];
        for _ in 0..TURN_DISPATCHES_MAX {
            let limits = &self.sharing.instances[instance];
            let Some(ring) = limits.next_ring(&self.sharing.flows, open) else {
                let deadline = limits.opens_at();
                self.sharing.wake_instance(instance, deadline, self.now);
                return;
            };
            let flow = limits.first(ring);
            let alone = limits.is_alone(ring, open);
            let slot = self.sharing.flows[flow].volume;
            let share = self.volumes[slot].share;
            let cost = match self.look_at_first(instance, (ring, flow), open[1 - ring]) {
                First::MayGo(cost) => cost,
                First::Nothing => {
                    self.sharing.withdraw(self.now, share, flow);
                    continue;
                }
                First::GoesTheOtherWay => {
                    // It may be the first there, and not need the limit that delayed the first one
                    // there.
                    open[1 - ring] = true;
                    continue;
                }
                First::IsShut => {
                    open[ring] = false;
                    continue;
                }
            };
            let Flow { in_turn: goes_on, deficit_ns: left_ns, turn_at, .. } =
                self.sharing.flows[flow];
            self.settle_volume(slot, share, Waits::AtInstance, Duration::ZERO);
            if !self.has_instance_turn(instance, (ring, flow), &cost, alone) {
                continue;
            }
            match self.try_pass(flow, Waits::AtInstance) {
                Passed::Dispatched(cost) => self.after_instance_turn(share, flow, &cost),
                Passed::Nothing => self.sharing.withdraw(self.now, share, flow),
                Passed::Full => break,
                Passed::VolumeThrottled(_) => {
                    // A turn in which it took nothing does not count.
                    let entry = &mut self.sharing.flows[flow];
                    entry.in_turn &= goes_on;
                    entry.deficit_ns = left_ns;
                    entry.turn_at = turn_at;
                    self.back_to_volume(slot, share, flow);
                }
                Passed::InstanceThrottled(cost, operation) => {
                    self.sharing.instances[instance].throttle(&cost, operation);
                    open[ring] = false;
                }
                Passed::DeviceThrottled { urgent } => self.wait_for_device(share, flow, urgent),
            }
        }
        self.sharing.instances[instance].interrupt();
        if let Some(wheel) = &mut self.sharing.instance_wheel {
            wheel.remove(instance);
            wheel.push_due(instance);
        }
    }

    /// Examines whether the first flow of a ring may have a turn. If its first request has changed
    /// and now needs the other ring, the flow crosses over. If the other ring is throttled, this
    /// flow may wait for a limit that both share: then it gets no turns, which flows there could
    /// not take.
    fn look_at_first(
        &mut self,
        instance: InstanceSlot,
        (ring, flow): (usize, FlowSlot),
        other_is_open: bool,
    ) -> First {
        let entry = &self.sharing.flows[flow];
        let Some(next) = entry.next(&self.nodes) else { return First::Nothing };
        let (cost, _) = self.volumes[entry.volume].counting.weigh(&next.portion);
        let cost = instance_cost(&cost, &next.portion);
        let operation = next.portion.operation;
        let limits = &mut self.sharing.instances[instance];
        if limits.ring_of(operation) != ring {
            limits.cross(&mut self.sharing.flows, flow);
            return First::GoesTheOtherWay;
        }
        if other_is_open || limits.allows(&cost, operation) {
            return First::MayGo(cost);
        }
        limits.throttle(&cost, operation);
        First::IsShut
    }

    /// Returns whether it is the first flow's turn in a ring of its instance; if not, the flow has
    /// gone to the end. An only flow always has its turn, and as many as it takes; they are
    /// counted, because a flow that is away meanwhile is owed one.
    fn has_instance_turn(
        &mut self,
        instance: InstanceSlot,
        (ring, flow): (usize, FlowSlot),
        cost: &Cost,
        alone: bool,
    ) -> bool {
        let share = self.volumes[self.sharing.flows[flow].volume].share;
        let sharing = &mut self.sharing;
        let weight = sharing.flows[share.flow()].place.weight();
        let limits = &mut sharing.instances[instance];
        let share_ns = limits.share_ns(cost);
        let turn_ns = limits.turn_ns(weight.into());
        let entry = &mut sharing.flows[flow];
        if alone {
            let ended = entry.take_alone(share_ns, turn_ns);
            if ended > 0 {
                entry.resumed = false;
                limits.count_turns(entry, ended);
            }
            return true;
        }
        let may_take = entry.may_take(share_ns, turn_ns);
        if !may_take {
            limits.end_turn(&mut sharing.flows, ring);
        }
        may_take
    }

    fn after_instance_turn(&mut self, share: ShareSlot, flow: FlowSlot, cost: &Cost) {
        let sharing = &mut self.sharing;
        sharing.close_account(self.now, share, flow);
        let entry = &mut sharing.flows[flow];
        entry.held_since = self.now;
        entry.first_since = self.now;
        let instance = &mut sharing.instances[entry.instance];
        let share_ns = instance.share_ns(cost);
        entry.deficit_ns = entry.deficit_ns.saturating_sub(share_ns);
        if entry.is_empty() {
            sharing.withdraw(self.now, share, flow);
        }
    }

    /// Lines up a flow at its volume again, because another flow has used the tokens by which this
    /// one passed.
    fn back_to_volume(&mut self, slot: VolumeSlot, share: ShareSlot, flow: FlowSlot) {
        self.sharing.withdraw(self.now, share, flow);
        self.sharing.line_up(share, flow);
        self.look_again(slot);
    }

    /// Fills a device's window with the requests that wait for it.
    pub(super) fn pump(&mut self, device: DeviceSlot) {
        self.sharing.device_queues[device].interrupted = false;
        while let Some((flow, reason)) = self.sharing.device_queues[device].device.next(self.now) {
            if self.output.len() >= OUTPUT_DISPATCHES_MAX {
                self.sharing.device_queues[device].interrupted = true;
                return;
            }
            let share = self.volumes[self.sharing.flows[flow].volume].share;
            if self.is_no_longer_urgent(device, flow)
                || reason == DispatchReason::Reserved && self.is_stale(device, share, flow)
            {
                continue;
            }
            if self.serve_waiting(flow) {
                continue;
            }
            // Room that the first flow may not use is kept free for urgent requests.
            let urgent = self.first_urgent(device);
            let urgent = urgent.filter(|urgent| *urgent != flow && self.sharing.may_pass(*urgent));
            if !urgent.is_some_and(|urgent| self.serve_waiting(urgent)) {
                return;
            }
        }
    }

    /// Returns the flow that arrived first of those that wait for a device with an urgent request.
    fn first_urgent(&mut self, device: DeviceSlot) -> Option<FlowSlot> {
        loop {
            let flow = self.sharing.device_queues[device].device.first_urgent()?;
            if !self.is_no_longer_urgent(device, flow) {
                return Some(flow);
            }
        }
    }

    /// Returns whether a flow had a place among the urgent ones, and has it no more: it has had its
    /// run of urgent requests, and a normal one came behind the next of them, which goes first.
    fn is_no_longer_urgent(&mut self, device: DeviceSlot, flow: FlowSlot) -> bool {
        let entry = &self.sharing.flows[flow];
        let limits = &mut self.sharing.device_queues[device].device;
        if !limits.is_urgent(flow) || entry.next(&self.nodes).is_none_or(|next| next.urgent) {
            return false;
        }
        let since = entry.first_since;
        let share = self.volumes[entry.volume].share;
        let place = &mut self.sharing.flows[share.flow()].place;
        limits.wait(flow, place, false, (since, self.now));
        true
    }

    /// Serves a flow that waits for its device. Returns `false` if there is no room for it.
    fn serve_waiting(&mut self, flow: FlowSlot) -> bool {
        let Flow { volume: slot, held_since, instance, .. } = self.sharing.flows[flow];
        let share = self.volumes[slot].share;
        // Time that others had before its reservation was due was not promised to it.
        let due = self.sharing.flows[share.flow()].place.tag;
        let delay = self.now.since(held_since.max(due));
        self.settle_volume(slot, share, Waits::AtDevice, delay);
        if !instance.is_none() {
            self.sharing.instances[instance].look(self.now);
        }
        match self.try_pass(flow, Waits::AtDevice) {
            Passed::Dispatched(cost) => {
                self.take_from_turns(flow, &cost);
                self.sharing.withdraw(self.now, share, flow);
                if !self.sharing.flows[flow].is_empty() {
                    self.sharing.line_up(share, flow);
                    self.look_again(slot);
                }
            }
            Passed::Nothing => self.sharing.withdraw(self.now, share, flow),
            Passed::Full | Passed::DeviceThrottled { .. } => return false,
            Passed::VolumeThrottled(_) => self.back_to_volume(slot, share, flow),
            Passed::InstanceThrottled(cost, operation) => {
                self.wait_for_instance(share, flow, (&cost, operation), true);
                self.sharing.send_back(flow);
            }
        }
        true
    }

    /// Subtracts a quantum's cost to its instance from the rest of its flow's turns there.
    fn take_from_turns(&mut self, flow: FlowSlot, cost: &Cost) {
        let entry = &mut self.sharing.flows[flow];
        if entry.deficit_ns > 0
            && let Some(instance) = self.sharing.instances.get(entry.instance)
        {
            entry.deficit_ns = entry.deficit_ns.saturating_sub(instance.share_ns(cost));
        }
    }

    /// Returns whether another flow of the same volume has used the reservation for which this one
    /// was in line. If so, the flow returns to its place in line.
    fn is_stale(&mut self, device: DeviceSlot, share: ShareSlot, flow: FlowSlot) -> bool {
        let entry = &self.sharing.flows[flow];
        let alone = entry.sibling.is_none() && share.flow() == flow;
        let urgent = entry.next(&self.nodes).is_some_and(|next| next.urgent);
        let times = (entry.first_since, self.now);
        let share = &mut self.sharing.flows[share.flow()];
        if alone || urgent || share.place.tag <= self.now {
            return false;
        }
        let device = &mut self.sharing.device_queues[device].device;
        device.wait(flow, &mut share.place, false, times);
        true
    }
}
