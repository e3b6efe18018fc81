//! Records are read as they were written, and not otherwise; their words are golden.

use super::record::{Cost, Found, InState, Method, Point, Record, StateName};
use super::*;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::admission::calibration::{CurvePoint, Measurements, MixedPart, Rate};
use evenkeel_core::qos::admission::{DomainFloor, Ledger, Reservation};
use evenkeel_core::time::Duration;
use evenkeel_sim::text::thousands;
use evenkeel_store::layout::Layout;
use evenkeel_wire::agent::Capacity;

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
    let mut better = good.clone();
    better.found.read = Cost { base_ns: 1, byte_ps: 0 };
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
            evenkeel_sim::text::thousands(full.found.mixed_iops),
            evenkeel_sim::text::thousands(full.found.mixed_iops * 8 / 10),
        )
    );
    assert_eq!(full.reservations(), Vec::<String>::new());
    assert_eq!(record(&Plan::QUICK).reservations().len(), 1);
    let mut never = full;
    never.found.p99_target_ns = None;
    assert!(never.words(8).contains("IOPS at a p99 above 1 s; sells"), "{}", never.words(8));
}

#[test]
fn a_record_of_another_store_or_device_does_not_count() {
    let full = record(&Plan::FULL);
    let local = "local".parse().unwrap();
    let memory = "memory".parse().unwrap();
    assert_eq!(full.misfit(&local, &full.device), None);
    assert_eq!(
        full.misfit(&memory, &full.device).unwrap(),
        "it is of the store \"local\", this is \"memory\""
    );
    let other = Identity { filesystem: "ext4".to_owned(), ..Identity::default() };
    assert_eq!(full.misfit(&local, &other).unwrap(), "it was made on xfs, this is ext4");
}

/// The pool of a record, of this many devices.
fn pool(devices: u32) -> Identity {
    let layout = Layout {
        cluster: "c".to_owned(),
        pool: "volumes".to_owned(),
        rule: "apart".to_owned(),
        domain: "host".to_owned(),
        copies: 3,
        copies_min: 2,
        devices,
        recovery: None,
    };
    Identity { filesystem: "Ceph".to_owned(), layout: Some(layout), ..Identity::default() }
}

/// The pool as measured in a state in which only this part of the requests end.
fn state(state: StateName, percent: u64, date: &str) -> InState {
    let mut measured = measurements();
    for rate in measured.reads.iter_mut().chain(&mut measured.writes).chain(&mut measured.depths) {
        rate.requests = rate.requests * percent / 100;
    }
    for part in &mut measured.lasting {
        (part.reads, part.writes) = (part.reads * percent / 100, part.writes * percent / 100);
    }
    InState {
        state,
        lost: None,
        date: date.to_owned(),
        method: Method::of(&Plan::FULL, "auto"),
        found: Found::of(&measured).unwrap(),
    }
}

fn pool_record() -> Record {
    let store: StoreKind = "rbd".parse().unwrap();
    let method = Method::of(&Plan::FULL, "auto");
    Record::new(&measurements(), &store, pool(12), method, 1_800_000_000).unwrap()
}

/// Ids of records that were written before there were states must stay what they are: the fields
/// are written in the order of the first version, and those that came later only if they are used.
#[test]
fn a_device_s_record_has_the_form_of_the_first_version() {
    let text = serde_json::to_string(&record(&Plan::FULL)).unwrap();
    let keys: Vec<&str> =
        text.split('"').filter(|part| text.contains(&format!("\"{part}\":"))).collect();
    assert_eq!(
        keys[..24].join(" "),
        "schema id date version store device filesystem device model serial bytes method plan io \
         time_ns span_bytes channels read base_ns byte_ps write base_ns byte_ps cost_off_ppm",
        "{text}"
    );
    assert!(!text.contains("states") && !text.contains("pool"), "{text}");
}

