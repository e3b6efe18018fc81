//! Credit balances after a stop of the server, and the part of them that is on disk. Pure.
//!
//! The data plane holds the balances and spends them without asking. While the server runs, the
//! disk has the *unleased* part of each balance, which the data plane must not spend. So the disk
//! always has a lower bound of the credits left, whatever hangs, and for however long.
//!
//! - **A lease** is the most that a volume can spend in [`LEASE_MS`]: burst minus baseline, plus
//!   the pacer's tolerance of burst. It is renewed every second. A lease that cannot be renewed,
//!   because the disk hangs or is full, runs out, and the volume continues at its baseline.
//! - **To lease more**, a lower value is written to disk first, then the data plane is called. **To
//!   lease less**, the data plane is called first, then a higher value is written. So after a crash
//!   the disk never has more than there was.
//! - **After a crash** the balance is the value on disk, and nothing is added for the time down. A
//!   crash costs at most one lease, and never adds credits.
//! - **After a clean stop** the disk has the balance after the last I/O. An EBS bucket fills while
//!   the volume is idle, and the volume is idle while the server is down: the refill for the time
//!   down is added, up to the capacity.
//! - **A balance that was never stored** counts as empty.

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};

use crate::time::Moment;

/// Time between two reads of the data plane's balances, in milliseconds.
pub const REPORT_INTERVAL_MS: u64 = 1_000;
/// Minimum time that a lease lasts, in milliseconds. It is longer than a busy disk or a call to the
/// data plane usually takes, so that a renewal is not late, and short compared with the half hour
/// in which a full balance can be spent.
pub const LEASE_MS: u64 = 10_000;
/// A lease is renewed once this part of it is spent, or could be returned, so that ten thousand
/// volumes are not all written every second.
const RENEWED_PART: u64 = 8;

/// The server's last stop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Cleanly, at this time, with every balance stored.
    Clean(Moment),
    /// Not cleanly; the disk has the unleased part of the balances.
    Crash,
}

/// Returns the balances with which a volume starts, from its stored ones.
#[must_use]
pub fn after_stop(pacing: &Pacing, stored: Balances, stop: &Stop, now: &Moment) -> Balances {
    each(pacing, stored, |_, credit, stored| {
        let balance = stored.unwrap_or(0);
        let balance = match stop {
            Stop::Clean(stopped) => refilled(balance, credit, now.ms_since(stopped)),
            Stop::Crash => balance,
        };
        balance.min(credit.capacity)
    })
}

/// Returns the unleased part of these balances, which is on disk while the server runs.
#[must_use]
pub fn unleased(pacing: &Pacing, balances: Balances) -> Balances {
    each(pacing, balances, |limit, credit, balance| {
        balance.unwrap_or(0).saturating_sub(lease(limit, credit, pacing.tolerance.ns))
    })
}

/// Returns the new unleased part of these balances; unchanged if the difference is too small for a
/// write.
#[must_use]
pub fn renewed(pacing: &Pacing, before: Balances, balances: Balances) -> Balances {
    let new = unleased(pacing, balances);
    let one = |limit: Option<Limit>, before: Option<u64>, new: Option<u64>| {
        let limit = limit?;
        let new = new?;
        let lease = lease(limit, limit.credit?, pacing.tolerance.ns);
        // The last part of a balance may be spent entirely.
        let keeps = before.filter(|before| {
            (new > 0 || *before == 0) && before.abs_diff(new) <= lease / RENEWED_PART
        });
        keeps.or(Some(new))
    };
    Balances {
        operations: one(pacing.operations, before.operations, new.operations),
        bytes: one(pacing.bytes, before.bytes, new.bytes),
    }
}

/// Computes a value for each dimension that has credits.
fn each(
    pacing: &Pacing,
    balances: Balances,
    value: impl Fn(Limit, CreditLimit, Option<u64>) -> u64,
) -> Balances {
    let one = |limit: Option<Limit>, balance: Option<u64>| {
        let limit = limit?;
        Some(value(limit, limit.credit?, balance))
    };
    Balances {
        operations: one(pacing.operations, balances.operations),
        bytes: one(pacing.bytes, balances.bytes),
    }
}

