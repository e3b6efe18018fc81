//! Runs fio against NBD exports and measures each volume exactly.
//!
//! fio's `nbd` engine speaks NBD itself: no mount, no root, no page cache between the load and the
//! server. We do not use fio's averages: fio writes one record per I/O (completion time in whole
//! milliseconds, latency in nanoseconds), and `log` counts them into our own windows while
//! reading. At 16,000 IOPS and 60 s that is a million records and 24 MB of log, read once and
//! deleted.
//!
//! All volumes are jobs of one fio process, each a thread of it, so that they start together and
//! one kill ends them all.

mod command;
mod disk_space;
mod log;
mod output;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

pub use self::disk_space::{Room, Shortage};
use self::output::{Framed, Snapshot};
use crate::cancel;
use crate::child::{self, Guarded};
use crate::target::Target;
use crate::{LabError, environment};
use evenkeel_engine::priority;
use evenkeel_os::clock;
use evenkeel_sim::figures::histogram::LatencySummary;
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::text;
use evenkeel_sim::workload::Workload;

/// The package that holds fio.
const PACKAGE: &str = "fio";

/// Time beyond the workload's own that fio gets to connect and drain. Generous: it exists to end a
/// hang, not to judge.
const GRACE: Duration = Duration::from_secs(60);

/// fio writes its logs at the end, all at once. For that it gets this part of the workload's
/// duration in addition.
const LOG_SHARE: u32 = 10;

/// Exit statuses from here on, of fio and of shells, mean that a signal ended the program.
const ENDED_EARLY: i32 = 128;

/// The shortest span for which a rate is reported as progress, in milliseconds.
const PROGRESS_MS_MIN: u64 = 500;

/// Volumes one run drives at most: each is a thread of fio and a log file.
pub const JOBS_MAX: usize = 64;

/// One volume to drive.
#[derive(Clone, Debug)]
pub struct Job {
    /// The volume's name in progress and reports.
    pub name: String,
    /// The volume, file or device to drive.
    pub target: Target,
    /// The load on it.
    pub workload: Workload,
}

/// The measurement of one volume.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The job's name.
    pub name: String,
    /// The load on it.
    pub workload: Workload,
    /// Completions per millisecond. Empty when the run was [`Detail::Totals`].
    pub series: Series,
    /// Latencies of the whole run, from submission to completion as the client sees it.
    pub latency: LatencySummary,
    /// Latencies second by second. Empty when the run was [`Detail::Totals`].
    pub latency_per_second: Vec<LatencySummary>,
    /// I/Os as fio itself counted them.
    pub ios_total: u64,
    /// fio's own run time of this job in milliseconds.
    pub runtime_ms: u64,
    /// Start of the job, in milliseconds since 1970: time 0 of its series. `None` if fio did not
    /// report it.
    pub started_unix_ms: Option<u64>,
    /// fio's report of failed I/Os, if there were any.
    pub error: Option<String>,
    /// Time at which the server closed the connection, in milliseconds after the start, if it did.
    pub gone_after_ms: Option<u64>,
}

/// A finished run of fio.
#[derive(Clone, Debug)]
pub struct Run {
    /// One entry per job, in the order of the jobs.
    pub measurements: Vec<Measurement>,
    /// The exact command line, ready to paste.
    pub command: String,
    /// fio's version, as it prints it.
    pub version: String,
    /// Wall-clock time from the call until fio ended; the load began no later than its length
    /// before that.
    pub elapsed: Duration,
    /// Warnings that limit what the figures prove.
    pub warnings: Vec<String>,
}

impl Run {
    /// Returns an error for a run with failed I/Os; `label` names the run.
    ///
    /// # Errors
    /// When there is a job with I/O errors.
    pub fn is_well(&self, label: &str) -> Result<(), LabError> {
        let told = |of: &Measurement| {
            let error = of.error.as_deref()?;
            let what = format!("I/O errors on {} in \"{label}\": {error}", of.name);
            Some(LabError::Unjudgeable(what))
        };
        self.measurements.iter().find_map(told).map_or(Ok(()), Err)
    }

