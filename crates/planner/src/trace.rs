//! The normal form of a workload: what a volume was asked for, interval by interval.
//!
//! Whatever a file says (counters, sums, means), an [`Interval`] has the *amounts* of its span: how
//! many requests, how many bytes. What a file does not say is absent, never zero: a span without an
//! interval is a gap. [`Columns`] says how each amount was come by, because a mean of a minute and
//! a count of a second are not the same evidence.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::qos::pacing::CountingRule;

use crate::spread::Share;

/// The most intervals of one trace: a month of seconds.
pub const INTERVALS_MAX: usize = 2_700_000;
/// The most milliseconds of a trace: 30 years. What is longer was not recorded.
pub const LENGTH_MS_MAX: u64 = 1_000_000_000_000;
/// The most requests of a trace: a month at 3.8 million a second.
pub const REQUESTS_MAX: u64 = 10_000_000_000_000;
/// The most bytes of a trace: an exabyte.
pub const BYTES_MAX: u64 = 1_000_000_000_000_000_000;
/// The most sizes that are told apart.
pub const SIZES_MAX: usize = 64;

/// What one volume was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Its name where it was recorded: the id of a volume, the name of a device.
    pub name: String,
    /// What the times are counted from.
    pub clock: Clock,
    /// How the amounts were come by.
    pub columns: Columns,
    /// The intervals, by start. They do not overlap.
    pub intervals: Vec<Interval>,
    /// The limits in force where it was recorded, as far as they are known.
    pub source: SourceLimits,
    /// Requests by their size in bytes, if each request was seen. At most [`SIZES_MAX`] sizes.
    pub sizes: Option<Sizes>,
    /// What was assumed, left out or is missing, for the reader of the answer.
    pub notes: Vec<Note>,
}

/// What the times of a trace are counted from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// 1970-01-01T00:00:00Z.
    Unix,
    /// The beginning of the recording, whenever that was.
    Elapsed,
}

/// How an amount was come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The difference of a counter.
    Counter,
    /// A sum over the interval.
    Sum,
    /// A mean rate, times the interval.
    Mean,
    /// The largest rate within the interval, times the interval: an upper bound.
    Maximum,
}

/// How each amount of a trace was come by; `None` if no interval has it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Columns {
    /// [`Interval::reads`], [`Interval::writes`].
    pub requests: Option<Kind>,
    /// [`Interval::read_bytes`], [`Interval::write_bytes`].
    pub bytes: Option<Kind>,
    /// [`Interval::read_ns`], [`Interval::write_ns`].
    pub times: Option<Kind>,
    /// [`Interval::queued_milli`].
    pub queue: Option<Kind>,
}

/// What happened in one span of time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Interval {
    /// Its beginning, in milliseconds by the trace's clock.
    pub start_ms: u64,
    /// Its length in milliseconds, not zero.
    pub length_ms: u64,
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Nanoseconds from arrival to answer, of all reads together.
    pub read_ns: Option<u64>,
    /// The same of all writes.
    pub write_ns: Option<u64>,
    /// Milliseconds without any request.
    pub idle_ms: Option<u64>,
    /// The mean number of requests that were waiting or served, in thousandths.
    pub queued_milli: Option<u64>,
    /// Credits that were left, in millionths of what can be saved.
    pub balance_ppm: Option<u32>,
    /// Bytes in use by the file system.
    pub used_bytes: Option<u64>,
    /// Whether a limit of the source delayed requests: then more was wanted than the amounts say.
    pub is_censored: Option<bool>,
    /// The amounts that are not known. They are 0 here, and may have been more.
    pub unknown: Amounts,
}

/// Some of the four amounts of an interval.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Amounts(u8);

