//! Curves of the pages: demand and limits over time, and credits. A column of a chart has the most
//! or the least of all that lies in it.

use super::letter;
use crate::Case;
use crate::answer::Rated;
use crate::demand::{Assume, Demand};
use crate::format::at;
use crate::layout::{Layout, LimitKind};
use crate::timeline::{Step, Timeline, Times, least_step_us};
use crate::trace::{Clock, Note};
use evenkeel_core::units::MIB;
use evenkeel_pages::page::{
    Axis, Band, Chart, Curve, Keeps, Over, Part, Section, Shape, Steps, Table,
};

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
/// Length of an interval in which the time of a request is known well enough for a picture of
/// seconds.
const FINE_MS: u64 = 1_000;
const SECOND_US: u64 = 1_000_000;
pub(super) const DAY_MS: u64 = 86_400_000;

/// The data of the charts.
pub struct Drawn<'a> {
    pub(super) case: &'a Case,
    pub(super) times: Times,
    pub(super) layouts: Vec<OneLayout>,
    /// The demand at least and at most in a second, if the intervals do not resolve it.
    pub(super) bounds: Option<Bounds>,
    begin_ms: u64,
    end_ms: u64,
}

/// Bounds of the demand within long intervals, in which the trace has no times.
pub(super) struct Bounds {
    /// The length of an interval, in milliseconds.
    pub(super) resolution_ms: u64,
    /// The demand if requests come evenly in each interval.
    pub(super) least: Demand,
    /// The demand if they come as fast as the source allowed.
    pub(super) most: Demand,
}

pub(super) struct OneLayout {
    pub(super) layout: Layout,
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

impl Bounds {
    /// Returns the bounds of a trace; `None` if its intervals are seconds or shorter.
    fn of(case: &Case) -> Option<Self> {
        let resolution_ms = case.trace.resolution_ms();
        let is_fine = resolution_ms <= FINE_MS;
        (!is_fine).then(|| Self {
            resolution_ms,
            least: Demand::of(&case.trace, Assume::Even),
            most: Demand::of(&case.trace, Assume::Worst),
        })
    }

    /// Returns the length of an interval in words.
    pub(super) fn step_words(&self) -> String {
        evenkeel_sim::text::span(self.resolution_ms.div_ceil(1_000))
    }
}

impl<'a> Drawn<'a> {
    pub fn of(case: &'a Case, rated: &[Rated]) -> Self {
        let trace = &case.trace;
        let step_us = case.demand.length_us.div_ceil(COLUMNS as u64 * 4);
        let step_us = step_us.next_multiple_of(SECOND_US).max(least_step_us(&case.demand));
        let drawn = |rated: &Rated| OneLayout::of(case, &rated.found.layout, step_us);
        Self {
            case,
            times: Times::of(trace),
            layouts: rated.iter().take(DRAWN_MAX).map(drawn).collect(),
            bounds: Bounds::of(case),
            begin_ms: trace.intervals.first().map_or(0, |interval| interval.start_ms),
            end_ms: trace.intervals.last().map_or(0, |interval| interval.end_ms()),
        }
    }

    pub fn parts(&self) -> Vec<Part> {
        let mut all = vec![self.demand(false), self.demand(true)];
        all.extend(self.worst());
        all.extend(self.credits());
        all.into_iter().map(Box::new).map(Part::Chart).collect()
    }

    fn length_ms(&self) -> u64 {
        self.end_ms.saturating_sub(self.begin_ms).max(1)
    }

    /// Returns the column of a time of the trace's clock.
    fn column(&self, ms: u64) -> usize {
        let place = u128::from(ms.saturating_sub(self.begin_ms)) * COLUMNS as u128;
        let place = place / u128::from(self.length_ms());
        place.min(COLUMNS as u128 - 1) as usize
    }

    /// Returns columns of values that hold from one time to another, merged where several meet.
    fn columns(
        &self,
        values: impl Iterator<Item = (u64, u64, f64)>,
        keeps: Keeps,
    ) -> Vec<Option<f64>> {
        let mut columns: Vec<Option<f64>> = vec![None; COLUMNS];
        for (from_ms, to_ms, value) in values {
            let last = self.column(to_ms.saturating_sub(1).max(from_ms));
            for column in columns.iter_mut().take(last + 1).skip(self.column(from_ms)) {
                *column = keeps.of(&[*column, Some(value)]);
            }
        }
        columns
    }

