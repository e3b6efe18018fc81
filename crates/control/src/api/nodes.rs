//! DescribeNodes, ModifyNode and MoveVolume (not EC2 actions): the nodes of a cluster, and the
//! homes of volumes.

use std::sync::Arc;

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::nodes::{NodeView, Nodes, State};
use crate::plane::PlaneError;

pub const DESCRIBE: Action = Action { name: "DescribeNodes", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifyNode", mutates: true, run: modify };
pub const MOVE: Action = Action { name: "MoveVolume", mutates: true, run: move_volume };

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: clusters are small.
    call.args.done()?;
    let nodes = call.plane.nodes().map(|nodes| nodes.views()).unwrap_or_default();
    Ok(vec![Element::list("nodeSet", nodes.iter().map(item))])
}

fn state(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Draining => "draining",
        State::Removed => "removed",
    }
}

fn item(view: &NodeView) -> Element {
    let mut fields = vec![
        Element::text("nodeName", &view.name),
        Element::text("number", view.number.0),
        Element::text("state", state(view.state)),
        Element::text("status", view.status),
        Element::text("leads", view.leads),
        Element::text("volumes", view.volumes),
    ];
    fields.extend(view.reason.as_ref().map(|reason| Element::text("reason", reason)));
    if let Some(process) = &view.process {
        fields.push(Element::text("apiAddress", process.api));
        let address = |address| Element::list("item", [Element::text("address", address)]);
        let nbd = process.nbd.iter().map(address);
        fields.push(Element::list("nbdAddressSet", nbd));
        fields.push(Element::text("version", &process.version));
        let setting = |text| Element::list("item", [Element::text("setting", text)]);
        let settings = process.settings_unlike.iter().map(setting);
        fields.push(Element::list("differentSettingSet", settings));
    }
    Element::list("item", fields)
}

/// Returns the nodes, unless this server serves alone.
fn nodes<'a>(call: &'a Call<'_>) -> Result<&'a Arc<dyn Nodes>, ApiError> {
    call.plane.nodes().ok_or_else(|| {
        ApiError::unsupported(
            "This server is no node of a cluster: it serves alone. docs/operating/cluster.md says \
             how several serve together.",
        )
    })
}

fn named(nodes: &dyn Nodes, name: &str) -> Result<NodeView, ApiError> {
    let views = nodes.views();
    let found = views.iter().find(|node| node.name == name).cloned();
    found.ok_or_else(|| {
        let known: Vec<&str> = views.iter().map(|node| node.name.as_str()).collect();
        let known = known.join(", ");
        let text = format!("The node '{name}' does not exist. The nodes are {known}.");
        ApiError::new("InvalidNode.NotFound", text)
    })
}

fn modify(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("Node")?;
    let asked = call.args.required("State")?;
    call.args.done()?;
    let state = match asked.as_str() {
        "up" => State::Up,
        "draining" => State::Draining,
        "removed" => State::Removed,
        other => {
            let text = format!(
                "Value ({other}) for parameter state is invalid. Use up, draining or removed."
            );
            return Err(ApiError::value(text));
        }
    };
    let nodes = nodes(call)?;
    let node = named(&**nodes, &name)?;
    if state == State::Removed && node.volumes > 0 {
        let text = format!(
            "The node {name} is the home of {} volumes. Drain it and wait until it has none, then \
             remove it.",
            node.volumes
        );
        return Err(ApiError::new("IncorrectState", text));
    }
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    match nodes.set_state(&name, state) {
        Ok(_) => Ok(view::success()),
        Err(why) => Err(ApiError::unavailable(why)),
    }
}

fn move_volume(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    let name = call.args.required("Node")?;
    call.args.done()?;
    call.plane.model().volume(id).map_err(PlaneError::from)?;
    let nodes = nodes(call)?;
    let node = named(&**nodes, &name)?;
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    nodes.move_to(id, node.number).map_err(PlaneError::Agent)?;
    Ok(view::success())
}
