//! Reads the text of `iostat -x`. Columns are identified by the names in the header, because their
//! order differs between versions of sysstat.
//!
//! A report is one table, or with `--pretty` several with different columns. It ends where a header
//! is repeated, at the next time, or with the text.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::Clock;

use super::collect::{NAMES_MAX, Traces, too_many_names};
use super::device::{Assumed, Field, Rates, field, repeats, value};
use super::lines::Lines;
use super::numbers::{ASKS_ORDER, NotTime, Times};
use super::{Broken, Hints, Read};

/// The expected times, for the error of a recording without them.
const ASKS_INTERVAL: &str = "a time before each report: record with `iostat -xt`, or give the \
                             interval in milliseconds with --interval-ms";
pub(super) const EXPECTED_TIME: &str = "a time as 11/25/2026 07:09:48 PM, 11/25/26 19:09:48 or \
                             2026-11-25T19:09:48+0000: record with S_TIME_FORMAT=ISO";

/// Maximum number of tables in a report; `--pretty` prints four.
const TABLES_MAX: usize = 8;
/// Maximum number of reports with one time before the interval is known. Times are in whole
/// seconds, so the first report and the second one may have the same.
const HELD_MAX: usize = 2;

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
    /// The first reports of a recording, until the interval is known.
    held: Vec<Held>,
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
    /// Whether the bytes are in sectors under the name of another unit.
    has_sectors: bool,
    /// Remarks of the reader of the text.
    remarks: Vec<String>,
}

impl<'a> Reports<'a> {
    pub const fn new(hints: &'a Hints) -> Self {
        Self {
            hints,
            traces: Traces::new(Clock::Unix),
            assumed: BTreeMap::new(),
            held: Vec::new(),
            has_any: false,
            before_ms: None,
            nominal_ms: None,
            first_dropped: 0,
            not_after: 0,
            is_zoneless: false,
            is_joined: false,
            has_sectors: false,
            remarks: Vec::new(),
        }
    }

    /// Adds a remark on the text.
    pub fn remark(&mut self, remark: impl Into<String>) {
        self.remarks.push(remark.into());
    }

    /// Begins another recording. Its first report is since boot again.
    pub fn restart(&mut self) {
        self.first_dropped += u64::from(!self.held.is_empty());
        self.not_after += self.held.len().saturating_sub(1) as u64;
        self.held.clear();
        self.is_joined |= self.has_any;
        self.nominal_ms = None;
    }

    /// Records whether a time has no zone.
    pub const fn see_zone(&mut self, has_zone: bool) {
        self.is_zoneless |= !has_zone;
    }

    /// Adds a report that ended at `unix_ms`.
    pub fn take(&mut self, unix_ms: Option<u64>, report: Report) -> Result<(), Broken> {
        if self.nominal_ms.is_some() {
            return self.follow(unix_ms, &report);
        }
        let Some(first) = self.held.first() else {
            self.held.push(Held { unix_ms, report });
            return Ok(());
        };
        let between_ms = first.unix_ms.zip(unix_ms).map(|(from, to)| to.saturating_sub(from));
        if between_ms == Some(0) {
            if self.held.len() < HELD_MAX {
                self.held.push(Held { unix_ms, report });
            } else {
                self.not_after += 1;
            }
            return Ok(());
        }
        let nominal_ms = between_ms.or(self.hints.interval());
        let nominal_ms = nominal_ms.ok_or_else(|| Broken::whole("no times", ASKS_INTERVAL))?;
        self.begin(nominal_ms)?;
        self.follow(unix_ms, &report)
    }

