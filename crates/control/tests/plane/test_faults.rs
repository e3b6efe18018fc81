//! Faults of a server for tests: what their targets meet, and that nothing else meets them.

use std::sync::Arc;

use crate::identity::{put, user};
use crate::support::{
    Answer, Client, FakeIo, Refused, Server, config_with, create, local_instance, test_config,
    text, unix_s,
};
use evenkeel_control::faults::FAULTS_MAX;
use evenkeel_control::{ControlConfig, Settings, TestIo};
use evenkeel_core::io_fault::IoFaultKind;
use evenkeel_wire::agent::Command;
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::xml::Element;

struct Fixture {
    server: Server,
    client: Client,
    io: Arc<FakeIo>,
    _folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let io = Arc::<FakeIo>::default();
    let test = Some(TestIo { faults: Arc::clone(&io) as _, feel: None });
    let config = ControlConfig { test, ..test_config(folder.path(), Settings::default()) };
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    Fixture { server, client, io, _folder: folder }
}

impl Fixture {
    fn start(&self, kind: &str, more: &[(&str, &str)]) -> String {
        let fixed = [("FaultType", kind)];
        let params: Vec<(&str, &str)> = fixed.iter().chain(more).copied().collect();
        let started = self.client.call("StartTestFault", &params).unwrap();
        text(started.child("testFault").unwrap(), "faultId").to_owned()
    }

    fn stop(&self, id: &str) {
        self.client.call("StopTestFaults", &[("FaultId.1", id)]).unwrap();
    }

    fn volume(&self, id: &str) -> Element {
        let reply = self.client.call("DescribeVolumes", &[("VolumeId.1", id)]).unwrap();
        reply.items("volumeSet")[0].clone()
    }
}

/// Sends a request once: the client of tests repeats one that is refused as too early.
fn once(client: &Client, action: &str) -> Answer {
    let body = query::encode([("Action", action), ("Version", "2016-11-15")]);
    let headers = client.signed_headers(&body, unix_s());
    client.send("POST", "/", &headers, body.as_bytes())
}

#[track_caller]
fn code(result: Result<Element, Refused>) -> (u16, String) {
    let Refused { status, code, .. } = result.unwrap_err();
    (status, code)
}

#[test]
fn requests_of_the_named_actions_get_the_error_and_others_do_not() {
    let fixture = fixture();
    let client = &fixture.client;
    for (kind, status, expected) in [
        ("api-throttle-error", 503, "RequestLimitExceeded"),
        ("api-internal-error", 500, "InternalError"),
        ("api-unavailable-error", 503, "Unavailable"),
    ] {
        let fault = fixture.start(kind, &[("Operation.1", "DescribeVolumes")]);
        let Answer { status: found, body } = once(client, "DescribeVolumes");
        assert_eq!(found, status, "{body}");
        assert!(body.contains(&format!("<Code>{expected}</Code>")), "{body}");
        client.call("DescribeInstances", &[]).unwrap();
        let listed = client.call("DescribeTestFaults", &[]).unwrap();
        assert_eq!(text(&listed.items("testFaultSet")[0], "requests"), "1");
        fixture.stop(&fault);
        client.call("DescribeVolumes", &[]).unwrap();
    }
    // One without actions concerns all of them, and still it can be stopped.
    let fault = fixture.start("api-unavailable-error", &[]);
    assert_eq!(code(client.call("DescribeInstances", &[])).0, 503);
    fixture.stop(&fault);
    let fault = fixture.start("insufficient-volume-capacity", &[]);
    let new = [("AvailabilityZone", "local-1a"), ("Size", "1")];
    let expected = (500, "InsufficientVolumeCapacity".to_owned());
    assert_eq!(code(client.call("CreateVolume", &new)), expected);
    assert_eq!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet").len(), 0);
    fixture.stop(&fault);
    create(client, &[]);
}

