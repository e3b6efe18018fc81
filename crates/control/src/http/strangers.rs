//! Requests with refused signatures: their counts, log lines, and the discarding of their bodies.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use evenkeel_core::convert::saturating;
use evenkeel_core::log_limit::LogLimit;
use evenkeel_core::time::Instant;
use evenkeel_wire::aws::query::BODY_BYTES_MAX;
use tokio::time::timeout;
use tracing::warn;

use evenkeel_os::clock;

use crate::visits::Visits;

/// Maximum time for the body of a refused request to arrive. Clients read the reply only after they
/// have sent it.
const DISCARDED_MAX: Duration = Duration::from_secs(1);

/// Refused signatures, by the code of their error.
#[derive(Debug)]
pub struct Strangers {
    inner: Mutex<Inner>,
    /// The way to the audit; `None` if there is none.
    visits: Option<Arc<Visits>>,
}

#[derive(Debug, Default)]
struct Inner {
    counts: BTreeMap<&'static str, u64>,
    lines: LogLimit,
}

impl Strangers {
    /// Creates counts that are zero.
    pub fn new(visits: Option<Arc<Visits>>) -> Self {
        Self { inner: Mutex::default(), visits }
    }

    /// Counts a refused signature. Logs it, and records it in the audit, unless there are too many.
    pub fn note(&self, address: IpAddr, code: &'static str, message: &str) {
        if let Some(visits) = &self.visits {
            visits.note_signature(address, code, message);
        }
        let now = saturating(clock::since_boot().as_nanos());
        // Nothing here can fail between two related changes.
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        *inner.counts.entry(code).or_default() += 1;
        if let Some(left_out) = inner.lines.line(Instant::from_ns(now)) {
            warn!(%address, code, message, left_out, "a request's signature is refused");
        }
    }

    /// Returns the number of refused signatures of each code since the start.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }
}

/// Reads a body to its end and discards it: at most the maximum size of a body, and for a bounded
/// time.
pub async fn discard(mut body: Body) {
    let read = async {
        let mut left = BODY_BYTES_MAX;
        while let Some(Ok(frame)) =
            std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
        {
            let bytes = frame.into_data().map_or(0, |data| data.len());
            let Some(rest) = left.checked_sub(bytes) else { break };
            left = rest;
        }
    };
    // Closing the connection cuts off the rest.
    let _ = timeout(DISCARDED_MAX, read).await;
}
