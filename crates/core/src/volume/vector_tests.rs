//! The published formulas, tables and error texts, as tables.

use super::*;
use crate::qos::pacing::{CountingRule, Limit, Pacing};
use crate::time::Duration;
use crate::units::{MIB, TIB};
use std::string::{String, ToString};

use VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};

/// The IOPS that clients ask for to read the limit out of the refusal.
const PROBE: u32 = 2_147_483_647;

fn rules(date: &str) -> &'static Rules {
    Rules::as_of(date.parse().unwrap()).unwrap()
}

fn request(t: VolumeType, size_gib: u32) -> VolumeRequest {
    VolumeRequest {
        volume_type: t,
        size_gib,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    }
}

fn with_iops(t: VolumeType, size_gib: u32, iops: u32) -> VolumeRequest {
    VolumeRequest { iops: Some(iops), ..request(t, size_gib) }
}

fn gp3(size_gib: u32, iops: u32, mibps: u32) -> VolumeRequest {
    VolumeRequest { throughput_mibps: Some(mibps), ..with_iops(Gp3, size_gib, iops) }
}

fn pacing(rules: &Rules, request: &VolumeRequest) -> Pacing {
    rules.pacing(&rules.resolve(request).unwrap())
}

/// MiB/s of a limit without credits.
fn mibps(limit: Option<Limit>) -> u64 {
    let limit = limit.unwrap();
    assert_eq!((limit.credit, limit.per_second % MIB), (None, 0));
    limit.per_second / MIB
}

/// The most IOPS that are accepted, found by asking.
fn iops_max(rules: &Rules, t: VolumeType, size_gib: u32) -> u32 {
    let mut accepted = 0;
    let mut refused = 1 << 20;
    while refused - accepted > 1 {
        let middle = (accepted + refused) / 2;
        match rules.resolve(&with_iops(t, size_gib, middle)) {
            Ok(_) | Err(InvalidSpec::IopsTooLow { .. }) => accepted = middle,
            Err(_) => refused = middle,
        }
    }
    accepted
}

#[test]
fn gp2_bursts_and_refills_as_published() {
    // GiB, baseline IOPS, seconds of burst from a full bucket, seconds to refill an empty one.
    let table = [
        (1, 100, 1_862, 54_000),
        (33, 100, 1_862, 54_000),
        (100, 300, 2_000, 18_000),
        (214, 642, 2_290, 8_412),
        (250, 750, 2_400, 7_200),
        (334, 1_002, 2_703, 5_389),
        (500, 1_500, 3_600, 3_600),
        (750, 2_250, 7_200, 2_400),
    ];
    for (size, baseline, burst_s, refill_s) in table {
        let spec = Rules::newest().resolve(&request(Gp2, size)).unwrap();
        assert_eq!(spec.iops, Some(baseline), "{size} GiB");
        let limit = Rules::newest().pacing(&spec).operations.unwrap();
        let credit = limit.credit.unwrap();
        assert_eq!(limit.per_second, 3_000);
        assert_eq!(credit.refill_per_second, u64::from(baseline));
        // Amazon rounds its table both ways: a second either way is the table's own tolerance.
        let burst = credit.capacity / (limit.per_second - credit.refill_per_second);
        let refill = credit.capacity / credit.refill_per_second;
        assert!(burst.abs_diff(burst_s) <= 1, "{size} GiB bursts {burst} s");
        assert!(refill.abs_diff(refill_s) <= 1, "{size} GiB refills in {refill} s");
    }
}

#[test]
fn gp2_without_credits_where_the_baseline_is_the_burst() {
    let table = [
        (999, 2_997, true),
        (1_000, 3_000, false),
        (5_333, 15_999, false),
        (5_334, 16_000, false),
        (16_384, 16_000, false),
    ];
    for (size, baseline, bursts) in table {
        let limit = pacing(Rules::newest(), &request(Gp2, size)).operations.unwrap();
        assert_eq!(limit.credit.is_some(), bursts, "{size} GiB");
        assert_eq!(limit.per_second, baseline.max(3_000), "{size} GiB");
    }
    let then = pacing(rules("2018-02"), &request(Gp2, 3_334)).operations.unwrap();
    assert_eq!(then, Limit { per_second: 10_000, credit: None });
    assert_eq!(
        pacing(rules("2018-02"), &request(Gp2, 3_333)).operations.unwrap().per_second,
        9_999
    );
}

