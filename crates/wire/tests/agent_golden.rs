//! Agent messages byte for byte: one of each kind and of each variant in it, as `agent_golden.txt`
//! has them. Bytes of a released version never change; a change of fields is a new version.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

use std::collections::BTreeSet;
use std::fmt::Write;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::{Latencies, Stage};
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::admission::{
    Costs, DeviceFloor, DomainFloor, LinearCost, Reserved, Strain,
};
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, CountingRule, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::qos::sharing::{
    DeviceModel, InstanceCounters, InstancePacing, OperationCost, Window,
};
use evenkeel_core::time::Duration;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Answered, Attachment, BackgroundReport, Bytes, Capacity, Command, CreditReport, Failed,
    FailedKind, HEAD_BYTES, HostAddress, HostReport, HostState, IoErrors, Measured, NewSnapshot,
    Problem, Reply, Report, Space, StoreHealth, StoredSnapshot, StoredVolume, Units, UnitsWanted,
    Verified, VolumeReport, VolumeState, frame_bytes,
};

const GOLDEN: &str = include_str!("agent_golden.txt");

const VOLUME: VolumeId = VolumeId::from_bits(0x0_1234_5678_9abc_def0);
const HOST: InstanceId = InstanceId::from_bits(0xf_0000_0000_0000_0001);
const SNAPSHOT: SnapshotId = SnapshotId::from_bits(0xa_0000_0000_0000_0002);
const WANTED: UnitsWanted = UnitsWanted { id: SNAPSHOT, older: None, first: 7, max: 100 };
const BALANCES: Balances = Balances { operations: Some(5_400_000), bytes: None };
const UNLEASED: Balances = Balances { operations: Some(5_372_850), bytes: Some(1) };
const EXCEEDED: Exceeded = Exceeded {
    operations_ns: 1,
    bytes_ns: 2,
    guard_ns: 3,
    instance_operations_ns: 4,
    instance_bytes_ns: 5,
    device_ns: 6,
};
const READ: LinearCost = LinearCost { base: Duration::from_us(80), byte_ps: 4_000 };
const WRITE: LinearCost = LinearCost { base: Duration::from_us(100), byte_ps: 5_000 };

const STORED: StoredVolume =
    StoredVolume { id: VOLUME, size: ByteCount(1 << 30), is_encrypted: true };
const NEW: NewSnapshot =
    NewSnapshot { id: SNAPSHOT, size: ByteCount(100 << 30), parent: None, is_encrypted: true };

fn volume() -> VolumeState {
    let credit = Some(CreditLimit { refill_per_second: 300, capacity: 5_400_000 });
    let at = |address| Attachment { host: HOST, address };
    VolumeState {
        id: VOLUME,
        size: ByteCount(100 << 30),
        pacing: Pacing {
            counting: CountingRule {
                unit_bytes: 256 << 10,
                merge_bytes_min: 32 << 10,
                charge_whole_units: true,
            },
            tolerance: Duration::from_ms(50),
            operations: Some(Limit { per_second: 3_000, credit }),
            bytes: Some(Limit { per_second: 128 << 20, credit: None }),
        },
        balances: BALANCES,
        unleased: UNLEASED,
        reserved: Reserved { operations_per_second: 300, bytes_per_second: 300 << 14 },
        attachments: vec![
            at(HostAddress::Local),
            at(HostAddress::Remote([10, 0, 0, 1].into())),
            at(HostAddress::Remote("fd00::1".parse().unwrap())),
        ],
        is_encrypted: true,
    }
}

fn host() -> HostState {
    HostState {
        id: HOST,
        pacing: InstancePacing {
            tolerance: Duration::from_ms(50),
            operations: Some(Limit { per_second: 18_750, credit: None }),
            bytes: None,
            read_bytes_per_second: Some(1 << 30),
            write_bytes_per_second: None,
        },
        balances: Balances::default(),
        unleased: Balances::default(),
    }
}

