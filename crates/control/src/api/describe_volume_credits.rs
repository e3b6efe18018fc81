//! DescribeVolumeCredits (not an EC2 action): returns the present credit balances of volumes.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Limit};
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Model;
use crate::plane::Plane;
use crate::reconcile;

pub const ACTION: Action = Action { name: "DescribeVolumeCredits", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = call.args.volume_ids("VolumeId")?;
    let page = call.args.page(1, 1_000)?;
    call.args.done()?;
    let (found, token) = {
        let model = call.plane.model();
        model.check_volumes(&ids)?;
        let shown = page.of(&model.volumes, &ids).filter(|volume| volume.is_shown());
        page.cut(shown.map(|volume| volume.id), VolumeId::to_string)
    };
    // Called while the model is not locked.
    let balances = now(call.plane, found.clone())?;
    let model = call.plane.model();
    let items = found
        .into_iter()
        .filter_map(|id| Some(Element::list("item", fields(call.plane, &model, id, &balances)?)))
        .collect();
    Ok(view::paged("volumeCreditSet", items, token))
}

/// Returns the balances that the data plane holds of some volumes.
pub fn now(plane: &Plane, ids: Vec<VolumeId>) -> Result<BTreeMap<VolumeId, Balances>, ApiError> {
    let reports = plane.report_of(ids)?;
    Ok(reports.into_iter().map(|(id, report)| (id, report.balances)).collect())
}

/// Returns one volume's credits; dimensions without credits are omitted.
pub fn fields(
    plane: &Plane,
    model: &Model,
    id: VolumeId,
    balances: &BTreeMap<VolumeId, Balances>,
) -> Option<Vec<Element>> {
    let pacing = reconcile::pacing(&plane.settings, model.volumes.get(&id)?);
    let balances = balances.get(&id).copied().unwrap_or_default();
    let dimensions = [
        ("operations", pacing.operations, balances.operations),
        ("bytes", pacing.bytes, balances.bytes),
    ];
    let shown = dimensions.into_iter().filter_map(|(name, limit, b)| dimension(name, limit, b));
    Some([Element::text("volumeId", id)].into_iter().chain(shown).collect())
}

fn dimension(name: &str, limit: Option<Limit>, balance: Option<u64>) -> Option<Element> {
    let limit = limit?;
    let credit = limit.credit?;
    let balance = balance.map(|balance| Element::text("balance", balance));
    Some(
        Element::list(name, balance)
            .with(Element::text("capacity", credit.capacity))
            .with(Element::text("refillPerSecond", credit.refill_per_second))
            .with(Element::text("burstPerSecond", limit.per_second)),
    )
}
