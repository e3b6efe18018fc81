//! StartScrub, StopScrub and DescribeScrub (not EC2 actions): read all stored data, and compare it
//! with its checksums.

use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
use crate::scrub::{RATE_MIBPS, RATE_MIBPS_MAX, Scrub};

pub const START: Action = Action { name: "StartScrub", mutates: true, run: start };
pub const STOP: Action = Action { name: "StopScrub", mutates: true, run: stop };
pub const DESCRIBE: Action = Action { name: "DescribeScrub", mutates: false, run: describe };

fn start(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let rate = call.args.number("MiBPerSecond")?.unwrap_or(RATE_MIBPS);
    call.args.done()?;
    if !(1..=RATE_MIBPS_MAX).contains(&rate) {
        return Err(ApiError::value(format!(
            "Value ({rate}) for parameter MiBPerSecond is invalid. Choose 1 to {RATE_MIBPS_MAX}."
        )));
    }
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    Ok(vec![element(&call.plane.start_scrub(rate))])
}

fn stop(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    Ok(call.plane.stop_scrub().iter().map(element).collect())
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    Ok(call.plane.scrub().iter().map(element).collect())
}

fn element(scrub: &Scrub) -> Element {
    let time = |ms: u64| timestamp::extended(ms);
    let rotten = scrub.rotten.iter().map(|place| {
        let fields =
            [Element::text("resourceId", &place.id), Element::text("offset", place.offset)];
        Element::list("item", fields)
    });
    let fields = [
        Element::text("state", scrub.state.name()),
        Element::text("mibPerSecond", scrub.rate_mibps),
        Element::text("startTime", time(scrub.started_ms)),
        Element::text("verifiedBytes", scrub.verified_bytes),
        Element::text("rottenPlaces", scrub.rotten_places),
        Element::text("unreadResources", scrub.unread),
        Element::list("rottenSet", rotten),
    ];
    Element::list("scrub", fields)
        .with_some(scrub.ended_ms.map(|ms| Element::text("endTime", time(ms))))
        .with_some(scrub.at.as_ref().map(|at| Element::text("resourceId", at)))
}
