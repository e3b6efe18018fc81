//! CloudWatch for volumes: their metrics of the last days, and the actions that read them.
//!
//! A separate thread samples the data plane every second (`sampler`). It keeps steps of ten seconds
//! of the last hour in memory, and minutes of 15 days in a file (`store`).
//! docs/reference/cloudwatch.md lists the supported features.
//!
//! | module | contents |
//! | --- | --- |
//! | `record` | work of a volume in one span of time, and its bytes |
//! | `sampler` | records from the counters of the data plane; pure |
//! | `store` | minutes, in a file of bounded size |
//! | `metrics` | name, unit and value of each metric; pure |
//! | `query` | statistics over periods; pure |
//! | `math` | expressions over metrics: parsed, checked, evaluated; pure |
//! | `plan` | the queries of a GetMetricData, checked against each other; pure |
//! | [`actions`] | ListMetrics, GetMetricData, GetMetricStatistics, DescribeAlarms |
//! | `input` | the parameters of an action |
//! | [`forms`] | requests and replies in the three protocols: JSON, CBOR, query |
//! | `value` | the values of all three |
//! | `cbor` | its bytes in CBOR |

pub mod actions;
mod cbor;
pub mod forms;
mod input;
mod math;
mod metrics;
mod plan;
mod query;
mod record;
mod sampler;
pub(crate) mod store;
mod value;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::VolumeReport;
use tracing::{debug, warn};

use self::record::{Block, Kind, Record};
use self::sampler::{Ended, Known, Sampler};
use self::store::{Listed, Store};
use crate::model::{AttachmentState, Phase, Volume};
use crate::plane::{Plane, PlaneError};
use crate::recording::{Inbox, Look, Sample};
use crate::{clock, reconcile};

/// Default of the maximum space for metrics of volumes on disk.
pub const METRICS_SPACE: ByteCount = ByteCount(256 << 20);

const MINUTE_S: u64 = 60;
pub(crate) const HOUR_S: u64 = 3_600;
const MINUTE_MS: u64 = MINUTE_S * 1_000;
/// The length of a step, in milliseconds.
const STEP_MS: u64 = 10_000;
/// The time between two samples, in milliseconds.
const LOOK_MS: u64 = 1_000;
/// Maximum number of volumes that are sampled every second, and of which steps are kept. With more,
/// a sample would take a core's time for too long, so there is one for each step.
const FINE_VOLUMES_MAX: usize = 1_024;
/// Number of minutes of which steps are kept.
const FINE_MINUTES: usize = 60;

/// The steps of one volume: blocks of a minute, by its number since 1970.
type Steps = VecDeque<(u64, Block)>;

/// The metrics of all volumes.
#[derive(Debug)]
pub struct CloudWatch {
    store: Mutex<Store>,
    steps: Mutex<BTreeMap<VolumeId, Steps>>,
}

impl CloudWatch {
    /// Opens the metrics of a data folder; `space` is their maximum there.
    ///
    /// # Errors
    /// There is no memory for a database. A file that cannot be used is no error: it is logged.
    pub fn open(folder: &Path, space: ByteCount) -> rusqlite::Result<Self> {
        Ok(Self { store: Mutex::new(Store::open(folder, space)?), steps: Mutex::default() })
    }

    /// Returns the volumes that have minutes.
    fn volumes(&self) -> Vec<(VolumeId, Listed)> {
        self.store().volumes().collect()
    }

    /// Returns the minutes of a volume that begin at or after `from_s` and before `until_s`.
    fn minutes(&self, id: VolumeId, from_s: u64, until_s: u64) -> Vec<(u64, Record)> {
        self.store().read(id, from_s, until_s)
    }

    /// Returns the steps of ten seconds of a volume that begin at or after `from_s` and before
    /// `until_s`.
    fn steps(&self, id: VolumeId, from_s: u64, until_s: u64) -> Vec<(u64, Record)> {
        let steps = self.steps_kept();
        let Some(blocks) = steps.get(&id) else { return Vec::new() };
        let of_block = |(minute, block): &(u64, Block)| {
            let start = minute * MINUTE_S;
            let at = |place: u8| start + u64::from(place) * STEP_MS / 1_000;
            block.records().map(|(place, record)| (at(place), record)).collect::<Vec<_>>()
        };
        let mut records: Vec<_> = blocks.iter().flat_map(of_block).collect();
        records.retain(|(start, _)| (from_s..until_s).contains(start));
        records.sort_by_key(|(start, _)| *start);
        records
    }

    /// Stores steps and minutes that have ended.
    fn keep(&self, ended: &Ended) {
        let mut steps = self.steps_kept();
        for (start_s, id, record) in &ended.steps {
            if steps.len() >= FINE_VOLUMES_MAX && !steps.contains_key(id) {
                continue;
            }
            let minute = start_s / MINUTE_S;
            let place = start_s % MINUTE_S * 1_000 / STEP_MS;
            let blocks = steps.entry(*id).or_default();
            // The clock was set back: steps with a time in the future are removed.
            while blocks.back().is_some_and(|(last, _)| *last > minute) {
                blocks.pop_back();
            }
            if blocks.back().is_none_or(|(last, _)| *last != minute) {
                blocks.push_back((minute, Block::default()));
            }
            if let Some((_, block)) = blocks.back_mut() {
                block.set(u8::try_from(place).unwrap_or_default(), record);
            }
            if blocks.len() > FINE_MINUTES {
                blocks.pop_front();
            }
        }
        if let Some((start_s, ..)) = ended.steps.first() {
            // Steps of volumes that are no longer attached make room for others.
            let oldest = (start_s / MINUTE_S).saturating_sub(FINE_MINUTES as u64);
            steps.retain(|_, blocks| {
                blocks.retain(|(minute, _)| *minute > oldest);
                !blocks.is_empty()
            });
        }
        drop(steps);
        for minute in ended.minutes.chunk_by(|(one, ..), (other, ..)| one == other) {
            let with_mask = |(_, id, record): &_| (*id, *record, metrics::mask(record));
            let records: Vec<_> = minute.iter().map(with_mask).collect();
            if let Some((start_s, ..)) = minute.first() {
                self.store().write(*start_s, &records);
            }
        }
    }

