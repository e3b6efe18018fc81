//! Reads fio's iologs, versions 2 and 3: the requests of a job, for a replay.
//!
//! A line of version 3 begins with a time in microseconds, `27 /dev/vdb read 0 4096`. Version 2 has
//! no times; only its lines `wait` advance the time.

use std::io::BufRead;

use crate::trace::Clock;

use super::bins::{Bins, Direction};
use super::lines::Lines;
use super::{Broken, Hints, Read};

const EXPECTED: &str = "file, action and, of a request, offset and length; with a time in \
                        microseconds before them in version 3";

/// Reads an iolog of either version. Each file in the log becomes a trace.
///
/// # Errors
/// Returns [`Broken`] if a line is invalid, or if there are no wanted requests or no times.
pub fn read(input: &mut dyn BufRead, hints: &Hints) -> Read {
    let mut lines = Lines::new(input);
    let has_times = match lines.next()?.map(|(_, line)| line.trim()) {
        Some("fio version 3 iolog") => true,
        Some("fio version 2 iolog") => false,
        first => {
            let expected = "fio version 2 iolog, or 3: record with fio --write_iolog=FILE";
            return Err(Broken::at(1, first.unwrap_or("an empty text"), expected));
        }
    };
    let mut reader = Reader { has_times, ..Reader::default() };
    while let Some((number, line)) = lines.next()? {
        reader.line(line, hints).map_err(|error| match error {
            Error::Line => Broken::at(number, line, EXPECTED),
            Error::Broken(broken) => broken,
        })?;
    }
    if reader.bins.is_empty() {
        return Err(Broken::whole("no requests", "reads or writes of a file that is wanted"));
    }
    if !has_times && reader.wait_us == 0 {
        return Err(Broken::whole(
            "no times",
            "lines with `wait`, or times: record with fio 3.31 or later, which writes version 3",
        ));
    }
    let remarks = reader.remarks();
    reader.bins.finish(Clock::Elapsed, false, &remarks)
}

enum Error {
    /// The line is invalid.
    Line,
    Broken(Broken),
}

#[derive(Default)]
struct Reader {
    has_times: bool,
    bins: Bins,
    /// Sum of the waits, in microseconds.
    wait_us: u64,
    flushes: u64,
    trims: u64,
}

impl Reader {
    fn line(&mut self, line: &str, hints: &Hints) -> Result<(), Error> {
        let mut words = line.split_whitespace();
        let Some(mut file) = words.next() else { return Ok(()) };
        let mut at_us = self.wait_us;
        if self.has_times {
            at_us = file.parse().map_err(|_| Error::Line)?;
            file = words.next().ok_or(Error::Line)?;
        }
        let action = words.next().ok_or(Error::Line)?;
        let direction = match action {
            "read" => Direction::Read,
            "write" => Direction::Write,
            "wait" => {
                let wait: u64 =
                    words.next().and_then(|word| word.parse().ok()).ok_or(Error::Line)?;
                self.wait_us = self.wait_us.saturating_add(wait);
                return Ok(());
            }
            "add" | "open" | "close" => return Ok(()),
            "sync" | "datasync" => {
                self.flushes += 1;
                return Ok(());
            }
            "trim" => {
                self.trims += 1;
                return Ok(());
            }
            _ => return Err(Error::Line),
        };
        words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(Error::Line)?;
        let length: u64 = words.next().and_then(|word| word.parse().ok()).ok_or(Error::Line)?;
        if hints.name.as_ref().is_some_and(|wanted| wanted != file) {
            return Ok(());
        }
        self.bins.add(file, at_us / 1_000_000, direction, length).map_err(Error::Broken)
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        if !self.has_times {
            remarks.push(
                "the log has no times; its waits are their only source, as if requests took none"
                    .to_owned(),
            );
        }
        if self.flushes > 0 {
            remarks.push(format!("flushes left out: {}", self.flushes));
        }
        if self.trims > 0 {
            remarks.push(format!("trims left out: {}", self.trims));
        }
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Interval, Note};

    #[test]
    fn times_of_version_3_are_microseconds() {
        let text = include_str!("../../samples/fio_iolog_v3.txt");
        let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
        let [trace] = traces.as_slice() else { panic!("one file") };
        assert_eq!(trace.name, "/tmp/data");
        let ends: Vec<u64> = trace.intervals.iter().map(Interval::end_ms).collect();
        assert_eq!(ends, [1_000, 2_000, 3_000]);
        assert_eq!(trace.intervals.iter().map(Interval::requests).sum::<u64>(), 80);
        assert_eq!(trace.sizes.as_ref().unwrap().reads.keys().next(), Some(&4_096));
    }

    #[test]
    fn waits_are_the_times_of_version_2() {
        let text = include_str!("../../samples/fio_iolog_v2.txt");
        let traces = read(&mut text.as_bytes(), &Hints::default()).unwrap();
        let trace = &traces[0];
        let requests: Vec<(u64, u64)> = trace
            .intervals
            .iter()
            .map(|interval| (interval.start_ms, interval.requests()))
            .collect();
        assert_eq!(requests, [(0, 2), (1_000, 0), (2_000, 2)]);
        let Note::Remark(remark) = &trace.notes[0] else { panic!("a remark") };
        assert!(remark.starts_with("the log has no times"), "{remark}");
        assert_eq!(trace.notes[1], Note::Remark("flushes left out: 1".to_owned()));
    }
}
