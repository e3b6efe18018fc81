//! The store on a Ceph cluster, on a cluster of its own. A failure prints its seed:
//!
//! ```text
//! EVENKEEL_SEED=<n> cargo test -p evenkeel-lab --test rbd
//! ```
//!
//! The tests are skipped with a message if Ceph is not installed.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use evenkeel_lab::LabError;
use evenkeel_lab::ceph::{Ceph, POOL, Setup, USER};
use evenkeel_store::buffer::Buffer;
use evenkeel_store::conformance::{self, Encrypting, RingDisk};
use evenkeel_store::encryption::keys::Keys;
use evenkeel_store::rbd::examine::{Weight, examine};
use evenkeel_store::rbd::{Place, RbdPool, Seat};
use evenkeel_store::snapshots::{Snapshots, UNIT_BYTES};
use evenkeel_store::unaligned::Anywhere;
use evenkeel_store::{Completion, Pool, Store, StoreError, Submission};

const MIB: u64 = 1 << 20;

/// Starts a cluster; returns `None` and prints that the test is skipped if Ceph is not installed.
fn cluster(folder: &Path, setup: Setup) -> Option<Ceph> {
    match Ceph::start(&folder.join("ceph"), setup) {
        Ok(ceph) => Some(ceph),
        Err(LabError::ToolMissing { tool, .. }) => {
            let _ = writeln!(
                std::io::stdout(),
                "SKIPPED: {tool} is not installed (cargo x setup installs it)"
            );
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn place(ceph: &Ceph, namespace: &str) -> Place {
    Place {
        conf: Some(ceph.conf()),
        user: USER.to_owned(),
        pool: POOL.to_owned(),
        namespace: namespace.to_owned(),
    }
}

fn keys(folder: &Path) -> Keys {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.join("key");
    fs::write(&path, "7".repeat(64)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    Keys::from_file(&path).unwrap()
}

fn run(store: &mut dyn Store, operation: Operation, offset: u64, bytes: &[u8]) -> Completion {
    let mut buffer = Buffer::new(bytes.len());
    buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let ticket = offset;
    let length = bytes.len() as u32;
    let buffer = Some(buffer);
    conformance::blocking(store, Submission { ticket, operation, offset, length, buffer })
}

fn write(store: &mut dyn Store, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
    run(store, Operation::Write { fua: false }, offset, bytes).result
}

fn read(store: &mut dyn Store, offset: u64, length: usize) -> Result<Vec<u8>, Failure> {
    let done = run(store, Operation::Read, offset, &vec![0xee; length]);
    done.result.map(|()| done.buffer.unwrap().bytes()[..length].to_vec())
}

/// One cluster for all cases, as it takes ten seconds to start.
#[test]
fn volumes_on_a_ceph_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let Some(ceph) = cluster(folder.path(), Setup::default()) else { return };
    type Part = fn(&Ceph);
    let parts: [(&str, Part); 12] = [
        ("it keeps the obligations of a store", it_keeps_the_obligations_of_a_store),
        (
            "snapshots and what is made of them are as a map says",
            snapshots_and_what_is_made_of_them_are_as_a_map_says,
        ),
        ("encrypted data is nowhere in the clear", encrypted_data_is_nowhere_in_the_clear),
        ("a namespace belongs to one data folder", a_namespace_belongs_to_one_data_folder),
        (
            "a namespace belongs to one of two namesakes",
            a_namespace_belongs_to_one_of_two_namesakes,
        ),
        (
            "a server that was started again fences the one before",
            a_server_that_was_started_again_fences_the_one_before,
        ),
        (
            "a fenced server does not give a volume back",
            a_fenced_server_does_not_give_a_volume_back,
        ),
        (
            "a volume that another server has is not taken",
            a_volume_that_another_server_has_is_not_taken,
        ),
        (
            "a lock that is lost is taken again unless another server has it",
            a_lock_that_is_lost_is_taken_again_unless_another_server_has_it,
        ),
        ("a full pool is told at once", a_full_pool_is_told_at_once),
        ("what is deleted gives its space back", what_is_deleted_gives_its_space_back),
        (
            "an image that its server did not finish is removed",
            an_image_that_its_server_did_not_finish_is_removed,
        ),
    ];
    for (name, part) in parts {
        println!("{name}");
        part(&ceph);
    }
}

fn it_keeps_the_obligations_of_a_store(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "conformance");
    let pool =
        RbdPool::open_with(&folder.path().join("data"), &place, Some(keys(folder.path()))).unwrap();
    conformance::check(&pool, &mut conformance::blocking);
    conformance::check(&Encrypting(&pool), &mut conformance::blocking);
    let mut ring = RingDisk::new().unwrap();
    conformance::check(&pool, &mut |store, submission| ring.run(store, submission));
    assert!(pool.describe().starts_with("images of evenkeel/conformance in the Ceph cluster "));
}

/// The contents of a volume or a snapshot.
#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    is_encrypted: bool,
}

/// Volumes, snapshots and volumes of snapshots, with arrays of their expected contents.
struct History<'a> {
    pool: &'a RbdPool,
    random: Random,
    next: u128,
    volumes: BTreeMap<VolumeId, Model>,
    open: BTreeMap<VolumeId, Box<dyn Store>>,
    snapshots: BTreeMap<SnapshotId, Model>,
}

