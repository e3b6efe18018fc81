//! Charts of several runs: their distribution, their variation, and comparisons of configurations.
//!
//! Every series has a shape or a dash of its own, so that it can be recognized without colour.

use evenkeel_core::convert::saturating;
use plotters::prelude::*;

use evenkeel_pages::DrawError;
use evenkeel_pages::chart::{
    Area, Ink, SCALE, SERIES_COLOURS, dash_series, figure, key, key_room, short_latency,
};
use evenkeel_sim::figures::histogram::SHARES_PPM;
use evenkeel_sim::figures::stats::{Density, percentile, sorted};
use evenkeel_sim::text;

/// Number of points at which a density is drawn.
const DENSITY_PLACES: usize = 256;
/// Maximum points of a scatter or a staircase: more would overlap.
const POINTS_MAX: usize = 1_200;

/// Values of one configuration: its runs, batches or seconds, in order.
#[derive(Clone, PartialEq, Debug)]
pub struct Values {
    /// Its name.
    pub name: String,
    /// The values.
    pub values: Vec<f64>,
}

/// A bar: its name, its height, and its standard error.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// The text below it.
    pub name: String,
    /// For each way of measuring its height and its standard error; `None` without a value.
    pub bars: Vec<Option<(f64, f64)>>,
}

/// Draws a kernel density of each configuration, as R does.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn density(label: &str, unit: &str, all: &[Values]) -> Result<String, DrawError> {
    let curves: Vec<Density> =
        all.iter().map(|of| Density::of(&of.values, DENSITY_PLACES)).collect();
    let range = bounds(curves.iter().flat_map(|curve| curve.at.iter().copied()));
    let densest = curves.iter().flat_map(|curve| curve.density.iter().copied());
    let top = densest.fold(0.0, f64::max).max(f64::MIN_POSITIVE) * 1.15;
    let names = names(all);
    figure((940, 250), label, |area| {
        let mut chart = frame(area, &names, range, (0.0, top), unit, &|density| short(*density))?;
        for (number, curve) in curves.iter().enumerate() {
            let points = curve.at.iter().copied().zip(curve.density.iter().copied());
            chart.draw_series(LineSeries::new(points, Ink::Series(number).line(4)))?;
        }
        key(area, &names)
    })
    .map(dash_series)
}

/// Draws every value at its place in the order, one configuration beside the other.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn scatter(label: &str, unit: &str, all: &[Values]) -> Result<String, DrawError> {
    points(label, unit, all, false).map(dash_series)
}

/// Draws the values of each configuration joined by lines, run to run.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn runs(label: &str, unit: &str, all: &[Values]) -> Result<String, DrawError> {
    points(label, unit, all, true).map(dash_series)
}

fn points(label: &str, unit: &str, all: &[Values], is_joined: bool) -> Result<String, DrawError> {
    let longest = all.iter().map(|of| of.values.len()).max().unwrap_or(0);
    let (low, high) = bounds(all.iter().flat_map(|of| of.values.iter().copied()));
    // Run to run, the scale begins at zero, which hides no variation.
    let range = if is_joined { (0.0, high * 1.12) } else { (low, high) };
    let names = names(all);
    figure((940, 250), label, |area| {
        let across = (0.5, longest.max(1) as f64 + 0.5);
        let below = |nth: &f64| place(*nth);
        let format = |value: &f64| with_unit(*value, unit);
        let mut chart = frame_with(area, &names, across, range, &below, &format)?;
        for (number, of) in all.iter().enumerate() {
            let ink = Ink::Series(number);
            let every = of.values.len().div_ceil(POINTS_MAX).max(1);
            let at: Vec<(f64, f64)> = of
                .values
                .iter()
                .enumerate()
                .step_by(every)
                .map(|(nth, value)| (nth as f64 + 1.0, *value))
                .collect();
            if is_joined {
                chart.draw_series(LineSeries::new(at.iter().copied(), ink.line(4)))?;
            }
            // Coordinates are those of the chart, the sizes of marks are pixels: round, cross,
            // triangle in turn.
            let size = (if is_joined { 4 } else { 2 }) * SCALE as i32;
            let style = ink.colour().filled();
            match number % 3 {
                0 => chart.draw_series(at.iter().map(|at| Circle::new(*at, size, style)))?,
                1 => chart.draw_series(at.iter().map(|at| Cross::new(*at, size, ink.line(3))))?,
                _ => {
                    chart.draw_series(at.iter().map(|at| TriangleMarker::new(*at, size, style)))?
                }
            };
        }
        key(area, &names)
    })
}

