//! Reads the answer of Prometheus' range query: counters of node_exporter, `node_disk_*`, and those
//! of EBS's NVMe devices that the EBS CSI driver exports, `aws_ebs_csi_*`.
//!
//! An interval is the difference of two consecutive points. A counter that falls was reset. A
//! missing point makes a gap, although the counters are known at both ends: their course in between
//! is not.

use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};

use crate::trace::{Amounts, Clock, Columns, Delayed, Interval, Kind, Note};

use super::collect::{Traces, too_many_intervals};
use super::device::{FLUSHES, without_flushes};
use super::numbers::amount;
use super::{Broken, Hints, INTERVALS_TOTAL_MAX, NAMES_MAX, Read, json};

const FORM: &str = "the answer of a range query: {\"status\", \"data\": {\"resultType\": \
                    \"matrix\", \"result\"}}";

/// The quantity that a series counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Counter {
    Reads,
    Writes,
    ReadBytes,
    WriteBytes,
    ReadSeconds,
    WriteSeconds,
    BusySeconds,
    /// The sum over time of the requests that wait or are served.
    WeightedSeconds,
    /// Flushes that the device executed. Linux counts them as writes, too.
    Flushes,
    /// Seconds in which more was wanted than a limit allows: IOPS and throughput of the volume, and
    /// of its instance.
    ExceededIops,
    ExceededThroughput,
    HostExceededIops,
    HostExceededThroughput,
}

/// The counters: the exporter's prefix, and the name without it and without `_total`.
///
/// Sources: node_exporter's collector `diskstats`, and `docs/metrics.md` of the EBS CSI driver.
const COUNTERS: [(Counter, &str, &str); 19] = [
    (Counter::Reads, "node_", "disk_reads_completed"),
    (Counter::Writes, "node_", "disk_writes_completed"),
    (Counter::ReadBytes, "node_", "disk_read_bytes"),
    (Counter::WriteBytes, "node_", "disk_written_bytes"),
    (Counter::ReadSeconds, "node_", "disk_read_time_seconds"),
    (Counter::WriteSeconds, "node_", "disk_write_time_seconds"),
    (Counter::WeightedSeconds, "node_", "disk_io_time_weighted_seconds"),
    (Counter::BusySeconds, "node_", "disk_io_time_seconds"),
    (Counter::Flushes, "node_", "disk_flush_requests"),
    (Counter::Reads, "aws_", "ebs_csi_read_ops"),
    (Counter::Writes, "aws_", "ebs_csi_write_ops"),
    (Counter::ReadBytes, "aws_", "ebs_csi_read_bytes"),
    (Counter::WriteBytes, "aws_", "ebs_csi_write_bytes"),
    (Counter::ReadSeconds, "aws_", "ebs_csi_read_seconds"),
    (Counter::WriteSeconds, "aws_", "ebs_csi_write_seconds"),
    (Counter::ExceededIops, "aws_", "ebs_csi_exceeded_iops_seconds"),
    (Counter::ExceededThroughput, "aws_", "ebs_csi_exceeded_tp_seconds"),
    (Counter::HostExceededIops, "aws_", "ebs_csi_ec2_exceeded_iops_seconds"),
    (Counter::HostExceededThroughput, "aws_", "ebs_csi_ec2_exceeded_tp_seconds"),
];

impl Counter {
    /// Returns the counter in a name, and whether the name is the counter's own.
    fn of(name: &str) -> Option<(Self, bool)> {
        let (counter, prefix, stem) = COUNTERS.iter().find(|(_, _, stem)| name.contains(stem))?;
        let own = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix("_total"));
        Some((*counter, own == Some(*stem)))
    }

    const fn is_amount(self) -> bool {
        matches!(self, Self::Reads | Self::Writes | Self::ReadBytes | Self::WriteBytes)
    }
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    data: Option<Data>,
    #[serde(default)]
    error: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    #[serde(default)]
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<Point>,
}

/// A time in milliseconds since 1970 and a value, which is NaN after a stale marker.
struct Point(u64, f64);

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_tuple(2, PointVisitor)
    }
}

struct PointVisitor;

