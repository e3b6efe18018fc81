//! AttachVolume. Returns once the host can connect to the volume.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const ACTION: Action = Action { name: "AttachVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let id = args.volume_id("VolumeId")?;
    let instance =
        args.instance_id("InstanceId")?.ok_or_else(|| ApiError::missing("InstanceId"))?;
    let device = args.required("Device")?;
    let card: Option<u32> = args.number("EbsCardIndex")?;
    args.done()?;
    if let Some(card) = card.filter(|card| *card != 0) {
        return Err(ApiError::value(format!(
            "Value ({card}) for parameter ebsCardIndex is invalid. Hosts have one EBS card, \
             number 0."
        )));
    }
    let outcome = call.execute(&Command::AttachVolume { id, instance, device })?;
    let volume = outcome.settled();
    let attachment =
        volume.as_ref().and_then(|v| v.attachments.iter().find(|a| a.instance == instance));
    let attachment = attachment.ok_or_else(|| ApiError::internal("the new attachment is gone"))?;
    Ok(view::attachment_fields(id, attachment, attachment.state.name()))
}
