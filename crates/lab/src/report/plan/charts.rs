//! The charts of a plan: demand against limits over time, and cost against waiting.

use plotters::prelude::*;

use crate::LabError;
use crate::report::chart::{
    Area, Drawn, Ink, SCALE, SERIES_COLOURS, dash_series, end_labels, figure, mesh_with,
};
use evenkeel_sim::text;

/// Curves over time.
pub struct Over {
    /// The time that is shown.
    pub axis: Axis,
    /// The unit of the values.
    pub unit: &'static str,
    /// The curves; the first has the first colour.
    pub curves: Vec<Curve>,
    /// Times of which no values are known, in seconds.
    pub gaps: Vec<(f64, f64)>,
    /// The highest value of the scale; that of the curves if `None`.
    pub top: Option<f64>,
}

/// The axis of time.
pub struct Axis {
    /// Its first second.
    pub from_s: f64,
    /// Its last second.
    pub to_s: f64,
    /// Formats a second as text.
    pub words: Box<dyn Fn(f64) -> String>,
}

/// Values at equal distances over the whole axis.
pub struct Curve {
    /// The name at its right end.
    pub name: String,
    /// The shape in which it is drawn.
    pub shape: Shape,
    /// The values; `None` if unknown.
    pub values: Vec<Option<f64>>,
}

/// The shape of a curve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Filled down to zero.
    Area,
    /// A line of steps.
    Line,
}

/// Layouts by cost and waiting.
pub struct Frontier {
    /// The currency of their costs.
    pub currency: String,
    /// The layouts.
    pub dots: Vec<Dot>,
}

/// A layout in a [`Frontier`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Dot {
    /// Its number in the table.
    pub number: usize,
    /// Its cost per month.
    pub cost: f64,
    /// Seconds per day for which requests wait.
    pub throttled_s: f64,
    /// Whether no cheaper layout waits as little.
    pub is_best: bool,
}

impl Axis {
    /// Returns the unit whose multiples are marked, in seconds: a minute, an hour or a day, by the
    /// axis's length.
    fn unit_s(&self) -> f64 {
        let length_s = self.to_s - self.from_s;
        let units = [86_400.0, 3_600.0, 60.0];
        units.into_iter().find(|unit_s| length_s >= 6.0 * unit_s).unwrap_or(1.0)
    }
}

impl Over {
    /// Returns the chart as SVG.
    pub(super) fn draw(&self, label: &str) -> Result<String, LabError> {
        figure((940, 260), label, |area| self.draw_on(area)).map(dash_series)
    }

    fn draw_on(&self, area: &Area<'_>) -> Drawn {
        let highest = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        let highest = highest.copied().fold(1e-9, f64::max);
        let top = self.top.unwrap_or(highest * 1.12);
        let unit_s = self.axis.unit_s();
        let from = self.axis.from_s / unit_s;
        let to = self.axis.to_s / unit_s;
        let to = to.max(from + 1e-3);
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(120 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(84 * SCALE)
            .build_cartesian_2d(from..to, 0.0..top)?;
        for (start, end) in &self.gaps {
            let start = start / unit_s;
            let end = end / unit_s;
            // At least wide enough to be visible.
            let end = end.max(start + (to - from) / 400.0).min(to);
            let mark = Rectangle::new([(start, 0.0), (end, top)], Ink::Stall.colour().filled());
            chart.draw_series([mark])?;
        }
        let unit = self.unit;
        let value = |value: f64| format!("{} {unit}", rounded(value));
        let below = |units: &f64| (self.axis.words)(units * unit_s);
        mesh_with(&mut chart, 5, &below, &|it| value(*it))?;
        let mut labels = Vec::new();
        for (number, curve) in self.curves.iter().enumerate() {
            let ink = Ink::Series(number % SERIES_COLOURS);
            let runs = curve.runs(from, to, top);
            if let Some(&last) = runs.last().and_then(|run| run.last()) {
                labels.push((chart.backend_coord(&last), curve.name.clone(), ink));
            }
            for run in runs {
                if curve.shape == Shape::Area {
                    let fill = ink.colour().mix(0.16);
                    chart.draw_series(AreaSeries::new(run.iter().copied(), 0.0, fill))?;
                }
                chart.draw_series(LineSeries::new(run, ink.line(3)))?;
            }
        }
        end_labels(area, labels)
    }
}

/// Formats a value of a scale: as a whole number, or with tenths if they matter.
fn rounded(value: f64) -> String {
    match value {
        value if value >= 10.0 || value.fract() == 0.0 => {
            text::thousands(value.max(0.0).round() as u64)
        }
        value => format!("{value:.1}"),
    }
}

impl Curve {
    /// Returns the corners of its steps; a run ends where values are unknown.
    fn runs(&self, from: f64, to: f64, top: f64) -> Vec<Vec<(f64, f64)>> {
        let width = (to - from) / self.values.len().max(1) as f64;
        let mut runs: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut is_open = false;
        for (place, value) in self.values.iter().enumerate() {
            let Some(value) = value.map(|value| value.min(top)) else {
                is_open = false;
                continue;
            };
            let start = from + place as f64 * width;
            let end = from + (place + 1) as f64 * width;
            match runs.last_mut() {
                Some(run) if is_open => match run.last_mut() {
                    // Steps of the same height are merged.
                    Some(last) if last.1 == value => last.0 = end,
                    _ => run.extend([(start, value), (end, value)]),
                },
                _ => runs.push(vec![(start, value), (end, value)]),
            }
            is_open = true;
        }
        runs
    }
}

impl Frontier {
    /// Returns the chart as SVG. Waiting is on a logarithmic scale, on which a second is close to
    /// none.
    pub(super) fn draw(&self, label: &str) -> Result<String, LabError> {
        figure((940, 300), label, |area| self.draw_on(area))
    }

