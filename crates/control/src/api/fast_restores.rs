//! EnableFastSnapshotRestores, DisableFastSnapshotRestores, DescribeFastSnapshotRestores. A volume
//! of a snapshot is as fast as any other at once, so fast restore is on as soon as it is asked for,
//! and its credits are counted for those who look at them.

use evenkeel_core::ids::SnapshotId;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Settings, Snapshot, UnixMs};

pub const ENABLE: Action =
    Action { name: "EnableFastSnapshotRestores", mutates: true, run: |call| set(call, true) };
pub const DISABLE: Action =
    Action { name: "DisableFastSnapshotRestores", mutates: true, run: |call| set(call, false) };
pub const DESCRIBE: Action =
    Action { name: "DescribeFastSnapshotRestores", mutates: false, run: describe };

const FILTERS: &[&str] =
    &["availability-zone", "availability-zone-id", "owner-id", "snapshot-id", "state"];
const REASON: &str = "Client.UserInitiated";

fn set(call: &mut Call<'_>, is_on: bool) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let zones = call.args.list("AvailabilityZone");
    let zone_ids = call.args.list("AvailabilityZoneId");
    let mut ids = call.args.snapshot_ids("SourceSnapshotId")?;
    call.args.done()?;
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Err(ApiError::missing("SourceSnapshotId"));
    }
    if zones.is_empty() && zone_ids.is_empty() {
        return Err(ApiError::missing("AvailabilityZone"));
    }
    let zone_id = view::zone_id(settings);
    let absent = zones.iter().find(|zone| **zone != settings.zone);
    if let Some(absent) = absent.or_else(|| zone_ids.iter().find(|id| **id != zone_id)) {
        return Err(ApiError::unknown_zone(absent));
    }
    let before: Vec<Option<UnixMs>> = {
        let model = call.plane.model();
        let since = |id: &SnapshotId| model.snapshots.get(id)?.fast_restore.map(|fast| fast.since);
        ids.iter().map(since).collect()
    };
    call.execute(&Command::SetFastRestore { ids: ids.clone(), is_on })?;
    let model = call.plane.model();
    let items = ids.iter().zip(before).map(|(&id, before)| {
        let snapshot = model.snapshots.get(&id);
        let now = snapshot.and_then(|snapshot| snapshot.fast_restore);
        let since = now.map(|fast| fast.since).or(before).unwrap_or(call.now);
        let state = snapshot.filter(|_| is_on).map_or("disabled", Snapshot::fast_restore_state);
        let mut fields = fields(settings, id, state, since);
        if !is_on {
            fields.push(view::time("disabledTime", call.now));
        }
        Element::list("item", fields)
    });
    Ok(vec![Element::list("successful", items), Element::new("unsuccessful")])
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let filters = call.args.filters(FILTERS)?;
    let page = call.args.page(5, 200)?;
    call.args.done()?;
    let model = call.plane.model();
    let wanted = model.fast_restored().filter(|it| filters.pass(|name| values(settings, it, name)));
    let (found, token) = page.cut(wanted, |snapshot| snapshot.id.to_string());
    let items = found.into_iter().filter_map(|snapshot| {
        let since = snapshot.fast_restore?.since;
        let state = snapshot.fast_restore_state();
        Some(Element::list("item", fields(settings, snapshot.id, state, since)))
    });
    Ok(view::paged("fastSnapshotRestoreSet", items.collect(), token))
}

fn fields(settings: &Settings, id: SnapshotId, state: &str, since: UnixMs) -> Vec<Element> {
    let mut fields = vec![
        Element::text("snapshotId", id),
        Element::text("availabilityZone", &settings.zone),
        Element::text("availabilityZoneId", view::zone_id(settings)),
        Element::text("state", state),
        Element::text("stateTransitionReason", REASON),
        Element::text("ownerId", &settings.account),
    ];
    let times: &[_] = match state {
        "enabling" => &["enablingTime"],
        _ => &["enablingTime", "optimizingTime", "enabledTime"],
    };
    fields.extend(times.iter().map(|name| view::time(name, since)));
    fields
}

fn values(settings: &Settings, snapshot: &Snapshot, filter: &str) -> Vec<String> {
    vec![match filter {
        "availability-zone" => settings.zone.clone(),
        "availability-zone-id" => view::zone_id(settings),
        "owner-id" => settings.account.clone(),
        "snapshot-id" => snapshot.id.to_string(),
        _ => snapshot.fast_restore_state().into(),
    }]
}
