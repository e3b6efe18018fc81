//! Collects the state of volumes and hosts for `/metrics`.
//!
//! A scrape calls the data plane twice (for its report, and for the time that requests spent in
//! each stage). It keeps only the credit balances; with them the next scrape predicts when they are
//! used up. It fails if the data plane does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::Latencies;
use evenkeel_core::price::PriceList;
use evenkeel_core::units::GIB;
use evenkeel_telemetry::events::webhook::Delivery;
use evenkeel_telemetry::metrics::{
    AccountNow, AccountUse, AttachmentNow, AuditNow, ClusterNow, EventsNow, HostNow, NodeNow,
    RecordingNow, ScrubNow, Snapshot, SpaceNow, Trend, VolumeNow, WebhookNow,
};
use evenkeel_tls::server::{Expiry, ServerTls};
use evenkeel_wire::agent::Space;

use crate::endpoint::Endpoint;
use crate::events::Feed;
use crate::model::{Attachment, Model};
use crate::nodes::{Counts, NodeView, Nodes, State};
use crate::plane::{Plane, PlaneError};
use crate::reconcile;
use crate::scrub::{Scrub, ScrubState};
use evenkeel_os::clock;

/// Answers scrapes.
#[derive(Debug)]
pub struct Scraper {
    trend: Trend,
    /// The certificates of the server, and whether clients of NBD see them, too.
    tls: Option<(Arc<ServerTls>, bool)>,
}

impl Scraper {
    /// `endpoints` are the addresses of the data plane, `tls` the server's certificates.
    #[must_use]
    pub fn new(tls: Option<Arc<ServerTls>>, endpoints: &[Endpoint]) -> Self {
        let is_for_nbd = endpoints.iter().any(|endpoint| matches!(endpoint, Endpoint::NbdTls(_)));
        Self { trend: Trend::default(), tls: tls.map(|tls| (tls, is_for_nbd)) }
    }

    /// Returns when the certificates expire, by their use.
    fn certificates(&self) -> BTreeMap<&'static str, u64> {
        let Some((tls, is_for_nbd)) = &self.tls else { return BTreeMap::new() };
        let Expiry { server, authority } = tls.expiry();
        let of_nbd = server.filter(|_| *is_for_nbd);
        let all = [("api", server), ("nbd", of_nbd), ("ca", authority)];
        all.into_iter().filter_map(|(name, until)| Some((name, until?))).collect()
    }

    /// Returns all metrics; `refused` are the counts of refused signatures, by code, and `audit` is
    /// the state of the audit.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn scrape(
        &mut self,
        plane: &Plane,
        refused: BTreeMap<&'static str, u64>,
        audit: Option<AuditNow>,
    ) -> Result<String, PlaneError> {
        let report = plane.report()?;
        let latencies = plane.latencies(None)?;
        let background = plane.background()?;
        let store_health = plane.store_health()?;
        self.trend.follow(clock::unix_ms(), &report.volumes);
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
                node: plane.nodes().and_then(|nodes| nodes.home_name(report.id)),
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
            scrub: plane.scrub().map(|scrub| scrub_now(&scrub)),
            refused,
            audit,
            journal: plane.journal_now(),
            account: account(plane, &model),
            certificates: self.certificates(),
            clock_step_ms: plane.clock_step().map_or(0, |step| step.0),
            events: events(plane.feed()),
            cluster: plane.nodes().map(|nodes| cluster(&**nodes)),
            recording: plane.recording().map(|recording| RecordingNow {
                written_bytes: recording.written_bytes(),
                lost: recording.lost(),
            }),
        };
        drop(model);
        Ok(snapshot.encoded())
    }
}

fn cluster(nodes: &dyn Nodes) -> ClusterNow {
    let node = |view: NodeView| NodeNow {
        status: view.status,
        part_ppm: nodes.part_ppm(view.number),
        volumes: view.volumes,
        leads: view.leads,
        name: view.name,
    };
    let views = nodes.views().into_iter().filter(|view| view.state != State::Removed);
    let Counts { moves, takeovers, fences } = nodes.counts();
    let etcd = nodes.etcd();
    ClusterNow { nodes: views.map(node).collect(), moves, takeovers, fences, etcd }
}

fn scrub_now(scrub: &Scrub) -> ScrubNow {
    ScrubNow {
        is_running: scrub.state == ScrubState::Running,
        verified_bytes: scrub.verified_bytes,
        rotten_places: scrub.rotten_places,
    }
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

/// Returns what the account's volumes have, and its quotas.
fn account(plane: &Plane, model: &Model) -> AccountNow {
    let used = model.account_amounts(&plane.settings);
    let quotas = plane.settings.account_quotas.amounts();
    let [iops, throughput, gib] =
        [0, 1, 2].map(|index| AccountUse { used: used[index], quota: quotas[index] });
    let bytes = |gib: u64| gib.saturating_mul(GIB);
    let bytes = AccountUse { used: bytes(gib.used), quota: gib.quota.map(bytes) };
    AccountNow { iops, throughput, bytes }
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

#[cfg(test)]
mod tests {
    use crate::model::VolumeState;
    use crate::space::{CRITICAL_PERCENT, LOW_PERCENT};

    const RULES: &str = include_str!("../../../deploy/prometheus/evenkeel.rules.yml");
    const DASHBOARD: &str = include_str!("../../../deploy/grafana/evenkeel.json");

    /// Returns the quoted values of the label `state` in selectors of `evenkeel_volumes`.
    fn states(text: &str) -> Vec<String> {
        let text = text.replace("\\\"", "\"");
        let selectors = text.split("evenkeel_volumes{").skip(1);
        let labels = selectors.filter_map(|rest| rest.split('}').next());
        let values = labels.filter_map(|labels| labels.split_once("state=\"")?.1.split('"').next());
        values.map(str::to_owned).collect()
    }

    #[test]
    fn states_in_alerts_and_panels_are_those_of_volumes() {
        let known = [
            VolumeState::Creating,
            VolumeState::Available,
            VolumeState::InUse,
            VolumeState::Deleting,
            VolumeState::Error,
        ];
        let known = known.map(VolumeState::name);
        for text in [RULES, DASHBOARD] {
            let used = states(text);
            assert!(!used.is_empty());
            assert!(used.iter().all(|state| known.contains(&state.as_str())), "{used:?}");
        }
    }

    /// A threshold that repeats a limit of the server must be equal to it.
    #[test]
    fn alerts_of_low_space_repeat_the_limits_of_the_server() {
        for (name, percent) in
            [("EvenkeelSpaceLow", LOW_PERCENT), ("EvenkeelSpaceCritical", CRITICAL_PERCENT)]
        {
            let (_, rule) = RULES.split_once(&format!("- alert: {name}\n")).expect("it is there");
            let mut lines = rule.lines();
            let query = lines.find(|line| line.contains("evenkeel_store_free_bytes")).unwrap();
            let threshold = format!("< {}", percent as f64 / 100.0);
            assert!(query.ends_with(&threshold), "{name}: {threshold}");
        }
    }
}
