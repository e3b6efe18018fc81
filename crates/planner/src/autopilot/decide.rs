//! The decision about one file system at one moment.
//!
//! Each rule proposes a change, or gives the reason why there is none: [`space`] grows and shrinks,
//! [`rate`] changes IOPS, MiB/s and the type, [`retired`] deletes. Then [`brakes`] and [`budget`]
//! look at each change. The first one without a brake becomes an intent, since only one operation
//! of a file system runs; all others get a named reason with figures.

mod brakes;
mod budget;
mod commands;
mod facts;
mod forecast;
mod instance;
mod moves;
mod rate;
mod retired;
mod space;
#[cfg(test)]
mod tests;
pub mod words;

use serde::{Deserialize, Serialize};

use super::observation::Observation;
use super::operation::Operation;
use super::policy::{Mode, Policy};
use super::state::{self, Axis, State};
use facts::{Change, Facts};

pub use forecast::wanted_free_bytes;
pub use moves::pace_bytes_per_s;
pub use words::spec as spec_words;

/// A decision: intents, and the reasons for and against changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Decision {
    /// Its id: the first characters of the file system's UUID and its number.
    pub id: String,
    /// When it was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The forecast of space.
    pub forecast: Forecast,
    /// Changes that the rules ask for. In mode `act` they become operations.
    pub intents: Vec<Intent>,
    /// Reasons that prevent changes, each with what it prevents.
    pub brakes: Vec<Braked>,
    /// Operations that are cancelled, with the reason.
    pub cancels: Vec<(String, String)>,
    /// The new pace of the running move, in bytes a second.
    pub pace_bytes_per_s: Option<u64>,
    /// Alarms for a person, as sentences.
    pub alarms: Vec<String>,
    /// Whether no step of any operation may be executed, open ones included: the autopilot is
    /// paused, or a person holds the file system.
    pub is_stopped: bool,
}

/// A change that the rules ask for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Intent {
    /// The id of its operation.
    pub id: String,
    /// The operation.
    pub operation: Operation,
    /// The property that it changes.
    pub axis: Axis,
    /// Whether it makes more of that.
    pub is_up: bool,
    /// Whether the room is below the need, or the change takes back one to less: it may use the
    /// modification that is kept for emergencies, and changes back wait longer.
    pub is_emergency: bool,
    /// Whether a schedule of the policy asks for it.
    pub is_scheduled: bool,
    /// Seconds a day in which requests wait afterwards, at most, by the replay; `None` unless it
    /// lowers limits.
    pub exceeded_s_per_day_max: Option<u32>,
    /// The rule and its figures, as a sentence.
    pub reason: String,
    /// The commands that do it by hand.
    pub commands: Vec<String>,
    /// The commands that undo it.
    pub undo: Vec<String>,
    /// The monthly cost of the file system's volumes before, in millionths of the currency.
    pub monthly_before_micro: u64,
    /// The monthly cost afterwards.
    pub monthly_after_micro: u64,
}

/// The time until the file system is full, as an interval.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Forecast {
    /// Bytes that must be free now.
    pub wanted_free_bytes: u64,
    /// Seconds until it is full at the volumes' MiB/s: it cannot be sooner.
    pub full_in_s_min: Option<u64>,
    /// Seconds until it is full at the largest growth that was seen, times 1.5; `None` if it never
    /// grew.
    pub full_in_s_likely: Option<u64>,
}

/// A brake, and what it prevents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Braked {
    /// The brake.
    pub brake: Brake,
    /// The property whose change it prevents.
    pub axis: Axis,
    /// Whether it prevents more or less of that.
    pub is_up: bool,
    /// Its figures, as a sentence.
    pub reason: String,
}

/// A named reason that prevents a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Brake {
    /// The whole autopilot is paused.
    Paused,
    /// Changes wait until a date.
    Hold,
    /// The mode is `observe` or `advise`.
    Mode,
    /// Shrinking waits for a window of the policy.
    Window,
    /// The budget of modifications is used.
    Modifications,
    /// The service accepts no modification yet.
    Cooldown,
    /// The monthly cap is reached.
    Money,
    /// An operation runs on the file system.
    Busy,
    /// The host or the fleet has its number of operations.
    BlastRadius,
    /// Flushes are too slow during the move.
    Latency,
    /// The month's error budget is half used.
    ErrorBudget,
    /// The file system, a scrub, a balance or a snapshot forbids it.
    Condition,
    /// A source is too old, or the clocks differ.
    Stale,
    /// Three operations failed in a row.
    Failures,
    /// The opposite change was too recent.
    Opposite,
    /// The evidence is absent, too short, or does not show that less suffices.
    Evidence,
    /// The proposal waits for its second confirmation.
    Confirmation,
    /// It saves less than it costs, or than the least saving.
    Saving,
    /// The instance cannot carry more.
    Instance,
    /// The file system cannot do it.
    FileSystem,
    /// No attachment is free on the host.
    Slots,
    /// There is no room for the data that would move.
    Room,
    /// The policy's largest or least size is reached.
    Limit,
}

