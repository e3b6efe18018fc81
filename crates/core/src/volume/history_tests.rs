//! Every dated rulebook, held against a table of its own: what could be bought when.

use super::*;
use crate::units::MIB;
use std::string::{String, ToString};
use std::vec::Vec;

use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};

fn at(date: &str) -> &'static Rules {
    Rules::as_of(date.parse().unwrap()).unwrap()
}

fn spec(rules: &Rules, t: VolumeType, size_gib: u32, iops: Option<u32>) -> VolumeSpec {
    let request = VolumeRequest {
        volume_type: t,
        size_gib,
        iops,
        throughput_mibps: None,
        multi_attach: false,
    };
    rules.resolve(&request).unwrap()
}

/// Most MiB/s of any volume of a type: that of the largest with the most IOPS.
fn mibps_max(rules: &Rules, t: VolumeType) -> u64 {
    let type_rules = rules.of(t).unwrap();
    let largest =
        spec(rules, t, type_rules.size_gib_max, type_rules.iops_max(type_rules.size_gib_max));
    rules.pacing(&largest).bytes.unwrap().per_second / MIB
}

#[test]
fn every_date_has_its_rulebook() {
    let dates: Vec<String> = Rules::all().iter().map(|r| r.date().to_string()).collect();
    assert_eq!(
        dates,
        [
            "2012-08-01",
            "2012-12-01",
            "2013-10-17",
            "2014-07-31",
            "2014-11-11",
            "2015-04-02",
            "2016-04-18",
            "2016-12-01",
            "2017-02-14",
            "2017-12-06",
            "2018-12-03",
            "2020-08-24",
            "2020-12-01",
            "2021-07-20",
            "2023-11-21",
            "2025-04-30",
            "2025-09-26",
            "2026-01-15",
        ]
    );
    assert_eq!(Rules::newest(), Rules::all().last().unwrap());
}

#[test]
fn rules_hold_from_their_date_to_the_next() {
    for pair in Rules::all().windows(2) {
        let older = &pair[0];
        let newer = &pair[1];
        assert_eq!(Rules::as_of(older.date()), Ok(older));
        assert_eq!(Rules::as_of(newer.date()), Ok(newer));
        let Date { year, month, day } = newer.date();
        // Any day before; whether it is in the calendar does not matter to the order of dates.
        let before = Date { year, month, day: day - 1 };
        assert_eq!(Rules::as_of(before), Ok(older));
    }
    assert_eq!(at("2199-01"), Rules::newest());
    let error = Rules::as_of("2012-07".parse().unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no volume rules are known for 2012-07-31; the oldest are those of 2012-08-01: choose \
         that date or a later one"
    );
}

#[test]
fn types_appear_and_never_go() {
    let first =
        |t: VolumeType| Rules::all().iter().find(|r| r.offers(t)).unwrap().date().to_string();
    assert_eq!(
        VolumeType::ALL.map(first),
        [
            "2012-08-01",
            "2016-04-18",
            "2016-04-18",
            "2014-07-31",
            "2020-12-01",
            "2012-08-01",
            "2020-08-24"
        ]
    );
    for pair in Rules::all().windows(2) {
        for t in VolumeType::ALL {
            assert!(pair[1].offers(t) || !pair[0].offers(t), "{t} goes on {}", pair[1].date());
        }
    }
}

#[test]
fn io1_as_it_was() {
    // Date; GiB least and most; most IOPS; IOPS per GiB; most MiB/s.
    let table = [
        ("2012-08", 10, 1_024, 1_000, 10, 128),
        ("2012-12", 10, 1_024, 2_000, 10, 128),
        ("2013-10", 10, 1_024, 4_000, 30, 128),
        ("2014-07", 10, 1_024, 4_000, 30, 128),
        ("2014-11", 4, 1_024, 4_000, 30, 128),
        ("2015-04", 4, 16_384, 20_000, 30, 320),
        ("2016-04", 4, 16_384, 20_000, 30, 320),
        ("2016-06", 4, 16_384, 20_000, 30, 320),
        ("2016-12", 4, 16_384, 20_000, 50, 320),
        ("2017-02", 4, 16_384, 20_000, 50, 320),
        ("2017-12", 4, 16_384, 32_000, 50, 500),
        ("2018-12", 4, 16_384, 64_000, 50, 1_000),
        ("2020-08", 4, 16_384, 64_000, 50, 1_000),
        ("2020-12", 4, 16_384, 64_000, 50, 1_000),
        ("2021-07", 4, 16_384, 64_000, 50, 1_000),
        ("2023-11", 4, 16_384, 64_000, 50, 1_000),
        ("2025-04", 4, 16_384, 64_000, 50, 1_000),
        ("2025-09", 4, 16_384, 64_000, 50, 1_000),
        ("2026-01", 4, 16_384, 64_000, 50, 1_000),
    ];
    for (date, least, most, iops, per_gib, mibps) in table {
        let rules = at(date);
        let io1 = rules.of(Io1).unwrap();
        assert_eq!((io1.size_gib_min, io1.size_gib_max), (least, most), "{date}");
        assert_eq!(io1.iops_max(most), Some(iops), "{date}");
        assert_eq!(io1.iops_max(20), Some(20 * per_gib), "{date}");
        assert_eq!(mibps_max(rules, Io1), mibps, "{date}");
    }
}

