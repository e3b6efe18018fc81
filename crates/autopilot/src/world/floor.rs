//! Costs that the policy is compared with: of a planner that knows the future, and of layouts that
//! never change.

use evenkeel_core::convert::{count, index};

/// Days between two changes to less: the rule of the policy's defaults.
pub(super) const QUIET_DAYS: usize = 7;
/// Days of a month by which volumes are charged.
const MONTH_DAYS: u64 = 30;

/// Costs of one dimension, in units of a month: GiB, or IOPS above those that cost nothing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Units {
    /// The least for a planner that knows the future.
    pub(super) clairvoyant: u64,
    /// Of the peak, at all times.
    pub(super) peak: u64,
}

/// Returns the cost of a demand by day, in units times days.
///
/// The planner that knows the future has the demand of each day or more. It grows at any time and
/// at once. It shrinks at most once in [`QUIET_DAYS`] to any size, and pays for one day more for
/// each unit that it gives up, as the volume that leaves is kept for a day.
///
/// The best plan is found from the end: `best[day]` is the least cost from `day` on if the size
/// is chosen anew on that day. Until the next choice the size follows the running maximum of the
/// demand.
pub(super) fn units_days(demand: &[u64]) -> Units {
    let days = demand.len();
    let mut best = vec![0_u64; days + 1];
    for from in (0..days).rev() {
        let mut size = 0;
        let mut sum = 0_u64;
        let mut least = u64::MAX;
        for day in from..days {
            size = size.max(demand[day]);
            sum += size;
            let next = day + 1;
            if next == days {
                least = least.min(sum);
            } else if next - from >= QUIET_DAYS && demand[next] < size {
                let given_up = size - demand[next];
                least = least.min(sum + given_up + best[next]);
            }
            if sum >= least {
                break;
            }
        }
        best[from] = least;
    }
    let peak = demand.iter().copied().max().unwrap_or(0);
    Units { clairvoyant: best[0], peak: peak * count(days) }
}

/// Returns the cost of a demand by day on a file system that cannot shrink.
pub(super) fn never_less(demand: &[u64]) -> u64 {
    let mut size = 0;
    demand.iter().fold(0, |sum, day| {
        size = size.max(*day);
        sum + size
    })
}

/// Returns the cost in millionths of `units` times days at a monthly price in millionths.
pub(super) fn micro(units_days: u64, monthly_micro: u64) -> u64 {
    let all = u128::from(units_days) * u128::from(monthly_micro) / u128::from(MONTH_DAYS);
    u64::try_from(all).expect("invariant: a cost is below 2^64")
}

/// Returns the percentage of a part, in tenths, rounded.
pub(super) fn permille(part: u64, whole: u64) -> u64 {
    let all = u128::from(part) * 1_000 + u128::from(whole) / 2;
    u64::try_from(all / u128::from(whole.max(1))).expect("invariant: a ratio of costs")
}

/// Returns the middle of some numbers; 0 without any.
pub(super) fn median(numbers: &[u64]) -> u64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.get(index(count(sorted.len() / 2))).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::{BTreeSet, BinaryHeap};

    use evenkeel_core::random::Random;

    use super::*;

    /// Returns the least cost by trying every plan in the order of its cost.
    fn every_plan(demand: &[u64]) -> u64 {
        // Plans in the order of their cost: (cost, day, size, days since the last change to less).
        let sizes: BTreeSet<u64> = demand.iter().copied().collect();
        let mut open = BinaryHeap::new();
        let mut closed = BTreeSet::new();
        for size in &sizes {
            if *size >= demand[0] {
                open.push(Reverse((*size, 1_usize, *size, 1_usize)));
            }
        }
        while let Some(Reverse((cost, day, size, since))) = open.pop() {
            if day == demand.len() {
                return cost;
            }
            if !closed.insert((day, size, since)) {
                continue;
            }
            for next in &sizes {
                if *next < demand[day] || (*next < size && since < QUIET_DAYS) {
                    continue;
                }
                let since = if *next < size { 1 } else { (since + 1).min(QUIET_DAYS) };
                let given_up = size.saturating_sub(*next);
                open.push(Reverse((cost + next + given_up, day + 1, *next, since)));
            }
        }
        u64::MAX
    }

    #[test]
    fn clairvoyant_costs_equal_the_cheapest_of_every_plan() {
        for seed in 0..200 {
            let mut random = Random::new(seed, 0);
            let days = 5 + index(random.below(26));
            let demand: Vec<u64> = (0..days).map(|_| 1 + random.below(9)).collect();
            let found = units_days(&demand);
            assert_eq!(found.clairvoyant, every_plan(&demand), "seed {seed}: {demand:?}");
            assert!(found.clairvoyant <= found.peak);
        }
    }

    #[test]
    fn clairvoyant_shrinks_after_a_week_if_the_demand_falls() {
        let mut demand = vec![100; 10];
        demand.extend([10; 20]);
        // Ten days at 100, one more day for the 90 that leave, and twenty at 10.
        assert_eq!(units_days(&demand).clairvoyant, 1_000 + 90 + 200);
        assert_eq!(units_days(&demand).peak, 3_000);
    }
}
