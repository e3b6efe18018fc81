//! The only file of this crate that reads the time.

use evenkeel_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time since some origin, for limits of log lines.
pub(crate) fn now() -> Instant {
    read(ClockId::Monotonic)
}

/// Returns the time since the machine's start, including the time in which it was suspended.
pub(crate) fn boot_time() -> Instant {
    read(ClockId::Boottime)
}

fn read(clock: ClockId) -> Instant {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let ns = u64::try_from(time.tv_nsec).unwrap_or_default();
    Instant::from_ns(seconds.saturating_mul(1_000_000_000).saturating_add(ns))
}
