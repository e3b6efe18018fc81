//! What the policy remembers of a file system between decisions.

use evenkeel_core::volume::VolumeSpec;
use serde::{Deserialize, Serialize};

use super::decide::Intent;
use super::operation::{Open, Operation};
use super::policy::Policy;
use super::spec_form;

/// The changes that are remembered, in days, if the policy asks for fewer.
const PAST_DAYS_MIN: u64 = 28;
/// Maximum number of changes that are remembered.
const PAST_MAX: usize = 1_024;
/// Maximum number of characters of the reason why an operation waits or failed.
const REASON_CHARS_MAX: usize = 1_000;
const DAY_MS: u64 = 86_400_000;

/// The memory of decisions about one file system.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct State {
    /// Number of decisions, which makes their ids unique.
    pub decisions: u64,
    /// Operations that have not ended.
    pub open: Vec<Open>,
    /// The waits of open operations: one each at most.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<Waiting>,
    /// Changes that ended in the last 28 days, or as many as the policy compares.
    pub past: Vec<Past>,
    /// Lower limits that the evidence has proposed, and since when: one a volume at most.
    pub candidates: Vec<Candidate>,
    /// The watch of the last change to less.
    pub watch: Option<Watch>,
    /// Limits that a schedule has raised, and the change that lowers them after its time.
    pub scheduled: Vec<Scheduled>,
    /// No change before this time, in milliseconds since 1970; the reason.
    pub hold: Option<Hold>,
    /// Failures in a row.
    pub failures: u32,
    /// Why the last of them failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Windows of flushes above the target in a row since the move began.
    pub slow_windows: u32,
    /// Milliseconds of this month in which flushes were above the target during moves.
    pub slow_month_ms: u64,
    /// The month of `slow_month_ms`, in months since 1970-01.
    pub slow_month: u32,
    /// The end of the last window that was counted, in milliseconds since 1970; 0 without a move.
    pub window_end_ms: u64,
    /// The maximum pace of the running move in bytes a second, after windows above the target.
    pub pace_bytes_per_s: Option<u64>,
    /// The reading of used bytes with which the next one is compared.
    pub reading: Option<Reading>,
    /// Since when no two readings could be compared, in milliseconds since 1970; `None` if the last
    /// two could.
    pub unsure_since_ms: Option<u64>,
    /// When the last operation that was refused was so for want of capacity, in milliseconds since
    /// 1970; `None` if it was refused for another reason.
    pub no_capacity_ms: Option<u64>,
}

impl State {
    /// Returns when the last change ended that moved requests or changed a limit, in milliseconds
    /// since 1970: recordings that were judged before do not count. A volume that has left gives
    /// its requests to the others.
    #[must_use]
    pub fn last_change_ms(&self) -> Option<u64> {
        let changes = self.past.iter().filter(|past| past.is_done);
        let changes = changes.filter(|past| past.axis == Axis::Rate || !past.is_up);
        changes.map(|past| past.ended_ms).max()
    }
}

/// The wait of an open operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Waiting {
    /// The id of the operation.
    pub operation: String,
    /// The reason, or the fault of its last step.
    pub reason: String,
    /// Since when it is the same but for its figures, in milliseconds since 1970.
    pub since_ms: u64,
}

/// Used bytes at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reading {
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The bytes.
    pub used_bytes: u64,
}

/// A change that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Past {
    /// When it was decided, in milliseconds since 1970.
    pub decided_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// The property that it changed.
    pub axis: Axis,
    /// Whether it made more of that.
    pub is_up: bool,
    /// Whether it was an emergency.
    pub is_emergency: bool,
    /// Whether it reached its goal.
    pub is_done: bool,
}

/// The property of a file system that a change changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Bytes.
    Space,
    /// IOPS, MiB/s or the type.
    Rate,
}

