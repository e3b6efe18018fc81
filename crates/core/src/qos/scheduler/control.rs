//! How devices, instances and claims come, change and go.

use super::share::{DeviceQueue, Sharing, Terms};
use super::{
    AttachmentIndex, Cancelled, Counters, DeviceIndex, InstanceIndex, Io, NoSuch, Queue, Room,
    Scheduler, SubmitError, VolumeIndex, index,
};
use crate::limits::{DEVICES_PER_CORE_MAX, INSTANCES_PER_CORE_MAX, VOLUMES_PER_CORE_MAX};
use crate::qos::limiter::Exceeded;
use crate::qos::pacing::{Balances, Pacing};
use crate::qos::sharing::device::{Device, Place};
use crate::qos::sharing::flow::{Flow, NIL, Waits};
use crate::qos::sharing::instance::Instance;
use crate::qos::sharing::{
    Claim, DeviceCounters, DeviceModel, DeviceOthers, InstanceCounters, InstancePacing,
};
use crate::qos::wheel::Wheel;
use crate::time::Instant;

impl Scheduler {
    /// Adds a device that volumes can share.
    ///
    /// # Errors
    /// When there are as many as may be.
    pub fn add_device(&mut self, now: Instant, model: &DeviceModel) -> Result<DeviceIndex, NoSuch> {
        self.set_now(now);
        let slot = self.sharing.device_queues.len();
        if slot >= DEVICES_PER_CORE_MAX {
            return Err(NoSuch::RoomForDevices);
        }
        let mut device = Device::new(self.now, model);
        device.grow(self.sharing.flows.len());
        self.sharing.device_queues.push(DeviceQueue::new(device));
        Ok(DeviceIndex(u32::try_from(slot).unwrap_or(NIL)))
    }

    /// Puts another model of a device in force, for instance after a calibration. Reservations keep
    /// their I/Os per second.
    pub fn set_device(&mut self, now: Instant, device: DeviceIndex, model: &DeviceModel) {
        self.set_now(now);
        let Some(device_queue) = self.sharing.device_queues.get_mut(index(device.0)) else {
            return;
        };
        device_queue.device.set_model(model);
        self.pump(device.0);
    }

    /// Says what the others do where several schedulers use one device; at first there are none.
    /// What waits is looked at again at once.
    pub fn set_device_others(&mut self, now: Instant, device: DeviceIndex, others: &DeviceOthers) {
        self.set_now(now);
        let Some(device_queue) = self.sharing.device_queues.get_mut(index(device.0)) else {
            return;
        };
        device_queue.device.hear(others);
        self.pump(device.0);
    }

    /// When a device served an urgent request last.
    #[must_use]
    pub fn urgent_at(&self, device: DeviceIndex) -> Option<Instant> {
        self.sharing.device_queues.get(index(device.0))?.device.urgent_at()
    }

    /// Whether requests wait for room at a device.
    #[must_use]
    pub fn is_device_wanted(&self, device: DeviceIndex) -> bool {
        self.sharing
            .device_queues
            .get(index(device.0))
            .is_some_and(|device_queue| device_queue.device.is_wanted())
    }

    /// What a device has done.
    #[must_use]
    pub fn device_counters(&self, device: DeviceIndex) -> DeviceCounters {
        let device_queue = self.sharing.device_queues.get(index(device.0));
        device_queue
            .map_or_else(DeviceCounters::default, |device_queue| device_queue.device.counters())
    }

