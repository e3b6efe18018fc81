//! The page of a proof: the means with their confidence intervals, and the report of its loads.

use std::fmt::Write as _;

use super::html::page_with;
use crate::LabError;
use crate::prove::{Mean, Proof};
use evenkeel_pages::html::{close_table, escape, note, number_column, open_table, text_column};
use evenkeel_sim::text;

impl Proof {
    /// Returns one HTML page that contains its charts.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        page_with(&self.report, &self.means_section())
    }

    /// Returns the section beside the report of the loads: means with their intervals, the latency
    /// of one read at a time, and reasons for a broken promise.
    fn means_section(&self) -> String {
        let mut section = "<section>\n<h2>How sure it is</h2>\n".to_owned();
        let columns = [
            text_column("load"),
            number_column("n (seconds)"),
            number_column("mean IOPS"),
            number_column("95 % interval"),
            number_column("min"),
            number_column("max"),
            number_column("SD"),
            number_column("SE"),
            number_column("CoV"),
        ];
        open_table(&mut section, "means", &columns);
        for mean in &self.means {
            let _ = writeln!(section, "<tr>{}</tr>", row(mean));
        }
        close_table(&mut section);
        note(
            &mut section,
            "Of full seconds after the first. SD: sample standard deviation; SE: SD / √n; CoV: \
             SD / mean; the interval: where the mean lies with 95 % confidence, by bootstrap over \
             seconds, of few as wide as Student's.",
        );
        let _ = writeln!(
            section,
            "<p>One read at a time: p50 {}, p99 {}.</p>",
            text::latency(self.alone.p50_ns),
            text::latency(self.alone.p99_ns)
        );
        for one in &self.unjudged {
            let load = escape(&one.load);
            let why = escape(&one.why);
            let _ = writeln!(section, "<p>Not judged: {load}: {why}</p>");
        }
        for reason in &self.reasons {
            let _ = writeln!(section, "<p>Why: {}</p>", escape(reason));
        }
        section.push_str("</section>\n");
        section
    }
}

fn row(mean: &Mean) -> String {
    let seconds = &mean.seconds;
    let interval = mean.interval.map_or_else(
        || "–".to_owned(),
        |interval| format!("{} to {}", text::rate(interval.low), text::rate(interval.high)),
    );
    let cells = [
        seconds.n.to_string(),
        text::rate(seconds.mean),
        interval,
        text::rate(seconds.min),
        text::rate(seconds.max),
        text::rate(seconds.sd),
        text::rate(seconds.se),
        format!("{:.3} %", seconds.cov * 100.0),
    ];
    let cells = cells.map(|cell| format!("<td class=\"number\">{cell}</td>"));
    format!("<th scope=\"row\">{}</th>{}", escape(&mean.load), cells.concat())
}
