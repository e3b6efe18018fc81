//! Chance from a seed, in integers: the same on every machine.

/// Vigna's SplitMix64.
#[derive(Clone, Copy, Debug)]
pub(super) struct Random(u64);

/// 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// A generator of its own for each `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed);
        let mut mixer = Self(mixer.next() ^ stream.wrapping_mul(STEP));
        Self(mixer.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether something with a chance of `ppm` in a million happens.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        let below = (u128::from(self.next()) * 1_000_000) >> 64;
        below < u128::from(ppm)
    }

    /// `mean_ns` with bell-shaped noise of a relative standard deviation of `ppm` millionths, never
    /// below a tenth of it: the sum of eight uniform numbers.
    pub fn around(&mut self, mean_ns: u64, ppm: u32) -> u64 {
        if ppm == 0 {
            return mean_ns;
        }
        // Each of the eight is uniform in [-2^31, 2^31): a deviation of 2^32 / sqrt(12), together
        // sqrt(8) times that. So the sum counts in 2^32 * sqrt(8 / 12) to a deviation.
        const DEVIATION: i128 = 3_506_826_337;
        let sum: i128 = (0..8).map(|_| i128::from(self.next() >> 32) - (1 << 31)).sum();
        let mean = i128::from(mean_ns);
        let noise = mean * i128::from(ppm) / 1_000_000 * sum / DEVIATION;
        u64::try_from((mean + noise).max(mean / 10)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_and_noise_are_as_likely_and_as_wide_as_asked() {
        let mut random = Random::new(1, 2);
        let hits = (0..100_000).filter(|_| random.chance_ppm(10_000)).count();
        assert!((900..1_100).contains(&hits), "{hits}");
        assert!(!random.chance_ppm(0) && random.chance_ppm(1_000_000));
        let values: Vec<f64> = (0..20_000).map(|_| random.around(10_000, 50_000) as f64).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64;
        assert!((9_980.0..10_020.0).contains(&mean), "{mean}");
        assert!((480.0..520.0).contains(&variance.sqrt()), "{}", variance.sqrt());
    }
}
