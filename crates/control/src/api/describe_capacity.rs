//! DescribeCapacity (not an EC2 action): returns the amounts that may be sold, those that are sold,
//! and the reservations of each type.

use evenkeel_core::volume::{Reservation, VolumeType};
use evenkeel_wire::agent::{Capacity, Space, StoreHealth};
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, shortage};
use crate::model::{AccountResource, Amounts, Books, Line, Model, Room, Settings, Source};

pub const ACTION: Action = Action { name: "DescribeCapacity", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    // No parameters: there is only one store.
    call.args.done()?;
    let settings = &call.plane.settings;
    let capacity = call.plane.capacity();
    // If the data plane does not answer, the state of the store is unknown.
    let health = call.plane.store_health().ok();
    let model = call.plane.model();
    let books = model.books(settings, &capacity);
    let state = if books.is_limited() { "limited" } else { "unknown" };
    let types = VolumeType::ALL
        .into_iter()
        .filter_map(|volume_type| of_type(settings, &books, volume_type));
    let mut reply = vec![Element::text("capacityState", state)];
    reply.extend(calibration(&capacity));
    reply.extend(figure(settings));
    reply.extend(space(settings, &model, call.plane.room()));
    reply.extend(health.map(store_health));
    reply.push(account(settings, model.account_amounts(settings)));
    reply.push(Element::list("soldSet", books.lines().iter().map(line)));
    reply.push(Element::list("volumeTypeSet", types));
    Ok(reply)
}

fn calibration(capacity: &Capacity) -> Option<Element> {
    let Capacity::Measured(measured) = capacity else { return None };
    let fields = [
        Element::text("calibrationId", &measured.calibration),
        Element::text("measuredTime", &measured.date),
        Element::text("leftPpm", measured.left_ppm),
    ];
    Some(Element::list("calibration", fields))
}

/// Returns the space for stored bytes, if it is known.
fn space(settings: &Settings, model: &Model, room: Option<Room>) -> Option<Element> {
    let room = room?;
    let Space { total, free } = room.space;
    let oversell = settings.space_oversell;
    let mut fields = vec![
        Element::text("totalBytes", total.0),
        Element::text("freeBytes", free.0),
        Element::text("soldBytes", model.taken_of(&room).0),
        Element::text("oversell", oversell),
    ];
    fields.extend(oversell.for_sale(total).map(|bytes| Element::text("forSaleBytes", bytes.0)));
    Some(Element::list("space", fields))
}

/// Returns the state of the store itself, beside its volumes.
fn store_health(health: StoreHealth) -> Element {
    let [unfinished, no_space, damaged] = health.troubles().map(|(_, count)| count);
    let fields = [
        Element::text("unfinished", unfinished),
        Element::text("noSpace", no_space),
        Element::text("damagedSectors", damaged),
        Element::text("copiesMended", health.copies_mended),
        Element::text("volumesSalvaged", health.volumes_salvaged),
    ];
    Element::list("storeHealth", fields)
}

fn figure(settings: &Settings) -> Option<Element> {
    let figure = settings.figure?;
    let fields = [
        Element::text("iops", figure.operations_per_second()),
        Element::text("throughput", figure.mibps()),
    ];
    Some(Element::list("operatorFigure", fields))
}

/// Returns what the account's volumes have, and its quotas.
fn account(settings: &Settings, used: Amounts) -> Element {
    let quotas = settings.account_quotas.amounts();
    let all = AccountResource::ALL.into_iter().zip(used).zip(quotas);
    let items = all.map(|((resource, used), quota)| {
        let mut fields = vec![
            Element::text("resource", resource),
            Element::text("unit", shortage::quota_unit(resource)),
            Element::text("used", used),
        ];
        fields.extend(quota.map(|quota| Element::text("quota", quota)));
        Element::list("item", fields)
    });
    Element::list("accountSet", items)
}

fn line(line: &Line) -> Element {
    let source = match line.source {
        Source::Calibration => "calibration",
        Source::Operator => "operator",
    };
    let mut fields = vec![
        Element::text("source", source),
        Element::text("resource", line.resource),
        Element::text("unit", shortage::unit(line.resource)),
        Element::text("sold", line.sold),
        Element::text("forSale", line.for_sale),
        Element::text("shortBy", line.short_by()),
    ];
    fields.extend(line.row.words().map(|words| Element::text("row", words)));
    Element::list("item", fields)
}

/// Returns a type that the rules offer or that existing volumes have.
fn of_type(settings: &Settings, books: &Books, volume_type: VolumeType) -> Option<Element> {
    let sold = books.of_type(volume_type);
    let rules = settings.rules.of(volume_type);
    if rules.is_none() && sold.volumes == 0 {
        return None;
    }
    let policy = rules.map(|rules| match rules.reservation {
        Reservation::Nothing => "nothing",
        Reservation::Provisioned => "provisioned",
        Reservation::Baseline => "baseline",
        Reservation::BaseThroughput => "base throughput",
    });
    let fields = [
        Element::text("volumeType", volume_type),
        Element::text("reservation", policy.unwrap_or("by its first rules")),
        Element::text("volumes", sold.volumes),
        Element::text("iops", sold.operations_per_second),
        Element::text("bytesPerSecond", sold.bytes_per_second),
        Element::text("oversell", settings.oversell(volume_type)),
    ];
    Some(Element::list("item", fields))
}
