//! Each metric, compared with figures that are calculated by hand.

use super::*;
use evenkeel_core::qos::pacing::Balances;

const SECOND: u64 = 1_000_000_000;

/// Returns the record of a volume that completes these numbers of requests in its seconds, and
/// dispatches one more in each.
fn record(counts: &[u64]) -> Record {
    let samples = counts.iter().map(|&completed| Sample {
        dispatched: completed + 1,
        completed,
        completed_bytes: completed << 14,
        peak_10ms: u32::try_from(completed / 50).unwrap(),
        balances: Balances { operations: Some(completed * 2), bytes: Some(completed << 30) },
    });
    Record { samples: samples.collect(), ..Record::default() }
}

fn measured(metric: Metric, from_s: u64, to_s: u64, records: &[Record]) -> Option<f64> {
    let expectation = Expectation {
        metric,
        of: Vec::new(),
        of_name: "v".to_owned(),
        span: Span { from_ns: from_s * SECOND, to_ns: to_s * SECOND },
        at_dispatch: false,
        bounds: Bounds { low: 900.0, high: 1_100.0, words: String::new() },
    };
    let batches = [
        BatchRecord { started_ns: 0, took_ns: SECOND },
        BatchRecord { started_ns: SECOND, took_ns: 2 * SECOND },
        BatchRecord { started_ns: 9 * SECOND, took_ns: 1 },
    ];
    let catch_up = Duration::from_ms(3);
    let counts = Some(Counts { answered: 99, counted: 200, ..Counts::default() });
    let evidence =
        |record| Evidence { record, batches: &batches, batch_ios: 1_000, catch_up, counts };
    let evidence: Vec<_> = records.iter().map(evidence).collect();
    expectation.check(&evidence, SECOND).value
}

#[test]
fn rates_and_totals() {
    let one = [record(&[1_000, 1_050, 930, 1_000])];
    assert_eq!(measured(Metric::MeanIops, 0, 4, &one), Some(995.0));
    assert_eq!(measured(Metric::MeanIops, 1, 3, &one), Some(990.0));
    assert_eq!(measured(Metric::TotalIos, 0, 2, &one), Some(2_050.0));
    assert_eq!(measured(Metric::MeanMibps, 0, 1, &one), Some(15.625));
    assert_eq!(measured(Metric::KibPerIo, 0, 4, &one), Some(16.0));
    assert_eq!(measured(Metric::KibPerIo, 0, 2, &[record(&[0, 0])]), None, "there are none");
    assert_eq!(measured(Metric::EverySecond, 0, 4, &one), Some(930.0), "the furthest off");
    assert_eq!(measured(Metric::EverySecond, 0, 2, &one), Some(1_050.0));
    assert_eq!(measured(Metric::Peak10ms, 0, 4, &one), Some(2_100.0));
    assert_eq!(measured(Metric::Credits, 0, 3, &one), Some(1_860.0));
    assert_eq!(measured(Metric::CreditsGib, 0, 3, &one), Some(930.0));
    assert_eq!(measured(Metric::CovPercent, 0, 1, &one), Some(0.0));
    let two = [record(&[1_000; 3]), record(&[800, 800, 500])];
    assert_eq!(measured(Metric::MeanIops, 0, 3, &two), Some(1_700.0), "together");
    assert_eq!(measured(Metric::Share, 0, 3, &two), Some(0.7));
    assert_eq!(measured(Metric::WorstSecond, 0, 3, &two), Some(500.0), "of any");
    assert_eq!(measured(Metric::JobMeanIops, 0, 4, &one), Some(750.0));
    assert_eq!(measured(Metric::Latency(Quantile::P50), 0, 4, &one), None, "not watched");
    assert_eq!(measured(Metric::UnderWay, 0, 4, &one), None, "not watched");
    assert_eq!(measured(Metric::CatchUp, 0, 3, &two), Some(6.0));
    assert_eq!(measured(Metric::Counted, 0, 3, &two), Some(0.495), "99 of 200 each");
}

#[test]
fn the_moment_of_a_fall_is_found_within_its_second() {
    let fall = |counts: &[u64]| {
        measured(Metric::FallsBelow(1_650), 0, counts.len() as u64, &[record(counts)])
    };
    assert_eq!(fall(&[3_000, 3_000, 300, 300]), Some(2.0));
    assert_eq!(fall(&[3_000, 3_000, 570, 300]), Some(2.1));
    assert_eq!(fall(&[3_000, 3_000]), None, "it never falls");
    assert_eq!(fall(&[300, 300]), None, "it was never above");
}

