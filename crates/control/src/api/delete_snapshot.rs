//! DeleteSnapshot. Returns once the snapshot is deleted; its blocks are freed in the background.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "DeleteSnapshot", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    call.args.done()?;
    call.execute(&Command::DeleteSnapshot { id })?;
    Ok(view::success())
}