    pub(crate) fn store(&self) -> MutexGuard<'_, Store> {
        // Every change of it is a transaction, so a poisoned lock is still consistent.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn steps_kept(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Steps>> {
        // Each block is complete or missing, so the value is consistent.
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    loop {
        match look(&mut sampler, plane, record) {
            Ok((ended, volumes)) => {
                cloudwatch.keep(&ended);
                pause_ms = if volumes <= FINE_VOLUMES_MAX { LOOK_MS } else { STEP_MS };
            }
            Err(error) => debug!(%error, "no metrics of volumes"),
        }
        let left_ms = pause_ms - clock::now().0 % pause_ms;
        match stopped.recv_timeout(Duration::from_millis(left_ms)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

/// Takes one sample. Returns the records that have ended, and the number of volumes.
fn look(
    sampler: &mut Sampler,
    plane: &Plane,
    record: Option<&Inbox>,
) -> Result<(Ended, usize), PlaneError> {
    let reports = plane.report()?.volumes;
    plane.observe(&reports);
    let now = clock::now();
    let known = {
        let model = plane.model();
        let known = |volume: &Volume| (volume.id, known(plane, volume));
        model.volumes.values().map(known).collect::<BTreeMap<_, _>>()
    };
    if let Some(inbox) = record {
        let sample = |it: &VolumeReport| known.get(&it.id).map(|known| sample_of(it, known));
        inbox.offer(Look { now, samples: reports.iter().filter_map(sample).collect() });
    }
    let ended = sampler.look(now, &reports, &known);
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
    let is_in_use =
        |attachment: &crate::model::Attachment| attachment.state != AttachmentState::Attaching;
    Known {
        kind: Kind { volume_type: spec.volume_type, multi_attach: spec.multi_attach },
        created: volume.created,
        is_attached: volume.phase == Phase::Ready && volume.attachments.iter().any(is_in_use),
        provisioned_iops: spec.iops.unwrap_or_default().into(),
        capacity: credits.map(|credit| credit.capacity),
    }
}

#[cfg(test)]
mod tests {
    use super::record::tests::record;
    use super::*;

    /// A whole minute, in seconds.
    const T0: u64 = 1_700_000_040;

    fn id(bits: u128) -> VolumeId {
        VolumeId::from_bits(bits)
    }

    fn step(at_s: u64, bits: u128) -> Ended {
        Ended { steps: vec![(at_s, id(bits), record(at_s))], minutes: Vec::new() }
    }

    fn kept(cloudwatch: &CloudWatch, bits: u128) -> Vec<u64> {
        let steps = cloudwatch.steps(id(bits), 0, u64::MAX);
        assert!(steps.iter().all(|(at, found)| *found == record(*at)));
        steps.iter().map(|(at, _)| *at).collect()
    }

    #[test]
    fn steps_of_the_last_hour_are_kept_and_a_clock_that_is_set_back_takes_some_along() {
        let folder = tempfile::tempdir().unwrap();
        let cloudwatch = CloudWatch::open(folder.path(), METRICS_SPACE).unwrap();
        cloudwatch.keep(&step(T0, 2));
        for at in (0..2 * HOUR_S).step_by(10) {
            cloudwatch.keep(&step(T0 + at, 1));
        }
        let last = T0 + 2 * HOUR_S - 10;
        let found = kept(&cloudwatch, 1);
        assert_eq!((found.len(), found[0], found[359]), (360, T0 + HOUR_S, last));
        assert_eq!(cloudwatch.steps(id(1), last - 10, last).len(), 1);
        assert!(kept(&cloudwatch, 2).is_empty(), "not attached for an hour");
        assert_eq!(cloudwatch.steps_kept().len(), 1);
        cloudwatch.keep(&step(last - 120, 1));
        let found = kept(&cloudwatch, 1);
        assert_eq!(found.last(), Some(&(last - 120)));
        assert!(found.windows(2).all(|two| two[0] < two[1]));
    }

    #[test]
    fn steps_are_kept_up_to_a_volume_limit_and_minutes_of_all_volumes() {
        let folder = tempfile::tempdir().unwrap();
        let cloudwatch = CloudWatch::open(folder.path(), METRICS_SPACE).unwrap();
        let all = 1..=FINE_VOLUMES_MAX as u128 + 1;
        let of = |start: u64| all.clone().map(move |bits| (start, id(bits), record(start)));
        let minutes = of(T0).chain(of(T0 + MINUTE_S)).collect();
        cloudwatch.keep(&Ended { steps: of(T0).collect(), minutes });
        let last = FINE_VOLUMES_MAX as u128 + 1;
        assert_eq!((kept(&cloudwatch, 1).len(), kept(&cloudwatch, last).len()), (1, 0));
        assert_eq!(cloudwatch.minutes(id(last), 0, u64::MAX).len(), 2);
    }
}
