//! The HTTP listener of the EC2 API, CloudWatch, CloudTrail, IAM, STS, FIS, the EBS direct APIs and
//! `/metrics`.
//!
//! [`serve`] is given the API and a bound listener, and returns when the shutdown future resolves
//! and the requests in flight are answered. It returns an error only if the listener cannot be
//! used. Connections and requests are bounded, and every step of a client has a deadline. The
//! listener never stops accepting: if all connections are in use, one without an authentic request
//! in flight is evicted.
//!
//! The listener runs on one thread. Work that may block (the database, the data plane) runs on
//! others. Each mutating action has a thread of its own, so one that waits for a slow device delays
//! no other. Reading actions share [`READS_MAX`] threads, and operations on blocks of snapshots
//! [`direct::BLOCKS_MAX`] others, which leaves processors to the data plane.

mod cloudwatch;
mod direct;
mod fis;
mod host;
mod identity;
mod scrapes;
mod slot;
mod strangers;
mod stream;
mod table;
mod trail;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Extension, Router};
use evenkeel_telemetry::metrics::Format;
use evenkeel_tls::server::ServerTls;
use evenkeel_wire::aws::query::BODY_BYTES_MAX;
use evenkeel_wire::aws::sigv4;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use self::host::Hosts;
use self::scrapes::Scrapes;
use self::slot::{InFlight, SlotStream};
pub use self::slot::{Pinned, Slot, Slots};
use self::strangers::{Strangers, discard};
pub use self::stream::{Stream, accept_stream};
pub use self::table::CONNECTIONS_MAX;
use crate::api::error::ApiError;
use crate::api::{Api, Denied, Prepared};
use crate::credits;
use crate::direct::Answer;
use crate::metrics::Scraper;
use crate::plane::Plane;
use crate::random;
use crate::rate::Rate;
use evenkeel_os::clock;

/// Maximum number of reading actions that run concurrently.
const READS_MAX: usize = 2;
/// Threads for blocking work: one for each mutation, one for each of the tick's four parts, one
/// for a scrape, one for `/readyz`, and those for reading actions and for blocks of snapshots.
pub const BLOCKING_THREADS_MAX: usize = table::REQUESTS_MAX + 6 + READS_MAX + direct::BLOCKS_MAX;
/// Maximum time that a scrape may wait for the previous one and for the data plane: Prometheus'
/// default timeout.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that `/readyz` may wait for the disk of the audit.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum of bytes of a request's head: a presigned URL and a few headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 100;

/// Deadlines for clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// To send a request's head, and for silence between two requests.
    pub head: Duration,
    /// To send a request's body.
    pub body: Duration,
    /// For a connection's whole life. After that it is closed once its request is answered.
    pub connection: Duration,
    /// For a connection that is being closed to end, for example by reading its last reply.
    pub close: Duration,
    /// To read a reply that does not fit into the kernel's buffers.
    pub send: Duration,
    /// For all connections to end when the server stops.
    pub stop: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let handshake = seconds(10);
        let head = seconds(30);
        let body = seconds(30);
        let close = seconds(30);
        let stop = seconds(5);
        let connection = seconds(600);
        Self { handshake, head, body, connection, close, send: seconds(60), stop }
    }
}

struct Shared {
    api: Arc<Api>,
    body_timeout: Duration,
    /// Held by each reading action.
    reads: Arc<Semaphore>,
    /// Held by each operation on blocks of snapshots.
    blocks: Arc<Semaphore>,
    /// Held by the running scrape; others wait.
    scraper: Arc<Mutex<Scraper>>,
    /// The replies to scrapes that are being sent.
    scrapes: Scrapes,
    /// Held by the check of the audit for `/readyz`; others wait.
    readiness: Arc<Mutex<()>>,
    /// Refused signatures.
    strangers: Strangers,
    /// Limits the rate of requests, if the operator has set a rate.
    rate: Option<Rate>,
    /// The names of this server.
    hosts: Hosts,
}

impl Shared {
    /// Takes a token for a request, if there is a limit.
    ///
    /// # Errors
    /// No token is left; the text is for the client.
    fn take_token(&self) -> Result<(), String> {
        match &self.rate {
            Some(rate) if !rate.take(clock::since_boot()) => Err(rate.refusal()),
            _ => Ok(()),
        }
    }

    /// Begins an authentic request.
    ///
    /// # Errors
    /// The connection or the rate has no room for it; the text is for the client.
    fn begin(&self, slot: &Arc<Slot>) -> Result<InFlight, (String, Option<InFlight>)> {
        let in_flight = slot.begin().map_err(|busy| (busy.to_string(), None))?;
        match self.take_token() {
            Ok(()) => Ok(in_flight),
            Err(none_left) => Err((none_left, Some(in_flight))),
        }
    }

