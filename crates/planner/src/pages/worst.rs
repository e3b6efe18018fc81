//! The charts of the cheapest layout's worst time: second by second where the trace has seconds,
//! and interval by interval, with bounds, where it has not.

use super::curves::{Bounds, Drawn, OneLayout, curve, number};
use crate::demand::Demand;
use crate::format::{at, limit_words};
use crate::layout::LimitKind;
use crate::timeline::{Amount, Step, Timeline};
use crate::trace::Interval;
use evenkeel_pages::page::{Band, Chart, Curve, Keeps, Over, Section, Shape};

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
/// Time that is shown before and after the worst minute.
const BESIDE_US: u64 = 15 * SECOND_US;
/// Intervals that are shown before and after the worst one.
const BESIDE_STEPS: u64 = 12;

/// A short time that is shown: its start and its end, in microseconds of the demand.
#[derive(Clone, Copy)]
struct Window {
    from_us: u64,
    to_us: u64,
}

/// The words of a chart.
struct Words {
    title: String,
    caption: String,
    unit: &'static str,
}

impl Window {
    /// Returns whether a step lies in it.
    const fn contains(self, step: &Step) -> bool {
        step.start_us >= self.from_us && step.start_us + step.length_us <= self.to_us
    }
}

impl Drawn<'_> {
    /// Returns the part of a window around a time that has no gap, so that the labels below a chart
    /// of it are true.
    fn without_gaps(&self, window: Window, around_us: u64) -> Window {
        let intervals = &self.case.trace.intervals;
        let around_ms = self.times.ms(around_us);
        let after = intervals.partition_point(|interval| interval.start_ms <= around_ms);
        let is_joined = |pair: &&[Interval]| match pair {
            [before, after] => before.end_ms() == after.start_ms,
            _ => false,
        };
        let before = intervals.get(..after).unwrap_or_default();
        let joined = before.windows(2).rev().take_while(is_joined).count();
        let first = before.len().checked_sub(joined + 1).and_then(|place| before.get(place));
        let rest = intervals.get(after.saturating_sub(1)..).unwrap_or_default();
        let last = rest.get(rest.windows(2).take_while(is_joined).count());
        let begin_ms = first.map_or(around_ms, |interval| interval.start_ms);
        let end_ms = last.map_or(around_ms, |interval| interval.end_ms());
        let earlier_us = around_ms.saturating_sub(begin_ms).saturating_mul(1_000);
        let later_us = end_ms.saturating_sub(around_ms).saturating_mul(1_000).max(1);
        Window {
            from_us: window.from_us.max(around_us.saturating_sub(earlier_us)),
            to_us: window.to_us.min(around_us.saturating_add(later_us)),
        }
    }

    /// Returns the charts of the first layout's worst time: rates, and what waits.
    pub(super) fn worst(&self) -> Vec<Section> {
        let Some(one) = self.layouts.first() else { return Vec::new() };
        match &self.bounds {
            None => self.worst_minute(one),
            Some(bounds) => self.worst_steps(one, bounds),
        }
    }

    /// Returns the charts of the busiest minute, second by second: rates, and the queue.
    fn worst_minute(&self, one: &OneLayout) -> Vec<Section> {
        let case = self.case;
        let minutes = Timeline::of(&case.space, &case.demand, &one.layout, MINUTE_US);
        let load = |step: &Step| (step.waited_us(), step.delay_us, one.load_permille(step));
        // The first of equals.
        let Some(worst) = minutes.steps.iter().rev().max_by_key(|step| load(step)) else {
            return Vec::new();
        };
        let from_us = worst.start_us.saturating_sub(BESIDE_US);
        let to_us = worst.start_us + MINUTE_US + BESIDE_US;
        let window = self.without_gaps(Window { from_us, to_us }, worst.start_us);
        let seconds = Timeline::within(
            &case.space,
            &case.demand,
            &one.layout,
            SECOND_US,
            (window.from_us, window.to_us),
        );
        // The unit is that of the limit that binds, or of the fullest.
        let binding = worst.binding().and_then(|place| seconds.limits.get(place)).copied();
        let Some(kind) = binding.or_else(|| one.fullest(worst)) else { return Vec::new() };
        let bytes = kind.counts_bytes();
        let scale = one.scale(bytes);
        let rate = |pick: fn(&Step) -> Amount| {
            let each = |step: &Step| pick(step).per_second(bytes, step.length_us) as f64 * scale;
            seconds.steps.iter().map(|step| Some(each(step))).collect::<Vec<_>>()
        };
        let limit = seconds.steps.iter().map(|step| Some(one.limit(step, bytes))).collect();
        let rates = vec![
            curve("asked for", Shape::Area, Keeps::Most, rate(|step| step.asked)),
            curve("served", Shape::Line, Keeps::Most, rate(|step| step.served)),
            curve("limit", Shape::Line, Keeps::Least, limit),
        ];
        let what = if worst.waited_us() > 0 { "worst" } else { "busiest" };
        let words = Words {
            title: format!("The {what} minute of {}", one.layout),
            caption: format!(
                "Second by second from {} on, for the limit of {}: what is asked for, and what is \
                 served.",
                at(case.trace.clock, self.times.ms(window.from_us)),
                limit_words(kind),
            ),
            unit: if bytes { "MiB/s" } else { "IOPS" },
        };
        let mut all = vec![self.enlarged(words, (rates, None), window)];
        if worst.waited_us() > 0 {
            let waits = |step: &Step| {
                let amount = if bytes { step.queue.bytes } else { step.queue.operations };
                Some(amount as f64 / 1e6 * scale)
            };
            let waits = seconds.steps.iter().map(waits).collect();
            let words = Words {
                title: "What waits in that minute".to_owned(),
                caption: "What has come and is not served at the end of each second.".to_owned(),
                unit: if bytes { "MiB" } else { "I/Os" },
            };
            let curves = vec![curve("waits", Shape::Area, Keeps::Most, waits)];
            all.push(self.enlarged(words, (curves, None), window));
        }
        all
    }

    /// Returns the charts of the worst interval and those beside it: the rates and the waiting, at
    /// least and at most.
    fn worst_steps(&self, one: &OneLayout, bounds: &Bounds) -> Vec<Section> {
        let case = self.case;
        let step_us = bounds.resolution_ms.saturating_mul(1_000);
        let replay = |demand: &Demand| Timeline::of(&case.space, demand, &one.layout, step_us);
        let least = replay(&bounds.least);
        let most = replay(&bounds.most);
        let pairs = least.steps.iter().zip(&most.steps).enumerate();
        let load = |(_, (least, most)): &(usize, (&Step, &Step))| {
            (least.waited_us(), most.waited_us(), one.load_permille(least))
        };
        // The first of equals.
        let pairs: Vec<(usize, (&Step, &Step))> = pairs.collect();
        let Some((_, (_, highest))) = pairs.iter().rev().max_by_key(|pair| load(pair)) else {
            return Vec::new();
        };
        let binding = highest.binding().and_then(|place| most.limits.get(place)).copied();
        let Some(kind) = binding.or_else(|| one.fullest(highest)) else { return Vec::new() };
        let worst_us = highest.start_us;
        let beside_us = step_us.saturating_mul(BESIDE_STEPS);
        let from_us = worst_us.saturating_sub(beside_us);
        let to_us = worst_us.saturating_add(step_us).saturating_add(beside_us);
        let window = self.without_gaps(Window { from_us, to_us }, worst_us);
        let is_shown = |step: &Step| window.contains(step) || step.start_us == worst_us;
        let pairs = pairs.iter().map(|(_, pair)| *pair);
        let pairs: Vec<(&Step, &Step)> = pairs.filter(|(step, _)| is_shown(step)).collect();
        let Some((first, _)) = pairs.first() else { return Vec::new() };
        let Some((last, _)) = pairs.last() else { return Vec::new() };
        let window = Window { from_us: first.start_us, to_us: last.start_us + last.length_us };
        let mut all = vec![self.rates_of_steps(one, bounds, (&pairs, kind), window)];
        let waits = |of: &dyn Fn(u64, u64) -> u64| -> Vec<Option<f64>> {
            let waited = |(least, most): &(&Step, &Step)| {
                Some(of(least.waited_us(), most.waited_us()) as f64 / 1e6)
            };
            pairs.iter().map(waited).collect()
        };
        let longest = waits(&u64::max);
        if longest.iter().flatten().any(|seconds| *seconds > 0.0) {
            let band = Band {
                least: curve("at least", Shape::Line, Keeps::Most, waits(&u64::min)),
                most: curve("at most", Shape::Line, Keeps::Most, longest),
            };
            let words = Words {
                title: "Waiting in that time".to_owned(),
                caption: format!(
                    "Seconds in which requests wait in each {}: from AT LEAST to AT MOST.",
                    bounds.step_words()
                ),
                unit: "s",
            };
            all.push(self.enlarged(words, (Vec::new(), Some(band)), window));
        }
        all
    }

    /// Returns the chart of the rates of some intervals, at least and at most, against the limit.
    fn rates_of_steps(
        &self,
        one: &OneLayout,
        bounds: &Bounds,
        (pairs, kind): (&[(&Step, &Step)], LimitKind),
        window: Window,
    ) -> Section {
        let case = self.case;
        let bytes = kind.counts_bytes();
        let scale = one.scale(bytes);
        let counting = case.space.rules.pacing(&one.layout.each).counting;
        let mut highest = vec![0.0_f64; pairs.len()];
        let step_us = bounds.resolution_ms.saturating_mul(1_000).max(1);
        for part in bounds.most.parts(counting, one.layout.share(&case.space)) {
            let Some(after_us) = part.start_us.checked_sub(window.from_us) else { continue };
            let Ok(place) = usize::try_from(after_us / step_us) else { continue };
            let amount = if bytes { part.bytes } else { part.operations };
            let rate = amount as f64 / part.length_us.max(1) as f64 * scale;
            if let Some(highest) = highest.get_mut(place) {
                *highest = highest.max(rate);
            }
        }
        let mean = |(least, _): &(&Step, &Step)| {
            Some(least.asked.per_second(bytes, least.length_us) as f64 * scale)
        };
        let means: Vec<Option<f64>> = pairs.iter().map(mean).collect();
        let most = highest
            .iter()
            .zip(&means)
            .map(|(highest, mean)| Some(highest.max(mean.unwrap_or_default())));
        let most: Vec<Option<f64>> = most.collect();
        let limit = |(least, most): &(&Step, &Step)| {
            Some(one.limit(least, bytes).min(one.limit(most, bytes)))
        };
        let limits: Vec<Option<f64>> = pairs.iter().map(limit).collect();
        let has_waits =
            pairs.iter().any(|(least, most)| least.waited_us().max(most.waited_us()) > 0);
        let what = if has_waits { "worst" } else { "busiest" };
        let step = bounds.step_words();
        let unit = if bytes { "MiB/s" } else { "IOPS" };
        let begin = at(case.trace.clock, self.times.ms(window.from_us));
        let mut caption = format!(
            "In steps of {step} from {begin} on, for the limit of {}. When requests come within a \
             step is not known: the band is from AT LEAST, evenly, to AT MOST, as fast as the \
             source allowed.",
            limit_words(kind),
        );
        let top = [&means, &limits].into_iter().filter_map(|values| Keeps::Most.of(values));
        let top = top.fold(1e-9, f64::max) * 1.3;
        let above = Keeps::Most.of(&most).filter(|most| *most > top);
        if let Some(most) = above {
            caption += &format!(" AT MOST is {} {unit}, above the chart.", number(most));
        }
        let curves = vec![
            curve("", Shape::Line, Keeps::Most, vec![]),
            curve("", Shape::Line, Keeps::Most, vec![]),
            curve("limit", Shape::Line, Keeps::Least, limits),
        ];
        let band = Band {
            least: curve("at least", Shape::Line, Keeps::Most, means),
            most: curve("at most", Shape::Line, Keeps::Most, most),
        };
        let title = format!("The {what} {step} of {}", one.layout);
        let words = Words { title, caption, unit };
        let mut section = self.enlarged(words, (curves, Some(band)), window);
        if let Chart::Over(over) = &mut section.chart {
            over.top = above.map_or(over.top, |_| Some(top));
        }
        section
    }

    /// Returns a chart of a short time, with a value for each second or interval.
    fn enlarged(
        &self,
        words: Words,
        (curves, band): (Vec<Curve>, Option<Band>),
        window: Window,
    ) -> Section {
        let begin_ms = self.times.ms(window.from_us);
        let length_ms = window.to_us.saturating_sub(window.from_us) / 1_000;
        let numbers = self.numbers((&curves, band.as_ref()), (begin_ms, length_ms));
        let axis = self.axis(begin_ms, length_ms);
        let highest = curves.iter().chain(band.as_ref().map(|band| &band.most));
        let highest = highest.filter_map(|curve| Keeps::Most.of(&curve.values));
        let top = Some(highest.fold(1e-9, f64::max) * 1.12);
        let unit = words.unit.to_owned();
        let chart = Chart::Over(Over { axis, unit, curves, band, gaps: vec![], top });
        Section { title: words.title, caption: words.caption, chart, numbers, shows_numbers: false }
    }
}
