//! The intervals of a demand that a search must evaluate.
//!
//! A part is quiet if it finds no queue and all credits, and leaves both in the same state. It does
//! not affect later parts, and it is quiet at higher limits, too. So parts that are quiet at the
//! lowest limits of a search need not be evaluated again, and neither need those that are quiet at
//! limits that prove too low.

use evenkeel_core::qos::pacing::{CountingRule, Limit};

use crate::delays;
use crate::demand::{DAY_US, Demand, Span};
use crate::fluid::{Bucket, Fluid, Outcome, Part};
use crate::layout::LimitKind;
use crate::spread::Share;
use crate::throttled::{Held, HeldBack};

/// Parts that are not quiet, and the sum of the quiet ones.
#[derive(Clone, Default, Debug)]
pub struct Parts {
    busy: Vec<Part>,
    /// Millionths of counted I/Os of the quiet parts.
    quiet: u128,
    /// End of the last quiet part, in microseconds.
    quiet_end_us: u64,
}

/// The result of a replay, and the parts that matter at higher limits.
pub struct Replayed {
    /// The result; `None` if the replay was stopped.
    pub outcome: Option<Outcome>,
    /// The parts that are not quiet at these limits.
    pub higher: Parts,
}

impl Parts {
    /// Returns the parts that are not quiet at the lowest limits of a search.
    #[must_use]
    pub fn of(buckets: Vec<Bucket>, parts: impl Iterator<Item = Part>) -> Self {
        let mut fluid = Fluid::new(buckets, 0);
        let mut kept = Self::default();
        for part in parts {
            kept.take(&mut fluid, part);
        }
        kept
    }

    fn take(&mut self, fluid: &mut Fluid, part: Part) {
        if fluid.take(part) {
            self.quiet += part.operations;
            self.quiet_end_us = self.quiet_end_us.max(part.start_us + part.length_us);
        } else {
            self.busy.push(part);
        }
    }

    /// Replays the parts at limits that are no lower than those for which the parts were kept.
    /// Stops as soon as `gives_up` returns true.
    #[must_use]
    pub fn replay(&self, buckets: Vec<Bucket>, gives_up: impl Fn(&Fluid) -> bool) -> Replayed {
        let mut fluid = Fluid::new(buckets, 0);
        let (quiet, quiet_end_us) = (self.quiet, self.quiet_end_us);
        let mut higher = Self { busy: Vec::new(), quiet, quiet_end_us };
        for (at, part) in self.busy.iter().enumerate() {
            higher.take(&mut fluid, *part);
            if gives_up(&fluid) {
                higher.busy.extend(self.busy.iter().skip(at + 1));
                return Replayed { outcome: None, higher };
            }
        }
        let mut outcome = fluid.outcome();
        outcome.delays.add(0, 0, quiet);
        outcome.end_us = outcome.end_us.max(quiet_end_us);
        Replayed { outcome: Some(outcome), higher }
    }
}

/// Rates below which requests wait for longer than is wanted, whatever the other limits are.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Floor {
    /// I/Os and bytes that a limit must allow while it has credits.
    most: Rates,
    /// I/Os and bytes that it must allow without credits.
    earned: Rates,
}

/// Counted I/Os and bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Rates {
    operations: u64,
    bytes: u64,
}

impl Rates {
    fn max(self, other: Self) -> Self {
        let operations = self.operations.max(other.operations);
        Self { operations, bytes: self.bytes.max(other.bytes) }
    }
}

/// The counting rule of a volume, and its share of all requests.
type Split = (CountingRule, Share);

impl Floor {
    /// Returns the rates that a demand exceeds for more than `us_per_day` microseconds a day: while
    /// requests arrive faster than they are served, they wait. If the source's limits held requests
    /// back for longer, the rates are no lower than the source's limits, because the further demand
    /// is unknown. For a volume with another counting rule they are no lower than the rates
    /// recorded then.
    #[must_use]
    pub fn of(demand: &Demand, (counting, share): Split, us_per_day: u64) -> Self {
        let parts = demand.parts(counting, share);
        let rates = parts.map(|part| (part.rates(), part.length_us));
        Self::of_lengths(demand, (counting, share), us_per_day, rates)
    }

