//! Whether a layout carries a workload permanently: a trace that begins with full credits shows one
//! run, but costs are for a month.

use evenkeel_core::qos::pacing::CountingRule;

use crate::delays::Delays;
use crate::demand::{DAY_US, Demand};
use crate::fluid::{Fluid, Part};
use crate::layout::Layout;
use crate::search::{Space, Wanted, buckets};
use crate::spread::Share;

const MONTH_US: u64 = 30 * 86_400_000_000;
/// Microseconds, or millionths of credits, by which rounding makes repetitions differ.
const ROUNDING: u128 = 1_000;

/// Returns the seconds after which requests wait longer than in the trace, if its workload is
/// repeated for a month of 30 days; `None` if they never do.
#[must_use]
pub fn dry_after_s(space: &Space, demand: &Demand, layout: &Layout) -> Option<u64> {
    if !layout.saves_credits(space).contains(&true) || demand.length_us == 0 {
        return None;
    }
    let mut month = Month::new(space, demand, layout, false);
    let mut first_waited_us = None;
    while !month.is_over() {
        let repetition = month.replay(first_waited_us);
        if let Some(at_us) = repetition.longer_from_us {
            return Some(at_us / 1_000_000);
        }
        first_waited_us = first_waited_us.or(Some(repetition.waited_us));
    }
    None
}

/// Returns whether every repetition of a workload in a month of 30 days does what is wanted, or
/// waits no longer than the first one, which a search has judged.
#[must_use]
pub fn carries(space: &Space, demand: &Demand, layout: &Layout, wanted: &Wanted) -> bool {
    let may_always_wait = u128::from(wanted.throttled_us_per_day_max) >= DAY_US;
    let may_wait = wanted.throttled_us_per_day_max > 0 || !wanted.delays.is_empty();
    let saves = layout.saves_credits(space).contains(&true);
    // If no request waits, nothing is left of a repetition but spent credits.
    if demand.length_us == 0
        || demand.length_us >= MONTH_US
        || (!saves && !may_wait)
        || (may_always_wait && wanted.delays.is_empty())
    {
        return true;
    }
    let mut month = Month::new(space, demand, layout, !wanted.delays.is_empty());
    let mut first: Option<Repetition> = None;
    while !month.is_over() {
        let now = month.replay(None);
        let first = first.get_or_insert_with(|| now.clone());
        let has_time = |waited_us: u64, known_us: u64| {
            u128::from(waited_us) * DAY_US
                <= u128::from(wanted.throttled_us_per_day_max) * u128::from(known_us.max(1))
        };
        let waits = now.waited_us <= first.waited_us || has_time(now.waited_us, now.known_us);
        let is_late = |(permille, us): &(u32, u64)| {
            now.delays.permille(*permille) > first.delays.permille(*permille).max(*us)
        };
        if !waits || wanted.delays.iter().any(is_late) {
            return false;
        }
    }
    true
}

/// A workload that is repeated for a month on a layout, from full credits on.
struct Month<'a> {
    demand: &'a Demand,
    counting: CountingRule,
    share: Share,
    fluid: Fluid,
    start_us: u64,
    /// Millionths of credits of each limit at the start of the month.
    credits: Vec<u128>,
    /// State after the previous repetition.
    before: Option<Left>,
    /// Maximum number of repetitions that are skipped at once. Doubles while repetitions are alike.
    stride: u128,
    is_steady: bool,
}

/// State of a volume after a repetition, with which the next one begins.
#[derive(Clone, PartialEq, Eq)]
struct Left {
    /// Millionths of credits of each limit.
    credits: Vec<u128>,
    /// Millionths of credits that it spent, more than it earned.
    spent: Vec<u128>,
    /// Time that waiting requests take, in microseconds.
    late_us: u64,
    /// By how much that is more than before the repetition.
    grown_us: u64,
    waited_us: u64,
}