    /// Returns the columns of a layout's steps, with the least value of each.
    fn of_steps(&self, timeline: &Timeline, value: impl Fn(&Step) -> f64) -> Vec<Option<f64>> {
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
            Keeps::Least,
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
        self.columns(spans, Keeps::Most).iter().map(Option::is_some).collect()
    }

    /// Returns the demand of a second by column. Where an interval is longer than a second, the
    /// time of its requests is not known, so the value is that of the whole interval.
    fn asked(&self, demand: &Demand, counts_bytes: bool) -> Vec<Option<f64>> {
        let intervals = &self.case.trace.intervals;
        let zero = intervals.iter().map(|interval| (interval.start_ms, interval.end_ms(), 0.0));
        let spans = demand.spans.iter().map(|span| {
            let from_ms = self.times.ms(span.start_us);
            let to_ms = from_ms + span.length_us.div_ceil(1_000).max(1);
            let amount =
                if counts_bytes { span.bytes as f64 / MIB as f64 } else { span.requests as f64 };
            let rate = amount * SECOND_US as f64 / span.length_us.max(1) as f64;
            let after = intervals.partition_point(|interval| interval.start_ms <= from_ms);
            let interval = after.checked_sub(1).and_then(|place| intervals.get(place));
            match interval.filter(|interval| interval.length_ms > FINE_MS) {
                Some(interval) => (interval.start_ms, interval.end_ms(), rate),
                None => (from_ms, to_ms, rate),
            }
        });
        self.columns(zero.chain(spans), Keeps::Most)
    }

    /// Returns the range of the demand that the trace does not resolve. Its lower edge has no line
    /// if it is `asked`, which has one.
    fn band(&self, counts_bytes: bool, asked: &[Option<f64>]) -> Option<Band> {
        let bounds = self.bounds.as_ref()?;
        let edge = |name: &str, demand: &Demand| {
            curve(name, Shape::Line, Keeps::Most, self.asked(demand, counts_bytes))
        };
        let mut least = edge("at least", &bounds.least);
        let most = edge("at most", &bounds.most);
        if least.values == asked {
            least.name.clear();
        }
        (least.values != most.values).then_some(Band { least, most })
    }

    /// Returns the chart of the demand against the limits of each layout.
    fn demand(&self, counts_bytes: bool) -> Section {
        let asked = self.asked(&self.case.demand, counts_bytes);
        let band = self.band(counts_bytes, &asked);
        let peak = Keeps::Most.of(&asked).unwrap_or_default().max(1.0);
        let highest = band.as_ref().and_then(|band| Keeps::Most.of(&band.most.values));
        let highest = highest.unwrap_or_default();
        let mut far = Vec::new();
        let mut curves = vec![curve("demand", Shape::Area, Keeps::Most, asked)];
        for (place, one) in self.layouts.iter().enumerate() {
            let values = self.of_steps(&one.timeline, |step| one.limit(step, counts_bytes));
            let least = Keeps::Least.of(&values).unwrap_or(f64::MAX);
            let name = format!("{} {}", letter(place), one.layout.each.volume_type);
            if least > (peak * FAR_ABOVE).max(highest) {
                far.push(format!("{} ({})", letter(place), number(least)));
                // A colour stays with its letter.
                curves.push(curve("", Shape::Line, Keeps::Least, vec![]));
                continue;
            }
            curves.push(curve(&name, Shape::Line, Keeps::Least, values));
        }
        let (title, unit) = if counts_bytes {
            ("MiB/s asked for, and limits", "MiB/s")
        } else {
            ("Requests asked for, and limits", "IOPS")
        };
        let mut caption = match &self.bounds {
            None => "Filled: the most that is asked for in a second.".to_owned(),
            Some(bounds) => format!(
                "Steps of {}: what is asked for in a second is not known. Filled: as assumed. \
                 Light: from AT LEAST, evenly in each step, to AT MOST, as fast as the source \
                 allowed.",
                bounds.step_words()
            ),
        };
        caption += " Lines: the limit of each layout, which falls where credits are gone.";
        if !counts_bytes {
            caption += " Limits count a request of more than 256 KiB several times.";
        }
        if !far.is_empty() {
            caption += &format!(" Far above, and not drawn: {} {unit}.", far.join(", "));
        }
        self.over(title, caption, unit, (curves, band))
    }

