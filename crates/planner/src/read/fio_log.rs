//! Reads fio's logs: `_bw.log`, `_iops.log`, `_lat.log`, `_clat.log`, `_slat.log`.
//!
//! A line is `ms, value, direction, size[, offset][, priority][, issue time]`. Without
//! `log_avg_msec` it is one request, and has its size. With it, it is the mean of a window that
//! ends at the time, and the size is 0. Only the name of a file identifies the quantity of the
//! values.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::{Clock, Columns, Interval, Kind};

use super::bins::{Bins, Direction, name_or};
use super::collect::{Traces, too_many_intervals};
use super::lines::Lines;
use super::numbers::amount;
use super::{Broken, Hints, INTERVALS_TOTAL_MAX, Read};

/// The quantity of the values of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FioLog {
    /// KiB per second.
    Bandwidth,
    /// Requests per second.
    Iops,
    /// Nanoseconds from the start of a request to its end.
    Latency,
    /// Nanoseconds of a part of that: to or from the kernel.
    PartOfLatency,
}

impl FioLog {
    /// Returns the quantity by the name that fio gives to a file.
    #[must_use]
    pub fn of_file_name(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".log")?;
        let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.');
        Some(match stem.rsplit('_').next()? {
            "bw" => Self::Bandwidth,
            "iops" => Self::Iops,
            "lat" => Self::Latency,
            "clat" | "slat" => Self::PartOfLatency,
            _ => return None,
        })
    }
}

/// Lowest time that is since 1970, as with `log_unix_epoch`: in 2001, or after 31 years of a run.
const UNIX_MS_MIN: u64 = 1_000_000_000_000;
const EXPECTED: &str = "a line of a fio log: ms, value, direction (0 to 2), size, ...";

struct Entry {
    ms: u64,
    value: u64,
    /// `None` for a trim.
    direction: Option<Direction>,
    size: u64,
}

/// Values of one direction in one window.
#[derive(Clone, Copy, Default)]
struct Window {
    values: [Option<u64>; 2],
    /// Whether values of other jobs were added.
    added: bool,
}

struct Reader<'a> {
    hints: &'a Hints,
    name: String,
    bins: Bins,
    means: BTreeMap<u64, Window>,
    trims: u64,
    /// Whether the first line has a size: then each line is a request.
    is_each: Option<bool>,
    is_unix: bool,
}

/// Reads a log. [`Hints::fio_log`] is the quantity of its values.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, if the quantity is not known, or if there are no reads
/// and writes.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let Some(log) = hints.fio_log else {
        return Err(Broken::whole(
            "a fio log",
            "to be told which log: the name of its file ends with _bw.log, _iops.log, _lat.log, \
             _clat.log or _slat.log",
        ));
    };
    let has_two_values = has_two_values(input);
    let mut lines = Lines::new(input);
    let mut reader = Reader {
        hints,
        name: name_or(hints, "fio"),
        bins: Bins::default(),
        means: BTreeMap::new(),
        trims: 0,
        is_each: None,
        is_unix: false,
    };
    while let Some((number, line)) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let entry =
            entry(line, has_two_values).ok_or_else(|| Broken::at(number, line, EXPECTED))?;
        reader.take(number, &entry, log)?;
    }
    match reader.is_each {
        None => Err(Broken::whole("an empty log", EXPECTED)),
        Some(true) => reader.finish_each(log),
        Some(false) => reader.finish_means(log),
    }
}

/// Returns whether lines have a mean and a maximum, as with `log_window_value=both`: then a third
/// number above 2 is not a direction. The first buffer of the text decides.
fn has_two_values(input: &mut dyn BufRead) -> bool {
    let head = input.fill_buf().unwrap_or_default();
    let text = String::from_utf8_lossy(head);
    text.lines().any(|line| {
        let mut numbers = line.split(',').map(|word| word.trim().parse::<u64>());
        let third = numbers.nth(2).and_then(Result::ok).unwrap_or(0);
        // A maximum is followed by a direction, a size, and more.
        third > 2 && matches!(numbers.next(), Some(Ok(0..=2))) && numbers.count() >= 2
    })
}

