//! Known results, a comparison with steps of a millisecond, and properties.

use std::collections::VecDeque;

use evenkeel_core::qos::pacing::CreditLimit;
use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000;
const S: u64 = 1_000_000;

fn steady(per_second: u64) -> Bucket {
    Bucket::new(Counts::Operations, Limit { per_second, credit: None }, 0)
}

fn burst(baseline: u64, most: u64, capacity: u64) -> Bucket {
    let credit = Some(CreditLimit { refill_per_second: baseline, capacity });
    Bucket::new(Counts::Operations, Limit { per_second: most, credit }, 1_000_000)
}

fn part(start_us: u64, length_us: u64, operations: u64, bytes: u64) -> Part {
    let [operations, bytes] = [operations, bytes].map(|it| u128::from(it) * MICRO);
    Part { start_us, length_us, operations, bytes }
}

#[test]
fn what_fits_passes_and_what_does_not_waits() {
    let fits = Fluid::replay(vec![steady(1_000)], [part(0, S, 1_000, 0)]);
    assert_eq!((fits.waited_us(), fits.delays.most_us(), fits.binding()), (0, 0, None));
    // The 3,000 of a second take three: the last waits for two.
    let late = Fluid::replay(vec![steady(1_000)], [part(0, S, 3_000, 0)]);
    assert_eq!((late.waited_us(), late.end_us, late.delays.most_us()), (3 * S, 3 * S, 2 * S));
    assert_eq!(late.delays.mean_us(), S);
    // Later requests wait until the backlog is gone: 2,000 are left and 500 per second arrive.
    let both = [part(0, S, 3_000, 0), part(S, 9 * S, 4_500, 0)];
    let gone = Fluid::replay(vec![steady(1_000)], both);
    assert_eq!(gone.waited_us(), 5 * S);
}

#[test]
fn the_limit_that_takes_longest_is_the_one_that_binds() {
    let bytes = Bucket::new(Counts::Bytes, Limit { per_second: 1 << 20, credit: None }, 0);
    let buckets = vec![steady(1_000), bytes];
    let parts = [part(0, S, 100, 3 << 20), part(10 * S, S, 2_000, 1 << 20)];
    let outcome = Fluid::replay(buckets, parts);
    assert_eq!(outcome.throttled_us, [2 * S, 3 * S]);
    assert_eq!(outcome.binding(), Some(1));
}

#[test]
fn credits_carry_a_burst_and_run_out_to_the_second() {
    // gp2 of 100 GiB: 300 IOPS, and 3,000 while 5.4 million credits last: 2,000 s.
    let gp2 = || vec![burst(300, 3_000, 5_400_000)];
    let until = |seconds: u64| Fluid::replay(gp2(), [part(0, seconds * S, 3_000 * seconds, 0)]);
    assert_eq!((until(2_000).waited_us(), until(2_000).least_ppm[0]), (0, 0));
    let over = until(2_001);
    assert_eq!(over.waited_us(), 10 * S, "the last second's 3,000 take ten");
    // Credits earned during idle time are available afterwards, up to the maximum.
    let again = [part(0, 2_000 * S, 6_000_000, 0), part(2_100 * S, S, 30_300, 0)];
    let outcome = Fluid::replay(gp2(), again);
    let spent = (30_000.0 / 2_700.0 + 300.0 / 300.0, outcome.waited_us());
    assert!((10 * S..13 * S).contains(&outcome.waited_us()), "{spent:?}");
}

#[test]
fn a_backlog_that_ends_with_the_credits_is_no_time_before_it_came() {
    // gp2 of 1 GiB. The end of the backlog and of the credits fall into one microsecond.
    let parts = [
        part(0, S, 5_579_684, 0),
        part(S, 1_804_481_000, 0, 0),
        part(1_805_481_000, 100_000_000, 11_527, 0),
    ];
    let outcome = Fluid::replay(vec![burst(100, 3_000, 5_400_000)], parts);
    assert_eq!(outcome.delays.total() / MICRO, 5_591_211);
    assert!(outcome.waited_us() <= outcome.end_us);
}