const SIZE: u64 = 9 * MIB;
const STEPS: u64 = 120;

/// Returns the snapshots of a pool.
fn desk(pool: &RbdPool) -> &dyn Snapshots {
    pool.snapshots().unwrap()
}

impl History<'_> {
    fn number(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    fn any_volume(&mut self) -> Option<VolumeId> {
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        (!ids.is_empty()).then(|| self.random.among(&ids))
    }

    fn any_snapshot(&mut self) -> Option<SnapshotId> {
        let ids: Vec<SnapshotId> = self.snapshots.keys().copied().collect();
        (!ids.is_empty()).then(|| self.random.among(&ids))
    }

    fn store(&mut self, id: VolumeId) -> &mut dyn Store {
        let pool = self.pool;
        let size = self.volumes[&id].bytes.len() as u64;
        let open = || {
            let store = pool.open(id, ByteCount(size)).unwrap();
            Box::new(Anywhere::new(store)) as Box<dyn Store>
        };
        self.open.entry(id).or_insert_with(open).as_mut()
    }

    fn change(&mut self, id: VolumeId) {
        let size = self.volumes[&id].bytes.len() as u64;
        let length = (1 + self.random.below(2_048)) * 512;
        let offset = self.random.below((size - length) / 512 + 1) * 512;
        let value = self.random.below(255) as u8 + 1;
        let zeroes = self.random.one_in(3);
        let range = offset as usize..(offset + length) as usize;
        let store = self.store(id);
        if zeroes {
            let fua = true;
            let keep_allocated = value < 128;
            let only_if_fast = false;
            let operation = Operation::WriteZeroes { fua, keep_allocated, only_if_fast };
            let ticket = 1;
            let length = length as u32;
            let buffer = None;
            let submission = Submission { ticket, operation, offset, length, buffer };
            assert_eq!(conformance::blocking(store, submission).result, Ok(()));
            self.volumes.get_mut(&id).unwrap().bytes[range].fill(0);
        } else {
            write(store, offset, &vec![value; length as usize]).unwrap();
            self.volumes.get_mut(&id).unwrap().bytes[range].fill(value);
        }
    }

    fn check(&mut self, id: VolumeId) {
        let expected = self.volumes[&id].bytes.clone();
        let store = self.store(id);
        for (at, chunk) in (0..).step_by(1 << 20).zip(expected.chunks(1 << 20)) {
            let got = read(store, at, chunk.len()).unwrap();
            let wrong = got.iter().zip(chunk).position(|(a, b)| a != b);
            let said = wrong.map(|wrong| (at + wrong as u64, got[wrong], chunk[wrong]));
            assert_eq!(said, None, "{id}: where, what is there, what should be");
        }
    }

    fn snapshot(&mut self) {
        let Some(of) = self.any_volume() else { return };
        let id = SnapshotId::from_bits(self.number());
        let making = desk(self.pool).begin(of, id).unwrap();
        assert_eq!(making.made.recv(), Ok(true));
        assert!(matches!(desk(self.pool).begin(of, id), Err(StoreError::Exists { .. })));
        let model = self.volumes[&of].clone();
        let info = desk(self.pool).find(id).unwrap();
        assert_eq!((info.volume, info.is_complete), (Some(of), true));
        assert_eq!(info.is_encrypted, model.is_encrypted);
        assert_eq!(info.size.0, model.bytes.len() as u64);
        self.snapshots.insert(id, model);
    }

    fn volume_of_snapshot(&mut self) {
        let Some(of) = self.any_snapshot() else { return };
        let id = VolumeId::from_bits(self.number());
        let mut model = self.snapshots[&of].clone();
        let more = self.random.below(3) * MIB;
        model.bytes.resize(model.bytes.len() + more as usize, 0);
        let size = ByteCount(model.bytes.len() as u64);
        let less = ByteCount(size.0 - more - 4_096);
        assert!(matches!(
            desk(self.pool).create_volume(id, less, of),
            Err(StoreError::Size { .. })
        ));
        desk(self.pool).create_volume(id, size, of).unwrap();
        desk(self.pool).create_volume(id, size, of).unwrap();
        self.volumes.insert(id, model);
    }

    fn grow(&mut self) {
        let Some(id) = self.any_volume() else { return };
        let from = self.volumes[&id].bytes.len() as u64;
        if from > 3 * SIZE {
            return;
        }
        let to = ByteCount(from + MIB);
        self.pool.resize(id, ByteCount(from), to).unwrap();
        if let Some(store) = self.open.get_mut(&id) {
            store.resized(to);
        }
        self.volumes.get_mut(&id).unwrap().bytes.resize(to.0 as usize, 0);
    }

    /// Compares the units in which a snapshot differs from an older one.
    fn compare(&mut self) {
        let (Some(id), Some(older)) = (self.any_snapshot(), self.any_snapshot()) else { return };
        let older = Some(older).filter(|_| !self.random.one_in(3));
        let mut messages = Vec::new();
        let mut from = 0;
        loop {
            let page = desk(self.pool).units(id, older, from, 3).unwrap();
            assert!(page.units.len() <= 3);
            messages.extend(page.units);
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
        assert!(messages.is_sorted_by(|a, b| a < b), "{messages:?}");
        let unit = |bytes: &[u8], unit: usize| {
            let mut all = vec![0; UNIT_BYTES as usize];
            let from = &bytes[(unit << 19).min(bytes.len())..((unit + 1) << 19).min(bytes.len())];
            all[..from.len()].copy_from_slice(from);
            all
        };
        let new = &self.snapshots[&id].bytes;
        let nothing = Vec::new();
        let old = older.map_or(&nothing, |older| &self.snapshots[&older].bytes);
        for number in 0..new.len().div_ceil(UNIT_BYTES as usize) {
            let bytes = unit(new, number);
            let differs = bytes != unit(old, number);
            assert!(!differs || messages.contains(&(number as u64)), "unit {number} of {id}");
            let read = desk(self.pool).read(id, number as u64).unwrap();
            assert!(read.unwrap_or_else(|| vec![0; UNIT_BYTES as usize]) == bytes);
        }
    }

    /// Fills a snapshot unit by unit, on top of another one or from nothing.
    fn fill(&mut self) {
        let id = SnapshotId::from_bits(self.number());
        let parent = self.any_snapshot().filter(|_| !self.random.one_in(2));
        let mut model = match parent {
            Some(parent) => self.snapshots[&parent].clone(),
            None => Model { bytes: vec![0; SIZE as usize], is_encrypted: self.random.one_in(2) },
        };
        let size = ByteCount(model.bytes.len() as u64);
        desk(self.pool).start(id, size, parent, model.is_encrypted).unwrap();
        desk(self.pool).start(id, size, parent, model.is_encrypted).unwrap();
        assert!(desk(self.pool).create_volume(VolumeId::from_bits(1), size, id).is_err());
        for _ in 0..self.random.below(6) {
            let unit = self.random.below(size.0.div_ceil(UNIT_BYTES));
            let from = (unit * UNIT_BYTES) as usize;
            let to = (from + UNIT_BYTES as usize).min(model.bytes.len());
            let value = self.random.below(255) as u8;
            model.bytes[from..to].fill(value);
            desk(self.pool).put(id, unit, &model.bytes[from..to]).unwrap();
        }
        desk(self.pool).complete(id).unwrap();
        desk(self.pool).complete(id).unwrap();
        self.snapshots.insert(id, model);
    }

    fn step(&mut self) {
        match self.random.below(16) {
            0 => {
                let id = VolumeId::from_bits(self.number());
                let is_encrypted = self.random.one_in(2);
                if is_encrypted {
                    self.pool.create_encrypted(id, ByteCount(SIZE)).unwrap()
                } else {
                    self.pool.create(id, ByteCount(SIZE)).unwrap()
                }
                let bytes = vec![0; SIZE as usize];
                self.volumes.insert(id, Model { bytes, is_encrypted });
            }
            1 | 2 => self.snapshot(),
            3 => self.volume_of_snapshot(),
            4 => self.compare(),
            5 => self.fill(),
            6 => self.grow(),
            7 => {
                if let Some(id) = self.any_volume() {
                    self.open.remove(&id);
                }
            }
            8 if self.volumes.len() > 3 => {
                if let Some(id) = self.any_volume() {
                    self.open.remove(&id);
                    self.pool.delete(id).unwrap();
                    self.volumes.remove(&id);
                }
            }
            9 if self.snapshots.len() > 3 => {
                if let Some(id) = self.any_snapshot() {
                    desk(self.pool).delete(id).unwrap();
                    assert!(desk(self.pool).find(id).is_none());
                    self.snapshots.remove(&id);
                }
            }
            10 => {
                if let Some(id) = self.any_volume() {
                    self.check(id);
                }
            }
            _ => {
                if let Some(id) = self.any_volume() {
                    self.change(id);
                }
            }
        }
    }
}

fn snapshots_and_what_is_made_of_them_are_as_a_map_says(ceph: &Ceph) {
    let given = std::env::var("EVENKEEL_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or(20_261_126);
    println!("EVENKEEL_SEED={seed} cargo test -p evenkeel-lab --test rbd");
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "snapshots");
    let pool =
        RbdPool::open_with(&folder.path().join("data"), &place, Some(keys(folder.path()))).unwrap();
    let volumes = BTreeMap::new();
    let open = BTreeMap::new();
    let snapshots = BTreeMap::new();
    let random = Random::new(seed, 0);
    let mut history = History { pool: &pool, random, next: 0, volumes, open, snapshots };
    for _ in 0..STEPS {
        history.step();
    }
    let ids: Vec<VolumeId> = history.volumes.keys().copied().collect();
    ids.iter().for_each(|id| history.check(*id));
    let sizes: Vec<(VolumeId, ByteCount)> = history
        .volumes
        .iter()
        .map(|(id, model)| (*id, ByteCount(model.bytes.len() as u64)))
        .collect();
    assert_eq!(pool.list().unwrap(), sizes);
    let listed: Vec<SnapshotId> = desk(&pool).list().iter().map(|info| info.id).collect();
    assert_eq!(listed, history.snapshots.keys().copied().collect::<Vec<_>>());
    // All of it is there for the next server, too.
    history.open.clear();
    let History { volumes, snapshots, .. } = history;
    drop(pool);
    let pool =
        RbdPool::open_with(&folder.path().join("data"), &place, Some(keys(folder.path()))).unwrap();
    let random = Random::new(seed, 1);
    let open = BTreeMap::new();
    let mut history = History { pool: &pool, random, next: 0, volumes, open, snapshots };
    ids.iter().for_each(|id| history.check(*id));
}

fn encrypted_data_is_nowhere_in_the_clear(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = place(ceph, "encrypted");
    let id = VolumeId::from_bits(1);
    let size = ByteCount(8 * MIB);
    let exported = || {
        let mut export = Command::new("rbd");
        export.arg("-c").arg(ceph.conf()).args(["export", "--pool", POOL]);
        export.args(["--namespace", "encrypted", &id.to_string(), "-"]);
        export.output().unwrap().stdout
    };
    let pool = RbdPool::open_with(&data, &place, Some(keys(folder.path()))).unwrap();
    pool.create_encrypted(id, size).unwrap();
    let mut store = pool.open(id, size).unwrap();
    write(store.as_mut(), MIB, &[0x6b; 64 << 10]).unwrap();
    let raw = exported();
    assert_eq!(raw.len() as u64, size.0);
    let written = &raw[MIB as usize..][..64 << 10];
    assert!(written.chunks(4_096).all(|block| block.iter().any(|byte| *byte != 0)), "not there");
    assert!(!raw.windows(16).any(|bytes| bytes == [0x6b; 16]), "it is there in the clear");
    assert_eq!(read(store.as_mut(), MIB, 4_096), Ok(vec![0x6b; 4_096]));
    drop((store, pool));
    let pool = RbdPool::open(&data, &place).unwrap();
    assert!(pool.is_encrypted(id));
    let refused = pool.open(id, size).err().unwrap();
    assert!(matches!(refused, StoreError::Locked { .. }), "{refused}");
}

fn a_namespace_belongs_to_one_data_folder(ceph: &Ceph) {
    let [one, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let place_of_one = place(ceph, "owned");
    drop(RbdPool::open(one.path(), &place_of_one).unwrap());
    let refused = RbdPool::open(other.path(), &place_of_one).err().unwrap().to_string();
    assert!(refused.contains("holds volumes of another data folder"), "{refused}");
    assert!(refused.contains("--rbd-namespace"), "{refused}");
    let refused = RbdPool::open(one.path(), &place(ceph, "empty")).err().unwrap().to_string();
    assert!(refused.contains("holds nothing of it"), "{refused}");
    let nowhere = Place { pool: "nosuch".to_owned(), ..place(ceph, "owned") };
    let refused = RbdPool::open(one.path(), &nowhere).err().unwrap().to_string();
    assert!(refused.contains("ceph osd pool create nosuch"), "{refused}");
    let nothing = Place { conf: Some("/nosuch/ceph.conf".into()), ..place(ceph, "owned") };
    let refused = RbdPool::open(one.path(), &nothing).err().unwrap().to_string();
    assert!(refused.contains("/nosuch/ceph.conf"), "{refused}");
}

/// Checks that a namespace belongs to one of two clusters of servers with the same name, but
/// different etcds.
fn a_namespace_belongs_to_one_of_two_namesakes(ceph: &Ceph) {
    let place = place(ceph, "namesakes");
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let open = |folder: usize, number: u128| {
        let cluster = "evenkeel".to_owned();
        let node = format!("node-{folder}");
        let seat = Seat::Member { cluster, number, node };
        RbdPool::open_as(folders[folder].path(), &place, None, &seat)
    };
    let is_refused = |refused: Option<StoreError>| {
        let refused = refused.expect("it is refused").to_string();
        let numbers = [1, 2].map(|number| format!("number {number:032x}"));
        assert!(numbers.iter().all(|number| refused.contains(number)), "{refused}");
        assert!(refused.contains("rmomapkey evenkeel.books number"), "{refused}");
    };
    let one = open(0, 1).unwrap();
    one.check_owner().unwrap();
    is_refused(open(1, 2).err());
    assert!(!one.is_taken_over(), "its node is not fenced");
    // Restores the state that an earlier version leaves.
    let forget = || {
        let mut rados = Command::new("rados");
        rados.arg("-c").arg(ceph.conf()).args(["-p", POOL, "-N", "namesakes", "rmomapkey"]);
        assert!(rados.args(["evenkeel.books", "number"]).status().unwrap().success());
    };
    forget();
    one.check_owner().unwrap();
    is_refused(open(1, 2).err());
    forget();
    let two = open(1, 2).unwrap();
    two.check_owner().unwrap();
    is_refused(one.check_owner().err());
}

/// Returns a copy of a data folder, as its next process sees it while the previous one still runs.
fn next_of(folder: &Path) -> tempfile::TempDir {
    let next = tempfile::tempdir().unwrap();
    fs::copy(folder.join("rbd-node"), next.path().join("rbd-node")).unwrap();
    fs::copy(folder.join("EVENKEEL"), next.path().join("EVENKEEL")).unwrap();
    next
}

fn a_server_that_was_started_again_fences_the_one_before(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "fenced");
    let id = VolumeId::from_bits(1);
    let size = ByteCount(8 * MIB);
    let before = RbdPool::open(folder.path(), &place).unwrap();
    before.create(id, size).unwrap();
    let mut old = before.open(id, size).unwrap();
    write(old.as_mut(), 0, &[1; 4_096]).unwrap();
    let next = next_of(folder.path());
    let after = RbdPool::open(next.path(), &place).unwrap();
    let mut new = after.open(id, size).unwrap();
    write(new.as_mut(), 4_096, &[2; 4_096]).unwrap();
    // Clients get an error that sends them elsewhere; an error of the device would stop a file
    // system.
    let elsewhere = Failure::ShuttingDown;
    assert_eq!(write(old.as_mut(), 0, &[3; 4_096]), Err(elsewhere), "a late write");
    assert_eq!(read(old.as_mut(), 0, 4_096), Err(elsewhere), "a late read");
    assert_eq!(read(new.as_mut(), 0, 4_096), Ok(vec![1; 4_096]));
    assert_eq!(read(new.as_mut(), 4_096, 4_096), Ok(vec![2; 4_096]));
    drop((old, before, new, after));
}

/// Checks that a fenced server does not report a volume as closed, whose lock it has not released.
fn a_fenced_server_does_not_give_a_volume_back(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "kept");
    let id = VolumeId::from_bits(1);
    let size = ByteCount(8 * MIB);
    let before = RbdPool::open(folder.path(), &place).unwrap();
    before.create(id, size).unwrap();
    let mut old = before.open(id, size).unwrap();
    write(old.as_mut(), 0, &[1; 4_096]).unwrap();
    let next = next_of(folder.path());
    let after = RbdPool::open(next.path(), &place).unwrap();
    assert!(!before.is_taken_over(), "it does not know of its fence");
    // The device of the image's header learns of the fence.
    let mut info = Command::new("rbd");
    info.arg("-c").arg(ceph.conf()).args(["info", "--pool", POOL, "--namespace", "kept"]);
    assert!(info.arg(id.to_string()).stdout(Stdio::null()).status().unwrap().success());
    drop(old);
    for _ in 0..2 {
        let refused = before.wait_closed(id).err().unwrap().to_string();
        assert!(refused.contains("is fenced, and may still hold the lock"), "{refused}");
    }
    assert!(before.is_taken_over());
    let mut new = after.open(id, size).unwrap();
    assert_eq!(read(new.as_mut(), 0, 4_096), Ok(vec![1; 4_096]));
}

