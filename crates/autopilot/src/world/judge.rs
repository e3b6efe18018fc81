//! The rules that hold after every event, checked by code that shares nothing with the policy.
//!
//! | rule | |
//! | --- | --- |
//! | 1 | the file system has its reserve, or a growth is open, or an alarm is out |
//! | 2 | no device leaves while the file system lists it |
//! | 3 | nothing is deleted without its tag, its grace time and a probe |
//! | 4 | a file system has at most one exclusive operation |
//! | 5 | no modification beyond the budget, and one is kept for an undo |
//! | 6 | the cost stays below the cap, except what was spent before |
//! | 7 | no limit falls without a replay that shows that less suffices |
//! | 8 | no two opposite changes within the days of the policy |
//! | 9 | the pace of a move is at most half of the free MiB/s |
//! | 10 | steps of the size stay within their limits |
//! | 11 | each change has an undo, which has been executed here |
//! | 12 | a hold or a pause means no call |
//! | 13 | bytes of files are never lost, and the sums of the model are exact |

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::autopilot::decide::{Decision, Intent};
use evenkeel_planner::autopilot::observation::Observation;
use evenkeel_planner::autopilot::operation::{Call, Operation, Verb};
use evenkeel_planner::autopilot::policy::{Mode, Policy};
use evenkeel_planner::autopilot::state::{Axis, State};

use super::faults::{Faults, Kind as Hazard};
use super::load::{DAY_MS, HOUR_MS};
use super::state::{Glance, START_MS, World, price};
use super::undo::Undone;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// Violations that are kept.
const KEPT_MAX: usize = 20;
/// The difference of clocks that faults can make, in milliseconds.
const CLOCK_MS: u64 = 25 * HOUR_MS;

/// A rule that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Milliseconds since the start of the world.
    pub at_ms: u64,
    /// The number of the rule.
    pub rule: u8,
    /// The thing and its figures.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = self.at_ms / DAY_MS;
        let minute = self.at_ms % DAY_MS / 60_000;
        let hour = minute / 60;
        let minute = minute % 60;
        write!(f, "rule {}: day {day}, {hour:02}:{minute:02}: {}", self.rule, self.text)
    }
}

/// The checks, with what they remember.
#[derive(Clone, Debug)]
pub(super) struct Judge {
    pub(super) violations: Vec<Violation>,
    pub(super) count: u64,
    /// Intents by their operation, while they may be open.
    intents: BTreeMap<String, Intent>,
    /// The size of the file system at the last tick at which no move was open, in bytes. A volume
    /// that is added for a move which goes back is no change.
    size_bytes: u64,
    /// The last growth, and whether it was an emergency.
    grown: Option<(u64, bool)>,
    /// The last shrink.
    shrunk: Option<u64>,
    /// Rules that were checked.
    pub(super) checks: u64,
}

impl Judge {
    pub(super) fn new(world: &World) -> Self {
        Self {
            violations: Vec::new(),
            count: 0,
            intents: BTreeMap::new(),
            size_bytes: world.space.size_bytes(),
            grown: None,
            shrunk: None,
            checks: 0,
        }
    }

    fn check(&mut self, world: &World, rule: u8, holds: bool, text: impl FnOnce() -> String) {
        self.checks += 1;
        if holds {
            return;
        }
        self.count += 1;
        if self.violations.len() < KEPT_MAX {
            self.violations.push(Violation { at_ms: world.now_ms, rule, text: text() });
        }
    }

    /// Checks a call before it is made.
    pub(super) fn call(
        &mut self,
        call: &Call,
        world: &World,
        policy: &Policy,
        state: &State,
        faults: &Faults,
    ) {
        let now = world.now_ms;
        let may_act = policy.mode == Mode::Act && !policy.is_paused;
        let has_clock = faults.clock_offset_ms(now) == 0;
        let hold = state.hold.as_ref().filter(|hold| hold.until_ms > world.unix_ms());
        let is_held = has_clock && hold.is_some_and(|hold| !hold.allows_growth);
        self.check(world, 12, may_act && !is_held, || format!("{call:?} in a pause or a hold"));
        match call {
            Call::Detach { volume } => {
                let is_device = world.is_device(volume);
                self.check(world, 2, !is_device, || {
                    format!("{volume} is detached while the file system lists it")
                });
            }
            Call::Delete { volume } => self.delete(volume, world, policy),
            Call::Modify { volume, to } => self.modify(volume, to, world, policy, state),
            Call::Create { operation, spec } => {
                let is_known = state.open.iter().any(|open| open.id == *operation);
                self.check(world, 11, is_known, || {
                    format!("{operation}, which creates a volume, is not in the journal")
                });
                self.cost(None, spec, world, policy);
            }
            Call::Attach { .. } | Call::Retire { .. } => {}
        }
    }

