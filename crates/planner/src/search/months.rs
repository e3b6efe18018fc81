//! Layouts that carry a workload month after month: one run begins with full credits, and a month
//! of the workload may spend them.

use evenkeel_core::volume::{IopsRule, ThroughputRule, TypeRules, VolumeType};

use super::{Found, Space, Wanted, settle, sharpest};
use crate::demand::Demand;
use crate::steady;

/// Returns the first `count` layouts for a workload that repeats: those that do what is wanted in
/// every repetition of a month, cheapest first, and behind them those whose credits run out.
///
/// Layouts carry `demand`, and their credits last for `recorded`, which is `demand` without a
/// headroom. At most `requests_max` requests are sent to the scheduler for the first one.
#[must_use]
pub fn for_months(
    space: &Space,
    demand: &Demand,
    recorded: &Demand,
    wanted: &Wanted,
    (count, requests_max): (usize, u64),
) -> Vec<Found> {
    let lasting = sharpest(space, demand, Some(recorded), wanted, count);
    let mut all = settle(space, demand, wanted, lasting, requests_max);
    let left = count.saturating_sub(all.len());
    let with_credits = Space { types: types_with_credits(space), ..space.clone() };
    if left == 0 || with_credits.types.is_empty() {
        return all;
    }
    let mut dry = sharpest(&with_credits, demand, None, wanted, count);
    dry.retain(|found| !carries(space, recorded, wanted, found));
    dry.truncate(left);
    if all.is_empty() {
        dry = settle(space, demand, wanted, dry, requests_max);
    }
    all.extend(dry);
    all
}

/// Returns whether a layout does what is wanted in every repetition of a month.
#[must_use]
pub fn carries(space: &Space, recorded: &Demand, wanted: &Wanted, found: &Found) -> bool {
    steady::carries(space, recorded, &found.layout, wanted)
}

/// Returns the types whose volumes, or whose instances, spend credits.
fn types_with_credits(space: &Space) -> Vec<VolumeType> {
    let has_credits = |rules: &TypeRules| {
        matches!(rules.iops, IopsRule::FromSize { .. })
            || matches!(rules.throughput, ThroughputRule::Credits { .. })
    };
    let all = space.types.iter().copied();
    let spends = |volume_type: &VolumeType| {
        !space.instances.is_empty() || space.rules.of(*volume_type).is_some_and(has_credits)
    };
    all.filter(spends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::Assume;
    use crate::search::Tolerance;
    use crate::testing::{minutes, space, wanted};

    /// 350 per second: a gp2 volume of 100 GiB carries an hour on its credits, and one of 116 GiB a
    /// month, since 5.4 million credits are 2 a second more than the 348 that it earns.
    #[test]
    fn the_least_size_that_lasts_is_named_before_the_one_that_runs_dry() {
        let demand = Demand::of(&minutes(&[21_000; 60]), Assume::Even);
        for tolerance in [Tolerance::None, Tolerance::Evenkeel] {
            let space = Space { tolerance, ..space(&[VolumeType::Gp2, VolumeType::Gp3], 1) };
            let rows_of = |count| {
                let all = for_months(&space, &demand, &demand, &wanted(100, 0), (count, 1_000_000));
                all.iter().map(|found| found.layout.to_string()).collect::<Vec<_>>()
            };
            let rows = [
                "gp3 100 GiB, 3000 IOPS, 125 MiB/s",
                "gp2 116 GiB, 348 IOPS",
                "gp2 100 GiB, 300 IOPS",
            ];
            assert_eq!(rows_of(8), rows);
            assert_eq!(rows_of(2), rows[..2]);
            let only = Space { types: vec![VolumeType::Gp2], ..space.clone() };
            let all = for_months(&only, &demand, &demand, &wanted(100, 0), (8, 0));
            let last: Vec<bool> =
                all.iter().map(|found| carries(&only, &demand, &wanted(100, 0), found)).collect();
            assert_eq!(last, [true, false]);
        }
    }
}
