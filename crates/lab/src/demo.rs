//! The demonstration: several volumes driven at once, and a verdict for each.
//!
//! It only runs loads and judges them. The caller has created the volumes and provides their
//! addresses. The promises that it passes are those of the volumes' types.

use evenkeel_core::convert::saturating;
use std::path::Path;

use crate::LabError;
use crate::checker::record::{Record, Recorded};
use crate::checker::{self, Bands, Promise, Seen};
use crate::environment::Environment;
use crate::fio::{self, Detail, Job, Measurement, Standing, VolumeProgress};
use crate::nbd_uri::NbdUri;
use crate::report::{Report, VolumeFacts, VolumeReport};
use crate::stalls::{Observed, Server, Stalls, Watch, whole_ms};
use evenkeel_core::qos::trace;
use evenkeel_engine::Recorder;
use evenkeel_os::clock;
use evenkeel_sim::oracle::recorded::Provisioned;
use evenkeel_sim::workload::Workload;

/// Duration of the demonstration's load, in seconds: three times as long as the small credit
/// balance lasts, so that most of it is after the burst.
pub const DURATION_S: u32 = 30;

/// I/O credits that the gp2 volume of the demonstration starts with: at 3,000 IOPS and a baseline
/// of 300 they last 10 s.
pub const GP2_CREDITS: u64 = 27_000;

/// Entries of a request in a record: its submission and its dispatch.
const ENTRIES_PER_REQUEST: u64 = 2;

/// Further entries for names and changes of volumes, and for a limiter that lets more pass.
const ENTRIES_BESIDE: u64 = 1 << 20;

/// Maximum number of entries, about 4 GiB. Only the used part takes memory.
const ENTRIES_MAX: u64 = 1 << 26;

/// Time without waiting requests below which a volume is not mentioned.
const IDLE_WORTH_A_WORD_US: u64 = 50_000;

/// Seconds that fio takes to set up and to end.
const SETUP_S: u64 = 5;

/// I/Os per second of a volume without a limit, for the size of the record.
const UNLIMITED_IOPS: u64 = 10_000;

/// One volume of the demonstration.
#[derive(Clone, Debug)]
pub struct DemoVolume {
    /// Its name.
    pub name: String,
    /// Its type, as users write it: `io2`.
    pub volume_type: String,
    /// Its size in GiB.
    pub size_gib: u32,
    /// Its promise, with the credit balances that were set last.
    pub promise: Promise,
    /// The load on it.
    pub workload: Workload,
    /// Its address.
    pub uri: NbdUri,
    /// Its limits and balances, for a server whose dispatches are recorded.
    pub provisioned: Option<Provisioned>,
}

/// Returns the workload of the demonstration: 16 KiB, the size at which IOPS are sold, with a queue
/// that is deep enough for `iops`.
#[must_use]
pub fn workload(read_percent: u8, iops: u64, seed: u64) -> Workload {
    // A queue of 32 keeps 16,000 IOPS busy as long as an I/O takes less than 2 ms. A volume with a
    // higher rate gets a deeper one.
    let queue_depth = if iops > 10_000 { 64 } else { 32 };
    Workload { read_percent, seed, ..Workload::random_read(16 << 10, queue_depth, DURATION_S) }
}

/// Duration of the load of [`available`], in seconds.
pub const LOOK_S: u32 = 2;

/// Returns the I/Os per second that each volume gets if all of them are driven at once, on the
/// machine as it is now. Tokens that volumes may save while they are idle are not counted.
///
/// # Errors
/// When the load cannot be run.
pub fn available(volumes: &[DemoVolume], folder: &Path) -> Result<Vec<u64>, LabError> {
    let job = |volume: &DemoVolume| Job {
        name: volume.name.clone(),
        target: volume.uri.clone().into(),
        workload: Workload { duration_s: LOOK_S, ..volume.workload },
    };
    let jobs: Vec<Job> = volumes.iter().map(job).collect();
    let run = fio::run(&jobs, Detail::Totals, Standing::RealTime, folder, &mut |_| {})?;
    let rate = |volume: &DemoVolume, measured: &Measurement| {
        let limit = volume.promise.rates_of(&volume.workload).map_or(0.0, |(rate, _)| rate);
        let saved = (limit * f64::from(volume.promise.tolerance_ms) / 1_000.0) as u64;
        measured.ios_total.saturating_sub(saved) * 1_000 / measured.runtime_ms.max(1)
    };
    Ok(volumes.iter().zip(&run.measurements).map(|(of, measured)| rate(of, measured)).collect())
}

