//! Verdicts of runs in which the machine stood still: deviations that it explains are excused, and
//! no others.

use super::*;
use crate::stalls::Stall;

/// Returns stalls with these starts and lengths in milliseconds.
fn stalls(list: &[(u64, u64)]) -> Stalls {
    let stall = |&(start_ms, length_ms): &(u64, u64)| Stall {
        start_us: start_ms * 1_000,
        length_us: length_ms * 1_000,
    };
    Stalls::merged(list.iter().map(stall).collect())
}

/// Returns the series of a backlogged volume at `per_second`: nothing during a stall, and after it
/// the saved tokens, at most the tolerance's worth, at three times the rate.
fn paced(per_second: u64, duration_s: u32, stalls: &Stalls) -> Series {
    let mut series = Series::new(duration_s);
    // In thousandths of an I/O, so that a millisecond earns `per_second`.
    let mut saved = 0;
    let most_saved = per_second * 50 + 1_000;
    for ms in 0..u64::from(duration_s) * 1_000 {
        saved = (saved + per_second).min(most_saved);
        if stalls.lost_us(ms * 1_000..(ms + 1) * 1_000) < 1_000 {
            let served = (saved / 1_000).min((per_second * 3).div_ceil(1_000));
            series.record_many(ms, u32::try_from(served).unwrap());
            saved -= served * 1_000;
        }
    }
    series
}

fn judge_with(promise: &Promise, series: &Series, stalls: &Stalls, bands: &Bands) -> Verdict {
    let workload = Workload::random_read(16 << 10, 32, 10);
    check(promise, &workload, series, stalls, None, bands).unwrap()
}

/// Returns the failed checks of a volume of 3,000 IOPS, with every second as it was counted.
fn broken(series: &Series, stalls: &Stalls) -> Vec<String> {
    let verdict = judge_with(&Promise::iops(3_000), series, stalls, &STRICT);
    failed(&verdict).into_iter().map(String::from).collect()
}

/// Returns a series without the I/Os of some spans of milliseconds: from, and to (exclusive).
fn without(series: &Series, gaps_ms: &[(usize, usize)]) -> Series {
    let mut kept = Series::new(10);
    for (ms, &ios) in series.per_ms().iter().enumerate() {
        if !gaps_ms.iter().any(|&(from, to)| (from..to).contains(&ms)) {
            kept.record_many(ms as u64, ios);
        }
    }
    kept
}

#[test]
fn a_stall_is_excused_only_where_it_is_known() {
    for stall in [(4_300, 90), (4_970, 60), (4_940, 59), (4_990, 90), (300, 80), (9_900, 90)] {
        let known = stalls(&[stall]);
        let series = paced(3_000, 10, &known);
        assert_eq!(broken(&series, &known), NONE, "{stall:?}");
        if stall.1 > 80 || stall.0 % 1_000 > 900 {
            assert!(!broken(&series, &Stalls::NONE).is_empty(), "{stall:?}");
        }
        // A stall at another time does not excuse a second.
        let elsewhere = stalls(&[(7_400, stall.1)]);
        let seconds = |failed: Vec<String>| failed.iter().any(|name| name.contains("second"));
        let unknown = broken(&series, &Stalls::NONE);
        let elsewhere = broken(&series, &elsewhere);
        assert_eq!(seconds(elsewhere), seconds(unknown), "{stall:?}");
    }
}

#[test]
fn a_second_that_is_low_beside_a_stall_is_found() {
    let known = stalls(&[(4_300, 90)]);
    // 3 % of second 6, in which no stall was.
    let low = without(&paced(3_000, 10, &known), &[(6_200, 6_230)]);
    assert_eq!(broken(&low, &known), ["every second"]);
    let verdict = judge_with(&Promise::iops(3_000), &low, &known, &Bands::PROMISE);
    let shown = verdict.checks.iter().find(|check| !check.pass).unwrap();
    assert!(shown.measured.contains("in second 6 (-3.00 %)"), "{shown:?}");
}

