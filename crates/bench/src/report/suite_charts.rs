//! The charts of a suite's configurations, each with its numbers.

use std::fmt::Write as _;

use super::plots::{self, TOGETHER_MAX, Values};
use super::suite::{open_section, per_second};
use crate::suite::configuration::RUNS_MIN;
use crate::suite::result::{Configuration, Part, Run, SEPARATOR};
use crate::suite::statistics;
use evenkeel_lab::LabError;
use evenkeel_pages::chart::dash_series;
use evenkeel_pages::curves::{self, Curve, Unit};
use evenkeel_pages::html::{
    close_table, escape, figure, note, number_column, numbers_behind, open_table, text_column,
};
use evenkeel_sim::figures::histogram::SHARES_PPM;
use evenkeel_sim::figures::stats::{percentile, sorted};
use evenkeel_sim::scenario::levels::Level;
use evenkeel_sim::text;

/// Minimum number of values for a density, which shows more than the values then.
const DENSITY_MIN: usize = 30;
/// Minimum number of values for a chart that shows each of them in order.
const SCATTER_MIN: usize = 5;
/// Maximum number of groups of charts of one kind that are not folded.
const UNFOLDED_MAX: usize = 4;
/// Percentiles in the table of a distribution.
const PERCENTILES: [f64; 11] = [0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0];

/// Appends the section of one way of running a suite: its statistics, then its charts.
pub(super) fn section(page: &mut String, title: &str, part: &Part) -> Result<(), LabError> {
    open_section(page, title);
    statistics(page, part);
    let known: Vec<Configuration> = part
        .configurations
        .iter()
        .filter(|configuration| !configuration.is_unknown())
        .cloned()
        .collect();
    // Clients of one case share charts. So do cases with one client each, if they have the same
    // lines.
    let is_together = |a: &Configuration, b: &Configuration| match (parts_of(a).0, parts_of(b).0) {
        (None, None) => a.levels == b.levels,
        (a, b) => a == b,
    };
    let together = || known.chunk_by(is_together).flat_map(|of| of.chunks(TOGETHER_MAX));
    folded(page, "Over time", together(), &|page, configurations| {
        over_time(page, configurations)?;
        latency_over_time(page, configurations)
    })?;
    folded(page, "Latencies", known.chunks(TOGETHER_MAX), &latencies)?;
    folded(page, "Run to run", known.chunks(TOGETHER_MAX), &across_runs)?;
    page.push_str("</section>\n");
    Ok(())
}

/// Draws the charts of some configurations onto a page.
type Draw<'a> = dyn Fn(&mut String, &[Configuration]) -> Result<(), LabError> + 'a;

/// Draws the first charts of a kind, and the others behind a fold, as a hundred charts are too
/// many.
fn folded<'a>(
    page: &mut String,
    title: &str,
    groups: impl Iterator<Item = &'a [Configuration]>,
    draw: &Draw<'_>,
) -> Result<(), LabError> {
    let mut drawn = Vec::new();
    for configurations in groups {
        let mut charts = String::new();
        draw(&mut charts, configurations)?;
        if !charts.is_empty() {
            drawn.push(charts);
        }
    }
    if drawn.is_empty() {
        return Ok(());
    }
    let _ = writeln!(page, "<h3>{title}</h3>");
    let behind = drawn.split_off(drawn.len().min(UNFOLDED_MAX));
    page.extend(drawn);
    if !behind.is_empty() {
        let of = title.to_lowercase();
        let groups = behind.len();
        let _ = writeln!(page, "<details>\n<summary>The other charts, {of} ({groups})</summary>");
        page.extend(behind);
        page.push_str("</details>\n");
    }
    Ok(())
}

