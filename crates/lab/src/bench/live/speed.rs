//! How fast the processor is while programs run that it binds. Whoever shares its core, or heats
//! it, is seen by no clock of ours: only work that is always the same shows it.

use std::hint::black_box;

use evenkeel_store::random::Random;

use crate::clock;

/// Steps of a piece of work: about a millisecond.
const STEPS: u32 = 1_000_000;
/// Pieces of a look, of which the fastest counts: what was on the processor by chance is not what
/// is looked for.
const PIECES: u32 = 5;
/// Programs that the processor binds are not judged where it was slower at times by more than this
/// factor, which is as far apart as they may be.
const SLOWER_MAX: f64 = 1.10;

/// The fastest and the slowest look, in nanoseconds; none before the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Speeds(Option<(u64, u64)>);

impl Speeds {
    /// Takes a look, in about five milliseconds.
    pub(super) fn look(&mut self) {
        self.note((0..PIECES).map(|_| piece_ns()).min().unwrap_or(0));
    }

    pub(crate) fn note(&mut self, took_ns: u64) {
        let (fastest, slowest) = self.0.unwrap_or((took_ns, took_ns));
        self.0 = Some((fastest.min(took_ns), slowest.max(took_ns)));
    }

    /// With the looks of another run.
    pub(super) fn join(&mut self, other: Self) {
        if let Some((fastest, slowest)) = other.0 {
            self.note(fastest);
            self.note(slowest);
        }
    }

    /// Why broken figures of programs that the processor binds say nothing, in words; none where
    /// they do.
    #[must_use]
    pub fn reason(self) -> Option<String> {
        let (fastest, slowest) = self.0?;
        let slower = slowest as f64 / fastest.max(1) as f64;
        (slower > SLOWER_MAX).then(|| {
            format!(
                "the processor itself was slower at times by a factor of {slower:.2}, and at most \
                 {SLOWER_MAX:.2} leave a verdict safe on what it binds"
            )
        })
    }
}

fn piece_ns() -> u64 {
    let began_ns = clock::monotonic_ns();
    let mut random = Random::from_state(began_ns);
    black_box((0..STEPS).fold(0, |sum: u64, _| sum ^ random.next_u64()));
    clock::monotonic_ns() - began_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_as_fast_as_its_looks() {
        let mut speeds = Speeds::default();
        assert_eq!(speeds.reason(), None, "nobody looked");
        speeds.look();
        let (fastest, slowest) = speeds.0.unwrap();
        assert!(fastest == slowest && fastest > 0);
        let mut speeds = Speeds::default();
        [1_000, 1_100].into_iter().for_each(|took_ns| speeds.note(took_ns));
        assert_eq!(speeds.reason(), None);
        let mut other = Speeds::default();
        other.note(1_680);
        speeds.join(other);
        speeds.join(Speeds::default());
        let reason = speeds.reason().unwrap();
        assert!(reason.contains("by a factor of 1.68"), "{reason}");
    }
}
