//! Reads CloudWatch's metrics of volumes: the common part of the formats of its answers.
//!
//! An answer has series of points. The series of one volume become intervals at every time at which
//! one of its series of requests or bytes has a point. CloudWatch has no point if it has no value:
//! a missing point is unknown, and an interval with a missing amount still shows the use of the
//! others.

pub mod console;
pub mod data;
pub mod pages;
mod period;
pub mod statistics;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::trace::{Amounts, Clock, Columns, Delayed, Interval, Kind, Note};

use super::collect::{Traces, too_many_intervals, too_many_names};
use super::numbers::{amount, is_whole, show_time, time, utc};
use super::{Broken, Hints, INTERVAL_MS, INTERVALS_TOTAL_MAX, NAMES_MAX, OF_RDS, Read};

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
    InstanceIopsExceeded,
    InstanceThroughputExceeded,
}

/// The number of metrics that are used.
const METRICS: usize = 13;
const ALL: [Metric; METRICS] = [
    Metric::ReadOps,
    Metric::WriteOps,
    Metric::ReadBytes,
    Metric::WriteBytes,
    Metric::IdleTime,
    Metric::ReadTime,
    Metric::WriteTime,
    Metric::QueueLength,
    Metric::BurstBalance,
    Metric::IopsExceeded,
    Metric::ThroughputExceeded,
    Metric::InstanceIopsExceeded,
    Metric::InstanceThroughputExceeded,
];

/// The form of a metric's values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// As EBS has it: amounts in a period, times in seconds.
    Ebs,
    /// As the CloudWatch agent has it for the counters of an NVMe device: increases, times in
    /// microseconds.
    Agent,
    /// As RDS has it: rates a second, and seconds of a request.
    Rds,
}

/// A metric by its name in the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub metric: Metric,
    pub form: Form,
    pub name: &'static str,
}

/// The metrics by their names. Of names that contain others, the longer ones are first.
///
/// Sources: "Amazon CloudWatch metrics for Amazon EBS", "Collect Amazon EBS NVMe driver metrics"
/// (the CloudWatch agent; Container Insights prefixes them with `node_`), and "Amazon CloudWatch
/// instance-level metrics for Amazon RDS".
const NAMES: [(Metric, Form, &str); 29] = [
    (Metric::ReadOps, Form::Ebs, "VolumeReadOps"),
    (Metric::WriteOps, Form::Ebs, "VolumeWriteOps"),
    (Metric::ReadBytes, Form::Ebs, "VolumeReadBytes"),
    (Metric::WriteBytes, Form::Ebs, "VolumeWriteBytes"),
    (Metric::IdleTime, Form::Ebs, "VolumeIdleTime"),
    (Metric::ReadTime, Form::Ebs, "VolumeTotalReadTime"),
    (Metric::WriteTime, Form::Ebs, "VolumeTotalWriteTime"),
    (Metric::QueueLength, Form::Ebs, "VolumeQueueLength"),
    (Metric::BurstBalance, Form::Ebs, BALANCE),
    (Metric::IopsExceeded, Form::Ebs, "VolumeIOPSExceededCheck"),
    (Metric::ThroughputExceeded, Form::Ebs, "VolumeThroughputExceededCheck"),
    (Metric::ReadOps, Form::Agent, "diskio_ebs_total_read_ops"),
    (Metric::WriteOps, Form::Agent, "diskio_ebs_total_write_ops"),
    (Metric::ReadBytes, Form::Agent, "diskio_ebs_total_read_bytes"),
    (Metric::WriteBytes, Form::Agent, "diskio_ebs_total_write_bytes"),
    (Metric::ReadTime, Form::Agent, "diskio_ebs_total_read_time"),
    (Metric::WriteTime, Form::Agent, "diskio_ebs_total_write_time"),
    (Metric::QueueLength, Form::Agent, "diskio_ebs_volume_queue_length"),
    (Metric::IopsExceeded, Form::Agent, "diskio_ebs_volume_performance_exceeded_iops"),
    (Metric::ThroughputExceeded, Form::Agent, "diskio_ebs_volume_performance_exceeded_tp"),
    (Metric::ReadOps, Form::Rds, "ReadIOPS"),
    (Metric::WriteOps, Form::Rds, "WriteIOPS"),
    (Metric::ReadBytes, Form::Rds, "ReadThroughput"),
    (Metric::WriteBytes, Form::Rds, "WriteThroughput"),
    (Metric::ReadTime, Form::Rds, "ReadLatency"),
    (Metric::WriteTime, Form::Rds, "WriteLatency"),
    (Metric::QueueLength, Form::Rds, "DiskQueueDepth"),
    (
        Metric::InstanceIopsExceeded,
        Form::Agent,
        "diskio_ebs_ec2_instance_performance_exceeded_iops",
    ),
    (
        Metric::InstanceThroughputExceeded,
        Form::Agent,
        "diskio_ebs_ec2_instance_performance_exceeded_tp",
    ),
];

