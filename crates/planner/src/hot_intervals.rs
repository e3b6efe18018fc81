//! The intervals of a demand that a search must evaluate.
//!
//! A part is quiet if it finds no queue and all credits, and leaves both in the same state. It does
//! not affect later parts, and it is quiet at higher limits, too. So parts that are quiet at the
//! lowest limits of a search need not be evaluated again, and neither need those that are quiet at
//! limits that prove too low. Of those, whole [`Blocks`] are passed at once.

use std::cell::RefCell;
use std::rc::Rc;

use evenkeel_core::qos::pacing::{CountingRule, Limit};

use crate::delays;
use crate::demand::{DAY_US, Demand, Span};
use crate::fluid::{Bucket, Fluid, Most, Outcome, Part};
use crate::layout::LimitKind;
use crate::spread::Share;
use crate::throttled::{Held, HeldBack};

/// Number of consecutive spans in a block: few, because a burst ends the quiet of its block.
const BLOCK_SPANS: usize = 32;

/// The counting rule of a volume, and its share of all requests.
pub type Split = (CountingRule, Share);

/// The spans of a demand in blocks, so that a block that is quiet as a whole is one step.
pub struct Blocks(Vec<Block>);

/// Consecutive spans.
struct Block {
    /// Highest rates of its parts, no lower than each of them.
    most: Most,
    /// Millionths of counted I/Os of all its parts.
    operations: u128,
    /// End of its last part, in microseconds.
    end_us: u64,
}

impl Blocks {
    /// Returns the blocks of a demand.
    #[must_use]
    pub fn of(demand: &Demand, split: Split) -> Self {
        Self(demand.spans.chunks(BLOCK_SPANS).map(|spans| Block::of(spans, split)).collect())
    }
}

impl Block {
    fn of(spans: &[Span], (counting, share): Split) -> Self {
        let mut block = Self { most: Most::default(), operations: 0, end_us: 0 };
        let mut amounts = Most::default();
        let mut length_us = u64::MAX;
        let mut is_apart = true;
        for span in spans {
            let part = span.part(counting, share);
            is_apart &= part.start_us >= block.end_us;
            block.end_us = part.start_us.saturating_add(part.length_us);
            block.operations += part.operations;
            amounts = amounts.or(Most { operations: part.operations, bytes: part.bytes });
            length_us = length_us.min(part.length_us);
        }
        // A span that begins before the previous one ends finds it in service.
        block.most = if is_apart { amounts.per(length_us) } else { Most::ENDLESS };
        block
    }
}

/// The blocks of a demand by counting rule and share, created when they are needed.
pub struct Index<'a> {
    /// The demand.
    pub demand: &'a Demand,
    known: RefCell<Vec<(Split, Rc<Blocks>)>>,
}

impl<'a> Index<'a> {
    /// Creates an index without blocks.
    #[must_use]
    pub const fn new(demand: &'a Demand) -> Self {
        Self { demand, known: RefCell::new(Vec::new()) }
    }

    fn blocks(&self, split: Split) -> Rc<Blocks> {
        let mut known = self.known.borrow_mut();
        if let Some((_, blocks)) = known.iter().find(|(by, _)| *by == split) {
            return Rc::clone(blocks);
        }
        let blocks = Rc::new(Blocks::of(self.demand, split));
        known.push((split, Rc::clone(&blocks)));
        blocks
    }
}

