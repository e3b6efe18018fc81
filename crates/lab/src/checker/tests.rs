//! Series that barely pass and barely fail, for every check.

use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use proptest::prelude::*;

use super::*;
use evenkeel_sim::workload::Pattern;

mod record;
mod stalls;

/// Returns a series of I/Os at an even rate.
fn even(per_second: u64, duration_s: u32) -> Series {
    drawn(duration_s, |time_ms| time_ms * per_second)
}

/// Returns a series with this cumulative count, in thousandths of an I/O.
fn drawn(duration_s: u32, milli_ios_until: impl Fn(u64) -> u64) -> Series {
    let mut series = Series::new(duration_s);
    for time_ms in 0..u64::from(duration_s) * 1_000 {
        let count = milli_ios_until(time_ms + 1) / 1_000 - milli_ios_until(time_ms) / 1_000;
        series.record_many(time_ms, u32::try_from(count).unwrap());
    }
    series
}

/// Returns an even series with `extra` more (or fewer) I/Os spread over one second.
fn with_odd_second(per_second: u64, duration_s: u32, second: u64, extra: i64) -> Series {
    let odd = per_second.checked_add_signed(extra).unwrap();
    let mut series = Series::new(duration_s);
    for time_ms in 0..u64::from(duration_s) * 1_000 {
        let rate = if time_ms / 1_000 == second { odd } else { per_second };
        let within = time_ms % 1_000;
        let count = (within + 1) * rate / 1_000 - within * rate / 1_000;
        series.record_many(time_ms, u32::try_from(count).unwrap());
    }
    series
}

fn judge(promise: &Promise, series: &Series, bands: &Bands) -> Verdict {
    let workload = Workload::random_read(16 << 10, 32, 10);
    check(promise, &workload, series, &Stalls::NONE, None, bands).unwrap()
}

/// Returns the verdict on a client's log alone.
fn check(
    promise: &Promise,
    workload: &Workload,
    series: &Series,
    lost: &Stalls,
    error: Option<&str>,
    bands: &Bands,
) -> Result<Verdict, LabError> {
    let seen = Seen {
        series,
        lost,
        idle: &Stalls::NONE,
        steal: &Stalls::NONE,
        error,
        gone_after_ms: None,
        has_record: false,
    };
    super::check(promise, workload, &seen, bands)
}

fn failed(verdict: &Verdict) -> Vec<&str> {
    named(verdict, Outcome::Broken)
}

/// Returns the names of the checks with this outcome.
fn named(verdict: &Verdict, outcome: Outcome) -> Vec<&str> {
    let of = verdict.checks.iter().filter(|check| Outcome::of_check(check) == outcome);
    of.map(|check| check.name.as_str()).collect()
}

const NONE: [&str; 0] = [];

/// The bands of the promise, with every second as it was counted.
const STRICT: Bands = Bands { second_slack_ms: 0, ..Bands::PROMISE };

#[test]
fn an_even_rate_passes_the_strictest_bands() {
    for rate in [1, 7, 100, 500, 1_000, 3_000, 16_000, 256_000] {
        let verdict = judge(&Promise::iops(rate), &even(rate, 10), &Bands::EXACT);
        assert_eq!(failed(&verdict), NONE, "{rate}: {verdict:#?}");
        assert_eq!(verdict.outcome, Outcome::Kept);
    }
}

#[test]
fn saved_tokens_may_come_at_once_but_only_once() {
    let promise = Promise::iops(1_000);
    let head_start = |ios: u64| {
        let mut series = even(1_000, 10);
        series.record_many(0, u32::try_from(ios).unwrap());
        series
    };
    // 50 ms worth and one I/O. The even series itself has one I/O in the first millisecond.
    assert!(
        judge(&promise, &head_start(50), &Bands::EXACT)
            .checks
            .iter()
            .all(|check| { check.pass || check.name == "busiest 10 ms" })
    );
    let verdict = judge(&promise, &head_start(52), &Bands::EXACT);
    assert_eq!(failed(&verdict), ["first second", "any window, I/Os"]);

    // The saved tokens are served again in second 5, after a pause in it: every second is right,
    // but the window is not.
    let mut milli = Vec::new();
    milli.resize(10_000, 1_000_u64);
    milli[5_000..5_070].fill(0);
    milli[5_070] = 71_000;
    let total = |until: u64| milli[..until as usize].iter().sum::<u64>();
    let verdict = judge(&promise, &drawn(10, total), &Bands::PROMISE);
    assert_eq!(failed(&verdict), ["any window, I/Os"]);
}