/// The metric of credits, which only volumes of types with credits have.
pub const BALANCE: &str = "BurstBalance";

/// Returns the names of EBS's metrics that are used, each with the statistic to ask for.
pub fn wanted() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_ebs = NAMES.iter().filter(|(_, form, _)| *form == Form::Ebs);
    of_ebs
        .map(|(metric, form, name)| (*name, Named { metric: *metric, form: *form, name }.wanted()))
}

impl Metric {
    /// Returns whether it is a number of requests or bytes.
    const fn is_amount(self) -> bool {
        matches!(self, Self::ReadOps | Self::WriteOps | Self::ReadBytes | Self::WriteBytes)
    }
}

impl Named {
    /// Returns the metric that a label names. Names of RDS are words: there are others that contain
    /// them.
    pub fn find(label: &str) -> Option<Self> {
        let is_end = |c: char| !c.is_ascii_alphanumeric();
        let mut found = NAMES.iter().filter(|(_, form, name)| match form {
            Form::Rds => label.split(is_end).any(|word| word == *name),
            _ => label.contains(name),
        });
        found.next().map(|(metric, form, name)| Self { metric: *metric, form: *form, name })
    }

    /// Returns whether its values are means, and not sums.
    const fn is_mean(self) -> bool {
        matches!(self.form, Form::Rds)
            || matches!(self.metric, Metric::QueueLength | Metric::BurstBalance)
    }

    const fn is_check(self) -> bool {
        matches!(
            self.metric,
            Metric::IopsExceeded
                | Metric::ThroughputExceeded
                | Metric::InstanceIopsExceeded
                | Metric::InstanceThroughputExceeded
        )
    }

    /// Returns whether a statistic of it has the meaning of an interval's value.
    const fn takes(self, statistic: Statistic) -> bool {
        match statistic {
            Statistic::Average => self.is_mean() || self.is_check(),
            Statistic::Sum => !self.is_mean(),
            // Whether it was above 0 at any time.
            Statistic::Maximum => self.is_check(),
            _ => false,
        }
    }

    /// Returns the statistic to ask for.
    const fn wanted(self) -> &'static str {
        if self.is_check() {
            "Maximum"
        } else if self.is_mean() {
            "Average"
        } else {
            "Sum"
        }
    }

    /// Returns why another statistic is not taken.
    const fn why(self) -> &'static str {
        match self.form {
            Form::Rds => "it is a rate, whose mean times the period is the amount",
            _ => "others are per request on some hosts and per period on others",
        }
    }

    /// Returns the commands that ask for its statistic.
    fn how_to_ask(self) -> String {
        let statistic = self.wanted();
        let others = match statistic {
            "Sum" => "; Average together with SampleCount will do, too",
            _ => "",
        };
        format!(
            "Ask with \"Stat\": \"{statistic}\" in the queries of `aws cloudwatch \
             get-metric-data`, or with `aws cloudwatch get-metric-statistics --statistics \
             {statistic}`{others}"
        )
    }

    /// Returns the factor from its unit to that of EBS.
    const fn scale(self) -> f64 {
        match (self.form, self.metric) {
            (Form::Agent, Metric::ReadTime | Metric::WriteTime) => 1e-6,
            _ => 1.0,
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

/// Returns the volume that a label names: the id of a volume, or beside a metric of RDS the only
/// other word, which is the instance.
fn volume_in(label: &str, named: Named) -> Option<&str> {
    if let Some(id) = id_in(label) {
        return Some(id);
    }
    let mut words = label.split_whitespace().filter(|word| {
        named.form == Form::Rds && !word.contains(named.name) && Statistic::find(word).is_none()
    });
    words.next().filter(|_| words.next().is_none())
}

fn id_in(label: &str) -> Option<&str> {
    let from = label.get(label.find("vol-")?..)?;
    let digits = from.get(4..)?.bytes().take_while(u8::is_ascii_hexdigit).count();
    (digits >= 4).then(|| from.get(..4 + digits)).flatten()
}

/// Points of one metric of one volume.
pub(super) struct Series {
    /// Its name in the text, for errors.
    pub place: String,
    pub volume: Option<String>,
    pub named: Named,
    pub statistic: Option<Statistic>,
    pub points: Vec<(u64, f64)>,
}

/// A timestamp in JSON: a text, or seconds since 1970; here in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamp(pub u64);

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TimestampVisitor)
    }
}