/// The credits are the requests above the baseline, whatever the rate at which they were spent.
#[test]
fn credits_are_counted_until_they_are_spent() {
    let metric = Metric::CreditsSpent { below: 1_650, baseline: 300 };
    let spent = |counts: &[u64]| measured(metric, 0, counts.len() as u64, &[record(counts)]);
    assert_eq!(spent(&[3_000, 3_000, 300, 300]), Some(5_400.0));
    assert_eq!(spent(&[2_000, 3_000, 300, 300]), Some(4_400.0));
    let within = spent(&[3_000, 3_000, 570, 300]).unwrap();
    assert!((within - 5_670.0).abs() < 1e-6, "{within}: a tenth of a second more");
    assert_eq!(spent(&[400, 3_000, 300, 300]), Some(2_800.0), "the first is below, too");
    assert_eq!(spent(&[3_000, 3_000]), None, "it never falls");
    assert_eq!(spent(&[300, 300]), None, "it was never above");
}

#[test]
fn a_part_of_a_second_is_counted_by_itself() {
    let span = Span { from_ns: SECOND / 2, to_ns: SECOND / 2 + SECOND / 10 };
    let latency = LatencySummary { count: 50, mean_ns: 4_000_000, ..LatencySummary::default() };
    let spans = vec![SpanRecord { span, dispatched: 60, latency }];
    let record = Record { spans, ..record(&[1_000]) };
    let evidence = Evidence {
        record: &record,
        batches: &[],
        batch_ios: 0,
        catch_up: Duration::ZERO,
        counts: None,
    };
    let measured = |metric, at_dispatch| {
        let bounds = Bounds { low: 0.0, high: 1e9, words: String::new() };
        let of_name = "v".to_owned();
        let expectation =
            Expectation { metric, of: Vec::new(), of_name, span, at_dispatch, bounds };
        assert!(expectation.needs_watch(SECOND));
        expectation.check(&[evidence], SECOND).value
    };
    assert_eq!(measured(Metric::MeanIops, false), Some(500.0));
    assert_eq!(measured(Metric::MeanIops, true), Some(600.0));
    assert_eq!(measured(Metric::UnderWay, false), Some(2.0), "50 times 4 ms in 100 ms");
}

#[test]
fn bounds_are_inclusive_and_a_missing_value_is_a_failure() {
    let expectation = |low, high| Expectation {
        metric: Metric::MeanIops,
        of: Vec::new(),
        of_name: "v".to_owned(),
        span: Span { from_ns: 0, to_ns: SECOND },
        at_dispatch: true,
        bounds: Bounds { low, high, words: "1,001".to_owned() },
    };
    let record = record(&[1_000]);
    let catch_up = Duration::ZERO;
    let evidence =
        [Evidence { record: &record, batches: &[], batch_ios: 0, catch_up, counts: None }];
    let checked = expectation(1_001.0, 1_001.0).check(&evidence, SECOND);
    assert!(checked.pass);
    assert_eq!(checked.name, "v: IOPS on average at dispatch, 0 to 1 s");
    assert_eq!(checked.measured, "1,001 IOPS");
    assert!(!expectation(1_001.5, 2_000.0).check(&evidence, SECOND).pass);
    assert!(!expectation(0.0, 1_000.5).check(&evidence, SECOND).pass);
    let job = Expectation { metric: Metric::JobMeanIops, ..expectation(0.0, f64::INFINITY) };
    let checked = job.check(&evidence, SECOND);
    assert!(!checked.pass && checked.measured == "nothing");
}

#[test]
fn batches_of_several_clients_are_added_up_and_none_may_be_missing() {
    let record = record(&[]);
    let catch_up = Duration::ZERO;
    let batch = |started_ns| BatchRecord { started_ns, took_ns: 3 * SECOND / 2 };
    let two = [batch(0), batch(SECOND)];
    let late = [batch(2 * SECOND)];
    let of = |batches| Evidence { record: &record, batches, batch_ios: 9, catch_up, counts: None };
    let seconds = |evidence: &[Evidence<'_>]| {
        let lengths = Expectation {
            metric: Metric::JobSeconds,
            of: Vec::new(),
            of_name: "c".to_owned(),
            span: Span { from_ns: 0, to_ns: 2 * SECOND },
            at_dispatch: false,
            bounds: Bounds::none(),
        };
        lengths.check(evidence, SECOND).value
    };
    assert_eq!(seconds(&[of(&two)]), Some(3.0));
    assert_eq!(seconds(&[of(&two), of(&two[1..])]), Some(4.5));
    assert_eq!(seconds(&[of(&two), of(&late)]), None, "it began after the span");
}
