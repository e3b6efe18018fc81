//! Reads what `nvme amzn stats` prints for an EBS volume, again and again: the counters that its
//! NVMe controller keeps. `ebsnvme stats` prints the same counters.
//!
//! The form is that of nvme-cli's plugin and of amazon-ec2-utils; AWS documents the counters as
//! "Amazon EBS detailed performance statistics". A line with a time before each print says when it
//! was made, and a line with a device or a volume says of what; both are printed by the loop that
//! records. An interval is the difference of two prints.

use std::collections::BTreeMap;
use std::io::BufRead;

use crate::trace::{Clock, Columns, Delayed, Interval, Kind};

use super::bins::name_or;
use super::collect::{NAMES_MAX, Traces, too_many_names};
use super::lines::Lines;
use super::numbers::{ASKS_ORDER, NotTime, Times};
use super::{Broken, Hints, Read};

const ASKS_TIMES: &str = "a line with a time before each print, as of `while sleep 60; do date \
                          -Is; nvme amzn stats /dev/nvme1n1; done`, or the interval in \
                          milliseconds with --interval-ms";

/// A counter of the controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counter {
    Reads,
    Writes,
    ReadBytes,
    WriteBytes,
    ReadMicros,
    WriteMicros,
    /// Microseconds in which more was wanted than a limit of the volume or of the instance allows.
    Exceeded(usize),
}

const COUNTERS: usize = 10;

impl Counter {
    const fn index(self) -> usize {
        match self {
            Self::Reads => 0,
            Self::Writes => 1,
            Self::ReadBytes => 2,
            Self::WriteBytes => 3,
            Self::ReadMicros => 4,
            Self::WriteMicros => 5,
            Self::Exceeded(which) => 6 + which,
        }
    }

    /// Returns the counter of a key of the JSON form.
    fn of_key(key: &str) -> Option<Self> {
        Some(match key {
            "total_read_ops" => Self::Reads,
            "total_write_ops" => Self::Writes,
            "total_read_bytes" => Self::ReadBytes,
            "total_write_bytes" => Self::WriteBytes,
            "total_read_time" => Self::ReadMicros,
            "total_write_time" => Self::WriteMicros,
            "ebs_volume_performance_exceeded_iops" => Self::Exceeded(0),
            "ebs_volume_performance_exceeded_tp" => Self::Exceeded(1),
            "ec2_instance_ebs_performance_exceeded_iops" => Self::Exceeded(2),
            "ec2_instance_ebs_performance_exceeded_tp" => Self::Exceeded(3),
            _ => return None,
        })
    }
}

/// A part of the text form, named by the line above its values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Ops,
    Bytes,
    Time,
    Volume,
    Instance,
    /// Such as a histogram.
    Other,
}

impl Section {
    fn of_title(line: &str) -> Option<Self> {
        Some(match line.trim_end_matches(':') {
            "Total Ops" => Self::Ops,
            "Total Bytes" => Self::Bytes,
            "Total Time (us)" => Self::Time,
            "EBS Volume Performance Exceeded (us)" => Self::Volume,
            "EC2 Instance EBS Performance Exceeded (us)" => Self::Instance,
            title if title.contains("Histogram") => Self::Other,
            _ => return None,
        })
    }

    const fn counter(self, is_first: bool) -> Option<Counter> {
        Some(match (self, is_first) {
            (Self::Ops, true) => Counter::Reads,
            (Self::Ops, false) => Counter::Writes,
            (Self::Bytes, true) => Counter::ReadBytes,
            (Self::Bytes, false) => Counter::WriteBytes,
            (Self::Time, true) => Counter::ReadMicros,
            (Self::Time, false) => Counter::WriteMicros,
            (Self::Volume, true) => Counter::Exceeded(0),
            (Self::Volume, false) => Counter::Exceeded(1),
            (Self::Instance, true) => Counter::Exceeded(2),
            (Self::Instance, false) => Counter::Exceeded(3),
            (Self::Other, _) => return None,
        })
    }
}

/// The counters of a print.
type Values = [Option<u64>; COUNTERS];

/// Returns whether a print begins with this line.
pub(super) fn is_beginning(line: &str) -> bool {
    Section::of_title(line) == Some(Section::Ops) || line.contains("\"total_read_ops\"")
}

