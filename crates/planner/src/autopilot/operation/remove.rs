//! The steps by which a volume leaves: its data moves to the other ones, then it is marked and
//! detached.

use super::facts::{BEGIN_MS, STUCK_MS, age_ms, condition, device, running, volume};
use super::made::{Proof, leave};
use super::room::{self, Removal};
use super::{Open, Step, Verb};
use crate::autopilot::decide::pace_bytes_per_s;
use crate::autopilot::observation::{Observation, RunningKind};
use crate::autopilot::policy::Policy;

/// Chunks that are emptied in one step of compacting, at most.
const CHUNKS_MAX: u32 = 4;

/// Returns the step that is due.
pub(super) fn step(policy: &Policy, open: &Open, now: &Observation, id: &str) -> Step {
    if let Some(device) = device(now, id) {
        if !open.cancelled {
            return take_away(policy, open, now, id).unwrap_or_else(Step::Failed);
        }
        let is_moving = now.file_system.running.as_ref().is_some_and(|running| {
            running.kind == RunningKind::Compact
                || running.kind == RunningKind::Remove && running.devid == Some(device.devid)
        });
        if is_moving {
            return Step::Verb(Verb::Cancel);
        }
        // A removal that has just begun is not seen as one yet.
        return running(now).unwrap_or(Step::Done);
    }
    let Some(volume) = volume(now, id) else { return Step::Done };
    leave(open, now, volume, Proof::Probe, BEGIN_MS).unwrap_or(Step::Done)
}

/// Returns the step by which the data of a device of the file system moves to the other ones.
///
/// # Errors
/// If it may not move, and waiting does not help. Then nothing has to be undone: data that has
/// moved is as well where it is.
pub(super) fn take_away(
    policy: &Policy,
    open: &Open,
    now: &Observation,
    id: &str,
) -> Result<Step, String> {
    let Some(device) = device(now, id) else {
        return Err(format!("{id} is not a device of the file system"));
    };
    if let Some(step) = running(now).or_else(|| condition(now)) {
        return Ok(step);
    }
    let bytes_per_s = pace_bytes_per_s(policy, now);
    match room::to_remove(policy, &now.file_system, device.devid)? {
        Removal::Ready => {}
        Removal::AfterCompaction if age_ms(open, now) > STUCK_MS => {
            return Err(format!("compaction made no room for the data of {id} in 6 hours"));
        }
        Removal::AfterCompaction => return Ok(Step::Verb(compact(now, bytes_per_s))),
    }
    Ok(Step::Verb(Verb::Remove { volume: id.to_owned(), bytes_per_s }))
}

/// Returns the step that empties the chunks with the least data: some are at or below the mean.
fn compact(now: &Observation, bytes_per_s: u64) -> Verb {
    let file_system = &now.file_system;
    let devices = file_system.devices.iter();
    let allocated = devices.fold(0_u64, |sum, device| sum.saturating_add(device.allocated_bytes));
    let used = allocated.saturating_sub(file_system.chunk_slack_bytes);
    let mean = u128::from(used) * 100 / u128::from(allocated.max(1));
    let mean_percent = u32::try_from(mean).map_or(100, |percent| percent.min(100));
    let used_percent_max = (mean_percent + 5).min(95);
    Verb::Compact { used_percent_max, chunks_max: CHUNKS_MAX, bytes_per_s }
}
