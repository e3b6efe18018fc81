//! The page of a suite: the published figures beside ours, then charts of every configuration with
//! their numbers.

use std::fmt::Write as _;

use super::chart::dash_series;
use super::curves::{self, Curve, Unit};
use super::html::{
    close_table, end_page, escape, figure, note, number_column, numbers_behind, open_page,
    open_table, text_column,
};
use super::plots::{self, Bar, TOGETHER_MAX, Values};
use crate::LabError;
use crate::stats::{Bootstrap, Sample, percentile, sorted};
use crate::suite::result::{
    BROKEN, Configuration, Found, KEPT, Part, Row, Run, SEPARATOR, SuiteResult,
};
use crate::text;

/// Runs from which on a chart goes from run to run.
const RUNS_MIN: usize = 3;
/// Values from which on a density says more than the values themselves.
const DENSITY_MIN: usize = 30;
/// Shares of the samples, in percent, that the table of a distribution tells.
const PERCENTILES: [f64; 11] = [0.0, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 100.0];

impl SuiteResult {
    /// One HTML page with its charts inside; it loads nothing from anywhere.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        let mut page = open_page(&self.title);
        self.head(&mut page);
        self.points(&mut page);
        self.side_by_side(&mut page)?;
        for (title, part) in [("For real", &self.live), ("In virtual time", &self.simulated)] {
            if let Some(part) = part {
                section(&mut page, title, part)?;
            }
        }
        self.provenance(&mut page);
        end_page(&mut page);
        Ok(page)
    }

    fn head(&self, page: &mut String) {
        let (class, mark) = if self.pass { ("kept", "✓") } else { ("broken", "✗") };
        let _ = writeln!(
            page,
            "<header>\n<p class=\"brand\">Evenkeel · {}</p>\n<h1>{}</h1>\n<p \
             class=\"note\">{}</p>\n<p class=\"note\">{} · {} · {}</p>\n<p class=\"banner \
             {class}\"><span aria-hidden=\"true\">{mark}</span> {}</p>",
            escape(&self.suite),
            escape(&self.title),
            escape(&self.article),
            escape(&self.measured_at),
            escape(&self.environment.kernel),
            escape(&self.environment.fio),
            escape(&self.headline()),
        );
        for warning in &self.warnings {
            let _ = writeln!(page, "<p class=\"warning\">Warning: {}</p>", escape(warning));
        }
        for failure in &self.failures {
            let _ = writeln!(page, "<p class=\"warning\">Failed: {}</p>", escape(failure));
        }
        page.push_str("</header>\n");
    }

    fn points(&self, page: &mut String) {
        page.push_str("<section>\n<h2>Published and ours</h2>\n");
        let columns = [
            text_column("point"),
            text_column("what"),
            text_column("published"),
            text_column("must be"),
            number_column("for real"),
            number_column("in virtual time"),
            text_column("verdict"),
        ];
        open_table(page, "points", &columns);
        for row in &self.rows {
            let _ = writeln!(
                page,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td \
                 class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>",
                escape(&row.id),
                what(row),
                escape(&row.published),
                escape(&row.expected),
                shown(&row.live),
                shown(&row.simulated),
                pill(row),
            );
        }
        close_table(page);
        note(
            page,
            "“Must be” is what ours are held to; where the article is wrong or says no number, it \
             is what follows from its other figures. “Shown” rows fail nothing.",
        );
        page.push_str("</section>\n");
    }

    /// The mean rate of every configuration, for real and in virtual time.
    fn side_by_side(&self, page: &mut String) -> Result<(), LabError> {
        let parts: Vec<(&str, &Part)> = [("for real", &self.live), ("virtual", &self.simulated)]
            .into_iter()
            .filter_map(|(name, part)| Some((name, part.as_ref()?)))
            .collect();
        let Some((_, first)) = parts.iter().max_by_key(|(_, part)| part.configurations.len())
        else {
            return Ok(());
        };
        let bar = |configuration: &Configuration| {
            let of_part = |(_, part): &(&str, &Part)| {
                let known = |known: &&Configuration| known.name == configuration.name;
                let found = part.configurations.iter().find(known)?;
                Some((found.iops.mean, found.iops.se))
            };
            Bar { name: configuration.name.clone(), bars: parts.iter().map(of_part).collect() }
        };
        let bars: Vec<Bar> = first.configurations.iter().map(bar).collect();
        let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
        let svg = plots::bars("Mean rate of every configuration", "IOPS", &names, &bars)?;
        page.push_str("<section>\n<h2>Side by side</h2>\n");
        let caption = match &names[..] {
            [one] => format!("Mean I/Os per second, {one}."),
            _ => "Mean I/Os per second: filled for real, outlined in virtual time.".to_owned(),
        };
        let caption = format!(
            "{caption} Lines: standard error of the runs. The numbers are in the tables below."
        );
        figure(page, &svg, &caption);
        page.push_str("</section>\n");
        Ok(())
    }

    fn provenance(&self, page: &mut String) {
        let environment = &self.environment;
        let load = |load: Option<u64>| {
            load.map_or_else(|| "unknown".to_owned(), |load| format!("{:.2}", load as f64 / 100.0))
        };
        page.push_str("<section>\n<h2>How this was measured</h2>\n<dl>\n");
        let memory = format!("{:.1} GiB", environment.memory_bytes as f64 / f64::from(1 << 30));
        let mut terms = vec![
            ("Date", self.measured_at.clone()),
            ("Evenkeel", environment.evenkeel.clone()),
            ("Load generator", environment.fio.clone()),
            ("Kernel", environment.kernel.clone()),
            ("Processor", format!("{} × {}", environment.processors, environment.processor)),
            ("Memory", memory),
            ("Load before", load(self.load_before_hundredths)),
            ("Load after", load(self.load_after_hundredths)),
            ("Data format", self.schema.clone()),
        ];
        for part in self.live.iter().chain(&self.simulated) {
            let scenario = format!(
                "{}, volume rules of {}, seed {}, 1 s for {} of the article's",
                part.scenario, part.as_of, part.seed, part.times
            );
            terms.push(("Scenario", scenario));
            terms.extend(part.storage.iter().map(|storage| ("Storage", storage.clone())));
            let mut pauses: Vec<String> =
                part.stalls.iter().filter_map(|observed| observed.sentence(self.pass)).collect();
            pauses.dedup();
            terms.extend(pauses.into_iter().map(|pause| ("Pauses", pause)));
        }
        for (term, value) in terms {
            let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(&value));
        }
        page.push_str("</dl>\n<details>\n<summary>The exact command lines</summary>\n");
        for command in self.live.iter().chain(&self.simulated).flat_map(|part| &part.commands) {
            let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(command));
        }
        page.push_str("</details>\n</section>\n");
    }
}

