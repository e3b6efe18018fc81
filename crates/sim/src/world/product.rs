//! The product in the simulator: the scheduler that runs in production, unchanged.

use super::policy::{Dispatch, Policy, Request};
use crate::scenario::setup::{
    DeviceSetup, InstanceSetup, ServiceTime, Setup, VolumeSetup, WindowSetup,
};
use evenkeel_core::convert::saturating;
use evenkeel_core::instance::burst_limit;
use evenkeel_core::qos::Phase;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{
    self, Counters, DeviceIndex, InstanceIndex, Io, Scheduler, Ticket, VolumeIndex,
};
use evenkeel_core::qos::sharing::{
    Claim, DeviceCounters, DeviceModel, InstanceCounters, InstancePacing, OperationCost, Window,
};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use std::fmt;

/// The product's scheduler, and the state that it leaves to its caller.
#[derive(Debug)]
pub struct Product {
    scheduler: Scheduler,
    volumes: Vec<VolumeIndex>,
    instances: Vec<InstanceIndex>,
    device: Option<DeviceIndex>,
    /// The volume and the operation of each request, by handle.
    notes: Vec<(u32, Operation)>,
}

/// The scheduler rejects a part of a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotSimulated {
    /// The rejected part and the reason.
    pub what: String,
}

impl fmt::Display for NotSimulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for NotSimulated {}

impl Product {
    /// Creates the scheduler with everything in a setup.
    ///
    /// # Errors
    /// Returns an error if the setup exceeds the scheduler's limits, or has an instance that no
    /// rule covers.
    pub fn new(setup: &Setup) -> Result<Self, NotSimulated> {
        let refused = |error: &dyn fmt::Display| NotSimulated { what: error.to_string() };
        let now = Instant::ZERO;
        let mut scheduler = Scheduler::new(now);
        let device = match device_model(&setup.device) {
            None => None,
            Some(model) => {
                Some(scheduler.add_device(now, &model).map_err(|error| refused(&error))?)
            }
        };
        let mut instances = Vec::with_capacity(setup.instances.len());
        for instance in &setup.instances {
            let pacing = instance_pacing(instance)?;
            let added = scheduler.add_instance(now, &pacing, Balances::default());
            instances.push(added.map_err(|error| refused(&error))?);
        }
        let mut volumes = Vec::with_capacity(setup.volumes.len());
        for volume in &setup.volumes {
            let added = scheduler.add(now, &volume.pacing, volume.balances);
            let name = added.map_err(|error| refused(&error))?;
            volumes.push(name);
            let instance = volume.instance.map(|number| instances[number as usize]);
            if device.is_some() || instance.is_some() || volume.share.is_some() {
                let claim = claim(volume);
                scheduler
                    .share(now, name, &volume.pacing, (device, instance), &claim)
                    .map_err(|error| refused(&error))?;
            }
        }
        Ok(Self { scheduler, volumes, instances, device, notes: Vec::new() })
    }

    /// Returns the next dispatch, as the simulator has it and as the scheduler has it.
    #[inline]
    pub fn poll_dispatch(&mut self) -> Option<(Dispatch, scheduler::Dispatch)> {
        let quantum = self.scheduler.poll_output()?;
        let (volume, operation) = self.notes[quantum.handle as usize];
        let dispatch = Dispatch {
            volume,
            handle: quantum.handle,
            operation,
            offset: quantum.offset,
            length: quantum.length,
            last: quantum.last,
            ticket: quantum.ticket.to_bits(),
        };
        Some((dispatch, quantum))
    }

    /// Returns the counters of a volume; `None` if there is no such volume.
    #[must_use]
    pub fn counters(&self, volume: u32) -> Option<Counters> {
        Some(self.scheduler.counters(*self.volumes.get(volume as usize)?))
    }

    /// Returns the counters of an instance; `None` if there is no such instance.
    #[must_use]
    pub fn instance_counters(&self, instance: u32) -> Option<InstanceCounters> {
        Some(self.scheduler.instance_counters(*self.instances.get(instance as usize)?))
    }

    /// Returns the counters of the device; `None` if the scheduler does not know of it.
    #[must_use]
    pub fn device_counters(&self) -> Option<DeviceCounters> {
        Some(self.scheduler.device_counters(self.device?))
    }
}

