//! The parts that pages of plans share: the table of layouts, and what was assumed.

use super::curves::DRAWN_MAX;
use crate::Case;
use crate::answer::{Rated, assumed_ms};
use crate::comparison;
use crate::demand::Assume;
use crate::format::{
    currency, gap_words, layout_words, limits_words, money, money_more, plain, prices_words,
    seconds, waiting, waiting_at_most,
};
use crate::risk::{self, Risk};
use crate::spread::Spread;
use crate::trace::Note;
use evenkeel_pages::page::{Mark, Part, Row, Table};

/// Notes that are shown.
const NOTES_MAX: usize = 20;
/// Risks that a row names; the others unfold.
const RISKS_SHOWN: usize = 2;

/// Returns the risks of a layout, the worst first.
fn risks(case: &Case, rated: &Rated) -> Vec<Risk> {
    risk::risks(&case.space, &case.trace, &case.demand, rated)
}

/// Returns the warnings about a layout.
pub fn warnings(case: &Case, rated: &Rated) -> Vec<String> {
    risks(case, rated).iter().map(|risk| format!("Risk: {risk}")).collect()
}

/// Returns the mark of a layout. It is good only if no request waits wherever the requests lie
/// within the intervals, also if the workload repeats.
pub fn mark(case: &Case, rated: &Rated) -> Mark {
    let assumed = assumed_ms(case, &rated.found);
    let [_, _, worst] = rated.throttled_ms_per_day;
    if assumed > 0 || rated.dry_after_s.is_some() {
        Mark::Bad
    } else if worst > 0 || case.demand.held_back.is_some() {
        Mark::Unknown
    } else {
        Mark::Good
    }
}

/// Returns a sentence about what the mark is not sure of.
pub fn unsure_words(case: &Case, rated: &Rated) -> String {
    if mark(case, rated) != Mark::Unknown {
        return String::new();
    }
    let [_, _, worst] = rated.throttled_ms_per_day;
    match case.demand.held_back {
        Some(_) => "; more was wanted than was recorded".to_owned(),
        None => format!(", as assumed; at most {} s", seconds(worst)),
    }
}

/// Returns the table of layouts, of which the first ones have a letter. What is not in its columns
/// unfolds.
pub fn layouts(case: &Case, rated: &[Rated], letters: usize) -> Part {
    let currency = currency(case);
    let mut columns =
        vec!["layout".to_owned(), format!("{currency} a month"), format!("{currency} a year")];
    if case.source_monthly.is_some() {
        columns.push("saved a month".to_owned());
    }
    columns.extend(["waiting s/day", "risk"].map(str::to_owned));
    let last = columns.len() - 1;
    let letters = ('A'..='Z').take(letters).map(Some).chain(std::iter::repeat(None));
    let rows = rated.iter().zip(letters).enumerate();
    let rows = rows.map(|(place, (rated, letter))| Row {
        colour: (place < DRAWN_MAX).then_some(place + 1),
        ..row(case, letter, rated)
    });
    Part::Table {
        title: "Layouts".to_owned(),
        table: Table { columns, rows: rows.collect(), words: vec![0, last] },
        note: LAYOUTS_NOTE.to_owned(),
    }
}

const LAYOUTS_NOTE: &str = "Costs are of a month of 30 days, and of twelve of them. Waiting: \
                            seconds a day in which requests wait for a limit, as assumed, and \
                            from at least to at most where the recording does not say which. \
                            Lost: how many of a hundred such layouts lose data within a year, as \
                            published of the type.";

fn row(case: &Case, letter: Option<char>, rated: &Rated) -> Row {
    let found = &rated.found;
    let risks = risks(case, rated);
    let words = layout_words(case, &found.layout);
    let mut cells = vec![
        letter.map_or_else(|| words.clone(), |letter| format!("{letter}: {words}")),
        money(found.total()),
        money(found.total().saturating_mul(12)),
    ];
    cells.extend(case.source_monthly.map(|before| money_more(before, found.total())));
    cells.push(waiting_range(case, rated));
    cells.push(risk_names(&risks));
    let risks = risks.iter().map(|risk| ("risk".to_owned(), risk.to_string()));
    let more = values(case, rated).into_iter().chain(risks).collect();
    Row { cells, more, ..Row::default() }
}

