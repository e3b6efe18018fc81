//! Expectations of a scenario's run, and their verdicts.

use crate::check::Check;
use crate::figures::histogram::LatencySummary;
use crate::figures::series::Spread;
use crate::text;
use crate::world::client::BatchRecord;
use crate::world::record::{Record, Sample, Span, SpanRecord};
use evenkeel_core::convert::index;
use evenkeel_core::time::Duration;

/// One expectation.
#[derive(Clone, PartialEq, Debug)]
pub struct Expectation {
    /// The figure.
    pub metric: Metric,
    /// The volumes or clients that it is measured of.
    pub of: Vec<Subject>,
    /// The name of those in results.
    pub of_name: String,
    /// The part of the run in which it is measured.
    pub span: Span,
    /// Whether requests are counted when they are dispatched to the device, not when they are
    /// answered.
    pub at_dispatch: bool,
    /// Bounds on the figure.
    pub bounds: Bounds,
}

/// A volume or a client, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A volume.
    Volume(u32),
    /// A client.
    Client(u32),
}

/// A figure that can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// Requests per second.
    MeanIops,
    /// MiB per second.
    MeanMibps,
    /// Bytes of a request on average, in KiB.
    KibPerIo,
    /// Requests.
    TotalIos,
    /// Requests per second in the sample that is furthest from the middle of the bounds.
    EverySecond,
    /// The least requests per second in any sample of any of them.
    WorstSecond,
    /// Standard deviation of the samples' rates divided by their mean, in percent.
    CovPercent,
    /// Largest number of requests in ten milliseconds, as a rate per second.
    Peak10ms,
    /// A latency in milliseconds.
    Latency(Quantile),
    /// Average number of requests that wait for their answer.
    UnderWay,
    /// Time at which the rate first falls below this many requests per second, in seconds after the
    /// start.
    FallsBelow(u64),
    /// Requests above a baseline until the rate falls: the credits that were spent.
    CreditsSpent {
        /// The rate below which it has fallen, in requests per second.
        below: u64,
        /// The rate that needs no credits, in requests per second.
        baseline: u64,
    },
    /// I/O credits at the end of the span.
    Credits,
    /// Byte credits at the end of the span, in GiB.
    CreditsGib,
    /// The least rate of several divided by the largest.
    Share,
    /// Tokens that were lost to pauses and paid back by the end, in milliseconds of the rate.
    CatchUp,
    /// Requests that were answered divided by those that the server counted.
    Counted,
    /// Flushes that the server saw for each durable call of a program.
    FlushesPerCall,
    /// Requests per second of each batch: their mean.
    JobMeanIops,
    /// Calls per second of each batch, if a program's calls are not the volume's I/Os: their mean.
    JobMeanCalls,
    /// Requests per second of each batch: their coefficient of variation in percent.
    JobCovPercent,
    /// Sum of the batches' durations, in seconds.
    JobSeconds,
}

/// A statistic of latencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quantile {
    /// The mean.
    Mean,
    /// The median.
    P50,
    /// The 99th percentile.
    P99,
    /// The 99.9th percentile.
    P999,
    /// The longest.
    Max,
}

/// Bounds on a figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Bounds {
    /// At least this.
    pub low: f64,
    /// At most this.
    pub high: f64,
    /// The bounds in the words of the scenario: `1,000 within 1 %`.
    pub words: String,
}

/// Everything measured of a volume or a client.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// Its record.
    pub record: &'a Record,
    /// Its batches.
    pub batches: &'a [BatchRecord],
    /// Number of requests in a batch.
    pub batch_ios: u64,
    /// Time's worth of tokens that the scheduler has paid back to it.
    pub catch_up: Duration,
    /// The counts of both ends; `None` for a client that is not the only one of its volume.
    pub counts: Option<Counts>,
}

/// Requests of a whole run, as both ends counted them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Answers that the clients got.
    pub answered: u64,
    /// Requests that the server charged for.
    pub counted: u64,
    /// Calls of programs whose flushes were counted; 0 where there are none, as in virtual time.
    pub calls: u64,
    /// Flushes that the server saw of them.
    pub flushes: u64,
}

impl Bounds {
    /// Returns the middle of both bounds; `None` if there is only one of them.
    #[must_use]
    pub fn middle(&self) -> Option<f64> {
        let middle = (self.low + self.high) / 2.0;
        middle.is_finite().then_some(middle)
    }