fn refilled(balance: u64, credit: CreditLimit, down_ms: u64) -> u64 {
    let earned = u128::from(credit.refill_per_second) * u128::from(down_ms) / 1_000;
    balance.saturating_add(saturating(earned))
}

/// Returns the maximum of credits that can be spent in [`LEASE_MS`], rounded up.
fn lease(limit: Limit, credit: CreditLimit, tolerance_ns: u64) -> u64 {
    let drain = u128::from(limit.per_second.saturating_sub(credit.refill_per_second));
    let steady = (drain * u128::from(LEASE_MS)).div_ceil(1_000);
    let burst = (u128::from(limit.per_second) * u128::from(tolerance_ns)).div_ceil(1_000_000_000);
    saturating(steady + burst)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::credit::Credit;
    use evenkeel_core::time::{Duration, UnixMs};
    use proptest::prelude::*;

    /// The lease of a gp2 volume of 100 GiB: ten seconds at 2,700 net, plus 50 ms of burst.
    const LEASE: u64 = 10 * 2_700 + 150;

    fn gp2(per_second: u64, refill_per_second: u64, capacity: u64) -> Pacing {
        let credit = Some(CreditLimit { refill_per_second, capacity });
        let operations = Some(Limit { per_second, credit });
        let tolerance = Duration::from_ms(50);
        Pacing { operations, tolerance, ..Pacing::UNLIMITED }
    }

    fn operations(balance: u64) -> Balances {
        Balances { operations: Some(balance), bytes: None }
    }

    fn wall(ms: u64) -> Moment {
        Moment { unix: UnixMs(ms), boot: None }
    }

    #[test]
    fn a_clean_stop_earns_the_time_down() {
        let pacing = gp2(3_000, 300, 5_400_000);
        let after = |stored, stopped, now| {
            after_stop(&pacing, operations(stored), &Stop::Clean(wall(stopped)), &wall(now))
        };
        assert_eq!(after(1_000, 0, 10_000), operations(4_000));
        assert_eq!(after(1_000, 0, 3), operations(1_000));
        assert_eq!(after(5_399_999, 0, 60_000), operations(5_400_000));
        assert_eq!(after(1_000, 10_000, 0), operations(1_000), "the clock was set back");
        assert_eq!(after(0, 0, u64::MAX), operations(5_400_000));
    }

    #[test]
    fn a_wall_clock_that_jumps_earns_nothing_where_the_machine_can_tell() {
        let at =
            |unix, boot: &str, ms| Moment { unix: UnixMs(unix), boot: Some((boot.to_owned(), ms)) };
        let stopped = at(1_000_000, "a", 500_000);
        assert_eq!(at(9_000_000, "a", 530_010).ms_since(&stopped), 30_000, "set forward");
        assert_eq!(at(0, "a", 530_010).ms_since(&stopped), 30_000, "set back");
        assert_eq!(at(1_005_000, "a", 500_000).ms_since(&stopped), 0);
        // The machine was booted in between: at least the time since then has passed.
        assert_eq!(at(1_060_000, "b", 20_010).ms_since(&stopped), 60_000);
        assert_eq!(at(0, "b", 20_010).ms_since(&stopped), 20_000);
        assert_eq!(wall(1_060_000).ms_since(&stopped), 60_000);
    }

    #[test]
    fn crash_leaves_the_unleased_balance() {
        let pacing = gp2(3_000, 300, 5_400_000);
        let after = |stored, stop| after_stop(&pacing, stored, &stop, &wall(u64::MAX));
        assert_eq!(unleased(&pacing, operations(5_400_000)), operations(5_400_000 - LEASE));
        assert_eq!(after(operations(5_400_000), Stop::Crash), operations(5_400_000));
        assert_eq!(after(Balances::default(), Stop::Crash), operations(0));
    }

    #[test]
    fn a_lease_is_renewed_when_it_is_worth_it_and_the_last_of_a_balance_is_leased() {
        let pacing = gp2(3_000, 300, 5_400_000);
        let renewed = |before, balance| {
            renewed(&pacing, operations(before), operations(balance)).operations.unwrap()
        };
        assert_eq!(renewed(1_000_000, 1_000_000 + LEASE), 1_000_000);
        assert_eq!(renewed(1_000_000, 1_000_000 + LEASE - 3_000), 1_000_000);
        assert_eq!(renewed(1_000_000, 1_000_000 + LEASE - 4_000), 1_000_000 - 4_000);
        assert_eq!(renewed(1_000_000, 1_000_000 + LEASE + 4_000), 1_000_000 + 4_000);
        assert_eq!(renewed(3, LEASE), 0);
        assert_eq!(renewed(3, LEASE + 1), 3);
        assert_eq!(renewed(0, 5), 0);
    }

    #[test]
    fn dimensions_without_credits_have_no_balance() {
        let stored = Balances { operations: Some(7), bytes: Some(7) };
        let after = after_stop(&Pacing::UNLIMITED, stored, &Stop::Crash, &wall(0));
        assert_eq!(after, Balances::default());
        assert_eq!(unleased(&Pacing::UNLIMITED, stored), Balances::default());
        assert_eq!(renewed(&Pacing::UNLIMITED, stored, stored), Balances::default());
        assert_eq!(Balances::full(&Pacing::UNLIMITED), Balances::default());
        assert_eq!(Balances::full(&gp2(2, 1, 9)), operations(9));
    }

    proptest! {
        #[test]
        fn the_time_down_earns_exactly(
            refill in 1_u64..1_000, capacity in 1_u64..10_000_000, stored: u64,
            down_ms in 0_u64..1_000_000_000,
        ) {
            let pacing = gp2(refill, refill, capacity);
            let stored = stored % (capacity + 1);
            let stop = Stop::Clean(wall(0));
            let after = after_stop(&pacing, operations(stored), &stop, &wall(down_ms));
            let exact = u128::from(stored) + u128::from(refill) * u128::from(down_ms) / 1_000;
            prop_assert_eq!(u128::from(after.operations.unwrap()), exact.min(capacity.into()));
        }

        /// A balance that is spent, refilled and renewed in the order of this module, with steps
        /// left out as if the disk hangs. The value on disk is never more than the balance, except
        /// for the one charge by which a balance may be overdrawn.
        #[test]
        fn stored_balance_is_a_lower_bound(
            refill in 1_u64..1_000, extra in 1_u64..5_000, capacity in 1_u64..1_000_000,
            steps in proptest::collection::vec((0_u32..4, 0_u64..20_000), 1..200),
        ) {
            let pacing = gp2(refill + extra, refill, capacity);
            let limit = CreditLimit { refill_per_second: refill, capacity };
            let mut credit = Credit::full(limit);
            let mut disk = unleased(&pacing, operations(credit.balance())).operations.unwrap();
            credit.set_unleased(disk);
            for (step, amount) in steps {
                match step {
                    0 => credit.settle(Duration::from_ms(amount)),
                    1 => (0..amount).take_while(|_| {
                        let ready = credit.is_ready();
                        if ready {
                            credit.charge(1);
                        }
                        ready
                    }).for_each(drop),
                    _ => {
                        let reported = operations(credit.balance());
                        // The report is a moment old when it is used.
                        credit.charge(amount.min(u64::from(credit.is_ready())));
                        let new = renewed(&pacing, operations(disk), reported).operations.unwrap();
                        if new > disk {
                            let after = credit.set_unleased(new);
                            // The write may fail; the next renewal repeats it.
                            disk = if step == 2 { after } else { disk };
                        } else if step == 2 {
                            disk = new;
                            credit.set_unleased(new);
                        }
                    }
                }
                prop_assert!(disk <= credit.balance() + 1, "{disk} of {credit:?}");
            }
        }
    }
}