impl<'de> Visitor<'de> for PointVisitor {
    type Value = Point;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a point, [seconds since 1970, \"value\"]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Point, A::Error> {
        let missing = |at| serde::de::Error::invalid_length(at, &"a point of two");
        let seconds: f64 = seq.next_element()?.ok_or_else(|| missing(0))?;
        let value: String = seq.next_element()?.ok_or_else(|| missing(1))?;
        let number = value.parse().map_err(|_| {
            serde::de::Error::invalid_value(serde::de::Unexpected::Str(&value), &"a number")
        })?;
        Ok(Point(amount(seconds * 1_000.0), number))
    }
}

/// The series of one device, by counter.
type Device = BTreeMap<Counter, BTreeMap<u64, f64>>;

/// Reads an answer, or several. Series whose names are not those of counters are rates, if
/// [`Hints::are_rates`] is set.
///
/// # Errors
/// Returns [`Broken`] if an answer is invalid, or if there are no two points of a wanted disk.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let answers: Vec<Answer> = json::documents(input, FORM)?;
    let mut all = Vec::new();
    for answer in answers {
        let Some(data) = answer.data.filter(|_| answer.status == "success") else {
            let found = format!("status {}, {}", answer.status, answer.error);
            return Err(Broken::whole(&found, "status success: correct the query and ask again"));
        };
        if data.result_type != "matrix" {
            let expected = "resultType matrix: ask query_range, not query";
            return Err(Broken::whole(&format!("resultType {}", data.result_type), expected));
        }
        all.extend(data.result);
    }
    let mut devices: BTreeMap<String, Device> = BTreeMap::new();
    let mut total = 0;
    let mut others = 0;
    let has_instances = has_instances(&all);
    for series in all {
        let Some((name, counter)) = identify(&series.metric, has_instances, hints)? else {
            others += 1;
            continue;
        };
        if hints.name.as_ref().is_some_and(|wanted| *wanted != name) {
            continue;
        }
        total += series.values.len();
        if devices.len() > NAMES_MAX || total > 4 * INTERVALS_TOTAL_MAX {
            return Err(too_many_intervals(&name));
        }
        let points = devices.entry(name.clone()).or_default().entry(counter).or_default();
        for Point(at_ms, value) in series.values {
            // Answers that follow each other may share a point.
            let before = value.is_finite().then(|| points.insert(at_ms, value)).flatten();
            if before.is_some_and(|before| before != value) {
                let expected = format!(
                    "one series of {counter:?} for each device and instance: there are two values \
                     at {at_ms} ms"
                );
                return Err(Broken::whole(&name, expected));
            }
        }
    }
    let mut traces = Traces::new(Clock::Unix);
    for (name, device) in &devices {
        add_device(name, device, hints, &mut traces)?;
    }
    if traces.is_empty() {
        let expected = "at least two points of node_disk_reads_completed_total, \
                        node_disk_writes_completed_total, node_disk_read_bytes_total and \
                        node_disk_written_bytes_total";
        return Err(Broken::whole(hints.name.as_deref().unwrap_or("no device"), expected));
    }
    let mut traces = traces.finish(&[])?;
    if others > 0 {
        let remark = format!("series of other metrics left out: {others}");
        traces.iter_mut().for_each(|trace| trace.notes.push(Note::Remark(remark.clone())));
    }
    Ok(traces)
}

/// Returns whether one answer has devices of several machines.
fn has_instances(series: &[Series]) -> bool {
    let mut instances = series.iter().map(|series| series.metric.get("instance"));
    let first = instances.next().flatten();
    instances.any(|instance| instance != first)
}

