//! Known results, and comparisons with trying every layout.

use std::sync::Arc;

use evenkeel_core::instance;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::Date;
use proptest::prelude::*;

use super::*;
use crate::price_book::PriceBook;
use crate::testing::{seconds, space, wanted};

fn best(space: &Space, demand: &Demand, wanted: &Wanted) -> Found {
    cheapest(space, demand, wanted).into_iter().next().expect("a layout")
}

#[test]
fn the_cheapest_is_what_it_must_be() {
    let gp3 = space(&[VolumeType::Gp3], 1);
    // 5,000 of 16 KiB per second: 5,000 IOPS, and 78.125 MiB/s, which the 125 include.
    let found = best(&gp3, &seconds(&[(5_000, 16); 60]), &wanted(100, 0));
    let each = found.layout.each;
    assert_eq!((each.size_gib, each.iops, each.throughput_mibps), (100, Some(5_000), Some(125)));
    // 0.08 for a GiB, 0.005 for each of 2,000 IOPS.
    assert_eq!(found.total(), 8_000_000 + 10_000_000);
    // 1,000 of 512 KiB: each counts as two, and 500 MiB/s, which need 2,000 IOPS beside them.
    let each = best(&gp3, &seconds(&[(1_000, 512); 60]), &wanted(100, 0)).layout.each;
    assert_eq!((each.iops, each.throughput_mibps), (Some(3_000), Some(500)));
    // More than twice that needs 4,800 IOPS and 1,200 MiB/s: both must be bought.
    let each = best(&gp3, &seconds(&[(2_400, 512); 60]), &wanted(100, 0)).layout.each;
    assert_eq!((each.iops, each.throughput_mibps), (Some(4_800), Some(1_200)));
}

#[test]
fn a_size_may_be_bought_for_its_iops_or_its_credits() {
    let io1 = space(&[VolumeType::Io1], 1);
    let each = best(&io1, &seconds(&[(6_000, 4); 60]), &wanted(10, 0)).layout.each;
    assert_eq!((each.size_gib, each.iops), (120, Some(6_000)));
    // An hour at 1,000 IOPS: credits carry it on the smallest gp2 volume with the required
    // capacity.
    let gp2 = space(&[VolumeType::Gp2], 1);
    let each = best(&gp2, &seconds(&[(1_000, 4); 3_600]), &wanted(10, 0)).layout.each;
    assert_eq!(each.size_gib, 10);
    let all_day: Vec<_> = (0..24 * 60).map(|_| (60_000, 4)).collect();
    let mut day = seconds(&all_day);
    for span in &mut day.spans {
        (span.start_us, span.length_us) = (span.start_us * 60, span.length_us * 60);
    }
    day.length_us *= 60;
    // 86,400 s at 1,000 need 5.4 million credits and 937.5 IOPS earned: 313 GiB.
    let each = best(&gp2, &day, &wanted(10, 0)).layout.each;
    assert_eq!(each.size_gib, 313);
}

#[test]
fn stripes_and_types_are_compared_by_cost() {
    let all = space(&[VolumeType::Gp3, VolumeType::Io1, VolumeType::Gp2], 5);
    let demand = seconds(&[(15_000, 4); 60]);
    let found = cheapest(&all, &demand, &wanted(500, 0));
    let first = &found[0];
    // Each gp3 volume includes 3,000 IOPS: five volumes need no paid ones.
    assert_eq!((first.layout.volumes, first.layout.each.iops), (5, Some(3_000)));
    assert_eq!(first.total(), 500 * 80_000);
    assert!(found.is_sorted_by_key(Found::total));
    let io1 = found.iter().find(|it| it.layout.each.volume_type == VolumeType::Io1).unwrap();
    assert!(io1.total() > 20 * first.total());
    let dear = Wanted { monthly_max: Some(first.total()), ..wanted(500, 0) };
    assert!(cheapest(&all, &demand, &dear).iter().all(|it| it.total() <= first.total()));
    let boots = Wanted { boots: true, multi_attach: true, ..wanted(500, 0) };
    let types = cheapest(&all, &demand, &boots);
    assert!(types.iter().all(|it| it.layout.each.volume_type == VolumeType::Io1));
}

