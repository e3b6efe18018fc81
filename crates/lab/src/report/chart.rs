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

use super::VolumeReport;
use crate::LabError;
use crate::stalls::Stalls;
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::scenario::levels::FLOOR;
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

/// Draws the I/Os per second of one volume, its limit, and its burst and baseline if it has any.
pub(super) fn iops(volume: &VolumeReport, colour: usize) -> Result<String, LabError> {
    let label = format!("I/Os per second of {}; the numbers follow in a table", volume.name);
    figure((940, 250), &label, |area| {
        let limit = volume.verdict.summary.limit_iops;
        let peak = volume.ios_per_second.iter().copied().max().unwrap_or(0) as f64;
        let top = limit.unwrap_or(0.0).max(peak).max(1.0) * 1.16;
        let seconds = volume.ios_per_second.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(118 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(62 * SCALE)
            .build_cartesian_2d(0.0..seconds, 0.0..top)?;
        mark_stalls(&mut chart, &volume.stalls, (seconds, 0.0, top))?;
        mesh(&mut chart, 5, &|value| text::thousands(value.round() as u64))?;
        let steps = steps(volume.ios_per_second.iter().map(|&ios| Some(ios as f64)));
        let series = Ink::Series(colour);
        for run in &steps {
            let fill = series.colour().mix(0.16);
            chart.draw_series(AreaSeries::new(run.iter().copied(), 0.0, fill))?;
        }
        let tenths = volume.ios_per_100ms.iter().enumerate();
        let tenths = tenths.map(|(index, &ios)| ((index as f64 + 0.5) / 10.0, ios as f64 * 10.0));
        chart.draw_series(LineSeries::new(
            tenths.map(|(at_s, iops)| (at_s, iops.min(top))),
            series.colour().mix(0.45).stroke_width(SCALE / 2),
        ))?;
        for run in steps {
            chart.draw_series(LineSeries::new(run, series.line(4)))?;
        }
        let name = if volume.baseline_iops().is_some() { "burst" } else { "limit" };
        let mut labels = Vec::new();
        for (level, ink, name) in
            [(limit, Ink::Limit, name), (volume.baseline_iops(), Ink::Baseline, "baseline")]
        {
            let Some(level) = level else { continue };
            chart.draw_series(LineSeries::new([(0.0, level), (seconds, level)], ink.line(3)))?;
            let at = chart.backend_coord(&(seconds, level));
            labels.push((at, format!("{name} {}", text::rate(level)), ink));
        }
        end_labels(area, labels)
    })
}

/// Draws the deviation of each second from its promised rate, large enough to see a tenth of a
/// percent.
pub(super) fn deviation(volume: &VolumeReport, colour: usize) -> Result<String, LabError> {
    let label = format!("Deviation of each second of {} from its promised rate", volume.name);
    let expected = &volume.verdict.summary.expected_iops;
    let deviations: Vec<Option<f64>> = volume
        .ios_per_second
        .iter()
        .zip(expected)
        .map(|(&ios, expected)| expected.map(|expected| (ios as f64 / expected - 1.0) * 100.0))
        .collect();
    figure((460, 190), &label, |area| {
        let known = deviations.iter().flatten();
        let (low, high) = known
            .fold((-1.6_f64, 5.6_f64), |(low, high), &value| (low.min(value), high.max(value)));
        let low = low.max(-100.0) * 1.05;
        let high = high.min(100.0) * 1.05;
        let seconds = deviations.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(14 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(48 * SCALE)
            .build_cartesian_2d(0.0..seconds, low..high)?;
        mesh(&mut chart, 5, &|value| format!("{value:+.0} %").replace("+0 %", "0 %"))?;
        let floor = (FLOOR - 1.0) * 100.0;
        // The allowed area: one percent, and in the first second the tokens saved while idle.
        for (from, to, top) in [(0.0, 1.0, 5.0), (1.0, seconds, -floor)] {
            let band = Rectangle::new([(from, floor), (to, top)], Ink::Band.colour().filled());
            chart.draw_series([band])?;
        }
        mark_stalls(&mut chart, &volume.stalls, (seconds, low, high))?;
        chart.draw_series(LineSeries::new([(0.0, 0.0), (seconds, 0.0)], Ink::Limit.line(3)))?;
        chart.draw_series(LineSeries::new([(0.0, floor), (seconds, floor)], Ink::Floor.line(3)))?;
        for run in steps(deviations.iter().copied()) {
            chart.draw_series(LineSeries::new(run, Ink::Series(colour).line(4)))?;
        }
        Ok(())
    })
}

/// Draws the median and 99th percentile of the latency second by second, on a logarithmic scale.
pub(super) fn latency(volume: &VolumeReport, colour: usize) -> Result<String, LabError> {
    let label = format!("Latency of {} second by second, p50 and p99", volume.name);
    let per_second = &volume.latency_per_second;
    figure((460, 190), &label, |area| {
        let shown = per_second.iter().filter(|summary| summary.count > 0);
        let (low, high) = shown.fold((u64::MAX, 0), |(low, high), summary| {
            (low.min(summary.p50_ns), high.max(summary.p99_ns))
        });
        let (low, high) = if high == 0 { (1_000, 1_000_000) } else { (low.max(1), high) };
        let (low, high) = whole_decades(low as f64, high as f64);
        let seconds = per_second.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(44 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(60 * SCALE)
            .build_cartesian_2d(0.0..seconds, (low..high).log_scale())?;
        mark_stalls(&mut chart, &volume.stalls, (seconds, low, high))?;
        mesh(&mut chart, 6, &|value| short_latency(*value))?;
        let mut labels = Vec::new();
        let p99: fn(&LatencySummary) -> u64 = |summary| summary.p99_ns;
        let p50: fn(&LatencySummary) -> u64 = |summary| summary.p50_ns;
        for (name, ink, width, pick) in
            [("p99", Ink::Baseline, 3, p99), ("p50", Ink::Series(colour), 4, p50)]
        {
            let value = |summary: &LatencySummary| {
                (summary.count > 0).then(|| (pick(summary) as f64).max(low))
            };
            let runs = steps(per_second.iter().map(value));
            if let Some(&(at_s, last)) = runs.last().and_then(|run| run.last()) {
                labels.push((chart.backend_coord(&(at_s, last)), name.to_string(), ink));
            }
            for run in runs {
                chart.draw_series(LineSeries::new(run, ink.line(width)))?;
            }
        }
        end_labels(area, labels)
    })
}

/// Draws all volumes in one chart, on a logarithmic scale so that large and small can be compared.
pub(super) fn overview(volumes: &[VolumeReport]) -> Result<String, LabError> {
    let label = "I/Os per second of all volumes; the numbers follow in tables";
    figure((940, 300), label, |area| {
        let counts = || volumes.iter().flat_map(|volume| volume.ios_per_second.iter().copied());
        let highest = counts().max().unwrap_or(1).max(1) as f64;
        let lowest = counts().filter(|&ios| ios > 0).min().unwrap_or(1) as f64;
        let (low, high) = with_air(lowest, highest);
        let seconds = volumes.iter().map(|volume| volume.ios_per_second.len()).max();
        let seconds = seconds.unwrap_or(1).max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(172 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(62 * SCALE)
            .build_cartesian_2d(0.0..seconds, (low..high).log_scale())?;
        mesh(&mut chart, 6, &|value| text::thousands(value.round() as u64))?;
        let mut labels = Vec::new();
        for (index, volume) in volumes.iter().enumerate() {
            let ink = Ink::Series(index);
            let values = volume.ios_per_second.iter();
            let runs = steps(values.map(|&ios| (ios > 0).then_some(ios as f64)));
            if let Some(&last) = runs.last().and_then(|run| run.last()) {
                let name = format!("{} · {}", volume.name, volume.volume_type);
                labels.push((chart.backend_coord(&last), name, ink));
            }
            for run in runs {
                chart.draw_series(LineSeries::new(run, ink.line(5)))?;
            }
        }
        end_labels(area, labels)
    })
    .map(dash_series)
}

/// Returns steps as wide as a second; a run ends where a second has no value.
pub(super) fn steps(values: impl Iterator<Item = Option<f64>>) -> Vec<Vec<(f64, f64)>> {
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

/// Returns a logarithmic range that holds both values, with margins.
fn with_air(low: f64, high: f64) -> (f64, f64) {
    let low = low * 0.55;
    (low, (high * 1.8).max(low * 8.0))
}

/// Returns the powers of ten around both values, so that even a narrow range has two labels.
pub(super) fn whole_decades(low: f64, high: f64) -> (f64, f64) {
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
pub(super) fn mesh<Y>(
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
pub(super) fn mesh_of<X, Y>(
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

/// Shades the moments at which the machine stood still, each wide enough to be visible.
fn mark_stalls<Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<RangedCoordf64, Y>>,
    stalls: &Stalls,
    (seconds, low, high): (f64, f64, f64),
) -> Drawn
where
    Y: Ranged<ValueType = f64>,
{
    for stall in stalls.as_slice() {
        let from = stall.start_us as f64 / 1e6;
        let to = (stall.end_us() as f64 / 1e6).max(from + seconds / 400.0).min(seconds);
        let mark = Rectangle::new([(from.min(to), low), (to, high)], Ink::Stall.colour().filled());
        chart.draw_series([mark])?;
    }
    Ok(())
}

/// Vertical distance of two names.
const LABEL_GAP: i32 = 16 * SCALE as i32;

/// Draws the names of lines at their right ends, moved apart where they would overlap.
pub(super) fn end_labels(area: &Area<'_>, mut labels: Vec<((i32, i32), String, Ink)>) -> Drawn {
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

pub(super) fn name_at(area: &Area<'_>, at: (i32, i32), name: String, ink: Ink) -> Drawn {
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
    KEY_LINE + 26 + u32::try_from(letters.min(KEY_LETTERS_MAX)).unwrap_or(0) * 15 / 2
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
) -> Result<String, LabError> {
    let mut svg = String::new();
    {
        let size = (width * SCALE, height * SCALE);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&area).map_err(|error| LabError::Chart(error.to_string()))?;
        area.present().map_err(|error| LabError::Chart(error.to_string()))?;
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
    let label = super::html::escape(label);
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
    use crate::report::samples;

    #[test]
    fn charts_take_every_colour_from_the_page() {
        let report = samples::report();
        let mut charts = vec![overview(&report.volumes).unwrap()];
        for volume in &report.volumes {
            charts.extend(
                [iops(volume, 0), deviation(volume, 1), latency(volume, 2)].map(Result::unwrap),
            );
        }
        for svg in &charts[1..] {
            assert!(svg.contains("var(--stall)"));
        }
        for svg in charts {
            assert!(svg.contains("var(--series-") && svg.contains("role=\"img\""));
            for (index, _) in svg.match_indices("\"#") {
                // Only fully transparent elements may keep a colour of plotters.
                let element = &svg[..index].rsplit_once('<').unwrap().1;
                assert!(element.contains("opacity=\"0\""), "{element}");
            }
        }
    }

    #[test]
    fn steps_break_where_nothing_is_known() {
        let runs = steps([Some(1.0), Some(2.0), None, Some(3.0)].into_iter());
        assert_eq!(
            runs,
            [vec![(0.0, 1.0), (1.0, 1.0), (1.0, 2.0), (2.0, 2.0)], vec![(3.0, 3.0), (4.0, 3.0)],]
        );
    }

    #[test]
    fn an_empty_volume_can_be_drawn() {
        let mut volume = samples::report().volumes.remove(0);
        volume.ios_per_second = vec![0; 3];
        volume.ios_per_100ms = vec![0; 30];
        volume.latency_per_second.clear();
        volume.verdict.summary = crate::checker::Summary::default();
        for svg in [iops(&volume, 0), deviation(&volume, 0), latency(&volume, 0)] {
            assert!(svg.unwrap().ends_with("</svg>\n"));
        }
        assert!(overview(&[volume]).is_ok() && overview(&[]).is_ok());
    }
}
