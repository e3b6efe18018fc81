//! Reads fio's logs: `_bw.log`, `_iops.log`, `_lat.log`, `_clat.log`, `_slat.log`.
//!
//! A line is `ms, value, direction, size[, offset][, priority][, issue time]`; `log_prio` makes the
//! priority hexadecimal. Without `log_avg_msec` it is one request, and has its size. With it, it is
//! the mean of a window that ends at the time, and the size is 0. Only the name of a file
//! identifies the quantity of the values.
//!
//! fio writes a log of each job, unless `per_job_logs=0`. The jobs of a run are added up. fio
//! writes no line for a window without completions, so a window without a line is one in which
//! nothing was done.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::{Clock, Columns, INTERVALS_MAX, Interval, Kind, Malformed, Note};

use super::bins::{Bins, Direction, name_or};
use super::collect::{Traces, malformed, too_many_intervals};
use super::lines::Lines;
use super::numbers::amount;
use super::{Broken, Hints, INTERVALS_TOTAL_MAX, Read};

/// The quantity of the values of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
        let stem = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".log")?;
        let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.');
        Some(match stem.rsplit('_').next()? {
            "bw" => Self::Bandwidth,
            "iops" => Self::Iops,
            "lat" => Self::Latency,
            "clat" | "slat" => Self::PartOfLatency,
            _ => return None,
        })
    }

    /// Returns the end of the names of its files.
    const fn end(self) -> &'static str {
        match self {
            Self::Bandwidth => "_bw.log",
            Self::Iops => "_iops.log",
            Self::Latency => "_lat.log",
            Self::PartOfLatency => "_clat.log",
        }
    }
}

/// Lowest time that is since 1970, as with `log_unix_epoch`: in 2001, or after 31 years of a run.
const UNIX_MS_MIN: u64 = 1_000_000_000_000;
/// Spacings below are those of windows of several jobs that end together.
const JITTER_MS: u64 = 10;
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
    /// The first line with a mean latency.
    mean_latency: Option<u64>,
    /// The first and the last time of each log.
    spans: Vec<(u64, u64)>,
}

/// The logs of one run of fio.
pub struct Run<'a> {
    hints: &'a Hints,
    logs: BTreeMap<FioLog, Reader<'a>>,
}

impl<'a> Run<'a> {
    /// Creates a run without logs.
    #[must_use]
    pub const fn new(hints: &'a Hints) -> Self {
        Self { hints, logs: BTreeMap::new() }
    }

    /// Adds a log. Several of one quantity are those of several jobs.
    ///
    /// # Errors
    /// Returns [`Broken`] if a line is invalid.
    pub fn add(&mut self, log: FioLog, input: &mut dyn BufRead) -> Result<(), Broken> {
        let has_two_values = has_two_values(input);
        let mut lines = Lines::new(input);
        let reader = self.logs.entry(log).or_insert_with(|| Reader::new(self.hints));
        let mut span: Option<(u64, u64)> = None;
        while let Some((number, line)) = lines.next()? {
            if line.trim().is_empty() {
                continue;
            }
            let entry =
                entry(line, has_two_values).ok_or_else(|| Broken::at(number, line, EXPECTED))?;
            let (first, last) = span.unwrap_or((entry.ms, entry.ms));
            span = Some((first.min(entry.ms), last.max(entry.ms)));
            reader.take(number, &entry, log)?;
        }
        reader.spans.extend(span);
        Ok(())
    }

    /// Returns the trace of all logs; bytes and requests are two traces if they are means.
    ///
    /// # Errors
    /// Returns [`Broken`] if there are no reads and writes, or only mean latencies.
    pub fn finish(mut self) -> Read {
        let order = [FioLog::Latency, FioLog::Bandwidth, FioLog::Iops, FioLog::PartOfLatency];
        let is_each =
            |log: &FioLog| self.logs.get(log).is_some_and(|reader| reader.is_each == Some(true));
        if let Some(log) = order.into_iter().find(is_each)
            && let Some(reader) = self.logs.remove(&log)
        {
            return reader.finish_each(log, self.left_out(log));
        }
        let mut traces = Vec::new();
        for log in [FioLog::Bandwidth, FioLog::Iops] {
            let reader = self.logs.remove(&log).filter(|reader| reader.is_each.is_some());
            if let Some(reader) = reader {
                traces.extend(reader.finish_means(log)?);
            }
        }
        let mean_latency = self.logs.values().find_map(|reader| reader.mean_latency);
        let expected = "a latency log of each request, without log_avg_msec: a mean does not say \
                        of how many requests it is";
        match (traces.first_mut(), mean_latency) {
            (None, Some(line)) => return Err(Broken::at(line, "size 0", expected)),
            (None, None) => return Err(Broken::whole("an empty log", EXPECTED)),
            (Some(trace), Some(_)) => {
                let remark = "mean latencies are left out: they do not say of how many requests \
                              they are";
                trace.notes.push(Note::Remark(remark.to_owned()));
            }
            (Some(_), None) => {}
        }
        Ok(traces)
    }

