//! DeleteUnownedVolume (not an EC2 action): deletes stored bytes that belong to no volume.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};

pub const ACTION: Action = Action { name: "DeleteUnownedVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    call.args.done()?;
    call.plane.delete_unowned(id, call.dry_run)?;
    Ok(view::success())
}
