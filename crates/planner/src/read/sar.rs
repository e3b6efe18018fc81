//! Reads sysstat's history of devices: `sar -d`, and `sadf -d FILE -- -d` with semicolons.
//!
//! Both distinguish reads from writes in bytes only, not in requests. A row of sar has the end of
//! its interval; the header above it has the start.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::Clock;

use super::collect::Traces;
use super::device::{Assumed, Field, Rates, field, repeats};
use super::lines::Lines;
use super::numbers::{amount, date, decimal, time, time_of_day};
use super::{Broken, Hints, Read};

const DAY_MS: u64 = 86_400_000;
const ASKS_HEADER: &str = "a header with DEV and tps: print with `sar -d -f FILE`";
const EXPECTED_TIME: &str = "a time as 19:09:48 or 07:09:48 PM: print with LC_ALL=C sar -d -f FILE";

/// The quantities in the cells of a row.
struct Columns {
    fields: Vec<Option<Field>>,
}

impl Columns {
    fn of<'a>(headers: impl Iterator<Item = &'a str>) -> Option<Self> {
        let fields: Vec<Option<Field>> = headers.map(field).collect();
        fields.contains(&Some(Field::Transfers)).then_some(Self { fields })
    }

    /// Returns the values of a row, or its error.
    fn rates<'a>(&self, words: impl Iterator<Item = &'a str>) -> Result<Rates, String> {
        let mut rates = Rates::default();
        let mut count = 0;
        for (index, word) in words.enumerate() {
            count += 1;
            let Some(field) = self.fields.get(index) else { continue };
            let Some(value) = decimal(word) else {
                return Err(format!("a number in column {}, as 12.50", index + 1));
            };
            if let Some(field) = field {
                rates.set(*field, value);
            }
        }
        if count != self.fields.len() {
            return Err(format!("{} values, as the header has: was it cut?", self.fields.len()));
        }
        Ok(rates)
    }
}

/// The intervals, and the assumptions about them.
struct Output<'a> {
    hints: &'a Hints,
    traces: Traces,
    assumed: BTreeMap<String, Assumed>,
}

impl Output<'_> {
    const fn new(hints: &Hints, clock: Clock) -> Output<'_> {
        Output { hints, traces: Traces::new(clock), assumed: BTreeMap::new() }
    }

    fn wants(&self, name: &str) -> bool {
        self.hints.name.as_deref().is_none_or(|wanted| wanted == name)
    }

    fn push(&mut self, name: &str, rates: &Rates, from: u64, to: u64) -> Result<(), Broken> {
        let (interval, columns, assumed) = rates.interval(from, to - from);
        self.traces.push(name, interval, columns)?;
        if let Some(known) = self.assumed.get_mut(name) {
            *known = known.or(assumed);
        } else {
            self.assumed.insert(name.to_owned(), assumed);
        }
        Ok(())
    }

    fn finish(mut self, remarks: &[String]) -> Read {
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
        columns: None,
        day_ms: 0,
        has_date: false,
        from_ms: None,
        to_ms: None,
        last_ms: 0,
        not_after: 0,
    };
    while let Some((number, line)) = lines.next()? {
        reader.line(number, line)?;
    }
    let mut remarks = Vec::new();
    if reader.has_date {
        reader.output.traces.set_clock(Clock::Unix);
        remarks.push("the times have no zone; they are read as UTC".to_owned());
    } else {
        remarks.push("there is no date; times are those of the first day".to_owned());
    }
    if reader.not_after > 0 {
        let count = reader.not_after;
        remarks.push(format!("rows left out, not later than the ones before: {count}"));
    }
    reader.output.finish(&remarks)
}

struct Sar<'a> {
    output: Output<'a>,
    columns: Option<Columns>,
    /// Start of the day of the times, in milliseconds since 1970.
    day_ms: u64,
    has_date: bool,
    /// Start and end of the interval of the rows.
    from_ms: Option<u64>,
    to_ms: Option<u64>,
    /// The latest time, to detect midnight.
    last_ms: u64,
    not_after: u64,
}

