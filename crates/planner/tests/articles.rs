//! Published articles about provisioned IOPS, recomputed: their credits, prices and durability,
//! their errors, and their conclusions as plans. `docs/experiments/README.md` describes them.
#![allow(clippy::unwrap_used)] // a test may panic
#![allow(clippy::inconsistent_digit_grouping)] // dollars and cents

use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Date, InvalidSpec, Rules, VolumeRequest, VolumeType};
use evenkeel_planner::demand::{Demand, Span};
use evenkeel_planner::layout::Layout;
use evenkeel_planner::search::{self, Found, Space, Tolerance, Wanted};
use evenkeel_planner::spread::Spread;

const S: u64 = 1_000_000;
const CENT: u64 = 10_000;

/// Returns the rules and prices of a day.
fn space(date: &str, types: &[VolumeType], volumes_max: u32) -> Space {
    let date: Date = date.parse().unwrap();
    Space {
        rules: Rules::as_of(date).unwrap(),
        prices: PriceList::as_of(date).unwrap().into(),
        tolerance: Tolerance::None,
        types: types.to_vec(),
        volumes_max,
        spread: Spread::STRIPED,
        instances: vec![],
    }
}

fn layout(
    space: &Space,
    (volumes, volume_type, size_gib): (u32, VolumeType, u32),
    iops: Option<u32>,
    throughput_mibps: Option<u32>,
) -> Layout {
    let request =
        VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach: false };
    Layout { volumes, ..Layout::one(space.rules.resolve(&request).unwrap()) }
}

/// Returns a demand of requests of 4 KiB, evenly distributed over `seconds`.
fn evenly(requests: u64, seconds: u64) -> Demand {
    let span = Span {
        start_us: 0,
        length_us: seconds * S,
        requests,
        bytes: requests * 4_096,
        ..Span::default()
    };
    Demand { spans: vec![span], length_us: seconds * S, held_back: None }
}

/// Returns the milliseconds that a layout takes for requests that all wait from the start.
fn takes_ms(space: &Space, layout: &Layout, requests: u64) -> u64 {
    search::replay(space, &evenly(requests, 1), layout).1.end_us / 1_000
}

fn wanted(capacity_gib: u64) -> Wanted {
    Wanted {
        capacity_gib,
        throttled_us_per_day_max: 0,
        delays: vec![],
        boots: false,
        multi_attach: false,
        monthly_max: None,
        no_less_than: None,
    }
}

fn cents(space: &Space, layout: &Layout) -> u64 {
    let total = space.monthly(layout).unwrap().total();
    assert_eq!(total % CENT, 0, "{layout:?}");
    total / CENT
}

/// gp2 and gp3, single and five-way, on btrfs (2021): the rates that credits carry.
#[test]
fn the_credits_of_gp2_carry_what_the_article_says() {
    let space = space("2021-06-01", &[], 1);
    let gp2 = |volumes, gib| layout(&space, (volumes, VolumeType::Gp2, gib), None, None);
    // The length of the burst, to the second: at the burst's rate nothing waits until then.
    for (layout, iops, until_s) in [
        (gp2(1, 500), 3_000, 3_600),
        (gp2(1, 100), 3_000, 2_000),
        (gp2(2, 50), 6_000, 1_894),
        (gp2(2, 250), 6_000, 2_400),
        (gp2(4, 125), 12_000, 2_057),
        (gp2(5, 100), 15_000, 2_000),
    ] {
        let waits = |seconds: u64| {
            let demand = evenly(iops * seconds, seconds);
            search::replay(&space, &demand, &layout).1.waited_us() > 0
        };
        assert!(!waits(until_s) && waits(until_s + 1), "{layout:?}");
    }
    // Operations of an hour.
    for (layout, requests) in [
        (gp2(1, 500), 10_800_000),
        (gp2(2, 250), 16_200_000),
        (gp2(4, 125), 27_000_000),
        (gp2(5, 100), 32_400_000),
    ] {
        assert!(takes_ms(&space, &layout, requests).abs_diff(3_600_000) <= 2, "{layout:?}");
    }
    // Of 4,000 s, without an instance's limit.
    for (layout, requests) in [(gp2(5, 100), 33_000_000), (gp2(1, 500), 11_400_000)] {
        assert!(takes_ms(&space, &layout, requests).abs_diff(4_000_000) <= 2, "{layout:?}");
    }
    let gp3 = layout(&space, (1, VolumeType::Gp3, 500), None, None);
    assert_eq!(takes_ms(&space, &gp3, 12_000_000), 4_000_000);
    // 2,000 GiB earn 6,000 per second and use no credits; 1,000 GiB earn as much as a burst.
    let day = evenly(6_000 * 86_400, 86_400);
    assert_eq!(search::replay(&space, &day, &gp2(1, 2_000)).1.waited_us(), 0);
    let day = evenly(3_000 * 86_400, 86_400);
    let outcome = search::replay(&space, &day, &gp2(1, 1_000)).1;
    assert_eq!((outcome.waited_us(), outcome.least_ppm[0]), (0, 1_000_000));
    assert!(search::replay(&space, &day, &gp2(1, 999)).1.least_ppm[0] < 1_000_000);
}

