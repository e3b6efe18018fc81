//! The steps of a tick.

use super::Controller;
use crate::cloud::lacks_capacity;
use crate::{Cloud, Fault, Host, Journal};
use evenkeel_planner::autopilot::observation::{Observation, RunningKind, VolumeState};
use evenkeel_planner::autopilot::operation::{Open, Operation, room};
use evenkeel_planner::autopilot::policy::Policy;
use evenkeel_planner::autopilot::state::{self, State};
use evenkeel_planner::autopilot::{Decision, Step, Verb, next_step};

/// Refusals of a step in a row after which its operation goes back. One may come of facts that
/// changed after the observation.
const REFUSALS_MAX: u32 = 2;

/// The name of the agent's own rule in the audit.
const RESERVE: &str = "reserve";

/// The name of a change of pace in the audit.
const PACE: &str = "pace";

impl<H: Host, C: Cloud, J: Journal> Controller<H, C, J> {
    /// Executes at most one step of each open operation, and ends those that have none left.
    ///
    /// The file system must have been read in this tick: an older list of its devices could hide
    /// one that was added since. Only one verb changes the file system in a tick, since the
    /// observation does not show the first one to the second.
    pub(super) fn act(
        &mut self,
        policy: &Policy,
        now: &Observation,
        decision: &Decision,
        state: &mut State,
    ) -> Vec<(String, Step, Option<Fault>)> {
        let mut steps = Vec::new();
        if now.ages.file_system_ms != Some(0) {
            return steps;
        }
        let mut has_changed = false;
        for open in state.open.clone() {
            let step = next_step(policy, &open, now);
            if let Step::Wait(reason) = step {
                state::waits(state, &open.id, Some(reason), now.unix_ms);
                continue;
            }
            if has_changed && is_exclusive(&step) {
                continue;
            }
            has_changed |= is_exclusive(&step);
            let fault = self.execute(&now.file_system.uuid, &step);
            state::waits(state, &open.id, fault.as_ref().map(Fault::to_string), now.unix_ms);
            self.note(policy, now, &open, &step, fault.as_ref(), state);
            steps.push((open.id.clone(), step, fault));
        }
        if let Some(bytes_per_s) = decision.pace_bytes_per_s
            && is_own_move(now)
            && !has_changed
        {
            let step = Step::Verb(Verb::Pace { bytes_per_s });
            let fault = self.execute(&now.file_system.uuid, &step);
            steps.push((PACE.to_owned(), step, fault));
        }
        if steps.is_empty()
            && let Some(step) = below_reserve(policy, now)
        {
            let fault = self.execute(&now.file_system.uuid, &step);
            steps.push((RESERVE.to_owned(), step, fault));
        }
        steps
    }

    fn execute(&mut self, uuid: &str, step: &Step) -> Option<Fault> {
        match step {
            Step::Call(call) => self.cloud.execute(uuid, call).err(),
            Step::Verb(verb) => self.host.execute(verb).err(),
            Step::Wait(_) | Step::Done | Step::Failed(_) => None,
        }
    }

    /// Puts the result of a step into the state.
    fn note(
        &mut self,
        policy: &Policy,
        now: &Observation,
        open: &Open,
        step: &Step,
        fault: Option<&Fault>,
        state: &mut State,
    ) {
        if matches!(step, Step::Done | Step::Failed(_)) {
            self.refused.remove(&open.id);
            let failures = state.failures;
            if let Step::Failed(reason) = step
                && !open.cancelled
            {
                state::failed(state, reason);
            }
            state::ended(state, policy, &open.id, *step == Step::Done, now.unix_ms);
            if open.cancelled {
                // Going back is no success: a refusal before it still counts.
                state.failures = failures;
            }
            return;
        }
        if !matches!(fault, Some(Fault::Refused(_))) {
            self.refused.remove(&open.id);
            return;
        }
        let entry = self.refused.entry(open.id.clone()).or_insert_with(|| (step.clone(), 0));
        if entry.0 != *step {
            *entry = (step.clone(), 0);
        }
        entry.1 += 1;
        if entry.1 < REFUSALS_MAX || open.cancelled {
            return;
        }
        self.refused.remove(&open.id);
        state::failed(state, &fault.map(Fault::to_string).unwrap_or_default());
        state.no_capacity_ms = fault.filter(|fault| lacks_capacity(fault)).map(|_| now.unix_ms);
        if let Some(kept) = state.open.iter_mut().find(|kept| kept.id == open.id) {
            kept.cancelled = true;
            state.failures = state.failures.saturating_add(1);
        }
    }
}