#[test]
fn a_second_that_lost_more_than_its_stall_is_found() {
    let known = stalls(&[(4_300, 30)]);
    let made_up = paced(3_000, 10, &known);
    // A stall of 30 ms is made up for. Another 30 ms of loss are excused by it, with the band of 1
    // % on top. Up to three times as much may be due to it.
    for (lost_ms, undecided, found) in [
        (38, false, &NONE[..]),
        (42, true, &NONE),
        (98, true, &NONE),
        (102, false, &["every second"]),
    ] {
        let series = without(&made_up, &[(4_600, 4_600 + lost_ms)]);
        assert_eq!(broken(&series, &known), found, "{lost_ms} ms");
        assert_eq!(has_undecided_second(&series, &known), undecided, "{lost_ms} ms");
    }
}

/// Returns whether one second of a volume of 3,000 IOPS is undecided.
fn has_undecided_second(series: &Series, known: &Stalls) -> bool {
    let verdict = judge_with(&Promise::iops(3_000), series, known, &STRICT);
    verdict.checks.iter().any(|check| check.measured.contains("1 of 9 s undecided"))
}

/// Returns the undecided checks of a volume of 3,000 IOPS.
fn undecided(series: &Series, known: &Stalls) -> Vec<String> {
    let verdict = judge_with(&Promise::iops(3_000), series, known, &STRICT);
    named(&verdict, Outcome::Undecided).into_iter().map(String::from).collect()
}

/// A shortfall while no request waited for the limits may be the disk's: it is undecided, not kept.
/// A second in which requests waited all the time is broken.
#[test]
fn shortfall_without_waiting_requests_is_undecided() {
    let series = without(&even(3_000, 10), &[(4_300, 4_380)]);
    let workload = Workload::random_read(16 << 10, 32, 10);
    let judged = |idle: &[(u64, u64)]| {
        let seen = Seen {
            series: &series,
            lost: &Stalls::NONE,
            idle: &stalls(idle),
            steal: &Stalls::NONE,
            error: None,
            gone_after_ms: None,
            has_record: true,
        };
        super::super::check(&Promise::iops(3_000), &workload, &seen, &STRICT).unwrap()
    };
    let verdict = judged(&[(4_290, 90)]);
    assert_eq!(named(&verdict, Outcome::Undecided), ["mean"]);
    assert_eq!(failed(&verdict), NONE);
    assert_eq!(failed(&judged(&[(7_290, 90)])), ["every second"]);
    assert_eq!(failed(&judged(&[])), ["every second", "mean"]);
}

/// A store that stands still answers nothing at once, and the requests that wait are dispatched
/// for a while: the gap in the client's log begins before the one in the server's record, and may
/// lie in the second before.
#[test]
fn a_store_that_stands_still_is_late_before_nothing_waits() {
    let workload = Workload::random_read(16 << 10, 32, 10);
    let judged = |series: &Series, idle: &[(u64, u64)]| {
        let seen = Seen {
            series,
            lost: &Stalls::NONE,
            idle: &stalls(idle),
            steal: &Stalls::NONE,
            error: None,
            gone_after_ms: None,
            has_record: true,
        };
        super::super::check(&Promise::iops(1_000), &workload, &seen, &STRICT).unwrap()
    };
    // The store stops at 4.8 s. For 32 ms the limit still lets through what waits; at 5.1 s the
    // client gets 32 answers at once.
    let mut series = without(&even(1_000, 10), &[(4_800, 5_100)]);
    series.record_many(5_100, 32);
    let verdict = judged(&series, &[(4_832, 268)]);
    assert_eq!(failed(&verdict), NONE);
    assert_eq!(named(&verdict, Outcome::Undecided), ["every second", "mean"]);
    // The 32 answers come right after the end of a second: it lacks them, too.
    let mut next = without(&even(1_000, 10), &[(4_660, 5_016)]);
    next.record_many(5_016, 32);
    // One undecided second is allowed.
    let verdict = judged(&next, &[(4_692, 324)]);
    assert_eq!(failed(&verdict), NONE);
    assert_eq!(named(&verdict, Outcome::Undecided), ["mean"]);
    // A gap that is longer than that of the record stays broken, as does one elsewhere.
    let longer = without(&even(1_000, 10), &[(4_740, 5_100)]);
    assert_eq!(failed(&judged(&longer, &[(4_832, 268)])), ["every second", "mean"]);
    assert_eq!(failed(&judged(&series, &[(4_600, 268)])), ["every second"]);
}

