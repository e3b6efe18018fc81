//! Results of measurements of simulated devices whose properties are known.

use super::disk::{Cost, Disk, Loop, NS_PER_S, Seen, Writes, service};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::calibration::fit::{Point, fit};
use evenkeel_core::qos::admission::calibration::{
    Calibration, CurvePoint, Measurements, MixedPart, Rate,
};
use evenkeel_core::qos::admission::{Costs, LinearCost, Reservation, SOLD_SHARE_PPM};
use evenkeel_core::qos::sharing::Window;
use evenkeel_core::time::Duration;
use proptest::prelude::*;

const LENGTHS: [u32; 4] = [4 << 10, 16 << 10, 64 << 10, 256 << 10];

const REFERENCE: u32 = 16 << 10;

/// Measures as the engine does, in virtual time, with each load for `span` nanoseconds.
fn measure(disk: &Disk, span: u64) -> Measurements {
    let mut disk = disk.clone();
    let mut now = 0;
    let mut run = |depth: u32, length: u32, writes: Writes| -> (Seen, Duration) {
        let seen = Loop { depth, length, writes }.run(&mut disk, now, span);
        // Requests in flight end before the next load begins.
        now = disk.idle_at();
        (seen, Duration::from_ns(span))
    };
    let rate = |length: u32, depth: u32, (seen, elapsed): (Seen, Duration)| Rate {
        length,
        depth,
        requests: seen.reads + seen.writes,
        elapsed,
        cpu: Duration::from_ns((seen.reads + seen.writes) * (2_000 + u64::from(length) / 100)),
    };
    let (alone, _) = run(1, REFERENCE, Writes::None);
    let mean = alone.latencies.iter().sum::<u64>() / alone.latencies.len() as u64;
    let mut measured = Measurements { alone: Duration::from_ns(mean), ..Measurements::default() };
    for exponent in 0..9 {
        let depth = 1 << exponent;
        measured.depths.push(rate(REFERENCE, depth, run(depth, REFERENCE, Writes::None)));
    }
    for length in LENGTHS {
        measured.reads.push(rate(length, 256, run(256, length, Writes::None)));
    }
    for length in LENGTHS {
        run(256, 256 << 10, Writes::All);
        measured.writes.push(rate(length, 256, run(256, length, Writes::All)));
    }
    for exponent in 0..9 {
        let depth = 1 << exponent;
        let (mut seen, elapsed) = run(depth, REFERENCE, Writes::EveryOther);
        seen.latencies.sort_unstable();
        let percentile =
            |part: usize| Duration::from_ns(seen.latencies[seen.latencies.len() * part / 100]);
        let per_second = (seen.reads + seen.writes) * NS_PER_S / elapsed.ns;
        measured.curve.push(CurvePoint {
            depth,
            per_second,
            p50: percentile(50),
            p99: percentile(99),
        });
    }
    for _ in 0..3 {
        let (Seen { reads, writes, .. }, elapsed) = run(256, REFERENCE, Writes::EveryOther);
        measured.lasting.push(MixedPart { reads, writes, elapsed });
    }
    measured
}

fn near(found: f64, truth: f64, part: f64) -> bool {
    (found / truth - 1.0).abs() <= part
}