/// The previous print of a volume.
#[derive(Clone, Copy)]
struct Before {
    ms: u64,
    values: Values,
}

struct Reader<'a> {
    hints: &'a Hints,
    traces: Traces,
    times: Times,
    before: BTreeMap<String, Before>,
    /// The device or volume that a line named.
    name: Option<String>,
    unix_ms: Option<u64>,
    section: Section,
    values: Values,
    has_times: bool,
    resets: u64,
    not_after: u64,
}

/// Reads prints.
///
/// # Errors
/// Returns [`Broken`] if a value is invalid, if times are missing, or if there are no two prints of
/// a wanted volume.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut reader = Reader {
        hints,
        traces: Traces::new(Clock::Elapsed),
        times: Times { order: hints.dates },
        before: BTreeMap::new(),
        name: None,
        unix_ms: None,
        section: Section::Other,
        values: Values::default(),
        has_times: false,
        resets: 0,
        not_after: 0,
    };
    while let Some((number, line)) = lines.next()? {
        reader
            .line(number, line.trim())
            .map_err(|broken| Broken { line: broken.line.or(Some(number)), ..broken })?;
    }
    reader.end()?;
    reader.finish()
}

impl Reader<'_> {
    fn line(&mut self, number: u64, line: &str) -> Result<(), Broken> {
        if line.starts_with("/dev/") || line.starts_with("vol-") {
            self.end()?;
            let word = line.split_whitespace().next().unwrap_or_default();
            self.name = Some(word.trim_start_matches("/dev/").trim_end_matches(':').to_owned());
            return Ok(());
        }
        match self.times.read(line) {
            Ok(time) => {
                self.end()?;
                self.unix_ms = Some(time.unix_ms);
                return Ok(());
            }
            Err(NotTime::Ambiguous) => return Err(Broken::at(number, line, ASKS_ORDER)),
            Err(NotTime::Unknown) => {}
        }
        if let Some(section) = Section::of_title(line) {
            self.section = section;
            return Ok(());
        }
        for part in line.split(',') {
            let Some((key, value)) = part.split_once(':') else { continue };
            let is_mark = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | '"');
            let counter = match key.trim_matches(is_mark) {
                "Read" | "IOPS" => self.section.counter(true),
                "Write" | "Throughput" => self.section.counter(false),
                key => Counter::of_key(key),
            };
            let Some(counter) = counter else { continue };
            let value = value.trim_matches(is_mark);
            let value = value.parse().map_err(|_| {
                Broken::at(number, part, "a counter of `nvme amzn stats`, which is a whole number")
            })?;
            if self.values.get(counter.index()).is_some_and(Option::is_some) {
                self.end()?;
            }
            if let Some(kept) = self.values.get_mut(counter.index()) {
                *kept = Some(value);
            }
        }
        Ok(())
    }

    /// Ends a print.
    fn end(&mut self) -> Result<(), Broken> {
        let values = std::mem::take(&mut self.values);
        let named = self.name.clone();
        let name = named.unwrap_or_else(|| name_or(self.hints, "nvme"));
        let needed = [Counter::Reads, Counter::Writes, Counter::ReadBytes, Counter::WriteBytes];
        if values == Values::default() {
            return Ok(());
        }
        if needed.iter().any(|counter| values.get(counter.index()).is_none_or(Option::is_none)) {
            let expected = "all counters of reads and writes, and of their bytes: was it cut?";
            return Err(Broken::whole("a print of nvme amzn stats", expected));
        }
        if self.hints.name.as_ref().is_some_and(|wanted| *wanted != name) {
            return Ok(());
        }
        let before = self.before.get(&name).copied();
        let ms = match (self.unix_ms, self.hints.interval()) {
            (Some(unix_ms), _) => {
                self.has_times = true;
                unix_ms
            }
            (None, Some(interval_ms)) if !self.has_times => {
                before.map_or(0, |before| before.ms.saturating_add(interval_ms))
            }
            _ => return Err(Broken::whole("no times", ASKS_TIMES)),
        };
        if before.is_none() && self.before.len() >= NAMES_MAX {
            return Err(too_many_names(&name));
        }
        self.before.insert(name.clone(), Before { ms, values });
        let Some(before) = before else { return Ok(()) };
        let Some(length_ms) = ms.checked_sub(before.ms).filter(|length_ms| *length_ms > 0) else {
            self.not_after += 1;
            return Ok(());
        };
        let Some((interval, columns)) = difference(&before, &values, length_ms) else {
            self.resets += 1;
            return Ok(());
        };
        self.traces.push(&name, interval, columns)
    }

    fn finish(mut self) -> Read {
        if self.traces.is_empty() {
            let wanted = self.hints.name.as_deref().unwrap_or("a single print");
            return Err(Broken::whole(wanted, "at least two prints of `nvme amzn stats` of it"));
        }
        if self.has_times {
            self.traces.set_clock(Clock::Unix);
        }
        let mut remarks = Vec::new();
        if self.resets > 0 {
            let count = self.resets;
            remarks.push(format!("intervals left out, since a counter was reset: {count}"));
        }
        if self.not_after > 0 {
            let count = self.not_after;
            remarks.push(format!("prints left out, not later than the previous print: {count}"));
        }
        self.traces.finish(&remarks)
    }
}

