//! How sure a figure is: intervals from samples drawn anew from the sample.
//!
//! The percentile bootstrap of Efron: of many samples drawn with replacement, the middle part of
//! their figures is the interval. It assumes no shape of the distribution. Of three runs it is too
//! narrow, as every method is that assumes nothing; say how many runs there were.

use evenkeel_store::random::Random;
use serde::{Deserialize, Serialize};

use super::{percentile, sorted};

/// From where to where a figure lies with the confidence that was asked for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// How intervals are made. The same seed makes the same, on every machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bootstrap {
    /// Share of repetitions that the interval should catch, such as 0.95.
    pub confidence: f64,
    /// Samples drawn.
    pub resamples: u32,
    /// Of all chance.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { confidence: 0.95, resamples: 10_000, seed: 1 }
    }
}

impl Bootstrap {
    /// The interval of the mean of these values; `None` of nothing.
    #[must_use]
    pub fn mean(&self, values: &[f64]) -> Option<Interval> {
        let mut random = Random::new(self.seed, 0);
        self.interval(|| Some(drawn_mean(values, &mut random)).filter(|_| !values.is_empty()))
    }

    /// The interval of mean(`of`) / mean(`to`), each drawn for itself; `None` if one has no values
    /// or the divisor may be 0.
    #[must_use]
    pub fn ratio(&self, of: &[f64], to: &[f64]) -> Option<Interval> {
        if of.is_empty() || to.is_empty() {
            return None;
        }
        // Streams of their own: equal samples must not be drawn alike.
        let (mut first, mut second) = (Random::new(self.seed, 1), Random::new(self.seed, 2));
        self.interval(|| {
            let ratio = drawn_mean(of, &mut first) / drawn_mean(to, &mut second);
            Some(ratio).filter(|ratio| ratio.is_finite())
        })
    }

    fn interval(&self, mut figure: impl FnMut() -> Option<f64>) -> Option<Interval> {
        let figures: Option<Vec<f64>> = (0..self.resamples).map(|_| figure()).collect();
        let ascending = sorted(&figures?);
        let tail = (1.0 - self.confidence.clamp(0.0, 1.0)) / 2.0 * 100.0;
        let low = percentile(&ascending, tail)?;
        Some(Interval { low, high: percentile(&ascending, 100.0 - tail)? })
    }
}

/// The mean of as many values as there are, each drawn from all of them.
fn drawn_mean(values: &[f64], random: &mut Random) -> f64 {
    let sum: f64 = values.iter().map(|_| random.among(values)).sum();
    sum / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [f64; 3] = [1524.0, 1497.0, 1488.0];

    #[test]
    fn three_runs_have_27_samples_and_these_are_their_quantiles() {
        // b <- as.matrix(expand.grid(rep(list(c(1524,1497,1488)), 3)))
        // quantile(rowMeans(b), c(.1,.9), type=7) is 1491 and 1515. Ten thousand draws find the
        // same two: 14.8 % of the means are 1491 or less, 3.7 % below it.
        let interval = Bootstrap { confidence: 0.8, ..Bootstrap::default() }.mean(&RUNS).unwrap();
        assert_eq!((interval.low, interval.high), (1491.0, 1515.0));
    }

    #[test]
    fn a_large_sample_s_interval_is_two_standard_errors_wide_on_each_side() {
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 20)).collect();
        let se = super::super::Sample::of(&values).se;
        let interval = Bootstrap::default().mean(&values).unwrap();
        for (got, want) in [(interval.low, 9.5 - 1.96 * se), (interval.high, 9.5 + 1.96 * se)] {
            assert!((got - want).abs() < se * 0.1, "{got} {want}");
        }
    }

    #[test]
    fn it_catches_the_truth_about_as_often_as_it_says() {
        let mut random = Random::new(7, 0);
        let caught = (0..300_u64).filter(|&seed| {
            let drawn: Vec<f64> = (0..40).map(|_| random.below(1_001) as f64).collect();
            let bootstrap = Bootstrap { confidence: 0.9, resamples: 400, seed };
            let interval = bootstrap.mean(&drawn).unwrap();
            interval.low <= 500.0 && 500.0 <= interval.high
        });
        let caught = caught.count();
        assert!((255..=285).contains(&caught), "{caught} of 300, not about 270");
    }

    #[test]
    fn ratios() {
        let bootstrap = Bootstrap::default();
        let interval = bootstrap.ratio(&[3.0; 5], &[1.5; 5]).unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 2.0));
        let interval = bootstrap.ratio(&RUNS, &RUNS).unwrap();
        assert!(interval.low < 1.0 && 1.0 < interval.high, "{interval:?}");
        assert!(interval.high - interval.low < 0.06, "{interval:?}");
        assert_eq!(bootstrap.ratio(&RUNS, &RUNS), Some(interval), "the same seed, the same ends");
        let squares: Vec<f64> = (0..50).map(|i| f64::from(i * i)).collect();
        assert_ne!(Bootstrap { seed: 2, ..bootstrap }.mean(&squares), bootstrap.mean(&squares));
    }

    #[test]
    fn what_has_no_interval() {
        let bootstrap = Bootstrap::default();
        assert_eq!(bootstrap.mean(&[]), None);
        assert_eq!(bootstrap.ratio(&[], &RUNS), None);
        assert_eq!(bootstrap.ratio(&RUNS, &[]), None);
        assert_eq!(bootstrap.ratio(&RUNS, &[0.0]), None);
        assert_eq!(Bootstrap { resamples: 0, ..bootstrap }.mean(&RUNS), None);
    }
}
