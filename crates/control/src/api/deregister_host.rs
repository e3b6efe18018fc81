//! DeregisterHost (not an EC2 action): removes a client host that has no volumes.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "DeregisterHost", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.instance_id("InstanceId")?;
    call.args.done()?;
    let id = id.ok_or_else(|| ApiError::missing("InstanceId"))?;
    call.execute(&Command::DeregisterHost { id })?;
    Ok(view::success())
}
