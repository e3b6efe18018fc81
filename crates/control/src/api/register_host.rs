//! RegisterHost (not an EC2 action): registers a client host with an instance type's EBS limits.

use std::net::IpAddr;

use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Command;
use crate::plane::PlaneError;
use crate::random;

pub const ACTION: Action = Action { name: "RegisterHost", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let instance_type = call.args.required("InstanceType")?;
    let address = call.args.text("Address");
    let zone = call.args.text("AvailabilityZone");
    let tags = call.args.tags("")?;
    call.args.done()?;
    let address = address.as_deref().map_or(Ok(HostAddress::Local), parse_address)?;
    let id = random::instance_id().map_err(PlaneError::from)?;
    call.execute(&Command::RegisterHost { id, zone, instance_type, address, tags })?;
    let model = call.plane.model();
    let host = model.host(id)?;
    let fields = view::host(&call.plane.settings, &model, host);
    Ok(vec![Element::list("instance", fields)])
}

pub(super) fn parse_address(text: &str) -> Result<HostAddress, ApiError> {
    let ip: IpAddr = text.parse().map_err(|_| {
        ApiError::value(format!(
            "Value ({text}) for parameter address is invalid. Must be an IPv4 or IPv6 address."
        ))
    })?;
    let canonical = ip.to_canonical();
    if canonical.is_unspecified() || canonical.is_multicast() {
        return Err(ApiError::value(format!(
            "Value ({text}) for parameter address is invalid. No host can have this address."
        )));
    }
    Ok(HostAddress::of(ip))
}
