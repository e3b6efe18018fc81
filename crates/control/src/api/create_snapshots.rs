//! CreateSnapshots: snapshots of the volumes of one host, all of the same moment. Returns, with
//! snapshots that are `pending`, once all of them survive a crash. If one fails, none is made.

use std::collections::BTreeSet;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_wire::aws::xml::Element;

use super::args::{instance_id, volume_id};
use super::create_snapshot::Common;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Model, SnapshotOfSet, TAGS_MAX, Tags};
use crate::plane::{Outcome, PlaneError};
use crate::random;

pub const ACTION: Action = Action { name: "CreateSnapshots", mutates: true, run };

/// Maximum number of volumes that can be left out.
const EXCLUDED_MAX: usize = 40;

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let instance = args.required("InstanceSpecification.InstanceId")?;
    let instance = instance_id(&instance)?;
    let exclude_boot = args.boolean("InstanceSpecification.ExcludeBootVolume")?.unwrap_or(false);
    let excluded = args.list("InstanceSpecification.ExcludeDataVolumeId");
    let excluded: BTreeSet<VolumeId> =
        excluded.iter().map(|id| volume_id(id)).collect::<Result<_, _>>()?;
    let copies_tags = args.text("CopyTagsFromSource");
    let Common { description, tags } = Common::take(args)?;
    args.done()?;
    let copies_tags = match copies_tags.as_deref() {
        None => false,
        Some("volume") => true,
        Some(other) => {
            let text = format!("Invalid value '{other}' for CopyTagsFromSource. Must be volume");
            return Err(ApiError::value(text));
        }
    };
    if excluded.len() > EXCLUDED_MAX {
        return Err(ApiError::value(format!(
            "ExcludeDataVolumeId has {} volumes; it must have at most {EXCLUDED_MAX}",
            excluded.len()
        )));
    }
    let chosen = chosen(&call.plane.model(), instance, exclude_boot, &excluded)?;
    let mut set = Vec::new();
    for (volume, of_volume) in chosen {
        let id = random::snapshot_id().map_err(PlaneError::from)?;
        let mut tags = tags.clone();
        if copies_tags {
            for (key, value) in of_volume {
                // The tags of the request come first.
                if tags.len() < TAGS_MAX {
                    tags.entry(key).or_insert(value);
                }
            }
        }
        set.push(SnapshotOfSet { id, volume, tags });
    }
    let outcome = call.execute(&Command::CreateSnapshots { instance, set, description })?;
    let Outcome::Set(made) = outcome else {
        return Err(ApiError::internal("the new snapshots are gone"));
    };
    let items =
        made.iter().map(|new| Element::list("item", view::snapshot_of_set(call.plane, new)));
    Ok(vec![Element::list("snapshotSet", items)])
}

/// Returns the volumes of which snapshots are made, and their tags.
fn chosen(
    model: &Model,
    instance: InstanceId,
    exclude_boot: bool,
    excluded: &BTreeSet<VolumeId>,
) -> Result<Vec<(VolumeId, Tags)>, ApiError> {
    model.host(instance)?;
    let mut attached = BTreeSet::new();
    let mut chosen = Vec::new();
    for (volume, attachment) in model.attachments_of(instance) {
        let is_boot = view::BOOT_DEVICES.contains(&attachment.device.as_str());
        attached.insert(volume.id);
        if is_boot && excluded.contains(&volume.id) {
            return Err(ApiError::value(format!(
                "{} is the boot volume of {instance} ({}); leave it out with ExcludeBootVolume",
                volume.id, attachment.device
            )));
        }
        if !(is_boot && exclude_boot || excluded.contains(&volume.id)) {
            chosen.push((volume.id, volume.tags.clone()));
        }
    }
    if let Some(other) = excluded.difference(&attached).next() {
        let text = format!("{other} is in ExcludeDataVolumeId and not attached to {instance}");
        return Err(ApiError::value(text));
    }
    if chosen.is_empty() {
        let text = match attached.len() {
            0 => format!("{instance} has no volumes attached"),
            count => format!("All {count} volumes of {instance} are left out"),
        };
        return Err(ApiError::value(text));
    }
    Ok(chosen)
}