/// Appends a table of statistics: n, mean, min, max, SD, SE, CoV, MiB/s and latencies. Its headings
/// explain the columns.
fn statistics(page: &mut String, part: &Part) {
    let heading = |(heading, meaning): (&str, &str)| match meaning {
        "" => heading.to_owned(),
        meaning => format!("<abbr title=\"{meaning}\">{heading}</abbr>"),
    };
    let headings = statistics::COLUMNS.map(heading);
    let mut columns = vec![text_column("configuration")];
    columns.extend(headings.iter().map(|heading| number_column(heading)));
    open_table(page, "numbers", &columns);
    for configuration in &part.configurations {
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(&configuration.name));
        for cell in statistics::cells(configuration) {
            let _ = write!(page, "<td class=\"number\">{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    close_table(page);
    note(
        page,
        "n: runs, or batches of a client that makes some. SD: sample standard deviation. SE: \
         standard error of the mean, SD / √n. CoV: SD / mean. A dash: not known, as the spread of \
         one run, or the I/O beside a live program. Latencies are of the first run, as \
         the client saw it.",
    );
}

/// Draws the first run of each, second by second, and below it the credits.
fn over_time(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let first =
        |of: &Configuration| of.runs.first().map(|run| (parts_of(of).1.to_owned(), run.clone()));
    let shown: Vec<(String, Run)> = configurations.iter().filter_map(first).collect();
    // Curves of a chart must have points at equal distances.
    let Some(sample_s) = shown.first().map(|(_, run)| run.sample_s) else { return Ok(()) };
    let alike: Vec<&(String, Run)> =
        shown.iter().filter(|(_, run)| run.sample_s == sample_s && run.samples.len() > 1).collect();
    if alike.is_empty() {
        return Ok(());
    }
    let curves: Vec<Curve> = (0..)
        .zip(&alike)
        .map(|(number, (name, run))| Curve::new(name, number, run.rates()))
        .collect();
    let levels = levels(configurations);
    let label = "I/Os per second over time; the numbers follow in a table";
    let svg = curves::from_zero(label, Unit::Count, &curves, &levels, sample_s as f64)?;
    let svg = dash_series(svg);
    let case = configurations.first().and_then(|configuration| parts_of(configuration).0);
    let before = match (case, &alike[..]) {
        (Some(case), _) => format!("{}: ", escape(case)),
        (None, [(name, _)]) => format!("{}: ", escape(name)),
        (None, _) => String::new(),
    };
    let lines = lines(&levels);
    figure(page, &svg, &format!("{before}I/Os per second, of the first run each.{lines}"));
    let columns: Vec<(&str, &[u64])> =
        alike.iter().map(|(name, run)| (name.as_str(), &run.samples[..])).collect();
    numbers(page, &format!("I/Os in each {sample_s} s"), &columns, |ios| text::thousands(*ios));
    let pick = |of: fn(&Run) -> &[u64]| -> Vec<(&str, &[u64])> {
        let each = alike.iter().map(|(name, run)| (name.as_str(), of(run)));
        each.filter(|(_, values)| values.len() > 1).collect()
    };
    credits(page, ("I/O credits", Unit::Count), &before, &pick(|run| &run.credits), sample_s)?;
    let bytes = pick(|run| &run.credits_bytes);
    credits(page, ("Byte credits", Unit::Bytes), &before, &bytes, sample_s)
}

/// Draws the credits at the end of each sample; nothing if there are none.
fn credits(
    page: &mut String,
    (what, unit): (&str, Unit),
    before: &str,
    shown: &[(&str, &[u64])],
    sample_s: u64,
) -> Result<(), LabError> {
    let Some(&(_, first)) = shown.first() else { return Ok(()) };
    // Clients of the same volumes share their credits: one curve without a client's name.
    let common = [("left", first)];
    let are_clients = !before.is_empty() && shown.len() > 1;
    let is_one = are_clients && shown.iter().all(|(_, values)| *values == first);
    let shown = if is_one { &common[..] } else { shown };
    let values = |of: &[u64]| of.iter().map(|value| *value as f64).collect();
    let curves: Vec<Curve> =
        (0..).zip(shown).map(|(nth, (name, of))| Curve::new(name, nth, values(of))).collect();
    let label = format!("{what} over time; the numbers follow in a table");
    let svg = dash_series(curves::from_zero(&label, unit, &curves, &[], sample_s as f64)?);
    figure(page, &svg, &format!("{before}{what} that are left, of all volumes together."));
    let text = format!("{what} after each {sample_s} s");
    numbers(page, &text, shown, |credits| unit.shown(*credits as f64));
    Ok(())
}

/// Returns the lines of all configurations of a chart, without duplicates.
fn levels(configurations: &[Configuration]) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for level in configurations.iter().flat_map(|configuration| &configuration.levels) {
        if !levels.contains(level) {
            levels.push(*level);
        }
    }
    levels
}

/// Returns the lines of a chart as text, for readers who cannot see them.
fn lines(levels: &[Level]) -> String {
    if levels.is_empty() {
        return String::new();
    }
    let each = levels
        .iter()
        .map(|level| format!("{} {}", level.kind.word(), Unit::Count.shown(level.iops)));
    format!(" Lines: {}.", each.collect::<Vec<_>>().join(", "))
}

/// Draws the distribution of latencies: the share of I/Os up to each, and the percentiles.
fn latencies(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let quantiles = |of: &Configuration| Some(of.runs.first()?.quantiles_ns.clone());
    let shown: Vec<(String, Vec<u64>)> = configurations
        .iter()
        .filter_map(|configuration| Some((configuration.name.clone(), quantiles(configuration)?)))
        .filter(|(_, quantiles)| quantiles.len() == SHARES_PPM.len())
        .collect();
    if shown.is_empty() {
        return Ok(());
    }
    let svg = plots::latency_cdf("Share of the I/Os up to each latency", &shown)?;
    figure(page, &svg, "Share of the I/Os that took at most so long, of the first run each.");
    let svg = plots::latency_percentiles("Latency at each percentile", &shown)?;
    figure(page, &svg, "The same towards the slowest: latency at each percentile.");
    let columns: Vec<(&str, &[u64])> =
        shown.iter().map(|(name, quantiles)| (name.as_str(), &quantiles[..])).collect();
    let share = |row: usize| plots::percentage(SHARES_PPM[row] as f64 / 1e6);
    numbers_behind(page, ("share of the I/Os", &share), &columns, |ns| text::latency(*ns));
    Ok(())
}

/// Returns the case of a configuration that is one of several clients, and its name within the
/// case.
fn parts_of(configuration: &Configuration) -> (Option<&str>, &str) {
    match configuration.name.split_once(SEPARATOR) {
        Some((case, client)) => (Some(case), client),
        None => (None, &configuration.name),
    }
}

/// Draws the latencies of the clients of one case over time.
fn latency_over_time(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let first = |of: &Configuration| of.runs.first().map(|run| run.latency_s).unwrap_or(0);
    let latency_s = configurations.iter().map(first).max().unwrap_or(0);
    let shown = configurations
        .iter()
        .filter(|configuration| latency_s > 0 && first(configuration) == latency_s);
    // A single value is no course of time. It is in the table of all.
    let shown: Vec<(&str, &[u64])> = shown
        .filter_map(|of| Some((parts_of(of).1, &of.runs.first()?.mean_latency_ns[..])))
        .filter(|(_, means)| means.len() > 1)
        .collect();
    let case = configurations.first().and_then(|configuration| parts_of(configuration).0);
    let Some(case) = case.filter(|_| !shown.is_empty()) else { return Ok(()) };
    let values = |means: &[u64]| means.iter().map(|mean_ns| *mean_ns as f64).collect();
    let curves: Vec<Curve> = (0..)
        .zip(&shown)
        .map(|(nth, (name, means))| Curve::new(name, nth, values(means)))
        .collect();
    let label = "Mean latency over time; the numbers follow in a table";
    let svg = dash_series(curves::latencies(label, &curves, latency_s as f64)?);
    figure(page, &svg, &format!("{}: mean latency, each {latency_s} s.", escape(case)));
    numbers(page, &format!("mean latency in each {latency_s} s"), &shown, |ns| match ns {
        0 => "–".to_owned(),
        ns => text::latency(*ns),
    });
    Ok(())
}

/// Draws a figure of each run of some configurations, in the order of the runs. Configurations
/// without the figure are left out. Draws nothing if all have few runs.
fn run_to_run(
    page: &mut String,
    (what, unit): (&str, &str),
    configurations: &[Configuration],
    of_run: &dyn Fn(&Run) -> Option<f64>,
) -> Result<(), LabError> {
    let of_runs = |of: &Configuration| {
        let values: Vec<f64> = of.runs.iter().map(of_run).collect::<Option<_>>()?;
        Some(Values { name: of.name.clone(), values })
    };
    let runs: Vec<Values> = configurations.iter().filter_map(of_runs).collect();
    if runs.iter().all(|run| run.values.len() < RUNS_MIN) {
        return Ok(());
    }
    let svg = plots::runs(&format!("{what}, run to run"), unit, &runs)?;
    figure(page, &svg, &format!("{what}, run to run."));
    value_table(page, "run", &runs);
    Ok(())
}

/// Draws the runs in order, and their distribution if there are many runs or batches.
fn across_runs(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let ms = |ns: u64| (ns > 0).then_some(ns as f64 / 1e6);
    for together in configurations.chunk_by(|a, b| a.unit() == b.unit()) {
        let unit = together[0].unit();
        let what = format!("Mean {unit} per second");
        let axis = per_second(unit);
        run_to_run(page, (&what, &axis), together, &|run| Some(run.rate()))?;
    }
    let service_time = ("Mean service time", "ms");
    run_to_run(page, service_time, configurations, &|run| ms(run.latency.mean_ns))?;
    let p95 = ("Service time that 95 % had at most", "ms");
    run_to_run(page, p95, configurations, &|run| run.p95_ns().and_then(ms))?;
    let of_batches = |of: &Configuration| Values {
        name: of.name.clone(),
        values: of.runs.iter().flat_map(|run| run.batch_rates.iter().copied()).collect(),
    };
    let of_samples = |of: &Configuration| Values {
        name: of.name.clone(),
        values: of.runs.iter().flat_map(Run::rates).collect(),
    };
    let batches: Vec<(&str, Values)> = configurations
        .iter()
        .map(|configuration| (configuration.unit(), of_batches(configuration)))
        .collect();
    let is_enough = |(_, of): &(&str, Values)| of.values.len() >= SCATTER_MIN;
    let batches: Vec<(&str, Values)> = batches.into_iter().filter(is_enough).collect();
    if !batches.is_empty() {
        for (unit, of) in &batches {
            every_batch(page, unit, of)?;
        }
        let batches: Vec<Values> = batches.into_iter().map(|(_, of)| of).collect();
        let kept: usize = batches.iter().map(|batch| batch.values.len()).sum();
        let all = |of: &Configuration| batches.iter().any(|shown| shown.name == of.name);
        let made: u64 = configurations
            .iter()
            .filter(|configuration| all(configuration))
            .map(|configuration| configuration.iops.n)
            .sum();
        if (kept as u64) < made {
            value_table(page, "batches, evenly taken from all", &batches)
        } else {
            value_table(page, "batch", &batches)
        }
        return Ok(());
    }
    let samples: Vec<Values> = configurations.iter().map(of_samples).collect();
    if samples.iter().any(|sample| sample.values.len() >= DENSITY_MIN) {
        let label = "Share of the seconds up to each rate";
        let svg = plots::cdf(label, "IOPS", &samples)?;
        figure(page, &svg, "Share of the samples with at most this number of I/Os per second.");
        percentile_table(page, &samples);
    }
    Ok(())
}

/// Draws the batches of one configuration in order, and their distribution.
fn every_batch(page: &mut String, unit: &str, of: &Values) -> Result<(), LabError> {
    let one = std::slice::from_ref(of);
    let name = escape(&of.name);
    let axis = per_second(unit);
    if of.values.len() >= DENSITY_MIN {
        let svg = plots::density("Kernel density of the batches", &axis, one)?;
        let text = format!("kernel density of the {unit} per second of its batches, as R draws it");
        figure(page, &svg, &format!("{name}: {text}."));
    }
    let svg = plots::scatter("Every batch", &axis, one)?;
    figure(page, &svg, &format!("{name}: {unit} per second of its batches, in order."));
    Ok(())
}

/// Appends the percentiles of the samples' rates.
fn percentile_table(page: &mut String, all: &[Values]) {
    let rates = |of: &Values| {
        let ascending = sorted(&of.values);
        PERCENTILES.iter().filter_map(|share| percentile(&ascending, *share)).collect()
    };
    let rates: Vec<Vec<f64>> = all.iter().map(rates).collect();
    let columns: Vec<(&str, &[f64])> =
        all.iter().zip(&rates).map(|(of, rates)| (of.name.as_str(), &rates[..])).collect();
    let share = |row: usize| format!("{} %", PERCENTILES[row]);
    numbers_behind(page, ("share of the samples", &share), &columns, |rate| text::rate(*rate));
}

fn value_table(page: &mut String, of: &str, all: &[Values]) {
    let columns: Vec<(&str, &[f64])> =
        all.iter().map(|of| (of.name.as_str(), &of.values[..])).collect();
    numbers(page, of, &columns, |value| format!("{value:.3}"));
}

/// Appends a table with the values of a chart over time or over runs.
fn numbers<T>(page: &mut String, of: &str, columns: &[(&str, &[T])], cell: impl Fn(&T) -> String) {
    numbers_behind(page, (of, &|row| (row + 1).to_string()), columns, cell);
}
