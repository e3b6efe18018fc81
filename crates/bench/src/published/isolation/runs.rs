//! The runs of a log writer alone and beside neighbours.
//!
//! The log is 16 KiB sequential writes with FUA, one at a time. Its neighbours, each on a volume of
//! its own, read and write 256 KiB at random, 64 at once. Servers are visited in turn, round by
//! round, because a shared machine drifts; what counts is how much longer a write takes beside
//! neighbours than alone.

use std::fmt;
use std::sync::mpsc;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::{P99_TIMES_MAX, SPAN_MIB, Subject};
use crate::durable::{self, LogRun};
use crate::median;
use evenkeel_lab::LabError;
use evenkeel_lab::environment::Environment;
use evenkeel_lab::fio::{self, Detail, Job, Standing};
use evenkeel_os::clock;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// The neighbours' requests: their size, and how many are under way.
const NEIGHBOUR_BLOCK_BYTES: u32 = 256 << 10;
const NEIGHBOUR_DEPTH: u32 = 64;

/// Seconds by which neighbours run longer than the log writer: until all of them have started, and
/// for the last of its writes.
const NEIGHBOURS_LONGER_S: u32 = 4;

/// The neighbours of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Beside {
    /// The log is alone.
    Nobody,
    /// A neighbour that reads.
    Reads,
    /// A neighbour that writes.
    Writes,
    /// Both.
    Both,
}

/// One run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Durable writes of the log per second.
    pub log_writes_per_second: f64,
    /// Their median.
    pub p50_ns: u64,
    /// Their 99th percentile.
    pub p99_ns: u64,
    /// Bytes per second of the neighbours together.
    pub neighbours_bytes_per_second: f64,
}

/// All rounds of one server in one situation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Cell {
    /// The server's name.
    pub subject: String,
    /// The neighbours.
    pub beside: Beside,
    /// One sample for each round.
    pub samples: Vec<Sample>,
}

/// The results of a measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Isolation {
    /// Names the shape of this document: `evenkeel.isolation/1`.
    pub schema: String,
    /// The storage below the volumes.
    pub device: String,
    /// When it was measured.
    pub measured_at: String,
    /// The machine and its software.
    pub environment: Environment,
    /// Situations outermost, servers within.
    pub cells: Vec<Cell>,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
}

impl Beside {
    /// All situations, the quietest first.
    pub const ALL: [Self; 4] = [Self::Nobody, Self::Reads, Self::Writes, Self::Both];

    fn reads(self) -> bool {
        matches!(self, Self::Reads | Self::Both)
    }

    fn writes(self) -> bool {
        matches!(self, Self::Writes | Self::Both)
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "alone",
            Self::Reads => "beside reads",
            Self::Writes => "beside writes",
            Self::Both => "beside both",
        })
    }
}

impl Cell {
    /// Returns the median of each figure over the rounds.
    pub fn median(&self) -> Sample {
        let median = |figure: fn(&Sample) -> f64| median(&self.samples, figure);
        Sample {
            log_writes_per_second: median(|sample| sample.log_writes_per_second),
            p50_ns: median(|sample| sample.p50_ns as f64).round() as u64,
            p99_ns: median(|sample| sample.p99_ns as f64).round() as u64,
            neighbours_bytes_per_second: median(|sample| sample.neighbours_bytes_per_second),
        }
    }
}

impl Isolation {
    /// Returns the ratio of the 99th percentile of a server's log writes beside neighbours to that
    /// alone; `None` if one of them was not measured.
    pub fn p99_times(&self, subject: &str, beside: Beside) -> Option<f64> {
        let p99 = |beside: Beside| {
            let of = |cell: &&Cell| cell.subject == subject && cell.beside == beside;
            self.cells.iter().find(of).map(|cell| cell.median().p99_ns as f64)
        };
        Some(p99(beside)? / p99(Beside::Nobody)?.max(1.0))
    }

    /// Returns whether a server's log is fast enough beside neighbours in every situation.
    pub fn holds(&self, subject: &str) -> bool {
        let times = Beside::ALL.map(|beside| self.p99_times(subject, beside));
        times.iter().flatten().all(|&times| times <= P99_TIMES_MAX)
    }
}