    fn delete(&mut self, volume: &str, world: &World, policy: &Policy) {
        let is_device = world.is_device(volume);
        self.check(world, 3, !is_device, || format!("{volume} is deleted with its file system"));
        let seen = world.ec2.volumes(super::state::UUID, world.unix_ms());
        let seen = seen.into_iter().find(|seen| seen.id == volume);
        let Some(seen) = seen else {
            let is_gone = world.ec2.volume(volume).is_none();
            self.check(world, 3, is_gone, || format!("{volume} is deleted without its tag"));
            return;
        };
        let grace_ms = u64::from(policy.budget.grace_hours) * HOUR_MS;
        let until = seen.retired_ms.map(|retired| retired + grace_ms);
        let is_over = until.is_some_and(|until| until <= world.unix_ms() + 120_000);
        self.check(world, 3, is_over, || {
            format!("{volume} is deleted before the end of its grace time")
        });
    }

    fn modify(
        &mut self,
        volume: &str,
        to: &VolumeSpec,
        world: &World,
        policy: &Policy,
        state: &State,
    ) {
        let now = world.now_ms;
        let day_ago = now.saturating_sub(DAY_MS);
        let Some(from) = world.ec2.volume(volume).map(|volume| volume.spec) else { return };
        if from == *to {
            return;
        }
        // The journal has the operation before its first call; the decision is checked after it.
        let open = state.open.iter().find(|open| concerns(&open.operation, volume));
        let is_emergency = open.is_some_and(|open| open.is_emergency);
        let is_undo = open.is_some_and(|open| undoes(state, &open.operation));
        let budget = &policy.budget;
        let kept = match (is_undo, is_emergency) {
            (true, _) => 0,
            (false, true) => budget.kept_for_undo,
            (false, false) => budget.kept_for_undo + budget.kept_for_emergency,
        };
        let most = budget.modifications_per_day - kept;
        // Those that the API has accepted, and not those that the agent believes in.
        let starts = world.ec2.volume(volume).map(|volume| volume.modification_starts.clone());
        let starts = starts.unwrap_or_default();
        let used = starts.iter().filter(|start| start.0 > START_MS + day_ago).count();
        let used = u32::try_from(used).expect("invariant: few modifications");
        self.check(world, 5, used < most, || {
            format!("{volume} is modified after {used} times in 24 h, of at most {most}")
        });
        self.cost(Some(&from), to, world, policy);
    }

    fn cost(&mut self, from: Option<&VolumeSpec>, to: &VolumeSpec, world: &World, policy: &Policy) {
        let Some(cap) = policy.budget.monthly_micro_max else { return };
        let before: u64 =
            world.space.volumes().iter().filter_map(|id| world.spec(id)).map(|s| price(&s)).sum();
        let less = from.map_or(0, price);
        let after = before - less.min(before) + price(to);
        self.check(world, 6, after <= cap || after <= before, || {
            format!("{after} micro a month, of at most {cap}")
        });
    }

