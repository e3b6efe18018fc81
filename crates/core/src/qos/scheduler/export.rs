//! Volumes and instances move from one scheduler to another, with their exact levels.

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

/// A volume between two schedulers: levels, balances, tags and counters, to the last unit. While
/// it is here nothing of it is served.
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

/// Why a volume could not be taken out. It is where it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportError {
    /// So many of its requests wait: cancel them, and submit them again where it goes.
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
    /// Takes a volume out with everything it has saved, owes and has done. Attachments beside its
    /// first are ended. What its device still works on is completed here as usual.
    ///
    /// # Errors
    /// When requests wait, or it was removed.
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
        // A volume that is in no list: nothing but its place is taken from it.
        let vacant = Pacing::UNLIMITED;
        let left = Volume { share, ..Volume::new(self.now, &vacant) };
        let volume_state = core::mem::replace(&mut self.volumes[slot], left);
        let nothing = Reserves::new(self.now, &vacant, Balances::default());
        let reserves = core::mem::replace(&mut self.reserves[slot], nothing);
        let _ = self.remove(now, volume).count();
        Ok(Exported(Box::new(State { volume: volume_state, reserves, standing })))
    }

    /// Puts a volume in that was taken out elsewhere. `now` must be of the same clock. A volume
    /// with a claim keeps its reservation tag on the new device; its place by weight starts where
    /// the others' are.
    ///
    /// # Errors
    /// When there is no room for it, or device or instance are not there; then nothing has changed,
    /// and the volume is returned with the reason.
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

    /// Takes an instance out with everything it has saved, owes and has done; `None` if it was
    /// removed. What is still attached to it is then attached to none: its volumes go first.
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

    /// Puts an instance in that was taken out elsewhere. `now` must be of the same clock.
    ///
    /// # Errors
    /// When there is no room for it; then it is returned with the reason.
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
