//! Judges whether a volume gets the performance that was sold, second by second. Pure.
//!
//! A second counts as missed if the volume had more demand than it got for nearly all of the time,
//! the device delayed it, and it got over a hundredth less than its reservation. A volume with
//! little demand misses nothing, however long its requests waited: that is latency, and shown as
//! such. Time for which an instance's limits delayed a volume is not missed either.

use super::Exceeded;
use super::admission::Reserved;
use crate::time::Duration;

/// Part of a second for which a request must have waited for the second to be full of demand, in
/// percent.
const DEMAND_PERCENT: u128 = 90;
/// Shortfall that does not count, in percent.
const SHORT_PERCENT: u128 = 1;

/// Seconds since the server started in which a volume was used, as far as they were judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Contract {
    /// Seconds in which it was used.
    pub seconds: u64,
    /// Seconds in which it did not get the performance that was sold.
    pub missed: u64,
}

/// Counters of a volume at the end of a second, continued from the second before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Counted I/Os dispatched.
    pub operations: u64,
    /// Bytes dispatched.
    pub bytes: u64,
    /// Time for which its requests were delayed, by reason.
    pub exceeded: Exceeded,
}

impl Contract {
    /// Counts a period of about a second in which the volume was used.
    pub fn count(&mut self, reserved: Reserved, period: Duration, before: &Seen, after: &Seen) {
        self.seconds += 1;
        self.missed += u64::from(is_missed(reserved, period, before, after));
    }

    /// Returns the part of its seconds in which it got the performance that was sold, in
    /// millionths; `None` before it was used.
    #[must_use]
    pub fn met_ppm(&self) -> Option<u32> {
        let met = u128::from(self.seconds.saturating_sub(self.missed)) * 1_000_000;
        u32::try_from(met.checked_div(u128::from(self.seconds))?).ok()
    }
}

fn is_missed(reserved: Reserved, period: Duration, before: &Seen, after: &Seen) -> bool {
    let period_ns = u128::from(period.ns);
    let since = |of: fn(&Exceeded) -> u64| {
        u128::from(of(&after.exceeded).saturating_sub(of(&before.exceeded)))
    };
    let device_ns = since(|e| e.device_ns);
    let instance_ns = since(|e| e.instance_operations_ns) + since(|e| e.instance_bytes_ns);
    let own_ns = since(|e| e.operations_ns) + since(|e| e.bytes_ns) + since(|e| e.guard_ns);
    // The time that its I/Os or bytes are worth at the reserved rate, whichever is more.
    let worth_ns = |amount: u64, per_second: u64| {
        let ns = u128::from(amount) * 1_000_000_000;
        ns.checked_div(u128::from(per_second)).unwrap_or(u128::MAX)
    };
    let operations = after.operations.saturating_sub(before.operations);
    let bytes = after.bytes.saturating_sub(before.bytes);
    let got_ns = worth_ns(operations, reserved.operations_per_second.into())
        .max(worth_ns(bytes, reserved.bytes_per_second));
    let percent = |of: u128| period_ns * of / 100;
    device_ns + instance_ns + own_ns >= percent(DEMAND_PERCENT)
        && device_ns > percent(SHORT_PERCENT)
        && got_ns.saturating_add(instance_ns) < percent(100 - SHORT_PERCENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_ms(1_000);
    const RESERVED: Reserved =
        Reserved { operations_per_second: 1_000, bytes_per_second: 16_000 << 10 };

    fn missed(operations: u64, bytes: u64, exceeded: Exceeded) -> bool {
        let before = Seen { operations: 7, bytes: 7, ..Seen::default() };
        let after = Seen { operations: 7 + operations, bytes: 7 + bytes, exceeded };
        let mut contract = Contract::default();
        contract.count(RESERVED, SECOND, &before, &after);
        assert_eq!(contract.seconds, 1);
        contract.missed == 1
    }

    fn ms(device: u64, own: u64, instance: u64) -> Exceeded {
        let ns = |ms: u64| ms * 1_000_000;
        Exceeded {
            device_ns: ns(device),
            operations_ns: ns(own),
            instance_bytes_ns: ns(instance),
            ..Exceeded::default()
        }
    }

    #[test]
    fn second_is_missed_if_the_device_gives_less_than_was_sold() {
        assert!(missed(900, 900 << 14, ms(950, 0, 0)));
        assert!(missed(989, 0, ms(20, 900, 0)));
        assert!(!missed(990, 0, ms(950, 0, 0)), "a hundredth may be missing");
        assert!(!missed(1_000, 0, ms(950, 0, 0)));
        // In large requests the bytes reach the reservation.
        assert!(!missed(63, 16_000 << 10, ms(950, 0, 0)));
        assert!(missed(63, 15_000 << 10, ms(950, 0, 0)));
    }

    #[test]
    fn little_demand_own_limits_and_instances_miss_nothing() {
        assert!(!missed(100, 0, ms(500, 0, 0)), "half of the time nothing waited");
        assert!(!missed(500, 0, ms(5, 990, 0)), "its own limit in bytes, say");
        assert!(!missed(100, 0, ms(50, 0, 900)), "its instance's limit");
        assert!(missed(100, 0, ms(500, 0, 450)), "of what its instance left, a tenth");
        assert!(!missed(0, 0, Exceeded::default()));
    }

    #[test]
    fn second_without_a_reservation_is_never_missed() {
        let mut contract = Contract::default();
        assert_eq!(contract.met_ppm(), None);
        let after = Seen { exceeded: ms(1_000, 0, 0), ..Seen::default() };
        contract.count(Reserved::NOTHING, SECOND, &Seen::default(), &after);
        assert_eq!(contract.met_ppm(), Some(1_000_000));
        contract.count(RESERVED, SECOND, &Seen::default(), &after);
        assert_eq!(contract.met_ppm(), Some(500_000));
    }
}
