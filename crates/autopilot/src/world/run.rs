//! A run: the agent in the world, from its start to its end.
//!
//! The agent ticks every minute, and every ten seconds while it works. In quiet times ticks are
//! left out that would decide as the last one did: the next tick is at the first instant at which
//! an input of a rule can change.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use evenkeel_planner::autopilot::decide::{Decision, Intent};
use evenkeel_planner::autopilot::observation::{Kind as FileSystemKind, Observation};
use evenkeel_planner::autopilot::operation::{Operation, Step};
use evenkeel_planner::autopilot::policy::{Keep, Policy, Window};
use evenkeel_planner::autopilot::state::Axis;
use serde::Serialize;

use super::faults::{Faults, Kind as Hazard};
use super::floor;
use super::judge::Violation;
use super::load::{DAY_MS, Generator, HOUR_MS, Load, MINUTE_MS};
use super::proof;
use super::rivals::growth;
use super::stage::{Shared, Stage, WorldCloud, WorldHost, WorldJournal};
use super::state::{FullEvent, START_MS, Setup, World};
use super::undo::{Before, Undone};
use crate::{Controller, Ticked};

/// The time between two ticks while nothing happens.
const TICK_MS: u64 = MINUTE_MS;
/// The time between two ticks while an operation is open or room is short.
const BUSY_TICK_MS: u64 = 10_000;
/// Ticks after a change of the load that are not left out: a history of readings needs pairs.
const TICKS_AFTER_CHANGE: u32 = 2;
/// Ticks after a change of the load that are not left out if the history of growth decides.
const TICKS_AFTER_CHANGE_LIKELY: u32 = 6;
/// The time after which a person releases an autopilot that has stopped after failures.
const RELEASE_MS: u64 = 4 * HOUR_MS;
/// The window of delayed requests, with a minute more.
const WINDOW_MS: u64 = 16 * MINUTE_MS;

/// A run of the agent in the world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of load.
    pub generator: Generator,
    /// The seed of everything.
    pub seed: u64,
    /// Simulated years.
    pub years: u32,
    /// Whether there are faults.
    pub faults: bool,
    /// The policy.
    pub policy: Policy,
    /// Whether no tick is left out.
    pub every_minute: bool,
    /// Whether lines of the audit are kept.
    pub keeps_audit: bool,
}

/// A decision that changed something, without its number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acted {
    /// Milliseconds since the start of the world.
    pub at_ms: u64,
    /// The operation.
    pub operation: Operation,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kind of the file system.
    pub kind: FileSystemKind,
    /// Times without room.
    pub full: Vec<FullEvent>,
    /// Rules that did not hold.
    pub violations: Vec<Violation>,
    /// Their number.
    pub violation_count: u64,
    /// Checks of rules.
    pub checks: u64,
    /// The cost of all volumes, in millionths of the currency.
    pub cost_micro: u64,
    /// Costs of others.
    pub bounds: Bounds,
    /// Operations by their name.
    pub operations: BTreeMap<&'static str, u64>,
    /// Days on which each brake held something back.
    pub brakes: BTreeMap<String, u64>,
    /// Decisions that changed something.
    pub acted: Vec<Acted>,
    /// The audit.
    pub audit: Vec<String>,
    /// Ticks of the agent.
    pub ticks: u64,
    /// Calls and verbs that had an effect.
    pub steps: u64,
    /// Moves that failed for want of room.
    pub failed_moves: u32,
    /// The printed ways back, each executed in a copy of the world.
    pub undos: Undos,
    /// Changes to lower limits, each after a replay.
    pub lowered: u64,
    /// Those of these that were taken back within their watch, since requests waited.
    pub raised_back: u64,
}

/// The printed ways back of operations.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Undos {
    /// Executed: all was as before.
    pub executed: u64,
    /// Those of these that ended a running move.
    pub of_running: u64,
    /// Refused for want of room, with no byte lost.
    pub no_room: u64,
    /// Executed but for the size, since the file system cannot shrink: all else was as before.
    pub advised: u64,
}

