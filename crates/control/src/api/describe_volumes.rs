//! DescribeVolumes: returns the volumes.

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::filter::tag_values;
use super::{Action, Call, view};
use crate::model::{Attachment, Settings, Volume};

pub const ACTION: Action = Action { name: "DescribeVolumes", mutates: false, run };

const FILTERS: &[&str] = &[
    "attachment.attach-time",
    "attachment.delete-on-termination",
    "attachment.device",
    "attachment.instance-id",
    "attachment.status",
    "availability-zone",
    "availability-zone-id",
    "create-time",
    "encrypted",
    "fast-restored",
    "iops",
    "multi-attach-enabled",
    "size",
    "snapshot-id",
    "source-volume-id",
    "status",
    "tag:",
    "tag-key",
    "throughput",
    "volume-id",
    "volume-type",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let ids = args.volume_ids("VolumeId")?;
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 500)?;
    args.boolean("IncludeManagedResources")?;
    args.done()?;
    if !ids.is_empty() && page.is_given() {
        return Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameter volumes cannot be used with the parameter maxResults",
        ));
    }
    let settings = &call.plane.settings;
    let model = call.plane.model();
    model.check_volumes(&ids)?;
    let wanted = model
        .volumes
        .values()
        .filter(|volume| volume.is_shown())
        .filter(|volume| ids.is_empty() || ids.contains(&volume.id))
        .filter(|volume| filters.pass(|name| values(settings, volume, name)));
    let (volumes, token) = page.cut(wanted, |volume| volume.id.to_string());
    let items = volumes
        .into_iter()
        .map(|volume| Element::list("item", view::volume(settings, volume)))
        .collect();
    Ok(view::paged("volumeSet", items, token))
}

fn values(settings: &Settings, volume: &Volume, filter: &str) -> Vec<String> {
    let spec = &volume.spec;
    let each = |value: fn(&Attachment) -> String| volume.attachments.iter().map(value).collect();
    match filter {
        "attachment.attach-time" => each(|a| timestamp::extended(a.attached.0)),
        "attachment.delete-on-termination" => each(|a| a.delete_on_termination.to_string()),
        "attachment.device" => each(|a| a.device.clone()),
        "attachment.instance-id" => each(|a| a.instance.to_string()),
        "attachment.status" => each(|a| a.state.name().into()),
        "availability-zone" => vec![volume.zone.clone()],
        "availability-zone-id" => vec![view::zone_id(settings)],
        "create-time" => vec![timestamp::extended(volume.created.0)],
        "encrypted" => vec![volume.is_encrypted.to_string()],
        "fast-restored" => vec![volume.is_fast_restored.to_string()],
        "iops" => spec.iops.iter().map(u32::to_string).collect(),
        "multi-attach-enabled" => vec![spec.multi_attach.to_string()],
        "size" => vec![spec.size_gib.to_string()],
        "snapshot-id" => {
            vec![volume.snapshot.map_or_else(String::new, |snapshot| snapshot.to_string())]
        }
        "source-volume-id" => volume.source.iter().map(VolumeId::to_string).collect(),
        "status" => vec![volume.state().name().into()],
        "throughput" => spec.throughput_mibps.iter().map(u32::to_string).collect(),
        "volume-id" => vec![volume.id.to_string()],
        "volume-type" => vec![spec.volume_type.to_string()],
        tag => tag_values(tag, &volume.tags),
    }
}
