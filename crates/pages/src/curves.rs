//! Charts of runs: several curves over time, and levels across.

use plotters::prelude::*;

use crate::DrawError;
use crate::chart::{Drawn, Ink, SCALE, SERIES_COLOURS, end_labels, figure, mesh, steps};
use crate::chart::{short_latency, whole_decades};
use evenkeel_sim::scenario::levels::{Level, LevelKind};
use evenkeel_sim::text;

/// Maximum points of a curve: more than a screen has pixels only make the page larger.
const POINTS_MAX: usize = 600;

/// A curve over time.
pub struct Curve {
    /// The name at its right end.
    pub name: String,
    /// The number of its colour.
    pub colour: usize,
    /// The values, at equal distances.
    pub values: Vec<f64>,
}

/// The unit of values.
#[derive(Clone, Copy)]
pub enum Unit {
    /// I/Os per second, or credits.
    Count,
    /// Bytes, shown in GiB.
    Bytes,
}

impl Unit {
    /// Formats a value for the axis.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::Count => text::thousands(value.max(0.0).round() as u64),
            Self::Bytes => format!("{} GiB", text::rate(value / f64::from(1 << 30))),
        }
    }
}

/// Draws curves on a scale that begins at zero, and levels; the points lie `distance_s` seconds
/// apart.
///
/// # Errors
/// If they cannot be drawn.
pub fn from_zero(
    label: &str,
    unit: Unit,
    curves: &[Curve],
    levels: &[Level],
    distance_s: f64,
) -> Result<String, DrawError> {
    figure((940, 250), label, |area| {
        let all = curves.iter().flat_map(|curve| curve.values.iter().copied());
        let top = all.chain(levels.iter().map(|level| level.iops)).fold(1.0, f64::max) * 1.12;
        let seconds = longest_s(curves, distance_s);
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(150 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(76 * SCALE)
            .build_cartesian_2d(0.0..seconds, 0.0..top)?;
        mesh(&mut chart, 5, &|value| unit.shown(*value))?;
        let mut labels = Vec::new();
        for Level { kind, iops } in levels {
            let ink = match kind {
                LevelKind::Limit | LevelKind::Burst => Ink::Limit,
                LevelKind::Baseline | LevelKind::Instance => Ink::Baseline,
                LevelKind::Floor => Ink::Floor,
            };
            chart.draw_series(LineSeries::new([(0.0, *iops), (seconds, *iops)], ink.line(2)))?;
            let end = chart.backend_coord(&(seconds, *iops));
            labels.push((end, format!("{} {}", kind.word(), unit.shown(*iops)), ink));
        }
        for curve in curves {
            let ink = Ink::Series(curve.colour);
            for run in curve.runs(distance_s, |_| true) {
                if let (Some(&last), true) = (run.last(), curves.len() > 1) {
                    labels.push((chart.backend_coord(&last), curve.name.clone(), ink));
                }
                chart.draw_series(LineSeries::new(run, ink.line(4)))?;
            }
        }
        end_labels(area, labels)
    })
}

/// Draws latencies in nanoseconds on a logarithmic scale.
///
/// # Errors
/// If they cannot be drawn.
pub fn latencies(label: &str, curves: &[Curve], distance_s: f64) -> Result<String, DrawError> {
    figure((940, 220), label, |area| {
        let shown = || curves.iter().flat_map(|curve| &curve.values).filter(|value| **value > 0.0);
        let low = shown().copied().fold(f64::MAX, f64::min);
        let high = shown().copied().fold(0.0, f64::max);
        let (low, high) = if high > 0.0 { (low, high) } else { (1e3, 1e6) };
        let (low, high) = whole_decades(low, high);
        let seconds = longest_s(curves, distance_s);
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(150 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(76 * SCALE)
            .build_cartesian_2d(0.0..seconds, (low..high).log_scale())?;
        mesh(&mut chart, 6, &|value| short_latency(*value))?;
        let mut labels = Vec::new();
        for curve in curves {
            let ink = Ink::Series(curve.colour);
            let drawn: Drawn =
                curve.runs(distance_s, |ns| ns > 0.0).into_iter().try_for_each(|run| {
                    if let Some(&last) = run.last() {
                        labels.push((chart.backend_coord(&last), curve.name.clone(), ink));
                    }
                    chart.draw_series(LineSeries::new(run, ink.line(3)))?;
                    Ok(())
                });
            drawn?;
        }
        labels.dedup_by(|later, earlier| later.1 == earlier.1);
        end_labels(area, labels)
    })
}

fn longest_s(curves: &[Curve], distance_s: f64) -> f64 {
    let points = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
    (points as f64 * distance_s).max(1.0)
}

impl Curve {
    /// Creates a curve in the colour of this number.
    #[must_use]
    pub fn new(name: &str, number: usize, values: Vec<f64>) -> Self {
        Self { name: name.to_owned(), colour: number % SERIES_COLOURS, values }
    }

    /// Returns the points in seconds. Neighbours are averaged if there are too many. A line is
    /// interrupted where `is_known` is false.
    fn runs(&self, distance_s: f64, is_known: fn(f64) -> bool) -> Vec<Vec<(f64, f64)>> {
        let together = self.values.len().div_ceil(POINTS_MAX).max(1);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let points = self
            .values
            .chunks(together)
            .map(|values| Some(mean(values)).filter(|value| is_known(*value)));
        let scale = distance_s * together as f64;
        let mut runs = steps(points);
        for point in runs.iter_mut().flatten() {
            point.0 *= scale;
        }
        runs
    }
}