#[test]
fn an_attachment_is_stuck_until_the_fault_ends() {
    let fixture = fixture();
    let client = &fixture.client;
    let stuck = create(client, &[]);
    let other = create(client, &[]);
    let host = local_instance(client);
    let fault = fixture.start("stuck-attachment", &[("VolumeId.1", &stuck)]);
    let attach = |id: &str, device: &str| {
        let place = [("VolumeId", id), ("InstanceId", host.as_str()), ("Device", device)];
        client.call("AttachVolume", &place).unwrap();
    };
    attach(&stuck, "/dev/sdf");
    attach(&other, "/dev/sdg");
    let state = |id: &str| {
        let volume = fixture.volume(id);
        text(&volume.items("attachmentSet")[0], "status").to_owned()
    };
    // The tick, too, leaves it as it is.
    let later = evenkeel_os::clock::Deadline::after(std::time::Duration::from_millis(2_500));
    while later.pause(std::time::Duration::from_millis(500)) {
        assert_eq!((state(&stuck).as_str(), state(&other).as_str()), ("attaching", "attached"));
    }
    let detach = [("VolumeId", stuck.as_str())];
    assert_eq!(code(client.call("DetachVolume", &detach)), (400, "IncorrectState".to_owned()));
    fixture.stop(&fault);
    let end = evenkeel_os::clock::Deadline::after(std::time::Duration::from_secs(60));
    while state(&stuck) != "attached" {
        assert!(end.pause(std::time::Duration::from_millis(50)), "still attaching");
    }
    client.call("DetachVolume", &detach).unwrap();
}

#[test]
fn a_detachment_of_a_paused_volume_is_answered_at_once_and_ends_with_the_pause() {
    let fixture = fixture();
    let client = &fixture.client;
    let id = create(client, &[]);
    let host = local_instance(client);
    let place = [("VolumeId", &*id), ("InstanceId", &*host), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &place).unwrap();
    let fault = fixture.start("pause-volume-io", &[("VolumeId.1", &id)]);
    let calls = || fixture.server.agent.with(|state| state.log.len());
    let before = calls();
    let detaching = client.call("DetachVolume", &[("VolumeId", &id)]).unwrap();
    assert_eq!(text(&detaching, "status"), "detaching");
    let is_of_id =
        |command: &Command| matches!(command, Command::Apply(it) if it.id.to_string() == id);
    // The data plane would not answer. The tick, too, leaves the volume as it is.
    let later = evenkeel_os::clock::Deadline::after(std::time::Duration::from_millis(2_500));
    while later.pause(std::time::Duration::from_millis(500)) {
        let attachments = fixture.volume(&id).items("attachmentSet").to_vec();
        assert_eq!(text(&attachments[0], "status"), "detaching");
        let log = fixture.server.agent.with(|state| state.log[before..].to_vec());
        assert!(!log.iter().any(is_of_id), "{log:?}");
    }
    let snapshot = client.call("CreateSnapshot", &[("VolumeId", &id)]).unwrap();
    let snapshot = [("SnapshotId.1", text(&snapshot, "snapshotId"))];
    let described = client.call("DescribeSnapshots", &snapshot).unwrap();
    assert_eq!(text(&described.items("snapshotSet")[0], "status"), "completed");
    fixture.stop(&fault);
    let end = evenkeel_os::clock::Deadline::after(std::time::Duration::from_secs(60));
    while !fixture.volume(&id).items("attachmentSet").is_empty() {
        assert!(end.pause(std::time::Duration::from_millis(50)), "still detaching");
    }
}

#[test]
fn snapshots_of_the_named_volumes_end_in_error() {
    let fixture = fixture();
    let client = &fixture.client;
    let failing = create(client, &[]);
    let other = create(client, &[]);
    let fault = fixture.start("snapshot-error", &[("VolumeId.1", &failing)]);
    let state = |volume: &str| {
        let made = client.call("CreateSnapshot", &[("VolumeId", volume)]).unwrap();
        assert_eq!(text(&made, "status"), "pending");
        let id = text(&made, "snapshotId");
        let described = client.call("DescribeSnapshots", &[("SnapshotId.1", id)]).unwrap();
        text(&described.items("snapshotSet")[0], "status").to_owned()
    };
    assert_eq!(state(&failing), "error");
    assert_ne!(state(&other), "error");
    fixture.stop(&fault);
    assert_ne!(state(&failing), "error");
    assert_eq!(fixture.server.agent.with(|state| state.snapshots.len()), 2);
}

