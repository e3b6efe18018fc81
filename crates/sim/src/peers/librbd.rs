//! Ceph librbd's image QoS (`TokenBucketThrottle`, `rbd_qos_*`; as of Ceph 18, 2023): tokens every
//! 50 ms.
//!
//! A timer puts tokens into the bucket every `rbd_qos_schedule_tick_min` (50 ms, or longer where
//! the rate is below 20 a second); a rate that does not divide evenly is spread over a second's
//! ticks (pull request 24214). A request takes what it needs; if that is not there it takes what is
//! and waits for the next tick, first come first served. The bucket holds one second's worth unless
//! a burst is configured: after idle a second of the rate goes at once.
//!
//! The bucket has two levels: `remaining` is what may be spent in all (capacity: the burst rate
//! times its seconds) and `available` what may be spent now (at most the burst rate). A change of
//! limits fills `remaining`, and starts the timer anew with a tick's tokens at once, so a change
//! every millisecond pays out 50 ticks in the time of one.
//!
//! The next tick is timed from when the last one ran, so lateness adds up: ticks 16 us late make a
//! rate 0.03 % too low.
//!
//! Left out: separate throttles for reads and writes, exclusion by operation, and that all
//! throttles share one timer thread. Discards count as the original counts them, as I/Os without
//! bytes here.

use evenkeel_core::time::{Duration, Instant};

use super::limited::{Limiter, Rates, payload};
use crate::world::policy::Request;

/// `rbd_qos_schedule_tick_min`.
const TICK_MS_MIN: u64 = 50;

/// A burst that is configured beside the average: rate per second and how many seconds of it.
pub type Burst = Option<(u64, u64)>;

#[derive(Clone, Debug)]
struct Throttle {
    average: u64,
    /// Most that may be spent at once: the burst rate, or the average.
    most: u64,
    capacity: u64,
    remaining: u64,
    available: u64,
    tick: Duration,
    ticks_per_second: u64,
    tick_of_second: u64,
    next_tick: Instant,
    /// Tokens the request at the head still lacks; `None` if it has not asked yet.
    lacks: Option<u64>,
}

impl Throttle {
    fn new(now: Instant, average: u64, burst: Burst) -> Self {
        let mut throttle = Self {
            average,
            most: 0,
            capacity: 0,
            remaining: 0,
            available: 0,
            tick: Duration::ZERO,
            ticks_per_second: 1,
            tick_of_second: 0,
            next_tick: now,
            lacks: None,
        };
        throttle.set_limit(now, average, burst);
        throttle
    }

    fn set_limit(&mut self, now: Instant, average: u64, burst: Burst) {
        let (most, seconds) = burst.unwrap_or((average, 1));
        let tick_ms = (1_000 / average.max(1)).max(TICK_MS_MIN);
        self.average = average;
        self.tick = Duration::from_ms(tick_ms);
        self.ticks_per_second = 1_000 / tick_ms;
        self.tick_of_second = 0;
        let capacity = most * seconds;
        if self.capacity != capacity {
            self.capacity = capacity;
            self.remaining = capacity;
        }
        self.available = self.available.min(most);
        self.most = most;
        self.tick(now);
    }

    fn tokens_by(&self, tick: u64) -> u64 {
        (tick as f64 / self.ticks_per_second as f64 * self.average as f64) as u64
    }

    fn tick(&mut self, now: Instant) {
        if self.tick_of_second >= self.ticks_per_second {
            self.tick_of_second = 0;
        }
        self.tick_of_second += 1;
        let tokens = self.tokens_by(self.tick_of_second) - self.tokens_by(self.tick_of_second - 1);
        if tokens > 0 {
            self.remaining = (self.remaining + tokens).min(self.capacity);
            // Where a burst is configured, what may be spent now grows at the burst's speed.
            let ratio = (self.most as f64 / self.average as f64).max(1.0);
            let grown = self.available + (tokens as f64 * ratio) as u64;
            self.available = grown.min(self.remaining).min(self.most);
        }
        self.next_tick = now + self.tick;
    }

    /// Takes what the head lacks or, of that, what there is.
    fn take(&mut self, cost: u64) -> bool {
        let lacks = self.lacks.unwrap_or(cost);
        let got = lacks.min(self.available);
        self.available -= got;
        self.remaining -= got.min(self.remaining);
        self.lacks = Some(lacks - got);
        got == lacks
    }
}

/// The throttles of one image.
#[derive(Clone, Debug)]
pub struct Librbd {
    operations: Option<Throttle>,
    bytes: Option<Throttle>,
}

impl Librbd {
    /// Sets the limit in I/Os and a burst beside it, as `rbd config image set` does.
    pub fn set_operations(&mut self, now: Instant, average: u64, burst: Burst) {
        match &mut self.operations {
            Some(throttle) => throttle.set_limit(now, average, burst),
            None => self.operations = Some(Throttle::new(now, average, burst)),
        }
    }

    fn throttles(&mut self) -> impl Iterator<Item = &mut Throttle> {
        [&mut self.operations, &mut self.bytes].into_iter().flatten()
    }
}

impl Limiter for Librbd {
    fn new(now: Instant, rates: &Rates) -> Self {
        let throttle = |rate: u64| Throttle::new(now, rate, None);
        Self { operations: rates.operations.map(throttle), bytes: rates.bytes.map(throttle) }
    }

    fn take(&mut self, _: Instant, request: &Request) -> bool {
        let operations = self.operations.as_mut().is_none_or(|throttle| throttle.take(1));
        let length = payload(request);
        let bytes = self.bytes.as_mut().is_none_or(|throttle| throttle.take(length));
        if !operations || !bytes {
            return false;
        }
        for throttle in self.throttles() {
            throttle.lacks = None;
        }
        true
    }

    fn timer(&self) -> Option<Instant> {
        let next = |throttle: &Option<Throttle>| throttle.as_ref().map(|t| t.next_tick);
        [next(&self.operations), next(&self.bytes)].into_iter().flatten().min()
    }

    fn fire(&mut self, now: Instant) {
        for throttle in self.throttles().filter(|throttle| throttle.next_tick <= now) {
            throttle.tick(now);
        }
    }

    fn reconfigure(&mut self, now: Instant, rates: &Rates) {
        match (&mut self.bytes, rates.bytes) {
            (Some(throttle), Some(rate)) => throttle.set_limit(now, rate, None),
            (bytes, rate) => *bytes = rate.map(|rate| Throttle::new(now, rate, None)),
        }
        match rates.operations {
            Some(rate) => self.set_operations(now, rate, None),
            None => self.operations = None,
        }
    }
}