fn device(window: Window) -> DeviceModel {
    let cost = |LinearCost { base, byte_ps }| OperationCost { base, byte_ps };
    DeviceModel { channels: 8, read: cost(READ), write: cost(WRITE), window }
}

fn credits() -> CreditReport {
    CreditReport { volumes: vec![(VOLUME, BALANCES)], hosts: vec![(HOST, UNLEASED)] }
}

fn report() -> Report {
    Report {
        volumes: vec![VolumeReport {
            id: VOLUME,
            balances: BALANCES,
            connections: 1,
            queued: 2,
            in_store: 1,
            operations: 3,
            bytes_read: 4,
            bytes_written: 5,
            flushes: 6,
            answered: Answered { reads: 11, writes: 12, read_ns: 13, write_ns: 14 },
            exceeded: EXCEEDED,
            errors: IoErrors {
                device: 7,
                no_space: 8,
                rotten: 9,
                is_rotten: false,
                flush_failed: true,
            },
            contract: Contract { seconds: 10, missed: 9 },
        }],
        hosts: vec![HostReport {
            id: HOST,
            balances: UNLEASED,
            counters: InstanceCounters { operations: 1, bytes: 2, exceeded: EXCEEDED, waiting: 3 },
        }],
    }
}

fn latencies() -> Vec<(VolumeId, Box<Latencies>)> {
    let mut latencies = Latencies::default();
    latencies.reads.total.record(Duration::from_us(150));
    latencies.reads.total.record(Duration::from_secs(100));
    latencies.reads.device.record_many(Duration::ZERO, 3);
    latencies.writes.waits.record(Duration::from_us(2));
    for (stage, us) in Stage::ALL.into_iter().zip(1..) {
        latencies.writes.spend(stage, Duration::from_us(us));
    }
    vec![(VOLUME, Box::new(latencies))]
}

fn measured() -> Measured {
    let costs = Costs { read: READ, write: WRITE };
    Measured {
        calibration: "cal-1".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: 8_000_000_000, costs },
        domain: DomainFloor {
            network_in_bytes_per_second: Some(1),
            network_out_bytes_per_second: None,
            cpu_ns_per_second: Some(2_000_000_000),
            cpu_costs: Costs { read: WRITE, write: READ },
        },
        nodes: vec![DomainFloor { cpu_ns_per_second: Some(1), ..DomainFloor::UNLIMITED }],
        strained: [(Strain::Degraded, 5), (Strain::Recovering, 4)]
            .map(|(strain, time_ns_per_second)| (strain, DeviceFloor { time_ns_per_second, costs }))
            .to_vec(),
        left_ppm: 750_000,
    }
}

fn snapshots() -> Vec<StoredSnapshot> {
    let pending = StoredSnapshot {
        id: SNAPSHOT,
        volume: Some(VOLUME),
        size: ByteCount(100 << 30),
        data: ByteCount(0),
        is_complete: false,
        is_encrypted: false,
    };
    let is_complete = true;
    let is_encrypted = true;
    let data = ByteCount(1);
    vec![pending, StoredSnapshot { volume: None, data, is_complete, is_encrypted, ..pending }]
}

const HEALTH: StoreHealth = StoreHealth {
    copies_mended: 1,
    volumes_salvaged: 2,
    unfinished: 3,
    without_space: 4,
    damaged_sectors: 5,
};

fn background() -> BackgroundReport {
    BackgroundReport {
        bytes_per_second: ByteCount(256 << 20),
        waiting: 1,
        verified: ByteCount(2),
        read: ByteCount(3),
        filled: ByteCount(4),
    }
}

const PART: NodePart = NodePart {
    lasting_ppm: 250_000,
    lent_ppm: 500_000,
    lent_for: Duration::from_ms(500),
    in_flight: 7,
    window_slots: Some(34),
};

const USE: NodeUse = NodeUse {
    capacity_ns: 32_000_000_000,
    reserved_ns: 8_000_000_000,
    in_flight: 9,
    window_slots: 34,
    has_waited: true,
};

fn verified() -> Verified {
    Verified { next: Some(8_192), bytes: ByteCount(4_096), rotten: vec![4_096] }
}

