//! Curves of the page: demand and limits over time, the worst minute, credits. A column of a chart
//! has the most of all that lies in it.

use super::letter;
use crate::cmd::plan::format::{at, limit_words};
use crate::cmd::plan::input::Case;
use evenkeel_core::units::MIB;
use evenkeel_lab::report::plan::{Axis, Chart, Curve, Over, Section, Shape, Table};
use evenkeel_planner::answer::Rated;
use evenkeel_planner::layout::{Layout, LimitKind};
use evenkeel_planner::timeline::{Amount, Step, Timeline, Times, least_step_us};
use evenkeel_planner::trace::{Clock, Note};

/// Layouts in a chart, beside the demand: as many as there are colours.
pub const DRAWN_MAX: usize = 5;
/// Columns of a chart.
const COLUMNS: usize = 400;
/// Rows of the numbers behind a chart.
const ROWS: usize = 50;
/// Gaps that are shaded.
const GAPS_MAX: usize = 200;
/// Times the demand above which a limit is not drawn: the demand would be a line at the bottom.
const FAR_ABOVE: f64 = 8.0;
const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
/// Time that is shown before and after the worst minute.
const BESIDE_US: u64 = 15 * SECOND_US;

/// The data of the charts.
pub struct Drawn<'a> {
    case: &'a Case,
    times: Times,
    layouts: Vec<OneLayout>,
    begin_ms: u64,
    end_ms: u64,
}

struct OneLayout {
    layout: Layout,
    /// The demand of all volumes, as a multiple of that of the volume that is replayed.
    times: f64,
    /// Limits, with credits or without, by their place.
    limits: Vec<OneLimit>,
    timeline: Timeline,
}

struct OneLimit {
    kind: LimitKind,
    /// The most a second of all volumes, with credits.
    burst: f64,
    /// The most a second of all volumes, without credits.
    baseline: f64,
    saves: bool,
}

impl<'a> Drawn<'a> {
    pub fn of(case: &'a Case, rated: &[Rated]) -> Self {
        let trace = &case.trace;
        let step_us = case.demand.length_us.div_ceil(COLUMNS as u64 * 4);
        let step_us = step_us.next_multiple_of(SECOND_US).max(least_step_us(&case.demand));
        let one = |rated: &Rated| OneLayout::of(case, &rated.found.layout, step_us);
        Self {
            case,
            times: Times::of(trace),
            layouts: rated.iter().take(DRAWN_MAX).map(one).collect(),
            begin_ms: trace.intervals.first().map_or(0, |interval| interval.start_ms),
            end_ms: trace.intervals.last().map_or(0, |interval| interval.end_ms()),
        }
    }

    pub fn sections(&self) -> Vec<Section> {
        let mut all = vec![self.demand(false), self.demand(true)];
        all.extend(self.worst_minute());
        all.extend(self.credits());
        all
    }

    fn length_ms(&self) -> u64 {
        self.end_ms.saturating_sub(self.begin_ms).max(1)
    }

    /// Returns the column of a time of the trace's clock.
    fn column(&self, ms: u64) -> usize {
        let place = u128::from(ms.saturating_sub(self.begin_ms)) * COLUMNS as u128;
        let place = place / u128::from(self.length_ms());
        usize::try_from(place).unwrap_or(usize::MAX).min(COLUMNS - 1)
    }

    /// Returns columns of values that hold from one time to another, merged where several meet.
    fn columns(
        &self,
        values: impl Iterator<Item = (u64, u64, f64)>,
        merge: fn(f64, f64) -> f64,
    ) -> Vec<Option<f64>> {
        let mut columns: Vec<Option<f64>> = vec![None; COLUMNS];
        for (from_ms, to_ms, value) in values {
            let last = self.column(to_ms.saturating_sub(1).max(from_ms));
            for column in columns.iter_mut().take(last + 1).skip(self.column(from_ms)) {
                *column = Some(column.map_or(value, |before| merge(before, value)));
            }
        }
        columns
    }

    /// Returns the columns of a layout's steps, with a value for each.
    fn of_steps(
        &self,
        timeline: &Timeline,
        value: impl Fn(&Step) -> f64,
        merge: fn(f64, f64) -> f64,
    ) -> Vec<Option<f64>> {
        let steps = timeline.steps.iter();
        let mut columns = self.columns(
            steps.map(|step| {
                let from_ms = self.times.ms(step.start_us);
                // A step that a gap interrupts ends before it.
                let to_ms = self.times.ms(step.start_us + step.length_us - 1) + 1;
                let is_whole = to_ms - from_ms <= step.length_us.div_ceil(1_000) + 1;
                let end_ms = if is_whole { to_ms } else { from_ms + 1 };
                (from_ms, end_ms, value(step))
            }),
            merge,
        );
        let known = self.known();
        for (column, known) in columns.iter_mut().zip(known) {
            if !known {
                *column = None;
            }
        }
        columns
    }

