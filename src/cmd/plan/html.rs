//! The answer as a page: the figures of its charts. The laboratory draws them.

mod curves;

use super::commands::commands;
use super::format::{
    asked_words, at, currency, gap_words, hdd_words, headroom_words, layout_words, limits_words,
    money, plain, prices_words, saving_words, seconds, waiting,
};
use super::input::Case;
use super::{PlanAnswer, assumed_ms, text};
use curves::{DRAWN_MAX, Drawn};
use evenkeel_client::output::Failure;
use evenkeel_lab::report::plan::{Chart, Dot, Frontier, PlanPage, Section, Table};
use evenkeel_planner::answer::Rated;
use evenkeel_planner::demand::Assume;
use evenkeel_planner::layout_text;
use evenkeel_planner::risk;
use evenkeel_planner::search::{self, Found, Wanted};
use evenkeel_planner::spread::Spread;
use evenkeel_planner::trace::Note;

/// Seconds of waiting a day that are allowed to other layouts of the frontier.
const ALLOWANCES_S: [u64; 4] = [60, 600, 3_600, 86_400];
/// The most layouts of the frontier.
const DOTS_MAX: usize = 40;
/// Notes that are shown.
const NOTES_MAX: usize = 20;

/// Returns the page of a plan.
pub fn page(told: &PlanAnswer<'_>, wanted: &Wanted) -> Result<String, Failure> {
    let PlanAnswer { case, rated, .. } = *told;
    let Some(first) = rated.first() else { return Err(Failure::new("there is no layout")) };
    let shown = told.drawn(DRAWN_MAX);
    let drawn = Drawn::of(case, &shown);
    let mut charts = drawn.sections();
    charts.push(frontier(told, wanted));
    let risks = risk::risks(&case.space, &case.trace, &case.demand, first);
    let total = money(first.found.total());
    let throttled = waiting(case, assumed_ms(case, &first.found));
    let page = PlanPage {
        title: plain(&case.trace.name),
        about: about(told, first.found.total()),
        headline: format!(
            "{}: {total} {} a month, requests wait {throttled} s a day",
            layout_words(case, &first.found.layout),
            currency(case)
        ),
        is_good: assumed_ms(case, &first.found) == 0 && case.demand.held_back.is_none(),
        warnings: risks.iter().map(ToString::to_string).collect(),
        layouts: layouts(told, &shown),
        charts,
        commands: all_commands(case, first),
        assumptions: assumptions(told, wanted),
    };
    Ok(page.to_html()?)
}

fn about(told: &PlanAnswer<'_>, total: u64) -> Vec<String> {
    let (trace, asked) = (&told.case.trace, &told.asked);
    let begin = trace.intervals.first().map_or(0, |interval| interval.start_ms);
    let end = trace.intervals.last().map_or(0, |interval| interval.end_ms());
    let mut about = vec![
        format!(
            "{} to {} · {} are known, in steps of {}",
            at(trace.clock, begin),
            at(trace.clock, end),
            layout_text::span(trace.known_ms() / 1_000),
            layout_text::span(trace.resolution_ms().div_ceil(1_000)),
        ),
        asked_words(asked),
    ];
    about.extend(headroom_words(told.case));
    about.extend(told.on_hdd.iter().map(|on_hdd| hdd_words(told.case, on_hdd, total)));
    about.extend(saving_words(told.case, total).map(|words| format!("The cheapest {words}")));
    about
}

/// Returns the letter of a layout in charts; empty if it is not drawn.
fn letter(place: usize) -> String {
    let mut letters = ('A'..).take(DRAWN_MAX);
    letters.nth(place).map_or_else(String::new, String::from)
}

/// Returns the table of the text, with the letters of the charts.
fn layouts(told: &PlanAnswer<'_>, shown: &[Rated]) -> Table {
    let columns: Vec<String> =
        std::iter::once(String::new()).chain(text::columns(told.case)).collect();
    let words = columns.iter().take_while(|name| !name.ends_with("/MONTH")).count();
    let rows = shown.iter().map(|rated| text::row(told, rated)).enumerate();
    let rows = rows.map(|(place, row)| std::iter::once(letter(place)).chain(row).collect());
    Table { columns, rows: rows.collect(), words: (0..words).collect() }
}

/// Returns the layouts that other allowances lead to, as they carry what was recorded.
fn with_allowances(case: &Case, wanted: &Wanted) -> Vec<Found> {
    let recorded = |found: Found| match case.headroom_percent {
        0 => Some(found),
        _ => search::given(&case.space, &case.demand, &found.layout),
    };
    let looser = |allowed_s: u64| Wanted {
        throttled_us_per_day_max: allowed_s * 1_000_000,
        delays: vec![],
        ..wanted.clone()
    };
    let found = |allowed_s| search::cheapest(&case.space, case.wanted_demand(), &looser(allowed_s));
    ALLOWANCES_S.into_iter().flat_map(found).filter_map(recorded).collect()
}

