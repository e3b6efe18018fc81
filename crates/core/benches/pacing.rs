//! Cost of pacing per I/O: queue, count, check and charge the limits, sleep in the wheel, wake,
//! dispatch. Time per element is time per I/O.
//!
//! `cargo bench -p evenkeel-core --bench pacing`

mod saturated;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use saturated::{BATCH, World, burstable, provisioned};

fn cost_per_io(c: &mut Criterion) {
    let mut group = c.benchmark_group("pacing");
    group.throughput(Throughput::Elements(BATCH));
    for volumes in [1, 100, 10_000] {
        let mut world = World::new(volumes, false, provisioned);
        group
            .bench_function(BenchmarkId::new("provisioned", volumes), |b| b.iter(|| world.batch()));
        let mut world = World::new(volumes, false, burstable);
        group.bench_function(BenchmarkId::new("burstable", volumes), |b| b.iter(|| world.batch()));
        let mut world = World::new(volumes, true, provisioned);
        group.bench_function(BenchmarkId::new("shared", volumes), |b| b.iter(|| world.batch()));
    }
    group.finish();
}

/// Measures requests that need not wait: they go straight to the output queue.
fn unlimited(c: &mut Criterion) {
    let mut group = c.benchmark_group("pacing");
    group.throughput(Throughput::Elements(BATCH));
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let volume = scheduler.add(Instant::ZERO, &Pacing::UNLIMITED, Balances::default());
    let volume = volume.expect("the first volume");
    let mut now = Instant::ZERO;
    group.bench_function("unlimited", |b| {
        b.iter(|| {
            for handle in 0..1_000 {
                now = now + Duration::from_us(1);
                let offset = u64::from(handle) << 20;
                let io = Io { operation: Operation::Read, offset, length: 4_096, handle };
                scheduler.submit(now, volume, io).expect("nothing waits");
                assert!(scheduler.poll_output().is_some());
            }
        });
    });
    group.finish();
}

criterion_group!(benches, cost_per_io, unlimited);
criterion_main!(benches);
