//! The results of each configuration of a suite: its runs and its limits.

use serde::{Deserialize, Serialize};

use evenkeel_sim::figures::histogram::{LatencySummary, SHARES_PPM};
use evenkeel_sim::figures::stats::{Bootstrap, Interval, Sample};
use evenkeel_sim::scenario::levels::Level;
use evenkeel_sim::world::run::{CaseResults, Results, SubjectResults};

/// Maximum number of samples that are kept of a run. Neighbours of a longer run are added up.
const VALUES_MAX: usize = 600;
/// Maximum number of batches that are kept of a run. Of more, every second, third, ... is kept.
const BATCHES_MAX: usize = 1_200;

/// Number of runs from which on their variation is known.
pub(crate) const RUNS_MIN: usize = 3;

/// The name of the counted things if a configuration has none.
pub(crate) const IOS: &str = "I/Os";

const MIB: f64 = 1_048_576.0;

/// Separates a case from one of its clients in the name of a configuration.
pub const SEPARATOR: &str = " · ";

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_none(bytes: &u32) -> bool {
    *bytes == 0
}

/// The runs of one case, as one client or volume saw them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Configuration {
    /// The case, and the client if there are several.
    pub name: String,
    /// I/Os per second of the runs; of a client with batches, its requests per second in the
    /// batches.
    pub iops: Sample,
    /// Bytes of each of its requests; 0 if unknown, or if their sizes differ.
    #[serde(default, skip_serializing_if = "is_none")]
    pub block_bytes: u32,
    /// The name of the counted things, in the plural; empty if they are I/Os.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// The limits at the start of the run, in its own requests per second: those of its volume, the
    /// sum of those of a stripe, and that of its instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<Level>,
    /// The runs.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// I/Os that were answered.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Length in seconds.
    pub duration_s: u64,
    /// Latencies as the client saw them.
    pub latency: LatencySummary,
    /// The upper bounds of the latencies of each share of [`SHARES_PPM`], in nanoseconds; empty if
    /// only sums are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles_ns: Vec<u64>,
    /// Seconds in each of `samples`.
    pub sample_s: u64,
    /// I/Os answered in each sample. A shorter rest at the end of the run is no sample.
    pub samples: Vec<u64>,
    /// Seconds in each of `mean_latency_ns`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_s: u64,
    /// Mean latencies one after the other, 0 without I/Os. They are of the first run of a client,
    /// if there are several clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mean_latency_ns: Vec<u64>,
    /// I/O credits of all its volumes at the end of each of `samples`, of the first run. Empty
    /// without credits, and in live runs, which do not record them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<u64>,
    /// Byte credits, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits_bytes: Vec<u64>,
    /// Requests per second of a client's batches: of each, or of every second, third, ... if there
    /// are many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_rates: Vec<f64>,
}

impl Configuration {
    /// Returns the name of the counted things, in the plural.
    #[must_use]
    pub fn unit(&self) -> &str {
        if self.unit.is_empty() { IOS } else { &self.unit }
    }

    /// Returns whether nothing was recorded, as of a load beside a live program.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        let is_empty = |run: &Run| run.samples.is_empty() && run.batch_rates.is_empty();
        self.runs.iter().all(|run| run.ios == 0 && is_empty(run))
    }

    /// Returns the kept values that its statistics are of: the rates of its batches if it has any,
    /// otherwise those of its runs.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let batches: Vec<f64> =
            self.runs.iter().flat_map(|run| run.batch_rates.iter().copied()).collect();
        if batches.is_empty() { self.runs.iter().map(Run::iops).collect() } else { batches }
    }

    /// Returns the 95 % confidence interval of the mean of its runs or batches; `None` of fewer
    /// than three. If not all batches are kept, the interval of the kept ones is narrowed by the
    /// square root of their share of all.
    #[must_use]
    pub fn interval(&self) -> Option<Interval> {
        if self.iops.n < RUNS_MIN as u64 {
            return None;
        }
        let kept = self.rates();
        let Interval { low, high } = Bootstrap::default().mean(&kept)?;
        let mean = Sample::of(&kept).mean;
        let share = (kept.len() as f64 / self.iops.n as f64).min(1.0).sqrt();
        let of_all = |end: f64| self.iops.mean + (end - mean) * share;
        Some(Interval { low: of_all(low), high: of_all(high) })
    }

    /// Returns the mean MiB per second of its runs or batches; `None` if the size of its requests
    /// is unknown.
    #[must_use]
    pub fn mibps(&self) -> Option<f64> {
        if self.block_bytes > 0 {
            return Some(self.iops.mean * f64::from(self.block_bytes) / MIB);
        }
        if self.runs.iter().any(|run| !run.batch_rates.is_empty()) {
            // The rate of a batch does not include the pause after it, but the bytes per second of
            // a run do.
            return None;
        }
        let bytes: u64 = self.runs.iter().map(|run| run.bytes).sum();
        let seconds: u64 = self.runs.iter().map(|run| run.duration_s.max(1)).sum();
        (bytes > 0).then(|| bytes as f64 / seconds as f64 / MIB)
    }
}

