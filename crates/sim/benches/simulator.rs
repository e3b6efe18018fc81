//! The speed of virtual time: simulated I/Os per second of a volume at its limit, and events per
//! second that all checkers together judge.
//!
//! `cargo bench -p evenkeel-sim --bench simulator`

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use evenkeel_sim::scenario::{self, Scenario, Source};
use evenkeel_sim::world::run::{self, Method};
use evenkeel_sim::world::swarm;
use std::hint::black_box;

/// Returns one volume on an ideal device, with the same number of I/Os for every row.
fn one_volume(iops: u64, depth: u32) -> Scenario {
    let text = format!(
        r#"
title = "one volume"
about = "A volume that is always backlogged."
source = "None: a benchmark."
as_of = "2025-09-30"
duration_s = {seconds}

[[volume]]
name = "v"
size_gib = 100
iops = {iops}

[[client]]
on = "v"
depth = {depth}
"#,
        seconds = 2_000_000 / iops
    );
    scenario::read(&Source::new("one-volume.toml", &text))
        .unwrap_or_else(|error| panic!("{}", error.message))
}

fn simulated(c: &mut Criterion) {
    let mut group = c.benchmark_group("simulated I/Os");
    group.sample_size(10);
    for (iops, depth) in [(1_000_000, 32), (3_000, 32), (16_000, 4)] {
        let scenario = one_volume(iops, depth);
        let ios = 2_000_000 / iops * iops;
        group.throughput(Throughput::Elements(ios));
        group.bench_function(BenchmarkId::new(format!("depth {depth}"), iops), |b| {
            b.iter(|| black_box(run::run(&scenario, 1, Method::Stepwise, &mut |_| {}).is_ok()));
        });
    }
    group.finish();
}

fn judged(c: &mut Criterion) {
    let mut group = c.benchmark_group("judged worlds");
    group.sample_size(10);
    for seed in [3, 40] {
        let events = swarm::judge(seed).map_or(0, |judged| judged.report.events);
        group.throughput(Throughput::Elements(events));
        group.bench_function(BenchmarkId::new("seed", seed), |b| {
            b.iter(|| black_box(swarm::judge(seed).is_ok()));
        });
    }
    group.finish();
}

criterion_group!(benches, simulated, judged);
criterion_main!(benches);
