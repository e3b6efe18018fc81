//! Limits as fluids: the behaviour of a queue before them, with evenly arriving requests.
//!
//! Requests are modelled as a liquid that arrives evenly within a [`Part`], and is served in the
//! order of arrival, as fast as all limits allow. So a part is served as it arrives, or it waits
//! for earlier ones. The time of a change between both is computed, not stepped to, so the run time
//! of a replay depends on the number of parts only. The product's scheduler differs by single
//! requests, and by the fraction of a second for which it saves tokens.
//!
//! Times are in microseconds, amounts in millionths of a request or a byte: a rate of `r` per
//! second is `r` millionths per microsecond. So everything is whole numbers, rounded against the
//! volume.

mod look;

use evenkeel_core::convert::saturating;
use evenkeel_core::qos::pacing::Limit;

use crate::delays::Delays;

/// Millionths in one.
pub const MICRO: u128 = 1_000_000;

/// Factor on the limit's rate at which a pacer lets saved tokens through.
const AT_ONCE: u128 = 1_000;

/// The unit that a limit counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counts {
    /// Counted I/Os.
    Operations,
    /// Bytes.
    Bytes,
}

/// Requests that arrive evenly.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Part {
    /// Start of their arrival, in microseconds.
    pub start_us: u64,
    /// Length of their arrival, in microseconds; not zero.
    pub length_us: u64,
    /// Millionths of counted I/Os.
    pub operations: u128,
    /// Millionths of bytes.
    pub bytes: u128,
}

/// The most that arrives, in millionths, or in units per second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Most {
    /// Counted I/Os.
    pub operations: u128,
    /// Counted bytes.
    pub bytes: u128,
}

impl Most {
    /// More than any limit allows.
    pub const ENDLESS: Self = Self { operations: u128::MAX, bytes: u128::MAX };

    /// Returns the larger ones.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let operations = self.operations.max(other.operations);
        Self { operations, bytes: self.bytes.max(other.bytes) }
    }

    /// Returns the rates of millionths that arrive in `length_us`, rounded up.
    #[must_use]
    pub fn per(self, length_us: u64) -> Self {
        let per = |amount: u128| amount.div_ceil(length_us.max(1).into());
        Self { operations: per(self.operations), bytes: per(self.bytes) }
    }
}

/// A limit, with its present credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    counts: Counts,
    /// Maximum per second.
    rate: u128,
    /// Credits earned per second; `rate` without credits.
    refill: u128,
    /// Maximum credits in millionths; zero without credits.
    capacity: u128,
    credits: u128,
}

impl Bucket {
    /// Creates a limit whose credits are `balance_ppm` millionths of the maximum.
    #[must_use]
    pub fn new(counts: Counts, limit: Limit, balance_ppm: u32) -> Self {
        let rate = u128::from(limit.per_second).max(1);
        let (refill, capacity) = match limit.credit {
            None => (rate, 0),
            Some(credit) => {
                let refill = u128::from(credit.refill_per_second).clamp(1, rate);
                (refill, u128::from(credit.capacity) * MICRO)
            }
        };
        let credits = capacity / MICRO * u128::from(balance_ppm).min(MICRO);
        Self { counts, rate, refill, capacity, credits }
    }

    /// Returns the limits as a pacer has them that saves `saved_us` worth of tokens: saved tokens
    /// pass at once.
    pub(crate) fn saving(
        counts: Counts,
        limit: Limit,
        saved_us: u64,
    ) -> impl Iterator<Item = Self> {
        let rate = u128::from(limit.per_second).max(1);
        let saves = |refill: u128, capacity: u128| Self {
            counts,
            rate: rate.saturating_mul(AT_ONCE),
            refill,
            capacity,
            credits: capacity,
        };
        let credit = limit.credit.map(|credit| {
            let refill = u128::from(credit.refill_per_second).clamp(1, rate);
            saves(refill, u128::from(credit.capacity) * MICRO)
        });
        // If a token is left, a request passes whole.
        [Some(saves(rate, rate * u128::from(saved_us) + MICRO)), credit].into_iter().flatten()
    }