    /// Returns the rates that follow from the requests that the source's limits held back, alone.
    #[must_use]
    pub(crate) fn held(demand: &Demand, split: Split, us_per_day: u64) -> Self {
        Self::of_lengths(demand, split, us_per_day, std::iter::empty())
    }

    /// Computes the floor from rates and the times for which requests wait at limits below them.
    fn of_lengths(
        demand: &Demand,
        (counting, share): Split,
        us_per_day: u64,
        rates: impl Iterator<Item = ((u64, u64), u64)>,
    ) -> Self {
        if u128::from(us_per_day) >= DAY_US {
            return Self::default();
        }
        let (mut operations, mut bytes) = (Lengths::default(), Lengths::default());
        for ((each_operations, each_bytes), length_us) in rates {
            operations.add(each_operations, length_us.max(1));
            bytes.add(each_bytes, length_us.max(1));
        }
        let allowed = u128::from(us_per_day) * u128::from(demand.length_us);
        let held = demand.held_back.unwrap_or_default();
        let is_long = u128::from(held.length_ms) * 1_000 * DAY_US > allowed;
        let most = Rates { operations: operations.above(allowed), bytes: bytes.above(allowed) };
        let none = Rates::default();
        match held.counting {
            _ if !is_long => Self { most, earned: none },
            Some(other) if other != counting => {
                let (at_most, earned) = recorded(demand, (counting, share));
                Self { most: most.max(at_most), earned }
            }
            _ => {
                let (at_most, earned) = at_source(&held, share);
                Self { most: most.max(at_most), earned }
            }
        }
    }

    /// Returns the floor for pacers that save `saved_us` worth of tokens. If a part arrives so fast
    /// that they last for at most half of it, the other half waits.
    #[must_use]
    pub fn saving(
        demand: &Demand,
        (counting, share): Split,
        us_per_day: u64,
        saved_us: u64,
    ) -> Self {
        let halved = |span: &Span| Span {
            length_us: span.length_us.saturating_add(saved_us.saturating_mul(2)),
            ..*span
        };
        let rates = demand.spans.iter().map(|span| {
            let part = halved(span).part(counting, share);
            (part.rates(), span.length_us / 2)
        });
        Self::of_lengths(demand, (counting, share), us_per_day, rates)
    }

    /// Returns whether a limit is too low.
    #[must_use]
    pub fn is_above(&self, (kind, limit): (LimitKind, Limit)) -> bool {
        let of = |rates: Rates| if kind.counts_bytes() { rates.bytes } else { rates.operations };
        limit.per_second < of(self.most) || limit.sustained_per_second() < of(self.earned)
    }
}

/// Returns the highest recorded rates of spans in which the source's limits held requests back,
/// with credits and without.
fn recorded(demand: &Demand, (counting, share): Split) -> (Rates, Rates) {
    let (mut at_most, mut at_earned) = (Rates::default(), Rates::default());
    let parts = demand.parts(counting, share);
    for (part, span) in parts.zip(&demand.spans) {
        let (operations, bytes) = part.rates();
        match span.held {
            Held::No => {}
            Held::AtMost => at_most = at_most.max(Rates { operations, bytes }),
            Held::AtEarned => at_earned = at_earned.max(Rates { operations, bytes }),
        }
    }
    (at_most, at_earned)
}

/// Returns the rates that a volume with this share had of the source's limits, with credits and
/// without.
fn at_source(held: &HeldBack, share: Share) -> (Rates, Rates) {
    let of = |limit: Option<u64>| limit.map_or(0, |limit| share.of_limit(limit));
    let rates = |iops, bytes| Rates { operations: of(iops), bytes: of(bytes) };
    (rates(held.iops, held.bytes_per_second), rates(held.earned_iops, held.earned_bytes_per_second))
}

