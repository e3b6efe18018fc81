//! Bytes that an incremental backup by snapshots reads: the changed units, and little of their
//! maps.
//!
//! ```text
//! EVENKEEL_BACKUP_GIB=10 cargo test -p evenkeel-engine --release --test incremental -- --nocapture
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_engine::IoMode;
use evenkeel_store::local::device::{Device, FileDevice};
use evenkeel_store::local::pool::{Layout, LocalPool};
use evenkeel_store::local::volume::Bounds;
use evenkeel_wire::agent::{Command, Reply, UNIT_BYTES, UnitsWanted};
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::{Answer, Nbd, Served, unlimited};

const VOLUME: VolumeId = VolumeId::from_bits(1);
const WRITE: Operation = Operation::Write { fua: false };
const BLOCK: u32 = 4_096;
/// Units of one answer, the maximum for a client of the API.
const PAGE: u32 = 10_000;
/// Maximum number of bytes that may be read, in percent of those that changed.
const READ_PERCENT_MAX: u64 = 110;
/// Number of times that a snapshot in progress is polled, over a minute.
const LOOKS_MAX: u32 = 12_000;

/// A file that counts the bytes read from it, apart from the requests of volumes.
#[derive(Debug)]
struct Counting {
    file: FileDevice,
    read: AtomicU64,
}

impl Device for Counting {
    fn fd(&self) -> RawFd {
        self.file.fd()
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
    fn size(&self) -> std::io::Result<u64> {
        self.file.size()
    }
    fn room(&self) -> std::io::Result<u64> {
        self.file.room()
    }
    fn grow(&self, len: u64) -> std::io::Result<()> {
        self.file.grow(len)
    }
    fn read(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.read.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        self.file.read(offset, bytes)
    }
    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.file.write(offset, bytes)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.file.sync()
    }
}

fn write(client: &mut Nbd, offset: u64, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap();
    assert_eq!(client.ask(WRITE, offset, length, bytes), Answer::Done(Vec::new()));
}

fn snapshot(served: &Served, number: u128) -> SnapshotId {
    let id = SnapshotId::from_bits(number);
    assert_eq!(served.call(Command::Snapshot(VOLUME, id)), Reply::Done);
    for _ in 0..LOOKS_MAX {
        match served.call(Command::SnapshotsOf(vec![id])) {
            Reply::Snapshots(found) if found[0].is_complete => return id,
            Reply::Snapshots(_) => std::thread::park_timeout(Duration::from_millis(5)),
            other => panic!("{other:?}"),
        }
    }
    panic!("{id} is not complete after {LOOKS_MAX} looks");
}

/// Returns the units that differ, as ListChangedBlocks finds them.
fn changed(served: &Served, id: SnapshotId, older: SnapshotId) -> Vec<u64> {
    let mut all = Vec::new();
    let mut next = Some(0);
    while let Some(first) = next {
        let wanted = UnitsWanted { id, older: Some(older), first, max: PAGE };
        let Reply::Units(page) = served.call(Command::SnapshotUnits(wanted)) else { panic!() };
        all.extend(page.units);
        next = page.next;
    }
    all
}

#[test]
fn incremental_backup_reads_little_more_than_the_changes() {
    let gib = std::env::var("EVENKEEL_BACKUP_GIB").map_or(1, |gib| gib.parse::<u64>().unwrap());
    let size = gib << 30;
    let folder = tempfile::tempdir().unwrap();
    let file = FileDevice::open(&folder.path().join("pool"), true).unwrap();
    let device = Arc::new(Counting { file, read: AtomicU64::new(0) });
    let layout = Layout { identity: 0x5eed, chunks_max: 16 << 10, nodes: 255 };
    LocalPool::init(device.as_ref(), &layout).unwrap();
    let pool = LocalPool::open(Arc::clone(&device) as Arc<dyn Device>, Bounds::default());
    let pool = pool.and_then(LocalPool::with_clerk).unwrap();
    let served = Served::new(IoMode::Auto, Arc::new(pool));
    served.apply(unlimited(VOLUME, size));
    let mut client = served.connect(VOLUME);
    let units = size / UNIT_BYTES;
    // Writes some bytes of each unit, so that the map is as large as that of a full volume.
    for unit in 0..units {
        write(&mut client, unit * UNIT_BYTES, &vec![1; BLOCK as usize]);
    }
    let older = snapshot(&served, 1);
    let mut random = Random::from_state(7);
    let mut expected = BTreeSet::new();
    while (expected.len() as u64) < units.div_ceil(100) {
        expected.insert(random.below(units));
    }
    for unit in &expected {
        write(&mut client, unit * UNIT_BYTES, &vec![2; UNIT_BYTES as usize]);
    }
    let id = snapshot(&served, 2);
    let before = device.read.load(Ordering::SeqCst);
    let found = changed(&served, id, older);
    assert_eq!(found, Vec::from_iter(expected));
    let mut answered = 0;
    for &unit in &found {
        let Reply::Unit(Some(bytes)) = served.call(Command::ReadSnapshot(id, unit)) else {
            panic!("unit {unit} has data");
        };
        assert!(bytes.0.iter().all(|byte| *byte == 2), "unit {unit}");
        answered += bytes.0.len() as u64;
    }
    let read = device.read.load(Ordering::SeqCst) - before;
    let bytes = found.len() as u64 * UNIT_BYTES;
    println!(
        "{gib} GiB, {} of {units} units changed: {bytes} bytes changed, {answered} answered, \
         {read} read, {:.3} times",
        found.len(),
        read as f64 / bytes as f64
    );
    assert_eq!(answered, bytes);
    assert!(read * 100 <= bytes * READ_PERCENT_MAX, "{read} bytes read for {bytes} changed");
}
