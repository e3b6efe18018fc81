//! Which files with answers of GetMetricData are pages of one answer.

use super::data::{Answers, LastPage};
use crate::read::{Hints, Read};
use std::collections::BTreeMap;

/// Answers of GetMetricData that are read together: those of a file, or of the files that are
/// pages of an answer.
pub struct Together<F> {
    /// The files.
    pub files: Vec<F>,
    /// The information that their texts lack.
    pub hints: Hints,
    /// Their answers.
    pub answers: Vec<Answers>,
}

/// Returns which files are read together: if one is a page that another one continues, all those
/// that answer the same queries; otherwise each file alone.
#[must_use]
pub fn together<F>(files: Vec<(F, Answers, Hints)>) -> Vec<Together<F>> {
    let is_paged = files.iter().any(|(_, answers, _)| answers.is_continued());
    if !is_paged {
        let alone =
            |(file, answers, hints)| Together { files: vec![file], hints, answers: vec![answers] };
        return files.into_iter().map(alone).collect();
    }
    let mut by_queries: BTreeMap<Option<String>, Together<F>> = BTreeMap::new();
    for (file, answers, hints) in files {
        let queries = hints.queries.clone();
        let empty = || Together { files: Vec::new(), hints, answers: Vec::new() };
        let pages = by_queries.entry(queries).or_insert_with(empty);
        pages.files.push(file);
        pages.answers.push(answers);
    }
    by_queries.into_values().collect()
}

/// Returns the traces of answers that are read together.
///
/// # Errors
/// If one is broken, or lacks a page.
pub fn traces_of(mut answers: Vec<Answers>, last_page: LastPage, hints: &Hints) -> Read {
    let is_whole = |only: &Answers| last_page == LastPage::Given || !only.is_continued();
    match answers.pop() {
        Some(only) if answers.is_empty() && is_whole(&only) => only.traces(hints),
        last => {
            answers.extend(last);
            Answers::joined(answers, last_page, hints)
        }
    }
}
