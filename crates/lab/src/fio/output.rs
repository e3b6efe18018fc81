//! fio's standard output: JSON documents, one a second and a last one, with remarks in between.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::SyncSender;

use serde_json::Value;

use super::{Job, Measurement, VolumeProgress};
use crate::LabError;
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::figures::series::Series;
use rustix::io::Errno;

/// Errors of a socket whose peer has closed the connection.
const DISCONNECTIONS: [Errno; 5] =
    [Errno::NOTCONN, Errno::CONNRESET, Errno::CONNABORTED, Errno::PIPE, Errno::SHUTDOWN];

/// The largest document we take: fio prints about 6 KiB a job.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;

/// The longest line we take apart; longer ones are remarks, and cut.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Bytes of remarks that are kept.
const NOISE_BYTES_MAX: usize = 8 << 10;

/// A whole document, or the error of one that is missing or too large.
pub(super) type Framed = Result<String, LabError>;

/// The totals of all jobs at one time.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) jobs: Vec<Totals>,
}

/// The totals of one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    ios: u64,
    runtime_ms: u64,
    started_unix_ms: Option<u64>,
    error: u64,
    latency: LatencySummary,
}

/// Cuts the output into documents and sends them; returns the remarks between them. A document
/// begins with a line `{` and ends with a line `}`, which is how fio prints them, whatever stands
/// between.
pub(super) fn frame(output: impl Read, sender: &SyncSender<Framed>) -> String {
    let mut reader = BufReader::new(output);
    let mut noise = String::new();
    let mut document: Option<String> = None;
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        match (&mut reader).take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return noise,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&bytes);
        let mut whole = None;
        match (&mut document, line.trim_end()) {
            (None, "{") => document = Some("{\n".to_string()),
            (None, _) if noise.len() + line.len() <= NOISE_BYTES_MAX => noise.push_str(&line),
            (None, _) => {}
            (Some(text), end) => {
                text.push_str(&line);
                if text.len() > DOCUMENT_BYTES_MAX {
                    let what = format!("a JSON document of more than {DOCUMENT_BYTES_MAX} bytes");
                    whole = Some(Err(LabError::BadOutput { tool: "fio", what }));
                    document = None;
                } else if end == "}" {
                    whole = document.take().map(Ok);
                }
            }
        }
        // After the receiver has ended, reading continues: fio would otherwise block on a full
        // pipe.
        if let Some(whole) = whole {
            let _ = sender.send(whole);
        }
    }
}

/// Reads the totals of each job.
pub(super) fn parse(document: &str) -> Result<Snapshot, LabError> {
    let bad = |what: String| LabError::BadOutput { tool: "fio", what };
    let root: Value =
        serde_json::from_str(document).map_err(|error| bad(format!("not JSON: {error}")))?;
    let Some(jobs) = root.get("jobs").and_then(Value::as_array) else {
        return Err(bad("no \"jobs\" in its JSON".to_string()));
    };
    let printed_unix_ms = root.get("timestamp_ms").and_then(Value::as_u64);
    let totals = |job: &Value| {
        totals(job, printed_unix_ms).ok_or_else(|| {
            let name = job.get("jobname").and_then(Value::as_str).unwrap_or("?");
            bad(format!("no totals of job {name} in its JSON"))
        })
    };
    Ok(Snapshot { jobs: jobs.iter().map(totals).collect::<Result<_, _>>()? })
}

fn totals(job: &Value, printed_unix_ms: Option<u64>) -> Option<Totals> {
    let read = job.get("read")?;
    let write = job.get("write")?;
    let count = |direction: &Value, key| direction.get(key).and_then(Value::as_u64);
    let reads = count(read, "total_ios")?;
    let writes = count(write, "total_ios")?;
    // Of mixed workloads, the direction with more I/Os is reported for both. Verdicts use the log.
    let heavier = if reads >= writes { read } else { write };
    let at = |name: &str| heavier.pointer(&format!("/lat_ns/{name}")).and_then(Value::as_f64);
    let ns = |name: &str| at(name).unwrap_or(0.0).max(0.0).round() as u64;
    let runtime_ms = count(read, "runtime")?.max(count(write, "runtime")?);
    // A job that has not run yet has no start time.
    let began = |printed: u64| (runtime_ms > 0).then(|| printed.saturating_sub(runtime_ms));
    Some(Totals {
        ios: reads + writes,
        runtime_ms,
        started_unix_ms: printed_unix_ms.and_then(began),
        error: job.get("error").and_then(Value::as_u64).unwrap_or(0),
        latency: LatencySummary {
            count: reads + writes,
            mean_ns: ns("mean"),
            p50_ns: ns("percentile/50.000000"),
            p99_ns: ns("percentile/99.000000"),
            p999_ns: ns("percentile/99.900000"),
            max_ns: ns("max"),
        },
    })
}

