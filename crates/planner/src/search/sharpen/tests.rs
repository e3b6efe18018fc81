//! What is sharpened against trying every layout on the scheduler.

use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Date, Rules, VolumeRequest, VolumeType};
use proptest::prelude::*;

use super::*;
use crate::exact;
use crate::neighbours::{Less, one_less};
use crate::search::cheapest;
use crate::testing::{seconds, space, wanted};

const MANY: u64 = u64::MAX;

fn sharp(space: &Space, demand: &Demand, wanted: &Wanted) -> Vec<Found> {
    sharpen(space, demand, wanted, cheapest(space, demand, wanted), MANY)
}

/// Whether the scheduler does what is wanted, asked as the answer of a plan asks it.
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
    let (second, minute) = (iops(&seconds(&[(6_300, 4)])), iops(&seconds(&[(6_300, 4); 60])));
    // 6,300 come in a second, and one more may be owed: 1.05 s of 6,000 are saved and earned.
    assert!((5_990..=6_000).contains(&second), "{second}");
    // 6,294.8 a second in 60.05 s.
    assert!((6_290..=6_295).contains(&minute), "{minute}");
}

#[test]
fn what_cannot_be_sent_stays_as_it_is() {
    let gp3 = space(&[VolumeType::Gp3, VolumeType::Io2], 1);
    let (demand, wanted) = (seconds(&[(6_300, 4), (0, 4), (0, 4), (6_300, 4)]), wanted(100, 0));
    let fluid = cheapest(&gp3, &demand, &wanted);
    let few = |requests_max| sharpen(&gp3, &demand, &wanted, fluid.clone(), requests_max);
    let layouts = |all: &[Found]| all.iter().map(|it| it.layout).collect::<Vec<_>>();
    assert_eq!(layouts(&few(0)), layouts(&fluid));
    let all: Vec<Vec<Found>> = [0, 10_000, 30_000, MANY].map(few).into();
    assert!(all.is_sorted_by_key(|it| std::cmp::Reverse(it[0].total())));
    assert!(all[0][0].total() > all[3][0].total());
}

#[test]
fn what_the_source_held_back_is_no_reason_for_less() {
    use crate::held_back::HeldBack;
    let gp3 = space(&[VolumeType::Gp3], 1);
    let mut demand = seconds(&[(6_300, 4)]);
    let held = HeldBack { length_ms: 1_000, iops: Some(6_300), ..HeldBack::default() };
    demand.held_back = Some(held);
    let found = sharp(&gp3, &demand, &wanted(100, 0));
    assert_eq!(found[0].layout.each.iops, Some(6_300));
}

#[test]
fn credits_that_are_spent_below_the_limit_are_missing_above_it() {
    // 2,000 a second for 4,000 s: 5.4 million credits carry it with 217 GiB. Between 100 s of
    // these, nothing is near to the limit of 3,000, and nothing is sent.
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
            // What the scheduler was not asked for is told as it is.
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

/// All layouts of a type and number, each number that is chosen one by one.
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
    each.map(|each| Layout { volumes, each }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The oracle sends every layout's requests, from the cheapest on: types of 2014, which have
    /// small ranges.
    #[test]
    fn no_layout_is_cheaper_on_the_scheduler(
        demand in demand(),
        gib in 1..500_u32,
        throttled in prop_oneof![Just(0), 0..86_400_u64],
        volumes in 1..3_u32,
    ) {
        let date: Date = "2014-07-01".parse().unwrap();
        let types = [VolumeType::Standard, VolumeType::Io1, VolumeType::Gp2];
        let space = Space {
            rules: Rules::as_of(date).unwrap(),
            prices: PriceList::as_of(date).unwrap(),
            ..space(&types, volumes)
        };
        let wanted = wanted(u64::from(gib), throttled);
        let fluid = cheapest(&space, &demand, &wanted);
        for found in sharpen(&space, &demand, &wanted, fluid, MANY) {
            let Layout { volumes, each } = found.layout;
            let mut all = all_of(&space, each.volume_type, gib, volumes);
            let cost = |it: &Layout| it.monthly(space.prices).unwrap().total();
            all.sort_by_key(cost);
            let first = all.iter().find(|it| does(&space, &demand, &wanted, it));
            prop_assert_eq!(first.map(cost), Some(found.monthly.total()), "{:?}", found.layout);
        }
    }

    /// What is sold in two numbers: nothing on a grid of what is cheaper does, nor what is next to
    /// it.
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
        let before = fluid.first().map(|it| (it.total(), it.layout));
        let Some(found) = sharpen(&space, &demand, &wanted, fluid, MANY).pop() else {
            return Ok(());
        };
        prop_assert!(does(&space, &demand, &wanted, &found.layout), "{:?}", found.layout);
        let (total, layout) = before.expect("it was found");
        if does(&space, &demand, &wanted, &layout) {
            prop_assert!(found.total() <= total, "{layout:?} {:?}", found.layout);
        }
        let each = found.layout.each;
        let (iops, mibps) = (each.iops.unwrap(), each.throughput_mibps.unwrap());
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
                let layout = Layout { volumes: 1, each };
                if layout.monthly(space.prices).unwrap().total() < found.monthly.total() {
                    prop_assert!(
                        !does(&space, &demand, &wanted, &layout),
                        "{layout:?} {:?}", found.layout
                    );
                }
            }
        }
    }

    /// One IOPS, MiB/s or GiB less is too little, of all types, also in a stripe and behind an
    /// instance's limits.
    #[test]
    fn one_less_does_not_do_on_the_scheduler(
        demand in demand(),
        gib in 1..3_000_u64,
        throttled in prop_oneof![Just(0), 0..40_000_u64],
        has_instance in any::<bool>(),
    ) {
        let mut space = space(&VolumeType::ALL, 2);
        space.instance = evenkeel_core::instance::by_name("m5.large").filter(|_| has_instance);
        let wanted = wanted(gib, throttled);
        for found in sharp(&space, &demand, &wanted) {
            prop_assert!(does(&space, &demand, &wanted, &found.layout), "{:?}", found.layout);
            let cost = found.monthly.total();
            for (less, layout) in one_less(&space, &wanted, &found.layout) {
                let is_cheaper = layout.monthly(space.prices).unwrap().total() < cost;
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
        // Who may not wait at all may not with idle time, either.
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
            let layout = Layout { volumes: 1, each: space.rules.resolve(&request).unwrap() };
            exact::replay(&space, &demand, &layout, MANY).expect("few").waited_us
        };
        let less = waited(iops, mibps);
        // A microsecond for each second may be rounded otherwise.
        prop_assert!(waited(iops + more, mibps) <= less + 6);
        prop_assert!(waited(iops, mibps + more) <= less + 6);
    }
}
