//! The crate's clocks and sleeps; no other file of it uses those of the system.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use evenkeel_core::volume::Date;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec};

/// Returns the present time of the monotonic clock.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this crate's one clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the nanoseconds of the monotonic clock, as [`sleep_until_ns`] takes them.
#[must_use]
pub fn monotonic_ns() -> u64 {
    evenkeel_store::clock::now().ns
}

/// Returns the microseconds since 1970, for comparisons with times of other programs.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this crate's one clock")]
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Sleeps until a time of the monotonic clock. It is only for [`crate::stalls`], which measures
/// when a sleeper wakes, and for polls of the kernel's tables, whose changes cannot be waited for.
/// It may return early, after a signal.
pub fn sleep_until_ns(deadline_ns: u64) {
    // Both parts are small enough for any of their types.
    let seconds = deadline_ns / 1_000_000_000;
    let ns = deadline_ns % 1_000_000_000;
    let deadline = Timespec { tv_sec: seconds as _, tv_nsec: ns as _ };
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// Waits for a duration that is part of a measurement's definition.
pub fn pause(span: Duration) {
    let end_ns = monotonic_ns() + u64::try_from(span.as_nanos()).unwrap_or(u64::MAX / 2);
    while monotonic_ns() < end_ns {
        sleep_until_ns(end_ns);
    }
}

/// Returns the present date and time as `2026-11-21 03:56:41 UTC`.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "this crate's one clock")]
pub fn utc_now() -> String {
    // A clock before 1970 prints 1970 rather than failing a report.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    utc_text(since.as_secs())
}

/// Returns seconds since 1970 as text.
fn utc_text(unix_s: u64) -> String {
    let date = Date::of_unix_day(unix_s / 86_400);
    let second = unix_s % 86_400;
    format!("{date} {:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::utc_text;

    #[test]
    fn known_instants() {
        for (unix_s, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_233_401, "2026-11-21 03:56:41 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc_text(unix_s), text);
        }
    }
}
