//! Selection of the seeds for a test of random histories.

/// Returns the seed in `EVENKEEL_SEED`, or `EVENKEEL_FUZZ_CASES` seeds from `EVENKEEL_FUZZ_FIRST`
/// on, or else the first `cases` seeds.
///
/// # Panics
/// If one of the variables is not a number.
pub fn seeds(cases: u64) -> Vec<u64> {
    if let Some(seed) = number("EVENKEEL_SEED") {
        return vec![seed];
    }
    let first = number("EVENKEEL_FUZZ_FIRST").unwrap_or(1);
    let count = number("EVENKEEL_FUZZ_CASES").unwrap_or(cases);
    (first..first.saturating_add(count)).collect()
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: {text:?} is not a number")))
}