impl Undos {
    /// Adds those of another run.
    pub(super) const fn add(&mut self, other: &Self) {
        self.executed += other.executed;
        self.of_running += other.of_running;
        self.no_room += other.no_room;
        self.advised += other.advised;
    }
}

/// Costs that a run is compared with, in millionths of the currency.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bounds {
    /// Of a planner that knows the future and keeps the reserve.
    pub clairvoyant: u64,
    /// Of the smallest layout that never changes and always has the room that the policy wants.
    pub best_static: u64,
    /// Of the layout of the peak.
    pub tight_static: u64,
    /// Of the layout of 1.2 times the peak.
    pub usual_static: u64,
}

/// Returns a world without an agent, for a rule of another product too.
pub(super) fn world(generator: Generator, seed: u64, years: u32, policy: &Policy) -> World {
    let load = Load::new(generator, seed, years);
    let gib = first_gib(&load, seed, policy);
    let setup = Setup::new(seed, gib);
    World::new(load, seed, &setup)
}

/// Returns the size at the start: what the policy wants for the first bytes, and a tenth more.
fn first_gib(load: &Load, seed: u64, policy: &Policy) -> u32 {
    let used = load.first_bytes + load.first_bytes / 10;
    let gib = |volumes: u64| {
        let line = 125 * super::MIB * volumes;
        let urgent = line * u64::from(policy.space.actuation_s) + load.dirty_limit_bytes;
        let bytes = used + urgent + used / 20 + (4 << 30);
        u32::try_from(bytes.div_ceil(1 << 30)).expect("invariant: below 2^32 GiB")
    };
    let volumes = Setup::new(seed, gib(1)).volumes.len();
    gib(evenkeel_core::convert::count(volumes))
}

/// Runs the agent.
#[must_use]
pub fn run(plan: &Plan) -> Outcome {
    let world = world(plan.generator, plan.seed, plan.years, &plan.policy);
    let end_ms = world.load.end_ms;
    let faults = if plan.faults { Faults::new(plan.seed, end_ms) } else { Faults::none() };
    let mut stage = Stage::new(world, faults, plan.policy.clone(), plan.seed);
    stage.keeps_audit = plan.keeps_audit;
    let mut runner = Runner::new(Rc::new(RefCell::new(stage)), plan);
    runner.run(end_ms);
    runner.outcome(plan)
}

/// The agent of the world.
type Agent = Controller<WorldHost, WorldCloud, WorldJournal>;

struct Runner {
    stage: Shared,
    agent: Agent,
    policy: Policy,
    every_minute: bool,
    last: Option<Last>,
    /// The growth at the last tick, and ticks since it changed.
    growth: (u64, u32),
    /// When a volume last began or ceased to delay requests.
    delay_changed_ms: u64,
    delays: bool,
    /// The day of the last evidence.
    judged_day: Option<u64>,
    /// Since when the agent has stopped after failures.
    stopped_ms: Option<u64>,
    operations: BTreeMap<&'static str, u64>,
    brakes: BTreeMap<String, u64>,
    braked_today: (u64, BTreeSet<String>),
    acted: Vec<Acted>,
    ticks: u64,
    /// Operations that are open, with the state before them.
    begun: BTreeMap<String, Before>,
    undos: Undos,
    lowered: u64,
    raised_back: u64,
}

/// The facts of the last tick that determine the next one.
struct Last {
    is_quiet: bool,
    /// Whether it executed a step, or room is short.
    is_busy: bool,
    wanted_free: u64,
    /// Instants at which an input of a rule changes, in milliseconds since the start.
    instants: Vec<u64>,
}

impl Runner {
    fn new(stage: Shared, plan: &Plan) -> Self {
        Self {
            agent: agent(&stage, &plan.policy),
            stage,
            policy: plan.policy.clone(),
            every_minute: plan.every_minute,
            last: None,
            growth: (0, 0),
            delay_changed_ms: 0,
            delays: false,
            judged_day: None,
            stopped_ms: None,
            operations: BTreeMap::new(),
            brakes: BTreeMap::new(),
            braked_today: (0, BTreeSet::new()),
            acted: Vec::new(),
            ticks: 0,
            begun: BTreeMap::new(),
            undos: Undos::default(),
            lowered: 0,
            raised_back: 0,
        }
    }

