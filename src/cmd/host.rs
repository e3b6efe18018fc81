//! `evenkeel host`: the client hosts that volumes are attached to.

use crate::cli::{self, HostVerb};
use evenkeel_cli::connect;
use evenkeel_client::output::{self, Failure};
use evenkeel_client::{hosts, volumes};

pub fn run(arguments: &cli::Host) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let format = arguments.output.format;
    match &arguments.verb {
        HostVerb::Ls => {
            let hosts = hosts::all(&client)?;
            output::print(&output::listing(&hosts, format, "no host is registered"))
        }
        HostVerb::Register { instance_type, address, zone, tags } => {
            let address = address.map(|address| address.to_string());
            let tags = volumes::tag_parameters("Tag", tags);
            let mut parameters = vec![("InstanceType", instance_type.as_str())];
            parameters.extend(address.as_deref().map(|address| ("Address", address)));
            parameters.extend(zone.as_deref().map(|zone| ("AvailabilityZone", zone)));
            parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            let registered = hosts::register(&client, &parameters)?;
            output::print(&output::listing(&[registered], format, ""))
        }
        HostVerb::Rm { host } => {
            client.call("DeregisterHost", &[("InstanceId", &host.to_string())])?;
            Ok(())
        }
    }
}
