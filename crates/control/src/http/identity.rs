//! IAM and STS over HTTP.

use std::sync::Arc;

use axum::extract::Request;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::strangers::discard;
use super::{Shared, body_bytes, check_head, note, readable_headers, signed};
use crate::api::error::ApiError;
use crate::cloudwatch::forms::{Arrived, translated};
use crate::direct::Answer;
use crate::identity::{IAM, PreparedIdentity, STS, Service};

/// Returns the service of a request on the path of the EC2 API, if it is one of these.
pub fn service_of(request: &Request) -> Option<&'static Service> {
    let headers = readable_headers(request.headers());
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let arrived = Arrived { path, query, headers: &headers };
    [&IAM, &STS].into_iter().find(|service| arrived.is_signed_for(service.name))
}

/// Serves the actions of a service.
pub async fn answer(
    shared: &Shared,
    slot: &Arc<Slot>,
    request: Request,
    service: &'static Service,
    request_id: &str,
) -> (Answer, Option<InFlight>) {
    let refused = |error: ApiError| {
        // CloudWatch names the errors of signatures as these do.
        let error = translated(error);
        debug!(request_id, code = error.code, message = error.message, "refused");
        reply(error.status, service.refusal(&error, request_id))
    };
    let prepared = match prepare(shared, slot, request, service).await {
        Ok(prepared) => prepared,
        Err(error) => {
            note(shared, slot, &error);
            return (refused(error), None);
        }
    };
    let in_flight = match shared.begin(slot) {
        Ok(in_flight) => in_flight,
        Err((busy, in_flight)) => return (refused(ApiError::throttled(busy)), in_flight),
    };
    if let Err(denied) = shared.api.admit_identity(&prepared) {
        // As of the EC2 API: the request may be a recorded one.
        drop(in_flight);
        tokio::time::sleep(denied.wait).await;
        return (refused(denied.error), None);
    }
    let id = request_id.to_owned();
    let mutates = prepared.action.mutates;
    let result = shared.run(mutates, move |api| api.run_identity(prepared, &id)).await;
    (result.map_or_else(refused, |document| reply(200, document)), Some(in_flight))
}

async fn prepare(
    shared: &Shared,
    slot: &Slot,
    request: Request,
    service: &'static Service,
) -> Result<PreparedIdentity, ApiError> {
    let (head, body) = request.into_parts();
    if let Err(error) = check_head(shared, &head, service.name) {
        discard(body).await;
        return Err(error.into());
    }
    let body = body_bytes(body, shared.body_timeout).await?;
    let headers = readable_headers(&head.headers);
    shared.api.prepare_identity(service, &signed(&head, &headers, &body), slot.address)
}

fn reply(status: u16, document: String) -> Answer {
    let headers = Vec::new();
    let content_type = "text/xml";
    Answer { status, headers, content_type, body: document.into_bytes() }
}
