//! Reads CloudWatch's metrics of volumes: the common part of the formats of its answers.
//!
//! An answer has series of points. The series of one volume become intervals at every time at which
//! one of its series of requests or bytes has a point. CloudWatch has no point if it has no value:
//! a missing point is unknown, and an interval with a missing amount still shows the use of the
//! others.

pub mod console;
pub mod data;
mod period;
pub mod statistics;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::trace::{Amounts, Clock, Columns, Interval, Kind, Note};

use super::collect::{Traces, too_many_intervals, too_many_names};
use super::numbers::{amount, show_time, time, utc};
use super::{Broken, Hints, INTERVAL_MS, INTERVALS_TOTAL_MAX, NAMES_MAX, Read};

/// A metric that is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Metric {
    ReadOps,
    WriteOps,
    ReadBytes,
    WriteBytes,
    IdleTime,
    ReadTime,
    WriteTime,
    QueueLength,
    BurstBalance,
    IopsExceeded,
    ThroughputExceeded,
}

const METRICS: [(Metric, &str); 11] = [
    (Metric::ReadOps, "VolumeReadOps"),
    (Metric::WriteOps, "VolumeWriteOps"),
    (Metric::ReadBytes, "VolumeReadBytes"),
    (Metric::WriteBytes, "VolumeWriteBytes"),
    (Metric::IdleTime, "VolumeIdleTime"),
    (Metric::ReadTime, "VolumeTotalReadTime"),
    (Metric::WriteTime, "VolumeTotalWriteTime"),
    (Metric::QueueLength, "VolumeQueueLength"),
    (Metric::BurstBalance, "BurstBalance"),
    (Metric::IopsExceeded, "VolumeIOPSExceededCheck"),
    (Metric::ThroughputExceeded, "VolumeThroughputExceededCheck"),
];

impl Metric {
    /// Returns the metric that a label names.
    fn find(label: &str) -> Option<Self> {
        METRICS.iter().find(|(_, name)| label.contains(name)).map(|(metric, _)| *metric)
    }

    fn name(self) -> &'static str {
        METRICS.iter().find(|(metric, _)| *metric == self).map_or("", |(_, name)| name)
    }

    /// Returns whether it is a number of requests or bytes.
    const fn is_amount(self) -> bool {
        matches!(self, Self::ReadOps | Self::WriteOps | Self::ReadBytes | Self::WriteBytes)
    }

    /// Returns whether a statistic of it has the meaning of an interval's value.
    const fn takes(self, statistic: Statistic) -> bool {
        match self {
            Self::QueueLength | Self::BurstBalance => matches!(statistic, Statistic::Average),
            // Whether it was 1 at any time.
            Self::IopsExceeded | Self::ThroughputExceeded => {
                matches!(statistic, Statistic::Sum | Statistic::Average | Statistic::Maximum)
            }
            _ => matches!(statistic, Statistic::Sum),
        }
    }

    /// Returns the statistic to ask for.
    const fn wanted(self) -> &'static str {
        match self {
            Self::QueueLength | Self::BurstBalance => "Average",
            Self::IopsExceeded | Self::ThroughputExceeded => "Maximum",
            _ => "Sum",
        }
    }
}

/// The statistic by which CloudWatch combines several values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Statistic {
    Sum,
    Average,
    Minimum,
    Maximum,
    SampleCount,
    Other,
}

impl Statistic {
    /// Returns the statistic of a query.
    fn of(text: &str) -> Self {
        Self::find(text).unwrap_or(Self::Other)
    }

    /// Returns the statistic that a label names.
    fn find(label: &str) -> Option<Self> {
        label.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|word| {
            Some(match word.to_ascii_lowercase().as_str() {
                "sum" => Self::Sum,
                "average" | "avg" => Self::Average,
                "minimum" | "min" => Self::Minimum,
                "maximum" | "max" => Self::Maximum,
                "samplecount" => Self::SampleCount,
                "p50" | "p90" | "p95" | "p99" => Self::Other,
                _ => return None,
            })
        })
    }
}

/// Returns the id of a volume in a label.
fn volume_in(label: &str) -> Option<&str> {
    let from = label.get(label.find("vol-")?..)?;
    let digits = from.get(4..)?.bytes().take_while(u8::is_ascii_hexdigit).count();
    (digits >= 4).then(|| from.get(..4 + digits)).flatten()
}

/// Points of one metric of one volume.
pub(super) struct Series {
    /// Its name in the text, for errors.
    pub place: String,
    pub volume: Option<String>,
    pub metric: Metric,
    pub statistic: Option<Statistic>,
    pub points: Vec<(u64, f64)>,
}

