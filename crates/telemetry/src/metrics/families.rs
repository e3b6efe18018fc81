//! The metrics: name, meaning, unit, and the source of each value. docs/reference/metrics.md lists
//! them; a test compares both.

use std::fmt;

use evenkeel_core::latency::{Histogram, Latencies, Latency, Stage};
use evenkeel_core::time::Duration;
use evenkeel_wire::agent::IoErrors;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::{
    EtcdAnswerNow, EtcdMemberNow, HostNow, NodeNow, Snapshot, VolumeNow, WebhookNow, assured,
    filled, real,
};

/// Bounds of histograms, as powers of two in nanoseconds: 131 us, 262 us, 524 us, 1.05 ms, 4.2 ms,
/// 16.8 ms, 134 ms, 1.07 s. Powers of two end buckets of [`Histogram`], so every count is exact.
const BOUNDS_LOG2: [u32; 8] = [17, 18, 19, 20, 22, 24, 27, 30];

/// The stages in which a request waits for a limit.
const LIMITS: [Stage; 4] =
    [Stage::VolumeOperations, Stage::VolumeBytes, Stage::InstanceOperations, Stage::InstanceBytes];

/// One value.
enum Value {
    Count(u64),
    Real(f64),
}

/// The source of a family's samples.
enum Of {
    /// One sample for each volume that has the value.
    Volume(fn(&VolumeNow) -> Option<Value>),
    /// One sample for each host that has the value.
    Host(fn(&HostNow) -> Option<Value>),
    /// One sample for each node of the cluster that has the value.
    Node(fn(&NodeNow) -> Option<Value>),
    /// One sample for each member of etcd that answers and has the value.
    Member(fn(&EtcdAnswerNow) -> Option<Value>),
    /// One sample for each webhook.
    Webhook(fn(&WebhookNow) -> u64),
    /// The sample of the server, if it has the value.
    Server(fn(&Snapshot) -> Option<Value>),
    /// The samples that the function returns.
    Each(fn(&Snapshot, &mut MetricEncoder<'_>) -> fmt::Result),
}

/// All samples of one name.
pub(super) struct Family {
    /// The name with its unit, without `evenkeel_` and, for counters, `_total`.
    name: &'static str,
    kind: MetricType,
    help: &'static str,
    of: Of,
}

impl Family {
    const fn counter(name: &'static str, help: &'static str, of: Of) -> Self {
        Self { name, kind: MetricType::Counter, help, of }
    }

    const fn gauge(name: &'static str, help: &'static str, of: Of) -> Self {
        Self { name, kind: MetricType::Gauge, help, of }
    }

    /// Writes the family's metadata and its samples.
    pub(super) fn encode(
        &self,
        snapshot: &Snapshot,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        let (name, unit) = split(self.name);
        let mut metric = encoder.encode_descriptor(name, self.help, unit.as_ref(), self.kind)?;
        match self.of {
            Of::Volume(value) => snapshot.volumes.iter().try_for_each(|volume| {
                let Some(value) = value(volume) else { return Ok(()) };
                self.sample(&mut metric, &volume_labels(volume), value)
            }),
            Of::Host(value) => snapshot.hosts.iter().try_for_each(|host| {
                let Some(value) = value(host) else { return Ok(()) };
                self.sample(&mut metric, &host_labels(host), value)
            }),
            Of::Node(value) => nodes(snapshot).iter().try_for_each(|node| {
                let Some(value) = value(node) else { return Ok(()) };
                self.sample(&mut metric, &[("node", &node.name)], value)
            }),
            Of::Member(value) => members(snapshot).iter().try_for_each(|member| {
                let Some(value) = member.answer.as_ref().and_then(value) else { return Ok(()) };
                self.sample(&mut metric, &[("endpoint", &member.endpoint)], value)
            }),
            Of::Webhook(value) => webhooks(snapshot).iter().try_for_each(|webhook| {
                let value = Value::Count(value(webhook));
                self.sample(&mut metric, &[("webhook", &webhook.name)], value)
            }),
            Of::Server(value) => match (value(snapshot), self.kind) {
                (None, _) => Ok(()),
                (Some(Value::Count(value)), MetricType::Counter) => {
                    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
                }
                (Some(Value::Real(value)), MetricType::Counter) => {
                    metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
                }
                (Some(Value::Count(value)), _) => metric.encode_gauge(&value),
                (Some(Value::Real(value)), _) => metric.encode_gauge(&value),
            },
            Of::Each(encode) => encode(snapshot, &mut metric),
        }
    }

    fn sample<const N: usize>(
        &self,
        metric: &mut MetricEncoder<'_>,
        labels: &[(&str, &str); N],
        value: Value,
    ) -> fmt::Result {
        match self.kind {
            MetricType::Counter => count(metric, labels, value),
            _ => level(metric, labels, value),
        }
    }
}

/// Returns the unit of a family, parsed from its name, for its declaration.
fn split(name: &'static str) -> (&'static str, Option<Unit>) {
    let seconds = name.strip_suffix("_seconds").map(|name| (name, Some(Unit::Seconds)));
    let bytes = || name.strip_suffix("_bytes").map(|name| (name, Some(Unit::Bytes)));
    seconds.or_else(bytes).unwrap_or((name, None))
}

fn volume_labels(volume: &VolumeNow) -> [(&'static str, &str); 2] {
    [("volume_id", &volume.name), ("volume_type", &volume.volume_type)]
}

fn host_labels(host: &HostNow) -> [(&'static str, &str); 2] {
    [("instance_id", &host.name), ("instance_type", &host.instance_type)]
}

fn webhooks(snapshot: &Snapshot) -> &[WebhookNow] {
    snapshot.events.as_ref().map_or(&[], |events| &events.webhooks)
}

fn nodes(snapshot: &Snapshot) -> &[NodeNow] {
    snapshot.cluster.as_ref().map_or(&[], |cluster| &cluster.nodes)
}

fn members(snapshot: &Snapshot) -> &[EtcdMemberNow] {
    snapshot.cluster.as_ref().map_or(&[], |cluster| &cluster.etcd)
}

fn count<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: Value,
) -> fmt::Result {
    let mut sample = metric.encode_family(labels)?;
    match value {
        Value::Count(value) => sample.encode_counter::<NoLabelSet, _, f64>(&value, None),
        Value::Real(value) => sample.encode_counter::<NoLabelSet, _, f64>(&value, None),
    }
}

fn level<const N: usize>(
    metric: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    value: Value,
) -> fmt::Result {
    let mut sample = metric.encode_family(labels)?;
    match value {
        Value::Count(value) => sample.encode_gauge(&value),
        Value::Real(value) => sample.encode_gauge(&value),
    }
}

/// Converts milliseconds to seconds.
fn real_ms(ms: i64) -> f64 {
    let seconds = real(ms.unsigned_abs()) / 1_000.0;
    if ms < 0 { -seconds } else { seconds }
}

fn counted(count: u64) -> Option<Value> {
    Some(Value::Count(count))
}

fn seconds(ns: u64) -> Option<Value> {
    Some(Value::Real(in_seconds(Duration::from_ns(ns))))
}

fn in_seconds(time: Duration) -> f64 {
    std::time::Duration::from_nanos(time.ns).as_secs_f64()
}

/// Returns a value of the requests of one kind; zero for a volume without requests.
fn of_requests(volume: &VolumeNow, op: Op, value: fn(&Latency) -> u64) -> u64 {
    volume.latencies.as_ref().map_or(0, |latencies| value(op.of(latencies)))
}

#[derive(Clone, Copy)]
enum Op {
    Read,
    Write,
}

impl Op {
    const ALL: [Self; 2] = [Self::Read, Self::Write];

    const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    const fn of(self, latencies: &Latencies) -> &Latency {
        match self {
            Self::Read => &latencies.reads,
            Self::Write => &latencies.writes,
        }
    }
}

/// All metrics, in the order of the reference.
pub(super) const ALL: &[Family] = &[
    Family::counter(
        "read_ops",
        "Read requests answered since the server started.",
        Of::Volume(|v| counted(of_requests(v, Op::Read, |reads| reads.total.count()))),
    ),
    Family::counter(
        "write_ops",
        "Write requests answered since the server started.",
        Of::Volume(|v| counted(of_requests(v, Op::Write, |writes| writes.total.count()))),
    ),
    Family::counter(
        "counted_ios",
        "I/Os as the limit in IOPS counts them, after splitting and merging, started since the \
         server started.",
        Of::Volume(|v| counted(v.report.operations)),
    ),
    Family::counter(
        "read_bytes",
        "Bytes of read requests started since the server started.",
        Of::Volume(|v| counted(v.report.bytes_read)),
    ),
    Family::counter(
        "write_bytes",
        "Bytes of write requests started since the server started.",
        Of::Volume(|v| counted(v.report.bytes_written)),
    ),
    Family::counter(
        "flushes",
        "Flushes started since the server started, which cost no IOPS.",
        Of::Volume(|v| counted(v.report.flushes)),
    ),
    Family::counter(
        "io_errors",
        "Requests answered with an error: device, which the store below failed, rotten, which met \
         data whose checksum does not fit, and no_space.",
        Of::Each(io_errors),
    ),
    Family::gauge(
        "flush_failed",
        "1 while a flush has failed, so that what was acknowledged before may be lost, and flushes \
         and writes fail until the volume is detached from all hosts and attached again; else 0.",
        Of::Volume(|v| counted(v.report.errors.flush_failed.into())),
    ),
    Family::gauge(
        "stalled",
        "1 while the volume has requests and has started none for 60 seconds, or the store has \
         ended none for 5; else 0.",
        Of::Volume(|v| counted(v.is_stalled.into())),
    ),
    Family::counter(
        "read_seconds",
        "Seconds from arrival to reply, of all read requests together.",
        Of::Volume(|v| seconds(of_requests(v, Op::Read, |reads| reads.total.sum().ns))),
    ),
    Family::counter(
        "write_seconds",
        "Seconds from arrival to reply, of all write requests together.",
        Of::Volume(|v| seconds(of_requests(v, Op::Write, |writes| writes.total.sum().ns))),
    ),
    Family {
        name: "io_latency_seconds",
        kind: MetricType::Histogram,
        help: "Seconds that requests took. Stage total: from arrival to reply, once a request; \
               stage wait: for limits, turns, room and memory, stage device: in the store and the \
               device below it, both once for each part that a request is carried out in.",
        of: Of::Each(latency_histograms),
    },
    Family::counter(
        "io_stage_seconds",
        "Seconds that requests spent in a stage of their way, all together.",
        Of::Each(|snapshot, metric| stage_sums(snapshot, metric, "stage", &Stage::ALL)),
    ),
    Family::counter(
        "token_wait_seconds",
        "Seconds that requests waited for a limit, all together: those stages of \
         evenkeel_io_stage_seconds_total that a larger volume or instance would shorten.",
        Of::Each(|snapshot, metric| stage_sums(snapshot, metric, "limit", &LIMITS)),
    ),
    Family::gauge(
        "queue_length",
        "Requests that wait or are being carried out at present.",
        Of::Volume(|v| counted(v.report.queued.into())),
    ),
    Family::gauge(
        "connections",
        "Connections of clients to the volume at present.",
        Of::Volume(|v| counted(v.report.connections.into())),
    ),
    Family::gauge(
        "provisioned_iops",
        "I/Os a second that the volume may do at any time: provisioned, or its type's baseline.",
        Of::Volume(|v| counted(assured(v.pacing.operations?))),
    ),
    Family::gauge(
        "provisioned_throughput_bytes",
        "Bytes a second that the volume may move at any time: provisioned, or its type's baseline.",
        Of::Volume(|v| counted(assured(v.pacing.bytes?))),
    ),
    Family::gauge(
        "floor_iops",
        "I/Os a second that the volume has reserved: on a calibrated device it gets them whatever \
         its neighbours do.",
        Of::Volume(|v| counted(v.floor_iops.into())),
    ),
    Family::gauge(
        "burst_iops",
        "I/Os a second that the volume may do while its credits last.",
        Of::Volume(|v| v.pacing.operations.filter(|l| l.credit.is_some()).map(burst)),
    ),
    Family::gauge(
        "burst_throughput_bytes",
        "Bytes a second that the volume may move while its credits last.",
        Of::Volume(|v| v.pacing.bytes.filter(|limit| limit.credit.is_some()).map(burst)),
    ),
    Family::gauge(
        "burst_balance_ratio",
        "Credits the volume has, as a ratio of what it may save: 0 to 1.",
        Of::Volume(|v| {
            let balances = v.report.balances;
            let operations = filled(v.pacing.operations, balances.operations);
            operations.or_else(|| filled(v.pacing.bytes, balances.bytes)).map(Value::Real)
        }),
    ),
    Family::gauge(
        "burst_empty_eta_seconds",
        "Seconds until the volume's credits are spent at the rate since an earlier scrape; +Inf \
         while they do not become fewer.",
        Of::Volume(burst_empty_eta),
    ),
    Family::gauge(
        "monthly_list_price_usd",
        "Dollars that the volume would cost at AWS in a month of 30 days, by the newest list \
         prices: its size, IOPS and throughput, used or not.",
        Of::Volume(|v| Some(Value::Real(real(v.monthly_micro_usd?) / 1e6))),
    ),
    Family::counter(
        "exceeded_iops_seconds",
        "Seconds in which the volume's limit in IOPS held it up.",
        Of::Volume(|v| seconds(v.report.exceeded.operations_ns)),
    ),
    Family::counter(
        "exceeded_tp_seconds",
        "Seconds in which the volume's limit in throughput held it up.",
        Of::Volume(|v| seconds(v.report.exceeded.bytes_ns)),
    ),
    Family::counter(
        "exceeded_guard_seconds",
        "Seconds in which the guard of flushes and discards held the volume up.",
        Of::Volume(|v| seconds(v.report.exceeded.guard_ns)),
    ),
    Family::counter(
        "exceeded_instance_iops_seconds",
        "Seconds in which its instance's limit in IOPS held the volume up.",
        Of::Volume(|v| seconds(v.report.exceeded.instance_operations_ns)),
    ),
    Family::counter(
        "exceeded_instance_tp_seconds",
        "Seconds in which its instance's limits in throughput held the volume up.",
        Of::Volume(|v| seconds(v.report.exceeded.instance_bytes_ns)),
    ),
    Family::counter(
        "exceeded_device_seconds",
        "Seconds in which the volume was held up by the device: within its limits, so our part.",
        Of::Volume(|v| seconds(v.report.exceeded.device_ns)),
    ),
    Family::counter(
        "contract_seconds",
        "Seconds in which the volume was used, and judged by what was sold with it.",
        Of::Volume(|v| judged(v, v.report.contract.seconds)),
    ),
    Family::counter(
        "contract_missed_seconds",
        "Seconds in which it asked for what was sold with it and did not get it.",
        Of::Volume(|v| judged(v, v.report.contract.missed)),
    ),
    Family::gauge(
        "contract_met_ratio",
        "Part of the seconds judged in which it got what was sold with it: 0 to 1.",
        Of::Volume(|v| v.report.contract.met_ppm().map(|ppm| Value::Real(f64::from(ppm) / 1e6))),
    ),
    Family {
        name: "attachment",
        kind: MetricType::Info,
        help: "Which volume is attached to which instance, under which device name.",
        of: Of::Each(attachments),
    },
    Family {
        name: "volume_node",
        kind: MetricType::Info,
        help: "Which node of the cluster serves the volume.",
        of: Of::Each(|snapshot, metric| {
            let at = |v: &VolumeNow| Some((v.name.clone(), v.node.clone()?));
            snapshot.volumes.iter().filter_map(at).try_for_each(|(volume, node)| {
                metric.encode_info(&[("volume_id", volume.as_str()), ("node", node.as_str())])
            })
        }),
    },
    Family::gauge(
        "node_up",
        "1 if the node serves, or is about to leave and still does; 0 if it is away, is starting \
         or has stopped.",
        Of::Each(|snapshot, metric| {
            nodes(snapshot).iter().try_for_each(|node| {
                let is_up = matches!(node.status, "serving" | "leaving");
                let labels = [("node", node.name.as_str()), ("status", node.status)];
                level(metric, &labels, Value::Count(is_up.into()))
            })
        }),
    ),
    Family::gauge(
        "node_leads",
        "1 if the node runs the control plane.",
        Of::Node(|node| counted(node.leads.into())),
    ),
    Family::gauge(
        "node_volumes",
        "Volumes whose home the node is.",
        Of::Node(|node| u64::try_from(node.volumes).ok().map(Value::Count)),
    ),
    Family::gauge(
        "node_device_part_ratio",
        "The part of the pool's window that the node has now, with what others lend it: 0 to 1.",
        Of::Node(|node| node.part_ppm.map(|ppm| Value::Real(f64::from(ppm) / 1e6))),
    ),
    Family::counter(
        "cluster_moves",
        "Volumes that moved from one node to another, since this leader leads.",
        Of::Server(|snapshot| counted(snapshot.cluster.as_ref()?.moves)),
    ),
    Family::counter(
        "cluster_takeovers",
        "Volumes that were taken over from a node that was lost, since this leader leads.",
        Of::Server(|snapshot| counted(snapshot.cluster.as_ref()?.takeovers)),
    ),
    Family::counter(
        "cluster_fences",
        "Nodes that were fenced at the Ceph cluster, since this leader leads.",
        Of::Server(|snapshot| counted(snapshot.cluster.as_ref()?.fences)),
    ),
    Family::gauge(
        "etcd_up",
        "1 if the member of etcd answers, 0 if it does not.",
        Of::Each(|snapshot, metric| {
            members(snapshot).iter().try_for_each(|member| {
                let labels = [("endpoint", member.endpoint.as_str())];
                level(metric, &labels, Value::Count(member.answer.is_some().into()))
            })
        }),
    ),
    Family::gauge(
        "etcd_has_leader",
        "1 if the member knows which member leads etcd.",
        Of::Member(|it| counted(it.has_leader.into())),
    ),
    Family::gauge(
        "etcd_answer_seconds",
        "The time that the member took to answer last.",
        Of::Member(|it| Some(Value::Real(it.took.as_secs_f64()))),
    ),
    Family::gauge(
        "etcd_file_bytes",
        "The size of the member's file, which its quota limits.",
        Of::Member(|it| counted(it.bytes)),
    ),
    Family::gauge(
        "etcd_in_use_bytes",
        "The bytes of the member's file that are in use.",
        Of::Member(|it| counted(it.in_use)),
    ),
    Family::gauge(
        "etcd_quota_bytes",
        "The most bytes of the member's file. Absent with etcd 3.4 and 3.5.",
        Of::Member(|it| it.quota.map(Value::Count)),
    ),
    Family::gauge(
        "etcd_is_full",
        "1 if the member refuses writes because its quota is used up.",
        Of::Member(|it| counted(it.is_full.into())),
    ),
    Family::gauge(
        "volumes",
        "Volumes that exist, by state.",
        Of::Each(|snapshot, metric| {
            snapshot.states.iter().try_for_each(|(state, volumes)| {
                level(metric, &[("state", state)], Value::Count(*volumes))
            })
        }),
    ),
    Family::gauge(
        "snapshots",
        "Snapshots that exist, by state.",
        Of::Each(|snapshot, metric| {
            snapshot.volume_snapshots.iter().try_for_each(|(state, snapshots)| {
                level(metric, &[("state", state)], Value::Count(*snapshots))
            })
        }),
    ),
    Family::gauge(
        "snapshot_data_bytes",
        "Bytes of data in all snapshots, each counted whole, whatever it shares with others.",
        Of::Server(|snapshot| counted(snapshot.volume_snapshot_bytes)),
    ),
    Family::gauge(
        "store_total_bytes",
        "Bytes that volumes could fill together: what they have filled, and what is free.",
        Of::Server(|snapshot| counted(snapshot.space.as_ref()?.total.0)),
    ),
    Family::gauge(
        "store_free_bytes",
        "Bytes of the store that are free.",
        Of::Server(|snapshot| counted(snapshot.space.as_ref()?.free.0)),
    ),
    Family::gauge(
        "store_sold_bytes",
        "Bytes that all volumes have, written to or not, and data of all snapshots.",
        Of::Server(|snapshot| counted(snapshot.space.as_ref()?.sold.0)),
    ),
    Family::gauge(
        "store_for_sale_bytes",
        "Bytes that volumes may have together; absent where that has no bound.",
        Of::Server(|snapshot| counted(snapshot.space.as_ref()?.for_sale?.0)),
    ),
    Family::gauge(
        "account_iops",
        "IOPS that all volumes of the account reserve.",
        Of::Server(|snapshot| counted(snapshot.account.iops.used)),
    ),
    Family::gauge(
        "account_iops_quota",
        "IOPS that they may reserve; absent without a quota.",
        Of::Server(|snapshot| counted(snapshot.account.iops.quota?)),
    ),
    Family::gauge(
        "account_throughput_bytes",
        "Bytes per second that all volumes of the account reserve.",
        Of::Server(|snapshot| counted(snapshot.account.throughput.used)),
    ),
    Family::gauge(
        "account_throughput_quota_bytes",
        "Bytes per second that they may reserve; absent without a quota.",
        Of::Server(|snapshot| counted(snapshot.account.throughput.quota?)),
    ),
    Family::gauge(
        "account_size_bytes",
        "Bytes of all volumes of the account, written to or not.",
        Of::Server(|snapshot| counted(snapshot.account.bytes.used)),
    ),
    Family::gauge(
        "account_size_quota_bytes",
        "Bytes that they may have; absent without a quota.",
        Of::Server(|snapshot| counted(snapshot.account.bytes.quota?)),
    ),
    Family::counter(
        "store_copies_mended",
        "Copies of what the store has twice that were damaged, and were written anew.",
        Of::Server(|snapshot| counted(snapshot.store_health.copies_mended)),
    ),
    Family::counter(
        "store_volumes_salvaged",
        "Volumes that were salvaged and lost something.",
        Of::Server(|snapshot| counted(snapshot.store_health.volumes_salvaged)),
    ),
    Family::gauge(
        "store_troubles",
        "What the store cannot do or read: unfinished and no_space are volumes that are not open, \
         with work that fails; damaged_sector are sectors of its tables.",
        Of::Each(|snapshot, metric| {
            let kinds = snapshot.store_health.troubles();
            kinds.into_iter().try_for_each(|(kind, troubles)| {
                level(metric, &[("kind", kind)], Value::Count(troubles))
            })
        }),
    ),
    Family::counter(
        "background_bytes",
        "Bytes that background work has moved: verify reads to check, read copies snapshots out, \
         fill copies them in.",
        Of::Each(|snapshot, metric| {
            let Some(report) = &snapshot.background else { return Ok(()) };
            let works =
                [("verify", report.verified), ("read", report.read), ("fill", report.filled)];
            works.into_iter().try_for_each(|(work, bytes)| {
                count(metric, &[("work", work)], Value::Count(bytes.0))
            })
        }),
    ),
    Family::gauge(
        "background_limit_bytes",
        "Bytes a second that background work may move; volumes go first.",
        Of::Server(|snapshot| counted(snapshot.background.as_ref()?.bytes_per_second.0)),
    ),
    Family::gauge(
        "background_waiting",
        "Pieces of background work that wait for the device at present.",
        Of::Server(|snapshot| counted(snapshot.background.as_ref()?.waiting.into())),
    ),
    Family::gauge(
        "scrub_running",
        "1 while a scrub runs, 0 when the last one is completed or stopped; absent before the \
         first.",
        Of::Server(|snapshot| counted(snapshot.scrub.as_ref()?.is_running.into())),
    ),
    Family::gauge(
        "scrub_verified_bytes",
        "Bytes that the running or last scrub has read.",
        Of::Server(|snapshot| counted(snapshot.scrub.as_ref()?.verified_bytes)),
    ),
    Family::gauge(
        "scrub_rotten_places",
        "Places that the running or last scrub has found not to be as they were written.",
        Of::Server(|snapshot| counted(snapshot.scrub.as_ref()?.rotten_places)),
    ),
    Family::counter(
        "events",
        "Events that were written to the data folder.",
        Of::Server(|snapshot| counted(snapshot.events.as_ref()?.written)),
    ),
    Family::counter(
        "events_lost",
        "Events that could not be written; a gap event tells how many.",
        Of::Server(|snapshot| counted(snapshot.events.as_ref()?.lost)),
    ),
    Family::counter(
        "recording_written_bytes",
        "Bytes of the recordings of volumes that were written to the data folder.",
        Of::Server(|snapshot| counted(snapshot.recording.as_ref()?.written_bytes)),
    ),
    Family::counter(
        "recording_lost",
        "Parts of the recordings of volumes that could not be written; they are gaps.",
        Of::Server(|snapshot| counted(snapshot.recording.as_ref()?.lost)),
    ),
    Family::gauge(
        "events_webhook_lag",
        "Events that a webhook has not accepted yet.",
        Of::Webhook(|webhook| webhook.lag),
    ),
    Family::counter(
        "events_webhook_failures",
        "Posts of events that a webhook has not accepted.",
        Of::Webhook(|webhook| webhook.failures),
    ),
    Family::counter(
        "events_webhook_given_up",
        "Events that a webhook has not accepted within a day, or that were deleted before.",
        Of::Webhook(|webhook| webhook.given_up),
    ),
    Family::counter(
        "host_ios",
        "I/Os of all volumes of the instance, as its limit in IOPS counts them.",
        Of::Host(|host| counted(host.counters.operations)),
    ),
    Family::counter(
        "host_bytes",
        "Bytes of all volumes of the instance, as its limits in throughput count them.",
        Of::Host(|host| counted(host.counters.bytes)),
    ),
    Family::gauge(
        "host_waiting_volumes",
        "Volumes that wait for the instance's limits at present.",
        Of::Host(|host| counted(host.counters.waiting.into())),
    ),
    Family::gauge(
        "host_provisioned_iops",
        "I/Os a second that the instance's volumes may do together at any time.",
        Of::Host(|host| counted(assured(host.pacing.operations?))),
    ),
    Family::gauge(
        "host_provisioned_throughput_bytes",
        "Bytes a second that the instance's volumes may move together at any time.",
        Of::Host(|host| counted(assured(host.pacing.bytes?))),
    ),
    Family::gauge(
        "host_burst_balance_ratio",
        "Credits the instance has, as a ratio of what it may save: 0 to 1.",
        Of::Each(host_burst_balances),
    ),
    Family::counter(
        "host_exceeded_iops_seconds",
        "Seconds in which the instance's limit in IOPS held its volumes up.",
        Of::Host(|host| seconds(host.counters.exceeded.operations_ns)),
    ),
    Family::counter(
        "host_exceeded_tp_seconds",
        "Seconds in which the instance's limits in throughput held its volumes up.",
        Of::Host(|host| seconds(host.counters.exceeded.bytes_ns)),
    ),
    Family::counter(
        "journal_commits",
        "Changes that the journal has stored.",
        Of::Each(|snapshot, metric| count(metric, &[], Value::Count(snapshot.journal.commits))),
    ),
    Family::counter(
        "journal_failures",
        "Changes that the journal could not store.",
        Of::Each(|snapshot, metric| count(metric, &[], Value::Count(snapshot.journal.failures))),
    ),
    Family::gauge(
        "journal_failing",
        "1 while the last change could not be stored.",
        Of::Server(|snapshot| counted(snapshot.journal.is_failing.into())),
    ),
    Family::gauge(
        "audit_failing",
        "1 while changes are refused because their records could not be written.",
        Of::Server(|snapshot| counted(snapshot.audit?.is_failing.into())),
    ),
    Family::counter(
        "audit_lost_records",
        "Records of calls and connections that could not be written.",
        Of::Server(|snapshot| counted(snapshot.audit?.lost)),
    ),
    Family::counter(
        "audit_removed_files",
        "Files of the audit that were deleted for the size of all before they were 90 days old.",
        Of::Server(|snapshot| counted(snapshot.audit?.removed_files)),
    ),
    Family::gauge(
        "clock_step_seconds",
        "Seconds by which the wall clock was set within the last hour, negative if back; else 0.",
        Of::Server(|snapshot| Some(Value::Real(real_ms(snapshot.clock_step_ms)))),
    ),
    Family::gauge(
        "certificate_expiry_time_seconds",
        "The last second in which a certificate of the server is valid, since 1970.",
        Of::Each(|snapshot, metric| {
            snapshot.certificates.iter().try_for_each(|(name, until)| {
                level(metric, &[("certificate", *name)], Value::Count(*until))
            })
        }),
    ),
    Family::counter(
        "api_refused_signatures",
        "Requests of the API that were refused for their signature.",
        Of::Each(|snapshot, metric| {
            snapshot.refused.iter().try_for_each(|(code, refused)| {
                count(metric, &[("code", code)], Value::Count(*refused))
            })
        }),
    ),
    Family {
        name: "build",
        kind: MetricType::Info,
        help: "The program that answers.",
        of: Of::Each(|_, metric| metric.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])),
    },
];

fn io_errors(snapshot: &Snapshot, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    for volume in &snapshot.volumes {
        let IoErrors { device, no_space, rotten, .. } = volume.report.errors;
        let reasons = [("device", device), ("rotten", rotten), ("no_space", no_space)];
        for (reason, errors) in reasons {
            let [id, volume_type] = volume_labels(volume);
            count(metric, &[id, volume_type, ("reason", reason)], Value::Count(errors))?;
        }
    }
    Ok(())
}

fn burst(limit: evenkeel_core::qos::pacing::Limit) -> Value {
    Value::Count(limit.per_second)
}

/// Returns a count of seconds, for volumes that were judged.
fn judged(volume: &VolumeNow, seconds: u64) -> Option<Value> {
    volume.report.contract.met_ppm().map(|_| Value::Count(seconds))
}

fn burst_empty_eta(volume: &VolumeNow) -> Option<Value> {
    let balance = super::the_one(volume.report.balances)?;
    let drain = volume.drain_per_second?;
    let eta_s = if drain > 0.0 { real(balance) / drain } else { f64::INFINITY };
    Some(Value::Real(eta_s))
}

/// Writes the histograms of latencies. Omits counters at zero: most volumes are only read, or only
/// written, or idle.
fn latency_histograms(snapshot: &Snapshot, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    for volume in &snapshot.volumes {
        let Some(latencies) = &volume.latencies else { continue };
        for op in Op::ALL {
            let Latency { total, device, waits, .. } = op.of(latencies);
            for (stage, histogram) in [("total", total), ("wait", waits), ("device", device)] {
                if histogram.count() > 0 {
                    let [id, volume_type] = volume_labels(volume);
                    let labels = [id, volume_type, ("op", op.name()), ("stage", stage)];
                    encode_histogram(metric, labels, histogram)?;
                }
            }
        }
    }
    Ok(())
}

fn encode_histogram(
    metric: &mut MetricEncoder<'_>,
    labels: [(&str, &str); 4],
    histogram: &Histogram,
) -> fmt::Result {
    let mut before = 0;
    let mut buckets = [(f64::INFINITY, 0); BOUNDS_LOG2.len() + 1];
    for (bucket, log2) in buckets.iter_mut().zip(BOUNDS_LOG2) {
        let bound = Duration::from_ns(1 << log2);
        let at_most = histogram.at_most(bound);
        *bucket = (in_seconds(bound), at_most - before);
        before = at_most;
    }
    buckets[BOUNDS_LOG2.len()].1 = histogram.count() - before;
    let sum_s = in_seconds(histogram.sum());
    let mut sample = metric.encode_family(&labels)?;
    sample.encode_histogram::<NoLabelSet>(sum_s, histogram.count(), &buckets, None)
}

/// Writes the time in each stage, only for volumes that had requests: all others have none.
fn stage_sums(
    snapshot: &Snapshot,
    metric: &mut MetricEncoder<'_>,
    label: &'static str,
    stages: &[Stage],
) -> fmt::Result {
    for volume in &snapshot.volumes {
        let Some(latencies) = &volume.latencies else { continue };
        for op in Op::ALL {
            for stage in stages {
                let [id, volume_type] = volume_labels(volume);
                let labels = [id, volume_type, ("op", op.name()), (label, stage.name())];
                let spent = op.of(latencies).spent(*stage);
                count(metric, &labels, Value::Real(in_seconds(spent)))?;
            }
        }
    }
    Ok(())
}

fn attachments(snapshot: &Snapshot, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    snapshot.attachments.iter().try_for_each(|attachment| {
        metric.encode_info(&[
            ("volume_id", attachment.volume.as_str()),
            ("instance_id", &attachment.instance),
            ("device", &attachment.device),
            ("state", attachment.state),
        ])
    })
}

fn host_burst_balances(snapshot: &Snapshot, metric: &mut MetricEncoder<'_>) -> fmt::Result {
    for host in &snapshot.hosts {
        let operations = filled(host.pacing.operations, host.balances.operations);
        let bytes = filled(host.pacing.bytes, host.balances.bytes);
        for (limit, ratio) in [("iops", operations), ("throughput", bytes)] {
            if let Some(ratio) = ratio {
                let [id, instance_type] = host_labels(host);
                level(metric, &[id, instance_type, ("limit", limit)], Value::Real(ratio))?;
            }
        }
    }
    Ok(())
}
