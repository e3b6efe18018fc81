//! Reads the text of `iostat -x`. Columns are identified by the names in the header, because their
//! order differs between versions of sysstat.
//!
//! A report is one table, or with `--pretty` several with different columns. It ends where a header
//! is repeated, at the next time, or with the text.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::Clock;

use super::collect::{NAMES_MAX, Traces, too_many_names};
use super::device::{Assumed, Field, Rates, field, repeats};
use super::lines::Lines;
use super::numbers::{decimal, time};
use super::{Broken, Hints, Read};

/// The expected times, for the error of a recording without them.
const ASKS_INTERVAL: &str = "a time before each report: record with `iostat -xt`, or give the \
                             interval in milliseconds with --interval-ms";
const EXPECTED_TIME: &str = "a time as 11/25/2026 07:09:48 PM, 11/25/26 19:09:48 or \
                             2026-11-25T19:09:48+0000: record with S_TIME_FORMAT=ISO";

/// Maximum number of tables in a report; `--pretty` prints four.
const TABLES_MAX: usize = 8;

type Report = BTreeMap<String, Rates>;

/// A report and its end.
struct Held {
    unix_ms: Option<u64>,
    report: Report,
}

/// Converts reports to intervals: the common part of iostat's text and its JSON.
pub(super) struct Reports<'a> {
    hints: &'a Hints,
    traces: Traces,
    assumed: BTreeMap<String, Assumed>,
    /// The first report of a recording, until the interval is known.
    first: Option<Held>,
    /// Whether any report but the first ones was used.
    has_any: bool,
    /// End of the previous report, in milliseconds since 1970.
    before_ms: Option<u64>,
    /// The interval of this recording, in milliseconds.
    nominal_ms: Option<u64>,
    first_dropped: u64,
    not_after: u64,
    is_zoneless: bool,
    is_joined: bool,
}

impl<'a> Reports<'a> {
    pub const fn new(hints: &'a Hints) -> Self {
        Self {
            hints,
            traces: Traces::new(Clock::Unix),
            assumed: BTreeMap::new(),
            first: None,
            has_any: false,
            before_ms: None,
            nominal_ms: None,
            first_dropped: 0,
            not_after: 0,
            is_zoneless: false,
            is_joined: false,
        }
    }

    /// Begins another recording. Its first report is since boot again.
    pub fn restart(&mut self) {
        self.first_dropped += u64::from(self.first.take().is_some());
        self.is_joined |= self.has_any;
        self.nominal_ms = None;
    }

    /// Records whether a time has no zone.
    pub const fn see_zone(&mut self, has_zone: bool) {
        self.is_zoneless |= !has_zone;
    }

    /// Adds a report that ended at `unix_ms`.
    pub fn take(&mut self, unix_ms: Option<u64>, report: Report) -> Result<(), Broken> {
        let Some(held) = self.first.take() else {
            if self.nominal_ms.is_some() {
                return self.follow(unix_ms, &report);
            }
            self.first = Some(Held { unix_ms, report });
            return Ok(());
        };
        let between = held.unix_ms.zip(unix_ms).map(|(from, to)| to.saturating_sub(from));
        let nominal = between.filter(|ms| *ms > 0).or(self.hints.interval());
        self.nominal_ms = Some(nominal.ok_or_else(|| Broken::whole("no times", ASKS_INTERVAL))?);
        if held.unix_ms.is_none() {
            self.traces.set_clock(Clock::Elapsed);
        }
        self.before_ms = Some(held.unix_ms.unwrap_or_else(|| self.before_ms.unwrap_or(0)));
        if self.hints.keeps_first {
            self.before_ms = self.before_ms.map(|ms| match held.unix_ms {
                Some(_) => ms.saturating_sub(nominal.unwrap_or(0)),
                None => ms,
            });
            self.follow(held.unix_ms, &held.report)?;
        } else {
            self.first_dropped += 1;
        }
        self.follow(unix_ms, &report)
    }