/// Returns the amounts between two prints; `None` if a counter fell.
fn difference(before: &Before, values: &Values, length_ms: u64) -> Option<(Interval, Columns)> {
    let mut amounts = Values::default();
    for ((into, from), to) in amounts.iter_mut().zip(before.values).zip(values) {
        *into = match (from, to) {
            (Some(from), Some(to)) => Some(to.checked_sub(from)?),
            _ => None,
        };
    }
    let amount = |counter: Counter| amounts.get(counter.index()).copied().flatten();
    let ns = |counter| amount(counter).map(|micros| micros.saturating_mul(1_000));
    let exceeded = |which| amount(Counter::Exceeded(which)).map(|micros| micros > 0);
    let delayed = Delayed::new([0, 1].map(exceeded), [2, 3].map(exceeded));
    let interval = Interval {
        start_ms: before.ms,
        length_ms,
        reads: amount(Counter::Reads)?,
        writes: amount(Counter::Writes)?,
        read_bytes: amount(Counter::ReadBytes)?,
        write_bytes: amount(Counter::WriteBytes)?,
        read_ns: ns(Counter::ReadMicros),
        write_ns: ns(Counter::WriteMicros),
        is_censored: delayed.by_volume(),
        delayed,
        ..Interval::default()
    };
    let counter = Some(Kind::Counter);
    let times = counter.filter(|_| interval.read_ns.or(interval.write_ns).is_some());
    Some((interval, Columns { requests: counter, bytes: counter, times, ..Columns::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../samples/nvme_stats.txt");

    #[test]
    fn differences_of_prints_are_amounts_and_say_whether_a_limit_was_exceeded() {
        let traces = read(&mut SAMPLE.as_bytes(), &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one volume") };
        assert_eq!((trace.name.as_str(), trace.clock), ("nvme1n1", Clock::Unix));
        let [first, second] = trace.intervals.as_slice() else { panic!("two intervals") };
        assert_eq!((first.start_ms, first.length_ms), (1_795_633_788_000, 60_000));
        assert_eq!((first.reads, first.writes), (6_000, 600));
        assert_eq!((first.read_bytes, first.write_bytes), (98_304_000, 9_830_400));
        assert_eq!(first.read_ns, Some(3_000_000_000));
        assert_eq!((first.is_censored, second.is_censored), (Some(false), Some(true)));
    }

    #[test]
    fn prints_in_json_say_the_same_and_need_an_interval() {
        let json = include_str!("../../samples/nvme_stats.json");
        let broken = read(&mut json.as_bytes(), &Hints::default()).unwrap_err();
        assert_eq!(broken.expected, ASKS_TIMES);
        let hints = Hints { interval_ms: Some(60_000), ..Hints::default() };
        let traces = read(&mut json.as_bytes(), &hints).unwrap();
        let of_text = read(&mut SAMPLE.as_bytes(), &Hints::default()).unwrap();
        let mut interval = traces[0].intervals[0];
        interval.start_ms = of_text[0].intervals[0].start_ms;
        assert_eq!(interval, of_text[0].intervals[0]);
    }

    #[test]
    fn a_counter_that_fell_is_a_gap() {
        let text = SAMPLE.replace("Read: 1012000", "Read: 12000");
        let trace = read(&mut text.as_bytes(), &Hints::default()).unwrap().remove(0);
        assert_eq!(trace.intervals.len(), 1);
    }
}
