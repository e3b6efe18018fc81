//! IAM and STS over HTTP.

use std::sync::Arc;

use axum::extract::Request;
use evenkeel_wire::aws::sigv4;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::{Shared, admit, authentic, readable_headers};
use crate::api::error::ApiError;
use crate::cloudwatch::forms::{Arrived, translated};
use crate::direct::Answer;
use crate::identity::{IAM, STS, Service};

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
    let prepare =
        |signed: &sigv4::Request<'_>| shared.api.prepare_identity(service, signed, slot.address);
    let (head, body) = request.into_parts();
    let name = service.name;
    let (prepared, _) = match authentic((shared, slot), (&head, body), name, prepare).await {
        Ok(prepared) => prepared,
        Err(error) => return (refused(error), None),
    };
    let in_flight = match admit((shared, slot), |api| api.admit_identity(&prepared)).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (refused(error), in_flight),
    };
    let id = request_id.to_owned();
    let mutates = prepared.action.mutates;
    let result = shared.run(mutates, move |api| api.run_identity(prepared, &id)).await;
    (result.map_or_else(refused, |document| reply(200, document)), Some(in_flight))
}

fn reply(status: u16, document: String) -> Answer {
    let headers = Vec::new();
    let content_type = "text/xml";
    Answer { status, headers, content_type, body: document.into_bytes() }
}