    /// Adds a report whose predecessor's end is known.
    fn follow(&mut self, unix_ms: Option<u64>, report: &Report) -> Result<(), Broken> {
        let nominal_ms = self.nominal_ms.unwrap_or(1_000);
        let before_ms = self.before_ms.unwrap_or(0);
        let end_ms = unix_ms.unwrap_or_else(|| before_ms.saturating_add(nominal_ms));
        let Some(between_ms) = end_ms.checked_sub(before_ms).filter(|ms| *ms > 0) else {
            // A clock that was set back, or local time in autumn.
            self.not_after += 1;
            return Ok(());
        };
        // Times are in whole seconds, but iostat divides by the exact time. A much longer distance
        // is a pause between two recordings.
        let slack_ms = 1_000 + nominal_ms / 10;
        let length_ms =
            if between_ms > nominal_ms.saturating_add(slack_ms) { nominal_ms } else { between_ms };
        self.before_ms = Some(end_ms);
        self.has_any = true;
        for (name, rates) in report {
            let (interval, columns, assumed) = rates.interval(end_ms - length_ms, length_ms);
            self.traces.push(name, interval, columns)?;
            if let Some(known) = self.assumed.get_mut(name) {
                *known = known.or(assumed);
            } else {
                self.assumed.insert(name.clone(), assumed);
            }
        }
        Ok(())
    }

    /// Returns the traces, after all reports.
    pub fn finish(mut self) -> Read {
        if let Some(held) = self.first.take() {
            self.finish_first(held)?;
        }
        if self.traces.is_empty() {
            let wanted = self.hints.name.as_deref().unwrap_or("no device");
            return Err(Broken::whole(
                wanted,
                "reports of `iostat -xt 1` with this device, at least two of them",
            ));
        }
        let names: Vec<String> = self.traces.names().map(str::to_owned).collect();
        for name in names {
            let assumed = self.assumed.get(&name).copied().unwrap_or_default();
            let pending = self.traces.of(&name)?;
            pending.remarks.extend(assumed.remarks());
            pending.remarks.extend(repeats(&name));
        }
        let mut remarks = Vec::new();
        if self.first_dropped > 0 {
            let count = self.first_dropped;
            remarks.push(format!("first reports left out, since they are since boot: {count}"));
        }
        if self.not_after > 0 {
            let count = self.not_after;
            remarks.push(format!("reports left out, not later than the one before: {count}"));
        }
        if self.is_zoneless {
            remarks.push("the times have no zone; they are read as UTC".to_owned());
        }
        if self.is_joined {
            remarks.push("several recordings in one file, one after the other".to_owned());
        }
        self.traces.finish(&remarks)
    }

    /// Ends a recording that has only its first report.
    fn finish_first(&mut self, held: Held) -> Result<(), Broken> {
        if self.has_any && !self.hints.keeps_first {
            self.first_dropped += 1;
            return Ok(());
        }
        let Some(interval_ms) = self.hints.interval() else {
            return Err(Broken::whole(
                "a single report",
                "at least two reports, of which the first is since boot: record with `iostat -xt \
                 1`, or give the interval in milliseconds with --interval-ms",
            ));
        };
        self.nominal_ms = Some(interval_ms);
        if held.unix_ms.is_none() {
            self.traces.set_clock(Clock::Elapsed);
        }
        let start_ms = held.unix_ms.map(|ms| ms.saturating_sub(interval_ms));
        self.before_ms = start_ms.or(self.before_ms).or(Some(0));
        self.follow(held.unix_ms, &held.report)
    }
}

/// A table that is being read.
struct Table {
    columns: Vec<Option<Field>>,
    /// Number of columns, including that of the device.
    width: usize,
    is_device_last: bool,
    /// A device whose values are on the next line, as old versions print with `-h`.
    pending: Option<String>,
}

struct Reader<'a> {
    reports: Reports<'a>,
    report: Report,
    headers: Vec<String>,
    table: Option<Table>,
    unix_ms: Option<u64>,
    is_in_cpu: bool,
}

/// Reads the output of `iostat -x`, with `-t` or with the interval as a hint.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, if the interval is not known, or if there are no
/// reports of a wanted device.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut reader = Reader {
        reports: Reports::new(hints),
        report: Report::new(),
        headers: Vec::new(),
        table: None,
        unix_ms: None,
        is_in_cpu: false,
    };
    while let Some((number, line)) = lines.next()? {
        reader
            .line(number, line)
            .map_err(|broken| Broken { line: broken.line.or(Some(number)), ..broken })?;
    }
    reader.end_report()?;
    reader.reports.finish()
}

