//! Golden bytes: a change of any of them is a new version of the form. Those of earlier versions
//! are read.

use super::*;

/// The bytes of [`events`] in version 6, one event a line.
const GOLDEN_6: &str = include_str!("golden_6.txt");
/// The bytes of [`events_5`] in version 5.
const GOLDEN_5: &str = include_str!("golden_5.txt");
/// The bytes of [`events_4`] in version 4.
const GOLDEN_4: &str = include_str!("golden_4.txt");
/// The bytes of [`events_3`] in version 3.
const GOLDEN_3: &str = include_str!("golden_3.txt");
/// The bytes of [`events_2`] in version 2.
const GOLDEN_2: &str = include_str!("golden_2.txt");
/// The bytes of [`events_1`] in version 1.
const GOLDEN_1: &str = include_str!("golden_1.txt");

/// Every kind of event, and every state of what is in it.
fn events() -> Vec<Event> {
    let (data, ended) = (ByteCount(4_096), UnixMs(16));
    let until = UnixMs(31);
    let tiered = |last| {
        let tiering = Tiering { last, began: UnixMs(30), archived: UnixMs(29) };
        let phase = SnapshotPhase::Completed { data, ended };
        Event::Snapshot(Snapshot { tiering: Some(tiering), ..snapshot(phase) })
    };
    let more = [
        tiered(TierOperation::Archive),
        tiered(TierOperation::TemporaryRestore { until }),
        tiered(TierOperation::PermanentRestore),
        Event::Host(Host { zone: Some("local-1b".into()), ..host(HostAddress::Local) }),
    ];
    events_5().into_iter().chain(more).collect()
}

/// The events of version 5.
fn events_5() -> Vec<Event> {
    let account = |public_access| Event::Account(Account { public_access, ..Account::default() });
    let more = [account(PublicAccess::BlockNewSharing), account(PublicAccess::BlockAllSharing)];
    events_4().into_iter().chain(more).collect()
}

/// The events of version 4.
fn events_4() -> Vec<Event> {
    let id = SnapshotId::from_bits(9);
    let (entered, until) = (UnixMs(20), UnixMs(21));
    let (data, ended) = (ByteCount(4_096), UnixMs(16));
    let mut attached = full();
    attached.attachments[0].delete_on_termination = true;
    let lock = |mode, until| {
        let lock = Lock { mode, created: UnixMs(17), cool_off_hours: 2, days: 30, until };
        Event::Snapshot(Snapshot { lock: Some(lock), ..snapshot(SnapshotPhase::Pending) })
    };
    let local = host(HostAddress::Local);
    let more = [
        Event::Volume(Volume {
            source: Some(VolumeId::from_bits(6)),
            through: Some(id),
            is_encrypted: true,
            is_fast_restored: true,
            auto_enable_io: true,
            ..plain()
        }),
        Event::Volume(Volume { phase: Phase::Binned { entered, until }, ..plain() }),
        Event::Volume(attached),
        Event::Snapshot(Snapshot {
            copy_of: Some(id),
            for_volume: Some(VolumeId::from_bits(6)),
            is_encrypted: true,
            ..snapshot(SnapshotPhase::Copying { data })
        }),
        Event::Snapshot(snapshot(SnapshotPhase::Binned { data, ended, entered, until })),
        lock(LockMode::Governance, None),
        lock(LockMode::Compliance, Some(until)),
        Event::Snapshot(Snapshot {
            shared_with: ["123456789012".to_owned(), "all".to_owned()].into(),
            fast_restore: Some(FastRestore { since: entered, credits: 5, counted: until }),
            ..snapshot(SnapshotPhase::Completed { data, ended })
        }),
        Event::Host(Host { state: HostState::Stopped, ..local.clone() }),
        Event::Host(Host { state: HostState::Terminated { at: UnixMs(22) }, ..local }),
        Event::Account(Account::default()),
        Event::Account(Account { encrypt_by_default: Some(true), ..Account::default() }),
    ];
    events_3().into_iter().chain(more).collect()
}

