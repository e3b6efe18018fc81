//! The only file of the black-box tests that asks for the time, or lets it pass.

use std::time::{Duration, Instant};

/// A point in the future that a wait must not pass.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// The point `span` from now.
    #[allow(clippy::disallowed_methods)]
    pub fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span }
    }

    /// What is left until then; zero once it has come.
    #[allow(clippy::disallowed_methods)]
    pub fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// Asks `question` until it is answered with yes. Another process's state has no event that
    /// we could wait on: it has to be asked again. Panics when the deadline comes first.
    pub fn ask(self, what: &str, question: impl FnMut() -> bool) {
        assert!(self.comes(question), "{what}: waited for in vain");
    }

    /// The same; whether the answer was yes before the deadline came.
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

/// The time that has gone by since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    since: Instant,
}

impl Stopwatch {
    /// One that begins now.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self { since: Instant::now() }
    }

    /// Seconds since.
    #[allow(clippy::disallowed_methods)]
    pub fn seconds(self) -> f64 {
        self.since.elapsed().as_secs_f64()
    }
}

/// Lets time pass, for what is about what happens meanwhile; at least `span`.
#[allow(clippy::disallowed_methods)]
pub fn pass(span: Duration) {
    std::thread::sleep(span);
}