/// Returns the scheduler's model of the device: its exact behaviour, without the noise.
pub(super) fn device_model(setup: &DeviceSetup) -> Option<DeviceModel> {
    let cost = |cost: ServiceTime| OperationCost {
        base: Duration::from_ns(cost.base_ns),
        byte_ps: saturating(cost.ns_per_kib * 1_000 / 1_024),
    };
    let window = match setup.window? {
        WindowSetup::Slots(slots) => Window::Slots(slots),
        WindowSetup::Adaptive(ns) => Window::Adaptive { small_p99: Duration::from_ns(ns) },
    };
    Some(DeviceModel {
        channels: setup.channels.unwrap_or(u32::MAX),
        read: cost(setup.read),
        write: cost(setup.write),
        window,
    })
}

fn claim(volume: &VolumeSetup) -> Claim {
    let best_effort = Claim::best_effort(&volume.pacing);
    let Some(share) = volume.share else { return best_effort };
    Claim {
        reservation_per_second: saturating(share.reservation_per_second),
        weight: share.weight.unwrap_or(best_effort.weight),
    }
}

/// Converts an instance's limits to those of the scheduler.
///
/// # Errors
/// Returns an error if it has a separate link for each direction and that link bursts.
pub fn instance_pacing(instance: &InstanceSetup) -> Result<InstancePacing, NotSimulated> {
    let efficient = |bytes: u64| -> u64 {
        let ppm = u128::from(bytes) * u128::from(instance.efficiency_ppm) / 1_000_000;
        saturating(ppm)
    };
    let baseline = efficient(instance.baseline_bytes_per_second);
    let most = efficient(instance.bytes_per_second_max);
    let operations = Some(burst_limit(instance.baseline_iops, instance.iops_max));
    let unlimited = InstancePacing { operations, ..InstancePacing::UNLIMITED };
    if !instance.per_direction {
        return Ok(InstancePacing { bytes: Some(burst_limit(baseline, most)), ..unlimited });
    }
    if most > baseline {
        let what = format!(
            "instance \"{}\" has a link for each direction and bursts from {baseline} to {most} \
             bytes per second: a link of a direction has one rate only; set both the same, or \
             per_direction = false",
            instance.name
        );
        return Err(NotSimulated { what });
    }
    let link = Some(most);
    Ok(InstancePacing { read_bytes_per_second: link, write_bytes_per_second: link, ..unlimited })
}

impl Policy for Product {
    #[inline]
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let Request { volume, operation, offset, length, handle, .. } = *request;
        let Some(name) = self.volumes.get(volume as usize).copied() else { return false };
        let place = handle as usize;
        if self.notes.len() <= place {
            self.notes.resize(place + 1, (0, Operation::Flush));
        }
        self.notes[place] = (volume, operation);
        let io = Io { operation, offset, length, handle };
        self.scheduler.submit(now, name, io).is_ok()
    }

    #[inline]
    fn poll(&mut self, now: Instant) {
        self.scheduler.poll(now);
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Dispatch> {
        self.poll_dispatch().map(|(dispatch, _)| dispatch)
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    #[inline]
    fn complete(&mut self, now: Instant, dispatch: &Dispatch, _service: Duration) {
        self.scheduler.complete(now, Ticket::from_bits(dispatch.ticket));
    }

    fn balances(&mut self, now: Instant, volume: u32) -> Balances {
        self.scheduler.balances(now, self.volumes[volume as usize])
    }

    fn phase(&mut self, now: Instant) -> Option<Phase> {
        let [only] = self.volumes.as_slice() else { return None };
        self.scheduler.phase(now, *only)
    }

    fn repeat(&mut self, before: &Phase, after: &Phase) -> bool {
        self.scheduler.repeat(before, after)
    }

    fn catch_up(&self, volume: u32) -> Duration {
        self.counters(volume).map_or(Duration::ZERO, |counters| counters.catch_up)
    }

    fn set_balances(&mut self, now: Instant, volume: u32, balances: Balances) -> bool {
        let Some(name) = self.volumes.get(volume as usize) else { return false };
        self.scheduler.set_balances(now, *name, balances);
        true
    }

    fn set_limits(&mut self, now: Instant, volume: u32, pacing: &Pacing) -> bool {
        let Some(name) = self.volumes.get(volume as usize) else { return false };
        self.scheduler.set_limits(now, *name, pacing);
        true
    }
}