/// The events of version 3.
fn events_3() -> Vec<Event> {
    let filled = |parent, token| {
        let filled = Filled { parent, timeout_min: 60, token };
        Snapshot { filled: Some(filled), ..snapshot(SnapshotPhase::Filling) }
    };
    let token = ("t".to_owned(), "f00d".to_owned());
    let filled = [
        Event::Snapshot(filled(None, None)),
        Event::Snapshot(filled(Some(SnapshotId::from_bits(9)), Some(token))),
    ];
    events_2().into_iter().chain(filled).collect()
}

/// The events of version 2, in which no snapshot was filled.
fn events_2() -> Vec<Event> {
    let (data, ended) = (ByteCount(4_096), UnixMs(16));
    let of_snapshots = [
        Event::Volume(Volume { snapshot: Some(SnapshotId::from_bits(8)), ..plain() }),
        Event::Snapshot(snapshot(SnapshotPhase::Pending)),
        Event::Snapshot(snapshot(SnapshotPhase::Completed { data, ended })),
        Event::Snapshot(snapshot(SnapshotPhase::Error("it is missing".into()))),
        Event::Snapshot(snapshot(SnapshotPhase::Deleting { data })),
        Event::SnapshotGone(SnapshotId::from_bits(8)),
    ];
    events_1().into_iter().chain(of_snapshots).collect()
}

fn snapshot(phase: SnapshotPhase) -> Snapshot {
    let (id, of) = (SnapshotId::from_bits(8), VolumeId::from_bits(7));
    Snapshot {
        description: "before \"it\"".into(),
        phase,
        tags: [("k".to_owned(), "v".to_owned())].into(),
        ..Snapshot::new(id, of, 100, UnixMs(15))
    }
}

/// The events of version 1, which had no snapshots.
fn events_1() -> Vec<Event> {
    vec![
        Event::Volume(plain()),
        Event::Volume(full()),
        Event::Volume(Volume {
            phase: Phase::Error("its bytes are missing".into()),
            ..modified(ModificationPhase::Optimizing { since: UnixMs(10), until: UnixMs(11) })
        }),
        Event::Volume(Volume {
            phase: Phase::Deleting,
            ..modified(ModificationPhase::Completed { ended: UnixMs(12) })
        }),
        Event::Volume(modified(ModificationPhase::Failed {
            ended: UnixMs(13),
            reason: "no space".into(),
        })),
        Event::VolumeGone(VolumeId::from_bits(7)),
        Event::Host(host(HostAddress::Local)),
        Event::Host(host(HostAddress::Remote([10, 0, 0, 7].into()))),
        Event::HostGone(InstanceId::from_bits(1)),
        Event::Token("t".into(), token()),
        Event::TokenGone("t".into()),
    ]
}

fn spec(volume_type: VolumeType, size_gib: u32, iops: u32) -> VolumeSpec {
    VolumeSpec {
        volume_type,
        size_gib,
        iops: Some(iops),
        throughput_mibps: (volume_type == VolumeType::Gp3).then_some(125),
        multi_attach: volume_type == VolumeType::Io2,
    }
}

fn plain() -> Volume {
    let spec = spec(VolumeType::Gp2, 100, 300);
    Volume::new(VolumeId::from_bits(7), "local-1a", spec, UnixMs(5))
}

fn full() -> Volume {
    let attachment = |host: u128, device: &str, state| Attachment {
        instance: InstanceId::from_bits(host),
        device: device.into(),
        state,
        attached: UnixMs(5 + u64::try_from(host).unwrap()),
        delete_on_termination: false,
    };
    let target = spec(VolumeType::Io2, 20, 500);
    Volume {
        spec: target,
        phase: Phase::Ready,
        attachments: vec![
            attachment(1, "/dev/sdf", AttachmentState::Attached),
            attachment(2, "/dev/sdg", AttachmentState::Attaching),
            attachment(3, "/dev/sdh", AttachmentState::Detaching),
        ],
        tags: [("Name".to_owned(), "quote \" and \u{fc}".to_owned())].into(),
        modification: Some(Modification {
            original: spec(VolumeType::Gp2, 100, 300),
            target,
            started: UnixMs(9),
            phase: ModificationPhase::Modifying,
        }),
        modification_starts: vec![UnixMs(1), UnixMs(9)],
        ..plain()
    }
}