    /// Returns whether each column has known time.
    fn known(&self) -> Vec<bool> {
        let intervals = self.case.trace.intervals.iter();
        let spans = intervals.map(|interval| (interval.start_ms, interval.end_ms(), 1.0));
        self.columns(spans, f64::max).iter().map(Option::is_some).collect()
    }

    /// Returns the demand by column, as fast as it is assumed to come.
    fn asked(&self, counts_bytes: bool) -> Vec<Option<f64>> {
        let zero = self.case.trace.intervals.iter();
        let zero = zero.map(|interval| (interval.start_ms, interval.end_ms(), 0.0));
        let spans = self.case.demand.spans.iter().map(|span| {
            let from_ms = self.times.ms(span.start_us);
            let to_ms = from_ms + span.length_us.div_ceil(1_000).max(1);
            let amount =
                if counts_bytes { span.bytes as f64 / MIB as f64 } else { span.requests as f64 };
            (from_ms, to_ms, amount * SECOND_US as f64 / span.length_us.max(1) as f64)
        });
        self.columns(zero.chain(spans), f64::max)
    }

    /// Returns the chart of the demand against the limits of each layout.
    fn demand(&self, counts_bytes: bool) -> Section {
        let asked = self.asked(counts_bytes);
        let peak = asked.iter().flatten().copied().fold(1.0, f64::max);
        let (mut curves, mut far) = (vec![curve("demand", Shape::Area, asked)], Vec::new());
        for (place, one) in self.layouts.iter().enumerate() {
            let values =
                self.of_steps(&one.timeline, |step| one.limit(step, counts_bytes), f64::min);
            let least = values.iter().flatten().copied().fold(f64::MAX, f64::min);
            let name = format!("{} {}", letter(place), one.layout.each.volume_type);
            if least > peak * FAR_ABOVE {
                far.push(format!("{} ({})", letter(place), number(least)));
                // A colour stays with its letter.
                curves.push(curve("", Shape::Line, vec![]));
                continue;
            }
            curves.push(curve(&name, Shape::Line, values));
        }
        let (title, unit) = match counts_bytes {
            true => ("MiB/s asked for, and limits", "MiB/s"),
            false => ("Requests asked for, and limits", "IOPS"),
        };
        let mut caption = String::from(
            "Filled: the most that is asked for a second. Lines: the limit of each layout, which \
             falls where credits are gone.",
        );
        if !counts_bytes {
            caption += " Limits count a request of more than 256 KiB several times.";
        }
        if !far.is_empty() {
            caption += &format!(" Far above, and not drawn: {} {unit}.", far.join(", "));
        }
        self.over(title, caption, unit, curves)
    }

    /// Returns a chart of the whole time.
    fn over(
        &self,
        title: &str,
        mut caption: String,
        unit: &'static str,
        curves: Vec<Curve>,
    ) -> Section {
        let gaps = self.gaps();
        if !gaps.is_empty() {
            caption += " Grey: times of which nothing is known.";
        }
        let (begin_ms, length_ms) = (self.begin_ms, self.length_ms());
        let numbers = self.numbers(&curves, |at_s| begin_ms + (at_s * 1_000.0) as u64, length_ms);
        let clock = self.case.trace.clock;
        let words = move |second: f64| time_words(clock, begin_ms, length_ms, second);
        let axis = Axis { from_s: 0.0, to_s: length_ms as f64 / 1_000.0, words: Box::new(words) };
        Section {
            title: title.to_owned(),
            caption,
            chart: Chart::Over(Over { axis, unit, curves, gaps, top: None }),
            numbers,
            shows_numbers: false,
        }
    }

    /// Returns rows of the curves' values, each the most of several columns.
    fn numbers(&self, curves: &[Curve], ms: impl Fn(f64) -> u64, length_ms: u64) -> Table {
        let shown: Vec<&Curve> = curves.iter().filter(|curve| !curve.values.is_empty()).collect();
        let count = shown.iter().map(|curve| curve.values.len()).max().unwrap_or_default();
        let together = count.div_ceil(ROWS).max(1);
        let row = |first: usize| {
            let second = length_ms as f64 / 1_000.0 * first as f64 / count.max(1) as f64;
            let mut row = vec![at(self.case.trace.clock, ms(second))];
            for curve in &shown {
                let values = curve.values.iter().skip(first).take(together).flatten().copied();
                row.push(values.reduce(f64::max).map_or_else(|| "–".to_owned(), number));
            }
            row
        };
        let names = shown.iter().map(|curve| curve.name.clone());
        Table {
            columns: std::iter::once("most from".to_owned()).chain(names).collect(),
            rows: (0..count).step_by(together).map(row).collect(),
            words: vec![0],
        }
    }