    /// Returns a chart of the whole time.
    fn over(
        &self,
        title: &str,
        mut caption: String,
        unit: &str,
        (curves, band): (Vec<Curve>, Option<Band>),
    ) -> Section {
        let gaps = self.gaps();
        if !gaps.is_empty() {
            caption += " Grey: times of which nothing is known.";
        }
        let top = curves.iter().filter_map(|curve| Keeps::Most.of(&curve.values));
        let top = top.fold(1e-9, f64::max) * 1.12;
        let most = band.as_ref().and_then(|band| Keeps::Most.of(&band.most.values));
        let most = most.unwrap_or_default();
        if most > top {
            caption += &format!(" AT MOST is {} {unit}, above the chart.", number(most));
        }
        let numbers = self.numbers((&curves, band.as_ref()), (self.begin_ms, self.length_ms()));
        let axis = self.axis(self.begin_ms, self.length_ms());
        let unit = unit.to_owned();
        Section {
            title: title.to_owned(),
            caption,
            chart: Chart::Over(Over { axis, unit, curves, band, gaps, top: Some(top) }),
            numbers,
            shows_numbers: false,
        }
    }

    /// Returns the axis of a time, in seconds of the trace's clock.
    pub(super) fn axis(&self, begin_ms: u64, length_ms: u64) -> Axis {
        let clock = self.case.trace.clock;
        let words = move |second: f64, step_s: f64| {
            time_words(clock, (begin_ms, length_ms), second, step_s)
        };
        Axis {
            from: begin_ms as f64 / 1_000.0,
            to: (begin_ms + length_ms) as f64 / 1_000.0,
            steps: Steps::Time,
            words: Box::new(words),
        }
    }

    /// Returns rows of the curves' values, each the most or the least of several columns.
    pub(super) fn numbers(
        &self,
        (curves, band): (&[Curve], Option<&Band>),
        (begin_ms, length_ms): (u64, u64),
    ) -> Table {
        let mut shown: Vec<&Curve> = band.map_or_else(Vec::new, |band| vec![&band.least]);
        shown.extend(curves);
        shown.extend(band.map(|band| &band.most));
        shown.retain(|curve| !curve.values.is_empty() && !curve.name.is_empty());
        let count = shown.iter().map(|curve| curve.values.len()).max().unwrap_or_default();
        let together = count.div_ceil(ROWS).max(1);
        let row = |first: usize| {
            let share = first as f64 / count.max(1) as f64;
            let ms = begin_ms + (length_ms as f64 * share) as u64;
            let mut row = vec![at(self.case.trace.clock, ms)];
            for curve in &shown {
                let values: Vec<Option<f64>> =
                    curve.values.iter().skip(first).take(together).copied().collect();
                row.push(curve.keeps.of(&values).map_or_else(|| "–".to_owned(), number));
            }
            row.into()
        };
        let name = |curve: &&Curve| match curve.keeps {
            Keeps::Most => curve.name.clone(),
            Keeps::Least => format!("{}, least", curve.name),
        };
        Table {
            columns: std::iter::once("from".to_owned()).chain(shown.iter().map(name)).collect(),
            rows: (0..count).step_by(together).map(row).collect(),
            words: vec![0],
        }
    }

    /// Returns the gaps in seconds of the trace's clock.
    fn gaps(&self) -> Vec<(f64, f64)> {
        let gap = |note: &Note| match note {
            Note::Gap { start_ms, length_ms } => {
                let start = *start_ms as f64 / 1_000.0;
                Some((start, start + *length_ms as f64 / 1_000.0))
            }
            Note::Remark(_) => None,
        };
        let mut gaps: Vec<(f64, f64)> = self.case.trace.notes.iter().filter_map(gap).collect();
        // The longest, if there are too many.
        gaps.sort_by(|one, other| (other.1 - other.0).total_cmp(&(one.1 - one.0)));
        gaps.truncate(GAPS_MAX);
        gaps
    }

