//! Scenario files: the description of a simulation and of its expected results.
//!
//! | file | content |
//! |---|---|
//! | `tree.rs` | TOML to values with lines; the cases a scenario is run for |
//! | `reader.rs` | one table: bounds, words, unknown keys |
//! | `volumes.rs` | volumes, instances, stripes, changes |
//! | `clients.rs` | clients |
//! | `program.rs` | programs that stand for a client in a live run |
//! | `machine.rs` | device and poller |
//! | `setup.rs` | a run as plain data, the result of the files above |
//! | `expectations.rs` | reads the expectations of a run |
//! | `expect.rs` | an expectation, and its verdict on a run |
//! | `comparisons.rs` | reads the comparisons between runs |
//! | `compare.rs` | a comparison, and its verdict on runs: the gates of experiments |
//! | `known.rs` | properties of volumes that need no run |
//! | `levels.rs` | the lines of limits in a chart of a rate |
//! | `points.rs` | published figures, and their counterparts in our runs |
//! | `catalogue.rs` | the scenarios that come with the program, and the test of each |
//!
//! All keys are explained in docs/reference/scenarios.md.

pub mod catalogue;
mod clients;
pub mod compare;
mod comparisons;
pub mod expect;
mod expectations;
pub mod known;
pub mod levels;
mod machine;
mod points;
pub mod program;
mod reader;
pub mod setup;
mod tree;
mod volumes;

use self::compare::Comparison;
use self::expect::Expectation;
use self::setup::Setup;
use evenkeel_core::volume::{Date, Rules};
pub use points::{Point, points};
use reader::Reader;
use std::fmt;
use std::path::Path;
use tree::Binding;

/// The longest run: a year.
const DURATION_S_MAX: u64 = 366 * 86_400;
/// Maximum number of samples of all volumes of a run together. It bounds the memory of a run.
const SAMPLES_MAX: u64 = 20_000_000;
/// Maximum number of volumes of a run.
const VOLUMES_MAX: usize = 4_096;

/// A scenario that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    /// Title of a few words.
    pub title: String,
    /// Description of the experiment.
    pub about: String,
    /// Where its figures come from.
    pub source: String,
    /// Day of the volume rules.
    pub as_of: Date,
    /// Seed of the first case. Each further case has the next number.
    pub seed: u64,
    /// The runs.
    pub cases: Vec<Case>,
    /// Comparisons between the runs.
    pub comparisons: Vec<Comparison>,
}

/// One run of a scenario.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Name of the case; empty if it is the only one.
    pub name: String,
    /// Unique name of the run: the case, and the number of the repetition.
    pub label: String,
    /// The simulated world.
    pub setup: Setup,
    /// Expectations of the run.
    pub expectations: Vec<Expectation>,
    /// Figures that are measured for comparisons.
    pub measures: Vec<Expectation>,
}

/// A scenario cannot be read. The message has the file and line, the key, its value and its bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScenarioError {
    /// `file:line: what is wrong`.
    pub message: String,
    /// A remedy, if one is known.
    pub hint: Option<String>,
}

impl ScenarioError {
    pub(super) fn new(file: &str, line: usize, message: impl AsRef<str>) -> Self {
        Self { message: format!("{file}:{line}: {}", message.as_ref()), hint: None }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "\n hint: {hint}"))
    }
}

impl std::error::Error for ScenarioError {}

/// Reads the files that a scenario names. The simulator itself opens none.
pub trait Files {
    /// Reads the file at `path`, which is relative to the scenario.
    ///
    /// # Errors
    /// Returns the whole message: the file, and why it cannot be read.
    fn read(&self, path: &str) -> Result<NamedText, String>;
}

/// The text of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedText {
    /// Path of the file in error messages.
    pub name: String,
    /// Its content.
    pub text: String,
}

/// Where a scenario's text comes from.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Path of the file in error messages.
    pub file: &'a str,
    /// Its content.
    pub text: &'a str,
    /// Reads the files that the scenario names; `None` if it may name none.
    pub files: Option<&'a dyn Files>,
    /// Day of the volume rules, if another than the scenario's.
    pub as_of: Option<Date>,
    /// Length of the runs in seconds, if another than the scenario's.
    pub duration_s: Option<u64>,
}

impl<'a> Source<'a> {
    /// Creates the source of a text that names no files, with the day and the length that it
    /// states.
    #[must_use]
    pub const fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, files: None, as_of: None, duration_s: None }
    }
}

impl Scenario {
    /// Keeps only the first `runs` runs, and the comparisons between them.
    pub fn keep(&mut self, runs: usize) {
        self.cases.truncate(runs);
        self.comparisons.retain(|comparison| comparison.is_within(runs));
    }
}