/// Draws bars with their standard errors; `series` names the bars side by side of each group.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn bars(label: &str, unit: &str, series: &[&str], all: &[Bar]) -> Result<String, DrawError> {
    let heights = all.iter().flat_map(|bar| bar.bars.iter().flatten());
    let top = heights.map(|(height, error)| height + error).fold(0.0, f64::max).max(1e-9) * 1.12;
    let height = 60 + 22 * saturating::<_, u32>(all.len().max(1)).min(60);
    figure((940, height), label, |area| {
        // Horizontal bars, so that names of any length can be read.
        let mut chart = ChartBuilder::on(area)
            .margin_top(10 * SCALE)
            .margin_right(90 * SCALE)
            .x_label_area_size(28 * SCALE)
            .y_label_area_size(230 * SCALE)
            .build_cartesian_2d(0.0..top, 0.0..all.len().max(1) as f64)?;
        let ink = Ink::Text.colour();
        let style = TextStyle::from(("sans-serif", 12 * SCALE).into_font()).color(&ink);
        let name_of = |place: f64| {
            // The first one is at the top.
            let nth = all.len() as f64 - place.round();
            all.get(nth.max(0.0) as usize).map_or(String::new(), |bar| bar.name.clone())
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(1)
            .y_label_formatter(&|_| String::new())
            .x_labels(8)
            .bold_line_style(Ink::Grid.line(2))
            .light_line_style(TRANSPARENT)
            .axis_style(Ink::Grid.line(2))
            .label_style(style.clone())
            .x_label_formatter(&|value| with_unit(*value, unit))
            .draw()?;
        for (nth, bar) in all.iter().enumerate() {
            let place = all.len() as f64 - nth as f64;
            let (_, y) = chart.backend_coord(&(0.0, place - 0.5));
            area.draw(&Text::new(
                name_of(place),
                (2 * SCALE as i32, y - 6 * SCALE as i32),
                style.clone(),
            ))?;
            let width = 0.72 / series.len().max(1) as f64;
            for (number, value) in bar.bars.iter().enumerate() {
                let Some((height, error)) = *value else { continue };
                let from = place - 0.14 - width * number as f64;
                let ink = Ink::Series(number);
                let corners = [(0.0, from - width * 0.9), (height, from)];
                let fill = if number == 0 { ink.colour().filled() } else { ink.line(5) };
                chart.draw_series([Rectangle::new(corners, fill)])?;
                let middle = from - width * 0.45;
                let whisker = [(height - error, middle), (height + error, middle)];
                chart.draw_series(LineSeries::new(
                    whisker,
                    Ink::Limit.colour().stroke_width(SCALE),
                ))?;
            }
        }
        Ok(())
    })
}

/// Draws the share of values up to each value, from which any percentile can be read.
///
/// # Errors
/// When the chart cannot be drawn.
pub fn cdf(label: &str, unit: &str, all: &[Values]) -> Result<String, DrawError> {
    let range = bounds(all.iter().flat_map(|of| of.values.iter().copied()));
    let names = names(all);
    figure((940, 250), label, |area| {
        let share = |share: &f64| format!("{share:.0} %");
        let mut chart = frame(area, &names, range, (0.0, 104.0), unit, &share)?;
        for (number, of) in all.iter().enumerate() {
            let ascending = sorted(&of.values);
            let places = ascending.len().clamp(2, POINTS_MAX);
            let points: Vec<(f64, f64)> = (0..places)
                .filter_map(|place| {
                    let share = place as f64 * 100.0 / (places - 1) as f64;
                    Some((percentile(&ascending, share)?, share))
                })
                .collect();
            chart.draw_series(LineSeries::new(points, Ink::Series(number).line(4)))?;
        }
        key(area, &names)
    })
    .map(dash_series)
}