/// The time for which a demand arrives at each rate, in buckets of rates.
#[derive(Default)]
struct Lengths(Vec<u64>);

impl Lengths {
    fn add(&mut self, rate: u64, length_us: u64) {
        let at = delays::bucket(rate);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        if let Some(sum) = self.0.get_mut(at) {
            *sum += length_us;
        }
    }

    /// Returns the lowest rate, rounded down, that is exceeded for no longer than `allowed`.
    fn above(&self, allowed: u128) -> u64 {
        let mut sum = 0_u128;
        for (at, length_us) in self.0.iter().enumerate().rev() {
            sum += u128::from(*length_us);
            if sum * DAY_US > allowed {
                return delays::begin(at);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType;
    use proptest::prelude::*;

    use super::*;
    use crate::search::{self, replay};
    use crate::testing::{layout, seconds, space};

    proptest! {
        /// Requests of a second, idle seconds or bursts, at limits that rise.
        #[test]
        fn what_was_quiet_at_lower_limits_changes_nothing(
            all in proptest::collection::vec(
                prop_oneof![Just((0, 4)), (1..3_500_u64, 1..100_u64), (1..60_000_u64, 1..100_u64)],
                1..60,
            ),
            sizes in (1..3_000_u32, 1..3_000_u32, 1..3_000_u32),
            kind in 0..3_usize,
            volumes in 1..3_u32,
        ) {
            let (demand, space) = (seconds(&all), space(&[], 1));
            let of = |size: u32| match kind {
                0 => layout(volumes, VolumeType::Gp3, 1_000, Some(3_000 + size)),
                1 => layout(volumes, VolumeType::Gp2, size, None),
                _ => layout(volumes, VolumeType::St1, 125 + size, None),
            };
            let mut sizes = [sizes.0, sizes.1, sizes.2];
            sizes.sort_unstable();
            let [low, middle, high] = sizes.map(of);
            let buckets = |layout| search::buckets(&space, layout).1;
            let counting = space.rules.pacing(&low.each).counting;
            let all = demand.parts(counting, low.share(&space));
            let kept = Parts::of(buckets(&low), all);
            let replayed = kept.replay(buckets(&middle), |_| false);
            prop_assert_eq!(replayed.outcome, Some(replay(&space, &demand, &middle).1));
            prop_assert!(replayed.higher.busy.len() <= kept.busy.len());
            let higher = replayed.higher.replay(buckets(&high), |_| false);
            prop_assert_eq!(higher.outcome, Some(replay(&space, &demand, &high).1));
            let given_up = kept.replay(buckets(&middle), |fluid| fluid.waited_us() > 100_000);
            let higher = given_up.higher.replay(buckets(&high), |_| false);
            prop_assert_eq!(higher.outcome, Some(replay(&space, &demand, &high).1));
        }

        /// No layout below the floor meets the requirements.
        #[test]
        fn below_the_floor_requests_wait_too_long(
            all in proptest::collection::vec((0..60_000_u64, 1..100_u64), 1..30),
            s_per_day in prop_oneof![Just(0), 0..86_400_u64],
            iops in 100..64_000_u32,
        ) {
            let (demand, space) = (seconds(&all), space(&[], 1));
            let layout = layout(1, VolumeType::Io2, 4_000, Some(iops));
            let us_per_day = s_per_day * 1_000_000;
            let counting = space.rules.pacing(&layout.each).counting;
            let floor = Floor::of(&demand, (counting, Share::ALL), us_per_day);
            if layout.all(&space).any(|limit| floor.is_above(limit)) {
                let (_, outcome) = replay(&space, &demand, &layout);
                let known_us = u128::from(demand.length_us.max(outcome.end_us));
                let allowed = u128::from(us_per_day) * known_us;
                prop_assert!(u128::from(outcome.waited_us()) * DAY_US > allowed);
            }
        }
    }
}
