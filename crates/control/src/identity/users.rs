//! Actions on users and their access keys.

use evenkeel_wire::aws::xml::Element;

use super::error::validation;
use super::input::{Page, new_user_name, path, time};
use super::{Call, user_name};
use crate::api::error::ApiError;
use crate::credentials::Credentials;
use crate::model::User;
use crate::model::users::{AccessKey, Secret, UserChange};
use crate::plane::PlaneError;
use crate::random;
use crate::rights::Identity;

/// The beginning of the ids of users, as at AWS, and the number of letters after it.
const USER_ID: &str = "AIDA";
const USER_ID_LETTERS: usize = 17;

pub fn create(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = new_user_name(call.args.required("UserName")?)?;
    let path = path(&mut call.args)?;
    call.args.unsupported(&["PermissionsBoundary", "Tags.member.1.Key", "Tags.member.1.Value"])?;
    call.args.done()?;
    let letters = random::text(USER_ID_LETTERS, random::LETTERS).map_err(PlaneError::from)?;
    let id = format!("{USER_ID}{letters}");
    call.plane.change_user(&name, &UserChange::Create { path, id })?;
    Ok(vec![shown(call, &name, "User")?])
}

pub fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.text("UserName");
    call.args.done()?;
    match (name, &call.caller.identity) {
        (Some(name), _) => Ok(vec![shown(call, &name, "User")?]),
        (None, Identity::User(principal)) => Ok(vec![shown(call, &principal.name, "User")?]),
        (None, Identity::Root) => {
            let identity = &call.caller.identity;
            let since = call.plane.model().local_host().map(|host| host.registered);
            let fields = [
                Element::text("Path", "/"),
                Element::text("UserId", identity.id(call.account())),
                Element::text("Arn", identity.arn(call.account())),
                time("CreateDate", since.unwrap_or_default()),
            ];
            Ok(vec![Element::list("User", fields)])
        }
    }
}

pub fn list(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let prefix = call.args.text("PathPrefix").unwrap_or_default();
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    let model = call.plane.model();
    let all = model.users.iter().filter(|(_, user)| user.path.starts_with(&prefix));
    let all =
        all.map(|(key, user)| (key.clone(), Element::list("member", fields(user, call.account()))));
    Ok(page.list("Users", all))
}

pub fn delete(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    call.args.done()?;
    call.plane.change_user(&name, &UserChange::Delete)?;
    Ok(Vec::new())
}

/// ListGroupsForUser: there are no groups. Tools ask before they delete a user.
pub fn list_groups(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    call.plane.model().user(&name)?;
    Ok(page.list("Groups", []))
}

pub fn create_key(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = user_name(call)?;
    call.args.done()?;
    let Credentials { access_key_id: id, secret_access_key } =
        Credentials::random().map_err(PlaneError::from)?;
    let secret = Secret(secret_access_key);
    call.plane.change_user(&name, &UserChange::AddKey { id: id.clone(), secret })?;
    let model = call.plane.model();
    let user = model.user(&name)?;
    let key = user.keys.iter().find(|key| key.id == id);
    let key = key.ok_or_else(|| ApiError::internal("the new key is gone"))?;
    let secret = Element::text("SecretAccessKey", &key.secret.0);
    let fields = key_fields(user, key).into_iter().chain([secret]);
    Ok(vec![Element::list("AccessKey", fields)])
}

pub fn list_keys(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.text("UserName");
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    let name = match (name, &call.caller.identity) {
        (Some(name), _) => name,
        (None, Identity::User(principal)) => principal.name.clone(),
        (None, Identity::Root) => {
            let id = &call.root.access_key_id;
            let since = call.plane.model().local_host().map(|host| host.registered);
            let fields = [
                Element::text("AccessKeyId", id),
                Element::text("Status", "Active"),
                time("CreateDate", since.unwrap_or_default()),
            ];
            let all = [(id.clone(), Element::list("member", fields))];
            return Ok(page.list("AccessKeyMetadata", all));
        }
    };
    let model = call.plane.model();
    let user = model.user(&name)?;
    let mut keys: Vec<&AccessKey> = user.keys.iter().collect();
    keys.sort_by_key(|key| &key.id);
    let item = |key: &AccessKey| (key.id.clone(), Element::list("member", key_fields(user, key)));
    Ok(page.list("AccessKeyMetadata", keys.into_iter().map(item)))
}

pub fn update_key(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = user_name(call)?;
    let id = call.args.required("AccessKeyId")?;
    let status = call.args.required("Status")?;
    call.args.done()?;
    let is_active = match status.as_str() {
        "Active" => true,
        "Inactive" => false,
        other => {
            let text = format!("Status is '{other}'; it must be Active or Inactive");
            return Err(validation(text));
        }
    };
    call.plane.change_user(&name, &UserChange::SetKey { id, is_active })?;
    Ok(Vec::new())
}

pub fn delete_key(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = user_name(call)?;
    let id = call.args.required("AccessKeyId")?;
    call.args.done()?;
    call.plane.change_user(&name, &UserChange::RemoveKey { id })?;
    Ok(Vec::new())
}

fn shown(call: &Call<'_>, name: &str, element: &str) -> Result<Element, ApiError> {
    let model = call.plane.model();
    Ok(Element::list(element, fields(model.user(name)?, call.account())))
}

fn fields(user: &User, account: &str) -> [Element; 5] {
    [
        Element::text("Path", &user.path),
        Element::text("UserName", &user.name),
        Element::text("UserId", &user.id),
        Element::text("Arn", user.arn(account)),
        time("CreateDate", user.created),
    ]
}

fn key_fields(user: &User, key: &AccessKey) -> [Element; 4] {
    [
        Element::text("UserName", &user.name),
        Element::text("AccessKeyId", &key.id),
        Element::text("Status", if key.is_active { "Active" } else { "Inactive" }),
        time("CreateDate", key.created),
    ]
}