/// Returns the device of a series and its counter; `None` if it is not of a disk.
fn identify(
    labels: &BTreeMap<String, String>,
    has_instances: bool,
    hints: &Hints,
) -> Result<Option<(String, Counter)>, Broken> {
    let device = labels.get("device").map_or("disk", String::as_str);
    let name = match (labels.get("volume_id"), labels.get("instance")) {
        // A volume may be attached to one machine after the other.
        (Some(volume), _) => volume.clone(),
        (None, Some(instance)) if has_instances => format!("{device}@{instance}"),
        _ => device.to_owned(),
    };
    let Some(metric) = labels.get("__name__") else {
        let expected = "series with their names: a function such as rate() removes them. Ask for \
                        the counters themselves, {__name__=~\"node_disk_.*\"}";
        return Err(Broken::whole(&format!("a series of {name} without __name__"), expected));
    };
    let Some((counter, is_own)) = Counter::of(metric) else { return Ok(None) };
    if is_own == hints.are_rates {
        let expected = if is_own {
            "rates, as --rates says; this is the name of a counter"
        } else {
            "a counter, as node_disk_reads_completed_total: ask for it, or say with --rates that \
             the series are rates a second"
        };
        return Err(Broken::whole(metric, expected));
    }
    Ok(Some((name, counter)))
}

/// The amounts of an interval of a device.
struct Span {
    start_ms: u64,
    length_ms: u64,
    amounts: BTreeMap<Counter, f64>,
}

fn add_device(
    name: &str,
    device: &Device,
    hints: &Hints,
    traces: &mut Traces,
) -> Result<(), Broken> {
    let amounts = device.iter().filter(|(counter, _)| counter.is_amount());
    traces.of(name)?;
    let mut times: BTreeMap<u64, usize> = BTreeMap::new();
    let mut needed = 0;
    for (_, points) in amounts {
        needed += 1;
        for at_ms in points.keys() {
            *times.entry(*at_ms).or_default() += 1;
        }
    }
    let ends: Vec<u64> =
        times.iter().filter(|(_, count)| **count == needed).map(|(at_ms, _)| *at_ms).collect();
    let Some(step_ms) = step_ms(&times, hints) else { return Ok(()) };
    let kind = if hints.are_rates { Kind::Mean } else { Kind::Counter };
    let of = |one, other| {
        [one, other].iter().any(|counter| device.contains_key(counter)).then_some(kind)
    };
    let columns = Columns {
        requests: of(Counter::Reads, Counter::Writes),
        bytes: of(Counter::ReadBytes, Counter::WriteBytes),
        times: of(Counter::ReadSeconds, Counter::WriteSeconds),
        queue: of(Counter::WeightedSeconds, Counter::WeightedSeconds),
        idle_is_of_device: true,
    };
    let mut resets = 0;
    let mut has_flushes = false;
    for pair in ends.windows(2) {
        let (Some(from), Some(to)) = (pair.first(), pair.get(1)) else { continue };
        // A scrape may be slightly late, and a step of milliseconds is rounded.
        if to - from > step_ms.saturating_add(step_ms / 10) {
            continue;
        }
        let Some(mut amounts) = differences(device, *from, *to, hints.are_rates) else {
            resets += 1;
            continue;
        };
        has_flushes |= take_flushes_off(&mut amounts);
        let span = Span { start_ms: *from, length_ms: to - from, amounts };
        traces.push(name, span.interval(), columns)?;
    }
    if has_flushes {
        traces.of(name)?.remarks.push(FLUSHES.to_owned());
    }
    if resets > 0 {
        let remark = format!("intervals left out, since a counter was reset: {resets}");
        traces.of(name)?.remarks.push(remark);
    }
    if times.len() > ends.len() {
        let count = times.len() - ends.len();
        let remark = format!("times left out, at which not all counters have a point: {count}");
        traces.of(name)?.remarks.push(remark);
    }
    let is_missing = |counter: &Counter| counter.is_amount() && !device.contains_key(counter);
    // The names of node_exporter are the first ones.
    let names = COUNTERS.iter().take(4).filter(|(counter, _, _)| is_missing(counter));
    let missing: Vec<&str> = names.map(|(_, _, stem)| *stem).collect();
    if needed > 0 && !missing.is_empty() {
        let remark = format!("not in the answer, and so unknown: {}", missing.join(", "));
        traces.of(name)?.remarks.push(remark);
    }
    traces.of(name)?.remarks.extend(super::device::repeats(name));
    Ok(())
}