    fn run(&mut self, end_ms: u64) {
        loop {
            let now = self.stage.borrow().world.now_ms;
            if now >= end_ms {
                break;
            }
            let next = if self.stage.borrow().faults.has(Hazard::AgentAway, now) {
                self.last = None;
                self.agent = agent(&self.stage, &self.policy);
                self.judged_day = None;
                (now / TICK_MS + 1) * TICK_MS
            } else {
                self.tick(now);
                self.next_tick(now)
            };
            self.stage.borrow_mut().advance(next.min(end_ms));
        }
    }

    fn tick(&mut self, now: u64) {
        self.ticks += 1;
        self.prove(now);
        let released_ms = self.release(now);
        let unix_ms = {
            let mut stage = self.stage.borrow_mut();
            stage.faults.begin_tick(now);
            stage.released_ms = released_ms;
            let offset = stage.faults.clock_offset_ms(now);
            (START_MS + now).saturating_add_signed(offset)
        };
        let ticked = self.agent.tick(unix_ms);
        if self.stage.borrow().faults.is_dead {
            self.stage.borrow_mut().end_agent();
            self.agent = agent(&self.stage, &self.policy);
            self.judged_day = None;
            self.last = None;
            return;
        }
        let Ok(ticked) = ticked else {
            self.last = None;
            return;
        };
        self.note(now, &ticked);
    }

    /// Gives the agent the evidence of a day.
    fn prove(&mut self, now: u64) {
        let day = now / DAY_MS;
        if self.judged_day != Some(day) {
            self.judged_day = Some(day);
            let stage = self.stage.borrow();
            self.agent.evidence =
                self.policy.rate.is_managed.then(|| proof::evidence(&stage.world));
        }
    }

    /// Returns the time of the last release by a person: some hours after the agent has stopped.
    fn release(&mut self, now: u64) -> u64 {
        match self.stopped_ms {
            Some(since) if now >= since + RELEASE_MS => {
                self.stopped_ms = None;
                START_MS + now
            }
            _ => 0,
        }
    }

    fn note(&mut self, now: u64, ticked: &Ticked) {
        let decided = ticked.decision.as_ref().zip(ticked.observation.as_ref());
        let Some((decision, seen)) = decided else {
            self.last = None;
            return;
        };
        let shared = Rc::clone(&self.stage);
        let mut borrowed = shared.borrow_mut();
        let stage = &mut *borrowed;
        stage.judge.decided(decision, seen, &stage.world, &self.policy, &stage.memory.state);
        self.undo(decision, seen, ticked, stage);
        for intent in &decision.intents {
            *self.operations.entry(name(&intent.operation)).or_default() += 1;
            let is_lower = intent.axis == Axis::Rate && !intent.is_up && !intent.is_scheduled;
            self.lowered += u64::from(is_lower);
            self.raised_back += u64::from(intent.reason.starts_with("undo:"));
            let operation = intent.operation.clone();
            self.acted.push(Acted { at_ms: now, operation });
        }
        let state = &stage.memory.state;
        let is_stopped = state.failures >= self.policy.brakes.failures_max;
        self.stopped_ms = is_stopped.then(|| self.stopped_ms.unwrap_or(now));
        let is_quiet = is_quiet(decision, stage, ticked);
        let instants = if is_quiet { instants(&self.policy, seen, stage) } else { Vec::new() };
        let wanted_free = decision.forecast.wanted_free_bytes;
        let is_short = stage.world.space.room() < wanted_free;
        let may_grow = self.policy.space.is_managed && !self.policy.is_paused;
        let is_busy = !ticked.steps.is_empty() || (is_short && may_grow);
        self.last = Some(Last { is_quiet, is_busy, wanted_free, instants });
        self.follow_load(now, &stage.world);
        let day = now / DAY_MS;
        if self.braked_today.0 != day {
            self.braked_today = (day, BTreeSet::new());
        }
        for braked in &decision.brakes {
            let name = format!("{:?}", braked.brake);
            if self.braked_today.1.insert(name.clone()) {
                *self.brakes.entry(name).or_default() += 1;
            }
        }
    }

