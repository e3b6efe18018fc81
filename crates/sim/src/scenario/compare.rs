//! Comparisons between runs, volumes or times: the ratio of two figures, or the variation between
//! repetitions of a run.

use super::expect::{Bounds, Metric};
use super::known::Known;
use crate::check::Check;
use crate::figures::series::Spread;
use crate::text;

/// One comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// Description of the comparison, for results.
    pub what: String,
    /// The figures that are compared.
    pub of: Vec<Measure>,
    /// How they are compared.
    pub by: By,
    /// Factor by which the result is multiplied, if a run lasts a fraction of the time that it
    /// stands for; otherwise 1.
    pub times: f64,
    /// Bounds on the result.
    pub bounds: Bounds,
}

/// A figure, and its source.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Measure {
    /// Measured in a run.
    Of {
        /// Number of the run.
        run: usize,
        /// Number of the measurement in it.
        measure: usize,
    },
    /// Known without any run.
    Known(f64),
}

/// How figures are compared.
#[derive(Clone, PartialEq, Debug)]
pub enum By {
    /// Their mean is divided by the mean of these.
    RatioTo(Vec<Measure>),
    /// As [`By::RatioTo`], after each side is multiplied by a factor.
    Quotient {
        /// Factor of the figures, if any.
        times: Option<Factor>,
        /// The figures that they are divided by.
        to: Vec<Measure>,
        /// Factor of those, if any.
        to_times: Option<Factor>,
    },
    /// Their standard deviation is divided by their mean, in percent.
    CovPercent,
    /// Their coefficient of variation is divided by that of these.
    CovRatioTo(Vec<Measure>),
    /// Their mean, in the unit of the metric.
    Mean(Metric),
    /// The one that is furthest from the middle of the bounds, in the unit of the metric.
    Furthest(Metric),
    /// Their mean, of figures that are known without a run.
    Known(Known),
}

/// A factor: the mean of figures, times a scale.
#[derive(Clone, PartialEq, Debug)]
pub struct Factor {
    /// Figures.
    pub of: Vec<Measure>,
    /// Factor that converts their unit.
    pub scale: f64,
}

impl Factor {
    fn value(of: Option<&Self>, measured: &[&[Option<f64>]]) -> Option<f64> {
        let Some(factor) = of else { return Some(1.0) };
        Some(Spread::of(&figures(&factor.of, measured)?).mean * factor.scale)
    }
}

impl Comparison {
    /// Returns every figure that is compared or is part of a factor.
    pub fn measures(&self) -> impl Iterator<Item = Measure> {
        let (to, factors): (&[Measure], [Option<&Factor>; 2]) = match &self.by {
            By::RatioTo(to) | By::CovRatioTo(to) => (to, [None, None]),
            By::Quotient { times, to, to_times } => (to, [times.as_ref(), to_times.as_ref()]),
            By::CovPercent | By::Mean(_) | By::Furthest(_) | By::Known(_) => (&[], [None, None]),
        };
        let factors = factors.into_iter().flatten().flat_map(|factor| &factor.of);
        self.of.iter().chain(to).chain(factors).copied()
    }

    /// Returns whether load on the machine may explain a figure outside its bounds. It cannot
    /// explain a figure that is known without a run or is a count, or volumes that exceed their
    /// limits.
    #[must_use]
    pub fn may_suffer(&self, value: Option<f64>) -> bool {
        use Metric::{Counted, CreditsSpent, FlushesPerCall, JobMeanCalls, JobMeanIops, KibPerIo};
        use Metric::{MeanIops, MeanMibps, TotalIos};
        match (&self.by, value) {
            (_, None) | (By::Known(_), _) => false,
            (By::Mean(metric) | By::Furthest(metric), Some(value)) => match metric {
                Counted | FlushesPerCall | KibPerIo => false,
                MeanIops
                | MeanMibps
                | JobMeanIops
                | JobMeanCalls
                | TotalIos
                | CreditsSpent { .. } => value <= self.bounds.high,
                _ => true,
            },
            _ => true,
        }
    }

    /// Returns whether a processor that was slower at times, by the factor `slower`, may explain a
    /// figure outside its bounds: a ratio or a rate that is off by no more than the factor, or the
    /// variation between runs.
    #[must_use]
    pub fn may_be_slowed(&self, value: Option<f64>, slower: f64) -> bool {
        let varies = match &self.by {
            By::CovPercent | By::CovRatioTo(_) => true,
            By::Mean(metric) | By::Furthest(metric) => {
                matches!(metric, Metric::CovPercent | Metric::JobCovPercent)
            }
            By::RatioTo(_) | By::Quotient { .. } | By::Known(_) => false,
        };
        let is_near =
            |value| value * slower >= self.bounds.low && value / slower <= self.bounds.high;
        varies || value.is_some_and(is_near)
    }

