//! The states of a layout, step by step.

use crate::answer::Rated;
use crate::answer::json;
use crate::case::{Case, EXACT_REQUESTS_MAX};
use crate::format::{self, at, limit_words, plain, seconds, span_us};
use crate::layout::LimitKind;
use crate::refusal::{Cause, Refusal};
use crate::timeline::{STEPS_MAX, Step, Timeline, Times, least_step_us};
use crate::trace::Clock;
use crate::verdict;
use evenkeel_core::units::MIB;
use evenkeel_sim::text::{csv, or_dash, table};
use serde_json::{Value, json};

const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
/// Less waiting than this in a step is rounding.
const WAITING_US_MIN: u64 = 1_000;
const MICRO: u128 = 1_000_000;

/// A time of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// In milliseconds since 1970.
    Unix(u64),
    /// In milliseconds after the trace's beginning.
    After(u64),
}

/// The part of a replay that is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Excerpt {
    /// The length of a step, in seconds; `None` for a minute, or an interval of the trace.
    pub step_s: Option<u32>,
    /// Its start; `None` for the trace's.
    pub from: Option<Moment>,
    /// Its end; `None` for the trace's.
    pub to: Option<Moment>,
    /// The most lines.
    pub lines_max: usize,
}

impl Case {
    /// Returns what happens on a layout in words, or on the cheapest layout.
    ///
    /// # Errors
    /// If there is no such layout, or if the excerpt has no step.
    pub fn explain(
        &self,
        layout: Option<&str>,
        excerpt: &Excerpt,
    ) -> Result<Explanation<'_>, Refusal> {
        let rated = match layout {
            Some(text) => self.given(text, EXACT_REQUESTS_MAX)?,
            None => {
                let wanted = self.wanted()?;
                self.check_length()?;
                let mut cheapest = self.cheapest(&wanted, 1)?;
                cheapest.pop().ok_or_else(|| Refusal::new("no layout was rated"))?
            }
        };
        let step_us = step_us(self, excerpt.step_s)?;
        let timeline = Timeline::of(&self.space, &self.demand, &rated.found.layout, step_us);
        let times = Times::of(&self.trace);
        let shown = shown(self, &times, &timeline, excerpt)?;
        let lines = lines(&timeline, shown, excerpt.lines_max);
        let impossible = verdict::impossible(self, &rated.found.layout);
        Ok(Explanation { case: self, rated, impossible, timeline, times, step_us, lines })
    }
}

/// Returns the length of a step: that of the flag, or a minute, or an interval of the trace.
fn step_us(case: &Case, said_s: Option<u32>) -> Result<u64, Refusal> {
    let least_us = least_step_us(&case.demand);
    let Some(said_s) = said_s else {
        let resolution_us = case.trace.resolution_ms().saturating_mul(1_000);
        return Ok(MINUTE_US.max(resolution_us).max(least_us));
    };
    let said_us = u64::from(said_s) * SECOND_US;
    if said_us < least_us {
        let all = evenkeel_sim::text::span(case.demand.length_us / SECOND_US);
        let message =
            format!("--step {said_s}: {all} have more than {STEPS_MAX} steps of {said_s} s");
        let hint = format!("take at least {} s", least_us / SECOND_US);
        return Err(Refusal::new(message).cause(Cause::Question).hint(hint));
    }
    Ok(said_us)
}

/// Returns the steps that the flags choose.
fn shown(
    case: &Case,
    times: &Times,
    timeline: &Timeline,
    excerpt: &Excerpt,
) -> Result<std::ops::Range<usize>, Refusal> {
    let begin_ms = times.ms(0);
    let us = |moment: Moment| match (moment, case.trace.clock) {
        (Moment::After(ms), _) => Ok(times.us(begin_ms.saturating_add(ms))),
        (Moment::Unix(ms), Clock::Unix) => Ok(times.us(ms)),
        (Moment::Unix(_), Clock::Elapsed) => {
            Err(Refusal::new("the trace does not say at what time of day it was recorded")
                .cause(Cause::Question)
                .hint("give --from and --to as times after its beginning, such as 1h30m"))
        }
    };
    let from_us = excerpt.from.map_or(Ok(0), us)?;
    let to_us = excerpt.to.map_or(Ok(u64::MAX), us)?;
    let all = &timeline.steps;
    let first = all.partition_point(|step| step.start_us + step.length_us <= from_us);
    let end = all.partition_point(|step| step.start_us < to_us);
    if first >= end {
        let [from, to] = [begin_ms, end_ms(case)].map(|ms| at(case.trace.clock, ms));
        return Err(Refusal::new("nothing of the trace lies between --from and --to")
            .cause(Cause::Question)
            .hint(format!("it goes from {from} to {to}")));
    }
    Ok(first..end)
}

fn end_ms(case: &Case) -> u64 {
    case.trace.intervals.last().map_or(0, |interval| interval.end_ms())
}

