//! Readers of other tools' recordings. Each converts text to [`Trace`]s, a line or a value at a
//! time, so that memory is bounded by the intervals and not by the file.
//!
//! [`detect()`] returns the format of a text by its beginning, [`read`] reads it. Missing data
//! becomes a gap or a note; nothing is interpolated.

mod bins;
pub mod blkparse;
pub mod cloudwatch;
mod collect;
pub mod declared;
mod detect;
mod device;
pub mod diskstats;
pub mod fio_log;
pub mod iolog;
pub mod iostat;
pub mod iostat_json;
mod json;
mod lines;
mod merge;
mod numbers;
pub mod nvme_stats;
pub mod prometheus;
pub mod recorder;
pub mod sadf_json;
pub mod sar;
mod sysstat_json;

use std::fmt;
use std::ops::RangeInclusive;

pub use collect::{INTERVALS_TOTAL_MAX, NAMES_MAX};
pub use detect::{Format, detect, foreign, read};
pub use fio_log::{FioLog, Run as FioRun};
pub use json::JSON_BYTES_MAX;
pub(crate) use json::{broken as json_broken, slurp};
pub use lines::{LINE_BYTES_MAX, skip_mark};
pub(crate) use lines::{Lines, cells, first_byte, refuse_twice};
pub use merge::merge;
pub use numbers::DateOrder;

use crate::trace::Trace;

/// The accepted lengths of an interval from the user: up to a year.
const INTERVAL_MS: RangeInclusive<u64> = 1..=366 * 86_400_000;
/// Maximum number of characters of a text that an error repeats.
const FOUND_CHARS_MAX: usize = 80;

/// The remark on a declared trace.
pub const DECLARED: &str = "declared, not recorded";
/// The remark on a trace of the storage of a database instance.
pub const OF_RDS: &str = "metrics of RDS: rates a second, of all volumes of the instance together";

/// An error in a text: the part that a reader does not understand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The line, from 1 on; `None` if the error is of the text as a whole.
    pub line: Option<u64>,
    /// The text found, truncated.
    pub found: String,
    /// The expected text, and a remedy.
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
    /// Creates an error about the text found in a line.
    pub(crate) fn at(line: u64, found: &str, expected: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::whole(found, expected) }
    }

    /// Creates an error about the text as a whole, or about the part of it that `found` names.
    pub(crate) fn whole(found: &str, expected: impl Into<String>) -> Self {
        let mut cut: String = found.trim().chars().take(FOUND_CHARS_MAX).collect();
        if cut.len() < found.trim().len() {
            cut.push('…');
        }
        Self { line: None, found: cut, expected: expected.into() }
    }
}

/// The content of a file in any form.
pub enum Content {
    /// Recordings.
    Traces(Vec<Trace>),
    /// Answers of GetMetricData, which may have pages in other files.
    Answers(cloudwatch::data::Answers),
}

/// Information that a reader needs if the text does not have it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hints {
    /// The only volume or device to read; `None` reads all. A text without names gets this one.
    pub name: Option<String>,
    /// Milliseconds between two reports without times.
    pub interval_ms: Option<u64>,
    /// Whether an incomplete answer is accepted.
    pub allows_partial: bool,
    /// The queries of GetMetricData, in JSON. Its answer lacks a part of their information.
    pub queries: Option<String>,
    /// The quantity of a log of fio.
    pub fio_log: Option<fio_log::FioLog>,
    /// Whether series of Prometheus are rates per second; otherwise they are counters.
    pub are_rates: bool,
    /// Whether the first report is of an interval, as with `iostat -y`; otherwise it is since boot.
    pub keeps_first: bool,
    /// The order of day and month in dates that have two meanings; `None` refuses them.
    pub dates: Option<DateOrder>,
}

impl Hints {
    /// Returns the interval, if its length is acceptable.
    pub(crate) fn interval(&self) -> Option<u64> {
        self.interval_ms.filter(|ms| INTERVAL_MS.contains(ms))
    }
}

/// The traces of a text, by name.
pub type Read = Result<Vec<Trace>, Broken>;
