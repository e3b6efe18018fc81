//! Confidence intervals of figures, from samples that are drawn again from the sample.
//!
//! The percentile bootstrap of Efron: many samples are drawn with replacement, and the middle 95 %
//! of their figures are the interval. It assumes no shape of the distribution, and for few values
//! it is too narrow: for three runs it misses the truth about four times as often as it states
//! (Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69 (4),
//! 2015, §4). So every drawn mean is moved away from the sample's mean, by the ratio of the widths
//! of Student's interval and the bootstrap's interval for the same number of normal values. For few
//! values that are far from normal it is still too narrow, as every interval is.

use evenkeel_core::random::Random;
use serde::{Deserialize, Serialize};

use super::{Sample, sorted};

/// The share of repetitions that an interval leaves out on each side.
const TAIL: f64 = 0.025;
/// `qnorm(0.975)`.
const NORMAL: f64 = 1.959_963_985;
/// `qt(0.975, 1:9)`; beyond, a series is accurate enough.
const STUDENT: [f64; 9] = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622];

/// The interval in which a figure lies with 95 % confidence.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end. That of a ratio is infinite, and null in JSON, if the divisor may be 0. The lower
    /// end is infinite if the divisor is 0.
    pub high: f64,
}

/// The parameters of intervals. The same seed yields the same interval on every machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bootstrap {
    /// Number of samples that are drawn.
    pub resamples: u32,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self { resamples: 10_000, seed: 1 }
    }
}

impl Bootstrap {
    /// Returns the interval of the mean of these rates, none of which is negative. Returns `None`
    /// for fewer than two rates, which do not show their variation.
    #[must_use]
    pub fn mean(self, rates: &[f64]) -> Option<Interval> {
        let mut means = Means::of(rates, self.seed, 0)?;
        self.interval(|| means.draw())
    }

    /// Returns the interval of mean(`of`) / mean(`to`), each drawn independently. Returns `None` if
    /// one has fewer than two rates, or if all rates of both are 0.
    #[must_use]
    pub fn ratio(self, of: &[f64], to: &[f64]) -> Option<Interval> {
        // Separate random streams: equal samples must not be drawn alike.
        let mut means = Means::of(of, self.seed, 1)?;
        let mut to = Means::of(to, self.seed, 2)?;
        self.interval(|| means.draw() / to.draw())
    }

    fn interval(self, mut figure: impl FnMut() -> f64) -> Option<Interval> {
        // 0 / 0 is not a figure.
        let figures: Vec<f64> =
            (0..self.resamples).map(|_| figure()).filter(|figure| !figure.is_nan()).collect();
        let ascending = sorted(&figures);
        let last = ascending.len().checked_sub(1)?;
        let outside = (TAIL * last as f64).floor() as usize;
        // Not interpolated between two of them: one may be infinite.
        Some(Interval { low: ascending[outside], high: ascending[last - outside] })
    }
}

/// Means of samples that are drawn from a sample.
struct Means<'a> {
    rates: &'a [f64],
    mean: f64,
    wider: f64,
    random: Random,
}

impl<'a> Means<'a> {
    fn of(rates: &'a [f64], seed: u64, stream: u64) -> Option<Self> {
        let random = Random::new(seed, stream);
        let mean = Sample::of(rates).mean;
        let wider = wider(rates.len())?;
        Some(Self { rates, mean, wider, random })
    }

    /// Returns the mean of as many rates as the sample has, each drawn from all of them, moved away
    /// from the sample's mean.
    fn draw(&mut self) -> f64 {
        let sum: f64 = self.rates.iter().map(|_| self.random.among(self.rates)).sum();
        let drawn = sum / self.rates.len() as f64;
        (self.mean + (drawn - self.mean) * self.wider).max(0.0)
    }
}

/// Returns the ratio of the width of Student's interval to that of the bootstrap's, for `n` normal
/// values; `None` for fewer than two.
fn wider(n: usize) -> Option<f64> {
    let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)?;
    Some(student(freedom) / NORMAL * (n as f64 / freedom as f64).sqrt())
}