/// The state of the requests in a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Quiet,
    /// More credits are spent than are earned.
    Spends,
    Waits,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Spends => "spends credits",
            Self::Waits => "waits",
        }
    }
}

fn state(timeline: &Timeline, place: usize) -> State {
    let balance = |place: usize| timeline.steps.get(place).and_then(Step::least_balance_ppm);
    let Some(step) = timeline.steps.get(place) else { return State::Quiet };
    // Credits are full before the first request.
    let before = place.checked_sub(1).map_or(Some(1_000_000), balance).unwrap_or_default();
    match step.waited_us() {
        WAITING_US_MIN.. => State::Waits,
        _ if step.least_balance_ppm().is_some_and(|now| now < before) => State::Spends,
        _ => State::Quiet,
    }
}

/// Steps that are shown in one line, by their places.
struct Line {
    steps: std::ops::Range<usize>,
    state: State,
}

/// Returns at most `most` lines for the steps of a range. Each step that waits has its own, as long
/// as they fit; otherwise those that wait the longest have, and the steps between them are
/// together, or divided evenly.
fn lines(timeline: &Timeline, shown: std::ops::Range<usize>, most: usize) -> Vec<Line> {
    let states: Vec<State> = shown.clone().map(|place| state(timeline, place)).collect();
    let all = folded(&shown, &states, &|_, state| state == State::Waits);
    if all.len() <= most {
        return all;
    }
    let waited = |place: usize| timeline.steps.get(place).map_or(0, Step::waited_us);
    let mut longest: Vec<usize> = shown
        .clone()
        .zip(&states)
        .filter(|(_, state)| **state == State::Waits)
        .map(|(place, _)| place)
        .collect();
    longest.sort_by_key(|place| (std::cmp::Reverse(waited(*place)), *place));
    // There is a line between two of them, one before and one after all.
    longest.truncate(most.saturating_sub(1) / 2);
    longest.sort_unstable();
    // The lines that are left divide long ones.
    let room = most.saturating_sub(2 * longest.len() + 1);
    let longest_line = shown.len().div_ceil(room.max(1)).max(1);
    let longest_line = if room == 0 { usize::MAX } else { longest_line };
    let alike: Vec<State> = states.iter().map(|_| State::Quiet).collect();
    let is_alone = |place: usize, _: State| longest.binary_search(&place).is_ok();
    let mut lines: Vec<Line> = folded(&shown, &alike, &is_alone)
        .into_iter()
        .flat_map(|line| {
            let end = line.steps.end;
            let starts = line.steps.step_by(longest_line);
            starts.map(move |start| start..end.min(start.saturating_add(longest_line)))
        })
        .map(|steps| Line { steps, state: State::Quiet })
        .collect();
    for line in &mut lines {
        let states = line.steps.clone().map(|place| state(timeline, place));
        line.state = states.max_by_key(|state| *state as u8).unwrap_or(State::Quiet);
    }
    lines
}

/// Returns lines in which steps of the same state that follow each other are together, except those
/// that stay alone.
fn folded(
    shown: &std::ops::Range<usize>,
    states: &[State],
    is_alone: &dyn Fn(usize, State) -> bool,
) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut before_alone = true;
    for (place, state) in shown.clone().zip(states) {
        let alone = is_alone(place, *state);
        match lines.last_mut().filter(|line| !alone && !before_alone && line.state == *state) {
            Some(line) => line.steps.end = place + 1,
            None => lines.push(Line { steps: place..place + 1, state: *state }),
        }
        before_alone = alone;
    }
    lines
}

const COLUMNS: [&str; 12] = [
    "TIME",
    "FOR",
    "STATE",
    "ASKED IOPS",
    "ASKED MIB/S",
    "SERVED IOPS",
    "SERVED MIB/S",
    "QUEUE",
    "CREDITS",
    "WAITING S",
    "LIMIT",
    "LONGEST WAIT MS",
];

/// The figures of a line: the most of its steps, the least credits, all waiting.
struct Figures {
    start_us: u64,
    length_us: u64,
    asked: [u64; 2],
    served: [u64; 2],
    queue: u64,
    balance_ppm: Option<u32>,
    waited_us: u64,
    limit: Option<LimitKind>,
    delay_us: u64,
}

/// The states of a layout, step by step.
pub struct Explanation<'a> {
    case: &'a Case,
    rated: Rated,
    /// Why the layout cannot be in the place of the source; `None` if it can.
    impossible: Option<String>,
    timeline: Timeline,
    times: Times,
    step_us: u64,
    lines: Vec<Line>,
}