/// A timestamp in JSON: a text, or seconds since 1970; here in milliseconds.
pub(super) struct Timestamp(pub u64);

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimestampVisitor)
    }
}

struct TimestampVisitor;

impl Visitor<'_> for TimestampVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time as 2026-11-25T19:00:00+00:00")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
        let unix_ms = utc(text).or_else(|| Some(time(text)?.unix_ms));
        let invalid = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
        unix_ms.map(Timestamp).ok_or_else(invalid)
    }

    fn visit_f64<E: serde::de::Error>(self, seconds: f64) -> Result<Timestamp, E> {
        Ok(Timestamp(amount(seconds * 1_000.0)))
    }

    fn visit_u64<E: serde::de::Error>(self, seconds: u64) -> Result<Timestamp, E> {
        Ok(Timestamp(seconds.saturating_mul(1_000)))
    }
}

/// The series of one volume, by metric.
#[derive(Default)]
struct Volume {
    /// The points of each metric, by time, each time once.
    series: BTreeMap<Metric, Vec<(u64, f64)>>,
    /// The metrics without a statistic in the text, and their names there.
    unsaid: BTreeMap<Metric, String>,
    unsuitable: BTreeMap<Metric, String>,
    /// The points of means and of numbers of samples. Their product is a sum.
    averages: BTreeMap<Metric, Vec<(u64, f64)>>,
    sample_counts: BTreeMap<Metric, Vec<(u64, f64)>>,
}

/// Creates traces from series. `period_ms` is the period that the text or a query states, if any.
/// `needs_amounts` is whether a volume needs requests or bytes.
pub(super) fn assemble(
    series: Vec<Series>,
    period_ms: Option<u64>,
    needs_amounts: bool,
    hints: &Hints,
) -> Read {
    let period_ms = hints.interval().or(period_ms.filter(|ms| INTERVAL_MS.contains(ms)));
    let mut volumes = gather(series, hints)?;
    volumes.values_mut().for_each(Volume::sum_averages);
    let mut traces = Traces::new(Clock::Unix);
    let mut remarks = BTreeMap::new();
    for (name, volume) in &volumes {
        volume.refuse_unsuitable(name, needs_amounts)?;
        volume.refuse_fractions(name)?;
        traces.of(name)?;
        let notes = volume.intervals(name, period_ms, needs_amounts, &mut traces)?;
        remarks.insert(name.clone(), notes);
    }
    if traces.is_empty() {
        let wanted = hints.name.as_deref().unwrap_or("no values");
        return Err(Broken::whole(
            wanted,
            "VolumeReadOps, VolumeWriteOps, VolumeReadBytes or VolumeWriteBytes of a volume that \
             is wanted",
        ));
    }
    let mut traces = traces.finish(&[])?;
    for trace in &mut traces {
        trace.notes.extend(remarks.remove(&trace.name).unwrap_or_default());
    }
    Ok(traces)
}

fn gather(series: Vec<Series>, hints: &Hints) -> Result<BTreeMap<String, Volume>, Broken> {
    let mut volumes: BTreeMap<String, Volume> = BTreeMap::new();
    let mut total = 0;
    for one in series {
        let fallback = || hints.name.clone().unwrap_or_else(|| "volume".to_owned());
        let name = one.volume.unwrap_or_else(fallback);
        if hints.name.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        if !volumes.contains_key(&name) && volumes.len() >= NAMES_MAX {
            return Err(too_many_names(&name));
        }
        let volume = volumes.entry(name).or_default();
        let points = match one.statistic {
            Some(statistic) if !one.metric.takes(statistic) => {
                volume.unsuitable.insert(one.metric, one.place.clone());
                match statistic {
                    Statistic::Average => volume.averages.entry(one.metric),
                    Statistic::SampleCount => volume.sample_counts.entry(one.metric),
                    _ => continue,
                }
            }
            None => {
                volume.unsaid.insert(one.metric, one.place.clone());
                volume.series.entry(one.metric)
            }
            Some(_) => volume.series.entry(one.metric),
        }
        .or_default();
        total += one.points.len();
        if total > 2 * INTERVALS_TOTAL_MAX {
            return Err(too_many_intervals(&one.place));
        }
        let bad = one.points.iter().find(|(_, value)| !value.is_finite() || *value < 0.0);
        if let Some((_, value)) = bad {
            let expected = format!("values that are not negative, not {value}");
            return Err(Broken::whole(&one.place, expected));
        }
        add(points, one.points).map_err(|start_ms| {
            let expected = format!(
                "one value of {} at {}; name the volume in the label of each series, and ask for \
                 one statistic",
                one.metric.name(),
                show_time(start_ms)
            );
            Broken::whole(&one.place, expected)
        })?;
    }
    Ok(volumes)
}

