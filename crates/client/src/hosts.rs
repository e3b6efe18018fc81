//! The client hosts that volumes are attached to.

use crate::Client;
use crate::model::Host;
use crate::output::{Exit, Failure};

/// The instance type of the server's own machine, which no EC2 type has.
const LOCAL_TYPE: &str = "evenkeel.local";

/// Registers a host by the parameters of RegisterHost.
pub fn register(client: &Client, parameters: &[(&str, &str)]) -> Result<Host, Failure> {
    let answer = client.call("RegisterHost", parameters)?;
    let host = answer.child("instance").map(Host::read);
    host.ok_or_else(|| Failure::new("the server does not return the host that it has registered"))
}

/// Reads all hosts.
pub fn all(client: &Client) -> Result<Vec<Host>, Failure> {
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

/// Returns the host of the server's own machine: the first one of its type.
pub fn local(client: &Client) -> Result<Host, Failure> {
    let of_type = [("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", LOCAL_TYPE)];
    let hosts = Host::set(&client.call("DescribeInstances", &of_type)?);
    hosts.into_iter().min_by(|a, b| a.registered.cmp(&b.registered)).ok_or_else(|| {
        Failure::new("no registered host is this machine")
            .exit(Exit::NotFound)
            .hint("`evenkeel host ls` lists the hosts; name one with --host")
    })
}
