//! The metrics of volumes: name, unit, and the computation of each value from a [`Record`].
//!
//! docs/reference/metrics.md lists them; a test compares both.

use evenkeel_core::volume::VolumeType;

use super::record::Record;

/// The namespace of all metrics.
pub const NAMESPACE: &str = "AWS/EBS";
/// The dimension of all metrics.
pub const DIMENSION: &str = "VolumeId";

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its unit, as CloudWatch names it.
    pub unit: &'static str,
    /// The value of a record's span; `None` if the volume has no such value.
    pub value: fn(&Record) -> Option<f64>,
}

const fn metric(
    name: &'static str,
    unit: &'static str,
    value: fn(&Record) -> Option<f64>,
) -> Metric {
    Metric { name, unit, value }
}

/// All metrics. A metric's place is its bit in the stored masks, so new ones come last.
pub const ALL: [Metric; 18] = [
    metric("VolumeReadBytes", "Bytes", |r| Some(real(r.read_bytes))),
    metric("VolumeWriteBytes", "Bytes", |r| Some(real(r.write_bytes))),
    metric("VolumeReadOps", "Count", |r| Some(real(r.reads))),
    metric("VolumeWriteOps", "Count", |r| Some(real(r.writes))),
    metric("VolumeTotalReadTime", "Seconds", |r| single(r).map(|r| real(r.read_ns) / 1e9)),
    metric("VolumeTotalWriteTime", "Seconds", |r| single(r).map(|r| real(r.write_ns) / 1e9)),
    metric("VolumeIdleTime", "Seconds", |r| Some(real(single(r)?.idle_ms?) / 1e3)),
    metric("VolumeQueueLength", "Count", |r| ratio(real(r.queued), r.looks)),
    metric("VolumeThroughputPercentage", "Percent", delivered),
    metric("VolumeConsumedReadWriteOps", "Count", |r| provisioned(r).map(|r| real(r.operations))),
    metric("BurstBalance", "Percent", |r| Some(real(r.balance_ppm?) / 1e4)),
    metric("VolumeAvgIOPS", "Count/Second", |r| per_second(r, real(r.reads) + real(r.writes))),
    metric("VolumeAvgThroughput", "Kilobytes/Second", |r| {
        per_second(r, (real(r.read_bytes) + real(r.write_bytes)) / 1_024.0)
    }),
    metric("VolumeAvgReadLatency", "Milliseconds", |r| Some(mean_ms(r.read_ns, r.reads))),
    metric("VolumeAvgWriteLatency", "Milliseconds", |r| Some(mean_ms(r.write_ns, r.writes))),
    metric("VolumeIOPSExceededCheck", "None", |r| exceeded(r, r.iops_exceeded_ns)),
    metric("VolumeThroughputExceededCheck", "None", |r| exceeded(r, r.bytes_exceeded_ns)),
    metric("VolumeStalledIOCheck", "None", stalled),
];
const _: () = assert!(ALL.len() <= u32::BITS as usize);

/// Minimum time in which a volume that answers no request counts as stalled, in milliseconds.
const STALL_MS_MIN: u64 = 9_000;

/// Returns the metric of that name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| metric.name == name)
}

/// Returns a bit for each metric of which the record has a value.
#[must_use]
pub fn mask(record: &Record) -> u32 {
    let has = ALL.iter().enumerate().filter(|(_, metric)| (metric.value)(record).is_some());
    has.fold(0, |mask, (at, _)| mask | 1 << at)
}

/// Returns a count as a number of CloudWatch: exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
const fn real(count: u64) -> f64 {
    count as f64
}

fn ratio(amount: f64, count: u64) -> Option<f64> {
    (count > 0).then(|| amount / real(count))
}

/// Returns the record, unless several hosts may attach its volume.
fn single(record: &Record) -> Option<&Record> {
    Some(record).filter(|record| !record.kind.multi_attach)
}

/// Returns the record, if IOPS are provisioned for its volume.
fn provisioned(record: &Record) -> Option<&Record> {
    let has = matches!(record.kind.volume_type, VolumeType::Io1 | VolumeType::Io2);
    Some(record).filter(|_| has)
}

/// Returns the part of the provisioned IOPS that was delivered; all of it if no sample had waiting
/// requests.
fn delivered(record: &Record) -> Option<f64> {
    let record = provisioned(single(record)?)?;
    if record.busy_looks == 0 {
        return Some(100.0);
    }
    let sold = real(record.provisioned_iops) * real(record.span_ms) / 1e3;
    (sold > 0.0).then(|| (real(record.operations) * 100.0 / sold).min(100.0))
}

fn per_second(record: &Record, amount: f64) -> Option<f64> {
    ratio(amount * 1e3, record.span_ms)
}

fn mean_ms(ns: u64, count: u64) -> f64 {
    ratio(real(ns) / 1e6, count).unwrap_or(0.0)
}

/// Returns 1 if a limit delayed the volume for at least half of the time.
fn exceeded(record: &Record, delayed_ns: u64) -> Option<f64> {
    let record = single(record)?;
    if record.kind.volume_type == VolumeType::Standard {
        return None;
    }
    let half_ns = record.span_ms.saturating_mul(500_000);
    Some(if half_ns > 0 && delayed_ns >= half_ns { 1.0 } else { 0.0 })
}