fn entry(line: &str, has_two_values: bool) -> Option<Entry> {
    let mut words = line.split(',').map(str::trim);
    let ms = words.next()?.parse().ok()?;
    let value = words.next()?.parse().ok()?;
    if has_two_values {
        words.next()?.parse::<u64>().ok()?;
    }
    let direction = match words.next()? {
        "0" => Some(Direction::Read),
        "1" => Some(Direction::Write),
        "2" => None,
        _ => return None,
    };
    Some(Entry { ms, value, direction, size: words.next()?.parse().ok()? })
}

impl Reader<'_> {
    fn take(&mut self, number: u64, entry: &Entry, log: FioLog) -> Result<(), Broken> {
        let is_each = entry.size > 0;
        if *self.is_each.get_or_insert(is_each) != is_each {
            let expected = "sizes in all lines or in none: do not join logs with and without \
                            log_avg_msec";
            return Err(Broken::at(number, &format!("size {}", entry.size), expected));
        }
        if !is_each && matches!(log, FioLog::Latency | FioLog::PartOfLatency) {
            let expected = "a latency log of each request, without log_avg_msec: a mean does not \
                            say of how many requests it is";
            return Err(Broken::at(number, "size 0", expected));
        }
        self.is_unix |= entry.ms >= UNIX_MS_MIN;
        let Some(direction) = entry.direction else {
            self.trims += 1;
            return Ok(());
        };
        if !is_each {
            let window = self.means.entry(entry.ms).or_default();
            let at = usize::from(direction == Direction::Write);
            if let Some(value) = window.values.get_mut(at) {
                window.added |= value.is_some();
                *value = Some(value.unwrap_or(0).saturating_add(entry.value));
            }
            if self.means.len() > INTERVALS_TOTAL_MAX {
                return Err(too_many_intervals(&self.name));
            }
            return Ok(());
        }
        // The line is written at the end of the request.
        let ns = if log == FioLog::Latency { entry.value } else { 0 };
        let second = entry.ms.saturating_sub(ns / 1_000_000) / 1_000;
        self.bins.add(&self.name, second, direction, entry.size)?;
        if log == FioLog::Latency {
            self.bins.add_time(&self.name, second, direction, ns);
        }
        Ok(())
    }

    const fn clock(&self) -> Clock {
        if self.is_unix { Clock::Unix } else { Clock::Elapsed }
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.trims > 0 {
            remarks.push(format!("trims left out: {}", self.trims));
        }
        remarks
    }

    fn finish_each(self, log: FioLog) -> Read {
        let (clock, remarks) = (self.clock(), self.remarks());
        if self.bins.is_empty() {
            return Err(Broken::whole("only trims", "reads or writes"));
        }
        self.bins.finish(clock, log == FioLog::Latency, &remarks)
    }

    /// Converts means to amounts of windows of equal length. fio writes the end of a window, at
    /// times a few milliseconds late.
    fn finish_means(self, log: FioLog) -> Read {
        let Some(window_ms) = self.window_ms() else {
            return Err(Broken::whole(
                "a single window",
                "at least two windows, or the milliseconds of log_avg_msec as --interval-ms",
            ));
        };
        let mut slots: BTreeMap<u64, Window> = BTreeMap::new();
        for (ms, window) in &self.means {
            // The nearest window. A partial window at the end is not one.
            let slot = ms.saturating_add(window_ms / 2) / window_ms;
            let sum = slots.entry(slot).or_default();
            sum.added |= window.added;
            for (into, from) in sum.values.iter_mut().zip(window.values) {
                sum.added |= into.is_some() && from.is_some();
                *into = match (*into, from) {
                    (Some(one), Some(other)) => Some(one.saturating_add(other)),
                    (one, other) => one.or(other),
                };
            }
        }
        let mut traces = Traces::new(self.clock());
        let mut remarks = self.remarks();
        remarks.push(format!("means of windows of {window_ms} ms"));
        if slots.values().any(|window| window.added) {
            remarks.push("several values of a window were added, as those of several jobs".into());
        }
        let unit = if log == FioLog::Iops { 1 } else { 1_024 };
        // Remainders are carried over: half a request of one window is a whole one of two windows.
        let mut left_over = [0.0; 2];
        for (slot, window) in slots.iter().filter(|(slot, _)| **slot > 0) {
            let mut amounts = [0; 2];
            let directions = amounts.iter_mut().zip(&mut left_over).zip(window.values);
            for ((whole, left), rate) in directions {
                let rate = rate.unwrap_or(0).saturating_mul(unit);
                let exact = rate as f64 * window_ms as f64 / 1_000.0 + *left;
                *whole = amount(exact.floor());
                *left = exact - exact.floor();
            }
            let start_ms = (slot - 1).saturating_mul(window_ms);
            let mut interval = Interval { start_ms, length_ms: window_ms, ..Interval::default() };
            let mut columns = Columns::default();
            if log == FioLog::Iops {
                [interval.reads, interval.writes] = amounts;
                columns.requests = Some(Kind::Mean);
            } else {
                [interval.read_bytes, interval.write_bytes] = amounts;
                columns.bytes = Some(Kind::Mean);
            }
            traces.push(&self.name, interval, columns)?;
        }
        if traces.is_empty() {
            return Err(Broken::whole("no windows", "reads or writes"));
        }
        traces.finish(&remarks)
    }

    /// Returns the length of most windows.
    fn window_ms(&self) -> Option<u64> {
        if let Some(ms) = self.hints.interval() {
            return Some(ms);
        }
        let ends: Vec<u64> = self.means.keys().copied().collect();
        let mut spacings: Vec<u64> =
            ends.windows(2).filter_map(|pair| Some(pair.get(1)? - pair.first()?)).collect();
        spacings.sort_unstable();
        let median_ms = *spacings.get(spacings.len() / 2)?;
        // Ends that are a millisecond late do not make another length.
        let round_ms = median_ms.saturating_add(5) / 10 * 10;
        Some(if round_ms.abs_diff(median_ms) * 100 <= median_ms { round_ms } else { median_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::merge;
    use crate::trace::{Note, Trace};

    fn read_as(text: &str, log: FioLog) -> Trace {
        let hints = Hints { fio_log: Some(log), ..Hints::default() };
        read(&mut text.as_bytes(), &hints).unwrap().remove(0)
    }

    #[test]
    fn names_of_files_say_which_log_it_is() {
        assert_eq!(FioLog::of_file_name("db_bw.1.log"), Some(FioLog::Bandwidth));
        assert_eq!(FioLog::of_file_name("my_job_iops.log"), Some(FioLog::Iops));
        assert_eq!(FioLog::of_file_name("a_lat.12.log"), Some(FioLog::Latency));
        assert_eq!(FioLog::of_file_name("a_clat.log"), Some(FioLog::PartOfLatency));
        assert_eq!(FioLog::of_file_name("fio.log"), None);
    }

    #[test]
    fn a_log_of_each_request_has_sizes_and_times() {
        let trace = read_as(include_str!("../../samples/fio_each_lat.log"), FioLog::Latency);
        assert_eq!(trace.clock, Clock::Elapsed);
        assert_eq!(trace.columns.times, Some(Kind::Counter));
        let requests: u64 = trace.intervals.iter().map(Interval::requests).sum();
        assert_eq!(requests, 80);
        let sizes: Vec<u32> = trace.sizes.unwrap().reads.into_keys().collect();
        assert_eq!(sizes, [4_096, 16_384]);
        let other = read_as(include_str!("../../samples/fio_each_bw.log"), FioLog::Bandwidth);
        assert_eq!(other.intervals.iter().map(Interval::bytes).sum::<u64>(), {
            trace.intervals.iter().map(Interval::bytes).sum::<u64>()
        });
        assert_eq!(other.columns.times, None);
    }

    #[test]
    fn means_are_of_windows_and_merge() {
        let bytes = read_as(include_str!("../../samples/fio_avg_bw.log"), FioLog::Bandwidth);
        let first = bytes.intervals[0];
        assert_eq!((first.start_ms, first.length_ms), (0, 500));
        assert_eq!((first.read_bytes, first.write_bytes), (69_120, 44_544));
        assert!(bytes.notes.contains(&Note::Remark("means of windows of 500 ms".to_owned())));
        let requests = read_as(include_str!("../../samples/fio_avg_iops.log"), FioLog::Iops);
        let merged = merge(vec![bytes, requests]).unwrap();
        assert_eq!(merged.intervals.len(), 5);
        assert_eq!((merged.intervals[0].reads, merged.intervals[0].read_bytes), (7, 69_120));
    }

    /// Two jobs, and two logs of one job, of unlike ends: the tail stays, and a note says so.
    #[test]
    fn logs_of_unlike_length_keep_their_ends() {
        let log = |direction: u32, values: &[u32]| {
            let line = |(second, value): (usize, &u32)| {
                format!("{}, {value}, {direction}, 0, 0\n", (second + 1) * 1_000)
            };
            values.iter().enumerate().map(line).collect::<String>()
        };
        let reads = read_as(&log(0, &[100; 4]), FioLog::Iops);
        let writes = read_as(&log(1, &[50, 50, 50, 50, 20_000, 20_000]), FioLog::Iops);
        let merged = merge(vec![reads, writes.clone()]).unwrap();
        let requests: Vec<u64> = merged.intervals.iter().map(Interval::requests).collect();
        assert_eq!(requests, [150, 150, 150, 150, 20_000, 20_000]);
        let is_told = |merged: &Trace, start: &str| {
            let is_it = |note: &Note| matches!(note, Note::Remark(it) if it.starts_with(start));
            merged.notes.iter().any(is_it)
        };
        let apart = "the files do not begin and end together: 2 s are not in all of them";
        assert!(is_told(&merged, apart), "{:?}", merged.notes);
        assert!(!is_told(&merged, "intervals known in part"), "{:?}", merged.notes);
        let bytes = read_as(&log(1, &[200; 4]), FioLog::Bandwidth);
        let merged = merge(vec![writes, bytes]).unwrap();
        assert_eq!((merged.intervals.len(), merged.intervals[5].writes), (6, 20_000));
        assert!(is_told(&merged, apart) && is_told(&merged, "intervals known in part: 2, 2 s"));
    }

    #[test]
    fn a_maximum_beside_the_mean_is_passed_over() {
        let text = "500, 12, 40, 0, 0, 0, 0\n500, 2, 4, 1, 0, 0, 0\n1000, 10, 10, 0, 0, 0, 0\n";
        let trace = read_as(text, FioLog::Iops);
        assert_eq!((trace.intervals[0].reads, trace.intervals[0].writes), (6, 1));
    }

    #[test]
    fn jobs_of_one_log_are_added_and_a_missing_window_is_a_gap() {
        let text = "500, 10, 0, 0, 0\n501, 20, 0, 0, 0\n1000, 8, 0, 0, 0\n1000, 8, 0, 0, 0\n\
                    2000, 8, 0, 0, 0\n";
        let hints =
            Hints { fio_log: Some(FioLog::Iops), interval_ms: Some(500), ..Hints::default() };
        let trace = read(&mut text.as_bytes(), &hints).unwrap().remove(0);
        let reads: Vec<u64> = trace.intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(reads, [15, 8, 4]);
        assert_eq!(trace.notes[0], Note::Gap { start_ms: 1_000, length_ms: 500 });
    }
}
