//! Worked numbers. The device of most cases: 32 channels that deliver 32 x 10^9 ns of channel time
//! a second, a read 80 us and 4 ns a byte (16 KiB: 145,536 ns), a write 100 us and 4 ns a byte
//! (165,536 ns).

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::{
    Account, CARRIERS_MAX, Costs, DEVICES_MAX, DOMAINS_MAX, DeviceFloor, DeviceIndex, DomainFloor,
    DomainIndex, InvalidReservation, Ledger, LedgerFull, LinearCost, Oversell, Place, Refused,
    Reservation, Resource,
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

/// One domain without limits of its own, one device.
fn single() -> (Ledger, DomainIndex, DeviceIndex) {
    let mut ledger = Ledger::default();
    let domain = ledger.add_domain(DomainFloor::UNLIMITED).unwrap();
    let device = ledger.add_device(domain, DEVICE).unwrap().unwrap();
    (ledger, domain, device)
}

/// `domains` domains with one device each.
fn several(domains: usize) -> (Ledger, Vec<DomainIndex>, Vec<DeviceIndex>) {
    let mut ledger = Ledger::default();
    let add = |ledger: &mut Ledger| ledger.add_domain(DomainFloor::UNLIMITED).unwrap();
    let domains: Vec<_> = (0..domains).map(|_| add(&mut ledger)).collect();
    let add = |&domain| ledger.add_device(domain, DEVICE).unwrap().unwrap();
    let devices = domains.iter().map(add).collect();
    (ledger, domains, devices)
}

#[test]
fn one_device_sells_eighty_percent_of_its_floor() {
    // 0.8 x 32 x 10^9 ns; 16 KiB cost: read 145,536, half and half 155,536, write 165,536 ns.
    for (write_ppm, sells) in [(0, 175_901), (500_000, 164_592), (1_000_000, 154_649)] {
        let (ledger, _, device) = single();
        let like = Reservation { write_ppm, ..Reservation::of_iops(0, vec![device]) };
        assert_eq!(ledger.per_second_max(volume(1), &like), sells, "{write_ppm}");
        assert_eq!(u64::from(sells), 25_600_000_000 / (145_536 + u64::from(write_ppm) / 50));
    }
}

#[test]
fn the_last_volume_that_fits_is_admitted_and_the_next_is_told_what_is_left() {
    let (mut ledger, _, device) = single();
    let ask =
        |per_second| Reservation { write_ppm: 0, ..Reservation::of_iops(per_second, vec![device]) };
    for (number, left_ns) in [(1, 18_323_200_000), (2, 11_046_400_000), (3, 3_769_600_000)] {
        let admitted = ledger.admit(volume(number), ask(50_000)).unwrap();
        assert_eq!(admitted.headroom.device_ns_per_second, Some(left_ns));
        assert_eq!(admitted.headroom.cpu_ns_per_second, None);
    }
    let refused = ledger.admit(volume(4), ask(50_000)).unwrap_err();
    let Refused::Short(short) = refused else { panic!("{refused}") };
    assert_eq!((short.needed, short.available), (7_276_800_000, 3_769_600_000));
    assert_eq!((short.short_by, short.per_second_max), (3_507_200_000, 25_901));
    assert_eq!(
        refused.to_string(),
        "not enough device time of device 0: the volume needs 7276800000 ns/s, 3769600000 ns/s are \
         left, short by 3507200000 ns/s; reserve at most 25901 I/Os per second, or put it on \
         another device"
    );
    assert_eq!(ledger.reservation(volume(4)), None);
    assert!(ledger.admit(volume(4), ask(25_902)).is_err());
    assert!(ledger.admit(volume(4), ask(25_901)).is_ok());
}

#[test]
fn throughput_is_sold_at_the_length_it_is_counted_in() {
    // st1's 1 MiB: 80 us + 4,194,304 ns = 4,274,304 ns a read; 25.6 s / that = 5,989 MiB/s.
    let (ledger, _, device) = single();
    let like = Reservation {
        io_bytes: 1 << 20,
        write_ppm: 0,
        ..Reservation::of_iops(10_000, vec![device])
    };
    assert_eq!(ledger.per_second_max(volume(1), &like), 5_989);
    let words = ledger.consult(volume(1), &like).unwrap_err().to_string();
    assert!(words.contains("reserve at most 5989 I/Os per second of 1048576 bytes"), "{words}");
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
        let (mut ledger, domain, device) = single();
        ledger.set_domain_floor(domain, floor);
        let ask = |per_second| Reservation::of_iops(per_second, vec![device]);
        assert!(ledger.consult(volume(1), &ask(sells)).is_ok(), "{resource}");
        let refused = ledger.consult(volume(1), &ask(sells + 1)).unwrap_err();
        let Refused::Short(short) = refused else { panic!("{refused}") };
        let place = Place::Domain(domain);
        assert_eq!(short.account, Account { lost: None, place, resource });
        assert!(refused.to_string().ends_with("or put it on a device of another domain"));
    }
}

