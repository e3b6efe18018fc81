//! DescribeVolumesModifications: returns the latest modification of each volume.

use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Modification;

pub const ACTION: Action = Action { name: "DescribeVolumesModifications", mutates: false, run };

const FILTERS: &[&str] = &[
    "modification-state",
    "original-iops",
    "original-multi-attach-enabled",
    "original-size",
    "original-throughput",
    "original-volume-type",
    "start-time",
    "target-iops",
    "target-multi-attach-enabled",
    "target-size",
    "target-throughput",
    "target-volume-type",
    "volume-id",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let now = call.now;
    let args = &mut call.args;
    let ids = args.volume_ids("VolumeId")?;
    let filters = args.filters(FILTERS)?;
    let page = args.page(1, 500)?;
    args.boolean("IncludeManagedResources")?;
    args.done()?;
    let model = call.plane.model();
    model.check_volumes(&ids)?;
    let modification = |id| model.volumes.get(id).and_then(|volume| volume.modification.as_ref());
    if let Some(id) = ids.iter().find(|id| modification(id).is_none()) {
        let text = format!("Modification for volume '{id}' does not exist.");
        return Err(ApiError::new("InvalidVolumeModification.NotFound", text));
    }
    let wanted = page
        .of(&model.volumes, &ids)
        .filter(|volume| volume.is_shown())
        .filter_map(|volume| Some((volume.id, volume.modification.as_ref()?)))
        .filter(|(id, modification)| {
            filters.pass(|name| match name {
                "volume-id" => vec![id.to_string()],
                name => values(modification, name, now),
            })
        });
    let (found, token) = page.cut(wanted, |(id, _)| id.to_string());
    let items = found
        .into_iter()
        .map(|(id, modification)| Element::list("item", view::modification(id, modification, now)))
        .collect();
    Ok(view::paged("volumeModificationSet", items, token))
}

fn values(modification: &Modification, filter: &str, now: UnixMs) -> Vec<String> {
    let side = |spec: &VolumeSpec, property: &str| match property {
        "iops" => spec.iops.iter().map(u32::to_string).collect(),
        "multi-attach-enabled" => vec![spec.multi_attach.to_string()],
        "size" => vec![spec.size_gib.to_string()],
        "throughput" => spec.throughput_mibps.iter().map(u32::to_string).collect(),
        "volume-type" => vec![spec.volume_type.to_string()],
        _ => vec![],
    };
    match (filter, filter.split_once('-')) {
        ("modification-state", _) => vec![modification.progress(now).0.into()],
        ("start-time", _) => vec![timestamp::extended(modification.started.0)],
        (_, Some(("original", property))) => side(&modification.original, property),
        (_, Some(("target", property))) => side(&modification.target, property),
        _ => vec![],
    }
}
