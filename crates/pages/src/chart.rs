//! Charts as inline SVG with colours from the page, so that they follow light and dark.
//!
//! plotters only has fixed colours. Each role (ink, grid, series, limit, ...) is drawn in a colour
//! that nothing else uses, and replaced by the page's variable at the end. Lines get their dashes
//! there, too.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::DrawError;
use evenkeel_sim::text;

/// plotters places points on whole pixels; in a drawing four times as large, the steps are
/// invisible.
pub const SCALE: u32 = 4;

/// The drawing of a chart.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// The result of drawing.
pub type Drawn = Result<(), Box<dyn Error>>;

/// The roles of colour: each has a colour for drawing, and a variable of the page that replaces it.
#[derive(Clone, Copy)]
pub enum Ink {
    /// Labels.
    Text,
    /// Lines of the mesh.
    Grid,
    /// A limit of a volume.
    Limit,
    /// A lower bound.
    Floor,
    /// A rate without credits.
    Baseline,
    /// The area that a promise allows.
    Band,
    /// A pause of the machine.
    Stall,
    /// A series by its number.
    Series(usize),
}

/// Number of colours of [`Ink::Series`]. More volumes share colours, and differ by their labels.
pub const SERIES_COLOURS: usize = 6;

/// Dashes of the overview's lines in units of the drawing, so that colour is never the only
/// difference.
const SERIES_DASHES: [&str; SERIES_COLOURS] =
    ["", "36 14", "10 12", "48 12 10 12", "24 10", "4 10"];

impl Ink {
    /// Returns the colour for drawing.
    #[must_use]
    pub fn colour(self) -> RGBColor {
        match self {
            Self::Text => RGBColor(1, 0, 0),
            Self::Grid => RGBColor(1, 0, 1),
            Self::Limit => RGBColor(1, 0, 2),
            Self::Floor => RGBColor(1, 0, 3),
            Self::Baseline => RGBColor(1, 0, 4),
            Self::Band => RGBColor(1, 0, 5),
            Self::Stall => RGBColor(1, 0, 6),
            Self::Series(index) => RGBColor(2, 0, (index % SERIES_COLOURS) as u8),
        }
    }

    fn variable(self) -> String {
        match self {
            Self::Text => "--muted".to_string(),
            Self::Grid => "--grid".to_string(),
            Self::Limit => "--limit".to_string(),
            Self::Floor => "--floor".to_string(),
            Self::Baseline => "--baseline".to_string(),
            Self::Band => "--band".to_string(),
            Self::Stall => "--stall".to_string(),
            Self::Series(index) => format!("--series-{}", index % SERIES_COLOURS),
        }
    }

    fn dashes(self) -> &'static str {
        match self {
            Self::Limit => "28 14",
            Self::Floor => "6 12",
            Self::Baseline => "28 10 6 10",
            Self::Text | Self::Grid | Self::Band | Self::Stall | Self::Series(_) => "",
        }
    }

    /// Returns the style of a line with a width in half pixels of the page.
    #[must_use]
    pub fn line(self, width: u32) -> ShapeStyle {
        self.colour().stroke_width(width * SCALE / 2)
    }
}

/// Returns steps as wide as a second; a run ends where a second has no value.
#[must_use]
pub fn steps(values: impl Iterator<Item = Option<f64>>) -> Vec<Vec<(f64, f64)>> {
    let mut runs: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut open = false;
    for (second, value) in values.enumerate() {
        let Some(value) = value else {
            open = false;
            continue;
        };
        let second = second as f64;
        let points = [(second, value), (second + 1.0, value)];
        match runs.last_mut() {
            Some(run) if open => run.extend(points),
            _ => runs.push(points.to_vec()),
        }
        open = true;
    }
    runs
}

/// Returns the powers of ten around both values, so that even a narrow range has two labels.
#[must_use]
pub fn whole_decades(low: f64, high: f64) -> (f64, f64) {
    let low = 10_f64.powf(low.log10().floor());
    let high = 10_f64.powf((high * 1.05).log10().ceil());
    (low, high.max(low * 10.0))
}

/// Formats nanoseconds with few digits.
#[must_use]
pub fn short_latency(ns: f64) -> String {
    text::latency(ns.round() as u64).replace(".00", "").replace(".0 ", " ")
}

/// Draws light horizontal lines, seconds below, and values on the left.
///
/// # Errors
/// If it cannot be drawn.
pub fn mesh<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    lines: usize,
    format: &dyn Fn(&f64) -> String,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    mesh_with(chart, lines, &|second| format!("{second:.0} s"), format)
}

/// Draws the mesh with other labels below.
fn mesh_with<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    lines: usize,
    below: &dyn Fn(&f64) -> String,
    format: &dyn Fn(&f64) -> String,
) -> Drawn
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    mesh_of(chart, (12, lines), below, format)
}

/// Draws the mesh of any axes, with at most these numbers of labels below and on the left.
pub(crate) fn mesh_of<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    (columns, lines): (usize, usize),
    below: &dyn Fn(&f64) -> String,
    format: &dyn Fn(&f64) -> String,
) -> Drawn
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let ink = Ink::Text.colour();
    let style = TextStyle::from(("sans-serif", 12 * SCALE).into_font()).color(&ink);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_labels(lines)
        .x_labels(columns)
        .bold_line_style(Ink::Grid.line(2))
        .light_line_style(TRANSPARENT)
        .axis_style(Ink::Grid.line(2))
        .set_all_tick_mark_size(5 * SCALE)
        .label_style(style)
        .x_label_formatter(&below)
        .y_label_formatter(&format)
        .draw()?;
    Ok(())
}

