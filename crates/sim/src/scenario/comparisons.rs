//! Reads the comparisons between the runs of a scenario.

use super::expectations::{self, bounds, measure};
use super::reader::Reader;
use super::tree::{Node, Table, Value, matches};
use super::{Case, ScenarioError, matching, volumes};
use crate::scenario::compare::{By, Comparison, Factor, Measure};
use crate::scenario::expect::{Expectation, Metric};
use crate::scenario::known::Known;
use evenkeel_core::volume::{Date, VolumeSpec};

type Read<T> = Result<T, ScenarioError>;

/// The keys by which `to` and `times` may differ from their table.
const DIFFERENT: [&str; 8] = ["metric", "case", "of", "volumes", "from_s", "to_s", "at_s", "times"];

/// How the figures of several runs are combined.
#[derive(Clone, Copy)]
enum Across {
    /// Their coefficient of variation.
    CovPercent,
    /// The one that is furthest from the middle of the bounds.
    Furthest,
}

/// A latency is in milliseconds; times a rate it is a number of requests.
const SECONDS_PER_MS: f64 = 1e-3;

/// Reads the `[[compare]]` tables. Adds the figures that they compare to the measures of each run.
pub(super) fn comparisons(
    file: &str,
    node: Option<Node>,
    cases: &mut [Case],
    as_of: Date,
) -> Read<Vec<Comparison>> {
    let Some(node) = node else { return Ok(Vec::new()) };
    let document = Table::from([("compare".to_owned(), node)]);
    let document = Reader::new(file, "", 1, &document);
    let of_table = |reader: Reader<'_>| {
        let compared = comparison(&reader, cases, as_of, false)?;
        reader.done()?;
        Ok(compared)
    };
    document.tables("compare")?.into_iter().map(of_table).collect()
}

/// Reads one table. One that `may_be_alone` needs nothing to be compared with.
pub(super) fn comparison(
    reader: &Reader<'_>,
    cases: &mut [Case],
    as_of: Date,
    may_be_alone: bool,
) -> Read<Comparison> {
    let words = [("cov_percent", Across::CovPercent), ("furthest", Across::Furthest)];
    let across = reader.choice("across", &words)?;
    let other = reader.table("to")?;
    let (of, left) = measures(reader, cases, as_of)?;
    let times = factor(reader, &left, cases, as_of)?;
    if times.is_some() && (other.is_none() || across.is_some()) {
        return Err(reader.fault("times", "needs to, the divisor of the product"));
    }
    let (by, what) = match (across, &other) {
        (Some(Across::CovPercent), None) => {
            let what = format!("{}{}, variation of {} runs", left.what, left.place(), of.len());
            (By::CovPercent, what)
        }
        (Some(Across::Furthest), None) => {
            let By::Mean(metric) = left.alone else {
                return Err(reader.fault("across", "is of runs, and this is known without any"));
            };
            let what = format!("{}{}, furthest of {} runs", left.what, left.place(), of.len());
            (By::Furthest(metric), what)
        }
        (Some(Across::Furthest), Some(_)) => {
            return Err(reader.fault("across", "\"furthest\" does not go with to; remove one"));
        }
        (None, Some(other)) => {
            let merged = merged(reader, other)?;
            let right = Reader::new(reader.file(), "[[compare]] to", other.line(), &merged);
            let (to, side) = measures(&right, cases, as_of)?;
            let to_times = factor(&right, &side, cases, as_of)?;
            quotient(times, to, to_times, left.over(&side))
        }
        (Some(Across::CovPercent), Some(other)) => {
            let merged = merged(reader, other)?;
            let right = Reader::new(reader.file(), "[[compare]] to", other.line(), &merged);
            let (to, right) = measures(&right, cases, as_of)?;
            let runs = of.len();
            let of_other = to.len();
            let what = left.over(&right);
            let what = format!("{what}, variation of {runs} runs / of {of_other}");
            (By::CovRatioTo(to), what)
        }
        (None, None) if may_be_alone => {
            let words = format!("{}{}", left.what, left.place());
            (left.alone, words)
        }
        (None, None) => {
            let why = "is missing: its divisor; or across, for runs that are alike";
            return Err(reader.fault("to", why));
        }
    };
    let bounds = bounds(reader, &|value| by.shown(value))?;
    if matches!(by, By::Furthest(_)) && bounds.middle().is_none() {
        let why = "\"furthest\" needs a lower and an upper bound";
        return Err(reader.fault("across", why));
    }
    Ok(Comparison { what, of, by, times: 1.0, bounds })
}

/// Divides one side by the other, after each is multiplied by its factor.
fn quotient(
    times: Option<(Factor, String)>,
    to: Vec<Measure>,
    to_times: Option<(Factor, String)>,
    what: String,
) -> (By, String) {
    if times.is_none() && to_times.is_none() {
        return (By::RatioTo(to), what);
    }
    let (times, by) = times.unzip();
    let (to_times, to_by) = to_times.unzip();
    let by: Vec<String> = [by, to_by].into_iter().flatten().collect();
    (By::Quotient { times, to, to_times }, format!("{what}, times {}", by.join(" / ")))
}

/// Reads the factor of a side: the figures of its table with the keys in `times` replaced.
fn factor(
    reader: &Reader<'_>,
    side: &Side<'_>,
    cases: &mut [Case],
    as_of: Date,
) -> Read<Option<(Factor, String)>> {
    let Some(table) = reader.table("times")? else { return Ok(None) };
    let merged = merged(reader, &table)?;
    let reader = Reader::new(reader.file(), "[[compare]] times", table.line(), &merged);
    let (of, factor) = measures(&reader, cases, as_of)?;
    let is_latency = |side: &Side<'_>| matches!(side.alone, By::Mean(Metric::Latency(_)));
    let is_in_ms = is_latency(side) || is_latency(&factor);
    let scale = if is_in_ms { SECONDS_PER_MS } else { 1.0 };
    Ok(Some((Factor { of, scale }, factor.what)))
}

