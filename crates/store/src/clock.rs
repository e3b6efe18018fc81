//! The system's clock, and a timer that wakes a store that has no thread. No other file of the
//! stores reads the time.

use evenkeel_core::convert::exact;
use evenkeel_core::time::{Duration, Instant};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const NS_PER_S: u64 = 1_000_000_000;

/// Returns the time of the system's monotonic clock.
#[must_use]
pub fn now() -> Instant {
    Instant::ZERO + read(ClockId::Monotonic)
}

/// Returns the time of a clock that counts from a beginning of its own.
#[must_use]
pub fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = exact(time.tv_sec, "never negative on such a clock");
    let ns = exact(time.tv_nsec, "never negative on such a clock");
    Duration::from_secs(seconds) + Duration::from_ns(ns)
}

/// Sleeps for `time`, for callers that no event wakes.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: std::time::Duration) {
    std::thread::sleep(time);
}

/// A descriptor that is readable from a set time on. The kernel keeps the time to the nanosecond,
/// without the slack that it adds for sleeping threads.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the timer to `at`, in place of any earlier time. It is readable at once if that has
    /// passed.
    pub fn set(&self, at: Instant) {
        // All zeroes would mean never.
        let ns = at.ns.max(1);
        let value = Timespec {
            tv_sec: exact(ns / NS_PER_S, "2^64 ns are below 2^63 s"),
            tv_nsec: exact::<_, i64>(ns % NS_PER_S, "below a second") as _,
        };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: interval, it_value: value };
        // The descriptor and the value are valid, so the call cannot fail.
        let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// Returns the descriptor to wait for.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{BlockingDisk, Disk, DiskOp};

    #[test]
    fn a_timer_is_readable_once_its_time_has_come_and_not_before() {
        let timer = Timer::new().unwrap();
        let due = now() + Duration::from_ms(20);
        timer.set(due);
        let mut disk = BlockingDisk::default();
        disk.submit(DiskOp::readable(7, timer.fd()));
        assert!(now() >= due);
        assert_eq!(disk.poll().unwrap().token, 7);
        timer.set(Instant::ZERO);
        disk.submit(DiskOp::readable(8, timer.fd()));
        assert_eq!(disk.poll().unwrap().token, 8, "a time that is over is due at once");
    }
}
