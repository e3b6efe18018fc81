//! Statistics of data points over periods. Pure.

/// The periods below a minute that CloudWatch supports, in seconds.
const FINE_PERIODS: [u64; 5] = [1, 5, 10, 20, 30];

/// A statistic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Statistic {
    /// The mean of the data points.
    Average,
    /// Their sum.
    Sum,
    /// The lowest one.
    Minimum,
    /// The highest one.
    Maximum,
    /// The number of data points.
    SampleCount,
    /// The lowest one that at least this part of them does not exceed.
    Percentile(Percentile),
}

/// A percentile, in units of 10^-10 percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percentile(u64);

impl Percentile {
    /// Maximum number of decimal places of a percentile: CloudWatch's.
    const DECIMALS: usize = 10;
    const ALL: u64 = 100 * 10_u64.pow(Self::DECIMALS as u32);

    /// Returns the percentile of a name such as `p99.9`; from `p0` to `p100`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let text = name.strip_prefix('p')?;
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| {
            (1..=Self::DECIMALS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
        };
        if !is_number(whole) || whole.len() > 3 || !is_number(decimals) {
            return None;
        }
        let units = format!("{whole}{decimals:0<width$}", width = Self::DECIMALS).parse().ok()?;
        (units <= Self::ALL).then_some(Self(units))
    }

    /// Returns the value by the nearest rank; `values` are in order.
    fn of(self, values: &[f64]) -> Option<f64> {
        let count = values.len() as u64;
        let rank = u128::from(self.0) * u128::from(count);
        let rank = usize::try_from(rank.div_ceil(u128::from(Self::ALL))).ok()?;
        values.get(rank.saturating_sub(1)).copied()
    }
}

impl Statistic {
    /// Returns the statistic of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "Average" => Self::Average,
            "Sum" => Self::Sum,
            "Minimum" => Self::Minimum,
            "Maximum" => Self::Maximum,
            "SampleCount" => Self::SampleCount,
            _ => Self::Percentile(Percentile::by_name(name)?),
        })
    }
}

/// Returns whether CloudWatch has periods of this length, in seconds.
#[must_use]
pub fn is_period(seconds: u64) -> bool {
    FINE_PERIODS.contains(&seconds) || (seconds > 0 && seconds.is_multiple_of(60))
}

/// The data points of one period; there is at least one.
#[derive(Clone, PartialEq, Debug)]
pub struct Bucket {
    /// When the period begins, in seconds of Unix time.
    pub start: u64,
    values: Vec<f64>,
}

impl Bucket {
    /// Returns the value of a statistic.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // some 20,000 data points at most
    pub fn value(&self, statistic: Statistic) -> f64 {
        let values = || self.values.iter().copied();
        let count = self.values.len() as f64;
        match statistic {
            Statistic::Average => values().sum::<f64>() / count,
            Statistic::Sum => values().sum(),
            Statistic::Minimum => values().fold(f64::INFINITY, f64::min),
            Statistic::Maximum => values().fold(f64::NEG_INFINITY, f64::max),
            Statistic::SampleCount => count,
            Statistic::Percentile(percentile) => {
                let mut sorted = self.values.clone();
                sorted.sort_by(f64::total_cmp);
                percentile.of(&sorted).unwrap_or_default()
            }
        }
    }
}

/// Returns the periods that have data points, in order. `points` are times in seconds, in order,
/// with values; none is before `anchor`, at which a period begins. `period` is not zero.
pub fn buckets(points: impl Iterator<Item = (u64, f64)>, anchor: u64, period: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (time, value) in points {
        let start = time - time.saturating_sub(anchor) % period;
        match buckets.last_mut().filter(|last| last.start == start) {
            Some(last) => last.values.push(value),
            None => buckets.push(Bucket { start, values: vec![value] }),
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn periods_are_those_of_cloudwatch() {
        let seconds = [0, 1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 86_400];
        let legal: Vec<u64> = seconds.into_iter().filter(|s| is_period(*s)).collect();
        assert_eq!(legal, [1, 5, 10, 20, 30, 60, 120, 86_400]);
    }

    #[test]
    fn percentiles_have_up_to_ten_decimals_between_0_and_100() {
        for (name, units) in [
            ("p0", Some(0)),
            ("p50", Some(500_000_000_000)),
            ("p99.9", Some(999_000_000_000)),
            ("p95.0123456789", Some(950_123_456_789)),
            ("p100", Some(Percentile::ALL)),
            ("p100.0", Some(Percentile::ALL)),
            ("p100.0000000001", None),
            ("p101", None),
            ("p95.01234567891", None),
            ("p-1", None),
            ("p+1", None),
            ("p", None),
            ("p.5", None),
            ("p5.", None),
            ("p1e1", None),
            ("P50", None),
            ("p0000000050", None),
            ("tm99", None),
        ] {
            assert_eq!(Percentile::by_name(name), units.map(Percentile), "{name}");
        }
    }

    #[test]
    fn a_percentile_is_the_value_of_its_nearest_rank() {
        let of = |name: &str, values: &[f64]| {
            let points = values.iter().map(|value| (60, *value));
            buckets(points, 60, 60)[0].value(Statistic::by_name(name).unwrap())
        };
        let values: Vec<f64> = (1..=1_000).rev().map(f64::from).collect();
        for (name, expected) in
            [("p0", 1.0), ("p0.1", 1.0), ("p50", 500.0), ("p99.9", 999.0), ("p99.91", 1_000.0)]
        {
            assert_eq!(of(name, &values), expected, "{name}");
        }
        assert_eq!(of("p100", &values), 1_000.0);
        assert_eq!(of("p50", &[3.0, 1.0, 2.0]), 2.0);
        assert_eq!((of("p0", &[7.0]), of("p99", &[7.0])), (7.0, 7.0));
    }

    proptest! {
        /// The oracle looks at every period and at every point in it.
        #[test]
        fn statistics_are_those_of_all_points_of_a_period(
            points in proptest::collection::btree_map(0..5_000_u64, -100..100_i32, 0..200),
            anchor in 0..100_u64, period in 1..700_u64,
        ) {
            let points: Vec<(u64, f64)> = points
                .into_iter()
                .filter(|(time, _)| *time >= anchor)
                .map(|(time, value)| (time, f64::from(value)))
                .collect();
            let found = buckets(points.iter().copied(), anchor, period);
            let mut expected = Vec::new();
            for start in (anchor..5_000).step_by(period as usize) {
                let within = |time: u64| time >= start && time < start + period;
                let values: Vec<f64> =
                    points.iter().filter(|(time, _)| within(*time)).map(|(_, v)| *v).collect();
                if values.is_empty() {
                    continue;
                }
                let sum: f64 = values.iter().sum();
                let low = values.iter().copied().reduce(f64::min).unwrap();
                let high = values.iter().copied().reduce(f64::max).unwrap();
                let count = values.len() as f64;
                let exceed = |limit: f64| values.iter().filter(|v| **v > limit).count() * 4;
                let mut fitting = values.clone();
                fitting.retain(|value| exceed(*value) <= values.len());
                let p75 = fitting.into_iter().reduce(f64::min).unwrap();
                expected.push((start, [sum / count, sum, low, high, count, p75]));
            }
            let all = ["Average", "Sum", "Minimum", "Maximum", "SampleCount", "p75"];
            let all = all.map(|name| Statistic::by_name(name).unwrap());
            let found: Vec<_> = found.iter().map(|b| (b.start, all.map(|s| b.value(s)))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
