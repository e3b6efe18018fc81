//! Drift on simulated devices: which slowdowns are noticed, when, and which are not.

use super::disk::{Disk, NS_PER_S, service};
use evenkeel_core::qos::admission::calibration::drift::{
    CALM_PERIODS, Drift, DriftChange, REST, SOLD_MIN_PPM, expected_ns,
};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, LinearCost};
use evenkeel_core::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const KIB: u32 = 1 << 10;

fn disk() -> Disk {
    Disk::new(8, (80_000, 4_096), (80_000, 4_096))
}

/// Keeps `depth` requests in flight on a device that `change` may alter before each second. Returns
/// the changes of the part that may be sold, with the second of each.
fn run(
    disk: Disk,
    depth: usize,
    length: u32,
    seconds: u64,
    change: impl Fn(u64, &mut Disk),
) -> (Drift, Vec<(u64, DriftChange)>) {
    run_mixed(disk, &vec![length; depth], seconds, change)
}

/// Does the same with one request of each length in flight; a completed one is submitted again.
fn run_mixed(
    mut disk: Disk,
    lengths: &[u32],
    seconds: u64,
    change: impl Fn(u64, &mut Disk),
) -> (Drift, Vec<(u64, DriftChange)>) {
    let predicted = |length| service((80_000, 4_096), length);
    let mut drift = Drift::new(Instant::ZERO);
    let mut changes = Vec::new();
    let mut under_way = BinaryHeap::new();
    let mut second = 0;
    change(0, &mut disk);
    // Predicted time of all requests in flight.
    let mut needed = 0;
    let give = |now, length, disk: &mut Disk, others, needed: &mut u64| {
        let others = (u32::try_from(others).unwrap(), *needed);
        *needed += predicted(length);
        Reverse((disk.give(now, false, length), now, length, others))
    };
    for &length in lengths {
        under_way.push(give(0, length, &mut disk, under_way.len(), &mut needed));
    }
    while let Some(Reverse((end, given, length, others))) = under_way.pop() {
        while end / NS_PER_S > second {
            second += 1;
            change(second, &mut disk);
        }
        if second >= seconds {
            break;
        }
        needed -= predicted(length);
        let expected = expected_ns(predicted(length), others, 8);
        let service = Duration::from_ns(end - given);
        let change = drift.completed(Instant::from_ns(end), expected, service);
        changes.extend(change.map(|change| (second, change)));
        under_way.push(give(end, length, &mut disk, under_way.len(), &mut needed));
    }
    (drift, changes)
}

#[test]
fn unchanged_device_makes_no_drift() {
    for depth in [1, 4, 8, 64] {
        for length in [4 * KIB, 16 * KIB, 256 * KIB] {
            let (drift, changes) = run(disk(), depth, length, 20, |_, _| {});
            assert_eq!(changes, []);
            assert!((990_000..=1_010_000).contains(&drift.ratio_ppm()), "{drift:?}");
        }
    }
}

/// Small requests wait for large ones, and longer than for small ones.
#[test]
fn requests_of_many_lengths_are_no_drift() {
    for (small, large) in [(32, 32), (56, 8), (8, 56), (4, 4), (1, 63)] {
        let lengths = [vec![4 * KIB; small], vec![1_024 * KIB; large]].concat();
        let (drift, changes) = run_mixed(disk(), &lengths, 20, |_, _| {});
        assert_eq!(changes, [], "{small} small and {large} large: {drift:?}");
        let (_, changes) = run_mixed(disk(), &lengths, 20, |_, disk| disk.percent = 200);
        assert!(!changes.is_empty(), "twice as slow with {small} small and {large} large");
    }
}