/// Reads a timestamp's text, in milliseconds since 1970.
fn unix_ms(text: &str) -> Option<u64> {
    utc(text).or_else(|| Some(time(text)?.unix_ms))
}

struct TimestampVisitor;

impl Visitor<'_> for TimestampVisitor {
    type Value = Timestamp;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a time as 2026-11-25T19:00:00+00:00")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Timestamp, E> {
        let invalid = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
        unix_ms(text).map(Timestamp).ok_or_else(invalid)
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
    /// The names of the metrics in the text.
    names: BTreeMap<Metric, Named>,
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
    for (name, volume) in &mut volumes {
        volume.refuse_unsuitable(name, needs_amounts)?;
        volume.refuse_fractions(name)?;
        traces.of(name)?;
        let aligned = volume.align(period_ms).map(Note::Remark);
        let mut notes = volume.intervals(name, period_ms, needs_amounts, &mut traces)?;
        notes.extend(aligned);
        remarks.insert(name.clone(), notes);
    }
    if traces.is_empty() {
        let wanted = hints.name.as_deref().unwrap_or("no values");
        return Err(Broken::whole(
            wanted,
            "VolumeReadOps, VolumeWriteOps, VolumeReadBytes or VolumeWriteBytes of a volume that \
             is wanted, or ReadIOPS, WriteIOPS, ReadThroughput or WriteThroughput of RDS",
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
        let Named { metric, form, .. } = one.named;
        let named = *volume.names.entry(metric).or_insert(one.named);
        if named.form != form {
            let expected =
                format!("one of {} and {}, which say one thing", named.name, one.named.name);
            return Err(Broken::whole(&one.place, expected));
        }
        let points = match one.statistic {
            Some(statistic) if !one.named.takes(statistic) => {
                volume.unsuitable.insert(metric, one.place.clone());
                match statistic {
                    Statistic::Average => volume.averages.entry(metric),
                    Statistic::SampleCount => volume.sample_counts.entry(metric),
                    _ => continue,
                }
            }
            None => {
                volume.unsaid.insert(metric, one.place.clone());
                volume.series.entry(metric)
            }
            Some(_) => volume.series.entry(metric),
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
        let scale = one.named.scale();
        let more = one.points.into_iter().map(|(start_ms, value)| (start_ms, value * scale));
        let is_check = one.named.is_check();
        add(points, more.collect(), is_check).map_err(|start_ms| {
            let expected = format!(
                "one value of {} at {}; name the volume in the label of each series, and ask for \
                 one statistic",
                one.named.name,
                show_time(start_ms)
            );
            Broken::whole(&one.place, expected)
        })?;
    }
    Ok(volumes)
}

/// Adds points to those of a metric. Of a check, which the volume and its instance have, the larger
/// value of a time counts.
///
/// # Errors
/// Returns the time for which another metric has two values.
fn add(points: &mut Vec<(u64, f64)>, mut more: Vec<(u64, f64)>, is_check: bool) -> Result<(), u64> {
    // Answers are sorted in either direction, or pages of such: runs, which sort fast.
    if points.is_empty() {
        *points = more
    } else {
        points.append(&mut more)
    }
    points.sort_by_key(|(start_ms, _)| *start_ms);
    if is_check {
        points.dedup_by(|later, kept| {
            let is_repeated = later.0 == kept.0;
            kept.1 = if is_repeated { kept.1.max(later.1) } else { kept.1 };
            is_repeated
        });
        return Ok(());
    }
    let differ = |pair: &&[(u64, f64)]| matches!(pair, [a, b] if a.0 == b.0 && a.1 != b.1);
    if let Some([(start_ms, _), _]) = points.windows(2).find(differ) {
        return Err(*start_ms);
    }
    points.dedup_by_key(|(start_ms, _)| *start_ms);
    Ok(())
}

/// Returns whether two series have values at the same times.
fn have_equal_times(points: &[(u64, f64)], others: &[(u64, f64)]) -> bool {
    points.len() == others.len() && points.iter().zip(others).all(|(a, b)| a.0 == b.0)
}

impl Volume {
    /// Returns an error if a needed metric has another statistic only.
    fn refuse_unsuitable(&self, name: &str, needs_amounts: bool) -> Result<(), Broken> {
        for (metric, place) in &self.unsuitable {
            let is_needed = metric.is_amount() || !needs_amounts;
            let Some(named) = self.names.get(metric) else { continue };
            if is_needed && !self.series.contains_key(metric) {
                let expected = format!(
                    "the statistic {} of {} of {name}: {}. {}",
                    named.wanted(),
                    named.name,
                    named.why(),
                    named.how_to_ask()
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
            if self.series.contains_key(metric) || self.is_mean(*metric) {
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
            let Some(named) = self.names.get(metric).filter(|named| !named.is_mean()) else {
                continue;
            };
            let is_fraction =
                |value: f64| !is_whole(value) && (value - value.round()).abs() > 0.001;
            let points = self.series.get(metric).into_iter().flatten();
            let Some((_, value)) = points.copied().find(|(_, value)| is_fraction(*value)) else {
                continue;
            };
            let expected = format!(
                "the Sum of {0} of {name}, which is whole: {value} is of another statistic, such \
                 as Average. {1}",
                named.name,
                named.how_to_ask()
            );
            return Err(Broken::whole(place, expected));
        }
        Ok(())
    }

    /// Gives series whose periods begin at other times than those of the longest series of requests
    /// or bytes the times of that one. Returns a remark with their names.
    fn align(&mut self, period_ms: Option<u64>) -> Option<String> {
        let amounts = self.series.iter().filter(|(metric, _)| metric.is_amount());
        let longest = amounts.rev().max_by_key(|(_, points)| points.len());
        let (grid, points) = longest?;
        let grid = *grid;
        let times = |points: &[(u64, f64)]| points.iter().map(|point| point.0).collect::<Vec<_>>();
        let grid_times = times(points);
        let mut moved = Vec::new();
        for (metric, points) in self.series.iter_mut().filter(|(metric, _)| **metric != grid) {
            let starts = times(points);
            if starts == grid_times {
                continue;
            }
            let Some(on_grid) = period::on_grid(&starts, &grid_times, period_ms) else { continue };
            for (point, start_ms) in points.iter_mut().zip(on_grid) {
                point.0 = start_ms;
            }
            moved.extend(self.names.get(metric).map(|named| named.name));
        }
        let grid = self.names.get(&grid)?.name;
        (!moved.is_empty()).then(|| {
            format!(
                "{} with periods that begin at other times than those of {grid}: each value counts \
                 in the period of {grid} that it shares most of",
                moved.join(", ")
            )
        })
    }

    /// Returns the times at which a needed metric has a value.
    fn starts(&self, needs_amounts: bool) -> Vec<u64> {
        let has_amounts = self.series.keys().any(|metric| metric.is_amount());
        if !has_amounts && needs_amounts {
            return Vec::new();
        }
        let is_needed = |metric: &Metric| metric.is_amount() || !has_amounts;
        let needed: Vec<_> = self.series.iter().filter(|(metric, _)| is_needed(metric)).collect();
        // Most series have a value at each time.
        if let Some(((_, first), others)) = needed.split_first()
            && others.iter().all(|(_, points)| have_equal_times(points, first))
        {
            return first.iter().map(|(start_ms, _)| *start_ms).collect();
        }
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
        let mut moment = Moment::new(self);
        for (start_ms, length_ms) in all.iter().zip(&lengths) {
            moment.go_to(*start_ms);
            traces.push(name, moment.interval(*start_ms, *length_ms), columns)?;
        }
        if needs_amounts {
            remarks.extend(self.missing());
        }
        let has_rates = self.names.values().any(|named| named.form == Form::Rds);
        if has_rates {
            remarks.push(OF_RDS.to_owned());
        }
        if !self.unsaid.is_empty() {
            let assumed = if has_rates {
                "the statistic is not said; Average is assumed"
            } else {
                "the statistic is not said; Sum is assumed, and Average of VolumeQueueLength and \
                 BurstBalance"
            };
            remarks.push(assumed.to_owned());
        }
        for metric in self.unsuitable.keys().filter(|metric| !self.series.contains_key(metric)) {
            let Some(named) = self.names.get(metric) else { continue };
            remarks.push(format!("{} left out: not {}", named.name, named.wanted()));
        }
        Ok(remarks.into_iter().map(Note::Remark).collect())
    }

    /// Returns the amounts that no series has, by their names in the form that the others have.
    fn missing(&self) -> Option<String> {
        let form = self.names.values().next().map_or(Form::Ebs, |named| named.form);
        let is_missing = |metric: &Metric| metric.is_amount() && !self.series.contains_key(metric);
        let names = NAMES.iter().filter(|(metric, of, _)| *of == form && is_missing(metric));
        let missing: Vec<&str> = names.map(|(_, _, name)| *name).collect();
        (!missing.is_empty())
            .then(|| format!("not in the answer, and so unknown: {}", missing.join(", ")))
    }

    fn is_mean(&self, metric: Metric) -> bool {
        self.names.get(&metric).is_some_and(|named| named.is_mean())
    }

    fn columns(&self) -> Columns {
        let kind = |metrics: [Metric; 2]| {
            let mut known = metrics.iter().filter(|metric| self.series.contains_key(metric));
            let is_mean = self.is_mean(*known.next()?);
            Some(if is_mean { Kind::Mean } else { Kind::Sum })
        };
        Columns {
            requests: kind([Metric::ReadOps, Metric::WriteOps]),
            bytes: kind([Metric::ReadBytes, Metric::WriteBytes]),
            times: kind([Metric::ReadTime, Metric::WriteTime]),
            queue: kind([Metric::QueueLength; 2]),
            // VolumeIdleTime is the time in which no request was submitted.
            idle_is_of_device: false,
        }
    }
}

/// The values of a volume at a time, which only increases.
struct Moment<'a> {
    /// The remaining points of each metric, by its index in [`ALL`].
    left: [&'a [(u64, f64)]; METRICS],
    values: [Option<f64>; METRICS],
    /// Whether the values of each metric are means.
    are_means: [bool; METRICS],
}

impl<'a> Moment<'a> {
    fn new(volume: &'a Volume) -> Self {
        let points = |metric| volume.series.get(&metric).map_or(&[][..], Vec::as_slice);
        let are_means = ALL.map(|metric| volume.is_mean(metric));
        Self { left: ALL.map(points), values: [None; METRICS], are_means }
    }

    fn go_to(&mut self, start_ms: u64) {
        for (left, value) in self.left.iter_mut().zip(&mut self.values) {
            while let Some((_, later)) = left.split_first().filter(|(point, _)| point.0 < start_ms)
            {
                *left = later;
            }
            *value = left.first().filter(|point| point.0 == start_ms).map(|point| point.1);
        }
    }

    fn interval(&self, start_ms: u64, length_ms: u64) -> Interval {
        let value = |metric: Metric| self.values.get(metric as usize).copied().flatten();
        let is_mean = |metric: Metric| self.are_means.get(metric as usize) == Some(&true);
        // A mean of an amount is its rate a second.
        let exact = |metric| {
            let is_rate = is_mean(metric);
            value(metric).map(|value| if is_rate { value * length_ms as f64 / 1e3 } else { value })
        };
        let sum = |metric| exact(metric).map_or(0, amount);
        // A mean of a time is that of a request.
        let ns = |metric, requests| {
            let count = if is_mean(metric) { exact(requests)? } else { 1.0 };
            value(metric).map(|seconds| amount(seconds * 1e9 * count))
        };
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
        let exceeded = |metric| value(metric).map(|value| value > 0.0);
        let delayed = Delayed::new(
            [Metric::IopsExceeded, Metric::ThroughputExceeded].map(exceeded),
            [Metric::InstanceIopsExceeded, Metric::InstanceThroughputExceeded].map(exceeded),
        );
        Interval {
            start_ms,
            length_ms,
            reads: sum(Metric::ReadOps),
            writes: sum(Metric::WriteOps),
            read_bytes: sum(Metric::ReadBytes),
            write_bytes: sum(Metric::WriteBytes),
            read_ns: ns(Metric::ReadTime, Metric::ReadOps),
            write_ns: ns(Metric::WriteTime, Metric::WriteOps),
            idle_ms: value(Metric::IdleTime).map(|seconds| amount(seconds * 1e3).min(length_ms)),
            queued_milli: value(Metric::QueueLength).map(|queued| amount(queued * 1e3)),
            balance_ppm: value(Metric::BurstBalance)
                .and_then(|percent| u32::try_from(amount(percent.min(100.0) * 1e4)).ok()),
            used_bytes: None,
            is_censored: delayed.by_volume(),
            delayed,
            unknown,
        }
    }
}
