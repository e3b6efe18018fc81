//! Whether a user may execute an action: the one place at which every request is checked.
//!
//! [`check`] gets the [`Caller`] of a request, the action and its parameters. It finds the
//! resources of the action and the facts that conditions compare ([`needs`]), and lets the user's
//! policies decide on each ([`evenkeel_iam::decide`]). The account's root user has every right, and
//! nothing is evaluated for it.
//!
//! | file | contents |
//! | --- | --- |
//! | [`caller`] | the signer of a request, and its policies |
//! | [`keyring`] | the access keys of users, by their ids |
//! | [`table`] | the resources of every action |
//! | `needs` | the rights that a request needs, each with its facts |
//! | [`message`] | the encoded message of a refusal |

pub mod caller;
pub mod keyring;
#[cfg(test)]
mod matrix;
pub mod message;
mod needs;
pub mod table;

use evenkeel_iam::{Decision, Request, decide};
use evenkeel_wire::agent::StoredVolume;
use evenkeel_wire::aws::query::Params;

pub use self::caller::{Caller, Identity, Principal};
pub use self::keyring::Keyring;
use crate::fis::experiments::Experiments;
use crate::model::{Model, Settings};

/// Why a request is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The ARN of the user.
    pub user: String,
    /// The right that the user lacks.
    pub request: Request,
    /// Whether a statement denies it; otherwise none allows it.
    pub is_explicit: bool,
    /// The statements that deny it: the name of the policy, and that of the statement.
    pub statements: Vec<(String, String)>,
}

impl Refused {
    /// Returns the text of AWS for it.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { user, request: Request { action, resource, .. }, .. } = self;
        let why = if self.is_explicit {
            "with an explicit deny in an identity-based policy".to_owned()
        } else {
            format!("because no identity-based policy allows the {action} action")
        };
        format!("User: {user} is not authorized to perform: {action} on resource: {resource} {why}")
    }
}

/// The known facts of the resources of a request.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// All volumes, snapshots, hosts and users.
    pub model: &'a Model,
    /// The settings of the server.
    pub settings: &'a Settings,
    /// The templates and experiments of FIS.
    pub experiments: &'a Experiments,
    /// The stored bytes that the request makes a volume of, if there are any.
    pub stored: Option<&'a StoredVolume>,
}

/// Checks that the caller may execute an action of a service with these parameters.
///
/// # Errors
/// The first right that the caller lacks.
pub fn check(
    caller: &Caller,
    (service, action): (&str, &str),
    params: &Params,
    known: &Known<'_>,
) -> Result<(), Box<Refused>> {
    let Identity::User(principal) = &caller.identity else { return Ok(()) };
    let all = needs::of(caller, principal, (service, action), params, known);
    all.into_iter().try_for_each(|request| allowed(principal, request))
}

fn allowed(principal: &Principal, request: Request) -> Result<(), Box<Refused>> {
    let verdict = decide(principal.policies.iter().map(|named| &named.policy), &request);
    if verdict.decision == Decision::Allowed {
        return Ok(());
    }
    let name = |number: usize| principal.policies.get(number).map(|named| named.name.clone());
    let statements = verdict.statements.iter();
    let statements = statements
        .map(|(number, statement)| (name(*number).unwrap_or_default(), statement.sid.clone()))
        .collect();
    let is_explicit = verdict.decision == Decision::ExplicitDeny;
    let user = principal.arn.clone();
    Err(Box::new(Refused { user, request, is_explicit, statements }))
}