/// Returns `qt(0.975, freedom)`; from ten on by the first terms of its series (Abramowitz and
/// Stegun, 26.7.5).
fn student(freedom: usize) -> f64 {
    if let Some(known) = freedom.checked_sub(1).and_then(|place| STUDENT.get(place)) {
        return *known;
    }
    let x = NORMAL;
    let v = freedom as f64;
    let first = (x.powi(3) + x) / 4.0;
    let second = (5.0 * x.powi(5) + 16.0 * x.powi(3) + 3.0 * x) / 96.0;
    let third = (3.0 * x.powi(7) + 19.0 * x.powi(5) + 17.0 * x.powi(3) - 15.0 * x) / 384.0;
    let fourth = 79.0 * x.powi(9) + 776.0 * x.powi(7) + 1_482.0 * x.powi(5)
        - 1_920.0 * x.powi(3)
        - 945.0 * x;
    x + first / v + second / v.powi(2) + third / v.powi(3) + fourth / 92_160.0 / v.powi(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [f64; 3] = [1524.0, 1497.0, 1488.0];

    #[test]
    fn students_quantiles() {
        // qt(0.975, c(1, 9, 10, 30, 100))
        let known = [(1, 12.70620), (9, 2.26216), (10, 2.22814), (30, 2.04227), (100, 1.98397)];
        for (freedom, quantile) in known {
            assert!((student(freedom) - quantile).abs() < 1e-4, "{freedom}: {}", student(freedom));
        }
        assert!((student(usize::MAX) - NORMAL).abs() < 1e-9);
    }

    #[test]
    fn three_runs_have_27_samples_and_these_are_their_quantiles() {
        // b <- as.matrix(expand.grid(rep(list(c(1524,1497,1488)), 3)))
        // quantile(rowMeans(b), c(.025,.975), type=7) is 1488 and 1524: one of 27 has only the
        // least, one only the largest. qt(.975, 2) / qnorm(.975) * sqrt(3/2) is 2.6886.
        let interval = Bootstrap::default().mean(&RUNS).unwrap();
        let low = 1503.0 - 15.0 * 2.6886;
        let high = 1503.0 + 21.0 * 2.6886;
        assert!((interval.low - low).abs() < 0.01, "{interval:?}, not {low} to {high}");
        assert!((interval.high - high).abs() < 0.01, "{interval:?}, not {low} to {high}");
    }

    #[test]
    fn a_large_sample_s_interval_is_two_standard_errors_wide_on_each_side() {
        let values: Vec<f64> = (0..400).map(|i| f64::from(i % 20)).collect();
        let se = Sample::of(&values).se;
        let interval = Bootstrap::default().mean(&values).unwrap();
        for (got, want) in [(interval.low, 9.5 - 1.96 * se), (interval.high, 9.5 + 1.96 * se)] {
            assert!((got - want).abs() < se * 0.1, "{got} {want}");
        }
    }

    /// Returns about normal values: each is the sum of twelve random numbers.
    fn drawn(random: &mut Random, n: usize) -> Vec<f64> {
        let one = |random: &mut Random| (0..12).map(|_| random.below(1_001) as f64).sum::<f64>();
        (0..n).map(|_| one(random)).collect()
    }

    #[test]
    fn interval_has_the_true_mean_as_often_as_it_claims() {
        let mut random = Random::new(7, 0);
        for (n, caught_least, caught_most) in [(3, 364, 396), (5, 364, 396), (40, 368, 394)] {
            let caught = (0..400_u64).filter(|&seed| {
                let bootstrap = Bootstrap { resamples: 400, seed };
                let interval = bootstrap.mean(&drawn(&mut random, n)).unwrap();
                interval.low <= 6_000.0 && 6_000.0 <= interval.high
            });
            let caught = caught.count();
            let expected = caught_least..=caught_most;
            assert!(expected.contains(&caught), "{caught} of 400, not about 380, of {n} values");
        }
    }

    #[test]
    fn few_runs_of_the_same_seldom_differ() {
        let mut random = Random::new(8, 0);
        for n in [3, 5, 9] {
            let differ = (0..400_u64).filter(|&seed| {
                let a = drawn(&mut random, n);
                let b = drawn(&mut random, n);
                let interval = Bootstrap { resamples: 400, seed }.ratio(&a, &b).unwrap();
                interval.high < 1.0 || 1.0 < interval.low
            });
            let differ = differ.count();
            assert!(differ <= 30, "{differ} of 400, more than about 20, of {n} runs each");
        }
    }

    #[test]
    fn ratios() {
        let bootstrap = Bootstrap::default();
        let interval = bootstrap.ratio(&[3.0; 5], &[1.5; 5]).unwrap();
        assert_eq!((interval.low, interval.high), (2.0, 2.0));
        let interval = bootstrap.ratio(&RUNS, &RUNS).unwrap();
        assert!(interval.low < 1.0 && 1.0 < interval.high, "{interval:?}");
        assert!(interval.high - interval.low < 0.12, "{interval:?}");
        assert_eq!(bootstrap.ratio(&RUNS, &RUNS), Some(interval), "the same seed, the same ends");
        let squares: Vec<f64> = (0..50).map(|i| f64::from(i * i)).collect();
        assert_ne!(Bootstrap { seed: 2, ..bootstrap }.mean(&squares), bootstrap.mean(&squares));
    }

    /// If the divisor may be 0, the upper end is infinite and the lower end is finite.
    #[test]
    fn ratio_to_a_divisor_that_may_be_zero_has_an_open_end() {
        let bootstrap = Bootstrap::default();
        let interval = bootstrap.ratio(&[9_000.0; 3], &[0.0, 1_000.0, 1_000.0]).unwrap();
        assert!(interval.low > 4.0 && interval.high == f64::INFINITY, "{interval:?}");
        let interval = bootstrap.ratio(&RUNS, &[0.0; 2]).unwrap();
        assert_eq!((interval.low, interval.high), (f64::INFINITY, f64::INFINITY));
        let interval = bootstrap.ratio(&[0.0; 3], &RUNS).unwrap();
        assert_eq!((interval.low, interval.high), (0.0, 0.0));
    }

    #[test]
    fn samples_too_small_or_zero_have_no_interval() {
        let bootstrap = Bootstrap::default();
        assert_eq!((bootstrap.mean(&[]), bootstrap.mean(&[1.0])), (None, None));
        assert_eq!(bootstrap.ratio(&[], &RUNS), None);
        assert_eq!(bootstrap.ratio(&RUNS, &[]), None);
        assert_eq!(bootstrap.ratio(&[0.0; 3], &[0.0; 3]), None);
        assert_eq!(Bootstrap { resamples: 0, ..bootstrap }.mean(&RUNS), None);
    }
}
