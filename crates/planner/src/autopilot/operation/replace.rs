//! The steps by which another volume takes the place of one.
//!
//! If the new volume is smaller, the file system is compacted on the old one and cut first. Until
//! the kernel has moved the last byte, the old one is whole, and going back loses nothing. A
//! replacement that a crash interrupts continues by itself on some kernels, and ends on others;
//! then it begins again.
//!
//! The only device of a file system is not replaced by the kernel: see [`only`].

use evenkeel_core::volume::VolumeSpec;

use super::facts::{STUCK_MS, age_ms, bytes, condition, device, made, running, volume};
use super::made::{Made, Proof, back, bring, leave};
use super::{Open, Step, Verb, only, room};
use crate::autopilot::decide::pace_bytes_per_s;
use crate::autopilot::observation::{Device, Kind, Observation, RunningKind};
use crate::autopilot::policy::Policy;

/// Chunks that are emptied in one step of compacting, at most.
const CHUNKS_MAX: u32 = 4;

/// Returns the step that is due.
pub(super) fn step(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    id: &str,
    with: &VolumeSpec,
) -> Step {
    let old = device(now, id);
    // The kernel lists the target of a running replacement with the number 0.
    let new = made(now, &open.id)
        .and_then(|made| device(now, &made.id))
        .filter(|device| device.devid != 0);
    match (old, new) {
        (None, Some(new)) => finish(open, now, id, new),
        (Some(old), None) if open.cancelled => {
            backward(open, now, old, "it was cancelled".to_owned())
        }
        (Some(old), None) => forward(policy, open, now, old, with)
            .unwrap_or_else(|reason| backward(open, now, old, reason)),
        (Some(old), Some(new)) => only::between(policy, open, now, (old, new)),
        (None, None) => {
            back(open, now, format!("{id} is not a device of the file system"), STUCK_MS)
        }
    }
}

/// Returns the next step to the goal.
///
/// # Errors
/// If the goal cannot be reached: the operation goes back.
fn forward(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    old: &Device,
    with: &VolumeSpec,
) -> Result<Step, String> {
    if let Some(step) = running(now) {
        return Ok(step);
    }
    let file_system = &now.file_system;
    if file_system.kind != Kind::Btrfs {
        return Err("only a btrfs replaces a device".to_owned());
    }
    if file_system.conditions.pinned {
        return Err("a swap file or another program holds the file system's devices".to_owned());
    }
    if age_ms(open, now) > STUCK_MS {
        return Err("the move did not end within 6 hours, and does not run".to_owned());
    }
    if let Some(step) = condition(now) {
        return Ok(step);
    }
    if only::is_only(now, old) {
        return only::enlist(policy, open, now, old, with);
    }
    if old.size_bytes > bytes(with) {
        return cut(policy, open, now, old, bytes(with));
    }
    match bring(open, now, with, STUCK_MS) {
        Made::Coming(step) => Ok(step),
        Made::Lost(reason) => Err(reason),
        Made::Ready(new) if bytes(&new.spec) < old.size_bytes => {
            Err(format!("{} is smaller than the file system on the old volume", new.id))
        }
        Made::Ready(new) => {
            let volume = old.volume.clone().unwrap_or_default();
            let bytes_per_s = pace_bytes_per_s(policy, now);
            Ok(Step::Verb(Verb::Replace { volume, with: new.id.clone(), bytes_per_s }))
        }
    }
}

/// Returns the step by which the file system on the old device becomes as small as the new one.
fn cut(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    old: &Device,
    to_bytes: u64,
) -> Result<Step, String> {
    let file_system = &now.file_system;
    let has_no_slot = now.instance.as_ref().is_some_and(|instance| instance.free_slots == 0);
    if has_no_slot && made(now, &open.id).is_none() {
        return Err("the host has no free attachment for another volume".to_owned());
    }
    let less = old.size_bytes - to_bytes;
    let size_bytes = file_system.size_bytes.saturating_sub(less);
    let wanted = less.saturating_add(room::reserve_bytes(policy, file_system, size_bytes));
    if file_system.free_bytes < wanted {
        let free = file_system.free_bytes;
        return Err(format!("{free} bytes are free, and the cut with the reserve takes {wanted}"));
    }
    let volume = old.volume.clone().unwrap_or_default();
    let bytes_per_s = pace_bytes_per_s(policy, now);
    let cut = Step::Verb(Verb::Cut { volume, to_bytes, bytes_per_s });
    if old.last_chunk_end_bytes.is_some_and(|end_bytes| end_bytes <= to_bytes) {
        return Ok(cut);
    }
    // The kernel moves chunks from behind the cut, if there is room for whole ones before it.
    let needed = old.allocated_bytes.saturating_add(2 * room::chunk_bytes(file_system));
    if needed <= to_bytes {
        return Ok(cut);
    }
    let slack = file_system.chunk_slack_bytes;
    if slack < needed - to_bytes {
        return Err(format!(
            "chunks on {} must become {} bytes fewer before the cut, and only {slack} bytes of \
             all chunks are unused",
            old.path,
            needed - to_bytes
        ));
    }
    Ok(Step::Verb(compact(now, bytes_per_s)))
}

/// Returns the step that empties the chunks with the least data: some are at or below the mean.
pub(super) fn compact(now: &Observation, bytes_per_s: u64) -> Verb {
    let file_system = &now.file_system;
    let devices = file_system.devices.iter();
    let allocated = devices.fold(0_u64, |sum, device| sum.saturating_add(device.allocated_bytes));
    let used = allocated.saturating_sub(file_system.chunk_slack_bytes);
    let mean = u128::from(used) * 100 / u128::from(allocated.max(1));
    let mean_percent = u32::try_from(mean).map_or(100, |percent| percent.min(100));
    let used_percent_max = (mean_percent + 5).min(95);
    Verb::Compact { used_percent_max, chunks_max: CHUNKS_MAX, bytes_per_s }
}

/// Returns the next step back to the old device.
fn backward(open: &Open, now: &Observation, old: &Device, reason: String) -> Step {
    if let Some(moving) = &now.file_system.running {
        let is_ours = match moving.kind {
            RunningKind::Replace => moving.devid == Some(old.devid),
            RunningKind::Resize => moving.devid == Some(old.devid),
            RunningKind::Compact => true,
            RunningKind::Add | RunningKind::Remove | RunningKind::Foreign => false,
        };
        if is_ours {
            return Step::Verb(Verb::Cancel);
        }
        return running(now).unwrap_or(Step::Verb(Verb::Cancel));
    }
    if room::is_short(old.size_bytes, old.device_bytes) {
        let volume = old.volume.clone().unwrap_or_default();
        return Step::Verb(Verb::Grow { volume });
    }
    back(open, now, reason, STUCK_MS)
}

/// Returns the next step after the new device has taken the place of the old one.
fn finish(open: &Open, now: &Observation, id: &str, new: &Device) -> Step {
    if room::is_short(new.size_bytes, new.device_bytes) {
        let volume = new.volume.clone().unwrap_or_default();
        return running(now).unwrap_or(Step::Verb(Verb::Grow { volume }));
    }
    let Some(old) = volume(now, id) else { return Step::Done };
    leave(open, now, old, Proof::Probe, STUCK_MS).unwrap_or(Step::Done)
}