/// Adds points to those of a metric. Returns an error with the time if there are two values for it.
fn add(points: &mut Vec<(u64, f64)>, mut more: Vec<(u64, f64)>) -> Result<(), u64> {
    // Answers are sorted in either direction, or pages of such: runs, which sort fast.
    match points.is_empty() {
        true => *points = more,
        false => points.append(&mut more),
    }
    points.sort_by_key(|(start_ms, _)| *start_ms);
    let differ = |pair: &&[(u64, f64)]| matches!(pair, [a, b] if a.0 == b.0 && a.1 != b.1);
    if let Some([(start_ms, _), _]) = points.windows(2).find(differ) {
        return Err(*start_ms);
    }
    points.dedup_by_key(|(start_ms, _)| *start_ms);
    Ok(())
}

impl Volume {
    /// Returns an error if a needed metric has another statistic only.
    fn refuse_unsuitable(&self, name: &str, needs_amounts: bool) -> Result<(), Broken> {
        for (metric, place) in &self.unsuitable {
            let is_needed = metric.is_amount() || !needs_amounts;
            if is_needed && !self.series.contains_key(metric) {
                let expected = format!(
                    "the statistic {} of {} of {name}: others are per request on some hosts and \
                     per period on others",
                    metric.wanted(),
                    metric.name()
                );
                return Err(Broken::whole(place, expected));
            }
        }
        Ok(())
    }

    /// Computes sums from the means and the numbers of samples, whatever a sample is.
    fn sum_averages(&mut self) {
        for (metric, averages) in &self.averages {
            let Some(counts) = self.sample_counts.get(metric) else { continue };
            if self.series.contains_key(metric) {
                continue;
            }
            let counts: BTreeMap<u64, f64> = counts.iter().copied().collect();
            let sum = |(start_ms, average): &(u64, f64)| {
                Some((*start_ms, (average * counts.get(start_ms)?).round()))
            };
            self.series.insert(*metric, averages.iter().filter_map(sum).collect());
        }
    }

    /// Returns an error for a sum of operations or bytes that is not whole: it is another
    /// statistic.
    fn refuse_fractions(&self, name: &str) -> Result<(), Broken> {
        for (metric, place) in self.unsaid.iter().filter(|(metric, _)| metric.is_amount()) {
            let is_fraction = |value: f64| (value - value.round()).abs() > 0.001;
            let points = self.series.get(metric).into_iter().flatten();
            let Some((_, value)) = points.copied().find(|(_, value)| is_fraction(*value)) else {
                continue;
            };
            let expected = format!(
                "the Sum of {0} of {name}, which is whole: {value} is of another statistic, such \
                 as Average. Ask with \"Stat\": \"Sum\" in the queries of `aws cloudwatch \
                 get-metric-data`, or with `aws cloudwatch get-metric-statistics --statistics \
                 Sum`; Average together with SampleCount will do, too",
                metric.name()
            );
            return Err(Broken::whole(place, expected));
        }
        Ok(())
    }

    /// Returns the times at which a needed metric has a value.
    fn starts(&self, needs_amounts: bool) -> Vec<u64> {
        let has_amounts = self.series.keys().any(|metric| metric.is_amount());
        if !has_amounts && needs_amounts {
            return Vec::new();
        }
        let is_needed = |metric: &Metric| metric.is_amount() || !has_amounts;
        let needed: Vec<_> = self.series.iter().filter(|(metric, _)| is_needed(metric)).collect();
        let points = needed.iter().flat_map(|(_, points)| points.iter());
        let mut starts: Vec<u64> = points.map(|(start_ms, _)| *start_ms).collect();
        starts.sort();
        // In a text without amounts all metrics are needed, because it is merged with others later.
        let least = if has_amounts { 1 } else { needed.len() };
        let times = starts.chunk_by(|a, b| a == b).filter(|same| same.len() >= least);
        times.filter_map(|same| same.first().copied()).collect()
    }

