//! Readers of what other tools have recorded. Each turns text into [`Trace`]s, a line or a value at
//! a time, so that memory is bounded by the intervals and not by the file.
//!
//! [`detect`] tells the form of a text by its beginning, [`read`] reads it. What a text does not
//! say stays a gap or becomes a note; nothing is filled in between.

mod bins;
pub mod blkparse;
pub mod cloudwatch;
mod collect;
pub mod declared;
mod detect;
mod device;
pub mod fio_log;
pub mod iolog;
pub mod iostat;
pub mod iostat_json;
mod json;
mod lines;
mod merge;
mod numbers;
pub mod prometheus;
pub mod recorder;
pub mod sar;

use std::fmt;
use std::ops::RangeInclusive;

pub use collect::{INTERVALS_TOTAL_MAX, NAMES_MAX};
pub use detect::{Format, detect, read};
pub use fio_log::FioLog;
pub use json::JSON_BYTES_MAX;
pub(crate) use json::{broken as json_broken, slurp};
pub use lines::{LINE_BYTES_MAX, skip_mark};
pub(crate) use lines::{Lines, cells, first_byte, refuse_twice};
pub use merge::merge;

use crate::trace::Trace;

/// The lengths of an interval that someone may say: up to a year.
const INTERVAL_MS: RangeInclusive<u64> = 1..=366 * 86_400_000;
/// The most characters of a text that an error repeats.
const FOUND_CHARS_MAX: usize = 80;

/// What is remarked of a trace that nobody recorded.
pub const DECLARED: &str = "declared, not recorded";

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

impl Broken {
    /// What this line has instead of what was `expected`.
    pub(crate) fn at(line: u64, found: &str, expected: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::whole(found, expected) }
    }

    /// What the text as a whole, or the part of it that `found` names, has instead.
    pub(crate) fn whole(found: &str, expected: impl Into<String>) -> Self {
        let mut cut: String = found.trim().chars().take(FOUND_CHARS_MAX).collect();
        if cut.len() < found.trim().len() {
            cut.push('…');
        }
        Self { line: None, found: cut, expected: expected.into() }
    }
}

/// What a reader must be told if the text does not say it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hints {
    /// The only volume or device that is wanted; all without it. A text that has no names gets
    /// this one.
    pub name: Option<String>,
    /// Milliseconds between two reports, where they have no times.
    pub interval_ms: Option<u64>,
    /// Whether a part of an answer will do.
    pub allows_partial: bool,
    /// The queries of GetMetricData, in JSON: they say what its answer does not.
    pub queries: Option<String>,
    /// Which of fio's logs a text is.
    pub fio_log: Option<fio_log::FioLog>,
    /// Whether series of Prometheus are rates a second, and not counters.
    pub are_rates: bool,
    /// Whether the first report is of an interval, as with `iostat -y`, and not since boot.
    pub keeps_first: bool,
}

impl Hints {
    /// The interval, if one can be of this length.
    pub(crate) fn interval(&self) -> Option<u64> {
        self.interval_ms.filter(|ms| INTERVAL_MS.contains(ms))
    }
}

/// The traces of a text, by name.
pub type Read = Result<Vec<Trace>, Broken>;
