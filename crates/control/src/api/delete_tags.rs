//! DeleteTags: removes tags by key, or by key and value, or all.

use evenkeel_wire::aws::xml::Element;

use super::create_tags::tagged;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "DeleteTags", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let resources = call.args.list("ResourceId");
    let tags = call.args.tag_pairs("")?;
    call.args.done()?;
    if resources.is_empty() {
        return Err(ApiError::missing("ResourceIdSet"));
    }
    let resources = tagged(&resources)?;
    call.execute(&Command::DeleteTags { resources, tags })?;
    Ok(view::success())
}
