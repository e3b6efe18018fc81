//! DescribeSnapshots: returns the snapshots.

use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::filter::{Values, tag_values};
use super::{Action, Call, view};
use crate::model::Snapshot;
use crate::plane::Plane;

pub const ACTION: Action = Action { name: "DescribeSnapshots", mutates: false, run };

const FILTERS: &[&str] = &[
    "description",
    "encrypted",
    "owner-id",
    "progress",
    "snapshot-id",
    "start-time",
    "status",
    "storage-tier",
    "tag:",
    "tag-key",
    "tag-value",
    "volume-id",
    "volume-size",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let ids = args.snapshot_ids("SnapshotId")?;
    let owners = [args.list("Owner"), args.list("RestorableBy")];
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 1_000)?;
    args.done()?;
    page.refuse_beside(&ids, "snapshots")?;
    // Settles pending snapshots first, so that a waiter does not need a second request.
    call.plane.settle_snapshots();
    let model = call.plane.model();
    model.check_snapshots(&ids)?;
    // Everything belongs to one account.
    let account = &call.plane.settings.account;
    let is_ours = |owner: &String| owner == "self" || owner == account;
    let ours = owners.iter().all(|owners| owners.is_empty() || owners.iter().any(is_ours));
    let candidates = match filters.property().filter(|_| ids.is_empty()) {
        Some(property) => Box::new(model.snapshots_with(&property, page.after())),
        None => page.of(&model.snapshots, &ids),
    };
    let wanted = candidates
        .filter(|snapshot| ours && snapshot.is_shown())
        .filter(|snapshot| filters.pass(|name| values(call.plane, snapshot, name)));
    let (snapshots, token) = page.cut(wanted, |snapshot| snapshot.id.to_string());
    let item = |snapshot: &Snapshot| Element::list("item", view::snapshot(call.plane, snapshot));
    Ok(view::paged("snapshotSet", snapshots.into_iter().map(item).collect(), token))
}

fn values<'a>(plane: &'a Plane, snapshot: &'a Snapshot, filter: &str) -> Values<'a> {
    match filter {
        "description" => Values::of(&snapshot.description),
        "encrypted" => Values::of(snapshot.is_encrypted.to_string()),
        "owner-id" => Values::of(&plane.settings.account),
        "progress" => Values::of(format!("{}%", plane.percent(snapshot))),
        "snapshot-id" => Values::of(snapshot.id.to_string()),
        "start-time" => Values::of(timestamp::extended(snapshot.started.0)),
        "status" => Values::of(snapshot.state()),
        "storage-tier" => Values::of(snapshot.tier(plane.now())),
        "volume-id" => Values::of(snapshot.volume.to_string()),
        "volume-size" => Values::of(snapshot.size_gib.to_string()),
        tag => tag_values(tag, &snapshot.tags),
    }
}
