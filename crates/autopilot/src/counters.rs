//! The requests to the devices of the host's file systems, second by second, from the kernel's
//! counters.
//!
//! They are kept as a server keeps those of its volumes (`telemetry::recording`): compressed, for
//! some days, and not on a disk that is nearly full. The bytes of the last seconds are in memory,
//! for the pace of moves.

use crate::disk::Disk;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::GIB;
use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::read::diskstats;
use evenkeel_planner::trace::{Clock, Columns, INTERVALS_MAX, Interval, Kind, SourceLimits, Trace};
use evenkeel_telemetry::counters::{Counters as Totals, Sample};
use evenkeel_telemetry::recording::{self, Look, Recorder};
use evenkeel_wire::agent::Answered;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The days of recordings that are kept.
pub const DAYS: u32 = recording::RECORD_DAYS;
/// The most seconds of a device in memory.
const SECONDS_MAX: usize = 60;
/// The time over which the MiB/s of a volume are a mean, in milliseconds.
const RATE_MS: u64 = 10_000;

/// A device of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Watched {
    /// The volume.
    pub volume: VolumeId,
    /// The device file.
    pub device: PathBuf,
}

/// The counters of all watched devices. A clone shares them.
#[derive(Clone)]
pub struct Counters {
    shared: Arc<Mutex<Shared>>,
    recorder: Arc<Recorder>,
}

#[derive(Default)]
struct Shared {
    devices: BTreeMap<VolumeId, Device>,
}

struct Device {
    disk: Disk,
    last: Option<(u64, diskstats::Counters)>,
    /// All requests since it is watched.
    total: Totals,
    seconds: VecDeque<Second>,
}

/// The bytes between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Second {
    end_ms: u64,
    length_ms: u64,
    bytes: u64,
    requests: u64,
}

/// The requests of a volume in the last seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Used {
    /// Bytes a second, rounded up.
    pub bytes_per_s: u64,
    /// Requests a second, rounded up.
    pub requests_per_s: u64,
}

impl Counters {
    /// Starts to record in a folder.
    #[must_use]
    pub fn start(folder: &Path) -> Self {
        let recorder = Arc::new(Recorder::start(folder, DAYS));
        Self { shared: Arc::default(), recorder }
    }

    /// Watches these devices, and no others. A device that is no disk is left out until it is one.
    pub fn watch(&self, wanted: &[Watched]) {
        let mut shared = self.shared();
        let mut kept = BTreeMap::new();
        for watched in wanted {
            let Ok(disk) = Disk::of(&watched.device) else { continue };
            let known = shared.devices.remove(&watched.volume).filter(|known| known.disk == disk);
            let device = known.unwrap_or_else(|| Device::new(disk));
            kept.insert(watched.volume, device);
        }
        shared.devices = kept;
    }

    /// Reads the counters of all devices.
    pub fn sample(&self, now_ms: u64) {
        let mut shared = self.shared();
        let mut samples = Vec::new();
        for (volume, device) in &mut shared.devices {
            if device.read(now_ms) {
                let total =
                    Sample { id: *volume, total: device.total, queued: 0, created: UnixMs(0) };
                samples.push(recording::Sample { volume: total, balance_ppm: None });
            }
        }
        drop(shared);
        if let Some(inbox) = self.recorder.inbox() {
            inbox.offer(Look { now: UnixMs(now_ms), samples });
        }
    }

    /// Returns the requests of a volume in the last seconds; `None` without a reading.
    #[must_use]
    pub fn used(&self, volume: VolumeId, now_ms: u64) -> Option<Used> {
        let from_ms = now_ms.saturating_sub(RATE_MS);
        let shared = self.shared();
        let seconds = &shared.devices.get(&volume)?.seconds;
        let recent = seconds.iter().filter(|second| second.end_ms > from_ms);
        let mut sum = Second { end_ms: now_ms, length_ms: 0, bytes: 0, requests: 0 };
        for second in recent {
            sum.length_ms += second.length_ms;
            sum.bytes = sum.bytes.saturating_add(second.bytes);
            sum.requests = sum.requests.saturating_add(second.requests);
        }
        let ms = Some(sum.length_ms).filter(|ms| *ms > 0)?;
        let a_second = |count: u64| count.saturating_mul(1_000).div_ceil(ms);
        Some(Used { bytes_per_s: a_second(sum.bytes), requests_per_s: a_second(sum.requests) })
    }

