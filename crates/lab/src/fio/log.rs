//! fio's per-I/O latency log, counted while it is read.
//!
//! One line per completed I/O: `time in ms, latency in ns, direction, block size, offset[,
//! priority]`.

use std::io::{BufRead, Read};
use std::path::Path;

use super::Completion;
use crate::LabError;
use evenkeel_sim::figures::histogram::{LatencyRecorder, LatencySummary};
use evenkeel_sim::figures::series::Series;

/// The longest line we read: six numbers of at most twenty digits fit well.
const LINE_BYTES_MAX: u64 = 192;

/// A log, counted.
pub(super) struct Counted {
    pub(super) series: Series,
    pub(super) latency: LatencySummary,
    pub(super) latency_per_second: Vec<LatencySummary>,
}

/// Returns whether a path is the latency log of job `index`: fio appends its own job number to our
/// prefix.
pub(super) fn belongs_to(path: &Path, index: usize) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let rest = name.strip_prefix(&format!("v{index}_lat.")).and_then(|r| r.strip_suffix(".log"));
    rest.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Counts a log; `each` is called with every I/O. Memory is bounded by the run's length, not by the
/// number of I/Os.
pub(super) fn read(
    mut log: impl BufRead,
    duration_s: u32,
    each: &mut dyn FnMut(Completion),
) -> Result<Counted, LabError> {
    let mut series = Series::new(duration_s);
    let mut latencies = LatencyRecorder::new(duration_s);
    let mut line = Vec::new();
    for number in 1_u64.. {
        line.clear();
        let read = (&mut log).take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(LabError::io("cannot read", "fio's log"))? == 0 {
            break;
        }
        let completion = parse(&line).ok_or_else(|| LabError::BadOutput {
            tool: "fio",
            what: format!("line {number} of its log is {:?}", String::from_utf8_lossy(&line)),
        })?;
        series.record(completion.time_ms);
        latencies.record(completion.time_ms, completion.latency_ns);
        each(completion);
    }
    let (latency, latency_per_second) = latencies.finish();
    Ok(Counted { series, latency, latency_per_second })
}

/// Parses a whole line; returns `None` if it is cut short or not made of numbers.
fn parse(line: &[u8]) -> Option<Completion> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let mut fields = line.split(',').map(|field| field.trim().parse::<u64>().ok());
    let time_ms = fields.next()??;
    let latency_ns = fields.next()??;
    // Direction and size must be there: fewer fields are another kind of log, or half a line.
    let _direction = fields.next()??;
    let bytes = fields.next()??;
    Some(Completion { time_ms, latency_ns, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_log_is_counted() {
        let log = "0, 601760, 0, 4096, 0\n999, 632730, 1, 4096, 0\n1000, 5, 0, 4096, 0, 0x0\n\
                   2003, 9, 0, 4096, 0\n";
        let mut bytes = 0;
        let counted = read(log.as_bytes(), 2, &mut |io| bytes += io.bytes).unwrap();
        assert_eq!(bytes, 4 * 4_096);
        assert_eq!(counted.series.per_second(), [2, 1]);
        assert_eq!(counted.series.late(), 1);
        assert_eq!((counted.latency.count, counted.latency.max_ns), (4, 632_730));
        assert_eq!(counted.latency_per_second[0].count, 2);
    }

    #[test]
    fn a_damaged_log_is_refused_with_its_line() {
        for (log, line) in [
            ("0, 1, 0, 4096, 0\n5, 2", "line 2"),
            ("fio: warning\n", "line 1"),
            ("0, 1\n", "line 1"),
            ("-1, 1, 0, 4096, 0\n", "line 1"),
            (&"9".repeat(1_000), "line 1"),
        ] {
            let error =
                read(log.as_bytes(), 1, &mut |_| {}).err().expect("must be refused").to_string();
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn log_belongs_to_the_volume_in_its_name() {
        assert!(belongs_to(Path::new("/x/v1_lat.2.log"), 1));
        for name in ["v1_lat.2.log", "v11_lat.2.log", "v0_clat.1.log", "v0_lat.log", "v0_lat.x.log"]
        {
            assert!(!belongs_to(Path::new(name), 0), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes[..], 1, &mut |_| {});
        }
    }
}