#[test]
fn gp2_throughput_as_published() {
    for (size, now, then) in [
        (1, 128, 128),
        (170, 128, 128),
        (171, 250, 160),
        (333, 250, 160),
        (334, 250, 160),
        (16_384, 250, 160),
    ] {
        assert_eq!(mibps(pacing(Rules::newest(), &request(Gp2, size)).bytes), now, "{size} GiB");
        assert_eq!(mibps(pacing(rules("2018-02"), &request(Gp2, size)).bytes), then, "{size} GiB");
    }
    // An empty bucket at 100 GiB: 300 IOPS of 256 KiB are 75 MiB/s, below the byte limit.
    let of_100 = pacing(Rules::newest(), &request(Gp2, 100));
    let sustained = of_100.operations.unwrap().credit.unwrap().refill_per_second;
    assert_eq!(sustained * u64::from(of_100.counting.unit_bytes), 75 * MIB);
    // 334 GiB at 256 KiB would be 250.5 MiB/s without credits; the byte limit holds it to 250.
    let of_334 = pacing(Rules::newest(), &request(Gp2, 334));
    let sustained = of_334.operations.unwrap().credit.unwrap().refill_per_second;
    assert!(sustained * u64::from(of_334.counting.unit_bytes) > of_334.bytes.unwrap().per_second);
    // With credits, 256 KiB I/Os reach the byte limit at 1,000 IOPS (640 in 2018).
    let at_limit = |p: Pacing| p.bytes.unwrap().per_second / u64::from(p.counting.unit_bytes);
    assert_eq!(at_limit(pacing(Rules::newest(), &request(Gp2, 334))), 1_000);
    assert_eq!(at_limit(pacing(rules("2018-02"), &request(Gp2, 334))), 640);
}

#[test]
fn most_iops_of_a_size_as_published() {
    let table = [
        ("2023-05", Gp3, 32, 16_000),
        ("2025-10", Gp3, 10, 5_000),
        ("2025-10", Gp3, 160, 80_000),
        ("2025-10", Gp3, 1, 3_000),
        ("2025-10", Io1, 100, 5_000),
        ("2025-10", Io1, 1_280, 64_000),
        ("2025-10", Io1, 16_384, 64_000),
        ("2017-12", Io1, 640, 32_000),
        ("2023-05", Io2, 100, 50_000),
        ("2023-05", Io2, 128, 64_000),
        ("2025-10", Io2, 256, 256_000),
        ("2013-01", Io1, 100, 1_000),
        ("2013-10", Io1, 100, 3_000),
    ];
    for (date, t, size, most) in table {
        let rules = rules(date);
        assert_eq!(iops_max(rules, t, size), most, "{t} of {size} GiB in {date}");
        assert_eq!(rules.of(t).unwrap().iops_max(size), Some(most));
    }
}

#[test]
fn throughput_of_provisioned_iops_as_published() {
    let table = [
        ("2025-10", Io1, 1_280, 100, 25),
        ("2025-10", Io1, 1_280, 2_000, 500),
        ("2025-10", Io1, 1_280, 32_000, 500),
        ("2025-10", Io1, 1_280, 48_000, 750),
        ("2025-10", Io1, 1_280, 64_000, 1_000),
        ("2023-05", Io2, 128, 64_000, 1_000),
        ("2018-02", Io1, 640, 32_000, 500),
        ("2016-12", Io1, 1_000, 20_000, 320),
        ("2025-10", Io2, 256, 1_000, 256),
        ("2025-10", Io2, 256, 15_625, 4_000),
        ("2025-10", Io2, 256, 16_000, 4_000),
        ("2025-10", Io2, 256, 256_000, 4_000),
    ];
    for (date, t, size, iops, expected) in table {
        let pacing = pacing(rules(date), &with_iops(t, size, iops));
        assert_eq!(mibps(pacing.bytes), expected, "{t} at {iops} IOPS in {date}");
        assert_eq!(pacing.operations, Some(Limit { per_second: iops.into(), credit: None }));
    }
    // 0.256 MiB/s for each of 100 IOPS, exactly, cut to whole bytes.
    let least = pacing(Rules::newest(), &with_iops(Io2, 4, 100));
    assert_eq!(least.bytes.unwrap().per_second, 26_843_545);
}

