//! DescribeNodes, ModifyNode and MoveVolume (not EC2 actions): the nodes of a cluster, and the
//! homes of volumes.

use std::sync::Arc;

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::cluster::fleet::{Fleet, NodeView};
use crate::cluster::nodes::State;
use crate::plane::PlaneError;

pub const DESCRIBE: Action = Action { name: "DescribeNodes", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifyNode", mutates: true, run: modify };
pub const MOVE: Action = Action { name: "MoveVolume", mutates: true, run: move_volume };

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: clusters are small.
    call.args.done()?;
    let nodes = call.plane.fleet().map(|fleet| fleet.nodes()).unwrap_or_default();
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
    let NodeView { member, volumes, leads, settings_unlike, .. } = view;
    let (status, reason) = view.status();
    let mut fields = vec![
        Element::text("nodeName", &member.name),
        Element::text("number", member.number.0),
        Element::text("state", state(member.state)),
        Element::text("status", status),
        Element::text("leads", leads),
        Element::text("volumes", volumes),
    ];
    fields.extend(reason.map(|reason| Element::text("reason", reason)));
    if let Some(inst) = &member.inst {
        fields.push(Element::text("apiAddress", inst.api));
        let address = |address| Element::list("item", [Element::text("address", address)]);
        let nbd = inst.nbd.iter().map(address);
        fields.push(Element::list("nbdAddressSet", nbd));
        fields.push(Element::text("version", &inst.version));
        let setting = |text| Element::list("item", [Element::text("setting", text)]);
        fields.push(Element::list("differentSettingSet", settings_unlike.iter().map(setting)));
    }
    Element::list("item", fields)
}

/// Returns the nodes, unless this server serves alone.
fn fleet<'a>(call: &'a Call<'_>) -> Result<&'a Arc<Fleet>, ApiError> {
    call.plane.fleet().ok_or_else(|| {
        ApiError::unsupported(
            "This server is no node of a cluster: it serves alone. docs/operating/cluster.md says \
             how several serve together.",
        )
    })
}

fn named(fleet: &Fleet, name: &str) -> Result<NodeView, ApiError> {
    let found = fleet.nodes().into_iter().find(|node| node.member.name == name);
    found.ok_or_else(|| {
        let known: Vec<String> = fleet.nodes().into_iter().map(|it| it.member.name).collect();
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
    let fleet = fleet(call)?;
    let node = named(fleet, &name)?;
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
    match fleet.set_state(&name, state) {
        Ok(_) => Ok(view::success()),
        Err(why) => Err(ApiError::unavailable(why)),
    }
}

fn move_volume(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    let name = call.args.required("Node")?;
    call.args.done()?;
    call.plane.model().volume(id).map_err(PlaneError::from)?;
    let fleet = fleet(call)?;
    let node = named(fleet, &name)?;
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    fleet.move_to(id, node.member.number).map_err(PlaneError::Agent)?;
    Ok(view::success())
}
