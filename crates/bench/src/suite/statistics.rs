//! The statistics of each configuration: one row of a table, for a terminal and for a page.

use super::configuration::Configuration;
use evenkeel_sim::figures::stats::Sample;
use evenkeel_sim::text;

/// The headings of the columns after the configuration's name, and explanations of them.
pub(crate) const COLUMNS: [(&str, &str); 15] = [
    ("n", "runs, or batches of a client that makes some"),
    ("of", "what is counted"),
    ("mean/s", "mean of the runs or batches, a second"),
    ("95 % interval", "of the mean, by 10,000 bootstrap samples; of few runs, Student's width"),
    ("min", ""),
    ("max", ""),
    ("SD", "sample standard deviation"),
    ("SE", "standard error of the mean, SD / √n"),
    ("CoV", "coefficient of variation, SD / mean"),
    ("MiB/s", "mean times the bytes of a request"),
    ("latency mean", "of the first run, as the client saw it"),
    ("p50", "of the first run"),
    ("p95", "of the first run"),
    ("p99", "of the first run"),
    ("p99.9", "of the first run"),
];

/// The text of an unknown value.
const NOTHING: &str = "–";

/// Returns the cells of a configuration's row, in the order of [`COLUMNS`]. The variation of a
/// single run is unknown.
pub(crate) fn cells(configuration: &Configuration) -> Vec<String> {
    let Sample { n, mean, min, max, sd, se, cov } = configuration.iops;
    let nothing = || NOTHING.to_owned();
    if configuration.is_unknown() {
        return std::iter::repeat_with(nothing).take(COLUMNS.len()).collect();
    }
    let interval = configuration.interval().map_or_else(nothing, |interval| {
        format!("{} to {}", text::rate(interval.low), text::rate(interval.high))
    });
    let spread = |shown: String| if n > 1 { shown } else { nothing() };
    let unit = configuration.unit().to_owned();
    let mut cells = vec![n.to_string(), unit, text::rate(mean), interval];
    cells.extend([min, max].map(text::rate));
    cells.extend([sd, se].map(|value| spread(text::rate(value))));
    cells.push(spread(text::percent(cov)));
    cells.push(configuration.mibps().map_or_else(nothing, mibps));
    let first = configuration.runs.first();
    let latency = first.map(|run| run.latency).unwrap_or_default();
    let p95_ns = first.and_then(|run| run.p95_ns()).unwrap_or(0);
    let ns = [latency.mean_ns, latency.p50_ns, p95_ns, latency.p99_ns, latency.p999_ns];
    cells.extend(ns.map(|ns| if ns == 0 { nothing() } else { text::latency(ns) }));
    cells
}

/// Formats MiB per second, with two digits if there are few: small volumes move less than one.
fn mibps(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.2}") } else { text::rate(rate) }
}

#[cfg(test)]
mod tests {
    use super::super::configuration::Run;
    use super::*;
    use evenkeel_sim::figures::histogram::LatencySummary;

    fn of(rates: &[f64], unit: &str) -> Configuration {
        let run = |rate: &f64| Run {
            ios: 0,
            bytes: 0,
            duration_s: 10,
            latency: LatencySummary::default(),
            quantiles_ns: Vec::new(),
            sample_s: 1,
            samples: Vec::new(),
            latency_s: 0,
            mean_latency_ns: Vec::new(),
            credits: Vec::new(),
            credits_bytes: Vec::new(),
            batch_rates: if *rate > 0.0 { vec![*rate] } else { Vec::new() },
        };
        Configuration {
            name: "x".to_owned(),
            iops: Sample::of(rates),
            block_bytes: 0,
            unit: unit.to_owned(),
            levels: Vec::new(),
            runs: rates.iter().map(run).collect(),
        }
    }

    /// R returns NA for the variation of one value, and for values that do not exist.
    #[test]
    fn unknown_values_are_dashes_and_not_zeroes() {
        let first = |configuration: &Configuration| cells(configuration)[..9].join(" ");
        assert_eq!(first(&of(&[100.0], "")), "1 I/Os 100 – 100 100 – – –");
        assert_eq!(first(&of(&[100.0, 102.0], "MB")), "2 MB 101 – 100 102 1.4 1 1.40 %");
        assert!(cells(&of(&[0.0], "")).iter().all(|cell| cell == NOTHING), "not recorded");
    }
}
