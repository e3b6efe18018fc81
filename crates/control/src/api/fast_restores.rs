//! EnableFastSnapshotRestores, DisableFastSnapshotRestores, DescribeFastSnapshotRestores. A volume
//! of a snapshot is as fast as any other at once, so fast restore is on as soon as it is requested,
//! and its credits are counted only for clients that read them.

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Settings, Snapshot};

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
    let absent = zones.iter().find(|zone| !settings.has_zone(zone));
    let absent = absent.or_else(|| zone_ids.iter().find(|id| settings.zone_with_id(id).is_none()));
    if let Some(absent) = absent {
        return Err(ApiError::unknown_zone(absent));
    }
    let is_named = |zone: &&String| {
        let has_id = |id: &String| settings.zone_with_id(id) == Some(zone.as_str());
        zones.contains(zone) || zone_ids.iter().any(has_id)
    };
    let named: Vec<&String> = settings.zones.iter().filter(is_named).collect();
    let before: Vec<Option<UnixMs>> = {
        let model = call.plane.model();
        let since = |id: &SnapshotId| model.snapshots.get(id)?.fast_restore.map(|fast| fast.since);
        ids.iter().map(since).collect()
    };
    call.execute(&Command::SetFastRestore { ids: ids.clone(), is_on })?;
    let model = call.plane.model();
    let items = ids.iter().zip(before).flat_map(|(&id, before)| {
        let snapshot = model.snapshots.get(&id);
        let now = snapshot.and_then(|snapshot| snapshot.fast_restore);
        let since = now.map(|fast| fast.since).or(before).unwrap_or(call.now);
        let state = snapshot.filter(|_| is_on).map_or("disabled", Snapshot::fast_restore_state);
        let item = |zone: &&String| {
            let mut fields = fields(settings, zone, id, (state, since));
            if !is_on {
                fields.push(view::time("disabledTime", call.now));
            }
            Element::list("item", fields)
        };
        named.iter().map(item).collect::<Vec<_>>()
    });
    Ok(vec![Element::list("successful", items), Element::new("unsuccessful")])
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let filters = call.args.filters(FILTERS)?;
    let page = call.args.page(5, 200)?;
    call.args.done()?;
    let model = call.plane.model();
    let all = model
        .fast_restored()
        .flat_map(|it| settings.zones.iter().zip(0..).map(move |zone| (it, zone)));
    let wanted =
        all.filter(|(it, (zone, _))| filters.pass(|name| values(settings, zone, it, name)));
    let key = |(snapshot, (_, number)): &(&Snapshot, (&String, u32))| {
        format!("{} {number:02}", snapshot.id)
    };
    let (found, token) = page.cut(wanted, key);
    let items = found.into_iter().filter_map(|(snapshot, (zone, _))| {
        let now = (snapshot.fast_restore_state(), snapshot.fast_restore?.since);
        Some(Element::list("item", fields(settings, zone, snapshot.id, now)))
    });
    Ok(view::paged("fastSnapshotRestoreSet", items.collect(), token))
}

/// Returns the state of fast restore of a snapshot in a zone, and its beginning. It belongs to the
/// snapshot, so it is the same in all zones.
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
