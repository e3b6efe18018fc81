//! The state of the observed system: exact token levels, waiting and running requests, and the
//! causes of waiting. Rules read it and do not change it.
//!
//! An event is observed in three steps. [`Seen::arrive`] advances the time to it. Then the rules
//! read the levels and queues just before it. Then [`Seen::apply`] applies it.

use super::device::Device;
use super::event::{Dispatched, Event, Sample};
use super::instances::Instance;
use super::requests::Request;
use super::system::System;
use super::token_level::worth;
use super::volumes::{Others, VolumeModel};
use evenkeel_core::convert::exact;

/// Limit on volume numbers: twice the number of volumes of one core. A number beyond it takes no
/// memory.
pub(super) const VOLUMES_MAX: u32 = 1 << 17;

/// The maximum time, 146 years after the start: spans can be added to it without overflow.
const TIME_MAX_NS: u64 = 1 << 62;

/// Maximum number of remembered stalls; the oldest is forgotten. A live server beside other work
/// has several hundred short ones in the second that is judged.
const STALLS_MAX: usize = 512;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) system: System,
    pub(super) now: u64,
    pub(super) volumes: Vec<Option<Box<VolumeModel>>>,
    pub(super) instances: Vec<Instance>,
    pub(super) device: Device,
    pub(super) stalls: Stalls,
}

/// The stalls, in which no work could be done.
#[derive(Clone, Debug, Default)]
pub(super) struct Stalls {
    /// Start and end of each, in the order of their start.
    spans: Vec<(u64, u64)>,
    /// The latest end.
    end: u64,
}

impl Seen {
    pub(super) fn new(system: System) -> Self {
        let device = Device::new(system.device);
        let volume = |promise| Some(Box::new(VolumeModel::new(0, promise)));
        let volumes = system.volumes.iter().map(volume).collect();
        let instances = system.instances.iter().map(Instance::new).collect();
        Self { system, now: 0, volumes, instances, device, stalls: Stalls::default() }
    }

    pub(super) fn volume(&self, number: u32) -> Option<&VolumeModel> {
        self.volumes.get(number as usize)?.as_deref()
    }

    pub(super) fn instance(&self, number: u32) -> Option<&Instance> {
        self.instances.get(number as usize)
    }

    /// Returns the volumes that exist, with their numbers.
    pub(super) fn each_volume(&self) -> impl Iterator<Item = (u32, &VolumeModel)> {
        (0..).zip(&self.volumes).filter_map(|(number, volume)| Some((number, volume.as_deref()?)))
    }

    /// Advances the time to the event, for the volume and the instance that it concerns.
    pub(super) fn arrive(&mut self, event: &Event) {
        // A clock that steps back earns nothing and undoes nothing.
        let at = event.at().min(TIME_MAX_NS).max(self.now);
        self.device.pass(self.now, at);
        self.now = at;
        match event {
            Event::Dispatched(dispatched) => self.settle_instance(dispatched.instance),
            Event::Sampled { sample: Sample::InstanceBalances { instance, .. }, .. } => {
                self.settle_instance(*instance);
            }
            _ => {}
        }
        if let Some(volume) = event.volume() {
            self.settle(volume);
        }
    }

    /// Advances the time to now for every volume, at the end.
    pub(super) fn settle_all(&mut self) {
        for number in 0..self.volumes.len() {
            self.settle(exact(number, "volumes have numbers of 32 bits"));
        }
    }

    fn settle_instance(&mut self, number: u32) {
        if let Some(instance) = self.instances.get_mut(number as usize) {
            instance.settle(self.now);
        }
    }

    fn settle(&mut self, number: u32) {
        let instance = self.volume(number).and_then(|volume| volume.promise.instance);
        if let Some(instance) = instance {
            self.settle_instance(instance);
        }
        let others = self.others(instance);
        let now = self.now;
        let catch_up = self.system.catch_up;
        let Some(Some(volume)) = self.volumes.get_mut(number as usize) else { return };
        let stalled_ns = self.stalls.overlap(volume.settled_at, now);
        volume.settle(now, others, &self.device, stalled_ns, catch_up.time_ns);
    }