    /// Checks a verb that has been executed.
    pub(super) fn verb(
        &mut self,
        verb: &Verb,
        before: &Glance,
        world: &World,
        policy: &Policy,
        state: &State,
        faults: &Faults,
    ) {
        let used = world.space.used();
        self.check(world, 13, used == before.used, || {
            format!("{verb:?} changes the bytes of files from {} to {used}", before.used)
        });
        world.space.invariants();
        let may_act = policy.mode == Mode::Act && !policy.is_paused;
        self.check(world, 12, may_act, || format!("{verb:?} in a pause"));
        let is_exclusive = match verb {
            Verb::Rescan { .. } | Verb::Pace { .. } | Verb::Cancel => false,
            Verb::Grow { .. } | Verb::Add { .. } | Verb::Compact { .. } | Verb::Remove { .. } => {
                true
            }
        };
        self.check(world, 4, !(is_exclusive && before.runs), || {
            format!("{verb:?} while another exclusive operation runs")
        });
        let open = state.open.iter().any(|open| match verb {
            // Going back removes the device that the operation has added.
            Verb::Remove { volume, .. } => {
                concerns(&open.operation, volume) || world.ec2.was_made_by(volume, &open.id)
            }
            _ => true,
        });
        self.check(world, 11, open || !is_exclusive, || {
            format!("{verb:?} belongs to no operation of the journal")
        });
        let now = world.now_ms;
        let is_blind = faults.has(Hazard::MetricsFrozen, now)
            || faults.has(Hazard::MetricsLate, now)
            || faults.has(Hazard::ApiAway, now)
            || faults.has(Hazard::Throttled, now);
        let pace = match verb {
            Verb::Pace { bytes_per_s }
            | Verb::Remove { bytes_per_s, .. }
            | Verb::Compact { bytes_per_s, .. } => *bytes_per_s,
            _ => return,
        };
        let most = (world.free_bytes_per_s_min() / 2).max(policy.brakes.pace_bytes_per_s_min);
        self.check(world, 9, is_blind || pace <= most + MIB, || {
            format!("a pace of {pace} bytes a second, of at most {most}")
        });
    }

    /// Checks a decision, after its steps.
    pub(super) fn decided(
        &mut self,
        decision: &Decision,
        seen: &Observation,
        world: &World,
        policy: &Policy,
        state: &State,
    ) {
        self.watch_size(world, state);
        self.reserve(decision, world, policy, state);
        for intent in &decision.intents {
            self.intent(intent, seen, world, policy);
            self.intents.insert(intent.id.clone(), intent.clone());
        }
        let open: Vec<&String> = state.open.iter().map(|open| &open.id).collect();
        self.intents.retain(|id, _| open.contains(&id));
    }

    fn watch_size(&mut self, world: &World, state: &State) {
        let moves = state.open.iter().any(|open| {
            matches!(open.operation, Operation::Remove { .. } | Operation::Replace { .. })
        });
        if moves {
            return;
        }
        let size = world.space.size_bytes();
        if size > self.size_bytes {
            let is_emergency =
                self.intents.values().any(|intent| intent.is_up && intent.is_emergency);
            self.grown = Some((world.now_ms, is_emergency));
        }
        if size < self.size_bytes {
            self.shrunk = Some(world.now_ms);
        }
        self.size_bytes = size;
    }

    /// Checks the way back of an operation, which was executed.
    pub(super) fn undone(
        &mut self,
        id: &str,
        result: Result<Undone, String>,
        world: &World,
    ) -> Option<Undone> {
        let error = result.as_ref().err().cloned();
        self.check(world, 11, error.is_none(), || {
            format!("the undo of {id}: {}", error.unwrap_or_default())
        });
        result.ok()
    }

    fn reserve(&mut self, decision: &Decision, world: &World, policy: &Policy, state: &State) {
        if policy.mode != Mode::Act {
            return;
        }
        let size = world.space.size_bytes();
        let percent = size / 100 * u64::from(policy.space.reserve_percent);
        let reserve = percent.max(policy.space.reserve_bytes_min);
        let room = world.space.room();
        let grows = decision.intents.iter().any(|intent| intent.is_up)
            || state.open.iter().any(|open| is_growth(&open.operation));
        let holds = room >= reserve || grows || !decision.alarms.is_empty();
        self.check(world, 1, holds, || {
            format!("{room} bytes are free, the reserve is {reserve}, and no alarm is out")
        });
    }

