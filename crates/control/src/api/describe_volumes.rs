//! DescribeVolumes: returns the volumes.

use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::filter::{Values, tag_values};
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
    "tag-value",
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
    page.refuse_beside(&ids, "volumes")?;
    let settings = &call.plane.settings;
    let model = call.plane.model();
    model.check_volumes(&ids)?;
    let candidates = match filters.property().filter(|_| ids.is_empty()) {
        Some(property) => Box::new(model.volumes_with(&property, page.after())),
        None => page.of(&model.volumes, &ids),
    };
    let wanted = candidates
        .filter(|volume| volume.is_shown())
        .filter(|volume| filters.pass(|name| values(settings, volume, name)));
    let (volumes, token) = page.cut(wanted, |volume| volume.id.to_string());
    let items = volumes
        .into_iter()
        .map(|volume| Element::list("item", view::volume(settings, volume)))
        .collect();
    Ok(view::paged("volumeSet", items, token))
}

fn values<'a>(settings: &Settings, volume: &'a Volume, filter: &str) -> Values<'a> {
    let spec = &volume.spec;
    let each = |value: fn(&Attachment) -> String| {
        Values::Many(volume.attachments.iter().map(value).collect())
    };
    match filter {
        "attachment.attach-time" => each(|a| timestamp::extended(a.attached.0)),
        "attachment.delete-on-termination" => each(|a| a.delete_on_termination.to_string()),
        "attachment.device" => each(|a| a.device.clone()),
        "attachment.instance-id" => each(|a| a.instance.to_string()),
        "attachment.status" => each(|a| a.state.name().into()),
        "availability-zone" => Values::of(&volume.zone),
        "availability-zone-id" => Values::One(settings.zone_id(&volume.zone).map(Into::into)),
        "create-time" => Values::of(timestamp::extended(volume.created.0)),
        "encrypted" => Values::of(volume.is_encrypted.to_string()),
        "fast-restored" => Values::of(volume.is_fast_restored.to_string()),
        "iops" => Values::One(spec.iops.map(|iops| iops.to_string().into())),
        "multi-attach-enabled" => Values::of(spec.multi_attach.to_string()),
        "size" => Values::of(spec.size_gib.to_string()),
        "snapshot-id" => {
            Values::of(volume.snapshot.map_or_else(String::new, |snapshot| snapshot.to_string()))
        }
        "source-volume-id" => Values::One(volume.source.map(|source| source.to_string().into())),
        "status" => Values::of(volume.state().name()),
        "throughput" => Values::One(spec.throughput_mibps.map(|mibps| mibps.to_string().into())),
        "volume-id" => Values::of(volume.id.to_string()),
        "volume-type" => Values::of(spec.volume_type.name()),
        tag => tag_values(tag, &volume.tags),
    }
}