/// Returns the IOPS that can be promised to a volume that requested `wanted` and got `measured`:
/// `wanted` if it got that, otherwise four fifths of `measured`, in whole hundreds.
#[must_use]
pub fn affordable(wanted: u64, measured: u64) -> u64 {
    if measured * 100 >= wanted * 98 { wanted } else { (measured * 4 / 5 / 100 * 100).max(100) }
}

/// The server of the volumes.
pub enum Serving<'a> {
    /// Its data plane is in this process, and its dispatches are recorded.
    Here(Recording<'a>),
    /// The server is another process of this machine, which listens at the volumes' unix socket,
    /// or it is not known.
    Elsewhere,
}

/// A record of a data plane of this process, which continues.
pub struct Recording<'a>(&'a Recorder);

impl<'a> Recording<'a> {
    /// Begins a record with room for all requests that the limits of these volumes allow. It must
    /// begin before credits are set, so that it contains them.
    #[must_use]
    pub fn begin(recorder: &'a Recorder, volumes: &[DemoVolume]) -> Self {
        let iops = |volume: &DemoVolume| {
            let rates = volume.promise.rates_of(&volume.workload);
            rates.map_or(UNLIMITED_IOPS, |(burst, _)| burst.ceil() as u64)
        };
        let seconds = volumes.iter().map(|volume| volume.workload.duration_s).max().unwrap_or(0);
        let per_second: u64 = volumes.iter().map(iops).sum();
        let entries = per_second
            .saturating_mul(u64::from(seconds) + SETUP_S)
            .saturating_mul(ENTRIES_PER_REQUEST)
            .saturating_add(ENTRIES_BESIDE);
        let entries = entries.min(ENTRIES_MAX);
        recorder.begin(saturating::<_, usize>(entries), trace::Detail::Requests);
        Self(recorder)
    }

    fn end(self) -> Record {
        let since_1970_ns = clock::unix_us().saturating_mul(1_000);
        let origin_unix_ns = since_1970_ns.saturating_sub(self.0.now().ns);
        Record { traces: self.0.end(), origin_unix_ns }
    }
}

impl Serving<'_> {
    fn server(&self, volumes: &[DemoVolume]) -> Server {
        match self {
            Self::Here(_) => Server::Here,
            Self::Elsewhere => {
                let process = volumes.first().and_then(|volume| volume.uri.server());
                process.map_or(Server::Unknown, Server::Process)
            }
        }
    }

    fn end_record(self) -> Option<Record> {
        match self {
            Self::Here(recording) => Some(recording.end()),
            Self::Elsewhere => None,
        }
    }
}

