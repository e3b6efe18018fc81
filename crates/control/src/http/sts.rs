//! STS over HTTP.

use std::sync::Arc;

use axum::extract::Request;
use evenkeel_wire::aws::sigv4;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::strangers::discard;
use super::{Shared, body_bytes, check_head, note, readable_headers};
use crate::api::error::ApiError;
use crate::cloudwatch::forms::{Arrived, translated};
use crate::direct::Answer;
use crate::sts::{SERVICE, refusal};

/// Returns whether a request on the path of the EC2 API is for STS.
pub fn is_for(request: &Request) -> bool {
    let headers = readable_headers(request.headers());
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    Arrived { path, query, headers: &headers }.is_signed_for(SERVICE)
}

/// Serves the only action of STS. It is answered at once: it needs no database and no data plane.
pub async fn answer(
    shared: &Shared,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Answer, Option<InFlight>) {
    match identity(shared, slot, request, request_id).await {
        Ok((document, in_flight)) => (reply(200, document), Some(in_flight)),
        Err(error) => {
            note(shared, slot, &error);
            // CloudWatch names the errors of signatures as STS does.
            let error = translated(error);
            debug!(request_id, code = error.code, message = error.message, "refused");
            (reply(error.status, refusal(&error, request_id)), None)
        }
    }
}

async fn identity(
    shared: &Shared,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> Result<(String, InFlight), ApiError> {
    let (head, body) = request.into_parts();
    if let Err(error) = check_head(shared, &head, SERVICE) {
        discard(body).await;
        return Err(error.into());
    }
    let body = body_bytes(body, shared.body_timeout).await?;
    let headers = readable_headers(&head.headers);
    let request = sigv4::Request {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query().unwrap_or_default(),
        headers: &headers,
        body: &body,
    };
    let document = shared.api.run_sts(&request, request_id)?;
    let in_flight = slot.begin().map_err(ApiError::throttled)?;
    shared.take_token().map_err(ApiError::throttled)?;
    Ok((document, in_flight))
}

fn reply(status: u16, document: String) -> Answer {
    let headers = Vec::new();
    let content_type = "text/xml";
    Answer { status, headers, content_type, body: document.into_bytes() }
}
