//! The charts of a page: values over time or over a count, and cost against waiting. Each is drawn
//! twice, for a wide and for a narrow window, so that its letters are readable in both.

use std::fmt::Write as _;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, KeyPointWeight, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::axis::Axis;
use crate::DrawError;
use crate::chart::{
    Area, Drawn, Ink, SCALE, SERIES_COLOURS, dash_series, end_labels, figure, mesh_of, name_at,
};
use evenkeel_sim::text;

/// Curves over time or over a count.
pub struct Over {
    /// The axis below.
    pub axis: Axis,
    /// The unit of the values.
    pub unit: String,
    /// The curves; the first has the first colour.
    pub curves: Vec<Curve>,
    /// A range that the first curve may be anywhere in.
    pub band: Option<Band>,
    /// Times of which no values are known, from and to, as the axis counts.
    pub gaps: Vec<(f64, f64)>,
    /// The highest value of the scale; that of the curves if `None`.
    pub top: Option<f64>,
}

/// Values at equal distances over the whole axis.
pub struct Curve {
    /// The name at its right end.
    pub name: String,
    /// The shape in which it is drawn.
    pub shape: Shape,
    /// The value that stands for several.
    pub keeps: Keeps,
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

/// The value that stands for several values side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keeps {
    /// The largest.
    Most,
    /// The smallest, as for a limit.
    Least,
}

/// The range between two curves. An edge without a name has no line.
pub struct Band {
    /// Its lower end.
    pub least: Curve,
    /// Its upper end, which may be above the scale.
    pub most: Curve,
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

/// The width of the window that a drawing is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// A desktop.
    Wide,
    /// A phone.
    Narrow,
}

/// Values of a curve in a narrow drawing.
const NARROW_VALUES: usize = 120;
/// Pixels on the left and on the right of a curve in a narrow drawing.
const NARROW_SIDES: (u32, u32) = (50, 66);
/// Pixels on the left and on the right of a curve in a wide drawing.
const WIDE_SIDES: (u32, u32) = (84, 120);

impl Room {
    /// Returns the width of a drawing in pixels of the page.
    const fn width(self) -> u32 {
        match self {
            Self::Wide => 940,
            Self::Narrow => 340,
        }
    }

    const fn class(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }

    /// Returns the pixels above a chart: a narrow one has the unit of its values there.
    const fn above(self) -> u32 {
        match self {
            Self::Wide => 10,
            Self::Narrow => 26,
        }
    }
}

/// Returns a drawing for each room.
fn both(draw: impl Fn(Room) -> Result<String, DrawError>) -> Result<String, DrawError> {
    let mut all = String::new();
    for room in [Room::Wide, Room::Narrow] {
        let _ = write!(all, "<div class=\"{}\">{}</div>", room.class(), draw(room)?);
    }
    Ok(all)
}

/// Draws the unit of the values above the axis of a narrow chart.
fn unit_above(area: &Area<'_>, unit: &str, room: Room) -> Drawn {
    match room {
        Room::Wide => Ok(()),
        Room::Narrow => {
            let ink = Ink::Text.colour();
            let style = TextStyle::from(("sans-serif", 12 * SCALE).into_font()).color(&ink);
            let place = (2 * SCALE as i32, 2 * SCALE as i32);
            area.draw(&Text::new(unit.to_owned(), place, style))?;
            Ok(())
        }
    }
}

/// An axis of numbers with its own ticks.
struct Ticked {
    range: RangedCoordf64,
    ticks: Vec<f64>,
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.range.map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.ticks.clone(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.range.range()
    }
}

impl Over {
    /// Returns the chart as SVG, for each room.
    pub(super) fn draw(&self, label: &str) -> Result<String, DrawError> {
        both(|room| {
            let size = (room.width(), 260);
            figure(size, label, |area| self.draw_on(area, room)).map(dash_series)
        })
    }

    /// Returns the end of the scale.
    fn top(&self) -> f64 {
        let highest = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        let highest = highest.copied().fold(1e-9, f64::max);
        self.top.unwrap_or(highest * 1.12)
    }

