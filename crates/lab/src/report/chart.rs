//! Charts of the volumes of a report.

use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::VolumeReport;
use crate::stalls::Stalls;
use evenkeel_pages::DrawError;
use evenkeel_pages::chart::{
    Drawn, Ink, SCALE, dash_series, end_labels, figure, mesh, short_latency, steps, whole_decades,
};
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::scenario::levels::FLOOR;
use evenkeel_sim::text;

/// Draws the I/Os per second of one volume, its limit, and its burst and baseline if it has any.
pub(super) fn iops(volume: &VolumeReport, colour: usize) -> Result<String, DrawError> {
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
pub(super) fn deviation(volume: &VolumeReport, colour: usize) -> Result<String, DrawError> {
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
pub(super) fn latency(volume: &VolumeReport, colour: usize) -> Result<String, DrawError> {
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
pub(super) fn overview(volumes: &[VolumeReport]) -> Result<String, DrawError> {
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

/// Returns a logarithmic range that holds both values, with margins.
fn with_air(low: f64, high: f64) -> (f64, f64) {
    let low = low * 0.55;
    (low, (high * 1.8).max(low * 8.0))
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
