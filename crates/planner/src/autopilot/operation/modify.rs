//! The steps of a modification: one call, and the growth of the file system.

use evenkeel_core::volume::VolumeSpec;

use super::facts::{BEGIN_MS, STUCK_MS, age_ms, bytes, device, end, is_equal, running, volume};
use super::{Call, Open, Step, Verb, room};
use crate::autopilot::observation::{Modification, Observation, Volume, VolumeState};
use crate::autopilot::policy::Policy;

/// Returns the step that is due.
pub(super) fn step(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    id: &str,
    from: &VolumeSpec,
    to: &VolumeSpec,
) -> Step {
    let Some(known) = volume(now, id) else {
        return end(open, format!("{id}: no such volume has the tag of the file system"));
    };
    if known.modification == Some(Modification::Modifying) {
        return Step::Wait(format!("the modification of {id} is not in force yet"));
    }
    if is_equal(&known.spec, to) {
        // If both are equal, the volume has grown before, and the file system has not. Some devices
        // never see that their volumes have grown.
        let grows = from == to || to.size_gib > from.size_gib && policy.space.grows_file_systems();
        if !grows {
            return Step::Done;
        }
        return grow(open, now, id, bytes(to));
    }
    if open.cancelled {
        return Step::Done;
    }
    obstacle(open, now, known, from, to).unwrap_or_else(|| {
        let volume = id.to_owned();
        Step::Call(Call::Modify { volume, to: *to })
    })
}

/// Returns why the call is not made now; `None` if it is.
fn obstacle(
    open: &Open,
    now: &Observation,
    known: &Volume,
    from: &VolumeSpec,
    to: &VolumeSpec,
) -> Option<Step> {
    let id = &known.id;
    let is_begun = known.modified_ms.iter().any(|start_ms| *start_ms >= open.since_ms);
    let failed = |text: &str| Some(Step::Failed(format!("{id}: {text}")));
    if known.state == VolumeState::Elsewhere {
        return failed("it has failed, or another host has it");
    }
    if to.size_gib < known.spec.size_gib {
        return failed("a volume cannot become smaller by a modification");
    }
    if is_begun && known.modification == Some(Modification::Failed) {
        return failed("the service undid the modification");
    }
    if !is_equal(&known.spec, from) {
        return failed("another program modified it after the decision");
    }
    if age_ms(open, now) > BEGIN_MS {
        return failed("the service accepted no modification within 10 minutes of the decision");
    }
    let from_ms = known.modifiable_from_ms.filter(|from_ms| *from_ms > now.unix_ms)?;
    let wait_s = (from_ms - now.unix_ms).div_ceil(1_000);
    Some(Step::Wait(format!("the service accepts the next modification of {id} in {wait_s} s")))
}

/// Returns the step by which the file system grows to the end of a volume of `bytes`.
fn grow(open: &Open, now: &Observation, id: &str, bytes: u64) -> Step {
    let Some(device) = device(now, id) else {
        return end(open, format!("{id} is not a device of the file system"));
    };
    let volume = id.to_owned();
    let step = if room::is_short(device.device_bytes, bytes) {
        Step::Verb(Verb::Rescan { volume })
    } else if room::is_short(device.size_bytes, device.device_bytes) {
        running(now).unwrap_or(Step::Verb(Verb::Grow { volume }))
    } else {
        return Step::Done;
    };
    if age_ms(open, now) > STUCK_MS {
        return end(
            open,
            format!(
                "{id} has {bytes} bytes, the kernel's device {} and the file system {} after 6 \
                 hours; see whether a partition must grow",
                device.device_bytes, device.size_bytes
            ),
        );
    }
    step
}
