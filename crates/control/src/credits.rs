//! What credit balances are worth after the server was down. Pure.
//!
//! Balances live in the data plane, which spends them without asking anybody. Every second the
//! control plane asks for them and stores those that changed. So what is on disk is exact after a
//! clean stop, and at most a moment old after a crash:
//!
//! - **Clean stop.** The balance was stored after the last I/O. A bucket of EBS fills while the
//!   volume is idle, and a server that is down leaves it idle: the refill of the time down is
//!   added, up to capacity.
//! - **Crash.** What was spent since the last report is unknown. The most that could have been
//!   spent is subtracted (burst minus baseline for [`UNREPORTED_MS`], and the pacer's tolerance of
//!   burst), down to zero, and nothing is added for the time down. A crash can cost credits, never
//!   give them.
//! - **A balance that was never stored** counts as empty, for the same reason.

use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};

use crate::model::UnixMs;

/// How often the data plane is asked for its balances, in milliseconds.
pub const REPORT_INTERVAL_MS: u64 = 1_000;
/// How old a stored balance may be at most, in milliseconds: one interval, and as long again for a
/// save that was under way.
pub const UNREPORTED_MS: u64 = 2 * REPORT_INTERVAL_MS;

/// How the server stopped the last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Cleanly, at this time, with every balance stored.
    Clean(UnixMs),
    /// Otherwise.
    Crash,
}

/// The balances a volume starts with, from what was stored of it.
#[must_use]
pub fn after_stop(pacing: &Pacing, stored: Balances, stop: Stop, now: UnixMs) -> Balances {
    let one = |limit: Option<Limit>, stored: Option<u64>| {
        let limit = limit?;
        let credit = limit.credit?;
        let balance = stored.unwrap_or(0);
        let balance = match stop {
            Stop::Clean(stopped) => refilled(balance, credit, now.ms_since(stopped)),
            Stop::Crash => balance.saturating_sub(spendable(limit, credit, pacing.tolerance.ns)),
        };
        Some(balance.min(credit.capacity))
    };
    Balances {
        operations: one(pacing.operations, stored.operations),
        bytes: one(pacing.bytes, stored.bytes),
    }
}

fn refilled(balance: u64, credit: CreditLimit, down_ms: u64) -> u64 {
    let earned = u128::from(credit.refill_per_second) * u128::from(down_ms) / 1_000;
    balance.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX))
}

/// The most credits that can be gone without having been reported, rounded up.
fn spendable(limit: Limit, credit: CreditLimit, tolerance_ns: u64) -> u64 {
    let drain = u128::from(limit.per_second.saturating_sub(credit.refill_per_second));
    let steady = (drain * u128::from(UNREPORTED_MS)).div_ceil(1_000);
    let burst = (u128::from(limit.per_second) * u128::from(tolerance_ns)).div_ceil(1_000_000_000);
    u64::try_from(steady + burst).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::time::Duration;
    use proptest::prelude::*;

    fn gp2(per_second: u64, refill_per_second: u64, capacity: u64) -> Pacing {
        let credit = Some(CreditLimit { refill_per_second, capacity });
        let operations = Some(Limit { per_second, credit });
        let tolerance = Duration::from_ms(50);
        Pacing { operations, tolerance, ..Pacing::UNLIMITED }
    }

    fn operations(balance: u64) -> Balances {
        Balances { operations: Some(balance), bytes: None }
    }

    #[test]
    fn a_clean_stop_earns_the_time_down() {
        let pacing = gp2(3_000, 300, 5_400_000);
        let after = |stored, stopped, now| {
            after_stop(&pacing, operations(stored), Stop::Clean(UnixMs(stopped)), UnixMs(now))
        };
        assert_eq!(after(1_000, 0, 10_000), operations(4_000));
        assert_eq!(after(1_000, 0, 3), operations(1_000));
        assert_eq!(after(5_399_999, 0, 60_000), operations(5_400_000));
        assert_eq!(after(1_000, 10_000, 0), operations(1_000), "the clock was set back");
        assert_eq!(after(0, 0, u64::MAX), operations(5_400_000));
    }

    #[test]
    fn a_crash_costs_what_could_have_been_spent() {
        let pacing = gp2(3_000, 300, 5_400_000);
        let after = |stored| after_stop(&pacing, stored, Stop::Crash, UnixMs(u64::MAX));
        // 2 s at 2,700 net, and 50 ms of burst.
        assert_eq!(after(operations(5_400_000)), operations(5_400_000 - 5_400 - 150));
        assert_eq!(after(operations(5_000)), operations(0));
        assert_eq!(after(Balances::default()), operations(0));
    }

    #[test]
    fn dimensions_without_credits_have_no_balance() {
        let stored = Balances { operations: Some(7), bytes: Some(7) };
        let after = after_stop(&Pacing::UNLIMITED, stored, Stop::Crash, UnixMs(0));
        assert_eq!(after, Balances::default());
        assert_eq!(Balances::full(&Pacing::UNLIMITED), Balances::default());
        assert_eq!(Balances::full(&gp2(2, 1, 9)), operations(9));
    }

    proptest! {
        /// Whatever is spent after the last report, a crash never leaves more than there was.
        #[test]
        fn a_crash_never_gives_credits(
            refill in 1_u64..1_000, extra in 0_u64..5_000, capacity in 1_u64..10_000_000,
            stored: u64, ms in 0..=UNREPORTED_MS, down_ms in 0_u64..1_000_000_000,
        ) {
            let pacing = gp2(refill + extra, refill, capacity);
            let stored = stored % (capacity + 1);
            let truly_left = stored.saturating_sub(extra * ms / 1_000);
            let now = UnixMs(down_ms);
            let after = after_stop(&pacing, operations(stored), Stop::Crash, now);
            prop_assert!(after.operations.unwrap() <= truly_left);
            let after = after_stop(&pacing, operations(stored), Stop::Clean(UnixMs(0)), now);
            let exact = u128::from(stored) + u128::from(refill) * u128::from(down_ms) / 1_000;
            prop_assert_eq!(u128::from(after.operations.unwrap()), exact.min(capacity.into()));
        }
    }
}
