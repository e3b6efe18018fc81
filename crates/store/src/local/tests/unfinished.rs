//! Work that cannot be finished of one volume is that volume's trouble: the pool opens, and all
//! others are served.

use super::super::simulated::SimulatedDevice;
use super::crashed::{DURABLE, Held, ID, SIZE, WRITE, empty, open, prove, read};
use super::*;

const OTHER: VolumeId = VolumeId::from_bits(9);
const FIRST: SnapshotId = SnapshotId::from_bits(21);
const SECOND: SnapshotId = SnapshotId::from_bits(22);

/// Returns the byte offsets of the copies of a node's anchor.
pub(super) fn anchors_of(device: &SimulatedDevice, node: u32) -> Vec<u64> {
    let places = (0..64).flat_map(|chunk| [chunk << 20, (chunk << 20) + BLOCK_BYTES as u64]);
    let is_anchor = |place: &u64| {
        let mut block = vec![0; BLOCK_BYTES];
        device.read(*place, &mut block).unwrap();
        block.starts_with(b"EVKANCHR") && block[12..16] == node.to_le_bytes()
    };
    places.filter(is_anchor).collect()
}

fn free(pool: &LocalPool) -> ByteCount {
    pool.space().unwrap().unwrap().free
}

/// Creates a pool with two volumes; the first has two snapshots, and is node 1.
fn with_snapshots() -> SimulatedDevice {
    let device = empty();
    let pool = open(&device).unwrap();
    for id in [ID, OTHER] {
        pool.create(id, SIZE).unwrap();
        let mut store = pool.open(id, SIZE).unwrap();
        let mut held = Held::new(&device);
        (0..40).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, 1)));
    }
    for (snapshot, value) in [(FIRST, 2), (SECOND, 3)] {
        assert!(pool.snapshot(ID, snapshot).unwrap().made.recv().unwrap());
        let mut store = pool.open(ID, SIZE).unwrap();
        let mut held = Held::new(&device);
        (0..9).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, value)));
    }
    device
}

fn rot_anchors(device: &SimulatedDevice) {
    let places = anchors_of(device, 1);
    assert_eq!(places.len(), 2);
    places.iter().for_each(|place| device.rot(place + 100));
}

fn first_of(pool: &LocalPool, id: SnapshotId) -> u8 {
    pool.read_snapshot(id).unwrap().read(0).unwrap().unwrap()[0]
}

/// Checks that the other volume is served, and that the pool has only its data in the end.
fn only_the_other_is_left(device: &SimulatedDevice, pool: LocalPool, when: &str) {
    assert_eq!(pool.list().unwrap(), [(OTHER, SIZE)], "{when}");
    let mut store = pool.open(OTHER, SIZE).unwrap();
    assert_eq!(read(store.as_mut(), device, 39), 1, "{when}");
    drop(store);
    assert_eq!((pool.troubles(), pool.snapshots()), (vec![], vec![]), "{when}");
    pool.delete(OTHER).unwrap();
    let total = pool.space().unwrap().unwrap().total;
    assert_eq!(free(&pool), total, "{when}");
    drop(pool);
    prove(device, when);
}

#[test]
fn damaged_remainder_is_reported_and_its_snapshots_are_served() {
    let device = with_snapshots();
    let pool = open(&device).unwrap();
    pool.delete(ID).unwrap();
    drop(pool);
    rot_anchors(&device);
    let pool = open(&device).unwrap();
    assert_eq!([FIRST, SECOND].map(|id| first_of(&pool, id)), [1, 2]);
    let before = free(&pool);
    pool.delete_snapshot(FIRST).unwrap();
    drop(pool);
    let pool = open(&device).unwrap();
    let troubles = pool.troubles();
    let health = pool.health();
    assert_eq!(health.unfinished + health.without_space, troubles.len() as u64, "{health:?}");
    let [trouble] = troubles.as_slice() else { panic!("{troubles:?}") };
    assert!(trouble.what.starts_with("what is left of vol-"), "{trouble:?}");
    assert!(trouble.why.contains("the anchor of vol-"), "{trouble:?}");
    assert_eq!(free(&pool), before, "its chunks are nobody else's");
    assert_eq!(first_of(&pool, SECOND), 2);
    // None of its blocks is needed any more.
    pool.delete_snapshot(SECOND).unwrap();
    only_the_other_is_left(&device, pool, "a damaged remainder");
}

