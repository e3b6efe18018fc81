//! The steps by which another volume takes the place of one.
//!
//! The new volume is added, and the old one is removed. `btrfs replace` is not used: a power cut at
//! its end can leave a file system that cannot be mounted (`findings/btrfs_replace_power_cut.sh`).
//! Until the old device is empty, the operation can go back: the removal is cancelled, and the new
//! device is removed.

use evenkeel_core::volume::VolumeSpec;

use super::facts::{STUCK_MS, age_ms, bytes, condition, device, made, running, volume};
use super::made::{Made, Proof, back, bring, leave};
use super::{Open, Step, Verb, remove, room};
use crate::autopilot::decide::wanted_free_bytes;
use crate::autopilot::observation::{Device, Observation, RunningKind};
use crate::autopilot::policy::Policy;

/// Returns the step that is due.
pub(super) fn step(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    id: &str,
    with: &VolumeSpec,
) -> Step {
    let new = made(now, &open.id).and_then(|made| device(now, &made.id));
    match (device(now, id), new) {
        (None, Some(_)) => finish(open, now, id),
        (Some(_), None) if open.cancelled => {
            back(open, now, "it was cancelled".to_owned(), STUCK_MS)
        }
        (Some(old), None) => enlist(policy, open, now, old, with)
            .unwrap_or_else(|reason| back(open, now, reason, STUCK_MS)),
        (Some(old), Some(new)) => between(policy, open, now, (old, new)),
        (None, None) => {
            back(open, now, format!("{id} is not a device of the file system"), STUCK_MS)
        }
    }
}

/// Returns the step by which the new volume becomes a device beside the old one.
///
/// # Errors
/// If it cannot, or the data of the old one would find no room: the operation goes back.
fn enlist(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    old: &Device,
    with: &VolumeSpec,
) -> Result<Step, String> {
    if let Some(step) = running(now) {
        return Ok(step);
    }
    if now.file_system.conditions.pinned {
        return Err("a swap file or another program holds the file system's devices".to_owned());
    }
    if age_ms(open, now) > STUCK_MS {
        return Err("the new volume could not be added in 6 hours".to_owned());
    }
    if let Some(step) = condition(now) {
        return Ok(step);
    }
    room::to_take_over(policy, &now.file_system, old, bytes(with))?;
    match bring(open, now, with, STUCK_MS) {
        Made::Coming(step) => Ok(step),
        Made::Lost(reason) => Err(reason),
        Made::Ready(new) => Ok(Step::Verb(Verb::Add { volume: new.id.clone() })),
    }
}

/// Returns the step while both the old device and the new one are devices: the data of the old one
/// moves away or, if the operation goes back, that of the new one.
fn between(
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
        return Step::Failed(text);
    }
    remove::take_away(policy, open, now, id)
        .unwrap_or_else(|why| Step::Failed(format!("{reason}; {id} stays a device: {why}")))
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

/// Returns the next step after the old device has left.
fn finish(open: &Open, now: &Observation, id: &str) -> Step {
    let Some(old) = volume(now, id) else { return Step::Done };
    leave(open, now, old, Proof::Probe, STUCK_MS).unwrap_or(Step::Done)
}
