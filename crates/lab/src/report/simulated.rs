//! The page of a simulated scenario: its expectations and results, then a chart of every run.

use std::fmt::Write as _;

use crate::LabError;
use evenkeel_pages::curves::{self, Curve, Unit};
use evenkeel_pages::html::{
    close_table, end_page, escape, figure, note, number_column, numbers_behind, open_page,
    open_table, text_column,
};
use evenkeel_sim::scenario::levels::Level;
use evenkeel_sim::text::{self, thousands};
use evenkeel_sim::world::run::{CaseResults, Results, SubjectResults};

/// Maximum number of runs with charts; more are compared in the table.
const CHARTED_MAX: usize = 24;
/// Maximum curves of a chart.
const CURVES_MAX: usize = 6;
/// Maximum rows of the numbers behind a chart; longer runs are averaged.
const ROWS_MAX: usize = 120;

/// Returns one HTML page that contains its charts and loads no other files.
///
/// # Errors
/// When a chart cannot be drawn.
pub fn page(results: &Results) -> Result<String, LabError> {
    let mut page = open_page(&results.title);
    head(results, &mut page);
    checks_table(results, &mut page);
    subjects(results, &mut page);
    for case in results.cases.iter().take(CHARTED_MAX) {
        charts(&mut page, case)?;
    }
    if results.cases.len() > CHARTED_MAX {
        note(&mut page, &format!("Charts of the first {CHARTED_MAX} runs only."));
    }
    provenance(results, &mut page);
    end_page(&mut page);
    Ok(page)
}

fn head(results: &Results, page: &mut String) {
    let (class, mark) = if results.pass { ("kept", "✓") } else { ("broken", "✗") };
    let _ = write!(
        page,
        "<header>\n<p class=\"brand\">Evenkeel</p>\n<h1>{}</h1>\n<p class=\"note\">Simulated \
         · volume rules of {} · seed {}</p>\n<p>{}</p>\n<p class=\"note\">{}</p>\n\
         <p class=\"banner {class}\"><span aria-hidden=\"true\">{mark}</span> {}</p>\n\
         </header>\n",
        escape(&results.title),
        escape(&results.as_of),
        results.seed,
        escape(&results.about),
        escape(&results.source),
        escape(&results.headline()),
    );
}

fn checks_table(results: &Results, page: &mut String) {
    page.push_str("<section>\n<h2>Expected and measured</h2>\n");
    let columns = ["run", "expectation", "expected", "measured", "verdict"].map(text_column);
    let (first, run) = run_column(results);
    open_table(page, "checks", &columns[first..]);
    for (label, check) in results.checks() {
        let (class, word) =
            if check.pass { ("kept", "✓ met") } else { ("broken", "✗ not met") };
        let _ = writeln!(
            page,
            "<tr>{}<td>{}</td><td>{}</td><td>{}</td>\
             <td><span class=\"pill {class}\">{word}</span></td></tr>",
            run(label),
            escape(&check.name),
            escape(&check.expected),
            escape(&check.measured),
        );
    }
    close_table(page);
    page.push_str("</section>\n");
}

fn subjects(results: &Results, page: &mut String) {
    page.push_str("<section>\n<h2>Volumes and clients</h2>\n");
    let columns = [
        text_column("run"),
        text_column("volume"),
        text_column("type"),
        text_column("limits"),
        number_column("I/Os"),
        number_column("mean"),
        number_column("p50"),
        number_column("p99"),
    ];
    let (first, run) = run_column(results);
    open_table(page, "summary", &columns[first..]);
    for case in &results.cases {
        for subject in case.volumes.iter().chain(&case.clients) {
            let _ = write!(
                page,
                "<tr>{}<th scope=\"row\">{}</th><td>{}</td><td>{}</td>",
                run(&case.label),
                escape(&subject.name),
                escape(&subject.kind),
                escape(&subject.limits),
            );
            let mean = text::rate(subject.ios as f64 / case.duration_s.max(1) as f64);
            let latency = subject.latency;
            for cell in [
                thousands(subject.ios),
                mean,
                text::latency(latency.p50_ns),
                text::latency(latency.p99_ns),
            ] {
                let _ = write!(page, "<td class=\"number\">{cell}</td>");
            }
            page.push_str("</tr>\n");
        }
    }
    close_table(page);
    page.push_str("</section>\n");
}

/// Returns the first column to show, and the cell of a run, which is left out if there is only one
/// run.
fn run_column(results: &Results) -> (usize, fn(&str) -> String) {
    match results.cases.len() {
        1 => (1, |_| String::new()),
        _ => (0, |label| format!("<td>{}</td>", escape(label))),
    }
}

fn provenance(results: &Results, page: &mut String) {
    page.push_str("<section>\n<h2>How to run it again</h2>\n");
    let seed = results.seed.to_string();
    let words =
        ["evenkeel", "sim", "run", &results.scenario, "--seed", &seed, "--as-of", &results.as_of];
    let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&text::command_line(&words)));
    note(page, "The same seed gives the same figures, to the last digit, on any machine.");
    page.push_str("</section>\n");
}

