//! The API of FIS over HTTP.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use evenkeel_wire::aws::sigv4;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::strangers::discard;
use super::{Shared, admit, authentic, request_id, respond};
use crate::api::error::ApiError;
use crate::direct::Answer;
use crate::fis::{FisError, Operation, SERVICE};

/// Maximum number of characters of a path that a message shows.
const PATH_MAX: usize = 200;

/// Serves every operation of FIS.
pub async fn fis(
    State(shared): State<Arc<Shared>>,
    Extension(slot): Extension<Arc<Slot>>,
    request: Request,
) -> Response {
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let (answer, in_flight) = answer(&shared, &slot, request, &request_id).await;
    let answer = answer.unwrap_or_else(|error| {
        debug!(request_id, kind = error.kind, message = error.message, "refused");
        error.answer()
    });
    respond(answer, in_flight, request_id)
}

/// Returns the answer to a request for FIS on a path without an operation; `None` if the request is
/// for another service.
pub fn unknown(request: &Request) -> Option<Response> {
    let authorization = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    if !authorization.contains(&format!("/{SERVICE}/aws4_request")) {
        return None;
    }
    let error = no_operation(request.method(), request.uri().path());
    let answer = FisError::from(error).answer();
    Some(respond(answer, None, request_id().ok()?))
}

fn no_operation(method: &Method, path: &str) -> ApiError {
    let path: String = path.chars().take(PATH_MAX).collect();
    let text = format!("{method} {path} is no operation of FIS on this server");
    ApiError { status: 404, ..ApiError::new("UnknownOperationException", text) }
}

async fn answer(
    shared: &Arc<Shared>,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Result<Answer, FisError>, Option<InFlight>) {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let Some(operation) = Operation::of(head.method.as_str(), path) else {
        discard(body).await;
        return (Err(no_operation(&head.method, path).into()), None);
    };
    let prepare =
        |signed: &sigv4::Request<'_>| shared.api.prepare_fis(operation, signed, slot.address);
    let (prepared, _) = match authentic((shared, slot), (&head, body), SERVICE, prepare).await {
        Ok(prepared) => prepared,
        Err(error) => return (Err(error.into()), None),
    };
    let in_flight = match admit((shared, slot), |api| api.admit_fis(&prepared)).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (Err(error.into()), in_flight),
    };
    let id = request_id.to_owned();
    let mutates = prepared.operation.mutates();
    let run = shared.run(mutates, move |api| Ok(api.run_fis(&prepared, &id))).await;
    (run.map_err(FisError::from).and_then(|result| result), Some(in_flight))
}
