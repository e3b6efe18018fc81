//! DescribeEndpoints (not an EC2 action): returns the addresses at which clients reach attached
//! volumes.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
use crate::endpoint::Endpoint;

pub const ACTION: Action = Action { name: "DescribeEndpoints", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: the list is short.
    call.args.done()?;
    let items = call.endpoints.iter().map(|endpoint| {
        let (transport, address) = match endpoint {
            Endpoint::NbdTcp(address) => ("tcp", address.to_string()),
            Endpoint::NbdTls(address) => ("tls", address.to_string()),
            Endpoint::NbdUnix(path) => ("unix", path.display().to_string()),
        };
        let fields = [
            Element::text("protocol", "nbd"),
            Element::text("transport", transport),
            Element::text("address", address),
        ];
        Element::list("item", fields)
    });
    Ok(vec![Element::list("endpointSet", items)])
}
