//! Moves of volumes and instances from one scheduler to another, with their exact levels.

use alloc::boxed::Box;
use core::fmt;

use super::share::{Standing, Terms};
use super::types::{DeviceIndex, InstanceIndex, NoSuch};
use super::{Scheduler, Volume, VolumeIndex};
use crate::qos::pacing::{Balances, Pacing};
use crate::qos::reserves::Reserves;
use crate::qos::sharing::InstancePacing;
use crate::qos::sharing::instance::Instance;
use crate::qos::sharing::model::Claim;
use crate::time::Instant;

/// A volume between two schedulers: levels, balances, tags and counters, to the last unit.
/// Meanwhile it is not served.
#[derive(Debug)]
pub struct Exported(Box<State>);

#[derive(Debug)]
struct State {
    volume: Volume,
    reserves: Reserves,
    standing: Option<Standing>,
}

/// An instance between two schedulers: levels, balances and counters, to the last unit.
#[derive(Debug)]
pub struct ExportedInstance(Box<Instance>);

/// Reason why a volume could not be taken out. It stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportError {
    /// This number of its requests wait: cancel them, and submit them again to its next scheduler.
    Waiting(u32),
    /// The volume was removed.
    NoSuchVolume,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting(requests) => write!(
                f,
                "{requests} requests of the volume wait: cancel them before it moves, and submit \
                 them again where it goes"
            ),
            Self::NoSuchVolume => {
                f.write_str("the volume is no longer scheduled here: it was removed")
            }
        }
    }
}

impl core::error::Error for ExportError {}

impl Scheduler {
    /// Removes a volume and returns it with all its saved tokens, debts and counters. Attachments
    /// beside its first are ended. Requests in service at its device are completed here as usual.
    ///
    /// # Errors
    /// If requests wait, or it was removed.
    pub fn export(&mut self, now: Instant, volume: VolumeIndex) -> Result<Exported, ExportError> {
        self.set_now(now);
        let slot = self.live(volume).ok_or(ExportError::NoSuchVolume)?;
        let waiting = self.counters(volume).queued_requests;
        if waiting > 0 {
            return Err(ExportError::Waiting(waiting));
        }
        let share = self.volumes[slot].share;
        let standing = (!share.is_none()).then(|| {
            let nothing = Terms::new(self.now, &Pacing::UNLIMITED, &Claim::NONE);
            let terms = core::mem::replace(&mut self.sharing.terms[share], nothing);
            Standing::of(&self.sharing.flows[share.flow()], terms)
        });
        // The volume is in no list, so only its slot has to be freed.
        let vacant = Pacing::UNLIMITED;
        let left = Volume { share, ..Volume::new(self.now, &vacant) };
        let volume_state = core::mem::replace(&mut self.volumes[slot], left);
        let nothing = Reserves::new(self.now, &vacant, Balances::default());
        let reserves = core::mem::replace(&mut self.reserves[slot], nothing);
        let _ = self.remove(now, volume).count();
        Ok(Exported(Box::new(State { volume: volume_state, reserves, standing })))
    }

    /// Adds a volume that was exported elsewhere. `now` must be of the same clock. A volume with a
    /// claim keeps its reservation tag on the new device; its virtual time starts where the others'
    /// are.
    ///
    /// # Errors
    /// If there is no room for it, or the device or the instance does not exist. Then nothing has
    /// changed, and the volume is returned with the reason.
    pub fn import(
        &mut self,
        now: Instant,
        exported: Exported,
        pacing: &Pacing,
        at: (Option<DeviceIndex>, Option<InstanceIndex>),
    ) -> Result<VolumeIndex, (Exported, NoSuch)> {
        let Ok(name) = self.add(now, pacing, Balances::default()) else {
            return Err((exported, NoSuch::RoomForVolumes));
        };
        if let Some(Standing { terms, .. }) = &exported.0.standing
            && let Err(error) = self.share(now, name, pacing, at, &terms.claim)
        {
            let _ = self.remove(now, name).count();
            return Err((exported, error));
        }
        let slot = name.slot;
        let State { volume, reserves, standing } = *exported.0;
        let share = self.volumes[slot].share;
        self.volumes[slot] = Volume { share, ..volume };
        self.reserves[slot] = reserves;
        if let Some(standing) = standing
            && !share.is_none()
        {
            standing.restore(&mut self.sharing.flows[share.flow()]);
            self.sharing.terms[share] = standing.terms;
        }
        Ok(name)
    }

    /// Removes an instance and returns it with all its saved tokens, debts and counters; `None` if
    /// it was removed before. Volumes that are still attached to it are then attached to none:
    /// export them first.
    pub fn export_instance(
        &mut self,
        now: Instant,
        instance: InstanceIndex,
    ) -> Option<ExportedInstance> {
        self.set_now(now);
        let slot = self.live_instance(instance)?;
        self.empty_instance(slot);
        let vacant = Instance::new(self.now, &InstancePacing::UNLIMITED, Balances::default());
        let taken = core::mem::replace(&mut self.sharing.instances[slot], vacant);
        self.remove_instance(now, instance);
        Some(ExportedInstance(Box::new(taken)))
    }

    /// Adds an instance that was exported elsewhere. `now` must be of the same clock.
    ///
    /// # Errors
    /// If there is no room for it; then it is returned with the reason.
    pub fn import_instance(
        &mut self,
        now: Instant,
        exported: ExportedInstance,
    ) -> Result<InstanceIndex, (ExportedInstance, NoSuch)> {
        let added = self.add_instance(now, &InstancePacing::UNLIMITED, Balances::default());
        match added {
            Ok(name) => {
                let mut instance = exported.0;
                instance.arrive();
                self.sharing.instances[name.slot] = *instance;
                Ok(name)
            }
            Err(error) => Err((exported, error)),
        }
    }
}