impl Snapshot {
    /// Returns the time that the longest-running job has run, in milliseconds.
    pub(super) fn runtime_ms(&self) -> u64 {
        self.jobs.iter().map(|totals| totals.runtime_ms).max().unwrap_or(0)
    }

    /// Returns the I/Os of all jobs.
    pub(super) fn ios(&self) -> u64 {
        self.jobs.iter().map(|totals| totals.ios).sum()
    }

    /// Replaces each job's start by the earliest one of all snapshots. A snapshot is stamped
    /// shortly after its run times were taken, and much later once a job is done. So each start
    /// that it implies is late, never early, and the earliest is right to 1 or 2 ms.
    pub(super) fn keep_earliest_start(&mut self, earlier: Option<&Self>) {
        let earlier = earlier.map_or(&[][..], |earlier| &earlier.jobs);
        for (now, before) in self.jobs.iter_mut().zip(earlier) {
            let starts = [now.started_unix_ms, before.started_unix_ms];
            now.started_unix_ms = starts.into_iter().flatten().min();
        }
    }

    /// Returns the progress of each volume since an earlier snapshot.
    pub(super) fn since(&self, earlier: Option<&Self>, jobs: &[Job]) -> Vec<VolumeProgress> {
        let before = |index: usize| {
            let totals = earlier.and_then(|earlier| earlier.jobs.get(index));
            totals.map_or((0, 0), |totals| (totals.ios, totals.runtime_ms))
        };
        let progress = |(index, (now, job)): (usize, (&Totals, &Job))| {
            let (ios, runtime_ms) = before(index);
            let span_ms = now.runtime_ms.saturating_sub(runtime_ms);
            let done = now.ios.saturating_sub(ios) as f64;
            VolumeProgress {
                name: job.name.clone(),
                iops: if span_ms == 0 { 0.0 } else { done * 1_000.0 / span_ms as f64 },
                ios_total: now.ios,
                runtime_ms: now.runtime_ms,
                ..VolumeProgress::default()
            }
        };
        self.jobs.iter().zip(jobs).enumerate().map(progress).collect()
    }
}

impl Totals {
    /// Returns whether the job did any I/O; one that could not connect did none.
    pub(super) fn ran(&self) -> bool {
        self.ios > 0
    }

    /// Returns a measurement without details.
    pub(super) fn into_measurement(self, job: &Job) -> Measurement {
        let is_gone = self.ran() && is_disconnection(self.error);
        let error = match self.error {
            0 if self.ran() => None,
            0 => Some("no I/O was done; see whether the export exists".to_string()),
            _ if is_gone => Some(gone_text(self.runtime_ms)),
            errno => Some(errno_text(errno)),
        };
        Measurement {
            name: job.name.clone(),
            workload: job.workload,
            series: Series::new(job.workload.duration_s),
            latency: self.latency,
            latency_per_second: Vec::new(),
            ios_total: self.ios,
            runtime_ms: self.runtime_ms,
            started_unix_ms: self.started_unix_ms,
            gone_after_ms: is_gone.then_some(self.runtime_ms),
            error,
        }
    }
}

/// Returns whether fio's error of a job means that the connection to the export has ended. fio
/// prints -1 as an unsigned number when the server closes the connection in an orderly way.
fn is_disconnection(error: u64) -> bool {
    match i32::try_from(error) {
        Ok(code) => DISCONNECTIONS.iter().any(|errno| errno.raw_os_error() == code),
        Err(_) => true,
    }
}

