//! The errors of the EBS direct APIs: a type, a reason of that type, and a text.

use evenkeel_wire::agent::{Failed, FailedKind};
use evenkeel_wire::aws::sigv4::SignatureError;
use serde_json::json;
use tracing::error;

use super::Answer;
use crate::api::Unauthorized;
use crate::api::error::ApiError;
use crate::model::Refusal;
use crate::plane::PlaneError;
use crate::trail::{NoRoom, Recorded};

/// An error reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectError {
    /// HTTP status.
    pub status: u16,
    /// Its type, for example `ValidationException`.
    pub kind: &'static str,
    /// The reason, one of those of its type.
    pub reason: Option<&'static str>,
    /// The text.
    pub message: String,
}

impl DirectError {
    fn new(
        status: u16,
        kind: &'static str,
        reason: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self { status, kind, reason, message: message.into() }
    }

    /// Creates the error of an invalid request, with this reason.
    pub fn invalid(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(400, "ValidationException", Some(reason), message)
    }

    /// Creates the error of a parameter that is missing, unknown, or has an illegal value.
    pub fn parameter(message: impl Into<String>) -> Self {
        Self::invalid("INVALID_PARAMETER_VALUE", message)
    }

    /// Creates the error of a block that does not match its length or checksum.
    pub fn block(message: impl Into<String>) -> Self {
        Self::invalid("INVALID_BLOCK", message)
    }

    /// Creates the error of an invalid snapshot id, or of a snapshot whose state does not allow the
    /// operation.
    pub fn snapshot(message: impl Into<String>) -> Self {
        Self::invalid("INVALID_SNAPSHOT_ID", message)
    }

    /// Creates the error of an unknown operation.
    #[must_use]
    pub fn unknown_operation(method: &str, path: &str) -> Self {
        let message = format!("{method} {path} is no operation of the EBS direct APIs");
        Self::new(404, "UnknownOperationException", None, message)
    }

    /// Creates the error of too many requests under way. SDKs try again by themselves.
    pub fn throttled(message: impl ToString) -> Self {
        let reason = Some("ACCOUNT_THROTTLED");
        Self::new(400, "RequestThrottledException", reason, message.to_string())
    }

    /// Creates the error of a body that did not arrive.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::invalid("WRITE_REQUEST_TIMEOUT", message)
    }

    fn quota(message: impl Into<String>) -> Self {
        Self::new(
            402,
            "ServiceQuotaExceededException",
            Some("DEPENDENCY_SERVICE_QUOTA_EXCEEDED"),
            message,
        )
    }

    /// Creates the error of a failed server, and logs the reason.
    pub fn internal(reason: impl ToString) -> Self {
        let reason = reason.to_string();
        error!(reason, "a request failed");
        let message = format!("An internal error has occurred: {reason}");
        Self::new(500, "InternalServerException", None, message)
    }

    /// Returns the reply.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let Self { status, kind, reason, message } = self;
        let value = match reason {
            Some(reason) => json!({ "Message": message, "Reason": reason }),
            None => json!({ "Message": message }),
        };
        let headers = vec![("x-amzn-errortype", (*kind).to_owned())];
        Answer { headers, ..Answer::json(*status, &value) }
    }
}

impl DirectError {
    /// Returns whether it is an error of the request's signature.
    #[must_use]
    pub fn is_of_signature(&self) -> bool {
        const KINDS: [&str; 4] = [
            "IncompleteSignatureException",
            "InvalidSignatureException",
            "MissingAuthenticationTokenException",
            "UnrecognizedClientException",
        ];
        KINDS.contains(&self.kind)
    }
}

impl From<SignatureError> for DirectError {
    fn from(error: SignatureError) -> Self {
        let kind = match error {
            SignatureError::Missing => "MissingAuthenticationTokenException",
            SignatureError::Incomplete(_) => "IncompleteSignatureException",
            SignatureError::UnknownKey { .. } => "UnrecognizedClientException",
            SignatureError::WrongScope(_)
            | SignatureError::Expired(_)
            | SignatureError::Mismatch => "InvalidSignatureException",
        };
        // The same texts as EC2's.
        Self::new(403, kind, None, ApiError::from(error).message)
    }
}

impl From<NoRoom> for DirectError {
    fn from(NoRoom(why): NoRoom) -> Self {
        Self::new(500, "InternalServerException", None, why)
    }
}

impl Recorded for DirectError {
    fn code_and_text(&self) -> (&str, &str) {
        (self.kind, &self.message)
    }
}

impl From<Unauthorized> for DirectError {
    fn from(unauthorized: Unauthorized) -> Self {
        let reason = Some("UNAUTHORIZED_ACCOUNT");
        Self::new(403, "AccessDeniedException", reason, unauthorized.text)
    }
}

impl From<PlaneError> for DirectError {
    fn from(error: PlaneError) -> Self {
        match error {
            PlaneError::Refused(refusal @ Refusal::TooManySignatures(_)) => {
                Self::throttled(ApiError::from(refusal).message)
            }
            PlaneError::Refused(refusal) => refusal.into(),
            PlaneError::Busy(_) => Self::throttled(error),
            PlaneError::Agent(Failed { kind, message }) => match kind {
                FailedKind::NoSpace => Self::quota(message),
                FailedKind::Unsupported => Self::parameter(message),
                FailedKind::NotFound => {
                    let kind = "ResourceNotFoundException";
                    let reason = "SNAPSHOT_NOT_FOUND";
                    Self::new(404, kind, Some(reason), message)
                }
                FailedKind::Refused | FailedKind::Damaged => Self::snapshot(message),
                _ => Self::internal(message),
            },
            other => Self::internal(other),
        }
    }
}

impl From<Refusal> for DirectError {
    fn from(refusal: Refusal) -> Self {
        let of = |refusal: &Refusal| match refusal {
            Refusal::SnapshotsNotFound(_) => {
                (404, "ResourceNotFoundException", Some("SNAPSHOT_NOT_FOUND"))
            }
            Refusal::NotFilling(..)
            | Refusal::SnapshotUnready(..)
            | Refusal::SnapshotArchived(_) => {
                (400, "ValidationException", Some("INVALID_SNAPSHOT_ID"))
            }
            Refusal::NoUnit { .. } => (400, "ValidationException", Some("INVALID_BLOCK")),
            Refusal::BelowSnapshot { .. } => {
                (400, "ValidationException", Some("INVALID_VOLUME_SIZE"))
            }
            Refusal::TooManyTags(_) => (400, "ValidationException", Some("INVALID_TAG")),
            Refusal::TooManyFilling => (400, "ConcurrentLimitExceededException", None),
            Refusal::TokenReused(_) => (409, "ConflictException", None),
            Refusal::TooManySnapshots | Refusal::SpaceForSnapshot { .. } => {
                (402, "ServiceQuotaExceededException", Some("DEPENDENCY_SERVICE_QUOTA_EXCEEDED"))
            }
            Refusal::NoKey => (400, "ValidationException", Some("INVALID_PARAMETER_VALUE")),
            _ => (500, "InternalServerException", None),
        };
        let (status, kind, reason) = of(&refusal);
        Self::new(status, kind, reason, ApiError::from(refusal).message)
    }
}