    fn gaps(&self) -> Vec<(f64, f64)> {
        let of = |note: &Note| match note {
            Note::Gap { start_ms, length_ms } => {
                let start = start_ms.saturating_sub(self.begin_ms) as f64 / 1_000.0;
                Some((start, start + *length_ms as f64 / 1_000.0))
            }
            Note::Remark(_) => None,
        };
        let mut gaps: Vec<(f64, f64)> = self.case.trace.notes.iter().filter_map(of).collect();
        // The longest, if there are too many.
        gaps.sort_by(|one, other| (other.1 - other.0).total_cmp(&(one.1 - one.0)));
        gaps.truncate(GAPS_MAX);
        gaps
    }

    /// Returns the charts of the cheapest layout's busiest minute, second by second: rates, and the
    /// queue.
    fn worst_minute(&self) -> Vec<Section> {
        let Some(one) = self.layouts.first() else { return Vec::new() };
        let case = self.case;
        let minutes = Timeline::of(&case.space, &case.demand, &one.layout, MINUTE_US);
        let load = |step: &Step| (step.waited_us(), step.delay_us, one.load_permille(step));
        // The first of equals.
        let Some(worst) = minutes.steps.iter().rev().max_by_key(|step| load(step)) else {
            return Vec::new();
        };
        let from_us = worst.start_us.saturating_sub(BESIDE_US);
        let to_us = worst.start_us + MINUTE_US + BESIDE_US;
        let window = (from_us, to_us.min(case.demand.length_us.max(1)));
        let seconds = Timeline::within(&case.space, &case.demand, &one.layout, SECOND_US, window);
        // The unit is that of the limit that binds, or of the fullest.
        let binding = worst.binding().and_then(|place| seconds.limits.get(place)).copied();
        let Some(kind) = binding.or_else(|| one.fullest(worst)) else { return Vec::new() };
        let bytes = kind.counts_bytes();
        let (begin_ms, scale) = (self.times.ms(from_us), one.scale(bytes));
        let rate = |pick: fn(&Step) -> Amount| {
            let of = |step: &Step| pick(step).per_second(bytes, step.length_us) as f64 * scale;
            seconds.steps.iter().map(|step| Some(of(step))).collect::<Vec<_>>()
        };
        let limit = seconds.steps.iter().map(|step| Some(one.limit(step, bytes))).collect();
        let rates = vec![
            curve("asked for", Shape::Area, rate(|step| step.asked)),
            curve("served", Shape::Line, rate(|step| step.served)),
            curve("limit", Shape::Line, limit),
        ];
        let what = if worst.waited_us() > 0 { "worst" } else { "busiest" };
        let title = format!("The {what} minute of {}", one.layout);
        let caption = format!(
            "Second by second from {} on, for the limit of {}: what is asked for, and what is \
             served.",
            at(case.trace.clock, begin_ms),
            limit_words(kind),
        );
        let unit = if bytes { "MiB/s" } else { "IOPS" };
        let mut all = vec![self.enlarged(title, caption, unit, rates, window)];
        if worst.waited_us() > 0 {
            let waits = |step: &Step| {
                let amount = if bytes { step.queue.bytes } else { step.queue.operations };
                Some(amount as f64 / 1e6 * scale)
            };
            let waits = seconds.steps.iter().map(waits).collect();
            let unit = if bytes { "MiB" } else { "I/Os" };
            let title = "What waits in that minute".to_owned();
            let caption = "What has come and is not served at the end of each second.".to_owned();
            let curves = vec![curve("waits", Shape::Area, waits)];
            all.push(self.enlarged(title, caption, unit, curves, window));
        }
        all
    }

    /// Returns a chart of a short time, with a value a second.
    fn enlarged(
        &self,
        title: String,
        caption: String,
        unit: &'static str,
        curves: Vec<Curve>,
        (from_us, to_us): (u64, u64),
    ) -> Section {
        let begin_ms = self.times.ms(from_us);
        let length_ms = to_us.saturating_sub(from_us) / 1_000;
        let numbers = self.numbers(&curves, |s| begin_ms + (s * 1_000.0) as u64, length_ms);
        let clock = self.case.trace.clock;
        let words = move |second: f64| time_words(clock, begin_ms, length_ms, second);
        let axis = Axis { from_s: 0.0, to_s: length_ms as f64 / 1_000.0, words: Box::new(words) };
        let chart = Chart::Over(Over { axis, unit, curves, gaps: vec![], top: None });
        Section { title, caption, chart, numbers, shows_numbers: false }
    }

