//! Selection of the seeds for a test of random histories.

/// Returns the seed in `EVENKEEL_SEED`, or `EVENKEEL_FUZZ_CASES` seeds, or else `cases` seeds.
pub fn seeds(cases: u64) -> Vec<u64> {
    if let Ok(seed) = std::env::var("EVENKEEL_SEED") {
        return vec![seed.parse().expect("EVENKEEL_SEED is a number")];
    }
    let set = std::env::var("EVENKEEL_FUZZ_CASES").ok().and_then(|set| set.parse().ok());
    (1..=set.unwrap_or(cases)).collect()
}
