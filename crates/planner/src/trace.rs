//! The common form of a workload: the demand on a volume, interval by interval.
//!
//! Whatever a file has (counters, sums, means), an [`Interval`] has the *amounts* of its span: the
//! number of requests, the bytes. Data that a file lacks is absent, never zero: a span without an
//! interval is a gap. [`Columns`] has the origin of each amount, because a mean of a minute is
//! weaker evidence than a count of a second.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::qos::pacing::CountingRule;

use crate::spread::Share;

/// Maximum number of intervals of one trace: a month of seconds.
pub const INTERVALS_MAX: usize = 2_700_000;
/// Maximum length of a trace, in milliseconds: 30 years. A longer one was not recorded.
pub const LENGTH_MS_MAX: u64 = 1_000_000_000_000;
/// Maximum number of requests of a trace: a month at 3.8 million per second.
pub const REQUESTS_MAX: u64 = 10_000_000_000_000;
/// Maximum number of bytes of a trace: an exabyte.
pub const BYTES_MAX: u64 = 1_000_000_000_000_000_000;
/// Maximum number of different sizes.
pub const SIZES_MAX: usize = 64;

/// The demand on one volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Its name where it was recorded: the id of a volume, the name of a device.
    pub name: String,
    /// The start of its times.
    pub clock: Clock,
    /// The origin of the amounts.
    pub columns: Columns,
    /// The intervals, by start. They do not overlap.
    pub intervals: Vec<Interval>,
    /// The limits in force where it was recorded, as far as they are known.
    pub source: SourceLimits,
    /// Requests by their size in bytes, if each request was seen. At most [`SIZES_MAX`] sizes.
    pub sizes: Option<Sizes>,
    /// Assumptions, omissions and missing data, for the reader of the answer.
    pub notes: Vec<Note>,
}

/// The start of a trace's times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clock {
    /// 1970-01-01T00:00:00Z.
    Unix,
    /// The unknown start of the recording.
    Elapsed,
}

/// The origin of an amount.
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

/// The origin of each amount of a trace; `None` if no interval has it.
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
    /// Whether [`Interval::idle_ms`] is the time in which the device had nothing to do. Otherwise
    /// it is the time in which no request arrived.
    pub idle_is_of_device: bool,
}

/// The amounts of one span of time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Interval {
    /// Its start, in milliseconds by the trace's clock.
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
    /// Nanoseconds from arrival to answer, of all writes together.
    pub write_ns: Option<u64>,
    /// Milliseconds without any request: [`Columns::idle_is_of_device`] says whether at the device.
    pub idle_ms: Option<u64>,
    /// Mean number of requests that wait or are served, in thousandths.
    pub queued_milli: Option<u64>,
    /// Credits that were left, in millionths of the maximum.
    pub balance_ppm: Option<u32>,
    /// Bytes in use by the file system.
    pub used_bytes: Option<u64>,
    /// Whether a limit of the source delayed requests. Then more was wanted than the amounts show.
    pub is_censored: Option<bool>,
    /// The limits that did, if the recording names them.
    pub delayed: Delayed,
    /// The unknown amounts. They are 0 here, and may have been more.
    pub unknown: Amounts,
}

/// Whether each limit delayed requests in an interval; `None` if that is not recorded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Delayed {
    /// The volume's limit in I/Os per second.
    pub iops: Option<bool>,
    /// The volume's limit in bytes per second.
    pub bytes: Option<bool>,
    /// A limit of the instance.
    pub instance: Option<bool>,
}

/// Returns whether either delayed requests, of what is recorded.
pub(crate) fn either(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one || other),
        (one, other) => one.or(other),
    }
}

impl Delayed {
    /// Creates it from the limits in I/Os and in bytes of the volume, and those of the instance.
    pub(crate) fn new(volume: [Option<bool>; 2], instance: [Option<bool>; 2]) -> Self {
        let [iops, bytes] = volume;
        Self { iops, bytes, instance: either(instance[0], instance[1]) }
    }