#[test]
fn the_ceiling_and_the_floor_of_a_second_are_sharp() {
    // ±1 % of 1,000 is ±10; the mean stays inside its ±0.5 %.
    let promise = Promise::iops(1_000);
    for (extra, expected) in
        [(10, &NONE[..]), (11, &["every second"]), (-10, &NONE), (-11, &["every second"])]
    {
        let verdict = judge(&promise, &with_odd_second(1_000, 10, 4, extra), &STRICT);
        assert_eq!(failed(&verdict), expected, "{extra}");
        let worst = verdict.summary.phases[0].worst_second.unwrap();
        assert_eq!((worst.second, worst.ios), (4, 1_000_u64.checked_add_signed(extra).unwrap()));
    }
}

/// A limiter that gives 4 % more than promised is broken, unless that is allowed. The floor stays
/// the same.
#[test]
fn allowance_over_the_promise_raises_ceilings_only() {
    let promise = Promise::iops(1_000);
    let all = ["first second", "every second", "mean", "any window, I/Os"];
    let allowed = Bands::PROMISE.with_over(40_000);
    for (rate, broken, still) in
        [(1_000, &NONE[..], &NONE[..]), (1_040, &all[1..], &NONE), (1_100, &all, &all)]
    {
        let series = even(rate, 10);
        assert_eq!(failed(&judge(&promise, &series, &Bands::PROMISE)), broken, "{rate}");
        assert_eq!(failed(&judge(&promise, &series, &allowed)), still, "{rate}");
    }
    let low = even(985, 10);
    assert_eq!(failed(&judge(&promise, &low, &allowed)), failed(&judge(&promise, &low, &STRICT)));
    let mean = &judge(&promise, &even(1_040, 10), &allowed).checks[3];
    assert_eq!(mean.expected, "1,000 IOPS - 0.5 % + 4.5 %");
    let credits = |bands: &Bands, ios: u64| {
        let mut promise = promise;
        promise.operations = Some(Rate {
            per_second: 3_000,
            credit: Some(CreditPlan {
                refill_per_second: 300,
                balance_min: 5_400,
                balance_max: 5_400,
            }),
        });
        failed(&judge(&promise, &even(ios, 10), bands)).contains(&"credits spent")
    };
    // A burst of 3,120 IOPS ends earlier than one of 3,000, and is followed by 312.
    let mut burst = promise;
    let credit = CreditPlan { refill_per_second: 300, balance_min: 27_000, balance_max: 27_000 };
    burst.operations = Some(Rate { per_second: 3_000, credit: Some(credit) });
    let series = drawn(20, |until_ms| match until_ms {
        until if until <= 9_574 => until * 3_120,
        until => 9_574 * 3_120 + (until - 9_574) * 312,
    });
    assert_eq!(failed(&judge(&burst, &series, &allowed)), NONE);
    // 5,400 and ten times 300 are 8,400 in ten seconds.
    assert!(credits(&Bands::PROMISE, 860) && !credits(&allowed, 860) && credits(&allowed, 890));
}