    /// Returns whether the figure may be missing if fewer runs are made, or if there is no file
    /// system for its programs. It may not if a missing figure is a verdict: a rate that never
    /// falls.
    #[must_use]
    pub const fn may_lack(&self) -> bool {
        let (By::Mean(metric) | By::Furthest(metric)) = &self.by else { return true };
        !matches!(metric, Metric::FallsBelow(_) | Metric::CreditsSpent { .. })
    }

    /// Returns whether all its figures are of the first `runs` runs.
    #[must_use]
    pub fn is_within(&self, runs: usize) -> bool {
        let is_there = |measure| match measure {
            Measure::Of { run, .. } => run < runs,
            Measure::Known(_) => true,
        };
        self.measures().all(is_there)
    }

    /// Judges the figures of all runs. `measured` has those of each run.
    #[must_use]
    pub fn check(&self, measured: &[&[Option<f64>]]) -> Check {
        let value = self.value(measured).map(|value| value * self.times);
        let pass = value.is_some_and(|value| (self.bounds.low..=self.bounds.high).contains(&value));
        let measured = value.map_or_else(|| "nothing".to_owned(), |value| self.by.shown(value));
        Check {
            value,
            ..Check::new(self.what.as_str(), self.bounds.words.as_str(), measured, pass)
        }
    }

    fn value(&self, measured: &[&[Option<f64>]]) -> Option<f64> {
        let figures_of = figures(&self.of, measured)?;
        let spread = Spread::of(&figures_of);
        match &self.by {
            By::RatioTo(to) => {
                let to = Spread::of(&figures(to, measured)?).mean;
                (to > 0.0).then(|| spread.mean / to)
            }
            By::Quotient { times, to, to_times } => {
                let to = Spread::of(&figures(to, measured)?).mean;
                let to = to * Factor::value(to_times.as_ref(), measured)?;
                let spread = spread.mean * Factor::value(times.as_ref(), measured)?;
                (to > 0.0).then(|| spread / to)
            }
            By::CovRatioTo(to) => {
                let compared = Spread::of(&figures(to, measured)?).cov;
                let may_vary = self.of.len() > 1 && to.len() > 1;
                (may_vary && compared > 0.0).then(|| spread.cov / compared)
            }
            By::CovPercent => (self.of.len() > 1).then_some(spread.cov * 100.0),
            By::Mean(_) | By::Known(_) => Some(spread.mean),
            By::Furthest(_) => {
                // The bounds apply to the product.
                let middle = self.bounds.middle()? / self.times;
                let distance = |figure: &f64| (figure - middle).abs();
                figures_of.into_iter().max_by(|a, b| distance(a).total_cmp(&distance(b)))
            }
        }
    }
}

/// Returns the figures; `None` if there are none, or one is not known.
fn figures(of: &[Measure], measured: &[&[Option<f64>]]) -> Option<Vec<f64>> {
    let figure = |of: &Measure| match *of {
        Measure::Of { run, measure } => *measured.get(run)?.get(measure)?,
        Measure::Known(value) => Some(value),
    };
    of.iter().map(figure).collect::<Option<Vec<f64>>>().filter(|figures| !figures.is_empty())
}

