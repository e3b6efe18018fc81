//! The answer as text and as a table.

use super::commands::commands;
use super::format::{
    asked_words, basis_lines, currency, gap_words, hdd_words, headroom_words, is_of_instance,
    less_words, limit_words, loss_words, money, money_more, plain, saving_words, seconds, waiting,
    waiting_at_most,
};
use super::input::Case;
use super::{EXACT_REQUESTS_MAX, PlanAnswer, assumed_ms, device, model};
use evenkeel_client::output;
use evenkeel_planner::answer::Rated;
use evenkeel_planner::layout::LimitKind;
use evenkeel_planner::layout_text;
use evenkeel_planner::risk;
use evenkeel_planner::search::{Found, Tolerance};
use evenkeel_planner::trace::Note;

/// Gaps that are listed one by one.
const GAPS_SHOWN: usize = 3;

/// Returns the columns: with the instance if several are candidates, and the saving if the source
/// is known.
pub fn columns(case: &Case) -> Vec<String> {
    let currency = currency(case);
    let mut columns = vec!["LAYOUT".to_owned()];
    if case.space.instances.len() > 1 {
        columns.push("INSTANCE".to_owned());
    }
    columns.push(format!("{currency}/MONTH"));
    if case.source_monthly.is_some() {
        columns.push(format!("SAVED {currency}"));
    }
    let others = [
        "THROTTLED S/DAY",
        "AT LEAST",
        "AT MOST",
        "P99 WAIT MS",
        "WITH DEVICE MS",
        "WAITS BY",
        "FULLEST LIMIT",
        "LOST/YEAR",
    ];
    columns.extend(others.map(str::to_owned));
    columns
}

pub fn rows(told: &PlanAnswer<'_>) -> Vec<Vec<String>> {
    told.rated.iter().map(|rated| row(told, rated)).collect()
}

fn row(told: &PlanAnswer<'_>, rated: &Rated) -> Vec<String> {
    let (case, found) = (told.case, &rated.found);
    let [even, _, worst] = rated.throttled_ms_per_day;
    let assumed = assumed_ms(case, found);
    let fullest =
        fullest(rated).map(|(kind, used)| format!("{} {} %", limit_words(kind), used / 10));
    let mut row = vec![found.layout.to_string()];
    if case.space.instances.len() > 1 {
        row.push(output::or_dash(found.layout.instance.map(|it| it.name)));
    }
    row.push(money(found.total()));
    row.extend(case.source_monthly.map(|before| money_more(before, found.total())));
    row.extend([
        waiting(case, assumed),
        waiting(case, even.min(assumed)),
        waiting_at_most(case, worst.max(assumed)),
        found.delays().permille(990).div_ceil(1_000).to_string(),
        output::or_dash(device::with_device(case, found, 990)),
        model(found).to_owned(),
        output::or_dash(fullest),
        output::or_dash(rated.loss_ppb.map(loss_words)),
    ]);
    row
}

/// Returns the limit that the busiest span comes closest to, and its use in thousandths.
fn fullest(rated: &Rated) -> Option<(LimitKind, u64)> {
    rated.used_permille.iter().max_by_key(|(_, used)| *used).copied()
}

pub fn text(told: &PlanAnswer<'_>) -> String {
    let mut text = header(told);
    let columns = columns(told.case);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    text += &output::table(&columns, &rows(told));
    for rated in told.rated {
        if let Some(after_s) = rated.dry_after_s {
            let (layout, after) = (rated.found.layout, layout_text::span(after_s));
            text += &format!("runs dry: {layout}, after {after} if the workload repeats\n");
        }
    }
    if let Some(first) = told.rated.first() {
        text += &first_words(told, first);
    }
    text
}