/// Draws the share of I/Os up to each latency, on a logarithmic scale. `all` are names and the
/// latencies in nanoseconds at [`SHARES_PPM`].
///
/// # Errors
/// When the chart cannot be drawn.
pub fn latency_cdf(label: &str, all: &[(String, Vec<u64>)]) -> Result<String, DrawError> {
    let (low, high) = decades(all);
    let curve = |of: &[u64]| -> Vec<(f64, f64)> {
        let shares = SHARES_PPM.iter().map(|ppm| *ppm as f64 / 10_000.0);
        of.iter().map(|ns| exponent(*ns)).zip(shares).collect()
    };
    quantiles(
        label,
        all,
        ((low, high), (0.0, 104.0)),
        &curve,
        (&latency_at, &|share| format!("{share:.0} %")),
    )
}

/// Draws the latency at each percentile, with percentiles scaled by their nines: 90 % is as far
/// from 99 % as that from 99.9 %. `all` is as in [`latency_cdf`].
///
/// # Errors
/// When the chart cannot be drawn.
pub fn latency_percentiles(label: &str, all: &[(String, Vec<u64>)]) -> Result<String, DrawError> {
    let nines = |ppm: u64| -(1.0 - ppm as f64 / 1e6).log10();
    let last = SHARES_PPM.iter().rev().find(|ppm| **ppm < 1_000_000).copied().unwrap_or(900_000);
    let curve = |of: &[u64]| -> Vec<(f64, f64)> {
        let known = SHARES_PPM.iter().zip(of).filter(|(ppm, _)| **ppm <= last);
        known.map(|(ppm, ns)| (nines(*ppm), exponent(*ns))).collect()
    };
    let range = ((0.0, nines(last)), decades(all));
    let share = |nines: &f64| percentage(1.0 - 10_f64.powf(-nines));
    quantiles(label, all, range, &curve, (&share, &latency_at))
}

/// Points with their coordinates across and up.
type Points = Vec<(f64, f64)>;
/// Formats the label of a place on an axis.
type Words<'a> = &'a dyn Fn(&f64) -> String;

/// Draws curves of quantiles: their ranges across and up, their points, and the labels of the axes.
fn quantiles(
    label: &str,
    all: &[(String, Vec<u64>)],
    (across, up): ((f64, f64), (f64, f64)),
    curve: &dyn Fn(&[u64]) -> Points,
    (below, beside): (Words<'_>, Words<'_>),
) -> Result<String, DrawError> {
    figure((940, 250), label, |area| {
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        let mut chart = frame_with(area, &names, across, up, below, beside)?;
        for (number, (_, of)) in all.iter().enumerate() {
            chart.draw_series(LineSeries::new(curve(of), Ink::Series(number).line(4)))?;
        }
        key(area, &names)
    })
    .map(dash_series)
}

/// Returns the exponents of the powers of ten around all latencies.
fn decades(all: &[(String, Vec<u64>)]) -> (f64, f64) {
    let known = || all.iter().flat_map(|(_, of)| of.iter().copied());
    let low = exponent(known().min().unwrap_or(1_000));
    let high = exponent(known().max().unwrap_or(0));
    (low.floor(), high.ceil().max(low.floor() + 1.0))
}

fn exponent(ns: u64) -> f64 {
    (ns.max(1) as f64).log10()
}

fn latency_at(exponent: &f64) -> String {
    short_latency(10_f64.powf(*exponent))
}

/// Formats a share with as many digits as it needs: `99.9 %`.
#[must_use]
pub fn percentage(share: f64) -> String {
    // Differences below a millionth are rounding errors.
    let millionths = (share * 1e6).round() / 1e4;
    format!("{millionths} %")
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

fn names(all: &[Values]) -> Vec<&str> {
    all.iter().map(|of| of.name.as_str()).collect()
}

/// Returns axes with room for names on the right.
fn frame<'a, 'b>(
    area: &'a Area<'b>,
    names: &[&str],
    (from, to): (f64, f64),
    (low, high): (f64, f64),
    unit: &str,
    format: &dyn Fn(&f64) -> String,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    frame_with(area, names, (from, to), (low, high), &|value| with_unit(*value, unit), format)
}

/// Returns axes with these labels below.
fn frame_with<'a, 'b>(
    area: &'a Area<'b>,
    names: &[&str],
    (from, to): (f64, f64),
    (low, high): (f64, f64),
    below: &dyn Fn(&f64) -> String,
    format: &dyn Fn(&f64) -> String,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(10 * SCALE)
        .margin_right(key_room(names) * SCALE)
        .x_label_area_size(28 * SCALE)
        .y_label_area_size(84 * SCALE)
        .build_cartesian_2d(from..to, low..high)?;
    let ink = Ink::Text.colour();
    let style = TextStyle::from(("sans-serif", 12 * SCALE).into_font()).color(&ink);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_labels(5)
        .x_labels(8)
        .bold_line_style(Ink::Grid.line(2))
        .light_line_style(TRANSPARENT)
        .axis_style(Ink::Grid.line(2))
        .label_style(style)
        .x_label_formatter(&below)
        .y_label_formatter(&format)
        .draw()?;
    Ok(chart)
}

/// Returns the smallest and the largest value with margins; a non-empty range even without values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    if low > high {
        return (0.0, 1.0);
    }
    let air = ((high - low) * 0.06).max(high.abs() * 1e-3).max(1e-9);
    (low - air, high + air)
}

