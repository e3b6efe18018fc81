//! Snapshots of several volumes are made all or none, even if the power fails meanwhile.

use super::super::simulated::SimulatedDevice;
use super::crashed::{DURABLE, Held, SIZE, WRITE, empty, open, prove, read};
use super::*;
use crate::snapshots::Making;
use evenkeel_core::random::Random;

fn volume(number: u8) -> VolumeId {
    VolumeId::from_bits(u128::from(number))
}

fn snapshot(number: u8) -> SnapshotId {
    SnapshotId::from_bits(u128::from(number) + 100)
}

/// Begins a set of snapshots. If the volumes are open, their stores make it in any order. Returns
/// whether all are made according to the answers.
fn make_set(
    pool: &LocalPool,
    stores: &mut [(Box<dyn Store>, Held)],
    count: u8,
    random: &mut Random,
) -> bool {
    let set: Vec<_> = (1..=count).map(|number| (volume(number), snapshot(number))).collect();
    let Ok(begun) = Pool::snapshots(pool).unwrap().begin_set(&set) else { return false };
    for (store, held) in stores.iter_mut() {
        // Writes under way may be in the snapshot or not.
        held.begin(store.as_mut(), WRITE, 1, 2);
        store.attend(held);
        held.begin(store.as_mut(), DURABLE, 2, 2);
    }
    let mut all_made = vec![false; begun.len()];
    loop {
        for (is_made, Making { made, .. }) in all_made.iter_mut().zip(&begun) {
            *is_made |= made.try_recv() == Ok(true);
        }
        let busy: Vec<usize> =
            (0..stores.len()).filter(|number| !stores[*number].1.ops.is_empty()).collect();
        if busy.is_empty() || all_made.iter().all(|is_made| *is_made) && random.one_in(10) {
            return all_made.iter().all(|is_made| *is_made);
        }
        let (store, held) = &mut stores[random.among(&busy)];
        let number = random.below(held.ops.len() as u64) as usize;
        held.answer(store.as_mut(), number);
    }
}

/// Opens the pool after a crash, and checks that it has all snapshots of a set or none. Returns
/// whether it has them.
fn found(device: &SimulatedDevice, count: u8, when: &str) -> bool {
    let pool = open(device).unwrap();
    assert_eq!(pool.troubles(), [], "{when}");
    let listed = pool.snapshots();
    assert!(listed.iter().all(|snapshot| snapshot.is_complete), "{when}: {listed:?}");
    let is_there = !listed.is_empty();
    assert!(!is_there || listed.len() == usize::from(count), "{when}: {listed:?}");
    for number in 1..=count {
        if is_there {
            let mut reader = pool.read_snapshot(snapshot(number)).unwrap();
            assert_eq!(reader.read(0).unwrap().unwrap()[0], 1, "{when}");
            assert_eq!(reader.read(2).unwrap().unwrap()[0], 1, "{when}");
        }
        let mut store = pool.open(volume(number), SIZE).unwrap();
        assert_eq!(read(store.as_mut(), device, 0), 1, "{when}");
    }
    drop(pool);
    prove(device, when);
    is_there
}

fn cut_at_each_write(is_open: bool) {
    for count in [2, 4] {
        let mut was_cut = true;
        let mut kept = 0;
        let mut power = 0;
        while was_cut {
            let mut random = Random::new(power, u64::from(count));
            let device = empty();
            let pool = open(&device).unwrap();
            let mut stores = Vec::new();
            for number in 1..=count {
                pool.create(volume(number), SIZE).unwrap();
                let mut store = pool.open(volume(number), SIZE).unwrap();
                let mut held = Held::new(&device);
                (0..3).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, 1)));
                if is_open {
                    stores.push((store, held));
                }
            }
            device.cut_power_after(power);
            let is_answered = make_set(&pool, &mut stores, count, &mut random);
            was_cut = device.is_dark();
            let device = device.crash(&mut random);
            let when = format!("{count} volumes, open: {is_open}, the power fails after {power}");
            let is_there = found(&device, count, &when);
            assert!(is_there || !is_answered, "{when}: what was answered is lost");
            // Another opening finds the same.
            assert_eq!(found(&device, count, &when), is_there, "{when}");
            kept += u32::from(is_there);
            power += 1;
        }
        assert!(power > 20 && kept > 2, "{count} volumes: {power} cuts, {kept} sets kept");
    }
}

#[test]
fn a_power_failure_leaves_all_snapshots_of_closed_volumes_or_none() {
    cut_at_each_write(false);
}

#[test]
fn a_power_failure_leaves_all_snapshots_of_open_volumes_or_none() {
    cut_at_each_write(true);
}

/// The power fails again while the opening decides what to keep.
#[test]
fn a_power_failure_while_a_set_is_settled_leaves_all_or_none() {
    let count = 3;
    for first in (4..60).step_by(3) {
        let mut was_cut = true;
        let mut second = 0;
        while was_cut {
            let mut random = Random::new(first, second);
            let device = empty();
            let pool = open(&device).unwrap();
            for number in 1..=count {
                pool.create(volume(number), SIZE).unwrap();
                let mut store = pool.open(volume(number), SIZE).unwrap();
                let mut held = Held::new(&device);
                (0..3).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, 1)));
            }
            device.cut_power_after(first);
            make_set(&pool, &mut [], count, &mut random);
            let device = device.crash(&mut random);
            device.cut_power_after(second);
            let _ = open(&device);
            was_cut = device.is_dark();
            let device = device.crash(&mut random);
            found(&device, count, &format!("the power fails after {first}, then after {second}"));
            second += 1;
        }
    }
}

/// One volume of a set cannot make its snapshot: none of the others stays.
#[test]
fn a_set_with_a_damaged_volume_is_refused_as_a_whole() {
    let device = empty();
    let pool = open(&device).unwrap();
    for number in 1..=3 {
        pool.create(volume(number), SIZE).unwrap();
        let mut store = pool.open(volume(number), SIZE).unwrap();
        let mut held = Held::new(&device);
        (0..3).for_each(|block| _ = held.carry_out(store.as_mut(), (DURABLE, block, 1)));
    }
    for place in unfinished::anchors_of(&device, 2) {
        device.rot(place + 100);
    }
    let mut random = Random::new(1, 1);
    let free = pool.space().unwrap().unwrap().free;
    assert!(!make_set(&pool, &mut [], 3, &mut random));
    assert_eq!(pool.snapshots(), []);
    drop(pool);
    let pool = open(&device).unwrap();
    assert_eq!(pool.snapshots(), []);
    assert!(pool.space().unwrap().unwrap().free >= free);
    for number in [1, 3] {
        assert!(pool.snapshot(volume(number), snapshot(number)).unwrap().made.recv().unwrap());
    }
}

/// One of a set is deleted as soon as it is made, and the power fails: the others stay.
#[test]
fn a_snapshot_of_a_set_that_is_deleted_takes_no_other_with_it() {
    let device = empty();
    let pool = open(&device).unwrap();
    for number in 1..=3 {
        pool.create(volume(number), SIZE).unwrap();
    }
    let mut random = Random::new(1, 1);
    assert!(make_set(&pool, &mut [], 3, &mut random));
    pool.delete_snapshot(snapshot(2)).unwrap();
    let device = device.crash(&mut random);
    let pool = open(&device).unwrap();
    let left: Vec<SnapshotId> = pool.snapshots().iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(left, [snapshot(1), snapshot(3)]);
    drop(pool);
    prove(&device, "one of three is deleted");
}
