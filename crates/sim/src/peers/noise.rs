//! Noise that is the same on every machine: distributions as tables of quantiles that are made with
//! nothing but additions, multiplications and divisions.
//!
//! The platform's `exp` and `ln` may differ in the last bit from one machine to the next, and one
//! bit is enough to send two simulations different ways. IEEE 754 fixes the four basic operations,
//! so what is built of them alone is the same everywhere.

use evenkeel_core::random::Random;

/// Intervals of a table of quantiles: 12 bits of a draw choose one, 20 more a point in it.
const INTERVALS: usize = 1 << 12;

/// Steps in which a density is summed up to find the quantiles.
const SUM_STEPS: u32 = 1 << 15;

/// A distribution of positive values as its quantiles, with straight lines between them.
#[derive(Clone, Debug)]
pub struct Quantiles {
    /// In 65,536ths of the unit, so that a draw is integer arithmetic.
    values: Vec<u64>,
}

/// What a value of 1 is in a table of quantiles.
const ONE: f64 = 65_536.0;

impl Quantiles {
    /// The log-normal distribution with median 1, cut off six standard deviations from it.
    #[must_use]
    pub fn log_normal(sigma: f64) -> Self {
        Self::new(|z| exp(-z * z / 2.0), -6.0, 6.0, |z| exp(sigma * z))
    }

    /// The exponential distribution with mean 1, cut off at 20 means.
    #[must_use]
    pub fn exponential() -> Self {
        Self::new(|x| exp(-x), 0.0, 20.0, |x| x)
    }

    /// Sums `density` up from `low` to `high` with the trapezoid rule and reads off, at equal
    /// shares of the total, `value` of where that share is reached.
    fn new(density: impl Fn(f64) -> f64, low: f64, high: f64, value: impl Fn(f64) -> f64) -> Self {
        let step = (high - low) / f64::from(SUM_STEPS);
        let at = |index: u32| low + step * f64::from(index);
        let slice = |index: u32| (density(at(index)) + density(at(index + 1))) / 2.0;
        let total: f64 = (0..SUM_STEPS).map(slice).sum();
        let mut values = Vec::with_capacity(INTERVALS + 1);
        let (mut index, mut below) = (0, 0.0);
        for share in 0..=INTERVALS {
            let wanted = total * (share as f64 / INTERVALS as f64);
            let mut mass = slice(index);
            while below + mass < wanted && index + 1 < SUM_STEPS {
                below += mass;
                index += 1;
                mass = slice(index);
            }
            let part = ((wanted - below) / mass).clamp(0.0, 1.0);
            values.push((value(at(index) + step * part) * ONE) as u64);
        }
        Self { values }
    }

    /// A draw, multiplied by `unit`.
    pub fn draw(&self, random: &mut Random, unit: u64) -> u64 {
        let bits = random.next_u64();
        let index = (bits >> 52) as usize;
        let part = (bits >> 32) & 0xF_FFFF;
        let (low, high) = (self.values[index], self.values[index + 1]);
        let value = low + (((high - low) * part) >> 20);
        (value * unit) >> 16
    }
}

/// The exponential function, to about 14 digits.
fn exp(x: f64) -> f64 {
    // exp(x) = exp(x / 1024) ^ 1024; so small an argument needs few terms of the series.
    let small = x / 1_024.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    for k in 1..=8 {
        term = term * small / f64::from(k);
        sum += term;
    }
    for _ in 0..10 {
        sum *= sum;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(quantiles: &Quantiles, unit: u64, count: usize) -> Vec<u64> {
        let mut random = Random::from_state(7);
        let mut draws: Vec<u64> = (0..count).map(|_| quantiles.draw(&mut random, unit)).collect();
        draws.sort_unstable();
        draws
    }

    fn close(value: f64, expected: f64, tolerance: f64) {
        assert!((value / expected - 1.0).abs() < tolerance, "{value} instead of {expected}");
    }

    #[test]
    fn the_exponential_function_is_right() {
        for x in [-20.0, -1.0, 0.0, 0.35, 1.0, 2.1] {
            close(exp(x), f64::exp(x), 1e-11);
        }
    }

    #[test]
    fn service_times_have_their_median_spread_and_mean() {
        let draws = draws(&Quantiles::log_normal(0.35), 250_000, 200_000);
        close(draws[100_000] as f64, 250_000.0, 0.005);
        close(draws[198_000] as f64, 250_000.0 * f64::exp(0.35 * 2.326), 0.01);
        let mean = draws.iter().sum::<u64>() as f64 / 200_000.0;
        close(mean, 250_000.0 * f64::exp(0.35 * 0.35 / 2.0), 0.003);
    }

    #[test]
    fn lateness_has_its_mean_and_tail() {
        let draws = draws(&Quantiles::exponential(), 15_000, 200_000);
        close(draws.iter().sum::<u64>() as f64 / 200_000.0, 15_000.0, 0.01);
        close(draws[198_000] as f64, 15_000.0 * f64::ln(100.0), 0.03);
    }

    /// Pinned: were these to differ on another machine, so would every simulation.
    #[test]
    fn the_draws_are_the_same_everywhere() {
        let mut random = Random::from_state(1);
        let service = Quantiles::log_normal(0.35);
        let drawn: Vec<u64> = (0..4).map(|_| service.draw(&mut random, 250_000)).collect();
        assert_eq!(drawn, PINNED);
    }

    const PINNED: [u64; 4] = [265_102, 315_101, 485_393, 238_048];
}
