//! Rows of the study of limiters that the product's design rests on (a common test of eight schemes
//! in a simulator of its own), each against the models here. Where a figure differs the test says
//! what it is instead, and another test shows why.

use evenkeel_core::time::{Duration, Instant};

use super::super::bench::{self, Figures, Load, Noise};
use super::super::isolation_table::{NEIGHBOUR_SCHEMES, RESERVATION_SCHEMES, shares};
use super::super::limited::{Limited, Limiter, Rates};
use super::super::limiter_table::{SCHEMES, Scheme};
use super::super::spdk::Spdk;
use super::super::windowed::Share;
use super::super::{neighbour, reservations};
use crate::world::policy::Request;

const SEED: u64 = 1;

fn scheme(name: &str) -> &'static Scheme {
    SCHEMES.iter().find(|scheme| scheme.name.starts_with(name)).unwrap()
}

/// Figures of a load that begins as soon as the limiter is made, as the study's did.
fn fresh(name: &str, load: Load) -> Figures {
    scheme(name).run(&Load { start: Instant::ZERO, ..load }, &Noise::new(), SEED)
}

#[track_caller]
fn near(what: &str, value: f64, published: f64, tolerance: f64) {
    let differs = (value - published).abs();
    assert!(differs <= tolerance, "{what}: {value}, published {published} +-{tolerance}");
}

/// The study's table: scheme; percents of mean, CoV, worst and first second; the busiest 10 ms as a
/// multiple; p50 and p99 in milliseconds. As published, but for librbd's first second (see
/// [`librbd_starts_with_an_empty_bucket`]).
#[rustfmt::skip]
const ROWS: [(&str, [f64; 7]); 8] = [
    ("Firecracker, 1 s",   [ 0.04, 4.27,  -7.9,  94.7,  10.3,  0.26, 100.0]),
    ("Firecracker, 0.1 s", [-0.09, 4.27,  -8.0,  2.3,   10.2,  0.26, 100.0]),
    ("SPDK",               [ 0.0,  0.0,    0.0,  0.0,   1.1,  10.9,   11.3]),
    ("Crucible",           [ 0.0,  0.0,    0.0,  0.0,  41.6,   0.25, 975.0]),
    ("librbd",             [ 0.0,  0.0,    0.0,  0.0,   5.0,   0.28,  49.0]),
    ("QEMU",               [ 0.0,  0.009, -0.03, 10.0,  1.13, 10.7,   11.0]),
    ("GCRA",               [-4.6,  0.26,  -5.1,  -4.4,  1.0,  11.1,   12.7]),
    ("evenkeel, 5 ms",     [ 0.0,  0.0,    0.0,  0.47,  1.13, 10.7,   11.0]),
];

#[test]
fn three_thousand_iops_at_depth_32() {
    for (scheme, [mean, cov, worst, first, peak, p50_ms, p99_ms]) in ROWS {
        let figures = fresh(scheme, Load::new(3_000, 32));
        let check = |figure: &str, value: f64, published: f64, tolerance: f64| {
            near(&format!("{scheme}, {figure}"), value, published, tolerance);
        };
        check("mean", figures.mean_error * 100.0, mean, 0.2);
        check("CoV", figures.cov * 100.0, cov, 0.05 + cov * 0.2);
        check("worst second", figures.worst_second * 100.0, worst, 0.3);
        check("first second", figures.first_second * 100.0, first, 0.4);
        // SPDK's drifting polls give one slice more in some windows.
        check("peak", figures.peak_10_ms, peak, 0.11 + peak * 0.02);
        check("p50", figures.p50_ns as f64 / 1e6, p50_ms, 0.02 + p50_ms * 0.01);
        check("p99", figures.p99_ns as f64 / 1e6, p99_ms, p99_ms * 0.02);
    }
}