    fn intervals(
        &self,
        name: &str,
        period_ms: Option<u64>,
        needs_amounts: bool,
        traces: &mut Traces,
    ) -> Result<Vec<Note>, Broken> {
        let all = self.starts(needs_amounts);
        let mut remarks = Vec::new();
        let lengths = period::lengths(&all, period_ms).ok_or_else(|| {
            Broken::whole(
                name,
                "at least two points of a volume, to infer the period; or give it in milliseconds",
            )
        })?;
        remarks.extend(period::remark(&all, &lengths, period_ms));
        let columns = self.columns();
        let mut at = At::new(self);
        for (start_ms, length_ms) in all.iter().zip(&lengths) {
            at.go_to(*start_ms);
            traces.push(name, at.interval(*start_ms, *length_ms), columns)?;
        }
        if needs_amounts {
            remarks.extend(self.missing());
        }
        if !self.unsaid.is_empty() {
            remarks.push(
                "the statistic is not said; Sum is assumed, and Average of VolumeQueueLength and \
                 BurstBalance"
                    .to_owned(),
            );
        }
        for metric in self.unsuitable.keys().filter(|metric| !self.series.contains_key(metric)) {
            remarks.push(format!("{} left out: not {}", metric.name(), metric.wanted()));
        }
        Ok(remarks.into_iter().map(Note::Remark).collect())
    }

    /// Returns the amounts that no series has.
    fn missing(&self) -> Option<String> {
        let is_missing = |metric: &Metric| metric.is_amount() && !self.series.contains_key(metric);
        let missing: Vec<&str> = METRICS
            .iter()
            .filter(|(metric, _)| is_missing(metric))
            .map(|(_, name)| *name)
            .collect();
        (!missing.is_empty())
            .then(|| format!("not in the answer, and so unknown: {}", missing.join(", ")))
    }

    fn columns(&self) -> Columns {
        let of = |metrics: [Metric; 2], kind| {
            metrics.iter().any(|metric| self.series.contains_key(metric)).then_some(kind)
        };
        Columns {
            requests: of([Metric::ReadOps, Metric::WriteOps], Kind::Sum),
            bytes: of([Metric::ReadBytes, Metric::WriteBytes], Kind::Sum),
            times: of([Metric::ReadTime, Metric::WriteTime], Kind::Sum),
            queue: of([Metric::QueueLength; 2], Kind::Mean),
            // VolumeIdleTime is the time in which no request was submitted.
            idle_is_of_device: false,
        }
    }
}

/// The values of a volume at a time, which only increases.
struct At<'a> {
    /// The remaining points of each metric, by its index in [`METRICS`].
    left: [&'a [(u64, f64)]; METRICS.len()],
    values: [Option<f64>; METRICS.len()],
}

impl<'a> At<'a> {
    fn new(volume: &'a Volume) -> Self {
        let points = |(metric, _)| volume.series.get(&metric).map_or(&[][..], Vec::as_slice);
        Self { left: METRICS.map(points), values: [None; METRICS.len()] }
    }

    fn go_to(&mut self, start_ms: u64) {
        for (left, value) in self.left.iter_mut().zip(&mut self.values) {
            while let Some((_, later)) = left.split_first().filter(|(at, _)| at.0 < start_ms) {
                *left = later;
            }
            *value = left.first().filter(|at| at.0 == start_ms).map(|at| at.1);
        }
    }

    fn interval(&self, start_ms: u64, length_ms: u64) -> Interval {
        let value = |metric: Metric| self.values.get(metric as usize).copied().flatten();
        let sum = |metric| value(metric).map_or(0, amount);
        let ns = |metric| value(metric).map(|seconds: f64| amount(seconds * 1e9));
        let mut unknown = Amounts::default();
        for (metric, amount) in [
            (Metric::ReadOps, Amounts::READS),
            (Metric::WriteOps, Amounts::WRITES),
            (Metric::ReadBytes, Amounts::READ_BYTES),
            (Metric::WriteBytes, Amounts::WRITE_BYTES),
        ] {
            if value(metric).is_none() {
                unknown = unknown.or(amount);
            }
        }
        let exceeded = [Metric::IopsExceeded, Metric::ThroughputExceeded].map(value);
        Interval {
            start_ms,
            length_ms,
            reads: sum(Metric::ReadOps),
            writes: sum(Metric::WriteOps),
            read_bytes: sum(Metric::ReadBytes),
            write_bytes: sum(Metric::WriteBytes),
            read_ns: ns(Metric::ReadTime),
            write_ns: ns(Metric::WriteTime),
            idle_ms: value(Metric::IdleTime).map(|seconds| amount(seconds * 1e3).min(length_ms)),
            queued_milli: value(Metric::QueueLength).map(|queued| amount(queued * 1e3)),
            balance_ppm: value(Metric::BurstBalance)
                .and_then(|percent| u32::try_from(amount(percent.min(100.0) * 1e4)).ok()),
            used_bytes: None,
            is_censored: exceeded
                .iter()
                .any(Option::is_some)
                .then(|| exceeded.iter().flatten().any(|value| *value > 0.0)),
            unknown,
        }
    }
}
