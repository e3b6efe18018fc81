//! Worked numbers. The device of most cases: 32 channels that deliver 32 x 10^9 ns of channel time
//! a second, a read 80 us and 4 ns a byte (16 KiB: 145,536 ns), a write 100 us and 4 ns a byte
//! (165,536 ns).

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, InvalidReservation, Ledger, LinearCost, Oversell, Refused,
    Reservation, Resource, SOLD_SHARE_PPM,
};
use evenkeel_core::time::Duration;

const DEVICE: DeviceFloor = DeviceFloor {
    time_ns_per_second: 32_000_000_000,
    costs: Costs {
        read: LinearCost { base: Duration::from_us(80), byte_ps: 4_000 },
        write: LinearCost { base: Duration::from_us(100), byte_ps: 4_000 },
    },
};

fn volume(number: u128) -> VolumeId {
    VolumeId::from_bits(number)
}

/// Returns the ledger of one device in a machine without limits of its own.
fn single() -> Ledger {
    within(DomainFloor::UNLIMITED)
}

fn within(domain: DomainFloor) -> Ledger {
    Ledger::new(DEVICE, domain, SOLD_SHARE_PPM)
}

/// Consults the ledger, and enters an admitted reservation.
fn admit(ledger: &mut Ledger, number: u128, asked: Reservation) -> Result<(), Refused> {
    ledger.consult(volume(number), &asked)?;
    Ok(ledger.enter(volume(number), asked)?)
}

#[test]
fn single_device_sells_eighty_percent_of_its_floor() {
    // 0.8 x 32 x 10^9 ns; 16 KiB cost: read 145,536, half and half 155,536, write 165,536 ns.
    for (write_ppm, sells) in [(0, 175_901), (500_000, 164_592), (1_000_000, 154_649)] {
        let like = Reservation { write_ppm, ..Reservation::of_iops(0) };
        assert_eq!(single().per_second_max(volume(1), &like), sells, "{write_ppm}");
        assert_eq!(u64::from(sells), 25_600_000_000 / (145_536 + u64::from(write_ppm) / 50));
    }
}

#[test]
fn volumes_are_admitted_until_full_and_a_refusal_says_what_is_left() {
    let mut ledger = single();
    let ask = |per_second| Reservation { write_ppm: 0, ..Reservation::of_iops(per_second) };
    for (number, left_ns) in [(1, 18_323_200_000), (2, 11_046_400_000), (3, 3_769_600_000)] {
        assert_eq!(admit(&mut ledger, number, ask(50_000)), Ok(()));
        assert_eq!(ledger.usage(Resource::DeviceTime).left(), Some(left_ns));
        assert_eq!(ledger.usage(Resource::Cpu).left(), None);
    }
    let refused = admit(&mut ledger, 4, ask(50_000)).unwrap_err();
    let Refused::Short(short) = refused else { panic!("{refused}") };
    assert_eq!((short.needed, short.available), (7_276_800_000, 3_769_600_000));
    assert_eq!((short.short_by, short.per_second_max), (3_507_200_000, 25_901));
    assert_eq!(
        refused.to_string(),
        "not enough device time: the volume needs 7276800000 ns/s, 3769600000 ns/s are left, short \
         by 3507200000 ns/s; reserve at most 25901 I/Os per second"
    );
    assert_eq!(ledger.usage(Resource::DeviceTime).left(), Some(3_769_600_000));
    assert!(admit(&mut ledger, 4, ask(25_902)).is_err());
    assert!(admit(&mut ledger, 4, ask(25_901)).is_ok());
}

#[test]
fn throughput_is_sold_at_the_length_it_is_counted_in() {
    // st1's 1 MiB: 80 us + 4,194,304 ns = 4,274,304 ns a read; 25.6 s / that = 5,989 MiB/s.
    let like = Reservation { io_bytes: 1 << 20, write_ppm: 0, ..Reservation::of_iops(10_000) };
    assert_eq!(single().per_second_max(volume(1), &like), 5_989);
    let words = single().consult(volume(1), &like).unwrap_err().to_string();
    assert!(words.ends_with("reserve at most 5989 I/Os per second of 1048576 bytes"), "{words}");
}