/// Returns a data folder of another node of the cluster of a data folder.
fn other_node_of(folder: &Path) -> tempfile::TempDir {
    let next = next_of(folder);
    let file = next.path().join("rbd-node");
    let text = fs::read_to_string(&file).unwrap();
    let cluster = text.split(" node ").next().unwrap();
    fs::write(&file, format!("{cluster} node 0123456789abcdef\n")).unwrap();
    next
}

/// librbd releases the lock of an image by itself after the cluster was silent, and answers EROFS
/// then, as it does if another server has the lock.
fn a_lock_that_is_lost_is_taken_again_unless_another_server_has_it(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "released");
    let id = VolumeId::from_bits(1);
    let size = ByteCount(8 * MIB);
    let pool = RbdPool::open(folder.path(), &place).unwrap();
    pool.create(id, size).unwrap();
    let mut store = pool.open(id, size).unwrap();
    write(store.as_mut(), 0, &[1; 4_096]).unwrap();
    assert!(pool.release_lock(id).unwrap());
    write(store.as_mut(), 4_096, &[2; 4_096]).unwrap();
    let expected = [[1; 4_096], [2; 4_096]].concat();
    assert_eq!(read(store.as_mut(), 0, 8_192).unwrap(), expected);

    assert!(pool.release_lock(id).unwrap());
    let next = other_node_of(folder.path());
    let other = RbdPool::open(next.path(), &place).unwrap();
    let mut there = other.open(id, size).unwrap();
    write(there.as_mut(), 0, &[3; 4_096]).unwrap();
    assert!(!pool.is_taken_over());
    assert_eq!(write(store.as_mut(), 0, &[4; 4_096]), Err(Failure::ShuttingDown));
    assert!(pool.is_taken_over());
    let expected = [[3; 4_096], [2; 4_096]].concat();
    assert_eq!(read(there.as_mut(), 0, 8_192).unwrap(), expected);
}

