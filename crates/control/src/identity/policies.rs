//! Actions on policies: a user's own, and managed ones.

use evenkeel_core::time::UnixMs;
use evenkeel_iam::Policy;
use evenkeel_iam::managed::{MANAGED, Managed};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::xml::Element;

use super::Call;
use super::error::validation;
use super::input::{Page, policy_name, time};
use crate::api::error::ApiError;
use crate::model::User;
use crate::model::users::{OWN_POLICIES_MAX, UserChange, UserRefusal};

/// The only version of every managed policy.
const VERSION: &str = "v1";
/// When the managed policies were written: 2026-11-30.
const WRITTEN: UnixMs = UnixMs(1_795_996_800_000);
/// Maximum of bytes of a policy's JSON with its white space.
const DOCUMENT_BYTES_MAX: usize = 64 * OWN_POLICIES_MAX;
/// The key that has no meaning if another node has accepted the connection.
const SOURCE_ADDRESS: &str = "aws:SourceIp";

fn malformed(text: impl Into<String>) -> ApiError {
    ApiError::new("MalformedPolicyDocument", text)
}

/// Checks the length of a policy before it is parsed; `what` names it.
pub(super) fn check_bytes(what: &str, document: &str) -> Result<(), ApiError> {
    let bytes = document.len();
    if bytes <= DOCUMENT_BYTES_MAX {
        return Ok(());
    }
    let text = format!("{what} has {bytes} bytes; it must have {DOCUMENT_BYTES_MAX} at most");
    Err(validation(text))
}

/// PutUserPolicy. A policy with an element that would not be evaluated is refused.
pub fn put(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let policy = policy_name(&mut call.args)?;
    let document = call.args.required("PolicyDocument")?;
    call.args.done()?;
    check_bytes("the policy", &document)?;
    let parsed = Policy::parse(&document).map_err(|why| malformed(why.to_string()))?;
    let mut keys = parsed.statements().iter().flat_map(|statement| statement.keys());
    if call.plane.nodes().is_some() && keys.any(|key| key.eq_ignore_ascii_case(SOURCE_ADDRESS)) {
        return Err(malformed(format!(
            "the condition key {SOURCE_ADDRESS} is not evaluated in a cluster: a request may come \
             through another node, which hides the client's address"
        )));
    }
    call.plane.change_user(&name, &UserChange::PutPolicy { policy, document })?;
    Ok(Vec::new())
}

/// GetUserPolicy.
pub fn own(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let policy = policy_name(&mut call.args)?;
    call.args.done()?;
    let model = call.plane.model();
    let user = model.user(&name)?;
    let document = user.policies.get(&policy);
    let document = document.ok_or_else(|| UserRefusal::NoPolicy(policy.clone()))?;
    Ok(vec![
        Element::text("UserName", &user.name),
        Element::text("PolicyName", &policy),
        Element::text("PolicyDocument", query::url_encoded(document)),
    ])
}

/// ListUserPolicies.
pub fn list_own(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    let model = call.plane.model();
    let names = model.user(&name)?.policies.keys();
    Ok(page.list("PolicyNames", names.map(|name| (name.clone(), Element::text("member", name)))))
}

/// DeleteUserPolicy.
pub fn delete(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let policy = policy_name(&mut call.args)?;
    call.args.done()?;
    call.plane.change_user(&name, &UserChange::RemovePolicy { policy })?;
    Ok(Vec::new())
}

/// AttachUserPolicy.
pub fn attach(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let arn = call.args.required("PolicyArn")?;
    call.args.done()?;
    call.plane.change_user(&name, &UserChange::Attach { arn })?;
    Ok(Vec::new())
}

/// DetachUserPolicy.
pub fn detach(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let arn = call.args.required("PolicyArn")?;
    call.args.done()?;
    call.plane.change_user(&name, &UserChange::Detach { arn })?;
    Ok(Vec::new())
}

