//! The answer as text and as a table.

use super::commands::commands;
use super::words::{less_words, limit_words, seconds, usd};
use super::{EXACT_REQUESTS_MAX, Told, assumed_ms, exact_ms};
use crate::message;
use evenkeel_core::units::MIB;
use evenkeel_planner::answer::Rated;
use evenkeel_planner::trace::{Clock, Note, Trace};

/// Gaps that are listed one by one.
const GAPS_SHOWN: usize = 3;

pub const COLUMNS: [&str; 8] = [
    "LAYOUT",
    "USD/MONTH",
    "THROTTLED S/DAY",
    "AT LEAST",
    "AT MOST",
    "P99 WAIT MS",
    "FULLEST LIMIT",
    "LOST/YEAR",
];

pub fn rows(told: &Told<'_>) -> Vec<Vec<String>> {
    told.rated.iter().map(|rated| row(told, rated)).collect()
}

fn row(told: &Told<'_>, rated: &Rated) -> Vec<String> {
    let found = &rated.found;
    let [even, _, worst] = rated.throttled_ms_per_day;
    let assumed = assumed_ms(told, rated);
    let fullest = rated.used_permille.iter().max_by_key(|(_, used)| *used);
    let fullest = fullest.map(|(kind, used)| format!("{} {} %", limit_words(*kind), used / 10));
    let lost = rated.loss_ppb.map(|(best, worst)| {
        let percent = |ppb: u64| format!("{}.{:03}", ppb / 10_000_000, ppb / 10_000 % 1_000);
        match best == worst {
            true => format!("{} %", percent(best)),
            false => format!("{}-{} %", percent(best), percent(worst)),
        }
    });
    vec![
        found.layout.to_string(),
        usd(found.total()),
        seconds(assumed),
        seconds(even.min(assumed)),
        seconds(worst.max(assumed)),
        found.outcome.delays.permille(990).div_ceil(1_000).to_string(),
        message::or_dash(fullest),
        message::or_dash(lost),
    ]
}

pub fn text(told: &Told<'_>) -> String {
    let mut text = header(told);
    text += &message::table(&COLUMNS, &rows(told));
    if let Some(first) = told.rated.first() {
        text += &first_words(told, first);
    }
    text
}

fn header(told: &Told<'_>) -> String {
    let Told { trace, asked, .. } = told;
    let known = message::span(trace.known_ms() / 1_000);
    let resolution = message::span(trace.resolution_ms().div_ceil(1_000));
    let mut text = format!("{}: {known}, in steps of {resolution}\n", trace.name);
    text += &format!(
        "asked for: at most {} requests and {} MiB a second, on average {} and {}\n",
        asked.peak_iops,
        asked.peak_bytes_per_second.div_ceil(MIB),
        asked.mean_iops,
        asked.mean_bytes_per_second.div_ceil(MIB),
    );
    let gaps = trace.notes.iter().filter(|note| matches!(note, Note::Gap { .. })).count();
    let mut shown = 0;
    for note in &trace.notes {
        match note {
            Note::Remark(remark) => text += &format!("note: {remark}\n"),
            Note::Gap { start_ms, length_ms } if shown < GAPS_SHOWN => {
                shown += 1;
                let length = message::span(length_ms.div_ceil(1_000));
                text += &format!("gap: {length} from {} on are not known\n", at(trace, *start_ms));
            }
            Note::Gap { .. } => {}
        }
    }
    if gaps > shown {
        text += &format!("gap: {} more\n", gaps - shown);
    }
    text + "\n"
}

/// A time of a trace.
fn at(trace: &Trace, ms: u64) -> String {
    match trace.clock {
        Clock::Unix => evenkeel_wire::aws::timestamp::extended(ms),
        Clock::Elapsed => message::span(ms / 1_000),
    }
}

/// What is to say of the cheapest layout.
fn first_words(told: &Told<'_>, rated: &Rated) -> String {
    let mut text = String::from("\n");
    text += &match &told.exact {
        Some(exact) => format!(
            "the cheapest, request by request on the scheduler: {} s of waiting a day, p99 {} ms\n",
            seconds(exact_ms(told, exact)),
            exact.delays.permille(990).div_ceil(1_000),
        ),
        None => format!(
            "not replayed request by request: more than {EXACT_REQUESTS_MAX} requests of a volume \
             may wait\n"
        ),
    };
    let less: Vec<String> = told
        .less
        .iter()
        .filter_map(|(less, exact)| {
            let ms = exact_ms(told, exact.as_ref()?);
            Some(format!("one {} less: {} s", less_words(*less), seconds(ms)))
        })
        .collect();
    if !less.is_empty() {
        text += &format!("the same with {}\n", less.join(", "));
    }
    let found = &rated.found;
    if let Some(hour) = rated.worst_hour {
        text += &format!(
            "worst hour: {} after the beginning, {} s of waiting for {}\n",
            message::span(hour.start_us / 1_000_000),
            seconds(hour.waited_us / 1_000),
            limit_words(hour.limit),
        );
    }
    let resolution_s = told.trace.resolution_ms() / 1_000;
    let [even, _, worst] = rated.throttled_ms_per_day;
    if resolution_s > 1 && worst > even {
        text += &format!(
            "steps of {} hide what happens within: requests wait for {} to {} s a day; a trace of \
             seconds tells which\n",
            message::span(resolution_s),
            seconds(even),
            seconds(worst),
        );
    }
    text += "to make it:\n";
    for line in commands(told.space, &found.layout) {
        text += &format!("  {line}\n");
    }
    text
}
