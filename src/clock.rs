//! The only file of the binary that asks for the time, or lets it pass.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds of Unix time, for signatures. A clock before 1970 counts as 0, and the server will say
/// so.
#[allow(clippy::disallowed_methods)]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A name for one request: no other of this machine has it, nor of another in the same nanosecond
/// under the same process id.
#[allow(clippy::disallowed_methods)]
pub fn invocation() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{number:x}", since.as_nanos(), std::process::id())
}

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

    /// Lets `interval` pass, or what is left until the deadline. Returns false once it has come.
    /// Another process's state has no event that we could wait on: it has to be asked again.
    #[allow(clippy::disallowed_methods)]
    pub fn pause(self, interval: Duration) -> bool {
        let left = self.at.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(interval));
        left > interval
    }
}

/// Measures how long something takes.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts to measure.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// How long it has been until now.
    pub fn elapsed(self) -> Duration {
        self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_comes() {
        assert!(!Deadline::after(Duration::ZERO).pause(Duration::from_secs(600)));
        let ahead = Deadline::after(Duration::from_secs(3_600));
        assert!(ahead.pause(Duration::from_nanos(1)));
    }
}
