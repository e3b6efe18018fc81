//! The demonstration: several volumes driven at once, and a verdict for each.
//!
//! Pure orchestration. Whoever calls it has created the volumes and says where they are; the
//! promise it passes is the one the volumes' types make.

use std::path::Path;

use crate::LabError;
use crate::bench::NbdUri;
use crate::bench::fio::{self, Detail, Job, Measurement, VolumeProgress};
use crate::checker::{self, Bands, Promise};
use crate::environment::Environment;
use crate::report::{Report, VolumeFacts, VolumeReport};
use crate::stalls::{Observed, Watch};
use evenkeel_sim::workload::Workload;

/// How long the demonstration drives its volumes, in seconds: three bursts' worth of the small
/// credit balance, so that the time after it is most of what is seen.
pub const DURATION_S: u32 = 30;

/// I/O credits that the gp2 volume of the demonstration starts with: at 3,000 IOPS and a baseline
/// of 300 they last 10 s.
pub const GP2_CREDITS: u64 = 27_000;

/// One volume of the demonstration.
#[derive(Clone, Debug)]
pub struct DemoVolume {
    /// What it is called.
    pub name: String,
    /// Its type, as users write it: `io2`.
    pub volume_type: String,
    /// Its size in GiB.
    pub size_gib: u32,
    /// What was promised, with the credit balances that were set last.
    pub promise: Promise,
    /// What to do to it.
    pub workload: Workload,
    /// Where it is.
    pub uri: NbdUri,
}

/// The workload of the demonstration: 16 KiB, the size at which IOPS are sold, with a queue that is
/// deep enough for `iops`.
#[must_use]
pub fn workload(read_percent: u8, iops: u64, seed: u64) -> Workload {
    // A queue of 32 keeps 16,000 IOPS busy as long as an I/O takes less than 2 ms; the greedy
    // neighbour pushes harder.
    let queue_depth = if iops > 10_000 { 64 } else { 32 };
    Workload { read_percent, seed, ..Workload::random_read(16 << 10, queue_depth, DURATION_S) }
}

/// Drives all volumes at once, then judges each by `bands`. Credits must have been set right before
/// the call: what may have been earned until the load began widens the bounds of the verdict.
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
    progress: &mut dyn FnMut(&[VolumeProgress]),
) -> Result<Report, LabError> {
    let job = |volume: &DemoVolume| Job {
        name: volume.name.clone(),
        target: volume.uri.clone().into(),
        workload: volume.workload,
    };
    let jobs: Vec<Job> = volumes.iter().map(job).collect();
    let watch = Watch::start();
    let run = fio::run(&jobs, Detail::EveryIo, folder, progress)?;
    let observed = placeable(watch.finish(), &run.measurements);
    let stalls = during_load(&observed, &run.measurements);
    let elapsed_ms = u64::try_from(run.elapsed.as_millis()).unwrap_or(u64::MAX);

    let mut reports = Vec::with_capacity(volumes.len());
    for (volume, measurement) in volumes.iter().zip(run.measurements) {
        let load_ms = u64::from(volume.workload.duration_s) * 1_000;
        let promise = volume.promise.started_within(elapsed_ms.saturating_sub(load_ms));
        let start_us = start_us(&measurement).unwrap_or(0);
        let volume_stalls = observed.stalls.during(start_us, load_ms * 1_000);
        let verdict = checker::check(
            &promise,
            &volume.workload,
            &measurement.series,
            &volume_stalls,
            measurement.error.as_deref(),
            bands,
        )?;
        let facts = VolumeFacts {
            volume_type: volume.volume_type.clone(),
            size_gib: volume.size_gib,
            promise: volume.promise.to_string(),
        };
        reports.push(VolumeReport::new(facts, measurement, volume_stalls, verdict));
    }
    let environment = Environment::read(run.version);
    Ok(Report::new(title, environment, vec![stalls], reports, vec![run.command], run.warnings))
}

/// When a volume's load began, in microseconds since 1970.
pub(crate) fn start_us(measurement: &Measurement) -> Option<u64> {
    measurement.started_unix_ms.map(|start_ms| start_ms.saturating_mul(1_000))
}

/// A stall counts only when it is known where in every volume's series it lies.
pub(crate) fn placeable(observed: Observed, measurements: &[Measurement]) -> Observed {
    match measurements.iter().all(|measurement| measurement.started_unix_ms.is_some()) {
        true => observed,
        false => Observed::unwatched("fio did not tell when it began"),
    }
}

/// The stalls while the load ran, counted from the start of the volume that began first.
fn during_load(observed: &Observed, measurements: &[Measurement]) -> Observed {
    let from_us = measurements.iter().filter_map(start_us).min().unwrap_or(0);
    let length_s = measurements.iter().map(|measurement| measurement.workload.duration_s).max();
    let length_us = u64::from(length_s.unwrap_or(0)) * 1_000_000;
    Observed { stalls: observed.stalls.during(from_us, length_us), ..observed.clone() }
}

/// One line of progress: every volume's rate, in the volumes' order.
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
