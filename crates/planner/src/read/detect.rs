//! Detects the format of a text, and calls its reader.

use std::fmt;
use std::io::BufRead;

use super::numbers::time;
use super::{
    Hints, Read, blkparse, cloudwatch, declared, fio_log, iolog, iostat, iostat_json, prometheus,
    recorder, sar,
};

/// The format of a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// The answer of CloudWatch's GetMetricData.
    CloudWatchData,
    /// The answer of CloudWatch's GetMetricStatistics.
    CloudWatchStatistics,
    /// The table that CloudWatch's console saves.
    CloudWatchConsole,
    /// `iostat -x`.
    Iostat,
    /// `iostat -x -o JSON`.
    IostatJson,
    /// `sar -d`.
    Sar,
    /// `sadf -d FILE -- -d`.
    Sadf,
    /// A log of fio.
    FioLog,
    /// fio's iolog, version 2 or 3.
    FioIolog,
    /// blkparse's own format.
    Blkparse,
    /// The answer of a range query of Prometheus.
    Prometheus,
    /// The lines of Evenkeel's recorder.
    Recorder,
    /// A declared workload.
    Declared,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 13] = [
        Self::CloudWatchData,
        Self::CloudWatchStatistics,
        Self::CloudWatchConsole,
        Self::Iostat,
        Self::IostatJson,
        Self::Sar,
        Self::Sadf,
        Self::FioLog,
        Self::FioIolog,
        Self::Blkparse,
        Self::Prometheus,
        Self::Recorder,
        Self::Declared,
    ];

    /// Returns its name in flags.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::CloudWatchData => "cloudwatch-data",
            Self::CloudWatchStatistics => "cloudwatch-statistics",
            Self::CloudWatchConsole => "cloudwatch-console",
            Self::Iostat => "iostat",
            Self::IostatJson => "iostat-json",
            Self::Sar => "sar",
            Self::Sadf => "sadf",
            Self::FioLog => "fio-log",
            Self::FioIolog => "fio-iolog",
            Self::Blkparse => "blkparse",
            Self::Prometheus => "prometheus",
            Self::Recorder => "recorder",
            Self::Declared => "declared",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Returns the format of a text that begins with `head`: its first few KiB, after
/// [`skip_mark`](super::skip_mark).
#[must_use]
pub fn detect(head: &[u8]) -> Option<Format> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start();
    if text.starts_with('{') {
        return json(text);
    }
    text.lines().find_map(|line| of_line(line.trim()))
}

/// Returns the format of a JSON text, by a key that only this format has.
fn json(text: &str) -> Option<Format> {
    let keys = [
        ("\"MetricDataResults\"", Format::CloudWatchData),
        ("\"Datapoints\"", Format::CloudWatchStatistics),
        ("\"sysstat\"", Format::IostatJson),
        ("\"resultType\"", Format::Prometheus),
        ("\"start_ms\"", Format::Recorder),
        // Their other keys may follow after many values.
        ("\"Label\"", Format::CloudWatchStatistics),
        ("\"status\"", Format::Prometheus),
    ];
    keys.into_iter().find(|(key, _)| text.contains(key)).map(|(_, format)| format)
}

/// Returns the format of a text with this line; `None` if several have such lines.
fn of_line(line: &str) -> Option<Format> {
    if line.starts_with("fio version ") {
        return Some(Format::FioIolog);
    }
    if line.starts_with("# hostname;interval;timestamp") {
        return Some(Format::Sadf);
    }
    if line == "[[phase]]" {
        return Some(Format::Declared);
    }
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if matches!(first, "Device" | "Device:") || line.ends_with(" Device") {
        return Some(Format::Iostat);
    }
    if line.split_whitespace().take(3).any(|word| word == "DEV") {
        return Some(Format::Sar);
    }
    let is_number = |word: &str| word.trim().parse::<u64>().is_ok();
    if first.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
        return (words.count() >= 5).then_some(Format::Blkparse);
    }
    let cells = line.split(',').count();
    if cells >= 4 && line.split(',').all(is_number) {
        return Some(Format::FioLog);
    }
    let begins_with_time = line.split(',').next().is_some_and(|cell| time(cell).is_some());
    (begins_with_time && cells >= 2).then_some(Format::CloudWatchConsole)
}

/// Reads a text of this format.
///
/// # Errors
/// Returns the [`Broken`](super::Broken) of the format's reader.
pub fn read(format: Format, input: &mut dyn BufRead, hints: &Hints) -> Read {
    match format {
        Format::CloudWatchData => cloudwatch::data::read(input, hints),
        Format::CloudWatchStatistics => cloudwatch::statistics::read(input, hints),
        Format::CloudWatchConsole => cloudwatch::console::read(input, hints),
        Format::Iostat => iostat::read(input, hints),
        Format::IostatJson => iostat_json::read(input, hints),
        Format::Sar => sar::read(input, hints),
        Format::Sadf => sar::read_sadf(input, hints),
        Format::FioLog => fio_log::read(input, hints),
        Format::FioIolog => iolog::read(input, hints),
        Format::Blkparse => blkparse::read(input, hints),
        Format::Prometheus => prometheus::read(input, hints),
        Format::Recorder => recorder::read(input, hints),
        Format::Declared => declared::read(input, hints),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_formats_differ() {
        let words: std::collections::BTreeSet<&str> = Format::ALL.map(Format::word).into();
        assert_eq!(words.len(), Format::ALL.len());
    }

    #[test]
    fn what_is_no_recording_has_no_form() {
        for text in ["", "hello\nworld\n", "{\"a\": 1}", "a,b,c\n1,2\n", "[package]\nname = 1\n"] {
            assert_eq!(detect(text.as_bytes()), None, "{text}");
        }
    }
}