impl Explanation<'_> {
    fn figures(&self, line: &Line) -> Figures {
        let steps = self.timeline.steps.get(line.steps.clone()).unwrap_or_default();
        let volumes = u64::from(self.timeline.volumes);
        let rate = |pick: fn(&Step) -> crate::timeline::Amount, bytes: bool| {
            let rates = steps.iter().map(|step| pick(step).per_second(bytes, step.length_us));
            rates.max().unwrap_or_default().saturating_mul(volumes)
        };
        let queue = steps.iter().map(|step| step.queue.operations).max().unwrap_or_default();
        let worst = steps.iter().max_by_key(|step| step.waited_us());
        let limit = worst.filter(|_| line.state == State::Waits).and_then(Step::binding);
        Figures {
            start_us: steps.first().map_or(0, |step| step.start_us),
            length_us: steps.iter().map(|step| step.length_us).sum(),
            asked: [rate(|step| step.asked, false), rate(|step| step.asked, true)],
            served: [rate(|step| step.served, false), rate(|step| step.served, true)],
            queue: (queue * u128::from(volumes) / MICRO).min(u64::MAX.into()) as u64,
            balance_ppm: steps.iter().filter_map(Step::least_balance_ppm).min(),
            waited_us: steps.iter().map(Step::waited_us).sum(),
            limit: limit.and_then(|place| self.timeline.limits.get(place)).copied(),
            delay_us: steps.iter().map(|step| step.delay_us).max().unwrap_or_default(),
        }
    }

    /// Returns why the layout cannot be in the place of the source; `None` if it can.
    #[must_use]
    pub fn impossible_words(&self) -> Option<String> {
        let layout = self.rated.found.layout;
        self.impossible.as_ref().map(|why| format!("{layout} is impossible: {why}"))
    }

    fn rows(&self) -> Vec<Vec<String>> {
        self.lines.iter().map(|line| self.row(line)).collect()
    }

    /// Returns the lines as CSV.
    #[must_use]
    pub fn csv(&self) -> String {
        csv(&COLUMNS, &self.rows())
    }

    fn row(&self, line: &Line) -> Vec<String> {
        let figures = self.figures(line);
        let mib = |bytes: u64| bytes.div_ceil(MIB).to_string();
        vec![
            at(self.case.trace.clock, self.times.ms(figures.start_us)),
            span_us(figures.length_us),
            line.state.name().to_owned(),
            figures.asked[0].to_string(),
            mib(figures.asked[1]),
            figures.served[0].to_string(),
            mib(figures.served[1]),
            figures.queue.to_string(),
            or_dash(figures.balance_ppm.map(|ppm| format!("{} %", ppm / 10_000))),
            seconds(figures.waited_us / 1_000),
            or_dash(figures.limit.map(limit_words)),
            (figures.delay_us / 1_000).to_string(),
        ]
    }

    /// Returns the explanation in lines.
    #[must_use]
    pub fn text(&self) -> String {
        let trace = &self.case.trace;
        let layout = self.rated.found.layout;
        let mut text = format!(
            "{} on {}: {} {} a month\n",
            plain(&trace.name),
            format::layout_words(self.case, &layout),
            format::money(self.rated.found.total()),
            format::currency(self.case)
        );
        if let Some(why) = &self.impossible {
            text += &format!("impossible: {why}\n");
        }
        text += &format::basis_lines(self.case);
        text += &format!(
            "steps of {}; a line of several steps has the most of them, and the least credits\n\n",
            span_us(self.step_us)
        );
        if layout.volumes > self.timeline.volumes {
            text += "all figures are of the volume that gets the most\n";
        }
        text += &table(&COLUMNS, &self.rows());
        let after_us = self.timeline.end_us.saturating_sub(self.case.demand.length_us);
        if after_us >= WAITING_US_MIN {
            text +=
                &format!("\nafter the end, what waits is served within {}\n", span_us(after_us));
        }
        if let Some(longest) = self.timeline.longest {
            text += &format!(
                "\nrequests wait {} times; the longest from {} on for {}, at the limit of {}\n",
                self.timeline.episodes,
                at(trace.clock, self.times.ms(longest.start_us)),
                span_us(longest.length_us()),
                limit_words(longest.limit),
            );
        }
        text
    }

    /// Returns the explanation as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let line = |line: &Line| {
            let figures = self.figures(line);
            json!({
                "start_ms": self.times.ms(figures.start_us),
                "length_ms": figures.length_us / 1_000,
                "steps": line.steps.len(),
                "state": line.state.name(),
                "asked_iops": figures.asked[0],
                "asked_bytes_per_second": figures.asked[1],
                "served_iops": figures.served[0],
                "served_bytes_per_second": figures.served[1],
                "queue": figures.queue,
                "credits_ppm": figures.balance_ppm,
                "waited_ms": figures.waited_us / 1_000,
                "limit": figures.limit.map(limit_words),
                "longest_wait_ms": figures.delay_us / 1_000,
            })
        };
        let after_us = self.timeline.end_us.saturating_sub(self.case.demand.length_us);
        let value = json!({
            "schema": "evenkeel.plan.explain/1",
            "trace": json::trace_json(&self.case.trace),
            "layout": json::layout_json(self.case, &self.rated),
            "impossible": self.impossible,
            "step_ms": self.step_us / 1_000,
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "after_the_end_ms": after_us / 1_000,
            "times_of_waiting": self.timeline.episodes,
        });
        json::with_basis(self.case, value)
    }
}
