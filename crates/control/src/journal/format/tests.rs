//! Golden bytes: after the first release, a change of any of them is a new form.

use super::*;

/// The bytes of [`events`], one event a line.
const GOLDEN: &str = include_str!("golden.txt");

/// Returns every kind of event, and every state of its parts.
pub fn events() -> Vec<Event> {
    let some = [of_volumes_and_hosts(), of_snapshots(), of_copies_and_states()].concat();
    [some, of_the_account(), of_tiers(), of_users()].concat()
}

fn of_users() -> Vec<Event> {
    let user = User {
        name: "Ann".into(),
        path: "/ops/".into(),
        id: "AIDAEVENKEEL".into(),
        created: UnixMs(32),
        keys: vec![],
        policies: BTreeMap::new(),
        attached: BTreeSet::new(),
    };
    let key = |id: &str, is_active| {
        let secret = Secret("s\"t".into());
        AccessKey { id: id.into(), secret, is_active, created: UnixMs(33) }
    };
    vec![
        Event::User(user.clone()),
        Event::User(User {
            keys: vec![key("EVKLA", true), key("EVKLB", false)],
            policies: [("own".to_owned(), "{}".to_owned())].into(),
            attached: ["arn:aws:iam::aws:policy/ReadOnlyAccess".to_owned()].into(),
            ..user
        }),
        Event::UserGone("ann".into()),
    ]
}

fn of_tiers() -> Vec<Event> {
    let data = ByteCount(4_096);
    let ended = UnixMs(16);
    let until = UnixMs(31);
    let tiered = |last| {
        let tiering = Tiering { last, began: UnixMs(30), archived: UnixMs(29) };
        let phase = SnapshotPhase::Completed { data, ended };
        Event::Snapshot(Snapshot { tiering: Some(tiering), ..snapshot(phase) })
    };
    vec![
        tiered(TierOperation::Archive),
        tiered(TierOperation::TemporaryRestore { until }),
        tiered(TierOperation::PermanentRestore),
        Event::Host(Host { zone: Some("local-1b".into()), ..host(HostAddress::Local) }),
    ]
}

fn of_the_account() -> Vec<Event> {
    let account = |public_access| Event::Account(Account { public_access, ..Account::default() });
    vec![
        Event::Account(Account::default()),
        Event::Account(Account { encrypt_by_default: Some(true), ..Account::default() }),
        account(PublicAccess::BlockNewSharing),
        account(PublicAccess::BlockAllSharing),
    ]
}

fn of_copies_and_states() -> Vec<Event> {
    let id = SnapshotId::from_bits(9);
    let entered = UnixMs(20);
    let until = UnixMs(21);
    let data = ByteCount(4_096);
    let ended = UnixMs(16);
    let mut attached = full();
    attached.attachments[0].delete_on_termination = true;
    let lock = |mode, until| {
        let lock = Lock { mode, created: UnixMs(17), cool_off_hours: 2, days: 30, until };
        Event::Snapshot(Snapshot { lock: Some(lock), ..snapshot(SnapshotPhase::Pending) })
    };
    let local = host(HostAddress::Local);
    vec![
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
            fast_restores: [(
                "local-1a".to_owned(),
                FastRestore { since: entered, credits: 5, counted: until },
            )]
            .into(),
            ..snapshot(SnapshotPhase::Completed { data, ended })
        }),
        Event::Host(Host { state: HostState::Stopped, ..local.clone() }),
        Event::Host(Host { state: HostState::Terminated { at: UnixMs(22) }, ..local }),
    ]
}

