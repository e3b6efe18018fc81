//! Random numbers from a seed, and the seeds of a test.

/// Choices of a test.
pub struct Random(evenkeel_core::random::Random);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(evenkeel_core::random::Random::from_state(seed))
    }

    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    pub fn one_in(&mut self, of: usize) -> bool {
        self.below(of) == 0
    }

    pub fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}

/// Returns the number in an environment variable.
pub fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

/// Runs `case` with `cases` seeds, with `EVENKEEL_FUZZ_CASES` of them, or with the one in
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
