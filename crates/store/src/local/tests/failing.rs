//! Failed writes of a table: a refused change does not take effect later, and the pool in memory
//! matches the device.

use super::super::simulated::SimulatedDevice;
use super::unfinished::anchors_of;
use super::*;
use crate::disk::{Disk, DiskOp};
use crate::snapshots::UNIT_BYTES;
use evenkeel_core::random::Random;

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

/// A simulated disk whose operations are executed one after the other.
struct Inline<'a>(&'a SimulatedDevice, Vec<DiskOp>);

impl Disk for Inline<'_> {
    fn submit(&mut self, op: DiskOp) {
        self.1.push(op);
    }
}

impl Inline<'_> {
    fn finish(&mut self, store: &mut dyn Store) {
        while !self.1.is_empty() {
            let op = self.1.remove(0);
            let done = super::super::volume::recover::run(self.0, op);
            store.disk_done(done, self);
        }
    }
}

/// Executes a request of one block on a simulated disk. Returns the first byte of a read.
fn execute(
    device: &SimulatedDevice,
    store: &mut dyn Store,
    operation: Operation,
    block: u64,
    value: u8,
) -> Result<u8, Failure> {
    let mut disk = Inline(device, Vec::new());
    let mut buffer = Buffer::new(BLOCK_BYTES);
    buffer.bytes_mut().fill(value);
    let buffer = Some(buffer);
    let length = BLOCK_BYTES as u32;
    let offset = block * BLOCK_BYTES as u64;
    store.submit(Submission { ticket: 1, operation, offset, length, buffer }, &mut disk);
    disk.finish(store);
    let done = store.poll().unwrap();
    done.result.map(|()| done.buffer.map_or(0, |buffer| buffer.bytes()[0]))
}

/// Writes a block durably.
fn run(device: &SimulatedDevice, store: &mut dyn Store, block: u64) -> Result<(), Failure> {
    execute(device, store, WRITE, block, 0).map(drop)
}

