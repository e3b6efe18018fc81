//! The listener: bounded connections, bounded requests, deadlines on everything a client may dawdle
//! over.
//!
//! It runs on one thread. Whatever may block (the database, the data plane) runs on a few others;
//! of the actions that change something only one at a time is given a thread, so that the others
//! stay free for those that only read.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header, request};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use evenkeel_wire::aws::query::BODY_BYTES_MAX;
use evenkeel_wire::aws::sigv4;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{debug, warn};

use crate::api::Api;
use crate::api::error::ApiError;
use crate::metrics::{self, Scraper};
use crate::{clock, credits};

/// Threads for what blocks: one each for changes, the tick and a scrape, the others for reads.
pub const BLOCKING_THREADS_MAX: usize = 5;
/// How long a scrape may wait for the one before it and for the data plane: as long as Prometheus
/// does, if not told otherwise.
const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections served at once; further ones wait in the listen queue.
pub const CONNECTIONS_MAX: usize = 256;
/// Bytes of a request's head: a presigned URL and a few headers.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 100;

/// How long clients may dawdle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// To send a request's head; and to be silent between two requests.
    pub head: Duration,
    /// To send a request's body.
    pub body: Duration,
    /// For a connection to live, whatever it does; then it is closed after the request under way.
    pub connection: Duration,
    /// For a connection that is being closed to end, by taking its reply for instance.
    pub close: Duration,
    /// For all connections to end when the server stops.
    pub stop: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        let (head, body, close, stop) = (seconds(30), seconds(30), seconds(30), seconds(5));
        Self { head, body, connection: seconds(600), close, stop }
    }
}

struct Shared {
    api: Arc<Api>,
    body_timeout: Duration,
    /// Held by whoever changes something.
    turn: Arc<Mutex<()>>,
    /// Held by whoever scrapes: one at a time, however many ask.
    scraper: Arc<Mutex<Scraper>>,
}

/// Takes the address, before anything else is touched.
pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves until `shutdown` is done, and then until requests under way are answered.
pub async fn serve(
    api: Arc<Api>,
    listener: std::net::TcpListener,
    timeouts: Timeouts,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let router = router(Arc::clone(&api), timeouts.body);
    let (stop, stopping) = watch::channel(false);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    let mut ticks = interval(Duration::from_millis(credits::REPORT_INTERVAL_MS));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut tick_running: Option<tokio::task::JoinHandle<()>> = None;
    ready(listener.local_addr()?);
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            _ = ticks.tick() => {
                // A slow data plane gets one tick at a time, not a queue of them.
                if tick_running.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
                    let plane = Arc::clone(api.plane());
                    tick_running = Some(tokio::task::spawn_blocking(move || plane.tick()));
                }
            }
            (slot, accepted) = accept(&listener, &slots) => match accepted {
                Ok(stream) => {
                    let (router, stopping) = (router.clone(), stopping.clone());
                    connections.spawn(async move {
                        connection(stream, router, timeouts, stopping).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: wait instead of spinning.
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

/// The next connection, once there is a slot for it.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> (Option<tokio::sync::OwnedSemaphorePermit>, io::Result<TcpStream>) {
    // The semaphore is never closed, so there is always a slot in the end.
    let slot = Arc::clone(slots).acquire_owned().await.ok();
    (slot, listener.accept().await.map(|(stream, _)| stream))
}

async fn connection(
    stream: TcpStream,
    router: Router,
    timeouts: Timeouts,
    mut stopping: watch::Receiver<bool>,
) {
    // Replies are small and written whole.
    let _ = stream.set_nodelay(true);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.head)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
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

fn router(api: Arc<Api>, body_timeout: Duration) -> Router {
    let (turn, scraper) = (Arc::default(), Arc::default());
    let shared = Arc::new(Shared { api, body_timeout, turn, scraper });
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(scraped))
        .route("/", get(ec2).post(ec2))
        .with_state(shared)
}

/// `/metrics`, for whoever can connect: numbers and ids, no data and no keys.
async fn scraped(State(shared): State<Arc<Shared>>) -> Response {
    let scrape = async {
        let mut scraper = Arc::clone(&shared.scraper).lock_owned().await;
        let plane = Arc::clone(shared.api.plane());
        // It goes on when nobody waits for it any more; the next one then waits for its end.
        tokio::task::spawn_blocking(move || scraper.scrape(&plane)).await
    };
    let problem = match timeout(SCRAPE_TIMEOUT, scrape).await {
        Ok(Ok(Ok(text))) => {
            return ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response();
        }
        Ok(Ok(Err(error))) => error.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("the data plane did not answer within {SCRAPE_TIMEOUT:?}"),
    };
    debug!(problem, "a scrape failed");
    (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")).into_response()
}

/// EC2's actions, by GET or POST.
async fn ec2(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let Ok(request_id) = request_id() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let answer = answer(&shared, request, &request_id).await;
    let (status, body) = match answer {
        Ok(body) => (StatusCode::OK, body),
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
    (status, headers, body).into_response()
}

async fn answer(shared: &Shared, request: Request, request_id: &str) -> Result<String, ApiError> {
    let (head, body) = request.into_parts();
    let body = body_bytes(body, shared.body_timeout).await?;
    let prepared = prepare(&shared.api, &head, &body)?;
    let name = prepared.action.name;
    let turn = match prepared.action.mutates {
        true => Some(Arc::clone(&shared.turn).lock_owned().await),
        false => None,
    };
    let (api, id) = (Arc::clone(&shared.api), request_id.to_owned());
    // From here on the client may hang up: the change is made all the same, and only then the turn
    // is over.
    let run = tokio::task::spawn_blocking(move || {
        let result = api.run(prepared, &id);
        drop(turn);
        result
    });
    let result = run.await.unwrap_or_else(|error| Err(ApiError::internal(error)));
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

fn prepare(
    api: &Api,
    head: &request::Parts,
    body: &[u8],
) -> Result<crate::api::Prepared, ApiError> {
    let headers = readable_headers(&head.headers);
    api.prepare(&sigv4::Request {
        method: head.method.as_str(),
        path: head.uri.path(),
        query: head.uri.query().unwrap_or_default(),
        headers: &headers,
        body,
    })
}

/// Headers as texts. One that is none cannot have been signed; leaving it out breaks the signature
/// if it was.
fn readable_headers(headers: &HeaderMap) -> Vec<(&str, &str)> {
    let readable = headers.iter().filter_map(|(name, value)| {
        Some((name.as_str(), std::str::from_utf8(value.as_bytes()).ok()?))
    });
    readable.collect()
}

/// In the form of a UUID, as EC2's are.
fn request_id() -> Result<String, getrandom::Error> {
    let hex = format!("{:032x}", clock::random_bits()?);
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default().to_owned();
    Ok([part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-"))
}