fn what(row: &Row) -> String {
    if row.note.is_empty() {
        return escape(&row.what);
    }
    format!("{}<br><span class=\"note\">{}</span>", escape(&row.what), escape(&row.note))
}

fn shown(found: &Option<Found>) -> String {
    found.as_ref().map_or_else(|| "–".to_owned(), |found| escape(&found.shown))
}

fn pill(row: &Row) -> String {
    let (class, mark) = match row.verdict() {
        KEPT => ("kept", "✓ kept"),
        BROKEN => ("broken", "✗ broken"),
        other => return escape(other),
    };
    format!("<span class=\"pill {class}\">{mark}</span>")
}

fn section(page: &mut String, title: &str, part: &Part) -> Result<(), LabError> {
    let _ = writeln!(page, "<section>\n<h2>{title}</h2>");
    statistics(page, part);
    // The clients of one case belong together, and so do cases that have one each.
    for together in part.configurations.chunk_by(|a, b| parts_of(a).0 == parts_of(b).0) {
        for configurations in together.chunks(TOGETHER_MAX) {
            over_time(page, configurations)?;
            latency_over_time(page, configurations)?;
        }
    }
    for configurations in part.configurations.chunks(TOGETHER_MAX) {
        across_runs(page, configurations)?;
    }
    page.push_str("</section>\n");
    Ok(())
}