#[test]
fn other_settings_that_separate_them() {
    let mean = |name: &str, load: Load| fresh(name, load).mean_error * 100.0;
    near("SPDK at 1,500", mean("SPDK", Load::new(1_500, 32)), 33.3, 0.1);
    near("SPDK at 100", mean("SPDK", Load::new(100, 32)), 900.0, 0.5);
    let brief = Load { measured_s: 3, warm_up_s: 1, ..Load::new(256_000, 256) };
    near("GCRA at 256,000", mean("GCRA", brief), -62.0, 2.0);
    let product = fresh("evenkeel, 5 ms", brief);
    near("evenkeel at 256,000", product.mean_error * 100.0, 0.0, 0.005);
    near("evenkeel at 256,000, CoV", product.cov * 100.0, 0.001, 0.005);
    let shallow = fresh("evenkeel, 5 ms", Load::new(3_000, 1));
    near("evenkeel at depth 1", shallow.mean_error * 100.0, 0.0, 0.005);
    near("evenkeel at depth 1, CoV", shallow.cov * 100.0, 0.027, 0.027);
}

/// SPDK polled at the end of each slice instead of a period after the last poll.
struct SpdkOnTime(Spdk);

impl Limiter for SpdkOnTime {
    fn new(now: Instant, rates: &Rates) -> Self {
        Self(Spdk::new(now, rates))
    }

    fn take(&mut self, now: Instant, request: &Request) -> bool {
        self.0.take(now, request)
    }

    fn timer(&self) -> Option<Instant> {
        Some(self.0.slice_end())
    }

    fn fire(&mut self, now: Instant) {
        self.0.fire(now);
    }

    fn reconfigure(&mut self, now: Instant, rates: &Rates) {
        self.0.reconfigure(now, rates);
    }
}

/// Published: -0.39 % at depth 1. That is SPDK with a poller that keeps to the slices; the real one
/// drifts, and loses three times as much.
#[test]
fn spdk_at_depth_1_loses_more_because_its_poller_drifts() {
    let load = Load { start: Instant::ZERO, ..Load::new(3_000, 1) };
    let noise = Noise::new();
    let mut on_time = Limited::<SpdkOnTime>::new(Instant::ZERO, &[Rates::operations(3_000)]);
    let on_time = bench::run(&mut on_time, &load, &noise, SEED);
    near("SPDK on time", on_time.mean_error * 100.0, -0.39, 0.1);
    let drifting = scheme("SPDK").run(&load, &noise, SEED);
    near("SPDK drifting", drifting.mean_error * 100.0, -1.2, 0.2);
}

/// Published: +95 % in the first second. That is after idle; a new throttle has its tokens in
/// `remaining` but none in `available`, and starts with one tick's.
#[test]
fn librbd_starts_with_an_empty_bucket() {
    let load = Load { warm_up_s: 1, measured_s: 0, ..Load::new(3_000, 32) };
    near("fresh", fresh("librbd", load).first_second * 100.0, 0.0, 0.4);
    let idle = scheme("librbd").run(&load, &Noise::new(), SEED).first_second * 100.0;
    assert!((94.9..=100.1).contains(&idle), "after idle {idle} %");
}

/// Published: +94.7 % and +2.3 % in the first second. That is of a new bucket; after idle there is
/// another one behind it.
#[test]
fn firecracker_gives_two_buckets_after_idle() {
    let load = Load { warm_up_s: 1, measured_s: 0, ..Load::new(3_000, 32) };
    for (name, after_idle) in [("Firecracker, 1 s", 194.7), ("Firecracker, 0.1 s", 12.3)] {
        let first = scheme(name).run(&load, &Noise::new(), SEED).first_second;
        near(name, first * 100.0, after_idle, 0.5);
    }
}

/// Published: 0 in the first second. That is if the load begins right after a leak; else the leak
/// comes within the second and there are two limits' worth in it.
#[test]
fn crucible_gives_two_seconds_worth_in_the_first() {
    let load = Load::new(3_000, 32);
    let fullest = scheme("Crucible").fullest_first_second(&load, &Noise::new(), SEED);
    near("fullest", fullest * 100.0, 100.0, 0.1);
}

/// Published: 0.00 %. A minute is too short to see it: every tick is late by what the last one was.
#[test]
fn librbd_loses_the_lateness_of_its_ticks() {
    let load = Load { measured_s: 1_200, ..Load::new(100, 32) };
    let mean = fresh("librbd", load).mean_error * 100.0;
    near("20 minutes of librbd", mean, -0.033, 0.01);
    let product = fresh("evenkeel, 5 ms", load).mean_error * 100.0;
    near("20 minutes of evenkeel", product, 0.0, 0.001);
}