/// Channels found / cost found is the rate of the device at every length and for every path time.
/// The channels found are the depth that keeps the device busy through that path.
#[test]
fn a_device_is_found_as_it_is() {
    let devices: [(usize, Cost, Cost); 4] = [
        (1, (500_000, 500), (600_000, 500)),
        (8, (80_000, 4_096), (80_000, 4_096)),
        (32, (80_000, 4_096), (20_000, 8_192)),
        (64, (100_000, 1_000), (30_000, 2_000)),
    ];
    for (channels, read, write) in devices {
        for path_ns in [0, 20_000, 100_000] {
            let mut disk = Disk::new(channels, read, write);
            disk.path_ns = path_ns;
            let found = Calibration::of(&measure(&disk, NS_PER_S / 4)).unwrap();
            let shown = format!("{disk:?}\n{found:?}");
            for length in LENGTHS {
                for (cost, truth) in [(found.costs.read, read), (found.costs.write, write)] {
                    let per_second = f64::from(found.channels) / cost.ns(length) as f64;
                    let truth = channels as f64 / service(truth, length) as f64;
                    assert!(near(per_second, truth, 0.02), "{length}: {shown}");
                }
            }
            let alone = service(read, REFERENCE);
            let busy = channels as f64 * (alone + path_ns) as f64 / alone as f64;
            assert!(
                (f64::from(found.channels) - busy).abs() <= 0.6 + busy / 50.0,
                "{busy}: {shown}"
            );
            let mixed = 2.0 * channels as f64 * NS_PER_S as f64
                / (alone + service(write, REFERENCE)) as f64;
            assert!(near(found.mixed_per_second() as f64, mixed, 0.05), "{mixed}: {shown}");
        }
    }
}

/// A cache that takes 256 MiB at memory speed does not raise the floor: the cost of writes is that
/// of draining it.
#[test]
fn cache_that_is_fast_for_a_while_is_not_sold() {
    let mut disk = Disk::new(16, (80_000, 1_000), (10_000, 0));
    disk.cache = Some((256 << 20, 100 << 20));
    let found = Calibration::of(&measure(&disk, NS_PER_S / 2)).unwrap();
    let bytes = f64::from(found.channels) * f64::from(256 << 10) * 1e9
        / found.costs.write.ns(256 << 10) as f64;
    assert!(bytes < 1.1 * f64::from(100 << 20), "{bytes}: {found:?}");
}

#[test]
fn calibration_gives_its_costs_to_scheduler_and_ledger() {
    let disk = Disk::new(8, (80_000, 4_096), (80_000, 4_096));
    let found = Calibration::of(&measure(&disk, NS_PER_S / 8)).unwrap();
    let model = found.device_model();
    let floor = found.device_floor();
    assert_eq!(model.channels, 8);
    for length in LENGTHS {
        let ledger = floor.costs.read.ns(length);
        assert!(ledger.abs_diff(model.read.ns(length).into()) <= 1, "but for the rounding");
    }
    assert!(floor.time_ns_per_second <= 8 * NS_PER_S);
    assert_eq!(model.window, Window::Adaptive { small_p99: found.p99_target.unwrap() });
    assert!(near(found.cpu_costs.read.ns(100_000) as f64, 3_000.0, 0.02), "{found:?}");
    assert_eq!(found.domain_floor(2).cpu_ns_per_second, Some(2 * NS_PER_S));

    let sold = found.sells_up_to(2, SOLD_SHARE_PPM);
    assert!(near(f64::from(sold), 0.8 * found.mixed_per_second() as f64, 0.001), "{sold}");
    let mut ledger = found.ledger(2, SOLD_SHARE_PPM);
    let all = Reservation::of_iops(sold);
    ledger.consult(VolumeId::from_bits(1), &all).unwrap();
    ledger.enter(VolumeId::from_bits(1), all).unwrap();
    ledger.consult(VolumeId::from_bits(2), &Reservation::of_iops(1)).unwrap_err();
}

/// A device whose processor is the bottleneck sells what the processor gives.
#[test]
fn cores_limit_the_capacity_for_sale() {
    let disk = Disk::new(16, (20_000, 0), (20_000, 0));
    let mut measured = measure(&disk, NS_PER_S / 8);
    for rate in measured.reads.iter_mut().chain(&mut measured.writes) {
        rate.cpu = Duration::from_us(5 * rate.requests);
    }
    let found = Calibration::of(&measured).unwrap();
    assert!(near(f64::from(found.sells_up_to(2, SOLD_SHARE_PPM)), 320_000.0, 0.01), "{found:?}");
}