#[test]
fn two_domains_may_sell_what_one_can_carry() {
    let (mut ledger, domains, devices) = several(2);
    // Half on each side: together the floor of one device, 164,592 mixed IOPS.
    let ask = |per_second, first: usize| {
        Reservation::of_iops(per_second, vec![devices[first], devices[1 - first]])
    };
    assert!(ledger.admit(volume(1), ask(82_296, 0)).is_ok());
    assert!(ledger.admit(volume(2), ask(82_296, 1)).is_ok());
    let refused = ledger.admit(volume(3), ask(1, 1)).unwrap_err();
    let Refused::Short(short) = refused else { panic!("{refused}") };
    // At present there is room; without domain 0 everyone is on device 1.
    let (place, resource) = (Place::Device(devices[1]), Resource::DeviceTime);
    let lost = Some(domains[0]);
    assert_eq!(short.account, Account { lost, place, resource });
    let words = refused.to_string();
    assert!(words.contains("device 1 after the loss of domain 0"), "{words}");
    assert!(words.ends_with("or name another device to take over"), "{words}");
}

#[test]
fn three_domains_may_sell_two_thirds() {
    let (mut ledger, _, devices) = several(3);
    // Each domain's volumes are taken over half by one neighbour, half by the other: what is sold
    // of a device is 2/3 of 164,592.
    let ask = |a: usize, b: usize| Reservation::of_iops(54_864, vec![devices[a], devices[b]]);
    for (number, (a, b)) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)].iter().enumerate() {
        assert!(ledger.admit(volume(number.try_into().unwrap()), ask(*a, *b)).is_ok());
    }
    let one_more = Reservation::of_iops(1, vec![devices[0], devices[1]]);
    assert!(ledger.admit(volume(9), one_more).is_err());
    assert!(ledger.oversold().is_empty());
}

#[test]
fn a_volume_with_nowhere_to_go_is_refused_where_there_are_several_domains() {
    let (mut ledger, _, devices) = several(2);
    let refused = ledger.admit(volume(1), Reservation::of_iops(100, vec![devices[1]]));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "not enough standby devices outside domain 1: the volume needs 100 I/Os per second, 0 I/Os \
         per second are left, short by 100 I/Os per second; reserve at most 0 I/Os per second, or \
         name a device outside domain 1 to take over"
    );
    assert!(ledger.admit(volume(1), Reservation::of_iops(0, vec![devices[1]])).is_ok());
}

#[test]
fn a_second_domain_strands_who_names_no_device_there_and_lets_it_shrink() {
    let (mut ledger, _, device) = single();
    assert!(ledger.admit(volume(1), Reservation::of_iops(100, vec![device])).is_ok());
    ledger.add_domain(DomainFloor::UNLIMITED).unwrap();
    let [stranded] = ledger.oversold()[..] else { panic!("{:?}", ledger.oversold()) };
    assert_eq!((stranded.account.resource, stranded.by), (Resource::Standby, 100));
    assert!(ledger.admit(volume(1), Reservation::of_iops(101, vec![device])).is_err());
    assert!(ledger.admit(volume(1), Reservation::of_iops(99, vec![device])).is_ok());
}

#[test]
fn drift_is_told_refuses_growth_and_throws_nobody_out() {
    let (mut ledger, _, device) = single();
    let ask = |per_second| Reservation::of_iops(per_second, vec![device]);
    assert!(ledger.admit(volume(1), ask(100_000)).is_ok());
    assert!(ledger.admit(volume(2), ask(60_000)).is_ok());
    // 30 % slower: 22.4 x 10^9 ns, of which 17.92 x 10^9 may be sold; 24.88576 x 10^9 are.
    let slower = DeviceFloor { time_ns_per_second: 22_400_000_000, ..DEVICE };
    ledger.set_device_floor(device, slower);
    let [oversold] = ledger.oversold()[..] else { panic!("{:?}", ledger.oversold()) };
    assert_eq!(oversold.by, 24_885_760_000 - 17_920_000_000);
    assert_eq!(
        oversold.to_string(),
        "device time of device 0 oversold by 6965760000 ns/s: 24885760000 ns/s are reserved, \
         17920000000 ns/s may be; reserve less, or move volumes elsewhere"
    );
    assert!(ledger.admit(volume(3), ask(1)).is_err());
    assert!(ledger.admit(volume(2), ask(60_001)).is_err());
    assert!(ledger.admit(volume(2), ask(60_000)).is_ok());
    assert!(ledger.admit(volume(2), ask(59_999)).is_ok());
    assert!(ledger.admit(volume(3), ask(0)).is_ok());
    assert_eq!(ledger.remove(volume(1)), Some(ask(100_000)));
    assert!(ledger.oversold().is_empty());
}

