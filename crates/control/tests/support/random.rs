//! Numbers from a seed, and what a test repeats with it.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

/// A number that the environment names.
pub fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// Runs `case` with each seed: so many as a plain run has, or `EVENKEEL_FUZZ_CASES`, or the one of
/// `EVENKEEL_SEED`, which a failure prints.
pub fn seeds(cases: u64, mut case: impl FnMut(u64)) {
    struct Failing(u64);
    impl Drop for Failing {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("repeat it with EVENKEEL_SEED={}", self.0);
            }
        }
    }
    let seeds = match number("EVENKEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("EVENKEEL_FUZZ_CASES").unwrap_or(cases) + 1,
    };
    for seed in seeds {
        let failing = Failing(seed);
        case(seed);
        drop(failing);
    }
}
