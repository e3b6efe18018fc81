//! Reads a workload that is declared instead of recorded, in TOML.
//!
//! ```toml
//! name = "orders"
//! repeat = 7
//!
//! [[phase]]
//! name = "day"
//! for = "16h"
//! rate_iops = 2000
//! size_kib = 16
//! read_percent = 70
//! depth = 4
//! growth_percent = 50      # the rate at the end is 150 % of that at the beginning
//!
//! [[phase]]
//! name = "batch"
//! for = "8h"
//! rate_iops = 5000
//! size_kib = 64
//! read_percent = 10
//! depth = 32
//! period = "10m"           # of every ten minutes,
//! busy_percent = 20        # the first two
//! ```
//!
//! A text always gives the same intervals: one for each second, or with `interval = "phase"` the
//! fewest that have the same meaning.

use evenkeel_core::convert::saturating;
use std::io::{BufRead, Read as _};
use std::ops::Range;

use evenkeel_sim::text::line_of;
use serde::Deserialize;
use toml::Spanned;

use crate::trace::{Clock, Columns, INTERVALS_MAX, Interval, Kind, Malformed, Note};

use super::collect::Traces;
use super::lines::unreadable;
use super::{Broken, Hints, Read};

/// Maximum size of a declaration, in bytes.
pub const DECLARED_BYTES_MAX: u64 = 1 << 20;
const PHASES_MAX: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    name: Option<String>,
    repeat: Option<Spanned<i64>>,
    interval: Option<Spanned<String>>,
    phase: Vec<Phase>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Phase {
    #[serde(default)]
    name: String,
    r#for: Spanned<String>,
    rate_iops: Spanned<i64>,
    size_kib: Spanned<i64>,
    read_percent: Spanned<i64>,
    depth: Option<Spanned<i64>>,
    growth_percent: Option<Spanned<i64>>,
    period: Option<Spanned<String>>,
    busy_percent: Option<Spanned<i64>>,
}

/// A phase whose values are within their bounds.
struct Plan {
    length_s: u64,
    rate_iops: u64,
    size_bytes: u64,
    read_percent: u64,
    depth: Option<u64>,
    /// Negative if the rate falls.
    growth_percent: i64,
    /// The period in seconds, and the number of busy seconds at its start.
    period: Option<(u64, u64)>,
}

/// A part of a phase that becomes one interval.
struct Piece {
    from_s: u64,
    to_s: u64,
    is_busy: bool,
}

/// Reads a declaration.
///
/// # Errors
/// Returns [`Broken`] with the line of an invalid value.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let text = text(input)?;
    let declared: Declared = toml::from_str(&text).map_err(|error| syntax(&text, &error))?;
    let name = match (&hints.name, declared.name) {
        (Some(wanted), Some(name)) if *wanted != name => {
            let expected = format!("the name of the workload that is declared: {name:?}");
            return Err(Broken::whole(wanted, expected));
        }
        // A workload without a name gets the wanted one.
        (wanted, name) => name.or_else(|| wanted.clone()).unwrap_or_else(|| "declared".to_owned()),
    };
    if declared.phase.is_empty() || declared.phase.len() > PHASES_MAX {
        let found = format!("{} phases", declared.phase.len());
        return Err(Broken::whole(&found, format!("1 to {PHASES_MAX} tables [[phase]]")));
    }
    let check = Check { text: &text };
    let repeat = match &declared.repeat {
        Some(repeat) => check.number("repeat", repeat, 1, 1_000_000)?,
        None => 1,
    };
    let by_phase = match declared.interval.as_ref().map(|said| (said, said.get_ref().as_str())) {
        None | Some((_, "1s")) => false,
        Some((_, "phase")) => true,
        Some((said, other)) => {
            let found = format!("interval = {other:?}");
            return Err(Broken::at(check.line(&said.span()), &found, "\"1s\" or \"phase\""));
        }
    };
    let plans: Vec<Plan> =
        declared.phase.iter().map(|phase| check.phase(phase)).collect::<Result<_, _>>()?;
    let count = plans.iter().map(|plan| plan.pieces_count(by_phase)).sum::<u64>();
    if count.saturating_mul(repeat) > INTERVALS_MAX as u64 {
        let found = format!("{} intervals", count.saturating_mul(repeat));
        let expected =
            format!("at most {INTERVALS_MAX}: repeat less often, or set interval = \"phase\"");
        return Err(Broken::whole(&found, expected));
    }
    let mut traces = Traces::new(Clock::Elapsed);
    let mut start_s: u64 = 0;
    for _ in 0..repeat {
        for plan in &plans {
            plan.expand(&name, start_s, by_phase, &mut traces)?;
            start_s = start_s.saturating_add(plan.length_s);
        }
    }
    // Seconds in a row are never malformed, but their sum may exceed the limits of a trace.
    let mut traces = traces.finish(&[super::DECLARED.to_owned()]).map_err(|_| {
        let expected = format!(
            "a workload of one disk: {}; lower rate_iops, size_kib, for or repeat",
            Malformed::Impossible
        );
        Broken::whole(&name, expected)
    })?;
    for trace in &mut traces {
        for (phase, plan) in declared.phase.iter().zip(&plans) {
            if by_phase && plan.growth_percent != 0 {
                let remark =
                    format!("phase {:?} is one interval, with the mean of its growth", phase.name);
                trace.notes.push(Note::Remark(remark));
            }
        }
    }
    Ok(traces)
}