/// A drift is forgotten while the device is not used, and reported again if the device is still
/// slow.
#[test]
fn a_device_at_rest_recovers_and_shows_by_use_if_it_has_not() {
    let (mut drift, _) = run(disk(), 16, 16 * KIB, 20, |_, disk| disk.percent = 330);
    assert_eq!(drift.sold_ppm(), 300_000);
    let mut rests = 0;
    let change = loop {
        let time = drift.poll_timeout().expect("less is sold than there was");
        assert_eq!(drift.rest(Instant::from_ns(time.ns - 1)), None, "it has not rested");
        rests += 1;
        if let Some(change) = drift.rest(time) {
            break change;
        }
    };
    assert_eq!((rests, change.before_ppm, change.sold_ppm), (CALM_PERIODS, 300_000, 1_000_000));
    assert!(change.to_string().starts_with("little has used the device for a while: 100 %"));
    assert_eq!(drift.poll_timeout(), None, "an idle server is not woken for nothing");
    // Three times as slow, still.
    let mut time = Instant::from_ns(NS_PER_S * 10_000);
    for _ in 0..10 * 256 {
        time = time + Duration::from_ms(4);
        drift.completed(time, 1_000_000, Duration::from_us(3_300));
    }
    assert!(drift.sold_ppm() < 400_000, "{drift:?}");
    // The time of rest counts from the last judgement of the device in use.
    assert!(drift.poll_timeout().unwrap() + Duration::from_secs(2) > time + REST);
}

#[test]
fn a_device_that_slows_down_is_noticed_within_seconds_and_less_is_sold() {
    for depth in [1, 8, 64] {
        let (drift, changes) = run(disk(), depth, 16 * KIB, 40, |second, disk| {
            disk.percent = if second < 10 { 100 } else { 130 };
        });
        let (first, change) = changes[0];
        assert!((11..=16).contains(&first), "{changes:?}");
        assert_eq!(change.before_ppm, 1_000_000);
        assert_eq!(drift.sold_ppm(), 750_000, "{changes:?}");
        assert!(changes.len() <= 3, "{changes:?}");
        let costs = Costs { read: LinearCost::ZERO, write: LinearCost::ZERO };
        let floor = DeviceFloor { time_ns_per_second: 8 * NS_PER_S, costs };
        assert_eq!(drift.floor(&floor).time_ns_per_second, 6 * NS_PER_S);
    }
}

#[test]
fn recovered_speed_is_sold_again_only_after_it_has_lasted() {
    let (drift, changes) = run(disk(), 16, 16 * KIB, 120, |second, disk| {
        disk.percent = if (10..50).contains(&second) { 200 } else { 100 };
    });
    assert_eq!(drift.sold_ppm(), 1_000_000);
    let lowest = changes.iter().map(|(_, change)| change.sold_ppm).min().unwrap();
    assert_eq!(lowest, 500_000);
    let (last, change) = changes.last().unwrap();
    assert!((80..=95).contains(last), "{changes:?}");
    assert!(change.before_ppm < change.sold_ppm);
}

#[test]
fn a_broken_device_still_sells_something() {
    let (drift, _) = run(disk(), 8, 16 * KIB, 60, |_, disk| disk.percent = 100_000);
    assert_eq!(drift.sold_ppm(), SOLD_MIN_PPM.max(1_000_000 / 8 / 50_000 * 50_000));
}

/// A short stall at times is not a slow device, even with few requests in flight.
#[test]
fn stalls_are_no_drift() {
    for depth in [1, 8, 64] {
        let (_, changes) = run(disk(), depth, 16 * KIB, 60, |second, disk| {
            if second % 10 == 5 {
                disk.stalled_until = second * NS_PER_S + NS_PER_S / 10;
            }
        });
        assert_eq!(changes, [], "depth {depth}");
    }
}

/// A few requests prove nothing, however slow they are.
#[test]
fn drift_needs_more_than_a_few_requests() {
    let mut drift = Drift::new(Instant::ZERO);
    for second in 1..200 {
        let change =
            drift.completed(Instant::from_ns(second * NS_PER_S), 1_000, Duration::from_ms(5));
        assert_eq!(change, None);
    }
    assert_eq!(drift.ratio_ppm(), 1_000_000);
}

#[test]
fn drift_is_described_in_words() {
    let change = DriftChange {
        ratio_ppm: 1_318_000,
        before_ppm: 1_000_000,
        sold_ppm: 750_000,
        has_rested: false,
    };
    assert_eq!(
        change.to_string(),
        "the device takes 1.32 times as long as at its calibration: 75 % of what was measured then \
         may be sold, 100 % until now; look after the device, or calibrate it anew"
    );
    let change = DriftChange {
        ratio_ppm: 1_000_000,
        before_ppm: 750_000,
        sold_ppm: 1_000_000,
        has_rested: false,
    };
    assert!(
        change.to_string().ends_with("100 % of what was measured then may be sold, 75 % until now")
    );
}
