//! Detects the format of a text, and calls its reader.

use std::fmt;
use std::io::BufRead;

use super::lines::push_plain;
use super::numbers::{time, time_of_day};
use super::{
    Hints, Read, blkparse, cloudwatch, declared, fio_log, iolog, iostat, iostat_json, nvme_stats,
    prometheus, recorder, sadf_json, sar,
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
    /// `sadf -j FILE -- -d`.
    SadfJson,
    /// `nvme amzn stats`, again and again.
    NvmeStats,
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
    pub const ALL: [Self; 15] = [
        Self::CloudWatchData,
        Self::CloudWatchStatistics,
        Self::CloudWatchConsole,
        Self::Iostat,
        Self::IostatJson,
        Self::Sar,
        Self::Sadf,
        Self::SadfJson,
        Self::NvmeStats,
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
            Self::SadfJson => "sadf-json",
            Self::NvmeStats => "nvme-stats",
            Self::FioLog => "fio-log",
            Self::FioIolog => "fio-iolog",
            Self::Blkparse => "blkparse",
            Self::Prometheus => "prometheus",
            Self::Recorder => "recorder",
            Self::Declared => "declared",
        }
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|format| format.word() == word).ok_or_else(|| {
            let words = Self::ALL.map(Self::word).join(", ");
            format!("no form is called {word:?}; the forms are {words}")
        })
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
    let mut text = String::new();
    push_plain(&mut text, &String::from_utf8_lossy(head));
    let text = text.trim_start();
    // Several answers may be the elements of an array.
    if text.starts_with('{')
        || text.strip_prefix('[').is_some_and(|rest| rest.trim_start().starts_with('{'))
    {
        return json(text);
    }
    let mut is_sysstat = false;
    text.lines().find_map(|line| {
        let line = line.trim();
        is_sysstat |= line.starts_with("Linux ");
        of_line(line).or_else(|| (is_sysstat && is_of_sar(line)).then_some(Format::Sar))
    })
}

/// Returns the name of a format that is known and not read, and of which a text begins with `head`.
#[must_use]
pub fn foreign(head: &[u8]) -> Option<&'static str> {
    if let Some((_, name)) = MAGIC.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(name);
    }
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start();
    if text.starts_with(['{', '[']) {
        return FOREIGN_JSON.iter().find(|(key, _)| text.contains(key)).map(|(_, name)| *name);
    }
    let first = text.lines().find(|line| !line.trim().is_empty())?;
    let first = first.trim().replace('"', "").to_lowercase();
    let is_grafana = ["time,", "time;", "series;time;value", "series,time,value", "sep="];
    let is_datadog = ["timestamp,metric", "date,timestamp,"];
    let is_google = ["timeseriesid,", "metric.type", "resource.type"];
    let is_azure = ["timestamp,average", "timestamp (utc)"];
    let begins = |words: &[&str]| words.iter().any(|word| first.starts_with(word));
    if begins(&is_grafana) {
        Some("a table of Grafana, which is not read")
    } else if begins(&is_datadog) || first.contains("system.io.") || first.contains("aws.ebs.") {
        Some("an export of Datadog, which is not read")
    } else if begins(&is_google) || first.contains("googleapis.com/") {
        Some("an export of Google Cloud Monitoring, which is not read")
    } else if begins(&is_azure) || first.contains("disk read operations/sec") {
        Some("an export of Azure Monitor, which is not read")
    } else {
        None
    }
}