/// n, mean, min, max, SD, SE, CoV and latencies: which column is which is in its heading.
fn statistics(page: &mut String, part: &Part) {
    let columns = [
        "runs",
        "mean IOPS",
        "95 % interval",
        "min",
        "max",
        "<abbr title=\"sample standard deviation\">SD</abbr>",
        "<abbr title=\"standard error of the mean, SD / √n\">SE</abbr>",
        "<abbr title=\"coefficient of variation, SD / mean\">CoV</abbr>",
        "latency mean",
        "p50",
        "p99",
        "p99.9",
    ];
    let mut headings = vec![text_column("configuration")];
    headings.extend(columns.map(number_column));
    open_table(page, "numbers", &headings);
    for configuration in &part.configurations {
        let Sample { n, mean, min, max, sd, se, cov } = configuration.iops;
        let interval =
            Bootstrap::default().mean(&configuration.rates()).filter(|_| n >= RUNS_MIN as u64);
        let interval = interval.map_or_else(
            || "–".to_owned(),
            |at| format!("{} to {}", text::rate(at.low), text::rate(at.high)),
        );
        let latency = configuration.runs.first().map(|run| run.latency).unwrap_or_default();
        let mut cells = vec![n.to_string(), text::rate(mean), interval];
        cells.extend([min, max, sd, se].map(text::rate));
        cells.push(text::percent(cov));
        let ns = [latency.mean_ns, latency.p50_ns, latency.p99_ns, latency.p999_ns];
        cells.extend(ns.map(|ns| match ns {
            0 => "–".to_owned(),
            ns => text::latency(ns),
        }));
        let _ = write!(page, "<tr><th scope=\"row\">{}</th>", escape(&configuration.name));
        for cell in cells {
            let _ = write!(page, "<td class=\"number\">{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    close_table(page);
    note(page, "Statistics are of the runs; latencies are of the first run, as the client saw it.");
}

/// The first run of each, second by second.
fn over_time(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let first =
        |of: &Configuration| of.runs.first().map(|run| (parts_of(of).1.to_owned(), run.clone()));
    let shown: Vec<(String, Run)> = configurations.iter().filter_map(first).collect();
    // Curves of a chart have their points at equal distances.
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
    let label = "I/Os per second over time; the numbers follow in a table";
    let svg = curves::from_zero(label, Unit::Count, &curves, &[], sample_s as f64)?;
    let svg = dash_series(svg);
    let caption = match configurations.first().and_then(|of| parts_of(of).0) {
        Some(case) => format!("{}: I/Os per second, of the first run each.", escape(case)),
        None => "I/Os per second, of the first run each.".to_owned(),
    };
    figure(page, &svg, &caption);
    let columns: Vec<(&str, &[u64])> =
        alike.iter().map(|(name, run)| (name.as_str(), &run.samples[..])).collect();
    numbers(page, &format!("I/Os in each {sample_s} s"), &columns, |ios| text::thousands(*ios));
    Ok(())
}

/// The case of a configuration that is one of several clients, and what it is called in it.
fn parts_of(configuration: &Configuration) -> (Option<&str>, &str) {
    match configuration.name.split_once(SEPARATOR) {
        Some((case, client)) => (Some(case), client),
        None => (None, &configuration.name),
    }
}

/// How long the clients of one case waited, over time.
fn latency_over_time(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let first = |of: &Configuration| of.runs.first().map(|run| run.latency_s).unwrap_or(0);
    let latency_s = configurations.iter().map(first).max().unwrap_or(0);
    let shown = configurations.iter().filter(|of| latency_s > 0 && first(of) == latency_s);
    let shown: Vec<(&str, &[u64])> = shown
        .filter_map(|of| Some((parts_of(of).1, &of.runs.first()?.mean_latency_ns[..])))
        .collect();
    let case = configurations.first().and_then(|of| parts_of(of).0);
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

/// Run to run; where there are many runs or batches, also how they lie.
fn across_runs(page: &mut String, configurations: &[Configuration]) -> Result<(), LabError> {
    let of_runs = |of: &Configuration| Values {
        name: of.name.clone(),
        values: of.runs.iter().map(Run::rate).collect(),
    };
    let of_batches = |of: &Configuration| Values {
        name: of.name.clone(),
        values: of.runs.iter().flat_map(|run| run.batch_rates.iter().copied()).collect(),
    };
    let of_samples = |of: &Configuration| Values {
        name: of.name.clone(),
        values: of.runs.iter().flat_map(Run::rates).collect(),
    };
    let runs: Vec<Values> = configurations.iter().map(of_runs).collect();
    if runs.iter().any(|of| of.values.len() >= RUNS_MIN) {
        let svg = plots::runs("Mean I/Os per second, run to run", "IOPS", &runs)?;
        figure(page, &svg, "I/Os per second, run to run.");
        value_table(page, "run", &runs);
    }
    let batches: Vec<Values> = configurations.iter().map(of_batches).collect();
    let batches: Vec<Values> =
        batches.into_iter().filter(|of| of.values.len() >= DENSITY_MIN).collect();
    if !batches.is_empty() {
        for of in &batches {
            let one = std::slice::from_ref(of);
            let name = escape(&of.name);
            let svg = plots::density("Kernel density of the batches", "calls/s", one)?;
            figure(
                page,
                &svg,
                &format!(
                    "{name}: kernel density of the calls per second of its batches, as R draws it."
                ),
            );
            let svg = plots::scatter("Every batch", "calls/s", one)?;
            figure(page, &svg, &format!("{name}: calls per second of every batch, in order."));
        }
        value_table(page, "batch", &batches);
        return Ok(());
    }
    let samples: Vec<Values> = configurations.iter().map(of_samples).collect();
    if samples.iter().any(|of| of.values.len() >= DENSITY_MIN) {
        let label = "Share of the seconds up to each rate";
        let svg = plots::cdf(label, "IOPS", &samples)?;
        figure(page, &svg, "Share of the samples that reached at most so many I/Os per second.");
        percentile_table(page, &samples);
    }
    Ok(())
}

/// The rates that so many percent of the samples reached at most.
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

/// The table alternative of a chart over time or over runs.
fn numbers<T>(page: &mut String, of: &str, columns: &[(&str, &[T])], cell: fn(&T) -> String) {
    numbers_behind(page, (of, &|row| (row + 1).to_string()), columns, cell);
}