fn modified(phase: ModificationPhase) -> Volume {
    let spec = spec(VolumeType::Gp3, 1, 3_000);
    let (original, target, started) = (spec, spec, UnixMs(9));
    let modification = Some(Modification { original, target, started, phase });
    Volume { spec, phase: Phase::Ready, modification, ..plain() }
}

fn host(address: HostAddress) -> Host {
    Host {
        id: InstanceId::from_bits(1),
        instance_type: "m5.large".into(),
        address,
        registered: UnixMs(4),
        state: HostState::Running,
        tags: [("k".to_owned(), "v".to_owned())].into(),
        zone: None,
    }
}

fn token() -> Token {
    Token { fingerprint: "f00d".into(), volume: VolumeId::from_bits(7), used: UnixMs(14) }
}

#[test]
fn every_event_has_its_bytes_and_the_bytes_their_event() {
    if std::env::var_os("EVENKEEL_WRITE").is_some() {
        let line = |event: &Event| String::from_utf8(encode(event).unwrap()).unwrap() + "\n";
        let text: String = events().iter().map(line).collect();
        let path = "src/journal/format/golden_6.txt";
        std::fs::write(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path), text).unwrap();
    }
    assert_eq!(GOLDEN_6.lines().count(), events().len());
    for (event, bytes) in events().into_iter().zip(GOLDEN_6.lines()) {
        let encoded = String::from_utf8(encode(&event).unwrap()).unwrap();
        assert_eq!(encoded, bytes);
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
}