fn plain(curve: Vec<CurvePoint>, lasting: Vec<MixedPart>) -> Measurements {
    let rate = |length: u32| Rate {
        length,
        depth: 8,
        requests: 41_000,
        elapsed: Duration::from_secs(1),
        cpu: Duration::ZERO,
    };
    let alone = Duration::from_ns(8 * NS_PER_S / 41_000);
    let rates = vec![rate(4_096), rate(65_536)];
    Measurements {
        alone,
        depths: vec![rate(REFERENCE)],
        reads: rates.clone(),
        writes: rates,
        settling: Vec::new(),
        curve,
        lasting,
    }
}

fn point(depth: u32, per_second: u64, p99_us: u64) -> CurvePoint {
    let p50 = Duration::from_us(p99_us / 2);
    let p99 = Duration::from_us(p99_us);
    CurvePoint { depth, per_second, p50, p99 }
}

fn part(count: u64, ms: u64) -> MixedPart {
    MixedPart { reads: count / 2, writes: count - count / 2, elapsed: Duration::from_ms(ms) }
}

/// Asserts the rate to within one request a second: costs are whole nanoseconds.
fn assert_rate(found: &Calibration, per_second: u64) {
    assert!(found.mixed_per_second().abs_diff(per_second) <= 1, "{per_second}: {found:?}");
}

#[test]
fn latency_target_is_the_lowest_that_keeps_most_of_the_rate() {
    let check = |curve, target_ms: Option<u64>, per_second| {
        let found = Calibration::of(&plain(curve, vec![part(41_000, 1_000)])).unwrap();
        assert_eq!(found.p99_target, target_ms.map(Duration::from_ms));
        assert_rate(&found, per_second);
    };
    let last = point(16, 41_000, 3_900);
    check(vec![point(1, 5_000, 210), point(8, 38_000, 900), last], Some(1), 38_000);
    check(vec![point(1, 5_000, 210), point(8, 36_000, 900), last], Some(5), 41_000);
    check(vec![CurvePoint { p99: Duration::from_secs(2), ..last }], None, 41_000);
}

#[test]
fn the_floor_is_the_worst_whole_second() {
    let check = |lasting, per_second| {
        let found = Calibration::of(&plain(vec![point(8, 41_000, 900)], lasting)).unwrap();
        assert_rate(&found, per_second);
    };
    check(vec![part(41_000, 1_000), part(30_000, 1_000), part(41_000, 1_000)], 30_000);
    // Parts of a second count together: a pause in one part is not a slow second.
    let half = || part(20_500, 500);
    check(vec![half(), part(16_500, 500), half(), half()], 37_000);
    check(vec![part(4_100, 100), part(3_100, 100)], 36_000);
    // A rest at the end belongs to the second before it.
    check(vec![half(), half(), part(100, 10)], 40_693);
}

#[test]
fn writes_have_settled_when_their_rate_no_longer_falls() {
    let settled = |counts: &[u64]| {
        let settling = counts.iter().map(|&count| part(count, 500)).collect();
        Measurements { settling, ..plain(Vec::new(), Vec::new()) }.has_settled()
    };
    assert!(settled(&[9_000, 3_000, 1_050, 1_000]));
    assert!(!settled(&[9_000, 3_000, 1_000]));
    assert!(!settled(&[1_000]) && !settled(&[]));
}

#[test]
fn missing_measurement_is_named() {
    let good = plain(vec![point(8, 41_000, 900)], vec![part(41_000, 1_000)]);
    let wrong = |measured: Measurements| Calibration::of(&measured).unwrap_err().to_string();
    let none = Measurements { depths: Vec::new(), ..good.clone() };
    assert_eq!(wrong(none), "no read at any depth ended in the time there was; measure for longer");
    assert!(wrong(Measurements { writes: Vec::new(), ..good.clone() }).starts_with("no write"));
    let stuck = Measurements { lasting: vec![part(0, 1_000)], ..good };
    assert!(wrong(stuck).starts_with("no request of the lasting load"));
}