/// The prices of the article, and its errors in them.
#[test]
fn the_prices_of_the_article_and_its_slips() {
    let space = space("2021-06-01", &[], 1);
    let one = |volume_type, gib, iops, mibps| {
        cents(&space, &layout(&space, (1, volume_type, gib), iops, mibps))
    };
    let gp3 = |iops, mibps| one(VolumeType::Gp3, 500, Some(iops), Some(mibps));
    assert_eq!(one(VolumeType::Gp2, 500, None, None), 50_00);
    assert_eq!(one(VolumeType::Io1, 500, Some(3_000), None), 257_50);
    assert_eq!(one(VolumeType::Io1, 500, Some(16_000), None), 1_102_50);
    // 1,000 MiB/s need 4,000 IOPS beside them: the layout that it prices with 3,000 is not sold.
    let request = VolumeRequest {
        volume_type: VolumeType::Gp3,
        size_gib: 500,
        iops: Some(3_000),
        throughput_mibps: Some(1_000),
        multi_attach: false,
    };
    let refused = space.rules.resolve(&request);
    assert!(matches!(refused, Err(InvalidSpec::ThroughputRatioTooHigh { .. })), "{refused:?}");
    // It prints 74.82 and 139.82, because a calculator rounded 0.85 GiB/s to two digits.
    let at_list_price = gp3(4_000, 1_000) - 1_000 / 2;
    assert_eq!((at_list_price, gp3(16_000, 1_000)), (75_00, 140_00));
    let rounded_cents = 40_00 + 85 * 40_96 / 100;
    assert_eq!((rounded_cents, rounded_cents + 65_00), (74_81, 139_81), "74.816 and 139.816");
    // An IOPS costs half a cent, not a twentieth of one: 12,000 of them are 60 USD.
    assert_eq!(gp3(16_000, 1_000) - gp3(4_000, 1_000), 12_000 / 2);
    // For the 50 USD of gp2, gp3 with as much throughput has 4,000 IOPS; it prints 4,015.
    assert_eq!(gp3(4_000, 250), 50_00);
    // "600 % more" for one io1 than for five gp3 does not follow from any IOPS that it names.
    let five = cents(&space, &layout(&space, (5, VolumeType::Gp3, 100), None, None));
    assert_eq!(five, 40_00);
    let more_percent = [3_000, 5_000, 18_000]
        .map(|iops| (one(VolumeType::Io1, 500, Some(iops), None) - five) * 100 / five);
    assert_eq!(more_percent, [543, 868, 2_981]);
}

