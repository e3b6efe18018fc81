//! What came of a suite, as JSON: the master of which tables, pages and comparisons are made.

use serde::{Deserialize, Serialize};

use super::{Ready, Suite};
use crate::LabError;
use crate::bench::live::Live;
use crate::clock;
use crate::environment::Environment;
use crate::histogram::LatencySummary;
use crate::sim::run::{CaseResults, Results, SubjectResults};
use crate::stalls::Observed;
use crate::stats::Sample;

/// Names the shape of the JSON. It changes when a reader of the old shape would misread the new
/// one.
pub const SCHEMA: &str = "evenkeel-result/1";

/// Values of a run that are kept at most: neighbours of a longer run are added up.
const VALUES_MAX: usize = 600;
/// Batches of a run that are kept at most; of more, every second, third, ... is.
const BATCHES_MAX: usize = 1_200;

/// Stands between a case and one of its clients in the name of a configuration.
pub const SEPARATOR: &str = " · ";

/// The verdict of a point that is not what it must be.
pub const BROKEN: &str = "BROKEN";
/// The verdict of one that is.
pub const KEPT: &str = "kept";
/// The verdict of one that is in virtual time, and for real is not, which is no gate.
pub const KEPT_VIRTUALLY: &str = "kept in virtual time";
/// The verdict of a point that no run had a case for.
pub const NOT_RUN: &str = "not run";

/// A suite that was run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SuiteResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// The suite's name.
    pub suite: String,
    /// What it shows.
    pub title: String,
    /// The article.
    pub article: String,
    /// When it was run.
    pub measured_at: String,
    /// On what.
    pub environment: Environment,
    /// Load average of the last minute before the first run, in hundredths.
    pub load_before_hundredths: Option<u64>,
    /// The same after the last.
    pub load_after_hundredths: Option<u64>,
    /// Whether no gate failed, and no program.
    pub pass: bool,
    /// The published figures and ours.
    pub rows: Vec<Row>,
    /// What was run for real.
    pub live: Option<Part>,
    /// What was run in virtual time.
    pub simulated: Option<Part>,
    /// What a reader should know before believing the figures.
    pub warnings: Vec<String>,
    /// Programs that came to nothing: in which run, and why. A run with one does not pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// A published figure and ours.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What it is called.
    pub id: String,
    /// What was measured.
    pub what: String,
    /// What the article says.
    pub published: String,
    /// What ours must be.
    pub expected: String,
    /// What to know of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Whether a run fails by it; else it is shown only.
    pub gate: bool,
    /// Whether a run for real fails by it, too.
    #[serde(default = "yes")]
    pub live_gate: bool,
    /// Ours, for real.
    pub live: Option<Found>,
    /// Ours, in virtual time.
    pub simulated: Option<Found>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn yes() -> bool {
    true
}

/// Our figure.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// As a number, in the unit of `shown`; none if there was nothing to measure.
    pub value: Option<f64>,
    /// In words, with its unit.
    pub shown: String,
    /// Whether it is what it must be.
    pub pass: bool,
}

/// One way of running a suite.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The scenario.
    pub scenario: String,
    /// Seconds of the article in each of its seconds.
    pub times: u32,
    /// Day of the volume rules.
    pub as_of: String,
    /// Seed of the first run; the next has the next one.
    pub seed: u64,
    /// The exact command lines.
    pub commands: Vec<String>,
    /// Where the bytes were, and how: stores, file systems with their mount options, I/O
    /// schedulers.
    #[serde(default)]
    pub storage: Vec<String>,
    /// The machine's own pauses, a run each.
    #[serde(default)]
    pub stalls: Vec<Observed>,
    /// What was run.
    pub configurations: Vec<Configuration>,
}

/// The runs of one case, as one client or volume saw them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// The case, and the client if there are several.
    pub name: String,
    /// I/Os per second of the runs; of a client with batches, calls per second of the batches.
    pub iops: Sample,
    /// The runs.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// I/Os that were answered.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Length in seconds.
    pub duration_s: u64,
    /// Latencies as the client saw them.
    pub latency: LatencySummary,
    /// Seconds in each of `samples`.
    pub sample_s: u64,
    /// I/Os answered, sample by sample.
    pub samples: Vec<u64>,
    /// Seconds in each of `mean_latency_ns`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_s: u64,
    /// Mean latencies one after the other, zero where there was nothing; of the first run of a
    /// client that is one of several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mean_latency_ns: Vec<u64>,
    /// Batches of a client: the calls per second of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_rates: Vec<f64>,
}

impl Configuration {
    /// What its statistics are of: the batches of a client that has some, else the runs.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let batches: Vec<f64> =
            self.runs.iter().flat_map(|run| run.batch_rates.iter().copied()).collect();
        if batches.is_empty() { self.runs.iter().map(Run::iops).collect() } else { batches }
    }
}

impl Run {
    /// I/Os per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.duration_s.max(1) as f64
    }

    /// What the run came to: calls per second of its batches on average if it has some, else I/Os
    /// per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.batch_rates.len() {
            0 => self.iops(),
            batches => self.batch_rates.iter().sum::<f64>() / batches as f64,
        }
    }

    /// I/Os per second in each sample.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let sample_s = self.sample_s.max(1) as f64;
        self.samples.iter().map(|ios| *ios as f64 / sample_s).collect()
    }

    fn of(case: &CaseResults, subject: &SubjectResults) -> Self {
        let together = subject.completed.len().div_ceil(VALUES_MAX).max(1);
        let every = subject.jobs.len().div_ceil(BATCHES_MAX).max(1);
        let rate = |(_, took_ns): &(u64, u64)| {
            // A thousandth of a call per second is more than a clock is good for.
            (subject.job_ios as f64 * 1e12 / (*took_ns).max(1) as f64).round() / 1e3
        };
        Self {
            ios: subject.ios,
            bytes: subject.bytes,
            duration_s: case.duration_s,
            latency: subject.latency,
            sample_s: case.sample_s * together as u64,
            samples: subject.completed.chunks(together).map(|ios| ios.iter().sum()).collect(),
            latency_s: 0,
            mean_latency_ns: Vec::new(),
            batch_rates: subject.jobs.iter().step_by(every).map(rate).collect(),
        }
    }

    /// The same with its latencies over time.
    fn with_latencies(mut self, case: &CaseResults, subject: &SubjectResults) -> Self {
        let means: Vec<u64> = subject.latencies.iter().map(|at| at.mean_ns).collect();
        if means.iter().any(|mean_ns| *mean_ns > 0) {
            self.latency_s = case.sample_s * subject.latency_samples;
            self.mean_latency_ns = means;
        }
        self
    }
}