    /// Adds the first reports, now that the interval is known. All end in one second.
    fn begin(&mut self, nominal_ms: u64) -> Result<(), Broken> {
        self.nominal_ms = Some(nominal_ms);
        let mut held = std::mem::take(&mut self.held);
        let end_ms = held.first().and_then(|first| first.unix_ms);
        if !self.hints.keeps_first && !held.is_empty() {
            self.first_dropped += 1;
            held.remove(0);
        }
        let Some(end_ms) = end_ms else {
            self.traces.set_clock(Clock::Elapsed);
            self.before_ms = Some(self.before_ms.unwrap_or(0));
            return held.iter().try_for_each(|report| self.follow(None, &report.report));
        };
        // Each of them lasted as long as those after it.
        let mut before_ms = end_ms.saturating_sub(nominal_ms.saturating_mul(held.len() as u64));
        self.before_ms = Some(before_ms);
        for report in held {
            before_ms = before_ms.saturating_add(nominal_ms);
            self.follow(Some(before_ms), &report.report)?;
        }
        Ok(())
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
        if let Some(has_sectors) = report.values().find_map(Rates::has_sectors) {
            self.has_sectors = has_sectors;
        }
        for (name, rates) in report {
            let mut rates = *rates;
            if self.has_sectors {
                rates.convert_sectors();
            }
            let (interval, columns, mut assumed) = rates.interval(end_ms - length_ms, length_ms);
            assumed.has_sectors = self.has_sectors;
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
        if !self.held.is_empty() {
            self.finish_first()?;
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
        let mut remarks = std::mem::take(&mut self.remarks);
        if self.first_dropped > 0 {
            let count = self.first_dropped;
            remarks.push(format!("first reports left out, since they are since boot: {count}"));
        }
        if self.not_after > 0 {
            let count = self.not_after;
            remarks.push(format!("reports left out, not later than the previous report: {count}"));
        }
        if self.is_zoneless {
            remarks.push("the times have no zone; they are read as UTC".to_owned());
        }
        if self.is_joined {
            remarks.push("several recordings in one file, one after the other".to_owned());
        }
        self.traces.finish(&remarks)
    }

    /// Ends a recording that has only its first reports.
    fn finish_first(&mut self) -> Result<(), Broken> {
        if self.has_any && !self.hints.keeps_first {
            self.restart();
            return Ok(());
        }
        let Some(interval_ms) = self.hints.interval() else {
            return Err(Broken::whole(
                "a single report",
                "at least two reports, of which the first is since boot: record with `iostat -xt \
                 1`, or give the interval in milliseconds with --interval-ms",
            ));
        };
        if self.held.len() > 1 {
            return self.begin(interval_ms);
        }
        self.nominal_ms = Some(interval_ms);
        let Some(held) = self.held.pop() else { return Ok(()) };
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
    times: Times,
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
        times: Times { order: hints.dates },
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
        let time = self.times.read(text).map_err(|error| {
            let is_time = first.contains('/') || first.contains(':') || text.contains(':');
            let expected = match error {
                NotTime::Ambiguous => ASKS_ORDER,
                NotTime::Unknown if is_time => EXPECTED_TIME,
                NotTime::Unknown => "a time, or a header that begins with Device",
            };
            Broken::at(number, text, expected)
        })?;
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
        assert!(
            remarks(&trace).contains(&"reports left out, not later than the previous report: 1")
        );
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

    /// The file is of sysstat 12.6.1 with `LC_ALL=de_DE.UTF-8`.
    #[test]
    fn decimal_commas_are_read_with_rows_of_the_processor() {
        let trace = only(include_str!("../../samples/iostat_comma.txt"));
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.read_bytes, first.writes), (6, 139_264, 216));
    }

    #[test]
    fn seconds_since_1970_are_times() {
        let trace = only(include_str!("../../samples/iostat_epoch.txt"));
        let interval = trace.intervals[0];
        assert_eq!((interval.start_ms, interval.length_ms), (1_795_633_788_000, 1_000));
        assert!(remarks(&trace).iter().all(|remark| !remark.contains("UTC")));
    }

    /// Times are whole seconds: the report since boot and the next one may have one.
    #[test]
    fn two_first_reports_within_a_second_do_not_hide_the_interval() {
        let text = include_str!("../../samples/iostat_same_second.txt");
        let trace = only(text);
        let spans: Vec<_> =
            trace.intervals.iter().map(|interval| (interval.end_ms(), interval.reads)).collect();
        let end_ms = 1_795_633_788_000;
        assert_eq!(spans, [(end_ms, 20), (end_ms + 1_000, 30), (end_ms + 2_000, 40)]);
        let hints = Hints { keeps_first: true, ..Hints::default() };
        let traces = read_with(text, &hints).unwrap();
        assert_eq!((traces[0].intervals.len(), traces[0].intervals[0].reads), (4, 10));
        assert_eq!(traces[0].intervals[0].end_ms(), end_ms - 1_000);
    }

    #[test]
    fn colours_are_no_part_of_a_name() {
        let trace = only(include_str!("../../samples/iostat_colour.txt"));
        assert_eq!((trace.name.as_str(), trace.intervals[0].reads), ("vda", 12));
    }

    fn json(text: &str) -> Read {
        super::super::iostat_json::read(&mut text.as_bytes(), &Hints::default())
    }

    #[test]
    fn json_with_the_comma_of_old_versions_is_read_and_so_is_json_without_end() {
        // sysstat issue 163: with -y, a comma stands where the first report would be.
        let text = include_str!("../../samples/iostat_comma.json");
        let trace = json(text).unwrap().remove(0);
        assert_eq!(trace.intervals.len(), 2);
        assert!(remarks(&trace)[0].starts_with("invalid commas"), "{:?}", remarks(&trace));
        let text = include_str!("../../samples/iostat_cut.json");
        let trace = json(text).unwrap().remove(0);
        assert_eq!(trace.intervals.len(), 2);
        assert!(remarks(&trace)[0].starts_with("the JSON has no end"), "{:?}", remarks(&trace));
    }

    /// sysstat up to 12.3.0: 31 writes of 4 KiB a second are 248 of each unit.
    #[test]
    fn json_in_sectors_under_the_name_of_megabytes_is_noticed() {
        let trace = json(include_str!("../../samples/iostat_12.2_m.json")).unwrap().remove(0);
        let interval = trace.intervals[0];
        assert_eq!((interval.writes, interval.write_bytes), (31, 126_976));
        assert!(
            remarks(&trace)[0].starts_with("the bytes are in sectors"),
            "{:?}",
            remarks(&trace)
        );
    }
}