#[test]
fn what_was_held_back_is_no_reason_for_less() {
    use crate::throttled::HeldBack;
    let space = space(&[VolumeType::Io2, VolumeType::Gp3], 2);
    let mut demand = seconds(&[(1_000, 4); 60]);
    let one = |demand: &Demand, throttled| {
        let found = cheapest(&space, demand, &wanted(100, throttled));
        let io2 =
            |it: &&Found| (it.layout.each.volume_type, it.layout.volumes) == (VolumeType::Io2, 1);
        found.iter().find(io2).unwrap().layout.each.iops.unwrap()
    };
    assert_eq!(one(&demand, 0), 1_000);
    // For 10 of the 60 s, the source's 1,500 IOPS held requests back.
    demand.held_back =
        Some(HeldBack { length_ms: 10_000, iops: Some(1_500), ..HeldBack::default() });
    assert_eq!(one(&demand, 0), 1_500);
    assert_eq!(one(&demand, 14_000), 1_500);
    // A requirement that allows that much waiting allows it for the recorded requests, too.
    assert_eq!(one(&demand, 15_000), 1_000);
    let two = cheapest(&space, &demand, &wanted(100, 0));
    let striped = two.iter().find(|two| two.layout.each.iops == Some(750));
    assert_eq!(striped.map(|striped| striped.layout.volumes), Some(2));
}

pub(super) fn spread() -> impl Strategy<Value = Spread> {
    prop_oneof![Just(Spread::STRIPED), (1..=100_u32).prop_map(|percent| Spread::Hot { percent })]
}

fn demand() -> impl Strategy<Value = Demand> {
    let one = prop_oneof![Just((0, 4)), (1..20_000_u64, 1..300_u64), (1..2_000_u64, 1..64_u64)];
    proptest::collection::vec(one, 1..12).prop_map(|all| seconds(&all))
}

/// Returns the book of the samples: a fast device costs 63.96 EUR a month, has 4,000 GiB and sells
/// 80,000 IOPS; a slow one costs 53.88, has 10,000 GiB and sells 400.
pub(super) fn book() -> PriceBook {
    let text = include_str!("../../books/price_book.toml");
    PriceBook::read(text, &mut |path| Err(path.to_owned())).unwrap()
}

#[test]
fn costs_are_those_of_the_book() {
    let all = Space {
        prices: Prices::Book(Arc::new(book())),
        ..space(&[VolumeType::Gp3, VolumeType::Io2], 2)
    };
    let found = cheapest(&all, &seconds(&[(8_000, 4); 60]), &wanted(400, 0));
    // A tenth of a device, by both of its parts. The price does not depend on the type.
    let first = &found[0];
    assert_eq!((first.total(), first.layout.volumes), (6_396_000, 1));
    assert_eq!((first.monthly.storage, first.monthly.throughput), (6_396_000, 0));
    // 16,000 IOPS are a fifth of the device time of io2, which reserves 16 KiB for each of them.
    // gp3 reserves 125 MiB/s for all of them, and is cheaper.
    let found = cheapest(&all, &seconds(&[(16_000, 4); 60]), &wanted(400, 0));
    let of = |volume_type| {
        let of = |it: &&Found| it.layout.each.volume_type == volume_type;
        found.iter().filter(|it| it.layout.volumes == 1).find(of).unwrap()
    };
    let io2 = of(VolumeType::Io2).monthly;
    assert_eq!((io2.storage, io2.iops), (0, 12_792_000));
    assert!(of(VolumeType::Gp3).total() < io2.total());
    // A volume that fits on no device is no candidate; two volumes on two devices are.
    let found = cheapest(&all, &seconds(&[(100, 4); 60]), &wanted(7_000, 0));
    assert!(found.iter().all(|it| it.layout.volumes == 2) && !found.is_empty(), "{found:?}");
}

#[test]
fn what_has_no_price_is_no_candidate() {
    let text = include_str!("../../books/price_book.toml");
    let text =
        text.replace("sells_throughput = 2500 ", "types = [\"gp3\"]\nsells_throughput = 2500 ");
    let only = PriceBook::read(&text, &mut |path| Err(path.to_owned())).unwrap();
    let all = Space { prices: Prices::Book(Arc::new(only)), ..space(&VolumeType::ALL, 1) };
    let wanted = Wanted { boots: true, ..wanted(100, 0) };
    let unpriced = all.unpriced(&wanted);
    assert_eq!(unpriced, [VolumeType::Gp2, VolumeType::Io1, VolumeType::Io2]);
    let found = cheapest(&all, &seconds(&[(100, 4); 60]), &wanted);
    assert!(found.iter().all(|it| !unpriced.contains(&it.layout.each.volume_type)), "{found:?}");
    assert!(!found.is_empty());
    assert_eq!(space(&VolumeType::ALL, 1).unpriced(&wanted), []);
}