impl Reader<'_> {
    fn line(&mut self, number: u64, line: &str) -> Result<(), Broken> {
        let text = line.trim();
        let mut words = text.split_whitespace();
        let Some(first) = words.next() else {
            (self.table, self.is_in_cpu) = (None, false);
            return Ok(());
        };
        if text.starts_with("Linux ") {
            self.end_report()?;
            self.reports.restart();
            self.unix_ms = None;
            return Ok(());
        }
        if text.starts_with("avg-cpu:") {
            (self.table, self.is_in_cpu) = (None, true);
            return Ok(());
        }
        let is_header = |word: &str| matches!(word, "Device" | "Device:");
        if is_header(first) || words.next_back().is_some_and(is_header) {
            return self.header(number, text);
        }
        if self.table.is_some() {
            return self.row(number, text);
        }
        if self.is_in_cpu {
            return Ok(());
        }
        let Some(time) = time(text) else {
            let is_time = first.contains('/') || first.contains(':') || text.contains(':');
            let expected =
                if is_time { EXPECTED_TIME } else { "a time, or a header that begins with Device" };
            return Err(Broken::at(number, text, expected));
        };
        self.end_report()?;
        self.reports.see_zone(time.has_zone);
        self.unix_ms = Some(time.unix_ms);
        Ok(())
    }

    fn header(&mut self, number: u64, text: &str) -> Result<(), Broken> {
        if self.headers.iter().any(|header| header == text) {
            self.end_report()?;
        }
        let is_device_last = !text.starts_with("Device");
        let columns: Vec<Option<Field>> = text
            .split_whitespace()
            .filter(|word| !matches!(*word, "Device" | "Device:"))
            .map(field)
            .collect();
        let is_new = self.headers.is_empty();
        let says = |wanted: fn(&Field) -> bool| columns.iter().flatten().any(wanted);
        if is_new && !says(|field| matches!(field, Field::Reads | Field::Transfers)) {
            return Err(Broken::at(
                number,
                text,
                "a column r/s or tps: record with `iostat -xt 1`",
            ));
        }
        if self.headers.len() >= TABLES_MAX {
            let expected = format!("at most {TABLES_MAX} tables in a report");
            return Err(Broken::at(number, text, expected));
        }
        self.headers.push(text.to_owned());
        let width = columns.len() + 1;
        self.table = Some(Table { columns, width, is_device_last, pending: None });
        self.is_in_cpu = false;
        Ok(())
    }

    fn row(&mut self, number: u64, text: &str) -> Result<(), Broken> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let name = match (words.len(), table.pending.take()) {
            (1, None) if !table.is_device_last => {
                table.pending = Some(text.to_owned());
                return Ok(());
            }
            (count, Some(name)) if count + 1 == table.width => name,
            (count, None) if count == table.width && table.is_device_last => {
                words.pop().unwrap_or_default().to_owned()
            }
            (count, None) if count == table.width => words.remove(0).to_owned(),
            _ => {
                let expected = format!(
                    "{} columns, as the header has: was the recording cut? Remove the line",
                    table.width
                );
                return Err(Broken::at(number, text, expected));
            }
        };
        if self.reports.hints.name.as_ref().is_some_and(|wanted| *wanted != name) {
            return Ok(());
        }
        if self.report.len() >= NAMES_MAX {
            return Err(too_many_names(&name));
        }
        let rates = self.report.entry(name).or_default();
        for (field, word) in table.columns.iter().zip(words) {
            let Some(field) = field else { continue };
            let (field, value) = value(*field, word).ok_or_else(|| {
                Broken::at(number, word, "a number, not negative, as 12.50, 12,50 or 1.2k")
            })?;
            rates.set(field, value);
        }
        Ok(())
    }

    fn end_report(&mut self) -> Result<(), Broken> {
        self.table = None;
        if self.headers.is_empty() {
            return Ok(());
        }
        self.headers.clear();
        self.reports.take(self.unix_ms.take(), std::mem::take(&mut self.report))
    }
}