    /// Returns the chart of the credits of layouts that have some.
    fn credits(&self) -> Option<Section> {
        let mut curves = vec![curve("", Shape::Line, vec![])];
        for (place, one) in self.layouts.iter().enumerate() {
            let percent =
                |step: &Step| f64::from(step.least_balance_ppm().unwrap_or_default()) / 1e4;
            let saves = one.limits.iter().any(|limit| limit.saves);
            let name = format!("{} {}", letter(place), one.layout.each.volume_type);
            curves.push(match saves {
                true => {
                    let values = self.of_steps(&one.timeline, percent, f64::min);
                    curve(&name, Shape::Line, values)
                }
                false => curve("", Shape::Line, vec![]),
            });
        }
        if curves.iter().all(|curve| curve.values.is_empty()) {
            return None;
        }
        let caption = "What is left of the credits that can be saved; at zero, the baseline is \
                       the limit."
            .to_owned();
        let mut section = self.over("Credits", caption, "%", curves);
        if let Chart::Over(over) = &mut section.chart {
            over.top = Some(104.0);
        }
        Some(section)
    }
}

impl OneLayout {
    fn of(case: &Case, layout: &Layout, step_us: u64) -> Self {
        let times = layout.share(&case.space).times();
        let saves = layout.saves_credits(&case.space);
        let refills = layout.refills(&case.space);
        let limits = layout.limits(&case.space).into_iter();
        let limits = limits.zip(refills.into_iter().zip(saves));
        let limits = limits.map(|((kind, burst), (baseline, saves))| {
            let scale = times / if kind.counts_bytes() { MIB as f64 } else { 1.0 };
            let (burst, baseline) = (burst as f64 * scale, baseline as f64 * scale);
            OneLimit { kind, burst, baseline, saves }
        });
        let timeline = Timeline::of(&case.space, &case.demand, layout, step_us);
        Self { layout: *layout, times, limits: limits.collect(), timeline }
    }

    /// Returns the limit of all volumes in a step, in I/Os or MiB a second: the baseline without
    /// credits.
    fn limit(&self, step: &Step, counts_bytes: bool) -> f64 {
        let now = |(place, limit): (usize, &OneLimit)| match step.balance_ppm(place) {
            Some(0) => limit.baseline,
            _ => limit.burst,
        };
        let all = self.limits.iter().enumerate();
        let all = all.filter(|(_, limit)| limit.kind.counts_bytes() == counts_bytes);
        all.map(now).fold(f64::MAX, f64::min)
    }

    /// Returns the factor from one volume's units to I/Os or MiB of all volumes.
    fn scale(&self, counts_bytes: bool) -> f64 {
        self.times / if counts_bytes { MIB as f64 } else { 1.0 }
    }

    /// Returns the part of its fullest limit that a step asks for, in thousandths.
    fn load_permille(&self, step: &Step) -> u64 {
        self.limits.iter().map(|limit| self.load(step, limit)).max().unwrap_or_default()
    }

    fn fullest(&self, step: &Step) -> Option<LimitKind> {
        self.limits.iter().max_by_key(|limit| self.load(step, limit)).map(|limit| limit.kind)
    }

    fn load(&self, step: &Step, limit: &OneLimit) -> u64 {
        let bytes = limit.kind.counts_bytes();
        let asked = step.asked.per_second(bytes, step.length_us) as f64 * self.scale(bytes);
        (asked * 1_000.0 / limit.burst.max(1e-9)) as u64
    }
}

fn curve(name: &str, shape: Shape, values: Vec<Option<f64>>) -> Curve {
    Curve { name: name.to_owned(), shape, values }
}

/// Returns a value for a table: whole, or with tenths if it is small.
fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Returns a time at an axis, as short as the length allows.
fn time_words(clock: Clock, begin_ms: u64, length_ms: u64, second: f64) -> String {
    let ms = begin_ms + (second.max(0.0) * 1_000.0) as u64;
    let words = at(clock, ms);
    if clock == Clock::Elapsed {
        return words;
    }
    let part = |range: std::ops::Range<usize>| words.get(range).unwrap_or(&words).to_owned();
    match length_ms / 3_600_000 {
        0 => part(11..19),
        1..48 => part(11..16),
        48..240 => part(5..16).replace('T', " "),
        _ => part(0..10),
    }
}
