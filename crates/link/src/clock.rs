//! The only file of this crate that reads the time.

use std::io;
use std::time::{Duration, Instant};

/// A point in time at which an operation must have ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
}

impl Deadline {
    #[expect(clippy::disallowed_methods, reason = "this is the file that may")]
    pub fn after(duration: Duration) -> Self {
        Self { at: Instant::now() + duration }
    }

    /// Returns the time left; zero after the deadline.
    #[expect(clippy::disallowed_methods, reason = "this is the file that may")]
    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Returns the time left as a socket's timeout, for which zero means no limit. Returns an error
    /// after the deadline.
    pub fn timeout(&self, what: &str) -> io::Result<Duration> {
        match self.left() {
            Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, what.to_owned())),
            // The kernel counts in microseconds.
            left => Ok(left.max(Duration::from_micros(1))),
        }
    }
}

/// Returns the time since some origin, for limits of log lines.
pub(crate) fn now() -> evenkeel_core::time::Instant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let ns = u64::try_from(time.tv_nsec).unwrap_or_default();
    evenkeel_core::time::Instant::from_ns(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}
