//! Statistics of several runs: the figures of a published table, and those that it leaves out.
//!
//! Every figure equals that of R for the same numbers; the tests quote the R expression. If R
//! prints NA, for the spread of one value, it is 0 here, and tables show a dash for it. This module
//! does not know the meaning of the numbers.

mod bootstrap;
mod density;

pub use bootstrap::{Bootstrap, Interval};
pub use density::{Density, bandwidth};

use serde::{Deserialize, Serialize};

/// The figures of several runs of the same workload. All are zero without runs.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Number of runs.
    pub n: u64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Sample standard deviation, with n - 1 in the divisor; 0 for one run.
    pub sd: f64,
    /// Standard error of the mean, sd / sqrt(n), which the Phoronix suite prints as `SE +/-`.
    pub se: f64,
    /// Coefficient of variation, sd / |mean|; 0 if the mean is 0.
    pub cov: f64,
}

impl Sample {
    /// Returns the figures of these values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let Some(first) = values.first() else { return Self::default() };
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = if values.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
        Self {
            n: values.len() as u64,
            mean,
            min: values.iter().copied().fold(*first, f64::min),
            max: values.iter().copied().fold(*first, f64::max),
            sd,
            se: sd / n.sqrt(),
            cov: if mean == 0.0 { 0.0 } else { sd / mean.abs() },
        }
    }
}

/// Returns the values in ascending order, as [`percentile`] needs them.
#[must_use]
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the value that is above `percent` of the values, interpolated between its neighbours
/// (R's default, type 7). The values must be in ascending order. Returns `None` without values. A
/// percentage out of range counts as the nearest one in range.
#[must_use]
pub fn percentile(ascending: &[f64], percent: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let at = percent.clamp(0.0, 100.0) / 100.0 * last as f64;
    // Not negative and at most `last`: both fit.
    let below = (at.floor() as usize).min(last);
    let low = ascending[below];
    let high = ascending[(below + 1).min(last)];
    Some(low + (high - low) * (at - below as f64))
}

/// Returns the median of values in any order; `None` without values.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    percentile(&sorted(values), 50.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Asserts that two figures differ by at most a ten-millionth, the precision of the quoted
    /// ones.
    pub(super) fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= want.abs() * 1e-7 + 1e-15, "got {got}, R says {want}");
    }

    /// Eight figures of one run, as irregular as real ones.
    pub(super) const CALLS: [f64; 8] = [33.871, 33.955, 31.972, 33.9, 34.1, 33.2, 33.8, 33.7];

    #[test]
    fn sample_statistics_agree_with_r() {
        // x <- c(33.871,33.955,31.972,33.9,34.1,33.2,33.8,33.7); options(digits=15)
        // c(length(x),mean(x),min(x),max(x),sd(x),sd(x)/sqrt(length(x)),sd(x)/mean(x))
        let sample = Sample::of(&CALLS);
        assert_eq!(sample.n, 8);
        close(sample.mean, 33.56225);
        assert_eq!((sample.min, sample.max), (31.972, 34.1));
        close(sample.sd, 0.695_747_234_479_385_8);
        close(sample.se, 0.245_983_793_746_080_3);
        close(sample.cov, 0.020_730_053_392_707_2);
    }

    #[test]
    fn the_published_error_of_postmark_is_the_standard_error() {
        // 250,000 transactions in 164, 167 and 168 s: the article prints 1503 +- 10.82 and calls
        // it the largest deviation, which would be 21. x <- c(1524,1497,1488)
        // c(mean(x), sd(x), sd(x)/sqrt(length(x)), sd(x)/mean(x))
        let sample = Sample::of(&[1524.0, 1497.0, 1488.0]);
        close(sample.mean, 1503.0);
        close(sample.sd, 18.734_993_995_195_2);
        close(sample.se, 10.816_653_826_392);
        close(sample.cov, 0.012_465_065_865_066_7);
    }

    #[test]
    fn percentiles_are_r_s_type_7() {
        // quantile(x, c(0,.05,.25,.5,.75,.95,.99,1), type=7)
        let ascending = sorted(&CALLS);
        for (percent, want) in [
            (0.0, 31.972),
            (5.0, 32.4018),
            (25.0, 33.575),
            (50.0, 33.8355),
            (75.0, 33.91375),
            (95.0, 34.04925),
            (99.0, 34.08985),
            (100.0, 34.1),
        ] {
            close(percentile(&ascending, percent).unwrap(), want);
        }
        // quantile(c(4,1,3,2), c(.1,.25,.5,.9), type=7)
        let ascending = sorted(&[4.0, 1.0, 3.0, 2.0]);
        for (percent, want) in [(10.0, 1.3), (25.0, 1.75), (50.0, 2.5), (90.0, 3.7)] {
            close(percentile(&ascending, percent).unwrap(), want);
        }
    }

    #[test]
    fn statistics_of_one_value_and_of_none_are_defined() {
        let sample = Sample::of(&[5.0]);
        assert_eq!(
            (sample.n, sample.mean, sample.sd, sample.se, sample.cov),
            (1, 5.0, 0.0, 0.0, 0.0)
        );
        assert_eq!(Sample::of(&[]), Sample::default());
        assert_eq!((percentile(&[5.0], 99.0), percentile(&[], 50.0)), (Some(5.0), None));
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (Some(2.0), None));
    }

    proptest! {
        #[test]
        fn figures_lie_where_they_must(
            values in proptest::collection::vec(0.1_f64..1e6, 1..50), percent in 0.0_f64..100.0,
        ) {
            let sample = Sample::of(&values);
            let room = sample.mean * 1e-12;
            prop_assert!(sample.min - room <= sample.mean && sample.mean <= sample.max + room);
            prop_assert!(sample.sd >= 0.0 && sample.se <= sample.sd);
            let ascending = sorted(&values);
            let value = percentile(&ascending, percent).unwrap();
            let next = percentile(&ascending, percent + 1.0).unwrap();
            prop_assert!(sample.min <= value && value <= next && next <= sample.max);
        }
    }
}
