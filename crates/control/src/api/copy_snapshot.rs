//! CopySnapshot: creates a snapshot with the bytes of another. A copy with the same encryption as
//! its source shares the source's blocks and is complete at once.

use evenkeel_wire::aws::xml::Element;

use super::create_snapshot::description;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;
use crate::plane::PlaneError;
use crate::random;

pub const ACTION: Action = Action { name: "CopySnapshot", mutates: true, run };

/// Minutes within which EC2 completes a copy, in steps of 15.
const DURATION_MIN_MAX: u32 = 2_880;
const DURATION_STEP_MIN: u32 = 15;

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let of = args.snapshot_id("SourceSnapshotId")?;
    let region = args.required("SourceRegion")?;
    let destination = args.text("DestinationRegion");
    // SDKs sign a URL by themselves. There is one region, so no other region is contacted.
    args.text("PresignedUrl");
    let description = description(args)?;
    let is_encrypted = args.encryption(settings)?;
    let minutes: Option<u32> = args.number("CompletionDurationMinutes")?;
    let tags = args.tag_specifications("snapshot")?;
    args.unsupported(&["DestinationOutpostArn", "DestinationAvailabilityZone"])?;
    args.done()?;
    if is_encrypted == Some(false) {
        let text = "Value (false) for parameter encrypted is invalid. It can only be true.";
        return Err(ApiError::value(text));
    }
    for (parameter, region) in [("SourceRegion", Some(region)), ("DestinationRegion", destination)]
    {
        if let Some(other) = region.filter(|region| *region != settings.region) {
            return Err(ApiError::value(format!(
                "{parameter} is {other}, and the only region is {}",
                settings.region
            )));
        }
    }
    let is_duration = |minutes: &u32| {
        (1..=DURATION_MIN_MAX).contains(minutes) && minutes.is_multiple_of(DURATION_STEP_MIN)
    };
    if let Some(minutes) = minutes.filter(|minutes| !is_duration(minutes)) {
        return Err(ApiError::value(format!(
            "Value ({minutes}) for parameter completionDurationMinutes is invalid. Must be a \
             multiple of {DURATION_STEP_MIN}, up to {DURATION_MIN_MAX}."
        )));
    }
    let id = random::snapshot_id().map_err(PlaneError::from)?;
    let outcome =
        call.execute(&Command::CopySnapshot { id, of, is_encrypted, description, tags })?;
    let copy = outcome.snapshot().ok_or_else(|| ApiError::internal("the copy is gone"))?;
    let id = Element::text("snapshotId", copy.id);
    Ok([id].into_iter().chain(view::tag_set(&copy.tags)).collect())
}