/// ListAttachedUserPolicies.
pub fn list_attached(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("UserName")?;
    let prefix = call.args.text("PathPrefix").unwrap_or_default();
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    let model = call.plane.model();
    let attached = model.user(&name)?.attached.iter();
    let attached = attached.filter_map(|arn| Managed::with_arn(arn));
    let all = attached.filter(|managed| managed.path.starts_with(&prefix)).map(|managed| {
        let arn = managed.arn();
        let fields = [Element::text("PolicyName", managed.name), Element::text("PolicyArn", &arn)];
        (arn, Element::list("member", fields))
    });
    Ok(page.list("AttachedPolicies", all))
}

/// ListPolicies: the managed policies, which are all `AWS`.
pub fn list_managed(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let scope = call.args.text("Scope").unwrap_or_else(|| "All".into());
    let is_only_attached = call.args.boolean("OnlyAttached")?.unwrap_or(false);
    let prefix = call.args.text("PathPrefix").unwrap_or_default();
    let usage = call.args.text("PolicyUsageFilter").unwrap_or_default();
    let page = Page::of(&mut call.args)?;
    call.args.done()?;
    if !["All", "AWS", "Local"].contains(&scope.as_str()) {
        return Err(validation(format!("Scope is '{scope}'; it must be All, AWS or Local")));
    }
    let model = call.plane.model();
    let is_shown = |managed: &&Managed| {
        scope != "Local"
            && usage != "PermissionsBoundary"
            && managed.path.starts_with(&prefix)
            && (!is_only_attached || attachments(model.users.values(), managed) > 0)
    };
    let mut shown: Vec<&Managed> = MANAGED.iter().filter(is_shown).collect();
    shown.sort_by_key(|managed| managed.arn());
    let item = |managed: &Managed| {
        let fields = managed_fields(model.users.values(), managed);
        (managed.arn(), Element::list("member", fields))
    };
    Ok(page.list("Policies", shown.into_iter().map(item)))
}

/// GetPolicy.
pub fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let arn = call.args.required("PolicyArn")?;
    call.args.done()?;
    let managed = found(&arn)?;
    let model = call.plane.model();
    let description = Element::text("Description", managed.description);
    let fields = managed_fields(model.users.values(), managed).into_iter().chain([description]);
    Ok(vec![Element::list("Policy", fields)])
}

/// GetPolicyVersion.
pub fn describe_version(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let arn = call.args.required("PolicyArn")?;
    let version = call.args.required("VersionId")?;
    call.args.done()?;
    let managed = found(&arn)?;
    if version != VERSION {
        let text = format!("Policy {arn} version {version} does not exist; {VERSION} does.");
        return Err(ApiError { status: 404, ..ApiError::new("NoSuchEntity", text) });
    }
    let fields = [
        Element::text("Document", query::url_encoded(managed.document)),
        Element::text("VersionId", VERSION),
        Element::text("IsDefaultVersion", true),
        time("CreateDate", WRITTEN),
    ];
    Ok(vec![Element::list("PolicyVersion", fields)])
}

fn found(arn: &str) -> Result<&'static Managed, ApiError> {
    Managed::with_arn(arn).ok_or_else(|| {
        let text = format!("Policy {arn} was not found.");
        ApiError { status: 404, ..ApiError::new("NoSuchEntity", text) }
    })
}

fn attachments<'a>(users: impl Iterator<Item = &'a User>, managed: &Managed) -> usize {
    let arn = managed.arn();
    users.filter(|user| user.attached.contains(&arn)).count()
}

fn managed_fields<'a>(users: impl Iterator<Item = &'a User>, managed: &Managed) -> [Element; 10] {
    [
        Element::text("PolicyName", managed.name),
        Element::text("PolicyId", managed.id),
        Element::text("Arn", managed.arn()),
        Element::text("Path", managed.path),
        Element::text("DefaultVersionId", VERSION),
        Element::text("AttachmentCount", attachments(users, managed)),
        Element::text("PermissionsBoundaryUsageCount", 0),
        Element::text("IsAttachable", true),
        time("CreateDate", WRITTEN),
        time("UpdateDate", WRITTEN),
    ]
}
