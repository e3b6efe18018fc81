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
    let mut seen_ms = None;
    loop {
        match look(&mut sampler, &mut seen_ms, plane, record) {
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
/// moved ahead by `seen_ms` milliseconds until the last one; `None` before the first.
///
/// No time passes while a clock is stopped, so there are no records then. Work in that time belongs
/// to the first second after it, or to the time before the next move. The first sample is taken
/// also then: work is counted from there.
fn look(
    sampler: &mut Sampler,
    seen_ms: &mut Option<u64>,
    plane: &Plane,
    record: Option<&Inbox>,
) -> Result<(Ended, usize), PlaneError> {
    let reports = plane.report()?.volumes;
    plane.observe(&reports);
    let (now, moved_ms) = plane.clock().unix_ms_and_moved_ms();
    let since_ms = seen_ms.replace(moved_ms).map(|seen_ms| moved_ms - seen_ms);
    if since_ms == Some(0) && plane.clock().is_frozen() {
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
        None | Some(0) => sampler.look(now, &reports, &known),
        Some(since_ms) => sampler.look_moved((now, since_ms), &reports, &known),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use evenkeel_core::ids::VolumeId;
    use evenkeel_core::qos::Exceeded;
    use evenkeel_core::qos::contract::Contract;
    use evenkeel_core::qos::pacing::Balances;
    use evenkeel_core::volume::{VolumeRequest, VolumeType};
    use evenkeel_wire::agent::{
        Agent, Answered, Capacity, Command, CreditReport, IoErrors, Reply, Report,
    };

    use super::*;
    use crate::journal::memory::MemoryJournal;
    use crate::model::{Begins, Command as Order, Settings, Tags};
    use crate::plane::{ClockChange, TestServer};
    use crate::server_clock::ServerClock;

    const ID: VolumeId = VolumeId::from_bits(7);

    /// A data plane that reports this number of writes to a volume.
    #[derive(Default)]
    struct Writes(AtomicU64);

    impl Agent for Writes {
        fn call(&self, command: Command) -> Reply {
            let writes = self.0.load(Ordering::SeqCst);
            let answered = Answered { writes, ..Answered::default() };
            match command {
                Command::Report => {
                    let volume = VolumeReport {
                        id: ID,
                        balances: Balances::default(),
                        connections: 0,
                        queued: 0,
                        in_store: 0,
                        operations: writes,
                        bytes_read: 0,
                        bytes_written: 0,
                        flushes: 0,
                        answered,
                        exceeded: Exceeded::default(),
                        errors: IoErrors::default(),
                        contract: Contract::default(),
                    };
                    Reply::Report(Report { volumes: vec![volume], hosts: vec![] })
                }
                Command::Balances | Command::Lease(_) => Reply::Balances(CreditReport::default()),
                Command::Capacity => Reply::Capacity(Capacity::Unknown),
                Command::Stored => Reply::Stored(vec![]),
                Command::Space => Reply::Space(None),
                Command::Snapshots => Reply::Snapshots(vec![]),
                _ => Reply::Done,
            }
        }
    }

    /// A server that was restarted with a stopped clock has no earlier sample.
    #[test]
    fn work_before_the_first_move_of_a_stopped_clock_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ServerClock::of_test(folder.path()).unwrap());
        let test = TestServer { clock, ..TestServer::default() };
        let agent = Arc::<Writes>::default();
        let its = Arc::clone(&agent) as Arc<dyn Agent>;
        let journal = Box::<MemoryJournal>::default();
        let plane = Plane::start_test(journal, Settings::default(), its, test, || {}).unwrap();
        let request = VolumeRequest {
            volume_type: VolumeType::Gp3,
            size_gib: 1,
            iops: None,
            throughput_mibps: None,
            multi_attach: false,
        };
        let begins = Begins::default();
        let zone = "local-1a".to_owned();
        let tags = Tags::new();
        let create = Order::CreateVolume { id: ID, request, begins, zone, tags, token: None };
        plane.execute(&create, false).unwrap();
        let instance = *plane.model().hosts.keys().next().unwrap();
        let device = "/dev/sdf".to_owned();
        plane.execute(&Order::AttachVolume { id: ID, instance, device }, false).unwrap();
        plane.change_clock(ClockChange::Freeze).unwrap();

        let mut sampler = Sampler::default();
        let mut seen_ms = None;
        agent.0.store(5, Ordering::SeqCst);
        let mut writes = || {
            let (ended, _) = look(&mut sampler, &mut seen_ms, &plane, None).unwrap();
            ended.minutes.iter().map(|(_, _, record)| record.writes).sum::<u64>()
        };
        assert_eq!(writes(), 0);
        agent.0.store(12, Ordering::SeqCst);
        assert_eq!(writes(), 0, "no time has passed");
        plane.change_clock(ClockChange::Advance(120_000)).unwrap();
        assert_eq!(writes(), 7);
    }
}
