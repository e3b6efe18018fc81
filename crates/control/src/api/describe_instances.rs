//! DescribeInstances: returns the client hosts.

use evenkeel_core::ids::InstanceId;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::filter::{Values, tag_values};
use super::{Action, Call, view};
use crate::model::{Attachment, Host, Model, Settings, Volume};

pub const ACTION: Action = Action { name: "DescribeInstances", mutates: false, run };

const FILTERS: &[&str] = &[
    "availability-zone",
    "availability-zone-id",
    "block-device-mapping.attach-time",
    "block-device-mapping.delete-on-termination",
    "block-device-mapping.device-name",
    "block-device-mapping.status",
    "block-device-mapping.volume-id",
    "instance-id",
    "instance-state-code",
    "instance-state-name",
    "instance-type",
    "launch-time",
    "owner-id",
    "private-ip-address",
    "reservation-id",
    "root-device-name",
    "root-device-type",
    "tag:",
    "tag-key",
    "tag-value",
];

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let ids = args.instance_ids("InstanceId")?;
    let filters = args.filters(FILTERS)?;
    let page = args.page(5, 1_000)?;
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
        .filter(|host| host.is_shown(now))
        .filter(|host| ids.is_empty() || ids.contains(&host.id))
        .filter(|host| filters.pass(|name| values(settings, &model, host, name)));
    let (hosts, token) = page.cut(wanted, |host| host.id.to_string());
    // Hosts of one reservation follow each other, because their ids do.
    let together = |a: &&Host, b: &&Host| reservation_id(a.id) == reservation_id(b.id);
    let items = hosts.chunk_by(together).map(|hosts| {
        let instance = |host: &&Host| Element::list("item", view::host(settings, &model, host));
        let instances = hosts.iter().map(instance).collect();
        Element::list("item", reservation(settings, hosts[0].id, instances))
    });
    Ok(view::paged("reservationSet", items.collect(), token))
}

/// Returns a reservation, which is EC2's term for instances that were launched together.
pub(super) fn reservation(
    settings: &Settings,
    first: InstanceId,
    instances: Vec<Element>,
) -> Vec<Element> {
    vec![
        Element::text("reservationId", reservation_id(first)),
        Element::text("ownerId", &settings.account),
        Element::new("groupSet"),
        Element::list("instancesSet", instances),
    ]
}

/// Number of low bits of a host's id that number the hosts of one RunInstances; their other bits
/// are equal. Other hosts have random ids, and a reservation each.
const NUMBER_BITS: u32 = 7;

/// Returns the id of the host with this number in a reservation, given any id of the reservation.
pub(super) fn launched(reservation: InstanceId, number: u32) -> InstanceId {
    debug_assert!(number < 1 << NUMBER_BITS);
    let first = reservation.bits() >> NUMBER_BITS << NUMBER_BITS;
    InstanceId::from_bits(first | u128::from(number))
}

fn reservation_id(host: InstanceId) -> String {
    launched(host, 0).to_string().replacen(InstanceId::PREFIX, "r-", 1)
}

fn values<'a>(settings: &Settings, model: &Model, host: &'a Host, filter: &str) -> Values<'a> {
    let each = |value: fn((&Volume, &Attachment)) -> String| {
        Values::Many(model.attachments_of(host.id).map(value).collect())
    };
    match filter {
        "availability-zone" => Values::of(host.zone(settings).to_owned()),
        "availability-zone-id" => {
            Values::One(settings.zone_id(host.zone(settings)).map(Into::into))
        }
        "block-device-mapping.attach-time" => each(|(_, a)| timestamp::extended(a.attached.0)),
        "block-device-mapping.delete-on-termination" => {
            each(|(_, a)| a.delete_on_termination.to_string())
        }
        "block-device-mapping.device-name" => each(|(_, a)| a.device.clone()),
        "block-device-mapping.status" => each(|(_, a)| a.state.name().into()),
        "block-device-mapping.volume-id" => each(|(v, _)| v.id.to_string()),
        "instance-id" => Values::of(host.id.to_string()),
        "instance-state-code" => Values::of(host.state.name().1.to_string()),
        "instance-state-name" => Values::of(host.state.name().0),
        "instance-type" => Values::of(&host.instance_type),
        "launch-time" => Values::of(timestamp::extended(host.registered.0)),
        "owner-id" => Values::of(settings.account.clone()),
        "private-ip-address" => Values::of(view::address(host)),
        "reservation-id" => Values::of(reservation_id(host.id)),
        "root-device-name" => Values::of(view::root_device(model, host)),
        "root-device-type" => Values::of(view::ROOT_DEVICE_TYPE),
        tag => tag_values(tag, &host.tags),
    }
}
