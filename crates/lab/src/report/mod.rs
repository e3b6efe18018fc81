//! The results of an experiment, for people and programs. Text and HTML are made from the JSON.

mod chart;
mod html;
mod proof;
pub mod simulated;
mod table;

use serde::{Deserialize, Serialize};

use crate::LabError;
use crate::checker::{Outcome, Verdict};
use crate::environment::Environment;
use crate::fio::Measurement;
use crate::stalls::{Observed, Stalls};
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::workload::Workload;

/// The version of the JSON's schema. It changes if a reader of the old schema would misread the new
/// one.
pub const SCHEMA: &str = "evenkeel.report/2";

/// A finished experiment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// A short title.
    pub title: String,
    /// Date and time of the measurement.
    pub measured_at: String,
    /// The machine and its software.
    pub environment: Environment,
    /// The moments at which the machine itself stood still, counted from the start of the load: one
    /// entry for each run of the load generator; empty in virtual time.
    #[serde(default)]
    pub stalls: Vec<Observed>,
    /// The worst outcome of any volume or load.
    pub outcome: Outcome,
    /// Loads that could not be judged.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unjudged: usize,
    /// The volumes, in the order they were created.
    pub volumes: Vec<VolumeReport>,
    /// The exact command lines.
    pub commands: Vec<String>,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
    /// Notes on the record and the tolerances of the verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Load average of the last minute before the first run, in hundredths, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_before_hundredths: Option<u64>,
    /// Load average of the last minute after the last run, in hundredths, if it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_after_hundredths: Option<u64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// The promise and the measurement of one volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VolumeReport {
    /// The volume's name.
    pub name: String,
    /// Its type, as users write it: `io2`.
    pub volume_type: String,
    /// Its size in GiB.
    pub size_gib: u32,
    /// The promise in words.
    pub promise: String,
    /// The load.
    pub workload: Workload,
    /// The verdict, and the figures of the summary.
    pub verdict: Verdict,
    /// Seconds after which the server closed the connection, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone_after_s: Option<f64>,
    /// Latencies over the whole run, as the client saw them.
    pub latency: LatencySummary,
    /// The times at which the machine, the server or the clients did not run although they had
    /// work, counted from the start of this volume's load.
    #[serde(default)]
    pub stalls: Stalls,
    /// I/Os that completed in each full second.
    pub ios_per_second: Vec<u64>,
    /// I/Os that completed in each full tenth of a second.
    pub ios_per_100ms: Vec<u64>,
    /// Latencies second by second.
    pub latency_per_second: Vec<LatencySummary>,
}

/// Properties of a volume beside its measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeFacts {
    /// Its type, as users write it: `io2`.
    pub volume_type: String,
    /// Its size in GiB.
    pub size_gib: u32,
    /// The promise in words.
    pub promise: String,
}

impl VolumeReport {
    /// Creates a volume's report from its properties, its measurement and its verdict, with the
    /// lost time that was used.
    #[must_use]
    pub fn new(
        facts: VolumeFacts,
        measurement: Measurement,
        stalls: Stalls,
        verdict: Verdict,
    ) -> Self {
        Self {
            name: measurement.name,
            volume_type: facts.volume_type,
            size_gib: facts.size_gib,
            promise: facts.promise,
            workload: measurement.workload,
            verdict,
            gone_after_s: measurement.gone_after_ms.map(|ms| ms as f64 / 1_000.0),
            stalls,
            latency: measurement.latency,
            ios_per_second: measurement.series.per_second(),
            ios_per_100ms: measurement.series.windows(100),
            latency_per_second: measurement.latency_per_second,
        }
    }

    /// Returns the rate after the end of the credits; `None` if they did not end.
    fn baseline_iops(&self) -> Option<f64> {
        let summary = &self.verdict.summary;
        summary.baseline_iops.filter(|_| summary.burst_end_s.is_some())
    }
}

impl Report {
    /// Creates a report of these volumes, measured now on this machine.
    #[must_use]
    pub fn new(
        title: impl Into<String>,
        environment: Environment,
        stalls: Vec<Observed>,
        volumes: Vec<VolumeReport>,
        commands: Vec<String>,
        warnings: Vec<String>,
    ) -> Self {
        Self {
            schema: SCHEMA.to_string(),
            title: title.into(),
            measured_at: evenkeel_os::clock::utc_now(),
            environment,
            stalls,
            outcome: volumes
                .iter()
                .map(|volume| volume.verdict.outcome)
                .max()
                .unwrap_or(Outcome::Undecided),
            unjudged: 0,
            volumes,
            commands,
            warnings,
            notes: Vec::new(),
            load_before_hundredths: None,
            load_after_hundredths: None,
        }
    }

