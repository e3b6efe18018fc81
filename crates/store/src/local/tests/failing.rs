//! Failed writes of a table: a refused change does not take effect later, and the pool in memory
//! matches the device.

use super::super::simulated::SimulatedDevice;
use super::*;
use crate::snapshots::UNIT_BYTES;

const SIZE: ByteCount = ByteCount(4 << 20);
const WRITE: Operation = Operation::Write { fua: true };
const VOLUME: VolumeId = VolumeId::from_bits(7);
const OTHER: VolumeId = VolumeId::from_bits(8);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(9);

fn open(device: &SimulatedDevice) -> LocalPool {
    LocalPool::open(Arc::new(device.clone()), Bounds::default()).unwrap()
}

/// Returns the contents of a pool, and its free space.
fn seen(pool: &LocalPool) -> impl PartialEq + std::fmt::Debug {
    // A pending one is removed when its volume is opened.
    let snapshots = pool.snapshots();
    let complete = snapshots.iter().filter(|snapshot| snapshot.is_complete);
    let snapshots: Vec<_> = complete.map(|snapshot| (snapshot.id, snapshot.volume)).collect();
    (pool.list().unwrap(), snapshots, pool.space().unwrap().unwrap().free)
}

/// Carries out a request on a simulated disk.
fn run(device: &SimulatedDevice, store: &mut dyn Store, block: u64) -> Result<(), Failure> {
    struct Inline<'a>(&'a SimulatedDevice, Vec<crate::disk::DiskOp>);
    impl crate::disk::Disk for Inline<'_> {
        fn submit(&mut self, op: crate::disk::DiskOp) {
            self.1.push(op);
        }
    }
    let mut disk = Inline(device, Vec::new());
    let buffer = Some(Buffer::new(BLOCK_BYTES));
    let length = BLOCK_BYTES as u32;
    let offset = block * BLOCK_BYTES as u64;
    store.submit(Submission { ticket: 1, operation: WRITE, offset, length, buffer }, &mut disk);
    while !disk.1.is_empty() {
        let op = disk.1.remove(0);
        let done = super::super::volume::recover::run(disk.0, op);
        store.disk_done(done, &mut disk);
    }
    store.poll().unwrap().result
}

/// A pool with a volume that has data, a snapshot of it, and an empty volume.
fn written() -> SimulatedDevice {
    let device = SimulatedDevice::new(64 << 20);
    LocalPool::init(&device, &LAYOUT).unwrap();
    let pool = open(&device);
    pool.create(VOLUME, SIZE).unwrap();
    run(&device, pool.open(VOLUME, SIZE).unwrap().as_mut(), 0).unwrap();
    assert_eq!(pool.snapshot(VOLUME, SNAPSHOT).unwrap().made.try_recv(), Ok(true));
    pool.create(OTHER, SIZE).unwrap();
    run(&device, pool.open(OTHER, SIZE).unwrap().as_mut(), 0).unwrap();
    device
}

/// Runs `what` while writes fail from each moment on. Whatever it returns: a change after it
/// changes nothing else, and the next opening finds the same contents as this one.
fn refuses(name: &str, moments: u64, what: impl Fn(&LocalPool) -> bool) {
    let mut failed = 0;
    let mut done = 0;
    for (after, has_effect) in (0..moments).flat_map(|after| [(after, false), (after, true)]) {
        let device = written();
        let pool = open(&device);
        let before = format!("{:?}", seen(&pool));
        // Four operations: both copies, and both again with the contents from before.
        device.fail(after, 4, has_effect);
        let is_done = what(&pool);
        device.fail(0, 0, false);
        let known = format!("{:?}", seen(&pool));
        let when = format!("{name}, after {after}");
        failed += u32::from(!is_done);
        done += u32::from(is_done);
        if !is_done && after == 0 {
            assert_eq!(known, before, "{when}");
        }
        // A change of another sector in the same block.
        pool.create(VolumeId::from_bits(20), SIZE).unwrap();
        let mut store = pool.open(VolumeId::from_bits(20), SIZE).unwrap();
        assert_eq!(run(&device, store.as_mut(), 0), Ok(()), "{when}");
        drop(store);
        let known = format!("{:?}", seen(&pool));
        drop(pool);
        let report = check(&device, true).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{when}");
        assert_eq!(format!("{:?}", seen(&open(&device))), known, "{when}");
    }
    assert!(failed > 0 && (done > 0 || moments == 2), "{name}: {failed} failed, {done} were done");
}