fn of_snapshots() -> Vec<Event> {
    let data = ByteCount(4_096);
    let ended = UnixMs(16);
    let filled = |parent, token| {
        let filled = Filled { parent, timeout_min: 60, token };
        Snapshot { filled: Some(filled), ..snapshot(SnapshotPhase::Filling) }
    };
    let token = ("t".to_owned(), "f00d".to_owned());
    vec![
        Event::Volume(Volume { snapshot: Some(SnapshotId::from_bits(8)), ..plain() }),
        Event::Snapshot(snapshot(SnapshotPhase::Pending)),
        Event::Snapshot(snapshot(SnapshotPhase::Completed { data, ended })),
        Event::Snapshot(snapshot(SnapshotPhase::Error("it is missing".into()))),
        Event::Snapshot(snapshot(SnapshotPhase::Deleting { data })),
        Event::SnapshotGone(SnapshotId::from_bits(8)),
        Event::Snapshot(filled(None, None)),
        Event::Snapshot(filled(Some(SnapshotId::from_bits(9)), Some(token))),
    ]
}

fn snapshot(phase: SnapshotPhase) -> Snapshot {
    let id = SnapshotId::from_bits(8);
    let volume_id = VolumeId::from_bits(7);
    Snapshot {
        description: "before \"it\"".into(),
        phase,
        tags: [("k".to_owned(), "v".to_owned())].into(),
        ..Snapshot::new(id, volume_id, 100, UnixMs(15))
    }
}

fn of_volumes_and_hosts() -> Vec<Event> {
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
    let original = spec;
    let target = spec;
    let started = UnixMs(9);
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
        let line = |event: &Event| encode(event).unwrap() + "\n";
        let text: String = events().iter().map(line).collect();
        let path = "src/journal/format/golden.txt";
        std::fs::write(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path), text).unwrap();
    }
    assert_eq!(GOLDEN.lines().count(), events().len());
    for (event, bytes) in events().into_iter().zip(GOLDEN.lines()) {
        assert_eq!(encode(&event).unwrap(), bytes);
        assert_eq!(decode(bytes.as_bytes()).unwrap(), event);
    }
}

/// Fails to compile if there is a kind that [`events`] does not contain.
#[test]
fn every_kind_has_a_golden_form() {
    let mut missing =
        ["volume", "volume_gone", "host", "host_gone", "token", "token_gone"].to_vec();
    missing.extend(["snapshot", "snapshot_gone", "account", "user", "user_gone"]);
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
            Event::User(_) => "user",
            Event::UserGone(_) => "user_gone",
        };
        missing.retain(|name| *name != kind);
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn undecodable_bytes_are_an_error_with_the_reason() {
    let error = |bytes: &str| decode(bytes.as_bytes()).unwrap_err();
    for form in [0, 2, 6] {
        let other = error(&format!(r#"{{"version":{form},"what":"ever"}}"#));
        assert_eq!(other, FormatError::Form(form));
        let words = format!("written in form {form}, and this program reads form 1");
        assert!(other.to_string().starts_with(&words), "{other}");
    }
    let kind = error(r#"{"version":1,"kind":"ship","event":{}}"#);
    assert_eq!(kind, FormatError::Kind("ship".into()));
    assert!(kind.to_string().contains("'ship'"), "{kind}");
    let of_type_gp9 = GOLDEN.lines().next().unwrap().replace("\"gp2\"", "\"gp9\"");
    for (bytes, reason) in [
        ("", "no JSON object"),
        ("[]", "no JSON object"),
        (r#"[1,"token_gone",{"name":"t"}]"#, "no JSON object"),
        ("{", "EOF"),
        (r#"{"kind":"token_gone","event":{"name":"t"}}"#, "`version`"),
        (r#"{"version":"1","kind":"token_gone","event":{"name":"t"}}"#, "expected u64"),
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

#[test]
fn a_moment_has_its_bytes() {
    let moment = Moment { unix: UnixMs(5), boot: Some(("b".into(), 7)) };
    let bytes = encode_moment(&moment).unwrap();
    assert_eq!(bytes, r#"{"unix_ms":5,"boot":["b",7]}"#);
    assert_eq!(decode_moment(bytes.as_bytes()), Ok(moment));
}