fn a_volume_that_another_server_has_is_not_taken(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "elsewhere");
    let id = VolumeId::from_bits(1);
    let size = ByteCount(8 * MIB);
    let rbd_pool = RbdPool::open(folder.path(), &place).unwrap();
    rbd_pool.create(id, size).unwrap();
    let mut store = rbd_pool.open(id, size).unwrap();
    write(store.as_mut(), 4_096, &[1; 4_096]).unwrap();
    let next = other_node_of(folder.path());
    let other = RbdPool::open(next.path(), &place).unwrap();
    // The first request detects that the volume is elsewhere; the next one tries again.
    let mut there = other.open(id, size).unwrap();
    assert_eq!(read(there.as_mut(), 0, 4_096), Err(Failure::Io));
    let refused = other.resize(id, size, ByteCount(16 * MIB)).err().unwrap();
    assert!(matches!(refused, StoreError::Elsewhere { .. }), "{refused}");
    drop(there);
    other.wait_closed(id).unwrap();
    let refused = other.delete(id).err().unwrap();
    assert!(matches!(refused, StoreError::Elsewhere { .. }), "{refused}");
    let mut there = other.open(id, size).unwrap();
    assert_eq!(read(store.as_mut(), 4_096, 4_096), Ok(vec![1; 4_096]));
    write(store.as_mut(), 0, &[1; 4_096]).unwrap();
    assert!(matches!(rbd_pool.wait_closed(id), Err(StoreError::Open { .. })), "it is open");
    drop(store);
    // After it is given back, it can be opened at once.
    rbd_pool.wait_closed(id).unwrap();
    rbd_pool.wait_closed(id).unwrap();
    let found = read(there.as_mut(), 0, 4_096);
    assert_eq!(found, Ok(vec![1; 4_096]), "a volume that was given back");
    drop(there);
    drop((other, rbd_pool));
}