#[test]
fn what_a_pool_sells_is_there_in_every_state_it_was_measured_in() {
    let mut record = pool_record();
    let mixed = record.found.mixed_iops;
    let sold = |record: &Record| {
        let Capacity::Measured(measured) = record.capacity(64) else { unreachable!() };
        let ledger = |floor, share| Ledger::new(floor, DomainFloor::UNLIMITED, share);
        let most = |ledger: Ledger| {
            u64::from(ledger.per_second_max(VolumeId::from_bits(0), &Reservation::of_iops(0)))
        };
        let strained = measured.strained.iter().map(|(_, floor)| ledger(*floor, 950_000));
        let rows = strained.chain([ledger(measured.device, 800_000)]);
        (rows.map(most).min().unwrap(), most(ledger(record.sold_floor(), 800_000)))
    };
    let about = |(rows, one): (u64, u64), expected: u64| {
        assert!(rows.abs_diff(expected) <= expected / 200, "{rows}, {expected}");
        assert!(one.abs_diff(rows) <= 2, "one row says {one}, all of them {rows}");
    };
    about(sold(&record), mixed * 80 / 100);
    assert!(record.reservations()[0].contains("--as degraded"), "{:?}", record.reservations());
    let bare = record.id.clone();
    record.add(state(StateName::Recovering, 70, "2027-01-15T09:00:00.000Z"));
    about(sold(&record), mixed * 665 / 1_000);
    record.add(state(StateName::Degraded, 50, "2027-01-15T08:30:00.000Z"));
    about(sold(&record), mixed * 475 / 1_000);
    assert!(record.words(64).ends_with(&thousands(sold(&record).1)), "{}", record.words(64));
    assert_eq!(record.reservations(), Vec::<String>::new());
    assert_eq!(record.newest(), "2027-01-15T09:00:00.000Z");
    // One state that takes the place of an earlier measurement of it.
    record.add(state(StateName::Degraded, 60, "2027-01-16T08:30:00.000Z"));
    about(sold(&record), mixed * 57 / 100);
    assert_eq!(record.newest(), "2027-01-16T08:30:00.000Z");
    let names: Vec<StateName> = record.states.iter().map(|state| state.state).collect();
    assert_eq!(names, [StateName::Degraded, StateName::Recovering]);
    assert_ne!(record.id, bare);
    // A state in which it is faster sells no more than the base does.
    record.states.clear();
    record.add(state(StateName::Degraded, 200, "2027-01-16T08:30:00.000Z"));
    about(sold(&record), mixed * 80 / 100);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(Record::parse(&text).unwrap(), record, "{text}");
}

#[test]
fn a_pool_s_states_are_kept_as_long_as_it_is_made_of_the_same() {
    let mut earlier = pool_record();
    earlier.add(state(StateName::Degraded, 50, "2027-01-15T08:30:00.000Z"));
    let mut again = pool_record();
    again.keep_states(&earlier);
    assert_eq!(again.states, earlier.states);
    // One OSD more is the same pool, which may do more or less now.
    assert_eq!(earlier.misfit(&"rbd".parse().unwrap(), &pool(13)), None);
    assert_eq!(earlier.changes(&pool(13)), ["the number of OSDs was 12 and is 13"]);
    let mut larger = Record { device: pool(13), ..pool_record() };
    larger.keep_states(&earlier);
    assert_eq!(larger.states, []);
    let mut elsewhere = pool(12);
    elsewhere.layout.as_mut().unwrap().cluster = "d".to_owned();
    assert_eq!(
        earlier.misfit(&"rbd".parse().unwrap(), &elsewhere).unwrap(),
        "it was made on the pool volumes of the Ceph cluster c, 12 OSDs, 3 copies, each in a host \
         of its own, this is the pool volumes of the Ceph cluster d, 12 OSDs, 3 copies, each in a \
         host of its own"
    );
}

#[test]
fn the_curve_is_a_table_too() {
    let points: Vec<Point> = record(&Plan::FULL).found.curve;
    assert_eq!(
        evenkeel_client::output::listing(&points, evenkeel_client::output::Format::Csv, ""),
        "depth,iops,p50_us,p99_us\n1,5000,105,210\n16,41000,450,900\n"
    );
}