/// One side of a comparison.
struct Side<'a> {
    what: String,
    case: &'a str,
    /// How its figures are combined if there is no other side.
    alone: By,
}

impl Side<'_> {
    fn place(&self) -> String {
        if self.case == "*" { String::new() } else { format!(" in \"{}\"", self.case) }
    }

    fn over(&self, right: &Side<'_>) -> String {
        if self.what == right.what {
            return format!("{}, \"{}\" / \"{}\"", self.what, self.case, right.case);
        }
        format!("{}{} / {}{}", self.what, self.place(), right.what, right.place())
    }
}

/// Adds the measurement to every run of the named cases. Properties of volumes need no run.
fn measures<'a>(
    reader: &Reader<'a>,
    cases: &mut [Case],
    as_of: Date,
) -> Read<(Vec<Measure>, Side<'a>)> {
    let of_runs = Metric::WORDS.map(|(word, _)| (word, None));
    let known = Known::WORDS.map(|(word, known)| (word, Some(known)));
    if let Some(Some(known)) = reader.choice("metric", &[&of_runs[..], &known].concat())? {
        return knowledge(reader, cases, as_of, known);
    }
    let pattern = reader.text("case")?.unwrap_or("*");
    let mut found = Vec::new();
    let mut last = None;
    for (run, case) in cases.iter_mut().enumerate() {
        if !matches(pattern, &case.name) {
            continue;
        }
        let measured = measure_in(reader, case)?;
        last = Some((measured.to_string(), measured.metric));
        found.push(Measure::Of { run, measure: case.measures.len() });
        case.measures.push(measured);
    }
    let Some((what, metric)) = last else {
        let names = cases.iter().map(|case| case.name.as_str());
        return Err(super::nothing_called(reader, "case", "case", pattern, names));
    };
    Ok((found, Side { what, case: pattern, alone: By::Mean(metric) }))
}

/// Computes a property of the volumes that the table describes itself, or of those of a case.
fn knowledge<'a>(
    reader: &Reader<'a>,
    cases: &[Case],
    as_of: Date,
    known: Known,
) -> Read<(Vec<Measure>, Side<'a>)> {
    let figure = |volumes: &[VolumeSpec]| {
        let value = known.of(volumes, as_of).map_err(|error| reader.fault("metric", error))?;
        Ok(Measure::Known(value))
    };
    let described = volumes::described(reader.tables("volumes")?, as_of)?;
    let side = |of: &str, case| {
        let what = format!("{of}: {}", known.words());
        Side { what, case, alone: By::Known(known) }
    };
    if !described.is_empty() {
        if reader.has("case") || reader.has("of") {
            return Err(reader.fault("volumes", "does not go with case and of; remove one of them"));
        }
        return Ok((vec![figure(&described)?], side("volumes", "*")));
    }
    let pattern = reader.text("case")?.unwrap_or("*");
    let of = reader.texts("of")?;
    let of = reader.need("of", of, "which volumes of a case; or describe them: volumes")?;
    let found = cases
        .iter()
        .filter(|case| matches(pattern, &case.name))
        .map(|case| figure(&typed_volumes(reader, &of, case)?))
        .collect::<Read<Vec<Measure>>>()?;
    if found.is_empty() {
        let names = cases.iter().map(|case| case.name.as_str());
        return Err(super::nothing_called(reader, "case", "case", pattern, names));
    }
    Ok((found, side(&of.join(" + "), pattern)))
}

/// Returns the named volumes of a case. Returns an error if one has raw limits.
fn typed_volumes(reader: &Reader<'_>, of: &[&str], case: &Case) -> Read<Vec<VolumeSpec>> {
    let names = || case.setup.volumes.iter().map(|volume| volume.name.as_str());
    let mut specs = Vec::new();
    for pattern in of {
        let found = matching(pattern, names());
        if found.is_empty() {
            return Err(super::nothing_called(reader, "of", "volume", pattern, names()));
        }
        for number in found {
            let volume = &case.setup.volumes[number as usize];
            let raw = || {
                let message = format!("\"{}\" has raw limits: it has no type", volume.name);
                reader.fault("of", message)
            };
            specs.push(volume.spec.ok_or_else(raw)?);
        }
    }
    Ok(specs)
}

fn measure_in(reader: &Reader<'_>, case: &Case) -> Read<Expectation> {
    let patterns = reader.need("of", reader.texts("of")?, "of what")?;
    let measured = measure(reader, &case.setup)?;
    if measured.metric == Metric::EverySecond {
        return Err(reader.fault("metric", "is of bounds, and a comparison has none for it"));
    }
    expectations::of_all(reader, &patterns, &case.setup, measured)
}

/// Returns the table with the keys in `to` replaced.
fn merged(reader: &Reader<'_>, other: &Reader<'_>) -> Read<Table> {
    let mut merged = reader.entries().clone();
    for (key, node) in other.entries() {
        if !DIFFERENT.contains(&key.as_str()) {
            let message = format!("to: {key} cannot differ; only {}", DIFFERENT.join(", "));
            return Err(ScenarioError::new(reader.file(), node.line, message));
        }
        let line = other.line();
        let value: Value = node.value.clone();
        merged.insert(key.clone(), Node { line, value });
    }
    Ok(merged)
}
