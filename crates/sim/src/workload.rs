//! The description of a workload: fio executes it in live measurements, and promises are judged for
//! it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text;

/// Maximum queue depth of a workload: that of one NVMe queue pair.
pub const QUEUE_DEPTH_MAX: u32 = 1_024;

/// Maximum duration of a workload, in seconds. An hour of one-millisecond counts is 14 MB. Two
/// hours are enough for the longest published run, of 4,000 s.
pub const DURATION_S_MAX: u32 = 7_200;

/// The order in which blocks are accessed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// Uniformly over the whole volume, with replacement.
    Random,
    /// One block after another, repeatedly from the start of the volume.
    Sequential,
}

/// A workload on one volume: `queue_depth` requests are always in flight, or, with a rate, the
/// requests that have arrived and at most `queue_depth`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Workload {
    /// The order in which blocks are accessed.
    pub pattern: Pattern,
    /// Size of each request in bytes.
    pub block_bytes: u32,
    /// Share of reads in percent; the rest are writes.
    pub read_percent: u8,
    /// Number of requests in flight.
    pub queue_depth: u32,
    /// Length in whole seconds.
    pub duration_s: u32,
    /// Number of MiB from the start of the volume that are accessed; `None` is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_mib: Option<u32>,
    /// Average number of requests per second, at exponentially distributed distances. With `None`,
    /// a request follows each answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_iops: Option<u32>,
    /// Delay of its start after the others', in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_s: Option<u32>,
    /// Seed of the offsets and of the choice of reads: the same seed accesses the same blocks.
    pub seed: u64,
}

impl Workload {
    /// Returns a workload of random reads, as that of most published figures.
    #[must_use]
    pub const fn random_read(block_bytes: u32, queue_depth: u32, duration_s: u32) -> Self {
        Self {
            pattern: Pattern::Random,
            block_bytes,
            read_percent: 100,
            queue_depth,
            duration_s,
            span_mib: None,
            rate_iops: None,
            start_s: None,
            seed: 1,
        }
    }

    /// Returns a workload of random writes.
    #[must_use]
    pub const fn random_write(block_bytes: u32, queue_depth: u32, duration_s: u32) -> Self {
        let mut workload = Self::random_read(block_bytes, queue_depth, duration_s);
        workload.read_percent = 0;
        workload
    }

    /// Returns its end, in seconds after the start of the first workload of its run.
    #[must_use]
    pub fn end_s(&self) -> u32 {
        self.start_s.unwrap_or(0).saturating_add(self.duration_s)
    }

    /// Checks every bound, so that later code need not.
    ///
    /// # Errors
    /// Returns [`BadWorkload`], which names the value and its bounds.
    pub fn validate(&self) -> Result<(), BadWorkload> {
        let bad = |what: String| Err(BadWorkload(what));
        let block = self.block_bytes;
        if block == 0 || !block.is_multiple_of(512) || block > 32 << 20 {
            return bad(format!("block of {block} bytes; use a multiple of 512 up to 32 MiB"));
        }
        if self.read_percent > 100 {
            return bad(format!("{} % reads; use 0 to 100", self.read_percent));
        }
        if self.queue_depth == 0 || self.queue_depth > QUEUE_DEPTH_MAX {
            return bad(format!("queue depth {}; use 1 to {QUEUE_DEPTH_MAX}", self.queue_depth));
        }
        if self.span_mib == Some(0) {
            return bad("a span of 0 MiB; use 1 or more".to_owned());
        }
        if self.rate_iops == Some(0) {
            return bad("a rate of 0 IOPS; use 1 or more".to_owned());
        }
        let end_s = self.end_s();
        if self.duration_s == 0 || end_s > DURATION_S_MAX {
            return bad(format!("{end_s} s long; use 1 to {DURATION_S_MAX} s"));
        }
        Ok(())
    }
}

/// A workload out of bounds; the text names the value and its bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadWorkload(pub String);

impl fmt::Display for BadWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this workload cannot be run: {}", self.0)
    }
}

impl std::error::Error for BadWorkload {}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        };
        write!(f, "{} {pattern} ", text::bytes(u64::from(self.block_bytes)))?;
        match self.read_percent {
            100 => write!(f, "read")?,
            0 => write!(f, "write")?,
            reads => write!(f, "{reads}/{} read/write", 100 - reads)?,
        }
        write!(f, ", depth {}, {} s", self.queue_depth, self.duration_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_is_described_in_one_line() {
        let mut workload = Workload::random_read(16 << 10, 32, 30);
        assert_eq!(workload.to_string(), "16 KiB random read, depth 32, 30 s");
        workload.read_percent = 70;
        workload.pattern = Pattern::Sequential;
        assert_eq!(workload.to_string(), "16 KiB sequential 70/30 read/write, depth 32, 30 s");
    }

    #[test]
    fn every_bound_is_enforced_and_named() {
        let good = Workload::random_read(4_096, 1, 1);
        assert!(good.validate().is_ok());
        for (bad, word) in [
            (Workload { block_bytes: 0, ..good }, "block"),
            (Workload { block_bytes: 513, ..good }, "block"),
            (Workload { block_bytes: (32 << 20) + 512, ..good }, "block"),
            (Workload { read_percent: 101, ..good }, "% reads"),
            (Workload { queue_depth: 0, ..good }, "depth"),
            (Workload { queue_depth: QUEUE_DEPTH_MAX + 1, ..good }, "depth"),
            (Workload { span_mib: Some(0), ..good }, "span"),
            (Workload { rate_iops: Some(0), ..good }, "rate"),
            (Workload { duration_s: 0, ..good }, "long"),
            (Workload { duration_s: DURATION_S_MAX + 1, ..good }, "long"),
        ] {
            let message = bad.validate().expect_err("must be refused").to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn workload_survives_json() {
        let workload = Workload::random_write(4_096, 7, 9);
        let json = serde_json::to_string(&workload).unwrap();
        assert!(json.contains(r#""pattern":"random""#), "{json}");
        assert_eq!(serde_json::from_str::<Workload>(&json).unwrap(), workload);
    }
}
