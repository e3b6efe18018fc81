//! `evenkeel record`: lines of a recording, of a disk of this machine or of the server's volume.

use super::recording;
use crate::cli::{Connection, Record};
use evenkeel_autopilot::disk::Disk;
use evenkeel_cli::{connect, signals};
use evenkeel_client::Client;
use evenkeel_client::model::VolumeDescription;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::convert::saturating;
use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_os::clock;
use evenkeel_planner::read::diskstats::Counters;
use evenkeel_planner::read::recorder;
use evenkeel_planner::trace::{
    Clock, Columns, INTERVALS_MAX, Interval, Kind, Note, SourceLimits, Trace,
};
use evenkeel_wire::aws::xml::Element;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

/// Prefix of a volume's id.
const VOLUME: &str = "vol-";
/// Maximum length of a recording for a plan, in milliseconds: no more seconds than a trace may
/// have.
const PLAN_MS_MAX: u64 = 30 * 86_400_000;
/// Maximum difference between the two clocks of a disk's interval, in milliseconds; if it is
/// larger, the machine slept or its clock was set.
const CLOCKS_MS_MAX: u64 = 500;
/// Time between two readings of the used space, in milliseconds.
const SPACE_MS: u64 = 60_000;

pub fn run(arguments: &Record) -> Result<(), Failure> {
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    let mut output = Output::open(arguments.file.as_deref())?;
    if is_volume(&arguments.source) {
        if arguments.length.is_some() || arguments.every.is_some() {
            return Err(usage("--for and --every: the server records volumes all the time".into())
                .hint("print what it has recorded, with --since"));
        }
        return print_volume(arguments, &mut output);
    }
    if arguments.since.is_some() {
        return Err(usage("--since: a disk is recorded from now on; --for says how long".into()));
    }
    let every = arguments.every.unwrap_or(Duration::from_secs(1));
    record_disk(&Disk::of(Path::new(&arguments.source))?, arguments.length, every, &mut output)
}

/// Returns whether the source is the id of a volume of the server, and not a file.
pub fn is_volume(source: &str) -> bool {
    source.starts_with(VOLUME) && !Path::new(source).exists()
}

fn print_volume(arguments: &Record, output: &mut Output) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let since = arguments.since.map(|since| clock::unix_ms().0.saturating_sub(ms(since)));
    recording::pages(&client, &arguments.source, since, |intervals| {
        let lines = intervals.iter().map(|interval| recorder::line(&arguments.source, interval));
        output.write(&lines.collect::<String>())
    })
}

/// Returns the server's recording of a volume, with its present limits and its specification,
/// unless the volume is deleted.
pub fn trace_of(
    connection: &Connection,
    volume: &str,
) -> Result<(Trace, Option<VolumeSpec>), Failure> {
    let client = connect::client(connection)?;
    let mut intervals: Vec<Interval> = Vec::new();
    let since = clock::unix_ms().0.saturating_sub(PLAN_MS_MAX);
    recording::pages(&client, volume, Some(since), |page| {
        intervals.extend(page);
        if intervals.len() > INTERVALS_MAX {
            return Err(Failure::new(format!("{volume}: more than {INTERVALS_MAX} intervals")));
        }
        Ok(())
    })?;
    if intervals.is_empty() {
        return Err(Failure::new(format!("nothing is recorded of {volume} yet"))
            .exit(Exit::NotFound)
            .hint("the server records each second from its start on; try again in some seconds"));
    }
    let counter = Some(Kind::Counter);
    let columns =
        Columns { requests: counter, bytes: counter, times: counter, ..Columns::default() };
    let trace = Trace::new(volume, Clock::Unix, columns, intervals);
    let mut trace = trace.map_err(|error| Failure::new(format!("{volume}: {error}")))?;
    let (remark, spec) = match source(&client, volume) {
        Ok((source, spec)) => {
            trace.source = source;
            ("its limits and its size are those of now", spec)
        }
        Err(failure) if failure.exit == Exit::NotFound => ("the volume is deleted", None),
        Err(failure) => return Err(failure),
    };
    trace.notes.insert(0, Note::Remark(remark.to_owned()));
    Ok((trace, spec))
}

/// Returns the present limits of a volume, and its specification.
fn source(client: &Client, volume: &str) -> Result<(SourceLimits, Option<VolumeSpec>), Failure> {
    let named = [("VolumeId.1", volume)];
    let described = VolumeDescription::set(&client.call("DescribeVolumes", &named)?);
    let metrics = client.call("DescribeVolumeMetrics", &named)?;
    let limits = metrics.items("volumeMetricSet").first();
    let per_second = |name| -> Option<u64> {
        limits?.child(name).and_then(|it: &Element| it.child_text("perSecond"))?.parse().ok()
    };
    let source = SourceLimits {
        iops: per_second("operations"),
        bytes_per_second: per_second("bytes"),
        capacity: described.first().map(|described| described.size_gib.saturating_mul(GIB)),
        ..SourceLimits::default()
    };
    Ok((source, described.first().and_then(|described| described.spec().ok())))
}

/// The used space of a disk's file systems, read now and then.
#[derive(Default)]
struct Space {
    read_ms: Option<u64>,
    used_bytes: Option<u64>,
}

