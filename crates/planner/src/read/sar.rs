//! Reads sysstat's history of devices: `sar -d`, and `sadf -d FILE -- -d` with semicolons.
//!
//! Both distinguish reads from writes in bytes only, not in requests. A row of sar has the end of
//! its interval; the header above it has the start. With `-h` and `--pretty` the device is last.
//! Tables of other statistics, as those of `-A`, are skipped, and comments of `-C`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use crate::trace::Clock;

use super::collect::Traces;
use super::device::{Assumed, Field, Rates, field, repeats, value};
use super::lines::Lines;
use super::numbers::{ASKS_ORDER, DateOrder, amount, date, decimal, time, time_of_day};
use super::{Broken, Hints, Read};

const DAY_MS: u64 = 86_400_000;
const ASKS_HEADER: &str = "a header with DEV and tps: print with `sar -d -f FILE`";
const EXPECTED_TIME: &str = "a time as 19:09:48 or 07:09:48 PM: print with LC_ALL=C sar -d -f FILE";
/// The remark on times without a zone.
pub(super) const ZONELESS: &str = "the times have no zone; they are read as UTC";

/// The quantities in the cells of a row.
struct Columns {
    fields: Vec<Option<Field>>,
    /// Whether the device is in the last cell of a row and not in the first one.
    is_device_last: bool,
}

impl Columns {
    /// Returns the columns by the words of a header; `None` if they are not of devices.
    fn of(headers: &[&str]) -> Option<Self> {
        let is_device = |header: &str| matches!(header, "DEV" | "Device:");
        let (headers, is_device_last) = match headers {
            [first, rest @ ..] if is_device(first) => (rest, false),
            [rest @ .., last] if is_device(last) => (rest, true),
            _ => return None,
        };
        Some(Self { fields: headers.iter().map(|header| field(header)).collect(), is_device_last })
    }

    fn has_transfers(&self) -> bool {
        self.fields.contains(&Some(Field::Transfers))
    }

    /// Returns the device of a row and its values, or the error of the row.
    fn row<'a>(&self, words: &[&'a str]) -> Result<(&'a str, Rates), String> {
        let cells = match words {
            [rest @ .., name] if self.is_device_last => Some((*name, rest)),
            [name, rest @ ..] if !self.is_device_last => Some((*name, rest)),
            _ => None,
        };
        let (name, values) = cells.ok_or("the name of a device")?;
        let mut rates = Rates::default();
        for (index, (field, word)) in self.fields.iter().zip(values).enumerate() {
            let is_number = || format!("a number in column {}, as 12.50", index + 1);
            let Some(field) = field else {
                // A unit, as with --human, is a letter at the end.
                let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '%');
                decimal(number).ok_or_else(is_number)?;
                continue;
            };
            let (field, value) = value(*field, word).ok_or_else(is_number)?;
            rates.set(field, value);
        }
        if values.len() != self.fields.len() {
            return Err(format!("{} values, as the header has: was it cut?", self.fields.len()));
        }
        Ok((name, rates))
    }
}

/// The intervals, and the assumptions about them: the common part of the forms of sysstat's
/// history.
pub(super) struct Output<'a> {
    hints: &'a Hints,
    traces: Traces,
    assumed: BTreeMap<String, Assumed>,
}

impl Output<'_> {
    pub const fn new(hints: &Hints, clock: Clock) -> Output<'_> {
        Output { hints, traces: Traces::new(clock), assumed: BTreeMap::new() }
    }

    fn wants(&self, name: &str) -> bool {
        self.hints.name.as_deref().is_none_or(|wanted| wanted == name)
    }

    /// Adds an interval of a device, if it is wanted.
    pub fn push(
        &mut self,
        name: &str,
        rates: &Rates,
        from_ms: u64,
        to_ms: u64,
    ) -> Result<(), Broken> {
        if !self.wants(name) {
            return Ok(());
        }
        let (interval, columns, assumed) = rates.interval(from_ms, to_ms - from_ms);
        self.traces.push(name, interval, columns)?;
        if let Some(known) = self.assumed.get_mut(name) {
            *known = known.or(assumed);
        } else {
            self.assumed.insert(name.to_owned(), assumed);
        }
        Ok(())
    }

    pub fn finish(mut self, remarks: &[String]) -> Read {
        if self.traces.is_empty() {
            let wanted = self.hints.name.as_deref().unwrap_or("no values");
            return Err(Broken::whole(wanted, "rows of devices, after a header with DEV and tps"));
        }
        for (name, assumed) in &self.assumed {
            let pending = self.traces.of(name)?;
            pending.remarks.extend(assumed.remarks());
            pending.remarks.extend(repeats(name));
        }
        self.traces.finish(remarks)
    }
}