fn text(input: &mut dyn BufRead) -> Result<String, Broken> {
    let mut bytes = Vec::new();
    let read = input.take(DECLARED_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| unreadable(1, &error))?;
    if bytes.len() as u64 > DECLARED_BYTES_MAX {
        let expected = format!("at most {} KiB of TOML", DECLARED_BYTES_MAX >> 10);
        return Err(Broken::whole("a long text", expected));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = line_of(error.as_bytes(), valid);
        Broken::at(line as u64, "bytes that are no text", "TOML in UTF-8")
    })
}

fn syntax(text: &str, error: &toml::de::Error) -> Broken {
    let expected = "a workload in TOML: name, repeat, interval and tables [[phase]] with for, \
                    rate_iops, size_kib, read_percent, and depth, growth_percent, period, \
                    busy_percent";
    let found = error.message().lines().next().unwrap_or_default();
    match error.span() {
        Some(span) => Broken::at(line_of(text, span.start) as u64, found, expected),
        None => Broken::whole(found, expected),
    }
}

/// Checks values, and names their lines in errors.
struct Check<'a> {
    text: &'a str,
}

impl Check<'_> {
    fn line(&self, span: &Range<usize>) -> u64 {
        line_of(self.text, span.start) as u64
    }

    fn signed(&self, key: &str, at: &Spanned<i64>, min: i64, max: i64) -> Result<i64, Broken> {
        let value = *at.get_ref();
        if (min..=max).contains(&value) {
            return Ok(value);
        }
        let found = format!("{key} = {value}");
        Err(Broken::at(self.line(&at.span()), &found, format!("{min} to {max}")))
    }

    fn number(&self, key: &str, at: &Spanned<i64>, min: i64, max: i64) -> Result<u64, Broken> {
        self.signed(key, at, min, max).map(|value| value.unsigned_abs())
    }

    fn duration(&self, key: &str, at: &Spanned<String>) -> Result<u64, Broken> {
        duration_s(at.get_ref()).ok_or_else(|| {
            let found = format!("{key} = {:?}", at.get_ref());
            let expected = "1s to 366d, as \"90s\", \"15m\", \"8h\" or \"7d\"";
            Broken::at(self.line(&at.span()), &found, expected)
        })
    }

    fn phase(&self, phase: &Phase) -> Result<Plan, Broken> {
        let optional = |key, value: &Option<Spanned<i64>>, min, max| {
            value.as_ref().map(|value| self.signed(key, value, min, max)).transpose()
        };
        let length_s = self.duration("for", &phase.r#for)?;
        let growth = optional("growth_percent", &phase.growth_percent, -100, 10_000)?;
        let busy = optional("busy_percent", &phase.busy_percent, 1, 100)?;
        let period = match (&phase.period, busy) {
            (None, None) => None,
            (Some(period), Some(busy)) => {
                let period_s = self.duration("period", period)?;
                Some((period_s, (period_s * busy.unsigned_abs() / 100).max(1)))
            }
            (Some(other), None) => {
                let expected = "busy_percent beside period: the part of it that is busy";
                return Err(Broken::at(self.line(&other.span()), "period alone", expected));
            }
            (None, Some(_)) => {
                let line =
                    phase.busy_percent.as_ref().map(|busy_percent| self.line(&busy_percent.span()));
                let expected = "period beside busy_percent: how often it comes back";
                return Err(Broken { line, ..Broken::whole("busy_percent alone", expected) });
            }
        };
        Ok(Plan {
            length_s,
            rate_iops: self.number("rate_iops", &phase.rate_iops, 0, 10_000_000)?,
            size_bytes: self.number("size_kib", &phase.size_kib, 1, 32_768)? << 10,
            read_percent: self.number("read_percent", &phase.read_percent, 0, 100)?,
            depth: optional("depth", &phase.depth, 1, 65_536)?.map(i64::unsigned_abs),
            growth_percent: growth.unwrap_or(0),
            period,
        })
    }
}

