//! A bucket of tokens, for the rate of the API and for that of records that clients can cause.
//!
//! A request to the API without a token is refused with `RequestLimitExceeded`; SDKs then wait and
//! try again. Its bucket holds two seconds of requests. A bucket is full at first.

use evenkeel_core::convert::saturating;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of seconds of requests that the bucket of the API holds.
const BURST_S: u64 = 2;
/// Parts of a token: a rate of one per minute adds one part in each millisecond.
const PARTS: u64 = 60_000;

/// See the module's text.
#[derive(Debug)]
pub struct Rate {
    per_minute: u64,
    /// Number of tokens that it holds.
    burst: u64,
    /// Parts of tokens, and when they were counted, since the machine's boot.
    level: Mutex<(u64, Duration)>,
}

impl Rate {
    /// Creates a bucket for `per_second` requests per second, at least one.
    #[must_use]
    pub fn new(per_second: u32, now: Duration) -> Self {
        let per_second = u64::from(per_second.max(1));
        Self::of_minute(per_second * 60, per_second * BURST_S, now)
    }

    /// Creates a bucket that holds `burst` tokens, and gets `per_minute` in each minute.
    #[must_use]
    pub fn of_minute(per_minute: u64, burst: u64, now: Duration) -> Self {
        Self { per_minute, burst, level: Mutex::new((burst * PARTS, now)) }
    }

    /// Returns the parts of tokens at `now`, of those at an earlier time.
    fn parts(&self, (tokens, counted): (u64, Duration), now: Duration) -> u64 {
        let passed = now.saturating_sub(counted).as_millis();
        let passed_ms: u64 = saturating(passed);
        let added = passed_ms.saturating_mul(self.per_minute);
        tokens.saturating_add(added).min(self.burst * PARTS)
    }

    /// Returns whether it is full: no token was taken for a time.
    pub(crate) fn is_full(&self, now: Duration) -> bool {
        let level = *self.level.lock().unwrap_or_else(PoisonError::into_inner);
        self.parts(level, now) == self.burst * PARTS
    }

    /// Takes a token. Returns whether there was one.
    pub fn take(&self, now: Duration) -> bool {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = self.parts(*level, now);
        let left = tokens.checked_sub(PARTS);
        *level = (left.unwrap_or(tokens), now);
        left.is_some()
    }

    /// Returns the text for a refused client.
    #[must_use]
    pub fn refusal(&self) -> String {
        format!(
            "the API answers {} requests a second (--api-rate); try again after a moment",
            self.per_minute / 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_kept_in_the_long_run_and_a_pause_saves_two_seconds() {
        let rate = Rate::new(10, Duration::ZERO);
        let taken = |from: u64, to: u64| {
            (from..to).filter(|ms| rate.take(Duration::from_millis(*ms))).count()
        };
        assert_eq!(taken(0, 1), 1);
        // The last token of the ten seconds comes with their last millisecond.
        assert_eq!(taken(1, 10_001), 19 + 100);
        assert_eq!(taken(10_001, 20_001), 100);
        // After a pause of an hour there are only two seconds of requests.
        assert_eq!(taken(3_620_000, 3_620_050), 20);
    }
}
