//! IAM and STS: users, their keys and policies, and who signs a request.
//!
//! Query protocol, by GET or POST; replies are XML. [`Api::prepare_identity`] verifies a signature
//! and finds the action, [`Api::admit_identity`] refuses repeated signatures of changes, and
//! [`Api::run_identity`] executes the action. `docs/reference/api.md` lists the supported features.
//!
//! | file | contents |
//! | --- | --- |
//! | `users` | actions on users and their keys |
//! | `policies` | actions on policies |
//! | `simulate` | SimulatePrincipalPolicy |
//! | `sts` | the actions of STS |
//! | `input` | parameters of IAM |
//! | `error` | errors of IAM |

mod error;
mod input;
mod policies;
mod simulate;
mod sts;
mod users;

use std::net::IpAddr;

use evenkeel_wire::aws::query::Params;
use evenkeel_wire::aws::sigv4::{self, Verified};
use evenkeel_wire::aws::xml::Element;

use crate::api::args::Args;
use crate::api::authentic::parameters;
use crate::api::error::ApiError;
use crate::api::{Api, Denied, Unauthorized};
use crate::credentials::Credentials;
use crate::events::During;
use crate::plane::Plane;
use crate::rights::{Caller, Identity};
use crate::trail::Asked;
use evenkeel_os::clock;

/// One of the two services.
#[derive(Debug)]
pub struct Service {
    /// Its name in signatures.
    pub name: &'static str,
    /// The version of its API.
    version: &'static str,
    namespace: &'static str,
    actions: &'static [Action],
}

/// An action.
#[derive(Debug)]
pub struct Action {
    /// Its name.
    pub name: &'static str,
    /// Whether it changes anything.
    pub mutates: bool,
    /// Whether every signer may execute it.
    is_free: bool,
    run: fn(&mut Call<'_>) -> Result<Vec<Element>, ApiError>,
}

const fn reads(name: &'static str, run: Run) -> Action {
    Action { name, mutates: false, is_free: false, run }
}

const fn changes(name: &'static str, run: Run) -> Action {
    Action { name, mutates: true, is_free: false, run }
}

type Run = fn(&mut Call<'_>) -> Result<Vec<Element>, ApiError>;

/// IAM.
pub static IAM: Service = Service {
    name: "iam",
    version: "2010-05-08",
    namespace: "https://iam.amazonaws.com/doc/2010-05-08/",
    actions: &[
        changes("AttachUserPolicy", policies::attach),
        changes("CreateAccessKey", users::create_key),
        changes("CreateUser", users::create),
        changes("DeleteAccessKey", users::delete_key),
        changes("DeleteUser", users::delete),
        changes("DeleteUserPolicy", policies::delete),
        changes("DetachUserPolicy", policies::detach),
        reads("GetPolicy", policies::describe),
        reads("GetPolicyVersion", policies::describe_version),
        reads("GetUser", users::describe),
        reads("GetUserPolicy", policies::own),
        reads("ListAccessKeys", users::list_keys),
        reads("ListAttachedUserPolicies", policies::list_attached),
        reads("ListGroupsForUser", users::list_groups),
        reads("ListPolicies", policies::list_managed),
        reads("ListUserPolicies", policies::list_own),
        reads("ListUsers", users::list),
        changes("PutUserPolicy", policies::put),
        reads("SimulatePrincipalPolicy", simulate::run),
        changes("UpdateAccessKey", users::update_key),
    ],
};

/// STS.
pub static STS: Service = Service {
    name: "sts",
    version: "2011-06-15",
    namespace: "https://sts.amazonaws.com/doc/2011-06-15/",
    actions: &[
        reads("DecodeAuthorizationMessage", sts::decode),
        Action { name: "GetCallerIdentity", mutates: false, is_free: true, run: sts::identity },
    ],
};

/// A request in execution.
struct Call<'a> {
    plane: &'a Plane,
    caller: &'a Caller,
    /// The key of the root user.
    root: &'a Credentials,
    args: Args,
}

impl Call<'_> {
    fn account(&self) -> &str {
        &self.plane.settings.account
    }
}

/// An authentic request for an existing action.
pub struct PreparedIdentity {
    service: &'static Service,
    /// The action.
    pub action: &'static Action,
    params: Params,
    verified: Verified,
    caller: Caller,
}

impl Api {
    /// Checks the signature of a request from `address`, and finds the action.
    ///
    /// # Errors
    /// EC2's errors for signatures and parameters; `InvalidAction` for other actions.
    pub fn prepare_identity(
        &self,
        service: &'static Service,
        request: &sigv4::Request<'_>,
        address: IpAddr,
    ) -> Result<PreparedIdentity, ApiError> {
        let (verified, caller) = self.verify(request, service.name, address)?;
        let mut params = parameters(request)?;
        let name = params.take("Action").ok_or_else(ApiError::missing_action)?;
        let action =
            service.actions.iter().find(|action| action.name == name).ok_or_else(|| {
                let known: Vec<&str> = service.actions.iter().map(|action| action.name).collect();
                let upper = service.name.to_uppercase();
                let known = known.join(", ");
                let text =
                    format!("The action {name} of {upper} is not supported; these are: {known}.");
                ApiError::new("InvalidAction", text)
            })?;
        if params.take("Version").as_deref() != Some(service.version) {
            let text = format!("the parameter Version must be {}", service.version);
            return Err(ApiError::new("NoSuchVersion", text));
        }
        Ok(PreparedIdentity { service, action, params, verified, caller })
    }

