//! Measuring ends well, ends early, and leaves nothing behind. What is found on a device that is
//! known is tested in virtual time, in core; here only what no busy machine can spoil.

use super::*;
use evenkeel_core::qos::admission::calibration::Calibration;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::faulty::setup::Setup;
use evenkeel_store::local::pool::LocalPool;
use evenkeel_store::memory::MemoryPool;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SHORT: Plan = Plan { time: Duration::from_ms(300), span: ByteCount(16 << 20) };

static NEVER: AtomicBool = AtomicBool::new(false);

fn behind(device: &str) -> FaultyPool {
    let setup: Setup = device.parse().unwrap();
    FaultyPool::new(Arc::new(MemoryPool::new()), &setup)
}

fn is_empty(pool: &dyn Pool) -> bool {
    pool.list().unwrap().is_empty()
}

#[test]
fn every_store_is_measured_by_every_driver_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalPool::in_folder(folder.path(), None).unwrap();
    let faulty = behind("channels=4,read_us=200");
    let pools: [&dyn Pool; 3] = [&MemoryPool::new(), &local, &faulty];
    for pool in pools {
        for io in [IoMode::Auto, IoMode::Pread] {
            let measured = measure(pool, io, &SHORT, &NEVER, &mut |_| {}).unwrap();
            let found = Calibration::of(&measured).unwrap();
            assert!(found.sells_up_to(1, 800_000) > 0, "{found:?}");
            assert_eq!((measured.reads.len(), measured.writes.len()), (4, 4));
            assert!(measured.curve.len() > 1 && !measured.lasting.is_empty());
            assert!(is_empty(pool), "{}", pool.describe());
        }
    }
}

/// Whatever the machine does meanwhile, what a device of such times takes alone is no less than
/// that; and a pause makes no more of it than what was in flight, which the bound has room for.
#[test]
fn a_device_is_not_found_much_faster_than_it_is() {
    let pool = behind("channels=4,read_us=1000,write_us=2000");
    let plan = Plan { time: Duration::from_ms(1_000), ..SHORT };
    let measured = measure(&pool, IoMode::Auto, &plan, &NEVER, &mut |_| {}).unwrap();
    assert!(measured.alone >= Duration::from_ms(1), "{measured:?}");
    let found = Calibration::of(&measured).unwrap();
    let per_second = |ns: u128| f64::from(found.channels) * 1e9 / ns as f64;
    for length in LENGTHS {
        assert!(per_second(found.costs.read.ns(length)) < 3.0 * 4_000.0, "{found:?}");
        assert!(per_second(found.costs.write.ns(length)) < 3.0 * 2_000.0, "{found:?}");
    }
    assert!(found.mixed_per_second() < 3 * 2_667, "{found:?}");
}

#[test]
fn calibration_stops_on_request_and_cleans_up() {
    let pool = behind("channels=2,read_us=500");
    let stop = AtomicBool::new(false);
    let mut steps = Vec::new();
    let result = measure(&pool, IoMode::Auto, &Plan::FULL, &stop, &mut |what: &str| {
        steps.push(what.to_owned());
        stop.store(steps.len() == 2, Ordering::Relaxed);
    });
    assert!(matches!(result, Err(CalibrateError::Stopped)), "{result:?}");
    assert_eq!(steps.len(), 2, "it went on: {steps:?}");
    assert!(is_empty(&pool));
}

#[test]
fn calibration_of_a_failing_device_returns_its_error() {
    let pool = behind("channels=2,read_us=10,fail_percent=5");
    let error = measure(&pool, IoMode::Pread, &SHORT, &NEVER, &mut |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a write of 256 KiB failed while measuring: the device reports an error; see the kernel's \
         log"
    );
    assert!(is_empty(&pool));
}

#[test]
fn leftovers_of_an_earlier_calibration_are_cleaned_up() {
    let pool = MemoryPool::new();
    assert!(!clean(&pool).unwrap());
    pool.create(VOLUME, ByteCount(12 << 20)).unwrap();
    assert!(clean(&pool).unwrap());
    pool.create(VOLUME, ByteCount(12 << 20)).unwrap();
    measure(&pool, IoMode::Auto, &SHORT, &NEVER, &mut |_| {}).unwrap();
    assert!(is_empty(&pool));
}