    /// Returns the present rate per microsecond: the lower one if the credits for one are spent.
    const fn now(&self) -> u128 {
        let above = self.rate - self.refill;
        if self.credits >= above { self.rate } else { self.refill }
    }

    const fn amount(&self, part: &Part) -> u128 {
        match self.counts {
            Counts::Operations => part.operations,
            Counts::Bytes => part.bytes,
        }
    }

    /// Returns the microseconds for which the credits last if `amount` is served evenly within
    /// `span_us`; `None` if they suffice.
    fn lasts(&self, amount: u128, span_us: u64) -> Option<u64> {
        let above = amount.checked_sub(self.refill * u128::from(span_us)).filter(|it| *it > 0)?;
        if self.capacity == 0 || self.credits >= above {
            return None;
        }
        u64::try_from(self.credits * u128::from(span_us) / above).ok()
    }

    /// Subtracts the amount served within a span, and adds the earned credits.
    fn pass(&mut self, amount: u128, span_us: u64) {
        if self.capacity > 0 {
            let earned = self.credits + self.refill * u128::from(span_us);
            self.credits = earned.saturating_sub(amount).min(self.capacity);
        }
    }
}

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// Time in which requests waited, in microseconds, by the index of the limit for which they
    /// waited.
    pub throttled_us: Vec<u64>,
    /// Delays of the requests.
    pub delays: Delays,
    /// Lowest credits of each limit, in millionths of its maximum.
    pub least_ppm: Vec<u32>,
    /// Time at which the last request was served, in microseconds.
    pub end_us: u64,
}

impl Outcome {
    /// Returns the time in which requests waited, in microseconds.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.throttled_us.iter().sum()
    }

    /// Returns the index of the limit for which they waited the longest; `None` if they never
    /// waited.
    #[must_use]
    pub fn binding(&self) -> Option<usize> {
        binding(&self.throttled_us)
    }
}

/// Returns the index of the longest time; `None` if all are zero.
pub(crate) fn binding(times_us: &[u64]) -> Option<usize> {
    let all = times_us.iter().enumerate().filter(|(_, us)| **us > 0);
    // The first of equal ones.
    all.rev().max_by_key(|(_, us)| **us).map(|(place, _)| place)
}

/// A queue before limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fluid {
    buckets: Vec<Bucket>,
    /// Time until which the limits are busy with the requests so far, in microseconds.
    free_us: u64,
    /// Lowest credits of each limit.
    least: Vec<u128>,
    throttled_us: Vec<u64>,
    delays: Delays,
    /// Whether delays are skipped: their distribution over buckets takes most of the time.
    skips_delays: bool,
}

/// Time that serving at all limits takes, and the index of the one that takes longest.
#[derive(Clone, Copy)]
struct Needed {
    us: u64,
    by: usize,
}

impl Fluid {
    /// Creates a queue that is empty at `start_us`.
    #[must_use]
    pub fn new(buckets: Vec<Bucket>, start_us: u64) -> Self {
        let least = buckets.iter().map(|bucket| bucket.credits).collect();
        let throttled_us = vec![0; buckets.len()];
        let delays = Delays::default();
        Self { buckets, free_us: start_us, least, throttled_us, delays, skips_delays: false }
    }

    /// Skips delays from now on.
    #[must_use]
    pub fn without_delays(self) -> Self {
        Self { skips_delays: true, ..self }
    }

    /// Replays parts, in the order of their starts.
    #[must_use]
    pub fn replay(buckets: Vec<Bucket>, parts: impl IntoIterator<Item = Part>) -> Outcome {
        let mut parts = parts.into_iter().peekable();
        let start_us = parts.peek().map_or(0, |first| first.start_us);
        let mut fluid = Self::new(buckets, start_us);
        for part in parts {
            fluid.take(part);
        }
        fluid.outcome()
    }

