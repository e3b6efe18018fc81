//! An invented report for the tests of tables, charts and pages.

use evenkeel_core::qos::pacing::CountingRule;

use super::{Report, VolumeFacts, VolumeReport};
use crate::checker::{self, Bands, CreditPlan, Promise, Rate, Seen};
use crate::environment::Environment;
use crate::fio::Measurement;
use crate::stalls::{Observed, Stall, Stalls};
use evenkeel_sim::figures::histogram::LatencyRecorder;
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::workload::Workload;

const DURATION_S: u32 = 30;

fn promise(per_second: u64, credit: Option<CreditPlan>) -> Promise {
    Promise {
        operations: Some(Rate { per_second, credit }),
        bytes: Some(Rate { per_second: 1_000 << 20, credit: None }),
        tolerance_ms: 50,
        counting: CountingRule::SSD,
    }
}

/// Returns a volume with this cumulative count, in thousandths of an I/O.
fn volume(
    name: &str,
    volume_type: &str,
    promise: Promise,
    milli_ios_until: impl Fn(u64) -> u64,
) -> VolumeReport {
    let workload = Workload::random_read(16 << 10, 32, DURATION_S);
    let mut series = Series::new(DURATION_S);
    let mut latencies = LatencyRecorder::new(DURATION_S);
    for time_ms in 0..u64::from(DURATION_S) * 1_000 {
        let count = milli_ios_until(time_ms + 1) / 1_000 - milli_ios_until(time_ms) / 1_000;
        for nth in 0..count {
            series.record(time_ms);
            // By Little's law, with a little noise that is the same in every run.
            let noise = (time_ms * 7_919 + nth * 104_729) % 997;
            latencies.record(time_ms, 32_000_000_000 / (count * 1_000).max(300) + noise * 1_000);
        }
    }
    let (latency, latency_per_second) = latencies.finish();
    let measurement = Measurement {
        name: name.to_string(),
        workload,
        ios_total: series.total(),
        runtime_ms: u64::from(DURATION_S) * 1_000,
        started_unix_ms: None,
        series,
        latency,
        latency_per_second,
        error: None,
        gone_after_ms: None,
    };
    let seen = Seen {
        series: &measurement.series,
        lost: &stalls(),
        idle: &Stalls::NONE,
        steal: &Stalls::NONE,
        error: None,
        gone_after_ms: None,
        has_record: false,
    };
    let verdict = checker::check(&promise, &workload, &seen, &Bands::PROMISE).unwrap();
    let facts = VolumeFacts {
        volume_type: volume_type.to_string(),
        size_gib: 100,
        promise: promise.to_string(),
    };
    VolumeReport::new(facts, measurement, stalls(), verdict)
}

/// Returns a stall without an effect on the volumes.
fn stalls() -> Stalls {
    Stalls::merged(vec![Stall { start_us: 23_400_000, length_us: 61_000 }])
}

/// Returns a report of four volumes; the last one breaks its promise.
pub(crate) fn report() -> Report {
    let head_start = |rate: u64| move |ms: u64| rate * ms + if ms > 0 { rate * 50 } else { 0 };
    let credit = CreditPlan { refill_per_second: 300, balance_min: 27_000, balance_max: 27_300 };
    let burst = |ms: u64| head_start(3_000)(ms).min(27_120_000 + 300 * ms);
    let greedy = |ms: u64| 16_000 * ms.min(20_000) + 15_300 * ms.saturating_sub(20_000);
    let volumes = vec![
        volume("database", "io2", promise(1_000, None), head_start(1_000)),
        volume("web <& co>", "gp3", promise(3_000, None), head_start(3_000)),
        volume("boot", "gp2", promise(3_000, Some(credit)), burst),
        volume("greedy neighbour", "io2", promise(16_000, None), greedy),
    ];
    let environment = Environment {
        evenkeel: "0.1.0".to_string(),
        fio: "fio-3.33".to_string(),
        kernel: "Linux 6.18".to_string(),
        processor: "A Processor".to_string(),
        processors: 2,
        memory_bytes: 24 << 30,
    };
    let mut report = Report::new(
        "Four volumes at once",
        environment,
        vec![Observed { stalls: stalls(), real_time: true, ..Observed::default() }],
        volumes,
        vec!["fio --ioengine=nbd '--uri=nbd+unix:///a?socket=/b' <html>".to_string()],
        vec!["the machine was busy before the run".to_string()],
    );
    report.measured_at = "2026-11-21 03:56:41 UTC".to_string();
    report
}