#[test]
fn a_volume_that_could_not_be_made_is_not_there_later() {
    refuses("create", 12, |pool| pool.create(VolumeId::from_bits(1), SIZE).is_ok());
}

#[test]
fn a_volume_that_could_not_be_grown_has_its_size_later() {
    refuses("resize", 12, |pool| pool.resize(OTHER, SIZE, ByteCount(8 << 20)).is_ok());
}

#[test]
fn a_volume_that_could_not_be_deleted_is_there_later() {
    refuses("delete", 12, |pool| {
        let is_done = pool.delete(OTHER).is_ok();
        // A deletion that has begun is repeated until it succeeds.
        while !pool.list().unwrap().contains(&(OTHER, SIZE)) && pool.delete(OTHER).is_err() {}
        is_done
    });
}

#[test]
fn a_snapshot_that_could_not_be_made_is_not_there_later() {
    // The writes after that of its node are in the log of its volume.
    refuses("snapshot", 2, |pool| {
        let made = pool.snapshot(OTHER, SnapshotId::from_bits(30));
        made.is_ok_and(|making| making.made.try_recv() == Ok(true))
    });
}

#[test]
fn a_volume_that_could_not_be_made_of_a_snapshot_is_not_there_later() {
    refuses("create_from", 12, |pool| {
        pool.create_from(VolumeId::from_bits(1), SIZE, SNAPSHOT).is_ok()
    });
}

/// A chunk whose owner could not be written never has two owners.
#[test]
fn a_chunk_that_could_not_be_given_is_given_to_one_later() {
    for (after, has_effect) in (0..8).flat_map(|after| [(after, false), (after, true)]) {
        let device = written();
        let pool = open(&device);
        let id = VolumeId::from_bits(20);
        pool.create(id, SIZE).unwrap();
        device.fail(after, 4, has_effect);
        let _ = pool.open(id, SIZE).map(drop);
        device.fail(0, 0, false);
        for id in [OTHER, id, VOLUME] {
            let mut store = pool.open(id, SIZE).unwrap();
            for block in 0..600 {
                assert_eq!(run(&device, store.as_mut(), block), Ok(()), "{id} {block}");
            }
        }
        drop(pool);
        let report = check(&device, true).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "after {after}, {has_effect}");
    }
}

/// A filled snapshot whose completion failed can be filled and completed again, without another
/// opening of the pool.
#[test]
fn a_filled_snapshot_that_could_not_be_completed_is_completed_later() {
    let id = SnapshotId::from_bits(40);
    let unit = vec![7; UNIT_BYTES as usize];
    let mut continued = 0;
    for (after, has_effect) in (0..30).flat_map(|after| [(after, false), (after, true)]) {
        let when = format!("after {after}, {has_effect}");
        let device = written();
        let pool = open(&device);
        let snapshots = Pool::snapshots(&pool).unwrap();
        snapshots.start(id, SIZE, None, false).unwrap();
        snapshots.put(id, 0, &unit).unwrap();
        // Enough for a second attempt to fail, too.
        device.fail(after, 40, has_effect);
        let first = snapshots.complete(id);
        device.fail(0, 0, false);
        if first.is_err() {
            // The log may have the snapshot: then nothing is added to it.
            let put = snapshots.put(id, 1, &unit);
            let is_made = snapshots.find(id).unwrap().is_complete;
            assert!(put.is_ok() != is_made, "{when}: {put:?}");
            continued += u32::from(put.is_ok());
            snapshots.complete(id).unwrap_or_else(|error| panic!("{when}: {error}"));
        }
        assert!(snapshots.find(id).unwrap().is_complete, "{when}");
        assert_eq!(snapshots.read(id, 0).unwrap(), Some(unit.clone()), "{when}");
        drop(pool);
        let report = check(&device, true).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{when}");
    }
    assert!(continued > 0);
}
