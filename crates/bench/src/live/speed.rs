//! The processor's speed while programs run that it limits. No clock here shows that another
//! machine shares its core, or that it is hot. Only the time of a constant piece of work does.

use std::collections::BTreeMap;
use std::hint::black_box;

use evenkeel_core::random::Random;

use evenkeel_os::clock;

/// Steps of a piece of work, which take about a millisecond.
const STEPS: u32 = 1_000_000;
/// Pieces of a measurement. The fastest counts, as others may have been interrupted by chance.
const PIECES: u32 = 5;
/// Maximum ratio of the slowest to the fastest measurement with which programs that the processor
/// limits are judged without a caution. Their figures may differ by this factor.
const SLOWER_MAX: f64 = 1.10;

/// The fastest and the slowest measurement beside each program, by its name, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Speeds(BTreeMap<String, (u64, u64)>);

impl Speeds {
    /// Measures the speed beside programs, in about five milliseconds; does nothing if there are
    /// none.
    pub(super) fn look(&mut self, programs: &[&str]) {
        if !programs.is_empty() {
            let took_ns = (0..PIECES).map(|_| piece_ns()).min().unwrap_or(0);
            programs.iter().for_each(|program| self.note(program, took_ns));
        }
    }

    pub(crate) fn note(&mut self, program: &str, took_ns: u64) {
        let looks = self.0.entry(program.to_owned()).or_insert((took_ns, took_ns));
        *looks = (looks.0.min(took_ns), looks.1.max(took_ns));
    }

    /// Adds the measurements of another run.
    pub(super) fn join(&mut self, other: Self) {
        for (program, (fastest, slowest)) in other.0 {
            self.note(&program, fastest);
            self.note(&program, slowest);
        }
    }

    /// Returns the largest ratio of slowest to fastest measurement beside these programs, if it is
    /// too large for safe verdicts. Figures that are off by no more than this factor prove nothing.
    #[must_use]
    pub fn slower(&self, programs: &[String]) -> Option<f64> {
        let slower = programs.iter().filter_map(|program| self.0.get(program)).map(factor);
        slower.max_by(f64::total_cmp).filter(|slower| *slower > SLOWER_MAX)
    }

    /// Returns the largest ratio of any program as text; `None` if all verdicts are safe.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let slower = self.0.iter().map(|(program, looks)| (factor(looks), program));
        let (slower, program) = slower.max_by(|a, b| a.0.total_cmp(&b.0))?;
        (slower > SLOWER_MAX).then(|| {
            format!(
                "the processor itself was slower at times, beside {program} by a factor of \
                 {slower:.2}, and at most {SLOWER_MAX:.2} leave a verdict safe on what it binds"
            )
        })
    }
}

fn factor((fastest, slowest): &(u64, u64)) -> f64 {
    *slowest as f64 / (*fastest).max(1) as f64
}

fn piece_ns() -> u64 {
    let began_ns = clock::monotonic().ns;
    let mut random = Random::from_state(began_ns);
    black_box((0..STEPS).fold(0, |sum: u64, _| sum ^ random.next_u64()));
    clock::monotonic().ns - began_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_as_fast_as_its_looks() {
        let programs = ["gzip", "tar"].map(str::to_owned);
        let mut speeds = Speeds::default();
        assert_eq!((speeds.reason(), speeds.slower(&programs)), (None, None), "nobody looked");
        speeds.look(&[]);
        assert_eq!(speeds, Speeds::default());
        speeds.look(&["dbench"]);
        let (fastest, slowest) = speeds.0["dbench"];
        assert!(fastest == slowest && fastest > 0);
        let mut speeds = Speeds::default();
        [1_000, 1_100].into_iter().for_each(|took_ns| speeds.note("gzip", took_ns));
        speeds.note("tar", 2_000);
        assert_eq!((speeds.reason(), speeds.slower(&programs)), (None, None), "near enough");
        let mut other = Speeds::default();
        other.note("gzip", 1_680);
        speeds.join(other);
        speeds.join(Speeds::default());
        let reason = speeds.reason().unwrap();
        assert!(reason.contains("beside gzip by a factor of 1.68"), "{reason}");
        assert_eq!(speeds.slower(&programs), Some(1.68));
        assert_eq!(speeds.slower(&programs[1..]), None, "tar was judged by its own looks");
    }
}