/// Vertical distance of two names.
const LABEL_GAP: i32 = 16 * SCALE as i32;

/// Draws the names of lines at their right ends, moved apart where they would overlap.
///
/// # Errors
/// If it cannot be drawn.
pub fn end_labels(area: &Area<'_>, mut labels: Vec<((i32, i32), String, Ink)>) -> Drawn {
    labels.sort_by_key(|((_, y), _, _)| *y);
    let mut lowest = area.dim_in_pixel().1 as i32 - 34 * SCALE as i32;
    for ((_, y), _, _) in labels.iter_mut().rev() {
        *y = (*y).min(lowest);
        lowest = *y - LABEL_GAP;
    }
    // Names above the area are moved back into it, and push those below.
    let mut highest = LABEL_GAP / 2;
    for ((_, y), _, _) in &mut labels {
        *y = (*y).max(highest);
        highest = *y + LABEL_GAP;
    }
    for ((x, y), name, ink) in labels {
        name_at(area, (x + 7 * SCALE as i32, y), name, ink)?;
    }
    Ok(())
}

/// Draws a name beside a place.
pub(crate) fn name_at(area: &Area<'_>, at: (i32, i32), name: String, ink: Ink) -> Drawn {
    let font = ("sans-serif", 12 * SCALE).into_font().style(FontStyle::Bold);
    let colour = ink.colour();
    let style = TextStyle::from(font).color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(name, at, style))?;
    Ok(())
}

/// Length of a line in a [`key`], in pixels of the page.
const KEY_LINE: u32 = 24;
/// Maximum letters of a name in a key.
const KEY_LETTERS_MAX: usize = 36;

/// Returns the pixels of the page that the [`key`] of these names needs.
#[must_use]
pub fn key_room(names: &[&str]) -> u32 {
    let letters = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    // A bold letter of 12 pixels is 7.5 wide at most, in the mean of a name.
    KEY_LINE + 26 + letters.min(KEY_LETTERS_MAX) as u32 * 15 / 2
}

/// Draws the series' lines and names in order, to the right of a chart that leaves [`key_room`],
/// for curves whose ends are close to each other or anywhere.
///
/// # Errors
/// If it cannot be drawn.
pub fn key(area: &Area<'_>, names: &[&str]) -> Drawn {
    let left = area.dim_in_pixel().0 as i32 - ((key_room(names) - 12) * SCALE) as i32;
    let right = left + (KEY_LINE * SCALE) as i32;
    for (number, name) in names.iter().enumerate() {
        let ink = Ink::Series(number);
        let y = LABEL_GAP + number as i32 * LABEL_GAP;
        area.draw(&PathElement::new([(left, y), (right, y)], ink.line(4)))?;
        let short = match name.char_indices().nth(KEY_LETTERS_MAX) {
            Some((end, _)) => format!("{}…", &name[..end]),
            None => (*name).to_owned(),
        };
        name_at(area, (right + 7 * SCALE as i32, y), short, ink)?;
    }
    Ok(())
}

/// Draws a chart, and replaces its colours by those of the page.
///
/// # Errors
/// If it cannot be drawn.
pub fn figure(
    (width, height): (u32, u32),
    label: &str,
    draw: impl FnOnce(&Area<'_>) -> Drawn,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    {
        let size = (width * SCALE, height * SCALE);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).map_err(|error| DrawError(error.to_string()))?;
        area.present().map_err(|error| DrawError(error.to_string()))?;
    }
    // It is drawn larger than it is shown.
    let drawn = format!("width=\"{}\" height=\"{}\"", width * SCALE, height * SCALE);
    let shown = format!("width=\"{width}\" height=\"{height}\"");
    Ok(themed(&svg.replacen(&drawn, &shown, 1), label))
}

fn themed(svg: &str, label: &str) -> String {
    let mut svg = svg.to_string();
    let roles =
        [Ink::Text, Ink::Grid, Ink::Limit, Ink::Floor, Ink::Baseline, Ink::Band, Ink::Stall];
    for ink in roles.into_iter().chain((0..SERIES_COLOURS).map(Ink::Series)) {
        let RGBColor(red, green, blue) = ink.colour();
        let colour = format!("\"#{red:02X}{green:02X}{blue:02X}\"");
        let variable = ink.variable();
        let dashes = match ink.dashes() {
            "" => String::new(),
            dashes => format!(" stroke-dasharray=\"{dashes}\""),
        };
        svg = svg
            .replace(&format!("stroke={colour}"), &format!("stroke=\"var({variable})\"{dashes}"))
            .replace(&format!("fill={colour}"), &format!("fill=\"var({variable})\""));
    }
    let label = crate::html::escape(label);
    svg.replacen("<svg ", &format!("<svg class=\"chart\" role=\"img\" aria-label=\"{label}\" "), 1)
}

/// Gives each of several series in a chart dashes of its own.
#[must_use]
pub fn dash_series(svg: String) -> String {
    let mut svg = svg;
    for (index, dashes) in SERIES_DASHES.iter().enumerate().filter(|(_, dashes)| !dashes.is_empty())
    {
        let stroke = format!("stroke=\"var({})\"", Ink::Series(index).variable());
        svg = svg.replace(&stroke, &format!("{stroke} stroke-dasharray=\"{dashes}\""));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_break_where_nothing_is_known() {
        let runs = steps([Some(1.0), Some(2.0), None, Some(3.0)].into_iter());
        assert_eq!(
            runs,
            [vec![(0.0, 1.0), (1.0, 1.0), (1.0, 2.0), (2.0, 2.0)], vec![(3.0, 3.0), (4.0, 3.0)],]
        );
    }
}
