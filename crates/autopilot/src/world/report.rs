//! Many worlds, and their table.

use std::collections::BTreeMap;

use evenkeel_planner::autopilot::observation::Kind;
use evenkeel_planner::autopilot::policy::{Keep, Policy};
use serde::Serialize;

use super::floor::{median, permille};
use super::load::Generator;
use super::rivals::{Other, Rival};
use super::run::{Outcome, Plan, Undos, run, world};

/// The name of the policy that keeps 1.5 times the largest growth free.
const LIKELY: &str = "envelope x 1.5";
/// Failures that are kept.
const FAILURES_MAX: usize = 50;

/// Worlds to simulate.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kinds of load.
    pub generators: Vec<Generator>,
    /// The seed of the first world; the others follow.
    pub seed: u64,
    /// Worlds of each kind.
    pub worlds: u32,
    /// Years of each world.
    pub years: u32,
    /// Whether there are faults.
    pub faults: bool,
    /// Whether other rules are simulated too.
    pub compares: bool,
    /// The policy.
    pub policy: Policy,
}

/// The result of the worlds of one kind of load. Ratios are in thousandths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The kind of load.
    pub generator: &'static str,
    /// Simulated years of a file system.
    pub years: u64,
    /// Times without room.
    pub full_events: u64,
    /// Times without room that no policy could prevent: the agent or the API was away.
    pub full_events_excused: u64,
    /// Rules that did not hold.
    pub violations: u64,
    /// Checks of rules.
    pub checks: u64,
    /// The mean cost beside a planner that knows the future.
    pub of_clairvoyant: u64,
    /// The mean cost beside the smallest layout that never changes and keeps the wanted room.
    pub of_best_static: u64,
    /// `of_best_static` of the worlds with a btrfs, which shrinks and takes further volumes; 0
    /// without one.
    pub of_best_static_btrfs: u64,
    /// The mean cost beside the layout of the peak with its reserve.
    pub of_peak: u64,
    /// The median of the cost beside the layout of 1.2 times the peak.
    pub of_usual_static: u64,
    /// Operations by their name.
    pub operations: BTreeMap<&'static str, u64>,
    /// Days on which each brake held something back.
    pub brakes: BTreeMap<String, u64>,
    /// Other rules by their name.
    pub others: BTreeMap<&'static str, Compared>,
    /// Ticks of the agent.
    pub ticks: u64,
    /// The printed ways back, each executed in a copy of the world.
    pub undos: Undos,
    /// Changes to lower limits, each after a replay.
    pub lowered: u64,
    /// Those of these that were taken back within their watch, since requests waited.
    pub raised_back: u64,
}

/// The result of another rule.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Times without room.
    pub full_events: u64,
    /// The median of the cost beside the layout of 1.2 times the peak, in thousandths.
    pub of_usual_static: u64,
}

/// A world in which a rule did not hold or room lacked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// The kind of load.
    pub generator: &'static str,
    /// Its seed.
    pub seed: u64,
    /// The reasons, one sentence each.
    pub reasons: Vec<String>,
}

/// The table, and the worlds that failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// One for each kind of load.
    pub rows: Vec<Row>,
    /// The first of the worlds that failed.
    pub failed: Vec<Failed>,
}

/// Simulates the worlds. `progress` is called after each one.
pub fn report(options: &Options, progress: &mut dyn FnMut(Generator, u64)) -> Report {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for generator in &options.generators {
        let mut sums = Sums::default();
        for seed in (options.seed..).take(evenkeel_core::convert::index(options.worlds)) {
            let plan = Plan {
                generator: *generator,
                seed,
                years: options.years,
                faults: options.faults,
                policy: options.policy.clone(),
                every_minute: false,
                keeps_audit: false,
            };
            let outcome = run(&plan);
            let reasons = reasons(&outcome);
            if !reasons.is_empty() && failed.len() < FAILURES_MAX {
                failed.push(Failed { generator: generator.name(), seed, reasons });
            }
            sums.add(&outcome);
            if options.compares {
                compare(&plan, &outcome, &mut sums);
            }
            progress(*generator, seed);
        }
        rows.push(sums.row(*generator, options));
    }
    Report { rows, failed }
}

