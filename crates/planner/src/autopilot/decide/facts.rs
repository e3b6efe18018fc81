//! The facts of an observation that several rules use, and the changes that rules propose.

use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;

use super::{Brake, Braked, Decision, Intent, brakes, budget, commands, moves, words};
use crate::autopilot::evidence::{Evidence, Judged};
use crate::autopilot::observation::{
    Device, Kind, Observation, Profile, RunningKind, Volume, VolumeState,
};
use crate::autopilot::operation::Operation;
use crate::autopilot::policy::{Mode, Policy};
use crate::autopilot::state::{Axis, State, Waiting};
use crate::fleet::alternatives::{self, Limits};

/// The wait of an open operation from which it is an alarm, in milliseconds.
const WAITED_MS: u64 = 5 * 60_000;

/// The rule that proposes a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// The file system has too little room.
    Grow,
    /// It has too much.
    Shrink,
    /// Requests wait, or credits end.
    Raise,
    /// Less carries the recording.
    Lower,
    /// A watched change hurts.
    Undo,
    /// A schedule begins.
    Scheduled,
    /// A schedule has ended.
    Ended,
    /// A retired volume is deleted.
    Delete,
}

impl Rule {
    /// Returns whether it grows the file system, which most brakes allow.
    pub const fn is_growth(self) -> bool {
        matches!(self, Self::Grow)
    }

    /// Returns the property that its changes change.
    pub const fn axis(self) -> Axis {
        match self {
            Self::Grow | Self::Shrink | Self::Delete => Axis::Space,
            Self::Raise | Self::Lower | Self::Undo | Self::Scheduled | Self::Ended => Axis::Rate,
        }
    }

    /// Returns whether its changes make more of that property.
    pub const fn is_up(self) -> bool {
        matches!(self, Self::Grow | Self::Raise | Self::Undo | Self::Scheduled)
    }
}

/// A change that a rule proposes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    pub rule: Rule,
    pub operation: Operation,
    pub is_emergency: bool,
    pub exceeded_s_per_day_max: Option<u32>,
    pub reason: String,
}

impl Change {
    /// Creates a change that is no emergency and that no replay has judged.
    pub const fn new(rule: Rule, operation: Operation, reason: String) -> Self {
        Self { rule, operation, is_emergency: false, exceeded_s_per_day_max: None, reason }
    }

    /// Returns the change in a few words.
    pub fn words(&self) -> String {
        match &self.operation {
            Operation::Modify { volume, from, to } if from == to => {
                format!("growth into the end of {volume}")
            }
            Operation::Modify { volume, to, .. } => {
                format!("the change of {volume} to {}", words::spec(to))
            }
            Operation::Add { spec } => format!("the addition of {}", words::spec(spec)),
            Operation::Remove { volume } => format!("the removal of {volume}"),
            Operation::Replace { volume, with } => {
                format!("the replacement of {volume} by {}", words::spec(with))
            }
            Operation::Delete { volume } => format!("the deletion of {volume}"),
        }
    }
}

/// Returns a brake of a change with its reason; `None` if it does not prevent it.
pub type Check = fn(&Facts<'_>, &Change) -> Option<(Brake, String)>;

/// A device of the file system with its volume.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    pub device: &'a Device,
    pub volume: &'a Volume,
}

/// The facts of a decision.
pub struct Facts<'a> {
    pub policy: &'a Policy,
    pub now: &'a Observation,
    pub state: &'a State,
    /// The devices whose volumes are known, attached and not retired, by device id.
    pub members: Vec<Member<'a>>,
    /// Why the file system is only observed; `None` if all its devices are members.
    pub unmanaged: Option<String>,
    /// Growth of the used bytes a second since the last reading; `None` if it is not known.
    pub growth_per_s: Option<u64>,
}

impl<'a> Facts<'a> {
    pub fn new(
        policy: &'a Policy,
        now: &'a Observation,
        state: &'a State,
        growth_per_s: Option<u64>,
    ) -> Self {
        let mut members: Vec<Member<'a>> = Vec::new();
        let mut unmanaged = None;
        // The target of a running replacement has the number 0, and no room of its own.
        for device in now.file_system.devices.iter().filter(|device| !is_target(now, device)) {
            let volume = device.volume.as_ref();
            let volume = volume.and_then(|id| now.volumes.iter().find(|volume| volume.id == *id));
            match volume {
                Some(volume)
                    if volume.state == VolumeState::Attached && volume.retired_ms.is_none() =>
                {
                    members.push(Member { device, volume });
                }
                Some(volume) => {
                    let id = &volume.id;
                    unmanaged = Some(format!("{id} of {} is not in use", device.path));
                }
                None => unmanaged = Some(format!("{} is no volume that is known", device.path)),
            }
        }
        if now.file_system.devices.is_empty() {
            unmanaged = Some("it has no device that is known".to_owned());
        }
        members.sort_by_key(|member| member.device.devid);
        Self { policy, now, state, members, unmanaged, growth_per_s }
    }

