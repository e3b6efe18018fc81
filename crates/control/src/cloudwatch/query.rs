//! Statistics of data points over periods. Pure.

/// The periods below a minute that CloudWatch has, in seconds.
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
    /// How many there are.
    SampleCount,
}

impl Statistic {
    /// The statistic of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "Average" => Self::Average,
            "Sum" => Self::Sum,
            "Minimum" => Self::Minimum,
            "Maximum" => Self::Maximum,
            "SampleCount" => Self::SampleCount,
            _ => return None,
        })
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Average => "Average",
            Self::Sum => "Sum",
            Self::Minimum => "Minimum",
            Self::Maximum => "Maximum",
            Self::SampleCount => "SampleCount",
        }
    }
}

/// Whether CloudWatch has periods of this length, in seconds.
#[must_use]
pub fn is_period(seconds: u64) -> bool {
    FINE_PERIODS.contains(&seconds) || (seconds > 0 && seconds.is_multiple_of(60))
}

/// The data points of one period.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    /// When the period begins, in seconds of Unix time.
    pub start: u64,
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Bucket {
    /// The value of a statistic.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // some 20,000 data points at most
    pub const fn value(&self, statistic: Statistic) -> f64 {
        match statistic {
            Statistic::Average => self.sum / self.count as f64,
            Statistic::Sum => self.sum,
            Statistic::Minimum => self.min,
            Statistic::Maximum => self.max,
            Statistic::SampleCount => self.count as f64,
        }
    }
}

/// The periods that have data points, in order. `points` are times in seconds, in order, with
/// values; none is before `anchor`, at which a period begins. `period` is not zero.
pub fn buckets(points: impl Iterator<Item = (u64, f64)>, anchor: u64, period: u64) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for (time, value) in points {
        let start = time - time.saturating_sub(anchor) % period;
        match buckets.last_mut().filter(|last| last.start == start) {
            Some(last) => {
                last.count += 1;
                last.sum += value;
                last.min = last.min.min(value);
                last.max = last.max.max(value);
            }
            None => buckets.push(Bucket { start, count: 1, sum: value, min: value, max: value }),
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
                expected.push((start, [sum / count, sum, low, high, count]));
            }
            let all = ["Average", "Sum", "Minimum", "Maximum", "SampleCount"];
            let all = all.map(|name| Statistic::by_name(name).unwrap());
            let found: Vec<_> = found.iter().map(|b| (b.start, all.map(|s| b.value(s)))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
