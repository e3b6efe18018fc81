//! The page of `evenkeel plan check`.

use super::curves::Drawn;
use super::parts;
use crate::answer;
use crate::demand::{Assume, Demand};
use crate::format::{asked_words, plain};
use crate::refusal::Refusal;
use crate::search::{self, Found};
use crate::verdict::{Check, THROTTLED, Verdict};
use evenkeel_pages::page::{Mark, Page, Part, Table};

/// Returns the page of a verdict.
pub fn page(verdict: &Verdict<'_>) -> Result<String, Refusal> {
    let case = verdict.case;
    let rated = std::slice::from_ref(&verdict.rated);
    let worst = Demand::of(&case.trace, Assume::Worst);
    let at_most = search::given(&case.space, &worst, &verdict.rated.found.layout);
    let sure: Vec<bool> =
        verdict.checks.iter().map(|check| is_sure(verdict, check, at_most.as_ref())).collect();
    let rows = verdict.checks.iter().zip(&sure);
    let table = Table {
        columns: ["check", "allowed", "found", "verdict"].map(str::to_owned).to_vec(),
        rows: rows.map(|(check, is_sure)| row(check, *is_sure).into()).collect(),
        words: vec![0, 3],
    };
    let is_unsure = verdict.passes() && sure.contains(&false);
    let note = if is_unsure { UNSURE } else { "" };
    let mut parts = vec![Part::Table { title: "Checks".to_owned(), table, note: note.to_owned() }];
    let waiting = verdict.waiting_lines();
    if !waiting.is_empty() {
        parts.push(Part::Lines { title: "Waiting".to_owned(), lines: waiting });
    }
    parts.push(parts::layouts(case, rated, 1));
    parts.extend(Drawn::of(case, rated).parts());
    parts.push(parts::assumptions(case, Vec::new(), &[]));
    let mark = if !verdict.passes() {
        Mark::Bad
    } else if is_unsure {
        Mark::Unknown
    } else {
        Mark::Good
    };
    let mut headline = verdict.headline();
    if mark == Mark::Unknown {
        headline += ", as assumed";
    }
    let page = Page {
        verb: "plan check",
        title: plain(&case.trace.name),
        about: vec![parts::recording(case), asked_words(&answer::asked(&case.demand))],
        headline,
        mark,
        warnings: parts::warnings(case, &verdict.rated),
        parts,
    };
    Ok(page.to_html()?)
}

const UNSURE: &str = "A check with a question mark passes as assumed, and fails if the requests \
                      of an interval came as fast as the source allowed, or if more was wanted \
                      than was recorded.";

/// Returns whether a check passes wherever the requests lie within the intervals. `at_most` is the
/// replay with requests as fast as the source allowed.
fn is_sure(verdict: &Verdict<'_>, check: &Check, at_most: Option<&Found>) -> bool {
    let is_held_back = verdict.case.demand.held_back.is_some();
    let [_, _, worst_ms] = verdict.rated.throttled_ms_per_day;
    let permille = match check.what {
        THROTTLED => return check.pass && !is_held_back && worst_ms <= check.allowed,
        "p50 wait" => 500,
        "p99 wait" => 990,
        "p99.9 wait" => 999,
        // Sizes and costs do not depend on the times of requests.
        _ => return check.pass,
    };
    let longest_us = at_most.map_or(u64::MAX, |found| found.delays().permille(permille));
    check.pass && !is_held_back && longest_us <= check.allowed.saturating_mul(1_000)
}

fn row(check: &Check, is_sure: bool) -> Vec<String> {
    let [allowed, found] = check.shown();
    let verdict = match (check.pass, is_sure) {
        (false, _) => "✗ failed",
        (true, true) => "✓ ok",
        (true, false) => "? ok as assumed",
    };
    let name = format!("{}, {}", check.what, check.unit);
    vec![name, allowed, found, verdict.to_owned()]
}
