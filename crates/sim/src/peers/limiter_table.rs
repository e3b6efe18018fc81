//! Every limiter under the same loads: `evenkeel sim run limiters`.

use evenkeel_core::time::{Duration, Instant};

use super::bench::{self, Figures, IDLE, Load, Noise};
use super::crucible::Crucible;
use super::firecracker::Firecracker;
use super::gcra::Gcra;
use super::librbd::Librbd;
use super::limited::{Limited, Limiter, Rates};
use super::nbdkit::Nbdkit;
use super::product;
use super::qemu::Qemu;
use super::spdk::Spdk;
use super::table::{Cell, Section, Table};
use crate::text;
use crate::world::policy::Policy;

/// Starts of the load that are tried for the worst first second, spread over a second: what a
/// limiter with a period does depends on where in its period the load begins.
const STARTS: u64 = 16;

/// A limiter of the table.
#[derive(Clone, Copy)]
pub(super) struct Scheme {
    pub(super) name: &'static str,
    /// One volume limited to so many I/Os of so many bytes a second, made at time zero.
    build: fn(u64, u32) -> Box<dyn Policy>,
}

fn limited<L: Limiter + 'static>(iops: u64, _: u32) -> Box<dyn Policy> {
    Box::new(Limited::<L>::new(Instant::ZERO, &[Rates::operations(iops)]))
}

/// It has no limit in I/Os, so it gets the same in bytes.
fn nbdkit(iops: u64, length: u32) -> Box<dyn Policy> {
    Box::new(Nbdkit::new(Instant::ZERO, &[Rates::bytes(iops * u64::from(length))]))
}

fn product<const TOLERANCE_MS: u64>(iops: u64, _: u32) -> Box<dyn Policy> {
    Box::new(product::limited(&[Rates::operations(iops)], Duration::from_ms(TOLERANCE_MS)))
}

/// The rows of the tables, in their order.
pub(super) const SCHEMES: [Scheme; 10] = [
    Scheme { name: "Firecracker, 1 s in 1 s", build: limited::<Firecracker<1_000>> },
    Scheme { name: "Firecracker, 0.1 s in 0.1 s", build: limited::<Firecracker<100>> },
    Scheme { name: "SPDK, 1 ms slices", build: limited::<Spdk> },
    Scheme { name: "Crucible 2022, 1 s leak", build: limited::<Crucible> },
    Scheme { name: "librbd, 50 ms ticks", build: limited::<Librbd> },
    Scheme { name: "nbdkit rate, in bits", build: nbdkit },
    Scheme { name: "QEMU, leaky bucket", build: limited::<Qemu> },
    Scheme { name: "GCRA, burst 1", build: limited::<Gcra> },
    Scheme { name: "evenkeel, 5 ms saved", build: product::<5> },
    Scheme { name: "evenkeel, 50 ms saved", build: product::<50> },
];

impl Scheme {
    /// The figures under a load.
    pub(super) fn run(&self, load: &Load, noise: &Noise, seed: u64) -> Figures {
        let mut policy = (self.build)(load.limit, load.length);
        bench::run(policy.as_mut(), load, noise, seed)
    }

    /// The fullest first second, of loads that begin at different times.
    pub(super) fn fullest_first_second(&self, load: &Load, noise: &Noise, seed: u64) -> f64 {
        let first_second = |step: u64| {
            let start = Instant::from_ns(IDLE.ns + step * 1_000_000_000 / STARTS);
            let load = Load { start, warm_up_s: 1, measured_s: 0, ..*load };
            self.run(&load, noise, seed).first_second
        };
        (0..STARTS).map(first_second).fold(f64::NEG_INFINITY, f64::max)
    }
}

/// Every limiter, and the product's, at the limits and depths that distinguish them.
#[must_use]
pub fn limiters(seed: u64) -> Table {
    let noise = Noise::new();
    let mut sections = vec![main_section(&noise, seed)];
    let brief = Load { measured_s: 10, ..Load::new(256_000, 256) };
    for (title, load) in [
        ("1,500 IOPS, depth 32", Load::new(1_500, 32)),
        ("100 IOPS, depth 32", Load::new(100, 32)),
        ("3,000 IOPS, depth 1", Load::new(3_000, 1)),
        ("256,000 IOPS, depth 256, 10 s", brief),
    ] {
        sections.push(other_section(title, &load, &noise, seed));
    }
    Table { seed, sections }
}

const COLUMNS: [&str; 8] = ["scheme", "mean", "CoV", "worst-s", "first-s", "pk10", "p50", "p99"];

/// Where the main section has one column more: the fullest first second.
const FULLEST_COLUMN: usize = 5;

pub(super) fn main_section(noise: &Noise, seed: u64) -> Section {
    let load = Load::new(3_000, 32);
    let mut section = other_section("3,000 IOPS, depth 32, 250 us device", &load, noise, seed);
    section.columns.insert(FULLEST_COLUMN, "fullest first-s".to_string());
    for (scheme, row) in SCHEMES.iter().zip(&mut section.rows) {
        let fullest = scheme.fullest_first_second(&load, noise, seed);
        row.insert(FULLEST_COLUMN, deviation(fullest));
    }
    section
}

fn other_section(title: &str, load: &Load, noise: &Noise, seed: u64) -> Section {
    let row = |scheme: &Scheme| {
        let figures = scheme.run(load, noise, seed);
        vec![
            Cell::text(scheme.name),
            deviation(figures.mean_error),
            Cell::figure(figures.cov, text::percent(figures.cov)),
            deviation(figures.worst_second),
            deviation(figures.first_second),
            Cell::figure(figures.peak_10_ms, format!("{:.2}x", figures.peak_10_ms)),
            latency(figures.p50_ns),
            latency(figures.p99_ns),
        ]
    };
    Section {
        title: title.to_string(),
        columns: COLUMNS.map(String::from).to_vec(),
        rows: SCHEMES.iter().map(row).collect(),
    }
}

fn deviation(ratio: f64) -> Cell {
    // Nothing is written as -0.00 %.
    let percent = (ratio * 10_000.0).round() / 100.0 + 0.0;
    Cell::figure(ratio, format!("{percent:+.2} %"))
}

fn latency(ns: u64) -> Cell {
    Cell::figure(ns as f64, text::latency(ns))
}