    /// Returns a remark on the logs beside one that has each request.
    fn left_out(&self, log: FioLog) -> Option<String> {
        let others: Vec<&str> = self.logs.keys().map(|other| other.end()).collect();
        (!others.is_empty()).then(|| {
            format!(
                "{} has each request; other logs are left out: {}",
                log.end(),
                others.join(", ")
            )
        })
    }
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
            "a name that says which log it is: the name of its file ends with _bw.log, _iops.log, \
             _lat.log, _clat.log or _slat.log",
        ));
    };
    let mut run = Run::new(hints);
    run.add(log, input)?;
    run.finish()
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
    let size = words.next()?.parse().ok()?;
    // An offset, a priority, the time of the issue: none of them is used.
    let is_number = |word: &str| {
        let hexadecimal = word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
        hexadecimal.unwrap_or_else(|| word.parse()).is_ok()
    };
    words.all(is_number).then_some(Entry { ms, value, direction, size })
}

impl<'a> Reader<'a> {
    fn new(hints: &'a Hints) -> Self {
        Self {
            hints,
            name: name_or(hints, "fio"),
            bins: Bins::default(),
            means: BTreeMap::new(),
            trims: 0,
            is_each: None,
            is_unix: false,
            mean_latency: None,
            spans: Vec::new(),
        }
    }

