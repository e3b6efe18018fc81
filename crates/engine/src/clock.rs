//! The only file of the data plane that asks the operating system for the time.

use evenkeel_core::convert::saturating;
use evenkeel_core::time::{Duration, Instant};
use rustix::time::ClockId;

/// A monotonic clock whose origin is the moment it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that begins now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the file that may")]
    pub fn new() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time since the origin.
    #[must_use]
    pub fn now(&self) -> Instant {
        let ns = self.origin.elapsed().as_nanos();
        // 584 years after the start the clock stands still instead of wrapping.
        Instant::from_ns(saturating(ns))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

/// Time of cores that this process has taken since it began, with the threads that the kernel runs
/// for it.
#[must_use]
pub fn cpu_time() -> Duration {
    evenkeel_store::clock::read(ClockId::ProcessCPUTime)
}

/// Time of a core that the calling thread has taken since it began.
#[must_use]
pub(crate) fn thread_time() -> Duration {
    evenkeel_store::clock::read(ClockId::ThreadCPUTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let clock = Clock::new();
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
