//! What a scenario expects of runs, volumes or times beside each other: that one figure is so many
//! times another, or that repetitions of a run are alike.

use super::expect::{Bounds, Checked, Metric};
use super::known::Known;
use crate::series::Spread;
use crate::text;

/// One comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Comparison {
    /// What is compared, in words.
    pub what: String,
    /// The figures that are looked at.
    pub of: Vec<Measure>,
    /// How they are looked at.
    pub by: By,
    /// What comes of it is multiplied by this: where a run is a fraction of what it stands for.
    pub times: f64,
    /// What must come of it.
    pub bounds: Bounds,
}

/// A figure, and where it comes from.
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
    /// Their standard deviation is divided by their mean, in percent.
    CovPercent,
    /// Their mean is taken, as what it is.
    Mean(Metric),
    /// The same of what is known without a run.
    Known(Known),
}

impl Comparison {
    /// Whether all its figures are of the first `runs` runs.
    #[must_use]
    pub fn is_within(&self, runs: usize) -> bool {
        let to: &[Measure] = match &self.by {
            By::RatioTo(to) => to,
            By::CovPercent | By::Mean(_) | By::Known(_) => &[],
        };
        let is_there = |measure: &Measure| match measure {
            Measure::Of { run, .. } => *run < runs,
            Measure::Known(_) => true,
        };
        self.of.iter().chain(to).all(is_there)
    }

    /// Judges. `measured` has the figures of each run.
    #[must_use]
    pub fn check(&self, measured: &[&[Option<f64>]]) -> Checked {
        let value = self.value(measured).map(|value| value * self.times);
        let pass = value.is_some_and(|value| (self.bounds.low..=self.bounds.high).contains(&value));
        Checked {
            what: self.what.clone(),
            expected: self.bounds.words.clone(),
            measured: value.map_or_else(|| "nothing".to_owned(), |value| self.by.shown(value)),
            value,
            pass,
        }
    }

    fn value(&self, measured: &[&[Option<f64>]]) -> Option<f64> {
        let of = Spread::of(&figures(&self.of, measured)?);
        match &self.by {
            By::RatioTo(to) => {
                let to = Spread::of(&figures(to, measured)?).mean;
                (to > 0.0).then(|| of.mean / to)
            }
            By::CovPercent => (self.of.len() > 1).then_some(of.cov * 100.0),
            By::Mean(_) | By::Known(_) => Some(of.mean),
        }
    }
}

/// None if there are none, or one is not known.
fn figures(of: &[Measure], measured: &[&[Option<f64>]]) -> Option<Vec<f64>> {
    let figure = |of: &Measure| match *of {
        Measure::Of { run, measure } => *measured.get(run)?.get(measure)?,
        Measure::Known(value) => Some(value),
    };
    of.iter().map(figure).collect::<Option<Vec<f64>>>().filter(|figures| !figures.is_empty())
}

impl By {
    /// A figure with its unit.
    #[must_use]
    pub fn shown(&self, value: f64) -> String {
        match self {
            Self::RatioTo(_) if value >= 100.0 => text::rate(value),
            Self::RatioTo(_) => format!("{value:.3}"),
            Self::CovPercent => text::percent(value / 100.0),
            Self::Mean(metric) => metric.shown(value),
            Self::Known(known) => known.shown(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(of: &[(usize, usize)], by: By, high: f64) -> Checked {
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
    fn repetitions_vary() {
        let checked = check(&[(0, 0), (1, 0)], By::CovPercent, 23.0);
        assert!((checked.value.unwrap() - 800.0_f64.sqrt() / 12.0 * 10.0).abs() < 0.01);
        assert!(!checked.pass);
        assert_eq!(check(&[(0, 0)], By::CovPercent, 1.0).value, None, "one does not vary");
    }
}
