//! Encryption by default, and its key. The store has one key, which the operator provides.

use evenkeel_wire::aws::xml::Element;

use super::args::check_key;
use super::error::ApiError;
use super::{Action, Call};
use crate::model::{Command, Refusal};

pub const ENABLE: Action =
    Action { name: "EnableEbsEncryptionByDefault", mutates: true, run: |call| set(call, true) };
pub const DISABLE: Action =
    Action { name: "DisableEbsEncryptionByDefault", mutates: true, run: |call| set(call, false) };
pub const GET: Action = Action { name: "GetEbsEncryptionByDefault", mutates: false, run: get };
pub const GET_KEY: Action = Action { name: "GetEbsDefaultKmsKeyId", mutates: false, run: get_key };
pub const MODIFY_KEY: Action =
    Action { name: "ModifyEbsDefaultKmsKeyId", mutates: true, run: modify_key };
pub const RESET_KEY: Action =
    Action { name: "ResetEbsDefaultKmsKeyId", mutates: true, run: get_key };

fn set(call: &mut Call<'_>, is_on: bool) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    call.execute(&Command::SetEncryptByDefault(is_on))?;
    Ok(vec![Element::text("ebsEncryptionByDefault", is_on)])
}

fn get(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    let is_on = call.plane.settings.encrypts_by_default(call.plane.model().account);
    let kind = if is_on { "sse-kms" } else { "none" };
    Ok(vec![Element::text("ebsEncryptionByDefault", is_on), Element::text("sseType", kind)])
}

fn modify_key(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("KmsKeyId")?;
    call.args.done()?;
    check_key(&call.plane.settings, &name)?;
    get_key(call)
}

fn get_key(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    let settings = &call.plane.settings;
    let key = settings.key.as_ref().ok_or(Refusal::NoKey)?;
    Ok(vec![Element::text("kmsKeyId", key.arn(settings))])
}