    /// Executes the printed way back of each operation that has ended, and of each move once while
    /// it runs.
    fn undo(
        &mut self,
        decision: &Decision,
        seen: &Observation,
        ticked: &Ticked,
        stage: &mut Stage,
    ) {
        let world = &stage.world;
        let is_deletion = |intent: &Intent| matches!(intent.operation, Operation::Delete { .. });
        // A deletion changes nothing of the file system, and has no way back.
        for intent in decision.intents.iter().filter(|intent| !is_deletion(intent)) {
            let mut before = Before::new(intent, seen, world);
            before.has_other = !self.begun.is_empty();
            self.begun.values_mut().for_each(|other| other.has_other = true);
            self.begun.insert(intent.id.clone(), before);
        }
        let open = &stage.memory.state.open;
        let is_cancelled = |id: &String| {
            seen_cancelled(decision, id) || open.iter().any(|open| open.id == *id && open.cancelled)
        };
        self.begun.retain(|id, _| !is_cancelled(id));
        let ended = ticked.steps.iter().filter(|(_, step, _)| *step == Step::Done);
        let ended = ended.filter_map(|(id, ..)| Some((self.begun.remove(id)?, false)));
        let mut executed: Vec<(Before, bool)> = ended.collect();
        self.begun.retain(|id, _| open.iter().any(|open| open.id == *id));
        for before in self.begun.values_mut() {
            if before.is_interruptible(world) {
                before.was_interrupted = true;
                executed.push((before.clone(), true));
            }
        }
        for (before, is_running) in executed {
            let result = before.execute(world, is_running);
            match stage.judge.undone(&before.intent.id, result, world) {
                Some(Undone::Executed) => {
                    self.undos.executed += 1;
                    self.undos.of_running += u64::from(is_running);
                }
                Some(Undone::NoRoom) => self.undos.no_room += 1,
                Some(Undone::Advised) => self.undos.advised += 1,
                None => {}
            }
        }
    }

    fn follow_load(&mut self, now: u64, world: &World) {
        let rate = growth(world);
        self.growth = if rate == self.growth.0 { (rate, self.growth.1 + 1) } else { (rate, 0) };
        let delays = world.delays();
        if delays != self.delays {
            self.delays = delays;
            self.delay_changed_ms = now;
        }
    }

    /// Returns the time of the next tick.
    fn next_tick(&self, now: u64) -> u64 {
        let minute = (now / TICK_MS + 1) * TICK_MS;
        let Some(last) = &self.last else { return (now / BUSY_TICK_MS + 1) * BUSY_TICK_MS };
        if last.is_busy {
            return (now / BUSY_TICK_MS + 1) * BUSY_TICK_MS;
        }
        if self.every_minute || !last.is_quiet || !self.may_leap(now) {
            return minute;
        }
        let stage = self.stage.borrow();
        let world = &stage.world;
        let mut until = (now / DAY_MS + 1) * DAY_MS;
        let changes = [
            world.next_segment_ms(),
            world.ec2.next_due().map(|due| due.saturating_sub(START_MS)),
            stage.faults.next_change(now),
        ];
        for change in changes.into_iter().flatten().chain(last.instants.iter().copied()) {
            if change > now {
                until = until.min(change);
            }
        }
        let spare = world.space.room().saturating_sub(last.wanted_free);
        if let Some(seconds) = spare.checked_div(self.growth.0) {
            until = until.min(now.saturating_add(seconds.saturating_mul(1_000)));
        }
        // The last tick before a change, and the first one after it.
        (until / TICK_MS * TICK_MS).max(minute)
    }

