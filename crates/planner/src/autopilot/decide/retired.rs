//! Retired volumes: they are deleted after their grace time, if a probe finds no superblock.

use super::facts::{Change, Facts, Rule};
use super::{Brake, Braked, Decision};
use crate::autopilot::observation::{Volume, VolumeState};
use crate::autopilot::operation::Operation;
use crate::format;
use crate::trace::Clock;

/// The age from which a volume without an operation is an alarm, in milliseconds.
const ORPHAN_MS: u64 = 600_000;

/// Adds the deletions that are due, and the alarms of volumes that nothing uses.
pub fn delete(facts: &Facts<'_>, decision: &mut Decision) {
    for volume in &facts.now.volumes {
        let is_open = facts.state.open.iter().any(|open| {
            volume.made_by.as_ref() == Some(&open.id)
                || matches!(&open.operation, Operation::Delete { volume: id } if *id == volume.id)
        });
        let is_device = devices(facts).any(|id| *id == volume.id);
        let Some(retired_ms) = volume.retired_ms else {
            let is_old = facts.now.unix_ms.saturating_sub(volume.created_ms) >= ORPHAN_MS;
            if volume.made_by.is_some() && !is_open && !is_device && is_old {
                decision.alarms.push(format!(
                    "{} was made by the operation {}, which is not open, and is no device of the \
                     file system",
                    volume.id,
                    volume.made_by.as_deref().unwrap_or_default()
                ));
            }
            continue;
        };
        if is_open {
            continue;
        }
        if is_device {
            let id = &volume.id;
            decision
                .alarms
                .push(format!("{id} is retired, and the file system has it as a device"));
            continue;
        }
        propose(facts, volume, retired_ms, decision);
    }
}

fn devices<'a>(facts: &Facts<'a>) -> impl Iterator<Item = &'a String> {
    facts.now.file_system.devices.iter().filter_map(|device| device.volume.as_ref())
}

fn propose(facts: &Facts<'_>, volume: &Volume, retired_ms: u64, decision: &mut Decision) {
    let id = &volume.id;
    let retired = format::at(Clock::Unix, retired_ms);
    let hours = facts.policy.budget.grace_hours;
    let reason = format!("{id} was retired at {retired}, more than {hours} h ago");
    let mut change = Change::new(Rule::Delete, Operation::Delete { volume: id.clone() }, reason);
    let due_ms = retired_ms.saturating_add(u64::from(hours).saturating_mul(facts.policy.hour_ms()));
    let reason = if due_ms > facts.now.unix_ms {
        let due = format::at(Clock::Unix, due_ms);
        Some(format!("{id} is kept for {hours} h: it is deleted from {due} on"))
    } else if volume.state != VolumeState::Available {
        Some(format!("{id} is retired and still attached"))
    } else {
        // Without a probe, the operation attaches it once more to make one.
        let has_superblock = volume.has_superblock == Some(true);
        has_superblock.then(|| format!("{id} still has a superblock of the file system"))
    };
    if volume.has_superblock == Some(true) {
        decision.alarms.push(format!("{id} is retired, and has a superblock of the file system"));
    }
    if let Some(reason) = reason {
        decision.brakes.push(Braked::of(Brake::Condition, &change, reason));
        return;
    }
    let found = facts.check(&change);
    if found.is_empty() {
        change.reason += "; a probe must find no superblock of the file system on it";
        facts.intend(change, decision);
    } else {
        decision.brakes.extend(found);
    }
}
