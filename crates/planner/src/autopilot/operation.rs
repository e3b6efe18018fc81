//! Operations, and their next steps.
//!
//! An operation has a goal and no progress: [`next_step`] derives the progress from an observation.
//! So an executor that ends at any instant continues by observing.

mod add;
mod delete;
mod facts;
mod made;
mod modify;
mod remove;
mod replace;
pub mod room;
#[cfg(test)]
mod tests;

use evenkeel_core::volume::VolumeSpec;
use serde::{Deserialize, Serialize};

use super::observation::Observation;
use super::policy::Policy;
use super::spec_form;

/// A change of a file system and its volumes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", tag = "operation")]
pub enum Operation {
    /// Size, IOPS, MiB/s and type of a volume change in one call. If it grows, the file system
    /// grows with it.
    Modify {
        /// The volume.
        volume: String,
        /// Its specification before.
        #[serde(with = "spec_form")]
        from: VolumeSpec,
        /// Its specification afterwards.
        #[serde(with = "spec_form")]
        to: VolumeSpec,
    },
    /// A new volume becomes a device of the file system.
    Add {
        /// Its specification.
        #[serde(with = "spec_form")]
        spec: VolumeSpec,
    },
    /// The data of a volume moves to the other ones, and it is detached and deleted.
    Remove {
        /// The volume.
        volume: String,
    },
    /// A smaller or cheaper volume is added, and the data of a volume moves to all other ones. That
    /// volume is detached and deleted.
    Replace {
        /// The volume that leaves.
        volume: String,
        /// The specification of the new one.
        #[serde(with = "spec_form")]
        with: VolumeSpec,
    },
    /// A retired volume is deleted after its grace time.
    Delete {
        /// The volume.
        volume: String,
    },
}

/// An operation that was decided, with the name by which its volumes are tagged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Open {
    /// Its id: the decision that made it, and its place in that.
    pub id: String,
    /// The operation.
    pub operation: Operation,
    /// When it was decided, in milliseconds since 1970.
    pub since_ms: u64,
    /// Whether it is being undone.
    pub cancelled: bool,
    /// Whether it was an emergency.
    #[serde(default)]
    pub is_emergency: bool,
    /// Whether a schedule of the policy asked for it.
    #[serde(default)]
    pub is_scheduled: bool,
    /// Seconds a day in which requests wait afterwards, at most, by the replay; `None` unless it
    /// lowers limits.
    #[serde(default)]
    pub exceeded_s_per_day_max: Option<u32>,
}

/// One call or verb.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// A call of the EC2 API.
    Call(Call),
    /// A verb of the agent.
    Verb(Verb),
    /// Nothing is due before another observation; the reason.
    Wait(String),
    /// The goal is reached.
    Done,
    /// The goal cannot be reached, for this reason; what was made for it is removed first.
    Failed(String),
}

/// A call of the EC2 API.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Call {
    /// CreateVolume, with the operation's id as client token and tag.
    Create {
        /// The operation.
        operation: String,
        /// The specification.
        #[serde(with = "spec_form")]
        spec: VolumeSpec,
    },
    /// AttachVolume to the host.
    Attach {
        /// The volume.
        volume: String,
    },
    /// ModifyVolume with all that differs.
    Modify {
        /// The volume.
        volume: String,
        /// The specification.
        #[serde(with = "spec_form")]
        to: VolumeSpec,
    },
    /// DetachVolume from the host.
    Detach {
        /// The volume.
        volume: String,
    },
    /// CreateTags: the volume is deleted after the grace time.
    Retire {
        /// The volume.
        volume: String,
    },
    /// DeleteVolume.
    Delete {
        /// The volume.
        volume: String,
    },
}

/// A verb of the agent. Each checks its preconditions again on the host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Verb {
    /// The kernel reads the size of a device again.
    Rescan {
        /// The volume.
        volume: String,
    },
    /// The file system grows to the end of a device.
    Grow {
        /// The volume.
        volume: String,
    },
    /// A device is added to the file system.
    Add {
        /// The volume.
        volume: String,
    },
    /// Chunks that are used less than this are emptied, so that a device that leaves finds room for
    /// its data.
    Compact {
        /// Percent.
        used_percent_max: u32,
        /// The most chunks of one step.
        chunks_max: u32,
        /// Bytes a second.
        bytes_per_s: u64,
    },
    /// The pace of the running move changes.
    Pace {
        /// Bytes a second.
        bytes_per_s: u64,
    },
    /// The data of a device moves to the other ones, from now on in the background.
    Remove {
        /// The volume.
        volume: String,
        /// Bytes a second.
        bytes_per_s: u64,
    },
    /// The running move is cancelled.
    Cancel,
}

/// Returns the step of an operation that is due.
///
/// It derives the progress from the observation alone, so it may be asked again after a crash, a
/// lost answer or a refusal. The observation of the file system must have been made in this moment;
/// an older one could hide that a device has been added.
#[must_use]
pub fn next_step(policy: &Policy, open: &Open, now: &Observation) -> Step {
    if let Some(reason) = uncertain(policy, now) {
        return Step::Wait(reason);
    }
    match &open.operation {
        Operation::Modify { volume, from, to } => modify::step(policy, open, now, volume, from, to),
        Operation::Add { spec } => add::step(policy, open, now, spec),
        Operation::Remove { volume } => remove::step(policy, open, now, volume),
        Operation::Replace { volume, with } => replace::step(policy, open, now, volume, with),
        Operation::Delete { volume } => delete::step(policy, open, now, volume),
    }
}

/// Returns why the observation does not suffice for any step; `None` if it does.
fn uncertain(policy: &Policy, now: &Observation) -> Option<String> {
    let stale_ms = u64::from(policy.brakes.stale_s) * 1_000;
    let sources =
        [("the file system", now.ages.file_system_ms), ("the volumes", now.ages.volumes_ms)];
    for (name, age_ms) in sources {
        match age_ms {
            None => return Some(format!("{name} could not be read yet")),
            Some(age_ms) if age_ms > stale_ms => {
                let age_s = age_ms / 1_000;
                let stale_s = policy.brakes.stale_s;
                return Some(format!(
                    "{name} could last be read {age_s} s ago, and {stale_s} s is the maximum"
                ));
            }
            Some(_) => {}
        }
    }
    let file_system = &now.file_system;
    if file_system.conditions.degraded {
        let text = "a device of the file system is missing, or it is mounted degraded or \
                    read-only; nothing changes before that is repaired";
        return Some(text.to_owned());
    }
    // A device whose volume is unknown could be on any volume, also on one that is to leave.
    let unknown = file_system.devices.iter().find(|device| device.volume.is_none());
    if let Some(device) = unknown {
        return Some(format!("the volume of {} is not known", device.path));
    }
    file_system.devices.is_empty().then(|| "the file system shows no device".to_owned())
}