fn gone_text(runtime_ms: u64) -> String {
    format!("the server closed the connection after {:.1} s", runtime_ms as f64 / 1_000.0)
}

fn errno_text(errno: u64) -> String {
    let code = i32::try_from(errno).unwrap_or(-1);
    std::io::Error::from_raw_os_error(code).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd_uri::NbdUri;
    use evenkeel_sim::workload::Workload;
    use std::path::Path;
    use std::sync::mpsc;

    fn document(ios: (u64, u64), runtime_ms: u64, error: u64) -> String {
        format!(
            r#"{{
  "jobs" : [ {{ "jobname" : "a", "error" : {error},
    "read" : {{ "total_ios" : {}, "runtime" : {runtime_ms},
      "lat_ns" : {{ "mean" : 100.5, "max" : 900, "percentile" : {{ "50.000000" : 99 }} }} }},
    "write" : {{ "total_ios" : {}, "runtime" : 0 }} }} ]
}}
"#,
            ios.0, ios.1
        )
    }

    fn framed(output: &str) -> (Vec<String>, String) {
        let (sender, receiver) = mpsc::sync_channel(16);
        let noise = frame(output.as_bytes(), &sender);
        drop(sender);
        (receiver.iter().map(Result::unwrap).collect(), noise)
    }

    #[test]
    fn documents_are_found_between_remarks() {
        let one = document((1, 2), 3, 0);
        let two = document((4, 5), 6, 0);
        let (documents, noise) =
            framed(&format!("fio: connected\n{one}note: {{ odd\n{two}fio: bye\n"));
        assert_eq!(documents, [one, two]);
        assert_eq!(noise, "fio: connected\nnote: { odd\nfio: bye\n");
    }

    #[test]
    fn half_a_document_is_none() {
        let whole = document((1, 2), 3, 0);
        assert!(framed(&whole[..whole.len() - 3]).0.is_empty());
    }

    #[test]
    fn totals_and_progress() {
        let workload = Workload::random_read(4_096, 1, 1);
        let uri = NbdUri::unix(Path::new("/s"), "");
        let jobs = [Job { name: "a".to_string(), target: uri.into(), workload }];
        let first = parse(&document((100, 50), 1_000, 0)).unwrap();
        let second = parse(&document((400, 250), 2_500, 5)).unwrap();
        assert!((first.since(None, &jobs)[0].iops - 150.0).abs() < 1e-9);
        let progress = &second.since(Some(&first), &jobs)[0];
        assert!((progress.iops - 500.0 / 1.5).abs() < 1e-9);
        assert_eq!((progress.ios_total, progress.runtime_ms), (650, 2_500));
        let measurement = second.jobs[0].clone().into_measurement(&jobs[0]);
        assert_eq!((measurement.latency.p50_ns, measurement.latency.max_ns), (99, 900));
        assert!(measurement.error.unwrap().contains("Input/output error"));
        assert_eq!(first.since(Some(&first), &jobs)[0].iops.to_bits(), 0.0_f64.to_bits());
    }

    #[test]
    fn the_start_is_the_earliest_that_any_snapshot_implies() {
        let at = |printed_ms: u64, runtime_ms: u64| {
            let stamped = format!("{{\n  \"timestamp_ms\" : {printed_ms},");
            parse(&document((1, 2), runtime_ms, 0).replacen('{', &stamped, 1)).unwrap()
        };
        let mut last: Option<Snapshot> = None;
        // Not running yet; printed late; printed at once; long after its end.
        for (printed, runtime, start) in [
            (1_000, 0, None),
            (2_109, 1_000, Some(1_109)),
            (3_101, 2_000, Some(1_101)),
            (9_000, 3_000, Some(1_101)),
        ] {
            let mut now = at(printed, runtime);
            now.keep_earliest_start(last.as_ref());
            assert_eq!(now.jobs[0].started_unix_ms, start, "{printed}");
            last = Some(now);
        }
        assert_eq!(parse(&document((1, 2), 3, 0)).unwrap().jobs[0].started_unix_ms, None);
    }

    #[test]
    fn unexpected_json_is_refused() {
        for text in ["", "[]", "{}", r#"{"jobs":7}"#, r#"{"jobs":[{"jobname":"x"}]}"#] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
