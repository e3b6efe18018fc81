//! DescribeVolumeStatus: returns whether volumes are usable, in the form of EC2's status checks.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::VolumeReport;
use evenkeel_wire::aws::sigv4::sha256_hex;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::health::{Ailments, Performance};
use crate::model::{Model, Volume, VolumeState};
use crate::plane::Plane;

pub const ACTION: Action = Action { name: "DescribeVolumeStatus", mutates: false, run };

const NOT_APPLICABLE: &str = "not-applicable";
const NO_DATA: &str = "insufficient-data";
/// The event of a volume whose data may differ from the data written.
const INCONSISTENT: &str = "potential-data-inconsistency";

/// The action for a volume that is not served because its data is damaged.
const ENABLE_IO: (&str, &str) = ("enable-volume-io", "Enable volume I/O");
const NOT_SERVED: &str = "The volume cannot be opened. If it is damaged, EnableVolumeIO serves \
                          what can be read of it.";

/// Filters on ends of events match no volume, because there are none.
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
    page.refuse_beside(&ids, "volumes")?;
    let asked: Vec<VolumeId> = {
        let model = call.plane.model();
        model.check_volumes(&ids)?;
        let shown = page.of(&model.volumes, &ids).filter(|volume| volume.is_shown());
        let shown = shown.map(|volume| volume.id);
        if filters.is_empty() {
            page.cut(shown, VolumeId::to_string).0
        } else {
            // It is not known yet which of them are on the page.
            shown.collect()
        }
    };
    // If the data plane does not answer, the status is `insufficient-data`.
    let reports = call.plane.report_of(asked).unwrap_or_default();
    let plane = call.plane;
    let model = plane.model();
    model.check_volumes(&ids)?;
    let health = plane.health();
    let is_fetching = |volume: &Volume| {
        plane.feel().is_some_and(|feel| feel.percent_fetched(volume.id).is_some())
    };
    let status = |volume: &Volume| {
        let report = reports.get(&volume.id);
        Status::of(volume, is_fetching(volume), report, health.of(volume.id))
    };
    let wanted = page
        .of(&model.volumes, &ids)
        .filter(|volume| volume.is_shown())
        .map(|volume| (volume, status(volume)))
        .filter(|(volume, status)| filters.pass(|name| values(volume, status, name)));
    let (found, token) = page.cut(wanted, |(volume, _)| volume.id.to_string());
    let items = found.iter().map(|(volume, status)| item(plane, &model, volume, status)).collect();
    Ok(view::paged("volumeStatusSet", items, token))
}

/// The status of a volume in the terms of EC2's checks.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Status {
    /// `ok`, `warning`, `impaired`, `insufficient-data`.
    status: &'static str,
    /// Whether the volume can be read and written: `passed`, `failed`, `insufficient-data`.
    io_enabled: &'static str,
    /// Its performance, in EC2's words.
    io_performance: &'static str,
    /// Whether it has the content of its origin: `completed`, `initializing`; `None` for a volume
    /// that was created empty.
    initialization: Option<&'static str>,
    /// Its present problems.
    events: Vec<StatusEvent>,
}

/// A problem of a volume since a point in time.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StatusEvent {
    kind: String,
    description: &'static str,
    /// `None` if the time is unknown.
    since: Option<UnixMs>,
}

impl Status {
    /// Returns the status of a volume, by the data plane's report if there is one. `is_fetching`
    /// says whether blocks of it are still in its snapshot only.
    fn of(
        volume: &Volume,
        is_fetching: bool,
        report: Option<&VolumeReport>,
        ailments: Ailments,
    ) -> Self {
        let begins = volume.snapshot.is_some() || volume.source.is_some();
        let is_incomplete = is_fetching || volume.state() == VolumeState::Creating;
        let initialization =
            begins.then_some(if is_incomplete { "initializing" } else { "completed" });
        let status = |status, io_enabled, io_performance, events| Self {
            status,
            io_enabled,
            io_performance,
            initialization,
            events,
        };
        let report = match (volume.state(), report) {
            (VolumeState::Error, _) => {
                let kind = INCONSISTENT.to_owned();
                let event = StatusEvent { kind, description: NOT_SERVED, since: None };
                return status("impaired", "failed", NOT_APPLICABLE, vec![event]);
            }
            (VolumeState::Creating | VolumeState::Deleting, _) | (_, None) => {
                return status("insufficient-data", "insufficient-data", NO_DATA, vec![]);
            }
            (VolumeState::Available | VolumeState::InUse, Some(report)) => report,
        };
        // Acknowledged writes may be lost, and flushes and writes fail until the volume is attached
        // again; or some of its data is lost, and reading that is an error.
        let is_failed = report.errors.flush_failed || report.errors.is_rotten;
        let performance = ailments.performance.map(|(it, _)| it).unwrap_or_default();
        let words = match performance {
            Performance::Normal => "ok",
            Performance::Degraded | Performance::SeverelyDegraded => "warning",
            Performance::Stalled => "impaired",
        };
        status(
            if is_failed { "impaired" } else { words },
            if is_failed { "failed" } else { "passed" },
            match performance {
                Performance::Normal if !is_judged(volume) => NOT_APPLICABLE,
                judged => judged.name(),
            },
            events(ailments),
        )
    }

    /// Returns the checks, each with its result.
    fn details(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let always = [("io-enabled", self.io_enabled), ("io-performance", self.io_performance)];
        always.into_iter().chain(
            self.initialization.map(|initialization| ("initialization-state", initialization)),
        )
    }
}