impl Left {
    /// Returns whether a repetition left the next one as much as the previous one did, but for
    /// rounding.
    fn is_like(&self, before: &Self) -> bool {
        let is_near = |now: u128, was: u128| now.abs_diff(was) <= was / 1_000 + ROUNDING;
        let mut pairs = self.spent.iter().zip(&before.spent);
        self.spent.len() == before.spent.len()
            && pairs.all(|(now, was)| is_near(*now, *was))
            && self.late_us >= before.late_us
            && is_near(self.grown_us.into(), before.grown_us.into())
            && is_near(self.waited_us.into(), before.waited_us.into())
    }

    /// Returns whether it left exactly as much.
    fn equals(&self, before: &Self) -> bool {
        (&self.spent, self.grown_us, self.waited_us)
            == (&before.spent, before.grown_us, before.waited_us)
    }
}

/// One repetition.
#[derive(Clone)]
struct Repetition {
    waited_us: u64,
    /// Its length, or the time until its last request is served if that is longer.
    known_us: u64,
    delays: Delays,
    /// Time from which requests waited longer than the given time.
    longer_from_us: Option<u64>,
}

impl<'a> Month<'a> {
    fn new(space: &Space, demand: &'a Demand, layout: &Layout, has_delays: bool) -> Self {
        let fluid = Fluid::new(buckets(space, layout).1, 0);
        Self {
            demand,
            counting: space.rules.pacing(&layout.each).counting,
            share: layout.share(space),
            credits: fluid.micro_credits(),
            fluid: if has_delays { fluid } else { fluid.without_delays() },
            start_us: 0,
            before: None,
            stride: 1,
            is_steady: false,
        }
    }

    /// Returns whether the month has ended, or all repetitions that are left are the same.
    const fn is_over(&self) -> bool {
        self.is_steady || self.start_us >= MONTH_US
    }

    /// Replays the next repetition. Stops where requests have waited for longer than `waited_max`.
    fn replay(&mut self, waited_max: Option<u64>) -> Repetition {
        let before_us = self.fluid.waited_us();
        let start_us = self.start_us;
        let mut longer_from_us = None;
        for part in self.demand.parts(self.counting, self.share) {
            let at_us = start_us.saturating_add(part.start_us);
            self.fluid.take(Part { start_us: at_us, ..part });
            if waited_max.is_some_and(|most| self.fluid.waited_us() - before_us > most) {
                longer_from_us = Some(at_us);
                break;
            }
        }
        let end_us = start_us.saturating_add(self.demand.length_us);
        self.fluid.rest(end_us);
        let waited_us = self.fluid.waited_us() - before_us;
        let known_us = self.fluid.free_us().max(end_us) - start_us;
        let delays = self.fluid.take_delays();
        self.start_us = end_us;
        self.leave(waited_us);
        Repetition { waited_us, known_us, delays, longer_from_us }
    }

    /// Compares what a repetition left with what the previous one did. Skips repetitions that only
    /// spend as many credits again, and leave as many more requests waiting.
    fn leave(&mut self, waited_us: u64) {
        let credits = self.fluid.micro_credits();
        let late_us = self.fluid.free_us().saturating_sub(self.start_us);
        let mut left = Left { credits, spent: Vec::new(), late_us, grown_us: 0, waited_us };
        let Some(before) = self.before.take() else {
            // The next repetition begins as this one did, and so all of them are equal.
            self.is_steady = late_us == 0 && left.credits == self.credits;
            self.before = Some(left);
            return;
        };
        let pairs = || left.credits.iter().zip(&before.credits);
        self.is_steady = pairs().all(|(now, was)| now >= was) && late_us <= before.late_us;
        left.spent = pairs().map(|(now, was)| was.saturating_sub(*now)).collect();
        left.grown_us = late_us.saturating_sub(before.late_us);
        // With the same spending twice, no credits were lost at their maximum.
        let is_alike = left.is_like(&before);
        self.stride = if !is_alike {
            1
        } else if left.equals(&before) {
            u128::MAX
        } else {
            self.stride.saturating_mul(2)
        };
        if is_alike && !self.is_steady {
            self.skip(&left);
        }
        self.before = Some(Left {
            credits: self.fluid.micro_credits(),
            late_us: self.fluid.free_us().saturating_sub(self.start_us),
            ..left
        });
    }