#[test]
fn completions_stamped_just_after_the_edge_may_belong_before_it() {
    // The client stands still around the edge of second 4 and then stamps everything at once.
    let stalled = |from_ms: u64, to_ms: u64| {
        drawn(10, move |until_ms| match until_ms {
            until if until > from_ms && until <= to_ms => from_ms * 3_000,
            until => until * 3_000,
        })
    };
    let promise = Promise::iops(3_000);
    assert_eq!(failed(&judge(&promise, &stalled(3_985, 4_003), &Bands::PROMISE)), NONE);
    assert_eq!(failed(&judge(&promise, &stalled(3_985, 4_003), &STRICT)), ["every second"]);
    assert_eq!(failed(&judge(&promise, &stalled(3_985, 4_008), &Bands::PROMISE)), ["every second"]);
    // The slack applies to the edges only. A second that is short in the middle fails.
    let short = with_odd_second(3_000, 10, 4, -50);
    assert_eq!(failed(&judge(&promise, &short, &Bands::PROMISE)), ["every second"]);
    let short = with_odd_second(3_000, 10, 9, -50);
    assert_eq!(failed(&judge(&promise, &short, &Bands::PROMISE)), ["every second"]);
}

#[test]
fn at_low_rates_one_io_is_always_allowed() {
    let promise = Promise::iops(50);
    let verdict = judge(&promise, &with_odd_second(50, 10, 4, -1), &STRICT);
    assert_eq!(failed(&verdict), NONE);
    let verdict = judge(&promise, &with_odd_second(50, 10, 4, -2), &STRICT);
    assert_eq!(failed(&verdict), ["every second"]);
}

#[test]
fn the_first_second_is_sharp() {
    let promise = Promise::iops(1_000);
    for (extra, expected) in
        [(51, &NONE[..]), (52, &["first second"]), (-10, &NONE), (-11, &["first second"])]
    {
        let verdict = judge(&promise, &with_odd_second(1_000, 10, 0, extra), &STRICT);
        assert_eq!(failed(&verdict), expected, "{extra}");
    }
}

#[test]
fn the_mean_is_sharp() {
    // Nine seconds at 1,005 are 9,045; 45 and one I/O are allowed. Ten seconds at that rate are 50
    // I/Os ahead, just what every window may be.
    let promise = Promise::iops(1_000);
    let verdict = judge(&promise, &even(1_005, 10), &STRICT);
    assert_eq!(failed(&verdict), NONE);
    let verdict = judge(&promise, &even(1_006, 10), &STRICT);
    assert_eq!(failed(&verdict), ["mean", "any window, I/Os"]);
    let verdict = judge(&promise, &even(995, 10), &STRICT);
    assert_eq!(failed(&verdict), NONE);
    let verdict = judge(&promise, &even(994, 10), &STRICT);
    assert_eq!(failed(&verdict), ["mean"]);
}

#[test]
fn a_wrong_rate_fails_everything() {
    let verdict = judge(&Promise::iops(1_000), &even(1_100, 10), &STRICT);
    assert_eq!(failed(&verdict), ["first second", "every second", "mean", "any window, I/Os"]);
    let verdict = judge(&Promise::iops(1_000), &even(0, 10), &STRICT);
    assert_eq!(failed(&verdict), ["first second", "every second", "mean"]);
}

#[test]
fn variation_is_judged_when_asked() {
    // Seconds of 3,000 ± 3 alternate: CoV is about 0.1 %, far within ±1 %.
    let wavy = |amplitude: u64| {
        let mut series = Series::new(10);
        for second in 0..10_u64 {
            let rate = if second % 2 == 0 { 3_000 - amplitude } else { 3_000 + amplitude };
            for ms in 0..1_000 {
                let count = (ms + 1) * rate / 1_000 - ms * rate / 1_000;
                series.record_many(second * 1_000 + ms, u32::try_from(count).unwrap());
            }
        }
        series
    };
    let promise = Promise::iops(3_000);
    assert_eq!(failed(&judge(&promise, &wavy(3), &Bands::PROMISE)), NONE);
    assert_eq!(failed(&judge(&promise, &wavy(1), &Bands::FIGURES)), NONE);
    assert_eq!(failed(&judge(&promise, &wavy(3), &Bands::FIGURES)), ["variation (CoV)"]);
}