/// Returns whether a step changes the file system.
fn is_exclusive(step: &Step) -> bool {
    match step {
        Step::Verb(Verb::Rescan { .. } | Verb::Pace { .. }) => false,
        Step::Verb(_) => true,
        Step::Call(_) | Step::Wait(_) | Step::Done | Step::Failed(_) => false,
    }
}

/// Returns whether the kernel executes a move whose pace the agent sets.
fn is_own_move(now: &Observation) -> bool {
    let running = now.file_system.running.as_ref();
    running.is_some_and(|running| match running.kind {
        RunningKind::Remove | RunningKind::Compact => true,
        RunningKind::Add | RunningKind::Foreign => false,
    })
}

/// Returns the growth into devices that are attached, if the file system is below its reserve and
/// the API is away. This is the agent's own rule, without a decision.
fn below_reserve(policy: &Policy, now: &Observation) -> Option<Step> {
    let stale_ms = u64::from(policy.brakes.stale_s) * 1_000;
    let is_away = now.ages.volumes_ms.is_none_or(|age_ms| age_ms > stale_ms);
    let file_system = &now.file_system;
    let reserve = room::reserve_bytes(policy, file_system, file_system.size_bytes);
    let is_low = file_system.free_bytes < reserve;
    if !is_away || !is_low || file_system.running.is_some() || file_system.conditions.degraded {
        return None;
    }
    let mut devices = file_system.devices.iter();
    let device = devices.find(|device| room::is_short(device.size_bytes, device.device_bytes))?;
    let volume = device.volume.clone()?;
    Some(Step::Verb(Verb::Grow { volume }))
}

/// Opens an operation for each volume that no open operation made, so that it is marked and
/// detached: an answer that was lost until its operation had ended.
///
/// It is a removal that is cancelled: if the file system has the volume after all, nothing happens
/// to it.
pub(super) fn adopt(state: &mut State, now: &Observation) {
    if now.ages.volumes_ms != Some(0) || now.ages.file_system_ms != Some(0) {
        return;
    }
    for volume in &now.volumes {
        let Some(made_by) = &volume.made_by else { continue };
        let is_device =
            now.file_system.devices.iter().any(|device| device.volume.as_ref() == Some(&volume.id));
        let id = format!("{made_by}-left-{}", volume.id);
        let is_open = state
            .open
            .iter()
            .any(|open| open.id == *made_by || open.id == id || names(&open.operation, &volume.id));
        let has_left = volume.retired_ms.is_some()
            && matches!(volume.state, VolumeState::Available | VolumeState::Elsewhere);
        if is_device || is_open || has_left || volume.has_superblock == Some(true) {
            continue;
        }
        state.open.push(Open {
            id,
            operation: Operation::Remove { volume: volume.id.clone() },
            since_ms: now.unix_ms,
            cancelled: true,
            is_emergency: false,
            is_scheduled: false,
            exceeded_s_per_day_max: None,
        });
    }
}

/// Returns whether an operation is about a volume that exists.
fn names(operation: &Operation, id: &str) -> bool {
    match operation {
        Operation::Add { .. } => false,
        Operation::Modify { volume, .. }
        | Operation::Remove { volume }
        | Operation::Replace { volume, .. }
        | Operation::Delete { volume } => volume == id,
    }
}
