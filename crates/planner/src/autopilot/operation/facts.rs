//! What steps read from an observation.

use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;

use super::{Open, Step};
use crate::autopilot::observation::{Device, Observation, RunningKind, Volume};

/// The time within which an operation makes its first change, in milliseconds. Afterwards its
/// decision is out of date.
pub(super) const BEGIN_MS: u64 = 10 * 60_000;

/// The time within which a move begins or a growth ends, in milliseconds: compacting takes long.
pub(super) const STUCK_MS: u64 = 6 * 3_600_000;

/// The time after which an attachment is stuck, in milliseconds.
pub(super) const ATTACH_STUCK_MS: u64 = 90_000;

/// Returns a volume.
pub(super) fn volume<'a>(now: &'a Observation, id: &str) -> Option<&'a Volume> {
    now.volumes.iter().find(|volume| volume.id == id)
}

/// Returns the device of the file system on a volume. The target of a replacement that a person has
/// started is one, with the number 0.
pub(super) fn device<'a>(now: &'a Observation, volume: &str) -> Option<&'a Device> {
    now.file_system.devices.iter().find(|device| device.volume.as_deref() == Some(volume))
}

/// Returns the volume that an operation made: one that the file system uses before others, and one
/// that is marked for deletion last.
pub(super) fn made<'a>(now: &'a Observation, operation: &str) -> Option<&'a Volume> {
    now.volumes
        .iter()
        .filter(|volume| volume.made_by.as_deref() == Some(operation))
        .min_by_key(|volume| (device(now, &volume.id).is_none(), volume.retired_ms.is_some()))
}

/// Returns the wait for the device of an attached volume that is to be probed.
pub(super) fn no_device(volume: &str) -> Step {
    Step::Wait(format!(
        "{volume} is attached, and has no device here that can be probed: the attach command of \
         the agent makes one, or --device names it"
    ))
}

/// Returns the time since an operation was decided, in milliseconds.
pub(super) fn age_ms(open: &Open, now: &Observation) -> u64 {
    now.unix_ms.saturating_sub(open.since_ms)
}

/// Returns the bytes of a volume.
pub(super) fn bytes(spec: &VolumeSpec) -> u64 {
    u64::from(spec.size_gib) * GIB
}

/// Returns whether two volumes have one type, size and provisioned limits.
pub(super) fn is_equal(one: &VolumeSpec, other: &VolumeSpec) -> bool {
    let first = one.request();
    let mut second = other.request();
    second.multi_attach = first.multi_attach;
    first == second
}

/// Returns the wait for an exclusive operation of the kernel; `None` if there is none.
pub(super) fn running(now: &Observation) -> Option<Step> {
    let running = now.file_system.running.as_ref()?;
    let name = match running.kind {
        RunningKind::Add => "the addition of a device",
        RunningKind::Remove => "the removal of a device",
        RunningKind::Compact => "compacting",
        RunningKind::Foreign => "an operation of another program",
    };
    let done = running
        .done_permille
        .map_or(String::new(), |done| format!(", {}.{} % done", done / 10, done % 10));
    Some(Step::Wait(format!("{name} runs{done}")))
}

/// Returns the wait for a condition that forbids that data moves; `None` if there is none.
pub(super) fn condition(now: &Observation) -> Option<Step> {
    let conditions = &now.file_system.conditions;
    let reasons = [
        (conditions.scrub, "a scrub runs"),
        (conditions.balance, "a balance runs or is paused"),
        (conditions.snapshot_pending, "a snapshot of a volume is pending"),
    ];
    let reason = reasons.into_iter().find_map(|(is_set, reason)| is_set.then_some(reason))?;
    Some(Step::Wait(format!("{reason}; no data moves before its end")))
}

/// Returns the end of an operation that has nothing left to undo: of a cancelled one it is no
/// failure.
pub(super) fn end(open: &Open, reason: String) -> Step {
    if open.cancelled {
        return Step::Done;
    }
    Step::Failed(reason)
}