impl Sar<'_> {
    fn line(&mut self, number: u64, line: &str) -> Result<(), Broken> {
        let text = line.trim();
        if text.is_empty() {
            return Ok(());
        }
        if text.starts_with("Linux ") {
            return self.banner(number, text);
        }
        if text.starts_with("Average") || text.contains("RESTART") {
            // A restart ends an interval whose start is no longer in the text.
            (self.columns, self.from_ms, self.to_ms) = (None, None, None);
            return Ok(());
        }
        let mut words = text.split_whitespace().peekable();
        let clock = words.next().unwrap_or_default();
        let half = words.next_if(|word| matches!(*word, "AM" | "PM" | "am" | "pm"));
        if words.peek() == Some(&"DEV") || words.peek() == Some(&"Device:") {
            let at_ms =
                self.time(clock, half).ok_or_else(|| Broken::at(number, text, EXPECTED_TIME))?;
            words.next();
            let columns = Columns::of(words);
            self.columns = Some(columns.ok_or_else(|| Broken::at(number, text, ASKS_HEADER))?);
            (self.from_ms, self.to_ms) = (Some(at_ms), None);
            return Ok(());
        }
        let is_row = self.columns.is_some();
        if !is_row && !self.output.traces.is_empty() {
            // Other tables of `sar -A`, or the lines after the averages.
            return Ok(());
        }
        if !is_row {
            return Err(Broken::at(number, text, ASKS_HEADER));
        }
        self.row(number, text, clock, half)
    }

    fn row(
        &mut self,
        number: u64,
        text: &str,
        clock: &str,
        half: Option<&str>,
    ) -> Result<(), Broken> {
        let at_ms =
            self.time(clock, half).ok_or_else(|| Broken::at(number, text, EXPECTED_TIME))?;
        if self.to_ms != Some(at_ms) {
            // The next interval begins at the end of this one.
            self.from_ms = self.to_ms.or(self.from_ms);
            self.to_ms = Some(at_ms);
        }
        let mut words = text.split_whitespace().skip(1 + usize::from(half.is_some()));
        let name = words.next().unwrap_or_default();
        let Some(columns) = &self.columns else { return Ok(()) };
        let rates = columns.rates(words).map_err(|expected| Broken::at(number, text, expected))?;
        let from_ms = self.from_ms.filter(|from_ms| *from_ms < at_ms);
        match from_ms {
            Some(from_ms) if self.output.wants(name) => {
                self.output.push(name, &rates, from_ms, at_ms)
            }
            Some(_) => Ok(()),
            None => {
                self.not_after += 1;
                Ok(())
            }
        }
    }

    /// Begins a day.
    fn banner(&mut self, number: u64, text: &str) -> Result<(), Broken> {
        (self.columns, self.from_ms, self.to_ms) = (None, None, None);
        let day = text.split_whitespace().find_map(date);
        let Some(day) = day.and_then(|day| u64::try_from(day).ok()) else {
            return Err(Broken::at(
                number,
                text,
                "a date as 11/25/2026 or 2026-11-25: print with LC_ALL=C, or S_TIME_FORMAT=ISO",
            ));
        };
        self.day_ms = day.saturating_mul(DAY_MS);
        self.last_ms = self.day_ms;
        self.has_date = true;
        Ok(())
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

/// Reads the output of `sadf -d` for devices.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, or if there are no values of a wanted device.
pub fn read_sadf(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut output = Output::new(hints, Clock::Unix);
    let mut columns: Option<Columns> = None;
    let mut is_zoneless = false;
    while let Some((number, line)) = lines.next()? {
        let text = line.trim();
        if let Some(header) = text.strip_prefix('#') {
            let mut names = header.trim().split(';').skip(3);
            columns = names.next().filter(|name| *name == "DEV").and(Columns::of(names));
            if columns.is_none() {
                let expected = "a header # hostname;interval;timestamp;DEV;tps;...: print with \
                                `sadf -d FILE -- -d`";
                return Err(Broken::at(number, text, expected));
            }
            continue;
        }
        if text.is_empty() || text.contains("LINUX-RESTART") || text.contains(";COMMENT") {
            continue;
        }
        let Some(columns) = &columns else {
            let expected = "a header # hostname;interval;timestamp;DEV;tps;... before values";
            return Err(Broken::at(number, text, expected));
        };
        let broken = |expected: &str| Broken::at(number, text, expected);
        let mut cells = text.split(';').skip(1);
        let interval_s = cells.next().and_then(decimal).filter(|seconds| *seconds > 0.0);
        let interval_s = interval_s.ok_or_else(|| broken("an interval in seconds, above 0"))?;
        let stamp = cells.next().unwrap_or_default();
        let to_ms = match stamp.parse::<u64>() {
            Ok(seconds) => seconds.saturating_mul(1_000),
            Err(_) => {
                let time = time(stamp)
                    .ok_or_else(|| broken("a timestamp as 2026-11-25 19:09:48 UTC, or seconds"))?;
                is_zoneless |= !time.has_zone;
                time.unix_ms
            }
        };
        let name = cells.next().ok_or_else(|| broken("the name of a device"))?;
        let rates = columns.rates(cells).map_err(|expected| broken(&expected))?;
        let from_ms = to_ms.saturating_sub(amount(interval_s * 1_000.0));
        if output.wants(name) && from_ms < to_ms {
            output.push(name, &rates, from_ms, to_ms)?;
        }
    }
    let remark = "the times have no zone; they are read as UTC".to_owned();
    let remarks: Vec<String> = is_zoneless.then_some(remark).into_iter().collect();
    output.finish(&remarks)
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
}