#[test]
fn faults_of_io_reach_the_store_and_end_with_the_server() {
    let fixture = fixture();
    let id = create(&fixture.client, &[]);
    fixture.start("pause-volume-io", &[("VolumeId.1", &id), ("DurationSeconds", "60")]);
    fixture.start("volume-io-error", &[("WritePercentage", "50")]);
    {
        let io = fixture.io.0.lock().unwrap();
        assert_eq!(io[0].kind, IoFaultKind::Pause);
        assert_eq!(io[0].volumes, [id.parse().unwrap()]);
        let errors = IoFaultKind::Error { reads_ppm: 0, writes_ppm: 500_000 };
        assert_eq!((io[1].kind, io[1].volumes.len()), (errors, 0));
    }
    let Fixture { server, io, .. } = fixture;
    drop(server);
    assert!(io.0.lock().unwrap().is_empty());
}

#[test]
fn a_parameter_of_other_faults_and_an_action_without_effect_are_refused_by_their_names() {
    let Fixture { client, .. } = &fixture();
    let start = |kind: &str, more: (&str, &str)| {
        client.call("StartTestFault", &[("FaultType", kind), more]).unwrap_err()
    };
    for (kind, parameter, flag, types) in [
        ("api-throttle-error", "VolumeId", "--volume", "pause-volume-io, volume-io-latency,"),
        ("pause-volume-io", "Operation", "--operation", "api-throttle-error, api-internal-error,"),
        ("insufficient-volume-capacity", "Operation", "--operation", "api-throttle-error,"),
        ("snapshot-error", "Percentage", "--percent", "insufficient-volume-capacity, api-thr"),
        ("volume-io-error", "ReadLatencyMilliseconds", "--read-ms", "volume-io-latency."),
    ] {
        let name = if parameter.ends_with('e') || parameter.ends_with('s') {
            parameter.to_owned()
        } else {
            format!("{parameter}.1")
        };
        let Refused { code, message, .. } = start(kind, (&name, "1"));
        assert_eq!(code, "InvalidParameterCombination", "{message}");
        let text = format!("{kind} has no parameter {parameter} ({flag}). These have it: {types}");
        assert!(message.contains(&text), "{message}");
    }
    let spared = start("api-internal-error", ("Operation.1", "ModifyTestClock"));
    assert!(spared.message.contains("(ModifyTestClock)"), "{}", spared.message);
    assert!(spared.message.contains("always answered"), "{}", spared.message);
    let unknown = start("api-internal-error", ("Operation.1", "Nope"));
    assert!(!unknown.message.contains("the nearest"), "{}", unknown.message);
    assert_eq!(client.call("DescribeTestFaults", &[]).unwrap().items("testFaultSet").len(), 0);
}

#[test]
fn another_server_injects_no_faults() {
    let folder = tempfile::tempdir().unwrap();
    let config = config_with(folder.path(), Settings::default());
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    let unsupported = (400, "UnsupportedOperation".to_owned());
    let pause = [("FaultType", "pause-volume-io")];
    assert_eq!(code(client.call("StartTestFault", &pause)), unsupported);
    assert_eq!(code(client.call("StopTestFaults", &[])), unsupported);
    assert_eq!(code(client.call("DescribeTestFaults", &[])), unsupported);
}

