//! The API of FIS over HTTP.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::strangers::discard;
use super::{Shared, body_bytes, check_head, note, readable_headers, request_id, respond, signed};
use crate::api::error::ApiError;
use crate::direct::Answer;
use crate::fis::{FisError, Operation, PreparedFis, SERVICE};

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

async fn answer(
    shared: &Arc<Shared>,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Result<Answer, FisError>, Option<InFlight>) {
    let prepared = match prepare(shared, slot, request).await {
        Ok(prepared) => prepared,
        Err(error) => {
            note(shared, slot, &error);
            return (Err(error.into()), None);
        }
    };
    let in_flight = match shared.begin(slot) {
        Ok(in_flight) => in_flight,
        Err((busy, in_flight)) => return (Err(ApiError::throttled(busy).into()), in_flight),
    };
    if let Err(denied) = shared.api.admit_fis(&prepared) {
        // The request may be a recorded one that an attacker repeats, so the connection may be
        // evicted.
        drop(in_flight);
        tokio::time::sleep(denied.wait).await;
        return (Err(denied.error.into()), None);
    }
    let id = request_id.to_owned();
    let mutates = prepared.operation.mutates();
    let run = shared.run(mutates, move |api| Ok(api.run_fis(&prepared, &id))).await;
    (run.map_err(FisError::from).and_then(|result| result), Some(in_flight))
}

async fn prepare(shared: &Shared, slot: &Slot, request: Request) -> Result<PreparedFis, ApiError> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let Some(operation) = Operation::of(head.method.as_str(), path) else {
        discard(body).await;
        let text = format!("{} {path} is no operation of FIS", head.method);
        return Err(ApiError { status: 404, ..ApiError::new("UnknownOperationException", text) });
    };
    if let Err(error) = check_head(shared, &head, SERVICE) {
        discard(body).await;
        return Err(error.into());
    }
    let body = body_bytes(body, shared.body_timeout).await?;
    let headers = readable_headers(&head.headers);
    shared.api.prepare_fis(operation, &signed(&head, &headers, &body), slot.address)
}
