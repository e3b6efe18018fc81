//! What a scenario expects of its runs beside each other.

use super::expectations::{self, bounds, measure};
use super::reader::Reader;
use super::tree::{Node, Table, Value, matches};
use super::{Case, ScenarioError};
use crate::sim::compare::{By, Comparison, Measure};
use crate::sim::expect::{Expectation, Metric};

type Read<T> = Result<T, ScenarioError>;

/// The keys that `to` may have: those in which it differs.
const DIFFERENT: [&str; 5] = ["case", "of", "from_s", "to_s", "at_s"];

/// The `[[compare]]` tables; what they compare is added to what is measured of each run.
pub(super) fn comparisons(
    file: &str,
    node: Option<Node>,
    cases: &mut [Case],
) -> Read<Vec<Comparison>> {
    let Some(node) = node else { return Ok(Vec::new()) };
    let document = Table::from([("compare".to_owned(), node)]);
    let document = Reader::new(file, "", 1, &document);
    let of_table = |reader: Reader<'_>| {
        let compared = comparison(&reader, cases, false)?;
        reader.done()?;
        Ok(compared)
    };
    document.tables("compare")?.into_iter().map(of_table).collect()
}

/// What one table compares; one that `may_be_alone` is compared with nothing.
pub(super) fn comparison(
    reader: &Reader<'_>,
    cases: &mut [Case],
    may_be_alone: bool,
) -> Read<Comparison> {
    let across = reader.choice("across", &[("cov_percent", By::CovPercent)])?;
    let other = reader.table("to")?;
    let (of, left) = measures(reader, cases)?;
    let (by, what) = match (across, &other) {
        (Some(across), None) => {
            let what = format!("{}{}, variation of {} runs", left.what, left.place(), of.len());
            (across, what)
        }
        (None, Some(other)) => {
            let merged = merged(reader, other)?;
            let right = Reader::new(reader.file(), "[[compare]] to", other.line(), &merged);
            let (to, right) = measures(&right, cases)?;
            (By::RatioTo(to), left.over(&right))
        }
        (Some(_), Some(_)) => {
            return Err(reader.fault("across", "does not go with to; remove one of them"));
        }
        (None, None) if may_be_alone => {
            let words = format!("{}{}", left.what, left.place());
            (By::Mean(left.metric), words)
        }
        (None, None) => {
            let why = "is missing: what it is divided by; or across, for runs that are alike";
            return Err(reader.fault("to", why));
        }
    };
    let bounds = bounds(reader, &|value| by.shown(value))?;
    Ok(Comparison { what, of, by, times: 1.0, bounds })
}

/// One side of a comparison in words.
struct Side<'a> {
    what: String,
    case: &'a str,
    metric: Metric,
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

/// Adds what is measured to every run of the cases that are named.
fn measures<'a>(reader: &Reader<'a>, cases: &mut [Case]) -> Read<(Vec<Measure>, Side<'a>)> {
    let pattern = reader.text("case")?.unwrap_or("*");
    let mut found = Vec::new();
    let mut last = None;
    for (run, case) in cases.iter_mut().enumerate() {
        if !matches(pattern, &case.name) {
            continue;
        }
        let measured = measure_in(reader, case)?;
        last = Some((measured.to_string(), measured.metric));
        found.push(Measure { run, measure: case.measures.len() });
        case.measures.push(measured);
    }
    let Some((what, metric)) = last else {
        let names = cases.iter().map(|case| case.name.as_str());
        return Err(super::nothing_called(reader, "case", "case", pattern, names));
    };
    Ok((found, Side { what, case: pattern, metric }))
}

fn measure_in(reader: &Reader<'_>, case: &Case) -> Read<Expectation> {
    let patterns = reader.need("of", reader.texts("of")?, "of what")?;
    let measured = measure(reader, &case.setup)?;
    if measured.metric == Metric::EverySecond {
        return Err(reader.fault("metric", "is of bounds, and a comparison has none for it"));
    }
    expectations::of_all(reader, &patterns, &case.setup, measured)
}

/// The table itself with what `to` says instead.
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
