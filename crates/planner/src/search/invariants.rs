//! Invariants of the layouts that a search returns.

use super::{Found, Space, Wanted, attachments_max, does, replay, suits};
use crate::demand::Demand;
use crate::instances;
use crate::layout::Layout;

/// Maximum number of spans of a demand that is replayed once more: debug builds stay usable.
const SPANS_MAX: usize = 20_000;

/// Asserts the invariants of the first `count` layouts, in debug builds and tests, after every
/// search: each is possible and meets the requirements, they are in the order of their costs, and
/// the parts that the search left out of its replays changed nothing.
pub(super) fn of_found(
    space: &Space,
    demand: &Demand,
    wanted: &Wanted,
    count: usize,
    found: &[Found],
) {
    assert!(found.len() <= count, "a search returns at most {count} layouts, not {}", found.len());
    let is_ordered = found.is_sorted_by_key(|found| space.rank(found));
    assert!(is_ordered, "layouts are in the order of their costs");
    for (number, row) in found.iter().enumerate() {
        of_layout(space, wanted, row);
        assert!(does(&row.outcome, demand, wanted), "it meets the requirements: {row:?}");
        if demand.spans.len() <= SPANS_MAX {
            let (limits, outcome) = replay(space, demand, &row.layout);
            assert_eq!((&row.limits, &row.outcome), (&limits, &outcome), "{}", row.layout);
        }
        let kind = |found: &Found| {
            let Layout { volumes, each, instance } = found.layout;
            (volumes, each.volume_type, instance)
        };
        let is_first = found.iter().take(number).all(|other| kind(other) != kind(row));
        assert!(is_first, "a search returns one layout of a type and number: {}", row.layout);
    }
}

/// Asserts that a layout exists and costs what is stated.
fn of_layout(space: &Space, wanted: &Wanted, found: &Found) {
    let layout = &found.layout;
    let rules = space.rules.of(layout.each.volume_type);
    assert!(
        space.types.contains(&layout.each.volume_type)
            && rules.is_some_and(|rules| suits(rules, wanted.boots, wanted.multi_attach)),
        "the type is a candidate: {layout}"
    );
    assert!(
        layout.volumes <= space.volumes_max
            && layout.volumes <= attachments_max(layout.instance, wanted.boots),
        "that many volumes can be attached: {layout}"
    );
    assert_eq!(instances::not_carried(layout.instance, &layout.each), None, "{layout}");
    let gib = u64::from(layout.volumes) * u64::from(layout.each.size_gib);
    assert!(gib >= wanted.capacity_gib, "it has the capacity of {}: {layout}", wanted.capacity_gib);
    let resolved = space.rules.resolve(&layout.each.request());
    assert_eq!(resolved.ok(), Some(layout.each), "the volume can be created: {layout}");
    assert_eq!(space.monthly(layout), Some(found.monthly), "{layout}");
    assert!(space.prices.fits(space.rules, &layout.each), "it fits on the hardware: {layout}");
    let most = wanted.monthly_max.unwrap_or(u64::MAX);
    assert!(found.total() <= most, "it costs at most {most}: {layout}");
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;

    use super::*;
    use crate::search::cheapest;
    use crate::testing::{seconds, space, wanted};

    /// Asserts the invariants of what `change` makes of the layouts of a search.
    fn changed(change: impl Fn(&mut Vec<Found>)) {
        let space = space(&[VolumeType::Gp3, VolumeType::Io1], 2);
        let demand = seconds(&[(4_000, 4); 60]);
        let wanted = wanted(100, 0);
        let mut found = cheapest(&space, &demand, &wanted);
        assert_eq!(found.len(), 4);
        change(&mut found);
        of_found(&space, &demand, &wanted, 4, &found);
    }

    #[test]
    fn invariants_hold_after_a_search() {
        changed(|_| {});
    }

    #[test]
    #[should_panic(expected = "in the order of their costs")]
    fn invariants_include_the_order() {
        changed(|found| found.swap(0, 3));
    }

    #[test]
    #[should_panic(expected = "at most 4 layouts")]
    fn invariants_include_the_number() {
        changed(|found| found.push(found[3].clone()));
    }

    #[test]
    #[should_panic(expected = "one layout of a type and number")]
    fn invariants_include_that_layouts_differ() {
        changed(|found| found[1] = found[0].clone());
    }

    #[test]
    #[should_panic(expected = "it meets the requirements")]
    fn invariants_include_the_requirements() {
        changed(|found| found[0].outcome.throttled_us[0] = 1);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn invariants_include_the_parts_that_were_left_out() {
        changed(|found| found[0].outcome.end_us += 1);
    }

    #[test]
    #[should_panic(expected = "it has the capacity")]
    fn invariants_include_the_capacity() {
        changed(|found| found[0].layout.each.size_gib -= 1);
    }

    #[test]
    #[should_panic(expected = "left == right")]
    fn invariants_include_the_cost() {
        changed(|found| found[0].monthly.storage -= 1);
    }
}
