//! The log of answered writes, and its use after a kill.

use super::super::page_cache_file::{FOLDER, Lasting, LastingFiles};
use super::super::simulated::{SimulatedDevice, SimulatedLasting, SimulatedQueue};
use super::*;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

const SIZE: ByteCount = ByteCount(8 << 20);
const VOLUME: VolumeId = VolumeId::from_bits(7);

/// Opens the pool and its volume as a process with files in a folder. Forgetting the result ends
/// the process.
fn begin(device: &Arc<dyn Device>, lasting: impl Lasting + 'static) -> (LocalPool, Box<dyn Store>) {
    let lasting: Arc<dyn Lasting> = Arc::new(lasting);
    let pool =
        LocalPool::open_noting(Arc::clone(device), Bounds::default(), Some(lasting)).unwrap();
    if pool.list().unwrap().is_empty() {
        pool.create(VOLUME, SIZE).unwrap();
    }
    let store = pool.open(VOLUME, SIZE).unwrap();
    (pool, store)
}

fn write(store: &mut dyn Store, block: u64, value: u8) {
    run(store, Operation::Write { fua: false }, block, value).unwrap();
}

fn read(store: &mut dyn Store, block: u64) -> u8 {
    run(store, Operation::Read, block, 0).unwrap()
}

#[test]
fn answered_writes_survive_a_killed_process() {
    let folder = tempfile::tempdir().unwrap();
    let files = |pool| LastingFiles::in_folder(folder.path(), pool);
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
    for round in 1..=3 {
        let (pool, mut store) = begin(&device, files(1));
        for block in 0..40 {
            assert_eq!(read(store.as_mut(), block), round - 1, "round {round}, block {block}");
            write(store.as_mut(), block, round);
        }
        std::mem::forget((pool, store));
    }
    // With the identity of another pool, the notes are ignored, and they stay ignored.
    let (pool, mut store) = begin(&device, files(2));
    assert_eq!(read(store.as_mut(), 0), 2);
    write(store.as_mut(), 0, 9);
    // A closed volume needs no file.
    drop((store, pool));
    let left: Vec<_> = fs::read_dir(folder.path().join(FOLDER)).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    let (_pool, mut store) = begin(&device, files(1));
    assert_eq!(read(store.as_mut(), 0), 9);
    assert_eq!(read(store.as_mut(), 1), 2);
}

/// Whatever the file has, the volume opens, and each block has a value that it had since the last
/// flush.
#[test]
fn a_file_that_was_changed_or_cut_takes_nothing_with_it() {
    for damage in 0..60_u64 {
        let folder = tempfile::tempdir().unwrap();
        let files = || LastingFiles::in_folder(folder.path(), 1);
        let (_file, device) = device();
        LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
        let (pool, mut store) = begin(&device, files());
        write(store.as_mut(), 0, 1);
        run(store.as_mut(), Operation::Flush, 0, 0).unwrap();
        (2..=9).for_each(|value| write(store.as_mut(), 0, value));
        write(store.as_mut(), 1, 1);
        std::mem::forget((pool, store));
        let path =
            fs::read_dir(folder.path().join(FOLDER)).unwrap().next().unwrap().unwrap().path();
        let mut bytes = fs::read(&path).unwrap();
        match damage {
            0 => bytes.clear(),
            1 => bytes.truncate(2_000),
            2 => bytes.truncate(4_096 + 50),
            // Over the header, the number of the next log block, and the notes.
            _ => {
                let places = [0..120, 2_048..2_056, 4_096..4_500];
                let place = places[damage as usize % 3].clone();
                let position = place.start + damage as usize * 31 % place.len();
                bytes[position] ^= 1 << (damage % 8);
            }
        }
        fs::write(&path, &bytes).unwrap();
        let (_pool, mut store) = begin(&device, files());
        let found = [read(store.as_mut(), 0), read(store.as_mut(), 1)];
        assert!((1..=9).contains(&found[0]), "damage {damage}: {found:?}");
        assert!(found[1] == 0 || found == [9, 1], "damage {damage}: {found:?}");
        write(store.as_mut(), 0, 20);
        run(store.as_mut(), Operation::Flush, 0, 0).unwrap();
        assert_eq!(read(store.as_mut(), 0), 20);
    }
}

/// Without room for the file, a write is answered when the device has it; with room again, notes
/// begin anew.
#[test]
fn answered_writes_survive_a_kill_also_while_there_is_no_room_for_their_file() {
    let (_file, device) = device();
    LocalPool::init(device.as_ref(), &LAYOUT).unwrap();
    let lasting = SimulatedLasting::default();
    lasting.fill(true);
    let (pool, mut store) = begin(&device, lasting.clone());
    (0..40).for_each(|block| write(store.as_mut(), block, 1));
    std::mem::forget((pool, store));
    let lasting = lasting.killed();
    lasting.fill(true);
    let (pool, mut store) = begin(&device, lasting.clone());
    for block in 0..40 {
        assert_eq!(read(store.as_mut(), block), 1, "block {block}");
        write(store.as_mut(), block, 2);
    }
    assert_eq!(lasting.find(1).unwrap().map(|_| ()), None);
    lasting.fill(false);
    for value in 3..=5 {
        (0..40).for_each(|block| write(store.as_mut(), block, value));
    }
    assert!(lasting.find(1).unwrap().is_some(), "it is tried again");
    std::mem::forget((pool, store));
    let (_pool, mut store) = begin(&device, lasting.killed());
    (0..40).for_each(|block| assert_eq!(read(store.as_mut(), block), 5, "block {block}"));
}

