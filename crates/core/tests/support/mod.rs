//! Times, limits and seeded random numbers for the tests of several targets.

#![allow(dead_code)] // no target needs all of it

use std::ops::{Deref, DerefMut};

use evenkeel_core::qos::pacing::{CountingRule, Limit, Pacing};
use evenkeel_core::random::Random;
use evenkeel_core::time::{Duration, Instant};

pub const NS_PER_S: u64 = 1_000_000_000;
pub const KIB: u32 = 1 << 10;

pub fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

pub fn limit(per_second: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: None })
}

/// Returns limits that count like an SSD type's, with a tolerance of 50 ms.
pub fn pacing(operations: Option<Limit>, bytes: Option<Limit>) -> Pacing {
    let tolerance = Duration::from_ms(50);
    Pacing { counting: CountingRule::SSD, tolerance, operations, bytes }
}

/// A generator with its seed, so that the message of a failure can say how to repeat the run.
pub struct Rng {
    seed: u64,
    random: Random,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { seed, random: Random::from_state(seed) }
    }

    /// Returns a generator seeded by `EVENKEEL_SEED`, or else by a constant, so that a plain run is
    /// always the same.
    pub fn from_environment() -> Self {
        let seed = std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        Self::new(seed.unwrap_or(20_251_121))
    }

    /// Returns the command that repeats tests with this seed; `selection` is the arguments with
    /// which `cargo test` selects them.
    pub fn replay(&self, selection: &str) -> String {
        format!("replay: EVENKEEL_SEED={} cargo test {selection}", self.seed)
    }

    /// Returns a uniform number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }
}

impl Deref for Rng {
    type Target = Random;

    fn deref(&self) -> &Random {
        &self.random
    }
}

impl DerefMut for Rng {
    fn deref_mut(&mut self) -> &mut Random {
        &mut self.random
    }
}