fn commands() -> Vec<(&'static str, Command)> {
    vec![
        ("create", Command::Create(volume())),
        ("apply", Command::Apply(VolumeState { attachments: vec![], ..volume() })),
        ("grow", Command::Grow(volume(), ByteCount(50 << 30))),
        ("delete", Command::Delete(VOLUME)),
        ("release", Command::Release(VOLUME)),
        ("apply host", Command::ApplyHost(host())),
        ("delete host", Command::DeleteHost(HOST)),
        ("calibrated, slots", Command::Calibrated(device(Window::Slots(10)))),
        (
            "calibrated, adaptive",
            Command::Calibrated(device(Window::Adaptive { small_p99: Duration::from_ms(2) })),
        ),
        ("set balances", Command::SetBalances(VOLUME, BALANCES)),
        ("lease", Command::Lease(credits())),
        ("report", Command::Report),
        ("balances", Command::Balances),
        ("latencies of all", Command::Latencies(None)),
        ("latencies of one", Command::Latencies(Some(VOLUME))),
        ("salvage", Command::Salvage(VOLUME)),
        ("stored", Command::Stored),
        ("space", Command::Space),
        ("capacity", Command::Capacity),
        (
            "create from a snapshot",
            Command::CreateFrom(VolumeState { attachments: vec![], ..volume() }, SNAPSHOT),
        ),
        ("snapshot", Command::Snapshot(VOLUME, SNAPSHOT)),
        ("delete snapshot", Command::DeleteSnapshot(SNAPSHOT)),
        ("snapshots", Command::Snapshots),
        ("snapshot set", Command::SnapshotSet(vec![(VOLUME, SNAPSHOT)])),
        ("units", Command::SnapshotUnits(WANTED)),
        ("changed units", Command::SnapshotUnits(UnitsWanted { older: Some(SNAPSHOT), ..WANTED })),
        ("read", Command::ReadSnapshot(SNAPSHOT, 7)),
        ("start", Command::StartSnapshot(NEW)),
        ("start of another", Command::StartSnapshot(NewSnapshot { parent: Some(SNAPSHOT), ..NEW })),
        ("put", Command::PutSnapshot(SNAPSHOT, 7, Bytes(vec![1, 2, 3]))),
        ("complete", Command::CompleteSnapshot(SNAPSHOT)),
        ("background limit", Command::SetBackground(ByteCount(256 << 20))),
        ("background", Command::Background),
        ("verify", Command::Verify(VOLUME, 4_096)),
        ("verify a snapshot", Command::VerifySnapshot(SNAPSHOT, 7)),
        ("verify the store", Command::VerifyStore(9)),
        ("filled", Command::Filled(vec![VOLUME])),
        ("snapshots of a list", Command::SnapshotsOf(vec![SNAPSHOT])),
        ("report of a list", Command::ReportOf(vec![VOLUME])),
        ("a part", Command::Divide(Some(PART))),
        ("no other part", Command::Divide(None)),
        ("health of the store", Command::StoreHealth),
    ]
}

fn replies() -> Vec<(&'static str, Reply)> {
    use FailedKind::{
        Damaged, Down, Internal, NoSpace, NotFound, Refused, Unanswered, Unsupported,
    };
    let failed = |name, kind| {
        let message = format!("{name}\u{2026}");
        (name, Reply::Failed(Failed { kind, message }))
    };
    let space = Space { total: ByteCount(1 << 40), free: ByteCount(1 << 39) };
    vec![
        ("done", Reply::Done),
        ("a report", Reply::Report(report())),
        ("some balances", Reply::Balances(credits())),
        ("some latencies", Reply::Latencies(latencies())),
        ("what is stored", Reply::Stored(vec![STORED])),
        ("unknown space", Reply::Space(None)),
        ("known space", Reply::Space(Some(space))),
        ("unknown capacity", Reply::Capacity(Capacity::Unknown)),
        ("measured capacity", Reply::Capacity(Capacity::Measured(Box::new(measured())))),
        failed("no space", NoSpace),
        failed("not found", NotFound),
        failed("damaged", Damaged),
        failed("refused", Refused),
        failed("internal", Internal),
        failed("unanswered", Unanswered),
        failed("down", Down),
        failed("unsupported", Unsupported),
        ("the snapshots", Reply::Snapshots(snapshots())),
        ("the units", Reply::Units(Units { units: vec![0, 7], next: Some(8) })),
        ("the last units", Reply::Units(Units::default())),
        ("a unit", Reply::Unit(Some(Bytes(vec![1, 2, 3])))),
        ("a hole", Reply::Unit(None)),
        ("the background", Reply::Background(background())),
        ("the verified", Reply::Verified(verified())),
        ("the filled", Reply::Filled(vec![(VOLUME, ByteCount(7 << 20))])),
        ("the use", Reply::Use(USE)),
        ("the health of the store", Reply::StoreHealth(HEALTH)),
    ]
}

