//! The page of `evenkeel plan compare`.

use super::curves::{DRAWN_MAX, Drawn};
use super::{frontier, parts};
use crate::answer;
use crate::comparison::{Comparison, better, letters};
use crate::format::{asked_words, layout_words, plain};
use crate::refusal::Refusal;
use evenkeel_pages::page::{Mark, Page, Part, Table};

/// Returns the page of a comparison.
pub fn page(comparison: &Comparison<'_>) -> Result<String, Refusal> {
    let case = comparison.case;
    let rated = comparison.rated.as_slice();
    let letters = letters(rated.len());
    let [first, others @ ..] = rated else { return Err(Refusal::new("there is no layout")) };
    let against: Vec<String> = letters
        .iter()
        .skip(1)
        .zip(others)
        .map(|(letter, other)| format!("{letter} against A: {}", better(case, first, other)))
        .collect();
    let side_by_side = Table {
        columns: std::iter::once("".to_owned()).chain(letters.iter().cloned()).collect(),
        rows: comparison.rows().into_iter().map(Into::into).collect(),
        words: vec![0],
    };
    let mut parts = vec![parts::layouts(case, rated, rated.len())];
    parts.push(Part::Lines { title: "Differences".to_owned(), lines: against });
    parts.push(Part::Table {
        title: "Side by side".to_owned(),
        table: side_by_side,
        note: String::new(),
    });
    parts.extend(Drawn::of(case, rated).parts());
    parts.push(frontier::frontier(
        case,
        rated.iter().map(|rated| rated.found.clone()).collect(),
        "",
    ));
    let notes: Vec<String> = letters
        .iter()
        .skip(DRAWN_MAX)
        .map(|letter| format!("{letter} is not in the charts over time"))
        .collect();
    parts.push(parts::assumptions(case, Vec::new(), &notes));
    let words: Vec<String> = letters
        .iter()
        .zip(rated)
        .map(|(letter, rated)| format!("{letter}: {}", layout_words(case, &rated.found.layout)))
        .collect();
    let page = Page {
        verb: "plan compare",
        title: plain(&case.trace.name),
        about: vec![parts::recording(case), asked_words(&answer::asked(&case.demand))],
        headline: words.join("; "),
        mark: Mark::Plain,
        warnings: comparison.impossible_words(),
        parts,
    };
    Ok(page.to_html()?)
}
