//! Limits as fluids: what a queue before them does with evenly arriving requests.
//!
//! Requests are taken for a liquid that arrives evenly within a [`Part`], is served in the order
//! of arrival, and as fast as all limits allow. So a part is served as it arrives, or it waits for
//! what came before; where one becomes the other is computed and not stepped to, and the time of a
//! replay depends on the number of parts only. What the product's scheduler does differs by single
//! requests and by the fraction of a second for which it saves tokens.
//!
//! Times are microseconds, amounts are millionths of a request or a byte: a rate of `r` a second is
//! `r` millionths a microsecond, so all of it is whole numbers, rounded against the volume.

mod look;

use evenkeel_core::qos::pacing::Limit;

use crate::delays::Delays;

/// Millionths in one.
pub const MICRO: u128 = 1_000_000;

/// How much faster than its limit a pacer lets through what it saved.
const AT_ONCE: u128 = 1_000;

/// What a limit counts.
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
    /// When they begin to arrive, in microseconds.
    pub start_us: u64,
    /// For how long they arrive; not zero.
    pub length_us: u64,
    /// Millionths of counted I/Os.
    pub operations: u128,
    /// Millionths of bytes.
    pub bytes: u128,
}

/// A limit, with the credits that it has now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bucket {
    counts: Counts,
    /// Most a second.
    rate: u128,
    /// Credits earned a second; `rate` without credits.
    refill: u128,
    /// Millionths of credits that can be saved; zero without credits.
    capacity: u128,
    credits: u128,
}

impl Bucket {
    /// A limit, with so many millionths of the credits that it can save.
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

    /// The same limits as a pacer that saves tokens for so long has them: what it saved passes at
    /// once.
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
        // A request of a volume that has a token left passes whole.
        [Some(saves(rate, rate * u128::from(saved_us) + MICRO)), credit].into_iter().flatten()
    }

    /// What it lets through a microsecond: less when the credits for one are used up.
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

    /// Microseconds for which the credits last if `amount` is served evenly within `span_us`.
    fn lasts(&self, amount: u128, span_us: u64) -> Option<u64> {
        let above = amount.checked_sub(self.refill * u128::from(span_us)).filter(|it| *it > 0)?;
        if self.capacity == 0 || self.credits >= above {
            return None;
        }
        u64::try_from(self.credits * u128::from(span_us) / above).ok()
    }

    /// Takes what was served within a span, and adds what was earned.
    fn pass(&mut self, amount: u128, span_us: u64) {
        if self.capacity > 0 {
            let earned = self.credits + self.refill * u128::from(span_us);
            self.credits = earned.saturating_sub(amount).min(self.capacity);
        }
    }
}

/// What a replay came to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// Microseconds in which requests waited, by the limit (its place) that they waited for.
    pub throttled_us: Vec<u64>,
    /// How long requests waited.
    pub delays: Delays,
    /// The least credits of each limit, in millionths of what it can save.
    pub least_ppm: Vec<u32>,
    /// When the last request was served.
    pub end_us: u64,
}

impl Outcome {
    /// Microseconds in which requests waited.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.throttled_us.iter().sum()
    }

    /// The place of the limit that they waited for the longest; `None` if they never waited.
    #[must_use]
    pub fn binding(&self) -> Option<usize> {
        binding(&self.throttled_us)
    }
}

/// The place of the longest time; `None` if all are zero.
pub(crate) fn binding(times_us: &[u64]) -> Option<usize> {
    let all = times_us.iter().enumerate().filter(|(_, us)| **us > 0);
    // The first of equals.
    all.rev().max_by_key(|(_, us)| **us).map(|(place, _)| place)
}

/// A queue before limits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fluid {
    buckets: Vec<Bucket>,
    /// Until when the limits are busy with what has come.
    free_us: u64,
    /// The least credits of each limit.
    least: Vec<u128>,
    throttled_us: Vec<u64>,
    delays: Delays,
    /// Whether delays are of no interest: to spread them over their buckets takes the longest.
    skips_delays: bool,
}

/// How long serving at all limits takes, and the place of the one that takes longest.
#[derive(Clone, Copy)]
struct Needed {
    us: u64,
    by: usize,
}

impl Fluid {
    /// A queue that is empty at a point in time.
    #[must_use]
    pub fn new(buckets: Vec<Bucket>, start_us: u64) -> Self {
        let least = buckets.iter().map(|bucket| bucket.credits).collect();
        let throttled_us = vec![0; buckets.len()];
        let delays = Delays::default();
        Self { buckets, free_us: start_us, least, throttled_us, delays, skips_delays: false }
    }

