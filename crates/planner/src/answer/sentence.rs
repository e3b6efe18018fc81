//! The advice in one sentence: which volumes, the saving, the reason, the risk.

use super::{Answer, Rated, assumed_ms};
use crate::case::{Case, NotShown};
use crate::format::{currency, layout_words, money, saving_words, seconds};
use crate::risk;

/// Returns the advice of an answer; `None` if it has no layout.
pub fn advice(answer: &Answer<'_>) -> Option<String> {
    let first = answer.rated.first()?;
    let case = answer.case;
    if !case.is_advised() {
        return not_shown(case);
    }
    let layout = layout_words(case, &first.found.layout);
    if answer.is_present(first) {
        let reason = match &case.not_shown {
            Some(lack) => format!("{}, so no limit is lowered", lack.why),
            None => "no layout that carries the workload costs less".to_owned(),
        };
        let risk = risk_words(answer, first);
        let next = case.not_shown.as_ref();
        let next = next.map_or_else(String::new, |lack| format!("; next: {}", lack.next));
        return Some(format!("keep {layout}, because {reason}; {risk}{next}"));
    }
    let cost = format!("{} {} a month", money(first.found.total()), currency(case));
    let saving = case.source_monthly.and_then(|_| saving_words(case, first.found.total()));
    let saving = saving.map_or_else(String::new, |words| format!(": {words}"));
    Some(format!(
        "buy {layout}, {cost}{saving}, because {}; {}",
        reason(answer, first),
        risk_words(answer, first)
    ))
}

/// Returns that no layout is advised, with the next step; `None` if what was recorded shows enough.
pub fn not_shown(case: &Case) -> Option<String> {
    let NotShown { why, next } = case.not_shown.as_ref()?;
    Some(format!("no layout is advised, because {why}; next: {next}"))
}

/// Returns why the first layout is proposed.
fn reason(answer: &Answer<'_>, first: &Rated) -> String {
    let case = answer.case;
    let wanted = &answer.wanted;
    if let Some(present) = &answer.present {
        let [now_ms, then_ms] = [present, first].map(|rated| assumed_ms(case, &rated.found));
        let is_dearer = present.found.total() < first.found.total();
        if is_dearer && now_ms > then_ms {
            let [now, then] = [now_ms, then_ms].map(seconds);
            return format!("requests wait {now} s a day on the source, and {then} s on this");
        }
    }
    if let Some(NotShown { why, .. }) = &case.not_shown {
        return format!("it never has less than the source; no limit is lowered, because {why}");
    }
    let more = match case.headroom_percent {
        0 => "what was recorded".to_owned(),
        percent => format!("{percent} % more than was recorded"),
    };
    let waiting = match (wanted.throttled_us_per_day_max / 1_000_000, wanted.delays.is_empty()) {
        (0, _) => "without waiting".to_owned(),
        (86_400, false) => "within the waits that are allowed".to_owned(),
        (seconds, _) => format!("with at most {seconds} s of waiting a day"),
    };
    // What is cheaper and stands below has credits that run out.
    let is_cheaper = |rated: &Rated| rated.found.total() < first.found.total();
    let months = if answer.rated.iter().any(is_cheaper) { " month after month" } else { "" };
    format!("it is the cheapest of {} that carries {more} {waiting}{months}", types(answer))
}

/// Returns the types of the search in words.
fn types(answer: &Answer<'_>) -> String {
    let types: Vec<String> = answer.case.space.types.iter().map(ToString::to_string).collect();
    match types.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => types.join(""),
    }
}

/// Returns the worst risk of a layout, and the number of others.
fn risk_words(answer: &Answer<'_>, rated: &Rated) -> String {
    let case = answer.case;
    let risks = risk::risks(&case.space, &case.trace, &case.demand, rated);
    match risks.as_slice() {
        [] => "risk: none is known".to_owned(),
        [only] => format!("risk: {only}"),
        [worst, others @ ..] => format!("risk: {worst}; {} more below", others.len()),
    }
}
