//! The statistics of each configuration: one row of a table, for a terminal and for a page.

use super::configuration::{Configuration, RUNS_MIN};
use crate::stats::{Bootstrap, Sample};
use crate::text;

/// The headings of the columns after the configuration's name, and what is to be known of each.
pub(crate) const COLUMNS: [(&str, &str); 14] = [
    ("n", "runs, or batches of a client that makes some"),
    ("mean IOPS", ""),
    ("95 % interval", "of the mean, from 10,000 bootstrap samples"),
    ("min", ""),
    ("max", ""),
    ("SD", "sample standard deviation"),
    ("SE", "standard error of the mean, SD / √n"),
    ("CoV", "coefficient of variation, SD / mean"),
    ("MiB/s", "mean IOPS times the bytes of a request"),
    ("latency mean", "of the first run, as the client saw it"),
    ("p50", "of the first run"),
    ("p95", "of the first run"),
    ("p99", "of the first run"),
    ("p99.9", "of the first run"),
];

/// What stands where nothing is known.
const NOTHING: &str = "–";

/// The cells of a configuration's row, in the order of [`COLUMNS`].
pub(crate) fn cells(configuration: &Configuration) -> Vec<String> {
    let Sample { n, mean, min, max, sd, se, cov } = configuration.iops;
    let nothing = || NOTHING.to_owned();
    let interval =
        Bootstrap::default().mean(&configuration.rates()).filter(|_| n >= RUNS_MIN as u64);
    let interval = interval
        .map_or_else(nothing, |at| format!("{} to {}", text::rate(at.low), text::rate(at.high)));
    let mut cells = vec![n.to_string(), text::rate(mean), interval];
    cells.extend([min, max, sd, se].map(text::rate));
    cells.push(text::percent(cov));
    cells.push(configuration.mibps().map_or_else(nothing, mibps));
    let first = configuration.runs.first();
    let latency = first.map(|run| run.latency).unwrap_or_default();
    let p95_ns = first.and_then(|run| run.p95_ns()).unwrap_or(0);
    let ns = [latency.mean_ns, latency.p50_ns, p95_ns, latency.p99_ns, latency.p999_ns];
    cells.extend(ns.map(|ns| if ns == 0 { nothing() } else { text::latency(ns) }));
    cells
}

/// Small volumes move less than one a second.
fn mibps(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2}") } else { text::rate(rate) }
}