    /// Counts no delays from now on.
    #[must_use]
    pub fn without_delays(self) -> Self {
        Self { skips_delays: true, ..self }
    }

    /// Replays parts, in the order of their beginnings.
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

    /// What came of it.
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

    /// Lets time pass in which nothing comes, if all that came before is served by then.
    pub fn rest(&mut self, until_us: u64) {
        if self.free_us < until_us {
            let idle_us = until_us - self.free_us;
            self.buckets.iter_mut().for_each(|bucket| bucket.pass(0, idle_us));
            self.free_us = until_us;
        }
    }

    /// Serves a part, which begins no earlier than the one before. Says whether it left no trace:
    /// nothing waited and no credits were missing when it began, nor at its end.
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
            // A microsecond of waiting is rounding.
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
            let us = u64::try_from(us).unwrap_or(u64::MAX);
            if us > needed.us {
                needed = Needed { us, by };
            }
        }
        needed
    }

    /// Serves it as it arrives, until it ends or credits do.
    fn flow(&mut self, part: &mut Part) {
        let lasts = self.buckets.iter().filter_map(|it| it.lasts(it.amount(part), part.length_us));
        let span_us = lasts.min().unwrap_or(part.length_us).clamp(1, part.length_us);
        let served = part.cut(span_us);
        self.buckets.iter_mut().for_each(|bucket| bucket.pass(bucket.amount(&served), span_us));
        self.delays.add(0, 0, served.operations);
        self.free_us = part.start_us.max(self.free_us);
    }

    /// Serves it as fast as the limits allow, until it ends, its backlog does, or credits do.
    fn drain(&mut self, part: &mut Part) {
        let needed = self.needed(part);
        let late_us = self.free_us.saturating_sub(part.start_us);
        let whole_us = needed.us.max(1);
        let mut span_us = whole_us;
        if let Some(gain_us) = part.length_us.checked_sub(whole_us).filter(|gain| *gain > 0) {
            // The backlog is gone when as much was served as has arrived.
            let catch_up = u128::from(late_us) * u128::from(whole_us);
            let catch_up = catch_up.div_ceil(u128::from(gain_us)).max(1);
            span_us = u64::try_from(catch_up).unwrap_or(u64::MAX).min(span_us);
        }
        let lasts = self.buckets.iter().filter_map(|it| it.lasts(it.amount(part), whole_us));
        span_us = lasts.min().unwrap_or(span_us).clamp(1, span_us);
        // What is served in that time arrived in this time.
        let arrived = u128::from(part.length_us) * u128::from(span_us) / u128::from(whole_us);
        // What is served has arrived: rounding must not say that it came later.
        let arrived_us = u64::try_from(arrived).unwrap_or(u64::MAX);
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
    /// Counted I/Os and bytes a second while it arrives.
    #[must_use]
    pub fn rates(&self) -> (u64, u64) {
        let length_us = self.length_us.max(1);
        // Millionths a microsecond are units a second. Most fit into the fast division.
        let rate = |amount: u128| match u64::try_from(amount) {
            Ok(amount) => amount / length_us,
            Err(_) => u64::try_from(amount / u128::from(length_us)).unwrap_or(u64::MAX),
        };
        (rate(self.operations), rate(self.bytes))
    }

    /// Cuts off the first microseconds. What comes in all pieces is what comes in it.
    pub(crate) fn cut(&mut self, span_us: u64) -> Self {
        self.split(span_us, self.length_us, span_us)
    }

    /// Cuts off what is served in `span_us` of the `whole_us` that all of it takes, and what
    /// arrived in `arrived_us`. The rest stays; nothing stays after the whole.
    fn split(&mut self, span_us: u64, whole_us: u64, arrived_us: u64) -> Self {
        if span_us >= whole_us {
            let all = *self;
            let start_us = self.start_us + self.length_us;
            *self = Self { start_us, ..Self::default() };
            return all;
        }
        let share = |amount: u128| amount * u128::from(span_us) / u128::from(whole_us);
        // Something must stay to arrive, or the rest would have no time.
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

/// Credits in millionths of what can be saved; all of them where there are none to save.
fn ppm(credits: u128, capacity: u128) -> u32 {
    let ppm = (credits * MICRO).checked_div(capacity).unwrap_or(MICRO);
    u32::try_from(ppm).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