#[test]
fn a_type_sold_twice_over_counts_half() {
    let (ledger, _, device) = single();
    let oversell = Oversell::from_ppm(2_000_000).unwrap();
    let like = Reservation { oversell, ..Reservation::of_iops(0, vec![device]) };
    assert_eq!(ledger.per_second_max(volume(1), &like), 2 * 164_592);
    assert_eq!(Oversell::from_ppm(999_999), None);
}

#[test]
fn the_ends_of_the_range_do_not_overflow() {
    let mut ledger = Ledger::new(u32::MAX);
    let longest = LinearCost { base: Duration::from_ns(u64::MAX), byte_ps: u32::MAX };
    let costs = Costs { read: longest, write: longest };
    let floor = DomainFloor {
        cpu_ns_per_second: Some(u64::MAX),
        cpu_costs: costs,
        network_in_bytes_per_second: Some(u64::MAX),
        network_out_bytes_per_second: Some(0),
    };
    let domain = ledger.add_domain(floor).unwrap();
    let floor = DeviceFloor { time_ns_per_second: u64::MAX, costs };
    let device = ledger.add_device(domain, floor).unwrap().unwrap();
    let most = Reservation { io_bytes: u32::MAX, ..Reservation::of_iops(u32::MAX, vec![device]) };
    for number in 0..100 {
        assert!(ledger.restore(volume(number), most.clone()).is_ok());
    }
    let each = (u128::from(u64::MAX)
        + (u128::from(u32::MAX) * u128::from(u32::MAX)).div_ceil(1_000))
        * u128::from(u32::MAX);
    assert_eq!(ledger.oversold()[0].by, 100 * each - u128::from(u64::MAX));
    assert!(ledger.admit(volume(200), most).is_err());
}

#[test]
fn what_makes_no_sense_is_refused_in_words() {
    let (mut ledger, domain, device) = single();
    let (other, _, devices) = several(2);
    let ask = |carriers| Reservation::of_iops(1, carriers);
    for (reservation, invalid, words) in [
        (ask(vec![]), InvalidReservation::NoCarrier, "names no device: name the one it is on"),
        (
            ask(vec![device; CARRIERS_MAX + 1]),
            InvalidReservation::TooManyCarriers { named: 17 },
            "names 17 devices: name at most 16",
        ),
        (
            ask(vec![device, device]),
            InvalidReservation::CarrierTwice { device },
            "names device 0 twice: name it once",
        ),
        (
            ask(vec![device, devices[1]]),
            InvalidReservation::NoSuchDevice { device: devices[1] },
            "there is no device 1: add it to the ledger first",
        ),
        (
            Reservation { write_ppm: 1_000_001, ..ask(vec![device]) },
            InvalidReservation::MixTooLarge { write_ppm: 1_000_001 },
            "1000001 of a million requests are writes: give at most 1000000",
        ),
    ] {
        assert_eq!(ledger.consult(volume(1), &reservation), Err(Refused::Invalid(invalid)));
        assert_eq!(ledger.per_second_max(volume(1), &reservation), 0);
        assert!(invalid.to_string().ends_with(words), "{invalid}");
        assert_eq!(ledger.restore(volume(1), reservation), Err(invalid));
    }
    drop(other);
    for _ in 1..DEVICES_MAX {
        assert!(ledger.add_device(domain, DEVICE).is_ok());
    }
    assert_eq!(ledger.add_device(domain, DEVICE), Err(LedgerFull::Devices));
    for _ in 1..DOMAINS_MAX {
        assert!(ledger.add_domain(DomainFloor::UNLIMITED).is_ok());
    }
    let full = ledger.add_domain(DomainFloor::UNLIMITED).unwrap_err();
    assert_eq!(
        full.to_string(),
        "there are 64 failure domains, the most a ledger keeps: keep another ledger for the rest"
    );
}