/// Returns the chart of the answer's layouts and of those that other allowances lead to.
fn frontier(told: &PlanAnswer<'_>, wanted: &Wanted) -> Section {
    let case = told.case;
    let mut all: Vec<Found> = told.rated.iter().map(|rated| rated.found.clone()).collect();
    all.extend(with_allowances(case, wanted));
    let waits = |found: &Found| {
        let length_us = case.demand.length_us.max(found.end_us());
        evenkeel_planner::answer::ms_per_day(found.waited_us(), length_us)
    };
    all.sort_by_key(|found| (found.total(), waits(found), found.layout.to_string()));
    all.dedup_by_key(|found| found.layout);
    let mut least_ms = u64::MAX;
    let mut dots = Vec::new();
    for found in all {
        let ms = waits(&found);
        // No cheaper layout waits as short.
        let is_best = ms < least_ms;
        least_ms = least_ms.min(ms);
        dots.push((found, ms, is_best));
    }
    // The best are kept, if there are too many.
    let best = dots.iter().filter(|(_, _, is_best)| *is_best).count();
    let mut left = DOTS_MAX.saturating_sub(best);
    dots.retain(|(_, _, is_best)| {
        let stays = *is_best || left > 0;
        left -= usize::from(stays && !*is_best);
        stays
    });
    let row = |(place, (found, ms, is_best)): (usize, &(Found, u64, bool))| {
        let best = if *is_best { "yes" } else { "" };
        let (number, layout) = ((place + 1).to_string(), layout_words(case, &found.layout));
        vec![number, layout, money(found.total()), seconds(*ms), best.to_owned()]
    };
    let cost = format!("{}/MONTH", currency(case));
    let columns = ["", "LAYOUT", &cost, "THROTTLED S/DAY", "NONE CHEAPER WAITS LESS"];
    let numbers = Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: dots.iter().enumerate().map(row).collect(),
        words: vec![1, 4],
    };
    let dot = |(place, (found, ms, is_best)): (usize, &(Found, u64, bool))| Dot {
        number: place + 1,
        cost: found.total() as f64 / 1e6,
        throttled_s: *ms as f64 / 1_000.0,
        is_best: *is_best,
    };
    let frontier =
        Frontier { currency: currency(case), dots: dots.iter().enumerate().map(dot).collect() };
    let far = frontier.dots.iter().filter(|dot| dot.cost > frontier.end_cost()).count();
    let mut caption = String::from(
        "What a month costs, and for how long requests wait a day, on a logarithmic scale. Dots on \
         the line: no cheaper layout of these waits as short. Crosses: one does. Found by allowing \
         a minute, ten, an hour and a day of waiting a day.",
    );
    if far > 0 {
        caption += &format!(" Far dearer, and in the table only: {far}.");
    }
    Section {
        title: "Cost against waiting".to_owned(),
        caption,
        chart: Chart::Frontier(frontier),
        numbers,
        shows_numbers: true,
    }
}

fn all_commands(case: &Case, first: &evenkeel_planner::answer::Rated) -> Vec<(String, String)> {
    let all = commands(case, &first.found.layout);
    let notes = |notes: &[String]| notes.iter().map(|note| format!("# {note}")).collect();
    let joined = |parts: [&[String]; 3]| parts.concat().join("\n");
    let (there, back): (Vec<String>, Vec<String>) = (notes(&all.notes), notes(&all.back.notes));
    let mut told = vec![
        ("aws-cli".to_owned(), joined([&all.aws, &all.stripe, &there])),
        ("evenkeel".to_owned(), joined([&all.evenkeel, &all.stripe, &there])),
        ("Terraform".to_owned(), all.terraform.trim_end().to_owned()),
        ("Back, with aws-cli".to_owned(), joined([&all.back.aws, &back, &[]])),
        ("Back, with evenkeel".to_owned(), joined([&all.back.evenkeel, &back, &[]])),
    ];
    told.retain(|(_, lines)| !lines.is_empty());
    told
}

fn assumptions(told: &PlanAnswer<'_>, wanted: &Wanted) -> Vec<(&'static str, String)> {
    let case = told.case;
    let mut all = vec![
        ("Rules", format!("of {}", case.space.rules.date())),
        ("Prices", prices_words(case)),
        ("Limits", limits_words(case)),
        ("Capacity", format!("{} GiB", wanted.capacity_gib)),
        ("Allowed", format!("{} s of waiting a day", wanted.throttled_us_per_day_max / 1_000_000)),
    ];
    for (permille, us) in &wanted.delays {
        let share = format!("{} of 1,000 requests wait at most {} ms", permille, us / 1_000);
        all.push(("Allowed", share));
    }
    let within = match case.assume {
        Assume::Even => "requests come evenly within an interval",
        Assume::Active => {
            "requests come evenly in the time in which the volume was not idle, where the trace \
             tells that"
        }
        Assume::Worst => "requests come as fast as the source allowed",
    };
    all.push(("Within intervals", within.to_owned()));
    let instances: Vec<&str> = case.space.instances.iter().map(|it| it.name).collect();
    if !instances.is_empty() {
        all.push(("Instance", instances.join(", ")));
    }
    all.push(match case.space.spread {
        Spread::Striped { stripe_bytes } => {
            ("Stripes", format!("{} KiB in a row on one volume", stripe_bytes >> 10))
        }
        Spread::Hot { percent } => {
            let words = "of the requests go to one of several volumes; limits and waiting are its";
            ("Hot volume", format!("{percent} % {words}"))
        }
    });
    all.extend(told.notes.iter().map(|note| ("Note", note.clone())));
    all.push(("Gaps", "nothing comes in them, and no credits are earned".to_owned()));
    let notes = case.trace.notes.iter().map(|note| match note {
        Note::Remark(remark) => plain(remark),
        Note::Gap { start_ms, length_ms } => gap_words(case.trace.clock, *start_ms, *length_ms),
    });
    all.extend(notes.take(NOTES_MAX).map(|note| ("Note", note)));
    let more = case.trace.notes.len().saturating_sub(NOTES_MAX);
    if more > 0 {
        all.push(("Note", format!("{more} more, in the JSON")));
    }
    let made = format!("evenkeel {}", env!("CARGO_PKG_VERSION"));
    all.push(("Made by", made));
    all
}
