//! The product in the simulator: the very scheduler that runs in production, unchanged.

use super::policy::{Dispatch, Policy, Request};
use super::setup::Setup;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Counters, Io, Scheduler, VolumeIndex};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use std::fmt;

/// The product's scheduler and what it leaves to its caller to remember.
#[derive(Debug)]
pub struct Product {
    scheduler: Scheduler,
    volumes: Vec<VolumeIndex>,
    /// Of each handle: the request's volume and what it does.
    notes: Vec<(u32, Operation)>,
}

/// A scenario asks for a part of the scheduler that the simulator does not drive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotSimulated {
    /// What is asked for, and by what.
    pub what: String,
}

impl fmt::Display for NotSimulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: not simulated yet; limits of volumes are, so take it out of the scenario to run \
             the rest",
            self.what
        )
    }
}

impl std::error::Error for NotSimulated {}

impl Product {
    /// The scheduler with the volumes of a setup.
    ///
    /// # Errors
    /// When the setup asks for what is not simulated.
    pub fn new(setup: &Setup) -> Result<Self, NotSimulated> {
        refuse_what_is_not_simulated(setup)?;
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let mut volumes = Vec::with_capacity(setup.volumes.len());
        for volume in &setup.volumes {
            let added = scheduler.add(Instant::ZERO, &volume.pacing, volume.balances);
            volumes.push(added.map_err(|error| NotSimulated { what: error.to_string() })?);
        }
        Ok(Self { scheduler, volumes, notes: Vec::new() })
    }

    /// What a volume has done; `None` where there is no such volume.
    #[must_use]
    pub fn counters(&self, volume: u32) -> Option<Counters> {
        Some(self.scheduler.counters(*self.volumes.get(volume as usize)?))
    }
}

fn refuse_what_is_not_simulated(setup: &Setup) -> Result<(), NotSimulated> {
    let refused = |what: String| Err(NotSimulated { what });
    if let Some(instance) = setup.instances.first() {
        return refused(format!("the limits of instance \"{}\"", instance.name));
    }
    if let Some(volume) = setup.volumes.iter().find(|volume| volume.share.is_some()) {
        return refused(format!("the share of volume \"{}\" in the device", volume.name));
    }
    if setup.device.scheduled {
        return refused("a device that the scheduler is told of".to_owned());
    }
    Ok(())
}

impl Policy for Product {
    #[inline]
    fn submit(&mut self, now: Instant, request: &Request) -> bool {
        let Request { volume, operation, offset, length, handle, .. } = *request;
        let place = handle as usize;
        if self.notes.len() <= place {
            self.notes.resize(place + 1, (0, Operation::Flush));
        }
        self.notes[place] = (volume, operation);
        let io = Io { operation, offset, length, handle };
        self.scheduler.submit(now, self.volumes[volume as usize], io).is_ok()
    }

    #[inline]
    fn poll(&mut self, now: Instant) {
        self.scheduler.poll(now);
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Dispatch> {
        let dispatch = self.scheduler.poll_output()?;
        let (volume, operation) = self.notes[dispatch.handle as usize];
        Some(Dispatch {
            volume,
            handle: dispatch.handle,
            operation,
            offset: dispatch.offset,
            length: dispatch.length,
            last: dispatch.last,
            ticket: 0,
        })
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Instant> {
        self.scheduler.poll_timeout()
    }

    #[inline]
    fn complete(&mut self, _now: Instant, _dispatch: &Dispatch, _service: Duration) {}

    fn balances(&mut self, now: Instant, volume: u32) -> Balances {
        self.scheduler.balances(now, self.volumes[volume as usize])
    }

    fn set_balances(&mut self, now: Instant, volume: u32, balances: Balances) -> bool {
        self.scheduler.set_balances(now, self.volumes[volume as usize], balances);
        true
    }

    fn repace(&mut self, now: Instant, volume: u32, pacing: &Pacing) -> bool {
        self.scheduler.repace(now, self.volumes[volume as usize], pacing);
        true
    }
}