    /// Executes a call on a thread that may block; of calls that only read, a few at a time. If the
    /// client disconnects, a change is still made.
    ///
    /// # Errors
    /// Those of the call; `InternalError` if it panics.
    async fn run<T: Send + 'static>(
        &self,
        mutates: bool,
        call: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit =
            if mutates { None } else { Arc::clone(&self.reads).acquire_owned().await.ok() };
        let api = Arc::clone(&self.api);
        let run = tokio::task::spawn_blocking(move || {
            let result = call(&api);
            drop(permit);
            result
        });
        run.await.unwrap_or_else(|error| Err(ApiError::internal(error)))
    }
}

/// Returns the parts of a request that a signature covers.
fn signed<'a>(
    head: &'a request::Parts,
    headers: &'a [(&'a str, &'a str)],
    body: &'a [u8],
) -> sigv4::Request<'a> {
    sigv4::Request {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query().unwrap_or_default(),
        headers,
        body,
    }
}

/// The address at which a connection arrived; `None` if it is already closed.
#[derive(Clone, Copy)]
struct Local(Option<IpAddr>);

/// Binds the address. The server does this before it touches anything else.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The listener of the API, and the certificate that it shows.
pub struct Door {
    /// The socket.
    pub listener: std::net::TcpListener,
    /// TLS, if the API has it.
    pub tls: Option<Arc<ServerTls>>,
}

/// A part of the tick, and the thread that still runs it.
type TickPart = (fn(&Plane), Option<tokio::task::JoinHandle<()>>);

/// Serves until `shutdown` resolves, and then until the requests in flight are answered, at most
/// for [`Timeouts::stop`].
///
/// # Errors
/// The listener cannot be used.
pub async fn serve(
    api: Arc<Api>,
    door: Door,
    timeouts: Timeouts,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Door { listener, tls } = door;
    let listener = TcpListener::from_std(listener)?;
    let scraper = Scraper::new(tls.clone(), api.endpoints());
    let router = router(Arc::clone(&api), scraper, timeouts.body);
    let (stop, stopping) = watch::channel(false);
    let slots: Arc<Slots> = Arc::default();
    let mut connections = JoinSet::new();
    let mut ticks = interval(Duration::from_millis(credits::REPORT_INTERVAL_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut parts: [TickPart; 4] = [
        (Plane::renew_leases, None),
        (Plane::maintain, None),
        (Plane::scrub_on, None),
        (Plane::copy_on, None),
    ];
    ready(listener.local_addr()?);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            _ = ticks.tick() => {
                // At most one of each part runs, so no queue of them grows if the data plane is
                // slow.
                for (part, running) in &mut parts {
                    if running.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                        let part = *part;
                        let plane = Arc::clone(api.plane());
                        *running = Some(tokio::task::spawn_blocking(move || part(&plane)));
                    }
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (slot, evicted) = slots.take(peer.ip()).await;
                    let router = router.clone();
                    let stopping = stopping.clone();
                    let arrived = Arrived { stream, slot, tls: tls.clone(), evicted };
                    connections.spawn(connection(arrived, router, timeouts, stopping));
                    // Each connection runs once before the next one is accepted. So even in a
                    // burst, a request that has arrived is seen before its connection may be
                    // evicted.
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    // Most likely out of file descriptors: wait instead of spinning.
                    warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
    drop(listener);
    let _ = stop.send(true);
    let all_closed = async { while connections.join_next().await.is_some() {} };
    if timeout(timeouts.stop, all_closed).await.is_err() {
        warn!("some connections did not end in time and are cut");
    }
    Ok(())
}

/// A connection that was accepted.
struct Arrived {
    stream: TcpStream,
    slot: Arc<Slot>,
    tls: Option<Arc<ServerTls>>,
    evicted: oneshot::Receiver<()>,
}

/// Serves a connection until it ends or is evicted. It is evicted only while no reply is due.
async fn connection(
    arrived: Arrived,
    router: Router,
    timeouts: Timeouts,
    stopping: watch::Receiver<bool>,
) {
    let Arrived { stream, slot, tls, evicted } = arrived;
    let served = async {
        if let Some(io) = handshake(stream, slot, tls.as_ref(), timeouts).await {
            serve_to_end(io, router, timeouts, stopping).await;
        }
    };
    tokio::select! {
        biased;
        Ok(()) = evicted => debug!("a connection gave way to another"),
        () = served => {}
    }
}

/// Returns the stream of a connection, after the TLS handshake if there is TLS.
async fn handshake(
    stream: TcpStream,
    slot: Arc<Slot>,
    tls: Option<&Arc<ServerTls>>,
    timeouts: Timeouts,
) -> Option<SlotStream> {
    let address = slot.address;
    // Replies are small and written in one piece.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok().map(|address| address.ip());
    match timeout(timeouts.handshake, accept_stream(stream, tls)).await {
        Ok(Ok(stream)) => return Some(SlotStream::new(stream, local, slot, timeouts.send)),
        Ok(Err(error)) => debug!(%address, %error, "a TLS handshake failed"),
        Err(_) => debug!(%address, "a TLS handshake did not end in time"),
    }
    None
}

async fn serve_to_end(
    io: SlotStream,
    router: Router,
    timeouts: Timeouts,
    mut stopping: watch::Receiver<bool>,
) {
    let slot = Arc::clone(io.slot());
    let router = TowerToHyperService::new(router);
    let local = Local(io.local);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Arc::clone(&slot));
        request.extensions_mut().insert(local);
        router.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut served = pin!(served);
    let over = async {
        tokio::select! {
            _ = stopping.wait_for(|stop| *stop) => {}
            () = tokio::time::sleep(timeouts.connection) => {}
        }
    };
    let result = tokio::select! {
        result = served.as_mut() => Ok(result),
        () = over => {
            served.as_mut().graceful_shutdown();
            timeout(timeouts.close, served).await
        }
    };
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "a connection ended badly"),
        Err(_) => debug!("a connection did not end in time and is cut"),
    }
}

