//! Sharpened layouts, compared with trying every layout on the scheduler.

use std::sync::Arc;

use evenkeel_core::instance;
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Date, IopsRule, Rules, VolumeRequest, VolumeType};
use proptest::prelude::*;

use super::*;
use crate::exact;
use crate::neighbours::{Less, one_less};
use crate::prices::Prices;
use crate::search::cheapest;
use crate::search::tests::{book, spread};
use crate::spread::Spread;
use crate::testing::{seconds, space, wanted};

const MANY: u64 = u64::MAX;

fn sharp(space: &Space, demand: &Demand, wanted: &Wanted) -> Vec<Found> {
    sharpen((space, &Index::new(demand), None), wanted, cheapest(space, demand, wanted), MANY)
}

/// Returns whether the scheduler meets the requirements, asked as the answer of a plan asks it.
fn does(space: &Space, demand: &Demand, wanted: &Wanted, layout: &Layout) -> bool {
    exact::replay(space, demand, layout, MANY).expect("few").does(demand, wanted)
}

#[test]
fn a_burst_of_a_second_needs_a_twentieth_less() {
    let gp3 = space(&[VolumeType::Gp3], 1);
    let iops = |demand: &Demand| {
        let found = sharp(&gp3, demand, &wanted(100, 0)).remove(0);
        let exact = found.exact.as_ref().expect("few requests");
        assert_eq!(exact.waited_us, 0);
        found.layout.each.iops.expect("IOPS")
    };
    let second = iops(&seconds(&[(6_300, 4)]));
    let minute = iops(&seconds(&[(6_300, 4); 60]));
    // 6,300 arrive in a second, and one more may be owed: 1.05 s of 6,000 are saved and earned.
    assert!((5_990..=6_000).contains(&second), "{second}");
    // 6,294.8 per second in 60.05 s.
    assert!((6_290..=6_295).contains(&minute), "{minute}");
}

/// Each instance has its own answer, because their limits differ.
#[test]
fn each_instance_is_asked_for_itself() {
    let names = ["m1.large", "m5.large", "m2.4xlarge"];
    let instances = names.iter().filter_map(|name| instance::by_name(name)).collect();
    let three = Space { instances, ..space(&[VolumeType::Gp3], 1) };
    let on = |demand: &Demand| -> Vec<(&str, u32, u64)> {
        let of = |it: Found| {
            let name = it.layout.instance.expect("an instance").name;
            let waited_us = it.exact.as_ref().expect("few requests").waited_us;
            (name, it.layout.each.iops.expect("IOPS"), waited_us)
        };
        sharpest(&three, demand, None, &wanted(100, 0), 3).into_iter().map(of).collect()
    };
    // m1.large has 4,000 IOPS, m5.large 18,750 for half an hour, m2.4xlarge 8,000.
    let all = on(&seconds(&[(3_990, 4)]));
    assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), names);
    let alike = |all: &[(&str, u32, u64)], least, most| {
        all.iter().all(|it| (least..=most).contains(&it.1) && it.2 == 0)
    };
    assert!(alike(&all, 3_780, 3_810), "{all:?}");
    let all = on(&seconds(&[(6_300, 4)]));
    assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), ["m5.large", "m2.4xlarge"]);
    assert!(alike(&all, 5_990, 6_000), "{all:?}");
}

#[test]
fn a_hot_volume_is_sharpened_by_its_share() {
    let five = |spread| {
        let space = Space { spread, ..space(&[VolumeType::Gp3], 5) };
        let found = sharp(&space, &seconds(&[(31_500, 4)]), &wanted(500, 0));
        let five = found.into_iter().find(|it| it.layout.volumes == 5).expect("five");
        let exact = five.exact.as_ref().expect("few requests");
        assert_eq!(exact.waited_us, 0);
        (exact.requests, five.layout.each.iops.expect("IOPS"))
    };
    let (requests, iops) = five(Spread::STRIPED);
    assert!(requests == 6_300 && (5_990..=6_000).contains(&iops), "{requests} {iops}");
    let (requests, iops) = five(Spread::Hot { percent: 40 });
    assert!(requests == 12_600 && (11_980..=12_000).contains(&iops), "{requests} {iops}");
}