/// A lower limit that waits for its second confirmation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Candidate {
    /// The volume.
    pub volume: String,
    /// The type, and the highest limits that were proposed since.
    #[serde(with = "spec_form")]
    pub spec: VolumeSpec,
    /// The time of the evidence that proposed it first, in milliseconds since 1970.
    pub since_ms: u64,
    /// The time of the evidence that proposed it last.
    pub until_ms: u64,
}

/// The watch of a change to less, which is undone if requests wait longer than the replay said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Watch {
    /// The change that undoes it.
    pub undo: Operation,
    /// The end of the watch, in milliseconds since 1970.
    pub until_ms: u64,
    /// Seconds a day in which requests wait, at most, by the replay.
    pub exceeded_s_per_day_max: u32,
    /// Seconds in which requests have waited since the change, in the windows that are counted.
    pub exceeded_s: u32,
    /// The end of the last window that was counted, in milliseconds since 1970.
    pub counted_ms: u64,
    /// Windows in a row in which flushes were above the target.
    pub slow_windows: u32,
}

/// A limit that a schedule has raised.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scheduled {
    /// The volume.
    pub volume: String,
    /// Its type and limits before.
    #[serde(with = "spec_form")]
    pub before: VolumeSpec,
}

/// No change before a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Hold {
    /// In milliseconds since 1970.
    pub until_ms: u64,
    /// The reason.
    pub reason: String,
    /// Whether the file system may still grow. A hold that a person sets forbids all calls; one
    /// that the autopilot sets forbids all but growth.
    #[serde(default)]
    pub allows_growth: bool,
}

/// Opens the operation of an intent. A controller in mode `act` calls this for each intent of a
/// decision, with the state that [`decide`](super::decide()) returned, and stores the state before
/// it executes a step.
pub fn begun(state: &mut State, intent: &Intent, now_ms: u64) {
    let id = intent.id.clone();
    if state.open.iter().any(|open| open.id == id) {
        return;
    }
    state.open.push(Open {
        id,
        operation: intent.operation.clone(),
        since_ms: now_ms,
        cancelled: false,
        is_emergency: intent.is_emergency,
        is_scheduled: intent.is_scheduled,
        exceeded_s_per_day_max: intent.exceeded_s_per_day_max,
    });
}

/// Remembers what an open operation waits for; `None` if its last step was executed.
pub fn waits(state: &mut State, operation: &str, reason: Option<String>, now_ms: u64) {
    let before = state.waiting.iter().position(|waiting| waiting.operation == operation);
    let before = before.map(|place| state.waiting.remove(place));
    let Some(reason) = reason else { return };
    let reason = bounded(&reason);
    let since_ms = match before {
        Some(before) if without_figures(&before.reason) == without_figures(&reason) => {
            before.since_ms
        }
        _ => now_ms,
    };
    state.waiting.push(Waiting { operation: operation.to_owned(), reason, since_ms });
}

/// Remembers why the last operation failed.
pub fn failed(state: &mut State, reason: &str) {
    state.failure = Some(bounded(reason));
}

fn bounded(text: &str) -> String {
    text.chars().take(REASON_CHARS_MAX).collect()
}

