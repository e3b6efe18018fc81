//! DescribeVolumeStatus: returns whether volumes are usable, in the form of EC2's status checks.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::VolumeReport;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Settings, Volume, VolumeState};

pub const ACTION: Action = Action { name: "DescribeVolumeStatus", mutates: false, run };

/// Filters on actions and events match no volume, because there are neither.
const FILTERS: &[&str] = &[
    "action.code",
    "action.description",
    "action.event-id",
    "availability-zone",
    "event.description",
    "event.event-id",
    "event.event-type",
    "event.not-after",
    "event.not-before",
    "volume-status.details-name",
    "volume-status.details-status",
    "volume-status.status",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let ids = args.volume_ids("VolumeId")?;
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 1_000)?;
    args.boolean("IncludeManagedResources")?;
    args.done()?;
    if !ids.is_empty() && page.is_given() {
        return Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameter volumes cannot be used with the parameter maxResults",
        ));
    }
    call.plane.model().check_volumes(&ids)?;
    // If the data plane does not answer, the status says so.
    let reports = call.plane.report().unwrap_or_default().volumes.into_iter();
    let reports: BTreeMap<VolumeId, VolumeReport> = reports.map(|r| (r.id, r)).collect();
    let settings = &call.plane.settings;
    let model = call.plane.model();
    model.check_volumes(&ids)?;
    let wanted = model
        .volumes
        .values()
        .filter(|volume| volume.is_shown())
        .filter(|volume| ids.is_empty() || ids.contains(&volume.id))
        .map(|volume| (volume, Status::of(volume, reports.get(&volume.id))))
        .filter(|(volume, status)| filters.pass(|name| values(volume, status, name)));
    let (found, token) = page.cut(wanted, |(volume, _)| volume.id.to_string());
    let items = found.iter().map(|(volume, status)| item(settings, volume, status)).collect();
    Ok(view::paged("volumeStatusSet", items, token))
}

/// The status of a volume in the terms of EC2's checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Status {
    /// `ok`, `impaired`, `insufficient-data`.
    status: &'static str,
    /// Whether the volume can be read and written: `passed`, `failed`, `insufficient-data`.
    io_enabled: &'static str,
}

impl Status {
    const OK: Self = Self { status: "ok", io_enabled: "passed" };
    const IMPAIRED: Self = Self { status: "impaired", io_enabled: "failed" };
    const UNKNOWN: Self = Self { status: "insufficient-data", io_enabled: "insufficient-data" };

    /// The status of a volume, by the data plane's report if there is one.
    fn of(volume: &Volume, report: Option<&VolumeReport>) -> Self {
        match (volume.state(), report) {
            (VolumeState::Error, _) => Self::IMPAIRED,
            (VolumeState::Creating | VolumeState::Deleting, _) | (_, None) => Self::UNKNOWN,
            // Acknowledged writes may be lost, and every flush fails until the volume is attached
            // again.
            (_, Some(report)) if report.errors.flush_failed => Self::IMPAIRED,
            // Some of the volume's data is lost: reading it is an error.
            (_, Some(report)) if report.errors.is_rotten => Self::IMPAIRED,
            (VolumeState::Available | VolumeState::InUse, Some(_)) => Self::OK,
        }
    }

    /// The checks, each with its result. The volume's performance is not among them;
    /// DescribeVolumeMetrics reports it.
    fn details(&self) -> [(&'static str, &'static str); 2] {
        [("io-enabled", self.io_enabled), ("io-performance", "not-applicable")]
    }
}

fn item(settings: &Settings, volume: &Volume, status: &Status) -> Element {
    let details = status.details().map(|(name, result)| {
        Element::list("item", [Element::text("name", name), Element::text("status", result)])
    });
    Element::list(
        "item",
        [
            Element::text("volumeId", volume.id),
            Element::text("availabilityZone", &volume.zone),
            Element::text("availabilityZoneId", view::zone_id(settings)),
            Element::list(
                "volumeStatus",
                [Element::text("status", status.status), Element::list("details", details)],
            ),
            Element::new("eventsSet"),
            Element::new("actionsSet"),
        ],
    )
}

fn values(volume: &Volume, status: &Status, filter: &str) -> Vec<String> {
    match filter {
        "availability-zone" => vec![volume.zone.clone()],
        "volume-status.status" => vec![status.status.into()],
        "volume-status.details-name" => status.details().map(|(name, _)| name.into()).into(),
        "volume-status.details-status" => status.details().map(|(_, result)| result.into()).into(),
        _ => vec![],
    }
}