/// `name: bytes`, thirty-two bytes a line.
fn text(name: &str, frame: &[u8]) -> String {
    let mut text = format!("{name}:\n");
    for line in frame.chunks(32) {
        let _ = line.iter().fold(text.write_str("   "), |_, byte| write!(text, " {byte:02x}"));
        text.push('\n');
    }
    text
}

/// The file has every message, in this order, and nothing else.
#[test]
fn messages_have_the_golden_bytes() {
    let mut all = String::new();
    for (name, command) in commands() {
        let frame = command.encode().unwrap();
        assert_eq!(Command::decode(&frame).as_ref(), Ok(&command), "{name}");
        all += &text(name, &frame);
    }
    for (name, reply) in replies() {
        let frame = reply.encode().unwrap();
        assert_eq!(Reply::decode(&frame).as_ref(), Ok(&reply), "{name}");
        all += &text(name, &frame);
    }
    let is_comment = |line: &&str| line.starts_with('#') || line.is_empty();
    let golden: Vec<&str> = GOLDEN.lines().filter(|line| !is_comment(line)).collect();
    let differs = all.lines().zip(&golden).find(|(ours, golden)| ours != *golden);
    assert!(differs.is_none() && all.lines().count() == golden.len(), "{differs:?} in\n{all}");
}

/// Every kind that is understood is in the file.
#[test]
fn no_kind_is_left_out() {
    let kinds: BTreeSet<u8> = commands()
        .iter()
        .map(|(_, command)| command.encode().unwrap()[6])
        .chain(replies().iter().map(|(_, reply)| reply.encode().unwrap()[6]))
        .collect();
    for kind in 0..=u8::MAX {
        let mut frame = Command::Report.encode().unwrap();
        frame[6] = kind;
        let unknown = Problem::UnknownKind(kind);
        let is_unknown = |problem: Option<Problem>| problem == Some(unknown);
        let known = !is_unknown(Command::decode(&frame).err().map(|e| e.problem))
            || !is_unknown(Reply::decode(&frame).err().map(|e| e.problem));
        assert_eq!(known, kinds.contains(&kind), "kind {kind:#04x}");
    }
}