/// Returns the least spacing of the points, which is that of the query.
fn step_ms(times: &BTreeMap<u64, usize>, hints: &Hints) -> Option<u64> {
    let next = times.keys().skip(1);
    let spacings = times.keys().zip(next).map(|(from, to)| to - from);
    let least = spacings.min()?;
    Some(hints.interval().unwrap_or(least))
}

/// Returns the amounts counted between two times; `None` if a counter fell.
fn differences(
    device: &Device,
    from: u64,
    to: u64,
    are_rates: bool,
) -> Option<BTreeMap<Counter, f64>> {
    let mut amounts = BTreeMap::new();
    for (counter, points) in device {
        let (Some(before), Some(after)) = (points.get(&from), points.get(&to)) else { continue };
        let amount = match are_rates {
            // The rate at a time is that of the span before it.
            true => after * (to - from) as f64 / 1_000.0,
            false => after - before,
        };
        if amount < 0.0 {
            return None;
        }
        amounts.insert(*counter, amount);
    }
    Some(amounts)
}

/// Takes flushes off the writes, and returns whether there were any.
fn take_flushes_off(amounts: &mut BTreeMap<Counter, f64>) -> bool {
    let amount = |counter| amounts.get(&counter).copied();
    let both = amount(Counter::Writes).zip(amount(Counter::Flushes));
    let Some((writes, flushes)) = both else {
        return false;
    };
    let bytes = amount(Counter::WriteBytes).unwrap_or(0.0);
    let rest = without_flushes(writes, flushes, bytes);
    amounts.insert(Counter::Writes, rest);
    rest < writes
}

