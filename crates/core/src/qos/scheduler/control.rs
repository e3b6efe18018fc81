//! Adding, changing and removing devices, instances and claims.

use super::share::{DeviceQueue, Sharing, Terms};
use super::{
    AttachmentIndex, Cancelled, Counters, DeviceIndex, InstanceIndex, Io, NoSuch, Queue, Room,
    Scheduler, SubmitError, VolumeIndex,
};
use crate::limits::{DEVICES_PER_CORE_MAX, INSTANCES_PER_CORE_MAX, VOLUMES_PER_CORE_MAX};
use crate::qos::limiter::Exceeded;
use crate::qos::pacing::{Balances, Pacing};
use crate::qos::sharing::device::{Device, Place};
use crate::qos::sharing::flow::{Flow, Waits};
use crate::qos::sharing::instance::Instance;
use crate::qos::sharing::{
    Claim, DeviceCounters, DeviceModel, DeviceOthers, InstanceCounters, InstancePacing,
};
use crate::qos::slots::{DeviceSlot, FlowSlot, InstanceSlot, ShareSlot, VolumeSlot};
use crate::qos::wheel::WheelOf;
use crate::time::Instant;

impl Scheduler {
    /// Adds a device that volumes can share.
    ///
    /// # Errors
    /// If there is the maximum number of devices.
    pub fn add_device(&mut self, now: Instant, model: &DeviceModel) -> Result<DeviceIndex, NoSuch> {
        self.set_now(now);
        if self.sharing.device_queues.len() >= DEVICES_PER_CORE_MAX {
            return Err(NoSuch::RoomForDevices);
        }
        let mut device = Device::new(self.now, model);
        device.grow(self.sharing.flows.len());
        Ok(DeviceIndex(self.sharing.device_queues.push(DeviceQueue::new(device))))
    }

    /// Applies another model of a device, for instance after a calibration. Reservations keep their
    /// I/Os per second.
    pub fn set_device(&mut self, now: Instant, device: DeviceIndex, model: &DeviceModel) {
        self.set_now(now);
        let Some(device_queue) = self.sharing.device_queues.get_mut(device.0) else {
            return;
        };
        device_queue.device.set_model(model);
        self.pump(device.0);
    }

    /// Sets the use of a device by other schedulers; at first there are none. Waiting requests are
    /// examined at once.
    pub fn set_device_others(&mut self, now: Instant, device: DeviceIndex, others: &DeviceOthers) {
        self.set_now(now);
        let Some(device_queue) = self.sharing.device_queues.get_mut(device.0) else {
            return;
        };
        device_queue.device.hear(others);
        self.pump(device.0);
    }

    /// Returns when a device last served an urgent request.
    #[must_use]
    pub fn urgent_at(&self, device: DeviceIndex) -> Option<Instant> {
        self.sharing.device_queues.get(device.0)?.device.urgent_at()
    }

    /// Returns whether requests wait for room at a device.
    #[must_use]
    pub fn is_device_wanted(&self, device: DeviceIndex) -> bool {
        self.sharing
            .device_queues
            .get(device.0)
            .is_some_and(|device_queue| device_queue.device.is_wanted())
    }

    /// Returns a device's counters.
    #[must_use]
    pub fn device_counters(&self, device: DeviceIndex) -> DeviceCounters {
        let device_queue = self.sharing.device_queues.get(device.0);
        device_queue
            .map_or_else(DeviceCounters::default, |device_queue| device_queue.device.counters())
    }

    /// Adds an instance to which volumes can be attached: pacers full, credits as given or full.
    ///
    /// # Errors
    /// If there is the maximum number of instances.
    pub fn add_instance(
        &mut self,
        now: Instant,
        pacing: &InstancePacing,
        balances: Balances,
    ) -> Result<InstanceIndex, NoSuch> {
        self.set_now(now);
        let instance = Instance::new(self.now, pacing, balances);
        let sharing = &mut self.sharing;
        if let Some(slot) = sharing.vacant_instances.pop() {
            sharing.instances[slot] = instance;
            let generation = &mut sharing.instance_generations[slot];
            *generation = generation.wrapping_add(1);
            return Ok(InstanceIndex { slot, generation: *generation });
        }
        if sharing.instances.len() >= INSTANCES_PER_CORE_MAX {
            return Err(NoSuch::RoomForInstances);
        }
        let slot = sharing.instances.push(instance);
        sharing.instance_generations.push(1);
        let count = sharing.instances.len();
        sharing.instance_wheel.get_or_insert_with(|| WheelOf::new(now)).grow(count);
        Ok(InstanceIndex { slot, generation: 1 })
    }