/// Fills the used range of all volumes, then measures the servers in every situation, round by
/// round.
pub fn measure(
    device: &str,
    subjects: &[Subject],
    rounds: u32,
    bench: &mut Bench<'_>,
) -> Result<Isolation, LabError> {
    if bench.seconds == 0 {
        return Err(LabError::BadWorkload("runs of 0 s; use 1 s or more".to_owned()));
    }
    let environment = Environment::read(fio::version()?);
    let warnings: Vec<String> = fio::load_warning("before").into_iter().collect();
    for subject in subjects {
        bench.report(&format!("filling the volumes of {}", subject.name));
        fill(subject)?;
    }
    let mut cells = Vec::new();
    for beside in Beside::ALL {
        let names = subjects.iter().map(|subject| subject.name.to_owned());
        cells.extend(names.map(|subject| Cell { subject, beside, samples: Vec::new() }));
    }
    for round in 1..=rounds.max(1) {
        for cell in &mut cells {
            let is_of = |subject: &&Subject| subject.name == cell.subject;
            let Some(subject) = subjects.iter().find(is_of) else { continue };
            bench.report(&format!("round {round}: {} {}", cell.subject, cell.beside));
            cell.samples.push(run(subject, cell.beside, bench)?);
        }
    }
    Ok(Isolation {
        schema: "evenkeel.isolation/1".to_owned(),
        device: device.to_owned(),
        measured_at: clock::utc_now(),
        environment,
        cells,
        warnings,
    })
}

/// Fills the used ranges: reads of blocks that were never written do not reach the disk.
fn fill(subject: &Subject) -> Result<(), LabError> {
    let bytes = u64::from(SPAN_MIB) << 20;
    let exports = [&subject.log, &subject.reads, &subject.writes];
    exports.into_iter().try_for_each(|export| durable::fill(&export.socket, &export.name, bytes))
}

fn run(subject: &Subject, beside: Beside, bench: &Bench<'_>) -> Result<Sample, LabError> {
    let time = Duration::from_secs(bench.seconds.into());
    let jobs = neighbours(subject, beside, bench.seconds);
    if jobs.is_empty() {
        return Ok(sample(&log(subject, time)?, 0.0));
    }
    let (up, are_up) = mpsc::channel();
    let folder = bench.folder;
    let (log_run, neighbours) = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut progress = |_: &[fio::VolumeProgress]| _ = up.send(());
            let run = fio::run(&jobs, Detail::Totals, Standing::Same, folder, &mut progress);
            drop(up);
            run
        });
        // If fio fails, there is no progress to wait for, and its error is returned instead of the
        // log's.
        let log_run = are_up.recv().ok().map(|()| log(subject, time));
        (log_run, load.join())
    });
    let neighbours = neighbours.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let Some(log_run) = log_run else {
        return Err(LabError::Unjudgeable("fio ended before its first second".to_owned()));
    };
    let mut moved = 0.0;
    for measurement in &neighbours.measurements {
        if let Some(error) = &measurement.error {
            return Err(LabError::ToolFailed {
                tool: "fio".to_owned(),
                how: format!("{} on {}: {error}", measurement.name, subject.name),
                said: String::new(),
                command: neighbours.command,
            });
        }
        let bytes = measurement.ios_total as f64 * f64::from(NEIGHBOUR_BLOCK_BYTES);
        moved += bytes * 1_000.0 / measurement.runtime_ms.max(1) as f64;
    }
    Ok(sample(&log_run?, moved))
}

fn log(subject: &Subject, time: Duration) -> Result<LogRun, LabError> {
    durable::write_log(&subject.log.socket, &subject.log.name, time)
}

fn sample(log: &LogRun, neighbours_bytes_per_second: f64) -> Sample {
    Sample {
        log_writes_per_second: log.writes_per_second,
        p50_ns: log.latency.p50_ns,
        p99_ns: log.latency.p99_ns,
        neighbours_bytes_per_second,
    }
}

fn neighbours(subject: &Subject, beside: Beside, seconds: u32) -> Vec<Job> {
    let duration_s = seconds + NEIGHBOURS_LONGER_S;
    let workload = Workload {
        span_mib: Some(SPAN_MIB),
        ..Workload::random_read(NEIGHBOUR_BLOCK_BYTES, NEIGHBOUR_DEPTH, duration_s)
    };
    let mut jobs = Vec::new();
    if beside.reads() {
        jobs.push(Job { name: "reads".to_owned(), target: subject.reads.uri().into(), workload });
    }
    if beside.writes() {
        let workload = Workload { read_percent: 0, ..workload };
        jobs.push(Job { name: "writes".to_owned(), target: subject.writes.uri().into(), workload });
    }
    jobs
}

/// Returns a description of the neighbours' load.
pub fn neighbours_text() -> String {
    format!("{}, {NEIGHBOUR_DEPTH} at once", text::bytes(u64::from(NEIGHBOUR_BLOCK_BYTES)))
}
