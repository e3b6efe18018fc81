//! `evenkeel node`: the nodes of a cluster, and the homes of volumes.

use crate::cli::{NodeArgs, NodeVerb};
use evenkeel_cli::connect;
use evenkeel_client::nodes::Node;
use evenkeel_client::output::{self, Failure};

/// Text of a listing without nodes.
const NONE: &str = "this server is no node of a cluster: it serves alone";

pub fn run(arguments: &NodeArgs) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let set = |node: &str, state: &str| {
        client.call("ModifyNode", &[("Node", node), ("State", state)]).map(drop)
    };
    match &arguments.verb {
        NodeVerb::Ls => {
            let nodes = Node::set(&client.call("DescribeNodes", &[])?);
            output::print(&output::listing(&nodes, arguments.output.format, NONE))
        }
        NodeVerb::Drain { node } => set(node, "draining"),
        NodeVerb::Join { node } => set(node, "up"),
        NodeVerb::Remove { node } => set(node, "removed"),
        NodeVerb::Move { volume, node } => {
            let volume = volume.to_string();
            client.call("MoveVolume", &[("VolumeId", &volume), ("Node", node)]).map(drop)
        }
    }
}