/// Formats a place in an order; returns an empty text between two places.
fn place(nth: f64) -> String {
    if (nth - nth.round()).abs() < 1e-6 { text::rate(nth) } else { String::new() }
}

fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        "" => short(value),
        unit => format!("{} {unit}", short(value)),
    }
}

/// Formats a value with enough digits to distinguish neighbouring labels.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1_000.0 => text::rate(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.4}"),
    }
}

/// Maximum number of configurations in one chart, which differ by colour and dash.
pub const TOGETHER_MAX: usize = SERIES_COLOURS;

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, count: u32, step: f64) -> Values {
        let value = |i: u32| 1_000.0 + step * f64::from(i * 7_919 % 101);
        Values { name: name.to_owned(), values: (0..count).map(value).collect() }
    }

    #[test]
    fn every_chart_takes_its_colours_from_the_page() {
        let all = [values("a", 30, 1.0), values("b", 9, 2.0), values("c <d>", 1, 0.0)];
        let bar = |height| Bar {
            name: "configuration".to_owned(),
            bars: vec![Some((height, 3.0)), Some((height * 1.1, 0.0))],
        };
        let steps = |step: u64| (1..=SHARES_PPM.len() as u64).map(|nth| nth * step).collect();
        let quantiles = [("a".to_owned(), steps(70_000)), ("c <d>".to_owned(), steps(9))];
        let charts = [
            density("density", "IOPS", &all),
            scatter("scatter", "IOPS", &all),
            runs("runs", "IOPS", &all),
            cdf("cdf", "IOPS", &all),
            bars("bars", "IOPS", &["live", "simulated"], &[bar(10.0), bar(20.0)]),
            latency_cdf("latencies", &quantiles),
            latency_percentiles("latencies", &quantiles),
        ];
        for svg in charts.map(Result::unwrap) {
            assert!(svg.contains("var(--series-0)") && svg.contains("role=\"img\""), "{svg}");
            for (index, _) in svg.match_indices("\"#") {
                // Only fully transparent elements may keep a colour of plotters.
                let element = &svg[..index].rsplit_once('<').unwrap().1;
                assert!(element.contains("opacity=\"0\""), "{element}");
            }
            assert!(!svg.contains("c <d>"), "names are escaped");
        }
    }

    #[test]
    fn empty_plots_can_be_drawn() {
        let nothing = [Values { name: "nothing".to_owned(), values: Vec::new() }];
        for all in [&nothing[..], &[]] {
            assert!(density("", "", all).is_ok() && scatter("", "", all).is_ok());
            assert!(runs("", "", all).is_ok() && cdf("", "", all).is_ok());
        }
        assert!(bars("", "", &[], &[]).is_ok());
        let zero = [("zero".to_owned(), vec![0; SHARES_PPM.len()])];
        for all in [&zero[..], &[]] {
            assert!(latency_cdf("", all).is_ok() && latency_percentiles("", all).is_ok());
        }
    }

    #[test]
    fn percentages_have_the_digits_they_need() {
        let shown = SHARES_PPM.map(|ppm| percentage(ppm as f64 / 1e6));
        assert_eq!(shown[..2], ["1 %", "5 %"]);
        assert_eq!(shown[22..], ["99.95 %", "99.99 %", "99.999 %", "100 %"]);
        assert_eq!(percentage(1.0 - 10_f64.powi(-3)), "99.9 %");
    }
}