/// Returns whether EC2 judges the performance of such a volume.
fn is_judged(volume: &Volume) -> bool {
    let has_check =
        matches!(volume.spec.volume_type, VolumeType::Io1 | VolumeType::Io2 | VolumeType::Gp3);
    has_check && !volume.attachments.is_empty()
}

fn events(ailments: Ailments) -> Vec<StatusEvent> {
    let Ailments { performance, flush_failed, rotten } = ailments;
    let lost = |description| {
        move |since| StatusEvent { kind: INCONSISTENT.to_owned(), description, since: Some(since) }
    };
    let slow = |(performance, since): (Performance, UnixMs)| StatusEvent {
        kind: format!("io-performance:{}", performance.name()),
        description: match performance {
            Performance::Normal => "Normal",
            Performance::Degraded => "Degraded",
            Performance::SeverelyDegraded => "Severely Degraded",
            Performance::Stalled => "Stalled",
        },
        since: Some(since),
    };
    let flush = "A flush failed. Detach the volume from all instances and attach it again.";
    let data = "Data is damaged. Write it anew, or restore the volume from a snapshot.";
    let all = [flush_failed.map(lost(flush)), rotten.map(lost(data)), performance.map(slow)];
    all.into_iter().flatten().collect()
}

impl StatusEvent {
    /// Returns an id that stays the same while the event lasts.
    fn id(&self, volume: VolumeId) -> String {
        let Self { kind, description, since } = self;
        let since = since.map_or(0, |since| since.0);
        let digest = sha256_hex(format!("{volume}\n{kind}\n{description}\n{since}").as_bytes());
        format!("evol-{}", &digest[..17])
    }

    fn item(&self, volume: VolumeId) -> Element {
        let fields = [
            Element::text("eventId", self.id(volume)),
            Element::text("eventType", &self.kind),
            Element::text("description", self.description),
        ];
        let since = self.since.map(|since| view::time("notBefore", since));
        Element::list("item", fields.into_iter().chain(since))
    }

    /// Returns whether the volume is not served, and EnableVolumeIO may serve it.
    fn can_enable_io(&self) -> bool {
        self.description == NOT_SERVED
    }

    fn action(&self, volume: VolumeId) -> Option<Element> {
        let fields = [
            Element::text("code", ENABLE_IO.0),
            Element::text("description", ENABLE_IO.1),
            Element::text("eventId", self.id(volume)),
            Element::text("eventType", &self.kind),
        ];
        self.can_enable_io().then(|| Element::list("item", fields))
    }
}

/// Returns the progress of a volume's initialization; `None` if it was created empty.
fn initialization(
    plane: &Plane,
    model: &Model,
    volume: &Volume,
    status: &Status,
) -> Option<Element> {
    let state = status.initialization?;
    let left = plane.feel().and_then(|feel| feel.seconds_left(volume.id, plane.now()));
    let method = match volume.source {
        Some(_) => "volume-copy",
        None if left.is_some() => "provisioned-rate",
        None => "default",
    };
    let made = volume.through.and_then(|id| model.snapshots.get(&id));
    let is_creating = volume.state() == VolumeState::Creating;
    let fetched = plane.feel().filter(|_| !is_creating);
    let fetched = fetched.and_then(|feel| feel.percent_fetched(volume.id));
    let percent = match (state, fetched) {
        ("completed", _) => 100,
        (_, Some(percent)) => percent,
        _ => made.map_or(0, |snapshot| plane.percent(snapshot)).min(99),
    };
    let mut fields =
        vec![Element::text("initializationType", method), Element::text("progress", percent)];
    fields.extend(left.map(|left| Element::text("estimatedTimeToCompleteInSeconds", left)));
    Some(Element::list("initializationStatusDetails", fields))
}

fn item(plane: &Plane, model: &Model, volume: &Volume, status: &Status) -> Element {
    let details = status.details().map(|(name, result)| {
        Element::list("item", [Element::text("name", name), Element::text("status", result)])
    });
    let actions = status.events.iter().filter_map(|event| event.action(volume.id));
    let mut fields = vec![Element::text("volumeId", volume.id)];
    fields.extend(view::zone(&plane.settings, &volume.zone));
    fields.extend([
        Element::list(
            "volumeStatus",
            [Element::text("status", status.status), Element::list("details", details)],
        ),
        Element::list("eventsSet", status.events.iter().map(|event| event.item(volume.id))),
        Element::list("actionsSet", actions),
    ]);
    fields.extend(initialization(plane, model, volume, status));
    Element::list("item", fields)
}

fn values(volume: &Volume, status: &Status, filter: &str) -> Vec<String> {
    let of_events = |value: fn(&StatusEvent) -> String| status.events.iter().map(value).collect();
    let with_action = || status.events.iter().filter(|event| event.can_enable_io());
    match filter {
        "action.code" => with_action().map(|_| ENABLE_IO.0.to_owned()).collect(),
        "action.description" => with_action().map(|_| ENABLE_IO.1.to_owned()).collect(),
        "action.event-id" => with_action().map(|event| event.id(volume.id)).collect(),
        "availability-zone" => vec![volume.zone.clone()],
        "event.description" => of_events(|event| event.description.into()),
        "event.event-id" => status.events.iter().map(|event| event.id(volume.id)).collect(),
        "event.event-type" => of_events(|event| event.kind.clone()),
        "event.not-before" => {
            let known = status.events.iter().filter_map(|event| event.since);
            known.map(|since| timestamp::extended(since.0)).collect()
        }
        "volume-status.status" => vec![status.status.into()],
        "volume-status.details-name" => status.details().map(|(name, _)| name.into()).collect(),
        "volume-status.details-status" => {
            status.details().map(|(_, result)| result.into()).collect()
        }
        _ => vec![],
    }
}