    fn intent(&mut self, intent: &Intent, seen: &Observation, world: &World, policy: &Policy) {
        let now = world.now_ms;
        let has_undo = !intent.undo.is_empty() && !intent.commands.is_empty();
        let is_deletion = matches!(intent.operation, Operation::Delete { .. });
        self.check(world, 11, has_undo || is_deletion, || {
            format!("{} has no commands or no undo", intent.id)
        });
        if intent.axis == Axis::Space && !is_deletion {
            self.step(intent, seen.file_system.size_bytes, world, policy);
        }
        let opposite = u64::from(policy.budget.opposite_days) * DAY_MS;
        let after_emergency = u64::from(policy.budget.after_emergency_days) * DAY_MS;
        if intent.axis == Axis::Space && !intent.is_up && !is_deletion {
            let wait = self.grown.map(|(grown, is_emergency)| {
                let days = if is_emergency { after_emergency.max(opposite) } else { opposite };
                grown + days.saturating_sub(CLOCK_MS)
            });
            self.check(world, 8, wait.is_none_or(|until| now >= until), || {
                format!("{} shrinks too early after a growth", intent.id)
            });
        }
        if intent.axis == Axis::Space && intent.is_up && !intent.is_emergency {
            let wait = self.shrunk.map(|shrunk| shrunk + opposite.saturating_sub(CLOCK_MS));
            self.check(world, 8, wait.is_none_or(|until| now >= until), || {
                format!("{} grows without an emergency after a shrink", intent.id)
            });
        }
        if let (Axis::Rate, false, Operation::Modify { volume, to, .. }) =
            (intent.axis, intent.is_up, &intent.operation)
        {
            let judged = seen.evidence.as_ref();
            let judged = judged.and_then(|e| e.volumes.iter().find(|v| v.volume == *volume));
            let has_replay = judged.is_some_and(|judged| judged.down.is_some())
                || intent.reason.contains("schedule");
            self.check(world, 7, has_replay, || {
                format!("{} lowers {volume} to {to:?} without a replay", intent.id)
            });
        }
    }

    /// Checks the step from a size of the file system.
    fn step(&mut self, intent: &Intent, size: u64, world: &World, policy: &Policy) {
        let space = &policy.space;
        match &intent.operation {
            Operation::Modify { from, to, .. } => {
                let more = u64::from(to.size_gib.saturating_sub(from.size_gib)) * GIB;
                self.check(world, 10, to.size_gib >= from.size_gib, || {
                    format!("{} makes a volume smaller in place", intent.id)
                });
                self.most(intent, size + more, world, policy);
            }
            Operation::Add { spec } => {
                self.most(intent, size + u64::from(spec.size_gib) * GIB, world, policy);
            }
            Operation::Remove { volume } => {
                let less = world.spec(volume).map_or(0, |spec| u64::from(spec.size_gib) * GIB);
                self.least(intent, less, size, space.shrink_step_percent_max, world);
            }
            Operation::Replace { volume, with } => {
                let old = world.spec(volume).map_or(0, |spec| spec.size_gib);
                let less = u64::from(old.saturating_sub(with.size_gib)) * GIB;
                self.least(intent, less, size, space.shrink_step_percent_max, world);
            }
            Operation::Delete { .. } => {}
        }
    }

    fn most(&mut self, intent: &Intent, after: u64, world: &World, policy: &Policy) {
        let most = u64::from(policy.space.gib_max) * GIB;
        self.check(world, 10, after <= most, || {
            format!("{} grows to {after} bytes, of at most {most}", intent.id)
        });
    }

    fn least(&mut self, intent: &Intent, less: u64, size: u64, percent: u32, world: &World) {
        let most = size / 100 * u64::from(percent) + GIB;
        self.check(world, 10, less <= most, || {
            format!("{} shrinks by {less} bytes, of at most {most}", intent.id)
        });
    }
}

fn concerns(operation: &Operation, id: &str) -> bool {
    match operation {
        Operation::Modify { volume, .. }
        | Operation::Remove { volume }
        | Operation::Replace { volume, .. }
        | Operation::Delete { volume } => volume == id,
        Operation::Add { .. } => false,
    }
}

/// Returns whether an operation is the way back of the limits that are watched.
fn undoes(state: &State, operation: &Operation) -> bool {
    let watched = state.watch.as_ref().map(|watch| &watch.undo);
    matches!((watched, operation), (
        Some(Operation::Modify { volume: watched, .. }),
        Operation::Modify { volume, .. },
    ) if watched == volume)
}

fn is_growth(operation: &Operation) -> bool {
    match operation {
        Operation::Modify { from, to, .. } => to.size_gib >= from.size_gib,
        Operation::Add { .. } => true,
        Operation::Remove { .. } | Operation::Replace { .. } | Operation::Delete { .. } => false,
    }
}