    /// Returns the recording of a volume since a time; `None` if there is none.
    #[must_use]
    pub fn trace(
        &self,
        volume: VolumeId,
        spec: &VolumeSpec,
        from_ms: u64,
        now_ms: u64,
    ) -> Option<Trace> {
        let recording = self.recorder.recording()?;
        let range = (UnixMs(from_ms), UnixMs(now_ms));
        let found = recording.read(volume, range.0, range.1, INTERVALS_MAX).ok()?;
        let intervals: Vec<Interval> = found.iter().map(interval).collect();
        let counter = Some(Kind::Counter);
        let columns =
            Columns { requests: counter, bytes: counter, times: counter, ..Columns::default() };
        let mut trace = Trace::new(volume.to_string(), Clock::Unix, columns, intervals).ok()?;
        let capacity = Some(u64::from(spec.size_gib) * GIB);
        trace.source = SourceLimits { capacity, ..SourceLimits::default() };
        Some(trace)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Each device is consistent after each of its changes.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Device {
    fn new(disk: Disk) -> Self {
        Self { disk, last: None, total: Totals::default(), seconds: VecDeque::new() }
    }

    /// Reads its counters. Returns false if they are not known, which leaves a gap.
    fn read(&mut self, now_ms: u64) -> bool {
        let Ok(now) = self.disk.counters() else {
            self.last = None;
            return false;
        };
        if let Some((then_ms, then)) = self.last.replace((now_ms, now)) {
            self.add(then_ms, &then, now_ms, &now);
        }
        true
    }

    fn add(
        &mut self,
        then_ms: u64,
        then: &diskstats::Counters,
        now_ms: u64,
        now: &diskstats::Counters,
    ) {
        let length_ms = now_ms.saturating_sub(then_ms);
        let Some(added) = now.since(then, then_ms, length_ms) else { return };
        let total = &mut self.total;
        total.read_bytes = total.read_bytes.saturating_add(added.read_bytes);
        total.write_bytes = total.write_bytes.saturating_add(added.write_bytes);
        let answered = &total.answered;
        total.answered = Answered {
            reads: answered.reads.saturating_add(added.reads),
            writes: answered.writes.saturating_add(added.writes),
            read_ns: answered.read_ns.saturating_add(added.read_ns.unwrap_or(0)),
            write_ns: answered.write_ns.saturating_add(added.write_ns.unwrap_or(0)),
        };
        self.seconds.push_back(Second {
            end_ms: now_ms,
            length_ms,
            bytes: added.read_bytes.saturating_add(added.write_bytes),
            requests: added.reads.saturating_add(added.writes),
        });
        if self.seconds.len() > SECONDS_MAX {
            self.seconds.pop_front();
        }
    }
}

/// Returns an interval of a recording in the planner's form.
fn interval(kept: &recording::Interval) -> Interval {
    let work = kept.work.unwrap_or_default();
    let ns = |us: u64| us.saturating_mul(1_000);
    Interval {
        start_ms: kept.start_ms,
        length_ms: kept.length_ms,
        reads: work.reads.count,
        writes: work.writes.count,
        read_bytes: work.reads.bytes,
        write_bytes: work.writes.bytes,
        read_ns: Some(ns(work.reads.us)),
        write_ns: Some(ns(work.writes.us)),
        idle_ms: kept.work.is_none().then_some(kept.length_ms),
        ..Interval::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::MIB;

    const ID: VolumeId = VolumeId::from_bits(7);
    const T0: u64 = 1_795_633_200_000;

    /// Returns the kernel's counters after this number of writes of 4 KiB.
    fn read(writes: u64) -> diskstats::Counters {
        diskstats::Counters::read(&format!("0 0 0 0 {writes} 0 {} 0 0 0 0", writes * 8)).unwrap()
    }

    #[test]
    fn rate_is_that_of_the_last_seconds() {
        let folder = tempfile::tempdir().unwrap();
        let counters = Counters::start(folder.path());
        let mut device = Device::new(Disk::absent());
        for second in 0..100_u64 {
            // 512 writes of 4 KiB a second are 2 MiB/s. A counter that decreases leaves a gap.
            let last = if second == 40 { 0 } else { (second + 1) * 512 };
            let start_ms = T0 + second * 1_000;
            device.add(start_ms, &read(second * 512), start_ms + 1_000, &read(last));
        }
        assert_eq!(device.seconds.len(), SECONDS_MAX);
        assert_eq!(device.total.write_bytes, 99 * 2 * MIB);
        counters.shared().devices.insert(ID, device);
        let used = Used { bytes_per_s: 2 * MIB, requests_per_s: 512 };
        assert_eq!(counters.used(ID, T0 + 100_000), Some(used));
        assert_eq!(counters.used(ID, T0 + 600_000), None);
        assert_eq!(counters.used(VolumeId::from_bits(8), T0 + 100_000), None);
        counters.watch(&[]);
        assert_eq!(counters.used(ID, T0 + 100_000), None);
    }

    #[test]
    fn recording_becomes_a_trace_of_the_volume() {
        let folder = tempfile::tempdir().unwrap();
        let counters = Counters::start(folder.path());
        for second in 0..4_u64 {
            let total = Totals {
                read_bytes: second * 8_192,
                answered: Answered { reads: second * 2, ..Answered::default() },
                ..Totals::default()
            };
            let sample = Sample { id: ID, total, queued: 0, created: UnixMs(0) };
            let samples = vec![recording::Sample { volume: sample, balance_ppm: None }];
            let look = Look { now: UnixMs(T0 + second * 1_000), samples };
            counters.recorder.inbox().unwrap().offer(look);
        }
        let spec = VolumeSpec {
            volume_type: evenkeel_core::volume::VolumeType::Gp3,
            size_gib: 8,
            iops: Some(3_000),
            throughput_mibps: Some(125),
            multi_attach: false,
        };
        let deadline = evenkeel_os::clock::Deadline::after(std::time::Duration::from_secs(30));
        let trace = loop {
            let trace = counters.trace(ID, &spec, T0, T0 + 60_000);
            match trace.filter(|trace| trace.intervals.len() == 3) {
                Some(trace) => break trace,
                None => assert!(deadline.pause(std::time::Duration::from_millis(20))),
            }
        };
        let reads: Vec<u64> = trace.intervals.iter().map(|interval| interval.reads).collect();
        assert_eq!(reads, [2; 3]);
        assert_eq!(trace.source.capacity, Some(8 * GIB));
    }
}
