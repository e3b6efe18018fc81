//! `/metrics`: the state of volumes and hosts in the text format of OpenMetrics.
//!
//! A scrape calls the data plane twice (for its report, and for the time that requests spent in
//! each stage). It keeps only the credit balances; with them the next scrape predicts when they are
//! used up. It fails if the data plane does not answer.

mod families;
mod format;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_core::price::PriceList;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::qos::sharing::InstanceCounters;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{BackgroundReport, Space, StoreHealth, VolumeReport};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::Registry;

pub use self::format::Format;
use crate::cluster::fleet::{Counts, Fleet, NodeView};
use crate::cluster::nodes::State;
use crate::events::Feed;
use crate::events::webhook::Delivery;
use crate::journal::etcd::upkeep::MemberSeen;
use crate::model::{Attachment, Model, UnixMs};
use crate::plane::{JournalNow, Plane, PlaneError};
use crate::scrub::Scrub;
use crate::{clock, reconcile};

/// The prefix of all names.
const PREFIX: &str = "evenkeel";
/// Minimum time over which balances are compared, in milliseconds. Over a shorter time, a few I/Os
/// would look like a trend.
const TREND_MS_MIN: u64 = 1_000;

/// Answers scrapes.
#[derive(Debug, Default)]
pub struct Scraper {
    trend: Trend,
}

impl Scraper {
    /// Returns all metrics; `refused` are the counts of refused signatures, by code.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn scrape(
        &mut self,
        plane: &Plane,
        refused: BTreeMap<&'static str, u64>,
    ) -> Result<String, PlaneError> {
        let report = plane.report()?;
        let latencies = plane.latencies(None)?;
        let background = plane.background()?;
        let store_health = plane.store_health()?;
        self.trend.follow(clock::now(), &report.volumes);
        let mut latencies: BTreeMap<VolumeId, Box<Latencies>> = latencies.into_iter().collect();
        let model = plane.model();
        let health = plane.health();
        // A volume that is being created or deleted may be in only one of model and report.
        let volumes = report.volumes.into_iter().filter_map(|report| {
            let volume = model.volumes.get(&report.id)?;
            Some(VolumeNow {
                name: report.id.to_string(),
                volume_type: volume.spec.volume_type.to_string(),
                monthly_micro_usd: PriceList::newest().monthly_micro_usd(&volume.spec),
                pacing: reconcile::pacing(&plane.settings, volume),
                floor_iops: reconcile::floor_iops(&plane.settings, volume),
                drain_per_second: self.trend.drain(report.id),
                latencies: latencies.remove(&report.id),
                is_stalled: health.of(report.id).is_stalled(),
                node: plane.fleet().and_then(|fleet| fleet.home_name(report.id)),
                report,
            })
        });
        let hosts = report.hosts.into_iter().filter_map(|report| {
            let host = model.hosts.get(&report.id)?;
            Some(HostNow {
                name: report.id.to_string(),
                instance_type: host.instance_type.clone(),
                pacing: reconcile::host_pacing(host)?.as_volume(),
                balances: report.balances,
                counters: report.counters,
            })
        });
        let snapshot = Snapshot {
            volumes: volumes.collect(),
            hosts: hosts.collect(),
            attachments: attachments(&model),
            states: states(&model),
            volume_snapshots: snapshot_states(&model),
            volume_snapshot_bytes: model.snapshots.values().map(|kept| kept.taken()).sum(),
            space: space(plane, &model),
            background: Some(background),
            store_health,
            scrub: plane.scrub(),
            refused,
            journal: plane.journal_now(),
            clock_step_ms: plane.clock_step().map_or(0, |step| step.0),
            events: events(plane.feed()),
            cluster: plane.fleet().map(|fleet| cluster(fleet)),
            recording: plane
                .recording()
                .map(|it| RecordingNow { written_bytes: it.written_bytes(), lost: it.lost() }),
        };
        drop(model);
        Ok(snapshot.encoded())
    }
}

fn cluster(fleet: &Fleet) -> ClusterNow {
    let node = |view: NodeView| NodeNow {
        status: view.status().0,
        part_ppm: fleet.part_ppm(view.member.number),
        volumes: view.volumes,
        leads: view.leads,
        name: view.member.name,
    };
    let nodes = fleet.nodes().into_iter().filter(|view| view.member.state != State::Removed);
    ClusterNow { nodes: nodes.map(node).collect(), counts: fleet.counts(), etcd: fleet.etcd() }
}

fn events(feed: &Feed) -> Option<EventsNow> {
    let last = feed.log()?.last();
    let (written, lost) = feed.counts();
    let webhook = |it: &Arc<Delivery>| WebhookNow {
        name: it.name.clone(),
        lag: it.lag(last),
        failures: it.failures(),
        given_up: it.given_up(),
    };
    let webhooks = feed.deliveries().iter().map(webhook).collect();
    Some(EventsNow { written, lost, webhooks })
}

fn space(plane: &Plane, model: &Model) -> Option<SpaceNow> {
    let room = plane.room()?;
    let Space { total, free } = room.space;
    let for_sale = plane.settings.space_oversell.for_sale(total);
    Some(SpaceNow { total, free, sold: model.taken_of(&room), for_sale })
}