fn router(api: Arc<Api>, scraper: Scraper, body_timeout: Duration) -> Router {
    let reads = Arc::new(Semaphore::new(READS_MAX));
    let scraper = Arc::new(Mutex::new(scraper));
    let blocks = Arc::new(Semaphore::new(direct::BLOCKS_MAX));
    let rate = api.plane().settings.api_rate.map(|rate| Rate::new(rate, clock::since_boot()));
    let hosts = Hosts::new(&api.plane().settings.api_hosts);
    let scrapes = Scrapes::default();
    let strangers = Strangers::new(api.visits.clone());
    let shared = Arc::new(Shared {
        api,
        body_timeout,
        reads,
        blocks,
        scraper,
        scrapes,
        readiness: Arc::default(),
        strangers,
        rate,
        hosts,
    });
    Router::new()
        .route("/metrics", get(scrape_metrics))
        .route("/", get(ec2).post(ec2))
        .route("/service/{*rest}", any(cloudwatch::cloudwatch))
        .route("/experimentTemplates", any(fis::fis))
        .route("/experimentTemplates/{*rest}", any(fis::fis))
        .route("/experiments", any(fis::fis))
        .route("/experiments/{*rest}", any(fis::fis))
        .route("/snapshots", any(direct::direct))
        .route("/snapshots/", any(direct::direct))
        .route("/snapshots/{*rest}", any(direct::direct))
        .route_layer(from_fn_with_state(Arc::clone(&shared), check_host))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(|request: Request| nothing_here(StatusCode::NOT_FOUND, request))
        .method_not_allowed_fallback(|request: Request| {
            nothing_here(StatusCode::METHOD_NOT_ALLOWED, request)
        })
        .with_state(shared)
}

/// Refuses requests for another host, before anything else is done for them.
async fn check_host(
    State(shared): State<Arc<Shared>>,
    Extension(Local(local)): Extension<Local>,
    request: Request,
    next: Next,
) -> Response {
    let hosts = request.headers().get_all(header::HOST);
    let is_ours = |host: &HeaderValue| {
        let text = host.to_str().unwrap_or_default();
        local.is_some_and(|local| shared.hosts.is_ours(local, text))
    };
    let Some(other) = hosts.iter().find(|host| !is_ours(host)) else {
        return next.run(request).await;
    };
    let text = format!(
        "The header Host is {other:?}, which is no name of this server; send the request to \
         localhost or to the server's address, or name this host with --api-host"
    );
    refusal(StatusCode::MISDIRECTED_REQUEST, ApiError::new("InvalidHost", text))
}

/// Returns the answer where no API is: an error in EC2's form, which its clients can read.
async fn nothing_here(status: StatusCode, request: Request) -> Response {
    if let Some(answer) = fis::unknown(&request) {
        return answer;
    }
    let method = request.method();
    let path = request.uri().path();
    let text = format!(
        "There is no API at {method} {path}. The EC2 API, CloudWatch, IAM and STS are at GET / and \
         POST /, the EBS direct APIs below /snapshots; docs/reference/api.md describes them."
    );
    refusal(status, ApiError::new("InvalidAction", text))
}