    /// Returns bounds that accept any figure.
    #[must_use]
    pub fn none() -> Self {
        Self { low: f64::NEG_INFINITY, high: f64::INFINITY, words: String::new() }
    }
}

impl Expectation {
    /// Judges the run. `evidence` is that of each subject, in order.
    #[must_use]
    pub fn check(&self, evidence: &[Evidence<'_>], sample_ns: u64) -> Check {
        let value = self.measure(evidence, sample_ns);
        let measured = value.map_or_else(|| "nothing".to_owned(), |value| self.metric.shown(value));
        let pass = value.is_some_and(|value| (self.bounds.low..=self.bounds.high).contains(&value));
        let expected = self.bounds.words.clone();
        Check { value, ..Check::new(self.to_string(), expected, measured, pass) }
    }

    fn measure<'a>(&self, evidence: &[Evidence<'a>], sample_ns: u64) -> Option<f64> {
        let sample_s = sample_ns as f64 / 1e9;
        let samples = |of: &Evidence<'a>| self.samples(of.record, sample_ns);
        let sum = |pick: fn(&Sample) -> u64| {
            let all = evidence.iter().flat_map(samples);
            all.map(|sample| pick(&sample)).sum::<u64>() as f64
        };
        let seconds = self.span.seconds();
        match self.metric {
            Metric::MeanIops => Some(self.ios(evidence, sample_ns) / seconds),
            Metric::TotalIos => Some(self.ios(evidence, sample_ns)),
            Metric::MeanMibps => Some(sum(|sample| sample.completed_bytes) / 1_048_576.0 / seconds),
            Metric::KibPerIo => {
                let ios = sum(|sample| sample.completed);
                (ios > 0.0).then(|| sum(|sample| sample.completed_bytes) / 1_024.0 / ios)
            }
            Metric::EverySecond => {
                let middle = (self.bounds.low.max(0.0) + self.bounds.high.min(1e18)) / 2.0;
                let off = |rate: &f64| (rate - middle).abs();
                self.rates(evidence, sample_ns).into_iter().max_by(|a, b| off(a).total_cmp(&off(b)))
            }
            Metric::WorstSecond => {
                let each = evidence.iter().flat_map(|evidence| self.rates(&[*evidence], sample_ns));
                each.min_by(f64::total_cmp)
            }
            Metric::CovPercent => Some(Spread::of(&self.rates(evidence, sample_ns)).cov * 100.0),
            Metric::Peak10ms => {
                let peaks = evidence.iter().flat_map(samples).map(|sample| sample.peak_10ms);
                peaks.max().map(|peak| f64::from(peak) * 100.0)
            }
            Metric::Latency(quantile) => {
                let latency = self.watched(evidence.first()?)?.latency;
                (latency.count > 0).then(|| quantile.of(&latency) as f64 / 1e6)
            }
            Metric::UnderWay => Some(self.waited_s(evidence)? / seconds),
            Metric::FallsBelow(rate) => {
                let from_s = self.span.from_ns as f64 / 1e9;
                let fell = falls_below(&self.rates(evidence, sample_ns), rate as f64)?;
                Some(from_s + fell * sample_s)
            }
            Metric::CreditsSpent { below, baseline } => {
                let rates = self.rates(evidence, sample_ns);
                Some(spent_until(&rates, below as f64, baseline as f64)? * sample_s)
            }
            Metric::Credits => Some(samples(evidence.first()?).last()?.balances.operations? as f64),
            Metric::CreditsGib => {
                let last = samples(evidence.first()?).last()?.balances.bytes?;
                Some(last as f64 / f64::from(1 << 30))
            }
            Metric::Share => {
                let each = evidence.iter().map(|evidence| self.ios(&[*evidence], sample_ns));
                least_share(each)
            }
            Metric::CatchUp => Some(catch_up_ms(evidence)),
            Metric::Counted => counted_share(evidence),
            Metric::FlushesPerCall => flushes_per_call(evidence),
            Metric::JobMeanIops | Metric::JobMeanCalls => {
                let rates = self.batch_rates(evidence);
                (!rates.is_empty()).then(|| Spread::of(&rates).mean)
            }
            Metric::JobCovPercent => {
                let rates = self.batch_rates(evidence);
                (rates.len() > 1).then(|| Spread::of(&rates).cov * 100.0)
            }
            Metric::JobSeconds => self.job_seconds(evidence),
        }
    }

    /// Returns the sum of the latencies of all subjects' requests, in seconds.
    fn waited_s(&self, evidence: &[Evidence<'_>]) -> Option<f64> {
        let waited = |of: &Evidence<'_>| {
            let latency = self.watched(of)?.latency;
            Some(latency.mean_ns as f64 * latency.count as f64 / 1e9)
        };
        evidence.iter().map(waited).sum()
    }

    /// Returns the samples that lie in the span.
    fn samples<'r>(
        &self,
        record: &'r Record,
        sample_ns: u64,
    ) -> impl Iterator<Item = Sample> + use<'r> {
        let from = index(self.span.from_ns / sample_ns);
        let to = index(self.span.to_ns / sample_ns);
        record.samples.iter().copied().take(to).skip(from)
    }

    fn count(&self, sample: &Sample) -> u64 {
        if self.at_dispatch { sample.dispatched } else { sample.completed }
    }

    /// Returns whether the span must be recorded during the run: for latencies, and for counts if
    /// the span does not consist of whole samples.
    #[must_use]
    pub fn needs_watch(&self, sample_ns: u64) -> bool {
        match self.metric {
            Metric::Latency(_) | Metric::UnderWay => true,
            metric => metric.is_exact() && !self.has_whole_samples(sample_ns),
        }
    }

    /// Returns whether the span consists of whole samples. A last, partial sample is not kept.
    fn has_whole_samples(&self, sample_ns: u64) -> bool {
        [self.span.from_ns, self.span.to_ns].iter().all(|ns| ns.is_multiple_of(sample_ns))
    }

    fn watched(&self, of: &Evidence<'_>) -> Option<SpanRecord> {
        of.record.spans.iter().find(|watched| watched.span == self.span).copied()
    }

    fn ios(&self, evidence: &[Evidence<'_>], sample_ns: u64) -> f64 {
        if !self.has_whole_samples(sample_ns) {
            let counts = evidence.iter().filter_map(|evidence| self.watched(evidence));
            let pick =
                |at: SpanRecord| if self.at_dispatch { at.dispatched } else { at.latency.count };
            return counts.map(pick).sum::<u64>() as f64;
        }
        let all = evidence.iter().flat_map(|evidence| self.samples(evidence.record, sample_ns));
        all.map(|sample| self.count(&sample)).sum::<u64>() as f64
    }

    /// Returns the requests per second of each sample, of all subjects together.
    fn rates(&self, evidence: &[Evidence<'_>], sample_ns: u64) -> Vec<f64> {
        let mut counts: Vec<u64> = Vec::new();
        for of in evidence {
            for (at, sample) in self.samples(of.record, sample_ns).enumerate() {
                match counts.get_mut(at) {
                    Some(count) => *count += self.count(&sample),
                    None => counts.push(self.count(&sample)),
                }
            }
        }
        counts.into_iter().map(|count| count as f64 * 1e9 / sample_ns as f64).collect()
    }

    fn batch_rates(&self, evidence: &[Evidence<'_>]) -> Vec<f64> {
        let each = evidence.iter().flat_map(|evidence| {
            let ios = evidence.batch_ios as f64 * 1e9;
            self.batches(evidence).map(move |batch| ios / batch.took_ns.max(1) as f64)
        });
        each.collect()
    }

    /// Returns the duration of all batches; `None` if a subject lacks one, as they belong together.
    fn job_seconds(&self, evidence: &[Evidence<'_>]) -> Option<f64> {
        let took = |of: &Evidence<'_>| {
            let each = self.batches(of).map(|batch| batch.took_ns as f64 / 1e9);
            each.reduce(|sum, seconds| sum + seconds)
        };
        evidence.iter().map(took).sum()
    }

    /// Returns the batches that began in the span.
    fn batches<'r>(&self, of: &Evidence<'r>) -> impl Iterator<Item = &'r BatchRecord> + use<'r> {
        let span = self.span;
        of.batches.iter().filter(move |batch| span.contains(batch.started_ns))
    }
}

/// Returns the least divided by the largest; `None` if all are 0.
fn least_share(each: impl Iterator<Item = f64>) -> Option<f64> {
    let (least, most) = each.fold((f64::MAX, 0.0_f64), |(l, m), ios| (l.min(ios), m.max(ios)));
    (most > 0.0).then(|| least / most)
}

/// Sums the time's worth of tokens that was lost to pauses and paid back, in milliseconds.
fn catch_up_ms(evidence: &[Evidence<'_>]) -> f64 {
    evidence.iter().map(|evidence| evidence.catch_up.ns as f64 / 1e6).sum()
}

/// Divides the answers that clients got by the requests that the server counted; `None` if it
/// counted none.
fn counted_share(evidence: &[Evidence<'_>]) -> Option<f64> {
    let counts = || evidence.iter().filter_map(|evidence| evidence.counts);
    let counted: u64 = counts().map(|counts| counts.counted).sum();
    let answered: u64 = counts().map(|counts| counts.answered).sum();
    (counted > 0).then(|| answered as f64 / counted as f64)
}

/// Returns the flushes for each call; `None` without calls that have flushes.
fn flushes_per_call(evidence: &[Evidence<'_>]) -> Option<f64> {
    let counts = || evidence.iter().filter_map(|evidence| evidence.counts);
    let calls: u64 = counts().map(|counts| counts.calls).sum();
    let flushes: u64 = counts().map(|counts| counts.flushes).sum();
    (calls > 0).then(|| flushes as f64 / calls as f64)
}

/// Returns the time at which rates fall below `level`, in samples. The place within that sample is
/// its share of the rates before and after. Returns `None` if they never fall below it, or never
/// were above.
fn falls_below(rates: &[f64], level: f64) -> Option<f64> {
    let first = rates.iter().position(|rate| *rate < level)?;
    let before = *rates[..first].last()?;
    let after = rates.get(first + 1).copied().unwrap_or(0.0);
    let share = if before > after { (rates[first] - after) / (before - after) } else { 0.0 };
    Some(first as f64 + share.clamp(0.0, 1.0))
}

/// Returns the sum of the rates above a baseline, from the first rate of at least `level` until
/// they fall below it.
fn spent_until(rates: &[f64], level: f64, baseline: f64) -> Option<f64> {
    let rises = rates.iter().position(|rate| *rate >= level)?;
    let fell = rises as f64 + falls_below(&rates[rises..], level)?;
    let whole = fell.floor() as usize;
    let had: f64 = rates[..whole].iter().sum();
    let part = rates[..whole].last().map_or(0.0, |before| before * fell.fract());
    Some(had + part - baseline * fell)
}

impl Quantile {
    const fn of(self, latency: &LatencySummary) -> u64 {
        match self {
            Self::Mean => latency.mean_ns,
            Self::P50 => latency.p50_ns,
            Self::P99 => latency.p99_ns,
            Self::P999 => latency.p999_ns,
            Self::Max => latency.max_ns,
        }
    }
}

impl Metric {
    /// Every metric, by the word that scenarios use. The parameters of a metric are read later.
    pub const WORDS: [(&'static str, Self); 26] = [
        ("mean_iops", Self::MeanIops),
        ("mean_mibps", Self::MeanMibps),
        ("kib_per_io", Self::KibPerIo),
        ("total_ios", Self::TotalIos),
        ("every_second", Self::EverySecond),
        ("worst_second", Self::WorstSecond),
        ("cov_percent", Self::CovPercent),
        ("peak_10ms", Self::Peak10ms),
        ("mean_ms", Self::Latency(Quantile::Mean)),
        ("p50_ms", Self::Latency(Quantile::P50)),
        ("p99_ms", Self::Latency(Quantile::P99)),
        ("p999_ms", Self::Latency(Quantile::P999)),
        ("max_ms", Self::Latency(Quantile::Max)),
        ("under_way", Self::UnderWay),
        ("falls_below", Self::FallsBelow(0)),
        ("credits_spent", Self::CreditsSpent { below: 0, baseline: 0 }),
        ("credits", Self::Credits),
        ("credits_gib", Self::CreditsGib),
        ("share", Self::Share),
        ("made_whole_ms", Self::CatchUp),
        ("counted", Self::Counted),
        ("flushes_per_call", Self::FlushesPerCall),
        ("job_mean_iops", Self::JobMeanIops),
        ("job_mean_calls", Self::JobMeanCalls),
        ("job_cov_percent", Self::JobCovPercent),
        ("job_seconds", Self::JobSeconds),
    ];

    /// Returns whether it can be measured over any span, not only over whole samples.
    #[must_use]
    pub const fn is_exact(self) -> bool {
        use Metric::{CatchUp, Latency, MeanIops, Share, TotalIos, UnderWay};
        matches!(self, MeanIops | TotalIos | Share | Latency(_) | UnderWay | CatchUp)
    }

    /// Returns whether a run of a fraction of the time has a fraction of it: a sum, or a duration.
    #[must_use]
    pub const fn is_total(self) -> bool {
        matches!(
            self,
            Self::TotalIos | Self::FallsBelow(_) | Self::CreditsSpent { .. } | Self::Credits
        )
    }

    /// Returns whether it exists only in live runs, so that virtual time cannot measure it.
    #[must_use]
    pub const fn is_live_only(self) -> bool {
        matches!(self, Self::FlushesPerCall)
    }

    /// Formats a figure with its unit.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::MeanIops | Self::EverySecond | Self::WorstSecond => {
                format!("{} IOPS", text::rate(value))
            }
            Self::Peak10ms | Self::JobMeanIops => {
                format!("{} IOPS", text::rate(value))
            }
            Self::JobMeanCalls => format!("{} calls/s", text::rate(value)),
            Self::MeanMibps => format!("{} MiB/s", text::rate(value)),
            Self::TotalIos => format!("{} I/Os", text::rate(value)),
            Self::CovPercent | Self::JobCovPercent => text::percent(value / 100.0),
            Self::Latency(_) | Self::CatchUp => text::latency((value * 1e6).round() as u64),
            Self::UnderWay => format!("{value:.2}"),
            Self::FallsBelow(_) | Self::JobSeconds => format!("{value:.1} s"),
            Self::Credits | Self::CreditsSpent { .. } => text::rate(value),
            Self::KibPerIo => format!("{value:.2} KiB"),
            Self::CreditsGib => format!("{} GiB", text::rate(value)),
            Self::Share | Self::Counted | Self::FlushesPerCall => format!("{value:.4}"),
        }
    }

    /// Returns its name in results.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::MeanIops => "IOPS on average".to_owned(),
            Self::MeanMibps => "MiB/s on average".to_owned(),
            Self::TotalIos => "I/Os".to_owned(),
            Self::EverySecond => "IOPS in every second".to_owned(),
            Self::WorstSecond => "IOPS in the worst second of any".to_owned(),
            Self::CovPercent => "variation of the seconds".to_owned(),
            Self::Peak10ms => "busiest 10 ms".to_owned(),
            Self::Latency(Quantile::Mean) => "latency, mean".to_owned(),
            Self::Latency(Quantile::P50) => "latency, p50".to_owned(),
            Self::Latency(Quantile::P99) => "latency, p99".to_owned(),
            Self::Latency(Quantile::P999) => "latency, p99.9".to_owned(),
            Self::Latency(Quantile::Max) => "latency, longest".to_owned(),
            Self::UnderWay => "requests under way".to_owned(),
            Self::FallsBelow(rate) => format!("falls below {} IOPS", text::thousands(rate)),
            Self::CreditsSpent { below, .. } => {
                format!("credits spent until it falls below {} IOPS", text::thousands(below))
            }
            Self::KibPerIo => "KiB of each".to_owned(),
            Self::Credits => "I/O credits".to_owned(),
            Self::CreditsGib => "byte credits".to_owned(),
            Self::Share => "least share / largest".to_owned(),
            Self::CatchUp => "made whole".to_owned(),
            Self::Counted => "answered / counted by the server".to_owned(),
            Self::FlushesPerCall => "flushes for each durable call".to_owned(),
            Self::JobMeanIops => "IOPS of the jobs".to_owned(),
            Self::JobMeanCalls => "calls per second of the jobs".to_owned(),
            Self::JobCovPercent => "variation of the jobs".to_owned(),
            Self::JobSeconds => "length of the jobs".to_owned(),
        }
    }
}

impl std::fmt::Display for Expectation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let from_s = self.span.from_ns as f64 / 1e9;
        let to_s = self.span.to_ns as f64 / 1e9;
        let at = if self.at_dispatch { " at dispatch" } else { "" };
        write!(f, "{}: {}{at}, ", self.of_name, self.metric.words())?;
        match self.metric {
            Metric::Credits | Metric::CreditsGib => write!(f, "at {to_s} s"),
            _ => write!(f, "{from_s} to {to_s} s"),
        }
    }
}

#[cfg(test)]
mod tests;
