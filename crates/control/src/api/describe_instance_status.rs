//! DescribeInstanceStatus: the state of hosts. A host is a record, and nothing checks it, so the
//! status of a running host is always `ok`.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::filter::Values;
use super::{Action, Call, view};
use crate::model::{Host, HostState, Settings};

pub const ACTION: Action = Action { name: "DescribeInstanceStatus", mutates: false, run };

const FILTERS: &[&str] = &[
    "availability-zone",
    "availability-zone-id",
    "instance-state-code",
    "instance-state-name",
    "instance-status.reachability",
    "instance-status.status",
    "system-status.reachability",
    "system-status.status",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let ids = args.instance_ids("InstanceId")?;
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 1_000)?;
    let include_all = args.boolean("IncludeAllInstances")?.unwrap_or(false);
    args.boolean("IncludeManagedResources")?;
    args.done()?;
    page.refuse_beside(&ids, "instancesSet")?;
    let settings = &call.plane.settings;
    let model = call.plane.model();
    let now = call.now;
    model.check_hosts(&ids, now)?;
    let wanted = model
        .hosts
        .values()
        .filter(|host| host.is_shown(now) && (include_all || host.state == HostState::Running))
        .filter(|host| ids.is_empty() || ids.contains(&host.id))
        .filter(|host| filters.pass(|name| values(settings, host, name)));
    let (hosts, token) = page.cut(wanted, |host| host.id.to_string());
    let items = hosts.into_iter().map(|host| Element::list("item", fields(settings, host)));
    Ok(view::paged("instanceStatusSet", items.collect(), token))
}

/// Returns the status of a host and the outcome of its only check.
fn status(host: &Host) -> (&'static str, Option<&'static str>) {
    match host.state {
        HostState::Running => ("ok", Some("passed")),
        _ => ("not-applicable", None),
    }
}

fn fields(settings: &Settings, host: &Host) -> Vec<Element> {
    let (status, check) = status(host);
    let summary = |name: &str| {
        let details = check.map(|check| {
            let fields = [Element::text("name", "reachability"), Element::text("status", check)];
            Element::list("details", [Element::list("item", fields)])
        });
        Element::list(name, [Element::text("status", status)].into_iter().chain(details))
    };
    let mut fields = vec![Element::text("instanceId", host.id)];
    fields.extend(view::zone(settings, host.zone(settings)));
    fields.extend([
        view::host_state("instanceState", host.state),
        summary("instanceStatus"),
        summary("systemStatus"),
    ]);
    fields
}

fn values<'a>(settings: &Settings, host: &Host, filter: &str) -> Values<'a> {
    let (status, check) = status(host);
    match filter {
        "availability-zone" => Values::of(host.zone(settings).to_owned()),
        "availability-zone-id" => {
            Values::One(settings.zone_id(host.zone(settings)).map(Into::into))
        }
        "instance-state-code" => Values::of(host.state.name().1.to_string()),
        "instance-state-name" => Values::of(host.state.name().0),
        "instance-status.status" | "system-status.status" => Values::of(status),
        _ => Values::One(check.map(Into::into)),
    }
}
