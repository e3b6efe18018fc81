//! DescribeVolumeAttribute, ModifyVolumeAttribute, EnableVolumeIO: whether a volume with damaged
//! data is served with the data that can be read.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;

pub const DESCRIBE: Action =
    Action { name: "DescribeVolumeAttribute", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifyVolumeAttribute", mutates: true, run: modify };
pub const ENABLE_IO: Action = Action { name: "EnableVolumeIO", mutates: true, run: enable_io };

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    let attribute = call.args.required("Attribute")?;
    call.args.done()?;
    let model = call.plane.model();
    let volume = model.volume(id)?;
    let value = match attribute.as_str() {
        "autoEnableIO" => {
            Element::list("autoEnableIO", [Element::text("value", volume.auto_enable_io)])
        }
        "productCodes" => Element::new("productCodes"),
        other => {
            return Err(ApiError::value(format!(
                "Value ({other}) for parameter attribute is invalid. Must be autoEnableIO or \
                 productCodes."
            )));
        }
    };
    Ok(vec![Element::text("volumeId", id), value])
}

fn modify(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    let is_on = call.args.boolean("AutoEnableIO.Value")?;
    call.args.done()?;
    let is_on = is_on.ok_or_else(|| ApiError::missing("AutoEnableIO.Value"))?;
    call.execute(&Command::SetAutoEnableIo { id, is_on })?;
    Ok(view::success())
}

fn enable_io(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    call.args.done()?;
    call.plane.enable_io(id, call.dry_run)?;
    Ok(view::success())
}
