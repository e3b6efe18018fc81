//! Floors given by an operator, parts of a floor, and reservations of I/Os and bytes together.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    DomainFloor, Figure, FigureDisagrees, Ledger, Oversell, PPM, Reservation, Reserved,
};
use proptest::prelude::*;

fn figure(operations_per_second: u32, mibps: u32) -> Figure {
    Figure::new(operations_per_second, mibps).unwrap()
}

fn books(figure: Figure) -> Ledger {
    Ledger::new(figure.floor(), DomainFloor::UNLIMITED, PPM)
}

fn volume(number: u128) -> VolumeId {
    VolumeId::from_bits(number)
}

#[test]
fn a_figure_sells_either_of_its_two_numbers() {
    for (operations, mibps) in [
        (10_000, 500),
        (10_000, 157),
        (10_000, 5_000),
        (64, 1),
        (2, 1),
        (4_000_000_000, 2_000_000_000),
    ] {
        let mut ledger = books(figure(operations, mibps));
        let small = Reservation::of_iops(0);
        let large = Reservation { io_bytes: 1 << 20, ..small };
        assert_eq!(ledger.per_second_max(volume(1), &small), operations, "{operations} {mibps}");
        assert_eq!(ledger.per_second_max(volume(1), &large), mibps, "{operations} {mibps}");
        let half = Reserved {
            operations_per_second: operations / 2,
            bytes_per_second: u64::from(operations / 2) << 14,
        };
        ledger.enter(volume(1), half.reservation(Oversell::NONE)).unwrap();
        assert_eq!(ledger.per_second_max(volume(2), &small), operations / 2);
    }
}

#[test]
fn numbers_that_no_device_delivers_together_are_refused() {
    for (operations, mibps, advice) in [
        (10_000, 156, "give 157 to 5000 MiB/s with these IOPS"),
        (10_000, 5_001, "give 157 to 5000 MiB/s with these IOPS"),
        (1, 1, "give at least 2 IOPS"),
        (0, 5, "give at least 2 IOPS"),
    ] {
        let error = Figure::new(operations, mibps).unwrap_err();
        assert_eq!(error, FigureDisagrees { operations_per_second: operations, mibps });
        let text =
            format!("{operations} IOPS of 16 KiB and {mibps} MiB/s do not go together: {advice}");
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn a_part_of_a_device_sells_so_much_less_and_never_more_than_all() {
    let floor = figure(10_000, 500).floor();
    let worth = |ppm| {
        let part = floor.part(ppm);
        part.reference_operations(part.time_ns_per_second.into())
    };
    assert_eq!([0, PPM / 2, PPM, 2 * PPM, u32::MAX].map(worth), [0, 5_000, 10_000, 10_000, 10_000]);
}

#[test]
fn operations_for_a_time_are_rounded_down_or_up_as_asked() {
    // An operation needs 16,384,000 ns, all of it for its bytes.
    let floor = figure(128, 2).floor();
    assert_eq!(floor.reference_operations(16_383_999), 0);
    assert_eq!(floor.reference_operations_up(16_383_999), 1);
    assert_eq!(floor.reference_operations(16_384_000), 1);
    assert_eq!(floor.reference_operations_up(16_384_001), 2);
}

proptest! {
    /// Exactly the figure's I/Os can be sold, and exactly its MiB.
    #[test]
    fn a_figure_is_exact(operations in 2_u32..10_000_000, part in 0_u32..1_000_000) {
        let least = operations.div_ceil(64);
        let mibps = least + part % (operations / 2 + 1 - least);
        let ledger = books(figure(operations, mibps));
        let small = Reservation::of_iops(0);
        let large = Reservation { io_bytes: 1 << 20, ..small };
        prop_assert_eq!(ledger.per_second_max(volume(1), &small), operations);
        prop_assert_eq!(ledger.per_second_max(volume(1), &large), mibps);
    }

    /// The reservation costs at least as much as any use within the volume's two limits.
    #[test]
    fn the_reservation_covers_every_mix(
        operations in 1_u32..100_000, each in 1_u32..262_144, used in 0_u32..100_000,
        length in 1_u32..262_144, base in 0_u64..100_000,
    ) {
        let bytes_per_second = u64::from(operations) * u64::from(each);
        let reserved = Reserved { operations_per_second: operations, bytes_per_second };
        let used = used.min(operations);
        let done = u64::from(used) * u64::from(length);
        prop_assume!(done <= bytes_per_second);
        let cost = |operations: u64, bytes: u64| operations * base + bytes;
        let reservation = reserved.reservation(Oversell::NONE);
        let n = u64::from(reservation.per_second);
        let l = u64::from(reservation.io_bytes);
        prop_assert!(cost(n, n * l) >= cost(used.into(), done));
    }
}