impl Amounts {
    /// [`Interval::reads`].
    pub const READS: Self = Self(1);
    /// [`Interval::writes`].
    pub const WRITES: Self = Self(2);
    /// [`Interval::read_bytes`].
    pub const READ_BYTES: Self = Self(4);
    /// [`Interval::write_bytes`].
    pub const WRITE_BYTES: Self = Self(8);
    /// Both numbers of requests.
    pub const REQUESTS: Self = Self::READS.or(Self::WRITES);
    /// Both numbers of bytes.
    pub const BYTES: Self = Self::READ_BYTES.or(Self::WRITE_BYTES);
    /// All four.
    pub const ALL: Self = Self::REQUESTS.or(Self::BYTES);
    const NONE: Self = Self(0);

    /// Those of either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that another has not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The limits where a trace was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SourceLimits {
    /// Counted I/Os a second.
    pub iops: Option<u64>,
    /// Counted bytes a second.
    pub bytes_per_second: Option<u64>,
    /// Counted I/Os a second that are left without credits, where there are credits of them.
    pub earned_iops: Option<u64>,
    /// The same of counted bytes.
    pub earned_bytes_per_second: Option<u64>,
    /// How requests count for these limits.
    pub counting: Option<Counting>,
    /// Capacity in bytes.
    pub capacity: Option<u64>,
}

/// How requests count for the limits of equal volumes that share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counting {
    /// How each volume counts.
    pub rule: CountingRule,
    /// What the one gets of them that gets the most.
    pub share: Share,
}

/// Requests by their size in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Sizes {
    /// Reads.
    pub reads: BTreeMap<u32, u64>,
    /// Writes.
    pub writes: BTreeMap<u32, u64>,
}

/// Something the reader of the answer has to know of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Nothing is known from `start_ms` for `length_ms`.
    Gap {
        /// The beginning, by the trace's clock.
        start_ms: u64,
        /// The length.
        length_ms: u64,
    },
    /// Something was assumed or left out; a sentence.
    Remark(String),
}

/// A trace whose intervals overlap, are empty, or are too many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// An interval of no length, at this time.
    Empty(u64),
    /// Two intervals overlap at this time.
    Overlap(u64),
    /// There are more than [`INTERVALS_MAX`].
    TooMany,
    /// It is longer, or has more requests or bytes, than a disk can have.
    Impossible,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(at) => write!(f, "the interval at {at} ms has no length"),
            Self::Overlap(at) => write!(f, "two intervals overlap at {at} ms"),
            Self::TooMany => write!(
                f,
                "there are more than {INTERVALS_MAX} intervals, a month of seconds; use a shorter \
                 part of the recording"
            ),
            Self::Impossible => write!(
                f,
                "it has more than {LENGTH_MS_MAX} ms, {REQUESTS_MAX} requests or {BYTES_MAX} \
                 bytes, which no disk has"
            ),
        }
    }
}

impl std::error::Error for Malformed {}

impl Interval {
    /// The first millisecond after it.
    #[must_use]
    pub const fn end_ms(&self) -> u64 {
        self.start_ms.saturating_add(self.length_ms)
    }

    /// All requests.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// All bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }
}