impl Part {
    /// What a scenario came to.
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

/// The runs of each case together. Where clients are recorded, they are what is looked at.
fn configurations(results: &Results) -> Vec<Configuration> {
    let mut found: Vec<Configuration> = Vec::new();
    for case in &results.cases {
        let subjects = if case.clients.is_empty() { &case.volumes } else { &case.clients };
        let case_name = case.label.rsplit_once(" (").map_or(case.label.as_str(), |(name, _)| name);
        for subject in subjects {
            let name = match (subjects.len(), case_name) {
                (1, "") => subject.name.clone(),
                (1, case) => case.to_owned(),
                (_, "") => subject.name.clone(),
                (_, case) => format!("{case}{SEPARATOR}{}", subject.name),
            };
            let run = Run::of(case, subject);
            match found.iter_mut().find(|known| known.name == name) {
                Some(known) => known.runs.push(run),
                None => {
                    // Who waits for whom is told by several that are there at once.
                    let run = match subjects.len() {
                        1 => run,
                        _ => run.with_latencies(case, subject),
                    };
                    found.push(Configuration { name, iops: Sample::default(), runs: vec![run] });
                }
            }
        }
    }
    for configuration in &mut found {
        configuration.iops = Sample::of(&configuration.rates());
    }
    found
}

impl SuiteResult {
    /// Nothing was run yet.
    #[must_use]
    pub fn begin(name: &str, suite: &Suite) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            suite: name.to_owned(),
            title: suite.title.trim().to_owned(),
            article: suite.article.trim().to_owned(),
            measured_at: clock::utc_now(),
            environment: Environment::read(String::new()),
            load_before_hundredths: crate::environment::load_hundredths(),
            load_after_hundredths: None,
            pass: false,
            rows: Vec::new(),
            live: None,
            simulated: None,
            warnings: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Adds what came in virtual time.
    pub fn add_simulated(&mut self, ready: &Ready, results: &Results) {
        let scenario = &results.scenario;
        let command = format!("evenkeel sim run {scenario} --seed {}", results.seed);
        self.simulated = Some(Part::of(results, ready.times, vec![command]));
        self.add(ready, results, |row, found| row.simulated = found);
    }

    /// Adds what came for real.
    pub fn add_live(&mut self, ready: &Ready, live: &Live) {
        let mut part = Part::of(&live.results, ready.times, live.commands.clone());
        part.stalls.clone_from(&live.stalls);
        part.storage.clone_from(&live.storage);
        self.live = Some(part);
        self.environment.fio.clone_from(&live.fio);
        let news = live.warnings.iter().filter(|warning| !self.warnings.contains(warning));
        let news: Vec<String> = news.cloned().collect();
        self.warnings.extend(news);
        self.failures.extend(live.failures.iter().cloned());
        self.add(ready, &live.results, |row, found| row.live = found);
    }

    fn add(&mut self, ready: &Ready, results: &Results, put: fn(&mut Row, Option<Found>)) {
        let found = ready.found(results);
        for (point, found) in ready.points.iter().zip(found) {
            let at = self.rows.iter().position(|row| row.id == point.id);
            let at = at.unwrap_or_else(|| {
                self.rows.push(Row {
                    id: point.id.clone(),
                    what: point.what.clone(),
                    published: point.published.clone(),
                    expected: String::new(),
                    note: point.note.clone(),
                    gate: point.is_gate,
                    live_gate: point.is_live_gate,
                    live: None,
                    simulated: None,
                });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            if let Some(comparison) = &point.comparison {
                row.expected.clone_from(&comparison.bounds.words);
            }
            put(row, found);
        }
        self.load_after_hundredths = crate::environment::load_hundredths();
        let is_any_run = self.rows.iter().any(|row| row.verdict() != NOT_RUN);
        let is_any_broken = self.rows.iter().any(|row| row.verdict() == BROKEN);
        self.pass = is_any_run && !is_any_broken && self.failures.is_empty();
    }

    /// As JSON.
    ///
    /// # Errors
    /// Never in practice: no part of a result lacks a JSON form.
    pub fn to_json(&self) -> Result<String, LabError> {
        let mut text = serde_json::to_string(self).map_err(LabError::Json)?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a result back.
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
    /// What the row says of a run.
    #[must_use]
    pub fn verdict(&self) -> &'static str {
        let gated = [(self.live_gate, &self.live), (self.gate, &self.simulated)];
        let found = || gated.iter().filter_map(|(gate, found)| Some((*gate, found.as_ref()?)));
        match (found().next().is_some(), found().any(|(gate, _)| gate)) {
            (false, _) => NOT_RUN,
            (true, false) => "shown",
            (true, true) if found().any(|(gate, found)| gate && !found.pass) => BROKEN,
            (true, true) if found().any(|(_, found)| !found.pass) => KEPT_VIRTUALLY,
            (true, true) => KEPT,
        }
    }
}