#[test]
fn bytes_of_version_1_are_read() {
    assert_eq!(GOLDEN_1.lines().count(), events_1().len());
    for (event, bytes) in events_1().into_iter().zip(GOLDEN_1.lines()) {
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
    let with_snapshot =
        GOLDEN_2.lines().next().unwrap().replacen("\"version\":2", "\"version\":1", 1);
    let error = decode(with_snapshot.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("`snapshot`"), "{error}");
}

#[test]
fn bytes_of_version_2_are_read() {
    assert_eq!(GOLDEN_2.lines().count(), events_2().len());
    for (event, bytes) in events_2().into_iter().zip(GOLDEN_2.lines()) {
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
    let pending = GOLDEN_2.lines().find(|line| line.contains("\"pending\"")).unwrap();
    for (from, to, word) in [
        ("\"pending\"", "\"filling\"", "`filling`"),
        ("\"tags\"", "\"filled\":null,\"tags\"", "`filled`"),
    ] {
        let error = decode(pending.replace(from, to).as_bytes()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn bytes_of_version_3_are_read() {
    assert_eq!(GOLDEN_3.lines().count(), events_3().len());
    for (event, bytes) in events_3().into_iter().zip(GOLDEN_3.lines()) {
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
    let line = |word: &str| GOLDEN_3.lines().find(|line| line.contains(word)).unwrap();
    for (bytes, from, to, word) in [
        (line("\"pending\""), "\"pending\"", "\"copying\"", "`copying`"),
        (line("\"creating\""), "\"creating\"", "\"binned\"", "`binned`"),
        (line("\"creating\""), "\"tags\"", "\"encrypted\":true,\"tags\"", "`encrypted`"),
        (line("\"pending\""), "\"tags\"", "\"lock\":null,\"tags\"", "`lock`"),
        (line("m5.large"), "\"tags\"", "\"state\":{\"name\":\"stopped\"},\"tags\"", "`state`"),
        (
            line("\"attached_ms\""),
            "\"attached_ms\"",
            "\"delete_on_termination\":true,\"attached_ms\"",
            "`delete_on_termination`",
        ),
    ] {
        let error = decode(bytes.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    let account = r#"{"version":3,"kind":"account","event":{"encrypt_by_default":true}}"#;
    assert_eq!(decode(account.as_bytes()).unwrap_err(), FormatError::Kind("account".into()));
}

#[test]
fn bytes_of_version_4_are_read() {
    assert_eq!(GOLDEN_4.lines().count(), events_4().len());
    for (event, bytes) in events_4().into_iter().zip(GOLDEN_4.lines()) {
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
    let account = GOLDEN_5.lines().find(|line| line.contains("block-new-sharing")).unwrap();
    let account = account.replacen("\"version\":5", "\"version\":4", 1);
    let error = decode(account.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("`public_access`"), "{error}");
}

#[test]
fn bytes_of_version_5_are_read() {
    assert_eq!(GOLDEN_5.lines().count(), events_5().len());
    for (event, bytes) in events_5().into_iter().zip(GOLDEN_5.lines()) {
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
    for (has, word) in [("\"permanent_restore\"", "`tiering`"), ("local-1b", "`zone`")] {
        let bytes = GOLDEN_6.lines().find(|line| line.contains(has)).unwrap();
        let bytes = bytes.replacen("\"version\":6", "\"version\":5", 1);
        let error = decode(bytes.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// Fails to compile when there is a kind that [`events`] does not know.
#[test]
fn every_kind_has_a_golden_form() {
    let mut missing =
        ["volume", "volume_gone", "host", "host_gone", "token", "token_gone"].to_vec();
    missing.extend(["snapshot", "snapshot_gone", "account"]);
    for event in events() {
        let kind = match event {
            Event::Volume(_) => "volume",
            Event::VolumeGone(_) => "volume_gone",
            Event::Host(_) => "host",
            Event::HostGone(_) => "host_gone",
            Event::Token(..) => "token",
            Event::TokenGone(_) => "token_gone",
            Event::Snapshot(_) => "snapshot",
            Event::SnapshotGone(_) => "snapshot_gone",
            Event::Account(_) => "account",
        };
        missing.retain(|name| *name != kind);
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn what_is_unknown_is_an_error_that_says_so() {
    let error = |bytes: &str| decode(bytes.as_bytes()).unwrap_err();
    let newer = error(r#"{"version":7,"what":"ever"}"#);
    assert_eq!(newer, FormatError::Version(7));
    assert!(newer.to_string().contains("newer version (form 7, known up to 6)"), "{newer}");
    let kind = error(r#"{"version":1,"kind":"snapshot","event":{}}"#);
    assert_eq!(kind, FormatError::Kind("snapshot".into()));
    assert!(kind.to_string().contains("'snapshot'"), "{kind}");
    let of_type_gp9 = GOLDEN_1.lines().next().unwrap().replace("\"gp2\"", "\"gp9\"");
    for (bytes, reason) in [
        ("", "EOF"),
        ("[]", "no version"),
        (r#"{"version":0,"kind":"token_gone","event":{"name":"t"}}"#, "no version"),
        (r#"{"version":"1","kind":"token_gone","event":{"name":"t"}}"#, "no version"),
        (r#"{"version":1,"event":{"name":"t"}}"#, "`kind`"),
        (r#"{"version":1,"kind":"token_gone","event":{}}"#, "`name`"),
        (r#"{"version":1,"kind":"token_gone","event":{"name":"t","x":1}}"#, "`x`"),
        (r#"{"version":1,"kind":"token_gone","event":{"name":"t"},"x":1}"#, "`x`"),
        (r#"{"version":1,"kind":"volume_gone","event":{"id":"vol-x"}}"#, "'vol-x'"),
        (&of_type_gp9, "'gp9'"),
    ] {
        let error = error(bytes);
        assert!(matches!(error, FormatError::Malformed(_)), "{bytes}: {error}");
        assert!(error.to_string().contains(reason), "{bytes}: {error}");
    }
}
