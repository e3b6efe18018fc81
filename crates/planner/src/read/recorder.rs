//! Reads and writes the lines of Evenkeel's own recorder: one interval of one volume each, in JSON.
//!
//! ```json
//! {"volume":"vol-0123","start_ms":1795633200000,"length_ms":1000,"reads":12,"writes":3,
//!  "read_bytes":49152,"write_bytes":12288}
//! ```
//!
//! That is one line. The fields are those of [`Interval`]; optional ones may be left out, and
//! unknown ones are ignored. Times are since 1970. [`line()`] writes the lines that [`read`] reads.

use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::trace::{Clock, Columns, Interval, Kind};

use super::collect::Traces;
use super::lines::Lines;
use super::{Broken, Hints, Read};

const EXPECTED: &str = "an interval as {\"volume\", \"start_ms\", \"length_ms\", \"reads\", \
                        \"writes\", \"read_bytes\", \"write_bytes\", ...}";

#[derive(Serialize, Deserialize)]
struct Record {
    volume: String,
    start_ms: u64,
    length_ms: u64,
    reads: u64,
    writes: u64,
    read_bytes: u64,
    write_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    read_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_milli: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balance_ppm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_censored: Option<bool>,
}

/// Returns the line of an interval, with its end.
#[must_use]
pub fn line(volume: &str, interval: &Interval) -> String {
    let record = Record {
        volume: volume.to_owned(),
        start_ms: interval.start_ms,
        length_ms: interval.length_ms,
        reads: interval.reads,
        writes: interval.writes,
        read_bytes: interval.read_bytes,
        write_bytes: interval.write_bytes,
        read_ns: interval.read_ns,
        write_ns: interval.write_ns,
        idle_ms: interval.idle_ms,
        queued_milli: interval.queued_milli,
        balance_ppm: interval.balance_ppm,
        used_bytes: interval.used_bytes,
        is_censored: interval.is_censored,
    };
    // A structure of numbers and a text always has a JSON form.
    let mut text = serde_json::to_string(&record).unwrap_or_default();
    text.push('\n');
    text
}

/// Reads lines, in any order of time.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, or if there are no intervals of a wanted volume.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let mut traces = Traces::new(Clock::Unix);
    while let Some((number, line)) = lines.next()? {
        if line.trim().is_empty() {
            continue;
        }
        let record: Record = serde_json::from_str(line).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Broken::at(number, line, format!("{EXPECTED}: {reason}"))
        })?;
        if record.length_ms == 0 {
            return Err(Broken::at(number, "length_ms 0", "a length of 1 ms or more"));
        }
        if hints.name.as_ref().is_some_and(|wanted| *wanted != record.volume) {
            continue;
        }
        let counter = Some(Kind::Counter);
        let columns = Columns {
            requests: counter,
            bytes: counter,
            times: counter.filter(|_| record.read_ns.or(record.write_ns).is_some()),
            queue: Some(Kind::Mean).filter(|_| record.queued_milli.is_some()),
            // The kernel counts the time in which a disk had no request. A volume of the server is
            // idle for whole intervals.
            idle_is_of_device: true,
        };
        let interval = Interval {
            start_ms: record.start_ms,
            length_ms: record.length_ms,
            reads: record.reads,
            writes: record.writes,
            read_bytes: record.read_bytes,
            write_bytes: record.write_bytes,
            read_ns: record.read_ns,
            write_ns: record.write_ns,
            idle_ms: record.idle_ms,
            queued_milli: record.queued_milli,
            balance_ppm: record.balance_ppm,
            used_bytes: record.used_bytes,
            is_censored: record.is_censored,
            ..Interval::default()
        };
        traces.push(&record.volume, interval, columns)?;
    }
    if traces.is_empty() {
        let wanted = hints.name.as_deref().unwrap_or("no intervals");
        return Err(Broken::whole(wanted, EXPECTED));
    }
    traces.finish(&[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Note, REQUESTS_MAX};
    use proptest::prelude::*;

    #[test]
    fn volumes_are_told_apart_and_gaps_are_told() {
        let text = include_str!("../../samples/recorder.jsonl");
        let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
        let [one, other] = traces.as_slice() else { panic!("two volumes") };
        assert_eq!((one.intervals.len(), other.intervals.len()), (3, 1));
        assert_eq!(one.notes, [Note::Gap { start_ms: 1_795_633_202_000, length_ms: 1_000 }]);
        assert_eq!(one.intervals[0].read_ns, Some(3_600_000));
        assert_eq!(one.intervals[2].is_censored, Some(true));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            volume in ".*",
            amounts in prop::array::uniform4(0..REQUESTS_MAX / 2),
            optional in prop::array::uniform5(any::<Option<u64>>()),
            balance_ppm in any::<Option<u32>>(),
            is_censored in any::<Option<bool>>(),
            length_ms in 1_u64..100_000,
        ) {
            let [reads, writes, read_bytes, write_bytes] = amounts;
            let [read_ns, write_ns, idle_ms, queued_milli, used_bytes] = optional;
            let interval = Interval {
                start_ms: 1, length_ms, reads, writes, read_bytes, write_bytes, read_ns, write_ns,
                idle_ms, queued_milli, balance_ppm, used_bytes, is_censored, ..Interval::default()
            };
            let text = line(&volume, &interval);
            prop_assert_eq!(text.lines().count(), 1);
            let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
            prop_assert_eq!(&traces[0].name, &volume);
            prop_assert_eq!(&traces[0].intervals, &[interval]);
        }
    }
}