impl Space {
    /// Returns the used bytes as they were at most [`SPACE_MS`] ago.
    fn at(&mut self, disk: &Disk, elapsed_ms: u64) -> Option<u64> {
        if self.read_ms.is_none_or(|read_ms| elapsed_ms >= read_ms + SPACE_MS) {
            self.used_bytes = disk.used_bytes();
            self.read_ms = Some(elapsed_ms);
        }
        self.used_bytes
    }
}

/// A reading of a disk: by the wall clock, by the monotonic clock, and its counters.
struct Look {
    unix_ms: u64,
    elapsed_ms: u64,
    counters: Counters,
}

impl Look {
    /// Returns the interval since an earlier reading; `None` if there is a gap.
    fn since(&self, before: &Self) -> Option<Interval> {
        let length_ms = self.unix_ms.checked_sub(before.unix_ms)?;
        let elapsed_ms = self.elapsed_ms.saturating_sub(before.elapsed_ms);
        if length_ms.abs_diff(elapsed_ms) > CLOCKS_MS_MAX {
            return None;
        }
        self.counters.since(&before.counters, before.unix_ms, length_ms)
    }
}

/// Records until the time is over or a signal arrives.
fn record_disk(
    disk: &Disk,
    length: Option<Duration>,
    every: Duration,
    output: &mut Output,
) -> Result<(), Failure> {
    let (told, stops) = sync_channel(1);
    signals::when_signalled(move |_| told.send(()).is_ok())?;
    let stopwatch = clock::now();
    let look = || {
        let counters = disk.counters()?;
        let elapsed_ms = ms(stopwatch.elapsed());
        Ok::<_, Failure>(Look { unix_ms: clock::unix_ms().0, elapsed_ms, counters })
    };
    let mut before = look()?;
    let mut space = Space::default();
    loop {
        let every_ms = ms(every);
        let next_ms = every_ms - clock::unix_ms().0 % every_ms;
        let left_ms = length.map(|length| ms(length).saturating_sub(ms(stopwatch.elapsed())));
        let is_last = left_ms.is_some_and(|left_ms| left_ms <= next_ms);
        let pause_ms = if is_last { left_ms.unwrap_or_default() } else { next_ms };
        let pause = stops.recv_timeout(Duration::from_millis(pause_ms));
        let now = look()?;
        if let Some(mut interval) = now.since(&before).filter(|interval| interval.length_ms > 0) {
            interval.used_bytes = space.at(disk, now.elapsed_ms);
            output.write(&recorder::line(&disk.name, &interval))?;
        }
        before = now;
        if is_last || pause != Err(RecvTimeoutError::Timeout) {
            return Ok(());
        }
    }
}

fn ms(span: Duration) -> u64 {
    saturating::<_, u64>(span.as_millis())
}

/// Destination of the lines.
enum Output {
    Standard,
    File(File, PathBuf),
}

impl Output {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self::Standard) };
        let fail = |error: io::Error| Failure::new(format!("{}: {error}", path.display()));
        let options = OpenOptions::new().create(true).read(true).append(true).clone();
        let mut file = options.open(path).map_err(fail)?;
        if file.metadata().map_err(fail)?.is_file() && file.seek(SeekFrom::End(-1)).is_ok() {
            let mut last = [0];
            file.read_exact(&mut last).map_err(fail)?;
            if last != *b"\n" {
                return Err(Failure::new(format!(
                    "{}: it does not end with a whole line, so nothing is appended to it",
                    path.display()
                ))
                .exit(Exit::Usage)
                .hint("name another file"));
            }
        }
        Ok(Self::File(file, path.to_owned()))
    }

    /// Writes whole lines. If that fails, the file is cut to the lines before them.
    fn write(&mut self, lines: &str) -> Result<(), Failure> {
        let Self::File(file, path) = self else { return output::print(lines) };
        let before = file.metadata().map(|it| it.len());
        file.write_all(lines.as_bytes()).map_err(|error| {
            if let Ok(length) = before {
                let _ = file.set_len(length);
            }
            Failure::new(format!(
                "{}: {error}; the recording up to then is complete",
                path.display()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_machine_that_slept_and_a_clock_that_was_set_are_gaps() {
        let look = |unix_ms, elapsed_ms| {
            let counters = Counters::read("1 0 8 1 1 0 8 1 0 1 1").unwrap();
            Look { unix_ms, elapsed_ms, counters }
        };
        let found = |later: Look| later.since(&look(1_000, 10)).map(|since| since.length_ms);
        assert_eq!(found(look(2_003, 1_013)), Some(1_003));
        // The two clocks agree about the delay.
        assert_eq!(found(look(9_000, 8_010)), Some(8_000));
        assert_eq!(found(look(9_000, 1_010)), None);
        assert_eq!(found(look(500, 1_010)), None);
    }

    #[test]
    fn a_file_gets_whole_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        Output::open(Some(&path)).unwrap().write("{}\n").unwrap();
        Output::open(Some(&path)).unwrap().write("{}\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}\n{}\n");
        fs::write(&path, "{}\n{").unwrap();
        let refused = Output::open(Some(&path)).err().unwrap();
        assert!(refused.message.contains("does not end with a whole line"), "{}", refused.message);
        let mut full = Output::open(Some(Path::new("/dev/full"))).unwrap();
        let failed = full.write("{}\n").unwrap_err().message;
        assert!(failed.contains("/dev/full: No space left"), "{failed}");
    }
}
