//! The time of a search for the cheapest layouts, of all types and numbers of volumes.
//!
//! `cargo bench -p evenkeel-planner --bench search`
//!
//! The workload has a daily wave, a nightly batch and random bursts, from a seed. Each search is
//! run several times. The benchmark prints the median, and the cost of the cheapest layout.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)] // a measurement may panic, and measures

use std::time::{Duration, Instant};

use evenkeel_core::price::PriceList;
use evenkeel_core::random::Random;
use evenkeel_core::volume::{Rules, VolumeType};
use evenkeel_planner::answer;
use evenkeel_planner::demand::{Assume, Demand};
use evenkeel_planner::search::{self, Space, Tolerance, Wanted};
use evenkeel_planner::spread::Spread;
use evenkeel_planner::trace::{Clock, Columns, Interval, Trace};

const DAY_S: u64 = 86_400;
const ROUNDS: usize = 5;
/// Number of layouts that are asked for, as by the program.
const SHOWN: usize = 8;

/// Returns the requests of `days` days, in steps of `step_s` seconds.
fn workload(days: u64, step_s: u64) -> Trace {
    let mut random = Random::new(1, 0);
    let mut next = |below: u64| random.below(below);
    let mut intervals = Vec::new();
    for at_s in (0..days * DAY_S).step_by(usize::try_from(step_s).unwrap()) {
        let of_day = at_s % DAY_S;
        // 200 to 1,800 a second over the day; 3,500 for half an hour at night; bursts of 6,000.
        let wave = 200 + 1_600 * of_day.min(DAY_S - of_day) / (DAY_S / 2);
        let batch = if (7_200..9_000).contains(&of_day) { 3_500 } else { 0 };
        let burst = if next(500) == 0 { 6_000 } else { 0 };
        let a_second = wave * (80 + next(40)) / 100 + batch + burst;
        let reads = a_second * step_s;
        let read_bytes = reads * (4_096 + 512 * next(24));
        let start_ms = at_s * 1_000;
        let length_ms = step_s * 1_000;
        intervals.push(Interval { start_ms, length_ms, reads, read_bytes, ..Interval::default() });
    }
    Trace::new("volume", Clock::Unix, Columns::default(), intervals).unwrap()
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

fn main() {
    println!(
        "| days | steps | stripes up to | waiting a day | fluid alone | search | answer | \
         cheapest | by the scheduler |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let cases = [(30, 60, 1), (30, 60, 16), (30, 60, 128), (1, 1, 16), (30, 1, 1), (30, 1, 16)];
    for (days, step_s, volumes_max) in cases {
        let trace = workload(days, step_s);
        for throttled_s in [0, 600] {
            let space = Space {
                rules: Rules::newest(),
                prices: PriceList::newest().into(),
                tolerance: Tolerance::None,
                types: VolumeType::ALL.to_vec(),
                volumes_max,
                spread: Spread::STRIPED,
                instances: vec![],
            };
            let wanted = Wanted {
                capacity_gib: 500,
                throttled_us_per_day_max: throttled_s * 1_000_000,
                delays: vec![],
                boots: false,
                multi_attach: false,
                monthly_max: None,
                no_less_than: None,
            };
            let (mut fluids, mut searches, mut answers) = (vec![], vec![], vec![]);
            let mut cheapest = 0;
            let mut sharp = 0;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                let demand = Demand::of(&trace, Assume::Active);
                std::hint::black_box(search::cheapest_few(&space, &demand, &wanted, SHOWN));
                fluids.push(start.elapsed());
                let start = Instant::now();
                let found = search::sharpest(&space, &demand, Some(&demand), &wanted, SHOWN);
                searches.push(start.elapsed());
                sharp = found.iter().filter(|it| it.exact.is_some()).count();
                cheapest = found.first().map_or(0, search::Found::total);
                let start = Instant::now();
                std::hint::black_box(answer::rate(&space, &trace, &demand, found));
                answers.push(start.elapsed());
            }
            let [fluid, search, answer] = [fluids, searches, answers].map(median);
            println!(
                "| {days} | {step_s} s | {volumes_max} | {throttled_s} s | {fluid:.1?} | \
                 {search:.1?} | {answer:.1?} | {cheapest} | {sharp} |"
            );
        }
    }
}
