//! DescribeInstanceAttribute, ModifyInstanceAttribute: the type of a host, whether volumes are
//! deleted when it is terminated, and its other attributes.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, Refusal};

pub const DESCRIBE: Action =
    Action { name: "DescribeInstanceAttribute", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifyInstanceAttribute", mutates: true, run: modify };

/// Attributes that EC2 can change of an instance, and that have no effect for a record.
const UNSUPPORTED: &[&str] = &[
    "DisableApiStop.Value",
    "DisableApiTermination.Value",
    "EbsOptimized.Value",
    "EnaSupport.Value",
    "InstanceInitiatedShutdownBehavior.Value",
    "Kernel.Value",
    "Ramdisk.Value",
    "SourceDestCheck.Value",
    "SriovNetSupport.Value",
    "UserData.Value",
    "GroupId.1",
];

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.required("InstanceId")?;
    let id = super::args::instance_id(&id)?;
    let attribute = call.args.required("Attribute")?;
    call.args.done()?;
    let model = call.plane.model();
    let host = model.hosts.get(&id).filter(|host| host.is_shown(call.now));
    let host = host.ok_or_else(|| Refusal::InstancesNotFound(vec![id]))?;
    let value = |text: String| Element::list(&attribute, [Element::text("value", text)]);
    let found = match attribute.as_str() {
        "blockDeviceMapping" => view::block_devices(&call.plane.settings, &model, host),
        "instanceType" => value(host.instance_type.clone()),
        "ebsOptimized" => value("true".into()),
        "disableApiTermination" => {
            value(model.local_host().is_some_and(|local| local.id == id).to_string())
        }
        "disableApiStop" => value("false".into()),
        "productCodes" => Element::new("productCodes"),
        "rootDeviceName" => value(view::root_device(&model, host).into()),
        other => {
            return Err(ApiError::unsupported(format!(
                "The attribute {other} is not known of a client host; known are \
                 blockDeviceMapping, instanceType, ebsOptimized, disableApiTermination, \
                 disableApiStop, productCodes and rootDeviceName"
            )));
        }
    };
    Ok(vec![Element::text("instanceId", id), found])
}

fn modify(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let instance = args.required("InstanceId")?;
    let instance = super::args::instance_id(&instance)?;
    let attribute = args.text("Attribute");
    let mut devices = Vec::new();
    for (number, mut fields) in args.structures("BlockDeviceMapping") {
        let prefix = format!("BlockDeviceMapping.{number}.");
        let device = fields.text("DeviceName");
        let device = device.ok_or_else(|| ApiError::missing(&format!("{prefix}DeviceName")))?;
        let is_deleted = fields.boolean("Ebs.DeleteOnTermination")?;
        let name = format!("{prefix}Ebs.DeleteOnTermination");
        let is_deleted = is_deleted.ok_or_else(|| ApiError::missing(&name))?;
        // A mapping that comes from a reply also names the volume.
        fields.text("Ebs.VolumeId");
        fields.structure_done(&prefix)?;
        devices.push((device, is_deleted));
    }
    let value = args.text("Value");
    let mut instance_type = args.text("InstanceType.Value");
    args.unsupported(UNSUPPORTED)?;
    args.done()?;
    match attribute.as_deref() {
        None | Some("blockDeviceMapping") if value.is_none() => {}
        Some("instanceType") if instance_type.is_none() => instance_type = value,
        Some(other) if other != "blockDeviceMapping" && other != "instanceType" => {
            return Err(ApiError::unsupported(format!("The attribute {other} cannot be changed")));
        }
        _ => return Err(only_one()),
    }
    let command = match (instance_type, devices.is_empty()) {
        (Some(instance_type), true) => Command::SetHostType { id: instance, instance_type },
        (None, false) => Command::SetDeleteOnTermination { instance, devices },
        (None, true) => return Err(ApiError::missing("BlockDeviceMapping")),
        (Some(_), false) => return Err(only_one()),
    };
    call.execute(&command).map_err(|error| match error.code {
        // Here the type is the value of an attribute.
        "InvalidInstanceType" => ApiError { code: "InvalidInstanceAttributeValue", ..error },
        _ => error,
    })?;
    Ok(view::success())
}

fn only_one() -> ApiError {
    let text = "Fields for multiple attribute types specified: change one attribute at a time";
    ApiError::new("InvalidParameterCombination", text)
}
