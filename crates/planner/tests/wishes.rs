//! Properties of the rows of an answer, compared with an enumeration of layouts: no row is dearer
//! than a layout that a check carries, and a looser wish makes no row dearer.
#![allow(clippy::unwrap_used)] // a test may panic

use evenkeel_core::price::PriceList;
use evenkeel_core::random::Random;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};
use evenkeel_planner::demand::{Demand, Span};
use evenkeel_planner::exact;
use evenkeel_planner::layout::Layout;
use evenkeel_planner::search::{self, Found, Space, Tolerance, Wanted};
use evenkeel_planner::spread::Spread;

const S: u64 = 1_000_000;
const DAY_US: u64 = 86_400 * S;
const TYPES: [VolumeType; 4] = [VolumeType::Gp2, VolumeType::Gp3, VolumeType::Io1, VolumeType::St1];
const ROWS: usize = 1_000;

fn space(tolerance: Tolerance) -> Space {
    Space {
        rules: Rules::newest(),
        prices: PriceList::newest().into(),
        tolerance,
        types: TYPES.to_vec(),
        // Three and six volumes divide few requests evenly. The scheduler takes longer.
        volumes_max: if tolerance == Tolerance::None { 6 } else { 3 },
        spread: Spread::STRIPED,
        instances: vec![],
    }
}

/// Returns a workload of a few spans: seconds for the scheduler, up to hours for the fluid.
fn demand(random: &mut Random, tolerance: Tolerance) -> Demand {
    let (lengths_s, fastest) = match tolerance {
        Tolerance::None => ([1, 60, 3_600], 20_000),
        Tolerance::Evenkeel => ([1, 1, 1], 800),
    };
    let length_s: u64 = random.among(&lengths_s);
    let count = 1 + random.below(5);
    let span = |number: u64| {
        let bytes_each = 512 * (1 + random.below(2_048));
        let rate = (1 + random.below(fastest)).min((1 << 30) / bytes_each);
        let requests = if random.one_in(4) { 0 } else { rate * length_s };
        let start_us = number * length_s * S;
        Span {
            start_us,
            length_us: length_s * S,
            requests,
            bytes: requests * bytes_each,
            ..Span::default()
        }
    };
    let mut spans: Vec<Span> = (0..count).map(span).collect();
    spans.retain(|span| span.requests > 0);
    Demand { spans, length_us: count * length_s * S, held_back: None }
}

/// Returns the rows of an answer: the cheapest layout of each type and number of volumes that
/// carries the workload month after month.
fn rows(space: &Space, demand: &Demand, wanted: &Wanted) -> Vec<Found> {
    let mut all = search::for_months(space, demand, demand, wanted, (ROWS, 0));
    all.retain(|found| search::carries(space, demand, wanted, found));
    all
}

fn row(rows: &[Found], volume_type: VolumeType, volumes: u32) -> Option<&Found> {
    let is_row = |found: &&Found| {
        (found.layout.each.volume_type, found.layout.volumes) == (volume_type, volumes)
    };
    rows.iter().find(is_row)
}

/// Returns whether a layout passes the check, and carries the workload month after month.
fn passes(space: &Space, demand: &Demand, wanted: &Wanted, layout: &Layout) -> bool {
    let mut found = search::given(space, demand, layout).unwrap();
    if space.tolerance == Tolerance::Evenkeel {
        found.exact = exact::replay(space, demand, layout, u64::MAX);
    }
    let is_late = |(permille, us): &(u32, u64)| found.delays().permille(*permille) > *us;
    found.waits_as_wanted(demand, wanted)
        && !wanted.delays.iter().any(is_late)
        && search::carries(space, demand, wanted, &found)
}

/// Returns layouts of a type and number of volumes on a coarse grid.
fn grid(space: &Space, wanted: &Wanted, (volume_type, volumes): (VolumeType, u32)) -> Vec<Layout> {
    let gib = u32::try_from(wanted.capacity_gib.div_ceil(volumes.into())).unwrap();
    let steps = |from: u32, to: u32| {
        // Each value is about a fifth above the previous one.
        std::iter::successors(Some(from), |step| Some(step + (step / 5).max(1)))
            .take_while(move |step| *step <= to)
    };
    let mut all: Vec<VolumeRequest> = Vec::new();
    let request = |size_gib, iops, throughput_mibps| VolumeRequest {
        volume_type,
        size_gib,
        iops,
        throughput_mibps,
        multi_attach: false,
    };
    match volume_type {
        VolumeType::Gp3 => {
            for iops in steps(3_000, 80_000) {
                let gib = if iops > 3_000 { gib.max(iops.div_ceil(500)) } else { gib };
                let mibps = steps(125, 2_000.min(iops / 4));
                all.extend(mibps.map(|mibps| request(gib, Some(iops), Some(mibps))));
            }
        }
        VolumeType::Io1 => {
            let sized = |iops: u32| request(gib.max(4).max(iops.div_ceil(50)), Some(iops), None);
            all.extend(steps(100, 64_000).map(sized));
        }
        VolumeType::Gp2 => all.extend(steps(gib, 16_384).map(|gib| request(gib, None, None))),
        _ => all.extend(steps(gib.max(125), 16_384).map(|gib| request(gib, None, None))),
    }
    let legal = all.iter().filter_map(|request| space.rules.resolve(request).ok());
    legal.map(|each| Layout { volumes, ..Layout::one(each) }).collect()
}