    fn take(&mut self, number: u64, entry: &Entry, log: FioLog) -> Result<(), Broken> {
        let is_each = entry.size > 0;
        if *self.is_each.get_or_insert(is_each) != is_each {
            let expected = "sizes in all lines or in none: do not join logs with and without \
                            log_avg_msec";
            return Err(Broken::at(number, &format!("size {}", entry.size), expected));
        }
        if !is_each && matches!(log, FioLog::Latency | FioLog::PartOfLatency) {
            self.mean_latency.get_or_insert(number);
            return Ok(());
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
        if self.spans.len() > 1 {
            let begin = if self.is_unix { "" } else { ", as if they had begun together" };
            remarks.push(format!("the logs of {} jobs were added up{begin}", self.spans.len()));
        }
        remarks
    }

    /// Adds the windows without a line: nothing was done in them.
    fn fill(&self, slots: &mut BTreeMap<u64, Window>, window_ms: u64) -> Result<(), Broken> {
        let slot = |ms: u64| ms.saturating_add(window_ms / 2) / window_ms;
        for (first_ms, last_ms) in &self.spans {
            // The times of a run begin with it.
            let first = if self.is_unix { slot(*first_ms) } else { 1 };
            let last = slot(*last_ms);
            if last.saturating_sub(first) >= INTERVALS_MAX as u64 {
                return Err(malformed(&self.name, &Malformed::TooMany));
            }
            for slot in first..=last {
                slots.entry(slot).or_default();
            }
        }
        Ok(())
    }

    fn finish_each(mut self, log: FioLog, left_out: Option<String>) -> Read {
        let clock = self.clock();
        let mut remarks = self.remarks();
        remarks.extend(left_out);
        if self.bins.is_empty() {
            return Err(Broken::whole("only trims", "reads or writes"));
        }
        if self.is_unix {
            let parts = self.spans.iter().map(|(first, last)| (first / 1_000, last / 1_000));
            self.bins.set_parts(parts.collect());
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
        self.fill(&mut slots, window_ms)?;
        let mut traces = Traces::new(self.clock());
        let mut remarks = self.remarks();
        remarks.push(format!("means of windows of {window_ms} ms"));
        if self.spans.len() == 1 && slots.values().any(|window| window.added) {
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

    /// Returns the length of a window: a short spacing of their ends, because a window in which
    /// nothing was done makes a long one.
    fn window_ms(&self) -> Option<u64> {
        if let Some(ms) = self.hints.interval() {
            return Some(ms);
        }
        let ends: Vec<u64> = self.means.keys().copied().collect();
        let mut spacings: Vec<u64> =
            ends.windows(2).filter_map(|pair| Some(pair.get(1)? - pair.first()?)).collect();
        // The last window may be a part of one.
        if spacings.len() > 1 {
            spacings.pop();
        }
        // The windows of several jobs end some milliseconds apart.
        if spacings.iter().any(|spacing| *spacing >= JITTER_MS) {
            spacings.retain(|spacing| *spacing >= JITTER_MS);
        }
        spacings.sort_unstable();
        let usual_ms = *spacings.get(spacings.len() / 4)?;
        // Ends that are a millisecond late do not make another length.
        let round_ms = usual_ms.saturating_add(5) / 10 * 10;
        Some(if round_ms.abs_diff(usual_ms) * 100 <= usual_ms { round_ms } else { usual_ms })
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
    fn jobs_of_one_log_are_added_and_in_a_missing_window_nothing_was_done() {
        let text = "500, 10, 0, 0, 0\n501, 20, 0, 0, 0\n1000, 8, 0, 0, 0\n1000, 8, 0, 0, 0\n\
                    2000, 8, 0, 0, 0\n";
        let hints =
            Hints { fio_log: Some(FioLog::Iops), interval_ms: Some(500), ..Hints::default() };
        let trace = read(&mut text.as_bytes(), &hints).unwrap().remove(0);
        let reads: Vec<u64> = trace.intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(reads, [15, 8, 0, 4]);
        assert!(!trace.notes.iter().any(|note| matches!(note, Note::Gap { .. })));
    }

    fn run(logs: &[(FioLog, &str)]) -> Read {
        let hints = Hints::default();
        let mut run = Run::new(&hints);
        for (log, text) in logs {
            run.add(*log, &mut text.as_bytes())?;
        }
        run.finish()
    }

    #[test]
    fn logs_of_several_jobs_are_added_up() {
        let first = include_str!("../../samples/fio_jobs_iops.1.log");
        let other = include_str!("../../samples/fio_jobs_iops.2.log");
        let traces = run(&[(FioLog::Iops, first), (FioLog::Iops, other)]).unwrap();
        let [trace] = traces.as_slice() else { panic!("one trace") };
        let amounts: Vec<_> =
            trace.intervals.iter().map(|interval| (interval.reads, interval.writes)).collect();
        assert_eq!(amounts, [(300, 50), (320, 0), (0, 0), (200, 70), (10, 0)]);
        let remark = "the logs of 2 jobs were added up, as if they had begun together";
        assert!(trace.notes.contains(&Note::Remark(remark.to_owned())), "{:?}", trace.notes);
        // The windows of a log in which nothing was done do not end it.
        assert!(!trace.notes.iter().any(|note| matches!(note, Note::Gap { .. })));
    }

    #[test]
    fn logs_of_one_run_are_told_apart_by_their_quantity() {
        let bytes = (FioLog::Bandwidth, "1000, 400, 0, 0\n2000, 400, 0, 0\n");
        let requests = (FioLog::Iops, "1000, 100, 0, 0\n2000, 100, 0, 0\n");
        let latency = (FioLog::Latency, "1000, 250000, 0, 0\n2000, 250000, 0, 0\n");
        let traces = run(&[bytes, latency, requests]).unwrap();
        let merged = merge(traces).unwrap();
        assert_eq!((merged.intervals[1].reads, merged.intervals[1].read_bytes), (100, 409_600));
        let is_told = |note: &Note| matches!(note, Note::Remark(it) if it.starts_with("mean lat"));
        assert!(merged.notes.iter().any(is_told), "{:?}", merged.notes);
        assert_eq!(run(&[latency]).unwrap_err().line, Some(1));

        let each = (FioLog::Latency, "1000, 250000, 0, 4096\n2000, 250000, 0, 4096\n");
        let part = (FioLog::PartOfLatency, "1000, 240000, 0, 4096\n2000, 240000, 0, 4096\n");
        let traces = run(&[part, each]).unwrap();
        let [trace] = traces.as_slice() else { panic!("one trace") };
        assert_eq!(trace.intervals.iter().map(Interval::requests).sum::<u64>(), 2);
        let remark = "_lat.log has each request; other logs are left out: _clat.log";
        assert!(trace.notes.contains(&Note::Remark(remark.to_owned())), "{:?}", trace.notes);
    }

    #[test]
    fn recordings_of_different_days_have_a_gap_between_them() {
        let log = |day: u64| {
            let second = |second: u64| {
                format!("{}, 100, 0, 0\n", (1_795_633_200 + day * 86_400 + second) * 1_000)
            };
            [1, 2, 4].map(second).concat()
        };
        let traces = run(&[(FioLog::Iops, &log(0)), (FioLog::Iops, &log(1))]).unwrap();
        let gaps = traces[0].notes.iter().filter(|note| matches!(note, Note::Gap { .. }));
        assert_eq!((traces[0].intervals.len(), gaps.count()), (8, 1));
        let each = |day| log(day).replace("0, 0\n", "0, 512\n");
        let traces = run(&[(FioLog::Iops, &each(0)), (FioLog::Iops, &each(1))]).unwrap();
        let gaps = traces[0].notes.iter().filter(|note| matches!(note, Note::Gap { .. }));
        assert_eq!(gaps.count(), 1, "{:?}", traces[0].notes);
    }

    #[test]
    fn a_priority_may_be_hexadecimal() {
        let trace = read_as(include_str!("../../samples/fio_prio_lat.log"), FioLog::Latency);
        assert_eq!(trace.intervals.iter().map(Interval::requests).sum::<u64>(), 3);
    }
}