    /// Checks whether the request may be executed now, as [`Api::admit`] does.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn admit_identity(&self, prepared: &PreparedIdentity) -> Result<(), Denied> {
        if prepared.action.mutates {
            self.replays().take(&prepared.verified, clock::unix_ms())
        } else {
            Ok(())
        }
    }

    /// Executes a request; the result is the reply's document.
    ///
    /// # Errors
    /// The errors of the action; `AccessDenied` if the signer has no right to it.
    pub fn run_identity(
        &self,
        prepared: PreparedIdentity,
        request_id: &str,
    ) -> Result<String, ApiError> {
        let PreparedIdentity { service, action, params, verified, caller } = prepared;
        let _request = During::request(request_id);
        let asked = Asked {
            caller: &caller,
            service: service.name,
            action: action.name,
            is_read_only: !action.mutates,
            params: &params,
            request_id,
        };
        let fields = self.recorded(&asked, || {
            if !action.is_free {
                self.authorize(&asked).map_err(Unauthorized::denied)?;
            }
            self.execute_identity(action, &caller, params.clone(), &verified)
        })?;
        Ok(service.reply(action, fields, request_id))
    }

    fn execute_identity(
        &self,
        action: &Action,
        caller: &Caller,
        params: Params,
        verified: &Verified,
    ) -> Result<Vec<Element>, ApiError> {
        if action.mutates {
            self.keep_ahead(verified)?;
        }
        let root = &self.credentials;
        let args = Args::new(params);
        let mut call = Call { plane: self.plane(), caller, root, args };
        let result = (action.run)(&mut call);
        if let Err(error) = &result
            && action.mutates
            && error.is_the_servers()
        {
            self.replays().failed(verified, error, clock::unix_ms());
        }
        result
    }
}

impl Service {
    fn reply(&self, action: &Action, fields: Vec<Element>, request_id: &str) -> String {
        let name = action.name;
        let mut root = Element::new(&format!("{name}Response"));
        root.namespace = Some(self.namespace.into());
        if !fields.is_empty() {
            root.children.push(Element::list(&format!("{name}Result"), fields));
        }
        let id = Element::text("RequestId", request_id);
        root.children.push(Element::list("ResponseMetadata", [id]));
        root.document()
    }

    /// Returns the reply to a refused request.
    #[must_use]
    pub fn refusal(&self, error: &ApiError, request_id: &str) -> String {
        let side = if error.is_the_servers() { "Receiver" } else { "Sender" };
        let fields = [("Type", side), ("Code", error.code), ("Message", error.message.as_str())];
        let fields = fields.map(|(name, text)| Element::text(name, text));
        let mut root = Element::new("ErrorResponse");
        root.namespace = Some(self.namespace.into());
        root.children.push(Element::list("Error", fields));
        root.children.push(Element::text("RequestId", request_id));
        root.document()
    }
}

/// Returns the name of the user that a request means: the caller without `UserName`.
fn user_name(call: &mut Call<'_>) -> Result<String, ApiError> {
    match (call.args.text("UserName"), &call.caller.identity) {
        (Some(name), _) => Ok(name),
        (None, Identity::User(principal)) => Ok(principal.name.clone()),
        (None, Identity::Root) => {
            Err(error::validation("Must specify userName when calling with non-User credentials"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ACTIONS;
    use crate::cloudwatch::actions;
    use crate::direct::Operation;
    use crate::fis;
    use crate::rights::table::ROWS;
    use crate::trail;

    /// The rights of an action without a row could not be named in a policy.
    #[test]
    fn every_action_that_is_served_has_one_row_of_rights() {
        let mut served: Vec<(&str, &str)> =
            ACTIONS.iter().map(|action| ("ec2", action.name)).collect();
        served.extend(actions::ACTIONS.map(|name| ("monitoring", name)));
        for service in [&IAM, &STS] {
            let named = service.actions.iter().filter(|action| !action.is_free);
            served.extend(named.map(|action| (service.name, action.name)));
            // Records of actions that need no right have a bound.
            let mut free = service.actions.iter().filter(|action| action.is_free);
            assert!(free.all(|action| (service.name, action.name) == trail::UNRESTRICTED));
        }
        let id = "snap-1";
        let operations = [
            Operation::Start,
            Operation::Put(id, "0"),
            Operation::Complete(id),
            Operation::List(id),
            Operation::ListChanged(id),
            Operation::Get(id, "0"),
        ];
        served.extend(operations.map(|operation| ("ebs", operation.name())));
        let id = || "EXT1".to_owned();
        let operations = [
            fis::Operation::CreateTemplate,
            fis::Operation::GetTemplate(id()),
            fis::Operation::ListTemplates,
            fis::Operation::DeleteTemplate(id()),
            fis::Operation::Start,
            fis::Operation::Get(id()),
            fis::Operation::List,
            fis::Operation::Stop(id()),
        ];
        served.extend(operations.map(|operation| (fis::SERVICE, operation.name())));
        served.push((trail::SERVICE, trail::ACTION));
        let mut rows: Vec<(&str, &str)> =
            ROWS.iter().map(|row| (row.signed_for, row.action)).collect();
        served.sort_unstable();
        rows.sort_unstable();
        assert_eq!(served, rows);
    }
}