fn a_full_pool_is_told_at_once(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let pool = RbdPool::open(folder.path(), &place(ceph, "full")).unwrap();
    let id = VolumeId::from_bits(1);
    let size = ByteCount(256 * MIB);
    pool.create(id, size).unwrap();
    let mut store = pool.open(id, size).unwrap();
    write(store.as_mut(), 0, &vec![1; MIB as usize]).unwrap();
    ceph.client(&["osd", "pool", "set-quota", POOL, "max_bytes", "1048576"]).unwrap();
    let mut failed = None;
    for at in 1..200 {
        failed = write(store.as_mut(), at * MIB, &vec![2; MIB as usize]).err();
        if failed.is_some() {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    assert_eq!(failed, Some(Failure::NoSpace));
    write(store.as_mut(), 0, &[3; 4_096]).expect("what is there already is written over");
    assert_eq!(read(store.as_mut(), 0, 4_096), Ok(vec![3; 4_096]));
    drop(store);
    pool.delete(id).expect("deleting works in a full pool");
    ceph.client(&["osd", "pool", "set-quota", POOL, "max_bytes", "0"]).unwrap();
}

fn what_is_deleted_gives_its_space_back(ceph: &Ceph) {
    let folder = tempfile::tempdir().unwrap();
    let place = place(ceph, "space");
    let pool = RbdPool::open(folder.path(), &place).unwrap();
    let space = pool.space().unwrap().unwrap();
    assert!(space.free.0 > 0 && space.free < space.total, "{space:?}");
    let [one, clone] = [1, 2].map(VolumeId::from_bits);
    let size = ByteCount(16 * MIB);
    let snapshot = SnapshotId::from_bits(3);
    pool.create(one, size).unwrap();
    let mut store = pool.open(one, size).unwrap();
    write(store.as_mut(), 0, &vec![1; MIB as usize]).unwrap();
    drop(store);
    assert_eq!(desk(&pool).begin(one, snapshot).unwrap().made.recv(), Ok(true));
    desk(&pool).create_volume(clone, size, snapshot).unwrap();
    // In the order that leaves the most work for later.
    pool.delete(one).unwrap();
    desk(&pool).delete(snapshot).unwrap();
    let mut store = pool.open(clone, size).unwrap();
    assert_eq!(read(store.as_mut(), 0, 4_096), Ok(vec![1; 4_096]), "it has what it began as");
    drop(store);
    pool.delete(clone).unwrap();
    // A new volume with the name of one that is still being removed is separate.
    pool.create(one, size).unwrap();
    let mut store = pool.open(one, size).unwrap();
    assert_eq!(read(store.as_mut(), 0, 4_096), Ok(vec![0; 4_096]));
    drop(store);
    pool.delete(one).unwrap();
    images_become(ceph, "space", &[]);
}

/// Returns what a program of Ceph prints.
fn output(ceph: &Ceph, program: &str, words: &[&str]) -> String {
    let done = Command::new(program).arg("-c").arg(ceph.conf()).args(words).output().unwrap();
    assert!(done.status.success(), "{program} {words:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// Waits until a namespace has these images.
fn images_become(ceph: &Ceph, namespace: &str, expected: &[&str]) {
    let mut names = String::new();
    for _ in 0..300 {
        names = output(ceph, "rbd", &["ls", "--pool", POOL, "--namespace", namespace]);
        if names.lines().eq(expected.iter().copied()) {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    panic!("images that nothing needs were not removed: {names}");
}

/// A server that is killed after it has made an image, and before a volume has it.
fn an_image_that_its_server_did_not_finish_is_removed(ceph: &Ceph) {
    let [folder, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let name = "unmade";
    let place = place(ceph, name);
    let seat = |node: &str| Seat::Member {
        cluster: "unmade".to_owned(),
        number: 1,
        node: node.to_owned(),
    };
    let open = |folder: &Path, node| RbdPool::open_as(folder, &place, None, &seat(node)).unwrap();
    let pool = open(folder.path(), "one");
    let [kept, unmade] = [1, 2].map(VolumeId::from_bits);
    let size = ByteCount(8 * MIB);
    pool.create(kept, size).unwrap();
    let books = |words: &[&str]| {
        let all = [&["--pool", POOL, "--namespace", name], words].concat();
        output(ceph, "rados", &all)
    };
    let making = || {
        let keys = books(&["listomapkeys", "evenkeel.books"]);
        keys.lines().filter(|key| key.starts_with("p/")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(making().is_empty());
    // An image of this size cannot be made; an end of the server would leave the same record.
    pool.create(unmade, ByteCount(1 << 62)).unwrap_err();
    assert_eq!(making(), [format!("p/{unmade}")]);
    let image = [&["create", "--pool", POOL, "--namespace", name], &["--size", "8"][..]].concat();
    let left = unmade.to_string();
    output(ceph, "rbd", &[&image[..], &[&left]].concat());
    // A volume has this one, whatever the records of ended servers are.
    let stale = format!("p/{kept}");
    books(&["setomapval", "evenkeel.books", &stale, r#"{"maker":"127.0.0.1:0/7"}"#]);
    // The maker still runs, and another process has the same volume made under another name.
    let other = open(other.path(), "two");
    other.create(unmade, size).unwrap();
    let [kept_image, again] = [kept.to_string(), format!("{unmade}.1")];
    images_become(ceph, name, &[&kept_image, &left, &again]);
    drop(pool);
    let pool = open(folder.path(), "one");
    images_become(ceph, name, &[&kept_image, &again]);
    for id in [kept, unmade] {
        let mut store = pool.open(id, size).unwrap();
        write(store.as_mut(), 0, &[1; 4_096]).unwrap();
    }
    assert!(making().is_empty());
    // Version 0.1.0 had no record of what it was making.
    let unnamed = || {
        let found = examine(&place).into_iter().find(|finding| finding.what == "Ceph images");
        found.unwrap()
    };
    assert_eq!(unnamed().weight, Weight::Well, "{:?}", unnamed());
    output(ceph, "rbd", &[&image[..], &["vol-00000000000000009"]].concat());
    let found = unnamed();
    assert_eq!(found.weight, Weight::Worse, "{found:?}");
    assert!(found.found.ends_with("1 of evenkeel/unmade: vol-00000000000000009"), "{found:?}");
}

/// Writes random blocks, each with its own number, until it is asked to stop. Returns the longest
/// time of a write, in milliseconds, and the last number of each block.
fn write_until(store: &mut dyn Store, seed: u64, ends: &AtomicBool) -> (u128, BTreeMap<u64, u64>) {
    let mut random = Random::new(seed, 0);
    let mut held = BTreeMap::new();
    let mut longest = 0;
    for number in 1_u64.. {
        if ends.load(Ordering::Acquire) {
            break;
        }
        let offset = random.below(64 * MIB / 4_096) * 4_096;
        let before = evenkeel_os::clock::now();
        write(store, offset, &number.to_le_bytes().repeat(512)).expect("no error, however long");
        longest = longest.max(before.elapsed().as_millis());
        held.insert(offset, number);
    }
    (longest, held)
}

#[test]
#[ignore = "full: crates/lab/tests/rbd.rs::volumes_on_a_ceph_cluster stays"]
fn osds_that_die_or_hang_lose_nothing_and_fail_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { osds: 3, osd_gib: 4, ..Setup::default() };
    let Some(mut ceph) = cluster(folder.path(), setup) else { return };
    let pool = RbdPool::open(&folder.path().join("data"), &place(&ceph, "osds")).unwrap();
    let id = VolumeId::from_bits(1);
    let size = ByteCount(64 * MIB);
    pool.create(id, size).unwrap();
    let mut store = pool.open(id, size).unwrap();
    let ends = AtomicBool::new(false);
    let wait = |seconds: u64| {
        std::thread::park_timeout(Duration::from_secs(seconds));
    };
    let (longest, held) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(store.as_mut(), 7, &ends));
        wait(2);
        ceph.kill_osd(0).unwrap();
        wait(8);
        ceph.start_osd(0).unwrap();
        ceph.wait_until_clean().unwrap();
        ceph.pause_osd(1).unwrap();
        wait(6);
        ceph.resume_osd(1).unwrap();
        ceph.wait_until_clean().unwrap();
        wait(1);
        ends.store(true, Ordering::Release);
        writer.join().unwrap()
    });
    println!("the longest write took {longest} ms; {} blocks are written", held.len());
    assert!(held.len() > 100, "it went on");
    for (at, number) in held {
        let got = read(store.as_mut(), at, 4_096).unwrap();
        assert!(got == number.to_le_bytes().repeat(512), "block at {at}, number {number}");
    }
    drop(store);
}

/// Time in which each OSD is stopped: the cluster counts a client as gone after 30 s.
const SILENCE: Duration = Duration::from_secs(38);

/// Checks that a volume is served again after the cluster was silent for longer than the lock of
/// an image is watched, and that it stays with its server.
#[test]
#[ignore = "full: crates/lab/tests/rbd.rs::volumes_on_a_ceph_cluster stays"]
fn volume_is_served_again_after_the_cluster_was_silent() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { osds: 3, osd_gib: 4, ..Setup::default() };
    let Some(ceph) = cluster(folder.path(), setup) else { return };
    let pool = RbdPool::open(&folder.path().join("data"), &place(&ceph, "silent")).unwrap();
    let size = ByteCount(64 * MIB);
    let ids: Vec<VolumeId> = (1..=4).map(VolumeId::from_bits).collect();
    for id in &ids {
        pool.create(*id, size).unwrap();
    }
    let mut stores: Vec<_> = ids.iter().map(|id| pool.open(*id, size).unwrap()).collect();
    let ends = &AtomicBool::new(false);
    let held: Vec<BTreeMap<u64, u64>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (7..)
            .zip(&mut stores)
            .map(|(seed, store)| scope.spawn(move || write_until(store.as_mut(), seed, ends)))
            .collect();
        for _ in 0..2 {
            std::thread::park_timeout(Duration::from_secs(3));
            (0..setup.osds).for_each(|osd| ceph.pause_osd(osd).unwrap());
            std::thread::park_timeout(SILENCE);
            (0..setup.osds).for_each(|osd| ceph.resume_osd(osd).unwrap());
            ceph.wait_until_clean().unwrap();
        }
        std::thread::park_timeout(Duration::from_secs(3));
        ends.store(true, Ordering::Release);
        writers.into_iter().map(|writer| writer.join().unwrap().1).collect()
    });
    for (store, held) in stores.iter_mut().zip(held) {
        println!("{} blocks are written", held.len());
        for (at, number) in held {
            let got = read(store.as_mut(), at, 4_096).unwrap();
            assert!(got == number.to_le_bytes().repeat(512), "block at {at}, number {number}");
        }
    }
    assert!(!pool.is_taken_over());
}
