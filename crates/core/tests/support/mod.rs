//! What the tests of several targets need: times, limits, and chance from a seed.

#![allow(dead_code)] // no target needs all of it

use evenkeel_core::qos::pacing::{CountingRule, Limit, Pacing};
use evenkeel_core::time::{Duration, Instant};

pub const NS_PER_S: u64 = 1_000_000_000;
pub const KIB: u32 = 1 << 10;

pub fn at(ns: u64) -> Instant {
    Instant::from_ns(ns)
}

pub fn limit(per_second: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: None })
}

/// Limits that count as an SSD type's do and save 50 ms worth.
pub fn pacing(operations: Option<Limit>, bytes: Option<Limit>) -> Pacing {
    let tolerance = Duration::from_ms(50);
    Pacing { counting: CountingRule::SSD, tolerance, operations, bytes }
}

/// A small generator (SplitMix64), so that a seed is all it takes to repeat a run.
pub struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Seeded by `EVENKEEL_SEED`, or by a constant: a plain run is always the same run.
    pub fn from_environment() -> Self {
        let seed = std::env::var("EVENKEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        Self::new(seed.unwrap_or(20_251_121))
    }

    /// The command that repeats tests with this seed; `selection` is what `cargo test` needs to
    /// find them.
    pub fn replay(&self, selection: &str) -> String {
        format!("replay: EVENKEEL_SEED={} cargo test {selection}", self.seed)
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        u64::try_from((u128::from(self.next()) * u128::from(bound)) >> 64).unwrap()
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = u128::from(high - low) + 1;
        low + u64::try_from((u128::from(self.next()) * span) >> 64).unwrap()
    }

    /// Exponential with the given mean.
    pub fn exponential(&mut self, mean: f64) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (-mean * (1.0 - uniform).ln()) as u64
    }

    /// Whether something with a chance of `ppm` in a million happens.
    pub fn happens(&mut self, ppm: u64) -> bool {
        self.below(1_000_000) < ppm
    }
}
