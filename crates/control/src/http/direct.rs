//! The EBS direct APIs over HTTP.
//!
//! Only a few requests that read or write blocks run at a time, so that the data plane and other
//! requests have processor time; the rest of them wait. A request holds at most one block, and
//! there are no more requests than connections, which bounds the memory for blocks.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::strangers::discard;
use super::{Shared, admit, check_head, readable_headers, request_id, respond, signed};
use crate::api::Api;
use crate::direct::{Answer, DirectError, Operation};

/// Maximum number of operations on blocks that run concurrently.
pub const BLOCKS_MAX: usize = 8;

/// Serves every operation of the EBS direct APIs.
pub async fn direct(
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
) -> (Result<Answer, DirectError>, Option<InFlight>) {
    let (head, body) = request.into_parts();
    let method = head.method.as_str();
    let path = head.uri.path();
    let Some(operation) = Operation::of(method, path) else {
        return (Err(DirectError::unknown_operation(method, path)), None);
    };
    if let Err(error) = check_head(shared, &head, "ebs") {
        discard(body).await;
        let error = DirectError::from(error);
        shared.strangers.note(slot.address, error.kind, &error.message);
        return (Err(error), None);
    }
    let body = match body_bytes(shared, &operation, body).await {
        Ok(body) => body,
        Err(error) => return (Err(error), None),
    };
    let headers = readable_headers(&head.headers);
    let query = head.uri.query().unwrap_or_default();
    let request = signed(&head, &headers, &body);
    let checked = match shared.api.check_direct(&operation, &request, slot.address) {
        Ok(checked) => checked,
        Err(error) => {
            if error.is_of_signature() {
                shared.strangers.note(slot.address, error.kind, &error.message);
            }
            return (Err(error), None);
        }
    };
    let check = |api: &Api| api.admit_direct(&operation, &body, &checked);
    let in_flight = match admit((shared, slot), check).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (Err(DirectError::throttled(error.message)), in_flight),
    };
    let permit = permit(shared, &operation).await;
    let api = Arc::clone(&shared.api);
    let path = path.to_owned();
    let query = query.to_owned();
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let method = head.method.clone();
    let id = request_id.to_owned();
    let headers = headers.iter().map(owned).collect::<Vec<_>>();
    // If the client disconnects from here on, the change is still made. The permit is released
    // after that.
    let run = tokio::task::spawn_blocking(move || {
        let operation = Operation::of(method.as_str(), &path)
            .ok_or_else(|| DirectError::unknown_operation(method.as_str(), &path))?;
        let result = api.run_direct(&operation, &query, &headers, body, (&checked, &id));
        drop(permit);
        result
    });
    let result = run.await.unwrap_or_else(|error| Err(DirectError::internal(error)));
    (result, Some(in_flight))
}

/// Waits until the operation may run, if only a few of its kind may at a time.
async fn permit(shared: &Shared, operation: &Operation<'_>) -> Option<OwnedSemaphorePermit> {
    if operation.is_limited() {
        Arc::clone(&shared.blocks).acquire_owned().await.ok()
    } else {
        None
    }
}

async fn body_bytes(
    shared: &Shared,
    operation: &Operation<'_>,
    body: Body,
) -> Result<Vec<u8>, DirectError> {
    let max = operation.body_max();
    match timeout(shared.body_timeout, to_bytes(body, max)).await {
        Ok(Ok(bytes)) => Ok(bytes.into()),
        Ok(Err(error)) => {
            let message = format!("the body cannot be read or has more than {max} bytes: {error}");
            Err(DirectError::block(message))
        }
        Err(_) => {
            let longest = shared.body_timeout;
            Err(DirectError::timeout(format!("the body did not arrive within {longest:?}")))
        }
    }
}