    /// Returns the report of a run that ends now, with the load average before it and now.
    #[must_use]
    pub fn with_load_since(self, load_before_hundredths: Option<u64>) -> Self {
        let load_after_hundredths = crate::environment::load_hundredths();
        Self { load_before_hundredths, load_after_hundredths, ..self }
    }

    /// Adds a note on how it was judged.
    #[must_use]
    pub fn with_note(mut self, note: Option<String>) -> Self {
        self.notes.extend(note);
        self
    }

    /// Adds a number of loads that could not be judged; the outcome is then undecided at best.
    #[must_use]
    pub fn without_verdict_on(self, unjudged: usize) -> Self {
        let least = if unjudged > 0 { Outcome::Undecided } else { Outcome::Kept };
        Self { outcome: self.outcome.max(least), unjudged, ..self }
    }

    /// Returns whether every promise was kept.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.outcome == Outcome::Kept
    }

    /// Returns one report of this run and a later one.
    #[must_use]
    pub fn followed_by(mut self, next: Self) -> Self {
        self.outcome = self.outcome.max(next.outcome);
        self.unjudged += next.unjudged;
        self.stalls.extend(next.stalls);
        self.volumes.extend(next.volumes);
        self.commands.extend(next.commands);
        self.warnings.extend(next.warnings);
        self.notes.extend(next.notes);
        self.notes.dedup();
        self.load_before_hundredths = self.load_before_hundredths.or(next.load_before_hundredths);
        self.load_after_hundredths = next.load_after_hundredths.or(self.load_after_hundredths);
        self
    }

    /// Returns sentences on the machine's pauses in each run, and the notes.
    fn sentences(&self) -> Vec<String> {
        let kept = self.is_kept();
        let of_run = |observed: &Observed| {
            [observed.sentence(kept), observed.sentence_of_threads(), observed.sentence_of_steal()]
        };
        let mut sentences: Vec<String> = self.stalls.iter().flat_map(of_run).flatten().collect();
        // A problem that all runs have in common is mentioned once.
        sentences.dedup();
        sentences.extend(self.notes.iter().cloned());
        sentences
    }

    /// Returns the report as JSON, from which the other forms can be made again.
    ///
    /// # Errors
    /// Never in practice: no part of a report lacks a JSON form.
    pub fn to_json(&self) -> Result<String, LabError> {
        serde_json::to_string_pretty(self).map_err(LabError::Json)
    }

    /// Parses a report.
    ///
    /// # Errors
    /// When the text is not a report, or one of another version.
    pub fn from_json(text: &str) -> Result<Self, LabError> {
        let report: Self = serde_json::from_str(text).map_err(LabError::Json)?;
        if report.schema != SCHEMA {
            let what =
                format!("a report of version {:?}, this program reads {SCHEMA:?}", report.schema);
            return Err(LabError::BadOutput { tool: "the report", what });
        }
        Ok(report)
    }

    /// Returns the table and the broken promises, as text for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        table::text(self)
    }

    /// Returns only the table and the broken promises, as a part of another text.
    #[must_use]
    pub fn table(&self) -> String {
        table::figures_and_faults(self)
    }

    /// Returns one HTML page that contains its charts and loads no other files.
    ///
    /// # Errors
    /// When a chart cannot be drawn.
    pub fn to_html(&self) -> Result<String, LabError> {
        html::page(self)
    }
}

#[cfg(test)]
pub(crate) mod samples;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_the_master() {
        let report = samples::report();
        let json = report.to_json().unwrap();
        assert!(json.contains(r#""schema": "evenkeel.report/2""#));
        let read = Report::from_json(&json).unwrap();
        assert_eq!(read.to_text(), report.to_text());
        assert!(read.to_html().unwrap() == report.to_html().unwrap(), "the pages differ");
    }

    #[test]
    fn report_of_another_version_is_refused() {
        let json = samples::report().to_json().unwrap().replace("report/2", "report/1");
        assert!(Report::from_json(&json).unwrap_err().to_string().contains("report/1"));
        assert!(Report::from_json("{}").is_err());
    }

    #[test]
    fn empty_report_is_not_a_pass() {
        let report = Report::new("empty", Environment::default(), vec![], vec![], vec![], vec![]);
        assert!(!report.is_kept());
        assert!(report.to_html().unwrap().contains("</html>"));
        assert!(!report.to_text().is_empty());
    }
}