fn header(told: &PlanAnswer<'_>) -> String {
    let (trace, asked) = (&told.case.trace, &told.asked);
    let known = layout_text::span(trace.known_ms() / 1_000);
    let mut text = match trace.resolution_ms().div_ceil(1_000) {
        0 => format!("{}: {known} without a request\n", plain(&trace.name)),
        resolution => {
            let resolution = layout_text::span(resolution);
            format!("{}: {known}, in steps of {resolution}\n", plain(&trace.name))
        }
    };
    text += &format!("{}\n", asked_words(asked));
    text += &headroom_words(told.case).map_or_else(String::new, |words| format!("{words}\n"));
    let gaps = trace.notes.iter().filter(|note| matches!(note, Note::Gap { .. })).count();
    let mut shown = 0;
    for note in &trace.notes {
        match note {
            Note::Remark(remark) => text += &format!("note: {}\n", plain(remark)),
            Note::Gap { start_ms, length_ms } if shown < GAPS_SHOWN => {
                shown += 1;
                text += &format!("gap: {}\n", gap_words(trace.clock, *start_ms, *length_ms));
            }
            Note::Gap { .. } => {}
        }
    }
    if gaps > shown {
        text += &format!("gap: {} more\n", gaps - shown);
    }
    text += &basis_lines(told.case);
    for note in &told.notes {
        text += &format!("note: {note}\n");
    }
    text + "\n"
}

/// Returns the lines about the cheapest layout.
fn first_words(told: &PlanAnswer<'_>, rated: &Rated) -> String {
    let mut text = String::from("\n");
    if let Some(saving) = saving_words(told.case, rated.found.total()) {
        text += &format!("{saving}\n");
    }
    if let Some(on_hdd) = &told.on_hdd {
        text += &format!("{}\n", hdd_words(told.case, on_hdd, rated.found.total()));
    }
    text += &of_instance(rated).unwrap_or_default();
    text += &waiting_words(told.case, &rated.found);
    let less = told.less.iter().filter_map(|(less, ms)| {
        Some(format!("one {} less: {} s", less_words(*less), waiting(told.case, (*ms)?)))
    });
    let less: Vec<String> = less.collect();
    if !less.is_empty() {
        let headroom = match told.case.headroom_percent {
            0 => String::new(),
            percent => format!(" and {percent} % more requests"),
        };
        text += &format!("the same with {}{headroom}\n", less.join(", "));
    }
    let found = &rated.found;
    text += &device::text(told.case, found);
    if let Some(hour) = rated.worst_hour {
        text += &format!(
            "worst hour: {} after the beginning, {} s of waiting for {}\n",
            layout_text::span(hour.start_us / 1_000_000),
            seconds(hour.waited_us / 1_000),
            limit_words(hour.limit),
        );
    }
    for risk in risk::risks(&told.case.space, &told.case.trace, &told.case.demand, rated) {
        text += &format!("risk: {risk}\n");
    }
    if told.case.source.is_some_and(|source| source.is_same_volumes(&found.layout)) {
        return text + "nothing to do: this is the present layout\n";
    }
    text + &commands(told.case, &found.layout).text()
}

/// Returns the line about the waiting on the cheapest layout, and the model that it is from.
fn waiting_words(case: &Case, found: &Found) -> String {
    let by = match (&found.exact, case.space.tolerance) {
        (Some(_), _) => "request by request on the scheduler",
        (None, Tolerance::None) => "by its limits alone",
        (None, Tolerance::Evenkeel) => {
            return format!(
                "not replayed request by request: more than {EXACT_REQUESTS_MAX} requests of a \
                 volume may wait\n"
            );
        }
    };
    format!(
        "the cheapest, {by}: {} s of waiting a day, p99 {} ms\n",
        waiting(case, assumed_ms(case, found)),
        found.delays().permille(990).div_ceil(1_000),
    )
}

/// Returns the line about the closest limit, if there is an instance.
fn of_instance(rated: &Rated) -> Option<String> {
    let name = rated.found.layout.instance?.name;
    let (kind, used) = fullest(rated)?;
    let whose = if is_of_instance(kind) { "the instance binds" } else { "the volumes bind" };
    let (limit, percent) = (limit_words(kind), used / 10);
    Some(format!("on {name}, {whose} first: {percent} % of {limit} in the busiest interval\n"))
}
