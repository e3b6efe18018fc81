//! CreateVolume. Returns once the volume is available.

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::volume::VolumeRequest;
use evenkeel_wire::aws::xml::Element;

use super::args::{Args, snapshot_id};
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Begins, Command, Settings};
use crate::plane::PlaneError;
use crate::random;

pub const ACTION: Action = Action { name: "CreateVolume", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let zone = (args.text("AvailabilityZone"), args.text("AvailabilityZoneId"));
    let volume_type = args.volume_type("VolumeType")?.unwrap_or(settings.default_type());
    let size_gib = args.number("Size")?;
    let iops = args.number("Iops")?;
    let throughput_mibps = args.number("Throughput")?;
    let multi_attach = args.boolean("MultiAttachEnabled")?.unwrap_or(false);
    let is_encrypted = args.encryption(settings)?;
    let snapshot = args.text("SnapshotId").as_deref().map(snapshot_id).transpose()?;
    let tags = args.tag_specifications("volume")?;
    let token = args.client_token()?.filter(|token| !token.is_empty());
    let initialization_mibps = initialization_rate(args, snapshot.is_some())?;
    args.unsupported(&["OutpostArn", "Operator.Principal"])?;
    args.done()?;
    // A missing snapshot is refused below, unless the client token is known: the snapshot may have
    // been deleted since.
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
    let id = random::volume_id().map_err(PlaneError::from)?;
    let spares = [spare()?, spare()?];
    let begins = Begins { snapshot, source: None, is_encrypted, initialization_mibps, spares };
    let outcome =
        call.execute(&Command::CreateVolume { id, request, begins, zone, tags, token })?;
    let volume = outcome.settled().ok_or_else(|| ApiError::internal("the new volume is gone"))?;
    Ok(view::made(view::volume(settings, &volume)))
}

/// Returns an id for a snapshot that may be made only for a volume.
pub(super) fn spare() -> Result<SnapshotId, ApiError> {
    Ok(random::snapshot_id().map_err(PlaneError::from)?)
}

/// The rates at which EC2 initializes a volume of a snapshot, in MiB per second.
const INITIALIZATION_MIBPS: std::ops::RangeInclusive<u32> = 100..=300;

/// Returns `VolumeInitializationRate`. A volume of a snapshot is complete at once, which is faster
/// than any rate; only with `--feel ebs` its blocks are fetched at this one.
fn initialization_rate(args: &mut Args, is_of_snapshot: bool) -> Result<Option<u32>, ApiError> {
    let Some(mibps) = args.number::<u32>("VolumeInitializationRate")? else { return Ok(None) };
    if !INITIALIZATION_MIBPS.contains(&mibps) {
        return Err(ApiError::value(format!(
            "Value ({mibps}) for parameter volumeInitializationRate is invalid. Must be {} to {} \
             MiB/s.",
            INITIALIZATION_MIBPS.start(),
            INITIALIZATION_MIBPS.end()
        )));
    }
    if is_of_snapshot {
        Ok(Some(mibps))
    } else {
        Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameter VolumeInitializationRate requires the parameter SnapshotId",
        ))
    }
}

/// Returns the zone, by its name or its id.
fn chosen_zone(
    settings: &Settings,
    named: (Option<String>, Option<String>),
) -> Result<String, ApiError> {
    match named {
        (Some(name), None) => Ok(name),
        (None, Some(id)) => match settings.zone_with_id(&id) {
            Some(zone) => Ok(zone.to_owned()),
            None => Err(ApiError::unknown_zone(&id)),
        },
        (None, None) => Err(ApiError::missing("AvailabilityZone")),
        (Some(_), Some(_)) => Err(ApiError::new(
            "InvalidParameterCombination",
            "The parameters AvailabilityZone and AvailabilityZoneId cannot be used together",
        )),
    }
}