    /// Returns the result.
    #[must_use]
    pub fn outcome(self) -> Outcome {
        let least = self.least.iter().zip(&self.buckets);
        Outcome {
            throttled_us: self.throttled_us,
            delays: self.delays,
            least_ppm: least.map(|(credits, bucket)| ppm(*credits, bucket.capacity)).collect(),
            end_us: self.free_us,
        }
    }

    /// Advances the time to `until_us` without arrivals, if all earlier requests are served by
    /// then.
    pub fn rest(&mut self, until_us: u64) {
        if self.free_us < until_us {
            let idle_us = until_us - self.free_us;
            self.buckets.iter_mut().for_each(|bucket| bucket.pass(0, idle_us));
            self.free_us = until_us;
        }
    }

    /// Passes parts from `start_us` to `end_us` that do not overlap, and arrive at no more than
    /// these rates, if [`Self::take`] would leave no trace of each of them. Returns whether it
    /// would. Their delays, which are none, are not added.
    pub(crate) fn pass_quiet(&mut self, start_us: u64, end_us: u64, rates: Most) -> bool {
        self.rest(start_us);
        let is_untouched = |bucket: &Bucket| {
            let rate = match bucket.counts {
                Counts::Operations => rates.operations,
                Counts::Bytes => rates.bytes,
            };
            bucket.credits == bucket.capacity && rate <= bucket.refill
        };
        let is_quiet = self.free_us <= start_us && self.buckets.iter().all(is_untouched);
        if is_quiet {
            self.free_us = end_us;
        }
        is_quiet
    }

    /// Serves a part, which begins no earlier than the previous one. Returns whether it left no
    /// trace: no request waited and no credits were missing, at its start and at its end.
    pub fn take(&mut self, mut part: Part) -> bool {
        self.rest(part.start_us);
        let length_us = u128::from(part.length_us);
        let is_untouched = |bucket: &Bucket| {
            bucket.credits == bucket.capacity && bucket.amount(&part) <= bucket.refill * length_us
        };
        if self.free_us == part.start_us && self.buckets.iter().all(is_untouched) {
            self.delays.add(0, 0, part.operations);
            self.free_us = part.start_us + part.length_us;
            return true;
        }
        while part.length_us > 0 {
            let length_us = u128::from(part.length_us);
            let fits = |bucket: &Bucket| bucket.amount(&part) <= bucket.now() * length_us;
            // A microsecond of waiting is a rounding error.
            if self.free_us <= part.start_us + 1 && self.buckets.iter().all(fits) {
                self.flow(&mut part);
            } else {
                self.drain(&mut part);
            }
            for (least, bucket) in self.least.iter_mut().zip(&self.buckets) {
                *least = bucket.credits.min(*least);
            }
        }
        false
    }

    fn needed(&self, part: &Part) -> Needed {
        let mut needed = Needed { us: 0, by: 0 };
        for (by, bucket) in self.buckets.iter().enumerate() {
            let us = bucket.amount(part).div_ceil(bucket.now());
            let us = saturating::<_, u64>(us);
            if us > needed.us {
                needed = Needed { us, by };
            }
        }
        needed
    }

    /// Serves it as it arrives, until it ends or credits run out.
    fn flow(&mut self, part: &mut Part) {
        let lasts = self
            .buckets
            .iter()
            .filter_map(|bucket| bucket.lasts(bucket.amount(part), part.length_us));
        let span_us = lasts.min().unwrap_or(part.length_us).clamp(1, part.length_us);
        let served = part.cut(span_us);
        self.buckets.iter_mut().for_each(|bucket| bucket.pass(bucket.amount(&served), span_us));
        self.delays.add(0, 0, served.operations);
        self.free_us = part.start_us.max(self.free_us);
    }

