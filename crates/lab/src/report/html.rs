//! The report as one HTML page: no scripts, no other files, and readable when printed.

use std::fmt::Write as _;

use super::chart;
use super::table::{figures, headline, later};
use super::{Report, VolumeReport};
use crate::LabError;
use crate::checker::{Check, Outcome};
use evenkeel_pages::html::{
    close_table, dash, end_page, escape, figure, note, number_column, open_page, open_table,
    text_column,
};
use evenkeel_sim::text::{self, thousands};

pub(super) fn page(report: &Report) -> Result<String, LabError> {
    page_with(report, "")
}

/// Returns the page with a further section after its summary.
pub(super) fn page_with(report: &Report, section_of_others: &str) -> Result<String, LabError> {
    let mut page = open_page(&report.title);
    head(&mut page, report);
    summary(&mut page, report);
    page.push_str(section_of_others);
    if !report.volumes.is_empty() {
        page.push_str("<section>\n<h2>All volumes at once</h2>\n");
        figure(
            &mut page,
            &chart::overview(&report.volumes)?,
            "I/Os per second that each volume completed, second by second, on a logarithmic scale. \
             The numbers are in the tables below.",
        );
        page.push_str("</section>\n");
    }
    for (index, volume) in report.volumes.iter().enumerate() {
        section(&mut page, volume, index)?;
    }
    provenance(&mut page, report);
    end_page(&mut page);
    Ok(page)
}

fn head(page: &mut String, report: &Report) {
    let class = class(report.outcome);
    let mark = mark(report.outcome);
    let _ = write!(
        page,
        "<header>\n<p class=\"brand\">Evenkeel</p>\n<h1>{}</h1>\n<p class=\"note\">{} · {} · \
        {}</p>\n\
         <p class=\"banner {class}\"><span aria-hidden=\"true\">{mark}</span> {}</p>\n",
        escape(&report.title),
        escape(&report.measured_at),
        escape(&report.environment.kernel),
        escape(&report.environment.fio),
        escape(&headline(report)),
    );
    for sentence in report.sentences() {
        let _ = writeln!(page, "<p class=\"note stalls\">{}</p>", escape(&sentence));
    }
    for warning in &report.warnings {
        let _ = writeln!(page, "<p class=\"warning\">Warning: {}</p>", escape(warning));
    }
    page.push_str("</header>\n");
}

/// Returns the class of the style sheet.
const fn class(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Kept => "kept",
        Outcome::Undecided => "undecided",
        Outcome::ServerGone | Outcome::Broken => "broken",
    }
}

const fn mark(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Kept => "✓",
        Outcome::Undecided => "?",
        Outcome::ServerGone | Outcome::Broken => "✗",
    }
}

fn verdict(outcome: Outcome) -> String {
    let class = class(outcome);
    let mark = mark(outcome);
    let word = outcome.word();
    format!("<span class=\"pill {class}\">{mark} {word}</span>")
}

fn summary(page: &mut String, report: &Report) {
    page.push_str("<section>\n<h2>Promised and measured</h2>\n");
    let columns = [
        text_column("volume"),
        text_column("type"),
        number_column("promised IOPS"),
        number_column("measured IOPS"),
        number_column("worst second"),
        number_column("<abbr title=\"coefficient of variation\">CoV</abbr>"),
        number_column("p50"),
        number_column("p99"),
        text_column("verdict"),
    ];
    open_table(page, "summary", &columns);
    for (index, volume) in report.volumes.iter().enumerate() {
        summary_rows(page, volume, index);
    }
    close_table(page);
    note(
        page,
        "Worst second: the one furthest from what was promised, above or below. CoV: standard \
         deviation of the seconds divided by their mean. The first second, in which a volume may \
         use what it saved while idle, is judged on its own.",
    );
    page.push_str("</section>\n");
}

