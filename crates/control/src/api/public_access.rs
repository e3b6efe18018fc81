//! Whether snapshots can be shared with all accounts: GetSnapshotBlockPublicAccessState,
//! EnableSnapshotBlockPublicAccess and DisableSnapshotBlockPublicAccess.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
use crate::model::{Command, PublicAccess};

pub const GET: Action =
    Action { name: "GetSnapshotBlockPublicAccessState", mutates: false, run: get };
pub const ENABLE: Action =
    Action { name: "EnableSnapshotBlockPublicAccess", mutates: true, run: enable };
pub const DISABLE: Action =
    Action { name: "DisableSnapshotBlockPublicAccess", mutates: true, run: disable };

fn get(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    let state = call.plane.model().account.public_access;
    Ok(vec![Element::text("state", state), Element::text("managedBy", "account")])
}

fn enable(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let state = call.args.required("State")?;
    call.args.done()?;
    let access = state.parse().ok().filter(|access| *access != PublicAccess::Unblocked);
    let access = access.ok_or_else(|| {
        ApiError::value(format!(
            "Value ({state}) for parameter State is invalid. Must be block-all-sharing or \
             block-new-sharing; DisableSnapshotBlockPublicAccess ends the block."
        ))
    })?;
    set(call, access)
}

fn disable(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    set(call, PublicAccess::Unblocked)
}

fn set(call: &mut Call<'_>, access: PublicAccess) -> Result<Vec<Element>, ApiError> {
    call.execute(&Command::SetPublicAccess(access))?;
    Ok(vec![Element::text("state", access)])
}
