//! A limit for log lines that clients can cause: a few in each window of time, the rest is only
//! counted. So the log shows that it happens and how often, without filling the disk.

use crate::limits::{LOG_LINES_MAX, LOG_WINDOW_SECONDS};
use crate::time::{Duration, Instant};

/// The window's length.
pub const LOG_WINDOW: Duration = Duration::from_secs(LOG_WINDOW_SECONDS);

/// The limit for lines of one kind.
#[derive(Clone, Debug, Default)]
pub struct LogLimit {
    /// Start of the present window; `None` before the first line.
    began: Option<Instant>,
    /// Lines written in it.
    written: u32,
    /// Lines left out since the last count was written.
    left_out: u64,
}

impl LogLimit {
    /// Returns whether a line may be written now, as the number of lines that were left out before
    /// it and not reported yet; `None` if not. Counts a line that may not be written.
    pub fn line(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.since(began) >= LOG_WINDOW) {
            (self.began, self.written) = (Some(now), 0);
        }
        if self.written == LOG_LINES_MAX {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.written += 1;
        Some(core::mem::take(&mut self.left_out))
    }

    /// Returns how many lines were left out, once the window in which they were is over; zero if
    /// none, or if they are not to be reported yet. For the last ones, after which no other line
    /// comes.
    pub fn rest(&mut self, now: Instant) -> u64 {
        match self.began {
            Some(began) if now.since(began) >= LOG_WINDOW => core::mem::take(&mut self.left_out),
            _ => 0,
        }
    }

    /// Returns whether [`Self::rest`] has lines still to report.
    #[must_use]
    pub const fn owes(&self) -> bool {
        self.left_out > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_a_window_and_every_other_is_counted_once() {
        let mut limit = LogLimit::default();
        let mut written = 0_u64;
        let mut reported = 0;
        // A line each millisecond for a minute.
        for ms in 0..60_000 {
            if let Some(left_out) = limit.line(Instant::ZERO + Duration::from_ms(ms)) {
                written += 1;
                reported += left_out;
            }
        }
        assert_eq!(written, 6 * u64::from(LOG_LINES_MAX));
        let end = Instant::ZERO + Duration::from_secs(60);
        assert!(limit.owes());
        assert_eq!(limit.rest(Instant::ZERO + Duration::from_ms(59_999)), 0, "not over yet");
        reported += limit.rest(end);
        assert_eq!((written + reported, limit.rest(end), limit.owes()), (60_000, 0, false));
    }

    #[test]
    fn rare_lines_are_all_written() {
        let mut limit = LogLimit::default();
        for second in 0..1_000 {
            assert_eq!(limit.line(Instant::ZERO + Duration::from_secs(2 * second)), Some(0));
        }
    }
}