fn charts(page: &mut String, case: &CaseResults) -> Result<(), LabError> {
    let title = if case.label.is_empty() { "Over time" } else { &case.label };
    let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(title));
    let subjects: Vec<&SubjectResults> =
        case.clients.iter().chain(&case.volumes).take(CURVES_MAX).collect();
    let left_out = case.clients.len() + case.volumes.len() - subjects.len();
    let sample_s = case.sample_s as f64;
    let curves_of = |pick: &dyn Fn(&SubjectResults) -> Vec<f64>| {
        let numbered = subjects.iter().enumerate();
        let curves = numbered.map(|(number, of)| Curve::new(&of.name, number, pick(of)));
        curves.filter(|curve| !curve.values.is_empty()).collect::<Vec<_>>()
    };
    let plain = |values: &[u64]| values.iter().map(|&value| value as f64).collect::<Vec<_>>();
    let rates = curves_of(&|of| of.completed.iter().map(|&ios| ios as f64 / sample_s).collect());
    let levels = common_levels(&case.volumes);
    let svg = curves::from_zero("I/Os per second", Unit::Count, &rates, &levels, sample_s)?;
    let mut caption = "I/Os per second that were answered.".to_owned();
    if left_out > 0 {
        let _ = write!(caption, " {left_out} more volumes are not drawn.");
    }
    figure(page, &svg, &caption);
    numbers(page, &rates, sample_s, |rate| text::rate(*rate));
    let credits = curves_of(&|of| plain(&of.credits));
    if !credits.is_empty() {
        let svg = curves::from_zero("I/O credits", Unit::Count, &credits, &[], sample_s)?;
        figure(page, &svg, "I/O credits.");
        numbers(page, &credits, sample_s, |credits| Unit::Count.shown(*credits));
    }
    let credits = curves_of(&|of| plain(&of.credits_bytes));
    if !credits.is_empty() {
        let svg = curves::from_zero("Byte credits", Unit::Bytes, &credits, &[], sample_s)?;
        figure(page, &svg, "Byte credits.");
        numbers(page, &credits, sample_s, |credits| Unit::Bytes.shown(*credits));
    }
    latencies(page, &subjects, sample_s)?;
    page.push_str("</section>\n");
    Ok(())
}

fn latencies(
    page: &mut String,
    subjects: &[&SubjectResults],
    sample_s: f64,
) -> Result<(), LabError> {
    let Some(samples) =
        subjects.iter().map(|subject| subject.latency_samples).max().filter(|n| *n > 0)
    else {
        return Ok(());
    };
    let mut curves = Vec::new();
    for (number, of) in subjects.iter().enumerate() {
        let p50 = of.latencies.iter().map(|latency| latency.p50_ns as f64).collect();
        let p99 = of.latencies.iter().map(|latency| latency.p99_ns as f64).collect();
        let name = |which: &str| {
            if subjects.len() == 1 { which.to_owned() } else { format!("{} {which}", of.name) }
        };
        curves.push(Curve::new(&name("p50"), number, p50));
        if subjects.len() == 1 {
            curves.push(Curve::new(&name("p99"), number + 1, p99));
        }
    }
    let svg = curves::latencies("Latency", &curves, sample_s * samples as f64)?;
    figure(page, &svg, "Latency as the client saw it, logarithmic.");
    numbers(page, &curves, sample_s * samples as f64, |ns| match *ns {
        ns if ns > 0.0 => text::latency(ns.round() as u64),
        _ => "–".to_owned(),
    });
    Ok(())
}

/// Appends a table with the values of a chart whose points lie `distance_s` seconds apart.
fn numbers(page: &mut String, curves: &[Curve], distance_s: f64, cell: fn(&f64) -> String) {
    let longest = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    let together = longest.div_ceil(ROWS_MAX).max(1);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let means = |curve: &Curve| curve.values.chunks(together).map(mean).collect();
    let means: Vec<Vec<f64>> = curves.iter().map(means).collect();
    let columns: Vec<(&str, &[f64])> =
        curves.iter().zip(&means).map(|(of, means)| (of.name.as_str(), &means[..])).collect();
    let length_s = distance_s * together as f64;
    let until = |row: usize| format!("{} s", (row + 1) as f64 * length_s);
    numbers_behind(page, ("mean until", &until), &columns, cell);
}

/// Returns the limits that all volumes share.
fn common_levels(volumes: &[SubjectResults]) -> Vec<Level> {
    let Some(first) = volumes.first() else { return Vec::new() };
    let same = volumes.iter().all(|volume| volume.levels == first.levels);
    if same { first.levels.clone() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use evenkeel_sim::scenario::{self, Source};
    use evenkeel_sim::world::run::{Method, run};

    const NOISY: &str = "title = \"Noise\"\nduration_s = 3\n\
        [[volume]]\nname = \"v\"\niops = 900\nburst_iops = 1_000\nburst_credits = 100_000\n\
        [device]\nchannels = 4\nread_us = 200\nnoise_percent = 20\n\
        [poller]\nlateness = \"realistic\"\n\
        [[client]]\non = \"v\"\nname = \"c\"\niops = 800\n\
        [[expect]]\nmetric = \"mean_iops\"\nof = \"c\"\nequals = 800\nwithin_percent = 20\n\
        [[expect]]\nmetric = \"p50_ms\"\nof = \"c\"\nat_most = 0.1\n";

    fn page(seed: u64) -> String {
        let scenario = scenario::read(&Source::new("noise.toml", NOISY)).unwrap();
        super::page(&run(&scenario, seed, Method::Stepwise, &mut |_| {}).unwrap()).unwrap()
    }

    #[test]
    fn the_same_seed_is_the_same_page() {
        let first = page(1);
        let again = page(1);
        let other = page(2);
        assert!(first == again, "the page differs");
        assert!(first != other, "the page knows no chance");
    }

    #[test]
    fn the_page_has_its_charts_with_their_numbers_inside() {
        let page = page(1);
        assert_eq!(page.matches("<svg ").count(), 3, "rate, credits, latency");
        assert_eq!(page.matches("<summary>The numbers behind this chart</summary>").count(), 3);
        assert!(page.contains("<tr><th scope=\"row\" class=\"number\">3 s</th>"), "{page}");
        for needle in ["<script", "<link", "url(", "src="] {
            assert!(!page.contains(needle), "{needle}");
        }
    }
}