impl Trace {
    /// A trace of these intervals, in any order. Gaps between them become notes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn new(
        name: impl Into<String>,
        clock: Clock,
        columns: Columns,
        mut intervals: Vec<Interval>,
    ) -> Result<Self, Malformed> {
        if intervals.len() > INTERVALS_MAX {
            return Err(Malformed::TooMany);
        }
        intervals.sort_by_key(|interval| interval.start_ms);
        if let Some(empty) = intervals.iter().find(|interval| interval.length_ms == 0) {
            return Err(Malformed::Empty(empty.start_ms));
        }
        let sum = |of: fn(&Interval) -> u64| {
            intervals.iter().fold(0_u64, |sum, interval| sum.saturating_add(of(interval)))
        };
        if sum(|it| it.length_ms) > LENGTH_MS_MAX
            || sum(Interval::requests) > REQUESTS_MAX
            || sum(Interval::bytes) > BYTES_MAX
        {
            return Err(Malformed::Impossible);
        }
        let mut notes = Vec::new();
        for pair in intervals.windows(2) {
            let [before, after] = pair else { continue };
            match after.start_ms.checked_sub(before.end_ms()) {
                None => return Err(Malformed::Overlap(after.start_ms)),
                Some(0) => {}
                Some(length_ms) => notes.push(Note::Gap { start_ms: before.end_ms(), length_ms }),
            }
        }
        let (source, sizes) = (SourceLimits::default(), None);
        Ok(Self { name: name.into(), clock, columns, intervals, source, sizes, notes })
    }

    /// The intervals of which an amount is not known that other intervals have: more may have been
    /// asked for in them. Where a direction had no request, it had no byte, either: CloudWatch has
    /// no point for these bytes on Xen instances.
    pub fn partial(&self) -> impl Iterator<Item = &Interval> {
        let mut nowhere = Amounts::ALL;
        for interval in &self.intervals {
            nowhere = nowhere.and(interval.unknown);
        }
        self.intervals.iter().filter(move |interval| {
            let mut unknown = interval.unknown.without(nowhere);
            for (requests, count, bytes) in [
                (Amounts::READS, interval.reads, Amounts::READ_BYTES),
                (Amounts::WRITES, interval.writes, Amounts::WRITE_BYTES),
            ] {
                if count == 0 && interval.unknown.and(requests).is_empty() {
                    unknown = unknown.without(bytes);
                }
            }
            unknown != Amounts::NONE
        })
    }

    /// Milliseconds of all intervals together, without the gaps.
    #[must_use]
    pub fn known_ms(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.length_ms).sum()
    }

    /// The length of the longest interval in which something happened: the resolution that can be
    /// relied on. An interval in which nothing happened is the same in each of its seconds.
    #[must_use]
    pub fn resolution_ms(&self) -> u64 {
        let busy = |interval: &&Interval| interval.requests() > 0 || interval.bytes() > 0;
        let lengths = self.intervals.iter().filter(busy).map(|interval| interval.length_ms);
        lengths.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start_ms: u64, length_ms: u64) -> Interval {
        Interval { start_ms, length_ms, reads: 1, ..Interval::default() }
    }

    fn new(intervals: Vec<Interval>) -> Result<Trace, Malformed> {
        Trace::new("sda", Clock::Elapsed, Columns::default(), intervals)
    }

    #[test]
    fn intervals_are_sorted_and_gaps_are_told() {
        let trace = new(vec![at(5_000, 1_000), at(0, 1_000), at(1_000, 2_000)]).unwrap();
        let starts: Vec<u64> = trace.intervals.iter().map(|interval| interval.start_ms).collect();
        assert_eq!(starts, [0, 1_000, 5_000]);
        assert_eq!(trace.notes, [Note::Gap { start_ms: 3_000, length_ms: 2_000 }]);
        assert_eq!((trace.known_ms(), trace.resolution_ms()), (4_000, 2_000));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(new(vec![at(0, 0)]), Err(Malformed::Empty(0)));
        assert_eq!(new(vec![at(0, 1_001), at(1_000, 1)]), Err(Malformed::Overlap(1_000)));
        let same = vec![at(7, 1), at(7, 1)];
        assert_eq!(new(same), Err(Malformed::Overlap(7)));
        for interval in [
            at(0, LENGTH_MS_MAX + 1),
            Interval { reads: u64::MAX, writes: u64::MAX, ..at(0, 1) },
            Interval { read_bytes: BYTES_MAX, write_bytes: 1, ..at(0, 1) },
        ] {
            assert_eq!(new(vec![interval]), Err(Malformed::Impossible), "{interval:?}");
        }
        assert_eq!(new(vec![]).unwrap().resolution_ms(), 0);
    }

    #[test]
    fn a_long_idle_interval_does_not_blur_the_others() {
        let idle = Interval { start_ms: 1_000, length_ms: 60_000, ..Interval::default() };
        assert_eq!(new(vec![at(0, 1_000), idle]).unwrap().resolution_ms(), 1_000);
    }
}
