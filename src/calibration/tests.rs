//! Records are read as they were written, and not otherwise; their words are golden.

use super::record::{Cost, Method, Point, Record};
use super::*;
use evenkeel_core::qos::admission::calibration::{CurvePoint, Measurements, MixedPart, Rate};
use evenkeel_core::time::Duration;

fn rate(length: u32, per_second: u64) -> Rate {
    let elapsed = Duration::from_secs(1);
    let cpu = Duration::from_us(2 * per_second);
    Rate { length, depth: 16, requests: per_second, elapsed, cpu }
}

fn measurements() -> Measurements {
    let of = |count: u64| MixedPart { reads: 0, writes: count, elapsed: Duration::from_secs(1) };
    let rates = vec![rate(4 << 10, 50_000), rate(16 << 10, 41_000), rate(256 << 10, 8_000)];
    let point = |depth, per_second, p99_us| CurvePoint {
        depth,
        per_second,
        p50: Duration::from_us(p99_us / 2),
        p99: Duration::from_us(p99_us),
    };
    Measurements {
        alone: Duration::from_us(195),
        depths: vec![rate(16 << 10, 41_000)],
        reads: rates.clone(),
        settling: vec![of(8_100), of(8_000)],
        writes: rates,
        curve: vec![point(1, 5_000, 210), point(16, 41_000, 900)],
        lasting: vec![MixedPart { reads: 20_500, writes: 20_500, elapsed: Duration::from_secs(1) }],
    }
}

fn record(plan: &Plan) -> Record {
    let device = Identity { filesystem: "xfs".to_owned(), ..Identity::default() };
    let store: StoreKind = "local".parse().unwrap();
    Record::new(&measurements(), &store, device, Method::of(plan, "auto"), 1_800_000_000).unwrap()
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    assert_eq!(Record::load(&path).unwrap(), None);
    let written = record(&Plan::FULL);
    written.save(&path).unwrap();
    written.save(&path).unwrap();
    let read = Record::load(&path).unwrap().unwrap();
    assert_eq!(read, written);
    assert_eq!(
        read.calibration(),
        evenkeel_core::qos::admission::calibration::Calibration::of(&measurements()).unwrap()
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "a draft is left");
    assert_eq!(written.date, "2027-01-15T08:00:00.000Z");
}

#[test]
fn a_record_that_is_not_what_was_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE);
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let failure = Record::load(&path).unwrap_err();
        assert!(failure.hint.as_deref().unwrap().contains("evenkeel calibrate"));
        failure.message.replace(&format!("{}: ", path.display()), "")
    };
    let good = record(&Plan::FULL);
    let text = |record: &Record| serde_json::to_string(record).unwrap();
    assert!(refused("").starts_with("not a calibration record: "));
    assert_eq!(refused("{}"), "not a calibration record: it has no schema");
    let newer = text(&Record { schema: "evenkeel.calibration/2".to_owned(), ..good.clone() });
    assert_eq!(
        refused(&newer),
        "a record of the form evenkeel.calibration/2; evenkeel.calibration/1 is read"
    );
    let better = Record { read: Cost { base_ns: 1, byte_ps: 0 }, ..good.clone() };
    assert_eq!(
        refused(&text(&better)),
        format!("changed since it was written: {} is not its id", good.id)
    );
    assert!(refused(&text(&good).replace("\"channels\"", "\"x\"")).contains("channels"));
}

#[test]
fn a_record_says_in_words_what_may_be_sold() {
    let full = record(&Plan::FULL);
    assert_eq!(
        full.words(8),
        format!(
            "{} mixed 16 KiB IOPS at p99 <= 1 ms; sells up to {}",
            evenkeel_sim::text::thousands(full.mixed_iops),
            evenkeel_sim::text::thousands(full.mixed_iops * 8 / 10),
        )
    );
    assert_eq!(full.reservations(), [""; 0]);
    assert_eq!(record(&Plan::QUICK).reservations().len(), 1);
    let never = Record { p99_target_ns: None, ..full };
    assert!(never.words(8).contains("IOPS at a p99 above 1 s; sells"), "{}", never.words(8));
}

#[test]
fn a_record_of_another_store_or_device_does_not_count() {
    let full = record(&Plan::FULL);
    let (local, memory) = ("local".parse().unwrap(), "memory".parse().unwrap());
    assert_eq!(full.misfit(&local, &full.device), None);
    assert_eq!(
        full.misfit(&memory, &full.device).unwrap(),
        "it is of the store \"local\", this is \"memory\""
    );
    let other = Identity { filesystem: "ext4".to_owned(), ..Identity::default() };
    assert_eq!(full.misfit(&local, &other).unwrap(), "it was made on xfs, this is ext4");
}

#[test]
fn the_curve_is_a_table_too() {
    let points: Vec<Point> = record(&Plan::FULL).curve;
    assert_eq!(
        crate::message::listing(&points, crate::message::Format::Csv, ""),
        "depth,iops,p50_us,p99_us\n1,5000,105,210\n16,41000,450,900\n"
    );
}
