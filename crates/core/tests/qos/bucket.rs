//! Properties 1 to 8: one bucket against the oracle.

use evenkeel_core::qos::bucket::{Bucket, Depth, MODIFY_WAIT_MAX};
use evenkeel_core::time::{Duration, Instant};
use proptest::prelude::*;

use crate::oracle;
use crate::support::{NS_PER_S, Rng};

/// Tolerances from a millisecond to a second, the usual one often.
fn tolerance_ns() -> impl Strategy<Value = u64> {
    prop_oneof![Just(50_000_000), 1_000_000..=NS_PER_S]
}

/// Rates from one token a second to more bytes a second than any network brings.
fn rate() -> impl Strategy<Value = u64> {
    prop_oneof![1..10u64, 100..=256_000u64, (1u64 << 20)..=(8 << 30)]
}

fn pacer(rate: u64, tolerance_ns: u64) -> Bucket {
    Bucket::full(rate, Depth::time(Duration::from_ns(tolerance_ns)))
}

/// One step of a bucket's history: time passes, then a charge is tried.
fn steps(gap_ns: u64, cost: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop::collection::vec((0..=gap_ns, 1..=cost), 1..80)
}

proptest! {
    #[test]
    fn p01_no_window_exceeds_depth_and_rate_and_one_charge(
        rate in rate(), tolerance in tolerance_ns(), steps in steps(20_000_000, 64),
    ) {
        let mut bucket = pacer(rate, tolerance);
        let mut now = 0;
        let mut served = Vec::new();
        for (gap, cost) in steps {
            bucket.settle(Duration::from_ns(gap));
            now += gap;
            if bucket.is_ready() {
                bucket.charge(cost);
                served.push((now, cost));
            }
        }
        let depth = oracle::Tokens::inflow(rate, tolerance);
        for first in 0..served.len() {
            let mut sum = 0;
            for last in first..served.len() {
                sum += i128::from(served[last].1);
                let window = oracle::Tokens::inflow(rate, served[last].0 - served[first].0);
                let charge = oracle::Tokens::whole(served[last].1.into());
                let bound = depth.plus(window).plus(charge);
                prop_assert!(oracle::Tokens::whole(sum) <= bound, "{sum} served, {bound:?}");
            }
        }
    }

    #[test]
    fn p02_settling_twice_is_settling_once(
        rate in rate(), tolerance in tolerance_ns(), debt in 0..1u64 << 30,
        a in 0..10 * NS_PER_S, b in 0..10 * NS_PER_S,
    ) {
        let mut twice = pacer(rate, tolerance);
        twice.charge(debt);
        let mut once = twice;
        twice.settle(Duration::from_ns(a));
        twice.settle(Duration::from_ns(b));
        once.settle(Duration::from_ns(a + b));
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn p03_the_level_never_exceeds_the_depth(
        rate in rate(), tolerance in tolerance_ns(), steps in steps(10 * NS_PER_S, 1 << 20),
        new_rate in rate(), new_tolerance in tolerance_ns(), tokens: u64,
    ) {
        let mut bucket = pacer(rate, tolerance);
        let mut depth = oracle::Tokens::inflow(rate, tolerance).in_billionths();
        let half = steps.len() / 2;
        for (i, (gap, cost)) in steps.into_iter().enumerate() {
            if i == half {
                bucket.set_rate(new_rate, Depth::time(Duration::from_ns(new_tolerance)));
                depth = oracle::Tokens::inflow(new_rate, new_tolerance).in_billionths();
                prop_assert!(bucket.level() <= depth);
                bucket.set_saved_tokens(tokens);
                prop_assert!(bucket.level() <= depth);
            }
            bucket.settle(Duration::from_ns(gap));
            prop_assert!(bucket.level() <= depth);
            bucket.charge(cost);
        }
    }

    #[test]
    fn p04_a_hungry_consumer_is_served_the_rate_to_the_token(
        rate in 1..=256_000u64, count in 1..2_000u64,
    ) {
        let mut bucket = Bucket::empty(rate, Depth::time(Duration::from_ms(50)));
        let mut now = Instant::ZERO;
        for served in 0..count {
            let next = now + bucket.wait().unwrap();
            // Before the charge at time T exactly floor(rate x T) charges have passed, the one at
            // time zero included.
            let due = oracle::Tokens::inflow(rate, next.ns).floor();
            prop_assert_eq!(due, i128::from(served));
            bucket.settle(next.since(now));
            bucket.charge(1);
            now = next;
        }
    }

    #[test]
    fn p05_a_bucket_is_ready_when_it_says_and_not_a_nanosecond_before(
        rate in rate(), tolerance in tolerance_ns(), debt in 1..1u64 << 33,
    ) {
        let mut bucket = pacer(rate, tolerance);
        bucket.charge(debt);
        let wait = bucket.wait().unwrap().ns;
        let ready_after = |ns| {
            let mut bucket = bucket;
            bucket.settle(Duration::from_ns(ns));
            bucket.is_ready()
        };
        prop_assert!(ready_after(wait));
        prop_assert!(wait == 0 || !ready_after(wait - 1));
    }

    #[test]
    fn p07_no_input_overflows(
        rate: u64, tolerance: u64, capacity: u64, new_rate: u64, by_time: bool, tokens: u64,
        steps in prop::collection::vec((any::<u64>(), any::<u64>()), 1..20),
    ) {
        let time = Depth::time(Duration::from_ns(tolerance));
        let depth = if by_time { time } else { Depth::tokens(capacity) };
        let mut bucket = Bucket::full(rate, depth);
        for (elapsed, cost) in steps {
            bucket.settle(Duration::from_ns(elapsed));
            bucket.charge(cost);
            let _ = (bucket.wait(), bucket.time_to_full(), bucket.saved_tokens());
        }
        bucket.set_rate(new_rate, depth);
        bucket.settle(Duration::from_ns(u64::MAX));
        bucket.set_saved_tokens(tokens);
        prop_assert!(bucket.wait().is_none_or(|wait| wait == Duration::ZERO));
    }

    #[test]
    fn p08_more_rate_or_depth_never_serves_less(
        rate in 1..20_000u64, more_rate in 0..200u64,
        tolerance in 1_000_000..NS_PER_S / 10, more_tolerance in 0..NS_PER_S / 100,
        steps in prop::collection::vec((0..5_000_000u64, 0..300u32), 1..100),
    ) {
        let mut less = pacer(rate, tolerance);
        let mut more = pacer(rate + more_rate, tolerance + more_tolerance);
        let mut served_less = 0;
        let mut served_more = 0;
        for (gap, demand) in steps {
            for (bucket, served) in [(&mut less, &mut served_less), (&mut more, &mut served_more)] {
                bucket.settle(Duration::from_ns(gap));
                for _ in 0..demand {
                    if bucket.is_ready() {
                        bucket.charge(1);
                        *served += 1;
                    }
                }
            }
            prop_assert!(served_more >= served_less);
        }
    }

    #[test]
    fn a_new_rate_keeps_debt_up_to_a_second_of_it(
        rate in rate(), debt in 0..1u64 << 32, new_rate in rate(),
    ) {
        let depth = Depth::time(Duration::from_ms(50));
        let mut bucket = Bucket::empty(rate, depth);
        bucket.charge(debt);
        bucket.set_rate(new_rate, depth);
        prop_assert_eq!(bucket.level(), -i128::from(debt.min(new_rate)) * i128::from(NS_PER_S));
        prop_assert!(bucket.wait().unwrap() <= MODIFY_WAIT_MAX);
    }
}

/// Property 6: a million random steps, the level compared exactly after each.
#[test]
fn p06_a_million_steps_agree_with_the_oracle() {
    let mut rng = Rng::from_environment();
    for round in 0..1_000 {
        let rate = 1 + rng.below([10, 256_000, 8 << 30][round % 3]);
        let tolerance = 1_000_000 + rng.below(NS_PER_S);
        let capacity = 1 + rng.below(5_400_000);
        let (mut bucket, mut oracle) = if round % 2 == 0 {
            (pacer(rate, tolerance), oracle::Bucket::pacer(rate, tolerance))
        } else {
            let depth = Depth::tokens(capacity);
            (Bucket::full(rate, depth), oracle::Bucket::credit(rate, capacity))
        };
        for step in 0..1_000 {
            let gap = rng.below([1, 1_000, 1_000_000, 100_000_000][step % 4]);
            bucket.settle(Duration::from_ns(gap));
            oracle.settle(gap);
            assert_eq!(
                bucket.is_ready(),
                oracle.is_ready(),
                "{}",
                rng.replay("-p evenkeel-core --test qos p06")
            );
            if oracle.is_ready() {
                let cost = rng.below(rate.min(1 << 20) + 2);
                bucket.charge(cost);
                oracle.charge(cost);
            } else if step % 10 == 0 {
                let wait = bucket.wait().map(|wait| wait.ns);
                assert_eq!(
                    wait,
                    oracle.wait(),
                    "{}",
                    rng.replay("-p evenkeel-core --test qos p06")
                );
            }
            assert_eq!(
                bucket.level(),
                oracle.level.in_billionths(),
                "{}",
                rng.replay("-p evenkeel-core --test qos p06")
            );
        }
    }
}