#[test]
fn gp2_as_it_was() {
    // Date; most GiB; baseline of 1 GiB and of the largest; MiB/s of 100 GiB and of the largest.
    let table = [
        ("2014-07", 1_024, 3, 3_072, 128, 128),
        ("2014-11", 1_024, 3, 3_072, 128, 128),
        ("2015-04", 16_384, 3, 10_000, 160, 160),
        ("2016-04", 16_384, 100, 10_000, 128, 160),
        ("2016-12", 16_384, 100, 10_000, 128, 160),
        ("2017-02", 16_384, 100, 10_000, 128, 160),
        ("2017-12", 16_384, 100, 10_000, 128, 160),
        ("2018-12", 16_384, 100, 16_000, 128, 250),
        ("2020-08", 16_384, 100, 16_000, 128, 250),
        ("2026-01", 16_384, 100, 16_000, 128, 250),
    ];
    for (date, most, of_1, of_most, mibps_100, mibps) in table {
        let rules = at(date);
        assert_eq!(rules.of(Gp2).unwrap().size_gib_max, most, "{date}");
        assert_eq!(spec(rules, Gp2, 1, None).iops, Some(of_1), "{date}");
        assert_eq!(spec(rules, Gp2, most, None).iops, Some(of_most), "{date}");
        let of_100 = rules.pacing(&spec(rules, Gp2, 100, None));
        assert_eq!(of_100.bytes.unwrap().per_second, mibps_100 * MIB, "{date}");
        assert_eq!(of_100.operations.unwrap().credit.unwrap().capacity, 5_400_000, "{date}");
        assert_eq!(mibps_max(rules, Gp2), mibps, "{date}");
    }
}

#[test]
fn the_other_types_as_they_were() {
    for (date, least) in
        [("2016-04", 500), ("2018-12", 500), ("2020-08", 500), ("2020-12", 125), ("2026-01", 125)]
    {
        for (t, burst) in [(St1, 500), (Sc1, 250)] {
            let type_rules = at(date).of(t).unwrap();
            assert_eq!(
                (type_rules.size_gib_min, type_rules.size_gib_max),
                (least, 16_384),
                "{t} {date}"
            );
            assert_eq!(mibps_max(at(date), t), burst, "{t} {date}");
        }
    }
    // Date; most GiB; most IOPS.
    for (date, most, iops) in [
        ("2020-12", 16_384, 16_000),
        ("2021-07", 16_384, 16_000),
        ("2025-04", 16_384, 16_000),
        ("2025-09", 65_536, 80_000),
        ("2026-01", 65_536, 80_000),
    ] {
        let gp3 = at(date).of(Gp3).unwrap();
        assert_eq!((gp3.size_gib_max, gp3.iops_max(most)), (most, Some(iops)), "{date}");
    }
    // Date; most GiB; IOPS per GiB; most IOPS; most MiB/s.
    for (date, most, per_gib, iops, mibps) in [
        ("2020-08", 16_384, 500, 64_000, 1_000),
        ("2020-12", 16_384, 500, 64_000, 1_000),
        ("2021-07", 16_384, 500, 64_000, 1_000),
        ("2023-11", 65_536, 1_000, 256_000, 4_000),
        ("2025-04", 65_536, 1_000, 256_000, 4_000),
        ("2025-09", 65_536, 1_000, 256_000, 4_000),
    ] {
        let io2 = at(date).of(Io2).unwrap();
        assert_eq!((io2.size_gib_min, io2.size_gib_max), (4, most), "{date}");
        assert_eq!(
            (io2.iops_max(4), io2.iops_max(most)),
            (Some(4 * per_gib), Some(iops)),
            "{date}"
        );
        assert_eq!(mibps_max(at(date), Io2), mibps, "{date}");
    }
    for rules in Rules::all() {
        let standard = rules.of(Standard).unwrap();
        assert_eq!((standard.size_gib_min, standard.size_gib_max), (1, 1_024));
        let pacing = rules.pacing(&spec(rules, Standard, 1, None));
        assert_eq!(pacing.operations.unwrap().per_second, 200);
        assert_eq!(pacing.bytes.unwrap().per_second, 90 * MIB);
    }
}

#[test]
fn multi_attach_as_it_was() {
    use MultiAttach::{Fixed, No, Switchable};
    let multi_attach_of = |date: &str, t| at(date).of(t).unwrap().multi_attach;
    assert_eq!((multi_attach_of("2018-12", Io1), multi_attach_of("2020-08", Io1)), (No, Fixed));
    assert_eq!(
        (multi_attach_of("2020-12", Io2), multi_attach_of("2021-07", Io2)),
        (No, Switchable)
    );
    assert!(Rules::all().iter().all(|r| r.of(Gp2).is_none_or(|g| g.multi_attach == No)));
}

#[test]
fn a_volume_younger_than_the_rules_is_still_paced() {
    let fast = spec(Rules::newest(), Gp3, 1_000, Some(50_000));
    let pacing = at("2012-08").pacing(&fast);
    assert_eq!(pacing.operations.unwrap().per_second, 50_000);
    assert_eq!(pacing.bytes.unwrap().per_second, 125 * MIB);
}
