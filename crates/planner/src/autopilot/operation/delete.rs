//! The steps by which a volume that was marked is deleted: its grace time, a fresh probe, the call.
//!
//! A volume is probed while it is attached. A probe is remembered for an hour, so that it is still
//! known after the volume was detached.

use super::facts::{STUCK_MS, device, end, no_device, volume};
use super::made::is_stuck;
use super::{Call, Open, Step};
use crate::autopilot::observation::{Observation, Volume, VolumeState};
use crate::autopilot::policy::Policy;

/// Returns the step that is due.
pub(super) fn step(policy: &Policy, open: &Open, now: &Observation, id: &str) -> Step {
    let Some(volume) = volume(now, id) else { return Step::Done };
    if device(now, id).is_some() {
        return end(open, format!("{id} is a device of the file system"));
    }
    if volume.has_superblock == Some(true) {
        return end(open, format!("{id} has a superblock of the file system, and is kept"));
    }
    if open.cancelled {
        return give_back(now, volume);
    }
    let until_ms = match grace_end_ms(policy, open, now, volume) {
        Ok(until_ms) => until_ms,
        Err(step) => return step,
    };
    let id = id.to_owned();
    let is_late = now.unix_ms.saturating_sub(until_ms.max(open.since_ms)) > STUCK_MS;
    match volume.state {
        VolumeState::Available if volume.has_superblock == Some(false) => {
            Step::Call(Call::Delete { volume: id })
        }
        VolumeState::Available if is_late => {
            end(open, format!("{id} could not be probed within 6 hours"))
        }
        VolumeState::Available
            if now.instance.as_ref().is_some_and(|instance| instance.free_slots == 0) =>
        {
            Step::Wait(format!("the host has no free attachment to probe {id}"))
        }
        VolumeState::Available => Step::Call(Call::Attach { volume: id }),
        VolumeState::Attached if volume.has_superblock.is_none() && !is_late => no_device(&id),
        VolumeState::Elsewhere => end(open, format!("{id} has failed, or another host has it")),
        _ => give_back(now, volume),
    }
}

/// Returns the end of the volume's grace time, which is over, in milliseconds since 1970.
///
/// # Errors
/// If it is not over, with the step.
fn grace_end_ms(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    volume: &Volume,
) -> Result<u64, Step> {
    let id = &volume.id;
    let Some(retired_ms) = volume.retired_ms else {
        return Err(end(open, format!("{id} is not marked for deletion")));
    };
    let skew_s = now.ages.clock_skew_ms.unwrap_or(0) / 1_000;
    if skew_s > u64::from(policy.brakes.clock_skew_s_max) {
        let text = format!("the host's clock differs by {skew_s} s; {id} is not deleted by it");
        return Err(Step::Wait(text));
    }
    let grace_ms = u64::from(policy.budget.grace_hours).saturating_mul(policy.hour_ms());
    let until_ms = retired_ms.saturating_add(grace_ms);
    if now.unix_ms < until_ms {
        let left_s = (until_ms - now.unix_ms).div_ceil(1_000);
        return Err(Step::Wait(format!("the grace time of {id} ends in {left_s} s")));
    }
    Ok(until_ms)
}

/// Returns the step by which a volume that was attached for its probe is detached.
fn give_back(now: &Observation, volume: &Volume) -> Step {
    let id = volume.id.clone();
    match volume.state {
        VolumeState::Attaching { since_ms } if !is_stuck(now, since_ms) => {
            Step::Wait(format!("{id} is being attached"))
        }
        VolumeState::Attaching { .. } | VolumeState::Attached => {
            Step::Call(Call::Detach { volume: id })
        }
        VolumeState::Detaching => Step::Wait(format!("{id} is being detached")),
        VolumeState::Creating | VolumeState::Available | VolumeState::Elsewhere => Step::Done,
    }
}
