//! The only file of these scripts that asks for the time.

use std::time::{Duration, Instant};

/// Lets a span pass.
#[allow(clippy::disallowed_methods)]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// The time that has passed since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    since: Instant,
}

impl Stopwatch {
    /// One that starts now.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self { since: Instant::now() }
    }

    /// The time since.
    #[allow(clippy::disallowed_methods)]
    pub fn elapsed(self) -> Duration {
        self.since.elapsed()
    }
}