/// Returns what failed in a world.
#[must_use]
pub fn reasons(outcome: &Outcome) -> Vec<String> {
    let full = outcome.full.iter().filter(|event| !event.is_excused).map(|event| {
        let day = event.from_ms / super::load::DAY_MS;
        let minute = event.from_ms % super::load::DAY_MS / super::load::MINUTE_MS;
        let hour = minute / 60;
        let minute = minute % 60;
        format!("full: day {day}, {hour:02}:{minute:02}: a byte was wanted that was not there")
    });
    full.chain(outcome.violations.iter().map(ToString::to_string)).collect()
}

fn compare(plan: &Plan, outcome: &Outcome, sums: &mut Sums) {
    let usual = outcome.bounds.usual_static;
    for rule in Rival::ALL {
        let mut other_world = world(plan.generator, plan.seed, plan.years, &plan.policy);
        let mut other = Other::new(rule, other_world.space.used());
        other.run(&mut other_world);
        let full = evenkeel_core::convert::count(other_world.full.len());
        let entry = sums.others.entry(rule.name()).or_default();
        entry.0 += full;
        entry.1.push(permille(other_world.cost_micro(), usual));
    }
    let mut likely = plan.clone();
    likely.policy.space.keep = Keep::Likely;
    likely.faults = false;
    let outcome = run(&likely);
    let entry = sums.others.entry(LIKELY).or_default();
    entry.0 += evenkeel_core::convert::count(outcome.full.len());
    entry.1.push(permille(outcome.cost_micro, usual));
}

/// Sums over worlds.
#[derive(Default)]
struct Sums {
    full: u64,
    excused: u64,
    violations: u64,
    checks: u64,
    of_clairvoyant: Vec<u64>,
    of_best_static: Vec<u64>,
    of_best_static_btrfs: Vec<u64>,
    of_peak: Vec<u64>,
    of_usual_static: Vec<u64>,
    operations: BTreeMap<&'static str, u64>,
    brakes: BTreeMap<String, u64>,
    others: BTreeMap<&'static str, (u64, Vec<u64>)>,
    ticks: u64,
    undos: Undos,
    lowered: u64,
    raised_back: u64,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        let excused = outcome.full.iter().filter(|event| event.is_excused).count();
        let excused = evenkeel_core::convert::count(excused);
        self.full += evenkeel_core::convert::count(outcome.full.len()) - excused;
        self.excused += excused;
        self.violations += outcome.violation_count;
        self.checks += outcome.checks;
        self.ticks += outcome.ticks;
        self.undos.add(&outcome.undos);
        self.lowered += outcome.lowered;
        self.raised_back += outcome.raised_back;
        let bounds = &outcome.bounds;
        self.of_clairvoyant.push(permille(outcome.cost_micro, bounds.clairvoyant));
        let of_best_static = permille(outcome.cost_micro, bounds.best_static);
        self.of_best_static.push(of_best_static);
        if outcome.kind == Kind::Btrfs {
            self.of_best_static_btrfs.push(of_best_static);
        }
        self.of_peak.push(permille(outcome.cost_micro, bounds.tight_static));
        self.of_usual_static.push(permille(outcome.cost_micro, bounds.usual_static));
        for (name, count) in &outcome.operations {
            *self.operations.entry(name).or_default() += count;
        }
        for (name, days) in &outcome.brakes {
            *self.brakes.entry(name.clone()).or_default() += days;
        }
    }

    fn row(self, generator: Generator, options: &Options) -> Row {
        let others = self.others.into_iter().map(|(name, (full_events, costs))| {
            (name, Compared { full_events, of_usual_static: median(&costs) })
        });
        Row {
            generator: generator.name(),
            years: u64::from(options.worlds) * u64::from(options.years),
            full_events: self.full,
            full_events_excused: self.excused,
            violations: self.violations,
            checks: self.checks,
            of_clairvoyant: mean(&self.of_clairvoyant),
            of_best_static: mean(&self.of_best_static),
            of_best_static_btrfs: mean(&self.of_best_static_btrfs),
            of_peak: mean(&self.of_peak),
            of_usual_static: median(&self.of_usual_static),
            operations: self.operations,
            brakes: self.brakes,
            others: others.collect(),
            ticks: self.ticks,
            undos: self.undos,
            lowered: self.lowered,
            raised_back: self.raised_back,
        }
    }
}

fn mean(numbers: &[u64]) -> u64 {
    let count = evenkeel_core::convert::count(numbers.len()).max(1);
    (numbers.iter().sum::<u64>() + count / 2) / count
}
