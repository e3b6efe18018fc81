//! EnableFastSnapshotRestores, DisableFastSnapshotRestores, DescribeFastSnapshotRestores. A volume
//! of a snapshot is as fast as any other at once, so fast restore is on as soon as it is requested,
//! and its credits are counted only for clients that read them. It is on or off for each pair of a
//! snapshot and a zone, as on EC2.

use std::collections::BTreeMap;

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, FastRestore, Model, Settings, Snapshot};

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
    let names = call.args.list("AvailabilityZone");
    let zone_ids = call.args.list("AvailabilityZoneId");
    let mut ids = call.args.snapshot_ids("SourceSnapshotId")?;
    call.args.done()?;
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() {
        return Err(ApiError::missing("SourceSnapshotId"));
    }
    if names.is_empty() && zone_ids.is_empty() {
        return Err(ApiError::missing("AvailabilityZone"));
    }
    if !names.is_empty() && !zone_ids.is_empty() {
        let text = "The parameters AvailabilityZone and AvailabilityZoneId cannot be used together";
        return Err(ApiError::new("InvalidParameterCombination", text));
    }
    let before = since(&call.plane.model(), &ids);
    // A zone that has been removed from the setting may still have fast restore.
    let is_left = |zone: &str| !is_on && before.keys().any(|(_, known)| known == zone);
    let mut zones = Vec::new();
    for name in names {
        if !settings.has_zone(&name) && !is_left(&name) {
            return Err(ApiError::unknown_zone(&name));
        }
        zones.push(name);
    }
    for id in &zone_ids {
        let zone = settings.zone_with_id(id).ok_or_else(|| ApiError::unknown_zone(id))?;
        zones.push(zone.to_owned());
    }
    zones.sort_unstable();
    zones.dedup();
    call.execute(&Command::SetFastRestore { ids: ids.clone(), zones: zones.clone(), is_on })?;
    let model = call.plane.model();
    let after = since(&model, &ids);
    let pairs = ids.iter().flat_map(|&id| zones.iter().map(move |zone| (id, zone.clone())));
    let items = pairs.map(|pair| {
        let since = after.get(&pair).or_else(|| before.get(&pair)).copied().unwrap_or(call.now);
        let (id, zone) = pair;
        let snapshot = model.snapshots.get(&id);
        let state = snapshot.filter(|_| is_on).map_or("disabled", Snapshot::fast_restore_state);
        let mut fields = fields(settings, &zone, id, (state, since));
        if !is_on {
            fields.push(view::time("disabledTime", call.now));
        }
        Element::list("item", fields)
    });
    Ok(vec![Element::list("successful", items), Element::new("unsuccessful")])
}

/// Returns when each fast restore of these snapshots was turned on, by snapshot and zone.
fn since(model: &Model, ids: &[SnapshotId]) -> BTreeMap<(SnapshotId, String), UnixMs> {
    let snapshots = ids.iter().filter_map(|id| model.snapshots.get(id));
    let pairs = snapshots.flat_map(|snapshot| {
        let zones = snapshot.fast_restores.iter();
        zones.map(|(zone, fast)| ((snapshot.id, zone.clone()), fast.since))
    });
    pairs.collect()
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let filters = call.args.filters(FILTERS)?;
    let page = call.args.page(5, 200)?;
    call.args.done()?;
    let model = call.plane.model();
    let all = model
        .fast_restored()
        .flat_map(|snapshot| snapshot.fast_restores.iter().map(move |pair| (snapshot, pair)));
    let wanted = all.filter(|(snapshot, (zone, _))| {
        filters.pass(|name| values(settings, zone, snapshot, name))
    });
    let key = |(snapshot, (zone, _)): &(&Snapshot, (&String, &FastRestore))| {
        format!("{} {zone}", snapshot.id)
    };
    let (found, token) = page.cut(wanted, key);
    let items = found.into_iter().map(|(snapshot, (zone, fast))| {
        let now = (snapshot.fast_restore_state(), fast.since);
        Element::list("item", fields(settings, zone, snapshot.id, now))
    });
    Ok(view::paged("fastSnapshotRestoreSet", items.collect(), token))
}

/// Returns the state of fast restore of a snapshot in a zone, and its beginning.
fn fields(
    settings: &Settings,
    zone: &str,
    id: SnapshotId,
    (state, since): (&str, UnixMs),
) -> Vec<Element> {
    let mut fields = vec![Element::text("snapshotId", id)];
    fields.extend(view::zone(settings, zone));
    fields.extend([
        Element::text("state", state),
        Element::text("stateTransitionReason", REASON),
        Element::text("ownerId", &settings.account),
    ]);
    let times: &[_] = match state {
        "enabling" => &["enablingTime"],
        _ => &["enablingTime", "optimizingTime", "enabledTime"],
    };
    fields.extend(times.iter().map(|name| view::time(name, since)));
    fields
}

fn values(settings: &Settings, zone: &str, snapshot: &Snapshot, filter: &str) -> Vec<String> {
    vec![match filter {
        "availability-zone" => zone.to_owned(),
        "availability-zone-id" => settings.zone_id(zone).unwrap_or_default(),
        "owner-id" => settings.account.clone(),
        "snapshot-id" => snapshot.id.to_string(),
        _ => snapshot.fast_restore_state().into(),
    }]
}
