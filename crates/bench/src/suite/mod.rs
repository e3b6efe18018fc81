//! Published experiments and their repetition: the figures of an article, a scenario of the same
//! workload, and the comparison of both.
//!
//! A suite is a file in `crates/bench/suites/`. It names two scenarios of one workload: one at the
//! article's full length for virtual time, and a live one that is shortened by the rules of the
//! file. Its `[[point]]` tables are the published figures. Each names the figure that is compared
//! with it, the allowed difference, and whether a run fails by it.

pub mod compare;
pub(crate) mod configuration;
pub mod kept;
pub mod rerun;
pub mod result;
pub(crate) mod statistics;
mod text;

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::live;
use evenkeel_lab::LabError;
use evenkeel_sim::scenario::catalogue;
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::scenario::setup::{ClientSetup, Load};
use evenkeel_sim::scenario::{self, Point, Scenario, ScenarioError, Source};
use evenkeel_sim::world::run::Results;

macro_rules! suites {
    ($($name:literal),+ $(,)?) => {
        /// Name and text of each suite, in the order of the reports. The files lie in
        /// `crates/bench/suites/`.
        pub const SUITES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../suites/", $name, ".toml")))),+
        ];
    };
}

suites![
    "burst-and-stripe",
    "stripe-consistency",
    "five-minute-job",
    "batch-beside-oltp",
    "desktop-suite",
];

/// One published experiment.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// A short title of the result.
    pub title: String,
    /// The article: its title, and when and where its figures are from.
    pub article: String,
    /// The question of the experiment.
    pub asked: String,
    /// The method of measurement, in the article and here.
    pub method: String,
    /// The shortened properties of a live run, and why they do not change the result.
    pub scaled: String,
    /// The workload in virtual time.
    pub simulate: Plan,
    /// The live workload.
    pub live: Plan,
    /// The live workload at the article's length; without it, the one of virtual time is used.
    pub full: Option<Plan>,
    /// The published figures; read by `Suite::read`.
    point: Vec<toml::Table>,
}

/// A scenario, and its ratio to the article's length.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The name of a scenario that comes with the program.
    pub scenario: String,
    /// Seconds of the article in each second of the scenario.
    #[serde(default = "one")]
    pub times: u32,
    /// Repetitions of each case, if fewer than the scenario's.
    pub repeat: Option<u32>,
    /// Length of each run in seconds, if not the scenario's.
    pub duration_s: Option<u64>,
}

fn one() -> u32 {
    1
}

/// A scenario for the measurement of points, without expectations of its own.
#[derive(Clone, PartialEq, Debug)]
pub struct Ready {
    /// Its comparisons are those of the points that have one, in order.
    pub scenario: Scenario,
    /// Seconds of the article in each of its seconds.
    pub times: u32,
    /// The published figures.
    pub points: Vec<Point>,
    /// Whether parts of the suite are left out, so that figures may be missing.
    pub is_part: bool,
}

/// The way in which a suite is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// With real programs, clocks and disks.
    Live,
    /// In the simulator.
    InVirtualTime,
}

/// Which part of a suite is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Choice<'a> {
    /// Only cases whose names begin with this text.
    pub only: Option<&'a str>,
    /// Maximum number of runs of each case, and of batches of each client.
    pub runs: Option<u32>,
    /// Databases that cannot run: their cases, and programs that need one, are left out.
    pub without: &'a [Engine],
}

impl Choice<'_> {
    fn of(
        &self,
        suite: &str,
        scenario: &mut Scenario,
        repeat: Option<u32>,
    ) -> Result<(), LabError> {
        let mut names: Vec<String> =
            scenario.cases.iter().map(|case| format!("\"{}\"", case.name)).collect();
        if let Some(only) = self.only {
            scenario.cases.retain(|case| case.name.starts_with(only));
            if scenario.cases.is_empty() {
                names.dedup();
                let names = names.join(", ");
                let what = format!("no case of {suite} begins with \"{only}\": there are {names}");
                return Err(LabError::BadWorkload(what));
            }
        }
        let is_left_out = |engine| self.without.contains(&engine);
        scenario.cases.retain(|case| !live::database_of(case).is_some_and(is_left_out));
        if scenario.cases.is_empty() {
            let what = format!("what was chosen of {suite} has a database on a file system");
            return Err(LabError::BadWorkload(what));
        }
        if let Some(runs) = [repeat, self.runs].into_iter().flatten().min() {
            let mut seen: BTreeMap<String, u32> = BTreeMap::new();
            scenario.cases.retain(|case| {
                let nth = seen.entry(case.name.clone()).or_default();
                *nth += 1;
                *nth <= runs
            });
        }
        for case in &mut scenario.cases {
            // The number of runs bounds the rounds; clients with several batches in a round keep
            // them.
            let distance_ns = |client: &ClientSetup| match client.load {
                Load::Job { every_ns, poisson: false, .. } => Some(every_ns),
                _ => None,
            };
            let round_ns = case.setup.clients.iter().filter_map(distance_ns).max();
            if let (Some(round_ns), Some(runs)) = (round_ns, self.runs) {
                let rounds_ns = round_ns.saturating_mul(runs.into());
                case.setup.duration_ns = case.setup.duration_ns.min(rounds_ns);
            }
        }
        Ok(())
    }
}

