//! Limit of the processor time that a core takes at raised priority.
//!
//! A raised core that is always busy would keep its processor from all other programs. It would
//! also interrupt clients on the same machine for each of their requests, which halves the
//! throughput of both. So raised time has a budget. The budget refills fast while volumes are held
//! to their limits: then clients wait for the core's timers, and a late timer would break a
//! promise. Otherwise it refills slowly.
//!
//! A core without budget has the priority of all programs until the budget has refilled enough.
//! While volumes are held to their limits that takes some milliseconds, less than the requests that
//! clients have in flight. Otherwise it takes a quarter of a second, for half of the budget:
//! clients get most out of the processors while the core is not raised.

use evenkeel_core::time::{Duration, Instant};

/// Interval between two readings of the used time. Each is a system call.
const LOOK_EVERY: Duration = Duration::from_ms(5);

/// The budget when it is full.
const FULL: Duration = Duration::from_ms(50);

/// Refill of the budget while requests are held to limits, in percent of the time.
const PERCENT_HELD: u64 = 80;

/// Refill of the budget while no request is held to a limit, in percent of the time.
const PERCENT: u64 = 10;

/// Budget at which a core is raised again, while requests are held.
const SOME: Duration = Duration::from_ms(4);

/// Budget at which a core is raised again otherwise.
const HALF: Duration = Duration::from_ms(25);

/// A timer due within this time holds requests to a limit.
const HELD_WITHIN: Duration = Duration::from_ms(10);

/// The budget of one core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    looked_at: Instant,
    /// Processor time of the thread at that time.
    used: Duration,
    balance_ns: i64,
    is_raised: bool,
    /// Waits since then for a timer that holds requests, minus those for anything else.
    held: i64,
}

impl Allowance {
    /// Creates a full budget for a raised thread that has used `used` of processor time so far.
    pub(crate) fn new(now: Instant, used: Duration) -> Self {
        Self { looked_at: now, used, balance_ns: FULL.ns as i64, is_raised: true, held: 0 }
    }

    /// Records a wait of at most `timeout`.
    pub(crate) fn waits(&mut self, timeout: Option<Duration>) {
        match timeout {
            // There is work at once, which is no evidence about limits.
            Some(Duration { ns: 0 }) => {}
            Some(timeout) if timeout <= HELD_WITHIN => self.held += 1,
            _ => self.held -= 1,
        }
    }

    /// Returns whether it is time to [look](Self::look).
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.since(self.looked_at) >= LOOK_EVERY
    }

    /// Updates the budget with the thread's processor time `used`. Returns whether the thread is to
    /// be raised from now on.
    pub(crate) fn look(&mut self, now: Instant, used: Duration) -> bool {
        let (percent, enough) = if self.held > 0 { (PERCENT_HELD, SOME) } else { (PERCENT, HALF) };
        // One second refills any budget.
        let passed_ns = now.since(self.looked_at).ns.min(1_000_000_000);
        let gained_ns = passed_ns * percent / 100;
        let taken_ns = if self.is_raised { used.ns.saturating_sub(self.used.ns) } else { 0 };
        let balance_ns = self.balance_ns + gained_ns as i64 - taken_ns as i64;
        self.balance_ns = balance_ns.clamp(-(FULL.ns as i64), FULL.ns as i64);
        let least_ns = if self.is_raised { 1 } else { enough.ns as i64 };
        self.is_raised = self.balance_ns >= least_ns;
        (self.looked_at, self.used, self.held) = (now, used, 0);
        self.is_raised
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the percentage of ten seconds in which a core is raised, and the percentage that it
    /// takes while raised, if it is busy for `busy` percent of the time.
    fn raised(busy: u64, timeout: Option<Duration>) -> (u64, u64) {
        let mut allowance = Allowance::new(Instant::ZERO, Duration::from_ns(0));
        let mut raised_us = 0;
        let mut taken_us = 0;
        let mut is_raised = true;
        let step_us = 100;
        for step in 1..=100_000 {
            allowance.waits(timeout);
            let now = Instant::from_ns(step * step_us * 1_000);
            if is_raised {
                raised_us += step_us;
                taken_us += step_us * busy / 100;
            }
            if allowance.is_due(now) {
                is_raised = allowance.look(now, Duration::from_us(step * step_us * busy / 100));
            }
        }
        (raised_us / 100_000, taken_us / 100_000)
    }

    #[test]
    fn a_core_that_needs_less_than_its_share_is_always_raised() {
        let timer = Some(Duration::from_us(62));
        assert_eq!(raised(9, None), (100, 9));
        assert_eq!(raised(9, Some(Duration::from_secs(1))), (100, 9));
        assert_eq!(raised(79, timer), (100, 79));
    }

    #[test]
    fn a_core_never_takes_a_whole_processor_at_raised_priority() {
        let timer = Some(Duration::from_us(62));
        for busy in [85, 100] {
            let (share, taken) = raised(busy, timer);
            assert!((60..100).contains(&share) && taken <= 81, "{share} {taken}");
        }
        for (busy, timeout) in [(50, None), (100, None), (100, Some(Duration::from_secs(5)))] {
            let (share, taken) = raised(busy, timeout);
            assert!(share <= 30 && (5..=11).contains(&taken), "{share} {taken}");
        }
    }

    #[test]
    fn work_at_hand_says_nothing_about_limits() {
        let mut allowance = Allowance::new(Instant::ZERO, Duration::from_ns(0));
        for _ in 0..100 {
            allowance.waits(Some(Duration::from_ns(0)));
        }
        assert_eq!(allowance.held, 0);
        allowance.waits(Some(HELD_WITHIN));
        assert_eq!(allowance.held, 1);
    }

    #[test]
    fn long_turn_is_paid_back_within_a_second() {
        let mut allowance = Allowance::new(Instant::ZERO, Duration::from_ns(0));
        let after = Instant::from_ns(10_000_000_000);
        assert!(!allowance.look(after, Duration::from_secs(10)));
        let idle = Instant::from_ns(11_000_000_000);
        assert!(allowance.look(idle, Duration::from_secs(10)));
    }
}
