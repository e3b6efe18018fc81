//! DescribeVolumeMetrics (not an EC2 action): returns counters of volumes since the server's start,
//! and the time of their requests by stage. Clients compute rates from two answers.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::latency::{Latencies, Latency, Stage};
use evenkeel_core::price::PriceList;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::pacing::Limit;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::VolumeReport;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Refusal, Volume};
use crate::plane::Plane;
use crate::reconcile;
use evenkeel_os::clock;

pub const ACTION: Action = Action { name: "DescribeVolumeMetrics", mutates: false, run };

/// Maximum number of volumes in one answer. Each volume that was used costs a call to the data
/// plane, and some 10 KiB.
const VOLUMES_MAX: usize = 500;

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = call.args.volume_ids("VolumeId")?;
    let page = call.args.page(1, VOLUMES_MAX)?.at_most(VOLUMES_MAX);
    call.args.done()?;
    let sampled = clock::unix_ms();
    // A copy, because the data plane must not be called while the model is locked.
    let (volumes, token) = {
        let model = call.plane.model();
        let is_absent = |id: &VolumeId| !model.volumes.contains_key(id);
        let absent: Vec<_> = ids.iter().copied().filter(is_absent).collect();
        if !absent.is_empty() {
            return Err(Refusal::VolumesNotFound(absent).into());
        }
        let (found, token) =
            page.cut(page.of(&model.volumes, &ids), |volume| volume.id.to_string());
        (found.into_iter().cloned().collect::<Vec<Volume>>(), token)
    };
    let reports = call.plane.report_of(volumes.iter().map(|volume| volume.id).collect())?;
    let mut items = Vec::with_capacity(volumes.len());
    for volume in &volumes {
        // A volume that is being created, or that cannot be opened, has no counters.
        let Some(report) = reports.get(&volume.id) else { continue };
        items.push(item(call.plane, volume, report, sampled)?);
    }
    Ok(view::paged("volumeMetricSet", items, token))
}

fn item(
    plane: &Plane,
    volume: &Volume,
    report: &VolumeReport,
    sampled: UnixMs,
) -> Result<Element, ApiError> {
    let node = plane.nodes().and_then(|nodes| nodes.home_name(volume.id));
    let is_used = report.bytes_read > 0 || report.bytes_written > 0;
    let latencies = if is_used { plane.latencies(Some(volume.id))? } else { vec![] };
    let latencies: Latencies =
        latencies.into_iter().next().map(|(_, latencies)| *latencies).unwrap_or_default();
    let pacing = reconcile::pacing(&plane.settings, volume);
    let limits = [
        limit("operations", pacing.operations, report.balances.operations),
        limit("bytes", pacing.bytes, report.balances.bytes),
    ];
    let counters = [
        Element::text("volumeId", volume.id),
        Element::text("volumeType", volume.spec.volume_type),
        Element::text("sampleTimeMs", sampled.0),
        Element::text("connections", report.connections),
        Element::text("queueLength", report.queued),
        Element::text("countedIos", report.operations),
        Element::text("readBytes", report.bytes_read),
        Element::text("writeBytes", report.bytes_written),
        exceeded(&report.exceeded),
        Element::text("contractSeconds", report.contract.seconds),
        Element::text("contractMissedSeconds", report.contract.missed),
        requests("reads", &latencies.reads),
        requests("writes", &latencies.writes),
    ];
    let price = PriceList::newest().monthly_micro_usd(&volume.spec);
    let price = price.map(|price| Element::text("monthlyMicroUsd", price));
    let node = node.map(|node| Element::text("nodeName", node));
    let present = limits.into_iter().flatten().chain(price).chain(node);
    Ok(Element::list("item", counters.into_iter().chain(present)))
}

/// Returns one limit, with its credits if it has some.
fn limit(name: &str, limit: Option<Limit>, balance: Option<u64>) -> Option<Element> {
    let limit = limit?;
    let mut fields = vec![Element::text("perSecond", limit.per_second)];
    if let Some(credit) = limit.credit {
        fields.push(Element::text("refillPerSecond", credit.refill_per_second));
        fields.push(Element::text("capacity", credit.capacity));
        fields.extend(balance.map(|balance| Element::text("balance", balance)));
    }
    Some(Element::list(name, fields))
}

/// Returns the time for which the volume was delayed, in nanoseconds, by cause.
fn exceeded(exceeded: &Exceeded) -> Element {
    let causes = [
        ("operations", exceeded.operations_ns),
        ("bytes", exceeded.bytes_ns),
        ("guard", exceeded.guard_ns),
        ("instanceOperations", exceeded.instance_operations_ns),
        ("instanceBytes", exceeded.instance_bytes_ns),
        ("device", exceeded.device_ns),
    ];
    Element::list("exceededNs", causes.map(|(cause, ns)| Element::text(cause, ns)))
}

/// Returns the requests of one kind: their number, their durations, and their time by stage.
fn requests(name: &str, latency: &Latency) -> Element {
    let stages = Stage::ALL.into_iter().filter(|stage| latency.spent(*stage).ns > 0).map(|stage| {
        let name = stage.name();
        let spent = latency.spent(stage).ns;
        Element::list("item", [Element::text("stage", name), Element::text("spentNs", spent)])
    });
    let buckets = latency.total.buckets().map(|(start, count)| {
        let start = Element::text("startNs", start.ns);
        let count = Element::text("count", count);
        Element::list("item", [start, count])
    });
    Element::list(
        name,
        [
            Element::text("count", latency.total.count()),
            Element::text("totalNs", latency.total.sum().ns),
            Element::list("stageSet", stages),
            Element::list("latencySet", buckets),
        ],
    )
}