/// Returns 1 if every sample had requests and none was answered meanwhile.
fn stalled(record: &Record) -> Option<f64> {
    let none = record.reads == 0 && record.writes == 0;
    let always = record.looks > 0 && record.busy_looks == record.looks;
    Some(if none && always && record.span_ms >= STALL_MS_MIN { 1.0 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloudwatch::record::Kind;

    const REFERENCE: &str = include_str!("../../../../docs/reference/metrics.md");

    fn value(name: &str, record: &Record) -> Option<f64> {
        (by_name(name).expect(name).value)(record)
    }

    fn of(volume_type: VolumeType, multi_attach: bool) -> Record {
        Record {
            span_ms: 60_000,
            reads: 600,
            writes: 1_200,
            read_bytes: 600 << 12,
            write_bytes: 1_200 << 12,
            read_ns: 3_000_000_000,
            write_ns: 600_000_000,
            operations: 1_800,
            iops_exceeded_ns: 30_000_000_000,
            bytes_exceeded_ns: 29_999_999_999,
            provisioned_iops: 100,
            looks: 60,
            queued: 90,
            busy_looks: 45,
            idle_ms: Some(15_000),
            balance_ppm: Some(250_000),
            ..Record::empty(Kind { volume_type, multi_attach })
        }
    }

    #[test]
    fn values_are_in_the_units_of_cloudwatch() {
        let record = of(VolumeType::Io2, false);
        for (name, expected) in [
            ("VolumeReadBytes", 2_457_600.0),
            ("VolumeWriteOps", 1_200.0),
            ("VolumeTotalReadTime", 3.0),
            ("VolumeTotalWriteTime", 0.6),
            ("VolumeIdleTime", 15.0),
            ("VolumeQueueLength", 1.5),
            ("VolumeThroughputPercentage", 30.0),
            ("VolumeConsumedReadWriteOps", 1_800.0),
            ("BurstBalance", 25.0),
            ("VolumeAvgIOPS", 30.0),
            ("VolumeAvgThroughput", 120.0),
            ("VolumeAvgReadLatency", 5.0),
            ("VolumeAvgWriteLatency", 0.5),
            ("VolumeIOPSExceededCheck", 1.0),
            ("VolumeThroughputExceededCheck", 0.0),
            ("VolumeStalledIOCheck", 0.0),
        ] {
            assert_eq!(value(name, &record), Some(expected), "{name}");
        }
        let quiet = Record { busy_looks: 0, reads: 0, read_ns: 0, ..record };
        assert_eq!(value("VolumeThroughputPercentage", &quiet), Some(100.0));
        assert_eq!(value("VolumeAvgReadLatency", &quiet), Some(0.0));
        let stuck = Record { busy_looks: 60, reads: 0, writes: 0, ..record };
        assert_eq!(value("VolumeStalledIOCheck", &stuck), Some(1.0));
        let first = Record { span_ms: 1_000, ..stuck };
        assert_eq!(value("VolumeStalledIOCheck", &first), Some(0.0), "too soon to say");
    }

    #[test]
    fn a_volume_has_no_metrics_that_its_type_has_not() {
        let lacks = |record: &Record| {
            let lacking = ALL.iter().filter(|metric| (metric.value)(record).is_none());
            lacking.map(|metric| metric.name).collect::<Vec<_>>()
        };
        let without = |volume_type| Record { balance_ppm: None, ..of(volume_type, false) };
        let of_provisioned = ["VolumeThroughputPercentage", "VolumeConsumedReadWriteOps"];
        assert_eq!(lacks(&of(VolumeType::Gp2, false)), of_provisioned);
        let of_gp3 = [&of_provisioned[..], &["BurstBalance"]].concat();
        assert_eq!(lacks(&without(VolumeType::Gp3)), of_gp3);
        let checks = ["VolumeIOPSExceededCheck", "VolumeThroughputExceededCheck"];
        let of_standard = [&of_gp3[..], &checks].concat();
        assert_eq!(lacks(&without(VolumeType::Standard)), of_standard);
        let shared = Record { balance_ppm: None, ..of(VolumeType::Io2, true) };
        let of_shared = [
            "VolumeTotalReadTime",
            "VolumeTotalWriteTime",
            "VolumeIdleTime",
            "VolumeThroughputPercentage",
            "BurstBalance",
            checks[0],
            checks[1],
        ];
        assert_eq!(lacks(&shared), of_shared);
        assert_eq!(mask(&shared).count_ones() as usize, ALL.len() - of_shared.len());
        let unknown = Record { idle_ms: None, looks: 0, span_ms: 0, ..of(VolumeType::Gp2, false) };
        for name in ["VolumeIdleTime", "VolumeQueueLength", "VolumeAvgIOPS"] {
            assert_eq!(value(name, &unknown), None, "{name}");
        }
    }

    #[test]
    fn the_reference_lists_each_metric_with_its_unit() {
        let rows = REFERENCE.lines().filter(|line| line.starts_with("| `"));
        let listed = rows.filter_map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().replace('`', ""));
            let names = cells.nth(1)?;
            let unit = cells.next()?;
            let is_metric = names.split(", ").all(|name| by_name(name).is_some());
            is_metric.then(|| names.split(", ").map(|n| (n.to_owned(), unit.clone())).collect())
        });
        let listed: Vec<Vec<(String, String)>> = listed.collect();
        let expected = ALL.iter().map(|metric| (metric.name.to_owned(), metric.unit.to_owned()));
        let mut listed = listed.concat();
        let mut expected = expected.collect::<Vec<_>>();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
    }
}