fn attend(device: &SimulatedDevice, store: &mut dyn Store) {
    let mut disk = Inline(device, Vec::new());
    store.attend(&mut disk);
    disk.finish(store);
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

/// Makes a copy of the anchor of [`VOLUME`] unreadable and unwritable.
fn kill_anchor(device: &SimulatedDevice, copy: usize) {
    let place = anchors_of(device, 1)[copy];
    device.make_unreadable(place, None);
    device.make_unwritable(place);
}

/// A volume whose anchor has a copy that can be neither read nor written is served by the other
/// copy, and snapshots of it can be made.
#[test]
fn a_volume_with_an_anchor_that_cannot_be_mended_is_served_by_the_other_copy() {
    for copy in [0, 1] {
        let device = written();
        kill_anchor(&device, copy);
        let pool = open(&device);
        for round in 1..4 {
            let mut store = pool.open(VOLUME, SIZE).unwrap();
            // Each opening counts it, as those before did.
            assert_eq!(pool.health().copies_mended, u64::from(round), "copy {copy}");
            for block in 0..600 {
                assert_eq!(execute(&device, store.as_mut(), WRITE, block, round), Ok(round));
            }
            let snapshot = SnapshotId::from_bits(50 + u128::from(round));
            let making = pool.snapshot(VOLUME, snapshot).unwrap();
            attend(&device, store.as_mut());
            assert_eq!(making.made.try_recv(), Ok(true));
            drop(store);
            let read = pool.read_snapshot(snapshot).unwrap().read(599).unwrap().unwrap();
            assert_eq!(read[0], round);
        }
        // A device that can write it again has both copies after the next opening.
        drop(pool);
        device.make_writable();
        drop(open(&device).open(VOLUME, SIZE).unwrap());
        kill_anchor(&device, 1 - copy);
        let pool = open(&device);
        let mut store = pool.open(VOLUME, SIZE).unwrap();
        assert_eq!(execute(&device, store.as_mut(), Operation::Read, 599, 0), Ok(3));
    }
}

/// With one copy of an anchor, a power failure at any moment loses no durable write.
#[test]
fn the_only_copy_of_an_anchor_survives_a_power_failure() {
    for (copy, power) in [0, 1].into_iter().flat_map(|copy| (0..60).map(move |power| (copy, power)))
    {
        let when = format!("copy {copy}, the power fails after {power}");
        let device = written();
        kill_anchor(&device, copy);
        let mut durable = [0; 20];
        let pool = open(&device);
        device.cut_power_after(power);
        for value in 1..3 {
            let Ok(mut store) = pool.open(VOLUME, SIZE) else { break };
            for block in 0..10 {
                let done = execute(&device, store.as_mut(), WRITE, block, value);
                durable[block as usize] = done.unwrap_or(durable[block as usize]);
            }
        }
        drop(pool);
        for seed in 0..4 {
            let after = device.crash(&mut Random::new(power, seed));
            let pool = open(&after);
            let mut store =
                pool.open(VOLUME, SIZE).unwrap_or_else(|error| panic!("{when}: {error}"));
            for block in 0..10 {
                let read = execute(&after, store.as_mut(), Operation::Read, block, 0);
                let read = read.unwrap_or_else(|error| panic!("{when}: {error:?}"));
                assert!(read >= durable[block as usize], "{when}: block {block}: {read}");
            }
        }
    }
}

/// An older copy of an anchor that cannot be replaced would be used once the other one is lost.
#[test]
fn a_volume_with_an_older_anchor_that_cannot_be_replaced_is_not_opened() {
    for copy in [0, 1] {
        let device = written();
        let place = anchors_of(&device, 1)[copy];
        let mut older = vec![0; BLOCK_BYTES];
        device.read(place, &mut older).unwrap();
        let pool = open(&device);
        run(&device, pool.open(VOLUME, SIZE).unwrap().as_mut(), 1).unwrap();
        device.write(place, &older).unwrap();
        device.make_unwritable(place);
        let error = pool.open(VOLUME, SIZE).map(drop).unwrap_err().to_string();
        assert!(error.contains("mend the anchor of vol-"), "{error}");
        device.make_writable();
        let mut store = pool.open(VOLUME, SIZE).unwrap();
        assert_eq!(run(&device, store.as_mut(), 1), Ok(()));
    }
}

/// Failed snapshots of a volume that cannot make any leave no entries in the table of volumes.
#[test]
fn a_failed_snapshot_gives_its_node_back_while_its_volume_is_open() {
    let device = written();
    let pool = open(&device);
    let mut store = pool.open(VOLUME, SIZE).unwrap();
    // The failure of the log or of a flush is one for the volume.
    for after in 0..4 {
        device.fail(after, 1, false);
        let _ = run(&device, store.as_mut(), 0);
    }
    device.fail(0, 0, false);
    assert!(store.must_reopen());
    // More than the table has entries.
    for number in 0..40 {
        let id = SnapshotId::from_bits(100 + number);
        let making = pool.snapshot(VOLUME, id).unwrap_or_else(|error| panic!("{number}: {error}"));
        attend(&device, store.as_mut());
        assert_eq!(making.made.try_recv(), Ok(false));
        pool.delete_snapshot(id).unwrap();
    }
    // Not even one that is deleted before its volume has begun it.
    for number in 0..40 {
        let id = SnapshotId::from_bits(200 + number);
        let set = [(VOLUME, id), (OTHER, SnapshotId::from_bits(300 + number))];
        drop(Pool::snapshots(&pool).unwrap().begin_set(&set).unwrap());
        Pool::snapshots(&pool).unwrap().undo_set(&set.map(|(_, id)| id)).unwrap();
    }
    pool.create(VolumeId::from_bits(20), SIZE).unwrap();
    drop((store, pool));
    let report = check(&device, true).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// A snapshot whose record may be in the log keeps its node until the next opening decides.
#[test]
fn a_failed_snapshot_whose_record_may_be_in_the_log_leaves_no_blocks() {
    let id = SnapshotId::from_bits(60);
    let mut failed = 0;
    for (after, has_effect) in (0..16).flat_map(|after| [(after, false), (after, true)]) {
        let when = format!("after {after}, {has_effect}");
        let device = written();
        let pool = open(&device);
        let mut store = pool.open(VOLUME, SIZE).unwrap();
        run(&device, store.as_mut(), 3).unwrap();
        let making = pool.snapshot(VOLUME, id).unwrap();
        device.fail(after, 40, has_effect);
        attend(&device, store.as_mut());
        device.fail(0, 0, false);
        if making.made.try_recv() != Ok(true) {
            failed += 1;
            pool.delete_snapshot(id).unwrap();
            // Its number has another use only if no log has its record.
            drop(pool.create(VolumeId::from_bits(20), SIZE));
            assert!(Pool::snapshots(&pool).unwrap().find(id).is_none(), "{when}");
        }
        drop((store, pool));
        let pool = open(&device);
        drop(pool.open(VOLUME, SIZE).unwrap());
        drop(pool);
        let report = check(&device, true).unwrap();
        assert_eq!((report.leaked, report.problems), (0, Vec::new()), "{when}");
    }
    assert!(failed > 3, "{failed} failed");
}
