//! Completions over time: exact counts per millisecond, and in every window of whole milliseconds.

use evenkeel_core::convert::index;
use serde::{Deserialize, Serialize};

use crate::figures::stats::Sample;

/// Milliseconds in a second.
const SECOND_MS: usize = 1_000;

/// Completions per millisecond of a run of known length. Time 0 is the start of the load.
///
/// fio rounds the times of completions down to whole milliseconds, so windows of whole milliseconds
/// are exact: nothing is interpolated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Series {
    per_ms: Vec<u32>,
    late: u64,
}

/// Plain statistics of a series of counts.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Sample standard deviation divided by the mean; 0 for fewer than two values.
    pub cov: f64,
}

impl Series {
    /// Creates an empty series of `duration_s` seconds.
    #[must_use]
    pub fn new(duration_s: u32) -> Self {
        Self { per_ms: vec![0; duration_s as usize * SECOND_MS], late: 0 }
    }

    /// Counts an I/O that completed `time_ms` after the start. Completions after the end, while the
    /// load drains, belong to no full second and are counted separately.
    pub fn record(&mut self, time_ms: u64) {
        let slot = usize::try_from(time_ms).ok().and_then(|index| self.per_ms.get_mut(index));
        match slot {
            Some(count) => *count = count.saturating_add(1),
            None => self.late += 1,
        }
    }

    /// Counts `count` I/Os in millisecond `time_ms`; for synthetic series.
    pub fn record_many(&mut self, time_ms: u64, count: u32) {
        for _ in 0..count {
            self.record(time_ms);
        }
    }

    /// Returns the series of the first `seconds` full seconds.
    #[must_use]
    pub fn first_seconds(&self, seconds: u64) -> Self {
        let ms = index(seconds).saturating_mul(SECOND_MS);
        let kept = ms.min(self.per_ms.len());
        let cut: u64 = self.per_ms[kept..].iter().map(|&count| u64::from(count)).sum();
        Self { per_ms: self.per_ms[..kept].to_vec(), late: self.late + cut }
    }

    /// Returns the completions per millisecond.
    #[must_use]
    pub fn per_ms(&self) -> &[u32] {
        &self.per_ms
    }

    /// Returns the completions per full second.
    #[must_use]
    pub fn per_second(&self) -> Vec<u64> {
        self.windows(SECOND_MS)
    }

    /// Returns the completions in each full window of `width_ms` milliseconds. A last, partial
    /// window is left out.
    #[must_use]
    pub fn windows(&self, width_ms: usize) -> Vec<u64> {
        let width_ms = width_ms.max(1);
        let sum = |window: &[u32]| window.iter().map(|&count| u64::from(count)).sum();
        self.per_ms.chunks_exact(width_ms).map(sum).collect()
    }

    /// Returns the number of I/Os that completed within the run.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.per_ms.iter().map(|&count| u64::from(count)).sum()
    }

    /// Returns the number of I/Os that completed after its end, while the load drained.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }
}

impl Spread {
    /// Returns the mean and the coefficient of variation of some values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let Sample { mean, cov, .. } = Sample::of(values);
        Self { mean, cov }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_edges_of_a_second_are_exact() {
        let mut series = Series::new(2);
        for time_ms in [0, 999, 1_000, 1_999, 2_000, 2_500, u64::MAX] {
            series.record(time_ms);
        }
        assert_eq!(series.per_second(), [2, 2]);
        assert_eq!((series.total(), series.late()), (4, 3));
    }

    #[test]
    fn the_spread_of_known_values() {
        let spread = Spread::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((spread.mean - 5.0).abs() < 1e-12);
        assert!((spread.cov - (32.0_f64 / 7.0).sqrt() / 5.0).abs() < 1e-12);
        assert_eq!(Spread::of(&[]), Spread::default());
        assert_eq!(Spread::of(&[3.0]).cov.to_bits(), 0.0_f64.to_bits());
        assert_eq!(Spread::of(&[0.0, 0.0]).cov.to_bits(), 0.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn windows_of_any_width_agree_with_an_oracle(
            times in proptest::collection::vec(0_u64..5_000, 0..200), width in 1_usize..3_000,
        ) {
            let mut series = Series::new(3);
            times.iter().for_each(|&time_ms| series.record(time_ms));
            let windows = series.windows(width);
            prop_assert_eq!(windows.len(), 3_000 / width);
            for (index, &got) in windows.iter().enumerate() {
                let from = (index * width) as u64;
                let to = ((index + 1) * width) as u64;
                let want = times.iter().filter(|&&time| (from..to).contains(&time)).count();
                prop_assert_eq!(got, want as u64);
            }
            prop_assert_eq!(series.total() + series.late(), times.len() as u64);
        }
    }
}
