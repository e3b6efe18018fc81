//! Time from the OS. No other file of this crate reads it.

use std::time::{Duration, SystemTime};

use evenkeel_core::time::UnixMs;

/// Returns the time of the wall clock.
#[must_use]
#[allow(clippy::disallowed_methods)] // this is the clock.rs the rule speaks of
pub fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixMs(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the time since the machine's boot, including suspension. It never jumps.
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).unwrap_or_default()
}

/// Sleeps. Only for waits without an event to wait for.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