/// Returns the response of an error without a request of an API.
fn refusal(status: StatusCode, error: ApiError) -> Response {
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let error = ApiError { status: status.as_u16(), ..error };
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/xml;charset=UTF-8"),
        ("x-amzn-requestid", request_id.as_str()),
    ];
    (status, headers, error.document(&request_id)).into_response()
}

/// Returns whether the server can continue without a restart; without authentication.
async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    health(shared.api.plane().check_alive())
}

/// Returns whether changes can be made; without authentication.
async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    if let Err(why) = shared.api.plane().check_ready() {
        return health(Err(why));
    }
    // The disk of the audit may hang.
    let check = async {
        let lock = Arc::clone(&shared.readiness).lock_owned().await;
        let api = Arc::clone(&shared.api);
        let check = move || {
            let _lock = lock;
            api.check_audit()
        };
        tokio::task::spawn_blocking(check).await
    };
    match timeout(READY_TIMEOUT, check).await {
        Ok(Ok(checked)) => health(checked),
        Ok(Err(error)) => health(Err(error.to_string())),
        Err(_) => health(Err(format!("the audit's disk did not answer within {READY_TIMEOUT:?}"))),
    }
}

fn health(checked: Result<(), String>) -> Response {
    match checked {
        Ok(()) => "ok".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

/// Serves `/metrics`, without authentication: it has numbers and ids, but no data and no keys.
async fn scrape_metrics(
    State(shared): State<Arc<Shared>>,
    Extension(slot): Extension<Arc<Slot>>,
    headers: HeaderMap,
) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let format = Format::asked_for(accept.filter_map(|value| value.to_str().ok()));
    let scrape = async {
        let mut scraper = Arc::clone(&shared.scraper).lock_owned().await;
        let _pinned = slot.pin();
        let plane = Arc::clone(shared.api.plane());
        // The scrape continues after its timeout; the next one waits for its end.
        let refused = shared.strangers.counts();
        let api = Arc::clone(&shared.api);
        tokio::task::spawn_blocking(move || scraper.scrape(&plane, refused, api.audit_now())).await
    };
    let problem = match timeout(SCRAPE_TIMEOUT, scrape).await {
        Ok(Ok(Ok(text))) => {
            let body = Body::from(shared.scrapes.reply(&slot, format.of(text)));
            let kind = (header::CONTENT_TYPE, format.content_type());
            return ([kind, (header::VARY, "accept")], body).into_response();
        }
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the data plane did not answer within {SCRAPE_TIMEOUT:?}"),
    };
    debug!(problem, "a scrape failed");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")).into_response()
}

/// Serves the EC2 actions, by GET or POST, and those of CloudWatch, IAM and STS.
async fn ec2(
    State(shared): State<Arc<Shared>>,
    Extension(slot): Extension<Arc<Slot>>,
    request: Request,
) -> Response {
    if trail::is_for(&request) {
        return trail::trail(&shared, &slot, request).await;
    }
    if cloudwatch::is_for(&request) {
        return cloudwatch::cloudwatch(State(shared), Extension(slot), request).await;
    }
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    if let Some(service) = identity::service_of(&request) {
        let answered = identity::answer(&shared, &slot, request, service, &request_id).await;
        let (answer, in_flight) = answered;
        return respond(answer, in_flight, request_id);
    }
    let (answer, in_flight) = answer(&shared, &slot, request, &request_id).await;
    let (status, text) = match answer {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => {
            debug!(request_id, code = error.code, message = error.message, "refused");
            let status = StatusCode::from_u16(error.status);
            (status.unwrap_or(StatusCode::BAD_REQUEST), error.document(&request_id))
        }
    };
    let headers = [
        (header::CONTENT_TYPE.as_str(), "text/xml;charset=UTF-8"),
        (header::CACHE_CONTROL.as_str(), "no-cache, no-store"),
        ("x-amzn-requestid", request_id.as_str()),
    ];
    let body = match in_flight {
        Some(in_flight) => in_flight.reply(text),
        None => text.into(),
    };
    (status, headers, body).into_response()
}

/// Returns the answer and, if the request was authentic, the guard that keeps the connection while
/// the answer is sent.
async fn answer(
    shared: &Shared,
    slot: &Arc<Slot>,
    request: Request,
    request_id: &str,
) -> (Result<String, ApiError>, Option<InFlight>) {
    let prepare = |signed: &sigv4::Request<'_>| shared.api.prepare(signed, slot.address);
    let (head, body) = request.into_parts();
    let (prepared, _) = match authentic((shared, slot), (&head, body), "ec2", prepare).await {
        Ok(prepared) => prepared,
        Err(error) => return (Err(error), None),
    };
    let in_flight = match admit((shared, slot), |api| api.admit(&prepared)).await {
        Ok(in_flight) => in_flight,
        Err((error, in_flight)) => return (Err(error), in_flight),
    };
    (run_action(shared, prepared, request_id).await, Some(in_flight))
}

/// Has `prepare` check the signature of a request for a service. Returns its result and the body.
/// Counts and logs an error of the signature.
async fn authentic<T>(
    (shared, slot): (&Shared, &Slot),
    (head, body): (&request::Parts, Body),
    service: &str,
    prepare: impl FnOnce(&sigv4::Request<'_>) -> Result<T, ApiError>,
) -> Result<(T, Bytes), ApiError> {
    let prepared = match check_head(shared, head, service) {
        Ok(()) => {
            let body = body_bytes(body, shared.body_timeout).await?;
            let headers = readable_headers(&head.headers);
            prepare(&signed(head, &headers, &body)).map(|prepared| (prepared, body))
        }
        Err(error) => {
            discard(body).await;
            Err(error.into())
        }
    };
    prepared.inspect_err(|error| note(shared, slot, error))
}

/// Begins an authentic request, unless `check` denies it now. The error has the guard that keeps
/// the connection while it is sent, if there is one.
async fn admit(
    (shared, slot): (&Shared, &Arc<Slot>),
    check: impl FnOnce(&Api) -> Result<(), Denied>,
) -> Result<InFlight, (ApiError, Option<InFlight>)> {
    let begun = shared.begin(slot);
    let in_flight = begun.map_err(|(busy, guard)| (ApiError::throttled(busy), guard))?;
    if let Err(denied) = check(&shared.api) {
        // The request may be a recorded one that an attacker repeats, so the connection may be
        // evicted.
        drop(in_flight);
        tokio::time::sleep(denied.wait).await;
        return Err((denied.error, None));
    }
    Ok(in_flight)
}

/// Checks the parts of a signature that do not need the body, so that bodies of unauthenticated
/// clients are not kept.
fn check_head(
    shared: &Shared,
    head: &request::Parts,
    service: &str,
) -> Result<(), sigv4::SignatureError> {
    let headers = readable_headers(&head.headers);
    shared.api.check_head(&signed(head, &headers, &[]), service)
}

/// Counts and logs an error of a signature.
fn note(shared: &Shared, slot: &Slot, error: &ApiError) {
    if error.is_of_signature() {
        shared.strangers.note(slot.address, error.code, &error.message);
    }
}

async fn run_action(
    shared: &Shared,
    prepared: Prepared,
    request_id: &str,
) -> Result<String, ApiError> {
    let name = prepared.action.name;
    let id = request_id.to_owned();
    let mutates = prepared.action.mutates;
    let result = shared.run(mutates, move |api| api.run(prepared, &id)).await;
    debug!(request_id, action = name, ok = result.is_ok(), "answered");
    result
}

async fn body_bytes(body: Body, longest: Duration) -> Result<Bytes, ApiError> {
    match timeout(longest, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(ApiError {
            status: 413,
            code: "RequestEntityTooLarge",
            message: format!(
                "the body cannot be read or has more than {BODY_BYTES_MAX} bytes: {error}"
            ),
        }),
        Err(_) => Err(ApiError {
            status: 408,
            code: "RequestTimeout",
            message: format!("the body did not arrive within {longest:?}"),
        }),
    }
}

/// Returns the response with an answer; the connection is kept while it is sent.
fn respond(answer: Answer, in_flight: Option<InFlight>, request_id: String) -> Response {
    let body = match in_flight {
        Some(in_flight) => in_flight.reply(answer.body),
        None => answer.body.into(),
    };
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let fixed = [
        (header::CONTENT_TYPE.as_str(), answer.content_type.to_owned()),
        ("x-amzn-requestid", request_id),
    ];
    for (name, value) in fixed.into_iter().chain(answer.headers) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&value))
        {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// Returns the headers that are valid text. Another header cannot have been signed; if it was, the
/// signature does not match without it.
fn readable_headers(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let readable = headers.iter().filter_map(|(name, value)| {
        Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?))
    });
    readable.collect()
}

/// Returns a random request id in the form of a UUID, as EC2's are.
fn request_id() -> Result<String, getrandom::Error> {
    let hex = format!("{:032x}", random::random_bits()?);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    Ok([part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"))
}