/// Reads the output of `sar -d`.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, or if there are no values of a wanted device.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut reader = Sar {
        output: Output::new(hints, Clock::Elapsed),
        table: Table::Outside,
        day_ms: 0,
        order: hints.dates,
        has_date: false,
        open_date: None,
        from_ms: None,
        to_ms: None,
        devices: BTreeSet::new(),
        last_ms: 0,
        not_after: 0,
    };
    while let Some((number, line)) = lines.next()? {
        reader.line(number, line)?;
    }
    let mut remarks = Vec::new();
    if reader.has_date {
        reader.output.traces.set_clock(Clock::Unix);
        remarks.push(ZONELESS.to_owned());
    } else {
        remarks.push("there is no date; times are those of the first day".to_owned());
    }
    if reader.not_after > 0 {
        let count = reader.not_after;
        remarks.push(format!("rows left out, not later than the ones before: {count}"));
    }
    reader.output.finish(&remarks)
}

/// The table in which a line is.
enum Table {
    /// None: the next line with a time is a header.
    Outside,
    /// A table of devices.
    Devices(Columns),
    /// A table of other statistics.
    Other,
}

struct Sar<'a> {
    output: Output<'a>,
    table: Table,
    /// Start of the day of the times, in milliseconds since 1970.
    day_ms: u64,
    /// The order of day and month, once a date has shown it.
    order: Option<DateOrder>,
    has_date: bool,
    /// The line of a date with two meanings, and whether its year has four digits.
    open_date: Option<(u64, String, bool)>,
    /// Start and end of the interval of the rows.
    from_ms: Option<u64>,
    to_ms: Option<u64>,
    /// The devices of this interval.
    devices: BTreeSet<String>,
    /// The latest time, to detect midnight.
    last_ms: u64,
    not_after: u64,
}