/// Appends a row for each phase; values of the volume as a whole are in the first.
fn summary_rows(page: &mut String, volume: &VolumeReport, index: usize) {
    let latency = |ns| format!("<td class=\"number\">{}</td>", text::latency(ns));
    for (phase, figures) in figures(volume).into_iter().enumerate() {
        page.push_str(if phase == 0 { "<tr>" } else { "<tr class=\"later\">" });
        let _ = match phase {
            0 => write!(
                page,
                "<th scope=\"row\"><a href=\"#volume-{index}\"><span class=\"swatch\" \
                 style=\"background:var(--series-{})\"></span>{}</a></th><td>{}</td>",
                index % 6,
                escape(&volume.name),
                escape(&volume.volume_type),
            ),
            _ => write!(page, "<td class=\"note\">{}</td><td></td>", later(volume)),
        };
        for cell in figures {
            let _ = write!(page, "<td class=\"number\">{}</td>", escape(&cell));
        }
        match phase {
            0 => {
                page.push_str(&latency(volume.latency.p50_ns));
                page.push_str(&latency(volume.latency.p99_ns));
                let _ = write!(page, "<td>{}</td>", verdict(volume.verdict.outcome));
            }
            _ => page.push_str("<td></td><td></td><td></td>"),
        }
        page.push_str("</tr>\n");
    }
}

fn section(page: &mut String, volume: &VolumeReport, index: usize) -> Result<(), LabError> {
    let colour = index % 6;
    let marks = if volume.stalls.is_empty() { "" } else { " Grey: something did not run." };
    let _ = write!(
        page,
        "<section id=\"volume-{index}\">\n<h2><span class=\"swatch\" \
         style=\"background:var(--series-{colour})\"></span>{} {}</h2>\n<p class=\"note\">{}, {} · \
         promised: {} · load: {}</p>\n",
        escape(&volume.name),
        verdict(volume.verdict.outcome),
        escape(&volume.volume_type),
        text::bytes(u64::from(volume.size_gib) << 30),
        escape(&volume.promise),
        escape(&volume.workload.to_string()),
    );
    figure(
        page,
        &chart::iops(volume, colour)?,
        &format!(
            "I/Os per second. Thick: full seconds. Thin: tenths of a second, times ten.{marks}"
        ),
    );
    page.push_str("<div class=\"pair\">\n");
    figure(
        page,
        &chart::deviation(volume, colour)?,
        "Distance of each second from its promised rate. Shaded: what is allowed. \
         Dotted: the floor.",
    );
    figure(
        page,
        &chart::latency(volume, colour)?,
        "Latency as the client saw it, logarithmic. A full queue waits for its tokens: depth \
         divided by rate.",
    );
    page.push_str("</div>\n");
    checks(page, &volume.verdict.checks);
    numbers(page, volume);
    page.push_str("</section>\n");
    Ok(())
}

fn checks(page: &mut String, checks: &[Check]) {
    open_table(page, "checks", &["check", "promised", "measured", "verdict"].map(text_column));
    for check in checks {
        let _ = writeln!(
            page,
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(&check.name),
            escape(&check.expected),
            escape(&check.measured),
            verdict(Outcome::of_check(check)),
        );
    }
    close_table(page);
}

/// Appends a table with the values of the three charts.
fn numbers(page: &mut String, volume: &VolumeReport) {
    page.push_str("<details>\n<summary>The numbers behind these charts</summary>\n");
    let columns = [
        "second",
        "I/Os",
        "promised",
        "difference",
        "least in 100 ms",
        "most in 100 ms",
        "p50",
        "p99",
    ];
    open_table(page, "numbers", &columns.map(number_column));
    let expected = &volume.verdict.summary.expected_iops;
    for (second, &ios) in volume.ios_per_second.iter().enumerate() {
        let due = expected.get(second).copied().flatten();
        let tenths = volume.ios_per_100ms.chunks_exact(10).nth(second).unwrap_or_default();
        let latency = volume.latency_per_second.get(second).filter(|summary| summary.count > 0);
        let count = |count: Option<&u64>| count.map_or_else(dash, |&count| thousands(count));
        let cells = [
            second.to_string(),
            thousands(ios),
            due.map_or_else(dash, text::rate),
            due.map_or_else(dash, |due| format!("{:+.2} %", (ios as f64 / due - 1.0) * 100.0)),
            count(tenths.iter().min()),
            count(tenths.iter().max()),
            latency.map_or_else(dash, |summary| text::latency(summary.p50_ns)),
            latency.map_or_else(dash, |summary| text::latency(summary.p99_ns)),
        ];
        page.push_str("<tr>");
        for cell in cells {
            let _ = write!(page, "<td class=\"number\">{cell}</td>");
        }
        page.push_str("</tr>\n");
    }
    close_table(page);
    let latency = &volume.latency;
    let whole = format!(
        "Whole run: {} I/Os, latency mean {}, p50 {}, p99 {}, p99.9 {}, longest {}.",
        thousands(latency.count),
        text::latency(latency.mean_ns),
        text::latency(latency.p50_ns),
        text::latency(latency.p99_ns),
        text::latency(latency.p999_ns),
        text::latency(latency.max_ns),
    );
    note(page, &whole);
    page.push_str("</details>\n");
}

