//! SetVolumeCredits (not an EC2 action): sets credit balances, so that the end of a burst can be
//! tested.

use evenkeel_core::qos::pacing::Balances;
use evenkeel_wire::aws::xml::Element;

use super::describe_volume_credits as describe;
use super::error::ApiError;
use super::{Action, Call};
use crate::reconcile;

pub const ACTION: Action = Action { name: "SetVolumeCredits", mutates: true, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let id = args.volume_id("VolumeId")?;
    let wanted = Balances { operations: args.number("Operations")?, bytes: args.number("Bytes")? };
    args.done()?;
    let pacing = {
        let model = call.plane.model();
        reconcile::pacing(&call.plane.settings, model.volume(id)?)
    };
    if wanted == Balances::default() {
        return Err(ApiError::missing("Operations or Bytes"));
    }
    for (name, limit, balance) in [
        ("Operations", pacing.operations, wanted.operations),
        ("Bytes", pacing.bytes, wanted.bytes),
    ] {
        let Some(balance) = balance else { continue };
        let Some(credit) = limit.and_then(|limit| limit.credit) else {
            return Err(ApiError::new(
                "InvalidParameterCombination",
                format!("{id} has no credits in the dimension {name}"),
            ));
        };
        if balance > credit.capacity {
            return Err(ApiError::value(format!(
                "Value ({balance}) for parameter {name} is invalid. {id} holds at most {}.",
                credit.capacity
            )));
        }
    }
    if call.dry_run {
        return Err(ApiError::dry_run());
    }
    call.plane.set_balances(id, wanted)?;
    let balances = describe::now(call.plane, vec![id])?;
    let model = call.plane.model();
    let fields = describe::fields(call.plane, &model, id, &balances).unwrap_or_default();
    Ok(vec![Element::list("volumeCredit", fields)])
}