#[test]
fn an_instance_may_be_what_binds() {
    let named = |names: &[&str]| names.iter().filter_map(|name| instance::by_name(name)).collect();
    let of = |names: &[&str]| Space { instances: named(names), ..space(&[VolumeType::Gp3], 1) };
    // m1.large has 4,000 IOPS, m5.large 3,600, and 18,750 for half an hour.
    let all = of(&["m1.large", "m5.large", "m2.4xlarge"]);
    let on = |demand: &Demand| -> Vec<&str> {
        let found = cheapest(&all, demand, &wanted(100, 0));
        found.iter().filter_map(|it| Some(it.layout.instance?.name)).collect()
    };
    // If all meet the requirements, they are in the order of preference.
    assert_eq!(on(&seconds(&[(2_000, 4); 60])), ["m1.large", "m5.large", "m2.4xlarge"]);
    assert_eq!(on(&seconds(&[(5_000, 4); 60])), ["m5.large", "m2.4xlarge"]);
    assert_eq!(on(&seconds(&[(9_000, 4); 60])), ["m5.large"]);
    let loose = Wanted { throttled_us_per_day_max: 86_400_000_000, ..wanted(100, 0) };
    let two = of(&["m1.large"]);
    let gp3 = crate::testing::layout(1, VolumeType::Gp3, 100, Some(9_000));
    let layout = Layout { instance: instance::by_name("m1.large"), ..gp3 };
    let found = given(&two, &seconds(&[(9_000, 4); 60]), &layout).unwrap();
    let binding = found.outcome.binding().map(|place| found.limits[place]);
    assert_eq!(binding, Some(LimitKind::InstanceIops));
    assert!(does(&found.outcome, &seconds(&[(9_000, 4); 60]), &loose));
}

/// The article's five volumes of 3,000 IOPS, with a file system that does not stripe.
#[test]
fn a_hot_volume_needs_what_its_share_needs() {
    let of = |spread| Space { spread, ..space(&[VolumeType::Gp3], 5) };
    let five = |spread| {
        let found = cheapest(&of(spread), &seconds(&[(15_000, 4); 60]), &wanted(500, 0));
        let five = found.into_iter().find(|it| it.layout.volumes == 5).unwrap();
        five.layout.each.iops.unwrap()
    };
    assert_eq!(five(Spread::STRIPED), 3_000);
    assert_eq!(five(Spread::Hot { percent: 60 }), 9_000);
    assert_eq!(five(Spread::Hot { percent: 100 }), 15_000);
    // A share below an even one counts as an even one.
    assert_eq!(five(Spread::Hot { percent: 1 }), 3_000);
}

