//! DescribeSnapshotAttribute, ModifySnapshotAttribute, ResetSnapshotAttribute. There is one
//! account, so the accounts that a snapshot is shared with are a label.

use std::collections::BTreeSet;

use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::{Command, EVERYONE};

pub const DESCRIBE: Action =
    Action { name: "DescribeSnapshotAttribute", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifySnapshotAttribute", mutates: true, run: modify };
pub const RESET: Action = Action { name: "ResetSnapshotAttribute", mutates: true, run: reset };

/// The only attribute that can be changed.
const PERMISSION: &str = "createVolumePermission";
/// Number of digits of an account's id.
const ACCOUNT_DIGITS: usize = 12;

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    let attribute = call.args.required("Attribute")?;
    call.args.done()?;
    let model = call.plane.model();
    let snapshot = model.snapshot(id)?;
    let item = |account: &String| {
        let name = if account == EVERYONE { "group" } else { "userId" };
        Element::list("item", [Element::text(name, account)])
    };
    let value = match attribute.as_str() {
        PERMISSION => Element::list(PERMISSION, snapshot.shared_with.iter().map(item)),
        "productCodes" => Element::new("productCodes"),
        other => return Err(unknown_attribute(other)),
    };
    Ok(vec![Element::text("snapshotId", id), value])
}

fn modify(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let args = &mut call.args;
    let id = args.snapshot_id("SnapshotId")?;
    let attribute = args.text("Attribute");
    let mut add = accounts(args, "CreateVolumePermission.Add")?;
    let mut remove = accounts(args, "CreateVolumePermission.Remove")?;
    let operation = args.text("OperationType");
    let mut named: BTreeSet<String> = args.list("UserId").into_iter().collect();
    named.extend(args.list("UserGroup"));
    args.done()?;
    if let Some(other) = attribute.filter(|attribute| attribute != PERMISSION) {
        return Err(unknown_attribute(&other));
    }
    for account in &named {
        check_account(account)?;
    }
    match operation.as_deref() {
        Some("add") => add.extend(named),
        Some("remove") => remove.extend(named),
        None if named.is_empty() => {}
        other => {
            let text = format!(
                "Value ({}) for parameter operationType is invalid. Must be add or \
                 remove.",
                other.unwrap_or_default()
            );
            return Err(ApiError::value(text));
        }
    }
    if add.is_empty() && remove.is_empty() {
        let text = "The request must name accounts or groups to add or to remove";
        return Err(ApiError::new("MissingParameter", text));
    }
    call.execute(&Command::ShareSnapshot { id, add, remove: Some(remove) })?;
    Ok(view::success())
}

fn reset(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.snapshot_id("SnapshotId")?;
    let attribute = call.args.required("Attribute")?;
    call.args.done()?;
    if attribute != PERMISSION {
        return Err(unknown_attribute(&attribute));
    }
    call.execute(&Command::ShareSnapshot { id, add: BTreeSet::new(), remove: None })?;
    Ok(view::success())
}

/// Returns the accounts and groups of a list of structures.
fn accounts(args: &mut Args, name: &str) -> Result<BTreeSet<String>, ApiError> {
    let mut accounts = BTreeSet::new();
    for (number, mut fields) in args.structures(name) {
        for account in [fields.text("UserId"), fields.text("Group")].into_iter().flatten() {
            check_account(&account)?;
            accounts.insert(account);
        }
        fields.structure_done(&format!("{name}.{number}."))?;
    }
    Ok(accounts)
}

fn check_account(account: &str) -> Result<(), ApiError> {
    let is_id =
        account.len() == ACCOUNT_DIGITS && account.bytes().all(|byte| byte.is_ascii_digit());
    if is_id || account == EVERYONE {
        Ok(())
    } else {
        Err(ApiError::new(
            "InvalidUserID.Malformed",
            format!(
                "Invalid user id: \"{account}\" (expected {ACCOUNT_DIGITS} digits, or the group \
                 {EVERYONE})"
            ),
        ))
    }
}

fn unknown_attribute(name: &str) -> ApiError {
    ApiError::value(format!(
        "Value ({name}) for parameter attribute is invalid. Must be {PERMISSION}; productCodes can \
         be described, too."
    ))
}
