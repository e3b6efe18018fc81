//! Whether a layout carries a workload permanently: a trace that begins with full credits shows one
//! run, but costs are for a month.

use crate::demand::Demand;
use crate::fluid::{Fluid, Part};
use crate::layout::Layout;
use crate::search::{Space, buckets};

const MONTH_US: u64 = 30 * 86_400_000_000;

/// Returns the seconds after which requests wait longer than in the trace, if its workload is
/// repeated for a month of 30 days; `None` if they never do.
#[must_use]
pub fn dry_after_s(space: &Space, demand: &Demand, layout: &Layout) -> Option<u64> {
    let saves = layout.saves_credits(space);
    if !saves.contains(&true) || demand.length_us == 0 {
        return None;
    }
    let (counting, share) = (space.rules.pacing(&layout.each).counting, layout.share(space));
    let mut fluid = Fluid::new(buckets(space, layout).1, 0).without_delays();
    let mut first_waited_us = None;
    let mut credits_before: Option<Vec<u64>> = None;
    let mut start_us: u64 = 0;
    while start_us < MONTH_US {
        let waited_before_us = fluid.waited_us();
        for part in demand.parts(counting, share) {
            let at_us = start_us.saturating_add(part.start_us);
            fluid.take(Part { start_us: at_us, ..part });
            let waited_us = fluid.waited_us() - waited_before_us;
            if first_waited_us.is_some_and(|first_us| waited_us > first_us) {
                return Some(at_us / 1_000_000);
            }
        }
        start_us = start_us.saturating_add(demand.length_us);
        fluid.rest(start_us);
        first_waited_us = first_waited_us.or(Some(fluid.waited_us()));
        let saved = fluid.credits().zip(&saves).filter(|(_, saves)| **saves);
        let credits: Vec<u64> = saved.map(|(credits, _)| credits).collect();
        // A repetition that begins with as many credits as the previous one has the same course.
        let is_steady = |before: &Vec<u64>| credits.iter().zip(before).all(|(now, was)| now >= was);
        if credits_before.as_ref().is_some_and(is_steady) {
            return None;
        }
        credits_before = Some(credits);
    }
    None
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::{Rules, VolumeType};

    use super::*;
    use crate::demand::Assume;
    use crate::layout_text;
    use crate::testing::{minutes, space};

    fn dry(requests: &[u64], layout: &str) -> Option<u64> {
        let (space, trace) = (space(&VolumeType::ALL, 1), minutes(requests));
        let layout = layout_text::parse(layout, Rules::newest()).expect("a layout");
        dry_after_s(&space, &Demand::of(&trace, Assume::Even), &layout)
    }

    #[test]
    fn credits_that_are_spent_faster_than_earned_run_dry() {
        // 400 per second; 100 GiB of gp2 earn 300, and 5.4 million last for 15 hours.
        let hour = [24_000; 60];
        let after_s = dry(&hour, "gp2 100").unwrap();
        assert!((15 * 3_600..=15 * 3_600 + 180).contains(&after_s), "{after_s}");
        // A volume that earns as much, or has no credits, lasts.
        assert_eq!(dry(&hour, "gp2 134"), None);
        assert_eq!(dry(&hour, "gp3 100"), None);
        // Half an hour of 400 and half of none is 200 on average.
        let halves = [[24_000; 30], [0; 30]].concat();
        assert_eq!(dry(&halves, "gp2 100"), None);
        // 33 more per minute than are earned: 1.4 million of 5.4 million credits in a month.
        let slow = [18_033; 60];
        assert_eq!(dry(&slow, "gp2 100"), None);
    }

    /// Compared with the replay of the month itself.
    #[test]
    fn the_month_itself_says_the_same() {
        for (requests, gib) in [(20_000, 100), (30_000, 100), (18_500, 100), (90_000, 300)] {
            let month = minutes(&vec![requests; 30 * 24 * 60]);
            let space = space(&VolumeType::ALL, 1);
            let layout =
                layout_text::parse(&format!("gp2 {gib}"), Rules::newest()).expect("a layout");
            let demand = Demand::of(&month, Assume::Even);
            let waits = crate::search::replay(&space, &demand, &layout).1.waited_us() > 0;
            assert_eq!(dry(&[requests; 10], &format!("gp2 {gib}")).is_some(), waits, "{requests}");
        }
    }
}
