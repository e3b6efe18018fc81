//! The comparison of two results: their ratio, and its confidence interval.

use std::fmt::Write as _;

use serde::Serialize;

use super::result::{Configuration, Part, Run, SuiteResult};
use evenkeel_lab::LabError;
use evenkeel_sim::figures::stats::{Bootstrap, Interval, Sample};
use evenkeel_sim::text::{self, columns};

/// Runs, or batches, from which on they are compared; with fewer, their samples are.
const RUNS_MIN: usize = 3;

/// The comparison of two results of one suite.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Comparison {
    /// Names the shape of the JSON.
    pub schema: &'static str,
    /// The suite.
    pub suite: String,
    /// The configurations that both have, and how they differ.
    pub rows: Vec<Compared>,
}

/// One configuration that both results have.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Compared {
    /// `live` or `simulated`.
    pub part: &'static str,
    /// The configuration.
    pub name: String,
    /// The name of the counted things, in the plural.
    pub unit: String,
    /// `runs` or `samples`: the values that the figures summarize.
    pub of: &'static str,
    /// Rates per second in the first result.
    pub a: Sample,
    /// Rates per second in the second result.
    pub b: Sample,
    /// Mean of the first divided by mean of the second; `None` if that is 0.
    pub ratio: Option<f64>,
    /// The 95 % confidence interval of the ratio; `None` if nothing was done in either.
    pub interval: Option<Interval>,
}

impl Compared {
    /// Returns whether chance alone explains the difference: 1 lies in the interval, or outside of
    /// it by no more than the rounding of the means.
    #[must_use]
    pub fn may_be_same(&self) -> bool {
        const ROUNDED: f64 = 1e-9;
        self.interval
            .is_none_or(|interval| interval.low <= 1.0 + ROUNDED && 1.0 - ROUNDED <= interval.high)
    }
}

/// Compares the configurations that two results have in common.
///
/// # Errors
/// When they are of different suites, or have nothing in common.
pub fn compare(a: &SuiteResult, b: &SuiteResult) -> Result<Comparison, LabError> {
    if a.suite != b.suite {
        let [a, b] = [&a.suite, &b.suite];
        let what = format!("the results cannot be compared: one is of {a}, the other of {b}");
        return Err(LabError::failed(what));
    }
    let mut rows = Vec::new();
    for (part, a, b) in [("live", &a.live, &b.live), ("simulated", &a.simulated, &b.simulated)] {
        if let (Some(a), Some(b)) = (a, b) {
            rows.extend(compared(part, a, b));
        }
    }
    if rows.is_empty() {
        let what = format!("the two results of {} have no configuration in common", a.suite);
        return Err(LabError::failed(what));
    }
    Ok(Comparison { schema: "evenkeel-comparison/1", suite: a.suite.clone(), rows })
}

fn compared<'a>(
    part: &'static str,
    a: &'a Part,
    b: &'a Part,
) -> impl Iterator<Item = Compared> + use<'a> {
    let known = |of: &&Configuration| !of.is_unknown();
    a.configurations.iter().filter(known).filter_map(move |left| {
        let is_same = |right: &&Configuration| right.name == left.name && !right.is_unknown();
        let right = b.configurations.iter().find(is_same)?;
        let a_rates = left.rates();
        let b_rates = right.rates();
        let by_runs = a_rates.len() >= RUNS_MIN && b_rates.len() >= RUNS_MIN;
        let samples =
            |of: &Configuration| of.runs.iter().flat_map(Run::rates).collect::<Vec<f64>>();
        let (left_values, right_values) =
            if by_runs { (a_rates, b_rates) } else { (samples(left), samples(right)) };
        let a = Sample::of(&left_values);
        let b = Sample::of(&right_values);
        Some(Compared {
            part,
            name: left.name.clone(),
            unit: left.unit().to_owned(),
            of: if by_runs { "runs" } else { "samples" },
            ratio: (b.mean > 0.0).then(|| a.mean / b.mean),
            interval: Bootstrap::default().ratio(&left_values, &right_values),
            a,
            b,
        })
    })
}

impl Comparison {
    /// Returns the comparison as a table for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let head =
            ["", "configuration", "of", "A", "CoV", "B", "CoV", "A / B", "95 % interval", "n", ""];
        let mut lines = vec![head.map(str::to_owned).to_vec()];
        lines.extend(self.rows.iter().map(line));
        let left = [true, true, true, false, false, false, false, false, true, false, true];
        let mut out = format!("{}: means a second\n\n{}", self.suite, columns(&lines, &left));
        let differ = self.rows.iter().filter(|row| !row.may_be_same()).count();
        let _ = match differ {
            0 => writeln!(out, "\nChance explains every difference."),
            some => writeln!(out, "\n{some} of {} differ by more than chance.", self.rows.len()),
        };
        if self.rows.iter().any(|row| row.of == "samples") {
            out.push_str(
                "Fewer than three runs: their samples are compared, which are not independent.\n",
            );
        }
        out
    }
}

fn line(row: &Compared) -> Vec<String> {
    let ratio =
        |value: f64| if value.is_finite() { format!("{value:.4}") } else { "∞".to_owned() };
    let interval =
        row.interval.map(|interval| format!("{} to {}", ratio(interval.low), ratio(interval.high)));
    let verdict = if row.may_be_same() { "may be the same" } else { "differs" };
    vec![
        row.part.to_owned(),
        row.name.clone(),
        row.unit.clone(),
        text::rate(row.a.mean),
        text::percent(row.a.cov),
        text::rate(row.b.mean),
        text::percent(row.b.cov),
        row.ratio.map_or_else(|| "-".to_owned(), ratio),
        interval.unwrap_or_else(|| "-".to_owned()),
        format!("{} + {}", row.a.n, row.b.n),
        verdict.to_owned(),
    ]
}