    /// Returns the start of the first job, in milliseconds since 1970; `None` if fio did not report
    /// it.
    #[must_use]
    pub fn started_unix_ms(&self) -> Option<u64> {
        self.measurements.iter().filter_map(|measurement| measurement.started_unix_ms).min()
    }
}

/// The amount of detail that is kept of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Every I/O is logged and counted: for verdicts.
    EveryIo,
    /// Only fio's totals: for the fastest servers, whose load generator should do nothing else.
    Totals,
}

/// The priority of fio for processor time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Standing {
    /// The priority of this process.
    #[default]
    Same,
    /// Real-time if the kernel allows it, otherwise the priority of this process. For loads whose
    /// rates are limited: nothing else limits the processor time of such a client.
    RealTime,
}

/// The program that starts another one like [`Standing::RealTime`], as printed in front of fio's
/// command line. The process itself does not need it.
const REAL_TIME: [&str; 3] = ["chrt", "--rr", "1"];

/// One I/O of a job's log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Time of completion, in whole milliseconds after the job's start.
    pub time_ms: u64,
    /// Time from submission to completion.
    pub latency_ns: u64,
    /// Size of the I/O.
    pub bytes: u64,
}

impl Completion {
    /// Returns the same I/O with its time later by `ms`, as a clock shows it that began earlier.
    #[must_use]
    pub fn later(self, ms: u64) -> Self {
        Self { time_ms: self.time_ms.saturating_add(ms), ..self }
    }
}

/// A volume while fio is running.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct VolumeProgress {
    /// The job's name.
    pub name: String,
    /// I/Os per second since the last progress.
    pub iops: f64,
    /// I/Os so far.
    pub ios_total: u64,
    /// Time that this job has run, in milliseconds.
    pub runtime_ms: u64,
    /// Further text for the reader, if there is any.
    pub told: String,
}

/// Returns the seconds that the longest running of some jobs has run for.
#[must_use]
pub fn runtime_s(volumes: &[VolumeProgress]) -> u64 {
    volumes.iter().map(|volume| volume.runtime_ms / 1_000).max().unwrap_or(0)
}

/// Returns fio's version as it prints it, for example `fio-3.33`.
///
/// # Errors
/// [`LabError::ToolMissing`] names the package if fio is not installed.
pub fn version() -> Result<String, LabError> {
    let mut command = Command::new("fio");
    command.arg("--version").stdout(Stdio::piped());
    let mut child = Guarded::spawn(&mut command, PACKAGE)?;
    let after = Duration::from_secs(20);
    if child.wait_until(clock::now() + after).is_none() {
        return Err(LabError::Deadline { what: "fio --version".to_string(), after });
    }
    let mut line = Vec::new();
    if let Some(stdout) = child.take_stdout() {
        use std::io::Read;
        let read = stdout.take(256).read_to_end(&mut line);
        read.map_err(LabError::io("cannot read the output of", "fio"))?;
    }
    Ok(String::from_utf8_lossy(&line).trim().to_string())
}