fn attachments(model: &Model) -> Vec<AttachmentNow> {
    let all = model.volumes.values().flat_map(|v| v.attachments.iter().map(move |a| (v.id, a)));
    let now = all.map(|(volume, attachment): (VolumeId, &Attachment)| AttachmentNow {
        volume: volume.to_string(),
        instance: attachment.instance.to_string(),
        device: attachment.device.clone(),
        state: attachment.state.name(),
    });
    now.collect()
}

fn states(model: &Model) -> BTreeMap<&'static str, u64> {
    let mut states = BTreeMap::new();
    for volume in model.volumes.values() {
        let state = if volume.is_shown() { volume.state().name() } else { "binned" };
        *states.entry(state).or_default() += 1;
    }
    states
}

fn snapshot_states(model: &Model) -> BTreeMap<&'static str, u64> {
    let mut states = BTreeMap::new();
    for snapshot in model.snapshots.values().filter(|snapshot| snapshot.is_shown()) {
        *states.entry(snapshot.state()).or_default() += 1;
    }
    states
}

/// The rate at which balances fall, computed from two scrapes.
#[derive(Debug, Default)]
struct Trend {
    looked: Option<UnixMs>,
    balances: BTreeMap<VolumeId, u64>,
    /// Credits spent per second, net of refill; zero or less if the balance stays or grows.
    drain_per_second: BTreeMap<VolumeId, f64>,
}

impl Trend {
    /// Takes a new sample, unless the last one is too recent.
    fn follow(&mut self, now: UnixMs, volumes: &[VolumeReport]) {
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

    fn drain(&self, id: VolumeId) -> Option<f64> {
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
struct VolumeNow {
    name: String,
    volume_type: String,
    /// List price; `None` if there is none.
    monthly_micro_usd: Option<u64>,
    pacing: Pacing,
    /// I/Os per second that it has reserved.
    floor_iops: u32,
    report: VolumeReport,
    is_stalled: bool,
    /// The node of a cluster that serves it.
    node: Option<String>,
    /// `None` if it has had no requests.
    latencies: Option<Box<Latencies>>,
    /// Credits spent per second; `None` until there are two samples.
    drain_per_second: Option<f64>,
}

/// One host with limits.
#[derive(Debug)]
struct HostNow {
    name: String,
    instance_type: String,
    pacing: Pacing,
    balances: Balances,
    counters: InstanceCounters,
}

/// The space for stored bytes.
#[derive(Debug)]
struct SpaceNow {
    total: ByteCount,
    free: ByteCount,
    sold: ByteCount,
    /// `None` means any number.
    for_sale: Option<ByteCount>,
}

/// An attachment.
#[derive(Debug)]
struct AttachmentNow {
    volume: String,
    instance: String,
    device: String,
    state: &'static str,
}

/// All data of one scrape.
#[derive(Debug, Default)]
struct Snapshot {
    volumes: Vec<VolumeNow>,
    hosts: Vec<HostNow>,
    attachments: Vec<AttachmentNow>,
    /// The number of volumes in each state.
    states: BTreeMap<&'static str, u64>,
    /// The number of snapshots of volumes in each state.
    volume_snapshots: BTreeMap<&'static str, u64>,
    /// The data of all of them, in bytes.
    volume_snapshot_bytes: u64,
    /// `None` if it is unknown.
    space: Option<SpaceNow>,
    store_health: StoreHealth,
    /// `None` in tests.
    background: Option<BackgroundReport>,
    /// The scrub that runs, or the last one.
    scrub: Option<Scrub>,
    /// Refused signatures, by the code of the error.
    refused: BTreeMap<&'static str, u64>,
    journal: JournalNow,
    /// Time by which the wall clock was set within the last hour; 0 if it was not.
    clock_step_ms: i64,
    /// `None` if no events are stored.
    events: Option<EventsNow>,
    /// `None` if volumes are not recorded.
    recording: Option<RecordingNow>,
    /// `None` if this server serves alone.
    cluster: Option<ClusterNow>,
}

/// The nodes of a cluster.
#[derive(Clone, Debug)]
struct ClusterNow {
    nodes: Vec<NodeNow>,
    /// Counts since this process leads.
    counts: Counts,
    etcd: Vec<MemberSeen>,
}

/// A node of a cluster.
#[derive(Clone, Debug)]
struct NodeNow {
    name: String,
    status: &'static str,
    volumes: usize,
    leads: bool,
    /// The part of the device's window that the node has now, in millionths.
    part_ppm: Option<u32>,
}

/// The recording of volumes since the server's start.
#[derive(Debug)]
struct RecordingNow {
    written_bytes: u64,
    lost: u64,
}

/// The events since the server's start.
#[derive(Debug)]
struct EventsNow {
    written: u64,
    lost: u64,
    webhooks: Vec<WebhookNow>,
}

/// A webhook.
#[derive(Debug)]
struct WebhookNow {
    name: String,
    lag: u64,
    failures: u64,
    given_up: u64,
}

impl Snapshot {
    fn encoded(self) -> String {
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
