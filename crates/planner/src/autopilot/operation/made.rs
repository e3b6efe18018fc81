//! The volume that an operation makes: how it comes, and how a volume leaves.
//!
//! The mark of deletion also remembers that an operation goes back: a volume that is marked is not
//! attached again for it.

use evenkeel_core::volume::VolumeSpec;

use super::facts::{ATTACH_STUCK_MS, age_ms, device, end, made, no_device, running};
use super::{Call, Open, Step};
use crate::autopilot::observation::{Observation, Volume, VolumeState};

/// The progress of the volume that an operation makes.
pub(super) enum Made<'a> {
    /// It is attached, and its device is known.
    Ready(&'a Volume),
    /// It comes by this step.
    Coming(Step),
    /// It does not come, for this reason: the operation goes back.
    Lost(String),
}

/// Returns the progress of the volume of an operation, which must come within `limit_ms`.
pub(super) fn bring<'a>(
    open: &Open,
    now: &'a Observation,
    spec: &VolumeSpec,
    limit_ms: u64,
) -> Made<'a> {
    let is_late = age_ms(open, now) > limit_ms;
    let minutes = limit_ms / 60_000;
    let Some(volume) = made(now, &open.id) else {
        if is_late {
            return Made::Lost(format!("no volume could be created in {minutes} minutes"));
        }
        if has_no_slot(now) {
            return Made::Lost("the host has no free attachment for another volume".to_owned());
        }
        let operation = open.id.clone();
        return Made::Coming(Step::Call(Call::Create { operation, spec: *spec }));
    };
    let id = &volume.id;
    if volume.retired_ms.is_some() {
        return Made::Lost(format!("{id}, which was made for it, is marked for deletion"));
    }
    let late = format!("{id} was not attached with its device in {minutes} minutes");
    match volume.state {
        VolumeState::Attached if volume.has_superblock.is_some() => Made::Ready(volume),
        VolumeState::Elsewhere => Made::Lost(format!("{id} has failed, or another host has it")),
        VolumeState::Attaching { since_ms } if is_stuck(now, since_ms) => {
            Made::Lost(format!("{id} has been attaching for more than 90 s"))
        }
        _ if is_late => Made::Lost(late),
        VolumeState::Creating => wait(format!("{id} is being created")),
        VolumeState::Available if has_no_slot(now) => {
            Made::Lost(format!("the host has no free attachment for {id}"))
        }
        VolumeState::Available => Made::Coming(Step::Call(Call::Attach { volume: id.clone() })),
        VolumeState::Attaching { .. } => wait(format!("{id} is being attached")),
        VolumeState::Attached => wait(format!("{id} is attached, and has no device here yet")),
        VolumeState::Detaching => wait(format!("{id} is being detached")),
    }
}

fn wait<'a>(reason: String) -> Made<'a> {
    Made::Coming(Step::Wait(reason))
}

fn has_no_slot(now: &Observation) -> bool {
    now.instance.as_ref().is_some_and(|instance| instance.free_slots == 0)
}

/// Returns whether an attachment that began at this time is stuck.
pub(super) fn is_stuck(now: &Observation, since_ms: u64) -> bool {
    now.unix_ms.saturating_sub(since_ms) > ATTACH_STUCK_MS
}

/// The evidence that a volume needs before it is detached.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// A probe found no superblock of the file system: the volume has been a device of it.
    Probe,
    /// The file system shows all its devices, each with its volume, and this one is none of them.
    List,
}

/// Returns the step by which a volume is marked for deletion and detached; `None` if it is.
pub(super) fn leave(
    open: &Open,
    now: &Observation,
    volume: &Volume,
    proof: Proof,
    limit_ms: u64,
) -> Option<Step> {
    let id = volume.id.clone();
    if let Some(device) = device(now, &id) {
        let path = &device.path;
        return Some(Step::Wait(format!("{path} on {id} is still a device of the file system")));
    }
    if volume.has_superblock == Some(true) {
        let text = format!(
            "{id} has a superblock of the file system, which does not list it; it stays attached. \
             If `btrfs filesystem show` does not list its device, run `wipefs --all` on that"
        );
        let is_late = age_ms(open, now) > limit_ms;
        return Some(if is_late { Step::Failed(text) } else { Step::Wait(text) });
    }
    if volume.retired_ms.is_none() {
        return Some(Step::Call(Call::Retire { volume: id }));
    }
    match volume.state {
        VolumeState::Available | VolumeState::Elsewhere => None,
        VolumeState::Creating => Some(Step::Wait(format!("{id} is being created"))),
        VolumeState::Detaching => Some(Step::Wait(format!("{id} is being detached"))),
        VolumeState::Attaching { since_ms } if !is_stuck(now, since_ms) => {
            Some(Step::Wait(format!("{id} is being attached")))
        }
        VolumeState::Attached if volume.has_superblock.is_none() && proof == Proof::Probe => {
            Some(no_device(&id))
        }
        VolumeState::Attaching { .. } | VolumeState::Attached => {
            Some(Step::Call(Call::Detach { volume: id }))
        }
    }
}

/// Returns the step by which the volume that an operation made leaves, and then its end. A device
/// that is being added is not listed yet, so nothing leaves while the kernel is at work.
pub(super) fn back(open: &Open, now: &Observation, reason: String, limit_ms: u64) -> Step {
    if let Some(step) = running(now) {
        return step;
    }
    made(now, &open.id)
        .and_then(|volume| leave(open, now, volume, Proof::List, limit_ms))
        .unwrap_or_else(|| end(open, reason))
}