/// A burst of a second takes a part of the device time that is a twentieth smaller.
#[test]
fn a_book_charges_what_the_scheduler_needs() {
    let io2 = Space { prices: Prices::Book(Arc::new(book())), ..space(&[VolumeType::Io2], 1) };
    let demand = seconds(&[(16_000, 4)]);
    let wanted = wanted(400, 0);
    let fluid = cheapest(&io2, &demand, &wanted).remove(0);
    assert_eq!(fluid.total(), 12_792_000);
    let found = sharp(&io2, &demand, &wanted).remove(0);
    let iops = found.layout.each.iops.expect("IOPS");
    assert!((15_200..=15_240).contains(&iops), "{iops}");
    assert!(found.total() < 12_190_000 && found.monthly.iops == found.total(), "{found:?}");
}

#[test]
fn what_cannot_be_sent_stays_as_it_is() {
    let gp3 = space(&[VolumeType::Gp3, VolumeType::Io2], 1);
    let demand = seconds(&[(6_300, 4), (0, 4), (0, 4), (6_300, 4)]);
    let wanted = wanted(100, 0);
    let fluid = cheapest(&gp3, &demand, &wanted);
    let few = |requests_max| {
        sharpen((&gp3, &Index::new(&demand), None), &wanted, fluid.clone(), requests_max)
    };
    let layouts = |all: &[Found]| all.iter().map(|it| it.layout).collect::<Vec<_>>();
    assert_eq!(layouts(&few(0)), layouts(&fluid));
    let all: Vec<Vec<Found>> = [0, 10_000, 30_000, MANY].map(few).into();
    assert!(all.is_sorted_by_key(|it| std::cmp::Reverse(it[0].total())));
    assert!(all[0][0].total() > all[3][0].total());
}

#[test]
fn what_the_source_held_back_is_no_reason_for_less() {
    use crate::throttled::HeldBack;
    let gp3 = space(&[VolumeType::Gp3], 1);
    let mut demand = seconds(&[(6_300, 4)]);
    let held = HeldBack { length_ms: 1_000, iops: Some(6_300), ..HeldBack::default() };
    demand.held_back = Some(held);
    let found = sharp(&gp3, &demand, &wanted(100, 0));
    assert_eq!(found[0].layout.each.iops, Some(6_300));
}

#[test]
fn credits_that_are_spent_below_the_limit_are_missing_above_it() {
    // 2,000 per second for 4,000 s: 5.4 million credits carry it with 217 GiB. Between each 100 s
    // of these, nothing is near the limit of 3,000, and nothing is sent.
    let gp2 = space(&[VolumeType::Gp2], 1);
    let mut demand = seconds(&[(200_000, 4); 40]);
    demand.length_us *= 100;
    for span in &mut demand.spans {
        (span.start_us, span.length_us) = (span.start_us * 100, span.length_us * 100);
    }
    let found = sharp(&gp2, &demand, &wanted(100, 0)).remove(0);
    assert!((215..=217).contains(&found.layout.each.size_gib), "{:?}", found.layout);
    assert!(does(&gp2, &demand, &wanted(100, 0), &found.layout));
    for (_, less) in one_less(&gp2, &wanted(100, 0), &found.layout) {
        assert!(!does(&gp2, &demand, &wanted(100, 0), &less), "{less:?}");
    }
}

#[test]
fn a_token_too_few_is_made_good() {
    let both = space(&[VolumeType::Gp3, VolumeType::Io1], 1);
    let demand = seconds(&[(6_300, 64), (0, 1), (0, 1), (6_200, 4)]);
    let wanted = wanted(100, 0);
    for found in sharp(&both, &demand, &wanted) {
        for (_, layout) in one_less(&both, &wanted, &found.layout) {
            let less = given(&both, &demand, &layout).expect("a price");
            let less = Found { exact: Some(Exact::default()), ..less };
            let settled = settle(&both, &demand, &wanted, vec![less], MANY);
            assert_eq!(settled.first(), Some(&found), "{layout:?}");
            // A layout for which the scheduler was not asked is reported as it is.
            let less = given(&both, &demand, &layout).expect("a price");
            let settled = settle(&both, &demand, &wanted, vec![less], MANY).remove(0);
            assert_eq!(settled.layout, layout);
            assert!(settled.waited_us() > 0);
        }
    }
}

fn demand() -> impl Strategy<Value = Demand> {
    let one = prop_oneof![
        2 => Just((0, 4)),
        2 => (1..6_000_u64, 1..64_u64),
        1 => (1..600_u64, 1..600_u64),
    ];
    proptest::collection::vec(one, 1..7).prop_map(|all| seconds(&all))
}