    /// Skips repetitions, up to the last repetition before credits or the month end.
    fn skip(&mut self, left: &Left) {
        let repetitions = MONTH_US.saturating_sub(self.start_us) / self.demand.length_us.max(1);
        let needed = self.fluid.needed_micro_credits();
        let all = self.fluid.least_micro_credits().iter().zip(&needed).zip(&left.spent);
        let with_credits = all
            .filter(|(_, spent)| **spent > 0)
            .map(|((least, needed), spent)| least.saturating_sub(*needed) / spent)
            .min();
        let most = with_credits.unwrap_or(u128::MAX).min(repetitions.into());
        let count = most.saturating_sub(1).min(self.stride);
        let skipped = u64::try_from(count).expect("invariant: at most the repetitions of a month");
        let us = skipped.saturating_mul(self.demand.length_us);
        let spent: Vec<u128> = left.spent.iter().map(|spent| spent * count).collect();
        self.fluid.skip(us.saturating_add(skipped.saturating_mul(left.grown_us)), &spent);
        self.start_us = self.start_us.saturating_add(us);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::{Rules, VolumeType};

    use super::*;
    use crate::demand::Assume;
    use crate::layout_text;
    use crate::testing::{minutes, space};

    fn dry(requests: &[u64], layout: &str) -> Option<u64> {
        let space = space(&VolumeType::ALL, 1);
        let trace = minutes(requests);
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

    /// Skipping repetitions gives the results of a run without skipping.
    #[test]
    fn skipped_repetitions_change_nothing() {
        let space = space(&VolumeType::ALL, 1);
        // A minute of these requests, and a minute of none; and the same 720 times in one trace.
        for (requests, layout) in [(37_000, "gp2 100"), (38_000, "gp2 100"), (36_000, "gp2 100")] {
            let once = [requests, 0];
            let often = once.repeat(720);
            let after_s = [&once[..], &often].map(|all| dry(all, layout));
            let layout = layout_text::parse(layout, Rules::newest()).expect("a layout");
            let demand_of = |all: &[u64]| Demand::of(&minutes(all), Assume::Even);
            let wanted = Wanted::default();
            let carried =
                [&once[..], &often].map(|all| carries(&space, &demand_of(all), &layout, &wanted));
            assert_eq!(carried, after_s.map(|after_s| after_s.is_none()), "{requests}");
            let times = after_s.map(|after_s| after_s.unwrap_or(0));
            assert!(times[0].abs_diff(times[1]) <= 240, "{times:?}");
        }
    }

    #[test]
    fn a_month_does_what_is_wanted_in_every_repetition() {
        let space = space(&VolumeType::ALL, 1);
        let carried = |requests: &[u64], layout: &str, wanted: &Wanted| {
            let layout = layout_text::parse(layout, Rules::newest()).expect("a layout");
            carries(&space, &Demand::of(&minutes(requests), Assume::Even), &layout, wanted)
        };
        let waits = |s_per_day: u64| Wanted {
            throttled_us_per_day_max: s_per_day * 1_000_000,
            ..Wanted::default()
        };
        let late = |us| Wanted { delays: vec![(990, us)], ..waits(86_400) };
        // 400 per second for a minute of two: 100 GiB earn 300, and credits never run out.
        assert!(carried(&[24_000, 0], "gp2 100", &waits(0)));
        // 700 for a minute of two are 50 more than are earned: 81 s of every 120 s wait then.
        assert!(!carried(&[42_000, 0], "gp2 100", &waits(0)));
        assert!(!carried(&[42_000, 0], "gp2 100", &waits(43_200)));
        assert!(carried(&[42_000, 0], "gp2 100", &waits(86_400)));
        assert!(!carried(&[42_000, 0], "gp2 100", &late(60_000_000)));
        // Without credits, what is left waiting adds up.
        assert!(!carried(&[190_000], "gp3 100", &late(60_000_000)));
        assert!(carried(&[170_000], "gp3 100", &late(0)));
        // Twenty requests a minute that wait are 864,000 after a month, and take 288 s.
        assert!(!carried(&[180_020], "gp3 100", &late(250_000_000)));
        assert!(carried(&[180_020], "gp3 100", &late(320_000_000)));
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
