//! The result of a suite as JSON. Tables, pages and comparisons are made from it.

use serde::{Deserialize, Serialize};

use super::configuration::configurations;
use super::{Ready, Suite, Way};
use crate::live::{Live, Speeds};
use evenkeel_lab::LabError;
use evenkeel_lab::environment::Environment;
use evenkeel_lab::stalls::Observed;
use evenkeel_os::clock;
use evenkeel_sim::scenario::compare::Comparison;
use evenkeel_sim::world::run::Results;

pub use super::configuration::{Configuration, Run, SEPARATOR};

/// The version of the JSON's schema. It changes if a reader of the old schema would misread the new
/// one.
pub const SCHEMA: &str = "evenkeel-result/1";

/// The verdict of a point that is broken.
pub const BROKEN: &str = "BROKEN";
/// The verdict of a point that is kept.
pub const KEPT: &str = "kept";
/// The verdict of a point that is kept in virtual time, but not live, where it is no gate.
pub const KEPT_VIRTUALLY: &str = "kept in virtual time";
/// The verdict of a point that is broken live, on a machine that was too busy to hold it against
/// the volumes.
pub const UNDECIDED: &str = "undecided";
/// The verdict of a point for which no run had a case.
pub const NOT_RUN: &str = "not run";

/// A suite that was run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SuiteResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The suite's name.
    pub suite: String,
    /// A short title of the result.
    pub title: String,
    /// The article.
    pub article: String,
    /// The question of the experiment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub asked: String,
    /// The method of measurement, in the article and here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub method: String,
    /// The shortened properties of a live run, and why they do not change the result.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scaled: String,
    /// The command line that repeats it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Date and time of the run.
    pub measured_at: String,
    /// The machine and its software.
    pub environment: Environment,
    /// Load average of the last minute before the first run, in hundredths.
    pub load_before_hundredths: Option<u64>,
    /// Load average of the last minute after the last run, in hundredths.
    pub load_after_hundredths: Option<u64>,
    /// Whether no gate failed or is undecided, and no run or program failed.
    pub pass: bool,
    /// The published figures and ours.
    pub rows: Vec<Row>,
    /// The live part, if it was run.
    pub live: Option<Part>,
    /// The part in virtual time, if it was run.
    pub simulated: Option<Part>,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
    /// Reasons for which broken live figures prove nothing about the volumes: the machine was busy,
    /// or stood still.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub busy: Vec<String>,
    /// Versions of the programs that a live run has used beside the load generator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub programs: Vec<String>,
    /// Runs, and programs in them, that failed, each with the reason. A result with one does not
    /// pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// Reasons for which broken live figures may be the machine's fault.
#[derive(Clone, Debug, Default)]
struct Doubts {
    /// Whether any figure may be.
    of_all: bool,
    /// Speeds of the processor beside programs that their client limits as much as their volume.
    of_programs: Speeds,
}

/// A published figure and ours.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The identifier of the point.
    pub id: String,
    /// The measured quantity.
    pub what: String,
    /// The figure in the article.
    pub published: String,
    /// The bounds of our figure.
    pub expected: String,
    /// Remarks for the reader.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Whether a run fails by it; otherwise it is only shown.
    pub gate: bool,
    /// Whether a live run fails by it, too.
    #[serde(default = "yes")]
    pub live_gate: bool,
    /// Whether the machine was too busy for `live` to be held against the volumes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_unsafe: bool,
    /// Our live figure.
    pub live: Option<Found>,
    /// Our figure in virtual time.
    pub simulated: Option<Found>,
}

/// Joins the lines of a text in a file, which are wrapped.
fn in_a_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn yes() -> bool {
    true
}

/// A figure of ours.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The value in the unit of `shown`; `None` if nothing was measured.
    pub value: Option<f64>,
    /// The value as text, with its unit.
    pub shown: String,
    /// Whether it is within its bounds.
    pub pass: bool,
}

/// The live or the simulated part of a result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The scenario.
    pub scenario: String,
    /// Seconds of the article in each of its seconds.
    pub times: u32,
    /// Day of the volume rules.
    pub as_of: String,
    /// Seed of the first run; that of each further run is higher by one.
    pub seed: u64,
    /// The exact command lines.
    pub commands: Vec<String>,
    /// Descriptions of the storage: stores, file systems with their mount options, I/O schedulers.
    #[serde(default)]
    pub storage: Vec<String>,
    /// The machine's pauses in each run.
    #[serde(default)]
    pub stalls: Vec<Observed>,
    /// The configurations that were run.
    pub configurations: Vec<Configuration>,
}

impl Part {
    /// Creates a part from the results of a scenario.
    #[must_use]
    pub fn of(results: &Results, times: u32, commands: Vec<String>) -> Self {
        Self {
            scenario: results.scenario.clone(),
            times,
            as_of: results.as_of.clone(),
            seed: results.seed,
            commands,
            storage: Vec::new(),
            stalls: Vec::new(),
            configurations: configurations(results),
        }
    }
}