/// Returns all layouts of a type and number of volumes, with every value of the numbers that can be
/// chosen.
fn all_of(space: &Space, volume_type: VolumeType, gib: u32, volumes: u32) -> Vec<Layout> {
    let rules = space.rules.of(volume_type).unwrap();
    let request = |size_gib, iops| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps: None,
        multi_attach: false,
    };
    let least_gib = gib.div_ceil(volumes).max(rules.size_gib_min);
    let requests: Vec<VolumeRequest> = match rules.iops {
        IopsRule::Provisioned { min, max, per_gib, .. } => (min..=max)
            .map(|iops| request(least_gib.max(iops.div_ceil(per_gib)), Some(iops)))
            .collect(),
        _ => (least_gib..=rules.size_gib_max).map(|gib| request(gib, None)).collect(),
    };
    let each = requests.iter().filter_map(|request| space.rules.resolve(request).ok());
    each.map(|each| Layout { volumes, ..Layout::one(each) }).collect()
}

/// Returns a configuration for tests whose cases take seconds: three cases, or a part of those in
/// `PROPTEST_CASES`.
fn few() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: (usual.cases / 85).max(3), ..usual }
}

proptest! {
    #![proptest_config(few())]

    /// Compared with a replay of every layout, from the cheapest on, for types of 2014, which have
    /// small ranges. With a list or a book, striped or with a hot volume, on no or several
    /// instances.
    #[test]
    fn no_layout_is_cheaper_on_the_scheduler(
        demand in demand(),
        gib in 1..500_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..3_u32,
        of_book in any::<bool>(),
        spread in spread(),
        hosts in proptest::sample::subsequence(vec!["m1.large", "m5.large", "t3.nano"], 0..=2),
    ) {
        let date: Date = "2014-07-01".parse().unwrap();
        let types = [VolumeType::Standard, VolumeType::Io1, VolumeType::Gp2];
        let list = Prices::from(PriceList::as_of(date).unwrap());
        let space = Space {
            rules: Rules::as_of(date).unwrap(),
            prices: if of_book { Prices::Book(Arc::new(book())) } else { list },
            spread,
            instances: hosts.iter().filter_map(|name| instance::by_name(name)).collect(),
            ..space(&types, volumes)
        };
        let wanted = wanted(u64::from(gib), throttled);
        let fluid = cheapest(&space, &demand, &wanted);
        for found in sharpen((&space, &Index::new(&demand), None), &wanted, fluid, MANY) {
            let Layout { volumes, each, instance } = found.layout;
            let all = all_of(&space, each.volume_type, gib, volumes).into_iter();
            let mut all: Vec<Layout> = all.map(|it| Layout { instance, ..it }).collect();
            let cost = |it: &Layout| space.monthly(it).unwrap().total();
            all.sort_by_key(cost);
            let first = all.iter().find(|it| does(&space, &demand, &wanted, it));
            prop_assert_eq!(first.map(cost), Some(found.monthly.total()), "{:?}", found.layout);
        }
    }

    /// For types with two numbers: neither a grid of cheaper layouts nor the neighbours of the
    /// layout meet the requirements.
    #[test]
    fn what_is_cheaper_does_not_do_on_the_scheduler(
        demand in demand(),
        gib in 1..3_000_u64,
        throttled in prop_oneof![Just(0), 0..40_000_u64],
        grid in proptest::collection::vec((0..=100_u32, 0..=100_u32), 6),
    ) {
        let space = space(&[VolumeType::Gp3], 1);
        let wanted = wanted(gib, throttled);
        let fluid = cheapest(&space, &demand, &wanted);
        let before = fluid.first().map(|fluid| (fluid.total(), fluid.layout));
        let index = Index::new(&demand);
        let Some(found) = sharpen((&space, &index, None), &wanted, fluid, MANY).pop() else {
            return Ok(());
        };
        prop_assert!(does(&space, &demand, &wanted, &found.layout), "{:?}", found.layout);
        let (total, layout) = before.expect("it was found");
        if does(&space, &demand, &wanted, &layout) {
            prop_assert!(found.total() <= total, "{layout:?} {:?}", found.layout);
        }
        let each = found.layout.each;
        let iops = each.iops.unwrap();
        let mibps = each.throughput_mibps.unwrap();
        let near = [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2)];
        for (fewer, less) in near.into_iter().chain(grid) {
            let request = VolumeRequest {
                volume_type: VolumeType::Gp3,
                size_gib: each.size_gib,
                iops: Some((iops + 60).saturating_sub(fewer)),
                throughput_mibps: Some((mibps + 3).saturating_sub(less)),
                multi_attach: false,
            };
            let exactly = VolumeRequest {
                iops: iops.checked_sub(fewer),
                throughput_mibps: mibps.checked_sub(less),
                ..request
            };
            for request in [request, exactly] {
                let Ok(each) = space.rules.resolve(&request) else { continue };
                let layout = Layout::one(each);
                if space.monthly(&layout).unwrap().total() < found.monthly.total() {
                    prop_assert!(
                        !does(&space, &demand, &wanted, &layout),
                        "{layout:?} {:?}", found.layout
                    );
                }
            }
        }
    }

    /// One IOPS, MiB/s or GiB less is too little, for all types, also in a stripe, beside a hot
    /// volume, with the limits of instances and with the costs of a price book.
    #[test]
    fn one_less_does_not_do_on_the_scheduler(
        demand in demand(),
        gib in 1..3_000_u64,
        throttled in prop_oneof![Just(0), 0..40_000_u64],
        of_book in any::<bool>(),
        spread in spread(),
        hosts in proptest::sample::subsequence(vec!["m1.large", "m5.large"], 0..=2),
    ) {
        let mut space = Space { spread, ..space(&VolumeType::ALL, 2) };
        space.instances = hosts.iter().filter_map(|name| instance::by_name(name)).collect();
        if of_book {
            space.prices = Prices::Book(Arc::new(book()));
        }
        let wanted = wanted(gib, throttled);
        for found in sharp(&space, &demand, &wanted) {
            prop_assert!(does(&space, &demand, &wanted, &found.layout), "{:?}", found.layout);
            let cost = found.monthly.total();
            for (less, layout) in one_less(&space, &wanted, &found.layout) {
                let is_cheaper = space.monthly(&layout).unwrap().total() < cost;
                if less != Less::Volumes && is_cheaper {
                    prop_assert!(
                        !does(&space, &demand, &wanted, &layout),
                        "{less:?} {:?}", found.layout
                    );
                }
            }
        }
    }

    #[test]
    fn looser_is_never_dearer_and_idle_time_and_seconds_change_nothing(
        all in proptest::collection::vec((0..6_000_u64, 1..64_u64), 1..5),
        gib in 1..3_000_u64,
        throttled in prop_oneof![Just(0), 0..40_000_u64],
        looser in 0..40_000_u64,
    ) {
        let space = space(&[VolumeType::Gp3, VolumeType::Io2, VolumeType::Gp2], 2);
        let of = |demand: &Demand, gib, throttled| sharp(&space, demand, &wanted(gib, throttled));
        let total = |all: Vec<Found>| all.first().map_or(u64::MAX, Found::total);
        let demand = seconds(&all);
        let strict = total(of(&demand, gib, throttled));
        prop_assert!(total(of(&demand, gib, throttled + looser)) <= strict);
        prop_assert!(total(of(&demand, gib * 2, throttled)) >= strict);
        // If requests may not wait at all, idle time does not change that.
        let layouts = |demand: &Demand| {
            let all = of(demand, gib, 0);
            all.iter().map(|it| (it.layout, it.waited_us())).collect::<Vec<_>>()
        };
        let mut longer = demand.clone();
        longer.length_us += 3_600_000_000;
        prop_assert_eq!(layouts(&longer), layouts(&demand));
        // Three seconds of the same, and a span of three seconds.
        let (requests, kib) = all[0];
        let mut one = seconds(&[(3 * requests, kib), (0, 1), (0, 1)]);
        one.spans.iter_mut().for_each(|span| span.length_us *= 3);
        let three = seconds(&[(requests, kib); 3]);
        let credits = |all: Vec<(Layout, u64)>| -> Vec<(Layout, u64)> {
            all.into_iter().filter(|(it, _)| it.each.volume_type != VolumeType::Gp2).collect()
        };
        if requests.is_multiple_of(2) {
            prop_assert_eq!(credits(layouts(&one)), credits(layouts(&three)));
        }
    }

    /// Faster layouts never wait longer.
    #[test]
    fn more_is_never_worse_on_the_scheduler(
        demand in demand(),
        iops in 3_000..6_000_u32,
        more in 0..40_u32,
        mibps in 125..300_u32,
    ) {
        let space = space(&[], 1);
        let waited = |iops, throughput_mibps| {
            let request = VolumeRequest {
                volume_type: VolumeType::Gp3,
                size_gib: 100,
                iops: Some(iops),
                throughput_mibps: Some(throughput_mibps),
                multi_attach: false,
            };
            let layout = Layout::one(space.rules.resolve(&request).unwrap());
            exact::replay(&space, &demand, &layout, MANY).expect("few").waited_us
        };
        let less = waited(iops, mibps);
        // Rounding may differ by a microsecond for each second.
        prop_assert!(waited(iops + more, mibps) <= less + 6);
        prop_assert!(waited(iops, mibps + more) <= less + 6);
    }
}
