//! How a quantum passes: all limiters are checked, and if all let it pass, everything is charged at
//! once. See [`crate::qos::sharing`] for the limiters.

use super::share::Ticket;
use super::{Dispatch, OUTPUT_DISPATCHES_MAX, Scheduler, VolumeIndex};
use crate::qos::cost::{Cost, Portion, Run};
use crate::qos::sharing::device::{DispatchReason, InService, Quantum};
use crate::qos::sharing::flow::{Flow, Next, Waits};
use crate::qos::slots::{FlowSlot, ShareSlot};
use crate::request::Operation;

/// Result of sending a flow's next quantum through the limiters.
pub(super) enum Passed {
    /// It has passed all of them, at this cost to its instance.
    Dispatched(Cost),
    /// No request waits.
    Nothing,
    /// The output is full.
    Full,
    /// Its volume's limits delay it.
    VolumeThrottled(Cost),
    /// Its instance's limits delay it, or others wait for them; with its cost there.
    InstanceThrottled(Cost, Operation),
    /// There is no room at the device, or others wait for it.
    DeviceThrottled { urgent: bool },
}

/// Returns a quantum's cost to its instance: the bytes that move, whatever the volume's type
/// counts.
pub(super) fn instance_cost(cost: &Cost, portion: &Portion) -> Cost {
    let bytes = portion.operation.payload_bytes(portion.quantum_bytes());
    Cost { bytes: bytes.into(), ..*cost }
}

// Inlined always: the arguments and results of these would otherwise go through memory, written in
// small parts and read as a whole, which stalls the processor.
impl Scheduler {
    /// Returns whether the instance lets a quantum of this cost pass. If it comes from its volume,
    /// flows that wait for the instance go first.
    #[inline(always)]
    pub(super) fn instance_allows(
        &mut self,
        flow: FlowSlot,
        next: &Next,
        cost: &Cost,
        from: Waits,
    ) -> bool {
        let instance = self.sharing.flows[flow].instance;
        if instance.is_none() {
            return true;
        }
        let operation = next.portion.operation;
        let entry = &mut self.sharing.instances[instance];
        if from == Waits::AtVolume {
            if entry.must_wait(operation) {
                return false;
            }
            entry.look(self.now);
        }
        entry.allows(cost, operation)
    }

    /// Sends the next quantum of a flow through the limiters. If all let it pass, it is charged and
    /// dispatched. The volume's limits must be settled, and so must the instance's, unless the
    /// quantum comes from its volume.
    #[inline(always)]
    pub(super) fn try_pass(&mut self, flow: FlowSlot, from: Waits) -> Passed {
        let entry = &self.sharing.flows[flow];
        let Some(next) = entry.next(&self.nodes) else { return Passed::Nothing };
        if self.output.len() >= OUTPUT_DISPATCHES_MAX {
            return Passed::Full;
        }
        let slot = entry.volume;
        let volume = &self.volumes[slot];
        let share = volume.share;
        let (cost, run) = volume.counting.weigh(&next.portion);
        if !volume.limiter.allows(&mut self.reserves[slot], &cost) {
            return Passed::VolumeThrottled(cost);
        }
        let operation = next.portion.operation;
        let at_instance = instance_cost(&cost, &next.portion);
        if !self.instance_allows(flow, &next, &at_instance, from) {
            return Passed::InstanceThrottled(at_instance, operation);
        }
        let device = self.sharing.flows[share.flow()].device;
        let mut cost_ns = None;
        if !device.is_none() {
            let device = &self.sharing.device_queues[device].device;
            let ns = device.cost_ns(operation, next.portion.quantum_bytes());
            // An urgent request passes others that wait: room is kept free for it.
            let must_wait = from != Waits::AtDevice
                && device.is_wanted()
                && !(next.urgent && self.sharing.may_pass(flow));
            if must_wait || !device.has_room_for(ns, next.urgent, self.now) {
                return Passed::DeviceThrottled { urgent: next.urgent };
            }
            cost_ns = Some(ns);
        }
        self.commit(flow, &next, (&cost, run), cost_ns);
        Passed::Dispatched(at_instance)
    }

    /// Charges a quantum to all limiters, by the cost that was weighed, and dispatches it.
    /// `cost_ns` is its device time, if there is a device.
    #[inline(always)]
    pub(super) fn commit(
        &mut self,
        flow: FlowSlot,
        next: &Next,
        (cost, run): (&Cost, Run),
        cost_ns: Option<u64>,
    ) {
        let portion = &next.portion;
        let length = portion.quantum_bytes();
        let last = length == portion.length;
        let Self { volumes, reserves, generations, sharing, nodes, .. } = self;
        let entry = &mut sharing.flows[flow];
        entry.consume(nodes, next, length);
        let Flow { volume: slot, instance, .. } = *entry;
        let volume = &mut volumes[slot];
        volume.counting.proceed(run);
        volume.limiter.charge(&mut reserves[slot], cost);
        volume.count(portion.operation, length, last);
        if !instance.is_none() {
            let cost = instance_cost(cost, portion);
            sharing.instances[instance].charge(&cost, portion.operation);
        }
        let mut dispatch = Dispatch {
            volume: VolumeIndex { slot, generation: generations[slot] },
            handle: next.handle,
            offset: portion.offset,
            length,
            last,
            ticket: Ticket::NONE,
            reason: DispatchReason::Weight,
            device_ns: cost_ns.unwrap_or(0),
            urgent: next.urgent,
        };
        if let Some(cost_ns) = cost_ns {
            let share = volume.share;
            self.give_to_device((share, flow), next, &mut dispatch, cost_ns);
        }
        self.output.push_back(dispatch);
    }

    #[inline(always)]
    fn give_to_device(
        &mut self,
        (share, flow): (ShareSlot, FlowSlot),
        next: &Next,
        dispatch: &mut Dispatch,
        cost_ns: u64,
    ) {
        let operation = next.portion.operation;
        let name = share;
        let share = &mut self.sharing.flows[name.flow()];
        let device = &mut self.sharing.device_queues[share.device].device;
        let quantum = Quantum { operation, length: dispatch.length, cost_ns };
        let place = &mut share.place;
        dispatch.reason = device.serve(flow, place, &quantum, next.urgent, self.now);
        share.in_flight += 1;
        let is_long = device.window.dispatched(cost_ns);
        let in_service = InService {
            device: share.device,
            share: name,
            share_generation: self.sharing.flow_generations[name.flow()],
            dispatched_at: self.now,
            cost_ns,
            is_long,
            length: dispatch.length,
            in_flight: device.window.requests(),
            operation,
            is_urgent: next.urgent,
        };
        let rebase = device.rebase();
        let device = share.device;
        dispatch.ticket = self.sharing.ticket(in_service);
        if let Some(amount) = rebase {
            for share in self.sharing.flows.iter_mut().filter(|share| share.device == device) {
                share.place.virtual_time = share.place.virtual_time.saturating_sub(amount);
            }
        }
    }
}