    /// Returns whether a limit of the volume delayed requests. Unless both are recorded, it is not
    /// known that none did.
    #[must_use]
    pub const fn by_volume(self) -> Option<bool> {
        match (self.iops, self.bytes) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    /// Returns what either records.
    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            iops: either(self.iops, other.iops),
            bytes: either(self.bytes, other.bytes),
            instance: either(self.instance, other.instance),
        }
    }
}

/// A subset of the four amounts of an interval.
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

    /// Returns the amounts of either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the amounts of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the amounts that another lacks.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// The limits of the source of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SourceLimits {
    /// Counted I/Os per second.
    pub iops: Option<u64>,
    /// Counted bytes per second.
    pub bytes_per_second: Option<u64>,
    /// Counted I/Os per second without credits, if there are credits for them.
    pub earned_iops: Option<u64>,
    /// Counted bytes per second without credits, if there are credits for them.
    pub earned_bytes_per_second: Option<u64>,
    /// The counting of requests for these limits.
    pub counting: Option<Counting>,
    /// Capacity in bytes.
    pub capacity: Option<u64>,
}

/// The counting of requests for the limits of equal volumes that share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counting {
    /// The counting rule of each volume.
    pub rule: CountingRule,
    /// The share of the volume that gets the most.
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

/// Information about a trace for the reader of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// The time from `start_ms` for `length_ms` is unknown.
    Gap {
        /// Its start in milliseconds, by the trace's clock.
        start_ms: u64,
        /// Its length in milliseconds.
        length_ms: u64,
    },
    /// A sentence about an assumption or an omission.
    Remark(String),
}

/// The reason why intervals are not a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// An interval without length, at this time.
    Empty(u64),
    /// Two intervals overlap at this time.
    Overlap(u64),
    /// There are more than [`INTERVALS_MAX`].
    TooMany,
    /// It is longer, or has more requests or bytes, than is possible for a disk.
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
    /// Returns the first millisecond after it.
    #[must_use]
    pub const fn end_ms(&self) -> u64 {
        self.start_ms.saturating_add(self.length_ms)
    }

    /// Returns the number of all requests.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.reads.saturating_add(self.writes)
    }

    /// Returns the number of all bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.read_bytes.saturating_add(self.write_bytes)
    }
}

impl Trace {
    /// Returns the most bytes that file systems used in an interval; `None` if it is not known.
    #[must_use]
    pub fn used_bytes_max(&self) -> Option<u64> {
        self.intervals.iter().filter_map(|interval| interval.used_bytes).max()
    }

    /// Creates a trace of these intervals, in any order. Gaps between them become notes.
    ///
    /// # Errors
    /// Returns [`Malformed`] if they overlap, are empty, or exceed a maximum.
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
        let source = SourceLimits::default();
        let sizes = None;
        Ok(Self { name: name.into(), clock, columns, intervals, source, sizes, notes })
    }

    /// Returns the intervals with an unknown amount that other intervals have: more may have been
    /// wanted in them. If a direction had no requests, it had no bytes, either: CloudWatch has no
    /// point for these bytes on Xen instances.
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

    /// Returns the length of all intervals together without the gaps, in milliseconds.
    #[must_use]
    pub fn known_ms(&self) -> u64 {
        self.intervals.iter().map(|interval| interval.length_ms).sum()
    }

    /// Returns the length of the longest interval with requests, in milliseconds: the reliable
    /// resolution. An idle interval is the same in each of its seconds.
    #[must_use]
    pub fn resolution_ms(&self) -> u64 {
        let busy = |interval: &&Interval| interval.requests() > 0 || interval.bytes() > 0;
        let lengths = self.intervals.iter().filter(busy).map(|interval| interval.length_ms);
        lengths.max().unwrap_or_default()
    }

    /// Returns the median length of the intervals with requests, in milliseconds. Single reports
    /// that came late do not change it.
    #[must_use]
    pub fn usual_step_ms(&self) -> u64 {
        let busy = |interval: &&Interval| interval.requests() > 0 || interval.bytes() > 0;
        let lengths = self.intervals.iter().filter(busy).map(|interval| interval.length_ms);
        let mut lengths: Vec<u64> = lengths.collect();
        let middle = lengths.len() / 2;
        if lengths.is_empty() {
            return 0;
        }
        *lengths.select_nth_unstable(middle).1
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
