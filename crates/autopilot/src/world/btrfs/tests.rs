//! The model of btrfs against what was measured on a real one, and against itself.

use proptest::prelude::*;

use super::*;

/// Creates a file system with devices of these GiB.
fn of(data: Profile, gib: &[u64]) -> Btrfs {
    let mut btrfs = Btrfs::new(data, Profile::Single);
    for (devid, gib) in (1..).zip(gib) {
        btrfs.add(devid, &format!("vol-{devid}"), gib * GIB);
    }
    btrfs
}

/// Moves all chunks of a device, as a removal does.
fn removed(btrfs: &mut Btrfs, devid: u64) -> Result<(), NoRoom> {
    btrfs.set_leaving(devid, true);
    while let Some((chunk, _)) = btrfs.next_leaving(devid) {
        let moved = btrfs.relocate(chunk);
        btrfs.invariants();
        if moved.is_err() {
            btrfs.set_leaving(devid, false);
            return Err(NoRoom);
        }
    }
    btrfs.remove(devid);
    Ok(())
}

/// Empties chunks as one step of compacting does; returns the bytes that moved.
fn compact(btrfs: &mut Btrfs, used_percent_max: u32) -> Result<u64, NoRoom> {
    let chunks = btrfs.thin(used_percent_max, 4);
    let mut moved = 0;
    while let Some((chunk, bytes)) = btrfs.next_thin(&chunks) {
        btrfs.relocate(chunk)?;
        moved += bytes;
    }
    Ok(moved)
}

/// Returns the number of stripes of each data chunk.
fn widths(btrfs: &Btrfs) -> Vec<usize> {
    btrfs.data_chunks().map(|(_, chunk)| chunk.stripes.len()).collect()
}

#[test]
fn btrfs_allocates_on_the_device_with_the_most_unallocated_bytes() {
    let mut btrfs = of(Profile::Single, &[20, 40]);
    assert_eq!(btrfs.write(15 * GIB), 15 * GIB);
    let allocated: Vec<u64> = btrfs.devices.iter().map(|device| device.allocated_bytes).collect();
    assert_eq!(allocated[0], 0, "the larger device has more unallocated bytes");
    assert!(allocated[1] >= 15 * GIB);
}

#[test]
fn btrfs_with_unequal_devices_loses_the_width_of_its_stripes() {
    let mut btrfs = of(Profile::Raid0, &[30, 20, 10]);
    btrfs.write(btrfs.room());
    let mut found = widths(&btrfs);
    found.dedup();
    assert_eq!(found, [3, 2, 1], "as measured on devices of 3, 2 and 1 GiB");
}

#[test]
fn btrfs_removal_without_room_fails_after_it_used_the_room() {
    let mut btrfs = of(Profile::Single, &[20, 20]);
    btrfs.write(26 * GIB);
    let used = btrfs.used;
    assert_eq!(removed(&mut btrfs, 2), Err(NoRoom));
    let other = btrfs.device(1).unwrap();
    assert!(other.unallocated() < GIB, "{} bytes are left", other.unallocated());
    assert_eq!(btrfs.used, used, "no byte of a file is lost");
    assert_eq!(removed(&mut btrfs, 2), Err(NoRoom), "the second try fails at once");
}

#[test]
fn btrfs_removal_moves_all_bytes_to_the_other_devices() {
    let mut btrfs = of(Profile::Single, &[20, 20, 20]);
    btrfs.write(18 * GIB);
    assert_eq!(removed(&mut btrfs, 2), Ok(()));
    assert_eq!(btrfs.used, 18 * GIB);
    assert_eq!(btrfs.devices.len(), 2);
}

#[test]
fn btrfs_cut_needs_unallocated_bytes_below_it() {
    let mut btrfs = of(Profile::Single, &[20]);
    btrfs.write(18 * GIB);
    btrfs.free(12 * GIB, Order::Scattered);
    assert_eq!(btrfs.cut(1, 10 * GIB), Err(NoRoom), "two thirds of the chunks' bytes are unused");
    while compact(&mut btrfs, 60) != Ok(0) {}
    assert_eq!(btrfs.cut(1, 10 * GIB), Ok(()));
    btrfs.invariants();
    assert_eq!((btrfs.used, btrfs.size_bytes()), (6 * GIB, 10 * GIB));
}