/// Steal that no thread shows may explain the shortfall of a second, up to the amount of steal in
/// it. A limiter that gives too much stays broken.
#[test]
fn shortfall_that_only_steal_explains_is_undecided() {
    let workload = Workload::random_read(16 << 10, 32, 10);
    let judged = |series: &Series, steal: &[(u64, u64)]| {
        let seen = Seen {
            series,
            lost: &Stalls::NONE,
            idle: &Stalls::NONE,
            steal: &stalls(steal),
            error: None,
            gone_after_ms: None,
            has_record: false,
        };
        super::super::check(&Promise::iops(3_000), &workload, &seen, &STRICT).unwrap()
    };
    let gaps = [(2_300, 2_380), (4_300, 4_380)];
    let short = without(&even(3_000, 10), &gaps);
    let taken = [(2_300, 90), (4_200, 90)];
    assert_eq!(named(&judged(&short, &taken), Outcome::Undecided), ["every second", "mean"]);
    assert_eq!(failed(&judged(&short, &taken)), NONE);
    assert_eq!(failed(&judged(&short, &[(2_300, 20), (4_200, 20)])), ["every second", "mean"]);
    assert_eq!(failed(&judged(&short, &[(7_300, 200)])), ["every second"]);
    let fast = judged(&even(3_045, 10), &taken);
    assert!(failed(&fast).contains(&"mean"), "{:?}", fast.checks);
}

/// A second may be undecided, and the run is kept; more of them leave the run undecided.
#[test]
fn more_than_a_few_undecided_seconds_leave_the_run_undecided() {
    let known = stalls(&[(2_300, 20), (4_300, 20), (6_300, 20)]);
    let made_up = paced(3_000, 10, &known);
    let lost = |seconds: &[usize]| {
        let gaps: Vec<_> = seconds.iter().map(|s| (s * 1_000 + 600, s * 1_000 + 640)).collect();
        without(&made_up, &gaps)
    };
    assert_eq!((broken(&lost(&[4]), &known), undecided(&lost(&[4]), &known)), (vec![], vec![]));
    let two = lost(&[4, 6]);
    assert_eq!(
        (broken(&two, &known), undecided(&two, &known)),
        (vec![], vec!["every second".into()])
    );
    // A second without a stall is broken beside any number of undecided ones.
    assert_eq!(broken(&lost(&[4, 6, 8]), &known), ["every second"]);
}

#[test]
fn a_ceiling_that_is_broken_elsewhere_is_found() {
    let known = stalls(&[(4_300, 60)]);
    let mut fast = paced(3_000, 10, &known);
    (0..40).for_each(|ms| fast.record_many(7_000 + ms, 3));
    assert_eq!(broken(&fast, &known), ["every second"]);
    // A bunch in a window that touches no stall.
    let mut bunch = without(&paced(3_000, 10, &known), &[(7_000, 7_070)]);
    bunch.record_many(7_070, 210);
    assert_eq!(broken(&bunch, &known), ["any window, I/Os"]);
    // The same bunch in the wake of a stall that explains it.
    let explained = stalls(&[(4_300, 60), (7_000, 70)]);
    assert_eq!(broken(&bunch, &explained), NONE);
    // In the wake of one that is too short for it.
    let short = stalls(&[(4_300, 10), (7_067, 3)]);
    assert_eq!(broken(&bunch, &short), ["any window, I/Os"]);
    // In the wake of one that explains it if it was three times as long.
    let doubtful = stalls(&[(4_300, 10), (7_065, 5)]);
    assert_eq!(undecided(&bunch, &doubtful), ["any window, I/Os"]);
    // Halted again and again, it never came to catch up: the pieces explain what their sum does.
    let pieces = stalls(&[(4_300, 60), (7_000, 20), (7_022, 20), (7_044, 26)]);
    assert_eq!(broken(&bunch, &pieces), NONE);
    let apart = stalls(&[(4_300, 60), (6_500, 10), (6_800, 10), (7_050, 10)]);
    assert_eq!(undecided(&bunch, &apart), ["any window, I/Os"]);
}

