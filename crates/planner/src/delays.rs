//! Delays of requests: amounts by delay, in buckets of bounded relative width.

use evenkeel_core::convert::saturating;

/// Number of buckets in each doubling: a bucket is at most a sixteenth wider than its start.
const PER_OCTAVE: u64 = 16;
const PER_OCTAVE_LOG: u32 = PER_OCTAVE.trailing_zeros();

/// Amounts of requests by delay, in microseconds.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Delays {
    /// Millionths of requests by bucket.
    buckets: Vec<u128>,
    total: u128,
    /// Sum of amount times delay.
    weighted: u128,
    most_us: u64,
}

/// Returns the bucket of a delay: exact below [`PER_OCTAVE`], then sixteen for each doubling.
pub(crate) const fn bucket(us: u64) -> usize {
    if us < PER_OCTAVE {
        return us as usize;
    }
    let shift = us.ilog2() - PER_OCTAVE_LOG;
    (shift as u64 * PER_OCTAVE + (us >> shift)) as usize
}

/// Returns the least delay of a bucket.
pub(crate) const fn begin(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 2 * PER_OCTAVE {
        return bucket;
    }
    let shift = bucket / PER_OCTAVE - 1;
    (PER_OCTAVE + bucket % PER_OCTAVE) << shift
}

/// Returns `span` `width`ths of an amount. Most products fit into 64 bits, whose division is far
/// faster.
fn part(amount: u128, span: u64, width: u64) -> u128 {
    match u64::try_from(amount).ok().and_then(|amount| amount.checked_mul(span)) {
        Some(product) => (product / width).into(),
        None => amount.saturating_mul(span.into()) / u128::from(width),
    }
}

impl Delays {
    /// Adds requests whose delays are evenly distributed between two.
    pub fn add(&mut self, one_us: u64, other_us: u64, amount: u128) {
        if amount == 0 {
            return;
        }
        // Most requests do not wait.
        if one_us == 0 && other_us == 0 {
            self.total += amount;
            match self.buckets.first_mut() {
                Some(first) => *first += amount,
                None => self.buckets.push(amount),
            }
            return;
        }
        let low = one_us.min(other_us);
        let high = one_us.max(other_us);
        self.total += amount;
        let twice_mean = u128::from(low) + u128::from(high);
        self.weighted = self.weighted.saturating_add(amount.saturating_mul(twice_mean) / 2);
        self.most_us = self.most_us.max(high);
        let first = bucket(low);
        let last = bucket(high);
        if self.buckets.len() <= last {
            self.buckets.resize(last + 1, 0);
        }
        let width = high - low;
        let mut rest = amount;
        // Buckets of a doubling are equally wide: one division serves for all of them.
        let mut known_span = 0;
        let mut known_share = 0;
        let touched = self.buckets.get_mut(first..last).unwrap_or_default();
        for (at, sum) in (first..last).zip(touched) {
            let span = begin(at + 1).saturating_sub(begin(at).max(low));
            if span != known_span {
                known_span = span;
                known_share = part(amount, span, width.max(1));
            }
            let share = known_share.min(rest);
            *sum += share;
            rest -= share;
        }
        if let Some(sum) = self.buckets.get_mut(last) {
            *sum += rest;
        }
    }

    /// Adds the amounts of another.
    pub fn merge(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (sum, amount) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum += amount;
        }
        self.total += other.total;
        self.weighted = self.weighted.saturating_add(other.weighted);
        self.most_us = self.most_us.max(other.most_us);
    }

    /// Returns the delay that `permille` thousandths of the requests do not exceed, in
    /// microseconds, rounded up by at most a sixteenth.
    #[must_use]
    pub fn permille(&self, permille: u32) -> u64 {
        let wanted = (self.total * u128::from(permille)).div_ceil(1_000);
        let mut sum = 0;
        for (at, amount) in self.buckets.iter().enumerate() {
            sum += amount;
            if sum >= wanted && *amount > 0 {
                return (begin(at + 1) - 1).min(self.most_us);
            }
        }
        self.most_us
    }

    /// Returns the mean delay in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        let mean = self.weighted.checked_div(self.total).unwrap_or_default();
        saturating::<_, u64>(mean)
    }

    /// Returns the longest delay in microseconds.
    #[must_use]
    pub const fn most_us(&self) -> u64 {
        self.most_us
    }

    /// Returns the number of requests, in millionths.
    #[must_use]
    pub const fn total(&self) -> u128 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        for at in 0..900 {
            assert_eq!(bucket(begin(at)), at);
            assert_eq!(bucket(begin(at + 1) - 1), at);
        }
    }

    #[test]
    fn percentiles_are_of_the_amounts() {
        let mut delays = Delays::default();
        assert_eq!((delays.permille(990), delays.mean_us()), (0, 0));
        delays.add(0, 0, 900);
        delays.add(1_000, 2_000, 100);
        assert_eq!(delays.permille(500), 0);
        assert_eq!((delays.permille(1_000), delays.most_us()), (2_000, 2_000));
        let median = delays.permille(950);
        assert!((1_500..=1_600).contains(&median), "{median}");
        assert_eq!(delays.mean_us(), 150);
    }

    proptest! {
        /// Compared with the percentiles of single requests, sorted.
        #[test]
        fn percentiles_are_those_of_single_requests(
            all in proptest::collection::vec((0..1_000_000_u64, 1..50_u128), 1..100),
            permille in 1..=1_000_u32,
        ) {
            let mut delays = Delays::default();
            let mut single = Vec::new();
            for (us, amount) in &all {
                delays.add(*us, *us, *amount);
                single.extend(std::iter::repeat_n(*us, *amount as usize));
            }
            single.sort_unstable();
            let wanted = (single.len() * permille as usize).div_ceil(1_000);
            let exact = single[wanted - 1];
            let found = delays.permille(permille);
            prop_assert!(found >= exact && found <= exact + exact / 16, "{found} {exact}");
            prop_assert_eq!(delays.total(), single.len() as u128);
        }
    }
}
