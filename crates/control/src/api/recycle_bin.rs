//! The recycle bin: ListVolumesInRecycleBin, RestoreVolumeFromRecycleBin,
//! ListSnapshotsInRecycleBin, RestoreSnapshotFromRecycleBin; and PurgeVolume and PurgeSnapshot,
//! which EC2 does not have: they delete an object in the bin before its time.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Phase, Refusal, Settings, Snapshot, SnapshotPhase, Volume};

pub const LIST_VOLUMES: Action =
    Action { name: "ListVolumesInRecycleBin", mutates: false, run: list_volumes };
pub const RESTORE_VOLUME: Action =
    Action { name: "RestoreVolumeFromRecycleBin", mutates: true, run: restore_volume };
pub const LIST_SNAPSHOTS: Action =
    Action { name: "ListSnapshotsInRecycleBin", mutates: false, run: list_snapshots };
pub const RESTORE_SNAPSHOT: Action =
    Action { name: "RestoreSnapshotFromRecycleBin", mutates: true, run: restore_snapshot };

pub const PURGE_VOLUME: Action = Action { name: "PurgeVolume", mutates: true, run: purge_volume };
pub const PURGE_SNAPSHOT: Action =
    Action { name: "PurgeSnapshot", mutates: true, run: purge_snapshot };

fn list_volumes(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = call.args.volume_ids("VolumeId")?;
    let page = call.args.page(5, 500)?;
    call.args.done()?;
    let settings = &call.plane.settings;
    let now = call.plane.now();
    let model = call.plane.model();
    let is_listed =
        |id: &VolumeId| model.volumes.get(id).is_some_and(|volume| volume.is_restorable(now));
    let absent: Vec<_> = ids.iter().copied().filter(|id| !is_listed(id)).collect();
    if !absent.is_empty() {
        return Err(Refusal::VolumesNotFound(absent).into());
    }
    let all = model.volumes.values().filter(|volume| volume.is_restorable(now));
    let wanted = all.filter(|volume| ids.is_empty() || ids.contains(&volume.id));
    let (found, token) = page.cut(wanted, |volume| volume.id.to_string());
    let items = found.into_iter().map(|it| Element::list("item", volume(settings, it)));
    Ok(view::paged("volumeSet", items.collect(), token))
}

fn volume(settings: &Settings, volume: &Volume) -> Vec<Element> {
    let spec = &volume.spec;
    let mut fields = vec![
        Element::text("volumeId", volume.id),
        Element::text("volumeType", spec.volume_type),
        Element::text("state", "available"),
        Element::text("size", spec.size_gib),
    ];
    fields.extend(view::zone(settings, &volume.zone));
    fields.push(view::time("createTime", volume.created));
    fields.extend(view::limits(spec));
    fields.extend(volume.source.map(|source| Element::text("sourceVolumeId", source)));
    fields.extend(volume.snapshot.map(|snapshot| Element::text("snapshotId", snapshot)));
    if let Phase::Binned { entered, until } = volume.phase {
        fields.extend(stay(entered, until));
    }
    fields
}

fn stay(entered: UnixMs, until: UnixMs) -> [Element; 2] {
    [view::time("recycleBinEnterTime", entered), view::time("recycleBinExitTime", until)]
}

fn restore_volume(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    call.args.done()?;
    call.execute(&Command::RestoreVolume { id, error: None })?;
    Ok(view::success())
}

fn purge_volume(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    call.args.done()?;
    call.plane.purge_volume(id, call.dry_run)?;
    Ok(view::success())
}

fn purge_snapshot(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    call.args.done()?;
    call.execute(&Command::PurgeSnapshot { id })?;
    Ok(view::success())
}

fn list_snapshots(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = call.args.snapshot_ids("SnapshotId")?;
    let page = call.args.page(5, 1_000)?;
    call.args.done()?;
    let now = call.plane.now();
    let model = call.plane.model();
    let is_listed = |id: &SnapshotId| {
        model.snapshots.get(id).is_some_and(|snapshot| snapshot.is_restorable(now))
    };
    let absent: Vec<_> = ids.iter().copied().filter(|id| !is_listed(id)).collect();
    if !absent.is_empty() {
        return Err(Refusal::SnapshotsNotFound(absent).into());
    }
    let all = model.snapshots.values().filter(|snapshot| snapshot.is_restorable(now));
    let wanted = all.filter(|snapshot| ids.is_empty() || ids.contains(&snapshot.id));
    let (found, token) = page.cut(wanted, |snapshot| snapshot.id.to_string());
    let items = found.into_iter().map(|it| Element::list("item", snapshot(it)));
    Ok(view::paged("snapshotSet", items.collect(), token))
}

fn snapshot(snapshot: &Snapshot) -> Vec<Element> {
    let mut fields = vec![
        Element::text("snapshotId", snapshot.id),
        Element::text("volumeId", snapshot.volume),
        Element::text("description", &snapshot.description),
    ];
    if let SnapshotPhase::Binned { entered, until, .. } = snapshot.phase {
        fields.extend(stay(entered, until));
    }
    fields
}

fn restore_snapshot(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    call.args.done()?;
    call.execute(&Command::RestoreSnapshot { id })?;
    let model = call.plane.model();
    Ok(view::snapshot_fields(call.plane, model.snapshot(id)?, "status"))
}