#[test]
fn second_after_a_stall_may_exceed_by_the_delayed_requests_only() {
    let known = stalls(&[(4_970, 30)]);
    let held_up = |ios: u32| {
        let mut series = without(&even(3_000, 10), &[(4_970, 5_000)]);
        series.record_many(5_020, ios);
        broken(&series, &known)
    };
    assert_eq!(held_up(90), NONE);
    // 1 % is the band of the second.
    assert_eq!(held_up(120), NONE);
    assert_eq!(held_up(121), NONE);
    // Twice the stall before the edge, if the watch has missed a part of it.
    assert_eq!(held_up(180 + 30), NONE);
    assert_eq!(held_up(180 + 31), ["every second"]);
    // At most the tolerance can be saved, however long the stall is: 50 ms, the queue of 32, and
    // the band.
    let long = stalls(&[(4_850, 150)]);
    let series = |ios: u32| {
        let mut series = without(&even(3_000, 10), &[(4_850, 5_000)]);
        series.record_many(5_020, ios);
        broken(&series, &long)
    };
    assert_eq!(series(180 + 32), NONE);
    assert_eq!(series(181 + 32), ["every second"]);
}

#[test]
fn the_mean_is_judged_over_the_time_that_the_machine_ran() {
    // 4 x 90 ms of nine seconds are 4 %: they are lost, and not made up for.
    let known = stalls(&[(1_300, 90), (3_300, 90), (5_300, 90), (7_300, 90)]);
    let gaps = [(1_300, 1_390), (3_300, 3_390), (5_300, 5_390), (7_300, 7_390)];
    let series = without(&even(3_000, 10), &gaps);
    assert_eq!(broken(&series, &known), NONE);
    let slow = |rate: u64| broken(&without(&even(rate, 10), &gaps), &known);
    assert_eq!(slow(2_986), NONE);
    let of_slow = without(&even(2_983, 10), &gaps);
    assert_eq!(undecided(&of_slow, &known), ["mean"]);
    assert_eq!(slow(2_700), ["first second", "every second", "mean"]);
}