/// Parts that are not quiet, and the sum of the quiet ones.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
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
    pub fn of(buckets: Vec<Bucket>, index: &Index, split: Split) -> Self {
        let mut fluid = Fluid::new(buckets, 0).without_delays();
        let mut kept = Self::default();
        let blocks = index.blocks(split);
        for (block, spans) in blocks.0.iter().zip(index.demand.spans.chunks(BLOCK_SPANS)) {
            let start_us = spans.first().map_or(0, |first| first.start_us);
            if fluid.pass_quiet(start_us, block.end_us, block.most) {
                kept.quiet += block.operations;
                kept.quiet_end_us = kept.quiet_end_us.max(block.end_us);
                continue;
            }
            for span in spans {
                kept.take(&mut fluid, span.part(split.0, split.1));
            }
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
        let quiet = self.quiet;
        let quiet_end_us = self.quiet_end_us;
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

/// The spans of a demand with the highest rates. They alone decide which limits are too low.
pub struct Hottest<'a> {
    demand: &'a Demand,
    us_per_day: u64,
    spans: Vec<Span>,
}

impl<'a> Hottest<'a> {
    /// Returns the spans with the most requests or bytes a second: of both just more than may wait,
    /// for `us_per_day` microseconds a day.
    #[must_use]
    pub fn of(demand: &'a Demand, us_per_day: u64) -> Self {
        if u128::from(us_per_day) >= DAY_US {
            return Self { demand, us_per_day, spans: Vec::new() };
        }
        let mut requests = Lengths::default();
        let mut bytes = Lengths::default();
        for span in &demand.spans {
            let rates = rates(span);
            requests.add(rates.operations, span.length_us);
            bytes.add(rates.bytes, span.length_us);
        }
        let allowed = allowed(demand, us_per_day);
        let requests_min = requests.above(allowed);
        let bytes_min = bytes.above(allowed);
        let is_hot = |span: &&Span| {
            let rates = rates(span);
            (requests_min > 0 && rates.operations >= requests_min)
                || (bytes_min > 0 && rates.bytes >= bytes_min)
        };
        let spans = demand.spans.iter().filter(is_hot).copied().collect();
        Self { demand, us_per_day, spans }
    }
}

/// Returns the requests and bytes of a span per second.
fn rates(span: &Span) -> Rates {
    // Spans are only compared by them, so that a rate may be too low.
    let rate = |amount: u64| amount.saturating_mul(1_000_000) / span.length_us.max(1);
    Rates { operations: rate(span.requests), bytes: rate(span.bytes) }
}

/// Returns the time for which requests may wait in all, in microseconds times those of a day.
fn allowed(demand: &Demand, us_per_day: u64) -> u128 {
    u128::from(us_per_day) * u128::from(demand.length_us)
}

impl Floor {
    /// Returns the rates that a demand exceeds for more than `us_per_day` microseconds a day: while
    /// requests arrive faster than they are served, they wait. If the source's limits held requests
    /// back for longer, the rates are no lower than the source's limits, because the further demand
    /// is unknown. For a volume with another counting rule they are no lower than the rates
    /// recorded then.
    #[must_use]
    pub fn of(hottest: &Hottest, (counting, share): Split) -> Self {
        let parts = hottest.spans.iter().map(|span| span.part(counting, share));
        let rates = parts.map(|part| (part.rates(), part.length_us));
        Self::of_lengths(hottest.demand, (counting, share), hottest.us_per_day, rates)
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
        let mut operations = Lengths::default();
        let mut bytes = Lengths::default();
        for ((each_operations, each_bytes), length_us) in rates {
            operations.add(each_operations, length_us.max(1));
            bytes.add(each_bytes, length_us.max(1));
        }
        let allowed = allowed(demand, us_per_day);
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
    let mut at_most = Rates::default();
    let mut at_earned = Rates::default();
    for span in demand.spans.iter().filter(|span| span.held != Held::No) {
        let (operations, bytes) = span.part(counting, share).rates();
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
                1..150,
            ),
            sizes in (1..3_000_u32, 1..3_000_u32, 1..3_000_u32),
            kind in 0..3_usize,
            volumes in 1..3_u32,
        ) {
            let demand = seconds(&all);
            let space = space(&[], 1);
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
            let split = (counting, low.share(&space));
            let kept = Parts::of(buckets(&low), &Index::new(&demand), split);
            let mut one_by_one = Parts::default();
            let mut fluid = Fluid::new(buckets(&low), 0);
            for part in demand.parts(counting, split.1) {
                one_by_one.take(&mut fluid, part);
            }
            prop_assert_eq!(&kept, &one_by_one);
            let replayed = kept.replay(buckets(&middle), |_| false);
            prop_assert_eq!(replayed.outcome, Some(replay(&space, &demand, &middle).1));
            prop_assert!(replayed.higher.busy.len() <= kept.busy.len());
            let higher = replayed.higher.replay(buckets(&high), |_| false);
            prop_assert_eq!(higher.outcome, Some(replay(&space, &demand, &high).1));
            let given_up = kept.replay(buckets(&middle), |fluid| fluid.waited_us() > 100_000);
            let higher = given_up.higher.replay(buckets(&high), |_| false);
            prop_assert_eq!(higher.outcome, Some(replay(&space, &demand, &high).1));
        }

        /// The hottest spans have the floor of all of them, if requests have one size.
        #[test]
        fn the_hottest_spans_decide(
            all in proptest::collection::vec(0..60_000_u64, 1..60),
            s_per_day in prop_oneof![Just(0), 0..86_400_u64],
            kib in 1..64_u64,
            volumes in 1..20_u32,
        ) {
            let all: Vec<(u64, u64)> = all.into_iter().map(|requests| (requests, kib)).collect();
            let demand = seconds(&all);
            let layout = layout(volumes, VolumeType::Gp3, 4_000, None);
            let space = space(&[], 1);
            let split = (space.rules.pacing(&layout.each).counting, layout.share(&space));
            let us_per_day = s_per_day * 1_000_000;
            let rates = demand.parts(split.0, split.1).map(|part| (part.rates(), part.length_us));
            let of_all = Floor::of_lengths(&demand, split, us_per_day, rates);
            prop_assert_eq!(Floor::of(&Hottest::of(&demand, us_per_day), split), of_all);
        }

        /// No layout below the floor meets the requirements.
        #[test]
        fn below_the_floor_requests_wait_too_long(
            all in proptest::collection::vec((0..60_000_u64, 1..100_u64), 1..30),
            s_per_day in prop_oneof![Just(0), 0..86_400_u64],
            iops in 100..64_000_u32,
        ) {
            let demand = seconds(&all);
            let space = space(&[], 1);
            let layout = layout(1, VolumeType::Io2, 4_000, Some(iops));
            let us_per_day = s_per_day * 1_000_000;
            let counting = space.rules.pacing(&layout.each).counting;
            let split = (counting, Share::ALL);
            let floor = Floor::of(&Hottest::of(&demand, us_per_day), split);
            let parts = demand.parts(counting, Share::ALL);
            let rates = parts.map(|part| (part.rates(), part.length_us));
            let of_all = Floor::of_lengths(&demand, split, us_per_day, rates);
            prop_assert!(floor.most.max(of_all.most) == of_all.most, "{floor:?} {of_all:?}");
            if layout.all(&space).any(|limit| floor.is_above(limit)) {
                let (_, outcome) = replay(&space, &demand, &layout);
                let known_us = u128::from(demand.length_us.max(outcome.end_us));
                let allowed = u128::from(us_per_day) * known_us;
                prop_assert!(u128::from(outcome.waited_us()) * DAY_US > allowed);
            }
        }
    }
}
