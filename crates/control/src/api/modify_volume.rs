//! ModifyVolume. Returns once the new limits are in force.

use evenkeel_core::volume::VolumeChange;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "ModifyVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let id = args.volume_id("VolumeId")?;
    let change = VolumeChange {
        volume_type: args.volume_type("VolumeType")?,
        size_gib: args.number("Size")?,
        iops: args.number("Iops")?,
        throughput_mibps: args.number("Throughput")?,
        multi_attach: args.boolean("MultiAttachEnabled")?,
    };
    args.done()?;
    let outcome = call.execute(&Command::ModifyVolume { id, change })?;
    let modification = outcome.settled().and_then(|volume| volume.modification);
    let modification =
        modification.ok_or_else(|| ApiError::internal("the modification is gone"))?;
    let fields = view::modification(id, &modification, call.plane.now());
    Ok(vec![Element::list("volumeModification", fields)])
}