impl SuiteResult {
    /// Creates a result without runs.
    #[must_use]
    pub fn begin(name: &str, suite: &Suite) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            suite: name.to_owned(),
            title: suite.title.trim().to_owned(),
            article: suite.article.trim().to_owned(),
            asked: in_a_line(&suite.asked),
            method: in_a_line(&suite.method),
            scaled: in_a_line(&suite.scaled),
            command: String::new(),
            measured_at: clock::utc_now(),
            environment: Environment::read(String::new()),
            load_before_hundredths: evenkeel_lab::environment::load_hundredths(),
            load_after_hundredths: None,
            pass: false,
            rows: Vec::new(),
            live: None,
            simulated: None,
            warnings: Vec::new(),
            busy: Vec::new(),
            programs: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Adds the results of virtual time.
    pub fn add_simulated(&mut self, ready: &Ready, results: &Results) {
        let scenario = &results.scenario;
        let command = format!("evenkeel sim run {scenario} --seed {}", results.seed);
        self.simulated = Some(Part::of(results, ready.times, vec![command]));
        self.add(ready, results, Way::InVirtualTime, &Doubts::default());
    }

    /// Adds the results of a live run.
    pub fn add_live(&mut self, ready: &Ready, live: &Live) {
        let mut part = Part::of(&live.results, ready.times, live.commands.clone());
        part.stalls.clone_from(&live.stalls);
        part.storage.clone_from(&live.storage);
        self.live = Some(part);
        self.environment.fio.clone_from(&live.fio);
        self.programs.clone_from(&live.programs);
        let news = live.warnings.iter().filter(|warning| !self.warnings.contains(warning));
        let news: Vec<String> = news.cloned().collect();
        self.warnings.extend(news);
        self.failures.extend(live.failures.iter().cloned());
        self.busy = live.busy.iter().cloned().chain(live.speeds.reason()).collect();
        let doubts = Doubts { of_all: !live.busy.is_empty(), of_programs: live.speeds.clone() };
        self.add(ready, &live.results, Way::Live, &doubts);
    }

    fn add(&mut self, ready: &Ready, results: &Results, way: Way, doubts: &Doubts) {
        let found = ready.found(results, way);
        for (point, found) in ready.points.iter().zip(found) {
            let index = self.rows.iter().position(|row| row.id == point.id);
            let at = index.unwrap_or_else(|| {
                self.rows.push(Row {
                    id: point.id.clone(),
                    what: point.what.clone(),
                    published: point.published.clone(),
                    expected: String::new(),
                    note: point.note.clone(),
                    gate: point.is_gate,
                    live_gate: point.is_live_gate,
                    is_unsafe: false,
                    live: None,
                    simulated: None,
                });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            if let Some(comparison) = &point.comparison {
                row.expected.clone_from(&comparison.bounds.words);
            }
            if way == Way::InVirtualTime {
                row.simulated = found;
                continue;
            }
            let value = found.as_ref().and_then(|found| found.value);
            let is_slowed = |compared: &Comparison| {
                let slower = doubts.of_programs.slower(&point.bound_by_client);
                slower.is_some_and(|slower| compared.may_be_slowed(value, slower))
            };
            let is_doubted = |compared: &Comparison| {
                compared.may_suffer(value) && (doubts.of_all || is_slowed(compared))
            };
            let is_unsafe = point.comparison.as_ref().is_some_and(is_doubted);
            (row.live, row.is_unsafe) = (found, is_unsafe);
        }
        self.load_after_hundredths = evenkeel_lab::environment::load_hundredths();
        let is_any_run = self.rows.iter().any(|row| row.verdict() != NOT_RUN);
        let is_kept = !self.has(BROKEN) && !self.has(UNDECIDED);
        self.pass = is_any_run && is_kept && self.failures.is_empty();
    }

    /// Returns whether nothing is broken, but something undecided: it should be run again on a
    /// quiet machine.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        self.has(UNDECIDED) && !self.has(BROKEN) && self.failures.is_empty()
    }

    fn has(&self, verdict: &str) -> bool {
        self.rows.iter().any(|row| row.verdict() == verdict)
    }

    /// Returns the result as JSON.
    ///
    /// # Errors
    /// Never in practice: no part of a result lacks a JSON form.
    pub fn to_json(&self) -> Result<String, LabError> {
        let mut text = serde_json::to_string(self).map_err(LabError::Json)?;
        text.push('\n');
        Ok(text)
    }

    /// Parses a result.
    ///
    /// # Errors
    /// When the text is not a result, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, LabError> {
        let result: Self = serde_json::from_str(text).map_err(LabError::Json)?;
        if result.schema == SCHEMA {
            return Ok(result);
        }
        let what =
            format!("a result of version {:?}, this program reads {SCHEMA:?}", result.schema);
        Err(LabError::BadOutput { tool: "the result", what })
    }
}

impl Row {
    /// Returns the verdict on the row's figures.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        let gated = [(self.live_gate, &self.live), (self.gate, &self.simulated)];
        let found = || gated.iter().filter_map(|(gate, found)| Some((*gate, found.as_ref()?)));
        let is_bad =
            |gate: bool, of: &Option<Found>| gate && of.as_ref().is_some_and(|found| !found.pass);
        match (found().next().is_some(), found().any(|(gate, _)| gate)) {
            (false, _) => NOT_RUN,
            (true, false) => "shown",
            // Virtual time has no machine that could be busy.
            (true, true) if is_bad(self.gate, &self.simulated) => BROKEN,
            (true, true) if is_bad(self.live_gate, &self.live) => {
                if self.is_unsafe {
                    UNDECIDED
                } else {
                    BROKEN
                }
            }
            (true, true) if found().any(|(_, found)| !found.pass) => KEPT_VIRTUALLY,
            (true, true) => KEPT,
        }
    }
}