/// Returns the decision, and the state after it.
///
/// The state that is returned has all that later decisions need, except the operations: a
/// controller in mode `act` adds them by [`begun`](state::begun) and removes them by
/// [`ended`](state::ended). Operations in [`Decision::cancels`] are marked as cancelled in it.
#[must_use]
pub fn decide(policy: &Policy, now: &Observation, state: &State) -> (Decision, State) {
    let mut after = state.clone();
    state::forget(&mut after, policy, now.unix_ms);
    let number = state.decisions.saturating_add(1);
    after.decisions = number;
    let short: String = now.file_system.uuid.chars().take(8).collect();
    let mut decision = Decision {
        id: format!("{short}-{number}"),
        unix_ms: now.unix_ms,
        forecast: Forecast::default(),
        intents: Vec::new(),
        brakes: Vec::new(),
        cancels: Vec::new(),
        pace_bytes_per_s: None,
        alarms: Vec::new(),
        is_stopped: false,
    };
    moves::count(policy, now, &mut after);
    rate::count(policy, now, &mut after);
    let growth_per_s = forecast::read(now, &mut after);
    rate::propose(policy, now, &mut after);
    let remembered = after.clone();
    let facts = Facts::new(policy, now, &remembered, growth_per_s);
    decision.forecast = forecast::of(&facts);
    decision.is_stopped = brakes::is_stopped(&facts);
    facts.alarms(&mut decision);
    let growth = space::grow(&facts, &mut decision);
    moves::steer(&facts, growth.is_wanted, &mut after, &mut decision);
    let mut changes: Vec<Change> = growth.change.into_iter().collect();
    changes.extend(rate::undo(&facts));
    changes.extend(rate::raise(&facts, &mut decision));
    changes.extend(rate::schedules(&facts, &mut decision));
    // Lower limits leave no room for the requests of a volume that could leave.
    changes.extend(space::shrink(&facts, growth.is_wanted, &mut decision));
    changes.extend(rate::lower(&facts, &mut decision));
    choose(&facts, changes, &mut decision);
    retired::delete(&facts, &mut decision);
    brake_by_mode(policy, &mut decision);
    (decision, after)
}

/// Makes an intent of the first change that no brake prevents, with the changes that fit into its
/// call. All others get their brakes.
fn choose(facts: &Facts<'_>, changes: Vec<Change>, decision: &mut Decision) {
    let mut chosen: Option<Change> = None;
    let mut rest = Vec::new();
    for change in changes {
        let found = facts.check(&change);
        if !found.is_empty() {
            decision.brakes.extend(found);
        } else if chosen.is_none() {
            chosen = Some(change);
        } else {
            rest.push(change);
        }
    }
    let Some(chosen) = chosen else { return };
    let chosen = rate::merged(facts, chosen, &mut rest);
    for change in rest {
        let reason = format!(
            "{} waits: one operation of a file system at a time, and {} is first",
            change.words(),
            chosen.words()
        );
        decision.brakes.push(Braked::of(Brake::Busy, &change, reason));
    }
    facts.intend(chosen, decision);
}

/// Adds the brake of the mode to each intent that is not carried out.
fn brake_by_mode(policy: &Policy, decision: &mut Decision) {
    let effect = match policy.mode {
        Mode::Act => return,
        Mode::Advise => "the mode is `advise`: its commands are printed, and not run",
        Mode::Observe => "the mode is `observe`: it is recorded, and not done",
    };
    for intent in &decision.intents {
        let reason = format!("{}: {effect}", intent.id);
        let Intent { axis, is_up, .. } = *intent;
        decision.brakes.push(Braked { brake: Brake::Mode, axis, is_up, reason });
    }
}

impl Braked {
    /// Creates the brake of a change.
    fn of(brake: Brake, change: &Change, reason: String) -> Self {
        Self { brake, axis: change.rule.axis(), is_up: change.rule.is_up(), reason }
    }
}
