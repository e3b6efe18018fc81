//! Random bytes that depend on the seed alone.

use std::hash::{BuildHasher, RandomState};

/// Returns a seed that differs from run to run, unless `EVENKEEL_TEST_SEED` gives one. Prints the
/// command that repeats the run, which is shown if the test fails: `selection` are the arguments of
/// `cargo test`.
pub fn seed_of(selection: &str) -> u64 {
    let given = std::env::var("EVENKEEL_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| RandomState::new().hash_one(0));
    println!("replay: EVENKEEL_TEST_SEED={seed} cargo test -p evenkeel --test {selection}");
    seed
}

/// SplitMix64: <https://prng.di.unimi.it/splitmix64.c>, by Sebastiano Vigna, in the public domain.
pub struct Random {
    state: u64,
}

impl Random {
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}