#[test]
fn gp3_throughput_as_published() {
    let accepted = |date, size, iops, mibps| rules(date).resolve(&gp3(size, iops, mibps)).is_ok();
    assert!(accepted("2023-05", 8, 4_000, 1_000));
    assert!(!accepted("2023-05", 8, 4_000, 1_001));
    assert!(accepted("2025-10", 16, 8_000, 2_000));
    assert!(!accepted("2025-10", 16, 8_000, 2_001));
    assert!(accepted("2025-10", 125, 3_000, 750));
    assert!(!accepted("2025-10", 125, 3_000, 751));
    let pacing = pacing(Rules::newest(), &gp3(125, 3_000, 750));
    assert_eq!(mibps(pacing.bytes), 750);
    assert_eq!(pacing.operations, Some(Limit { per_second: 3_000, credit: None }));
}

#[test]
fn gp3_has_defaults() {
    let spec = Rules::newest().resolve(&request(Gp3, 1)).unwrap();
    assert_eq!((spec.iops, spec.throughput_mibps), (Some(3_000), Some(125)));
}

/// GiB; base and burst in KiB/s.
fn hdd(t: VolumeType, size_gib: u32) -> (u64, u64) {
    let pacing = pacing(Rules::newest(), &request(t, size_gib));
    assert_eq!(pacing.operations, None);
    let limit = pacing.bytes.unwrap();
    let base = limit.credit.map_or(limit.per_second, |c| c.refill_per_second);
    if let Some(credit) = limit.credit {
        assert_eq!(credit.capacity, u64::from(size_gib) << 30);
    }
    assert_eq!((base % 1_024, limit.per_second % 1_024), (0, 0));
    (base / 1_024, limit.per_second / 1_024)
}

#[test]
fn st1_and_sc1_base_and_burst_as_published() {
    // TiB; st1 base and burst, sc1 base and burst, all in MiB/s.
    let table = [
        (1, 40, 250, 12, 80),
        (2, 80, 500, 24, 160),
        (3, 120, 500, 36, 240),
        (4, 160, 500, 48, 250),
        (5, 200, 500, 60, 250),
        (6, 240, 500, 72, 250),
        (7, 280, 500, 84, 250),
        (8, 320, 500, 96, 250),
        (9, 360, 500, 108, 250),
        (10, 400, 500, 120, 250),
        (11, 440, 500, 132, 250),
        (12, 480, 500, 144, 250),
        (13, 500, 500, 156, 250),
        (14, 500, 500, 168, 250),
        (15, 500, 500, 180, 250),
        (16, 500, 500, 192, 250),
    ];
    for (tib, st1_base, st1_burst, sc1_base, sc1_burst) in table {
        let kib = |mibps: u64| mibps * 1_024;
        assert_eq!(hdd(St1, 1_024 * tib), (kib(st1_base), kib(st1_burst)), "{tib} TiB");
        assert_eq!(hdd(Sc1, 1_024 * tib), (kib(sc1_base), kib(sc1_burst)), "{tib} TiB");
    }
    assert_eq!(hdd(St1, 512), (20 * 1_024, 125 * 1_024));
    assert_eq!(hdd(Sc1, 512), (6 * 1_024, 40 * 1_024));
    // 0.125 TiB: printed as 5, 31, 1.5 and 10; 3.125 TiB: sc1's base is printed as 37.5.
    assert_eq!(hdd(St1, 128), (5 * 1_024, 31 * 1_024 + 256));
    assert_eq!(hdd(Sc1, 128), (1_024 + 512, 10 * 1_024));
    assert_eq!(hdd(Sc1, 3_200), (37 * 1_024 + 512, 250 * 1_024));
    // From 12.5 TiB on the base of st1 is its burst: no credits are needed.
    assert!(pacing(Rules::newest(), &request(St1, 12_799)).bytes.unwrap().credit.is_some());
    assert!(pacing(Rules::newest(), &request(St1, 12_800)).bytes.unwrap().credit.is_none());
}