#[test]
fn decode_error_names_field_and_offset() {
    let frame = |command: &Command| command.encode().unwrap();
    let change = |command: &Command, at: usize, byte: u8| {
        let mut frame = frame(command);
        frame[at] = byte;
        Command::decode(&frame).unwrap_err().to_string()
    };
    let delete = Command::Delete(VOLUME);
    let create = Command::Create(volume());
    let long = [frame(&delete), vec![0]].concat();
    for (error, words) in [
        (change(&delete, 0, b'X'), "field magic at byte 0: these bytes are no agent message"),
        (
            change(&delete, 5, 2),
            "field version at byte 4: version 2 is unknown, 1 is spoken here; update one side",
        ),
        (change(&delete, 6, 0x7f), "field kind at byte 6: kind 127 is unknown"),
        (change(&delete, 7, 1), "field reserved at byte 7: the value is out of range"),
        (
            change(&delete, 8, 0x7f),
            "field length at byte 8: 2130706448 bytes are too long, the limit is 67108864",
        ),
        (change(&delete, 11, 17), "field body at byte 12: 17 bytes are needed, 16 are left"),
        (change(&delete, 11, 15), "field body at byte 12: 1 bytes follow the end"),
        (change(&delete, 6, 0x0a), "field body at byte 12: 16 bytes follow the end"),
        (change(&delete, 12, 1), "field volume at byte 12: the value is out of range"),
        (change(&delete, 6, 0x01), "field volume.size at byte 28: 8 bytes are needed, 0 are left"),
        (
            Command::decode(&long).unwrap_err().to_string(),
            "field body at byte 12: 1 bytes follow \
         the end",
        ),
        (
            Command::decode(b"EVKA\0").unwrap_err().to_string(),
            "field version at byte 4: 2 bytes \
         are needed, 1 are left",
        ),
        (
            change(&create, 44, 2),
            "field volume.pacing.counting.charge_whole_units at byte 44: the value is out of range",
        ),
        (
            change(&create, 149, 5),
            "field volume.attachments[0].address at byte 149: kind 5 is unknown",
        ),
    ] {
        assert_eq!(error, words);
    }
    let text = Reply::Failed(Failed { kind: FailedKind::Down, message: "down".into() });
    let mut frame = text.encode().unwrap();
    frame[18] = 0xff;
    let error = Reply::decode(&frame).unwrap_err().to_string();
    assert_eq!(error, "field failed.message at byte 17: the text is not UTF-8");
}

#[test]
fn a_histogram_has_one_form() {
    let frame = Reply::Latencies(latencies()).encode().unwrap();
    // The first histogram: its sum at 32, two buckets from 41 and 50 on, a place and a count each.
    let error = |changes: &[(usize, u8)]| {
        let mut frame = frame.clone();
        changes.iter().for_each(|(at, byte)| frame[*at] = *byte);
        let error = Reply::decode(&frame).unwrap_err();
        (error.field, error.offset, error.problem)
    };
    let bucket = |offset| {
        let field = "latencies[0].value.reads.total.bucket".into();
        (field, offset, Problem::OutOfRange)
    };
    assert_eq!(error(&[(50, frame[41])]), bucket(50), "twice the same place");
    assert_eq!(error(&[(50, 210)]), bucket(50), "a bucket that there is not");
    assert_eq!(error(&[(49, 0)]), bucket(41), "an empty bucket");
}

#[test]
fn a_stream_is_read_up_to_the_end_of_a_frame() {
    for (name, command) in commands() {
        let frame = command.encode().unwrap();
        let head: &[u8; HEAD_BYTES] = frame.first_chunk().unwrap();
        assert_eq!(frame_bytes(head), Ok(frame.len()), "{name}");
    }
    let mut head = *Command::Report.encode().unwrap().first_chunk().unwrap();
    head[8] = 0xff;
    assert_eq!(frame_bytes(&head).unwrap_err().field, "length");
}

/// As many volumes as a control plane carries, and more latencies than fit.
#[test]
fn report_of_all_volumes_fits_and_an_oversized_reply_is_refused() {
    const VOLUMES: usize = 131_072;
    let report = report().volumes.remove(0);
    let full = Balances { operations: Some(1), bytes: Some(1) };
    let volumes = vec![VolumeReport { balances: full, ..report }; VOLUMES];
    let bytes = Reply::Report(Report { volumes, hosts: vec![] }).encode().unwrap().len();
    assert!(bytes < 28 << 20, "{bytes}");
    let mut crowded = Latencies::default();
    for latency in [&mut crowded.reads, &mut crowded.writes] {
        for histogram in [&mut latency.total, &mut latency.device, &mut latency.waits] {
            (0..210).for_each(|place| assert!(histogram.fill(place, 1)));
        }
    }
    let all = vec![(VOLUME, Box::new(crowded)); 6_000];
    let error = Reply::Latencies(all).encode().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "the agent message has {} bytes, the limit is 67108864; ask for less at once",
            error.length
        )
    );
}
