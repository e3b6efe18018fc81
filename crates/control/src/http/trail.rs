//! CloudTrail over HTTP: JSON 1.1.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use evenkeel_wire::aws::sigv4;
use serde_json::{Value, json};
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::{Shared, admit, authentic, request_id, respond};
use crate::api::error::ApiError;
use crate::cloudwatch::forms::translated;
use crate::direct::Answer;
use crate::trail::{ACTION, SERVICE, TARGET};

const TARGET_HEADER: &str = "x-amz-target";

/// Returns the action of a request for CloudTrail.
fn action(request: &Request) -> Option<&str> {
    request.headers().get(TARGET_HEADER)?.to_str().ok()?.strip_prefix(TARGET)
}

/// Returns whether a request on the path of the EC2 API is for CloudTrail.
pub fn is_for(request: &Request) -> bool {
    action(request).is_some()
}

/// Serves the only action.
pub async fn trail(shared: &Shared, slot: &Arc<Slot>, request: Request) -> Response {
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let (result, in_flight) = answer(shared, slot, request, &request_id).await;
    let (status, value) = match result {
        Ok(value) => (200, value),
        Err(error) => {
            let error = translated(error.in_json());
            debug!(request_id, code = error.code, message = error.message, "refused");
            (error.status, json!({ "__type": error.code, "message": error.message }))
        }
    };
    let content_type = "application/x-amz-json-1.1";
    let headers = Vec::new();
    let answer = Answer { status, headers, content_type, body: value.to_string().into_bytes() };
    respond(answer, in_flight, request_id)
}

async fn answer(
    shared: &Shared,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Result<Value, ApiError>, Option<InFlight>) {
    let name = action(&request).unwrap_or_default().to_owned();
    let check = |signed: &sigv4::Request<'_>| shared.api.signer(signed, SERVICE, slot.address);
    let (head, body) = request.into_parts();
    let checked = authentic((shared, slot), (&head, body), SERVICE, check).await;
    let (caller, body) = match checked {
        Ok(checked) => checked,
        Err(error) => return (Err(error), None),
    };
    let in_flight = match admit((shared, slot), |_| Ok(())).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (Err(error), in_flight),
    };
    if name != ACTION {
        let text = format!("The action {name} of CloudTrail is not supported; {ACTION} is.");
        return (Err(ApiError::new("InvalidAction", text)), Some(in_flight));
    }
    let id = request_id.to_owned();
    let result = shared.run(false, move |api| api.lookup_events(&caller, &body, &id)).await;
    (result, Some(in_flight))
}
