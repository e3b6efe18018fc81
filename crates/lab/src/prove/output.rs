//! A proof as text, CSV, JUnit and JSON.

use std::fmt::Write as _;

use super::{Outcome, Proof, SCHEMA};
use crate::LabError;
use evenkeel_sim::figures::stats::Interval;
use evenkeel_sim::text;

impl Proof {
    /// Returns the proof as text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = format!("{}: held to {}\n\n", self.target, self.promise);
        out.push_str(&self.report.table());
        let _ = writeln!(
            out,
            "\none read at a time: p50 {}, p99 {}",
            text::latency(self.alone.p50_ns),
            text::latency(self.alone.p99_ns)
        );
        for mean in &self.means {
            let _ = write!(out, "{}: mean {} IOPS", mean.load, text::rate(mean.seconds.mean));
            if let Some(interval) = mean.interval {
                let low = text::rate(interval.low);
                let high = text::rate(interval.high);
                let _ = write!(out, ", with 95 % confidence {low} to {high}");
            }
            let _ = writeln!(out, " ({} s)", mean.seconds.n);
        }
        for one in &self.unjudged {
            let _ = writeln!(out, "not judged: {}: {}", one.load, one.why);
        }
        for reason in &self.reasons {
            let _ = writeln!(out, "why: {reason}");
        }
        for caution in &self.cautions {
            let _ = writeln!(out, "caution: {}", caution.text);
        }
        let _ = writeln!(out, "\nThe promise: {}", self.outcome.word());
        out
    }

    /// Returns CSV with a line for each second of each load.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut out = String::from("load,second,ios,p50_ns,p99_ns,max_ns\n");
        for load in &self.report.volumes {
            let name = text::csv_line(&[&load.name]);
            for (second, ios) in load.ios_per_second.iter().enumerate() {
                let latency = load.latency_per_second.get(second).copied().unwrap_or_default();
                let p50 = latency.p50_ns;
                let p99 = latency.p99_ns;
                let max = latency.max_ns;
                let _ = writeln!(out, "{name},{second},{ios},{p50},{p99},{max}");
            }
        }
        out
    }

    /// Returns JUnit XML with a test case for each check. It has the expected and measured values
    /// of passed checks, too.
    #[must_use]
    pub fn to_junit(&self) -> String {
        let checks =
            self.report.volumes.iter().map(|load| load.verdict.checks.len()).sum::<usize>();
        let count = |outcome: Outcome| {
            let checks = self.report.volumes.iter().flat_map(|load| &load.verdict.checks);
            checks.filter(|check| Outcome::of_check(check) == outcome).count()
        };
        let failures = count(Outcome::Broken);
        let skipped = self.unjudged.len() + count(Outcome::Undecided);
        let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let _ = writeln!(
            out,
            "<testsuite name=\"{}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\" \
             timestamp=\"{}\">",
            escaped(&self.report.title),
            checks + self.unjudged.len(),
            escaped(self.report.measured_at.trim_end_matches('Z')),
        );
        self.properties(&mut out);
        for load in &self.report.volumes {
            for check in &load.verdict.checks {
                let class = escaped(&load.name);
                let name = escaped(&check.name);
                let told =
                    escaped(&format!("expected {}, measured {}", check.expected, check.measured));
                let found = match Outcome::of_check(check) {
                    Outcome::Kept => format!("<system-out>{told}</system-out>"),
                    Outcome::Undecided => format!("<skipped message=\"undecided: {told}\"/>"),
                    Outcome::ServerGone | Outcome::Broken => {
                        format!("<failure message=\"{told}\"/>")
                    }
                };
                let _ = writeln!(
                    out,
                    "  <testcase classname=\"{class}\" name=\"{name}\">{found}</testcase>"
                );
            }
        }
        for one in &self.unjudged {
            let class = escaped(&one.load);
            let why = escaped(&one.why);
            let _ = writeln!(
                out,
                "  <testcase classname=\"{class}\" name=\"judged\"><skipped message=\"{why}\"/>\
                 </testcase>"
            );
        }
        out.push_str("</testsuite>\n");
        out
    }

    /// Writes the promise, the command that repeats the proof, the outcome, and the interval of
    /// each mean.
    fn properties(&self, out: &mut String) {
        let mut properties = vec![
            ("promise".to_owned(), self.promise.clone()),
            ("outcome".to_owned(), self.outcome.word().to_owned()),
        ];
        let call = self.report.commands.first().map(|call| ("call".to_owned(), call.clone()));
        properties.extend(call);
        for mean in &self.means {
            let Some(Interval { low, high, .. }) = mean.interval else { continue };
            let low = text::rate(low);
            let high = text::rate(high);
            let name = format!("{}: mean IOPS, with 95 % confidence", mean.load);
            properties.push((name, format!("{low} to {high}")));
        }
        out.push_str("  <properties>\n");
        for (name, value) in properties {
            let name = escaped(&name);
            let value = escaped(&value);
            let _ = writeln!(out, "    <property name=\"{name}\" value=\"{value}\"/>");
        }
        out.push_str("  </properties>\n");
    }

    /// Returns the proof as JSON, from which the other forms can be made again.
    ///
    /// # Errors
    /// Never in practice: no part of a proof lacks a JSON form.
    pub fn to_json(&self) -> Result<String, LabError> {
        serde_json::to_string_pretty(self).map_err(LabError::Json)
    }

    /// Parses a proof.
    ///
    /// # Errors
    /// When the text is not a proof, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, LabError> {
        let proof: Self = serde_json::from_str(text).map_err(LabError::Json)?;
        if proof.schema != SCHEMA {
            let what =
                format!("a proof of version {:?}, this program reads {SCHEMA:?}", proof.schema);
            return Err(LabError::BadOutput { tool: "the proof", what });
        }
        Ok(proof)
    }
}

/// Returns a text for an XML attribute. Characters that XML cannot hold become question marks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