    fn may_leap(&self, now: u64) -> bool {
        let stage = self.stage.borrow();
        let ticks = match self.policy.space.keep {
            Keep::Hard => TICKS_AFTER_CHANGE,
            Keep::Likely => TICKS_AFTER_CHANGE_LIKELY,
        };
        let is_steady = self.growth.0 == 0 && ticks == TICKS_AFTER_CHANGE || self.growth.1 >= ticks;
        let is_blind = stage.faults.at(now).any(|fault| match fault.kind {
            Hazard::Throttled
            | Hazard::LostAnswers
            | Hazard::ApiAway
            | Hazard::MetricsFrozen
            | Hazard::MetricsLate
            | Hazard::Clock { .. }
            | Hazard::Kills
            | Hazard::AgentAway => true,
            Hazard::CreateRefused
            | Hazard::ModifyRefused
            | Hazard::AttachStuck
            | Hazard::Rules { .. }
            | Hazard::Scrub
            | Hazard::SlowFlushes => false,
        });
        let delays = now < self.delay_changed_ms + WINDOW_MS || stage.world.drains();
        let watches = stage.memory.state.watch.is_some();
        let works = stage.world.backlog > 0 || stage.world.is_lacking;
        // What takes no further volume waits for a second reading after a long time without one.
        let is_unsure = stage.memory.state.unsure_since_ms.is_some()
            && stage.world.space.kind() != FileSystemKind::Btrfs;
        !is_unsure && is_steady && !is_blind && !delays && !watches && !works
    }

    fn outcome(self, plan: &Plan) -> Outcome {
        let stage = self.stage.borrow();
        let world = &stage.world;
        world.space.invariants();
        Outcome {
            kind: world.space.kind(),
            full: world.full.clone(),
            violations: stage.judge.violations.clone(),
            violation_count: stage.judge.count,
            checks: stage.judge.checks,
            cost_micro: world.cost_micro(),
            bounds: bounds(world, &plan.policy),
            operations: self.operations,
            brakes: self.brakes,
            acted: self.acted,
            audit: stage.audit.clone(),
            ticks: self.ticks,
            steps: stage.steps,
            failed_moves: world.failed_moves,
            undos: self.undos,
            lowered: self.lowered,
            raised_back: self.raised_back,
        }
    }
}

fn agent(stage: &Shared, policy: &Policy) -> Agent {
    let host = WorldHost(Rc::clone(stage));
    let cloud = WorldCloud(Rc::clone(stage));
    Controller::new(host, cloud, WorldJournal(Rc::clone(stage)), policy.clone())
}

const fn name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Modify { .. } => "modify",
        Operation::Add { .. } => "add",
        Operation::Remove { .. } => "remove",
        Operation::Replace { .. } => "replace",
        Operation::Delete { .. } => "delete",
    }
}

/// Returns whether a decision cancels an operation.
fn seen_cancelled(decision: &Decision, id: &str) -> bool {
    decision.cancels.iter().any(|(cancelled, _)| cancelled == id)
}

/// Returns whether the tick did nothing, and nothing is under way.
fn is_quiet(decision: &Decision, stage: &Stage, ticked: &Ticked) -> bool {
    decision.intents.is_empty()
        && decision.cancels.is_empty()
        && decision.pace_bytes_per_s.is_none()
        && ticked.steps.is_empty()
        && stage.memory.state.open.is_empty()
        && stage.world.running.is_none()
        && (stage.policy.is_paused
            || stage.world.space.room() >= decision.forecast.wanted_free_bytes)
}