/// Returns all layouts of one volume that may be cheaper than a total, of a type that sells IOPS
/// alone or none.
fn all_of(space: &Space, volume_type: VolumeType, gib: u32, volumes: u32) -> Vec<Layout> {
    let rules = space.rules.of(volume_type).unwrap();
    let request = |size_gib, iops| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps: None,
        multi_attach: false,
    };
    let requests: Vec<VolumeRequest> = match rules.iops {
        IopsRule::Provisioned { min, max, per_gib, .. } => {
            let sized = |iops: u32| request(gib.max(iops.div_ceil(per_gib)), Some(iops));
            (min..=max).map(sized).collect()
        }
        _ => (gib..=rules.size_gib_max).map(|gib| request(gib, None)).collect(),
    };
    let each = requests.iter().filter_map(|request| space.rules.resolve(request).ok());
    each.map(|each| Layout { volumes, ..Layout::one(each) }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    /// Compared with trying every layout, with the rules and prices of 2013, which have small
    /// ranges.
    #[test]
    fn no_layout_is_cheaper_than_the_cheapest(
        demand in demand(),
        gib in 1..500_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..4_u32,
        of_book in any::<bool>(),
        spread in spread(),
        hosts in proptest::sample::subsequence(vec!["m1.large", "m5.large", "t3.nano"], 0..=2),
    ) {
        let date: Date = "2013-01-01".parse().unwrap();
        let types = [VolumeType::Standard, VolumeType::Io1];
        let list = Prices::from(PriceList::as_of(date).unwrap());
        let space = Space {
            rules: Rules::as_of(date).unwrap(),
            prices: if of_book { Prices::Book(Arc::new(book())) } else { list },
            spread,
            instances: hosts.iter().filter_map(|name| instance::by_name(name)).collect(),
            ..space(&types, volumes)
        };
        let wanted = wanted(u64::from(gib), throttled);
        let found = cheapest(&space, &demand, &wanted);
        let found_of = |instance, volume_type, volumes| {
            let same = |it: &&Found| {
                let Layout { volumes: of, each, instance: on } = it.layout;
                (each.volume_type, of, on) == (volume_type, volumes, instance)
            };
            found.iter().find(same).map(|it| it.monthly.total())
        };
        for (instance, volume_type) in
            space.hosts().into_iter().flat_map(|host| types.map(|of| (host, of)))
        {
            for volumes in 1..=volumes {
                let least_gib = space.rules.of(volume_type).unwrap().size_gib_min;
                let each = gib.div_ceil(volumes).max(least_gib);
                let all = all_of(&space, volume_type, each, volumes);
                let all = all.into_iter().map(|it| Layout { instance, ..it });
                let good = all.filter(|layout| {
                    space.prices.fits(space.rules, &layout.each)
                        && does(&replay(&space, &demand, layout).1, &demand, &wanted)
                });
                let costs = good.map(|good| space.monthly(&good).unwrap().total());
                let cost = found_of(instance, volume_type, volumes);
                prop_assert_eq!(cost, costs.min(), "{} {}", volume_type, volumes);
            }
        }
    }

    /// No layout of a grid of cheaper ones meets the requirements.
    #[test]
    fn what_is_cheaper_does_not_do(
        demand in demand(),
        gib in 1..3_000_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..4_u32,
        grid in proptest::collection::vec((0..=1_000_u64, 0..=1_000_u64), 60),
        of_book in any::<bool>(),
        spread in spread(),
        hosts in proptest::sample::subsequence(vec!["m1.large", "m5.large", "t3.nano"], 0..=2),
    ) {
        let mut space = Space { spread, ..space(&[VolumeType::Gp3], volumes) };
        space.instances = hosts.iter().filter_map(|name| instance::by_name(name)).collect();
        if of_book {
            space.prices = Prices::Book(Arc::new(book()));
        }
        let wanted = wanted(u64::from(gib), throttled);
        for found in cheapest(&space, &demand, &wanted) {
            let best = found.layout.each;
            let iops = best.iops.unwrap();
            let mibps = best.throughput_mibps.unwrap();
            // The neighbours, and points of the rectangle that contains the cheaper ones.
            let share = |most: u32, least: u32, part: u64| {
                least + (u64::from(most - least) * part / 1_000) as u32
            };
            let near = [(iops - 1, mibps), (iops, mibps - 1), (iops - 1, mibps - 1)];
            let far = grid.iter().map(|(i, m)| (share(80_000, 3_000, *i), share(2_000, 125, *m)));
            for (iops, mibps) in near.into_iter().chain(far) {
                let least_gib = gib.div_ceil(found.layout.volumes);
                let bought_gib = if iops > 3_000 { iops.div_ceil(500) } else { 0 };
                let size_gib = least_gib.max(bought_gib);
                let request = VolumeRequest {
                    volume_type: VolumeType::Gp3,
                    size_gib,
                    iops: Some(iops),
                    throughput_mibps: Some(mibps),
                    multi_attach: false,
                };
                let Ok(each) = space.rules.resolve(&request) else { continue };
                let layout = Layout { each, ..found.layout };
                if space.monthly(&layout).unwrap().total() < found.total() {
                    let outcome = replay(&space, &demand, &layout).1;
                    prop_assert!(!does(&outcome, &demand, &wanted), "{layout:?} {found:?}");
                }
            }
        }
    }

    #[test]
    fn the_first_few_are_the_first_of_all(
        demand in demand(),
        gib in 1..3_000_u64,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        count in 0..12_usize,
        hosts in proptest::sample::subsequence(vec!["m1.large", "m5.large", "t3.nano"], 0..=2),
    ) {
        let instances = hosts.iter().filter_map(|name| instance::by_name(name)).collect();
        let space = Space { instances, ..space(&VolumeType::ALL, 5) };
        let wanted = wanted(gib, throttled);
        let mut all = cheapest(&space, &demand, &wanted);
        all.truncate(count);
        prop_assert_eq!(cheapest_few(&space, &demand, &wanted, count), all);
    }

    #[test]
    fn looser_is_never_dearer_and_more_is_never_cheaper(
        demand in demand(),
        gib in 1..3_000_u64,
        throttled in 0..40_000_u64,
        looser in 0..40_000_u64,
    ) {
        let space = space(&[VolumeType::Gp2, VolumeType::Gp3, VolumeType::St1, VolumeType::Io2], 3);
        let total = |gib, throttled| {
            let found = cheapest(&space, &demand, &wanted(gib, throttled));
            found.first().map_or(u64::MAX, Found::total)
        };
        let strict = total(gib, throttled);
        prop_assert!(total(gib, throttled + looser) <= strict);
        prop_assert!(total(gib * 2, throttled) >= strict);
    }
}

/// In a region with a price of io2 up to 32,000 IOPS only, io2 is searched up to there.
#[test]
fn a_type_is_looked_for_as_far_as_it_has_a_price() {
    let list = PriceList::in_region("eu-west-1", None).unwrap();
    let space = Space { prices: list.into(), ..space(&[VolumeType::Io2], 1) };
    let iops = |requests: u64| {
        let demand = seconds(&[(requests, 4); 60]);
        let found = cheapest(&space, &demand, &wanted(100, 0));
        found.first().and_then(|found| found.layout.each.iops)
    };
    assert!(iops(20_000).is_some_and(|iops| iops <= 20_000), "{:?}", iops(20_000));
    assert_eq!(iops(40_000), None);
}