impl Sar<'_> {
    fn line(&mut self, number: u64, line: &str) -> Result<(), Broken> {
        let text = line.trim();
        if text.is_empty() {
            // Each header has an empty line before it.
            self.table = Table::Outside;
            return Ok(());
        }
        if text.starts_with("Linux ") {
            return self.banner(number, text);
        }
        let mut words = text.split_whitespace().peekable();
        let clock = words.next().unwrap_or_default();
        // The averages, in any language: a time has digits.
        let is_average = !clock.bytes().any(|byte| byte.is_ascii_digit());
        if is_average || text.contains("RESTART") {
            // A restart ends an interval whose start is no longer in the text.
            (self.table, self.from_ms, self.to_ms) = (Table::Other, None, None);
            return Ok(());
        }
        let half = words.next_if(|word| matches!(*word, "AM" | "PM" | "am" | "pm"));
        let words: Vec<&str> = words.collect();
        if words.first() == Some(&"COM") {
            return Ok(());
        }
        if let Some(columns) = Columns::of(&words) {
            self.settle_date(half)?;
            let at_ms =
                self.time(clock, half).ok_or_else(|| Broken::at(number, text, EXPECTED_TIME))?;
            if !columns.has_transfers() {
                return Err(Broken::at(number, text, ASKS_HEADER));
            }
            self.table = Table::Devices(columns);
            (self.from_ms, self.to_ms) = (Some(at_ms), None);
            return Ok(());
        }
        let Table::Devices(columns) = &self.table else {
            self.table = Table::Other;
            return Ok(());
        };
        let row = columns.row(&words).map_err(|expected| Broken::at(number, text, expected));
        let at_ms =
            self.time(clock, half).ok_or_else(|| Broken::at(number, text, EXPECTED_TIME))?;
        if self.to_ms != Some(at_ms) {
            // The next interval begins at the end of this one.
            self.from_ms = self.to_ms.or(self.from_ms);
            self.to_ms = Some(at_ms);
            self.devices.clear();
        }
        let (name, rates) = row?;
        // Two intervals may end in one second, if the collector was started again.
        let is_later = self.devices.insert(name.to_owned());
        match self.from_ms.filter(|from_ms| *from_ms < at_ms && is_later) {
            Some(from_ms) => self.output.push(name, &rates, from_ms, at_ms),
            None => {
                self.not_after += 1;
                Ok(())
            }
        }
    }

    /// Begins a day.
    fn banner(&mut self, number: u64, text: &str) -> Result<(), Broken> {
        (self.table, self.from_ms, self.to_ms) = (Table::Outside, None, None);
        let day = text.split_whitespace().find_map(|word| date(word, self.order));
        let found = day.and_then(|day| Some((u64::try_from(day.unix_day).ok()?, day)));
        let Some((unix_day, day)) = found else {
            return Err(Broken::at(
                number,
                text,
                "a date as 11/25/2026 or 2026-11-25: print with LC_ALL=C, or S_TIME_FORMAT=ISO",
            ));
        };
        self.order = self.order.or(day.order);
        self.open_date = day.is_ambiguous.then(|| (number, text.to_owned(), day.has_century));
        self.day_ms = unix_day.saturating_mul(DAY_MS);
        self.last_ms = self.day_ms;
        self.has_date = true;
        Ok(())
    }

    /// Returns an error if the date has two meanings. The times below it may say which one it has:
    /// with AM or PM, and four digits of the year, the month is first.
    fn settle_date(&mut self, half: Option<&str>) -> Result<(), Broken> {
        match self.open_date.take() {
            Some((number, text, has_century)) if half.is_none() || !has_century => {
                Err(Broken::at(number, &text, ASKS_ORDER))
            }
            _ => Ok(()),
        }
    }

    /// Returns a time of day, on the next day after midnight.
    fn time(&mut self, clock: &str, half: Option<&str>) -> Option<u64> {
        let of_day = time_of_day(clock, half)?;
        let mut at_ms = self.day_ms.checked_add(of_day)?;
        // A jump back of half a day or more is midnight. A smaller one is a clock that was set.
        if at_ms.saturating_add(DAY_MS / 2) < self.last_ms {
            self.day_ms = self.day_ms.checked_add(DAY_MS)?;
            at_ms = self.day_ms.checked_add(of_day)?;
        }
        self.last_ms = self.last_ms.max(at_ms);
        Some(at_ms)
    }
}

/// Reads the output of `sadf -d` for devices. Sections of other statistics are skipped.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, or if there are no values of a wanted device.
pub fn read_sadf(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut reader = Sadf {
        output: Output::new(hints, Clock::Unix),
        section: None,
        is_zoneless: false,
        without_length: 0,
    };
    while let Some((number, line)) = lines.next()? {
        reader.line(number, line.trim())?;
    }
    let mut remarks = Vec::new();
    if reader.is_zoneless {
        remarks.push(ZONELESS.to_owned());
    }
    if reader.without_length > 0 {
        let count = reader.without_length;
        remarks.push(format!("rows left out, of intervals of less than a second: {count}"));
    }
    reader.output.finish(&remarks)
}

/// The lines below a header of sadf.
enum Section {
    Devices(Columns),
    Other,
}

struct Sadf<'a> {
    output: Output<'a>,
    section: Option<Section>,
    is_zoneless: bool,
    without_length: u64,
}

