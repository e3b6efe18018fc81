//! CloudWatch's actions over HTTP, in three protocols.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use evenkeel_wire::aws::sigv4;
use tracing::debug;

use super::slot::{InFlight, Slot};
use super::{Shared, admit, authentic, readable_headers, request_id, respond};
use crate::api::error::ApiError;
use crate::cloudwatch::forms::{Arrived, Form, SERVICE, translated};
use crate::direct::Answer;

/// Returns whether a request on the path of the EC2 API is for CloudWatch.
pub fn is_for(request: &Request) -> bool {
    let headers = readable_headers(request.headers());
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    Arrived { path, query, headers: &headers }.form().is_some()
}

/// Serves every action of CloudWatch.
pub async fn cloudwatch(
    State(shared): State<Arc<Shared>>,
    Extension(slot): Extension<Arc<Slot>>,
    request: Request,
) -> Response {
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let (answer, in_flight) = answer(&shared, &slot, request, &request_id).await;
    respond(answer, in_flight, request_id)
}

async fn answer(
    shared: &Arc<Shared>,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Answer, Option<InFlight>) {
    let (head, body) = request.into_parts();
    let form = arrived(&head, &readable_headers(&head.headers)).form().unwrap_or(Form::Query);
    let refused = |error: ApiError| {
        debug!(request_id, code = error.code, message = error.message, "refused");
        form.refusal(&translated(error), request_id)
    };
    let check = |signed: &sigv4::Request<'_>| shared.api.signer(signed, SERVICE, slot.address);
    let checked = authentic((shared, slot), (&head, body), SERVICE, check).await;
    let (caller, body) = match checked {
        Ok(checked) => checked,
        Err(error) => return (refused(error), None),
    };
    let in_flight = match admit((shared, slot), |_| Ok(())).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (refused(error), in_flight),
    };
    let id = request_id.to_owned();
    // Parameters are decoded on that thread, too: they take several times the memory of their
    // bytes, and the number of permits limits that memory.
    let run = shared.run(false, move |api| {
        let headers = readable_headers(&head.headers);
        let (action, parameters) = arrived(&head, &headers).read(form, &body)?;
        let value = api.run_cloudwatch(&caller, &action, parameters, &id)?;
        Ok(form.answer(&action, &value, &id))
    });
    (run.await.unwrap_or_else(refused), Some(in_flight))
}

fn arrived<'a>(head: &'a Parts, headers: &'a [(&'a str, &'a str)]) -> Arrived<'a> {
    let path = head.uri.path();
    let query = head.uri.query().unwrap_or_default();
    Arrived { path, query, headers }
}
