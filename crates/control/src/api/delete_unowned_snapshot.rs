//! DeleteUnownedSnapshot (not an EC2 action): deletes a stored snapshot that the database does not
//! have.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};

pub const ACTION: Action = Action { name: "DeleteUnownedSnapshot", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    call.args.done()?;
    call.plane.delete_unowned_snapshot(id, call.dry_run)?;
    Ok(view::success())
}
