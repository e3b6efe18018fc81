//! `/metrics`: the state of volumes and hosts in the text format of OpenMetrics. Pure.
//!
//! A [`Snapshot`] has all values of one scrape; its caller collects them. [`Trend`] keeps the
//! credit balances from one scrape to the next, to predict when they are used up.

mod families;
mod format;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::qos::sharing::InstanceCounters;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{BackgroundReport, StoreHealth, VolumeReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

pub use self::format::Format;

/// The prefix of all names.
const PREFIX: &str = "evenkeel";
/// Minimum time over which balances are compared, in milliseconds. Over a shorter time, a few I/Os
/// would look like a trend.
const TREND_MS_MIN: u64 = 1_000;

/// The rate at which balances fall, computed from two scrapes.
#[derive(Debug, Default)]
pub struct Trend {
    looked: Option<UnixMs>,
    balances: BTreeMap<VolumeId, u64>,
    /// Credits spent per second, net of refill; zero or less if the balance stays or grows.
    drain_per_second: BTreeMap<VolumeId, f64>,
}

impl Trend {
    /// Takes a new sample, unless the last one is too recent.
    pub fn follow(&mut self, now: UnixMs, volumes: &[VolumeReport]) {
        let elapsed_ms = match self.looked {
            // The clock was set back, so the samples cannot be compared.
            Some(looked) if looked > now => None,
            Some(looked) if now.ms_since(looked) < TREND_MS_MIN => return,
            looked => looked.map(|looked| now.ms_since(looked)),
        };
        let balances: BTreeMap<VolumeId, u64> =
            volumes.iter().filter_map(|v| Some((v.id, the_one(v.balances)?))).collect();
        self.drain_per_second.clear();
        if let Some(elapsed_ms) = elapsed_ms {
            let drain = |(id, balance): (&VolumeId, &u64)| {
                let gone = real(*self.balances.get(id)?) - real(*balance);
                Some((*id, gone * 1_000.0 / real(elapsed_ms)))
            };
            self.drain_per_second = balances.iter().filter_map(drain).collect();
        }
        self.balances = balances;
        self.looked = Some(now);
    }

    /// Returns the credits that a volume spends per second, net of refill; `None` if unknown.
    #[must_use]
    pub fn drain(&self, id: VolumeId) -> Option<f64> {
        self.drain_per_second.get(&id).copied()
    }
}

/// Returns the one balance: no volume type has credits of both kinds.
fn the_one(balances: Balances) -> Option<u64> {
    balances.operations.or(balances.bytes)
}

/// Returns a count as a sample shows it: exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
const fn real(count: u64) -> f64 {
    count as f64
}

/// Returns the rate without bursts: the provisioned rate, or the baseline of a type with credits.
fn assured(limit: Limit) -> u64 {
    limit.credit.map_or(limit.per_second, |credit| credit.refill_per_second.min(limit.per_second))
}

/// Returns the filled share of a credit bucket.
fn filled(limit: Option<Limit>, balance: Option<u64>) -> Option<f64> {
    let capacity = limit?.credit?.capacity;
    (capacity > 0).then_some(real(balance?) / real(capacity))
}

/// One volume.
#[derive(Debug)]
pub struct VolumeNow {
    /// Its id.
    pub name: String,
    /// Its type, as the EC2 API names it.
    pub volume_type: String,
    /// List price; `None` if there is none.
    pub monthly_micro_usd: Option<u64>,
    /// Its limits.
    pub pacing: Pacing,
    /// I/Os per second that it has reserved.
    pub floor_iops: u32,
    /// The data plane's report.
    pub report: VolumeReport,
    /// Whether its requests are stalled.
    pub is_stalled: bool,
    /// The node of a cluster that serves it.
    pub node: Option<String>,
    /// `None` if it has had no requests.
    pub latencies: Option<Box<Latencies>>,
    /// Credits spent per second; `None` until there are two samples.
    pub drain_per_second: Option<f64>,
}

/// One host with limits.
#[derive(Debug)]
pub struct HostNow {
    /// Its id.
    pub name: String,
    /// Its type, as the EC2 API names it.
    pub instance_type: String,
    /// Its limits.
    pub pacing: Pacing,
    /// Its credits.
    pub balances: Balances,
    /// Its work since the data plane started.
    pub counters: InstanceCounters,
}

/// The space for stored bytes.
#[derive(Debug)]
pub struct SpaceNow {
    /// All space.
    pub total: ByteCount,
    /// Free space.
    pub free: ByteCount,
    /// The space that volumes and snapshots may take.
    pub sold: ByteCount,
    /// `None` means any number.
    pub for_sale: Option<ByteCount>,
}

/// The amount of a resource that all volumes of the account have, and its quota.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccountUse {
    /// The amount.
    pub used: u64,
    /// `None` without a quota.
    pub quota: Option<u64>,
}

/// The amounts that all volumes of the account have.
#[derive(Clone, Copy, Debug, Default)]
pub struct AccountNow {
    /// IOPS that they reserve.
    pub iops: AccountUse,
    /// Bytes per second that they reserve.
    pub throughput: AccountUse,
    /// Their bytes, written to or not.
    pub bytes: AccountUse,
}

/// An attachment.
#[derive(Debug)]
pub struct AttachmentNow {
    /// The id of the volume.
    pub volume: String,
    /// The id of the host.
    pub instance: String,
    /// The name of the device.
    pub device: String,
    /// Its state, as the EC2 API names it.
    pub state: &'static str,
}

