//! Time and waiting. No other file of the binary reads the clock or sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Unix time in seconds, for signatures. A clock before 1970 counts as 0, which the server then
/// refuses.
#[allow(clippy::disallowed_methods)]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Unix time in milliseconds; 0 before 1970.
#[allow(clippy::disallowed_methods)]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A unique name for one request: no other request of this machine has it, and one of another
/// machine only if it is made in the same nanosecond under the same process id.
#[allow(clippy::disallowed_methods)]
pub fn invocation() -> String {
    static REQUESTS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = REQUESTS.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{number:x}", since.as_nanos(), std::process::id())
}

/// The time since the machine's boot, including suspension. It never decreases.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// A deadline.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    at: Instant,
}

impl Deadline {
    /// The deadline after `span` from now.
    #[allow(clippy::disallowed_methods)]
    pub fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span }
    }

    /// Sleeps for `interval`, or until the deadline. Returns false once the deadline has passed.
    /// Another process's state has no event to wait for, so it must be polled.
    #[allow(clippy::disallowed_methods)]
    pub fn pause(self, interval: Duration) -> bool {
        let left = self.at.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(interval));
        left > interval
    }
}

/// A limit of a rate for several threads: each call waits until its amount is due.
#[derive(Debug)]
pub struct Pace {
    started: Instant,
    per_s: Option<u64>,
    /// Time at which the next call may continue, since the start.
    next: Mutex<Duration>,
}

impl Pace {
    /// Creates a limit of `per_s` units per second; without one, no call waits.
    #[allow(clippy::disallowed_methods)]
    pub fn new(per_s: Option<u64>) -> Self {
        Self { started: Instant::now(), per_s, next: Mutex::default() }
    }

    /// Waits for its turn. Unused time is not made up for.
    #[allow(clippy::disallowed_methods)]
    pub fn take(&self, amount: u64) {
        let Some(per_s) = self.per_s else { return };
        let now = self.started.elapsed();
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let at = now.max(*next);
            let nanos = u128::from(amount) * 1_000_000_000 / u128::from(per_s.max(1));
            *next = at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            at
        };
        std::thread::sleep(at.saturating_sub(now));
    }
}

/// A stopwatch.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch {
    started: Instant,
}

impl Stopwatch {
    /// Starts the stopwatch.
    #[allow(clippy::disallowed_methods)]
    pub fn start() -> Self {
        Self { started: Instant::now() }
    }

    /// The time since the start.
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
