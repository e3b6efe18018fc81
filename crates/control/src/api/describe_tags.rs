//! DescribeTags: all tags of volumes and hosts.

use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Tags;

pub const ACTION: Action = Action { name: "DescribeTags", mutates: false, run };

const FILTERS: &[&str] = &["key", "resource-id", "resource-type", "tag:", "value"];

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
    // In the order of the ids as texts: "i-" before "vol-".
    let of_hosts = model.hosts.values().map(|h| (h.id.to_string(), "instance", &h.tags));
    let of_volumes = model.volumes.values().map(|v| (v.id.to_string(), "volume", &v.tags));
    let tags = of_hosts.chain(of_volumes).flat_map(flat);
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

fn flat<'a>(
    (resource_id, resource_type, tags): (String, &'static str, &'a Tags),
) -> impl Iterator<Item = Tag<'a>> {
    tags.iter().map(move |(key, value)| Tag {
        resource_id: resource_id.clone(),
        resource_type,
        key,
        value,
    })
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
