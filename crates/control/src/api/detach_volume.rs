//! DetachVolume. Returns once the host has no more access, or, while a fault of a server for tests
//! pauses the volume, with an attachment that is still `detaching`.
//!
//! `Force` has no effect: the connections of a detached host are always closed, and its unflushed
//! writes may be lost.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{AttachmentState, Command};
use crate::plane::Outcome;

pub const ACTION: Action = Action { name: "DetachVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let id = args.volume_id("VolumeId")?;
    let instance = args.instance_id("InstanceId")?;
    let device = args.text("Device");
    args.boolean("Force")?;
    args.done()?;
    let outcome = call.execute(&Command::DetachVolume { id, instance, device })?;
    let Outcome::Volume { decided, settled } = outcome else {
        return Err(ApiError::internal("the volume is gone"));
    };
    let mut attachments = decided.attachments.iter();
    let leaving = attachments
        .find(|attachment| attachment.state == AttachmentState::Detaching)
        .ok_or_else(|| ApiError::internal("the attachment was gone already"))?;
    let is_left = settled.is_some_and(|volume| volume.attachments.contains(leaving));
    let state = if is_left { leaving.state.name() } else { "detached" };
    Ok(view::attachment_fields(id, leaving, state))
}