    /// Adds an instance to which volumes can be attached: pacers full, credits as given or full.
    ///
    /// # Errors
    /// When there are as many as may be.
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
            sharing.instances[index(slot)] = instance;
            let generation = &mut sharing.instance_generations[index(slot)];
            *generation = generation.wrapping_add(1);
            return Ok(InstanceIndex { slot, generation: *generation });
        }
        if sharing.instances.len() >= INSTANCES_PER_CORE_MAX {
            return Err(NoSuch::RoomForInstances);
        }
        sharing.instances.push(instance);
        sharing.instance_generations.push(1);
        let count = sharing.instances.len();
        sharing.instance_wheel.get_or_insert_with(|| Wheel::new(now)).grow(count);
        Ok(InstanceIndex { slot: u32::try_from(count - 1).unwrap_or(NIL), generation: 1 })
    }

    /// Puts other limits of an instance in force from `now` on. Nothing is refilled, and what waits
    /// is looked at again at once.
    pub fn repace_instance(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
        pacing: &InstancePacing,
    ) {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return };
        self.sharing.instances[index(slot)].set_limits(self.now, pacing);
        self.look_at_instance(slot);
    }

    /// Forgets an instance. What is still attached to it is then attached to none.
    pub fn remove_instance(&mut self, now: Instant, instance: InstanceIndex) {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return };
        self.empty_instance(slot);
        let sharing = &mut self.sharing;
        if let Some(wheel) = &mut sharing.instance_wheel {
            wheel.remove(slot);
        }
        let generation = &mut sharing.instance_generations[index(slot)];
        *generation = generation.wrapping_add(1);
        sharing.vacant_instances.push(slot);
    }

    /// How much more fits.
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

    /// What an instance has done; all zero if it was removed.
    #[must_use]
    pub fn instance_counters(&self, instance: InstanceIndex) -> InstanceCounters {
        let slot = self.live_instance(instance);
        slot.map_or_else(InstanceCounters::default, |slot| {
            self.sharing.instances[index(slot)].counters(self.now)
        })
    }

    /// An instance's credit balances as of `now`; none if it was removed.
    pub fn instance_balances(&mut self, now: Instant, instance: InstanceIndex) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return Balances::default() };
        self.sharing.instances[index(slot)].balances(self.now)
    }

    /// Replaces the balances that are given, at most by their capacity.
    pub fn set_instance_balances(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
        balances: Balances,
    ) {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return };
        self.sharing.instances[index(slot)].set_balances(self.now, balances);
        self.look_at_instance(slot);
    }

    /// The same as [`Scheduler::lease`] for an instance.
    pub fn lease_instance(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
        unleased: Balances,
    ) -> Balances {
        self.set_now(now);
        let Some(slot) = self.live_instance(instance) else { return Balances::default() };
        let unleased = self.sharing.instances[index(slot)].lease(self.now, unleased);
        self.look_at_instance(slot);
        unleased
    }

    /// Gives a volume a claim on a device, an instance, or both, beside its own limits `pacing`
    /// (those it was added with, or has by now). May be called again to change any of them. Volumes
    /// on a device must tell the completion of each dispatch ([`Scheduler::complete`]).
    ///
    /// # Errors
    /// When one of them is not there. Nothing has changed then.
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
            None => NIL,
            Some(DeviceIndex(device)) if index(device) < self.sharing.device_queues.len() => device,
            Some(_) => return Err(NoSuch::Device),
        };
        let instance = match instance {
            None => NIL,
            Some(instance) => self.live_instance(instance).ok_or(NoSuch::Instance)?,
        };
        let share = match self.volumes[index(slot)].share {
            NIL => self.add_share(slot, pacing, claim)?,
            share => share,
        };
        self.move_share(share, device);
        self.sharing.terms[index(share)].set(self.now, pacing, claim);
        let entry = &mut self.sharing.flows[index(share)];
        entry.place.set_weight(claim.weight);
        if device != NIL {
            entry.place.set_claim(claim, Claim::least_reservation(pacing));
        }
        self.move_flow(share, instance);
        Ok(())
    }

    /// Attaches a volume that has a claim to one more instance (multi-attach). All attachments
    /// share the volume's limits and its claim, in turns.
    ///
    /// # Errors
    /// When one of them is not there, or the volume has no claim.
    pub fn attach(
        &mut self,
        now: Instant,
        volume: VolumeIndex,
        instance: Option<InstanceIndex>,
    ) -> Result<AttachmentIndex, NoSuch> {
        self.set_now(now);
        let slot = self.live(volume).ok_or(NoSuch::Volume)?;
        let share = self.volumes[index(slot)].share;
        if share == NIL {
            return Err(NoSuch::Volume);
        }
        let instance = match instance {
            None => NIL,
            Some(instance) => self.live_instance(instance).ok_or(NoSuch::Instance)?,
        };
        let nothing = Terms::new(self.now, &Pacing::UNLIMITED, &Claim::NONE);
        let flow = self.add_flow(slot, nothing)?;
        self.sharing.flows[index(flow)].sibling = self.sharing.flows[index(share)].sibling;
        self.sharing.flows[index(share)].sibling = flow;
        self.move_flow(flow, instance);
        Ok(AttachmentIndex { flow, generation: self.sharing.flow_generations[index(flow)] })
    }

    /// Ends an attachment made by [`Scheduler::attach`] and returns the handles of what it had
    /// waiting.
    pub fn detach(&mut self, now: Instant, attachment: AttachmentIndex) -> Cancelled<'_> {
        self.set_now(now);
        let mut queue = Queue::new();
        if let Some(flow) = self.live_attachment(attachment) {
            let slot = self.sharing.flows[index(flow)].volume;
            let share = self.volumes[index(slot)].share;
            self.sharing.withdraw(self.now, share, flow);
            queue = self.sharing.flows[index(flow)].extract(&mut self.nodes, |_| true);
            let mut before = share;
            while before != NIL && self.sharing.flows[index(before)].sibling != flow {
                before = self.sharing.flows[index(before)].sibling;
            }
            if before != NIL {
                let sibling = self.sharing.flows[index(flow)].sibling;
                self.sharing.flows[index(before)].sibling = sibling;
            }
            if let Some(last) = self.sharing.flows.get_mut(index(share))
                && last.sibling == NIL
            {
                // What is left of its turns is of the volume's limits, not of its host's.
                last.deficit_ns = 0;
            }
            self.free_flow(flow);
            self.look_again(slot);
        }
        Cancelled { nodes: &mut self.nodes, queue }
    }

    /// Takes a request that came by an attachment made by [`Scheduler::attach`].
    ///
    /// # Errors
    /// When the attachment's queue is full or it is no longer there.
    pub fn submit_from(
        &mut self,
        now: Instant,
        attachment: AttachmentIndex,
        io: Io,
    ) -> Result<(), SubmitError> {
        self.set_now(now);
        let flow = self.live_attachment(attachment).ok_or(SubmitError::NoSuchVolume)?;
        let slot = self.sharing.flows[index(flow)].volume;
        self.submit_to_flow((slot, self.volumes[index(slot)].share, flow), io)
    }

    /// Completions that were nobody's: told twice, or made up.
    #[must_use]
    pub const fn unknown_completions(&self) -> u64 {
        self.sharing.unknown_completions
    }

    pub(super) fn live_instance(&self, instance: InstanceIndex) -> Option<u32> {
        let generation = self.sharing.instance_generations.get(index(instance.slot))?;
        (*generation == instance.generation).then_some(instance.slot)
    }

    /// Attaches what is attached to an instance to none.
    pub(super) fn empty_instance(&mut self, slot: u32) {
        for flow in 0..self.sharing.flows.len() {
            let entry = &self.sharing.flows[flow];
            if entry.instance == slot && entry.volume != NIL {
                self.move_flow(u32::try_from(flow).unwrap_or(NIL), NIL);
            }
        }
    }

    fn live_attachment(&self, attachment: AttachmentIndex) -> Option<u32> {
        let generation = self.sharing.flow_generations.get(index(attachment.flow))?;
        (*generation == attachment.generation).then_some(attachment.flow)
    }

    fn add_share(&mut self, slot: u32, pacing: &Pacing, claim: &Claim) -> Result<u32, NoSuch> {
        let share = self.add_flow(slot, Terms::new(self.now, pacing, claim))?;
        self.volumes[index(slot)].share = share;
        // What waited for the volume's limits alone goes on waiting, now in its first flow.
        let queue = core::mem::replace(&mut self.volumes[index(slot)].queue, Queue::new());
        if !queue.is_empty() {
            self.sharing.flows[index(share)].take_over(&queue);
            self.sharing.line_up(share, share);
        }
        Ok(share)
    }

    fn add_flow(&mut self, volume: u32, terms: Terms) -> Result<u32, NoSuch> {
        let flow = Flow::new(volume, NIL, self.now);
        let sharing = &mut self.sharing;
        if let Some(slot) = sharing.vacant_flows.pop() {
            sharing.flows[index(slot)] = flow;
            sharing.terms[index(slot)] = terms;
            let generation = &mut sharing.flow_generations[index(slot)];
            *generation = generation.wrapping_add(1);
            return Ok(slot);
        }
        if sharing.flows.len() >= VOLUMES_PER_CORE_MAX {
            return Err(NoSuch::RoomForAttachments);
        }
        sharing.flows.push(flow);
        sharing.terms.push(terms);
        sharing.flow_generations.push(1);
        let count = sharing.flows.len();
        for device_queue in &mut sharing.device_queues {
            device_queue.device.grow(count);
        }
        Ok(u32::try_from(count - 1).unwrap_or(NIL))
    }

    fn free_flow(&mut self, flow: u32) {
        let sharing = &mut self.sharing;
        sharing.flows[index(flow)].volume = NIL;
        sharing.flows[index(flow)].instance = NIL;
        sharing.flows[index(flow)].device = NIL;
        let generation = &mut sharing.flow_generations[index(flow)];
        *generation = generation.wrapping_add(1);
        sharing.vacant_flows.push(flow);
    }

    /// Moves a volume to another device; what waits for the old one is in line anew.
    fn move_share(&mut self, share: u32, device: u32) {
        let old = self.sharing.flows[index(share)].device;
        if old == device {
            return;
        }
        let mut flow = share;
        while flow != NIL {
            if self.sharing.flows[index(flow)].waits == Waits::AtDevice {
                self.sharing.withdraw(self.now, share, flow);
                self.sharing.line_up(share, flow);
            }
            flow = self.sharing.flows[index(flow)].sibling;
        }
        let entry = &mut self.sharing.flows[index(share)];
        entry.device = device;
        entry.place = Place::new(self.now);
        entry.in_flight = 0;
    }

    /// Moves a flow to another instance, or puts its volume's claim in force at the same one; what
    /// waits is in line anew, and looked at. Who waits for its own instance keeps its place.
    fn move_flow(&mut self, flow: u32, instance: u32) {
        let slot = self.sharing.flows[index(flow)].volume;
        let share = self.volumes[index(slot)].share;
        let Flow { instance: old, waits, .. } = self.sharing.flows[index(flow)];
        let stays = old == instance && waits == Waits::AtInstance;
        if !stays {
            self.sharing.withdraw(self.now, share, flow);
        }
        let weight = u64::from(self.sharing.flows[index(share)].place.weight());
        let Sharing { flows, instances, .. } = &mut self.sharing;
        let entry = &mut flows[index(flow)];
        entry.instance = instance;
        if let Some(limits) = instances.get_mut(index(instance)) {
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

    fn look_at_instance(&mut self, slot: u32) {
        let Some(wheel) = &mut self.sharing.instance_wheel else { return };
        wheel.remove(slot);
        self.serve_instance(slot);
        self.check_touched_instance(slot);
    }

    /// Takes a volume's share away and returns what waited.
    pub(super) fn remove_share(&mut self, slot: u32) -> Queue {
        let share = self.volumes[index(slot)].share;
        if share == NIL {
            return Queue::new();
        }
        let queue = self.extract_shared(share, |_| true);
        let mut flow = share;
        while flow != NIL {
            let sibling = self.sharing.flows[index(flow)].sibling;
            self.free_flow(flow);
            flow = sibling;
        }
        self.volumes[index(slot)].share = NIL;
        queue
    }

    /// Time in which the first request of a volume was held up, up to now.
    pub(super) fn exceeded_of(&self, slot: u32) -> Exceeded {
        let volume = &self.volumes[index(slot)];
        let mut exceeded = volume.limiter.exceeded(&self.reserves[index(slot)], self.now);
        if volume.share == NIL {
            return exceeded;
        }
        let mut held = self.sharing.terms[index(volume.share)].held;
        let mut flow = volume.share;
        while let Some(entry) = self.sharing.flows.get(index(flow)) {
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

    /// Adds to a volume's counters what its share knows.
    pub(super) fn with_share(&self, slot: u32, mut counters: Counters) -> Counters {
        let share = self.volumes[index(slot)].share;
        if share == NIL {
            return counters;
        }
        let mut flow = share;
        while let Some(entry) = self.sharing.flows.get(index(flow)) {
            counters.queued_requests += entry.requests();
            counters.queued_bytes += entry.bytes();
            flow = entry.sibling;
        }
        counters.catch_up = self.sharing.terms[index(share)].catch_up;
        counters.in_flight = self.sharing.flows[index(share)].in_flight;
        counters
    }
}
