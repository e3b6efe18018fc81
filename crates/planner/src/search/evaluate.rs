//! Evaluates a layout that the user names: its cost and its delays.

use super::{Found, Space, replay, requests};
use crate::demand::Demand;
use crate::layout::Layout;

/// Evaluates a given layout; returns `None` if there is no price of its type.
#[must_use]
pub fn given(space: &Space, demand: &Demand, layout: &Layout) -> Option<Found> {
    let monthly = space.monthly(layout)?;
    let (limits, outcome) = replay(space, demand, layout);
    let requests = requests(space, demand, layout, &outcome);
    Some(Found { layout: *layout, monthly, requests, outcome, limits, exact: None })
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::{Rules, VolumeType};

    use super::*;
    use crate::layout_text;
    use crate::search::{Wanted, cheapest};
    use crate::testing::{seconds, space};

    /// A layout has the same result if it is given as if it is found.
    #[test]
    fn a_named_layout_is_rated_as_a_found_one() {
        let demand = seconds(&[(2_500, 16), (100, 4), (4_000, 64), (0, 1), (900, 4)]);
        let space = space(&VolumeType::ALL, 3);
        let wanted = Wanted {
            capacity_gib: 200,
            throttled_us_per_day_max: 86_400_000_000,
            ..Wanted::default()
        };
        let found = cheapest(&space, &demand, &wanted);
        assert!(found.len() > 10, "{}", found.len());
        for it in found {
            let layout =
                layout_text::parse(&it.layout.to_string(), Rules::newest()).expect("words");
            assert_eq!(given(&space, &demand, &layout), Some(it));
        }
    }
}