/// Returns the waiting as assumed, with its bounds if they differ.
fn waiting_range(case: &Case, rated: &Rated) -> String {
    let assumed = assumed_ms(case, &rated.found);
    let [even, _, worst] = rated.throttled_ms_per_day;
    let least = even.min(assumed);
    let most = worst.max(assumed);
    let words = waiting(case, assumed);
    if least == most || case.demand.held_back.is_some() {
        words
    } else {
        format!("{words} ({} to {})", seconds(least), waiting_at_most(case, most))
    }
}

fn risk_names(risks: &[Risk]) -> String {
    let names = risks.iter().take(RISKS_SHOWN).map(|risk| risk.name().replace('_', " "));
    let mut names: Vec<String> = names.collect();
    let more = risks.len().saturating_sub(RISKS_SHOWN);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns all values of a layout, each after its name.
pub fn values(case: &Case, rated: &Rated) -> Vec<(String, String)> {
    let rows = comparison::rows(case, std::slice::from_ref(rated)).into_iter();
    let pair = |row: Vec<String>| {
        let mut cells = row.into_iter();
        let name = cells.next()?.trim().to_owned();
        Some((name, cells.next()?))
    };
    rows.filter_map(pair).collect()
}

/// Returns what an answer was based on, beside what was allowed.
pub fn assumptions(case: &Case, wanted: Vec<(String, String)>, notes: &[String]) -> Part {
    let term = |name: &str, words: String| (name.to_owned(), words);
    let mut all = vec![
        term("Rules", format!("of {}", case.space.rules.date())),
        term("Prices", prices_words(case)),
        term("Limits", limits_words(case)),
    ];
    all.extend(wanted);
    let within = match case.assume {
        Assume::Even => "requests come evenly within an interval",
        Assume::Active => {
            "requests come evenly in the time in which the volume was not idle, where the trace \
             tells that"
        }
        Assume::Worst => "requests come as fast as the source allowed",
    };
    all.push(term("Within intervals", within.to_owned()));
    let instances: Vec<&str> = case.space.instances.iter().map(|instance| instance.name).collect();
    if !instances.is_empty() {
        all.push(term("Instance", instances.join(", ")));
    }
    all.push(match case.space.spread {
        Spread::Striped { stripe_bytes } => {
            term("Stripes", format!("{} KiB in a row on one volume", stripe_bytes >> 10))
        }
        Spread::Hot { percent } => {
            let words = "of the requests go to one of several volumes; limits and waiting are its";
            term("Hot volume", format!("{percent} % {words}"))
        }
    });
    all.extend(notes.iter().map(|note| term("Note", note.clone())));
    all.push(term("Gaps", "nothing comes in them, and no credits are earned".to_owned()));
    let notes = case.trace.notes.iter().map(|note| match note {
        Note::Remark(remark) => plain(remark),
        Note::Gap { start_ms, length_ms } => gap_words(case.trace.clock, *start_ms, *length_ms),
    });
    all.extend(notes.take(NOTES_MAX).map(|note| term("Note", note)));
    let more = case.trace.notes.len().saturating_sub(NOTES_MAX);
    if more > 0 {
        all.push(term("Note", format!("{more} more, in the JSON")));
    }
    all.push(made_by());
    Part::Terms { title: "What was assumed".to_owned(), terms: all }
}

/// Returns the program that made a page.
pub fn made_by() -> (String, String) {
    ("Made by".to_owned(), format!("evenkeel {}", env!("CARGO_PKG_VERSION")))
}

/// Returns the recording's time and steps.
pub fn recording(case: &Case) -> String {
    let trace = &case.trace;
    let begin = trace.intervals.first().map_or(0, |interval| interval.start_ms);
    let end = trace.intervals.last().map_or(0, |interval| interval.end_ms());
    let known = evenkeel_sim::text::span(trace.known_ms() / 1_000);
    let time = |ms| crate::format::at(trace.clock, ms);
    let times = format!("{} to {} · {known} are known", time(begin), time(end));
    match trace.resolution_ms().div_ceil(1_000) {
        0 => format!("{times}, without a request"),
        resolution => format!("{times}, in steps of {}", evenkeel_sim::text::span(resolution)),
    }
}