fn without_figures(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// Removes an operation that has ended from the open ones, and remembers what it changed.
///
/// A controller calls this if [`next_step`](super::next_step) returns `Done` (`is_done`) or
/// `Failed`. A failure counts, unless the operation was cancelled: then nothing was reached, and
/// the row of failures stays as it is. A success ends the row. A change to lower limits is watched
/// from now on.
pub fn ended(state: &mut State, policy: &Policy, id: &str, is_done: bool, now_ms: u64) {
    let Some(index) = state.open.iter().position(|open| open.id == id) else { return };
    let open = state.open.remove(index);
    waits(state, id, None, now_ms);
    if !open.cancelled {
        state.failures = if is_done { 0 } else { state.failures.saturating_add(1) };
        if is_done {
            state.failure = None;
        }
    }
    // A cancelled operation that is undone has changed nothing.
    let is_done = is_done && !open.cancelled;
    for (axis, is_up) in changes(&open.operation) {
        state.past.push(Past {
            decided_ms: open.since_ms,
            ended_ms: now_ms,
            axis,
            is_up,
            is_emergency: open.is_emergency,
            is_done,
        });
    }
    if state.past.len() > PAST_MAX {
        state.past.drain(..state.past.len() - PAST_MAX);
    }
    if is_done {
        follow(state, policy, &open, now_ms);
    }
}

/// Begins or ends the watch, the candidates and the schedule of a volume that has changed.
fn follow(state: &mut State, policy: &Policy, open: &Open, now_ms: u64) {
    let Operation::Modify { volume, from, to } = &open.operation else { return };
    if same_rates(from, to) {
        return;
    }
    state.candidates.retain(|candidate| candidate.volume != *volume);
    let is_restored = state.scheduled.iter().any(|scheduled| scheduled.volume == *volume);
    if open.is_scheduled {
        if is_restored {
            state.scheduled.retain(|scheduled| scheduled.volume != *volume);
        } else {
            state.scheduled.push(Scheduled { volume: volume.clone(), before: *from });
        }
        return;
    }
    let is_of_volume = |watch: &Watch| match &watch.undo {
        Operation::Modify { volume: watched, .. } => watched == volume,
        _ => false,
    };
    if state.watch.as_ref().is_some_and(is_of_volume) {
        state.watch = None;
    }
    if let Some(exceeded_s_per_day_max) = open.exceeded_s_per_day_max {
        let back = VolumeSpec { size_gib: to.size_gib, ..*from };
        state.watch = Some(Watch {
            undo: Operation::Modify { volume: volume.clone(), from: *to, to: back },
            until_ms: now_ms.saturating_add(u64::from(policy.rate.watch_s) * 1_000),
            exceeded_s_per_day_max,
            exceeded_s: 0,
            counted_ms: now_ms,
            slow_windows: 0,
        });
    }
}

/// Returns what an operation changes, and whether to more. A replacement or a removal is a change
/// to less space; a deletion changes nothing.
fn changes(operation: &Operation) -> Vec<(Axis, bool)> {
    match operation {
        Operation::Modify { from, to, .. } => {
            let space = (to.size_gib > from.size_gib || from == to).then_some((Axis::Space, true));
            let rate = (!same_rates(from, to)).then(|| (Axis::Rate, is_more(from, to)));
            space.into_iter().chain(rate).collect()
        }
        Operation::Add { .. } => vec![(Axis::Space, true)],
        Operation::Remove { .. } | Operation::Replace { .. } => vec![(Axis::Space, false)],
        Operation::Delete { .. } => Vec::new(),
    }
}

/// Returns whether two volumes have one type and the same limits. A baseline that follows the size
/// is no limit of its own.
pub(super) fn same_rates(from: &VolumeSpec, to: &VolumeSpec) -> bool {
    let rates = |spec: &VolumeSpec| (spec.volume_type, spec.request().iops, spec.throughput_mibps);
    rates(from) == rates(to)
}

/// Returns whether a change has more of a limit, and less of none that both name.
fn is_more(from: &VolumeSpec, to: &VolumeSpec) -> bool {
    let less = |before: Option<u32>, after: Option<u32>| {
        before.zip(after).is_some_and(|(before, after)| after < before)
    };
    !less(from.iops, to.iops) && !less(from.throughput_mibps, to.throughput_mibps)
}

/// Forgets changes that no rule of the policy compares any more.
pub(super) fn forget(state: &mut State, policy: &Policy, now_ms: u64) {
    let budget = &policy.budget;
    let days = [budget.opposite_days, budget.after_emergency_days, policy.space.quiet_days];
    let days = days.into_iter().max().unwrap_or(0);
    let wanted_ms = u64::from(days).saturating_mul(policy.day_ms());
    let oldest = now_ms.saturating_sub(wanted_ms.max(PAST_DAYS_MIN * DAY_MS));
    state.past.retain(|past| past.ended_ms >= oldest);
}
