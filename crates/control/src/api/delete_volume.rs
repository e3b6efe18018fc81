//! DeleteVolume. Returns once the volume and its bytes are deleted.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "DeleteVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    call.args.done()?;
    call.execute(&Command::DeleteVolume { id })?;
    Ok(view::success())
}
