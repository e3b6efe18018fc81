//! Random numbers that are the same on each machine: integers only, one seed, one stream for each
//! use. For simulated devices and clients, and for incompressible payload.

use crate::convert::{count, exact, index, saturating};
use crate::ids::VolumeId;

/// Vigna's SplitMix64: 64 bits of state, two multiplications, passes the usual batteries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Random {
    state: u64,
}

/// The state's step: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// One in fixed point: 32 bits after the point.
const ONE: u64 = 1 << 32;

impl Random {
    /// Creates the generator as published, for uses of a single stream.
    #[must_use]
    pub const fn from_state(state: u64) -> Self {
        Self { state }
    }

    /// Creates the generator of one `stream` of a seed, so that another client in a scenario does
    /// not change the numbers of the first one.
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self::from_state(seed);
        let base = mixer.next_u64();
        let mut mixer = Self { state: base ^ stream.wrapping_mul(STEP) };
        Self { state: mixer.next_u64() }
    }

    /// Creates the generator of a volume, so that its numbers do not depend on other volumes.
    #[must_use]
    pub fn of_volume(seed: u64, id: VolumeId) -> Self {
        // The high bits of an id are no more random than the low ones.
        let stream: u64 = exact(id.bits() & u128::from(u64::MAX), "the lower half");
        Self::new(seed, stream | 1)
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, each about as likely (the bias is below `bound` / 2^64); 0
    /// for a bound of 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        exact(wide >> 64, "the upper half of 128 bits")
    }

    /// Returns `true` with a probability of one in `count`.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns one of some choices, each about as likely.
    ///
    /// # Panics
    /// If there are no choices.
    pub fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[index(self.below(count(choices.len())))]
    }

    /// Returns `true` with a probability of `ppm` in a million.
    #[inline]
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// Returns an exponentially distributed span with the given mean.
    ///
    /// Uses von Neumann's method, which compares uniform numbers and needs no logarithm: platforms
    /// differ in the last digit of theirs.
    pub fn exponential(&mut self, mean_ns: u64) -> u64 {
        let mut whole: u64 = 0;
        loop {
            let first = self.fraction();
            let mut last = first;
            let mut odd = true;
            loop {
                let next = self.fraction();
                if next >= last {
                    break;
                }
                last = next;
                odd = !odd;
            }
            if odd {
                let scaled =
                    u128::from(mean_ns) * u128::from(whole * ONE + first) / u128::from(ONE);
                return saturating(scaled);
            }
            whole += 1;
        }
    }

    /// Returns `mean_ns` with bell-shaped noise of the given relative standard deviation, never
    /// below a tenth of it: the sum of eight uniform numbers, which ends at 4.9 deviations.
    #[inline]
    pub fn around(&mut self, mean_ns: u64, deviation_ppm: u32) -> u64 {
        if deviation_ppm == 0 {
            return mean_ns;
        }
        let mut sum = 0;
        for _ in 0..2 {
            let bits = self.next_u64();
            sum += (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        }
        // Eight numbers below 65,536: mean 262,140, standard deviation 53,509.9.
        let deviations_ppm = (i128::from(sum) - 262_140) * 1_000_000 / 53_510;
        let factor_ppm = 1_000_000 + deviations_ppm * i128::from(deviation_ppm) / 1_000_000;
        let noisy = i128::from(mean_ns) * factor_ppm.max(100_000) / 1_000_000;
        saturating(noisy)
    }

    fn fraction(&mut self) -> u64 {
        self.next_u64() >> 32
    }
}

#[cfg(test)]
#[allow(clippy::float_arithmetic, clippy::as_conversions)] // statistics of what was drawn
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = Random::from_state(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, published);
    }

    #[test]
    fn streams_of_a_seed_differ() {
        let first = |seed, stream| Random::new(seed, stream).next_u64();
        assert_eq!(first(1, 0), first(1, 0));
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }

    /// Mean and spread of 200,000 draws: each bound is five standard errors wide.
    #[test]
    fn distributions_have_their_mean_and_spread() {
        const DRAWS: u32 = 200_000;
        let moments = |mut draw: Box<dyn FnMut() -> u64>| {
            let values: Vec<f64> = (0..DRAWS).map(|_| draw() as f64).collect();
            let mean = values.iter().sum::<f64>() / f64::from(DRAWS);
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
            (mean, (variance / f64::from(DRAWS)).sqrt())
        };
        let mut random = Random::new(7, 0);
        let (mean, deviation) = moments(Box::new(move || random.exponential(15_000)));
        assert!((mean - 15_000.0).abs() < 170.0, "{mean}");
        assert!((deviation - 15_000.0).abs() < 350.0, "{deviation}");
        let mut random = Random::new(8, 0);
        let (mean, deviation) = moments(Box::new(move || random.around(80_000, 100_000)));
        assert!((mean - 80_000.0).abs() < 90.0, "{mean}");
        assert!((deviation - 8_000.0).abs() < 70.0, "{deviation}");
        let mut random = Random::new(9, 0);
        let (mean, _) = moments(Box::new(move || random.below(1_000)));
        assert!((mean - 499.5).abs() < 3.3, "{mean}");
        let mut random = Random::new(10, 0);
        let (mean, _) = moments(Box::new(move || u64::from(random.chance_ppm(250_000))));
        assert!((mean - 0.25).abs() < 0.005, "{mean}");
    }
}
