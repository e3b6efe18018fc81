//! The rate of the API: a bucket of tokens, one for each request.
//!
//! A request without a token is refused with `RequestLimitExceeded`; SDKs then wait and try again.
//! The bucket holds two seconds of requests, and is full at first.

use evenkeel_core::convert::saturating;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Number of seconds of requests that the bucket holds.
const BURST_S: u64 = 2;
/// Thousandths in a token: a rate of one request per second adds one in each millisecond.
const MILLI: u64 = 1_000;

/// See the module's text.
#[derive(Debug)]
pub struct Rate {
    per_second: u64,
    /// Thousandths of tokens, and when they were counted, since the machine's boot.
    level: Mutex<(u64, Duration)>,
}

impl Rate {
    /// Creates a bucket for `per_second` requests per second, at least one.
    #[must_use]
    pub fn new(per_second: u32, now: Duration) -> Self {
        let per_second = u64::from(per_second.max(1));
        Self { per_second, level: Mutex::new((per_second * BURST_S * MILLI, now)) }
    }

    /// Takes a token. Returns whether there was one.
    pub fn take(&self, now: Duration) -> bool {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, counted) = *level;
        let passed = now.saturating_sub(counted).as_millis();
        let passed_ms: u64 = saturating(passed);
        let added = passed_ms.saturating_mul(self.per_second);
        let tokens = tokens.saturating_add(added).min(self.per_second * BURST_S * MILLI);
        let left = tokens.checked_sub(MILLI);
        *level = (left.unwrap_or(tokens), now);
        left.is_some()
    }

    /// Returns the text for a refused client.
    #[must_use]
    pub fn refusal(&self) -> String {
        format!(
            "the API answers {} requests a second (--api-rate); try again after a moment",
            self.per_second
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
