//! The time of the operating system, and sleeping. No other crate of the product reads a clock or
//! sleeps. Code below takes the time as an argument.
//!
//! | clock | counts from | in a suspended machine | when the date is set |
//! |---|---|---|---|
//! | [`now`], [`monotonic`], [`Clock`], [`Deadline`] | the boot, a start | stands still | runs on |
//! | [`since_boot`] | the boot | runs on | runs on |
//! | [`since_1970`], [`unix_ms`], [`unix_us`], [`utc_now`] | 1970 | runs on | jumps |
//! | [`process_time`], [`thread_time`] | the start of the work | stands still | runs on |

#![allow(clippy::disallowed_methods, reason = "this is the crate that may")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::convert::{exact, saturating};
use evenkeel_core::time::{self, Instant, UnixMs};
use evenkeel_core::volume::Date;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Path of the id of this boot of the machine.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const NS_PER_S: u64 = 1_000_000_000;

/// Returns the present time of the monotonic clock, for arithmetic with the standard library's
/// durations.
#[must_use]
pub fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Returns the present time of the monotonic clock in nanoseconds, as the core takes it.
#[inline]
#[must_use]
pub fn monotonic() -> Instant {
    Instant::ZERO + read(ClockId::Monotonic)
}

/// Returns the time since the machine's boot, including suspension.
#[must_use]
pub fn since_boot() -> Duration {
    Duration::from_nanos(read(ClockId::Boottime).ns)
}

/// Returns the id that the kernel has given to this boot.
///
/// # Errors
/// The kernel does not report it.
pub fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

/// Returns the time of processors that this process has taken since it began, with the threads
/// that the kernel runs for it.
#[must_use]
pub fn process_time() -> time::Duration {
    read(ClockId::ProcessCPUTime)
}

/// Returns the time of a processor that the calling thread has taken since it began.
#[must_use]
pub fn thread_time() -> time::Duration {
    read(ClockId::ThreadCPUTime)
}

#[inline]
fn read(clock: ClockId) -> time::Duration {
    let time = clock_gettime(clock);
    let seconds = exact(time.tv_sec, "never negative on such a clock");
    let ns = exact(time.tv_nsec, "never negative on such a clock");
    time::Duration::from_secs(seconds) + time::Duration::from_ns(ns)
}

/// Returns the time since 1970 by the wall clock; zero if that is set to an earlier time.
#[must_use]
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the milliseconds since 1970.
#[must_use]
pub fn unix_ms() -> UnixMs {
    UnixMs(saturating(since_1970().as_millis()))
}

/// Returns the microseconds since 1970, for comparisons with times of other programs.
#[must_use]
pub fn unix_us() -> u64 {
    saturating(since_1970().as_micros())
}

/// Returns the present date and time as `2026-11-21 03:56:41 UTC`.
#[must_use]
pub fn utc_now() -> String {
    utc_text(since_1970().as_secs())
}

/// Returns seconds since 1970 as text, in the form of [`utc_now`]; at most the year 9999.
#[must_use]
pub fn utc_text(unix_s: u64) -> String {
    let date = Date::of_unix_day(unix_s / 86_400);
    let second = unix_s % 86_400;
    format!("{date} {:02}:{:02}:{:02} UTC", second / 3_600, second / 60 % 60, second % 60)
}

/// Sleeps for `span`. Only for waits without an event, and for measurements.
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// Sleeps until a time of [`monotonic`], or until a signal.
pub fn sleep_until_ns(deadline_ns: u64) {
    // Both parts are small enough for any of their types.
    let seconds = deadline_ns / NS_PER_S;
    let ns = deadline_ns % NS_PER_S;
    let deadline = Timespec { tv_sec: seconds as _, tv_nsec: ns as _ };
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &deadline);
}

/// A monotonic clock whose origin is its start.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Creates a clock that begins now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: monotonic() }
    }

    /// Returns the time since the origin.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::ZERO + monotonic().since(self.origin)
    }
}

/// A point in time at which an operation must have ended.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: std::time::Instant,
}

impl Deadline {
    /// Creates the deadline `span` from now.
    #[must_use]
    pub fn after(span: Duration) -> Self {
        Self { end: now() + span }
    }

    /// Returns the time left; zero after the deadline.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(now())
    }

    /// Sleeps for `interval`, or until the deadline. Returns false if the deadline has passed.
    /// Another process's state has no event to wait for, so it must be polled.
    #[must_use]
    pub fn pause(&self, interval: Duration) -> bool {
        let left = self.left();
        pause(left.min(interval));
        left > interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_never_runs_backwards() {
        let clock = Clock::start();
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn deadline_passes() {
        assert!(!Deadline::after(Duration::ZERO).pause(Duration::from_secs(600)));
        let deadline = Deadline::after(Duration::from_secs(3_600));
        assert!(deadline.pause(Duration::from_nanos(1)) && !deadline.left().is_zero());
    }

    #[test]
    fn utc_text_of_known_instants() {
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