#[test]
fn bunches_within_a_second_are_seen() {
    // All of a 10 ms window's I/Os in 115 % of the average pass, one more than that and 1 I/O does
    // not.
    let bunched = |first: u32| {
        let mut series = Series::new(10);
        for window in 0..1_000_u64 {
            let count = if window % 2 == 0 { first } else { 320 - first };
            series.record_many(window * 10 + 5, count);
        }
        series
    };
    let promise = Promise::iops(16_000);
    assert_eq!(failed(&judge(&promise, &bunched(185), &Bands::EXACT)), NONE);
    assert_eq!(failed(&judge(&promise, &bunched(186), &Bands::EXACT)), ["busiest 10 ms"]);
}

#[test]
fn once_a_second_bunches_fail_although_every_second_is_right() {
    let mut series = Series::new(10);
    (0..10).for_each(|second| series.record_many(second * 1_000, 1_000));
    let verdict = judge(&Promise::iops(1_000), &series, &Bands::PROMISE);
    assert_eq!(failed(&verdict), ["any window, I/Os"]);
    assert!(verdict.summary.phases[0].cov < 1e-9);
}

fn gp2(balance: u64) -> Promise {
    let credit = CreditPlan { refill_per_second: 300, balance_min: balance, balance_max: balance };
    let operations = Some(Rate { per_second: 3_000, credit: Some(credit) });
    Promise { operations, ..Promise::iops(1) }
}

/// Returns the series of a volume with `balance` credits: 150 saved tokens, 3,000 a second, then
/// `refill`.
fn burst(balance: u64, refill: u64, duration_s: u32) -> Series {
    drawn(duration_s, move |time_ms| {
        let paced = 3_000 * time_ms + if time_ms > 0 { 150_000 } else { 0 };
        paced.min(balance * 1_000 + refill * time_ms)
    })
}

#[test]
fn a_burst_that_ends_when_its_credits_do_passes() {
    let verdict = judge(&gp2(27_000), &burst(27_000, 300, 30), &Bands::PROMISE);
    assert_eq!(failed(&verdict), NONE, "{verdict:#?}");
    let summary = &verdict.summary;
    assert!((summary.burst_end_s.unwrap() - 10.0).abs() < 0.01, "{summary:?}");
    assert_eq!((summary.limit_iops, summary.baseline_iops), (Some(3_000.0), Some(300.0)));
    for (phase, iops) in summary.phases.iter().zip([3_000.0, 300.0]) {
        assert_eq!(phase.promised_iops, Some(iops));
        assert!((phase.measured_iops - iops).abs() < 1.0, "{phase:?}");
    }
    let expected = &summary.expected_iops;
    assert_eq!((expected[0], expected[8]), (Some(3_000.0), Some(3_000.0)));
    assert_eq!((expected[9], expected[11], expected[29]), (None, Some(300.0), Some(300.0)));
}

#[test]
fn more_or_fewer_credits_than_promised_fail() {
    // 27,000 + 30 x 300 = 36,000 in all: at most one I/O more, at least 0.5 % and one I/O fewer.
    for (balance, expected) in [
        (27_001, &NONE[..]),
        (27_002, &["credits spent"]),
        (26_819, &NONE),
        (26_818, &["credits spent"]),
    ] {
        let verdict = judge(&gp2(27_000), &burst(balance, 300, 30), &STRICT);
        assert_eq!(failed(&verdict), expected, "{balance}");
    }
    // A burst that never ends breaks the seconds at the baseline as well.
    let verdict = judge(&gp2(27_000), &burst(1_000_000, 300, 30), &STRICT);
    assert_eq!(
        failed(&verdict),
        ["every second, at the baseline", "mean, at the baseline", "credits spent"]
    );
}

#[test]
fn a_wrong_baseline_is_seen() {
    let verdict = judge(&gp2(27_000), &burst(27_000, 306, 30), &STRICT);
    let failed = failed(&verdict);
    assert!(failed.contains(&"every second, at the baseline"), "{failed:?}");
}

