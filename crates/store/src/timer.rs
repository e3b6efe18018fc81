//! A timer that wakes a store that has no thread.

use evenkeel_core::time::Instant;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

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
        let since_boot = Duration::from_nanos(at.ns.max(1));
        let it_value = Timespec::try_from(since_boot).expect("2^64 ns are below 2^63 s");
        let spec = Itimerspec { it_interval: Timespec::default(), it_value };
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
    use evenkeel_core::time;
    use evenkeel_os::clock::monotonic;

    #[test]
    fn timer_is_readable_once_its_time_has_come_and_not_before() {
        let timer = Timer::new().unwrap();
        let due = monotonic() + time::Duration::from_ms(20);
        timer.set(due);
        let mut disk = BlockingDisk::default();
        disk.submit(DiskOp::readable(7, timer.fd()));
        assert!(monotonic() >= due);
        assert_eq!(disk.poll().unwrap().token, 7);
        timer.set(Instant::ZERO);
        disk.submit(DiskOp::readable(8, timer.fd()));
        assert_eq!(disk.poll().unwrap().token, 8, "a time that is over is due at once");
    }
}
