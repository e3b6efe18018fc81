//! The latency of durable writes while a move runs.
//!
//! No counter of the kernel has it: those of devices are sums, and a stall of a commit is above
//! them. So a thread writes a block of a small file of the file system and waits until it is
//! durable, ten times a second.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_os::clock;
use evenkeel_planner::autopilot::observation::Flush;

/// The file, in the folder of the mount. It is removed after the move.
const FILE: &str = ".evenkeel-flush-probe";
/// Time between two writes.
const PERIOD: Duration = Duration::from_millis(100);
/// The most samples that are kept: ten minutes.
const SAMPLES_MAX: usize = 6_000;

/// A thread that writes, until this is dropped.
#[derive(Debug)]
pub(super) struct Probe {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_stopped: AtomicBool,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    ended: VecDeque<(Instant, Duration)>,
    /// When the write began that has not ended.
    begun: Option<Instant>,
}

impl Probe {
    /// Starts to write in the file system that is mounted here.
    pub fn start(mount: &Path) -> Self {
        let shared = Arc::new(Shared::default());
        let path = mount.join(FILE);
        let copy = Arc::clone(&shared);
        // A thread that waits for a write cannot be stopped, so nothing waits for its end.
        std::thread::spawn(move || write_until_stopped(&copy, &path));
        Self { shared }
    }

    /// Returns the latency of the writes of the last window; `None` without any.
    pub fn flush(&self, window: Duration) -> Option<Flush> {
        let now = clock::now();
        let samples = self.shared.samples.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = samples.ended.iter().filter(|(end, _)| now.duration_since(*end) <= window);
        let mut latencies: Vec<Duration> = recent.map(|(_, latency)| *latency).collect();
        // A write that waits counts by the time that it has waited.
        latencies.extend(samples.begun.map(|begin| now.duration_since(begin)));
        drop(samples);
        p99(latencies)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
    }
}

fn p99(mut latencies: Vec<Duration>) -> Option<Flush> {
    latencies.sort_unstable();
    let rank = (latencies.len() * 99).div_ceil(100);
    let latency = latencies.get(rank.checked_sub(1)?)?;
    let ms = latency.as_micros().div_ceil(1_000).min(u128::from(u32::MAX));
    let p99_ms = u32::try_from(ms).ok()?;
    Some(Flush { p99_ms, count: u64::try_from(latencies.len()).ok()? })
}

fn write_until_stopped(shared: &Shared, path: &PathBuf) {
    // Without the file there are no samples, which is what the observation says then.
    let Ok(file) = open(path) else { return };
    let mut number = 0_u64;
    while !shared.is_stopped.load(Ordering::Relaxed) {
        let begin = clock::now();
        set(shared, |samples| samples.begun = Some(begin));
        number += 1;
        let block = [number.to_le_bytes()[0]; 4_096];
        let written = file.write_all_at(&block, 0).and_then(|()| file.sync_data());
        let end = clock::now();
        set(shared, |samples| {
            samples.begun = None;
            if written.is_ok() {
                samples.ended.push_back((end, end.duration_since(begin)));
            }
            let excess = samples.ended.len().saturating_sub(SAMPLES_MAX);
            samples.ended.drain(..excess);
        });
        clock::pause(PERIOD.saturating_sub(end.duration_since(begin)).max(PERIOD / 10));
    }
    let _ = fs::remove_file(path);
}

fn set(shared: &Shared, change: impl FnOnce(&mut Samples)) {
    change(&mut shared.samples.lock().unwrap_or_else(PoisonError::into_inner));
}

fn open(path: &Path) -> io::Result<File> {
    let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_link).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_is_the_latency_that_99_of_100_do_not_exceed() {
        let latencies = |count: u64| (1..=count).map(Duration::from_millis).collect();
        assert_eq!(p99(Vec::new()), None);
        assert_eq!(p99(latencies(1)), Some(Flush { p99_ms: 1, count: 1 }));
        assert_eq!(p99(latencies(100)), Some(Flush { p99_ms: 99, count: 100 }));
        assert_eq!(p99(latencies(1_000)), Some(Flush { p99_ms: 990, count: 1_000 }));
    }

    #[test]
    fn probe_counts_writes_and_removes_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let probe = Probe::start(folder.path());
        let file = folder.path().join(FILE);
        let wait = |what: &str, is_so: &dyn Fn() -> bool| {
            evenkeel_lab::child::wait_until(what, Duration::from_secs(60), is_so).unwrap();
        };
        wait("two writes", &|| {
            probe.flush(Duration::from_secs(600)).is_some_and(|flush| flush.count >= 2)
        });
        assert!(file.exists());
        drop(probe);
        wait("the removal", &|| !file.exists());
    }
}
