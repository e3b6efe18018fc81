//! CreateSnapshot. Returns, with a snapshot that is `pending`, once the snapshot survives a crash:
//! it holds everything that was answered to clients of the volume before the call.

use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Tags};
use crate::plane::PlaneError;
use crate::random;

pub const ACTION: Action = Action { name: "CreateSnapshot", mutates: true, run };

/// Maximum number of characters of a description.
const DESCRIPTION_MAX: usize = 255;

/// The parameters of CreateSnapshot and CreateSnapshots.
pub struct Common {
    /// The client's description.
    pub description: String,
    /// The tags of each snapshot.
    pub tags: Tags,
}

impl Common {
    /// Reads the parameters.
    ///
    /// # Errors
    /// `InvalidParameterValue`, `UnsupportedOperation`, and the errors of tags.
    pub fn take(args: &mut Args) -> Result<Self, ApiError> {
        let description = description(args)?;
        let tags = args.tag_specifications("snapshot")?;
        let location = args.text("Location");
        args.unsupported(&["OutpostArn"])?;
        if location.is_some_and(|location| location != "regional") {
            return Err(ApiError::unsupported(
                "Location must be regional: snapshots are of all zones",
            ));
        }
        Ok(Self { description, tags })
    }
}

/// Reads the parameter `Description`.
///
/// # Errors
/// `InvalidParameterValue`.
pub(super) fn description(args: &mut Args) -> Result<String, ApiError> {
    let description = args.text("Description").unwrap_or_default();
    let characters = description.chars().count();
    if characters > DESCRIPTION_MAX || description.chars().any(char::is_control) {
        return Err(ApiError::value(format!(
            "The description has {characters} characters; it must have at most {DESCRIPTION_MAX}, \
             and no control characters"
        )));
    }
    Ok(description)
}

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let volume = args.volume_id("VolumeId")?;
    let Common { description, tags } = Common::take(args)?;
    args.done()?;
    let id = random::snapshot_id().map_err(PlaneError::from)?;
    let outcome = call.execute(&Command::CreateSnapshot { id, volume, description, tags })?;
    let snapshot =
        outcome.snapshot().ok_or_else(|| ApiError::internal("the new snapshot is gone"))?;
    Ok(view::made(view::snapshot(call.plane, &snapshot)))
}