    /// Applies other limits of an instance from `now` on. Nothing is refilled, and waiting requests
    /// are examined at once.
    pub fn repace_instance(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
        pacing: &InstancePacing,
    ) {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return };
        self.sharing.instances[slot].set_limits(self.now, pacing);
        self.look_at_instance(slot);
    }

    /// Removes an instance. Volumes that are still attached to it are then attached to none.
    pub fn remove_instance(&mut self, now: Instant, instance: InstanceIndex) {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return };
        self.empty_instance(slot);
        let sharing = &mut self.sharing;
        if let Some(wheel) = &mut sharing.instance_wheel {
            wheel.remove(slot);
        }
        let generation = &mut sharing.instance_generations[slot];
        *generation = generation.wrapping_add(1);
        sharing.vacant_instances.push(slot);
    }

    /// Returns how many more volumes, instances and attachments fit.
    #[must_use]
    pub fn room(&self) -> Room {
        let Sharing { flows, vacant_flows, instances, vacant_instances, .. } = &self.sharing;
        let left = |max: usize, taken: usize, vacant: usize| max.saturating_sub(taken) + vacant;
        Room {
            volumes: left(VOLUMES_PER_CORE_MAX, self.volumes.len(), self.vacant.len()),
            instances: left(INSTANCES_PER_CORE_MAX, instances.len(), vacant_instances.len()),
            attachments: left(VOLUMES_PER_CORE_MAX, flows.len(), vacant_flows.len()),
        }
    }

    /// Returns an instance's counters; all zero if it was removed.
    #[must_use]
    pub fn instance_counters(&self, instance: InstanceIndex) -> InstanceCounters {
        let slot = self.live_instance(instance);
        slot.map_or_else(InstanceCounters::default, |slot| {
            self.sharing.instances[slot].counters(self.now)
        })
    }

    /// Returns an instance's credit balances at `now`; none if it was removed.
    pub fn instance_balances(&mut self, now: Instant, instance: InstanceIndex) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return Balances::default() };
        self.sharing.instances[slot].balances(self.now)
    }

    /// Leases all but `unleased` of an instance's balances, as [`Scheduler::lease`] does for a
    /// volume.
    pub fn lease_instance(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
        unleased: Balances,
    ) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return Balances::default() };
        let unleased = self.sharing.instances[slot].lease(self.now, unleased);
        self.look_at_instance(slot);
        unleased
    }

    /// Gives a volume a claim on a device, an instance, or both, beside its own limits `pacing`
    /// (its present ones). Can be called again to change any of them. The caller must report the
    /// completion of each dispatch of a volume on a device ([`Scheduler::complete`]).
    ///
    /// # Errors
    /// If one of them does not exist. Nothing has changed then.
    pub fn share(
        &mut self,
        now: Instant,
        volume: VolumeIndex,
        pacing: &Pacing,
        (device, instance): (Option<DeviceIndex>, Option<InstanceIndex>),
        claim: &Claim,
    ) -> Result<(), NoSuch> {
        self.set_now(now);
        let slot = self.live(volume).ok_or(NoSuch::Volume)?;
        let device = match device {
            None => DeviceSlot::NONE,
            Some(DeviceIndex(device)) if self.sharing.device_queues.get(device).is_some() => device,
            Some(_) => return Err(NoSuch::Device),
        };
        let instance = match instance {
            None => InstanceSlot::NONE,
            Some(instance) => self.live_instance(instance).ok_or(NoSuch::Instance)?,
        };
        let share = match self.volumes[slot].share {
            ShareSlot::NONE => self.add_share(slot, pacing, claim)?,
            share => share,
        };
        self.move_share(share, device);
        self.sharing.terms[share].set(self.now, pacing, claim);
        let entry = &mut self.sharing.flows[share.flow()];
        entry.place.set_weight(claim.weight);
        if !device.is_none() {
            entry.place.set_claim(claim, Claim::least_reservation(pacing));
        }
        self.move_flow(share.flow(), instance);
        Ok(())
    }

    /// Attaches a volume that has a claim to one more instance (multi-attach). All attachments
    /// share the volume's limits and its claim, in turns.
    ///
    /// # Errors
    /// If one of them does not exist, or the volume has no claim.
    pub fn attach(
        &mut self,
        now: Instant,
        volume: VolumeIndex,
        instance: Option<InstanceIndex>,
    ) -> Result<AttachmentIndex, NoSuch> {
        self.set_now(now);
        let slot = self.live(volume).ok_or(NoSuch::Volume)?;
        let share = self.volumes[slot].share;
        if share.is_none() {
            return Err(NoSuch::Volume);
        }
        let instance = match instance {
            None => InstanceSlot::NONE,
            Some(instance) => self.live_instance(instance).ok_or(NoSuch::Instance)?,
        };
        let nothing = Terms::new(self.now, &Pacing::UNLIMITED, &Claim::NONE);
        let flow = self.add_flow(slot, nothing)?;
        self.sharing.flows[flow].sibling = self.sharing.flows[share.flow()].sibling;
        self.sharing.flows[share.flow()].sibling = flow;
        self.move_flow(flow, instance);
        Ok(AttachmentIndex { flow, generation: self.sharing.flow_generations[flow] })
    }

    /// Ends an attachment made by [`Scheduler::attach`] and returns the handles of its waiting
    /// requests.
    pub fn detach(&mut self, now: Instant, attachment: AttachmentIndex) -> Cancelled<'_> {
        self.set_now(now);
        let mut queue = Queue::new();
        if let Some(flow) = self.live_attachment(attachment) {
            let slot = self.sharing.flows[flow].volume;
            let share = self.volumes[slot].share;
            self.sharing.withdraw(self.now, share, flow);
            queue = self.sharing.flows[flow].extract(&mut self.nodes, |_| true);
            let mut before = share.flow();
            while !before.is_none() && self.sharing.flows[before].sibling != flow {
                before = self.sharing.flows[before].sibling;
            }
            if !before.is_none() {
                let sibling = self.sharing.flows[flow].sibling;
                self.sharing.flows[before].sibling = sibling;
            }
            if let Some(last) = self.sharing.flows.get_mut(share.flow())
                && last.sibling.is_none()
            {
                // The rest of its turns is in the unit of the volume's limits, not of its host's.
                last.deficit_ns = 0;
            }
            self.free_flow(flow);
            self.look_again(slot);
        }
        Cancelled { nodes: &mut self.nodes, queue }
    }

    /// Submits a request through an attachment made by [`Scheduler::attach`].
    ///
    /// # Errors
    /// If the attachment's queue is full or it does not exist any more.
    pub fn submit_from(
        &mut self,
        now: Instant,
        attachment: AttachmentIndex,
        io: Io,
    ) -> Result<(), SubmitError> {
        self.set_now(now);
        let flow = self.live_attachment(attachment).ok_or(SubmitError::NoSuchVolume)?;
        let slot = self.sharing.flows[flow].volume;
        let share = self.volumes[slot].share;
        self.submit_to_flow(slot, share, flow, io)
    }

    /// Returns the number of completions with an unknown or completed ticket.
    #[must_use]
    pub const fn unknown_completions(&self) -> u64 {
        self.sharing.unknown_completions
    }

    pub(super) fn live_instance(&self, instance: InstanceIndex) -> Option<InstanceSlot> {
        let generation = self.sharing.instance_generations.get(instance.slot)?;
        (*generation == instance.generation).then_some(instance.slot)
    }

    /// Detaches all flows from an instance.
    pub(super) fn empty_instance(&mut self, slot: InstanceSlot) {
        for flow in self.sharing.flows.slots() {
            let entry = &self.sharing.flows[flow];
            if entry.instance == slot && !entry.volume.is_none() {
                self.move_flow(flow, InstanceSlot::NONE);
            }
        }
    }

    fn live_attachment(&self, attachment: AttachmentIndex) -> Option<FlowSlot> {
        let generation = self.sharing.flow_generations.get(attachment.flow)?;
        (*generation == attachment.generation).then_some(attachment.flow)
    }

    fn add_share(
        &mut self,
        slot: VolumeSlot,
        pacing: &Pacing,
        claim: &Claim,
    ) -> Result<ShareSlot, NoSuch> {
        let share = self.add_flow(slot, Terms::new(self.now, pacing, claim))?;
        let share = ShareSlot::of_first(share);
        self.volumes[slot].share = share;
        // Requests that waited for the volume's limits only continue to wait in its first flow.
        let queue = core::mem::replace(&mut self.volumes[slot].queue, Queue::new());
        if !queue.is_empty() {
            self.sharing.flows[share.flow()].take_over(&queue);
            self.sharing.line_up(share, share.flow());
        }
        Ok(share)
    }

    fn add_flow(&mut self, volume: VolumeSlot, terms: Terms) -> Result<FlowSlot, NoSuch> {
        let flow = Flow::new(volume, InstanceSlot::NONE, self.now);
        let sharing = &mut self.sharing;
        if let Some(slot) = sharing.vacant_flows.pop() {
            sharing.flows[slot] = flow;
            sharing.terms[ShareSlot::of_first(slot)] = terms;
            let generation = &mut sharing.flow_generations[slot];
            *generation = generation.wrapping_add(1);
            return Ok(slot);
        }
        if sharing.flows.len() >= VOLUMES_PER_CORE_MAX {
            return Err(NoSuch::RoomForAttachments);
        }
        let slot = sharing.flows.push(flow);
        sharing.terms.push(terms);
        sharing.flow_generations.push(1);
        let count = sharing.flows.len();
        for device_queue in sharing.device_queues.iter_mut() {
            device_queue.device.grow(count);
        }
        Ok(slot)
    }

    fn free_flow(&mut self, flow: FlowSlot) {
        let sharing = &mut self.sharing;
        sharing.flows[flow].volume = VolumeSlot::NONE;
        sharing.flows[flow].instance = InstanceSlot::NONE;
        sharing.flows[flow].device = DeviceSlot::NONE;
        let generation = &mut sharing.flow_generations[flow];
        *generation = generation.wrapping_add(1);
        sharing.vacant_flows.push(flow);
    }

    /// Moves a volume to another device. Requests that wait for the old one are lined up anew.
    fn move_share(&mut self, share: ShareSlot, device: DeviceSlot) {
        let old = self.sharing.flows[share.flow()].device;
        if old == device {
            return;
        }
        let mut flow = share.flow();
        while !flow.is_none() {
            if self.sharing.flows[flow].waits == Waits::AtDevice {
                self.sharing.withdraw(self.now, share, flow);
                self.sharing.line_up(share, flow);
            }
            flow = self.sharing.flows[flow].sibling;
        }
        let entry = &mut self.sharing.flows[share.flow()];
        entry.device = device;
        entry.place = Place::new(self.now);
        entry.in_flight = 0;
    }

    /// Moves a flow to another instance, or applies its volume's claim at the same one. Its waiting
    /// requests are lined up anew, and examined. A flow that waits for its own instance keeps its
    /// place.
    fn move_flow(&mut self, flow: FlowSlot, instance: InstanceSlot) {
        let slot = self.sharing.flows[flow].volume;
        let share = self.volumes[slot].share;
        let Flow { instance: old, waits, .. } = self.sharing.flows[flow];
        let stays = old == instance && waits == Waits::AtInstance;
        if !stays {
            self.sharing.withdraw(self.now, share, flow);
        }
        let weight = u64::from(self.sharing.flows[share.flow()].place.weight());
        let Sharing { flows, instances, .. } = &mut self.sharing;
        let entry = &mut flows[flow];
        entry.instance = instance;
        if let Some(limits) = instances.get_mut(instance) {
            limits.weigh_in(weight);
            if old != instance {
                limits.welcome(entry);
            }
        }
        if !stays {
            entry.deficit_ns = 0;
            if !entry.is_empty() {
                self.sharing.line_up(share, flow);
            }
        }
        self.look_again(slot);
    }

    fn look_at_instance(&mut self, slot: InstanceSlot) {
        let Some(wheel) = &mut self.sharing.instance_wheel else { return };
        wheel.remove(slot);
        self.serve_instance(slot);
        self.check_touched_instance(slot);
    }

    /// Removes a volume's share, and returns its waiting requests.
    pub(super) fn remove_share(&mut self, slot: VolumeSlot) -> Queue {
        let share = self.volumes[slot].share;
        if share.is_none() {
            return Queue::new();
        }
        let queue = self.extract_shared(share, |_| true);
        let mut flow = share.flow();
        while !flow.is_none() {
            let sibling = self.sharing.flows[flow].sibling;
            self.free_flow(flow);
            flow = sibling;
        }
        self.volumes[slot].share = ShareSlot::NONE;
        queue
    }

    /// Returns the time in which the first request of a volume was delayed, up to now.
    pub(super) fn exceeded_of(&self, slot: VolumeSlot) -> Exceeded {
        let volume = &self.volumes[slot];
        let mut exceeded = volume.limiter.exceeded(&self.reserves[slot], self.now);
        if volume.share.is_none() {
            return exceeded;
        }
        let mut held = self.sharing.terms[volume.share].held;
        let mut flow = volume.share.flow();
        while let Some(entry) = self.sharing.flows.get(flow) {
            if matches!(entry.waits, Waits::AtInstance | Waits::AtDevice) {
                held.add(entry.held_by, self.now.since(entry.held_since));
            }
            flow = entry.sibling;
        }
        exceeded.instance_operations_ns = held.instance_operations_ns;
        exceeded.instance_bytes_ns = held.instance_bytes_ns;
        exceeded.device_ns = held.device_ns;
        exceeded
    }

    /// Adds the state of a volume's share to its counters.
    pub(super) fn with_share(&self, slot: VolumeSlot, mut counters: Counters) -> Counters {
        let share = self.volumes[slot].share;
        if share.is_none() {
            return counters;
        }
        let mut flow = share.flow();
        while let Some(entry) = self.sharing.flows.get(flow) {
            counters.queued_requests += entry.requests();
            counters.queued_bytes += entry.bytes();
            flow = entry.sibling;
        }
        counters.catch_up = self.sharing.terms[share].catch_up;
        counters.in_flight = self.sharing.flows[share.flow()].in_flight;
        counters
    }
}