impl Sadf<'_> {
    fn line(&mut self, number: u64, text: &str) -> Result<(), Broken> {
        let broken = |expected: &str| Broken::at(number, text, expected);
        if let Some(header) = text.strip_prefix('#') {
            // With -h, a row has all devices.
            let names: Vec<&str> = header.trim().trim_end_matches("[...]").split(';').collect();
            let columns = names.get(3..).and_then(Columns::of);
            let columns = columns.filter(|columns| !columns.is_device_last);
            if columns.as_ref().is_some_and(|columns| !columns.has_transfers()) {
                return Err(broken(
                    "a header # hostname;interval;timestamp;DEV;tps;...: print with `sadf -d \
                     FILE -- -d`",
                ));
            }
            self.section = Some(columns.map_or(Section::Other, Section::Devices));
            return Ok(());
        }
        let is_note = text.contains("LINUX-RESTART") || text.contains(";COM");
        if text.is_empty() || is_note {
            return Ok(());
        }
        let columns = match &self.section {
            Some(Section::Devices(columns)) => columns,
            Some(Section::Other) => return Ok(()),
            None => {
                let expected = "a header # hostname;interval;timestamp;DEV;tps;... before values";
                return Err(broken(expected));
            }
        };
        let cells: Vec<&str> = text.split(';').collect();
        let [_, interval, stamp, values @ ..] = cells.as_slice() else {
            return Err(broken("a host, an interval, a timestamp, a device and its values"));
        };
        let interval_s = decimal(interval).ok_or_else(|| broken("an interval in seconds"))?;
        let to_ms = match stamp.parse::<u64>() {
            Ok(seconds) => seconds.saturating_mul(1_000),
            Err(_) => {
                let time = time(stamp)
                    .ok_or_else(|| broken("a timestamp as 2026-11-25 19:09:48 UTC, or seconds"))?;
                self.is_zoneless |= !time.has_zone;
                time.unix_ms
            }
        };
        let from_ms = to_ms.saturating_sub(amount(interval_s * 1_000.0));
        for device in values.chunks(columns.fields.len() + 1) {
            let (name, rates) = columns.row(device).map_err(|expected| broken(&expected))?;
            if from_ms < to_ms {
                self.output.push(name, &rates, from_ms, to_ms)?;
            } else {
                self.without_length += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Note, Trace};

    fn only(result: Read, name: &str) -> Trace {
        let mut traces = result.unwrap();
        traces.retain(|trace| trace.name == name);
        traces.remove(0)
    }

    fn sar(text: &str) -> Read {
        read(&mut text.as_bytes(), &Hints::default())
    }

    #[test]
    fn rows_are_of_the_time_since_the_header_or_the_row_before() {
        let trace = only(sar(include_str!("../../samples/sar_d.txt")), "vda");
        assert_eq!(trace.clock, Clock::Unix);
        let starts: Vec<u64> = trace.intervals.iter().map(|interval| interval.start_ms).collect();
        assert_eq!(starts, [1_795_633_791_000, 1_795_633_792_000, 1_795_633_793_000]);
        let first = trace.intervals[0];
        assert_eq!((first.length_ms, first.requests()), (1_000, 1_227));
        assert_eq!((first.read_bytes, first.write_bytes), (958_464, 24_027_136));
        assert_eq!(first.reads, 47);
        assert_eq!(first.queued_milli, Some(340));
        let split = "requests are not told apart; they are divided into reads and writes as the \
                     bytes are";
        assert!(trace.notes.contains(&Note::Remark(split.to_owned())));
    }

    #[test]
    fn sadf_says_the_same() {
        let text = include_str!("../../samples/sadf_d.txt");
        let result = read_sadf(&mut text.as_bytes(), &Hints::default());
        let other = only(sar(include_str!("../../samples/sar_d.txt")), "vda");
        assert_eq!(only(result, "vda").intervals, other.intervals);
        let text = include_str!("../../samples/sadf_d_10.txt");
        let result = read_sadf(&mut text.as_bytes(), &Hints::default());
        let other = only(sar(include_str!("../../samples/sar_d_10.txt")), "dev8-0");
        assert_eq!(only(result, "dev8-0").intervals, other.intervals);
    }

    #[test]
    fn old_columns_are_in_sectors_and_midnight_is_not_the_past() {
        let trace = only(sar(include_str!("../../samples/sar_d_10.txt")), "dev8-0");
        let lengths: Vec<u64> = trace.intervals.iter().map(|interval| interval.length_ms).collect();
        // The time between the restart and the next header is unknown.
        assert_eq!(lengths, [600_000, 600_000, 600_000]);
        let first = trace.intervals[0];
        assert_eq!((first.reads, first.writes), (3_600, 1_200));
        assert_eq!(first.read_bytes, 600 * 120 * 512);
        assert_eq!(trace.intervals[1].end_ms() % DAY_MS, 1_000);
        assert!(
            matches!(trace.notes[0], Note::Gap { length_ms: 300_000, .. }),
            "{:?}",
            trace.notes
        );
    }

    /// The files are of sysstat 12.6.1: `sar -d` of one history with different flags.
    #[test]
    fn every_flag_of_sar_and_sadf_says_the_same() {
        let plain = only(sar(include_str!("../../samples/sar_comment.txt")), "vda");
        let lengths: Vec<u64> = plain.intervals.iter().map(|interval| interval.length_ms).collect();
        assert_eq!(lengths, [1_000, 1_000, 1_000]);
        let left_out = "rows left out, not later than the ones before: 1";
        assert!(plain.notes.contains(&Note::Remark(left_out.to_owned())), "{:?}", plain.notes);
        for text in [
            include_str!("../../samples/sar_pretty.txt"),
            include_str!("../../samples/sar_all.txt"),
            include_str!("../../samples/sar_fr.txt"),
        ] {
            assert_eq!(only(sar(text), "vda").intervals, plain.intervals, "{text}");
        }
        let human = only(sar(include_str!("../../samples/sar_human.txt")), "vda");
        for (rounded, exact) in human.intervals.iter().zip(&plain.intervals) {
            assert!(rounded.write_bytes.abs_diff(exact.write_bytes) <= exact.write_bytes / 1_000);
            assert_eq!(rounded.requests(), exact.requests());
        }
        let sadf = |text: &str| only(read_sadf(&mut text.as_bytes(), &Hints::default()), "vda");
        let history = sadf(include_str!("../../samples/sadf_comment.txt"));
        assert_eq!(history.intervals, plain.intervals);
        let left_out = "rows left out, of intervals of less than a second: 1";
        assert!(history.notes.contains(&Note::Remark(left_out.to_owned())), "{:?}", history.notes);
        let all = include_str!("../../samples/sadf_all.txt");
        assert_eq!(sadf(all).intervals, plain.intervals);
        let json = include_str!("../../samples/sadf.json");
        let json = super::super::sadf_json::read(&mut json.as_bytes(), &Hints::default());
        assert_eq!(only(json, "vda").intervals, plain.intervals);
    }

    #[test]
    fn all_devices_in_one_row_of_sadf_are_read() {
        let text = "# hostname;interval;timestamp;DEV;tps;rkB/s;wkB/s[...]\n\
                    db1;1;2026-11-25 19:09:52 UTC;vda;2.00;8.00;0.00;vdb;3.00;12.00;0.00\n";
        let traces = read_sadf(&mut text.as_bytes(), &Hints::default()).unwrap();
        let reads: Vec<_> =
            traces.iter().map(|trace| (&*trace.name, trace.intervals[0].reads)).collect();
        assert_eq!(reads, [("vda", 2), ("vdb", 3)]);
    }

    #[test]
    fn a_date_with_two_meanings_is_asked_for_unless_the_times_tell() {
        let text = include_str!("../../samples/sar_d.txt").replace("11/25/26", "11/05/26");
        let broken = sar(&text).unwrap_err();
        assert_eq!((broken.line, broken.expected.as_str()), (Some(1), ASKS_ORDER));
        let hints = Hints { dates: Some(DateOrder::DayFirst), ..Hints::default() };
        let trace = only(read(&mut text.as_bytes(), &hints), "vda");
        assert_eq!(trace.intervals[0].start_ms, 1_778_526_591_000);
        let text = include_str!("../../samples/sar_d_10.txt").replace("11/24/2026", "11/05/2026");
        assert_eq!(only(sar(&text), "dev8-0").intervals.len(), 3);
    }
}