/// Returns the instants at which an input of a rule changes by the time alone.
fn instants(policy: &Policy, seen: &Observation, stage: &Stage) -> Vec<u64> {
    let state = &stage.memory.state;
    let day = |days: u32| u64::from(days) * DAY_MS;
    let mut unix = Vec::new();
    for past in &state.past {
        let days = [
            policy.budget.opposite_days,
            policy.budget.after_emergency_days,
            policy.space.quiet_days,
        ];
        unix.extend(days.map(|days| past.ended_ms + day(days)));
        // Retries after failures.
        unix.extend(
            [60_000, 120_000, 240_000, 480_000, 900_000, 3_600_000]
                .map(|wait| past.ended_ms + wait),
        );
    }
    unix.extend(state.hold.as_ref().map(|hold| hold.until_ms));
    unix.extend(state.watch.as_ref().map(|watch| watch.until_ms));
    unix.extend(
        state
            .candidates
            .iter()
            .map(|candidate| candidate.since_ms + u64::from(policy.rate.confirm_s) * 1_000),
    );
    for volume in &seen.volumes {
        unix.extend(volume.modifiable_from_ms);
        unix.extend(volume.modified_ms.iter().map(|start| start + DAY_MS));
        let grace = u64::from(policy.budget.grace_hours) * HOUR_MS;
        unix.extend(volume.retired_ms.map(|retired| retired + grace));
    }
    let windows = policy.windows.iter().chain(policy.schedules.iter().map(|s| &s.window));
    unix.extend(windows.flat_map(|window| edges(window, policy, seen.unix_ms)));
    unix.into_iter().map(|instant| instant.saturating_sub(START_MS)).collect()
}

/// Returns the next start and end of a window, and the start less the time of an actuation.
fn edges(window: &Window, policy: &Policy, unix_ms: u64) -> Vec<u64> {
    const WEEK: u64 = 7 * 1_440;
    // 1970-01-01 was a Thursday.
    let minute = unix_ms / MINUTE_MS + 3 * 1_440;
    let week = minute - minute % WEEK;
    let actuation = u64::from(policy.space.actuation_s).div_ceil(60);
    let mut edges = Vec::new();
    for day in (0..7_u64).filter(|day| window.days >> day & 1 == 1) {
        for later in [0, WEEK] {
            let start = week + later + day * 1_440 + u64::from(window.from_minute);
            for edge in [start, start - actuation, start + u64::from(window.minutes)] {
                edges.push((edge - 3 * 1_440) * MINUTE_MS);
            }
        }
    }
    edges
}

/// Returns the costs of others for the load of a world.
fn bounds(world: &World, policy: &Policy) -> Bounds {
    let load = &world.load;
    let peaks = load.peaks_by_day();
    let gib = |bytes: u64| bytes.div_ceil(1 << 30);
    let reserve = |used: u64| {
        let percent = used / 100 * u64::from(policy.space.reserve_percent);
        percent.max(policy.space.reserve_bytes_min) + load.dirty_limit_bytes
    };
    let demand: Vec<u64> = peaks.iter().map(|used| gib(used + reserve(*used))).collect();
    let mut space = floor::units_days(&demand);
    if world.space.kind() != FileSystemKind::Btrfs {
        space.clairvoyant = floor::never_less(&demand);
    }
    let free = 3_000 * evenkeel_core::convert::count(world.space.volumes().len());
    let iops: Vec<u64> =
        load.iops_by_day().iter().map(|iops| u64::from(*iops).saturating_sub(free)).collect();
    let rate = floor::units_days(&iops);
    let per_gib = super::state::price_of_gib();
    let per_iops = super::state::price_of_iops();
    let cost = |gib: u64, iops: u64| floor::micro(gib, per_gib) + floor::micro(iops, per_iops);
    let days = evenkeel_core::convert::count(peaks.len());
    let peak = peaks.iter().copied().max().unwrap_or(0);
    let line = 125 * super::MIB * free / 3_000;
    let urgent = line * u64::from(policy.space.actuation_s);
    let held = gib(peak + reserve(peak) + urgent) * days;
    let usual = gib(peak + peak / 5) * days;
    let most = load.iops_by_day().into_iter().max().unwrap_or(0);
    let headroom = (u64::from(most) * 6 / 5).saturating_sub(free) * days;
    Bounds {
        clairvoyant: cost(space.clairvoyant, rate.clairvoyant),
        best_static: cost(held, headroom),
        tight_static: cost(space.peak, rate.peak),
        usual_static: cost(usual, headroom),
    }
}