    fn draw_on(&self, area: &Area<'_>, room: Room) -> Drawn {
        let top = self.top();
        let from = self.axis.from;
        let to = self.axis.to.max(from + 1e-3);
        let (left, right) = match room {
            Room::Wide => WIDE_SIDES,
            Room::Narrow => NARROW_SIDES,
        };
        let (step, ticks) = self.axis.ticks(room.width() - left - right);
        let mut chart = ChartBuilder::on(area)
            .margin_top(room.above() * SCALE)
            .margin_right(right * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(left * SCALE)
            .build_cartesian_2d(Ticked { range: (from..to).into(), ticks }, 0.0..top)?;
        for (start, end) in &self.gaps {
            // At least wide enough to be visible.
            let end = end.max(start + (to - from) / 400.0).min(to);
            let mark = Rectangle::new([(*start, 0.0), (end, top)], Ink::Stall.colour().filled());
            chart.draw_series([mark])?;
        }
        let value = |value: &f64| match room {
            Room::Wide => format!("{} {}", rounded(*value), self.unit),
            Room::Narrow => rounded(*value),
        };
        mesh_of(&mut chart, (12, 5), &|tick| (self.axis.words)(*tick, step), &value)?;
        unit_above(area, &self.unit, room)?;
        let mut labels = Vec::new();
        if let Some(band) = &self.band {
            let ink = Ink::Series(0);
            for (above, beneath) in band.runs((from, to), top, room) {
                let corners: Vec<(f64, f64)> =
                    above.into_iter().chain(beneath.into_iter().rev()).collect();
                chart.draw_series([Polygon::new(corners, ink.colour().mix(0.13))])?;
            }
            for edge in [&band.most, &band.least].into_iter().filter(|edge| !edge.name.is_empty()) {
                let runs = edge.runs((from, to), top, room);
                if let Some(&last) = runs.last().and_then(|run| run.last()) {
                    labels.push((chart.backend_coord(&last), edge.name.clone(), ink));
                }
                for run in runs {
                    chart.draw_series(LineSeries::new(run, ink.colour().stroke_width(SCALE)))?;
                }
            }
        }
        for (number, curve) in self.curves.iter().enumerate() {
            let ink = Ink::Series(number % SERIES_COLOURS);
            let runs = curve.runs((from, to), top, room);
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

impl Keeps {
    /// Returns the value that stands for all of these; `None` if all are unknown.
    #[must_use]
    pub fn of(self, values: &[Option<f64>]) -> Option<f64> {
        let known = values.iter().flatten().copied();
        match self {
            Self::Most => known.reduce(f64::max),
            Self::Least => known.reduce(f64::min),
        }
    }
}

impl Curve {
    /// Returns the values that a drawing has room for.
    fn shown(&self, room: Room) -> Vec<Option<f64>> {
        let together = match room {
            Room::Wide => 1,
            Room::Narrow => self.values.len().div_ceil(NARROW_VALUES).max(1),
        };
        self.values.chunks(together).map(|values| self.keeps.of(values)).collect()
    }

    /// Returns the corners of its steps; a run ends where values are unknown.
    fn runs(&self, (from, to): (f64, f64), top: f64, room: Room) -> Vec<Vec<(f64, f64)>> {
        let values = self.shown(room);
        let width = (to - from) / values.len().max(1) as f64;
        let mut runs: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut is_open = false;
        for (place, value) in values.iter().enumerate() {
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

/// The corners of a line.
type Corners = Vec<(f64, f64)>;

impl Band {
    /// Returns the upper and the lower edge of each part of the band.
    fn runs(&self, ends: (f64, f64), top: f64, room: Room) -> Vec<(Corners, Corners)> {
        let edge = |curve: &Curve| curve.runs(ends, top, room);
        edge(&self.most).into_iter().zip(edge(&self.least)).collect()
    }
}

impl Frontier {
    /// Returns the chart as SVG, for each room. Waiting is on a logarithmic scale, on which a
    /// second is close to none.
    pub(super) fn draw(&self, label: &str) -> Result<String, DrawError> {
        both(|room| figure((room.width(), 300), label, |area| self.draw_on(area, room)))
    }

    fn draw_on(&self, area: &Area<'_>, room: Room) -> Drawn {
        let dearest = self.end_cost();
        let (left, right, ticks) = match room {
            Room::Wide => (110, 60, 12),
            Room::Narrow => (62, 30, 5),
        };
        let mut chart = ChartBuilder::on(area)
            .margin_top(room.above() * SCALE)
            .margin_right(right * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(left * SCALE)
            .build_cartesian_2d(0.0..dearest, -0.3..5.2)?;
        let seconds = |height: &f64| match (height.round(), room) {
            (height, Room::Wide) if height <= 0.0 => "no waiting".to_owned(),
            (height, Room::Narrow) if height <= 0.0 => "none".to_owned(),
            (height, Room::Wide) => format!("{} s/day", thousands_of(height)),
            (height, Room::Narrow) => thousands_of(height),
        };
        let cost = |cost: &f64| match room {
            Room::Wide => format!("{} {}", rounded(*cost), self.currency),
            Room::Narrow => rounded(*cost),
        };
        mesh_of(&mut chart, (ticks, 6), &cost, &seconds)?;
        unit_above(area, &format!("s/day, by {} a month", self.currency), room)?;
        chart.draw_series(LineSeries::new(self.corners(), Ink::Series(0).line(3)))?;
        let mut labels = Vec::new();
        for dot in self.dots.iter().filter(|dot| dot.cost <= dearest) {
            let place = (dot.cost, dot.height());
            let size = 5 * SCALE as i32;
            let ink = if dot.is_best { Ink::Series(0) } else { Ink::Text };
            if dot.is_best {
                chart.draw_series([Circle::new(place, size, ink.colour().filled())])?
            } else {
                chart.draw_series([Cross::new(place, size, ink.line(3))])?
            };
            labels.push((chart.backend_coord(&place), dot.number.to_string(), ink));
        }
        beside(area, labels)
    }

    /// Returns the corners of the line through the best layouts.
    fn corners(&self) -> Corners {
        let mut best: Vec<&Dot> = self.dots.iter().filter(|dot| dot.is_best).collect();
        best.sort_by(|one, other| one.cost.total_cmp(&other.cost));
        let mut corners = Corners::new();
        for dot in &best {
            if let Some((_, before)) = corners.last().copied() {
                corners.push((dot.cost, before));
            }
            corners.push((dot.cost, dot.height()));
        }
        corners
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

impl Dot {
    /// Returns its height on the logarithmic scale.
    fn height(&self) -> f64 {
        self.throttled_s.max(1.0).log10()
    }
}

/// Returns a power of ten.
fn thousands_of(height: f64) -> String {
    text::thousands(10_f64.powf(height).round() as u64)
}

/// Ratio of the end of the scale to the cost of the most expensive of the best layouts.
const FAR_DEARER: f64 = 4.0;

/// Places of a number beside its dot, in pixels of the page.
const BESIDE: [(i32, i32); 4] = [(8, -9), (8, 10), (-20, -9), (-20, 10)];

/// Draws numbers beside their dots where they do not overlap. A number without room is left out;
/// the table has it.
fn beside(area: &Area<'_>, mut labels: Vec<((i32, i32), String, Ink)>) -> Drawn {
    labels.sort_by_key(|((x, y), _, _)| (*y, *x));
    let mut taken: Vec<(i32, i32)> = Vec::new();
    let scale = SCALE as i32;
    let wide = 19 * scale;
    let high = 13 * scale;
    let right = area.dim_in_pixel().0 as i32 - wide;
    for ((x, y), name, ink) in labels {
        let mut places = BESIDE.iter().map(|(right, down)| (x + right * scale, y + down * scale));
        let is_free = |(at_x, at_y): &(i32, i32)| {
            let overlaps = |(x, y): &(i32, i32)| (x - at_x).abs() < wide && (y - at_y).abs() < high;
            *at_x <= right && !taken.iter().any(overlaps)
        };
        if let Some(place) = places.find(is_free) {
            taken.push(place);
            name_at(area, place, name, ink)?;
        }
    }
    Ok(())
}