#[test]
fn st1_and_sc1_scan_times_as_published() {
    // TiB and hundredths of an hour for one scan at burst, as printed.
    let st1 = [
        (1, 117),
        (2, 117),
        (3, 175),
        (4, 233),
        (5, 291),
        (6, 350),
        (7, 408),
        (8, 466),
        (9, 524),
        (10, 583),
        (11, 641),
        (12, 699),
        (13, 757),
        (14, 816),
        (15, 874),
        (16, 932),
    ];
    let sc1 = [
        (1, 364),
        (2, 364),
        (3, 364),
        (4, 466),
        (5, 583),
        (6, 699),
        (7, 816),
        (8, 932),
        (9, 1_049),
        (10, 1_165),
        (11, 1_282),
        (12, 1_398),
        (13, 1_515),
        (14, 1_631),
        (15, 1_748),
        (16, 1_864),
    ];
    for (t, table) in [(St1, st1), (Sc1, sc1)] {
        for (tib, hours) in table {
            let limit = pacing(Rules::newest(), &request(t, 1_024 * tib)).bytes.unwrap();
            // Seconds to hundredths of an hour, rounded half up as the table is.
            let found = (u64::from(tib) * TIB + 18 * limit.per_second) / (36 * limit.per_second);
            assert_eq!(found, hours, "{t} {tib} TiB");
        }
    }
}

#[test]
fn byte_credits_last_and_refill_as_derived() {
    // Tenths of a second that a full bucket lasts, and to refill an empty one.
    for (t, tib, lasts, refills) in [
        (St1, 1, 49_932, 262_144),
        (St1, 2, 49_932, 262_144),
        (St1, 5, 174_762, 262_144),
        (Sc1, 1, 154_202, 873_813),
        (Sc1, 3, 154_202, 873_813),
    ] {
        let limit = pacing(Rules::newest(), &request(t, 1_024 * tib)).bytes.unwrap();
        let credit = limit.credit.unwrap();
        let drain = limit.per_second - credit.refill_per_second;
        assert_eq!(credit.capacity * 10 / drain, lasts, "{t} {tib} TiB");
        assert_eq!(credit.capacity * 10 / credit.refill_per_second, refills, "{t} {tib} TiB");
    }
}

#[test]
fn counting_follows_the_medium() {
    for t in VolumeType::ALL {
        let rules = Rules::newest().of(t).unwrap();
        let expected = match t {
            Gp2 | Gp3 | Io1 | Io2 => CountingRule::SSD,
            St1 | Sc1 => {
                CountingRule { unit_bytes: 1 << 20, merge_bytes_min: 512, charge_whole_units: true }
            }
            Standard => CountingRule {
                unit_bytes: 1 << 20,
                merge_bytes_min: 1 << 20,
                charge_whole_units: false,
            },
        };
        assert_eq!(rules.counting, expected, "{t}");
        assert_eq!(rules.tolerance, Duration::from_ms(50), "{t}");
    }
}

#[test]
fn standard_is_a_best_effort_ceiling() {
    let pacing = pacing(Rules::newest(), &request(Standard, 100));
    assert_eq!(pacing.operations, Some(Limit { per_second: 200, credit: None }));
    assert_eq!(mibps(pacing.bytes), 90);
    assert_eq!(Rules::newest().of(Standard).unwrap().promise.consistency, None);
}

#[test]
fn promises_and_reservations_are_data() {
    let rules_of = |t| Rules::newest().of(t).unwrap();
    let words = |t| rules_of(t).promise.consistency.unwrap().to_string();
    assert_eq!(words(Gp3), "at least 90 % of provisioned IOPS 99 % of the year");
    assert_eq!(words(Io2), "at least 90 % of provisioned IOPS 99.9 % of the year");
    assert_eq!(words(St1), "at least 90 % of expected throughput 99 % of the year");
    let durability = |t| rules_of(t).promise.durability.map(|d| (d.min_ppm, d.max_ppm));
    assert_eq!(durability(Io2), Some((999_990, 999_990)));
    assert!([St1, Sc1, Gp2, Gp3, Io1].iter().all(|t| durability(*t) == Some((998_000, 999_000))));
    assert_eq!(durability(Standard), None, "none is stated");
    let reservations = VolumeType::ALL.map(|t| rules_of(t).reservation);
    use Reservation::{BaseThroughput, Baseline, Nothing, Provisioned};
    assert_eq!(
        reservations,
        [Nothing, BaseThroughput, BaseThroughput, Baseline, Provisioned, Provisioned, Provisioned]
    );
    let boot = VolumeType::ALL.map(|t| rules_of(t).boot);
    assert_eq!(boot, [true, false, false, true, true, true, true]);
}