/// A file on a disk without room is an error, and leaves nothing behind.
#[test]
fn file_of_answered_writes_has_its_room_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let files = LastingFiles::in_folder(folder.path(), 1);
    let file = files.make(1, 64 << 10).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= 64 << 10);
    assert!(files.make(2, 1 << 60).is_err());
    assert_eq!(fs::read_dir(folder.path().join(FOLDER)).unwrap().count(), 1);
}

/// Copies a data folder while its server runs: this is what a kill leaves.
fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Opens a data folder and its volume.
fn open_folder(path: &Path) -> (LocalPool, Box<dyn Store>) {
    let pool = LocalPool::in_folder(path, None).unwrap();
    if pool.list().unwrap().is_empty() {
        pool.create(VOLUME, SIZE).unwrap();
    }
    let store = pool.open(VOLUME, SIZE).unwrap();
    (pool, store)
}

/// While a file is in the place of the folder of the records, a write is answered when the device
/// has it. Records begin when the folder can be made.
#[test]
fn answered_writes_survive_a_kill_also_while_the_folder_of_their_files_cannot_be_made() {
    let parent = tempfile::tempdir().unwrap();
    let path = |name: &str| parent.path().join(name);
    drop(LocalPool::in_folder(&path("first"), None).unwrap());
    let place = |name: &str| path(name).join(FOLDER);
    fs::write(place("first"), "no folder").unwrap();
    let error = LastingFiles::in_folder(&path("first"), 1).make(1, 4_096).unwrap_err().to_string();
    assert!(error.contains(&place("first").display().to_string()), "{error}");

    let (_pool, mut store) = open_folder(&path("first"));
    (0..40).for_each(|block| write(store.as_mut(), block, 1));
    copy_folder(&path("first"), &path("second"));
    let (_pool, mut store) = open_folder(&path("second"));
    for block in 0..40 {
        assert_eq!(read(store.as_mut(), block), 1, "block {block}");
        write(store.as_mut(), block, 2);
    }
    fs::remove_file(place("second")).unwrap();
    for value in 3..=5 {
        (0..40).for_each(|block| write(store.as_mut(), block, value));
    }
    assert_eq!(fs::read_dir(place("second")).unwrap().count(), 1, "it is tried again");
    copy_folder(&path("second"), &path("third"));
    let (_pool, mut store) = open_folder(&path("third"));
    (0..40).for_each(|block| assert_eq!(read(store.as_mut(), block), 5, "block {block}"));
}

/// Writes that are logged beside their data never enter a batch. Their notes are removed, too, so
/// that no write waits for a flush that no client has requested.
#[test]
fn notes_of_eager_writes_do_not_fill_up() {
    const ROUNDS: u64 = 400;
    let simulated = SimulatedDevice::new(96 << 20);
    LocalPool::init(&simulated, &Layout { chunks_max: 90, ..LAYOUT }).unwrap();
    let lasting: Arc<dyn Lasting> = Arc::new(SimulatedLasting::default());
    // Room for some hundred notes.
    let bounds = Bounds { answered_bytes: 8_000, ..Bounds::default() };
    let device: Arc<dyn Device> = Arc::new(simulated.clone());
    let pool = LocalPool::open_noting(device, bounds, Some(lasting)).unwrap();
    pool.create(VOLUME, SIZE).unwrap();
    let mut store = pool.open(VOLUME, SIZE).unwrap();
    let mut queue = SimulatedQueue::new(simulated.clone(), 1);
    let mut carry_out = |operation, block: u64| {
        let is_write = matches!(operation, Operation::Write { .. });
        let offset = block * BLOCK_BYTES as u64;
        let length = BLOCK_BYTES as u32;
        let buffer = is_write.then(|| Buffer::new(BLOCK_BYTES));
        store.submit(Submission { ticket: 1, operation, offset, length, buffer }, &mut queue);
        while store.poll().is_none() {
            let done = queue.answer().expect("it ends");
            store.disk_done(done, &mut queue);
        }
    };
    (0..64).for_each(|block| carry_out(Operation::Write { fua: false }, block));
    carry_out(Operation::Flush, 0);
    let (_, before) = simulated.counts();
    for round in 0..ROUNDS {
        (0..3).for_each(|part| carry_out(Operation::Write { fua: false }, (round * 3 + part) % 64));
        carry_out(Operation::Flush, 0);
    }
    let (_, after) = simulated.counts();
    // A checkpoint takes a few.
    let syncs = after - before;
    assert!((ROUNDS..ROUNDS + 20).contains(&syncs), "{syncs} flushes for {ROUNDS}");
}
