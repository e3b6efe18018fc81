//! A sample: the counters of all volumes, read from the server page by page.

use crate::Client;
use crate::output::Failure;
use evenkeel_core::latency::Histogram;
use evenkeel_core::time::Duration;
use evenkeel_wire::aws::xml::Element;
use std::collections::BTreeMap;

/// All volumes, by id.
pub type Sample = BTreeMap<String, VolumeSample>;

/// The counters of one volume at one time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeSample {
    pub volume_type: String,
    /// The node of a cluster that serves it.
    pub node: Option<String>,
    /// List price of a month; `None` if there is none.
    pub monthly_micro_usd: Option<u64>,
    /// The time by the server's clock.
    pub time_ms: u64,
    pub connections: u64,
    pub queue_length: u64,
    /// I/Os as the limit in IOPS counts them.
    pub counted_ios: u64,
    pub read_bytes: u64,
    pub write_bytes: u64,
    /// Nanoseconds for which the limit in IOPS delayed the volume, and the limit in bytes.
    pub exceeded_ns: [u64; 2],
    pub reads: Requests,
    pub writes: Requests,
    pub operations: Option<Limit>,
    pub bytes: Option<Limit>,
}

/// Requests of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    pub count: u64,
    /// Time spent in each stage, in nanoseconds.
    pub stages: BTreeMap<String, u64>,
    /// Non-empty buckets: a duration of the bucket in nanoseconds, and the count.
    buckets: Vec<(u64, u64)>,
}

impl Requests {
    /// The durations of requests, from arrival to reply.
    pub fn latencies(&self) -> Histogram {
        let mut histogram = Histogram::default();
        for (ns, count) in &self.buckets {
            histogram.record_many(Duration::from_ns(*ns), *count);
        }
        histogram
    }
}

/// One limit of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    pub per_second: u64,
    pub credit: Option<Credit>,
}

/// The credits of a limit that is a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credit {
    pub refill_per_second: u64,
    pub capacity: u64,
    pub balance: u64,
}

/// Reads a sample from the server.
pub fn take(client: &Client) -> Result<Sample, Failure> {
    let all = client.list("DescribeVolumeMetrics", &[], |answer| read(answer).collect())?;
    Ok(all.into_iter().collect())
}

/// Parses the volumes of one answer.
pub fn read(answer: &Element) -> impl Iterator<Item = (String, VolumeSample)> {
    answer.items("volumeMetricSet").iter().map(|item| {
        let id = item.child_text("volumeId").unwrap_or_default();
        (id.to_owned(), volume(item))
    })
}

fn volume(item: &Element) -> VolumeSample {
    VolumeSample {
        volume_type: item.child_text("volumeType").unwrap_or_default().to_owned(),
        node: item.child_text("nodeName").map(str::to_owned),
        monthly_micro_usd: item.child_text("monthlyMicroUsd").and_then(|text| text.parse().ok()),
        time_ms: number(item, "sampleTimeMs"),
        connections: number(item, "connections"),
        queue_length: number(item, "queueLength"),
        counted_ios: number(item, "countedIos"),
        read_bytes: number(item, "readBytes"),
        write_bytes: number(item, "writeBytes"),
        exceeded_ns: item
            .child("exceededNs")
            .map_or([0; 2], |item| ["operations", "bytes"].map(|cause| number(item, cause))),
        reads: item.child("reads").map(requests).unwrap_or_default(),
        writes: item.child("writes").map(requests).unwrap_or_default(),
        operations: item.child("operations").map(limit),
        bytes: item.child("bytes").map(limit),
    }
}

fn requests(item: &Element) -> Requests {
    let stage = |item: &Element| {
        (item.child_text("stage").unwrap_or_default().to_owned(), number(item, "spentNs"))
    };
    let bucket = |item: &Element| (number(item, "startNs"), number(item, "count"));
    Requests {
        count: number(item, "count"),
        stages: item.items("stageSet").iter().map(stage).collect(),
        buckets: item.items("latencySet").iter().map(bucket).collect(),
    }
}

fn limit(item: &Element) -> Limit {
    let credit = item.child("capacity").map(|_| Credit {
        refill_per_second: number(item, "refillPerSecond"),
        capacity: number(item, "capacity"),
        balance: number(item, "balance"),
    });
    Limit { per_second: number(item, "perSecond"), credit }
}

/// A number in an answer; 0 if there is none.
pub fn number(item: &Element, name: &str) -> u64 {
    item.child_text(name).and_then(|text| text.parse().ok()).unwrap_or_default()
}