/// Code and text of a refused CreateVolume under today's rules.
fn refused(request: VolumeRequest) -> (&'static str, String) {
    refused_by(Rules::newest(), request)
}

fn refused_by(rules: &Rules, request: VolumeRequest) -> (&'static str, String) {
    let error = rules.resolve(&request).unwrap_err();
    (error.code(), error.to_string())
}

#[test]
fn error_texts_of_numbers_are_amazons() {
    let value = |text: &str| ("InvalidParameterValue", text.to_string());
    for (t, max) in [(Gp3, 80_000), (Io1, 64_000)] {
        let text = std::format!("Volume iops of 2147483647 is too high; maximum is {max}");
        assert_eq!(refused(with_iops(t, 4, PROBE)), value(&text));
    }
    assert_eq!(
        refused(with_iops(Io1, 4, 99)),
        value("Volume iops of 99 is too low; minimum is 100")
    );
    let ratio = "Iops to volume size ratio of 1200 is too high; maximum is 500";
    assert_eq!(refused(with_iops(Gp3, 5, 6_000)), value(ratio));
    let ratio = "Iops to volume size ratio of 58.333333 is too high; maximum is 50";
    assert_eq!(refused(with_iops(Io1, 12, 700)), value(ratio));
    let ratio = "Iops to volume size ratio of 66.666667 is too high; maximum is 50";
    assert_eq!(refused(with_iops(Io1, 12, 800)), value(ratio));
    let ratio = "Throughput (MiBps) to iops ratio of 0.250333 is too high; maximum is 0.250000 \
                 MiBps per iops";
    assert_eq!(refused(gp3(125, 3_000, 751)), value(ratio));
    let text = "Volume throughput of 2001 is too high; maximum is 2000";
    assert_eq!(refused(gp3(160, 80_000, 2_001)), value(text));
    let text = "Volume throughput of 124 is too low; minimum is 125";
    assert_eq!(refused(gp3(160, 80_000, 124)), value(text));
    let text = "The volume size is invalid for gp2 volumes: 0 GiB. gp2 volumes must be at least 1 \
                GiB in size. Please specify a volume size above the minimum limit.";
    assert_eq!(refused(request(Gp2, 0)), value(text));
    let text = "Volume of 16385GiB is too large for volume type gp2; maximum is 16384GiB";
    assert_eq!(refused(request(Gp2, 16_385)), value(text));
}

#[test]
fn error_texts_of_combinations_are_amazons() {
    let combination = |text: &str| ("InvalidParameterCombination", text.to_string());
    let io2 = "io2 volumes configured with greater than 64 TiB or 256K IOPS or 1000:1 IOPS:GB \
               ratio are not supported";
    for request in [with_iops(Io2, 4, PROBE), with_iops(Io2, 4, 4_001), with_iops(Io2, 65_537, 100)]
    {
        assert_eq!(refused(request), combination(io2));
    }
    // Before Block Express each limit has its own text.
    assert_eq!(
        refused_by(rules("2021-08"), with_iops(Io2, 10, 5_001)),
        (
            "InvalidParameterValue",
            "Iops to volume size ratio of 500.100000 is too high; maximum is 500".into()
        )
    );
    for t in [Standard, St1, Sc1, Gp2] {
        let text = std::format!("The parameter iops is not supported for {t} volumes");
        assert_eq!(refused(with_iops(t, 500, 100)), combination(&text));
    }
    let with_throughput =
        |t, iops| VolumeRequest { throughput_mibps: Some(125), iops, ..request(t, 500) };
    for (t, iops) in
        [(Standard, None), (St1, None), (Gp2, None), (Io1, Some(100)), (Io2, Some(100))]
    {
        let text = std::format!("The throughput parameter is not supported for {t} volumes.");
        assert_eq!(refused(with_throughput(t, iops)), combination(&text));
    }
    for t in [Io1, Io2] {
        let text = std::format!("The parameter iops must be specified for {t} volumes.");
        assert_eq!(refused(request(t, 500)), combination(&text));
    }
    let text = "The parameter multi-attach-enabled is not supported for gp3 volumes.";
    assert_eq!(refused(VolumeRequest { multi_attach: true, ..request(Gp3, 1) }), combination(text));
    assert_eq!(
        refused_by(rules("2015-05"), request(Gp3, 1)),
        ("UnknownVolumeType", "Unsupported volume type 'gp3' for volume creation.".into())
    );
}
