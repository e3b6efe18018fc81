//! The steps by which another volume takes the place of the only device of a file system.
//!
//! After a power cut in the middle of its replacement, Linux mounts such a file system only with
//! `-o degraded`. So the new volume is added, and the old one is removed. Until the old one is
//! empty, the operation can go back: the removal is cancelled, and the new device is removed.

use evenkeel_core::volume::VolumeSpec;

use super::facts::{STUCK_MS, bytes, end, running};
use super::made::{Made, bring};
use super::{Open, Step, Verb, remove, room};
use crate::autopilot::decide::wanted_free_bytes;
use crate::autopilot::observation::{Device, Observation, RunningKind};
use crate::autopilot::policy::Policy;

/// Returns whether a file system has no other device. The target of a replacement is none.
pub(super) fn is_only(now: &Observation, device: &Device) -> bool {
    let mut devices = now.file_system.devices.iter();
    devices.all(|other| other.devid == device.devid || other.devid == 0)
}

/// Returns the step by which the new volume becomes a device beside the old one.
///
/// # Errors
/// If it cannot, or the data of the old one would find no room on it.
pub(super) fn enlist(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    old: &Device,
    with: &VolumeSpec,
) -> Result<Step, String> {
    room::to_take_over(policy, &now.file_system, old, bytes(with))?;
    match bring(open, now, with, STUCK_MS) {
        Made::Coming(step) => Ok(step),
        Made::Lost(reason) => Err(reason),
        Made::Ready(new) => Ok(Step::Verb(Verb::Add { volume: new.id.clone() })),
    }
}

/// Returns the step while both the old device and the new one are devices: the data moves to the
/// new one or, if the operation goes back, to the old one.
pub(super) fn between(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    (old, new): (&Device, &Device),
) -> Step {
    if open.cancelled {
        return backward(policy, open, now, (old, new), "it was cancelled");
    }
    let id = old.volume.as_deref().unwrap_or_default();
    remove::take_away(policy, open, now, id)
        .unwrap_or_else(|reason| backward(policy, open, now, (old, new), &reason))
}

/// Returns the next step back to the old device. If the file system needs the room of both, both
/// stay.
fn backward(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    (old, new): (&Device, &Device),
    reason: &str,
) -> Step {
    let id = new.volume.as_deref().unwrap_or_default();
    if let Some(moving) = &now.file_system.running {
        let leaves = moving.devid.filter(|_| moving.kind == RunningKind::Remove);
        // The kernel no longer counts the room of a device that leaves.
        let is_short = now.file_system.free_bytes < wanted_free_bytes(policy, now);
        let is_wrong = moving.kind == RunningKind::Compact
            || leaves == Some(old.devid)
            || leaves == Some(new.devid) && is_short;
        if is_wrong {
            return Step::Verb(Verb::Cancel);
        }
        return running(now).unwrap_or(Step::Verb(Verb::Cancel));
    }
    let after = without(now, new);
    let free_bytes = after.file_system.free_bytes;
    let wanted = wanted_free_bytes(policy, &after);
    if free_bytes < wanted {
        let text = format!(
            "{reason}; {id} stays a device: without it {free_bytes} bytes would be free, and \
             {wanted} are needed"
        );
        return end(open, text);
    }
    remove::take_away(policy, open, now, id)
        .unwrap_or_else(|why| end(open, format!("{reason}; {id} stays a device: {why}")))
}

/// Returns an observation as it would be without a device.
fn without(now: &Observation, leaving: &Device) -> Observation {
    let mut after = now.clone();
    let file_system = &mut after.file_system;
    file_system.devices.retain(|device| device.devid != leaving.devid);
    file_system.size_bytes = file_system.size_bytes.saturating_sub(leaving.size_bytes);
    file_system.free_bytes = file_system.free_bytes.saturating_sub(leaving.size_bytes);
    after
}