fn wanted(random: &mut Random) -> Wanted {
    let mut wanted = Wanted { capacity_gib: 1 + random.below(2_000), ..Wanted::default() };
    match random.below(4) {
        0 => {}
        1 => wanted.throttled_us_per_day_max = random.below(86_400) * S,
        2 => wanted.throttled_us_per_day_max = random.below(600) * S,
        _ => {
            wanted.throttled_us_per_day_max = DAY_US;
            wanted.delays = vec![(random.among(&[500, 990, 999]), random.below(5_000_000))];
        }
    }
    wanted
}

/// Returns a wish that is looser in one respect.
fn looser(random: &mut Random, wanted: &Wanted) -> Wanted {
    let mut looser = wanted.clone();
    match looser.delays.first_mut() {
        None => {
            looser.throttled_us_per_day_max += random.below(20_000) * S;
            looser.throttled_us_per_day_max = looser.throttled_us_per_day_max.min(DAY_US);
        }
        Some((permille, us)) => match (random.below(2), *permille) {
            // Fewer requests are bound, or all of them by more.
            (0, 999) => *permille = 990,
            (0, 990) => *permille = 500,
            _ => *us += random.below(5_000_000),
        },
    }
    looser
}

fn no_row_is_dearer_than_a_layout_that_passes(tolerance: Tolerance, cases: u64) {
    let mut random = Random::new(3, 6);
    let space = space(tolerance);
    for number in 0..cases {
        let demand = demand(&mut random, tolerance);
        let wanted = wanted(&mut random);
        let rows = rows(&space, &demand, &wanted);
        let volume_type = random.among(&TYPES);
        let volumes = 1 + u32::try_from(random.below(space.volumes_max.into())).unwrap();
        let row = row(&rows, volume_type, volumes);
        // A burst that the fluid does not carry is looked for by no scheduler.
        if row.is_none() && tolerance == Tolerance::Evenkeel {
            continue;
        }
        if let Some(row) = row {
            let what = format!("{number}: {} {demand:?} {wanted:?}", row.layout);
            assert!(passes(&space, &demand, &wanted, &row.layout), "{what}");
        }
        let cost = |layout: &Layout| space.monthly(layout).unwrap().total();
        for layout in grid(&space, &wanted, (volume_type, volumes)) {
            let is_cheaper = row.is_none_or(|row| cost(&layout) < row.monthly.total());
            assert!(
                !is_cheaper || !passes(&space, &demand, &wanted, &layout),
                "{number}: {layout} passes, and the row is {:?}: {demand:?} {wanted:?}",
                row.map(|row| row.layout.to_string()),
            );
        }
    }
}

fn no_looser_wish_makes_a_row_dearer(tolerance: Tolerance, cases: u64) {
    let mut random = Random::new(60, 99);
    let space = space(tolerance);
    for number in 0..cases {
        let demand = demand(&mut random, tolerance);
        let wanted = wanted(&mut random);
        let looser = looser(&mut random, &wanted);
        let [strict_rows, loose_rows] =
            [&wanted, &looser].map(|wanted| rows(&space, &demand, wanted));
        let first = |rows: &[Found]| rows.first().map_or(u64::MAX, Found::total);
        let what = format!("{number}: {wanted:?} {looser:?} {demand:?}");
        assert!(first(&loose_rows) <= first(&strict_rows), "{what}");
        for strict in &strict_rows {
            let loose = row(&loose_rows, strict.layout.each.volume_type, strict.layout.volumes);
            let total = loose.map_or(u64::MAX, Found::total);
            assert!(total <= strict.total(), "{} {what}", strict.layout);
        }
    }
}

#[test]
fn rows_are_no_dearer_than_what_a_check_carries() {
    no_row_is_dearer_than_a_layout_that_passes(Tolerance::None, 80);
}

#[test]
fn rows_are_no_dearer_than_what_a_check_carries_on_the_scheduler() {
    no_row_is_dearer_than_a_layout_that_passes(Tolerance::Evenkeel, 3);
}

#[test]
fn rows_get_no_dearer_by_a_looser_wish() {
    no_looser_wish_makes_a_row_dearer(Tolerance::None, 100);
}

#[test]
fn rows_get_no_dearer_by_a_looser_wish_on_the_scheduler() {
    no_looser_wish_makes_a_row_dearer(Tolerance::Evenkeel, 3);
}
