//! The kernel's counters of a disk: `/sys/dev/block/MAJOR:MINOR/stat`. Partitions have them, too.
//!
//! The kernel's Documentation/block/stat.rst describes the columns. Since 4.18 there are four of
//! discards, since 5.5 two of flushes. Neither is counted here; flushes are also among the writes,
//! from which they are taken off.

use super::device::without_flushes;
use crate::trace::Interval;

/// Bytes of a sector in the counters, whatever the disk's sector size.
const SECTOR_BYTES: u64 = 512;
const NS_PER_MS: u64 = 1_000_000;
/// Columns that every kernel since 2.6.25 has.
const COLUMNS_MIN: usize = 11;
/// The column of flushes, from 0 on.
const FLUSHES_COLUMN: usize = 15;

/// The counters of a disk since the boot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    reads: u64,
    read_sectors: u64,
    read_ms: u64,
    writes: u64,
    write_sectors: u64,
    write_ms: u64,
    /// Time in which there were requests, in milliseconds.
    busy_ms: u64,
    /// Sum of that time over the requests in the queue, in milliseconds.
    queue_ms: u64,
    /// Flushes that the device executed; 0 if the kernel does not count them.
    flushes: u64,
}

impl Counters {
    /// Reads the text of a file `stat`.
    ///
    /// # Errors
    /// If a column is missing or is no number.
    pub fn read(text: &str) -> Result<Self, String> {
        let columns = text.split_ascii_whitespace().map(str::parse::<u64>);
        let columns: Vec<u64> = columns
            .collect::<Result<_, _>>()
            .map_err(|_| format!("{:?} has a column that is no number", text.trim()))?;
        let &[
            reads,
            _,
            read_sectors,
            read_ms,
            writes,
            _,
            write_sectors,
            write_ms,
            _,
            busy_ms,
            queue_ms,
            ..,
        ] = columns.as_slice()
        else {
            let found = columns.len();
            return Err(format!("it has {found} columns, {COLUMNS_MIN} or more are expected"));
        };
        Ok(Self {
            reads,
            read_sectors,
            read_ms,
            writes,
            write_sectors,
            write_ms,
            busy_ms,
            queue_ms,
            flushes: columns.get(FLUSHES_COLUMN).copied().unwrap_or(0),
        })
    }

    /// Returns the differences since `before` as an interval; `None` if a counter decreased: it has
    /// wrapped, or the disk is another one.
    #[must_use]
    pub fn since(&self, before: &Self, start_ms: u64, length_ms: u64) -> Option<Interval> {
        let busy_ms = self.busy_ms.checked_sub(before.busy_ms)?;
        let queue_ms = self.queue_ms.checked_sub(before.queue_ms)?;
        let sectors = |now: u64, before: u64| now.checked_sub(before)?.checked_mul(SECTOR_BYTES);
        let ns = |now: u64, before: u64| now.checked_sub(before)?.checked_mul(NS_PER_MS);
        let write_bytes = sectors(self.write_sectors, before.write_sectors)?;
        let writes = self.writes.checked_sub(before.writes)?;
        let flushes = self.flushes.checked_sub(before.flushes)?;
        Some(Interval {
            start_ms,
            length_ms,
            reads: self.reads.checked_sub(before.reads)?,
            writes: without_flushes(writes as f64, flushes as f64, write_bytes as f64).round()
                as u64,
            read_bytes: sectors(self.read_sectors, before.read_sectors)?,
            write_bytes,
            read_ns: Some(ns(self.read_ms, before.read_ms)?),
            write_ns: Some(ns(self.write_ms, before.write_ms)?),
            idle_ms: Some(length_ms.saturating_sub(busy_ms)),
            queued_milli: Some(queue_ms.checked_mul(1_000)?.checked_div(length_ms)?),
            ..Interval::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Linux 3.10, 4.18 and 6.8.
    const KERNELS: [&str; 3] = [
        "  1200  30  96000  4000  800  20  64000  9000  2  5000  13000\n",
        "  1200  30  96000  4000  800  20  64000  9000  2  5000  13000  5  0  4096  7\n",
        "  1200  30  96000  4000  800  20  64000  9000  2  5000  13000  5  0  4096  7  150  300\n",
    ];

    #[test]
    fn the_columns_of_all_kernels_are_read() {
        let expected = Counters {
            reads: 1_200,
            read_sectors: 96_000,
            read_ms: 4_000,
            writes: 800,
            write_sectors: 64_000,
            write_ms: 9_000,
            busy_ms: 5_000,
            queue_ms: 13_000,
            flushes: 0,
        };
        for (text, flushes) in KERNELS.into_iter().zip([0, 0, 150]) {
            assert_eq!(Counters::read(text), Ok(Counters { flushes, ..expected }), "{text}");
        }
        let old = Counters::read("12 96 8 64").unwrap_err();
        assert_eq!(old, "it has 4 columns, 11 or more are expected");
        assert!(Counters::read("").is_err() && Counters::read("1 -2 3").is_err());
    }

    #[test]
    fn a_difference_is_an_interval_and_a_counter_that_went_back_is_none() {
        let before = Counters::read(KERNELS[0]).unwrap();
        let after = Counters {
            reads: 1_300,
            read_sectors: 96_800,
            read_ms: 4_050,
            busy_ms: 5_400,
            queue_ms: 13_500,
            ..before
        };
        let found = after.since(&before, 7_000, 1_000).unwrap();
        assert_eq!((found.start_ms, found.length_ms), (7_000, 1_000));
        assert_eq!(
            (found.reads, found.read_bytes, found.read_ns),
            (100, 409_600, Some(50_000_000))
        );
        assert_eq!((found.writes, found.write_bytes, found.write_ns), (0, 0, Some(0)));
        assert_eq!((found.idle_ms, found.queued_milli), (Some(600), Some(500)));
        assert_eq!(before.since(&after, 7_000, 1_000), None);
        assert_eq!(after.since(&before, 7_000, 0), None);
        // 100 writes of which each was made durable: Linux counts a flush of each as a write.
        let durable = Counters {
            writes: before.writes + 200,
            write_sectors: before.write_sectors + 800,
            flushes: before.flushes + 100,
            ..after
        };
        let found = durable.since(&before, 7_000, 1_000).unwrap();
        assert_eq!((found.writes, found.write_bytes), (100, 409_600));
        // Busy for longer than the interval, since the kernel counts by its own ticks.
        assert_eq!(after.since(&before, 7_000, 300).unwrap().idle_ms, Some(0));
    }
}