fn provenance(page: &mut String, report: &Report) {
    let environment = &report.environment;
    let seeds: Vec<String> =
        report.volumes.iter().map(|volume| volume.workload.seed.to_string()).collect();
    page.push_str("<section>\n<h2>How this was measured</h2>\n<dl>\n");
    let memory = format!("{:.1} GiB", environment.memory_bytes as f64 / f64::from(1 << 30));
    let load = |hundredths: u64| format!("{:.2}", hundredths as f64 / 100.0);
    for (term, value) in [
        ("Date", report.measured_at.clone()),
        ("Evenkeel", environment.evenkeel.clone()),
        ("Load generator", environment.fio.clone()),
        ("Kernel", environment.kernel.clone()),
        ("Processor", format!("{} × {}", environment.processors, environment.processor)),
        ("Memory", memory),
        ("Load before", report.load_before_hundredths.map_or_else(String::new, load)),
        ("Load after", report.load_after_hundredths.map_or_else(String::new, load)),
        ("Seeds", seeds.join(", ")),
        ("Data format", report.schema.clone()),
    ] {
        // Older reports do not have the load.
        if value.is_empty() {
            continue;
        }
        let _ = writeln!(page, "<dt>{term}</dt><dd>{}</dd>", escape(&value));
    }
    page.push_str("</dl>\n");
    note(
        page,
        "Every completed I/O was counted from the load generator's own log, in the millisecond in \
         which it completed. Nothing is averaged before it is judged.",
    );
    for command in &report.commands {
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(command));
    }
    page.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use crate::report::samples;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let page = samples::report().to_html().unwrap();
        for needle in ["<script", "<link", "@import", "url(", "src=", "http://", "https://"] {
            let stray = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!stray.contains(needle), "{needle}");
        }
        assert!(page.ends_with("</html>\n"));
        assert_eq!(page.matches("<svg ").count(), 1 + 4 * 3);
        assert_eq!(page.matches("<details>").count(), 4);
        assert!(page.contains("<p class=\"note stalls\">The machine itself stood still once"));
        assert!(page.contains("Grey: something did not run."));
        assert!(page.contains("1 of 4 volumes broke their promise."));
    }

    #[test]
    fn names_and_commands_cannot_break_the_page() {
        let page = samples::report().to_html().unwrap();
        assert!(page.contains("web &lt;&amp; co&gt;"));
        assert!(!page.contains("web <&"));
        assert!(page.contains("&lt;html&gt;</code>"));
    }

    #[test]
    fn every_element_is_closed() {
        let page = samples::report().to_html().unwrap();
        for tag in
            ["section", "table", "tr", "td", "th", "div", "figure", "details", "p", "dl", "svg"]
        {
            let open = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }

    /// Writes the sample page if requested, as a chart has to be looked at.
    #[test]
    fn the_sample_page_can_be_looked_at() {
        if let Some(path) = std::env::var_os("EVENKEEL_SAMPLE_REPORT") {
            std::fs::write(path, samples::report().to_html().unwrap()).unwrap();
        }
    }
}
