//! A fixed pair of samples in the server's form, in every form of output.

use super::{Row, Sort, between, sort};
use crate::output::{Format, listing};
use crate::volume_samples::{self, Sample};
use evenkeel_wire::aws::xml::Element;

/// An io2 volume that waits for its limit, a gp2 volume in its burst, and from the second sample on
/// an idle st1 volume. They are two seconds apart.
fn samples() -> [Sample; 2] {
    [answer(10_000, 0, 5_400_000, ""), answer(12_000, 1, 5_394_600, IDLE)]
}

const IDLE: &str = "<item><volumeId>vol-0000000000000000c</volumeId><volumeType>st1</volumeType>\
    <sampleTimeMs>12000</sampleTimeMs><queueLength>0</queueLength><countedIos>0</countedIos>\
    <bytes><perSecond>131072000</perSecond><refillPerSecond>20971520</refillPerSecond>\
    <capacity>1000</capacity><balance>0</balance></bytes></item>";

fn answer(time_ms: u64, times: u64, balance: u64, more: &str) -> Sample {
    let requests = |kind: &str, count: u64, start_ns: u64, wait_ns: u64, device_ns: u64| {
        format!(
            "<{kind}><count>{count}</count><stageSet>\
             <item><stage>volume_iops</stage><spentNs>{wait_ns}</spentNs></item>\
             <item><stage>device</stage><spentNs>{device_ns}</spentNs></item></stageSet>\
             <latencySet><item><startNs>{start_ns}</startNs><count>{count}</count></item>\
             </latencySet></{kind}>"
        )
    };
    let item = |id: char, kind: &str, counters: String, limit: String, price: u64| {
        format!(
            "<item><volumeId>vol-0000000000000000{id}</volumeId><volumeType>{kind}</volumeType>\
             <sampleTimeMs>{time_ms}</sampleTimeMs><connections>1</connections>\
             <queueLength>31</queueLength>{counters}<operations>{limit}</operations>\
             <monthlyMicroUsd>{price}</monthlyMicroUsd><nodeName>left</nodeName></item>"
        )
    };
    let second = 1_000_000_000 * times;
    let ms = 1 << 20;
    let io2 = format!(
        "<countedIos>{}</countedIos><readBytes>{}</readBytes><writeBytes>0</writeBytes>{}",
        100 + 2_000 * times,
        2_000 * times * 16_384,
        requests("reads", 2_000 * times, ms, 9 * second, second),
    );
    let gp2 = format!(
        "<countedIos>{}</countedIos><readBytes>0</readBytes><writeBytes>{}</writeBytes>{}",
        6_000 * times,
        6_000 * times * 4_096,
        requests("writes", 6_000 * times, 4 * ms, 0, 3 * second),
    );
    let credit = format!(
        "<perSecond>3000</perSecond><refillPerSecond>300</refillPerSecond>\
         <capacity>5400000</capacity><balance>{balance}</balance>"
    );
    let items = [
        item('a', "io2", io2, "<perSecond>1000</perSecond>".to_owned(), 66_250_000),
        item('b', "gp2", gp2, credit, 10_000_000),
    ];
    let text = format!(
        "<DescribeVolumeMetricsResponse><volumeMetricSet>{}{more}</volumeMetricSet>\
         </DescribeVolumeMetricsResponse>",
        items.concat()
    );
    volume_samples::read(&Element::parse(&text).unwrap()).collect()
}

fn rows(by: Sort) -> Vec<Row> {
    let [earlier, later] = samples();
    let mut rows = between(&earlier, &later);
    sort(&mut rows, by);
    rows
}

fn order(by: Sort) -> String {
    rows(by).iter().filter_map(|row| row.volume_id.chars().last()).collect()
}

#[test]
fn a_sample_in_text() {
    let text = listing(&rows(Sort::Iops), Format::Text, "");
    assert_eq!(text, include_str!("sample.txt"));
}

#[test]
fn a_sample_in_csv_and_json() {
    let csv = listing(&rows(Sort::Volume), Format::Csv, "");
    assert_eq!(
        csv.lines().take(2).collect::<Vec<_>>(),
        [
            "volume,type,iops,iops_limit,mib_s,mib_s_limit,p50_us,p99_us,queue,credits_pct,\
             empty_in,device_pct,\
             usd_month,node,time_goes_to",
            "vol-0000000000000000a,io2,1000,1000,15.6,,1180,1180,31,,,25,66.25,left,\
             volume_iops 90% device 10%",
        ]
    );
    let json = listing(&rows(Sort::Volume), Format::Json, "");
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["schema"], "evenkeel.top/1");
    let [io2, gp2, st1] = [0, 1, 2].map(|index| &value["volumes"][index]);
    assert_eq!(io2["time_shares"], serde_json::json!({"device": 0.1, "volume_iops": 0.9}));
    assert_eq!((&io2["iops"], &io2["device_share"]), (&1_000.0.into(), &0.25.into()));
    assert_eq!(gp2["credits_empty_in_s"], 1_998);
    assert_eq!(gp2["writes_per_second"], 3_000.0);
    // Its credits are spent: what it may do is its baseline. Nothing is known of its rates yet.
    assert_eq!(st1["bytes_per_second_limit"], 20_971_520);
    assert_eq!(st1["iops"], serde_json::Value::Null);
}

#[test]
fn rows_stand_in_the_order_asked_for() {
    assert_eq!(order(Sort::Iops), "bac");
    assert_eq!(order(Sort::Throughput), "abc");
    assert_eq!(order(Sort::P99), "bac");
    assert_eq!(order(Sort::Queue), "abc");
    assert_eq!(order(Sort::Credits), "bca");
    assert_eq!(order(Sort::Device), "bac");
    assert_eq!(order(Sort::Cost), "abc");
    assert_eq!(order(Sort::Volume), "abc");
}

#[test]
fn a_server_that_began_anew_gives_no_rates_once() {
    let [earlier, later] = samples();
    // The counters went back; then time did.
    for (before, now) in [(&later, answer(20_000, 0, 7, "")), (&later, earlier)] {
        let rows = between(before, &now);
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.iops.is_none() && row.p99_us.is_none()), "{rows:?}");
        assert_eq!(rows[0].iops_limit, Some(1_000));
    }
}