/// A bucket and a queue, a millisecond at a time.
fn stepped(rate: u64, refill: u64, capacity: u64, parts: &[Part]) -> (u64, u64) {
    let mut queue = VecDeque::new();
    let mut credits = u128::from(capacity) * MICRO;
    let (mut waited_ms, mut most_ms, mut at_ms) = (0, 0, 0);
    let end_ms = parts.last().map_or(0, |last| (last.start_us + last.length_us) / MS);
    while at_ms < end_ms || !queue.is_empty() {
        let now = parts
            .iter()
            .find(|part| (part.start_us..part.start_us + part.length_us).contains(&(at_ms * MS)));
        if let Some(part) = now {
            queue.push_back((at_ms, part.operations * u128::from(MS) / u128::from(part.length_us)));
        }
        // The credits that are left are spent within the step.
        let earned = u128::from(refill * MS) + if capacity > 0 { credits } else { 0 };
        let mut left = earned.min(u128::from(rate * MS));
        let mut served = 0;
        while let Some((came_ms, amount)) = queue.front_mut() {
            most_ms = most_ms.max(at_ms - *came_ms);
            let now = left.min(*amount);
            (left, served, *amount) = (left - now, served + now, *amount - now);
            if *amount > 0 {
                break;
            }
            queue.pop_front();
        }
        if capacity > 0 {
            credits = (credits + u128::from(refill * MS)).saturating_sub(served);
            credits = credits.min(u128::from(capacity) * MICRO);
        }
        waited_ms += u64::from(!queue.is_empty());
        at_ms += 1;
    }
    (waited_ms, most_ms)
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let one = (0..300_u64, 1..300_u64, 0..400_u64);
    proptest::collection::vec(one, 1..8).prop_map(|all| {
        let mut at = 0;
        let mut parts = Vec::new();
        for (gap_ms, length_ms, per_ms) in all {
            at += gap_ms * MS;
            parts.push(part(at, length_ms * MS, per_ms * length_ms, 0));
            at += length_ms * MS;
        }
        parts
    })
}

fn near(one: u64, other: u64, by: u64) -> bool {
    one.abs_diff(other) <= by
}

proptest! {
    /// Compared with steps of a millisecond, with a queue of the arrivals of each.
    #[test]
    fn a_replay_is_what_steps_of_a_millisecond_come_to(
        parts in parts(),
        refill in 10_000..200_000_u64,
        above in 0..200_000_u64,
        capacity in 0..100_000_u64,
    ) {
        let capacity = if above == 0 { 0 } else { capacity };
        let rate = if capacity == 0 { refill } else { refill + above };
        let bucket = if capacity == 0 { steady(rate) } else { burst(refill, rate, capacity) };
        let outcome = Fluid::replay(vec![bucket], parts.clone());
        let (waited_ms, most_ms) = stepped(rate, refill, capacity, &parts);
        // Each change of regime may fall within a step.
        let slack = (4 * parts.len() as u64 + 2) * MS;
        prop_assert!(near(outcome.waited_us(), waited_ms * MS, slack), "{outcome:?} {waited_ms}");
        prop_assert!(near(outcome.delays.most_us(), most_ms * MS, slack), "{outcome:?} {most_ms}");
        let asked: u128 = parts.iter().map(|part| part.operations).sum();
        prop_assert_eq!(outcome.delays.total(), asked, "nothing is lost");
    }

    #[test]
    fn a_higher_limit_is_never_worse(
        parts in parts(),
        refill in 10_000..200_000_u64,
        above in 1..200_000_u64,
        capacity in 1..100_000_u64,
        more in 1..100_000_u64,
    ) {
        let replay = |bucket| Fluid::replay(vec![bucket], parts.clone());
        let less = replay(burst(refill, refill + above, capacity));
        for other in [
            burst(refill + more.min(above), refill + above, capacity),
            burst(refill, refill + above, capacity + more),
            burst(refill + more, refill + above + more, capacity),
        ] {
            let better = replay(other);
            let slack = 8 * parts.len() as u64;
            prop_assert!(better.waited_us() <= less.waited_us() + slack, "{better:?} {less:?}");
            let good = better.delays.most_us();
            let bad = less.delays.most_us();
            prop_assert!(good <= bad + slack, "{good} {bad}");
        }
    }

    #[test]
    fn parts_in_pieces_and_idle_time_behind_them_change_nothing(
        parts in parts(),
        refill in 10_000..200_000_u64,
        above in 1..200_000_u64,
        capacity in 1..100_000_u64,
    ) {
        let whole = Fluid::replay(vec![burst(refill, refill + above, capacity)], parts.clone());
        let pieces = parts.iter().flat_map(|part| {
            let count = part.length_us / MS;
            (0..count).map(move |number| Part {
                start_us: part.start_us + number * MS,
                length_us: MS,
                operations: part.operations / u128::from(count),
                bytes: 0,
            })
        });
        let idle = part(parts.last().unwrap().start_us + 1_000 * S, S, 0, 0);
        let pieces: Vec<Part> = pieces.chain([idle]).collect();
        let count = pieces.len() as u64;
        let cut = Fluid::replay(vec![burst(refill, refill + above, capacity)], pieces);
        // A backlog that is nearly gone, with credits that are nearly gone, causes hardly any
        // waiting.
        let slack = 4 * count + whole.waited_us() / 50;
        prop_assert!(near(whole.waited_us(), cut.waited_us(), slack), "{whole:?} {cut:?}");
        prop_assert!(near(whole.delays.mean_us(), cut.delays.mean_us(), 4 * count));
        prop_assert!(near(whole.delays.most_us(), cut.delays.most_us(), 4 * count));
        prop_assert_eq!(whole.delays.total(), cut.delays.total());
    }
}