#[test]
fn a_start_that_is_not_known_exactly_widens_the_credits_only() {
    let promise = gp2(27_000).started_within(1_000);
    for balance in [27_000, 27_301] {
        assert_eq!(failed(&judge(&promise, &burst(balance, 300, 30), &Bands::PROMISE)), NONE);
    }
    let verdict = judge(&promise, &burst(27_302, 300, 30), &Bands::PROMISE);
    assert_eq!(failed(&verdict), ["credits spent"]);
}

#[test]
fn a_burst_longer_than_the_run_is_judged_as_a_burst() {
    let verdict = judge(&gp2(5_400_000), &burst(5_400_000, 300, 10), &Bands::PROMISE);
    assert_eq!(failed(&verdict), NONE, "{verdict:#?}");
    assert_eq!(verdict.summary.burst_end_s, None);
    assert_eq!(verdict.summary.phases.len(), 1);
    assert_eq!(verdict.summary.phases[0].promised_iops, Some(3_000.0));
}

#[test]
fn an_empty_balance_is_judged_at_the_baseline() {
    let verdict = judge(&gp2(0), &even(300, 10), &Bands::PROMISE);
    assert_eq!(failed(&verdict), NONE, "{verdict:#?}");
    let verdict = judge(&gp2(0), &even(310, 10), &Bands::PROMISE);
    assert_eq!(verdict.outcome, Outcome::Broken);
}

#[test]
fn the_byte_limit_binds_for_large_blocks() {
    let promise = Promise {
        bytes: Some(Rate { per_second: 125 << 20, credit: None }),
        ..Promise::iops(3_000)
    };
    let large = Workload::random_read(256 << 10, 16, 10);
    let verdict =
        check(&promise, &large, &even(500, 10), &Stalls::NONE, None, &Bands::FIGURES).unwrap();
    assert_eq!(failed(&verdict), NONE);
    assert_eq!(verdict.summary.limit_iops, Some(500.0));
    let verdict = check(&promise, &large, &even(507, 10), &Stalls::NONE, None, &STRICT).unwrap();
    assert_eq!(failed(&verdict), ["every second", "mean", "any window, bytes"]);
    // 48 KiB: 2,666.67 a second; whole and fractional rates are both exact.
    let odd = Workload::random_read(48 << 10, 16, 10);
    let series = drawn(10, |time_ms| time_ms * 8_000 / 3);
    let verdict = check(&promise, &odd, &series, &Stalls::NONE, None, &Bands::FIGURES).unwrap();
    assert_eq!(failed(&verdict), NONE, "{verdict:#?}");
}

#[test]
fn large_and_merged_requests_are_counted_as_promised() {
    let promise = Promise::iops(1_000);
    // 1 MiB counts four; 64 KiB in sequence count a quarter each; 16 KiB are too small to be
    // merged.
    let sequential =
        |block| Workload { pattern: Pattern::Sequential, ..Workload::random_read(block, 16, 10) };
    for (workload, ios) in [
        (Workload::random_read(1 << 20, 16, 10), 250),
        (sequential(64 << 10), 4_000),
        (sequential(16 << 10), 1_000),
    ] {
        let verdict =
            check(&promise, &workload, &even(ios, 10), &Stalls::NONE, None, &Bands::PROMISE)
                .unwrap();
        assert_eq!(failed(&verdict), NONE, "{workload}");
        assert_eq!(verdict.summary.limit_iops, Some(ios as f64));
    }
    // HDD types charge a small random request as a whole unit of bytes.
    let hdd = CountingRule { unit_bytes: 1 << 20, charge_whole_units: true, ..CountingRule::SSD };
    let bytes = Some(Rate { per_second: 40 << 20, credit: None });
    let promise = Promise { operations: None, bytes, tolerance_ms: 50, counting: hdd };
    let small = Workload::random_read(16 << 10, 16, 10);
    assert!(
        check(&promise, &small, &even(40, 10), &Stalls::NONE, None, &Bands::PROMISE)
            .unwrap()
            .outcome
            == Outcome::Kept
    );
}