impl By {
    /// Formats a result with its unit.
    #[must_use]
    pub fn shown(&self, value: f64) -> String {
        match self {
            Self::RatioTo(_) if value >= 100.0 => text::rate(value),
            Self::RatioTo(_) | Self::Quotient { .. } => format!("{value:.3}"),
            // A difference of a thousandth matters if both variations are near 0.
            Self::CovRatioTo(_) => format!("{value:.4}"),
            Self::CovPercent => text::percent(value / 100.0),
            Self::Mean(metric) | Self::Furthest(metric) => metric.shown(value),
            Self::Known(known) => known.shown(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of: &[(usize, usize)], by: By, high: f64) -> Check {
        let measured: [&[Option<f64>]; 3] =
            [&[Some(10.0), None], &[Some(14.0)], &[Some(3.0), Some(0.0)]];
        let of = of.iter().map(|&(run, measure)| Measure::Of { run, measure }).collect();
        let bounds = Bounds { low: 0.0, high, words: String::new() };
        Comparison { what: String::new(), of, by, times: 1.0, bounds }.check(&measured)
    }

    #[test]
    fn means_are_divided() {
        let to = |run, measure| By::RatioTo(vec![Measure::Of { run, measure }]);
        let checked = check(&[(0, 0), (1, 0)], to(2, 0), 4.0);
        assert_eq!((checked.value, checked.measured.as_str()), (Some(4.0), "4.000"));
        assert!(checked.pass && !check(&[(0, 0), (1, 0)], to(2, 0), 3.9).pass);
        for nothing in [to(0, 1), to(2, 1), to(2, 2), to(3, 0), By::RatioTo(Vec::new())] {
            let checked = check(&[(0, 0)], nothing, f64::INFINITY);
            assert!(!checked.pass && checked.measured == "nothing", "{checked:?}");
        }
    }

    #[test]
    fn both_sides_may_be_multiplied_first() {
        let factor =
            |run, measure| Some(Factor { of: vec![Measure::Of { run, measure }], scale: 0.5 });
        let to = vec![Measure::Of { run: 2, measure: 0 }];
        let by = |times, to_times| By::Quotient { times, to: to.clone(), to_times };
        let value = |by| check(&[(0, 0), (1, 0)], by, f64::INFINITY).value;
        assert_eq!(value(by(None, None)), Some(4.0));
        assert_eq!(value(by(factor(1, 0), None)), Some(28.0), "12 x 7 / 3");
        assert_eq!(value(by(factor(1, 0), factor(0, 0))), Some(5.6), "12 x 7 / (3 x 5)");
        assert_eq!(value(by(factor(0, 1), None)), None, "nothing came of it");
        assert_eq!(value(by(None, factor(2, 1))), None, "and nothing is divided by 0");
        let quotient = Comparison {
            what: String::new(),
            of: Vec::new(),
            by: by(None, factor(3, 0)),
            times: 1.0,
            bounds: Bounds::none(),
        };
        assert!(quotient.is_within(4) && !quotient.is_within(3), "its factors are runs, too");
    }

    #[test]
    fn variations_are_divided() {
        let measured: [&[Option<f64>]; 4] =
            [&[Some(9.0)], &[Some(11.0)], &[Some(99.0)], &[Some(101.0)]];
        let measures = |runs: &[usize]| -> Vec<Measure> {
            runs.iter().map(|&run| Measure::Of { run, measure: 0 }).collect()
        };
        let value = |of: &[usize], to: &[usize]| {
            let by = By::CovRatioTo(measures(to));
            let measures = measures(of);
            let bounds = Bounds::none();
            Comparison { what: String::new(), of: measures, by, times: 1.0, bounds }
                .check(&measured)
                .value
        };
        assert!((value(&[2, 3], &[0, 1]).unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(value(&[2], &[0, 1]), None, "one does not vary");
        assert_eq!(value(&[2, 3], &[0, 0]), None, "nor does what is always the same");
    }

    #[test]
    fn furthest_value_is_judged() {
        let measured: [&[Option<f64>]; 4] =
            [&[Some(1.0)], &[Some(0.995)], &[Some(1.16)], &[Some(1.0)]];
        let check = |by| {
            let of = (0..4).map(|run| Measure::Of { run, measure: 0 }).collect();
            let bounds = Bounds { low: 0.95, high: 1.05, words: String::new() };
            Comparison { what: String::new(), of, by, times: 1.0, bounds }.check(&measured)
        };
        assert!(check(By::Mean(Metric::Counted)).pass, "one of four does not move the mean");
        let furthest = check(By::Furthest(Metric::Counted));
        assert_eq!((furthest.value, furthest.pass), (Some(1.16), false));
    }

    #[test]
    fn missing_value_is_a_verdict_where_a_rate_never_falls() {
        let of = |by| {
            let bounds = Bounds::none();
            Comparison { what: String::new(), of: Vec::new(), by, times: 1.0, bounds }
        };
        assert!(!of(By::Mean(Metric::FallsBelow(5))).may_lack());
        assert!(of(By::Mean(Metric::JobMeanIops)).may_lack() && of(By::CovPercent).may_lack());
    }

    #[test]
    fn repetitions_vary() {
        let checked = check(&[(0, 0), (1, 0)], By::CovPercent, 23.0);
        assert!((checked.value.unwrap() - 800.0_f64.sqrt() / 12.0 * 10.0).abs() < 0.01);
        assert!(!checked.pass);
        assert_eq!(check(&[(0, 0)], By::CovPercent, 1.0).value, None, "one does not vary");
    }
}
