//! DescribeTags: all tags of volumes, snapshots and hosts.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Tags;

pub const ACTION: Action = Action { name: "DescribeTags", mutates: false, run };

const FILTERS: &[&str] = &["key", "resource-id", "resource-type", "tag:", "value"];

/// A volume, a snapshot or a host with its tags.
struct Resource<'a> {
    id: String,
    resource_type: &'static str,
    tags: &'a Tags,
}

/// One tag of a resource.
struct Tag<'a> {
    resource_id: String,
    resource_type: &'static str,
    key: &'a str,
    value: &'a str,
}

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let filters = call.args.filters(FILTERS)?;
    let page = call.args.page(5, 1_000)?;
    call.args.done()?;
    let model = call.plane.model();
    // In the order of the ids as texts: "i-", "snap-", "vol-".
    let now = call.now;
    let of_hosts = model.hosts.values().filter(|host| host.is_shown(now)).map(|host| Resource {
        id: host.id.to_string(),
        resource_type: "instance",
        tags: &host.tags,
    });
    let of_volumes = model.volumes.values().filter(|volume| volume.is_shown()).map(|volume| {
        Resource { id: volume.id.to_string(), resource_type: "volume", tags: &volume.tags }
    });
    let shown = model.snapshots.values().filter(|snapshot| snapshot.is_shown());
    let of_snapshots = shown.map(|snapshot| Resource {
        id: snapshot.id.to_string(),
        resource_type: "snapshot",
        tags: &snapshot.tags,
    });
    let tags = of_hosts.chain(of_snapshots).chain(of_volumes).flat_map(flat);
    let wanted = tags.filter(|tag| filters.pass(|name| values(tag, name)));
    let (tags, token) = page.cut(wanted, |tag| format!("{} {}", tag.resource_id, tag.key));
    let item = |tag: Tag<'_>| {
        Element::list(
            "item",
            [
                Element::text("resourceId", tag.resource_id),
                Element::text("resourceType", tag.resource_type),
                Element::text("key", tag.key),
                Element::text("value", tag.value),
            ],
        )
    };
    Ok(view::paged("tagSet", tags.into_iter().map(item).collect(), token))
}

fn flat<'a>(resource: Resource<'a>) -> impl Iterator<Item = Tag<'a>> {
    let Resource { id, resource_type, tags } = resource;
    tags.iter().map(move |(key, value)| Tag { resource_id: id.clone(), resource_type, key, value })
}

fn values(tag: &Tag<'_>, filter: &str) -> Vec<String> {
    let value = match filter {
        "key" => tag.key,
        "resource-id" => &tag.resource_id,
        "resource-type" => tag.resource_type,
        "value" => tag.value,
        other if other.strip_prefix("tag:") == Some(tag.key) => tag.value,
        _ => return vec![],
    };
    vec![value.into()]
}