#[test]
fn a_log_beside_a_batch() {
    // Scheduler, log's I/Os a second, p50, p99 and p99.9 in microseconds, the batch's GB/s.
    let published = [
        ("first come", 120.0, 8_246.0, 8_567.0, 8_686.0, 7.28),
        ("fair by cost, 64 in", 700.0, 1_326.0, 1_538.0, 1_632.0, 7.26),
        ("fair by cost, 34 in flight", 2_810.0, 247.0, 440.0, 518.0, 7.19),
        ("fair by cost, 34 in flight, 64", 3_553.0, 178.0, 274.0, 313.0, 5.91),
    ];
    for (name, per_second, p50, p99, p999, batch) in published {
        let scheme = NEIGHBOUR_SCHEMES.iter().find(|scheme| scheme.name.starts_with(name)).unwrap();
        let mut policy = (scheme.build)(&[Share::weight(1); 2]);
        let [log, other] = neighbour(policy.as_mut(), 10, SEED);
        let us = |ns: u64| ns as f64 / 1_000.0;
        near(name, log.per_second, per_second, per_second * 0.01);
        near(name, us(log.latency.p50_ns), p50, p50 * 0.02);
        near(name, us(log.latency.p99_ns), p99, p99 * 0.02);
        near(name, us(log.latency.p999_ns), p999, p999 * 0.05);
        near(name, other.bytes_per_second / 1e9, batch, 0.03);
    }
}

/// The published row of reservations, 4,727, is with weights beside the reservations. mClock as it
/// is published gives the larger of the two: exactly the reservation.
#[test]
fn reservations_beside_hogs() {
    let published = [
        // The depths are not published. With 32 and 256 arrival order gives 330 on average.
        ("first come", 336, 20),
        ("round robin", 1_830, 10),
        ("virtual time, 34", 1_794, 10),
        ("virtual time, 64", 1_794, 10),
        ("mClock, 34", 4_398, 5),
        ("mClock, 64", 4_398, 5),
        ("reservations, then weights", 4_727, 15),
    ];
    for (name, per_second, tolerance) in published {
        let named = |scheme: &&super::super::isolation_table::Scheme| scheme.name.starts_with(name);
        let scheme = RESERVATION_SCHEMES.iter().find(named).unwrap();
        let got = reservations((scheme.build)(&shares()).as_mut(), 2, SEED);
        let worst = got[..40].iter().map(|got| got.worst_second).min().unwrap();
        near(name, worst as f64, f64::from(per_second), f64::from(tolerance));
    }
}

/// The product against its own promise: a log's 99th percentile is within twice what it is alone,
/// and no second of a reservation is below 99 %.
#[test]
fn the_product_isolates() {
    let of = |schemes: &'static [super::super::isolation_table::Scheme]| {
        schemes.iter().filter(|scheme| scheme.name.starts_with("evenkeel"))
    };
    let alone_p99_ns = 233_000;
    for scheme in of(&NEIGHBOUR_SCHEMES) {
        let mut policy = (scheme.build)(&[Share::weight(1); 2]);
        let [log, batch] = neighbour(policy.as_mut(), 4, SEED);
        assert!(log.latency.p99_ns <= 2 * alone_p99_ns, "{}: {:?}", scheme.name, log.latency);
        assert!(batch.bytes_per_second > 6.5e9, "{}: {batch:?}", scheme.name);
    }
    for scheme in of(&RESERVATION_SCHEMES) {
        let got = reservations((scheme.build)(&shares()).as_mut(), 2, SEED);
        let worst = got[..40].iter().map(|got| got.worst_second).min().unwrap();
        assert!(worst >= 4_398 * 99 / 100, "{}: {worst}", scheme.name);
    }
}

/// The study's own reading of the numbers: an even 10.7 ms or a mixture of 0.25 and 100 ms.
#[test]
fn a_limit_and_a_depth_fix_the_mean_latency() {
    let little = Duration::from_ns(1_000_000_000 * 32 / 3_000);
    let figures = fresh("evenkeel, 5 ms", Load::new(3_000, 32));
    near("p50 by Little's law", figures.p50_ns as f64, little.ns as f64, little.ns as f64 * 0.01);
}
