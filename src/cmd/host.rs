//! `evenkeel host`: the client hosts that volumes are attached to.

use crate::api::Client;
use crate::api::model::Host;
use crate::cli::{self, HostVerb};
use crate::output::{self, Exit, Failure};

pub fn run(arguments: &cli::Host) -> Result<(), Failure> {
    let client = Client::new(&arguments.connection)?;
    let format = arguments.output.format;
    match &arguments.verb {
        HostVerb::Ls => {
            let hosts = hosts(&client)?;
            output::print(&output::listing(&hosts, format, "no host is registered"))
        }
        HostVerb::Register { instance_type, address, zone, tags } => {
            let address = address.map(|address| address.to_string());
            let tags = super::volume::tag_parameters("Tag", tags);
            let mut parameters = vec![("InstanceType", instance_type.as_str())];
            parameters.extend(address.as_deref().map(|address| ("Address", address)));
            parameters.extend(zone.as_deref().map(|zone| ("AvailabilityZone", zone)));
            parameters.extend(tags.iter().map(|(name, value)| (name.as_str(), value.as_str())));
            let registered = register_with(&client, &parameters)?;
            output::print(&output::listing(&[registered], format, ""))
        }
        HostVerb::Rm { host } => {
            client.call("DeregisterHost", &[("InstanceId", &host.to_string())])?;
            Ok(())
        }
    }
}

/// Registers a host of this type on this machine.
pub fn register(client: &Client, instance_type: &str) -> Result<Host, Failure> {
    register_with(client, &[("InstanceType", instance_type)])
}

fn register_with(client: &Client, parameters: &[(&str, &str)]) -> Result<Host, Failure> {
    let answer = client.call("RegisterHost", parameters)?;
    let host = answer.child("instance").map(Host::read);
    host.ok_or_else(|| Failure::new("the server does not return the host that it has registered"))
}

/// Reads all hosts.
pub fn hosts(client: &Client) -> Result<Vec<Host>, Failure> {
    Ok(Host::set(&client.call("DescribeInstances", &[])?))
}

/// Reads one host; `None` if the server does not know it.
pub fn get(client: &Client, id: &str) -> Result<Option<Host>, Failure> {
    match client.call("DescribeInstances", &[("InstanceId.1", id)]) {
        Ok(answer) => Ok(Host::set(&answer).into_iter().next()),
        Err(failure) if failure.exit == Exit::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The instance type of the server's own machine, which no EC2 type has.
const LOCAL_TYPE: &str = "evenkeel.local";

/// The host of the server's own machine: the first one of its type.
pub fn local(client: &Client) -> Result<Host, Failure> {
    let of_type = [("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", LOCAL_TYPE)];
    let hosts = Host::set(&client.call("DescribeInstances", &of_type)?);
    hosts.into_iter().min_by(|a, b| a.registered.cmp(&b.registered)).ok_or_else(|| {
        Failure::new("no registered host is this machine")
            .exit(Exit::NotFound)
            .hint("`evenkeel host ls` lists the hosts; name one with --host")
    })
}
