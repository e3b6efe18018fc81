//! The answer as text and as a table.

use super::{Answer, Rated, assumed_ms, device, model, sentence};
use crate::case::Case;
use crate::case::EXACT_REQUESTS_MAX;
use crate::commands::commands;
use crate::format::{
    asked_words, basis_lines, currency, gap_words, hdd_words, headroom_words, is_of_instance,
    less_words, limit_words, loss_words, money, money_more, plain, saving_words, seconds, waiting,
    waiting_at_most,
};
use crate::layout::LimitKind;
use crate::risk;
use crate::search::{Found, Tolerance};
use crate::trace::{Note, Trace};
use evenkeel_sim::text::{or_dash, table};

/// Gaps that are listed one by one.
const GAPS_SHOWN: usize = 3;

/// Returns the columns: with the instance if several are candidates; which one is the source, and
/// the saving, if the source is known.
pub fn columns(case: &Case) -> Vec<String> {
    let currency = currency(case);
    let mut columns = vec!["LAYOUT".to_owned()];
    if case.source.is_some() {
        columns.push("NOW".to_owned());
    }
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

/// Returns the rows: the source, if it is no candidate, and the layouts of the answer.
pub fn rows(answer: &Answer<'_>) -> Vec<Vec<String>> {
    answer.with_present().map(|rated| row(answer, rated)).collect()
}

/// Returns the row of a layout.
fn row(answer: &Answer<'_>, rated: &Rated) -> Vec<String> {
    let case = answer.case;
    let found = &rated.found;
    let [even, _, worst] = rated.throttled_ms_per_day;
    let assumed = assumed_ms(case, found);
    let fullest =
        fullest(rated).map(|(kind, used)| format!("{} {} %", limit_words(kind), used / 10));
    let mut row = vec![found.layout.to_string()];
    if case.source.is_some() {
        row.push(or_dash(answer.is_present(rated).then_some("now")));
    }
    if case.space.instances.len() > 1 {
        row.push(or_dash(found.layout.instance.map(|instance| instance.name)));
    }
    row.push(money(found.total()));
    row.extend(case.source_monthly.map(|before| money_more(before, found.total())));
    row.extend([
        waiting(case, assumed),
        waiting(case, even.min(assumed)),
        waiting_at_most(case, worst.max(assumed)),
        found.delays().permille(990).div_ceil(1_000).to_string(),
        or_dash(device::with_device(case, found, 990)),
        model(found).to_owned(),
        or_dash(fullest),
        or_dash(rated.loss_ppb.map(loss_words)),
    ]);
    row
}

/// Returns the limit that the busiest span comes closest to, and its use in thousandths.
fn fullest(rated: &Rated) -> Option<(LimitKind, u64)> {
    rated.used_permille.iter().max_by_key(|(_, used)| *used).copied()
}

/// Returns the answer in lines, with the commands that make the cheapest layout.
pub fn text(answer: &Answer<'_>) -> String {
    let text = without_commands(answer);
    let Some(first) = answer.rated.first() else { return text };
    if answer.is_present(first) {
        return text + "nothing to do: this is the present layout\n";
    }
    if !answer.case.is_advised() {
        return text + "no commands: no layout is advised\n";
    }
    text + &commands(answer.case, &first.found.layout).text()
}

/// Returns the answer in lines, without commands.
pub fn without_commands(answer: &Answer<'_>) -> String {
    let mut text = header(answer);
    if let Some(advice) = sentence::advice(answer) {
        text += &format!("{advice}\n\n");
    }
    let columns = columns(answer.case);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    text += &table(&columns, &rows(answer));
    for rated in answer.with_present() {
        if let Some(after_s) = rated.dry_after_s {
            let layout = rated.found.layout;
            let after = evenkeel_sim::text::span(after_s);
            text += &format!("runs dry: {layout}, after {after} if the workload repeats\n");
        }
    }
    if let Some(first) = answer.rated.first() {
        text += &first_words(answer, first);
    }
    text
}

/// Returns the line about the time of a recording.
pub fn recording(trace: &Trace) -> String {
    let known = evenkeel_sim::text::span(trace.known_ms() / 1_000);
    match trace.resolution_ms().div_ceil(1_000) {
        0 => format!("{}: {known} without a request\n", plain(&trace.name)),
        resolution => {
            let resolution = evenkeel_sim::text::span(resolution);
            format!("{}: {known}, in steps of {resolution}\n", plain(&trace.name))
        }
    }
}

/// Returns the lines of the notes of a recording, and of its first gaps.
pub fn notes(trace: &Trace) -> String {
    let mut text = String::new();
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
    text
}

fn header(answer: &Answer<'_>) -> String {
    let trace = &answer.case.trace;
    let mut text = recording(trace);
    text += &format!("{}\n", asked_words(&answer.asked));
    text += &headroom_words(answer.case).map_or_else(String::new, |words| format!("{words}\n"));
    text += &notes(trace);
    text += &basis_lines(answer.case);
    for note in &answer.notes {
        text += &format!("note: {note}\n");
    }
    text + "\n"
}

/// Returns the lines about the cheapest layout.
fn first_words(answer: &Answer<'_>, rated: &Rated) -> String {
    let mut text = String::from("\n");
    // With a price, the sentence above the table has the saving.
    if answer.case.source_monthly.is_none()
        && let Some(unknown) = saving_words(answer.case, rated.found.total())
    {
        text += &format!("{unknown}\n");
    }
    if let Some(on_hdd) = &answer.on_hdd {
        text += &format!("{}\n", hdd_words(answer.case, on_hdd, rated.found.total()));
    }
    text += &of_instance(rated).unwrap_or_default();
    text += &waiting_words(answer.case, &rated.found);
    let less = answer.less.iter().filter_map(|neighbour| {
        let waits = waiting(answer.case, neighbour.waits_ms?);
        let dry = neighbour.dry_after_s.map(evenkeel_sim::text::span);
        let dry = dry.map_or_else(String::new, |after| format!(", dry after {after}"));
        Some(format!("one {} less: {waits} s{dry}", less_words(neighbour.less)))
    });
    let less: Vec<String> = less.collect();
    if !less.is_empty() {
        let headroom = match answer.case.headroom_percent {
            0 => String::new(),
            percent => format!(" and {percent} % more requests"),
        };
        text += &format!("the same with {}{headroom}\n", less.join(", "));
    }
    let found = &rated.found;
    text += &device::text(answer.case, found);
    if let Some(hour) = rated.worst_hour {
        text += &format!(
            "worst hour: {} after the beginning, {} s of waiting for {}\n",
            evenkeel_sim::text::span(hour.start_us / 1_000_000),
            seconds(hour.waited_us / 1_000),
            limit_words(hour.limit),
        );
    }
    for risk in risk::risks(&answer.case.space, &answer.case.trace, &answer.case.demand, rated) {
        text += &format!("risk: {risk}\n");
    }
    text
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
    let limit = limit_words(kind);
    let percent = used / 10;
    Some(format!("on {name}, {whose} first: {percent} % of {limit} in the busiest interval\n"))
}