/// All data of one scrape.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The volumes.
    pub volumes: Vec<VolumeNow>,
    /// The hosts with limits.
    pub hosts: Vec<HostNow>,
    /// The attachments.
    pub attachments: Vec<AttachmentNow>,
    /// The number of volumes in each state.
    pub states: BTreeMap<&'static str, u64>,
    /// The number of snapshots of volumes in each state.
    pub volume_snapshots: BTreeMap<&'static str, u64>,
    /// The data of all of them, in bytes.
    pub volume_snapshot_bytes: u64,
    /// `None` if it is unknown.
    pub space: Option<SpaceNow>,
    /// The use of the account's quotas.
    pub account: AccountNow,
    /// The state of the store.
    pub store_health: StoreHealth,
    /// `None` in tests.
    pub background: Option<BackgroundReport>,
    /// The scrub that runs, or the last one.
    pub scrub: Option<ScrubNow>,
    /// Refused signatures, by the code of the error.
    pub refused: BTreeMap<&'static str, u64>,
    /// The journal's counts.
    pub journal: JournalNow,
    /// The state of the audit; `None` if no calls are recorded.
    pub audit: Option<AuditNow>,
    /// Time by which the wall clock was set within the last hour; 0 if it was not.
    pub clock_step_ms: i64,
    /// The last second in which each certificate is valid, since 1970, by its use; empty without
    /// TLS.
    pub certificates: BTreeMap<&'static str, u64>,
    /// `None` if no events are stored.
    pub events: Option<EventsNow>,
    /// `None` if volumes are not recorded.
    pub recording: Option<RecordingNow>,
    /// `None` if this server serves alone.
    pub cluster: Option<ClusterNow>,
}

/// The nodes of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterNow {
    /// The nodes.
    pub nodes: Vec<NodeNow>,
    /// Volumes that moved from a node that served them, since this process leads.
    pub moves: u64,
    /// Volumes that were taken over from a lost node, since this process leads.
    pub takeovers: u64,
    /// Nodes that were fenced at the store, since this process leads.
    pub fences: u64,
    /// The members of etcd.
    pub etcd: Vec<EtcdMemberNow>,
}

/// A node of a cluster.
#[derive(Clone, Debug)]
pub struct NodeNow {
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: &'static str,
    /// Number of volumes that it serves.
    pub volumes: usize,
    /// Whether it leads.
    pub leads: bool,
    /// The part of the device's window that the node has now, in millionths.
    pub part_ppm: Option<u32>,
}

/// The recording of volumes since the server's start.
#[derive(Debug)]
pub struct RecordingNow {
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Samples and blocks that were dropped.
    pub lost: u64,
}

/// The events since the server's start.
#[derive(Debug)]
pub struct EventsNow {
    /// Events that were written.
    pub written: u64,
    /// Events that were lost.
    pub lost: u64,
    /// The webhooks.
    pub webhooks: Vec<WebhookNow>,
}

/// A webhook.
#[derive(Debug)]
pub struct WebhookNow {
    /// Its number, scheme and host.
    pub name: String,
    /// Number of events that wait to be posted.
    pub lag: u64,
    /// Number of posts that were not accepted.
    pub failures: u64,
    /// Number of events that were skipped.
    pub given_up: u64,
}

/// A member of etcd.
#[derive(Clone, Debug)]
pub struct EtcdMemberNow {
    /// Its endpoint.
    pub endpoint: String,
    /// Its answer; `None` if it gave none.
    pub answer: Option<EtcdAnswerNow>,
}

/// An answer of a member of etcd.
#[derive(Clone, Copy, Debug, Default)]
pub struct EtcdAnswerNow {
    /// Time until the answer.
    pub took: Duration,
    /// Whether the member knows a leader of etcd.
    pub has_leader: bool,
    /// The size of its file in bytes.
    pub bytes: u64,
    /// The bytes of the file that are in use.
    pub in_use: u64,
    /// Its quota; `None` if it does not report it, as 3.4 and 3.5.
    pub quota: Option<u64>,
    /// Whether it refuses writes because its quota is used up.
    pub is_full: bool,
}

/// The scrub that runs, or the last one.
#[derive(Clone, Copy, Debug)]
pub struct ScrubNow {
    /// Whether it runs.
    pub is_running: bool,
    /// Bytes that were read.
    pub verified_bytes: u64,
    /// Number of damaged places.
    pub rotten_places: u64,
}

/// The journal's counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalNow {
    /// Commits since the start.
    pub commits: u64,
    /// Commits that failed.
    pub failures: u64,
    /// Whether the last one failed.
    pub is_failing: bool,
}

/// The state of the audit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AuditNow {
    /// Whether changes are refused because their records could not be written.
    pub is_failing: bool,
    /// Records that could not be written since the start.
    pub lost: u64,
    /// Files that were deleted for the size of all since the start, although LookupEvents would
    /// still find their records.
    pub removed_files: u64,
}

impl Snapshot {
    /// Returns the text of the scrape.
    #[must_use]
    pub fn encoded(self) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut answer = String::new();
        // Writing to a `String` cannot fail; nothing else here can fail.
        let _ = text::encode(&mut answer, &registry);
        answer
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        families::ALL.iter().try_for_each(|family| family.encode(self, &mut encoder))
    }
}

#[cfg(test)]
mod tests;
