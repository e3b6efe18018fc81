//! ModifySnapshotTier, RestoreSnapshotTier, DescribeSnapshotTierStatus. The tier is a state, and
//! the bytes stay where they are, so each operation is completed at once.

use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::filter::Values;
use super::{Action, Call, view};
use crate::model::tiers::RESTORE_DAYS_MAX;
use crate::model::{Command, Settings, Snapshot, TierOperation};

pub const ARCHIVE: Action = Action { name: "ModifySnapshotTier", mutates: true, run: archive };
pub const RESTORE: Action = Action { name: "RestoreSnapshotTier", mutates: true, run: restore };
pub const DESCRIBE: Action =
    Action { name: "DescribeSnapshotTierStatus", mutates: false, run: describe };

const FILTERS: &[&str] = &["last-tiering-operation", "snapshot-id", "volume-id"];

fn archive(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    let tier = call.args.text("StorageTier");
    call.args.done()?;
    if let Some(other) = tier.filter(|tier| tier != "archive") {
        return Err(ApiError::value(format!(
            "Value ({other}) for parameter storageTier is invalid. Must be archive; \
             RestoreSnapshotTier is the way back."
        )));
    }
    call.execute(&Command::ArchiveSnapshot { id })?;
    let model = call.plane.model();
    let began = model.snapshot(id)?.tiering.map_or(call.now, |tiering| tiering.began);
    Ok(vec![Element::text("snapshotId", id), view::time("tieringStartTime", began)])
}

fn restore(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    let days = wanted_days(&mut call.args)?;
    call.args.done()?;
    call.execute(&Command::RestoreTier { id, days })?;
    let model = call.plane.model();
    let began = model.snapshot(id)?.tiering.map_or(call.now, |tiering| tiering.began);
    let mut fields = vec![Element::text("snapshotId", id), view::time("restoreStartTime", began)];
    fields.extend(days.map(|days| Element::text("restoreDuration", days)));
    fields.push(Element::text("isPermanentRestore", days.is_none()));
    Ok(fields)
}

/// Returns the days of a temporary restore; `None` for a permanent one.
fn wanted_days(args: &mut Args) -> Result<Option<u32>, ApiError> {
    let days: Option<u32> = args.number("TemporaryRestoreDays")?;
    match (days, args.boolean("PermanentRestore")?.unwrap_or(false)) {
        (Some(_), true) => Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameters TemporaryRestoreDays and PermanentRestore cannot be used together",
        )),
        (None, true) => Ok(None),
        (None, false) => Err(ApiError::missing("TemporaryRestoreDays")),
        (Some(days), false) if (1..=RESTORE_DAYS_MAX).contains(&days) => Ok(Some(days)),
        (Some(days), false) => Err(ApiError::value(format!(
            "Value ({days}) for parameter temporaryRestoreDays is invalid. Must be 1 to \
             {RESTORE_DAYS_MAX} days."
        ))),
    }
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let now = call.now;
    let filters = call.args.filters(FILTERS)?;
    let page = call.args.page(5, 1_000)?;
    call.args.done()?;
    let settings = &call.plane.settings;
    let model = call.plane.model();
    let wanted = page
        .of(&model.snapshots, &[])
        .filter(|snapshot| snapshot.is_shown())
        .filter(|snapshot| filters.pass(|name| values(snapshot, now, name)));
    let (found, token) = page.cut(wanted, |snapshot| snapshot.id.to_string());
    let item = |snapshot: &Snapshot| Element::list("item", fields(settings, snapshot, now));
    Ok(view::paged("snapshotTierStatusSet", found.into_iter().map(item).collect(), token))
}

/// Returns the state of the last operation in the EC2 API; `None` if the snapshot was never
/// archived.
fn last_operation(snapshot: &Snapshot, now: UnixMs) -> Option<&'static str> {
    Some(match snapshot.tiering_at(now)?.last {
        TierOperation::Archive => "archival-completed",
        TierOperation::TemporaryRestore { .. } => "temporary-restore-completed",
        TierOperation::PermanentRestore => "permanent-restore-completed",
    })
}

fn fields(settings: &Settings, snapshot: &Snapshot, now: UnixMs) -> Vec<Element> {
    let mut fields = vec![
        Element::text("snapshotId", snapshot.id),
        Element::text("volumeId", snapshot.volume),
        Element::text("status", snapshot.state()),
        Element::text("ownerId", &settings.account),
        Element::text("storageTier", snapshot.tier(now)),
    ];
    if let Some(tiering) = snapshot.tiering_at(now) {
        fields.push(view::time("lastTieringStartTime", tiering.began));
        fields.push(Element::text("lastTieringProgress", 100));
        let status = last_operation(snapshot, now);
        fields.extend(status.map(|status| Element::text("lastTieringOperationStatus", status)));
        fields.push(view::time("archivalCompleteTime", tiering.archived));
        let until = snapshot.restored_until(now);
        fields.extend(until.map(|until| view::time("restoreExpiryTime", until)));
    }
    fields.extend(view::tag_set(&snapshot.tags));
    fields
}

fn values<'a>(snapshot: &'a Snapshot, now: UnixMs, filter: &str) -> Values<'a> {
    match filter {
        "snapshot-id" => Values::of(snapshot.id.to_string()),
        "volume-id" => Values::of(snapshot.volume.to_string()),
        _ => Values::One(last_operation(snapshot, now).map(Into::into)),
    }
}
