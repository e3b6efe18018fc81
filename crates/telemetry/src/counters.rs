//! Work of volumes between two samples of the data plane's counters. Pure.
//!
//! The metrics of CloudWatch and the recordings both use these differences. They store different
//! parts of them, and allow different times between two samples.

use std::collections::BTreeMap;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::Exceeded;
use evenkeel_wire::agent::{Answered, VolumeReport};

use evenkeel_core::time::UnixMs;

/// Requests of a volume: since the data plane's start, or between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// I/Os that were started, as the limit in IOPS counts them.
    pub operations: u64,
    /// Bytes of read requests that were started.
    pub read_bytes: u64,
    /// Bytes of write requests that were started.
    pub write_bytes: u64,
    /// Reads and writes that were answered.
    pub answered: Answered,
    /// The time for which requests were delayed, by cause.
    pub exceeded: Exceeded,
}

impl From<&VolumeReport> for Counters {
    fn from(report: &VolumeReport) -> Self {
        Self {
            operations: report.operations,
            read_bytes: report.bytes_read,
            write_bytes: report.bytes_written,
            answered: report.answered,
            exceeded: report.exceeded,
        }
    }
}

impl Counters {
    /// Returns the increase since `before`; `None` if a counter is lower.
    fn since(&self, before: &Self) -> Option<Self> {
        let now = &self.answered;
        let then = &before.answered;
        let answered = Answered {
            reads: now.reads.checked_sub(then.reads)?,
            writes: now.writes.checked_sub(then.writes)?,
            read_ns: now.read_ns.checked_sub(then.read_ns)?,
            write_ns: now.write_ns.checked_sub(then.write_ns)?,
        };
        let now = &self.exceeded;
        let then = &before.exceeded;
        let exceeded = Exceeded {
            operations_ns: now.operations_ns.checked_sub(then.operations_ns)?,
            bytes_ns: now.bytes_ns.checked_sub(then.bytes_ns)?,
            guard_ns: now.guard_ns.checked_sub(then.guard_ns)?,
            instance_operations_ns: now
                .instance_operations_ns
                .checked_sub(then.instance_operations_ns)?,
            instance_bytes_ns: now.instance_bytes_ns.checked_sub(then.instance_bytes_ns)?,
            device_ns: now.device_ns.checked_sub(then.device_ns)?,
        };
        Some(Self {
            operations: self.operations.checked_sub(before.operations)?,
            read_bytes: self.read_bytes.checked_sub(before.read_bytes)?,
            write_bytes: self.write_bytes.checked_sub(before.write_bytes)?,
            answered,
            exceeded,
        })
    }
}

/// A sample of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Which volume.
    pub id: VolumeId,
    /// Its counters since the data plane's start.
    pub total: Counters,
    /// Requests that wait or are being executed.
    pub queued: u32,
    /// When it was created.
    pub created: UnixMs,
}

/// Work of a volume between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Difference {
    /// Time of the earlier sample.
    pub start: UnixMs,
    /// Milliseconds between the two.
    pub length_ms: u64,
    /// The increase of the counters.
    pub added: Counters,
    /// Whether requests waited or were being executed in either sample.
    pub has_queued: bool,
}

/// The last sample that had a volume.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: UnixMs,
    total: Counters,
    queued: u32,
}

/// The last sample of each volume.
#[derive(Debug)]
pub struct Looks {
    /// Maximum time between two samples that are compared.
    gap_ms: u64,
    now: Option<UnixMs>,
    before: Option<UnixMs>,
    seen: BTreeMap<VolumeId, Seen>,
}

impl Looks {
    /// Creates it without samples. Samples with more than `gap_ms` between them are not compared:
    /// the server was stopped, the data plane did not answer, or the clock was set.
    #[must_use]
    pub const fn new(gap_ms: u64) -> Self {
        Self { gap_ms, now: None, before: None, seen: BTreeMap::new() }
    }

    /// Begins a sample at this time. Returns the time of the last one; `None` if that is not
    /// earlier, or is too long ago.
    pub fn begin(&mut self, now: UnixMs) -> Option<UnixMs> {
        let gap_ms = self.gap_ms;
        let is_near = |then: UnixMs| then <= now && now.ms_since(then) <= gap_ms;
        self.seen.retain(|_, seen| is_near(seen.at));
        self.before = self.now.replace(now).filter(|then| is_near(*then));
        self.before
    }

    /// Moves all samples ahead by `ms` milliseconds: the clock was moved by that, and nothing has
    /// happened meanwhile.
    pub fn move_ahead(&mut self, ms: u64) {
        self.now = self.now.map(|now| now.plus_ms(ms));
        for seen in self.seen.values_mut() {
            seen.at = seen.at.plus_ms(ms);
        }
    }

    /// Returns a volume's work since the last sample that had it; `None` if that is unknown.
    pub fn difference(&mut self, sample: &Sample) -> Option<Difference> {
        let now = self.now?;
        let present = Seen { at: now, total: sample.total, queued: sample.queued };
        // A new volume may have been missing in the last sample: all its counters have begun at
        // zero since.
        let new = self
            .before
            .filter(|before| sample.created.plus_ms(self.gap_ms) >= *before)
            .map(|at| Seen { at, total: Counters::default(), queued: 0 });
        let then = self.seen.insert(sample.id, present).or(new)?;
        Some(Difference {
            start: then.at,
            length_ms: now.ms_since(then.at),
            added: sample.total.since(&then.total)?,
            has_queued: sample.queued > 0 || then.queued > 0,
        })
    }
}
