//! The clock and the sleeps of these scripts; no other file uses those of the system.

use std::time::{Duration, Instant};

/// Sleeps for a duration.
#[allow(clippy::disallowed_methods)]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// The time since its creation.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    since: Instant,
}

impl Stopwatch {
    /// Starts a stopwatch.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self { since: Instant::now() }
    }

    /// Returns the time since its start.
    #[allow(clippy::disallowed_methods)]
    pub fn elapsed(self) -> Duration {
        self.since.elapsed()
    }
}
