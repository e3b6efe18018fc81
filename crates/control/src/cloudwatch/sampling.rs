//! The thread that samples the data plane every second, for the metrics of volumes and their
//! recordings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_telemetry::cloudwatch::record::Kind;
use evenkeel_telemetry::cloudwatch::sampler::{self, Ended, Known, Sampler};
use evenkeel_telemetry::cloudwatch::{CloudWatch, FINE_VOLUMES_MAX, STEP_MS};
use evenkeel_telemetry::recording::{Inbox, Look, Sample};
use evenkeel_wire::agent::VolumeReport;
use tracing::{debug, warn};

use crate::model::{Attachment, AttachmentState, Phase, Volume};
use crate::plane::{Plane, PlaneError};
use crate::reconcile;

/// The time between two samples, in milliseconds.
const LOOK_MS: u64 = 1_000;

/// The thread that samples the data plane. Dropping it ends the thread.
pub struct Sampling {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampling {
    /// Starts to store the metrics of the plane's volumes, and passes the samples on to `record`.
    /// If the thread cannot be started, there are no metrics, and a log line reports it.
    #[must_use]
    pub fn start(cloudwatch: Arc<CloudWatch>, plane: Arc<Plane>, record: Option<Inbox>) -> Self {
        let (stop, stopped) = sync_channel(1);
        let work = move || sample(&cloudwatch, &plane, record.as_ref(), &stopped);
        let thread = std::thread::Builder::new().name("metrics".to_owned()).spawn(work);
        let thread = thread.inspect_err(|error| warn!(%error, "there are no metrics of volumes"));
        Self { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for Sampling {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Samples at every whole second, or at the end of each step if there are many volumes.
fn sample(cloudwatch: &CloudWatch, plane: &Plane, record: Option<&Inbox>, stopped: &Receiver<()>) {
    let mut sampler = Sampler::default();
    let mut pause_ms = LOOK_MS;
    let mut moved_ms = 0;
    loop {
        match look(&mut sampler, &mut moved_ms, plane, record) {
            Ok((ended, volumes)) => {
                cloudwatch.keep(&ended);
                pause_ms = if volumes <= FINE_VOLUMES_MAX { LOOK_MS } else { STEP_MS };
            }
            Err(error) => debug!(%error, "no metrics of volumes"),
        }
        let left_ms = pause_ms - plane.clock().unix_ms().0 % pause_ms;
        match stopped.recv_timeout(Duration::from_millis(left_ms)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

/// Takes one sample. Returns the records that have ended, and the number of volumes. The clock was
/// moved ahead by `seen_ms` milliseconds until the last one.
///
/// No time passes while a clock is stopped, so there are no records then. Work in that time belongs
/// to the first second after it, or to the time before the next move.
fn look(
    sampler: &mut Sampler,
    seen_ms: &mut u64,
    plane: &Plane,
    record: Option<&Inbox>,
) -> Result<(Ended, usize), PlaneError> {
    let reports = plane.report()?.volumes;
    plane.observe(&reports);
    let (now, moved_ms) = plane.clock().unix_ms_and_moved_ms();
    let since_ms = moved_ms - std::mem::replace(seen_ms, moved_ms);
    if since_ms == 0 && plane.clock().is_frozen() {
        return Ok((Ended::default(), reports.len()));
    }
    let known = {
        let model = plane.model();
        let known = |volume: &Volume| (volume.id, known(plane, volume));
        model.volumes.values().map(known).collect::<BTreeMap<_, _>>()
    };
    if let Some(inbox) = record {
        let sample = |it: &VolumeReport| known.get(&it.id).map(|known| sample_of(it, known));
        inbox.offer(Look { now, samples: reports.iter().filter_map(sample).collect() });
    }
    let ended = match since_ms {
        0 => sampler.look(now, &reports, &known),
        _ => sampler.look_moved((now, since_ms), &reports, &known),
    };
    Ok((ended, reports.len()))
}

fn sample_of(report: &VolumeReport, known: &Known) -> Sample {
    let ppm = known.capacity.and_then(|capacity| sampler::balance_ppm(report, capacity));
    let balance_ppm = ppm.and_then(|ppm| u32::try_from(ppm).ok());
    Sample { volume: sampler::sample(report, known), balance_ppm }
}

fn known(plane: &Plane, volume: &Volume) -> Known {
    let spec = &volume.spec;
    let pacing = reconcile::pacing(&plane.settings, volume);
    let credits = pacing.operations.and_then(|limit| limit.credit);
    let credits = credits.or_else(|| pacing.bytes.and_then(|limit| limit.credit));
    let is_in_use = |attachment: &Attachment| attachment.state != AttachmentState::Attaching;
    Known {
        kind: Kind { volume_type: spec.volume_type, multi_attach: spec.multi_attach },
        created: volume.created,
        is_attached: volume.phase == Phase::Ready && volume.attachments.iter().any(is_in_use),
        provisioned_iops: spec.iops.unwrap_or_default().into(),
        capacity: credits.map(|credit| credit.capacity),
    }
}