#[test]
fn io_errors_fail_and_an_unlimited_volume_keeps_its_promise() {
    let unlimited = Promise { operations: None, ..Promise::iops(1) };
    let workload = Workload::random_read(4_096, 1, 10);
    let series = even(12_345, 10);
    assert!(
        check(&unlimited, &workload, &series, &Stalls::NONE, None, &Bands::PROMISE)
            .unwrap()
            .outcome
            == Outcome::Kept
    );
    let verdict = check(
        &unlimited,
        &workload,
        &series,
        &Stalls::NONE,
        Some("Input/output error"),
        &Bands::PROMISE,
    )
    .unwrap();
    assert_eq!(failed(&verdict), ["I/O errors"]);
}

#[test]
fn unjudgeable_run_says_why() {
    let unjudgeable = |promise: &Promise, block: u32, seconds: u32| {
        let workload = Workload::random_read(block, 32, seconds);
        let verdict =
            check(promise, &workload, &even(1, seconds), &Stalls::NONE, None, &Bands::PROMISE);
        verdict.expect_err("no verdict").to_string()
    };
    assert!(unjudgeable(&Promise::iops(1_000), 4_096, 2).contains("at least 3 s"));
    assert!(unjudgeable(&Promise::iops(0), 4_096, 10).contains("zero"));
    let both = Promise { bytes: Some(Rate { per_second: 128 << 20, credit: None }), ..gp2(27_000) };
    assert!(unjudgeable(&both, 256 << 10, 10).contains("another block size"));
    assert!(unjudgeable(&gp2(5_400), 4_096, 3).contains("run for longer"));
}

#[test]
fn the_promise_of_a_pacing() {
    let credit = Some(CreditLimit { refill_per_second: 300, capacity: 5_400_000 });
    let pacing = Pacing {
        operations: Some(Limit { per_second: 3_000, credit }),
        bytes: Some(Limit { per_second: 128 << 20, credit: None }),
        ..Pacing::UNLIMITED
    };
    let full = Promise::from_pacing(&pacing, Balances::default());
    let known = Balances { operations: Some(27_000), bytes: None };
    assert_eq!(full.operations.unwrap().credit.unwrap().balance_max, 5_400_000);
    assert_eq!(
        Promise::from_pacing(&pacing, known).to_string(),
        "3,000 IOPS for 27,000 credits, then 300 IOPS; 128 MiB/s"
    );
    assert_eq!(Promise::from_pacing(&Pacing::UNLIMITED, known).to_string(), "unlimited");
}

proptest! {
    /// Compares the bucket of `every_window` with the definition: every window of every length, one
    /// by one.
    #[test]
    fn every_window_is_every_window(
        counts in proptest::collection::vec(0_u32..4, 60..120), rate in 500_u64..2_500,
    ) {
        let mut series = Series::new(1);
        counts.iter().enumerate().for_each(|(ms, &count)| series.record_many(ms as u64, count));
        let promise = Promise { tolerance_ms: 5, ..Promise::iops(rate) };
        let load = promise.loads(&Workload::random_read(4_096, 1, 1)).unwrap()[0];
        let bands = Bands { window_slack_ms: 0, ..Bands::EXACT };
        let lost = Lost::of(&Stalls::NONE, &Stalls::NONE, &Stalls::NONE, u64::MAX);
        let got = every_window(&load, &bands, &series, &lost).pass;
        let mut want = true;
        for from in 0..counts.len() {
            for to in from..counts.len() {
                let ios = u64::from(counts[from..=to].iter().sum::<u32>());
                let length_ms = (to - from) as u64;
                want &= ios * 1_000 <= rate * (length_ms + 5 + 1) + 1_000;
            }
        }
        prop_assert_eq!(got, want);
    }
}
