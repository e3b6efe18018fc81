//! What came of each configuration of a suite: its runs, and what they were held to.

use serde::{Deserialize, Serialize};

use evenkeel_sim::figures::histogram::{LatencySummary, SHARES_PPM};
use evenkeel_sim::figures::stats::{Bootstrap, Interval, Sample};
use evenkeel_sim::scenario::levels::Level;
use evenkeel_sim::world::run::{CaseResults, Results, SubjectResults};

/// Values of a run that are kept at most: neighbours of a longer run are added up.
const VALUES_MAX: usize = 600;
/// Batches of a run that are kept at most; of more, every second, third, ... is.
const BATCHES_MAX: usize = 1_200;

/// Runs from which on something can be said of how they vary.
pub(crate) const RUNS_MIN: usize = 3;

/// What is counted where nothing else is said.
pub(crate) const IOS: &str = "I/Os";

const MIB: f64 = 1_048_576.0;

/// Stands between a case and one of its clients in the name of a configuration.
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
    /// Bytes of each of its requests; 0 where they are not known, or not alike.
    #[serde(default, skip_serializing_if = "is_none")]
    pub block_bytes: u32,
    /// What it counts, in the plural; empty where that is I/Os.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
    /// What it was held to at the start of the run, in its own requests per second: the limits of
    /// its volume, the sum of those of a stripe, what its instance carries.
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
    /// The latencies that the shares of [`SHARES_PPM`] had at most, in nanoseconds; empty where
    /// only sums are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles_ns: Vec<u64>,
    /// Seconds in each of `samples`.
    pub sample_s: u64,
    /// I/Os answered, sample by sample; what is left at the end of the run and shorter is no
    /// sample.
    pub samples: Vec<u64>,
    /// Seconds in each of `mean_latency_ns`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_s: u64,
    /// Mean latencies one after the other, zero where there was nothing; of the first run of a
    /// client that is one of several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mean_latency_ns: Vec<u64>,
    /// I/O credits at the end of each of `samples`, of all volumes below; of the first run. Empty
    /// where there are none, and live, where nobody notes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits: Vec<u64>,
    /// Byte credits, likewise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credits_bytes: Vec<u64>,
    /// Batches of a client: the requests per second of each, or of every second, third, ... of
    /// many.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_rates: Vec<f64>,
}

impl Configuration {
    /// What it counts, in the plural.
    #[must_use]
    pub fn unit(&self) -> &str {
        if self.unit.is_empty() { IOS } else { &self.unit }
    }

    /// Whether nothing is known of it: what only goes on beside a program live is not
    /// recorded.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        let is_empty = |run: &Run| run.samples.is_empty() && run.batch_rates.is_empty();
        self.runs.iter().all(|run| run.ios == 0 && is_empty(run))
    }

    /// What its statistics are of, as far as it is kept: the batches of a client that has some,
    /// else the runs.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let batches: Vec<f64> =
            self.runs.iter().flat_map(|run| run.batch_rates.iter().copied()).collect();
        if batches.is_empty() { self.runs.iter().map(Run::iops).collect() } else { batches }
    }

    /// Where the mean of its runs or batches lies with 95 % confidence; none of fewer than three.
    /// Of many batches not all are kept: the interval of those is narrowed to that
    /// of all, by the root of how many times as many they are.
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

    /// MiB per second of its runs on average, or of its batches; none where it is not known how
    /// much its requests move.
    #[must_use]
    pub fn mibps(&self) -> Option<f64> {
        if self.block_bytes > 0 {
            return Some(self.iops.mean * f64::from(self.block_bytes) / MIB);
        }
        if self.runs.iter().any(|run| !run.batch_rates.is_empty()) {
            // Between two batches nothing is moved, and that is no part of their rate.
            return None;
        }
        let bytes: u64 = self.runs.iter().map(|run| run.bytes).sum();
        let seconds: u64 = self.runs.iter().map(|run| run.duration_s.max(1)).sum();
        (bytes > 0).then(|| bytes as f64 / seconds as f64 / MIB)
    }
}

impl Run {
    /// The latency that 95 % of its I/Os had at most, in nanoseconds; none where only sums are
    /// known, or a result is older than that it is kept.
    #[must_use]
    pub fn p95_ns(&self) -> Option<u64> {
        let place = SHARES_PPM.iter().position(|ppm| *ppm == 950_000)?;
        self.quantiles_ns.get(place).copied()
    }

    /// I/Os per second.
    #[must_use]
    pub fn iops(&self) -> f64 {
        self.ios as f64 / self.duration_s.max(1) as f64
    }

    /// What the run came to: requests per second of its batches on average if it has some, else
    /// I/Os per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        match self.batch_rates.len() {
            0 => self.iops(),
            batches => self.batch_rates.iter().sum::<f64>() / batches as f64,
        }
    }

    /// I/Os per second in each sample.
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

    /// The same with the credits of its volumes: what is left at the end of each sample.
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

    /// The same with its latencies over time.
    fn with_latencies(mut self, case: &CaseResults, subject: &SubjectResults) -> Self {
        let means: Vec<u64> = subject.latencies.iter().map(|at| at.mean_ns).collect();
        if means.iter().any(|mean_ns| *mean_ns > 0) {
            self.latency_s = case.sample_s * subject.latency_samples;
            self.mean_latency_ns = means;
        }
        self
    }
}

/// Calls per second of every batch of a client.
fn batch_rates(subject: &SubjectResults) -> impl Iterator<Item = f64> {
    subject.jobs.iter().map(|(_, took_ns)| {
        // A thousandth of a call per second is more than a clock is good for.
        (subject.job_ios as f64 * 1e12 / (*took_ns).max(1) as f64).round() / 1e3
    })
}

/// Neighbouring samples of a run that become one.
fn together(subject: &SubjectResults) -> usize {
    subject.completed.len().div_ceil(VALUES_MAX).max(1)
}

/// The runs of each case together. Where clients are recorded, they are what is looked at.
pub(super) fn configurations(results: &Results) -> Vec<Configuration> {
    let mut found: Vec<Configuration> = Vec::new();
    // Of each of them, those that are not kept as well.
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
                    // Who waits for whom is told by several that are there at once.
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