    fn draw_on(&self, area: &Area<'_>) -> Drawn {
        let dearest = self.end_cost();
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(60 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(110 * SCALE)
            .build_cartesian_2d(0.0..dearest, -0.3..5.2)?;
        let seconds = |height: &f64| match height.round() {
            height if height <= 0.0 => "no waiting".to_owned(),
            height => format!("{} s/day", text::thousands(10_f64.powf(height).round() as u64)),
        };
        let cost = |cost: &f64| format!("{} {}", rounded(*cost), self.currency);
        mesh_with(&mut chart, 6, &cost, &seconds)?;
        let height = |dot: &Dot| dot.throttled_s.max(1.0).log10();
        let mut best: Vec<&Dot> = self.dots.iter().filter(|dot| dot.is_best).collect();
        best.sort_by(|one, other| one.cost.total_cmp(&other.cost));
        let mut corners = Vec::new();
        for dot in &best {
            if let Some((_, before)) = corners.last().copied() {
                corners.push((dot.cost, before));
            }
            corners.push((dot.cost, height(dot)));
        }
        chart.draw_series(LineSeries::new(corners, Ink::Series(0).line(3)))?;
        let mut labels = Vec::new();
        for dot in self.dots.iter().filter(|dot| dot.cost <= dearest) {
            let at = (dot.cost, height(dot));
            let size = 5 * SCALE as i32;
            let ink = if dot.is_best { Ink::Series(0) } else { Ink::Text };
            if dot.is_best {
                chart.draw_series([Circle::new(at, size, ink.colour().filled())])?
            } else {
                chart.draw_series([Cross::new(at, size, ink.line(3))])?
            };
            labels.push((chart.backend_coord(&at), dot.number.to_string(), ink));
        }
        beside(area, labels)
    }

    /// Returns the end of the scale of costs. Much more expensive layouts are beyond it, as they
    /// would press the best ones together.
    #[must_use]
    pub fn end_cost(&self) -> f64 {
        let dearest = |best: bool| {
            let dots = self.dots.iter().filter(|dot| dot.is_best || !best);
            dots.map(|dot| dot.cost).fold(1.0, f64::max)
        };
        (dearest(false) * 1.05).min(dearest(true) * FAR_DEARER)
    }
}

/// Ratio of the end of the scale to the cost of the most expensive of the best layouts.
const FAR_DEARER: f64 = 4.0;

/// Draws numbers beside their dots, moved to the right where they would overlap.
fn beside(area: &Area<'_>, mut labels: Vec<((i32, i32), String, Ink)>) -> Drawn {
    labels.sort_by_key(|((x, y), _, _)| (*y, *x));
    let mut taken: Vec<(i32, i32)> = Vec::new();
    let wide = 22 * SCALE as i32;
    let high = 14 * SCALE as i32;
    for ((x, y), name, ink) in labels {
        let mut at_x = x + 8 * SCALE as i32;
        let at_y = y - 9 * SCALE as i32;
        while taken.iter().any(|(x, y)| (x - at_x).abs() < wide && (y - at_y).abs() < high) {
            at_x += wide;
        }
        taken.push((at_x, at_y));
        crate::report::chart::name_at(area, (at_x, at_y), name, ink)?;
    }
    Ok(())
}