#[test]
fn btrfs_cut_of_an_empty_tail_moves_nothing() {
    let mut btrfs = of(Profile::Single, &[20]);
    btrfs.write(5 * GIB);
    let before = btrfs.device(1).unwrap().stripes.clone();
    assert_eq!(btrfs.cut(1, 8 * GIB), Ok(()));
    assert_eq!(btrfs.device(1).unwrap().stripes, before);
}

/// A change of a file system.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write(u64),
    Free(u64, Order),
    Grow(u64, u64),
    Cut(u64, u64),
    Compact(u32),
    Move(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let order = prop_oneof![Just(Order::Oldest), Just(Order::Newest), Just(Order::Scattered)];
    prop_oneof![
        3 => (0..6 * GIB).prop_map(Change::Write),
        2 => (0..6 * GIB, order).prop_map(|(bytes, order)| Change::Free(bytes, order)),
        1 => (1..4_u64, 1..8_u64).prop_map(|(devid, gib)| Change::Grow(devid, gib)),
        1 => (1..4_u64, 2..20_u64).prop_map(|(devid, gib)| Change::Cut(devid, gib)),
        1 => (0..101_u32).prop_map(Change::Compact),
        1 => (1..4_u64).prop_map(Change::Move),
    ]
}

fn profile() -> impl Strategy<Value = Profile> {
    prop_oneof![Just(Profile::Single), Just(Profile::Raid0), Just(Profile::Dup)]
}

fn apply(btrfs: &mut Btrfs, change: Change, used: &mut u64) {
    match change {
        Change::Write(bytes) => *used += btrfs.write(bytes),
        Change::Free(bytes, order) => {
            *used -= bytes.min(*used);
            btrfs.free(bytes, order);
        }
        Change::Grow(devid, gib) => {
            let device = btrfs.device(devid).map_or(0, |device| device.device_bytes);
            btrfs.rescan(devid, device + gib * GIB);
            btrfs.grow(devid);
        }
        Change::Cut(devid, gib) => {
            let size = btrfs.device(devid).map_or(0, |device| device.size_bytes);
            if gib * GIB < size {
                let _ = btrfs.cut(devid, gib * GIB);
            }
        }
        Change::Compact(percent) => {
            let _ = compact(btrfs, percent);
        }
        Change::Move(devid) => {
            btrfs.set_leaving(devid, true);
            if let Some((chunk, _)) = btrfs.next_leaving(devid) {
                let _ = btrfs.relocate(chunk);
            }
            btrfs.set_leaving(devid, false);
        }
    }
}

proptest! {
    #[test]
    fn btrfs_keeps_every_byte_and_its_sums(
        data in profile(),
        changes in proptest::collection::vec(change(), 1..60),
    ) {
        let mut btrfs = of(data, &[8, 12, 6]);
        let mut used = 0;
        for change in changes {
            apply(&mut btrfs, change, &mut used);
            btrfs.invariants();
            prop_assert_eq!(btrfs.used, used, "{:?}", change);
        }
    }

    #[test]
    fn btrfs_write_in_parts_equals_one_write(
        data in profile(),
        parts in proptest::collection::vec(0..3 * GIB, 1..12),
    ) {
        let mut whole = of(data, &[10, 14]);
        let mut other = whole.clone();
        whole.write(parts.iter().sum());
        for part in &parts {
            other.write(*part);
        }
        prop_assert_eq!(whole, other);
    }

    /// The room that is shown can be written, but for the rest of a chunk.
    #[test]
    fn btrfs_room_can_be_written(
        data in prop_oneof![Just(Profile::Single), Just(Profile::Raid0)],
        used in 0..20 * GIB,
    ) {
        let mut btrfs = of(data, &[10, 14]);
        btrfs.write(used);
        let room = btrfs.room();
        let written = btrfs.write(room);
        let missing = room - written;
        prop_assert!(missing <= 512 * MIB, "{} of {} bytes were not written", missing, room);
    }
}