/// Runs all jobs at once and measures each. fio runs at this priority, and [`Run::command`] says
/// whether that was allowed. `progress` is called about once a second.
///
/// `folder` must exist; the logs live in it while fio runs. Bounded in time: the longest workload,
/// a tenth of it and a minute, then fio is killed.
///
/// # Errors
/// When fio is missing, cannot connect, hangs, prints output that cannot be parsed, or its records
/// of I/Os have no more room. I/O errors of a volume are not errors here: they are in its
/// [`Measurement`].
pub fn run(
    jobs: &[Job],
    detail: Detail,
    standing: Standing,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Run, LabError> {
    run_each(jobs, detail, standing, folder, progress, &mut |_, _| {})
}

/// Runs jobs as [`run`] does. `each` is called with the number of the job and every logged I/O: job
/// after job, each in order of completion.
///
/// # Errors
/// As [`run`].
pub fn run_each(
    jobs: &[Job],
    detail: Detail,
    standing: Standing,
    folder: &Path,
    progress: &mut dyn FnMut(&[VolumeProgress]),
    each: &mut dyn FnMut(usize, Completion),
) -> Result<Run, LabError> {
    if jobs.is_empty() || jobs.len() > JOBS_MAX {
        let count = jobs.len();
        return Err(LabError::BadWorkload(format!("{count} volumes at once; use 1 to {JOBS_MAX}")));
    }
    jobs.iter().try_for_each(|job| job.workload.validate())?;
    let called = clock::now();
    let version = version()?;
    let warnings = load_warning("before").into_iter().collect();
    // fio appends to a log that exists, which would count an earlier run again.
    let prefixes: Vec<PathBuf> = (0..jobs.len()).map(|i| folder.join(format!("v{i}"))).collect();
    remove_logs(folder)?;

    let arguments = command::arguments(jobs, detail, &prefixes);
    let room = match detail {
        Detail::EveryIo => Some(Room::of(folder)?),
        Detail::Totals => None,
    };
    let (last, command) = drive(jobs, (&arguments, standing), room.as_ref(), progress)?;
    let elapsed = clock::now().saturating_duration_since(called);

    let mut measurements = Vec::with_capacity(jobs.len());
    for ((index, job), totals) in jobs.iter().enumerate().zip(last.jobs) {
        measurements.push(match detail {
            Detail::Totals => totals.into_measurement(job),
            Detail::EveryIo => {
                let mut measurement = totals.into_measurement(job);
                read_log(folder, index, &mut measurement, &mut |io| each(index, io))?;
                measurement
            }
        });
    }
    remove_logs(folder)?;
    Ok(Run { measurements, command, version, elapsed, warnings })
}

/// Writes every file of a target once, from begin to end, so that none of them is a hole.
///
/// # Errors
/// When fio is missing, fails or hangs, or the process is asked to stop.
pub fn lay_out(files: &Target) -> Result<(), LabError> {
    let mut command = Command::new("fio");
    command.args(["--eta=never", "--name=layout"]).args(files.fio_options(true));
    command.args(["--rw=write", "--bs=1m", "--iodepth=8", "--end_fsync=1"]);
    child::run_to_end(&mut command, PACKAGE).map(drop)
}

/// Starts a load that is not measured; dropping it ends it. It lasts for `length_s`, which the
/// usual limit on durations does not bound, since no records are kept.
///
/// # Errors
/// When fio is missing.
pub fn beside(jobs: &[Job], length_s: u32) -> Result<Guarded, LabError> {
    jobs.iter().try_for_each(|job| job.workload.validate())?;
    let as_long = |job: &Job| {
        let workload = Workload { duration_s: length_s, ..job.workload };
        Job { workload, ..job.clone() }
    };
    let jobs: Vec<Job> = jobs.iter().map(as_long).collect();
    let prefixes = vec![PathBuf::new(); jobs.len()];
    let arguments = command::arguments(&jobs, Detail::Totals, &prefixes);
    Guarded::spawn(Command::new("fio").args(&arguments[1..]).stdout(Stdio::null()), PACKAGE)
}

/// Starts fio and reports progress. Returns its last snapshot and its command line.
fn drive(
    jobs: &[Job],
    (arguments, standing): (&[String], Standing),
    room: Option<&Room>,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<(Snapshot, String), LabError> {
    let longest_s = jobs.iter().map(|job| job.workload.end_s()).max().unwrap_or(0);
    let after = Duration::from_secs(u64::from(longest_s + longest_s / LOG_SHARE)) + GRACE;
    let deadline = clock::now() + after;
    let mut fio = Command::new("fio");
    fio.args(&arguments[1..]).stdout(Stdio::piped());
    let (child, command) = start(&mut fio, arguments, standing);
    let mut child = child?;
    let failed = |how: String, said: String| LabError::ToolFailed {
        tool: "fio".to_string(),
        how,
        said,
        command: command.clone(),
    };
    let Some(stdout) = child.take_stdout() else {
        return Err(failed("its output was not connected".to_string(), String::new()));
    };
    // Two are enough: the reader waits while we are busy, and fio while the pipe is full.
    let (sender, receiver) = mpsc::sync_channel(2);
    let noise = child::apart(move || output::frame(stdout, &sender));
    let watched = watch(jobs, &receiver, deadline, room, progress)?;
    drop(receiver);
    let status = child.wait_until(deadline);
    if status.is_none() {
        child.kill();
        return Err(LabError::Deadline { what: "fio".to_string(), after });
    }
    let said = [child::result_of(&noise), child.stderr()].join("\n").trim().to_string();
    let status_text = status.map(|status| status.to_string()).unwrap_or_default();
    // An interrupted fio reports its work until then as if that had been all.
    let is_whole = status.and_then(|status| status.code()).is_some_and(|code| code < ENDED_EARLY);
    match watched {
        Some(last) if is_whole && last.jobs.iter().any(|job| job.ran()) => Ok((last, command)),
        _ => Err(failed(status_text, said)),
    }
}

/// Starts fio at this priority. Returns its process and the command line for a shell.
fn start(
    fio: &mut Command,
    arguments: &[String],
    standing: Standing,
) -> (Result<Guarded, LabError>, String) {
    let mut spawn = || Guarded::spawn(fio, PACKAGE);
    let (child, is_real_time) = match standing {
        Standing::Same => (spawn(), false),
        Standing::RealTime => priority::starting_real_time(priority::REAL_TIME, spawn),
    };
    let before = REAL_TIME.iter().filter(|_| is_real_time).map(|word| (*word).to_owned());
    let words: Vec<String> = before.chain(arguments.iter().cloned()).collect();
    (child, text::command_line(&words))
}

/// Converts snapshots to progress until fio closes its output. Returns `None` if fio never printed
/// one, and an error if fio's records have no more room or the process is asked to stop.
fn watch(
    jobs: &[Job],
    receiver: &mpsc::Receiver<Framed>,
    deadline: Instant,
    room: Option<&Room>,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Option<Snapshot>, LabError> {
    let mut last: Option<Snapshot> = None;
    loop {
        let left = deadline.saturating_duration_since(clock::now());
        let framed = match receiver.recv_timeout(left) {
            Ok(framed) => framed,
            Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return Ok(last),
        };
        cancel::go_on()?;
        let mut snapshot = output::parse(&framed?)?;
        if snapshot.jobs.len() != jobs.len() {
            return Err(LabError::BadOutput {
                tool: "fio",
                what: format!("{} jobs in its JSON, started {}", snapshot.jobs.len(), jobs.len()),
            });
        }
        if let Some(short) = room.and_then(|room| room.shortage(snapshot.ios())) {
            let what = format!(
                "fio has noted {} I/Os in {} s, which are {} GiB, and {}: {}",
                text::thousands(snapshot.ios()),
                snapshot.runtime_ms() / 1_000,
                short.needed_gib,
                short.free,
                short.next
            );
            return Err(LabError::BadWorkload(what));
        }
        let before_ms = last.as_ref().map_or(0, Snapshot::runtime_ms);
        // The last snapshot follows shortly after another one, and a rate over a few milliseconds
        // is meaningless.
        if snapshot.runtime_ms().saturating_sub(before_ms) >= PROGRESS_MS_MIN {
            progress(&snapshot.since(last.as_ref(), jobs));
        }
        snapshot.keep_earliest_start(last.as_ref());
        last = Some(snapshot);
    }
}

fn read_log(
    folder: &Path,
    index: usize,
    measurement: &mut Measurement,
    each: &mut dyn FnMut(Completion),
) -> Result<(), LabError> {
    let Some(path) = logs(folder)?.into_iter().find(|path| log::belongs_to(path, index)) else {
        if measurement.error.is_none() {
            let what = format!("no log of {} in {}", measurement.name, folder.display());
            return Err(LabError::BadOutput { tool: "fio", what });
        }
        return Ok(());
    };
    let file = fs::File::open(&path).map_err(LabError::io("cannot open", &path))?;
    let duration_s = measurement.workload.duration_s;
    let counted = log::read(std::io::BufReader::new(file), duration_s, each)?;
    let seen = counted.latency.count;
    let told = measurement.ios_total;
    if seen != told && measurement.error.is_none() {
        let name = &measurement.name;
        let what = format!("the log of {name} has {seen} I/Os, its totals say {told}");
        return Err(LabError::BadOutput { tool: "fio", what });
    }
    measurement.series = counted.series;
    measurement.latency = counted.latency;
    measurement.latency_per_second = counted.latency_per_second;
    Ok(())
}

/// Returns fio's log files in a folder, found by their names.
fn logs(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let entries = fs::read_dir(folder).map_err(LabError::io("cannot list", folder))?;
    let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    Ok(paths.filter(|path| (0..JOBS_MAX).any(|index| log::belongs_to(path, index))).collect())
}

fn remove_logs(folder: &Path) -> Result<(), LabError> {
    for path in logs(folder)? {
        fs::remove_file(&path).map_err(LabError::io("cannot remove", &path))?;
    }
    Ok(())
}

/// Returns a warning if more threads want to run than there are processors. `when` is a word, such
/// as `before`.
#[must_use]
pub fn load_warning(when: &str) -> Option<String> {
    let processors = environment::processors();
    let load = environment::load_hundredths().filter(|load| *load > processors * 100)?;
    let load = format!("{}.{:02}", load / 100, load % 100);
    Some(format!(
        "the machine was busy {when} the run (load average {load} on {processors} processors)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd_uri::NbdUri;

    #[test]
    fn the_command_line_says_which_priority_was_allowed() {
        let arguments = ["true".to_string()];
        let begun = |standing| {
            let (child, line) = start(&mut Command::new("true"), &arguments, standing);
            assert!(child.unwrap().wait_until(clock::now() + GRACE).unwrap().success());
            line
        };
        assert_eq!(begun(Standing::Same), "true");
        let (_, is_allowed) = priority::starting_real_time(priority::REAL_TIME, || ());
        let real_time = if is_allowed { "chrt --rr 1 true" } else { "true" };
        assert_eq!(begun(Standing::RealTime), real_time);
    }

    /// A disk without a limit may do more I/Os than were expected.
    #[test]
    fn a_run_ends_before_its_log_has_no_room() {
        let uri = NbdUri::unix(Path::new("/s"), "");
        let workload = Workload::random_read(4_096, 1, 1);
        let jobs = [Job { name: "a".to_string(), target: uri.into(), workload }];
        let document = |ios: u64| {
            let none = r#"{ "total_ios" : 0, "runtime" : 0 }"#;
            let read = format!(r#"{{ "total_ios" : {ios}, "runtime" : 2000 }}"#);
            format!(r#"{{ "jobs" : [ {{ "read" : {read}, "write" : {none} }} ] }}"#)
        };
        let watched = |disk_bytes: u64, memory_bytes: u64| {
            let (sender, receiver) = mpsc::sync_channel(2);
            for ios in [26_843_545, 53_687_092] {
                sender.send(Ok(document(ios))).unwrap();
            }
            drop(sender);
            let room = Room::with(Path::new("/tmp/x"), disk_bytes, memory_bytes);
            let deadline = clock::now() + GRACE;
            watch(&jobs, &receiver, deadline, Some(&room), &mut |_| {})
        };
        let enough = 3 << 30;
        assert_eq!(watched(enough, enough).unwrap().unwrap().ios(), 53_687_092);
        let error = |disk, memory| watched(disk, memory).unwrap_err().to_string();
        let text = error(enough, 3 << 29);
        assert!(text.contains("53,687,092 I/Os in 2 s, which are 2 GiB, and 1.5 GiB"), "{text}");
        assert!(text.contains("free of memory: let it last less long"), "{text}");
        let text = error(3 << 29, enough);
        assert!(text.contains("disk of /tmp/x: let TMPDIR name a folder"), "{text}");
    }
}
