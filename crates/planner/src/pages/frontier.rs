//! The chart of cost against waiting.

use crate::Case;
use crate::answer;
use crate::format::{currency, layout_words, money, seconds};
use crate::search::{self, Found, Wanted};
use evenkeel_pages::page::{Chart, Dot, Frontier, Part, Section, Table};

/// Seconds of waiting a day that are allowed to other layouts of the frontier.
const ALLOWANCES_S: [u64; 4] = [60, 600, 3_600, 86_400];
/// The most layouts of the frontier.
const DOTS_MAX: usize = 40;

/// A layout of the frontier.
struct Rival {
    found: Found,
    /// Milliseconds a day in which requests wait.
    ms: u64,
    /// Whether no cheaper layout waits as short.
    is_best: bool,
}

/// Returns the layouts that other allowances lead to, as they carry what was recorded.
pub fn with_allowances(case: &Case, wanted: &Wanted) -> Vec<Found> {
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

/// Returns each layout once, by its cost, without some of the worse ones if there are too many.
fn rivals(case: &Case, mut all: Vec<Found>) -> Vec<Rival> {
    let waits = |found: &Found| {
        let length_us = case.demand.length_us.max(found.end_us());
        answer::ms_per_day(found.waited_us(), length_us)
    };
    all.sort_by_key(|found| (found.total(), waits(found), found.layout.to_string()));
    all.dedup_by_key(|found| found.layout);
    let mut least_ms = u64::MAX;
    let mut rivals = Vec::new();
    for found in all {
        let ms = waits(&found);
        let is_best = ms < least_ms;
        least_ms = least_ms.min(ms);
        rivals.push(Rival { found, ms, is_best });
    }
    let best = rivals.iter().filter(|rival| rival.is_best).count();
    let mut left = DOTS_MAX.saturating_sub(best);
    rivals.retain(|rival| {
        let stays = rival.is_best || left > 0;
        left -= usize::from(stays && !rival.is_best);
        stays
    });
    rivals
}

/// Returns the chart of these layouts. `found_by` is a sentence about their origin.
pub fn frontier(case: &Case, all: Vec<Found>, found_by: &str) -> Part {
    let rivals = rivals(case, all);
    let row = |(place, rival): (usize, &Rival)| {
        let best = if rival.is_best { "yes" } else { "" };
        let number = (place + 1).to_string();
        let layout = layout_words(case, &rival.found.layout);
        let cost = money(rival.found.total());
        vec![format!("{number}: {layout}"), cost, seconds(rival.ms), best.to_owned()].into()
    };
    let cost = format!("{} a month", currency(case));
    let columns = ["layout", &cost, "waiting s/day", "none cheaper waits less"];
    let numbers = Table {
        columns: columns.map(str::to_owned).to_vec(),
        rows: rivals.iter().enumerate().map(row).collect(),
        words: vec![0, 3],
    };
    let dot = |(place, rival): (usize, &Rival)| Dot {
        number: place + 1,
        cost: rival.found.total() as f64 / 1e6,
        throttled_s: rival.ms as f64 / 1_000.0,
        is_best: rival.is_best,
    };
    let frontier =
        Frontier { currency: currency(case), dots: rivals.iter().enumerate().map(dot).collect() };
    let far = frontier.dots.iter().filter(|dot| dot.cost > frontier.end_cost()).count();
    let mut caption = format!(
        "What a month costs, and for how long requests wait a day, on a logarithmic scale. Dots on \
         the line: no cheaper layout of these waits as short. Crosses: one does.{found_by}"
    );
    if far > 0 {
        caption += &format!(" Far dearer, and in the table only: {far}.");
    }
    Part::Chart(Box::new(Section {
        title: "Cost against waiting".to_owned(),
        caption,
        chart: Chart::Frontier(frontier),
        numbers,
        shows_numbers: true,
    }))
}