/// The first bytes of files that are not texts.
const MAGIC: [(&[u8], &str); 5] = [
    (b"\x96\xd5", "a data file of sysstat: print it with `sadf -d FILE -- -d`"),
    (b"\xd5\x96", "a data file of sysstat: print it with `sadf -d FILE -- -d`"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: decompress it with `zstd -d`"),
    (b"\xfd7zXZ", "compressed by xz: decompress it with `xz -d`"),
    (b"BZh", "compressed by bzip2: decompress it with `bzip2 -d`"),
];

/// Keys of JSON that is not read. Datadog's answers have `pointlist`, those of its v2 API `times`.
const FOREIGN_JSON: [(&str, &str); 9] = [
    ("\"Microsoft.", "an answer of Azure Monitor, which is not read"),
    ("\"resourceregion\"", "an answer of Azure Monitor, which is not read"),
    ("\"timeSeries\"", "an answer of Google Cloud Monitoring, which is not read"),
    ("\"timeSeriesData\"", "an answer of Google Cloud Monitoring, which is not read"),
    ("googleapis.com/", "an answer of Google Cloud Monitoring, which is not read"),
    ("\"pointlist\"", "an answer of Datadog, which is not read"),
    ("\"timeseries_response\"", "an answer of Datadog, which is not read"),
    ("\"frames\"", "an answer of Grafana, which is not read"),
    ("\"schemaVersion\"", "a dashboard of Grafana, which is not read"),
];

/// Returns the format of a JSON text, by a key that only this format has.
fn json(text: &str) -> Option<Format> {
    let keys = [
        ("\"MetricDataResults\"", Format::CloudWatchData),
        ("\"Datapoints\"", Format::CloudWatchStatistics),
        ("\"file-date\"", Format::SadfJson),
        ("\"sysstat\"", Format::IostatJson),
        ("\"resultType\"", Format::Prometheus),
        ("\"start_ms\"", Format::Recorder),
        ("\"total_read_ops\"", Format::NvmeStats),
        // Their other keys may follow after many values.
        ("\"Timestamps\"", Format::CloudWatchData),
        ("\"Label\"", Format::CloudWatchStatistics),
        ("\"status\"", Format::Prometheus),
    ];
    keys.into_iter().find(|(key, _)| text.contains(key)).map(|(_, format)| format)
}

/// Returns whether a line below the banner of sysstat is of sar: it begins with a time of day.
/// `sar -A` has many other tables before that of devices.
fn is_of_sar(line: &str) -> bool {
    line.split_whitespace().next().is_some_and(|word| time_of_day(word, None).is_some())
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
    if nvme_stats::is_beginning(line) {
        return Some(Format::NvmeStats);
    }
    let mut words = line.split_whitespace();
    let first = words.next()?;
    if matches!(first, "Device" | "Device:") || line.ends_with(" Device") {
        return Some(Format::Iostat);
    }
    let is_sar = line.split_whitespace().take(3).any(|word| word == "DEV");
    if is_sar || (line.ends_with(" DEV") && line.contains(" tps ")) {
        return Some(Format::Sar);
    }
    if blkparse::is_event(line) {
        return Some(Format::Blkparse);
    }
    if is_of_fio(line) {
        return Some(Format::FioLog);
    }
    let mut cells = line.split(',');
    let begins_with_time = cells.next().is_some_and(|cell| time(cell).is_some());
    (begins_with_time && cells.next().is_some()).then_some(Format::CloudWatchConsole)
}

/// Returns whether a line is of a log of fio: four numbers or more. The priority that `log_prio`
/// adds is hexadecimal.
fn is_of_fio(line: &str) -> bool {
    let is_number = |word: &str| word.trim().parse::<u64>().is_ok();
    let is_priority = |word: &str| word.trim().starts_with("0x");
    let mut cells = line.split(',');
    let first = cells.by_ref().take(4).filter(|word| is_number(word)).count();
    first == 4 && cells.all(|word| is_number(word) || is_priority(word))
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
        Format::SadfJson => sadf_json::read(input, hints),
        Format::NvmeStats => nvme_stats::read(input, hints),
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

    #[test]
    fn a_row_of_avg_cpu_with_decimal_commas_is_no_event_of_blkparse() {
        let row = "          52,30   22,11    9,79    5,25    0,03   10,52";
        assert_eq!(detect(row.as_bytes()), None);
        let event = "  8,16   1        1     0.000000000  2201  Q   R 2048 + 32 [postgres]";
        assert_eq!(detect(event.as_bytes()), Some(Format::Blkparse));
    }

    #[test]
    fn tables_before_that_of_devices_do_not_hide_sar() {
        let text = "Linux 6.1.0 (db1) \t11/25/26 \t_x86_64_\t(2 CPU)\n\n\
                    11:50:01 PM        CPU      %usr     %nice\n";
        assert_eq!(detect(text.as_bytes()), Some(Format::Sar));
        let text = text.replace("11:50:01 PM        CPU", "avg-cpu:");
        assert_eq!(detect(text.as_bytes()), None);
    }

    #[test]
    fn a_log_of_fio_with_priorities_is_known() {
        assert_eq!(detect(b"500, 12, 0, 4096, 0, 0x2001\n"), Some(Format::FioLog));
        assert_eq!(detect(b"500, 12, 0, 0x2001\n"), None);
    }

    #[test]
    fn forms_that_are_not_read_have_names() {
        for (text, name) in [
            (
                r#"{"cost": 0, "namespace": "Microsoft.Compute/disks"}"#,
                "an answer of Azure Monitor, which is not read",
            ),
            ("TIMESTAMP,AVERAGE\n2026-11-25,3\n", "an export of Azure Monitor, which is not read"),
            (
                r#"{"timeSeries": [{"metric": {}}]}"#,
                "an answer of Google Cloud Monitoring, which is not read",
            ),
            (r#"{"series": [{"pointlist": []}]}"#, "an answer of Datadog, which is not read"),
            ("timestamp,aws.ebs.volume_read_ops\n", "an export of Datadog, which is not read"),
            (
                "\"Time\",\"vol-0123\"\n2026-11-25 19:00:00,3\n",
                "a table of Grafana, which is not read",
            ),
            ("(not)\n", ""),
        ] {
            assert_eq!(foreign(text.as_bytes()).unwrap_or(""), name, "{text}");
        }
        assert!(foreign(b"\x96\xd5u!").is_some_and(|name| name.contains("sadf -d")));
        assert_eq!(foreign(b"Device r/s\n"), None);
    }

    #[test]
    fn a_form_is_known_by_its_word_and_errors_list_all() {
        for format in Format::ALL {
            assert_eq!(format.word().parse(), Ok(format));
        }
        let error = "iosta".parse::<Format>().unwrap_err();
        assert!(error.starts_with("no form is called \"iosta\"; the forms are cloudwatch-data, "));
    }
}