/// Drives all volumes at once, then judges each by `bands`. Credits must have been set right before
/// the call: credits that may have been earned until the load began widen the bounds of the
/// verdict.
///
/// `progress` is called about once a second with every volume, in their order. `folder` holds the
/// logs while they are needed.
///
/// # Errors
/// When the load could not be run or a promise cannot be judged. A broken promise is not an error.
pub fn run(
    title: &str,
    volumes: &[DemoVolume],
    bands: &Bands,
    folder: &Path,
    serving: Serving<'_>,
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Report, LabError> {
    let job = |volume: &DemoVolume| Job {
        name: volume.name.clone(),
        target: volume.uri.clone().into(),
        workload: volume.workload,
    };
    let jobs: Vec<Job> = volumes.iter().map(job).collect();
    let is_elsewhere = matches!(serving, Serving::Elsewhere);
    let watch = Watch::start(serving.server(volumes));
    let run = fio::run(&jobs, Detail::EveryIo, Standing::RealTime, folder, progress)?;
    let record = serving.end_record();
    let observed = placeable(watch.finish(), &run.measurements);
    let during_load = during_load(&observed, &run.measurements);
    let elapsed_ms = saturating::<_, u64>(run.elapsed.as_millis());

    let mut warnings = run.warnings;
    let mut reports = Vec::with_capacity(volumes.len());
    for (volume, measurement) in volumes.iter().zip(run.measurements) {
        let load_ms = u64::from(volume.workload.duration_s) * 1_000;
        let promise = volume.promise.started_within(elapsed_ms.saturating_sub(load_ms));
        let start_us = start_us(&measurement).unwrap_or(0);
        let seen_of_load = observed.during(start_us, load_ms * 1_000);
        let ios = measurement.ios_total;
        let of_record = judged_by(record.as_ref(), volume, &observed, ios, &mut warnings);
        let has_record = of_record.is_some();
        let (of_limits, idle) = of_record.map_or_else(
            || (Vec::new(), Stalls::NONE),
            |recorded| (recorded.checks, recorded.idle.during(start_us, load_ms * 1_000)),
        );
        warnings.extend(late_store(&volume.name, &idle));
        let seen = Seen {
            series: &measurement.series,
            lost: &seen_of_load.lost(),
            idle: &idle,
            steal: &seen_of_load.steal,
            error: measurement.error.as_deref(),
            gone_after_ms: measurement.gone_after_ms,
            has_record,
        };
        let verdict = checker::check(&promise, &volume.workload, &seen, bands)?;
        let verdict = verdict.with(of_limits);
        let facts = VolumeFacts {
            volume_type: volume.volume_type.clone(),
            size_gib: volume.size_gib,
            promise: volume.promise.to_string(),
        };
        reports.push(VolumeReport::new(facts, measurement, seen_of_load.lost(), verdict));
    }
    let environment = Environment::read(run.version);
    let report =
        Report::new(title, environment, vec![during_load], reports, vec![run.command], warnings);
    Ok(report.with_note(is_elsewhere.then(|| bands.sentence_of_ceilings())))
}

/// Judges a volume by the record of its data plane. Returns `None` without a record, and with a
/// warning if the record does not allow a verdict.
fn judged_by(
    record: Option<&Record>,
    volume: &DemoVolume,
    observed: &Observed,
    ios: u64,
    warnings: &mut Vec<String>,
) -> Option<Recorded> {
    let provisioned = volume.provisioned.as_ref()?;
    match record?.checks(provisioned, observed, ios, volume.workload.queue_depth) {
        Ok(recorded) => Some(recorded),
        Err(why) => {
            let name = &volume.name;
            warnings.push(format!("{name}: judged by its client's log alone: {why}"));
            None
        }
    }
}

/// Returns a remark on a volume that had no request waiting at its limits for some time; `None` if
/// that was short.
fn late_store(name: &str, idle: &Stalls) -> Option<String> {
    let idle_us = idle.total_us();
    (idle_us >= IDLE_WORTH_A_WORD_US).then(|| {
        format!(
            "{name}: for {} ms no request waited for its limits: all of them were in its store, or \
             with its client",
            whole_ms(idle_us)
        )
    })
}

/// Returns the start of a volume's load, in microseconds since 1970.
pub(crate) fn start_us(measurement: &Measurement) -> Option<u64> {
    measurement.started_unix_ms.map(|start_ms| start_ms.saturating_mul(1_000))
}

/// Returns the observations if the start of every load is known, since stalls cannot be placed
/// otherwise.
#[must_use]
pub fn placeable(observed: Observed, measurements: &[Measurement]) -> Observed {
    if measurements.iter().all(|measurement| measurement.started_unix_ms.is_some()) {
        observed
    } else {
        Observed::unwatched("fio did not tell when it began")
    }
}

/// Returns the stalls while the load ran, counted from the start of the volume that began first.
#[must_use]
pub fn during_load(observed: &Observed, measurements: &[Measurement]) -> Observed {
    let from_us = measurements.iter().filter_map(start_us).min().unwrap_or(0);
    let length_s = measurements.iter().map(|measurement| measurement.workload.duration_s).max();
    let length_us = u64::from(length_s.unwrap_or(0)) * 1_000_000;
    observed.during(from_us, length_us)
}

/// Returns one line of progress: every volume's rate, in the volumes' order.
#[must_use]
pub fn progress_line(volumes: &[VolumeProgress]) -> String {
    let runtime_ms = volumes.iter().map(|volume| volume.runtime_ms).max().unwrap_or(0);
    let second = (runtime_ms + 500) / 1_000;
    let rates: Vec<String> = volumes
        .iter()
        .map(|volume| {
            let iops = volume.iops.round().max(0.0) as u64;
            format!("{} {:>6}", volume.name, evenkeel_sim::text::thousands(iops))
        })
        .collect();
    format!("{second:>3} s   {}", rates.join("   "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_rate_of_the_demo_follows_the_measured_one() {
        for (measured, promised) in
            [(16_003, 16_000), (15_700, 16_000), (15_600, 12_400), (9_000, 7_200), (3, 100)]
        {
            assert_eq!(affordable(16_000, measured), promised, "{measured}");
        }
    }

    #[test]
    fn a_progress_line_keeps_its_columns() {
        let volume = |name: &str, iops| VolumeProgress {
            name: name.to_string(),
            iops,
            ios_total: 1,
            runtime_ms: 6_893,
            ..VolumeProgress::default()
        };
        assert_eq!(
            progress_line(&[volume("io2", 999.6), volume("gp3", 3_000.2)]),
            "  7 s   io2  1,000   gp3  3,000"
        );
        assert_eq!(progress_line(&[]), "  0 s   ");
    }
}
