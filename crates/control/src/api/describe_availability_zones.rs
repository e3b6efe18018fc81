//! DescribeAvailabilityZones: returns the zones, in the order of the server's settings.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
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
    let absent = names.iter().find(|name| !settings.has_zone(name));
    let absent = absent.or_else(|| ids.iter().find(|id| settings.zone_with_id(id).is_none()));
    if let Some(absent) = absent {
        return Err(ApiError::value(format!("Invalid availability zone: [{absent}]")));
    }
    let zones =
        settings.zones.iter().map(|name| (name, settings.zone_id(name).unwrap_or_default()));
    let wanted = zones
        .filter(|(name, _)| names.is_empty() || names.contains(name))
        .filter(|(_, id)| ids.is_empty() || ids.contains(id))
        .filter(|(name, id)| filters.pass(|filter| values(settings, (name, id), filter)));
    let items = wanted.map(|(name, id)| Element::list("item", fields(settings, name, &id)));
    Ok(vec![Element::list("availabilityZoneInfo", items)])
}

fn fields(settings: &Settings, name: &str, id: &str) -> [Element; 10] {
    [
        Element::text("zoneName", name),
        Element::text("zoneId", id),
        Element::text("zoneState", "available"),
        Element::text("regionName", &settings.region),
        Element::text("zoneType", "availability-zone"),
        Element::text("groupName", &settings.region),
        Element::text("groupLongName", &settings.region),
        Element::text("networkBorderGroup", &settings.region),
        Element::text("optInStatus", "opt-in-not-required"),
        Element::new("messageSet"),
    ]
}

fn values(settings: &Settings, (name, id): (&str, &str), filter: &str) -> Vec<String> {
    let value = match filter {
        "group-long-name" | "group-name" | "region-name" => &settings.region,
        "opt-in-status" => "opt-in-not-required",
        "state" => "available",
        "zone-id" => id,
        "zone-name" => name,
        "zone-type" => "availability-zone",
        _ => return vec![],
    };
    vec![value.into()]
}