/// Its conclusion: five small gp3 compared with one io1; and the alternatives that it leaves out.
#[test]
fn five_of_gp3_are_cheaper_than_one_io1_and_less_durable() {
    let space = space("2021-06-01", &[VolumeType::Gp3, VolumeType::Io1, VolumeType::Io2], 5);
    let demand = evenly(15_000 * 4_000, 4_000);
    let found = search::cheapest(&space, &demand, &wanted(500));
    let best = |volume_type, volumes| -> &Found {
        let same =
            |it: &&Found| (it.layout.each.volume_type, it.layout.volumes) == (volume_type, volumes);
        found.iter().find(same).unwrap()
    };
    let five = best(VolumeType::Gp3, 5);
    let one = best(VolumeType::Gp3, 1);
    let io1 = best(VolumeType::Io1, 1);
    let io2 = best(VolumeType::Io2, 1);
    assert_eq!(found.first().unwrap(), five);
    let usd = |it: &Found| it.total() / 1_000_000;
    // One gp3 with 12,000 more IOPS suffices, too; the article compares five with io1 only.
    assert_eq!([usd(five), usd(one), usd(io1), usd(io2)], [40, 100, 1_037, 1_037]);
    let loss = |it: &Found| it.layout.loss_ppb(space.rules).unwrap();
    // Lost within a year, of a billion: 0.5 to 1 %, 0.1 to 0.2 %, 0.001 %.
    assert_eq!(loss(five), (4_990_010, 9_960_080));
    assert_eq!((loss(io1), loss(io2)), ((1_000_000, 2_000_000), (10_000, 10_000)));
    // A hot set on one device, with a file system that does not stripe, has 3,000 IOPS.
    let hot = layout(&space, (1, VolumeType::Gp3, 100), None, None);
    assert_eq!(takes_ms(&space, &hot, 15_000 * 4_000), 5 * 4_000_000);
    assert_eq!(takes_ms(&space, &five.layout, 15_000 * 4_000), 4_000_000);
    let hot = |percent| Space { spread: Spread::Hot { percent }, ..space.clone() };
    assert_eq!(takes_ms(&hot(100), &five.layout, 15_000 * 4_000), 5 * 4_000_000);
    assert_eq!(takes_ms(&hot(60), &five.layout, 15_000 * 4_000), 3 * 4_000_000);
    // Five volumes that carry a hot set cost more than one that carries all.
    let five_of = |percent| {
        let found = search::cheapest(&hot(percent), &demand, &wanted(500));
        let five = found.into_iter().find(|it| it.layout.volumes == 5).unwrap();
        (five.layout.each.iops, five.total() / 1_000_000)
    };
    let needed = [20, 30, 60, 100].map(five_of);
    let expected = [(3_000, 40), (4_500, 77), (9_000, 190), (15_000, 340)];
    assert_eq!(needed, expected.map(|(iops, usd)| (Some(iops), usd)));
}

/// OLTP beside a batch job on gp2 (2016), and a reader's remark: 200 GB that need 1,500 IOPS are
/// cheaper as 500 GB of gp2 than as io1.
#[test]
fn too_large_a_gp2_is_cheaper_than_io1() {
    let space = space("2016-06-01", &[VolumeType::Gp2, VolumeType::Io1], 1);
    let day = evenly(1_500 * 86_400, 86_400);
    let found = search::cheapest(&space, &day, &wanted(200));
    let [gp2, io1] = found.as_slice() else { panic!("two types") };
    // A day's credits save 21 GiB of 500; for a month, hardly one.
    assert_eq!((gp2.layout.each.size_gib, gp2.total() / CENT), (480, 48_00));
    let month = evenly(1_500 * 86_400 * 30, 86_400 * 30);
    let found = search::cheapest(&space, &month, &wanted(200));
    assert_eq!(found[0].layout.each.size_gib, 500);
    assert_eq!(found[0].total() / CENT, 50_00);
    let each = io1.layout.each;
    assert_eq!((each.size_gib, each.iops, io1.total() / CENT), (200, Some(1_500), 122_50));
    // The article's volume: 167 GiB, 500 IOPS; a burst from full credits lasts 90 minutes.
    let article = layout(&space, (1, VolumeType::Gp2, 167), None, None);
    let burst = |seconds| search::replay(&space, &evenly(1_500 * seconds, seconds), &article).1;
    assert_eq!(burst(5_400).waited_us(), 0);
    assert!(burst(5_420).waited_us() > 0);
}
