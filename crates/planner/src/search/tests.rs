//! Known answers, and oracles that try every layout.

use evenkeel_core::volume::Date;
use proptest::prelude::*;

use super::*;
use crate::testing::{seconds, space, wanted};

fn best(space: &Space, demand: &Demand, wanted: &Wanted) -> Found {
    cheapest(space, demand, wanted).into_iter().next().expect("a layout")
}

#[test]
fn the_cheapest_is_what_it_must_be() {
    let gp3 = space(&[VolumeType::Gp3], 1);
    // 5,000 of 16 KiB a second: 5,000 IOPS, and 78.125 MiB/s, which is in the 125.
    let found = best(&gp3, &seconds(&[(5_000, 16); 60]), &wanted(100, 0));
    let each = found.layout.each;
    assert_eq!((each.size_gib, each.iops, each.throughput_mibps), (100, Some(5_000), Some(125)));
    // 0.08 for a GiB, 0.005 for each of 2,000 IOPS.
    assert_eq!(found.total(), 8_000_000 + 10_000_000);
    // 1,000 of 512 KiB: two counted each, and 500 MiB/s, beside which 2,000 IOPS must be.
    let each = best(&gp3, &seconds(&[(1_000, 512); 60]), &wanted(100, 0)).layout.each;
    assert_eq!((each.iops, each.throughput_mibps), (Some(3_000), Some(500)));
    // Twice that is more than 2,000 MiB/s beside 4,000 IOPS: those must be bought, too.
    let each = best(&gp3, &seconds(&[(2_400, 512); 60]), &wanted(100, 0)).layout.each;
    assert_eq!((each.iops, each.throughput_mibps), (Some(4_800), Some(1_200)));
}

#[test]
fn a_size_may_be_bought_for_its_iops_or_its_credits() {
    let io1 = space(&[VolumeType::Io1], 1);
    let each = best(&io1, &seconds(&[(6_000, 4); 60]), &wanted(10, 0)).layout.each;
    assert_eq!((each.size_gib, each.iops), (120, Some(6_000)));
    // An hour at 1,000 IOPS: credits carry it on the least gp2 volume that is large enough.
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
    // Each gp3 volume brings 3,000 IOPS: five need none that are paid for.
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
    use crate::held_back::HeldBack;
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
    // Who allows that much waiting allows it to the recorded, too.
    assert_eq!(one(&demand, 15_000), 1_000);
    let two = cheapest(&space, &demand, &wanted(100, 0));
    let striped = two.iter().find(|it| it.layout.each.iops == Some(750));
    assert_eq!(striped.map(|it| it.layout.volumes), Some(2));
}

fn demand() -> impl Strategy<Value = Demand> {
    let one = prop_oneof![Just((0, 4)), (1..20_000_u64, 1..300_u64), (1..2_000_u64, 1..64_u64)];
    proptest::collection::vec(one, 1..12).prop_map(|all| seconds(&all))
}

/// All layouts of one volume that may be cheaper than a total, of a type whose IOPS are sold alone
/// or that has none to sell.
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
    each.map(|each| Layout { volumes, each }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The oracle tries every layout, with the rules and prices of 2013, which have small ranges.
    #[test]
    fn no_layout_is_cheaper_than_the_cheapest(
        demand in demand(),
        gib in 1..500_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..4_u32,
    ) {
        let date: Date = "2013-01-01".parse().unwrap();
        let types = [VolumeType::Standard, VolumeType::Io1];
        let space = Space {
            rules: Rules::as_of(date).unwrap(),
            prices: PriceList::as_of(date).unwrap(),
            ..space(&types, volumes)
        };
        let wanted = wanted(u64::from(gib), throttled);
        let found = cheapest(&space, &demand, &wanted);
        for volume_type in types {
            for volumes in 1..=volumes {
                let least_gib = space.rules.of(volume_type).unwrap().size_gib_min;
                let each = gib.div_ceil(volumes).max(least_gib);
                let all = all_of(&space, volume_type, each, volumes);
                let good = all.into_iter().filter(|layout| {
                    does(&replay(&space, &demand, layout).1, &demand, &wanted)
                });
                let costs = good.map(|it| it.monthly(space.prices).unwrap().total());
                let same = |it: &&Found| {
                    (it.layout.each.volume_type, it.layout.volumes) == (volume_type, volumes)
                };
                let cost = found.iter().find(same).map(|it| it.monthly.total());
                prop_assert_eq!(cost, costs.min(), "{} {}", volume_type, volumes);
            }
        }
    }

    /// The oracle tries a grid of what is cheaper: it must not do.
    #[test]
    fn what_is_cheaper_does_not_do(
        demand in demand(),
        gib in 1..3_000_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..4_u32,
        grid in proptest::collection::vec((0..=1_000_u64, 0..=1_000_u64), 60),
    ) {
        let space = space(&[VolumeType::Gp3], volumes);
        let wanted = wanted(u64::from(gib), throttled);
        for found in cheapest(&space, &demand, &wanted) {
            let best = found.layout.each;
            let (iops, mibps) = (best.iops.unwrap(), best.throughput_mibps.unwrap());
            // The neighbours, and points of the rectangle in which cheaper ones may lie.
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
                if layout.monthly(space.prices).unwrap().total() < found.total() {
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
    ) {
        let space = space(&VolumeType::ALL, 5);
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