#[test]
fn each_resource_of_a_domain_binds_on_its_own() {
    let unlimited = DomainFloor::UNLIMITED;
    let read = LinearCost { base: Duration::from_us(10), byte_ps: 0 };
    let write = LinearCost { base: Duration::from_us(20), byte_ps: 0 };
    let cpu_costs = Costs { read, write };
    // 0.8 x 819,200,000 B/s / 8,192 B (half of 16 KiB each way) = 80,000; 0.8 x 10^9 ns / 15 us.
    for (floor, resource, sells) in [
        (
            DomainFloor { network_in_bytes_per_second: Some(819_200_000), ..unlimited },
            Resource::NetworkIn,
            80_000,
        ),
        (
            DomainFloor { network_out_bytes_per_second: Some(819_200_000), ..unlimited },
            Resource::NetworkOut,
            80_000,
        ),
        (
            DomainFloor { cpu_ns_per_second: Some(1_000_000_000), cpu_costs, ..unlimited },
            Resource::Cpu,
            53_333,
        ),
    ] {
        let ledger = within(floor);
        let ask = |per_second| Reservation::of_iops(per_second);
        assert!(ledger.consult(volume(1), &ask(sells)).is_ok(), "{resource}");
        let refused = ledger.consult(volume(1), &ask(sells + 1)).unwrap_err();
        let Refused::Short(short) = refused else { panic!("{refused}") };
        assert_eq!(short.resource, resource);
    }
}

#[test]
fn drift_refuses_growth_and_keeps_admitted_volumes() {
    let mut ledger = single();
    let ask = Reservation::of_iops;
    assert!(admit(&mut ledger, 1, ask(100_000)).is_ok());
    assert!(admit(&mut ledger, 2, ask(60_000)).is_ok());
    // 30 % slower: 22.4 x 10^9 ns, of which 17.92 x 10^9 may be sold; 24.88576 x 10^9 are.
    let slower = DeviceFloor { time_ns_per_second: 22_400_000_000, ..DEVICE };
    ledger.set_floors(slower, DomainFloor::UNLIMITED);
    let oversold_by = |ledger: &Ledger| ledger.usage(Resource::DeviceTime).oversold_by();
    assert_eq!(oversold_by(&ledger), 24_885_760_000 - 17_920_000_000);
    assert!(admit(&mut ledger, 3, ask(1)).is_err());
    assert!(admit(&mut ledger, 2, ask(60_001)).is_err());
    assert!(admit(&mut ledger, 2, ask(60_000)).is_ok());
    assert!(admit(&mut ledger, 2, ask(59_999)).is_ok());
    assert!(admit(&mut ledger, 3, ask(0)).is_ok());
    assert_eq!(ledger.remove(volume(1)), Some(ask(100_000)));
    assert_eq!(oversold_by(&ledger), 0);
}

#[test]
fn a_type_sold_twice_over_counts_half() {
    let oversell = Oversell::from_ppm(2_000_000).unwrap();
    let like = Reservation { oversell, ..Reservation::of_iops(0) };
    assert_eq!(single().per_second_max(volume(1), &like), 2 * 164_592);
    assert_eq!(Oversell::from_ppm(999_999), None);
}

#[test]
fn the_ends_of_the_range_do_not_overflow() {
    let longest = LinearCost { base: Duration::from_ns(u64::MAX), byte_ps: u32::MAX };
    let costs = Costs { read: longest, write: longest };
    let domain = DomainFloor {
        cpu_ns_per_second: Some(u64::MAX),
        cpu_costs: costs,
        network_in_bytes_per_second: Some(u64::MAX),
        network_out_bytes_per_second: Some(0),
    };
    let device = DeviceFloor { time_ns_per_second: u64::MAX, costs };
    let mut ledger = Ledger::new(device, domain, u32::MAX);
    let most = Reservation { io_bytes: u32::MAX, ..Reservation::of_iops(u32::MAX) };
    for number in 0..100 {
        assert!(ledger.enter(volume(number), most).is_ok());
    }
    let each = (u128::from(u64::MAX)
        + (u128::from(u32::MAX) * u128::from(u32::MAX)).div_ceil(1_000))
        * u128::from(u32::MAX);
    let oversold_by = ledger.usage(Resource::DeviceTime).oversold_by();
    assert_eq!(oversold_by, 100 * each - u128::from(u64::MAX));
    assert!(admit(&mut ledger, 200, most).is_err());
}

#[test]
fn invalid_reservation_is_refused_in_words() {
    let mut ledger = single();
    let reservation = Reservation { write_ppm: 1_000_001, ..Reservation::of_iops(1) };
    let invalid = InvalidReservation::MixTooLarge { write_ppm: 1_000_001 };
    assert_eq!(ledger.consult(volume(1), &reservation), Err(Refused::Invalid(invalid)));
    assert_eq!(ledger.per_second_max(volume(1), &reservation), 0);
    assert_eq!(ledger.enter(volume(1), reservation), Err(invalid));
    assert_eq!(
        invalid.to_string(),
        "1000001 of a million requests are writes: give at most 1000000"
    );
}
