//! A load of durable writes, and a model of them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::support::{content, drop_pages, run};
use evenkeel_os::clock;

/// Blocks of each file.
const SLOTS: u64 = 512;
/// Bytes of a block.
const BLOCK: u64 = 4_096;
/// The files: the second one without copy-on-write, as database files are.
const FILES: [&str; 2] = ["cow", "nocow"];
/// Time between two writes.
const PERIOD: Duration = Duration::from_millis(10);

/// Versions of all blocks of both files.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The last version of which a write began.
    pub begun: Vec<u64>,
    /// The last version that is durable, as the kernel has acknowledged.
    pub durable: Vec<u64>,
}

/// The record of a load.
#[derive(Default)]
pub struct Record {
    versions: Versions,
    latencies: Vec<Duration>,
    error: Option<String>,
}

/// A thread that writes until it is stopped.
pub struct Load {
    record: Arc<Mutex<Record>>,
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Makes the files, and returns their versions.
pub fn prepare(mount: &Path) -> Versions {
    for name in FILES {
        let path = mount.join(name);
        File::create(&path).expect("a file");
        if name == "nocow" {
            run(&["chattr".as_ref(), "+C".as_ref(), path.as_os_str()]);
        }
        let file = OpenOptions::new().write(true).open(&path).expect("the file");
        let zeros = vec![0; usize::try_from(SLOTS * BLOCK).expect("a small file")];
        file.write_all_at(&zeros, 0).and_then(|()| file.sync_all()).expect("a durable file");
    }
    let zeros = vec![0; usize::try_from(SLOTS * 2).expect("a small number")];
    Versions { begun: zeros.clone(), durable: zeros }
}

impl Load {
    /// Starts to write from these versions on.
    pub fn start(mount: &Path, versions: Versions, seed: u64) -> Self {
        let files = FILES.map(|name| {
            OpenOptions::new().write(true).open(mount.join(name)).expect("a prepared file")
        });
        let record = Arc::new(Mutex::new(Record { versions, ..Record::default() }));
        let is_stopped = Arc::new(AtomicBool::new(false));
        let shared = (Arc::clone(&record), Arc::clone(&is_stopped));
        let thread = std::thread::spawn(move || write(&files, &shared.0, &shared.1, seed));
        Self { record, is_stopped, thread: Some(thread) }
    }

    /// Returns the versions as they are now.
    pub fn versions(&self) -> Versions {
        lock(&self.record).versions.clone()
    }

    /// Stops, and returns the versions and the latencies of the durable writes. A write that fails
    /// is a failure of the test, unless the power was cut.
    pub fn stop(mut self, is_cut: bool) -> (Versions, Vec<Duration>) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is joined once");
        thread.join().expect("a thread that does not panic");
        let record = lock(&self.record);
        assert!(is_cut || record.error.is_none(), "{:?}", record.error);
        (record.versions.clone(), record.latencies.clone())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(record: &Mutex<Record>) -> std::sync::MutexGuard<'_, Record> {
    record.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(files: &[File; 2], record: &Mutex<Record>, is_stopped: &AtomicBool, seed: u64) {
    let mut number = 0;
    while !is_stopped.load(Ordering::Relaxed) {
        number += 1;
        let random = content(seed, number, 8);
        let random = u64::from_le_bytes(random.try_into().expect("eight bytes"));
        let place = usize::try_from(random % (SLOTS * 2)).expect("a small number");
        let version = {
            let mut record = lock(record);
            record.versions.begun[place] += 1;
            record.versions.begun[place]
        };
        let file = &files[place / usize::try_from(SLOTS).expect("a small number")];
        let begin = clock::now();
        let offset = place as u64 % SLOTS * BLOCK;
        let written = file.write_all_at(&block(place, version), offset);
        let written = written.and_then(|()| file.sync_data());
        let latency = clock::now() - begin;
        let mut record = lock(record);
        match written {
            Ok(()) => record.versions.durable[place] = version,
            Err(error) => {
                record.error.get_or_insert_with(|| format!("block {place}: {error}"));
            }
        }
        record.latencies.push(latency);
        drop(record);
        clock::pause(PERIOD.saturating_sub(latency));
    }
}

/// Returns the content of a version of a block; zeros for the first one.
fn block(place: usize, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; usize::try_from(BLOCK).expect("a small number")];
    }
    let mut bytes = content(place as u64, version, BLOCK);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Checks that each block has a version that was begun, and none older than the durable one.
/// Returns the versions.
pub fn check(mount: &Path, durable: &[u64], begun: &[u64]) -> Versions {
    let mut found = Vec::new();
    for name in FILES {
        let path = mount.join(name);
        drop_pages(&path);
        let bytes = std::fs::read(&path).expect("the file");
        for slot in bytes.chunks(usize::try_from(BLOCK).expect("a small number")) {
            let place = found.len();
            let version = u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"));
            let range = durable[place]..=begun[place];
            assert!(range.contains(&version), "{name}: block {place}: {version}, not {range:?}");
            assert!(slot == block(place, version), "{name}: block {place}: version {version}");
            found.push(version);
        }
    }
    assert_eq!(found.len(), durable.len());
    Versions { begun: found.clone(), durable: found }
}

/// Returns the latency that this part of a thousand does not exceed.
pub fn permille(latencies: &mut [Duration], part: usize) -> Duration {
    latencies.sort_unstable();
    let rank = (latencies.len() * part).div_ceil(1_000);
    latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}
