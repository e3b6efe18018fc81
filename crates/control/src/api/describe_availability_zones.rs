//! DescribeAvailabilityZones: returns the only zone.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Settings;

pub const ACTION: Action = Action { name: "DescribeAvailabilityZones", mutates: false, run };

const FILTERS: &[&str] = &[
    "group-long-name",
    "group-name",
    "message",
    "opt-in-status",
    "region-name",
    "state",
    "zone-id",
    "zone-name",
    "zone-type",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let names = args.list("ZoneName");
    let ids = args.list("ZoneId");
    let filters = args.filters(FILTERS)?;
    args.boolean("AllAvailabilityZones")?;
    args.done()?;
    let settings = &call.plane.settings;
    let id = view::zone_id(settings);
    let absent = names.iter().find(|name| **name != settings.zone);
    if let Some(absent) = absent.or_else(|| ids.iter().find(|wanted| **wanted != id)) {
        return Err(ApiError::value(format!("Invalid availability zone: [{absent}]")));
    }
    let zone = [
        Element::text("zoneName", &settings.zone),
        Element::text("zoneId", &id),
        Element::text("zoneState", "available"),
        Element::text("regionName", &settings.region),
        Element::text("zoneType", "availability-zone"),
        Element::text("groupName", &settings.region),
        Element::text("groupLongName", &settings.region),
        Element::text("networkBorderGroup", &settings.region),
        Element::text("optInStatus", "opt-in-not-required"),
        Element::new("messageSet"),
    ];
    let passes = filters.pass(|name| values(settings, &id, name));
    let zones = passes.then(|| Element::list("item", zone));
    Ok(vec![Element::list("availabilityZoneInfo", zones)])
}

fn values(settings: &Settings, id: &str, filter: &str) -> Vec<String> {
    let value = match filter {
        "group-long-name" | "group-name" | "region-name" => &settings.region,
        "opt-in-status" => "opt-in-not-required",
        "state" => "available",
        "zone-id" => id,
        "zone-name" => &settings.zone,
        "zone-type" => "availability-zone",
        _ => return vec![],
    };
    vec![value.into()]
}