    /// Serves it as fast as the limits allow, until it ends, its backlog is gone, or credits run
    /// out.
    fn drain(&mut self, part: &mut Part) {
        let needed = self.needed(part);
        let late_us = self.free_us.saturating_sub(part.start_us);
        let whole_us = needed.us.max(1);
        let mut span_us = whole_us;
        if let Some(gain_us) = part.length_us.checked_sub(whole_us).filter(|gain| *gain > 0) {
            // The backlog is gone when as much was served as has arrived.
            let catch_up = u128::from(late_us) * u128::from(whole_us);
            let catch_up = catch_up.div_ceil(u128::from(gain_us)).max(1);
            span_us = saturating::<_, u64>(catch_up).min(span_us);
        }
        let lasts =
            self.buckets.iter().filter_map(|bucket| bucket.lasts(bucket.amount(part), whole_us));
        span_us = lasts.min().unwrap_or(span_us).clamp(1, span_us);
        // The amount that is served in that time arrived in this time.
        let arrived = u128::from(part.length_us) * u128::from(span_us) / u128::from(whole_us);
        // An amount that is served has arrived: rounding must not make it arrive later.
        let arrived_us = saturating::<_, u64>(arrived);
        let arrived_us = arrived_us.min(late_us.saturating_add(span_us));
        let served = part.split(span_us, whole_us, arrived_us);
        self.buckets.iter_mut().for_each(|bucket| bucket.pass(bucket.amount(&served), span_us));
        let after_us = self.free_us.saturating_add(span_us).saturating_sub(part.start_us);
        if !self.skips_delays {
            self.delays.add(late_us, after_us, served.operations);
        }
        if let Some(throttled) = self.throttled_us.get_mut(needed.by) {
            *throttled = throttled.saturating_add(span_us);
        }
        self.free_us = self.free_us.saturating_add(span_us);
    }
}

impl Part {
    /// Returns the counted I/Os and bytes per second during its arrival.
    #[must_use]
    pub fn rates(&self) -> (u64, u64) {
        let length_us = self.length_us.max(1);
        // Millionths per microsecond are units per second. Most fit into the fast division.
        let rate = |amount: u128| match u64::try_from(amount) {
            Ok(amount) => amount / length_us,
            Err(_) => saturating::<_, u64>(amount / u128::from(length_us)),
        };
        (rate(self.operations), rate(self.bytes))
    }

    /// Removes and returns the first `span_us`. An amount is in exactly one of the pieces.
    pub(crate) fn cut(&mut self, span_us: u64) -> Self {
        self.split(span_us, self.length_us, span_us)
    }

    /// Removes and returns the amount that is served in `span_us` of the `whole_us` that all of it
    /// takes, and that arrived in `arrived_us`. The rest stays; nothing stays after the whole.
    fn split(&mut self, span_us: u64, whole_us: u64, arrived_us: u64) -> Self {
        if span_us >= whole_us {
            let all = *self;
            let start_us = self.start_us + self.length_us;
            *self = Self { start_us, ..Self::default() };
            return all;
        }
        let share = |amount: u128| amount * u128::from(span_us) / u128::from(whole_us);
        // A part of the arrival must stay, or the rest would have no time.
        let arrived_us = arrived_us.min(self.length_us - 1);
        let served = Self {
            start_us: self.start_us,
            length_us: arrived_us,
            operations: share(self.operations),
            bytes: share(self.bytes),
        };
        self.start_us += arrived_us;
        self.length_us -= arrived_us;
        self.operations -= served.operations;
        self.bytes -= served.bytes;
        served
    }
}

/// Returns credits in millionths of the maximum; all of them without a maximum.
fn ppm(credits: u128, capacity: u128) -> u32 {
    let ppm = (credits * MICRO).checked_div(capacity).unwrap_or(MICRO);
    saturating::<_, u32>(ppm)
}

#[cfg(test)]
mod tests;