/// Converts `90s`, `15m`, `8h` or `7d` to seconds.
fn duration_s(text: &str) -> Option<u64> {
    let unit_s = match text.chars().next_back()? {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let digits = text.get(..text.len() - 1)?.trim_end();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(unit_s)?;
    (1..=366 * 86_400).contains(&seconds).then_some(seconds)
}

impl Plan {
    fn pieces_count(&self, by_phase: bool) -> u64 {
        match self.period {
            _ if !by_phase => self.length_s,
            None => 1,
            Some((period_s, _)) => self.length_s.div_ceil(period_s) * 2,
        }
    }

    /// Returns the requests from the start of the phase to a second of it, without its idle parts.
    fn requests_until(&self, second: u64) -> u128 {
        // The rate grows linearly, so its sum is the area of a trapezium.
        let rate = i128::from(self.rate_iops);
        let length = i128::from(self.length_s);
        let growth = i128::from(self.growth_percent);
        let second = i128::from(second);
        let grown = rate * growth * second * second / (200 * length);
        (rate * second + grown).unsigned_abs()
    }

    fn expand(
        &self,
        name: &str,
        start_s: u64,
        by_phase: bool,
        traces: &mut Traces,
    ) -> Result<(), Broken> {
        let mut requests_before: u128 = 0;
        let mut at_s = 0;
        while at_s < self.length_s {
            let piece = self.piece(at_s, by_phase);
            at_s = piece.to_s;
            let length_ms = (piece.to_s - piece.from_s) * 1_000;
            let mut interval = Interval {
                start_ms: start_s.saturating_add(piece.from_s).saturating_mul(1_000),
                length_ms,
                queued_milli: self.depth.map(|_| 0),
                ..Interval::default()
            };
            if piece.is_busy {
                let requests = self
                    .requests_until(piece.to_s)
                    .saturating_sub(self.requests_until(piece.from_s));
                // Reads are a share of the running sum, so that no second is rounded on its own.
                let reads_until = |requests: u128| requests * u128::from(self.read_percent) / 100;
                let reads = reads_until(requests_before + requests) - reads_until(requests_before);
                requests_before += requests;
                let count = |count: u128| saturating::<_, u64>(count);
                interval.reads = count(reads);
                interval.writes = count(requests - reads);
                interval.read_bytes = interval.reads.saturating_mul(self.size_bytes);
                interval.write_bytes = interval.writes.saturating_mul(self.size_bytes);
                interval.queued_milli = self.depth.map(|depth| depth * 1_000);
            } else {
                interval.idle_ms = Some(length_ms);
            }
            let mean = Some(Kind::Mean);
            let queue = mean.filter(|_| self.depth.is_some());
            let columns = Columns { requests: mean, bytes: mean, queue, ..Columns::default() };
            traces.push(name, interval, columns)?;
        }
        Ok(())
    }

    /// Returns the piece that begins at a second of the phase.
    fn piece(&self, from_s: u64, by_phase: bool) -> Piece {
        let (is_busy, end_s) = match self.period {
            None => (true, self.length_s),
            Some((period_s, busy_s)) => {
                let begin_s = from_s - from_s % period_s;
                let is_busy = from_s % period_s < busy_s;
                (is_busy, begin_s + if is_busy { busy_s } else { period_s })
            }
        };
        let to_s = if by_phase { end_s.min(self.length_s) } else { from_s + 1 };
        Piece { from_s, to_s, is_busy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Trace;

    const SAMPLE: &str = include_str!("../../samples/declared.toml");

    fn read_text(text: &str) -> Result<Trace, Broken> {
        read(&mut text.as_bytes(), &Hints::default()).map(|mut traces| traces.remove(0))
    }

    #[test]
    fn phases_become_seconds() {
        let trace = read_text(SAMPLE).unwrap();
        assert_eq!((trace.name.as_str(), trace.clock), ("orders", Clock::Elapsed));
        assert_eq!(trace.intervals.len(), 2 * (3_600 + 1_800));
        assert_eq!(trace.resolution_ms(), 1_000);
        let hour = &trace.intervals[..3_600];
        // From 2,000 to 3,000 requests per second in an hour.
        assert_eq!(hour.iter().map(Interval::requests).sum::<u64>(), 9_000_000);
        assert_eq!(hour.iter().map(|hour| hour.reads).sum::<u64>(), 6_300_000);
        assert_eq!(hour[0].requests(), 2_000);
        assert_eq!(hour[3_599].requests(), 3_000);
        assert_eq!(hour[0].bytes(), 2_000 * 16_384);
        let batch = &trace.intervals[3_600..5_400];
        assert_eq!(batch.iter().filter(|batch| batch.idle_ms.is_none()).count(), 360);
        assert_eq!((batch[0].requests(), batch[0].queued_milli), (5_000, Some(32_000)));
        assert_eq!((batch[120].requests(), batch[120].queued_milli), (0, Some(0)));
    }

    #[test]
    fn whole_phases_say_the_same_in_few_intervals() {
        let seconds = read_text(SAMPLE).unwrap();
        let text = SAMPLE.replace("repeat = 2", "repeat = 2\ninterval = \"phase\"");
        let phases = read_text(&text).unwrap();
        assert_eq!(phases.intervals.len(), 2 * (1 + 6));
        let sum =
            |trace: &Trace, of: fn(&Interval) -> u64| trace.intervals.iter().map(of).sum::<u64>();
        assert_eq!(sum(&phases, |at| at.reads), sum(&seconds, |at| at.reads));
        assert_eq!(sum(&phases, |at| at.write_bytes), sum(&seconds, |at| at.write_bytes));
        assert_eq!(phases.known_ms(), seconds.known_ms());
    }

    #[test]
    fn another_name_than_the_declared_one_is_refused() {
        let text = include_str!("../../samples/declared.toml");
        let named = |text: &str, name: &str| {
            let hints = Hints { name: Some(name.to_owned()), ..Hints::default() };
            read(&mut text.as_bytes(), &hints).map(|mut all| all.remove(0).name)
        };
        assert_eq!(named(text, "orders").as_deref(), Ok("orders"));
        let broken = named(text, "nosuch").unwrap_err();
        let message = "\"nosuch\": expected the name of the workload that is declared: \"orders\"";
        assert_eq!(broken.to_string(), message);
        // A workload without a name may get any name.
        let nameless = text.replace("name = \"orders\"", "");
        assert_eq!(named(&nameless, "mine").as_deref(), Ok("mine"));
    }

    #[test]
    fn what_no_disk_does_is_refused_as_what_it_is() {
        let text = "interval = \"phase\"\n[[phase]]\nfor = \"40d\"\nrate_iops = 10000000\n\
                    size_kib = 32768\nread_percent = 1\n";
        let broken = read_text(text).unwrap_err().to_string();
        assert!(!broken.contains("recording"), "{broken}");
        assert!(broken.contains("which no disk has; lower rate_iops, size_kib"), "{broken}");
    }

    #[test]
    fn a_value_outside_of_its_range_is_named_with_it() {
        for (from, to, message) in [
            (
                "read_percent = 70",
                "read_percent = 170",
                "line 9: \"read_percent = 170\": expected \
              0 to 100",
            ),
            (
                "for = \"1h\"",
                "for = \"1 year\"",
                "line 6: \"for = \\\"1 year\\\"\": expected 1s \
              to 366d, as \"90s\", \"15m\", \"8h\" or \"7d\"",
            ),
            ("repeat = 2", "repeat = 0", "line 2: \"repeat = 0\": expected 1 to 1000000"),
            (
                "repeat = 2",
                "repeat = 100000",
                "\"540000000 intervals\": expected at most 2700000: \
              repeat less often, or set interval = \"phase\"",
            ),
            (
                "period = \"10m\"",
                "",
                "line 21: \"busy_percent alone\": expected period beside \
              busy_percent: how often it comes back",
            ),
        ] {
            let broken = read_text(&SAMPLE.replacen(from, to, 1)).unwrap_err();
            assert_eq!(broken.to_string(), message);
        }
        let broken = read_text(&SAMPLE.replace("depth = 4", "deepness = 4")).unwrap_err();
        assert_eq!(broken.line, Some(10));
        assert!(broken.found.starts_with("unknown field `deepness`"), "{broken}");
    }

    #[test]
    fn a_falling_rate_ends_at_nothing() {
        let text = "[[phase]]\nfor = \"10s\"\nrate_iops = 100\nsize_kib = 4\nread_percent = 0\n\
                    growth_percent = -100\n";
        let trace = read_text(text).unwrap();
        assert_eq!(trace.intervals.iter().map(|interval| interval.writes).sum::<u64>(), 500);
        assert_eq!(trace.intervals[9].writes, 5);
    }
}
