//! IAM's error codes and texts.

use crate::api::error::ApiError;
use crate::model::users::{ATTACHED_MAX, KEYS_MAX, OWN_POLICIES_MAX, USERS_MAX, UserRefusal};
use crate::plane::UserError;

/// Returns the error of a parameter with an illegal value.
pub fn validation(text: impl Into<String>) -> ApiError {
    ApiError::new("ValidationError", text)
}

fn absent(text: impl Into<String>) -> ApiError {
    ApiError { status: 404, ..ApiError::new("NoSuchEntity", text) }
}

fn conflict(code: &'static str, text: impl Into<String>) -> ApiError {
    ApiError { status: 409, ..ApiError::new(code, text) }
}

impl From<UserError> for ApiError {
    fn from(error: UserError) -> Self {
        match error {
            UserError::Refused(refusal) => refusal.into(),
            UserError::Failed(error) => error.into(),
        }
    }
}

impl From<UserRefusal> for ApiError {
    fn from(refusal: UserRefusal) -> Self {
        let limit = |text: String| conflict("LimitExceeded", text);
        match refusal {
            UserRefusal::NoUser(name) => {
                absent(format!("The user with name {name} cannot be found."))
            }
            UserRefusal::UserExists(name) => {
                conflict("EntityAlreadyExists", format!("User with name {name} already exists."))
            }
            UserRefusal::TooManyUsers => {
                limit(format!("Cannot exceed quota for UsersPerAccount: {USERS_MAX}"))
            }
            UserRefusal::TooManyKeys => {
                limit(format!("Cannot exceed quota for AccessKeysPerUser: {KEYS_MAX}"))
            }
            UserRefusal::NoKey(id) => {
                absent(format!("The Access Key with id {id} cannot be found."))
            }
            UserRefusal::NoPolicy(name) => {
                absent(format!("The user policy with name {name} cannot be found."))
            }
            UserRefusal::NoManagedPolicy(arn) => {
                absent(format!("Policy {arn} does not exist or is not attached."))
            }
            UserRefusal::TooManyAttached => {
                limit(format!("Cannot exceed quota for PoliciesPerUser: {ATTACHED_MAX}"))
            }
            UserRefusal::PoliciesTooLong { characters } => limit(format!(
                "Maximum policy size of {OWN_POLICIES_MAX} bytes exceeded: all policies of the \
                 user have {characters} characters without white space"
            )),
            UserRefusal::Has(what) => {
                let text = format!("Cannot delete entity, must delete {what} first.");
                conflict("DeleteConflict", text)
            }
        }
    }
}