    /// Returns the member with a volume.
    pub fn member(&self, volume: &str) -> Option<Member<'a>> {
        self.members.iter().copied().find(|member| member.volume.id == volume)
    }

    pub const fn is_btrfs(&self) -> bool {
        matches!(self.now.file_system.kind, Kind::Btrfs)
    }

    /// Returns whether the file system takes further volumes.
    pub fn takes_volumes(&self) -> bool {
        self.is_btrfs() && self.now.file_system.data != Some(Profile::Raid1)
    }

    /// Returns whether the file system takes another volume, and the host has a place for it.
    pub fn takes_another_volume(&self) -> bool {
        let instance = self.now.instance.as_ref();
        self.takes_volumes() && instance.is_none_or(|instance| instance.free_slots > 0)
    }

    /// Returns whether the last growth was refused for want of capacity, within the last hour.
    pub fn lacked_capacity(&self) -> bool {
        const AGE_MS_MAX: u64 = 3_600_000;
        let refused_ms = self.state.no_capacity_ms.filter(|ms| *ms <= self.now.unix_ms);
        refused_ms.is_some_and(|ms| self.now.unix_ms - ms <= AGE_MS_MAX)
    }

    /// Returns the bytes on devices that a byte of a file takes.
    pub const fn copies(&self) -> u64 {
        match self.now.file_system.data {
            Some(Profile::Dup | Profile::Raid1) => 2,
            _ => 1,
        }
    }

    /// Returns the limits of a volume.
    pub fn limits(&self, spec: &VolumeSpec) -> Limits {
        Limits::of(&self.policy.plan, spec)
    }

    /// Returns the bytes a second of a volume without credits.
    pub fn sustained_bytes(&self, spec: &VolumeSpec) -> u64 {
        let bytes = self.policy.plan.rules.pacing(spec).bytes;
        bytes.map_or(u64::MAX, |limit| limit.sustained_per_second())
    }

    /// Returns the bytes a second at which the volumes can be written together. Nothing is written
    /// to a device that is being removed.
    pub fn line_bytes_per_s(&self) -> u64 {
        self.line_of(self.members.iter().filter(|member| !self.is_leaving(member)))
    }

    /// Returns whether the kernel moves the data of a btrfs.
    pub fn is_moving(&self) -> bool {
        let running = self.now.file_system.running.as_ref();
        running.is_some_and(|running| moves::is_move(running.kind))
    }

    /// Returns whether the kernel moves the data of a volume to the others.
    fn is_leaving(&self, member: &Member<'_>) -> bool {
        self.now.file_system.running.as_ref().is_some_and(|running| {
            running.kind == RunningKind::Remove && running.devid == Some(member.device.devid)
        })
    }

    /// Returns the bytes a second at which the volumes can be written together without one of them.
    pub fn line_bytes_per_s_without(&self, devid: u64) -> u64 {
        self.line_of(self.members.iter().filter(|member| member.device.devid != devid))
    }

    fn line_of<'b>(&self, members: impl Iterator<Item = &'b Member<'b>>) -> u64 {
        let sum = members.fold(0_u64, |sum, member| {
            sum.saturating_add(self.limits(&member.volume.spec).bytes.unwrap_or(u64::MAX))
        });
        let carried = self.instance_type().map(|known| known.bytes_per_second_max());
        sum.min(carried.unwrap_or(u64::MAX))
    }

    /// Returns the monthly cost of a volume; `None` without a price.
    pub fn monthly(&self, spec: &VolumeSpec) -> Option<u64> {
        alternatives::monthly(&self.policy.plan, spec)
    }

    /// Returns the monthly cost of the file system's volumes. A volume without a price counts
    /// nothing.
    pub fn monthly_before(&self) -> u64 {
        self.members.iter().fold(0_u64, |sum, member| {
            sum.saturating_add(self.monthly(&member.volume.spec).unwrap_or(0))
        })
    }

    /// Returns the monthly cost of the file system's volumes after an operation; `None` if a volume
    /// that it makes has no price.
    pub fn monthly_after(&self, operation: &Operation) -> Option<u64> {
        let cost = |id: &str| {
            self.member(id).and_then(|member| self.monthly(&member.volume.spec)).unwrap_or(0)
        };
        let before = self.monthly_before();
        Some(match operation {
            Operation::Modify { volume, to, .. } => {
                before.saturating_sub(cost(volume)).saturating_add(self.monthly(to)?)
            }
            Operation::Add { spec } => before.saturating_add(self.monthly(spec)?),
            Operation::Remove { volume } => before.saturating_sub(cost(volume)),
            Operation::Replace { volume, with } => {
                before.saturating_sub(cost(volume)).saturating_add(self.monthly(with)?)
            }
            Operation::Delete { .. } => before,
        })
    }

    /// Returns the evidence, if it was made after the last change of limits and since two days.
    pub fn evidence(&self) -> Result<&'a Evidence, String> {
        const AGE_MS_MAX: u64 = 2 * 86_400_000;
        let Some(evidence) = &self.now.evidence else {
            return Err("no recording of its volumes has been judged".to_owned());
        };
        if self.state.last_change_ms().is_some_and(|last_ms| evidence.made_ms <= last_ms) {
            return Err("the recordings were judged before the last change of volumes".to_owned());
        }
        let age_ms = self.now.unix_ms.saturating_sub(evidence.made_ms);
        if age_ms > AGE_MS_MAX {
            let age = evenkeel_sim::text::span(age_ms / 1_000);
            return Err(format!("the recordings were judged {age} ago, more than 2 days"));
        }
        Ok(evidence)
    }

    /// Returns the judgement of a volume.
    pub fn judged(&self, volume: &str) -> Result<&'a Judged, String> {
        let evidence = self.evidence()?;
        let judged = evidence.volumes.iter().find(|judged| judged.volume == volume);
        judged.ok_or_else(|| format!("no recording of {volume} has been judged"))
    }

    /// Returns the currency of prices.
    pub fn currency(&self) -> &'a str {
        self.policy.plan.prices.list().currency()
    }

    /// Returns an amount with its currency.
    pub fn money(&self, micro: u64) -> String {
        words::money(micro, self.currency())
    }

    /// Returns the brakes of a change.
    pub fn check(&self, change: &Change) -> Vec<Braked> {
        let mut found = brakes::of(self, change);
        found.extend(budget::of(self, change));
        found
    }

    /// Adds a change to the intents of a decision.
    pub fn intend(&self, change: Change, decision: &mut Decision) {
        let commands = commands::of(self, &change.operation);
        decision.intents.push(Intent {
            id: format!("{}.{}", decision.id, decision.intents.len()),
            axis: change.rule.axis(),
            is_up: change.rule.is_up(),
            is_emergency: change.is_emergency,
            is_scheduled: matches!(change.rule, Rule::Scheduled | Rule::Ended),
            exceeded_s_per_day_max: change.exceeded_s_per_day_max,
            monthly_before_micro: self.monthly_before(),
            monthly_after_micro: self
                .monthly_after(&change.operation)
                .unwrap_or_else(|| self.monthly_before()),
            reason: change.reason,
            commands: commands.forward,
            undo: commands.back,
            operation: change.operation,
        });
    }

    /// Adds the alarms that belong to no rule.
    pub fn alarms(&self, decision: &mut Decision) {
        let file_system = &self.now.file_system;
        for device in file_system.devices.iter().filter(|device| device.errors > 0) {
            decision.alarms.push(format!("{} has {} errors", device.path, device.errors));
        }
        if file_system.conditions.degraded {
            let mount = &file_system.mount;
            decision.alarms.push(format!("{mount} is degraded or read-only"));
        }
        let failures_max = self.policy.brakes.failures_max;
        if self.state.failures >= failures_max {
            decision.alarms.push(format!(
                "{} operations failed in a row: nothing but growth is tried before `evenkeel \
                 autopilot release`",
                self.state.failures
            ));
        }
        if self.policy.mode == Mode::Act && !decision.is_stopped {
            self.late(decision);
        }
    }

    /// Adds the alarms of open operations that wait for long. A move, and what forbids one, may
    /// last for hours.
    fn late(&self, decision: &mut Decision) {
        let file_system = &self.now.file_system;
        let conditions = &file_system.conditions;
        let is_held = conditions.scrub || conditions.balance || conditions.snapshot_pending;
        if file_system.running.is_some() || is_held {
            return;
        }
        for waiting in &self.state.waiting {
            let waited_ms = self.now.unix_ms.saturating_sub(waiting.since_ms);
            if waited_ms >= WAITED_MS {
                let Waiting { operation, reason, .. } = waiting;
                let minutes = waited_ms / 60_000;
                decision.alarms.push(format!(
                    "the operation {operation} has waited for {minutes} minutes: {reason}"
                ));
            }
        }
    }
}

/// Returns whether a device is the target of a running replacement.
fn is_target(now: &Observation, device: &Device) -> bool {
    now.file_system.kind == Kind::Btrfs && device.devid == 0
}

/// Returns whole GiB of bytes, rounded up; `u32::MAX` for more.
pub fn gib_up(bytes: u64) -> u32 {
    narrow(bytes.div_ceil(GIB))
}

/// Returns whole GiB of bytes, rounded down.
pub fn gib_down(bytes: u64) -> u32 {
    narrow(bytes / GIB)
}

/// Returns a number as 32 bits; the largest one for more.
pub fn narrow(number: u64) -> u32 {
    u32::try_from(number.min(u32::MAX.into())).expect("invariant: at most u32::MAX")
}

/// Returns a percentage of a number, rounded down; saturates.
pub fn percent(number: u64, percent: u32) -> u64 {
    let part = u128::from(number) * u128::from(percent) / 100;
    u64::try_from(part.min(u64::MAX.into())).expect("invariant: at most u64::MAX")
}
