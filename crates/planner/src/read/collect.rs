//! Traces while they are read, by name, with bounds on their number and size.

use std::collections::BTreeMap;

use super::Broken;
use super::Read;
use crate::trace::{Amounts, Clock, Columns, INTERVALS_MAX, Interval, Malformed, Note, Trace};

/// Maximum number of volumes or devices in one text.
pub const NAMES_MAX: usize = 100_000;
/// Maximum number of intervals of all traces of one text.
pub const INTERVALS_TOTAL_MAX: usize = 4 * INTERVALS_MAX;

/// A trace that is being read.
#[derive(Default)]
pub(crate) struct Pending {
    pub intervals: Vec<Interval>,
    pub columns: Columns,
    pub remarks: Vec<String>,
}

/// The traces of a text that is being read.
pub(crate) struct Traces {
    clock: Clock,
    by_name: BTreeMap<String, Pending>,
    total: usize,
}

impl Traces {
    pub const fn new(clock: Clock) -> Self {
        Self { clock, by_name: BTreeMap::new(), total: 0 }
    }

    pub const fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// Returns whether there is no interval.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the trace of this name, and creates it if there is none.
    pub fn of(&mut self, name: &str) -> Result<&mut Pending, Broken> {
        // `entry` would need an owned name for each interval.
        if !self.by_name.contains_key(name) {
            if self.by_name.len() >= NAMES_MAX {
                return Err(too_many_names(name));
            }
            self.by_name.insert(name.to_owned(), Pending::default());
        }
        self.by_name.get_mut(name).ok_or_else(|| too_many_names(name))
    }

    /// Adds an interval to the trace of this name.
    pub fn push(&mut self, name: &str, mut interval: Interval, of: Columns) -> Result<(), Broken> {
        for (kind, amounts) in [(of.requests, Amounts::REQUESTS), (of.bytes, Amounts::BYTES)] {
            if kind.is_none() {
                interval.unknown = interval.unknown.or(amounts);
            }
        }
        if self.total >= INTERVALS_TOTAL_MAX {
            return Err(too_many_intervals(name));
        }
        self.total += 1;
        let pending = self.of(name)?;
        if pending.intervals.len() >= INTERVALS_MAX {
            return Err(malformed(name, &Malformed::TooMany));
        }
        pending.intervals.push(interval);
        pending.columns = either(pending.columns, of);
        Ok(())
    }

    /// Returns the traces, each with these remarks. Names without intervals are left out, with a
    /// remark.
    pub fn finish(mut self, remarks: &[String]) -> Read {
        let mut remarks = remarks.to_vec();
        remarks.extend(self.without_intervals());
        self.by_name.retain(|_, pending| !pending.intervals.is_empty());
        let mut traces = Vec::new();
        for (name, pending) in self.by_name {
            let trace = Trace::new(name.as_str(), self.clock, pending.columns, pending.intervals);
            let mut trace = trace.map_err(|error| malformed(&name, &error))?;
            let remarks = pending.remarks.into_iter().chain(remarks.iter().cloned());
            trace.notes.extend(remarks.map(Note::Remark));
            traces.push(trace);
        }
        Ok(traces)
    }

    fn without_intervals(&self) -> Option<String> {
        let is_empty = |pending: &Pending| pending.intervals.is_empty();
        let empty = || self.by_name.iter().filter(|(_, pending)| is_empty(pending));
        let first = empty().next()?.0;
        let others = match empty().count() - 1 {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(format!("left out, since no interval of it is known: {first}{others}"))
    }
}

/// Returns the columns that either has.
pub(crate) fn either(one: Columns, other: Columns) -> Columns {
    Columns {
        requests: one.requests.or(other.requests),
        bytes: one.bytes.or(other.bytes),
        times: one.times.or(other.times),
        queue: one.queue.or(other.queue),
        idle_is_of_device: one.idle_is_of_device || other.idle_is_of_device,
    }
}

pub(crate) fn too_many_names(name: &str) -> Broken {
    let expected = format!("at most {NAMES_MAX} volumes or devices; split the file, or name one");
    Broken::whole(name, expected)
}

pub(crate) fn too_many_intervals(name: &str) -> Broken {
    let expected = format!(
        "at most {INTERVALS_TOTAL_MAX} intervals of all volumes together; split the file, or name \
         one volume"
    );
    Broken::whole(name, expected)
}

/// Returns the error for intervals that cannot form a trace.
pub(crate) fn malformed(name: &str, error: &Malformed) -> Broken {
    let expected = match error {
        Malformed::Overlap(_) => {
            format!(
                "intervals one after the other: {error}; give recordings of the same time one by \
                 one"
            )
        }
        Malformed::Empty(_) => format!("intervals one after the other: {error}"),
        Malformed::TooMany | Malformed::Impossible => format!("a recording of a disk: {error}"),
    };
    Broken::whole(name, expected)
}