/// Returns a value, and its column with the value's own unit, which it has with `-h`.
fn value(field: Field, word: &str) -> Option<(Field, f64)> {
    let (number, unit) = match word.char_indices().next_back()? {
        (_, last) if last.is_ascii_digit() => (word, None),
        (at, last) => (word.get(..at)?, Some(last)),
    };
    let value = decimal(number)?;
    let scale: f64 = match unit {
        None | Some('%') => return Some((field, value)),
        Some('B') => 1.0,
        Some('k') => 1_024.0,
        Some('M') => 1_048_576.0,
        Some('G') => 1_073_741_824.0,
        Some('T') => 1_099_511_627_776.0,
        Some(_) => return None,
    };
    let field = match field {
        Field::ReadBytes(_) => Field::ReadBytes(scale),
        Field::WriteBytes(_) => Field::WriteBytes(scale),
        Field::Bytes(_) => Field::Bytes(scale),
        Field::DiscardBytes(_) => Field::DiscardBytes(scale),
        _ => return None,
    };
    Some((field, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Kind, Note, Trace};

    fn read_with(text: &str, hints: &Hints) -> Read {
        read(&mut text.as_bytes(), hints)
    }

    fn only(text: &str) -> Trace {
        let mut traces = read_with(text, &Hints::default()).unwrap();
        assert_eq!(traces.len(), 1);
        traces.remove(0)
    }

    fn remarks(trace: &Trace) -> Vec<&str> {
        let remark = |note: &'_ Note| matches!(note, Note::Remark(_));
        trace.notes.iter().filter(|note| remark(note)).map(text_of).collect()
    }

    fn text_of(note: &Note) -> &str {
        match note {
            Note::Remark(text) => text,
            Note::Gap { .. } => "gap",
        }
    }

    #[test]
    fn columns_are_known_by_their_names_in_every_version() {
        let trace = only(include_str!("../../samples/iostat_x.txt"));
        assert_eq!((trace.name.as_str(), trace.clock), ("vda", Clock::Unix));
        assert_eq!(trace.columns.requests, Some(Kind::Mean));
        let [first, second] = trace.intervals.as_slice() else { panic!("two intervals") };
        assert_eq!((first.start_ms, first.length_ms), (1_795_633_788_000, 1_000));
        assert_eq!((first.reads, first.writes), (165, 6_364));
        assert_eq!((second.read_bytes, second.write_bytes), (112_178_176, 6_639_616));
        assert_eq!((second.read_ns, second.idle_ms), (Some(419_440_000), Some(864)));
        assert_eq!(second.queued_milli, Some(580));

        let trace = only(include_str!("../../samples/iostat_10.txt"));
        let interval = trace.intervals[0];
        assert_eq!((interval.reads, interval.writes), (40, 10));
        assert_eq!((interval.read_bytes, interval.write_bytes), (655_360, 81_920));
        assert_eq!(interval.write_ns, Some(20_000_000));

        let trace = only(include_str!("../../samples/iostat_12.0.txt"));
        let interval = trace.intervals[0];
        assert_eq!((interval.length_ms, interval.reads, interval.writes), (60_000, 12_000, 6_000));
        assert_eq!(interval.read_bytes, 196_293_427);
    }

    #[test]
    fn sectors_have_512_bytes_and_partitions_are_noted() {
        let text = include_str!("../../samples/iostat_9.0.txt");
        let traces = read_with(text, &Hints::default()).unwrap();
        let [disk, partition] = traces.as_slice() else { panic!("two devices") };
        assert_eq!(disk.intervals, partition.intervals);
        let interval = disk.intervals[0];
        assert_eq!((interval.length_ms, interval.reads), (10_000, 1_000));
        assert_eq!(interval.read_bytes, 8_192_000);
        assert_eq!(
            remarks(partition),
            [
                "one mean time stands for reads and for writes",
                "a partition's requests are also those of its disk: plan for one of them",
                "first reports left out, since they are since boot: 1",
                "the times have no zone; they are read as UTC",
            ]
        );
        let hints = Hints { name: Some("sda".to_owned()), ..Hints::default() };
        assert_eq!(read_with(text, &hints).unwrap().len(), 1);
    }

    #[test]
    fn a_report_of_several_tables_is_one_interval() {
        for (text, bytes) in [
            (include_str!("../../samples/iostat_pretty.txt"), 109_817_364),
            (include_str!("../../samples/iostat_human.txt"), 307_200),
        ] {
            let hints = Hints { interval_ms: Some(1_000), ..Hints::default() };
            let traces = read_with(text, &hints).unwrap();
            let interval = traces[0].intervals[0];
            assert_eq!((traces[0].intervals.len(), interval.read_bytes), (1, bytes));
            assert!(interval.queued_milli.is_some() && interval.write_ns.is_some());
            assert!(remarks(&traces[0]).contains(&"discards are left out"));
        }
    }

    #[test]
    fn requests_and_bytes_that_are_not_split_are_noted() {
        let trace = only(include_str!("../../samples/iostat_short.txt"));
        let interval = trace.intervals[0];
        assert_eq!((interval.reads, interval.writes), (6_411, 0));
        assert!(remarks(&trace)[0].starts_with("reads and writes are not told apart"));
    }

    #[test]
    fn the_report_since_boot_is_dropped_unless_it_is_said_to_be_none() {
        let text = include_str!("../../samples/iostat_iso.txt");
        assert_eq!(only(text).intervals.len(), 1);
        let hints = Hints { keeps_first: true, ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        let intervals = &traces[0].intervals;
        assert_eq!((intervals.len(), intervals[0].reads, intervals[0].length_ms), (2, 78, 1_000));
        assert_eq!(intervals[0].end_ms(), intervals[1].start_ms);
        assert!(remarks(&traces[0]).iter().all(|remark| !remark.contains("UTC")));
    }

    #[test]
    fn reports_without_times_need_the_interval() {
        let text = include_str!("../../samples/iostat_12.1.txt");
        let broken = read_with(text, &Hints::default()).unwrap_err();
        assert_eq!(broken.expected, ASKS_INTERVAL);
        let hints = Hints { interval_ms: Some(60_000), ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        assert_eq!(traces[0].clock, Clock::Elapsed);
        assert_eq!(traces[0].intervals[0].reads, 1_200);
    }

    #[test]
    fn a_pause_between_recordings_is_a_gap() {
        let one = include_str!("../../samples/iostat_x.txt");
        let later = one.replace("19:09:", "19:12:");
        let trace = only(&format!("{one}{later}"));
        assert_eq!(trace.intervals.len(), 4);
        assert!(
            trace.notes.contains(&Note::Gap { start_ms: 1_795_633_790_000, length_ms: 178_000 })
        );
    }

    #[test]
    fn a_clock_that_is_set_back_costs_the_reports_that_repeat_its_times() {
        let text = include_str!("../../samples/iostat_12.0.txt");
        let text = text.replace("07:11:48 PM", "06:11:48 PM");
        let trace = only(&text);
        assert_eq!(trace.intervals.len(), 1);
        assert!(remarks(&trace).contains(&"reports left out, not later than the one before: 1"));
    }

    #[test]
    fn old_versions_print_a_long_name_on_a_line_of_its_own() {
        let text = include_str!("../../samples/iostat_10.txt").replace("xvda ", "xvda\n ");
        assert_eq!(only(&text).intervals[0].reads, 40);
    }

    #[test]
    fn json_says_the_same() {
        let text = include_str!("../../samples/iostat.json");
        let traces =
            super::super::iostat_json::read(&mut text.as_bytes(), &Hints::default()).unwrap();
        let names: Vec<&str> = traces.iter().map(|trace| trace.name.as_str()).collect();
        assert_eq!(names, ["loop0", "vda"]);
        let first = traces[1].intervals[0];
        assert_eq!((first.start_ms, first.length_ms), (1_795_633_788_000, 1_000));
        assert_eq!((first.reads, first.write_bytes), (167, 30_760_960));
        assert_eq!((first.read_ns, first.idle_ms), (Some(60_120_000), Some(620)));
    }
}
