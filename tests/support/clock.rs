//! The clock and the sleeps of the black-box tests; no other file uses those of the system.

use std::time::{Duration, Instant};

/// A deadline of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// Returns the deadline `span` from now.
    #[allow(clippy::disallowed_methods)]
    pub fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span }
    }

    /// Returns the time that is left until then; zero once it has come.
    #[allow(clippy::disallowed_methods)]
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Calls `question` until it returns true; panics after the deadline. The state of another
    /// process has no event to wait for, so it is polled.
    pub fn ask(self, what: &str, question: impl FnMut() -> bool) {
        assert!(self.comes(question), "{what}: waited for in vain");
    }

    /// Calls `question` until it returns true. Returns false if the deadline comes first.
    #[allow(clippy::disallowed_methods)]
    pub fn comes(self, mut question: impl FnMut() -> bool) -> bool {
        while !question() {
            if self.left().is_zero() {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
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

    /// Returns the seconds since its start.
    #[allow(clippy::disallowed_methods)]
    pub fn seconds(self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }
}

/// Sleeps for at least `span`, in tests about what happens meanwhile.
#[allow(clippy::disallowed_methods)]
pub fn pass(span: Duration) {
    std::thread::sleep(span);
}
