//! CreateVolume. Returns once the volume is available.

use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_wire::aws::xml::Element;

use super::args::snapshot_id;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::clock;
use crate::model::{Command, Settings};
use crate::plane::PlaneError;

pub const ACTION: Action = Action { name: "CreateVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let zone = (args.text("AvailabilityZone"), args.text("AvailabilityZoneId"));
    let volume_type = args.volume_type("VolumeType")?.unwrap_or(default_type(settings));
    let size_gib = args.number("Size")?;
    let iops = args.number("Iops")?;
    let throughput_mibps = args.number("Throughput")?;
    let multi_attach = args.boolean("MultiAttachEnabled")?.unwrap_or(false);
    let encrypted = args.boolean("Encrypted")?.unwrap_or(false);
    let key = args.text("KmsKeyId");
    let snapshot = args.text("SnapshotId").as_deref().map(snapshot_id).transpose()?;
    let tags = args.tag_specifications("volume")?;
    let token = args.client_token()?.filter(|token| !token.is_empty());
    args.unsupported(&["OutpostArn", "VolumeInitializationRate", "Operator.Principal"])?;
    args.done()?;
    if key.is_some() && !encrypted {
        let text = "The parameter [KmsKeyId] requires the parameter Encrypted to be set.";
        return Err(ApiError::new("InvalidParameterDependency", text));
    }
    if encrypted {
        return Err(ApiError::unsupported("Encrypted volumes are not supported"));
    }
    // One that does not exist is refused below, unless the client token is known: the snapshot may
    // be deleted since.
    let of_snapshot = snapshot.map(|snapshot| {
        call.plane.model().snapshot(snapshot).map_or(1, |snapshot| snapshot.size_gib)
    });
    let size_gib = size_gib.or(of_snapshot).ok_or_else(|| {
        let text = "The request must contain the parameter size/snapshot";
        ApiError::new("MissingParameter", text)
    })?;
    let zone = chosen_zone(settings, zone)?;
    let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    let token = token.map(|token| (token, std::mem::take(&mut call.fingerprint)));
    let id = clock::volume_id().map_err(PlaneError::from)?;
    let outcome =
        call.execute(&Command::CreateVolume { id, request, snapshot, zone, tags, token })?;
    let volume = outcome.settled.ok_or_else(|| ApiError::internal("the new volume is gone"))?;
    Ok(view::volume(settings, &volume))
}

/// EC2's default type: gp2, and before it existed standard.
fn default_type(settings: &Settings) -> VolumeType {
    match settings.rules.offers(VolumeType::Gp2) {
        true => VolumeType::Gp2,
        false => VolumeType::Standard,
    }
}

/// The zone, by its name or its id.
fn chosen_zone(
    settings: &Settings,
    named: (Option<String>, Option<String>),
) -> Result<String, ApiError> {
    match named {
        (Some(name), None) => Ok(name),
        (None, Some(id)) if id == view::zone_id(settings) => Ok(settings.zone.clone()),
        (None, Some(id)) => Err(ApiError::value(format!("Invalid availability zone: [{id}]"))),
        (None, None) => Err(ApiError::missing("AvailabilityZone")),
        (Some(_), Some(_)) => Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameters AvailabilityZone and AvailabilityZoneId cannot be used together",
        )),
    }
}
