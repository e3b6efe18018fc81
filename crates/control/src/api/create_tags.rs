//! CreateTags: sets tags of volumes, snapshots and hosts.

use evenkeel_wire::aws::xml::Element;

use super::args::absent_short_id;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Tagged};

pub const ACTION: Action = Action { name: "CreateTags", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let resources = call.args.list("ResourceId");
    let tags = call.args.tags("")?;
    call.args.done()?;
    if resources.is_empty() {
        return Err(ApiError::missing("ResourceIdSet"));
    }
    if tags.is_empty() {
        return Err(ApiError::missing("TagSet"));
    }
    let resources = tagged(&resources)?;
    call.execute(&Command::CreateTags { resources, tags })?;
    Ok(view::success())
}

/// Parses the ids of resources.
pub fn tagged(ids: &[String]) -> Result<Vec<Tagged>, ApiError> {
    let resource = |id: &String| {
        id.parse().map_err(|refusal| absent_short_id(id).unwrap_or_else(|| ApiError::from(refusal)))
    };
    ids.iter().map(resource).collect()
}