#[test]
fn a_dry_run_of_a_stop_or_a_start_answers_as_the_call_would() {
    let fixture = fixture();
    let dry = |action: &str, params: &[(&str, &str)]| {
        let params: Vec<_> = params.iter().copied().chain([("DryRun", "true")]).collect();
        fixture.client.code(action, &params)
    };
    let id = fixture.start("api-throttle-error", &[("Operation.1", "DescribeTags")]);
    assert_eq!(dry("StopTestFaults", &[]), "DryRunOperation");
    assert_eq!(dry("StopTestFaults", &[("FaultId.1", &id)]), "DryRunOperation");
    let unknown = [("FaultId.1", &*id), ("FaultId.2", "fault-77")];
    assert_eq!(dry("StopTestFaults", &unknown), "InvalidFault.NotFound");
    assert_eq!(fixture.client.code("StopTestFaults", &unknown), "InvalidFault.NotFound");
    let start = [("FaultType", "pause-volume-io")];
    assert_eq!(dry("StartTestFault", &start), "DryRunOperation");
    (1..FAULTS_MAX).for_each(|_| drop(fixture.start("api-throttle-error", &[])));
    assert_eq!(dry("StartTestFault", &start), "ResourceLimitExceeded");
    assert_eq!(fixture.client.code("StartTestFault", &start), "ResourceLimitExceeded");
    // A user without the right learns nothing else.
    fixture.client.call("StopTestFaults", &[]).unwrap();
    let user = user(&fixture.client, "ann");
    let code = |action: &str, params: &[(&str, &str)]| {
        let params: Vec<_> = params.iter().copied().chain([("DryRun", "true")]).collect();
        user.code(action, &params)
    };
    assert_eq!(code("StopTestFaults", &unknown), "UnauthorizedOperation");
    assert_eq!(code("ModifyTestClock", &[("AdvanceSeconds", "1")]), "UnauthorizedOperation");
    let allow = r#"[{"Effect":"Allow","Action":"evenkeel:*","Resource":"*"}]"#;
    put(&fixture.client, "ann", allow);
    assert_eq!(code("StopTestFaults", &unknown), "InvalidFault.NotFound");
    assert_eq!(code("StopTestFaults", &[]), "DryRunOperation");
    assert_eq!(code("ModifyTestClock", &[("AdvanceSeconds", "1")]), "DryRunOperation");
}

#[test]
fn a_dry_run_of_a_move_of_the_clock_answers_as_the_move_would() {
    let fixture = fixture();
    let client = &fixture.client;
    let hours = |hours: u64| (hours * 3_600).to_string();
    let most = hours(400 * 24);
    let more = hours(400 * 24 + 1);
    let shown = || {
        let reply = client.call("DescribeTestClock", &[]).unwrap();
        text(reply.child("testClock").unwrap(), "time")[..10].to_owned()
    };
    let before = shown();
    for (params, expected) in [
        (vec![("AdvanceSeconds", &*most)], "DryRunOperation"),
        (vec![("AdvanceSeconds", &*more)], "InvalidParameterValue"),
        (vec![("Time", "2020-01-01T00:00:00Z")], "InvalidParameterValue"),
        (vec![("Time", "2020-01-01T00:00:00Z"), ("State", "frozen")], "InvalidParameterValue"),
        (vec![("State", "frozen")], "DryRunOperation"),
    ] {
        let dry: Vec<_> = params.iter().copied().chain([("DryRun", "true")]).collect();
        assert_eq!(client.code("ModifyTestClock", &dry), expected, "{params:?}");
        if expected != "DryRunOperation" {
            assert_eq!(client.code("ModifyTestClock", &params), expected, "{params:?}");
        }
    }
    assert_eq!(shown(), before);
}

#[test]
fn a_copy_of_a_volume_whose_snapshot_fails_is_creating_and_then_removed() {
    let fixture = fixture();
    let client = &fixture.client;
    let failing = create(client, &[]);
    let fault = fixture.start("snapshot-error", &[("VolumeId.1", &failing)]);
    let copy = || {
        let copied = client.call("CopyVolumes", &[("SourceVolumeId", &failing)]).unwrap();
        let copy = &copied.items("volumeSet")[0];
        [text(copy, "volumeId").to_owned(), text(copy, "status").to_owned()]
    };
    let [failed, status] = copy();
    assert_eq!(status, "creating");
    let described = client.code("DescribeVolumes", &[("VolumeId.1", &failed)]);
    assert_eq!(described, "InvalidVolume.NotFound");
    assert_eq!(text(&fixture.volume(&failing), "status"), "available");
    let snapshots = client.call("DescribeSnapshots", &[]).unwrap();
    assert_eq!(snapshots.items("snapshotSet").len(), 0);
    fixture.stop(&fault);
    let [made, _] = copy();
    assert_eq!(text(&fixture.volume(&made), "volumeId"), made);
}
