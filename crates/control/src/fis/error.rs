//! The errors of FIS: a type and a text.

use serde_json::json;
use tracing::error;

use crate::api::Unauthorized;
use crate::api::error::ApiError;
use crate::cloudwatch::forms::translated;
use crate::direct::Answer;
use crate::trail::{NoRoom, Recorded};

/// An error reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FisError {
    /// HTTP status.
    pub status: u16,
    /// Its type, for example `ValidationException`.
    pub kind: &'static str,
    /// The text.
    pub message: String,
}

impl FisError {
    /// Creates the error of an invalid request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { status: 400, kind: "ValidationException", message: message.into() }
    }

    /// Creates the error of an element that FIS has and this server does not execute.
    #[must_use]
    pub fn unsupported(what: &str) -> Self {
        Self::invalid(format!("This server does not support {what}."))
    }

    /// Creates the error of a server that is not for tests.
    #[must_use]
    pub fn not_a_test(text: &str) -> Self {
        Self { kind: "UnsupportedOperationException", ..Self::invalid(text) }
    }

    /// Creates the error of an object that does not exist.
    #[must_use]
    pub fn not_found(kind: &str, id: &str) -> Self {
        let id: String = id.chars().take(64).collect();
        let message = format!("The {kind} '{id}' does not exist. A restart removes all of them.");
        Self { status: 404, kind: "ResourceNotFoundException", message }
    }

    /// Creates the error of a client token that another request had.
    #[must_use]
    pub fn token_reused() -> Self {
        let message =
            "An earlier request with this clientToken was another one; use a new token.".to_owned();
        Self { status: 409, kind: "ConflictException", message }
    }

    /// Creates the error of a maximum that is reached.
    #[must_use]
    pub fn quota(message: String) -> Self {
        Self { status: 402, kind: "ServiceQuotaExceededException", message }
    }

    /// Creates the error of a failed server, and logs the reason.
    #[must_use]
    pub fn internal(reason: &str) -> Self {
        error!(reason, "a request failed");
        let message = format!("An internal error has occurred: {reason}");
        Self { status: 500, kind: "InternalServerException", message }
    }

    /// Returns the reply.
    #[must_use]
    pub fn answer(&self) -> Answer {
        let Self { status, kind, message } = self;
        let headers = vec![("x-amzn-errortype", (*kind).to_owned())];
        Answer { headers, ..Answer::json(*status, &json!({ "message": message })) }
    }
}

impl From<ApiError> for FisError {
    fn from(error: ApiError) -> Self {
        // CloudWatch names the errors of throttling as FIS does.
        let ApiError { status, code, message } = translated(error.in_json());
        Self { status, kind: code, message }
    }
}

impl From<NoRoom> for FisError {
    fn from(NoRoom(why): NoRoom) -> Self {
        Self { status: 500, kind: "InternalServerException", message: why }
    }
}

impl From<Unauthorized> for FisError {
    fn from(unauthorized: Unauthorized) -> Self {
        Self { status: 403, kind: "AccessDeniedException", message: unauthorized.text }
    }
}

impl Recorded for FisError {
    fn code_and_text(&self) -> (&str, &str) {
        (self.kind, &self.message)
    }
}