/// Returns the sum of the squares of the relative errors.
fn error_of(points: &[Point], base: f64, slope: f64) -> f64 {
    let off = |p: &Point| (base + slope * f64::from(p.length)) / p.ps as f64 - 1.0;
    points.iter().map(|p| off(p) * off(p)).sum()
}

/// Returns the least error, by search: the best slope for each base of a fine grid.
fn best_error(points: &[Point]) -> f64 {
    let most = points.iter().map(|p| p.ps).max().unwrap() as f64;
    (0..=20_000)
        .map(|step| {
            let base = most * f64::from(step) / 20_000.0;
            let mut above = 0.0;
            let mut below = 0.0;
            for p in points {
                let weight = f64::from(p.length) / p.ps as f64;
                above += weight * (1.0 - base / p.ps as f64);
                below += weight * weight;
            }
            error_of(points, base, (above / below).max(0.0))
        })
        .fold(f64::MAX, f64::min)
}

proptest! {
    #[test]
    fn no_line_fits_better(
        base in 0_u64..1_000_000_000, slope in 0_u64..20_000, lift in 1_000_000_u64..10_000_000,
        noise in prop::collection::vec(0_u64..200, 4),
    ) {
        let points: Vec<Point> = LENGTHS.iter().zip(&noise).map(|(&length, noise)| Point {
            length,
            ps: (lift + base + slope * u64::from(length)) * (900 + noise) / 1_000,
        }).collect();
        let found = fit(&points).unwrap();
        let LinearCost { base, byte_ps } = found.cost;
        let ours = error_of(&points, base.ns as f64 * 1e3, f64::from(byte_ps));
        // Bases are whole nanoseconds and slopes whole picoseconds, so each error may be larger by
        // what these are of its point. Errors add up as lengths of vectors do.
        let rounded = |p: &Point| ((1e3 + f64::from(p.length)) / p.ps as f64).powi(2);
        let rounding = points.iter().map(rounded).sum::<f64>().sqrt();
        let most = best_error(&points).sqrt() + rounding;
        prop_assert!(ours.sqrt() <= most * 1.001, "{ours} {found:?}");
        for point in &points {
            let off = (found.cost.ns(point.length) as f64 * 1e3 / point.ps as f64 - 1.0).abs();
            prop_assert!(off * 1e6 <= f64::from(found.off_ppm) + 1.0);
        }
    }

    /// Points on a line give that line.
    #[test]
    fn a_line_is_found(base_ns in 0_u64..10_000_000, byte_ps in 0_u32..1_000_000) {
        let line = LinearCost { base: Duration::from_ns(base_ns + 100), byte_ps };
        let points: Vec<Point> = LENGTHS.iter().map(|&length| Point {
            length,
            ps: line.base.ns * 1_000 + u64::from(byte_ps) * u64::from(length),
        }).collect();
        let found = fit(&points).unwrap();
        for length in [512, 4_096, 16_384, 262_144, 1 << 20] {
            let ours = found.cost.ns(length) as f64;
            let truth = line.ns(length) as f64;
            prop_assert!((ours / truth - 1.0).abs() < 0.002 + 2.0 / truth, "{ours} {truth}");
        }
    }

    #[test]
    fn fit_of_any_points_never_overflows(
        points in prop::collection::vec((any::<u32>(), any::<u64>()), 0..100),
    ) {
        let points: Vec<Point> = points.iter().map(|&(length, ps)| Point { length, ps }).collect();
        prop_assert_eq!(fit(&points).is_some(), !points.is_empty());
    }
}

#[test]
fn points_of_one_length_have_no_slope() {
    let same = [Point { length: 4_096, ps: 80_000 }; 3];
    let level = LinearCost { base: Duration::from_ns(80), byte_ps: 0 };
    assert_eq!(fit(&same).unwrap().cost, level);
    assert_eq!(fit(&[]), None);
    let costs = Costs { read: level, write: LinearCost::ZERO };
    assert_eq!(costs.read.ns(1 << 20), 80);
}