/// Reads a scenario.
///
/// # Errors
/// Returns an error if a key, a value or a combination of them is invalid.
pub fn read(source: &Source<'_>) -> Result<Scenario, ScenarioError> {
    let mut document = tree::parse(source.file, source.text)?;
    let bindings = tree::take_cases(source.file, &mut document)?;
    let compared = document.remove("compare");
    let mut scenario = None;
    let mut cases = Vec::with_capacity(bindings.len());
    for binding in bindings {
        let bound = tree::bind(source.file, &document, &binding)?;
        let reader = Reader::new(source.file, "", 1, &bound);
        if scenario.is_none() {
            scenario = Some(head(source, &reader)?);
        }
        let Some(Scenario { as_of, .. }) = &scenario else { continue };
        let (setup, expectations) = case(source, reader, *as_of)?;
        let Binding { case: name, label, .. } = binding;
        cases.push(Case { name, label, setup, expectations, measures: Vec::new() });
    }
    let scenario = scenario.ok_or_else(|| ScenarioError::new(source.file, 1, "nothing to run"))?;
    let as_of = scenario.as_of;
    let comparisons = comparisons::comparisons(source.file, compared, &mut cases, as_of)?;
    Ok(Scenario { cases, comparisons, ..scenario })
}

fn head(source: &Source<'_>, reader: &Reader<'_>) -> Result<Scenario, ScenarioError> {
    let stem = Path::new(source.file).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let title = reader.text("title")?;
    let as_of = match reader.text("as_of")? {
        None => Rules::newest().date(),
        Some(text) => text.parse().map_err(|error| reader.fault("as_of", format!("{error}")))?,
    };
    Ok(Scenario {
        name: stem.unwrap_or_default(),
        title: reader.need("title", title, "the scenario in a few words")?.to_owned(),
        about: reader.text("about")?.unwrap_or_default().trim().to_owned(),
        source: reader.text("source")?.unwrap_or_default().trim().to_owned(),
        as_of: source.as_of.unwrap_or(as_of),
        seed: reader.whole("seed", 0..=i64::MAX as u64)?.unwrap_or(1),
        cases: Vec::new(),
        comparisons: Vec::new(),
    })
}

fn case(
    source: &Source<'_>,
    reader: Reader<'_>,
    as_of: Date,
) -> Result<(Setup, Vec<Expectation>), ScenarioError> {
    for known in ["title", "about", "source", "as_of"] {
        let _ = reader.text(known)?;
    }
    reader.has("seed");
    let rules =
        Rules::as_of(as_of).map_err(|error| reader.fault("as_of", format!("{as_of}: {error}")))?;
    let duration_s = reader.whole("duration_s", 1..=DURATION_S_MAX)?;
    let duration_s = reader.need("duration_s", duration_s, "how long to simulate, in seconds")?;
    let duration_s = source.duration_s.unwrap_or(duration_s);
    let sample_s = reader.whole("sample_s", 1..=duration_s)?.unwrap_or(1);
    let instances = volumes::instances(&reader, as_of)?;
    let volumes = volumes::volumes(&reader, rules, &instances)?;
    if volumes.is_empty() || volumes.len() > VOLUMES_MAX {
        let message = format!("{} [[volume]]s; from 1 to {VOLUMES_MAX}", volumes.len());
        return Err(ScenarioError::new(source.file, 1, message));
    }
    let samples = duration_s / sample_s * volumes.len() as u64;
    if samples > SAMPLES_MAX {
        let message = format!("{samples} samples would be kept; at most {SAMPLES_MAX}");
        let fault = ScenarioError::new(source.file, 1, message);
        return Err(fault.hint("a larger sample_s keeps fewer"));
    }
    let stripes = volumes::stripes(&reader, &volumes)?;
    let mut setup = Setup {
        duration_ns: duration_s * 1_000_000_000,
        sample_ns: sample_s * 1_000_000_000,
        volumes,
        instances,
        stripes,
        clients: Vec::new(),
        device: machine::device(&reader)?,
        poller: machine::poller(&reader)?,
        changes: Vec::new(),
    };
    setup.clients = clients::clients(source, &reader, &setup)?;
    setup.changes = volumes::changes(&reader, rules, &setup)?;
    setup.changes.extend(machine::stalls(&reader)?);
    setup.changes.sort_by_key(|change| change.at_ns);
    let expectations = expectations::expectations(&reader, &setup)?;
    reader.done()?;
    Ok((setup, expectations))
}

/// Returns the numbers of the names that match: `db` is that name, `db-*` all that begin with
/// `db-`.
fn matching<'n>(pattern: &str, names: impl Iterator<Item = &'n str>) -> Vec<u32> {
    let numbered = names.zip(0_u32..).filter(|(name, _)| tree::matches(pattern, name));
    numbered.map(|(_, number)| number).collect()
}

/// Returns the error for a name that does not exist.
fn nothing_called<'n>(
    reader: &Reader<'_>,
    key: &str,
    kind: &str,
    wanted: &str,
    names: impl Iterator<Item = &'n str>,
) -> ScenarioError {
    let fault = reader.fault(key, format!("no {kind} is called \"{wanted}\""));
    match crate::text::nearest(wanted, names) {
        Some(near) => fault.hint(format!("did you mean \"{near}\"?")),
        None => fault,
    }
}

#[cfg(test)]
mod tests;