impl Span {
    fn interval(&self) -> Interval {
        let value = |counter| self.amounts.get(&counter).copied();
        let count = |counter| value(counter).map_or(0, amount);
        let ns = |counter| value(counter).map(|seconds| amount(seconds * 1e9));
        let length_ms = self.length_ms;
        let exceeded = |counter| value(counter).map(|seconds| seconds > 0.0);
        let delayed = Delayed::new(
            [Counter::ExceededIops, Counter::ExceededThroughput].map(exceeded),
            [Counter::HostExceededIops, Counter::HostExceededThroughput].map(exceeded),
        );
        let busy = value(Counter::BusySeconds);
        let weighted = value(Counter::WeightedSeconds);
        let mut unknown = Amounts::default();
        for (counter, amount) in [
            (Counter::Reads, Amounts::READS),
            (Counter::Writes, Amounts::WRITES),
            (Counter::ReadBytes, Amounts::READ_BYTES),
            (Counter::WriteBytes, Amounts::WRITE_BYTES),
        ] {
            if value(counter).is_none() {
                unknown = unknown.or(amount);
            }
        }
        Interval {
            unknown,
            start_ms: self.start_ms,
            length_ms,
            reads: count(Counter::Reads),
            writes: count(Counter::Writes),
            read_bytes: count(Counter::ReadBytes),
            write_bytes: count(Counter::WriteBytes),
            read_ns: ns(Counter::ReadSeconds),
            write_ns: ns(Counter::WriteSeconds),
            idle_ms: busy.map(|seconds| length_ms.saturating_sub(amount(seconds * 1e3))),
            queued_milli: weighted.map(|seconds| amount(seconds * 1e6 / length_ms as f64)),
            is_censored: delayed.by_volume(),
            delayed,
            ..Interval::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../samples/prometheus.json");

    fn read_with(text: &str, hints: &Hints) -> Read {
        read(&mut text.as_bytes(), hints)
    }

    #[test]
    fn differences_of_counters_are_amounts() {
        let traces = read_with(SAMPLE, &Hints::default()).unwrap();
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        assert_eq!(names, ["dm-0", "nvme1n1"]);
        let trace = &traces[1];
        assert_eq!(trace.columns.bytes, Some(Kind::Counter));
        let spans: Vec<u64> = trace
            .intervals
            .iter()
            .map(|interval| (interval.start_ms - 1_795_633_200_000) / 1_000)
            .collect();
        // A point is missing at 60 s, and the counters are reset at 105 s.
        assert_eq!(spans, [0, 15, 30, 75, 105, 120]);
        let first = trace.intervals[0];
        assert_eq!((first.length_ms, first.reads, first.writes), (15_000, 1_500, 750));
        assert_eq!((first.read_bytes, first.write_bytes), (24_576_000, 6_144_000));
        assert_eq!((first.read_ns, first.idle_ms), (Some(1_500_000_000), Some(12_000)));
        assert_eq!(first.queued_milli, Some(150));
        let reset = "intervals left out, since a counter was reset: 1";
        assert_eq!(
            trace.notes,
            [
                Note::Gap { start_ms: 1_795_633_245_000, length_ms: 30_000 },
                Note::Gap { start_ms: 1_795_633_290_000, length_ms: 15_000 },
                Note::Remark(reset.to_owned()),
            ]
        );
    }

    #[test]
    fn rates_are_taken_only_if_they_are_said_to_be_rates() {
        let text = include_str!("../../samples/prometheus_rates.json");
        let broken = read_with(text, &Hints::default()).unwrap_err();
        assert!(broken.expected.starts_with("a counter, as node_disk_reads"), "{broken}");
        let hints = Hints { are_rates: true, ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        assert_eq!(traces[0].columns.requests, Some(Kind::Mean));
        let reads: Vec<u64> = traces[0].intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(reads, [6_300, 0]);
        let broken = read_with(SAMPLE, &hints).unwrap_err();
        assert!(broken.expected.starts_with("rates, as --rates says"), "{broken}");
    }

    #[test]
    fn machines_are_told_apart() {
        let text = SAMPLE.replacen("10.0.0.5:9100", "10.0.0.6:9100", 1);
        let traces = read_with(&text, &Hints::default()).unwrap();
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        assert_eq!(names[0], "dm-0@10.0.0.5:9100");
        assert_eq!(names.len(), 3);
    }

    #[test]
    fn counters_of_the_csi_driver_are_of_volumes() {
        let text = include_str!("../../samples/prometheus_ebs_csi.json");
        let traces = read_with(text, &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one volume") };
        assert_eq!(trace.name, "vol-0281cf921f3dbb69b");
        let amounts: Vec<_> =
            trace.intervals.iter().map(|interval| (interval.reads, interval.writes)).collect();
        assert_eq!(amounts, [(600, 60), (1_200, 60)]);
        let censored: Vec<_> =
            trace.intervals.iter().map(|interval| interval.is_censored).collect();
        assert_eq!(censored, [Some(false), Some(true)]);
        let others = Note::Remark("series of other metrics left out: 1".to_owned());
        assert_eq!(trace.notes, [others]);
        assert_eq!(trace.intervals[0].read_ns, Some(300_000_000));
    }

    #[test]
    fn flushes_are_taken_off_the_writes() {
        let series = |name: &str, last: u32| {
            format!(
                r#"{{"metric": {{"__name__": "node_disk_{name}_total", "device": "sda"}},
                "values": [[1795633200, "0"], [1795633215, "{last}"]]}}"#
            )
        };
        let all = [("writes_completed", 200), ("written_bytes", 409_600), ("flush_requests", 100)];
        let all = all.map(|(name, last)| series(name, last)).join(",");
        let text = format!(
            r#"{{"status": "success", "data": {{"resultType": "matrix", "result": [{all}]}}}}"#
        );
        let trace = read_with(&text, &Hints::default()).unwrap().remove(0);
        assert_eq!(trace.intervals[0].writes, 100);
        assert!(trace.notes.contains(&Note::Remark(FLUSHES.to_owned())), "{:?}", trace.notes);
    }

    #[test]
    fn answers_that_follow_each_other_are_one_recording() {
        let later = SAMPLE.replace("1795633", "1796633");
        assert_ne!(later, SAMPLE);
        let traces = read_with(&format!("{SAMPLE}\n{later}"), &Hints::default()).unwrap();
        let once = read_with(SAMPLE, &Hints::default()).unwrap();
        assert_eq!(traces[1].intervals.len(), 2 * once[1].intervals.len());
        assert_eq!(read_with(&format!("[{SAMPLE},{SAMPLE}]"), &Hints::default()), Ok(once));
    }
}
