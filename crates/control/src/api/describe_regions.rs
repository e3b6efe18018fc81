//! DescribeRegions: returns the only region.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeRegions", mutates: false, run };

const FILTERS: &[&str] = &["opt-in-status", "region-name"];
const OPT_IN: &str = "opt-in-not-required";

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let names = args.list("RegionName");
    let filters = args.filters(FILTERS)?;
    args.boolean("AllRegions")?;
    args.done()?;
    let region = &call.plane.settings.region;
    if let Some(absent) = names.iter().find(|name| *name != region) {
        return Err(ApiError::value(format!("Invalid region provided: {absent}")));
    }
    // No endpoint: clients that have the server's address would use the endpoint's name instead.
    let item = [Element::text("regionName", region), Element::text("optInStatus", OPT_IN)];
    let passes = filters.pass(|name| match name {
        "region-name" => vec![region.clone()],
        _ => vec![OPT_IN.into()],
    });
    let regions = passes.then(|| Element::list("item", item));
    Ok(vec![Element::list("regionInfo", regions)])
}