    /// Returns the chart of the credits of layouts that have some.
    fn credits(&self) -> Option<Section> {
        let mut curves = vec![curve("", Shape::Line, Keeps::Least, vec![])];
        for (place, one) in self.layouts.iter().enumerate() {
            let percent =
                |step: &Step| f64::from(step.least_balance_ppm().unwrap_or_default()) / 1e4;
            let saves = one.limits.iter().any(|limit| limit.saves);
            let name = format!("{} {}", letter(place), one.layout.each.volume_type);
            let values = if saves { self.of_steps(&one.timeline, percent) } else { Vec::new() };
            curves.push(curve(&name, Shape::Line, Keeps::Least, values));
        }
        if curves.iter().all(|curve| curve.values.is_empty()) {
            return None;
        }
        let mut caption = "What is left of the credits that can be saved; at zero, the baseline \
                           is the limit."
            .to_owned();
        if self.bounds.is_some() {
            caption += " Requests come as assumed.";
        }
        let mut section = self.over("Credits", caption, "%", (curves, None));
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
            let burst = burst as f64 * scale;
            let baseline = baseline as f64 * scale;
            OneLimit { kind, burst, baseline, saves }
        });
        let timeline = Timeline::of(&case.space, &case.demand, layout, step_us);
        Self { layout: *layout, times, limits: limits.collect(), timeline }
    }

    /// Returns the limit of all volumes in a step, in I/Os or MiB a second: the baseline without
    /// credits.
    pub(super) fn limit(&self, step: &Step, counts_bytes: bool) -> f64 {
        let now = |(place, limit): (usize, &OneLimit)| match step.balance_ppm(place) {
            Some(0) => limit.baseline,
            _ => limit.burst,
        };
        let all = self.limits.iter().enumerate();
        let all = all.filter(|(_, limit)| limit.kind.counts_bytes() == counts_bytes);
        all.map(now).fold(f64::MAX, f64::min)
    }

    /// Returns the factor from one volume's units to I/Os or MiB of all volumes.
    pub(super) fn scale(&self, counts_bytes: bool) -> f64 {
        self.times / if counts_bytes { MIB as f64 } else { 1.0 }
    }

    /// Returns the part of its fullest limit that a step asks for, in thousandths.
    pub(super) fn load_permille(&self, step: &Step) -> u64 {
        self.limits.iter().map(|limit| self.load(step, limit)).max().unwrap_or_default()
    }

    pub(super) fn fullest(&self, step: &Step) -> Option<LimitKind> {
        self.limits.iter().max_by_key(|limit| self.load(step, limit)).map(|limit| limit.kind)
    }

    fn load(&self, step: &Step, limit: &OneLimit) -> u64 {
        let bytes = limit.kind.counts_bytes();
        let asked = step.asked.per_second(bytes, step.length_us) as f64 * self.scale(bytes);
        (asked * 1_000.0 / limit.burst.max(1e-9)) as u64
    }
}

pub(super) fn curve(name: &str, shape: Shape, keeps: Keeps, values: Vec<Option<f64>>) -> Curve {
    Curve { name: name.to_owned(), shape, keeps, values }
}

/// Returns a value for a table: whole, or with tenths if it is small.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Returns a time at a tick of an axis, as short as the distance of two ticks and the length allow.
fn time_words(clock: Clock, (begin_ms, length_ms): (u64, u64), second: f64, step_s: f64) -> String {
    let words = at(clock, (second.max(0.0) * 1_000.0).round() as u64);
    if clock == Clock::Elapsed {
        return words;
    }
    let part = |range: std::ops::Range<usize>| words.get(range).unwrap_or(&words).to_owned();
    let is_one_day = begin_ms / DAY_MS == begin_ms.saturating_add(length_ms) / DAY_MS;
    match step_s {
        0.0..60.0 => part(11..19),
        60.0..86_400.0 if is_one_day => part(11..16),
        60.0..86_400.0 => part(5..16).replace('T', " "),
        86_400.0..2_592_000.0 => part(5..10),
        _ => part(0..10),
    }
}