/// Returns the suite called `name`.
///
/// # Errors
/// When there is none, or its file is invalid.
pub fn find(name: &str) -> Result<Suite, LabError> {
    let Some((_, text)) = SUITES.iter().find(|(known, _)| *known == name) else {
        let names: Vec<&str> = SUITES.iter().map(|(name, _)| *name).collect();
        let near = evenkeel_sim::text::nearest(name, names.iter().copied());
        let hint = near.map_or_else(
            || format!("there are {}", names.join(", ")),
            |near| format!("did you mean \"{near}\"?"),
        );
        return Err(LabError::BadWorkload(format!("no suite is called \"{name}\": {hint}")));
    };
    let parsed: Result<Suite, _> = toml::from_str(text);
    parsed.map_err(|error| LabError::BadWorkload(format!("{name}.toml: {error}")))
}

impl Suite {
    /// Returns the live plan: shortened to minutes, or as long as the article's.
    #[must_use]
    pub fn live_plan(&self, is_full: bool) -> &Plan {
        if is_full { self.full.as_ref().unwrap_or(&self.simulate) } else { &self.live }
    }

    /// Returns the number of published figures.
    #[must_use]
    pub fn points(&self) -> usize {
        self.point.len()
    }
}

impl Plan {
    /// Returns the scenario with the points of the suite called `suite`, or a part of it.
    ///
    /// # Errors
    /// When a file is invalid, with the line; or when no case has the requested name.
    pub fn read(&self, suite: &str, part: &Choice<'_>) -> Result<Ready, LabError> {
        let wrong = |error: ScenarioError| LabError::BadWorkload(error.to_string());
        let text = catalogue::find(&self.scenario).ok_or_else(|| {
            LabError::BadWorkload(format!("{suite}.toml: no scenario \"{}\"", self.scenario))
        })?;
        let file = format!("{}.toml", self.scenario);
        let source = Source { duration_s: self.duration_s, ..Source::new(&file, text) };
        let mut scenario = scenario::read(&source).map_err(wrong)?;
        // `sim run` judges the scenario's own expectations; here only the points count.
        scenario.comparisons.clear();
        for case in &mut scenario.cases {
            case.expectations.clear();
            case.measures.clear();
        }
        part.of(suite, &mut scenario, self.repeat)?;
        let text = SUITES.iter().find(|(name, _)| *name == suite).map_or("", |(_, text)| *text);
        let file = format!("{suite}.toml");
        let points = scenario::points(&file, text, &mut scenario, self.times).map_err(wrong)?;
        scenario.comparisons = points.iter().filter_map(|point| point.comparison.clone()).collect();
        let is_part = part.runs.is_some() || !part.without.is_empty();
        Ok(Ready { scenario, times: self.times, points, is_part })
    }
}

impl Ready {
    /// Returns our figure for every point; `None` if the scenario has no case for it.
    #[must_use]
    pub fn found(&self, results: &Results, way: Way) -> Vec<Option<result::Found>> {
        let mut checks = results.comparisons.iter();
        let found = self.points.iter().map(|point| {
            point.comparison.as_ref()?;
            let check = checks.next()?;
            // With fewer runs than the suite has, figures such as a variation may be missing.
            let may_lack = point.comparison.as_ref().is_some_and(|compared| compared.may_lack())
                && (self.is_part || (way == Way::InVirtualTime && point.is_live_only));
            (check.value.is_some() || !may_lack).then(|| result::Found {
                value: check.value,
                shown: check.measured.clone(),
                pass: check.pass,
            })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests;
