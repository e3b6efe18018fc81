//! The steps by which a new volume becomes a device of the file system.

use evenkeel_core::volume::VolumeSpec;

use super::facts::{BEGIN_MS, STUCK_MS, age_ms, device, end, made, running};
use super::made::{Made, back, bring};
use super::{Open, Step, Verb, remove};
use crate::autopilot::observation::{Kind, Observation};
use crate::autopilot::policy::Policy;

/// Returns the step that is due.
pub(super) fn step(policy: &Policy, open: &Open, now: &Observation, spec: &VolumeSpec) -> Step {
    if let Some(volume) = made(now, &open.id).filter(|made| device(now, &made.id).is_some()) {
        if !open.cancelled {
            return Step::Done;
        }
        // Without room for its data it stays: it is a whole device, and harms nothing.
        return remove::take_away(policy, open, now, &volume.id).unwrap_or(Step::Done);
    }
    if open.cancelled {
        return back(open, now, "it was cancelled".to_owned(), BEGIN_MS);
    }
    if now.file_system.kind != Kind::Btrfs {
        return end(open, "only a btrfs takes another device".to_owned());
    }
    match bring(open, now, spec, BEGIN_MS) {
        Made::Coming(step) => step,
        Made::Lost(reason) => back(open, now, reason, BEGIN_MS),
        // A superblock may be that of an addition which was interrupted: the verb looks, and clears
        // that one.
        Made::Ready(volume) => running(now).unwrap_or_else(|| {
            if age_ms(open, now) > STUCK_MS {
                let reason = format!("{} could not be added in 6 hours", volume.id);
                return back(open, now, reason, BEGIN_MS);
            }
            Step::Verb(Verb::Add { volume: volume.id.clone() })
        }),
    }
}