#[test]
fn a_damaged_volume_can_be_deleted_and_its_snapshots_stay() {
    let device = with_snapshots();
    rot_anchors(&device);
    let pool = open(&device).unwrap();
    assert!(pool.open(ID, SIZE).is_err());
    pool.delete(ID).unwrap();
    assert_eq!(pool.list().unwrap(), [(OTHER, SIZE)]);
    assert_eq!([FIRST, SECOND].map(|id| first_of(&pool, id)), [1, 2]);
    drop(pool);
    let pool = open(&device).unwrap();
    pool.delete_snapshot(SECOND).unwrap();
    pool.delete_snapshot(FIRST).unwrap();
    only_the_other_is_left(&device, pool, "a damaged volume");
}

/// Whichever write fails while the pool finishes a deletion: the pool opens, and the next opening
/// finishes it.
#[test]
fn a_deletion_that_fails_as_the_pool_is_opened_is_finished_by_a_later_opening() {
    let mut was_cut = true;
    let mut power = 0;
    let mut troubled = 0;
    while was_cut {
        let device = with_snapshots();
        let pool = open(&device).unwrap();
        device.cut_power_after(2);
        assert!(pool.delete(ID).is_ok() || device.is_dark());
        device.go_on();
        drop(pool);
        device.cut_power_after(power);
        match open(&device) {
            Err(error) => assert!(power < 8, "after {power}: {error}"),
            Ok(pool) => troubled += pool.troubles().len(),
        }
        was_cut = device.is_dark();
        device.go_on();
        let pool = open(&device).unwrap();
        assert_eq!([FIRST, SECOND].map(|id| first_of(&pool, id)), [1, 2]);
        pool.delete(ID).unwrap();
        pool.delete_snapshot(FIRST).unwrap();
        pool.delete_snapshot(SECOND).unwrap();
        only_the_other_is_left(&device, pool, &format!("the device fails after {power}"));
        power += 1;
    }
    assert!(troubled > 3, "{troubled} of {power}");
}

/// A crash during the deletion of the last snapshot of a deleted volume leaves the snapshot, or all
/// space is free.
#[test]
fn a_remainder_is_cleared_whenever_the_power_fails() {
    let mut was_cut = true;
    let mut power = 0;
    while was_cut {
        let device = with_snapshots();
        let pool = open(&device).unwrap();
        pool.delete(ID).unwrap();
        device.cut_power_after(power);
        for id in [FIRST, SECOND] {
            let _ = pool.delete_snapshot(id);
        }
        was_cut = device.is_dark();
        drop(pool);
        let device = device.crash(&mut evenkeel_core::random::Random::new(power, 0));
        let pool = open(&device).unwrap();
        assert_eq!(pool.troubles(), []);
        for id in [FIRST, SECOND] {
            pool.delete_snapshot(id).unwrap();
        }
        only_the_other_is_left(&device, pool, &format!("the power fails after {power}"));
        power += 1;
    }
    assert!(power > 8, "{power}");
}

/// A volume with a snapshot is deleted on a full pool. If there is no space for that, the pool
/// opens all the same, and finishes the deletion when there is space.
#[test]
fn a_volume_with_a_snapshot_is_deleted_on_a_full_pool() {
    for chunks in [14, 24] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(file.path(), false).unwrap());
        let layout = Layout { chunks_max: chunks, nodes: 63, ..LAYOUT };
        LocalPool::init(device.as_ref(), &layout).unwrap();
        let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
        let size = ByteCount(u64::from(chunks) << 21);
        pool.create(OTHER, SIZE).unwrap();
        assert_eq!(run(pool.open(OTHER, SIZE).unwrap().as_mut(), DURABLE, 0, 7), Ok(7));
        pool.create(ID, size).unwrap();
        let mut store = pool.open(ID, size).unwrap();
        let full = (0..).find(|block| run(store.as_mut(), WRITE, *block, 1).is_err()).unwrap();
        drop(store);
        let begun = pool.snapshot(ID, FIRST);
        let is_made = begun.is_ok_and(|making| making.made.try_recv() == Ok(true));
        if let Ok(mut store) = pool.open(ID, size) {
            for block in 0..full {
                let _ = run(store.as_mut(), WRITE, block, 2);
            }
        }
        let _ = pool.delete(ID);
        drop(pool);
        let pool = LocalPool::open(Arc::clone(&device), Bounds::default()).unwrap();
        assert_eq!(run(pool.open(OTHER, SIZE).unwrap().as_mut(), Operation::Read, 0, 0), Ok(7));
        assert!(is_made, "{chunks} chunks");
        assert_eq!(first_of(&pool, FIRST), 1);
        pool.delete(OTHER).unwrap();
        assert_eq!(pool.troubles(), [], "{chunks} chunks");
        pool.delete_snapshot(FIRST).unwrap();
        assert_eq!(free(&pool), pool.space().unwrap().unwrap().total, "{chunks} chunks");
    }
}