#[test]
fn smoothness_is_judged_where_the_machine_ran() {
    let known = stalls(&[(4_300, 90)]);
    let series = paced(3_000, 10, &known);
    let judged = |stalls: &Stalls| {
        let verdict = judge_with(&Promise::iops(3_000), &series, stalls, &Bands::EXACT);
        failed(&verdict).into_iter().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(judged(&known), NONE);
    assert_eq!(judged(&Stalls::NONE), ["every second", "variation (CoV)", "busiest 10 ms"]);
    // There is a short stall in nearly every second, so too few are left to judge their variation.
    let often: Vec<(u64, u64)> = (1..8).map(|second| (second * 1_000 + 500, 6)).collect();
    let workload = Workload::random_read(16 << 10, 32, 10);
    let promise = Promise::iops(3_000);
    let verdict = check(&promise, &workload, &series, &stalls(&often), None, &Bands::FIGURES);
    assert!(verdict.unwrap_err().to_string().contains("in 7 of 9 seconds"));
}

#[test]
fn credits_survive_a_stall() {
    // The credits are spent 90 ms later. Credits earned during the stall at the baseline are spent
    // after it.
    let known = stalls(&[(4_300, 90), (20_940, 60), (29_950, 50)]);
    let mut balance = 27_000_000_u64;
    let mut saved = 150_000_u64;
    let mut series = Series::new(30);
    for ms in 0..30_000 {
        balance += 300;
        saved = (saved + 3_000).min(151_000);
        if known.lost_us(ms * 1_000..(ms + 1) * 1_000) == 0 {
            let served = (saved / 1_000).min(balance / 1_000).min(9);
            series.record_many(ms, u32::try_from(served).unwrap());
            (balance, saved) = (balance - served * 1_000, saved - served * 1_000);
        }
    }
    let promise = gp2(27_000);
    assert_eq!(failed(&judge_with(&promise, &series, &known, &Bands::PROMISE)), NONE);
    let unknown = judge_with(&promise, &series, &Stalls::NONE, &Bands::PROMISE);
    assert!(failed(&unknown).contains(&"every second, at the baseline"), "{unknown:?}");
    // I/Os without credits are still found.
    let mut gift = series.clone();
    (0..100).for_each(|ms| gift.record_many(5_000 + ms * 10, 1));
    let verdict = judge_with(&promise, &gift, &known, &Bands::PROMISE);
    assert!(failed(&verdict).contains(&"credits spent"), "{verdict:?}");
}

#[test]
fn a_run_that_stood_still_for_long_is_excused_by_nothing() {
    let workload = Workload::random_read(16 << 10, 32, 10);
    let judged = |list: &[(u64, u64)]| {
        let known = stalls(list);
        let series = paced(3_000, 10, &known);
        check(&Promise::iops(3_000), &workload, &series, &known, None, &Bands::PROMISE)
    };
    assert!(judged(&[(2_000, 500)]).unwrap().outcome == Outcome::Kept);
    let too_long = judged(&[(2_000, 500), (6_000, 7)]).unwrap();
    assert_eq!(too_long.outcome, Outcome::Undecided);
    // Checks that pass without an excuse still pass: short stalls are made up for.
    let many: Vec<(u64, u64)> = (0..20).map(|n| (n * 500 + 200, 30)).collect();
    assert_eq!(judged(&many).unwrap().outcome, Outcome::Kept);
    // Time after the end of the run does not count.
    assert_eq!(judged(&[(2_000, 500), (10_000, 700)]).unwrap().outcome, Outcome::Kept);
}

proptest! {
    /// A correctly paced volume passes with any stalls.
    #[test]
    fn stalls_alone_never_break_a_promise(
        list in proptest::collection::vec((0_u64..10_000, 5_u64..90), 0..5),
        rate in prop_oneof![Just(300_u64), Just(1_000), Just(3_000), Just(16_000)],
    ) {
        let known = stalls(&list);
        let series = paced(rate, 10, &known);
        let verdict = judge_with(&Promise::iops(rate), &series, &known, &Bands::PROMISE);
        prop_assert_eq!(failed(&verdict), NONE, "{:?}", list);
    }

    /// A stall excuses nothing in seconds that it does not touch: a series that is 3 % low in one
    /// of them fails.
    #[test]
    fn a_low_second_is_found_beside_any_stall(
        list in proptest::collection::vec((0_u64..10_000, 5_u64..90), 0..5),
        second in 1_usize..9, within in 0_usize..900,
    ) {
        let from_us = second as u64 * 1_000_000;
        // A second of which much was lost makes its neighbours doubtful.
        let seconds = from_us.saturating_sub(1_200_000)..from_us + 2_200_000;
        let beside = |stall: &&(u64, u64)| stalls(&[**stall]).touching(seconds.clone()).is_empty();
        let list: Vec<(u64, u64)> = list.iter().filter(beside).copied().collect();
        let known = stalls(&list);
        let from = second * 1_000 + within;
        let low = without(&paced(3_000, 10, &known), &[(from, from + 30)]);
        prop_assert_eq!(broken(&low, &known), ["every second"]);
    }

    /// Compares the buckets by length with the definition: every window of every length, with the
    /// longest stall that it touches.
    #[test]
    fn every_window_gets_the_longest_stall_that_it_touches(
        counts in proptest::collection::vec(0_u32..4, 1_000), rate in 500_u64..2_500,
        list in proptest::collection::vec((0_u64..1_000, 1_u64..30), 0..3),
    ) {
        let mut series = Series::new(1);
        counts.iter().enumerate().for_each(|(ms, &count)| series.record_many(ms as u64, count));
        let promise = Promise { tolerance_ms: 5, ..Promise::iops(rate) };
        let load = promise.loads(&Workload::random_read(4_096, 1, 1)).unwrap()[0];
        let bands = Bands { window_slack_ms: 0, ..Bands::EXACT };
        let known = stalls(&list);
        let lost = Lost::of(&known, &Stalls::NONE, &Stalls::NONE, u64::MAX);
        let got = every_window(&load, &bands, &series, &lost).pass;
        let mut want = true;
        for from in 0..counts.len() {
            let mut ios = 0_u64;
            let mut longest_ms = 0;
            for (to, &count) in counts.iter().enumerate().skip(from) {
                ios += u64::from(count);
                let span_us = (from as u64 * 1_000).saturating_sub(200_000)
                    ..(to as u64 + 1) * 1_000;
                let touched = known.touching(span_us).iter().map(|stall| {
                    let before_us = stall.end_us().saturating_sub(200_000);
                    known.lost_us(before_us..stall.end_us()).max(stall.length_us) / 1_000
                });
                let touched = touched.max();
                longest_ms = longest_ms.max(touched.unwrap_or(0));
                want &= ios * 1_000 <= rate * ((to - from) as u64 + 6 + longest_ms) + 1_000;
            }
        }
        prop_assert_eq!(got, want);
    }
}