    /// Returns the counters of an instance. One without limits is always open.
    fn others(&self, instance: Option<u32>) -> Others {
        let instance = instance.and_then(|number| self.instance(number));
        let (open_ns, idle_ns, idle_until) = instance
            .map_or((self.now, self.now, self.now), |instance| {
                (instance.open_ns, instance.idle_ns, instance.idle_until)
            });
        Others { open_ns, idle_ns, idle_until }
    }

    /// Applies the event.
    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Added { volume, promise, .. } => {
                let at = *volume as usize;
                if *volume < VOLUMES_MAX {
                    self.volumes.resize_with(self.volumes.len().max(at + 1), || None);
                    let mut added = VolumeModel::new(self.now, promise);
                    added.catch_up(self.others(promise.instance));
                    self.volumes[at] = Some(Box::new(added));
                }
            }
            Event::Modified { volume, promise, .. } => {
                let debt_ns = self.system.margins.modify_debt_ns;
                let others = self.others(promise.instance);
                if let Some(volume) = self.volume_mut(*volume) {
                    volume.modify(promise, debt_ns);
                    volume.catch_up(others);
                }
            }
            Event::Credited { volume, units, .. } => {
                if let Some(volume) = self.volume_mut(*volume) {
                    volume.set_balances(units);
                }
            }
            Event::Removed { volume, .. } => {
                if let Some(slot) = self.volumes.get_mut(*volume as usize) {
                    *slot = None;
                }
            }
            Event::Submitted(submitted) => {
                self.device.submitted(submitted);
                if let Some(volume) = self.volume_mut(submitted.volume) {
                    let seq = volume.next_seq;
                    volume.enqueue(submitted.handle, Request::new(submitted, seq));
                }
            }
            Event::Cancelled { volume, handle, .. } => {
                if let Some(volume) = self.volume_mut(*volume) {
                    volume.cancel(*handle);
                }
            }
            Event::Dispatched(dispatched) => self.dispatch(dispatched),
            Event::Completed(completed) => {
                self.device.completed(completed.device_cost_ns);
                if let Some(volume) = self.volume_mut(completed.volume) {
                    volume.complete(completed);
                }
            }
            Event::Stalled { from, to, .. } => self.stalls.add(*from, *to),
            Event::Sampled { sample: Sample::Window { cost_ns }, .. } => {
                self.device.window_ns = *cost_ns;
            }
            Event::Sampled { .. } | Event::Refused { .. } => {}
        }
    }

    fn dispatch(&mut self, dispatched: &Dispatched) {
        self.device.dispatched(dispatched);
        if let Some(instance) = self.instances.get_mut(dispatched.instance as usize) {
            instance.charge(dispatched);
        }
        if let Some(volume) = self.volume_mut(dispatched.volume) {
            volume.dispatch(dispatched);
        }
    }

    fn volume_mut(&mut self, number: u32) -> Option<&mut VolumeModel> {
        self.volumes.get_mut(number as usize)?.as_deref_mut()
    }
}

impl Stalls {
    fn add(&mut self, from: u64, to: u64) {
        // The part of a stall that overlaps the previous one counts once.
        let from = from.max(self.end);
        if from < to {
            if self.spans.len() == STALLS_MAX {
                self.spans.remove(0);
            }
            self.spans.push((from, to));
            self.end = to;
        }
    }

    /// Returns whether a time is in the wake of a stall: after it, within as long as it lasted (if
    /// two overlap, the second counts from the end of the first). All volumes have saved tokens
    /// meanwhile, and want to use them at once.
    pub(super) fn is_wake(&self, at: u64) -> bool {
        self.spans.iter().any(|&(start, end)| end <= at && at - end < end - start)
    }

    /// Returns the nanoseconds of stalls within a span.
    pub(super) fn overlap(&self, from: u64, to: u64) -> u64 {
        if self.end <= from {
            return 0;
        }
        let within = |&(start, end): &(u64, u64)| end.min(to).saturating_sub(start.max(from));
        self.spans.iter().map(within).sum()
    }
}

/// Returns the units of a rate in `span_ns` less the lost time, in level units.
pub(super) fn worth_without(rate: u64, span_ns: u64, lost_ns: u64) -> i128 {
    worth(rate, span_ns.saturating_sub(lost_ns))
}
