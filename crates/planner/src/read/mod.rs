//! Readers of what other tools have recorded. Each turns text into [`Trace`]s, a line or a value at
//! a time, so that memory is bounded by the intervals and not by the file.

use std::fmt;

use crate::trace::Trace;

/// What a text has that a reader does not understand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The line, from 1 on; `None` if the text as a whole is meant.
    pub line: Option<u64>,
    /// What is there, cut to a bearable length.
    pub found: String,
    /// What was expected instead, and what to do.
    pub expected: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, found, expected } = self;
        match line {
            Some(line) => write!(f, "line {line}: {found:?}: expected {expected}"),
            None => write!(f, "{found:?}: expected {expected}"),
        }
    }
}

impl std::error::Error for Broken {}

/// What a reader must be told if the text does not say it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hints {
    /// The only volume or device that is wanted; all without it.
    pub name: Option<String>,
    /// Milliseconds between two reports, where they have no times.
    pub interval_ms: Option<u64>,
    /// Whether a part of an answer will do.
    pub allows_partial: bool,
}

/// The traces of a text, by name.
pub type Read = Result<Vec<Trace>, Broken>;