impl Run {
    /// Returns the 95th percentile of its latencies, in nanoseconds; `None` if only sums are known,
    /// or if the result is from a version that did not keep it.
    #[must_use]
    pub fn p95_ns(&self) -> Option<u64> {
        let place = SHARES_PPM.iter().position(|ppm| *ppm == 950_000)?;
        self.quantiles_ns.get(place).copied()
    }

    /// Returns the I/Os per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.duration_s.max(1) as f64
    }

    /// Returns the rate of the run: the mean requests per second of its batches if it has any,
    /// otherwise I/Os per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.batch_rates.len() {
            0 => self.iops(),
            batches => self.batch_rates.iter().sum::<f64>() / batches as f64,
        }
    }

    /// Returns the I/Os per second in each sample.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let sample_s = self.sample_s.max(1) as f64;
        self.samples.iter().map(|ios| *ios as f64 / sample_s).collect()
    }

    fn of(case: &CaseResults, subject: &SubjectResults) -> Self {
        let together = together(subject);
        let every = subject.jobs.len().div_ceil(BATCHES_MAX).max(1);
        Self {
            ios: subject.ios,
            bytes: subject.bytes,
            duration_s: case.duration_s,
            latency: subject.latency,
            quantiles_ns: subject.quantiles_ns.clone(),
            sample_s: case.sample_s * together as u64,
            samples: subject.completed.chunks_exact(together).map(|ios| ios.iter().sum()).collect(),
            latency_s: 0,
            mean_latency_ns: Vec::new(),
            credits: Vec::new(),
            credits_bytes: Vec::new(),
            batch_rates: batch_rates(subject).step_by(every).collect(),
        }
    }

    /// Returns the run with the credits of its volumes at the end of each sample.
    fn with_credits(mut self, subject: &SubjectResults) -> Self {
        let together = together(subject);
        let last = |of: &[u64]| {
            of.chunks_exact(together).filter_map(|part| part.last().copied()).collect()
        };
        let of_target = |own: &[u64], of_target: &[u64]| {
            if of_target.is_empty() { last(own) } else { last(of_target) }
        };
        self.credits = of_target(&subject.credits, &subject.target_credits);
        self.credits_bytes = of_target(&subject.credits_bytes, &subject.target_credits_bytes);
        self
    }

    /// Returns the run with its latencies over time.
    fn with_latencies(mut self, case: &CaseResults, subject: &SubjectResults) -> Self {
        let means: Vec<u64> = subject.latencies.iter().map(|latency| latency.mean_ns).collect();
        if means.iter().any(|mean_ns| *mean_ns > 0) {
            self.latency_s = case.sample_s * subject.latency_samples;
            self.mean_latency_ns = means;
        }
        self
    }
}

/// Returns the calls per second of every batch of a client.
fn batch_rates(subject: &SubjectResults) -> impl Iterator<Item = f64> {
    subject.jobs.iter().map(|(_, took_ns)| {
        // Clocks are not exact enough for digits below a thousandth of a call per second.
        (subject.job_ios as f64 * 1e12 / (*took_ns).max(1) as f64).round() / 1e3
    })
}

/// Returns the number of neighbouring samples of a run that become one.
fn together(subject: &SubjectResults) -> usize {
    subject.completed.len().div_ceil(VALUES_MAX).max(1)
}

/// Groups the runs of each case. If clients are recorded, their results are used, otherwise those
/// of volumes.
pub(super) fn configurations(results: &Results) -> Vec<Configuration> {
    let mut found: Vec<Configuration> = Vec::new();
    // Batches of each configuration, with those that are not kept.
    let mut batches: Vec<Vec<f64>> = Vec::new();
    for case in &results.cases {
        let subjects = if case.clients.is_empty() { &case.volumes } else { &case.clients };
        let case_name = case.label.rsplit_once(" (").map_or(case.label.as_str(), |(name, _)| name);
        for subject in subjects {
            let name = match (subjects.len(), case_name) {
                (1, "") => subject.name.clone(),
                (1, case) => case.to_owned(),
                (_, "") => subject.name.clone(),
                (_, case) => format!("{case}{SEPARATOR}{}", subject.name),
            };
            let run = Run::of(case, subject);
            match found.iter().position(|known| known.name == name) {
                Some(known) => {
                    found[known].runs.push(run);
                    batches[known].extend(batch_rates(subject));
                }
                None => {
                    batches.push(batch_rates(subject).collect());
                    // Latencies over time show which client waits for which, if there are several.
                    let run = match subjects.len() {
                        1 => run,
                        _ => run.with_latencies(case, subject),
                    };
                    found.push(Configuration {
                        name,
                        iops: Sample::default(),
                        block_bytes: subject.block_bytes,
                        unit: subject.unit.to_owned(),
                        levels: subject.levels.clone(),
                        runs: vec![run.with_credits(subject)],
                    });
                }
            }
        }
    }
    for (configuration, batches) in found.iter_mut().zip(&batches) {
        let runs = configuration.rates();
        configuration.iops = Sample::of(if batches.is_empty() { &runs } else { batches });
    }
    found
}
